// IQ3_S: entries of a codebook and signs. PART 1: how items are loaded, for loads.wgsl; 2: how they are unpacked, for coded.wgsl.

#if PART == 1
fn first_iq3_s${S}(b: u32, g: u32) -> vec4<u32> {
  let at = 110u * b;
  return vec4<u32>(one_word${S}(at + 2u + 8u * g), one_word${S}(at + 6u + 8u * g), one_word${S}(at + 74u + 4u * g), half_bits${S}(at));
}
fn second_iq3_s${S}(b: u32, g: u32) -> vec4<u32> {
  return vec4<u32>(one_byte${S}(110u * b + 66u + g), one_byte${S}(110u * b + 106u + g / 2u), 0u, 0u);
}
#else
fn packed_iq3_s${T}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> u32 {
  let e = ((select(x.x, x.y, c > 3u) >> (8u * (c & 3u))) & 255u) | (((y.x >> c) & 1u) << 8u);
  return with_signs${T}(0x01010101u + 2u * nibble_bytes${T}(entry_iq3_s${T}(e)), x.z >> (4u * c));
}
fn scale_iq3_s${T}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, s: u32) -> vec2<f32> {
  return vec2<f32>(bitcast<f32>(x.w) * f32(1u + 2u * ((y.y >> (4u * (g & 1u))) & 15u)), 0.0);
}
#endif
