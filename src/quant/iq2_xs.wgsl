// IQ2_XS: entries of a codebook, seven of eight signs, two scales.
// PART 1: how items are loaded, for loads.wgsl; 2: how they are unpacked, for coded.wgsl.

#if PART == 1
fn first_iq2_xs${S}(b: u32, g: u32) -> vec4<u32> {
  let at = 74u * b;
  return vec4<u32>(one_word${S}(at + 2u + 8u * g), one_word${S}(at + 6u + 8u * g), half_bits${S}(at), one_byte${S}(at + 66u + g));
}
#else
fn packed_iq2_xs${T}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> u32 {
  let bits = (select(x.x, x.y, c > 3u) >> (8u * (c & 2u))) & 0xffffu;
  return with_signs${T}(of_three${T}(entry_iq2_xs${T}(bits & 511u) >> (8u * (c & 1u))), even_signs${T}(bits >> 9u) >> (4u * (c & 1u)));
}
fn scale_iq2_xs${T}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, s: u32) -> vec2<f32> {
  return vec2<f32>(bitcast<f32>(x.z) * (0.5 + f32((x.w >> (4u * s)) & 15u)) * 0.25, 0.0);
}
#endif
