// What was asked for is put in place, as the tiles at ${K}.
#unroll UNROLL
for (var f = 0u; f < ITEMS_A; f++) {
  let u = seat(lid + f * WORKGROUP, LONG_A);
  put((u / (LONG_A / 8u) * PITCH_A + u % (LONG_A / 8u) * 8u) / UNIT, ready_a(from_a, rows, m0, ${K}, u, next_a[f], more_a[f * LOOSE_A]));
}
#unroll UNROLL
for (var f = 0u; f < ITEMS_B; f++) {
  let u = seat(lid + f * WORKGROUP, LONG_B);
  put((TILE_A + u / (LONG_B / 8u) * PITCH_B + u % (LONG_B / 8u) * 8u) / UNIT, ready_b(from_b, cols, n0, ${K}, u, next_b[f], more_b[f * LOOSE_B]));
}
