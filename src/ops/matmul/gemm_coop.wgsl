// Tiled matrix product by cooperative matrices of EDGE rows and columns, operands in f16, sums in f32: out[m, n] = sum over k of a[m, k] * b[n, k].
//
// WARPS_M * WARPS_N subgroups, each with FRAGMENTS_M * FRAGMENTS_N matrices. Both tiles lie in workgroup memory, one behind the other, and the next
// are fetched while they are used (gemm_coop_operand.wgsl). A matrix's elements cannot be touched: ACROSS of them at a time leave through a strip
// of memory of their
// subgroup, whose rows then go by eights (EIGHT_OUT), by quads (VEC_OUT), or by what quads lie aligned in memory and one by one at the
// edges (RAGGED). FULL: every column of a tile is there, in eights, and a row beyond the end is the last one again, so nothing branches on a
// thread.
// PREFETCH: a step's matrices are loaded while those of the step before are multiplied, of which STEPS is an even number; once the last step's
// are there, the next tile takes the place of this one amid the multiplying.
// SPLIT: SPLITS workgroups share k; each leaves its sums in common memory and counts itself, and the last one adds them in their order.
// UNIT: halves, and sums, in an element of workgroup memory, 4 where a matrix may be moved through a pointer to vectors.

enable f16;
enable wgpu_cooperative_matrix;

const TILE: u32 = TILE_A + TILE_B - 8u; // nothing pads the last line
const BM: u32 = WARPS_M * FRAGMENTS_M * EDGE;
const BN: u32 = WARPS_N * FRAGMENTS_N * EDGE;
const BAND: u32 = 8; // tiles in m that share a tile of b before the next one's turn
const WIDE: u32 = ACROSS * EDGE; // columns of a strip
const PITCH: u32 = WIDE + 4u;
const STRIP: u32 = EDGE * PITCH;
const EIGHTS: u32 = EDGE * WIDE / 8u; // of a strip
const MORE_A: u32 = select(1u, ITEMS_A, LOOSE_A == 1u);
const MORE_B: u32 = select(1u, ITEMS_B, LOOSE_B == 1u);
const CELLS: u32 = BM * BN / 8u; // eights of a tile
var<workgroup> arrived: u32;
var<private> row_start: u32;

fn halves(e: vec2<u32>) -> vec4<f16> { return vec4<f16>(vec4<f32>(unpack2x16float(e.x), unpack2x16float(e.y))); }

// The eight of a tile that a thread takes at its turn: where lines have four, the second four of eight neighbours take the line four below,
// not the next one, whose places are in some of the same banks.
fn seat(u: u32, long: u32) -> u32 { return select(u, (u & ~28u) | ((u & 4u) << 2u) | ((u & 24u) >> 1u), long == 32u); }

// The matrices of a step at a row of each tile.
fn left(s: u32, row: u32) -> coop_mat${EDGE}x${EDGE}<f16, A> {
#if TURNED_A
  {
    return coopLoad<coop_mat${EDGE}x${EDGE}<f16, A>>(&tile[(s * EDGE * PITCH_A + row) / UNIT], PITCH_A / UNIT);
  }
#else
  {
    return coopLoadT<coop_mat${EDGE}x${EDGE}<f16, A>>(&tile[(row * PITCH_A + s * EDGE) / UNIT], PITCH_A / UNIT);
  }
#endif
}

fn right(s: u32, row: u32) -> coop_mat${EDGE}x${EDGE}<f16, B> {
#if TURNED_B
  {
    return coopLoadT<coop_mat${EDGE}x${EDGE}<f16, B>>(&tile[(TILE_A + s * EDGE * PITCH_B + row) / UNIT], PITCH_B / UNIT);
  }
#else
  {
    return coopLoad<coop_mat${EDGE}x${EDGE}<f16, B>>(&tile[(TILE_A + row * PITCH_B + s * EDGE) / UNIT], PITCH_B / UNIT);
  }
#endif
}

