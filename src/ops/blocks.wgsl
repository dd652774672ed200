// GGML's block formats read from their own bytes. `q…(b, v)`: quad `v` of block `b`, four weights. `Held_…`, `hold_…(b, g)` and
// `quad_…(held, c)`: item `g` of block `b`, 32 weights whose quads come from the same words, as it is stored, and its quad `c`.
//
// Blocks are aligned to 2 bytes only, except Q4_1, Q5_1, Q4_K, Q5_K and Q2_K, whose sizes are multiples of 4. A caller takes the
// common part and the section of its format.

// default
@group(0) @binding(0) var<storage, read> raw_1: array<u32>;
// end

// format common
// The low four bits of h, one in each byte.
fn spread(h: u32) -> u32 { return ((h & 15u) * 0x00204081u) & 0x01010101u; }
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

// Small numbers within a word as floats: an integer below 2^23 in the mantissa of 2^23 is that float plus the integer, exactly.
// `less` is taken off in the same step.
fn low_nibbles(w: u32, less: f32) -> vec4<f32> {
  let x = (vec4<u32>(w, w, w >> 16u, w >> 16u) & vec4<u32>(0xfu, 0xf00u, 0xfu, 0xf00u)) | vec4<u32>(0x4b000000u);
  return fma(bitcast<vec4<f32>>(x), vec4<f32>(1.0, 0.00390625, 1.0, 0.00390625), vec4<f32>(-8388608.0, -32768.0, -8388608.0, -32768.0) - less);
}
fn high_nibbles(w: u32, less: f32) -> vec4<f32> {
  let x = (vec4<u32>(w, w, w >> 16u, w >> 16u) & vec4<u32>(0xf0u, 0xf000u, 0xf0u, 0xf000u)) | vec4<u32>(0x4b000000u);
  return fma(bitcast<vec4<f32>>(x), vec4<f32>(0.0625, 0.000244140625, 0.0625, 0.000244140625), vec4<f32>(-524288.0, -2048.0, -524288.0, -2048.0) - less);
}
fn nibbles(w: u32, high: bool, less: f32) -> vec4<f32> {
  if (high) { return high_nibbles(w, less); }
  return low_nibbles(w, less);
}
fn octets(w: u32, less: f32) -> vec4<f32> {
  let x = (vec4<u32>(w, w, w >> 16u, w >> 16u) & vec4<u32>(0xffu, 0xff00u, 0xffu, 0xff00u)) | vec4<u32>(0x4b000000u);
  return fma(bitcast<vec4<f32>>(x), vec4<f32>(1.0, 0.00390625, 1.0, 0.00390625), vec4<f32>(-8388608.0, -32768.0, -8388608.0, -32768.0) - less);
}

// format q4_0
struct Held_q4_0 { a: vec4<u32>, b: u32, odd: bool }
fn hold_q4_0(b: u32, g: u32) -> Held_q4_0 {
  let at = 9u * b / 2u;
  return Held_q4_0(vec4<u32>(raw_1[at], raw_1[at + 1u], raw_1[at + 2u], raw_1[at + 3u]), raw_1[at + 4u], (b & 1u) == 1u);
}
fn quad_q4_0(h: Held_q4_0, c: u32) -> vec4<f32> {
  let next = vec4<u32>(h.a.yzw, h.b);
  let q = select((h.a >> vec4<u32>(16u)) | (next << vec4<u32>(16u)), next, h.odd);
  let d = unpack2x16float(h.a.x);
  return nibbles(q[c & 3u], c > 3u, 8.0) * select(d.x, d.y, h.odd);
}
fn q4_0(b: u32, v: u32) -> vec4<f32> {
  let at = 18u * b;
  let q = (word_at(at + 2u + 4u * (v & 3u)) >> (v & 4u)) & 0x0f0f0f0fu;
  return half_at(at) * octets(q, 8.0);
}

