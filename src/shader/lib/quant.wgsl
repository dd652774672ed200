// GGML's block formats read from their own bytes. `q…(b, v)`: quad `v` of block `b`, four weights.
//
// Blocks are aligned to 2 bytes only, except Q4_1, Q5_1, Q4_K, Q5_K and Q2_K, whose sizes are multiples of 4. A caller takes the
// common parts and the section of its format.

// default
@group(0) @binding(0) var<storage, read> raw_1: array<u32>;
fn word(n: u32) -> u32 { return raw_1[n]; }
// end

// format common
// The low four bits of h, one in each byte.
fn spread(h: u32) -> u32 { return ((h & 15u) * 0x00204081u) & 0x01010101u; }
// Small numbers within a word as floats: an integer below 2^23 in the mantissa of 2^23 is that float plus the integer, exactly.
// `less` is taken off in the same step. 2^23 comes out of a number that is below 2^31, so that a compiler does not know it: a bitwise
// operation takes one constant only, and would become two.
fn two_23() -> u32 { return 0x4b000000u | (word(0u) >> 31u); }
fn low_nibbles(w: u32, less: f32) -> vec4<f32> {
  let x = (vec4<u32>(w, w, w >> 16u, w >> 16u) & vec4<u32>(0xfu, 0xf00u, 0xfu, 0xf00u)) | vec4<u32>(two_23());
  return fma(bitcast<vec4<f32>>(x), vec4<f32>(1.0, 0.00390625, 1.0, 0.00390625), vec4<f32>(-8388608.0, -32768.0, -8388608.0, -32768.0) - less);
}
fn high_nibbles(w: u32, less: f32) -> vec4<f32> {
  let x = (vec4<u32>(w, w, w >> 16u, w >> 16u) & vec4<u32>(0xf0u, 0xf000u, 0xf0u, 0xf000u)) | vec4<u32>(two_23());
  return fma(bitcast<vec4<f32>>(x), vec4<f32>(0.0625, 0.000244140625, 0.0625, 0.000244140625), vec4<f32>(-524288.0, -2048.0, -524288.0, -2048.0) - less);
}
fn nibbles(w: u32, high: bool, less: f32) -> vec4<f32> {
  if (high) { return high_nibbles(w, less); }
  return low_nibbles(w, less);
}
fn octets(w: u32, less: f32) -> vec4<f32> {
  let x = (vec4<u32>(w, w, w >> 16u, w >> 16u) & vec4<u32>(0xffu, 0xff00u, 0xffu, 0xff00u)) | vec4<u32>(two_23());
  return fma(bitcast<vec4<f32>>(x), vec4<f32>(1.0, 0.00390625, 1.0, 0.00390625), vec4<f32>(-8388608.0, -32768.0, -8388608.0, -32768.0) - less);
}

// format bytes
// 32 bits at an even byte.
fn word_at(at: u32) -> u32 {
  let w = raw_1[at / 4u];
  var r = w;
  if ((at & 2u) != 0u) { r = (w >> 16u) | (raw_1[at / 4u + 1u] << 16u); }
  return r;
}
// 64 bits at an even byte, where the word behind them may be read too.
fn words_at(at: u32) -> vec2<u32> {
  let a = raw_1[at / 4u]; let b = raw_1[at / 4u + 1u]; let c = raw_1[at / 4u + 2u];
  return select(vec2<u32>(a, b), vec2<u32>((a >> 16u) | (b << 16u), (b >> 16u) | (c << 16u)), (at & 2u) != 0u);
}
fn half_at(at: u32) -> f32 { return unpack2x16float(raw_1[at / 4u] >> (8u * (at & 2u))).x; }
fn byte_at(at: u32) -> u32 { return (raw_1[at / 4u] >> (8u * (at & 3u))) & 255u; }

// format q4_0
fn q4_0(b: u32, v: u32) -> vec4<f32> {
  let at = 18u * b;
  let q = (word_at(at + 2u + 4u * (v & 3u)) >> (v & 4u)) & 0x0f0f0f0fu;
  return half_at(at) * octets(q, 8.0);
}

// format q4_1
fn q4_1(b: u32, v: u32) -> vec4<f32> {
  let dm = unpack2x16float(raw_1[5u * b]);
  return fma(nibbles(raw_1[5u * b + 1u + (v & 3u)], v > 3u, 0.0), vec4<f32>(dm.x), vec4<f32>(dm.y));
}

// format q5_0
fn q5_0(b: u32, v: u32) -> vec4<f32> {
  let at = 22u * b;
  let q = (word_at(at + 6u + 4u * (v & 3u)) >> (v & 4u)) & 0x0f0f0f0fu;
  return half_at(at) * (octets(q | (spread(word_at(at + 2u) >> (4u * v)) << 4u), 16.0));
}

