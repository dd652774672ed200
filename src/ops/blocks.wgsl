// GGML's block formats read from their own bytes: four consecutive weights of block `b`, quad `v` of the block.
//
// Blocks are aligned to 2 bytes only, except Q4_1, Q5_1, Q4_K, Q5_K and Q2_K, whose sizes are multiples of 4. A caller takes the
// common part and the section of its format.

// default
@group(0) @binding(0) var<storage, read> raw_1: array<u32>;
// end

// format common
// The four bytes of x as numbers.
fn bytes(x: u32) -> vec4<f32> { return vec4<f32>((vec4<u32>(x) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u)); }
fn signed_bytes(x: u32) -> vec4<f32> { return vec4<f32>(vec4<i32>(vec4<u32>(x) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u)); }
// The low four bits of h, one in each byte.
fn spread(h: u32) -> u32 { return ((h & 15u) * 0x00204081u) & 0x01010101u; }
// 32 bits at an even byte.
fn word_at(at: u32) -> u32 {
  let w = raw_1[at / 4u];
  var r = w;
  if ((at & 2u) != 0u) { r = (w >> 16u) | (raw_1[at / 4u + 1u] << 16u); }
  return r;
}
fn half_at(at: u32) -> f32 { return unpack2x16float(raw_1[at / 4u] >> (8u * (at & 2u))).x; }
fn byte_at(at: u32) -> u32 { return (raw_1[at / 4u] >> (8u * (at & 3u))) & 255u; }

// format q4_0
fn q4_0(b: u32, v: u32) -> vec4<f32> {
  let at = 18u * b;
  let q = (word_at(at + 2u + 4u * (v & 3u)) >> (v & 4u)) & 0x0f0f0f0fu;
  return half_at(at) * (bytes(q) - 8.0);
}

// format q4_1
// A nibble in an f32's mantissa is 1 + q/16: no conversion, and the scale takes the rest back.
fn nibbles(q: vec4<u32>, scale: vec2<f32>) -> vec4<f32> {
  return fma(bitcast<vec4<f32>>((q & vec4<u32>(0x00780000u)) | vec4<u32>(0x3f800000u)), vec4<f32>(scale.x), vec4<f32>(scale.y));
}
fn q4_1_scale(w: u32) -> vec2<f32> { let dm = unpack2x16float(w); return vec2<f32>(16.0 * dm.x, dm.y - 16.0 * dm.x); }
fn q4_1(b: u32, v: u32) -> vec4<f32> {
  let q = raw_1[5u * b + 1u + (v & 3u)] >> (v & 4u);
  return nibbles(vec4<u32>(q << 19u, q << 11u, q << 3u, q >> 5u), q4_1_scale(raw_1[5u * b]));
}
// Quads v and v + 4 share their word.
fn q4_1_lo(q: u32, s: vec2<f32>) -> vec4<f32> { return nibbles(vec4<u32>(q << 19u, q << 11u, q << 3u, q >> 5u), s); }
fn q4_1_hi(q: u32, s: vec2<f32>) -> vec4<f32> { return nibbles(vec4<u32>(q << 15u, q << 7u, q >> 1u, q >> 9u), s); }

// format q5_0
fn q5_0(b: u32, v: u32) -> vec4<f32> {
  let at = 22u * b;
  let q = (word_at(at + 6u + 4u * (v & 3u)) >> (v & 4u)) & 0x0f0f0f0fu;
  return half_at(at) * (bytes(q | (spread(word_at(at + 2u) >> (4u * v)) << 4u)) - 16.0);
}

// format q5_1
fn q5_1(b: u32, v: u32) -> vec4<f32> {
  let dm = unpack2x16float(raw_1[6u * b]);
  let q = (raw_1[6u * b + 2u + (v & 3u)] >> (v & 4u)) & 0x0f0f0f0fu;
  return fma(vec4<f32>(dm.x), bytes(q | (spread(raw_1[6u * b + 1u] >> (4u * v)) << 4u)), vec4<f32>(dm.y));
}

