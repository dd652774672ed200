// Staged rows become matrices.
#unroll UNROLL
for (var i = 0u; i < RM; i++) {
#unroll UNROLL
  for (var d = 0u; d < ${COUNT}; d++) {
    let at = ((wm + i * EDGE) * ${PITCH} + d * EDGE) / UNIT; let pitch = ${PITCH} / UNIT;
    ${X}[i * ${FRAGMENTS_K} + ${FIRST} + d] = coopLoadT<coop_mat${EDGE}x${EDGE}<f16, A>>(&tile[at], pitch);
  }
}
