// What was fetched is put in place, from ${AT} on.
#unroll UNROLL
for (var f = 0u; f < ${ITEMS}; f++) {
  let u = lid + f * WORKGROUP;
  if (${ITEMS} * WORKGROUP == ${HIGH} * ${EIGHTS} || u < ${HIGH} * ${EIGHTS}) { put((${AT} + u / ${EIGHTS} * ${PITCH} + u % ${EIGHTS} * 8u) / UNIT, ${NEXT}[f]); }
}
