// IQ4_XS: scales of six bits and indices of a table. PART 1: how items are loaded, for loads.wgsl; 2: how they are unpacked, for coded.wgsl.

#if PART == 1
fn first_iq4_xs${S}(b: u32, g: u32) -> vec4<u32> { return four_words${S}(136u * b + 8u + 16u * g); }
fn second_iq4_xs${S}(b: u32, g: u32) -> vec4<u32> { return vec4<u32>(one_word${S}(136u * b), one_word${S}(136u * b + 4u), 0u, 0u); }
#else
fn packed_iq4_xs${T}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> u32 { return levels${T}((x[c & 3u] >> (c & 4u)) & 0x0f0f0f0fu); }
fn scale_iq4_xs${T}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, s: u32) -> vec2<f32> {
  let by = ((y.y >> (4u * g)) & 15u) | (((y.x >> (16u + 2u * g)) & 3u) << 4u);
  return vec2<f32>(unpack2x16float(y.x).x * (f32(by) - 32.0), 0.0);
}
#endif
