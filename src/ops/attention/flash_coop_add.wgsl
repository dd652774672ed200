// Step j of the parts from line ${LINE} on, times the columns that are staged from ${AT} on, is added to ${Y}.
{
  var fragments: array<coop_mat${EDGE}x${EDGE}<f16, A>, RM>;
#unroll UNROLL
  for (var i = 0u; i < RM; i++) {
    let at = ((${LINE} + wm + i * EDGE) * PITCH_P + j * EDGE) / UNIT; let pitch = PITCH_P / UNIT;
    fragments[i] = coopLoadT<coop_mat${EDGE}x${EDGE}<f16, A>>(&parts[at], pitch);
  }
#unroll UNROLL
  for (var d = 0u; d < ${COUNT}; d++) {
    let at = (${AT} + j * EDGE * ${PITCH} + (wn * ${COUNT} + d) * EDGE) / UNIT; let pitch = ${PITCH} / UNIT;
    let c = coopLoadT<coop_mat${EDGE}x${EDGE}<f16, B>>(&tile[at], pitch);
#unroll UNROLL
    for (var i = 0u; i < RM; i++) { ${Y}[i * ${COLUMNS} + ${FIRST} + d] = coopMultiplyAdd(fragments[i], c, ${Y}[i * ${COLUMNS} + ${FIRST} + d]); }
  }
}
