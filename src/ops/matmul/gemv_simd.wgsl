// One row times weights: out[n] = sum over k of a[k] * b[n, k], by subgroups of 32, each with ROWS rows of b and all of k. What a lane adds up has a form
// in Metal's language for each format (gemv_simd.metal), which loads words of weights and multiplies them where their bits lie.
// Several products of one left side may be done at once: PAIRED, two of them row by row in the same subgroups, so that the second's store may read what the
// first's has written, or each in workgroups of its own. NORMED: the left side is divided by the root of its mean square, and multiplied with a GAIN.

const SUBGROUPS: u32 = WORKGROUP / 32u;

// Four activations, but for the factor that all of them share.
fn left4(at: u32) -> vec4<f32> {
#if GAIN
  return load4_0(at) * load4_${GAIN_LOAD}(at);
#else
  return load4_0(at);
#endif
}

#for P in 0..PRODUCTS
// The share of a lane in the products of ROWS rows of b from `first` on; rows beyond the last are the last one again.
fn row_products_${P}(first: u32, lane: u32, rows: u32, size: u32, start: u32) -> vec4<f32> {
  var sums = vec4<f32>(0.0);
  for (var v = lane; v < size / 4u; v += 32u) {
    let x = left4(4u * v);
#unroll
    for (var r = 0u; r < ROWS; r++) { sums[r] += dot(weights4_${P}(min(first + r, rows - 1u), v), x); }
  }
  return sums;
}
#include "gemv_simd.metal"
fn put_${P}(first: u32, sums: vec4<f32>) {
#if VEC_OUT
  if (first < p.n_${P}) { store4_${P}(first, sums); }
#else
#unroll
  for (var r = 0u; r < ROWS; r++) {
    if (first + r < p.n_${P}) { store_${P}(first + r, sums[r]); }
  }
#endif
}
#endfor

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let lane = lid % 32u;
  var group = wid.y * p.groups_x + wid.x;
#if NORMED
  var squares = 0.0;
  for (var v = lane; v < p.k / 4u; v += 32u) { let x = load4_0(4u * v); squares += dot(x, x); }
  let factor = inverseSqrt(subgroupAdd(squares) / f32(p.k) + p.eps);
#else
  let factor = 1.0;
#endif
#if PAIRED || PRODUCTS == 1
  let first = (group * SUBGROUPS + lid / 32u) * ROWS;
#for P in 0..PRODUCTS
  let sums_${P} = factor * subgroupAdd(row_products_${P}(first, lane, p.n_${P}, p.k, p.b_start_${P} + p.b_offset_${P}));
#endfor
  if (lane == 0u) {
#for P in 0..PRODUCTS
    put_${P}(first, sums_${P});
#endfor
  }
#else
  var part = 0u;
#for P in 0..PRODUCTS - 1
  if (part == ${P}u && group >= p.tiles_${P}) {
    group -= p.tiles_${P};
    part = ${P + 1}u;
  }
#endfor
  let first = (group * SUBGROUPS + lid / 32u) * ROWS;
  var sums = vec4<f32>(0.0);
#for P in 0..PRODUCTS
  if (part == ${P}u) { sums = row_products_${P}(first, lane, p.n_${P}, p.k, p.b_start_${P} + p.b_offset_${P}); }
#endfor
  sums = factor * subgroupAdd(sums);
  if (lane == 0u) {
#for P in 0..PRODUCTS
    if (part == ${P}u) { put_${P}(first, sums); }
#endfor
  }
#endif
}

#for P in 0..PRODUCTS
#include "weights_quads.wgsl" N = (P + 1), S = _${P}, START = "p.b_start_${P} + p.b_offset_${P}", K = p.k, SMALL = p.m
#endfor
