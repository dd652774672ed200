// Both tiles at ${K} are asked for.
#unroll UNROLL
for (var f = 0u; f < LOADS_A; f++) {
  let u = swizzled(lid + f * WORKGROUP, LINE_A);
  next_a[f] = fetch_a(start_a, rows, m0, ${K}, u);
#if UNALIGNED_A
  after_a[f] = fetch_after_a(start_a, rows, m0, ${K}, u);
#endif
}
#unroll UNROLL
for (var f = 0u; f < LOADS_B; f++) {
  let u = swizzled(lid + f * WORKGROUP, LINE_B);
  next_b[f] = fetch_b(start_b, cols, n0, ${K}, u);
#if UNALIGNED_B
  after_b[f] = fetch_after_b(start_b, cols, n0, ${K}, u);
#endif
}
