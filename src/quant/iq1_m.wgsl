// IQ1_M: entries of a codebook of −1, 0 and 1, two scales. Numbers are eight times as large, so that they are integers.
// PART 1: how items are loaded, for loads.wgsl; 2: how they are unpacked, for coded.wgsl.

#if PART == 1
fn first_iq1_m${S}(b: u32, g: u32) -> vec4<u32> {
  let at = 56u * b;
  let above = one_byte${S}(at + 32u + 2u * g) | (one_byte${S}(at + 33u + 2u * g) << 8u);
  return vec4<u32>(one_word${S}(at + 4u * g), above, one_word${S}(at + 48u), one_word${S}(at + 52u));
}
#else
fn packed_iq1_m${T}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> u32 {
  let k = c / 2u;
  let above = x.y >> (4u * k);
  let codes = crumbs${T}(entry_iq1_m${T}(((x.x >> (8u * k)) & 255u) | ((above & 7u) << 8u)) >> (8u * (c & 1u)));
  return select(0x09090909u, 0x07070707u, (above & 8u) != 0u) + 8u * codes;
}
fn scale_iq1_m${T}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, s: u32) -> vec2<f32> {
  let d = ((x.z >> 12u) & 15u) | ((x.z >> 24u) & 0xf0u) | ((x.w >> 4u) & 0xf00u) | ((x.w >> 16u) & 0xf000u);
  let word = select(x.z, x.w, g > 3u) >> (16u * (g / 2u % 2u));
  return vec2<f32>(unpack2x16float(d).x * f32(2u * ((word >> (3u * (2u * (g & 1u) + s))) & 7u) + 1u) * 0.125, 0.0);
}
#endif
