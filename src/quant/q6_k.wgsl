// Q6_K. PART 0: a quad of a block, for tiles.wgsl; 1: how items are loaded, for loads.wgsl; 2: how they are unpacked, for items.wgsl.

#if PART == 0
fn q6_K(b: u32, v: u32) -> vec4<f32> {
  let at = 210u * b;
  let quad = v / 8u % 4u;
  let q = (word_at(at + v / 32u * 64u + quad % 2u * 32u + v % 8u * 4u) >> (quad / 2u * 4u)) & 0x0f0f0f0fu;
  let h = (word_at(at + 128u + v / 32u * 32u + v % 8u * 4u) >> (quad * 2u)) & 0x03030303u;
  let s = f32(i32(byte_at(at + 192u + v / 4u) << 24u) >> 24u);
  return (half_at(at + 208u) * s) * octets(q | (h << 4u), 32.0);
}
#elif PART == 1
fn first_q6_K${S}(b: u32, g: u32) -> vec4<u32> {
  let q = 210u * b + g / 4u * 64u + g % 4u * 8u;
  return vec4<u32>(words_at${S}(q), words_at${S}(q + 32u));
}
fn second_q6_K${S}(b: u32, g: u32) -> vec4<u32> { return vec4<u32>(words_at${S}(210u * b + 128u + 8u * g), words_at${S}(210u * b + 192u + g / 4u * 8u)); }
fn third_q6_K${S}(b: u32, g: u32) -> vec4<u32> { return vec4<u32>(bitcast<u32>(half_at${S}(210u * b + 208u)), 0u, 0u, 0u); }
#else
fn packed_q6_K(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> u32 {
  let strip = c / 2u;
  return ((x[strip % 2u * 2u + c % 2u] >> (strip / 2u * 4u)) & 0x0f0f0f0fu) | (((y[c % 2u] >> (2u * strip)) & 0x03030303u) << 4u);
}
fn scale_q6_K(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, s: u32) -> vec2<f32> {
  return vec2<f32>(bitcast<f32>(z.x) * f32(i32(y[2u + s / 2u] << (24u - 8u * (s % 2u * 2u + g / 2u % 2u))) >> 24u), 0.0);
}
fn quad_q6_K(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> vec4<f32> { return octets(packed_q6_K(x, y, z, g, c), 32.0); }
#endif
