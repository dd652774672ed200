// Row `${ROW}` of a lane leaves, of ${COUNT} matrices side by side whose elements are ${V}, times ${BY}: from element ${AT} on, of ${COLUMNS}, of which ${FIRST}
// come before, where ${THERE}.
#if QUAD_PARTNER
#unroll UNROLL
for (var quad_h = 0u; quad_h < ${COUNT} * ROW_ELEMENTS / 4u; quad_h++) {
  let quad_a = 4u * quad_h; let quad_b = quad_a + 2u;
  let a = vec2<f32>(${V}[quad_a / ROW_ELEMENTS][element_of(${ROW}, quad_a % ROW_ELEMENTS)], ${V}[quad_a / ROW_ELEMENTS][element_of(${ROW}, quad_a % ROW_ELEMENTS + 1u)]);
  let b = vec2<f32>(${V}[quad_b / ROW_ELEMENTS][element_of(${ROW}, quad_b % ROW_ELEMENTS)], ${V}[quad_b / ROW_ELEMENTS][element_of(${ROW}, quad_b % ROW_ELEMENTS + 1u)]);
  let quad = quad_of_two(a, b, lid) * ${BY};
  let column = ${FIRST} + quad_column(lid, quad_h);
  if (${THERE} && column < ${COLUMNS}) { store4_${K}(${AT} + column, quad); }
}
#else
#unroll UNROLL
for (var single = 0u; single < ${COUNT} * ROW_ELEMENTS; single++) {
  let element = element_of(${ROW}, single % ROW_ELEMENTS);
  let column = ${FIRST} + single / ROW_ELEMENTS * EDGE + element_column(lid, element);
  if (${THERE} && column < ${COLUMNS}) { store_${K}(${AT} + column, ${V}[single / ROW_ELEMENTS][element] * ${BY}); }
}
#endif
