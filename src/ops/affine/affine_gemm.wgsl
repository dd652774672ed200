// x times affinely quantized weights in tiles of 64 × 64 results, sixteen a thread; weights are decoded as they come into workgroup memory.

const TILE: u32 = 64u;
const DEPTH: u32 = 16u;
// Column by column: element (row, k) is at k · TILE + row.
var<workgroup> x_tile: array<f32, DEPTH * TILE>;
var<workgroup> w_tile: array<f32, DEPTH * TILE>;

fn put(weights: bool, at: u32, v: vec4<f32>) {
  if (weights) {
    w_tile[at] = v.x; w_tile[at + TILE] = v.y; w_tile[at + 2u * TILE] = v.z; w_tile[at + 3u * TILE] = v.w;
  } else {
    x_tile[at] = v.x; x_tile[at + TILE] = v.y; x_tile[at + 2u * TILE] = v.z; x_tile[at + 3u * TILE] = v.w;
  }
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let item = wid.y * groups.x + wid.x;
  let m0 = item / p.groups_x * TILE;
  let n0 = item % p.groups_x * TILE;
  // Which eight elements of the tiles this thread brings.
  let row = lid % TILE;
  let column = lid / TILE % 2u * 8u;
  let brings_weights = lid >= 2u * TILE;
  // Its results.
  let m = lid / 16u * 4u;
  let n = lid % 16u * 4u;
  var sums: array<vec4<f32>, 4>;
  for (var k = 0u; k < p.k; k += DEPTH) {
    var eight: Eight;
    if (brings_weights) {
      eight = weights(min(n0 + row, p.n - 1u), k + column);
    } else {
      let from_row = min(m0 + row, p.m - 1u);
      eight = Eight(x_quad(from_row, k + column), x_quad(from_row, k + column + 4u));
    }
    put(brings_weights, column * TILE + row, eight.a);
    put(brings_weights, (column + 4u) * TILE + row, eight.b);
    workgroupBarrier();
    for (var d = 0u; d < DEPTH; d++) {
      let at = d * TILE;
      let w = vec4<f32>(w_tile[at + n], w_tile[at + n + 1u], w_tile[at + n + 2u], w_tile[at + n + 3u]);
      sums[0] += x_tile[at + m] * w;
      sums[1] += x_tile[at + m + 1u] * w;
      sums[2] += x_tile[at + m + 2u] * w;
      sums[3] += x_tile[at + m + 3u] * w;
    }
    workgroupBarrier();
  }
  for (var r = 0u; r < 4u; r++) {
    if (m0 + m + r >= p.m) { break; }
    let at = (m0 + m + r) * p.n + n0 + n;
#if VEC_STORE
    if (n0 + n < p.n) { store4_0(at, sums[r]); }
#else
    if (n0 + n < p.n) { store_0(at, sums[r].x); }
    if (n0 + n + 1u < p.n) { store_0(at + 1u, sums[r].y); }
    if (n0 + n + 2u < p.n) { store_0(at + 2u, sums[r].z); }
    if (n0 + n + 3u < p.n) { store_0(at + 3u, sums[r].w); }
#endif
  }
}

#include "affine_weights.wgsl"
