// MXFP4: a power of two and floats of four bits. PART 1: how items are loaded, for loads.wgsl; 2: how they are unpacked, for coded.wgsl.

#if PART == 1
fn first_mxfp4${S}(b: u32, g: u32) -> vec4<u32> { return four_words${S}(17u * b + 1u); }
fn second_mxfp4${S}(b: u32, g: u32) -> vec4<u32> { return vec4<u32>(one_byte${S}(17u * b), 0u, 0u, 0u); }
#else
fn packed_mxfp4${T}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> u32 { return e2m1${T}((x[c & 3u] >> (c & 4u)) & 0x0f0f0f0fu); }
fn scale_mxfp4${T}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, s: u32) -> vec2<f32> {
  // Half of the power, as the floats are doubled; the two smallest are subnormal.
  return vec2<f32>(bitcast<f32>(select((y.x - 1u) << 23u, 0x00200000u << y.x, y.x < 2u)), 0.0);
}
#endif
