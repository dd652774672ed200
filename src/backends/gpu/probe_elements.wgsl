// Finds which elements of a matrix a lane holds, and whether matrices are made of elements as they should be: what lanes have of a matrix of places,
// of the product of two others, of the same twice as large, and of its product with the second. Inputs and results are one matrix behind the other.
enable f16;
enable wgpu_cooperative_matrix;

const SIZE: u32 = EDGE * EDGE;
var<workgroup> tile: array<f16, 2u * SIZE>;
var<workgroup> places: array<f32, SIZE>;

fn put(part: u32, lid: u32, v: array<f32, ELEMENTS>) {
  var of_lane = v;
  for (var k = 0u; k < ELEMENTS; k++) { store_0(part * SIZE + lid * ELEMENTS + k, of_lane[k]); }
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(local_invocation_index) lid: u32) {
  for (var i = lid; i < SIZE; i += SUBGROUP) {
    tile[i] = f16(load_0(i)); tile[SIZE + i] = f16(load_0(SIZE + i));
    places[i] = load_0(2u * SIZE + i);
  }
  workgroupBarrier();
  put(0u, lid, elements(coopLoadT<coop_mat${EDGE}x${EDGE}<f32, C>>(&places[0], EDGE), lid));
  let a = coopLoadT<coop_mat${EDGE}x${EDGE}<f16, A>>(&tile[0], EDGE);
  let b = coopLoadT<coop_mat${EDGE}x${EDGE}<f16, B>>(&tile[SIZE], EDGE);
  let c = elements(coopMultiplyAdd(a, b, coop_mat${EDGE}x${EDGE}<f32, C>()), lid);
  put(1u, lid, c);
  var twice = c;
  for (var k = 0u; k < ELEMENTS; k++) { twice[k] *= 2.0; }
  put(2u, lid, elements(matrix_of(twice, lid), lid));
  put(3u, lid, elements(coopMultiplyAdd(matrix_of_halves(c, lid), b, coop_mat${EDGE}x${EDGE}<f32, C>()), lid));
}

#include "subgroup_barrier.wgsl"
#include "coop_elements.wgsl" SUBGROUPS = 1, MAKE = 1
