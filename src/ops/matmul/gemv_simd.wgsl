// One row times weights: out[n] = sum over k of a[k] * b[n, k], by subgroups of 32, each with ROWS rows of b and all of k. What a lane adds up has a form
// in Metal's language for each format (gemv_simd.metal), which loads words of weights and multiplies them where their bits lie.

const SUBGROUPS: u32 = WORKGROUP / 32u;

// The share of a lane in the products of ROWS rows of b from `first` on; rows beyond the last are the last one again.
fn row_products(first: u32, lane: u32, rows: u32, size: u32, start: u32) -> vec4<f32> {
  var sums = vec4<f32>(0.0);
  for (var v = lane; v < size / 4u; v += 32u) {
    let x = load4_0(4u * v);
#unroll
    for (var r = 0u; r < ROWS; r++) { sums[r] += dot(weights4(min(first + r, rows - 1u), v), x); }
  }
  return sums;
}
#include "gemv_simd.metal"

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let lane = lid % 32u;
  let first = ((wid.y * p.groups_x + wid.x) * SUBGROUPS + lid / 32u) * ROWS;
  let sums = subgroupAdd(row_products(first, lane, p.n, p.k, p.b_start + p.b_offset));
  if (lane == 0u) {
#if VEC_OUT
    if (first < p.n) { store4_0(first, sums); }
#else
#unroll
    for (var r = 0u; r < ROWS; r++) {
      if (first + r < p.n) { store_0(first + r, sums[r]); }
    }
#endif
  }
}

#include "weights_quads.wgsl" N = 1, S = "", START = "p.b_start + p.b_offset", K = p.k, SMALL = p.n