// format q5_1
fn q5_1(b: u32, v: u32) -> vec4<f32> {
  let dm = unpack2x16float(raw_1[6u * b]);
  let q = (raw_1[6u * b + 2u + (v & 3u)] >> (v & 4u)) & 0x0f0f0f0fu;
  return fma(vec4<f32>(dm.x), octets(q | (spread(raw_1[6u * b + 1u] >> (4u * v)) << 4u), 0.0), vec4<f32>(dm.y));
}

// format q8_0
fn q8_0(b: u32, v: u32) -> vec4<f32> {
  let at = 34u * b;
  return half_at(at) * octets(word_at(at + 2u + 4u * v) ^ 0x80808080u, 128.0);
}

// format q2_K
fn q2_K(b: u32, v: u32) -> vec4<f32> {
  let at = 21u * b;
  let q = (raw_1[at + 4u + v / 32u * 8u + v % 8u] >> (v / 8u % 4u * 2u)) & 0x03030303u;
  let s = byte_at(4u * at + v / 4u);
  let dm = unpack2x16float(raw_1[at + 20u]);
  return (dm.x * f32(s & 15u)) * octets(q, 0.0) - dm.y * f32(s >> 4u);
}

// format q3_K
fn q3_K(b: u32, v: u32) -> vec4<f32> {
  let at = 110u * b;
  let q = (word_at(at + 32u + v / 32u * 32u + v % 8u * 4u) >> (v / 8u % 4u * 2u)) & 0x03030303u;
  let h = (word_at(at + v % 8u * 4u) >> (v / 8u)) & 0x01010101u;
  let s = v / 4u; // of 16 scales: four low bits in bytes 0..8, two high bits in bytes 8..12
  let low = (word_at(at + 96u + s / 4u % 2u * 4u) >> (s % 4u * 8u + s / 8u * 4u)) & 15u;
  let high = (word_at(at + 104u) >> (s % 4u * 8u + s / 4u * 2u)) & 3u;
  return (half_at(at + 108u) * (f32(low | (high << 4u)) - 32.0)) * octets(q | (h << 2u), 4.0);
}

// format scales_K
// Scale and minimum of sub-block j: six bits each, packed in 12 bytes from word `at` on.
fn scale_min(at: u32, j: u32) -> vec2<f32> { return scale_min_of(vec3<u32>(raw_1[at], raw_1[at + 1u], raw_1[at + 2u]), j / 2u, j % 2u); }

// format min_K
// The same of the three words: neighbours 2 * pair and 2 * pair + 1 together, in two bytes. Neighbouring threads want different ones: no branches.
fn scale_min_of(w: vec3<u32>, pair: u32, s: u32) -> vec2<f32> {
  let at = w >> vec3<u32>(16u * (pair & 1u));
  let high = (vec2<u32>(at.z, at.z >> 4u) & vec2<u32>(0x0f0fu)) | ((at.xy >> vec2<u32>(2u)) & vec2<u32>(0x3030u));
  return vec2<f32>((select(high, at.xy, pair < 2u) >> vec2<u32>(8u * s)) & vec2<u32>(63u));
}

// format q4_K
fn q4_K(b: u32, v: u32) -> vec4<f32> {
  let at = 36u * b;
  let dm = unpack2x16float(raw_1[at]) * scale_min(at + 1u, v / 8u);
  let q = (raw_1[at + 4u + v / 16u * 8u + v % 8u] >> (v / 8u % 2u * 4u)) & 0x0f0f0f0fu;
  return fma(vec4<f32>(dm.x), octets(q, 0.0), vec4<f32>(-dm.y));
}

// format q5_K
fn q5_K(b: u32, v: u32) -> vec4<f32> {
  let at = 44u * b;
  let dm = unpack2x16float(raw_1[at]) * scale_min(at + 1u, v / 8u);
  let q = (raw_1[at + 12u + v / 16u * 8u + v % 8u] >> (v / 8u % 2u * 4u)) & 0x0f0f0f0fu;
  let h = (raw_1[at + 4u + v % 8u] >> (v / 8u)) & 0x01010101u;
  return fma(vec4<f32>(dm.x), octets(q | (h << 4u), 0.0), vec4<f32>(-dm.y));
}

// format q6_K
fn q6_K(b: u32, v: u32) -> vec4<f32> {
  let at = 210u * b;
  let quad = v / 8u % 4u;
  let q = (word_at(at + v / 32u * 64u + quad % 2u * 32u + v % 8u * 4u) >> (quad / 2u * 4u)) & 0x0f0f0f0fu;
  let h = (word_at(at + 128u + v / 32u * 32u + v % 8u * 4u) >> (quad * 2u)) & 0x03030303u;
  let s = f32(i32(byte_at(at + 192u + v / 4u) << 24u) >> 24u);
  return (half_at(at + 208u) * s) * octets(q | (h << 4u), 32.0);
}
// format end
