// Q4_0. PART 0: a quad of a block, for tiles.wgsl; 1: how items are loaded, for loads.wgsl; 2: how they are unpacked, for items.wgsl.

#if PART == 0
fn q4_0(b: u32, v: u32) -> vec4<f32> {
  let at = 18u * b;
  let q = (word_at(at + 2u + 4u * (v & 3u)) >> (v & 4u)) & 0x0f0f0f0fu;
  return half_at(at) * octets(q, 8.0);
}
#elif PART == 1
fn first_q4_0${S}(b: u32, g: u32) -> vec4<u32> {
  let at = 9u * b / 2u;
  return vec4<u32>(raw_${N}[at], raw_${N}[at + 1u], raw_${N}[at + 2u], raw_${N}[at + 3u]);
}
fn second_q4_0${S}(b: u32, g: u32) -> vec4<u32> { return vec4<u32>(raw_${N}[9u * b / 2u + 4u], b & 1u, 0u, 0u); }
#else
fn quad_q4_0(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> vec4<f32> {
  return nibbles(quants_q4_0(x, y)[c & 3u], c > 3u, 8.0);
}
fn packed_q4_0(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> u32 { return (quants_q4_0(x, y)[c & 3u] >> (c & 4u)) & 0x0f0f0f0fu; }
fn quants_q4_0(x: vec4<u32>, y: vec4<u32>) -> vec4<u32> {
  let next = vec4<u32>(x.yzw, y.x);
  return select((x >> vec4<u32>(16u)) | (next << vec4<u32>(16u)), next, y.y == 1u);
}
fn scale_q4_0(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, s: u32) -> vec2<f32> {
  let d = unpack2x16float(x.x);
  return vec2<f32>(select(d.x, d.y, y.y == 1u), 0.0);
}
#endif