// format q4_1
struct Held_q4_1 { q: vec4<u32>, dm: u32 }
fn hold_q4_1(b: u32, g: u32) -> Held_q4_1 {
  let at = 5u * b;
  return Held_q4_1(vec4<u32>(raw_1[at + 1u], raw_1[at + 2u], raw_1[at + 3u], raw_1[at + 4u]), raw_1[at]);
}
fn quad_q4_1(h: Held_q4_1, c: u32) -> vec4<f32> {
  let dm = unpack2x16float(h.dm);
  return fma(nibbles(h.q[c & 3u], c > 3u, 0.0), vec4<f32>(dm.x), vec4<f32>(dm.y));
}
fn q4_1(b: u32, v: u32) -> vec4<f32> {
  let dm = unpack2x16float(raw_1[5u * b]);
  return fma(nibbles(raw_1[5u * b + 1u + (v & 3u)], v > 3u, 0.0), vec4<f32>(dm.x), vec4<f32>(dm.y));
}

// format q5_0
struct Held_q5_0 { q: vec4<u32>, h: u32, d: f32 }
fn hold_q5_0(b: u32, g: u32) -> Held_q5_0 {
  let at = 22u * b;
  let q = words_at(at + 6u);
  return Held_q5_0(vec4<u32>(q, word_at(at + 14u), word_at(at + 18u)), word_at(at + 2u), half_at(at));
}
fn quad_q5_0(h: Held_q5_0, c: u32) -> vec4<f32> {
  return octets(((h.q[c & 3u] >> (c & 4u)) & 0x0f0f0f0fu) | (spread(h.h >> (4u * c)) << 4u), 16.0) * h.d;
}
fn q5_0(b: u32, v: u32) -> vec4<f32> {
  let at = 22u * b;
  let q = (word_at(at + 6u + 4u * (v & 3u)) >> (v & 4u)) & 0x0f0f0f0fu;
  return half_at(at) * (octets(q | (spread(word_at(at + 2u) >> (4u * v)) << 4u), 16.0));
}

// format q5_1
struct Held_q5_1 { q: vec4<u32>, h: u32, dm: u32 }
fn hold_q5_1(b: u32, g: u32) -> Held_q5_1 {
  let at = 6u * b;
  return Held_q5_1(vec4<u32>(raw_1[at + 2u], raw_1[at + 3u], raw_1[at + 4u], raw_1[at + 5u]), raw_1[at + 1u], raw_1[at]);
}
fn quad_q5_1(h: Held_q5_1, c: u32) -> vec4<f32> {
  let dm = unpack2x16float(h.dm);
  return fma(octets(((h.q[c & 3u] >> (c & 4u)) & 0x0f0f0f0fu) | (spread(h.h >> (4u * c)) << 4u), 0.0), vec4<f32>(dm.x), vec4<f32>(dm.y));
}
fn q5_1(b: u32, v: u32) -> vec4<f32> {
  let dm = unpack2x16float(raw_1[6u * b]);
  let q = (raw_1[6u * b + 2u + (v & 3u)] >> (v & 4u)) & 0x0f0f0f0fu;
  return fma(vec4<f32>(dm.x), octets(q | (spread(raw_1[6u * b + 1u] >> (4u * v)) << 4u), 0.0), vec4<f32>(dm.y));
}

// format q8_0
struct Held_q8_0 { a: vec4<u32>, b: vec4<u32>, c: u32, odd: bool }
fn hold_q8_0(b: u32, g: u32) -> Held_q8_0 {
  let at = 17u * b / 2u;
  return Held_q8_0(
    vec4<u32>(raw_1[at], raw_1[at + 1u], raw_1[at + 2u], raw_1[at + 3u]),
    vec4<u32>(raw_1[at + 4u], raw_1[at + 5u], raw_1[at + 6u], raw_1[at + 7u]), raw_1[at + 8u], (b & 1u) == 1u);
}
fn quad_q8_0(h: Held_q8_0, c: u32) -> vec4<f32> {
  var here = h.a; var next = vec4<u32>(h.a.yzw, h.b.x);
  if (c > 3u) { here = h.b; next = vec4<u32>(h.b.yzw, h.c); }
  let n = next[c & 3u];
  let q = select((here[c & 3u] >> 16u) | (n << 16u), n, h.odd);
  let d = unpack2x16float(h.a.x);
  return octets(q ^ 0x80808080u, 128.0) * select(d.x, d.y, h.odd);
}
fn q8_0(b: u32, v: u32) -> vec4<f32> {
  let at = 34u * b;
  return half_at(at) * octets(word_at(at + 2u + 4u * v) ^ 0x80808080u, 128.0);
}

