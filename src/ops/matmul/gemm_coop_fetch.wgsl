// Both tiles at ${K} are asked for.
#unroll UNROLL
for (var f = 0u; f < ITEMS_A; f++) {
  let u = seat(lid + f * WORKGROUP, LONG_A);
  next_a[f] = eight_a(from_a, rows, m0, ${K}, u);
#if LOOSE_A
  { more_a[f] = beyond_a(from_a, rows, m0, ${K}, u); }
#endif
}
#unroll UNROLL
for (var f = 0u; f < ITEMS_B; f++) {
  let u = seat(lid + f * WORKGROUP, LONG_B);
  next_b[f] = eight_b(from_b, cols, n0, ${K}, u);
#if LOOSE_B
  { more_b[f] = beyond_b(from_b, cols, n0, ${K}, u); }
#endif
}
