// Tiled matrix product by cooperative matrices of EDGE rows and columns, operands in f16, sums in f32: out[m, n] = sum over k of a[m, k] * b[n, k].
//
// WARPS_M * WARPS_N subgroups, each with FRAGMENTS_M * FRAGMENTS_N matrices. Both tiles lie in workgroup memory, one behind the other, and the next
// are fetched while they are used (gemm_coop_operand.wgsl). How results leave: gemm_coop_store.wgsl.
// PREFETCH: a step's matrices are loaded while those of the step before are multiplied, of which STEPS is an even number; once the last step's
// are there, the next tile takes the place of this one amid the multiplying.
// SPLIT: SPLITS workgroups share k.
// UNIT: halves, and sums, in an element of workgroup memory, 4 where a matrix may be moved through a pointer to vectors.

enable f16;
enable wgpu_cooperative_matrix;

const TILE: u32 = TILE_A + TILE_B - 8u; // nothing pads the last line
const BM: u32 = WARPS_M * FRAGMENTS_M * EDGE;
const BN: u32 = WARPS_N * FRAGMENTS_N * EDGE;
const GROUP_M: u32 = 8; // tiles in m that share a tile of b before the next one's turn

fn halves(e: vec2<u32>) -> vec4<f16> { return vec4<f16>(vec4<f32>(unpack2x16float(e.x), unpack2x16float(e.y))); }

// The eight of a tile that a thread takes at its turn: where lines have four, the second four of eight neighbours take the line four below,
// not the next one, whose places are in some of the same banks.
fn swizzled(u: u32, long: u32) -> u32 { return select(u, (u & ~28u) | ((u & 4u) << 2u) | ((u & 24u) >> 1u), long == 32u); }

// The matrices of a step at a row of each tile.
fn fragment_a(s: u32, row: u32) -> coop_mat${EDGE}x${EDGE}<f16, A> {
#if TRANSPOSED_A
  {
    return coopLoad<coop_mat${EDGE}x${EDGE}<f16, A>>(&tile[(s * EDGE * PITCH_A + row) / UNIT], PITCH_A / UNIT);
  }
#else
  {
    return coopLoadT<coop_mat${EDGE}x${EDGE}<f16, A>>(&tile[(row * PITCH_A + s * EDGE) / UNIT], PITCH_A / UNIT);
  }
#endif
}

fn fragment_b(s: u32, row: u32) -> coop_mat${EDGE}x${EDGE}<f16, B> {
#if TRANSPOSED_B
  {
    return coopLoadT<coop_mat${EDGE}x${EDGE}<f16, B>>(&tile[(TILE_A + s * EDGE * PITCH_B + row) / UNIT], PITCH_B / UNIT);
  }
#else
  {
    return coopLoad<coop_mat${EDGE}x${EDGE}<f16, B>>(&tile[(TILE_A + row * PITCH_B + s * EDGE) / UNIT], PITCH_B / UNIT);
  }
#endif
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  // Those that are too many do what the last one does; where k is shared there are none.
  var group = min(wid.y * p.groups_x + wid.x, p.groups - 1u);
  let tiles_n = p.tiles_n; let tiles_m = p.tiles_m;
  var begin = 0u; var size = p.k;
  let block = group / SPLITS; let split = group % SPLITS;
#if SPLIT
  {
    group = block;
    begin = split * p.split_k; size = min(begin + p.split_k, size);
  }
#endif
  let batch = group / (tiles_n * tiles_m);
  let rest = group % (tiles_n * tiles_m);
  let group0 = rest / (GROUP_M * tiles_n) * GROUP_M; let within = rest % (GROUP_M * tiles_n);
  let group_rows = min(GROUP_M, tiles_m - group0);
  let m0 = (group0 + within % group_rows) * BM; let n0 = within / group_rows * BN;
  let rows = p.m; let cols = p.n;
  let sub = lid / SUBGROUP; let lane = lid % SUBGROUP;
  let wm = sub / WARPS_N * (FRAGMENTS_M * EDGE); let wn = sub % WARPS_N * (FRAGMENTS_N * EDGE);
  var acc: array<coop_mat${EDGE}x${EDGE}<f32, C>, FRAGMENTS_M * FRAGMENTS_N>;
#unroll UNROLL
  for (var e = 0u; e < FRAGMENTS_M * FRAGMENTS_N; e++) { acc[e] = coop_mat${EDGE}x${EDGE}<f32, C>(); }
  var next_a: array<vec4<u32>, LOADS_A>;
  var next_b: array<vec4<u32>, LOADS_B>;
#if UNALIGNED_A
  var after_a: array<vec4<u32>, LOADS_A>;
#endif
#if UNALIGNED_B
  var after_b: array<vec4<u32>, LOADS_B>;
#endif
  let start_a = batch_start_a(batch); let start_b = batch_start_b(batch);
#include "gemm_coop_fetch.wgsl" K = "begin"
#if PREFETCH
  {
#include "gemm_coop_prefetch.wgsl"
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
        for (var i = 0u; i < FRAGMENTS_M; i++) { x[i] = fragment_a(s, wm + i * EDGE); }
#unroll UNROLL
        for (var j = 0u; j < FRAGMENTS_N; j++) {
          let y = fragment_b(s, wn + j * EDGE);
#unroll UNROLL
          for (var i = 0u; i < FRAGMENTS_M; i++) { acc[i * FRAGMENTS_N + j] = coopMultiplyAdd(x[i], y, acc[i * FRAGMENTS_N + j]); }
        }
      }
      workgroupBarrier();
    }
  }
#endif
#if ELEMENTS
#include "gemm_coop_elements.wgsl"
#else
#include "gemm_coop_store.wgsl"
#endif
}

#if COOP_VECTORS
#include "coop_tile_vectors.wgsl"
#else
#include "coop_tile_scalars.wgsl"
#endif
#if ELEMENTS
var<private> row_start: u32;
#include "coop_elements.wgsl" SUBGROUPS = "WARPS_M * WARPS_N", MAKE = 0
#else
#include "gemm_coop_staging.wgsl"
#endif
#include "subgroup_barrier.wgsl"
#include "gemm_coop_operand.wgsl" x = a, X = A, LOAD = 0, LINES = a, ROWS = p.m, K = p.k, TILE_ROWS = BM, TILE_K = BK, TRANSPOSED = ${TRANSPOSED_A}, EVEN_K = ${EVEN_K}, RAW = ${RAW_A}, BLOCKS = 0, VEC = ${VEC_A}, FOLDED = ${FOLDED_A}, UNALIGNED = ${UNALIGNED_A}, DEFERRED = 1
#include "gemm_coop_operand.wgsl" x = b, X = B, LOAD = 1, LINES = b, ROWS = p.n, K = p.k, TILE_ROWS = BN, TILE_K = BK, TRANSPOSED = ${TRANSPOSED_B}, EVEN_K = ${EVEN_K}, RAW = ${RAW_B}, BLOCKS = ${BLOCKS_B}, VEC = ${VEC_B}, FOLDED = 0, UNALIGNED = ${UNALIGNED_B}, DEFERRED = 1
#if BLOCKS_B
#include "weights_quads.wgsl" N = 1, S = "", START = "p.blocks_start + p.blocks_offset", K = p.k, SMALL = p.m
#endif
