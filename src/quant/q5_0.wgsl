// Q5_0. PART 0: a quad of a block, for tiles.wgsl; 1: how items are loaded, for loads.wgsl; 2: how they are unpacked, for items.wgsl.

#if PART == 0
fn q5_0(b: u32, v: u32) -> vec4<f32> {
  let at = 22u * b;
  let q = (word_at(at + 6u + 4u * (v & 3u)) >> (v & 4u)) & 0x0f0f0f0fu;
  return half_at(at) * (octets(q | (spread(word_at(at + 2u) >> (4u * v)) << 4u), 16.0));
}
#elif PART == 1
fn first_q5_0${S}(b: u32, g: u32) -> vec4<u32> {
  let at = 22u * b;
  return vec4<u32>(words_at${S}(at + 6u), word_at${S}(at + 14u), word_at${S}(at + 18u));
}
fn second_q5_0${S}(b: u32, g: u32) -> vec4<u32> { return vec4<u32>(word_at${S}(22u * b + 2u), bitcast<u32>(half_at${S}(22u * b)), 0u, 0u); }
#else
fn packed_q5_0(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> u32 {
  return ((x[c & 3u] >> (c & 4u)) & 0x0f0f0f0fu) | (spread(y.x >> (4u * c)) << 4u);
}
fn scale_q5_0(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, s: u32) -> vec2<f32> { return vec2<f32>(bitcast<f32>(y.y), 0.0); }
fn quad_q5_0(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> vec4<f32> { return octets(packed_q5_0(x, y, z, g, c), 16.0); }
#endif
