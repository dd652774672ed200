// Group g of the results goes into the strip.
#unroll UNROLL
for (var i = 0u; i < RM; i++) {
#unroll UNROLL
  for (var d = 0u; d < PER; d++) {
    let value = ${Y}[i * ${WIDE} + g * PER + d];
    let at = ((mine + i * EDGE) * PITCH_S + (across * PER + d) * EDGE) / UNIT; let pitch = PITCH_S / UNIT;
    coopStoreT(value, &strip[at], pitch);
  }
}
