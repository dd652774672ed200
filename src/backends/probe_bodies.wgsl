// Finds out whether what kernels have in Metal's language does what their WGSL does: lanes that name the elements of a matrix, and loads of words of
// another size. The product of two matrices leaves by elements, doubled as a matrix that was made of them, and as the left side of another product.
enable f16;
enable wgpu_cooperative_matrix;

const EDGE: u32 = 8;
const SUBGROUP: u32 = 32;
const LANE_ROWS: u32 = 1;
const ROW_ELEMENTS: u32 = 2;
const ELEMENTS: u32 = 2;

@group(0) @binding(0) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
var<workgroup> tile: array<f16, 128>;

fn half_at(i: u32) -> f32 { return unpack2x16float(x[i / 8u][i / 2u % 4u] >> (16u * (i % 2u))).x; }
/* metal: half_at
    return float(((device const half*)x)[i]);
*/

fn put(at: u32, lid: u32, v: array<f32, ELEMENTS>) {
  let e = at + element_row(lid, 0u) * EDGE + element_column(lid, 0u);
  y[e] = v[0]; y[e + 1u] = v[1];
}

@compute @workgroup_size(32)
fn main(@builtin(local_invocation_index) lid: u32) {
  for (var i = lid; i < 128u; i += 32u) { tile[i] = f16(half_at(i)); }
  workgroupBarrier();
  let a = coopLoadT<coop_mat${EDGE}x${EDGE}<f16, A>>(&tile[0], EDGE);
  let b = coopLoadT<coop_mat${EDGE}x${EDGE}<f16, B>>(&tile[64], EDGE);
  let c = elements(coopMultiplyAdd(a, b, coop_mat${EDGE}x${EDGE}<f32, C>()), lid);
  put(0u, lid, c);
  var twice = c;
  twice[0] *= 2.0; twice[1] *= 2.0;
  put(64u, lid, elements(matrix_of(twice, lid), lid));
  put(128u, lid, elements(coopMultiplyAdd(matrix_of_halves(c, lid), b, coop_mat${EDGE}x${EDGE}<f32, C>()), lid));
}

#include "subgroup_barrier.wgsl"
#include "coop_elements.wgsl" SUBGROUPS = 1, MAKE = 1
