// As expert_matmul_many.wgsl by cooperative matrices of EDGE rows and columns, operands in f16, sums in f32: a workgroup has BN rows of one expert's
// weights, and multiplies them with the rows of x of BM pairs at a time, in steps of BK columns. WARPS_N subgroups stand side by side, each with all
// of these pairs, FRAGMENTS_M matrices, and some rows of weights, FRAGMENTS_N.
//
// Weights are unpacked again for each BM pairs, which is why many are found before any is multiplied: the list is filled by SEGMENT pairs of all, until it
// may have no room for the next. Both tiles lie in workgroup memory, one behind the other, in lines of k; the next are fetched while they are used.
// Beyond the last column there are zeros; beyond the last pair and the last row of weights is the last one again, which nobody stores.
// RAW_X: rows of x are stored as f16, in whole eights. EVEN_K: k is whole steps. ITEMS: those of a row of weights in a step.
// UNIT: halves, and sums, in an element of workgroup memory, 4 where a matrix may be moved through a pointer to vectors.

enable f16;
enable wgpu_cooperative_matrix;

const PITCH: u32 = BK + 8u; // from one line of a tile to the next
const TILE_B: u32 = BM * PITCH; // where the weights begin
const TILE: u32 = TILE_B + BN * PITCH - 8u; // nothing pads the last line
const EIGHTS: u32 = BK / 8u; // of a line
const ITEM_COLUMNS: u32 = 4u * QUADS;
var<workgroup> list: array<u32, LIST>;
var<workgroup> count: atomic<u32>;

fn halves(e: vec2<u32>) -> vec4<f16> { return vec4<f16>(vec4<f32>(unpack2x16float(e.x), unpack2x16float(e.y))); }

// The matrices of a step at a row of each tile.
fn fragment_a(s: u32, row: u32) -> coop_mat${EDGE}x${EDGE}<f16, A> {
  return coopLoadT<coop_mat${EDGE}x${EDGE}<f16, A>>(&tile[(row * PITCH + s * EDGE) / UNIT], PITCH / UNIT);
}
fn fragment_b(s: u32, row: u32) -> coop_mat${EDGE}x${EDGE}<f16, B> {
  return coopLoad<coop_mat${EDGE}x${EDGE}<f16, B>>(&tile[(TILE_B + row * PITCH + s * EDGE) / UNIT], PITCH / UNIT);
}

// The experts of four pairs from pair i on; beyond the last pair those of others.
fn experts_of(i: u32) -> vec4<u32> {
#if VEC_IDS
  return vec4<u32>(load4_2(select(0u, i, i < p.pairs)));
#else
  let last = p.pairs - 1u;
  return vec4<u32>(u32(load_2(min(i, last))), u32(load_2(min(i + 1u, last))), u32(load_2(min(i + 2u, last))), u32(load_2(min(i + 3u, last))));
#endif
}

// Where the row of x of a pair begins: in eights, or in rows.
fn place_x(pair: u32) -> u32 {
#if RAW_X
  return (p.x_start + p.x_offset) / 8u + pair / p.per * p.x_line;
#else
  return pair / p.per;
#endif
}

// Eight of that row from column c on.
fn eight_x(at: u32, c: u32) -> vec4<u32> {
#if RAW_X && EVEN_K
  return raw_0[at + c / 8u];
#elif RAW_X
  return select(vec4<u32>(), raw_0[at + min(c, p.k - 8u) / 8u], c < p.k);
#else
  let lo = x_quad(at, c / 4u); let hi = x_quad(at, c / 4u + 1u);
  return vec4<u32>(pack2x16float(lo.xy), pack2x16float(lo.zw), pack2x16float(hi.xy), pack2x16float(hi.zw));
#endif
}

// Item i of a row of weights, or the last one.
fn item_of(i: u32) -> u32 {
#if EVEN_K
  return i;
#else
  return min(i, (p.k + ITEM_COLUMNS - 1u) / ITEM_COLUMNS - 1u);
#endif
}

#if BIASED
// The biases of four rows of weights from row n on; beyond the last row those of others.
fn bias4(expert: u32, n: u32) -> vec4<f32> {
  let at = expert * p.n;
#if VEC_OUT
  return vec4<f32>(load4_3(at + min(n, p.n - 4u)));
#else
  let i = vec4<u32>(at) + min(vec4<u32>(n, n + 1u, n + 2u, n + 3u), vec4<u32>(p.n - 1u));
  return vec4<f32>(f32(load_3(i.x)), f32(load_3(i.y)), f32(load_3(i.z)), f32(load_3(i.w)));
#endif
}
#endif

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * p.groups_x + wid.x;
  if (group >= p.experts * p.tiles) { return; }
  let expert = group / p.tiles; let n0 = group % p.tiles * BN;
  let sub = lid / SUBGROUP; let lane = lid % SUBGROUP;
  let wn = sub * (FRAGMENTS_N * EDGE);
  var acc: array<coop_mat${EDGE}x${EDGE}<f32, C>, FRAGMENTS_M * FRAGMENTS_N>;
  var ids: array<vec4<u32>, VEC4_READS>;
  var row_a: array<u32, LOADS_A>;
  var row_b: array<u32, LOADS_B>;
  var next_a: array<vec4<u32>, LOADS_A>;
  var next_b: array<vec4<u32>, LOADS_B>;
