// What was asked for is put in place, as the tiles at ${K}.
#unroll UNROLL
for (var f = 0u; f < LOADS_A; f++) {
  let u = swizzled(lid + f * WORKGROUP, LINE_A);
  let to = (u / (LINE_A / 8u) * PITCH_A + u % (LINE_A / 8u) * 8u) / UNIT;
#if UNALIGNED_A
  put(to, finish_a(start_a, rows, m0, ${K}, u, next_a[f], after_a[f]));
#else
  put(to, finish_a(start_a, rows, m0, ${K}, u, next_a[f], vec4<u32>()));
#endif
}
#unroll UNROLL
for (var f = 0u; f < LOADS_B; f++) {
  let u = swizzled(lid + f * WORKGROUP, LINE_B);
  let to = (TILE_A + u / (LINE_B / 8u) * PITCH_B + u % (LINE_B / 8u) * 8u) / UNIT;
#if UNALIGNED_B
  put(to, finish_b(start_b, cols, n0, ${K}, u, next_b[f], after_b[f]));
#else
  put(to, finish_b(start_b, cols, n0, ${K}, u, next_b[f], vec4<u32>()));
#endif
}
