// Q5_K. PART 0: a quad of a block, for tiles.wgsl; 1: how items are loaded, for loads.wgsl; 2: how they are unpacked, for items.wgsl.

#if PART == 0
fn q5_K(b: u32, v: u32) -> vec4<f32> {
  let at = 44u * b;
  let dm = unpack2x16float(raw_${N}[at]) * scale_min(at + 1u, v / 8u);
  let q = (raw_${N}[at + 12u + v / 16u * 8u + v % 8u] >> (v / 8u % 2u * 4u)) & 0x0f0f0f0fu;
  let h = (raw_${N}[at + 4u + v % 8u] >> (v / 8u)) & 0x01010101u;
  return fma(vec4<f32>(dm.x), octets(q | (h << 4u), 0.0), vec4<f32>(-dm.y));
}
#elif PART == 1
fn first_q5_K${S}(b: u32, g: u32) -> vec4<u32> { return wide_${N}[11u * b + 3u + g]; }
fn second_q5_K${S}(b: u32, g: u32) -> vec4<u32> { return wide_${N}[11u * b]; }
fn third_q5_K${S}(b: u32, g: u32) -> vec4<u32> { return wide_${N}[11u * b + 1u + g % 2u]; }
#else
fn packed_q5_K(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> u32 {
  let bit = g / 2u * 2u + c / 4u;
  return ((x[c & 3u] >> (c & 4u)) & 0x0f0f0f0fu) | (((z[c & 3u] >> bit) & 0x01010101u) << 4u);
}
fn scale_q5_K(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, s: u32) -> vec2<f32> {
  return unpack2x16float(y.x) * scale_min_of(y.yzw, g / 2u, s) * vec2<f32>(1.0, -1.0);
}
fn quad_q5_K(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> vec4<f32> { return octets(packed_q5_K(x, y, z, g, c), 0.0); }
#endif
