// Q4_1. PART 0: a quad of a block, for tiles.wgsl; 1: how items are loaded, for loads.wgsl; 2: how they are unpacked, for items.wgsl.

#if PART == 0
fn q4_1(b: u32, v: u32) -> vec4<f32> {
  let dm = unpack2x16float(raw_${N}[5u * b]);
  return fma(nibbles(raw_${N}[5u * b + 1u + (v & 3u)], v > 3u, 0.0), vec4<f32>(dm.x), vec4<f32>(dm.y));
}
#elif PART == 1
fn first_q4_1${S}(b: u32, g: u32) -> vec4<u32> {
  let at = 5u * b;
  return vec4<u32>(raw_${N}[at + 1u], raw_${N}[at + 2u], raw_${N}[at + 3u], raw_${N}[at + 4u]);
}
fn second_q4_1${S}(b: u32, g: u32) -> vec4<u32> { return vec4<u32>(raw_${N}[5u * b], 0u, 0u, 0u); }
#else
fn quad_q4_1(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> vec4<f32> { return nibbles(x[c & 3u], c > 3u, 0.0); }
fn packed_q4_1(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> u32 { return (x[c & 3u] >> (c & 4u)) & 0x0f0f0f0fu; }
fn scale_q4_1(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, s: u32) -> vec2<f32> { return unpack2x16float(y.x); }
#endif
