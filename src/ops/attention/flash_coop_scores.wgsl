// Rows times the columns that are staged from ${AT} on, into the memory of the scores from line ${LINE} on.
{
  var s: array<coop_mat${EDGE}x${EDGE}<f32, C>, RM * CN>;
#unroll UNROLL
  for (var e = 0u; e < RM * CN; e++) { s[e] = coop_mat${EDGE}x${EDGE}<f32, C>(); }
#unroll UNROLL
  for (var d = 0u; d < ${FRAGMENTS_K}; d++) {
#unroll UNROLL
    for (var j = 0u; j < CN; j++) {
      let at = (${AT} + (wn * CN + j) * EDGE * ${PITCH} + d * EDGE) / UNIT; let pitch = ${PITCH} / UNIT;
      let c = coopLoad<coop_mat${EDGE}x${EDGE}<f16, B>>(&tile[at], pitch);
#unroll UNROLL
      for (var i = 0u; i < RM; i++) { s[i * CN + j] = coopMultiplyAdd(${X}[i * ${FRAGMENTS_K} + d], c, s[i * CN + j]); }
    }
  }
#unroll UNROLL
  for (var i = 0u; i < RM; i++) {
#unroll UNROLL
    for (var j = 0u; j < CN; j++) {
      let value = s[i * CN + j];
      let at = ((${LINE} + wm + i * EDGE) * PITCH_S + (wn * CN + j) * EDGE) / UNIT; let pitch = PITCH_S / UNIT;
      coopStoreT(value, &score_tiles[at], pitch);
    }
  }
}
