// Elements of matrices by the lanes of a subgroup: a lane has ELEMENTS of them, ROW_ELEMENTS in each of its LANE_ROWS rows: element k lies in row
// `element_row(lid, k)`, column `element_column(lid, k)`. These are the registers that hold the matrix (MatrixElements), which Metal's language and
// SPIR-V can name and WGSL cannot: here they go through workgroup memory, of ${SUBGROUPS} subgroups.
var<workgroup> held: array<f32, ${SUBGROUPS} * EDGE * EDGE>;
fn element_row(lid: u32, k: u32) -> u32 { return ${ELEMENT_ROW}; }
fn element_column(lid: u32, k: u32) -> u32 { return ${ELEMENT_COLUMN}; }
// Element n of the lane's row `row`.
fn element_of(row: u32, n: u32) -> u32 { return ${ELEMENT_OF}; }

// spirv: read elements
fn elements(matrix: coop_mat${EDGE}x${EDGE}<f32, C>, lid: u32) -> array<f32, ELEMENTS> {
  let at = lid / SUBGROUP * (EDGE * EDGE);
  coopStoreT(matrix, &held[at], EDGE);
  subgroup_barrier();
  var v: array<f32, ELEMENTS>;
  for (var k = 0u; k < ELEMENTS; k++) { v[k] = held[at + element_row(lid, k) * EDGE + element_column(lid, k)]; }
  subgroup_barrier();
  return v;
}
/* metal: elements
    return {matrix.thread_elements()[0], matrix.thread_elements()[1]};
*/

#if MAKE
// The matrix of these elements.
// spirv: make matrix_of
fn matrix_of(value: array<f32, ELEMENTS>, lid: u32) -> coop_mat${EDGE}x${EDGE}<f32, C> {
  let at = lid / SUBGROUP * (EDGE * EDGE);
  var v = value;
  for (var k = 0u; k < ELEMENTS; k++) { held[at + element_row(lid, k) * EDGE + element_column(lid, k)] = v[k]; }
  subgroup_barrier();
  let m = coopLoadT<coop_mat${EDGE}x${EDGE}<f32, C>>(&held[at], EDGE);
  subgroup_barrier();
  return m;
}
/* metal: matrix_of
    metal::simdgroup_float8x8 made;
    made.thread_elements() = metal::float2(value.inner[0], value.inner[1]);
    return made;
*/

// The same, rounded to f16.
var<workgroup> held_halves: array<f16, ${SUBGROUPS} * EDGE * EDGE>;
// spirv: make matrix_of_halves
fn matrix_of_halves(value: array<f32, ELEMENTS>, lid: u32) -> coop_mat${EDGE}x${EDGE}<f16, A> {
  let at = lid / SUBGROUP * (EDGE * EDGE);
  var v = value;
  for (var k = 0u; k < ELEMENTS; k++) { held_halves[at + element_row(lid, k) * EDGE + element_column(lid, k)] = f16(v[k]); }
  subgroup_barrier();
  let m = coopLoadT<coop_mat${EDGE}x${EDGE}<f16, A>>(&held_halves[at], EDGE);
  subgroup_barrier();
  return m;
}
/* metal: matrix_of_halves
    metal::simdgroup_half8x8 made;
    made.thread_elements() = metal::half2(value.inner[0], value.inner[1]);
    return made;
*/
#endif

#if QUAD_PARTNER
// Neighbours in a row make quads: `a` and `b` are pairs 2h and 2h + 1 of a lane's row, counted over matrices side by side. Two lanes exchange halves,
// and one has the quad of the first pairs of both, the other of the second, four columns from `quad_column` on.
fn is_second(lid: u32) -> bool { return (lid & ${QUAD_PARTNER}u) != 0u; }
fn quad_of_two(a: vec2<f32>, b: vec2<f32>, lid: u32) -> vec4<f32> {
  let second = is_second(lid);
  let other = subgroupShuffleXor(select(b, a, second), ${QUAD_PARTNER}u);
  return select(vec4<f32>(a, other), vec4<f32>(other, b), second);
}
fn quad_column(lid: u32, h: u32) -> u32 {
  let n = 4u * h + select(0u, 2u, is_second(lid));
  return n / ROW_ELEMENTS * EDGE + element_column(lid & ~${QUAD_PARTNER}u, element_of(0u, n % ROW_ELEMENTS));
}
#endif
