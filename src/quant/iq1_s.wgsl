// IQ1_S: entries of a codebook of −1, 0 and 1. Numbers are eight times as large, so that they are integers.
// PART 1: how items are loaded, for loads.wgsl; 2: how they are unpacked, for coded.wgsl.

#if PART == 1
fn first_iq1_s${S}(b: u32, g: u32) -> vec4<u32> {
  let at = 50u * b;
  return vec4<u32>(one_word${S}(at + 2u + 4u * g), one_byte${S}(at + 34u + 2u * g) | (one_byte${S}(at + 35u + 2u * g) << 8u), half_bits${S}(at), 0u);
}
#else
fn packed_iq1_s${T}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> u32 {
  let k = c / 2u;
  let codes = crumbs${T}(entry_iq1_s${T}(((x.x >> (8u * k)) & 255u) | (((x.y >> (3u * k)) & 7u) << 8u)) >> (8u * (c & 1u)));
  return select(0x09090909u, 0x07070707u, (x.y & 0x8000u) != 0u) + 8u * codes;
}
fn scale_iq1_s${T}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, s: u32) -> vec2<f32> {
  return vec2<f32>(bitcast<f32>(x.z) * f32(2u * ((x.y >> 12u) & 7u) + 1u) * 0.125, 0.0);
}
#endif
