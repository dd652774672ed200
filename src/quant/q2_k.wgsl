// Q2_K. PART 0: a quad of a block, for tiles.wgsl; 1: how items are loaded, for loads.wgsl; 2: how they are unpacked, for items.wgsl.

#if PART == 0
fn q2_K(b: u32, v: u32) -> vec4<f32> {
  let at = 21u * b;
  let q = (raw_${N}[at + 4u + v / 32u * 8u + v % 8u] >> (v / 8u % 4u * 2u)) & 0x03030303u;
  let s = byte_at(4u * at + v / 4u);
  let dm = unpack2x16float(raw_${N}[at + 20u]);
  return (dm.x * f32(s & 15u)) * octets(q, 0.0) - dm.y * f32(s >> 4u);
}
#elif PART == 1
fn first_q2_K${S}(b: u32, g: u32) -> vec4<u32> {
  let at = 21u * b; let q = at + 4u + 2u * g; let s = at + g / 4u * 2u;
  return vec4<u32>(raw_${N}[q], raw_${N}[q + 1u], raw_${N}[s], raw_${N}[s + 1u]);
}
fn second_q2_K${S}(b: u32, g: u32) -> vec4<u32> { return vec4<u32>(raw_${N}[21u * b + 20u], 0u, 0u, 0u); }
#else
fn packed_q2_K(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> u32 { return (x[c % 2u] >> (c / 2u * 2u)) & 0x03030303u; }
fn scale_q2_K(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, s: u32) -> vec2<f32> {
  let w = x[2u + s / 2u] >> (8u * (s % 2u * 2u + g / 2u % 2u));
  return unpack2x16float(y.x) * vec2<f32>(f32(w & 15u), -f32((w >> 4u) & 15u));
}
fn quad_q2_K(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> vec4<f32> { return octets(packed_q2_K(x, y, z, g, c), 0.0); }
#endif
