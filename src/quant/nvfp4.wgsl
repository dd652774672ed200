// NVFP4: scales of eight bits and floats of four. PART 1: how items are loaded, for loads.wgsl; 2: how they are unpacked, for coded.wgsl.

#if PART == 1
fn first_nvfp4${S}(b: u32, g: u32) -> vec4<u32> { return four_words${S}(36u * b + 4u + 16u * g); }
fn second_nvfp4${S}(b: u32, g: u32) -> vec4<u32> { return vec4<u32>(one_word${S}(36u * b) >> (16u * g), 0u, 0u, 0u); }
#else
fn packed_nvfp4${T}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> u32 {
  return e2m1${T}((x[c / 4u * 2u + c % 2u] >> (c / 2u % 2u * 4u)) & 0x0f0f0f0fu);
}
fn scale_nvfp4${T}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, s: u32) -> vec2<f32> {
  let e = (y.x >> (8u * s)) & 0x7fu;
  // Half of the scale, as the floats are doubled.
  let normal = bitcast<f32>((e << 20u) + (119u << 23u));
  return vec2<f32>(select(select(normal, f32(e) / 1024.0, e < 8u), 0.0, e == 0x7fu), 0.0);
}
#endif
