// Q8_0. PART 0: a quad of a block, for tiles.wgsl; 1: how items are loaded, for loads.wgsl; 2: how they are unpacked, for items.wgsl.

#if PART == 0
fn q8_0(b: u32, v: u32) -> vec4<f32> {
  let at = 34u * b;
  return half_at(at) * octets(word_at(at + 2u + 4u * v) ^ 0x80808080u, 128.0);
}
#elif PART == 1
fn first_q8_0${S}(b: u32, g: u32) -> vec4<u32> {
  let at = 17u * b / 2u;
  return vec4<u32>(raw_${N}[at], raw_${N}[at + 1u], raw_${N}[at + 2u], raw_${N}[at + 3u]);
}
fn second_q8_0${S}(b: u32, g: u32) -> vec4<u32> {
  let at = 17u * b / 2u;
  return vec4<u32>(raw_${N}[at + 4u], raw_${N}[at + 5u], raw_${N}[at + 6u], raw_${N}[at + 7u]);
}
fn third_q8_0${S}(b: u32, g: u32) -> vec4<u32> { return vec4<u32>(raw_${N}[17u * b / 2u + 8u], b & 1u, 0u, 0u); }
#else
fn packed_q8_0(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> u32 {
  let here = select(x, y, c > 3u);
  let next = select(vec4<u32>(x.yzw, y.x), vec4<u32>(y.yzw, z.x), c > 3u);
  let n = next[c & 3u];
  return select((here[c & 3u] >> 16u) | (n << 16u), n, z.y == 1u);
}
fn scale_q8_0(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, s: u32) -> vec2<f32> {
  let d = unpack2x16float(x.x);
  return vec2<f32>(select(d.x, d.y, z.y == 1u), 0.0);
}
fn quad_q8_0(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> vec4<f32> { return octets(packed_q8_0(x, y, z, g, c) ^ 0x80808080u, 128.0); }
#endif
