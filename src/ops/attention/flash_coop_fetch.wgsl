// The columns from ${FIRST} on.
#unroll UNROLL
for (var f = 0u; f < LOADS_K; f++) { next_c1[f] = fetch_c1(start_c1, finish, ${FIRST}, 0u, lid + f * WORKGROUP); }
#unroll UNROLL
for (var f = 0u; f < LOADS_V; f++) { next_c2[f] = fetch_c2(start_c2, finish, ${FIRST}, 0u, lid + f * WORKGROUP); }