// format q2_K
struct Held_q2_K { q: vec2<u32>, s: vec2<u32>, dm: u32, half: u32 }
fn hold_q2_K(b: u32, g: u32) -> Held_q2_K {
  let at = 21u * b; let s = at + g / 4u * 2u; let q = at + 4u + 2u * g;
  return Held_q2_K(vec2<u32>(raw_1[q], raw_1[q + 1u]), vec2<u32>(raw_1[s], raw_1[s + 1u]), raw_1[at + 20u], g / 2u % 2u);
}
fn quad_q2_K(h: Held_q2_K, c: u32) -> vec4<f32> {
  let dm = unpack2x16float(h.dm);
  let s = h.s[c / 4u] >> (8u * (c / 2u % 2u * 2u + h.half));
  return fma(octets((h.q[c % 2u] >> (c / 2u * 2u)) & 0x03030303u, 0.0), vec4<f32>(dm.x * f32(s & 15u)), vec4<f32>(-dm.y * f32((s >> 4u) & 15u)));
}
fn q2_K(b: u32, v: u32) -> vec4<f32> {
  let at = 21u * b;
  let q = (raw_1[at + 4u + v / 32u * 8u + v % 8u] >> (v / 8u % 4u * 2u)) & 0x03030303u;
  let s = byte_at(4u * at + v / 4u);
  let dm = unpack2x16float(raw_1[at + 20u]);
  return (dm.x * f32(s & 15u)) * octets(q, 0.0) - dm.y * f32(s >> 4u);
}

// format q3_K
struct Held_q3_K { q: vec2<u32>, h: vec2<u32>, low: vec2<u32>, high: u32, d: f32, g: u32 }
fn hold_q3_K(b: u32, g: u32) -> Held_q3_K {
  let at = 110u * b;
  return Held_q3_K(words_at(at + 32u + 8u * g), words_at(at + g % 4u * 8u), words_at(at + 96u), word_at(at + 104u), half_at(at + 108u), g);
}
fn quad_q3_K(h: Held_q3_K, c: u32) -> vec4<f32> {
  let bit = h.g / 4u * 4u + c / 2u;
  let q = ((h.q[c % 2u] >> (c / 2u * 2u)) & 0x03030303u) | (((h.h[c % 2u] >> bit) & 0x01010101u) << 2u);
  let s = h.g / 4u * 8u + c / 2u * 2u + h.g / 2u % 2u;
  let low = (select(h.low.x, h.low.y, s / 4u % 2u == 1u) >> (s % 4u * 8u + s / 8u * 4u)) & 15u;
  let high = (h.high >> (s % 4u * 8u + s / 4u * 2u)) & 3u;
  return octets(q, 4.0) * (h.d * (f32(low | (high << 4u)) - 32.0));
}
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
fn scale_min(at: u32, j: u32) -> vec2<f32> { return scale_min_of(vec3<u32>(raw_1[at], raw_1[at + 1u], raw_1[at + 2u]), j); }
fn scale_min_of(w: vec3<u32>, j: u32) -> vec2<f32> {
  let shift = 8u * (j & 3u);
  let a = w.x >> shift; let m = w.y >> shift; let c = w.z >> shift;
  if (j < 4u) { return vec2<f32>(f32(a & 63u), f32(m & 63u)); }
  return vec2<f32>(f32((c & 15u) | ((a >> 2u) & 48u)), f32(((c >> 4u) & 15u) | ((m >> 2u) & 48u)));
}

// format q4_K
struct Held_q4_K { q: vec4<u32>, s: vec3<u32>, dm: u32, g: u32 }
fn hold_q4_K(b: u32, g: u32) -> Held_q4_K {
  let at = 36u * b; let q = at + 4u + 4u * g;
  return Held_q4_K(vec4<u32>(raw_1[q], raw_1[q + 1u], raw_1[q + 2u], raw_1[q + 3u]), vec3<u32>(raw_1[at + 1u], raw_1[at + 2u], raw_1[at + 3u]), raw_1[at], g);
}
fn quad_q4_K(h: Held_q4_K, c: u32) -> vec4<f32> {
  let dm = unpack2x16float(h.dm) * scale_min_of(h.s, h.g / 2u * 2u + c / 4u);
  return fma(nibbles(h.q[c % 4u], c > 3u, 0.0), vec4<f32>(dm.x), vec4<f32>(-dm.y));
}
fn q4_K(b: u32, v: u32) -> vec4<f32> {
  let at = 36u * b;
  let dm = unpack2x16float(raw_1[at]) * scale_min(at + 1u, v / 8u);
  let q = (raw_1[at + 4u + v / 16u * 8u + v % 8u] >> (v / 8u % 2u * 4u)) & 0x0f0f0f0fu;
  return fma(vec4<f32>(dm.x), octets(q, 0.0), vec4<f32>(-dm.y));
}

