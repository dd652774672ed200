// IQ3_XXS: entries of a codebook, seven of eight signs. PART 1: how items are loaded, for loads.wgsl; 2: how they are unpacked, for coded.wgsl.

#if PART == 1
fn first_iq3_xxs${S}(b: u32, g: u32) -> vec4<u32> {
  let at = 98u * b;
  return vec4<u32>(one_word${S}(at + 2u + 8u * g), one_word${S}(at + 6u + 8u * g), one_word${S}(at + 66u + 4u * g), half_bits${S}(at));
}
#else
fn packed_iq3_xxs${T}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> u32 {
  let codes = nibble_bytes${T}(entry_iq3_xxs${T}((select(x.x, x.y, c > 3u) >> (8u * (c & 3u))) & 255u));
  let sevens = codes & (codes >> 1u) & (codes >> 2u) & 0x01010101u;
  return with_signs${T}(0x04040404u + 8u * codes + 2u * sevens, even_signs${T}((x.z >> (c / 2u * 7u)) & 127u) >> (4u * (c & 1u)));
}
fn scale_iq3_xxs${T}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, s: u32) -> vec2<f32> {
  return vec2<f32>(bitcast<f32>(x.w) * (0.5 + f32(x.z >> 28u)) * 0.5, 0.0);
}
#endif
