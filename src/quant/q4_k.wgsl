// Q4_K. PART 0: a quad of a block, for tiles.wgsl; 1: how items are loaded, for loads.wgsl; 2: how they are unpacked, for items.wgsl.

#if PART == 0
fn q4_K(b: u32, v: u32) -> vec4<f32> {
  let at = 36u * b;
  let dm = unpack2x16float(raw_${N}[at]) * scale_min(at + 1u, v / 8u);
  let q = (raw_${N}[at + 4u + v / 16u * 8u + v % 8u] >> (v / 8u % 2u * 4u)) & 0x0f0f0f0fu;
  return fma(vec4<f32>(dm.x), octets(q, 0.0), vec4<f32>(-dm.y));
}
#elif PART == 1
fn first_q4_K${S}(b: u32, g: u32) -> vec4<u32> { return wide_${N}[9u * b + 1u + g]; }
fn second_q4_K${S}(b: u32, g: u32) -> vec4<u32> { return wide_${N}[9u * b]; }
#else
fn quad_q4_K(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> vec4<f32> { return nibbles(x[c & 3u], c > 3u, 0.0); }
fn packed_q4_K(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> u32 { return (x[c & 3u] >> (c & 4u)) & 0x0f0f0f0fu; }
fn scale_q4_K(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, s: u32) -> vec2<f32> {
  return unpack2x16float(y.x) * scale_min_of(y.yzw, g / 2u, s) * vec2<f32>(1.0, -1.0);
}
#endif
