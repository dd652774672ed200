// IQ2_S: entries of a codebook, signs, two scales. PART 1: how items are loaded, for loads.wgsl; 2: how they are unpacked, for coded.wgsl.

#if PART == 1
fn first_iq2_s${S}(b: u32, g: u32) -> vec4<u32> {
  let at = 82u * b;
  let above = one_byte${S}(at + 66u + g) | (one_byte${S}(at + 74u + g) << 8u);
  return vec4<u32>(one_word${S}(at + 2u + 4u * g), one_word${S}(at + 34u + 4u * g), half_bits${S}(at), above);
}
#else
fn packed_iq2_s${T}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> u32 {
  let k = c / 2u;
  let e = ((x.x >> (8u * k)) & 255u) | (((x.w >> (2u * k)) & 3u) << 8u);
  return with_signs${T}(of_three${T}(entry_iq2_s${T}(e) >> (8u * (c & 1u))), x.y >> (4u * c));
}
fn scale_iq2_s${T}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, s: u32) -> vec2<f32> {
  return vec2<f32>(bitcast<f32>(x.z) * (0.5 + f32((x.w >> (8u + 4u * s)) & 15u)) * 0.25, 0.0);
}
#endif
