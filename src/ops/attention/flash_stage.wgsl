// The ${COUNT} rows from `base` on of the head that begins at row ${FIRST}, staged; the kernel waits for them.
workgroupBarrier();
for (var i = lid; i < TILE * QD; i += WORKGROUP) { ${D}[i] = fetch_${d}((${FIRST} + base + min(i / QD, ${COUNT} - 1u)) * size, size, i % QD); }
for (var i = lid; i < TILE * QV; i += WORKGROUP) { ${V}[i] = fetch_${v}((${FIRST} + base + min(i / QV, ${COUNT} - 1u)) * size_v, size_v, i % QV); }
