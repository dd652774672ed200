// Matrix product of f16 operands by tensor operations, sums in f32: out[m, n] = sum over k of a[m, k] * b[n, k]. A workgroup has a tile of 64 by 64
// results (tensor_tile.wgsl), which leave through workgroup memory, by quads where rows are whole quads (VEC_OUT).

const GROUP_M: u32 = 8u; // tiles in m that share a tile of b before the next one's turn
var<private> row_start: u32;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  // Those that are too many do what the last one does.
  let group = min(wid.y * p.groups_x + wid.x, p.groups - 1u);
  let batch = group / (p.tiles_n * p.tiles_m); let rest = group % (p.tiles_n * p.tiles_m);
  let group0 = rest / (GROUP_M * p.tiles_n) * GROUP_M; let within = rest % (GROUP_M * p.tiles_n);
  let group_rows = min(GROUP_M, p.tiles_m - group0);
  let m0 = (group0 + within % group_rows) * TENSOR_TILE; let n0 = within / group_rows * TENSOR_TILE;
  var a = (p.a_start + p.a_offset) / 8u + batch / p.a_inner * p.a_outer + batch % p.a_inner * p.a_stride;
  var b = (p.b_start + p.b_offset) / 8u + batch / p.b_inner * p.b_outer + batch % p.b_inner * p.b_stride;
#if TRANSPOSED_A
  a += m0 / 8u;
#else
  a += m0 * p.a_line;
#endif
#if TRANSPOSED_B
  b += n0 / 8u;
#else
  b += n0 * p.b_line;
#endif
  tensor_tile(a, p.a_line, p.m - m0, b, p.b_line, p.n - n0, p.k, lid);
  workgroupBarrier();
#if VEC_OUT
  for (var u = lid; u < TENSOR_TILE * TENSOR_TILE / 4u; u += WORKGROUP) {
    let m = m0 + u / (TENSOR_TILE / 4u); let n = n0 + u % (TENSOR_TILE / 4u) * 4u;
    if (m < p.m && n < p.n) {
      row_start = (batch * p.m + m) * p.n;
      store4_0(row_start + n, vec4<f32>(tile_sums[4u * u], tile_sums[4u * u + 1u], tile_sums[4u * u + 2u], tile_sums[4u * u + 3u]));
    }
  }
#else
  for (var u = lid; u < TENSOR_TILE * TENSOR_TILE; u += WORKGROUP) {
    let m = m0 + u / TENSOR_TILE; let n = n0 + u % TENSOR_TILE;
    if (m < p.m && n < p.n) {
      row_start = (batch * p.m + m) * p.n;
      store_0(row_start + n, tile_sums[u]);
    }
  }
#endif
}

#include "tensor_tile.wgsl" S = "", A = raw_0, B = raw_1, MEMORY = 1, TRANSPOSED_A = ${TRANSPOSED_A}, TRANSPOSED_B = ${TRANSPOSED_B}
