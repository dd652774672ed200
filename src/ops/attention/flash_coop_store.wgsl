// Group g of the results goes into the memory of the scores.
#unroll UNROLL
for (var i = 0u; i < RM; i++) {
#unroll UNROLL
  for (var d = 0u; d < STORE_FRAGMENTS; d++) {
    let value = ${Y}[i * ${COLUMNS} + g * STORE_FRAGMENTS + d];
    let at = ((wm + i * EDGE) * PITCH_S + (wn * STORE_FRAGMENTS + d) * EDGE) / UNIT; let pitch = PITCH_S / UNIT;
    coopStoreT(value, &score_tiles[at], pitch);
  }
}
