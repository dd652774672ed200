// What expert_matmul_coop.wgsl asked for is put in place, as the tiles at k0: items are unpacked, and rounded to f16.
#unroll UNROLL
for (var f = 0u; f < LOADS_A; f++) {
  let u = lid + f * WORKGROUP;
  put((u / EIGHTS * PITCH + u % EIGHTS * 8u) / UNIT, next_a[f]);
}
#unroll UNROLL
for (var f = 0u; f < LOADS_B + zero; f++) {
  let u = lid + f * WORKGROUP;
  let to = TILE_B + u / ITEMS * PITCH;
  let i = k0 / ITEM_COLUMNS + u % ITEMS;
#if !EVEN_K
  let inside = i * ITEM_COLUMNS < p.k;
#endif
#if READS_HALVES && EVEN_K
  put((to + u % ITEMS * 8u) / UNIT, next_b[f]);
#elif READS_HALVES
  put((to + u % ITEMS * 8u) / UNIT, select(vec4<u32>(), next_b[f], inside));
#else
  let x = next_b[f];
#if PLANES > 1
  let y = second_b[f];
#else
  let y = vec4<u32>();
#endif
#if PLANES > 2
  let z = third_b[f];
#else
  let z = vec4<u32>();
#endif
#unroll UNROLL
  for (var s = 0u; s < PARTS; s++) {
    let by = scale(x, y, z, i, s);
#unroll UNROLL
    for (var q = 0u; q < PART + zero; q++) {
      let c = s * PART + q;
      let w = fma(quad(x, y, z, i, c), vec4<f32>(by.x), vec4<f32>(by.y));
#if EVEN_K
      put4((to + 4u * quad_of(u % ITEMS, c)) / UNIT, w);
#else
      put4((to + 4u * quad_of(u % ITEMS, c)) / UNIT, select(vec4<f32>(), w, inside));
#endif
    }
  }
#endif
}
