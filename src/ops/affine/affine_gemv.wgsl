// Up to ROWS rows of x times affinely quantized weights: ROW_THREADS threads for each row of weights, which they read once.

const ROW_GROUPS: u32 = WORKGROUP / ROW_THREADS;
var<private> thread: u32;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  thread = lid;
  let lane = lid % ROW_THREADS;
  let item = wid.y * groups.x + wid.x;
  let n = item % p.groups_x * ROW_GROUPS + lid / ROW_THREADS;
  let first = item / p.groups_x * ROWS;
  let row = min(n, p.n - 1u);
  var sums: array<f32, ROWS>;
  for (var k = lane * 8u; k < p.k; k += ROW_THREADS * 8u) {
    let w = weights(row, k);
#unroll
    for (var r = 0u; r < ROWS; r++) {
      let m = min(first + r, p.m - 1u);
      sums[r] += dot(w.a, x_quad(m, k)) + dot(w.b, x_quad(m, k + 4u));
    }
  }
#unroll
  for (var r = 0u; r < ROWS; r++) {
    let sum = row_sum(sums[r]);
    if (lane == 0u && n < p.n && first + r < p.m) { store_0((first + r) * p.n + n, sum); }
  }
}

#include "affine_weights.wgsl"
${ROW_SUM}