#if PLANES > 1
  var second_b: array<vec4<u32>, LOADS_B>;
#endif
#if PLANES > 2
  var third_b: array<vec4<u32>, LOADS_B>;
#endif
#unroll UNROLL
  for (var f = 0u; f < LOADS_B; f++) { row_b[f] = place(expert * p.n + min(n0 + (lid + f * WORKGROUP) / ITEMS, p.n - 1u)); }
#if !UNROLL
  // A compiler does not know that it is 0: it would write loops out, which takes minutes.
  let zero = p.pairs >> 31u;
#endif
  var base = 0u;
  while (base < p.pairs) {
    if (lid == 0u) { atomicStore(&count, 0u); }
    workgroupBarrier();
    var found = 0u;
    while (base < p.pairs && found <= LIST - SEGMENT) {
#unroll UNROLL
      for (var t = 0u; t < VEC4_READS; t++) { ids[t] = experts_of(base + 4u * (lid + t * WORKGROUP)); }
#unroll UNROLL
      for (var t = 0u; t < VEC4_READS; t++) {
#unroll UNROLL
        for (var e = 0u; e < 4u; e++) {
          // A negative i32 is a large u32.
          let pair = base + 4u * (lid + t * WORKGROUP) + e; let id = ids[t][e];
          if (pair < p.pairs && id == expert) { list[atomicAdd(&count, 1u)] = pair; }
          if (id >= p.experts) { fail(id); }
        }
      }
      base += SEGMENT;
      workgroupBarrier();
      found = atomicLoad(&count);
      workgroupBarrier();
    }
    for (var m0 = 0u; m0 < found; m0 += BM) {
#unroll UNROLL
      for (var f = 0u; f < LOADS_A; f++) { row_a[f] = place_x(list[min(m0 + (lid + f * WORKGROUP) / EIGHTS, found - 1u)]); }
#unroll UNROLL
      for (var e = 0u; e < FRAGMENTS_M * FRAGMENTS_N; e++) { acc[e] = coop_mat${EDGE}x${EDGE}<f32, C>(); }
#include "expert_coop_fetch.wgsl" COLUMN = 0u
      for (var k0 = 0u; k0 < p.k; k0 += BK) {
#include "expert_coop_stage.wgsl"
        workgroupBarrier();
        if (k0 + BK < p.k) {
#include "expert_coop_fetch.wgsl" COLUMN = "(k0 + BK)"
        }
#unroll UNROLL
        for (var s = 0u; s < STEPS + zero; s++) {
          var x: array<coop_mat${EDGE}x${EDGE}<f16, A>, FRAGMENTS_M>;
#unroll UNROLL
          for (var i = 0u; i < FRAGMENTS_M; i++) { x[i] = fragment_a(s, i * EDGE); }
#unroll UNROLL
          for (var j = 0u; j < FRAGMENTS_N + zero; j++) {
            let y = fragment_b(s, wn + j * EDGE);
#unroll UNROLL
            for (var i = 0u; i < FRAGMENTS_M; i++) { acc[i * FRAGMENTS_N + j] = coopMultiplyAdd(x[i], y, acc[i * FRAGMENTS_N + j]); }
          }
        }
        workgroupBarrier();
      }
#include "expert_coop_store.wgsl"
    }
  }
}

#if COOP_VECTORS
#include "coop_tile_vectors.wgsl"
fn put4(at: u32, v: vec4<f32>) { tile[at] = vec4<f16>(v); }
#else
#include "coop_tile_scalars.wgsl"
fn put4(at: u32, v: vec4<f32>) {
  let h = vec4<f16>(v);
  tile[at] = h.x; tile[at + 1u] = h.y; tile[at + 2u] = h.z; tile[at + 3u] = h.w;
}
#endif
#include "gemm_coop_staging.wgsl"
#include "subgroup_barrier.wgsl"
#include "expert_operands.wgsl"
#include "weights_loads.wgsl" S = "", N = 1, START = "p.w_start + p.w_offset", K = p.k