// format q8_0
fn q8_0(b: u32, v: u32) -> vec4<f32> {
  let at = 34u * b;
  return half_at(at) * signed_bytes(word_at(at + 2u + 4u * v));
}

// format q2_K
fn q2_K(b: u32, v: u32) -> vec4<f32> {
  let at = 21u * b;
  let q = (raw_1[at + 4u + v / 32u * 8u + v % 8u] >> (v / 8u % 4u * 2u)) & 0x03030303u;
  let s = byte_at(4u * at + v / 4u);
  let dm = unpack2x16float(raw_1[at + 20u]);
  return (dm.x * f32(s & 15u)) * bytes(q) - dm.y * f32(s >> 4u);
}

// format q3_K
fn q3_K(b: u32, v: u32) -> vec4<f32> {
  let at = 110u * b;
  let q = (word_at(at + 32u + v / 32u * 32u + v % 8u * 4u) >> (v / 8u % 4u * 2u)) & 0x03030303u;
  let h = (word_at(at + v % 8u * 4u) >> (v / 8u)) & 0x01010101u;
  let s = v / 4u; // of 16 scales: four low bits in bytes 0..8, two high bits in bytes 8..12
  let low = (word_at(at + 96u + s / 4u % 2u * 4u) >> (s % 4u * 8u + s / 8u * 4u)) & 15u;
  let high = (word_at(at + 104u) >> (s % 4u * 8u + s / 4u * 2u)) & 3u;
  return (half_at(at + 108u) * (f32(low | (high << 4u)) - 32.0)) * (bytes(q | (h << 2u)) - 4.0);
}

// format scales_K
// Scale and minimum of sub-block j: six bits each, packed in 12 bytes from word `at` on.
fn scale_min(at: u32, j: u32) -> vec2<f32> {
  let shift = 8u * (j & 3u);
  let a = raw_1[at] >> shift; let m = raw_1[at + 1u] >> shift; let c = raw_1[at + 2u] >> shift;
  if (j < 4u) { return vec2<f32>(f32(a & 63u), f32(m & 63u)); }
  return vec2<f32>(f32((c & 15u) | ((a >> 2u) & 48u)), f32(((c >> 4u) & 15u) | ((m >> 2u) & 48u)));
}

// format q4_K
fn q4_K(b: u32, v: u32) -> vec4<f32> {
  let at = 36u * b;
  let dm = unpack2x16float(raw_1[at]) * scale_min(at + 1u, v / 8u);
  let q = (raw_1[at + 4u + v / 16u * 8u + v % 8u] >> (v / 8u % 2u * 4u)) & 0x0f0f0f0fu;
  return fma(vec4<f32>(dm.x), bytes(q), vec4<f32>(-dm.y));
}

// format q5_K
fn q5_K(b: u32, v: u32) -> vec4<f32> {
  let at = 44u * b;
  let dm = unpack2x16float(raw_1[at]) * scale_min(at + 1u, v / 8u);
  let q = (raw_1[at + 12u + v / 16u * 8u + v % 8u] >> (v / 8u % 2u * 4u)) & 0x0f0f0f0fu;
  let h = (raw_1[at + 4u + v % 8u] >> (v / 8u)) & 0x01010101u;
  return fma(vec4<f32>(dm.x), bytes(q | (h << 4u)), vec4<f32>(-dm.y));
}

// format q6_K
fn q6_K(b: u32, v: u32) -> vec4<f32> {
  let at = 210u * b;
  let quad = v / 8u % 4u;
  let q = (word_at(at + v / 32u * 64u + quad % 2u * 32u + v % 8u * 4u) >> (quad / 2u * 4u)) & 0x0f0f0f0fu;
  let h = (word_at(at + 128u + v / 32u * 32u + v % 8u * 4u) >> (quad * 2u)) & 0x03030303u;
  let s = f32(i32(byte_at(at + 192u + v / 4u) << 24u) >> 24u);
  return (half_at(at + 208u) * s) * (bytes(q | (h << 4u)) - 32.0);
}
// format end