// Eight results of a row, of which `there` are columns.
fn leave(i: u32, there: u32, v: vec4<f32>, w: vec4<f32>) {
#if EIGHT_OUT
  {
    store8_0(i, v, w);
  }
#else
  {
#if VEC_OUT
    {
      store4_0(i, v);
      if (there > 4u) { store4_0(i + 4u, w); }
    }
#else
    {
      if (there > 0u) { store_0(i, v.x); } if (there > 1u) { store_0(i + 1u, v.y); }
      if (there > 2u) { store_0(i + 2u, v.z); } if (there > 3u) { store_0(i + 3u, v.w); }
      if (there > 4u) { store_0(i + 4u, w.x); } if (there > 5u) { store_0(i + 5u, w.y); }
      if (there > 6u) { store_0(i + 6u, w.z); } if (there > 7u) { store_0(i + 7u, w.w); }
    }
#endif
  }
#endif
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  // Those that are too many do what the last one does; where k is shared there are none.
  var group = min(wid.y * p.groups_x + wid.x, p.groups - 1u);
  let tiles = p.tiles_n; let downs = p.tiles_m;
  var begin = 0u; var size = p.k;
  let block = group / SPLITS; let split = group % SPLITS;
#if SPLIT
  {
    group = block;
    begin = split * p.split_k; size = min(begin + p.split_k, size);
  }
#endif
  let batch = group / (tiles * downs);
  let rest = group % (tiles * downs);
  let band = rest / (BAND * tiles) * BAND; let within = rest % (BAND * tiles);
  let tall = min(BAND, downs - band);
  let m0 = (band + within % tall) * BM; let n0 = within / tall * BN;
  let rows = p.m; let cols = p.n;
  let sub = lid / SUBGROUP; let lane = lid % SUBGROUP;
  let wm = sub / WARPS_N * (FRAGMENTS_M * EDGE); let wn = sub % WARPS_N * (FRAGMENTS_N * EDGE);
  var acc: array<coop_mat${EDGE}x${EDGE}<f32, C>, FRAGMENTS_M * FRAGMENTS_N>;
#unroll UNROLL
  for (var e = 0u; e < FRAGMENTS_M * FRAGMENTS_N; e++) { acc[e] = coop_mat${EDGE}x${EDGE}<f32, C>(); }
  var next_a: array<vec4<u32>, ITEMS_A>;
  var next_b: array<vec4<u32>, ITEMS_B>;
  var more_a: array<vec4<u32>, MORE_A>;
  var more_b: array<vec4<u32>, MORE_B>;
  let from_a = base_a(batch); let from_b = base_b(batch);
#include "gemm_coop_fetch.wgsl" K = "begin"
#if PREFETCH
  {
    var x: array<coop_mat${EDGE}x${EDGE}<f16, A>, 2u * FRAGMENTS_M>;
    var y: array<coop_mat${EDGE}x${EDGE}<f16, B>, 2u * FRAGMENTS_N>;
#include "gemm_coop_stage.wgsl" K = "begin"
    if (begin + BK < size) {
#include "gemm_coop_fetch.wgsl" K = "begin + BK"
    }
    workgroupBarrier();
#unroll UNROLL
    for (var i = 0u; i < FRAGMENTS_M; i++) { x[i] = left(0u, wm + i * EDGE); }
#unroll UNROLL
    for (var j = 0u; j < FRAGMENTS_N; j++) { y[j] = right(0u, wn + j * EDGE); }
    for (var k0 = begin; k0 < size; k0 += BK) {
#unroll UNROLL
      for (var s = 0u; s < STEPS; s++) {
        let t = (s + 1u) % STEPS;
#unroll UNROLL
        for (var i = 0u; i < FRAGMENTS_M; i++) { x[t % 2u * FRAGMENTS_M + i] = left(t, wm + i * EDGE); }
#unroll UNROLL
        for (var j = 0u; j < FRAGMENTS_N; j++) { y[t % 2u * FRAGMENTS_N + j] = right(t, wn + j * EDGE); }
        let free = s + 2u == STEPS;
        if (free) { workgroupBarrier(); }
#unroll UNROLL
        for (var j = 0u; j < HALF; j++) {
#unroll UNROLL
          for (var i = 0u; i < FRAGMENTS_M; i++) { acc[i * FRAGMENTS_N + j] = coopMultiplyAdd(x[s % 2u * FRAGMENTS_M + i], y[s % 2u * FRAGMENTS_N + j], acc[i * FRAGMENTS_N + j]); }
        }
        if (free) {
#include "gemm_coop_stage.wgsl" K = "k0 + BK"
          if (k0 + 2u * BK < size) {
#include "gemm_coop_fetch.wgsl" K = "k0 + 2u * BK"
          }
        }
#unroll UNROLL
        for (var h = 0u; h < OTHERS; h++) {
          let j = HALF + h;
#unroll UNROLL
          for (var i = 0u; i < FRAGMENTS_M; i++) { acc[i * FRAGMENTS_N + j] = coopMultiplyAdd(x[s % 2u * FRAGMENTS_M + i], y[s % 2u * FRAGMENTS_N + j], acc[i * FRAGMENTS_N + j]); }
        }
        if (free) { workgroupBarrier(); }
      }
    }
  }
#else
  {
    for (var k0 = begin; k0 < size; k0 += BK) {
#include "gemm_coop_stage.wgsl" K = "k0"
      workgroupBarrier();
      if (k0 + BK < size) {
#include "gemm_coop_fetch.wgsl" K = "k0 + BK"
      }
#unroll UNROLL
      for (var s = 0u; s < STEPS; s++) {
        var x: array<coop_mat${EDGE}x${EDGE}<f16, A>, FRAGMENTS_M>;
#unroll UNROLL
        for (var i = 0u; i < FRAGMENTS_M; i++) { x[i] = left(s, wm + i * EDGE); }
#unroll UNROLL
        for (var j = 0u; j < FRAGMENTS_N; j++) {
          let y = right(s, wn + j * EDGE);
#unroll UNROLL
          for (var i = 0u; i < FRAGMENTS_M; i++) { acc[i * FRAGMENTS_N + j] = coopMultiplyAdd(x[i], y, acc[i * FRAGMENTS_N + j]); }
        }
      }
      workgroupBarrier();
    }
  }
#endif
#if FULL
  // What all rows are combined with is read once: a thread has the same columns in each turn of a strip, and in each strip below it.
  var same: array<Columns_0, STRIPS>;
  {
    row_start = 0u;
#unroll UNROLL
    for (var h = 0u; h < STRIPS; h++) { same[h] = columns8_0(n0 + wn + h * WIDE + lane % (WIDE / 8u) * 8u); }
  }
#endif
  let own = COUNTERS + group * SPLITS * (8u * CELLS);
#unroll UNROLL
  for (var i = 0u; i < FRAGMENTS_M; i++) {
#unroll UNROLL
    for (var h = 0u; h < STRIPS; h++) {
      let start = sub * STRIP;
#unroll UNROLL
      for (var j = 0u; j < ACROSS; j++) {
        let value = acc[i * FRAGMENTS_N + h * ACROSS + j];
        let at = (start + j * EDGE) / UNIT; let pitch = PITCH / UNIT;
        coopStoreT(value, &strip[at], pitch);
      }
      subgroup_barrier();
#if RAGGED
      {
        // Rows begin anywhere: the aligned quads of each, two for a thread; what is left of it at both ends follows the last.
        for (var u = lane; u < EIGHTS; u += SUBGROUP) {
          let r = u / (WIDE / 8u); let c = u % (WIDE / 8u) * 8u;
          let m = m0 + wm + i * EDGE + r; let n = n0 + wn + h * WIDE + c;
          if (m < rows) {
            row_start = (batch * rows + m) * cols;
            let left = n - c; let first = row_start + left;
            let shift = (0u - first) % 4u;
            for (var q = 0u; q < 2u; q++) {
              let to = shift + c + 4u * q;
              let line = start + r * PITCH;
              if (to + 4u <= WIDE && left + to + 4u <= cols) {
                store4_0(first + to, vec4<f32>(sum(line + to), sum(line + to + 1u), sum(line + to + 2u), sum(line + to + 3u)));
              } else {
                for (var e = 0u; e < 4u; e++) {
                  let x = (to + e) % WIDE;
                  if (left + x < cols) { store_0(first + x, sum(line + x)); }
                }
              }
            }
          }
        }
        subgroup_barrier();
      }
#else
      {
        // The strip is free for the next matrices before these sums have left.
        var v: array<vec4<f32>, TURNS>; var w: array<vec4<f32>, TURNS>;
#if UNROLL
#unroll
        for (var q = 0u; q < TURNS; q++) {
#else
        // The bound is one that a compiler does not know: it would write the loop out, which takes minutes.
        for (var q = 0u; q < TURNS + (p.n >> 31u); q++) {
#endif
          let u = min(lane + q * SUBGROUP, EIGHTS - 1u);
          let at = start + u / (WIDE / 8u) * PITCH + u % (WIDE / 8u) * 8u;
          v[q] = sums(at); w[q] = sums(at + 4u);
        }
        subgroup_barrier();
#if UNROLL
#unroll
        for (var q = 0u; q < TURNS; q++) {
#else
        // The bound is one that a compiler does not know: it would write the loop out, which takes minutes.
        for (var q = 0u; q < TURNS + (p.n >> 31u); q++) {
#endif
          let u = lane + q * SUBGROUP;
          let m = m0 + wm + i * EDGE + u / (WIDE / 8u); let n = n0 + wn + h * WIDE + u % (WIDE / 8u) * 8u;
#if SPLIT
          {
            let cell = own + split * (8u * CELLS) + ((m - m0) * BN + n - n0) / 8u;
            if (u < EIGHTS) {
              atomicStore(&scratch[cell], bitcast<u32>(v[q].x)); atomicStore(&scratch[cell + CELLS], bitcast<u32>(v[q].y));
              atomicStore(&scratch[cell + 2u * CELLS], bitcast<u32>(v[q].z)); atomicStore(&scratch[cell + 3u * CELLS], bitcast<u32>(v[q].w));
              atomicStore(&scratch[cell + 4u * CELLS], bitcast<u32>(w[q].x)); atomicStore(&scratch[cell + 5u * CELLS], bitcast<u32>(w[q].y));
              atomicStore(&scratch[cell + 6u * CELLS], bitcast<u32>(w[q].z)); atomicStore(&scratch[cell + 7u * CELLS], bitcast<u32>(w[q].w));
            }
          }
#else
          {
#if FULL
            {
              row_start = (batch * rows + min(m, rows - 1u)) * cols;
              write8_0(row_start + n, v[q], w[q], same[h]);
            }
#else
            {
              row_start = (batch * rows + m) * cols;
              if (u < EIGHTS && m < rows && n < cols) { leave(row_start + n, cols - n, v[q], w[q]); }
            }
#endif
          }
#endif
        }
      }
#endif
    }
  }
#if SPLIT
  {
    storageBarrier();
    if (lid == 0u) { arrived = atomicAdd(&scratch[group], 1u); }
    if (workgroupUniformLoad(&arrived) != SPLITS - 1u) { return; }
    storageBarrier();
    for (var u = lid; u < CELLS; u += WORKGROUP) {
      let m = m0 + u / (BN / 8u); let n = n0 + u % (BN / 8u) * 8u;
      var v = vec4<f32>(); var w = vec4<f32>();
#unroll UNROLL
      for (var p = 0u; p < SPLITS; p++) {
        let cell = own + p * (8u * CELLS) + u;
        let x = vec4<u32>(atomicLoad(&scratch[cell]), atomicLoad(&scratch[cell + CELLS]), atomicLoad(&scratch[cell + 2u * CELLS]), atomicLoad(&scratch[cell + 3u * CELLS]));
        let y = vec4<u32>(atomicLoad(&scratch[cell + 4u * CELLS]), atomicLoad(&scratch[cell + 5u * CELLS]), atomicLoad(&scratch[cell + 6u * CELLS]), atomicLoad(&scratch[cell + 7u * CELLS]));
        v += bitcast<vec4<f32>>(x); w += bitcast<vec4<f32>>(y);
      }
      row_start = (batch * rows + m) * cols;
      if (m < rows && n < cols) { leave(row_start + n, cols - n, v, w); }
    }
    if (lid == 0u) { atomicStore(&scratch[group], 0u); }
  }
#endif
}

#if COOP_VECTORS
#include "coop_tile_vectors.wgsl"
// Memory of the strips through which results leave.
var<workgroup> strip: array<vec4<f32>, WARPS_M * WARPS_N * STRIP / 4u>;
fn sum(at: u32) -> f32 { return strip[at / 4u][at % 4u]; }
fn sums(at: u32) -> vec4<f32> { return strip[at / 4u]; }
#else
#include "coop_tile_scalars.wgsl"
var<workgroup> strip: array<f32, WARPS_M * WARPS_N * STRIP>;
fn sum(at: u32) -> f32 { return strip[at]; }
fn sums(at: u32) -> vec4<f32> { return vec4<f32>(strip[at], strip[at + 1u], strip[at + 2u], strip[at + 3u]); }
#endif
${SUBGROUP_BARRIER}
#include "gemm_coop_operand.wgsl" x = a, X = A, LOAD = 0, HALVES = ${HALVES_A}, BLOCKS = 0, VEC = ${VEC_A}, WHOLE = ${WHOLE_A}, FOLDED = ${FOLDED_A}, LOOSE = ${LOOSE_A}, LATE = 1
#include "gemm_coop_operand.wgsl" x = b, X = B, LOAD = 1, HALVES = ${HALVES_B}, BLOCKS = ${BLOCKS_B}, VEC = ${VEC_B}, WHOLE = ${WHOLE_B}, FOLDED = 0, LOOSE = ${LOOSE_B}, LATE = 1
#if BLOCKS_B
#include "weights_quads.wgsl" N = 1, S = "", START = "p.blocks_start + p.blocks_offset", K = p.k, SMALL = p.m
#endif
