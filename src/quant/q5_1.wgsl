// Q5_1. PART 0: a quad of a block, for tiles.wgsl; 1: how items are loaded, for loads.wgsl; 2: how they are unpacked, for items.wgsl.

#if PART == 0
fn q5_1(b: u32, v: u32) -> vec4<f32> {
  let dm = unpack2x16float(raw_${N}[6u * b]);
  let q = (raw_${N}[6u * b + 2u + (v & 3u)] >> (v & 4u)) & 0x0f0f0f0fu;
  return fma(vec4<f32>(dm.x), octets(q | (spread(raw_${N}[6u * b + 1u] >> (4u * v)) << 4u), 0.0), vec4<f32>(dm.y));
}
#elif PART == 1
fn first_q5_1${S}(b: u32, g: u32) -> vec4<u32> {
  let at = 6u * b;
  return vec4<u32>(raw_${N}[at + 2u], raw_${N}[at + 3u], raw_${N}[at + 4u], raw_${N}[at + 5u]);
}
fn second_q5_1${S}(b: u32, g: u32) -> vec4<u32> { return vec4<u32>(raw_${N}[6u * b + 1u], raw_${N}[6u * b], 0u, 0u); }
#else
fn packed_q5_1(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> u32 {
  return ((x[c & 3u] >> (c & 4u)) & 0x0f0f0f0fu) | (spread(y.x >> (4u * c)) << 4u);
}
fn scale_q5_1(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, s: u32) -> vec2<f32> { return unpack2x16float(y.y); }
fn quad_q5_1(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> vec4<f32> { return octets(packed_q5_1(x, y, z, g, c), 0.0); }
#endif