// format q5_K
struct Held_q5_K { q: vec4<u32>, h: vec4<u32>, s: vec3<u32>, dm: u32, g: u32 }
fn hold_q5_K(b: u32, g: u32) -> Held_q5_K {
  let at = 44u * b; let q = at + 12u + 4u * g; let h = at + 4u + g % 2u * 4u;
  return Held_q5_K(
    vec4<u32>(raw_1[q], raw_1[q + 1u], raw_1[q + 2u], raw_1[q + 3u]), vec4<u32>(raw_1[h], raw_1[h + 1u], raw_1[h + 2u], raw_1[h + 3u]),
    vec3<u32>(raw_1[at + 1u], raw_1[at + 2u], raw_1[at + 3u]), raw_1[at], g);
}
fn quad_q5_K(h: Held_q5_K, c: u32) -> vec4<f32> {
  let j = h.g / 2u * 2u + c / 4u;
  let dm = unpack2x16float(h.dm) * scale_min_of(h.s, j);
  let q = ((h.q[c % 4u] >> (c & 4u)) & 0x0f0f0f0fu) | (((h.h[c % 4u] >> j) & 0x01010101u) << 4u);
  return fma(octets(q, 0.0), vec4<f32>(dm.x), vec4<f32>(-dm.y));
}
fn q5_K(b: u32, v: u32) -> vec4<f32> {
  let at = 44u * b;
  let dm = unpack2x16float(raw_1[at]) * scale_min(at + 1u, v / 8u);
  let q = (raw_1[at + 12u + v / 16u * 8u + v % 8u] >> (v / 8u % 2u * 4u)) & 0x0f0f0f0fu;
  let h = (raw_1[at + 4u + v % 8u] >> (v / 8u)) & 0x01010101u;
  return fma(vec4<f32>(dm.x), octets(q | (h << 4u), 0.0), vec4<f32>(-dm.y));
}

// format q6_K
struct Held_q6_K { a: vec2<u32>, b: vec2<u32>, h: vec2<u32>, s: vec2<u32>, d: f32, half: u32 }
fn hold_q6_K(b: u32, g: u32) -> Held_q6_K {
  let at = 210u * b; let q = at + g / 4u * 64u + g % 4u * 8u;
  return Held_q6_K(words_at(q), words_at(q + 32u), words_at(at + 128u + 8u * g), words_at(at + 192u + g / 4u * 8u), half_at(at + 208u), g / 2u % 2u);
}
fn quad_q6_K(h: Held_q6_K, c: u32) -> vec4<f32> {
  let strip = c / 2u;
  var w = h.a;
  if (strip % 2u == 1u) { w = h.b; }
  let q = ((w[c % 2u] >> (strip / 2u * 4u)) & 0x0f0f0f0fu) | (((h.h[c % 2u] >> (2u * strip)) & 0x03030303u) << 4u);
  let s = f32(i32(h.s[c / 4u] << (24u - 8u * (strip % 2u * 2u + h.half))) >> 24u);
  return octets(q, 32.0) * (h.d * s);
}
fn q6_K(b: u32, v: u32) -> vec4<f32> {
  let at = 210u * b;
  let quad = v / 8u % 4u;
  let q = (word_at(at + v / 32u * 64u + quad % 2u * 32u + v % 8u * 4u) >> (quad / 2u * 4u)) & 0x0f0f0f0fu;
  let h = (word_at(at + 128u + v / 32u * 32u + v % 8u * 4u) >> (quad * 2u)) & 0x03030303u;
  let s = f32(i32(byte_at(at + 192u + v / 4u) << 24u) >> 24u);
  return (half_at(at + 208u) * s) * octets(q | (h << 4u), 32.0);
}
// format end
