// IQ2_XXS: entries of a codebook, seven of eight signs. PART 1: how items are loaded, for loads.wgsl; 2: how they are unpacked, for coded.wgsl.

#if PART == 1
fn first_iq2_xxs${S}(b: u32, g: u32) -> vec4<u32> {
  return vec4<u32>(one_word${S}(66u * b + 2u + 8u * g), one_word${S}(66u * b + 6u + 8u * g), half_bits${S}(66u * b), 0u);
}
#else
fn packed_iq2_xxs${T}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> u32 {
  let k = c / 2u;
  let signs = even_signs${T}((x.y >> (7u * k)) & 127u);
  return with_signs${T}(of_three${T}(entry_iq2_xxs${T}((x.x >> (8u * k)) & 255u) >> (8u * (c & 1u))), signs >> (4u * (c & 1u)));
}
fn scale_iq2_xxs${T}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, s: u32) -> vec2<f32> {
  return vec2<f32>(bitcast<f32>(x.z) * (0.5 + f32(x.y >> 28u)) * 0.25, 0.0);
}
#endif
