// Q3_K. PART 0: a quad of a block, for tiles.wgsl; 1: how items are loaded, for loads.wgsl; 2: how they are unpacked, for items.wgsl.

#if PART == 0
fn q3_K(b: u32, v: u32) -> vec4<f32> {
  let at = 110u * b;
  let q = (word_at(at + 32u + v / 32u * 32u + v % 8u * 4u) >> (v / 8u % 4u * 2u)) & 0x03030303u;
  let h = (word_at(at + v % 8u * 4u) >> (v / 8u)) & 0x01010101u;
  let s = v / 4u; // of 16 scales: four low bits in bytes 0..8, two high bits in bytes 8..12
  let low = (word_at(at + 96u + s / 4u % 2u * 4u) >> (s % 4u * 8u + s / 8u * 4u)) & 15u;
  let high = (word_at(at + 104u) >> (s % 4u * 8u + s / 4u * 2u)) & 3u;
  return (half_at(at + 108u) * (f32(low | (high << 4u)) - 32.0)) * octets(q | (h << 2u), 4.0);
}
#elif PART == 1
fn first_q3_K${S}(b: u32, g: u32) -> vec4<u32> { return vec4<u32>(words_at${S}(110u * b + 32u + 8u * g), words_at${S}(110u * b + g % 4u * 8u)); }
fn second_q3_K${S}(b: u32, g: u32) -> vec4<u32> {
  let at = 110u * b;
  return vec4<u32>(words_at${S}(at + 96u), word_at${S}(at + 104u), bitcast<u32>(half_at${S}(at + 108u)));
}
#else
fn packed_q3_K(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> u32 {
  let bit = g / 4u * 4u + c / 2u;
  return ((x[c % 2u] >> (c / 2u * 2u)) & 0x03030303u) | (((x[2u + c % 2u] >> bit) & 0x01010101u) << 2u);
}
fn scale_q3_K(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, s: u32) -> vec2<f32> {
  let n = g / 4u * 8u + s * 2u + g / 2u % 2u;
  let low = (select(y.x, y.y, n / 4u % 2u == 1u) >> (n % 4u * 8u + n / 8u * 4u)) & 15u;
  let high = (y.z >> (n % 4u * 8u + n / 4u * 2u)) & 3u;
  return vec2<f32>(bitcast<f32>(y.w) * (f32(low | (high << 4u)) - 32.0), 0.0);
}
fn quad_q3_K(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> vec4<f32> { return octets(packed_q3_K(x, y, z, g, c), 4.0); }
#endif
