// GGML's block formats for products of a few rows: items of 32 weights whose quads come from the same words. `hold_…(b, g)`: item `g` of
// block `b` as it is stored; `quad_…(held, c)`: its quad `c` in whole numbers; `scale_…(held, s)`: what those of part `s` of the item are
// multiplied with, and what is added. Functions that both files use stand in blocks.wgsl.
//
// Blocks of Q4_K and Q5_K are whole rows of 16 bytes and are read as such.

// default
@group(0) @binding(0) var<storage, read> raw_1: array<u32>;
@group(0) @binding(1) var<storage, read> wide_1: array<vec4<u32>>;
fn spread(h: u32) -> u32 { return h; }
fn word_at(at: u32) -> u32 { return raw_1[at / 4u]; }
fn words_at(at: u32) -> vec2<u32> { return vec2<u32>(raw_1[at / 4u]); }
fn half_at(at: u32) -> f32 { return f32(raw_1[at / 4u]); }
fn nibbles(w: u32, high: bool, less: f32) -> vec4<f32> { return vec4<f32>(less); }
fn octets(w: u32, less: f32) -> vec4<f32> { return vec4<f32>(less); }
fn scale_min_of(w: vec3<u32>, j: u32) -> vec2<f32> { return vec2<f32>(w.xy); }
// end

// format q4_0
struct Held_q4_0 { a: vec4<u32>, b: u32, odd: bool }
fn hold_q4_0(b: u32, g: u32) -> Held_q4_0 {
  let at = 9u * b / 2u;
  return Held_q4_0(vec4<u32>(raw_1[at], raw_1[at + 1u], raw_1[at + 2u], raw_1[at + 3u]), raw_1[at + 4u], (b & 1u) == 1u);
}
fn quad_q4_0(h: Held_q4_0, c: u32) -> vec4<f32> {
  let next = vec4<u32>(h.a.yzw, h.b);
  let q = select((h.a >> vec4<u32>(16u)) | (next << vec4<u32>(16u)), next, h.odd);
  return nibbles(q[c & 3u], c > 3u, 8.0);
}
fn scale_q4_0(h: Held_q4_0, s: u32) -> vec2<f32> {
  let d = unpack2x16float(h.a.x);
  return vec2<f32>(select(d.x, d.y, h.odd), 0.0);
}

// format q4_1
struct Held_q4_1 { q: vec4<u32>, dm: u32 }
fn hold_q4_1(b: u32, g: u32) -> Held_q4_1 {
  let at = 5u * b;
  return Held_q4_1(vec4<u32>(raw_1[at + 1u], raw_1[at + 2u], raw_1[at + 3u], raw_1[at + 4u]), raw_1[at]);
}
fn quad_q4_1(h: Held_q4_1, c: u32) -> vec4<f32> { return nibbles(h.q[c & 3u], c > 3u, 0.0); }
fn scale_q4_1(h: Held_q4_1, s: u32) -> vec2<f32> { return unpack2x16float(h.dm); }

// format q5_0
struct Held_q5_0 { q: vec4<u32>, h: u32, d: f32 }
fn hold_q5_0(b: u32, g: u32) -> Held_q5_0 {
  let at = 22u * b;
  let q = words_at(at + 6u);
  return Held_q5_0(vec4<u32>(q, word_at(at + 14u), word_at(at + 18u)), word_at(at + 2u), half_at(at));
}
fn quad_q5_0(h: Held_q5_0, c: u32) -> vec4<f32> {
  return octets(((h.q[c & 3u] >> (c & 4u)) & 0x0f0f0f0fu) | (spread(h.h >> (4u * c)) << 4u), 16.0);
}
fn scale_q5_0(h: Held_q5_0, s: u32) -> vec2<f32> { return vec2<f32>(h.d, 0.0); }

// format q5_1
struct Held_q5_1 { q: vec4<u32>, h: u32, dm: u32 }
fn hold_q5_1(b: u32, g: u32) -> Held_q5_1 {
  let at = 6u * b;
  return Held_q5_1(vec4<u32>(raw_1[at + 2u], raw_1[at + 3u], raw_1[at + 4u], raw_1[at + 5u]), raw_1[at + 1u], raw_1[at]);
}
fn quad_q5_1(h: Held_q5_1, c: u32) -> vec4<f32> {
  return octets(((h.q[c & 3u] >> (c & 4u)) & 0x0f0f0f0fu) | (spread(h.h >> (4u * c)) << 4u), 0.0);
}
fn scale_q5_1(h: Held_q5_1, s: u32) -> vec2<f32> { return unpack2x16float(h.dm); }

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
  return octets(select((here[c & 3u] >> 16u) | (n << 16u), n, h.odd) ^ 0x80808080u, 128.0);
}
fn scale_q8_0(h: Held_q8_0, s: u32) -> vec2<f32> {
  let d = unpack2x16float(h.a.x);
  return vec2<f32>(select(d.x, d.y, h.odd), 0.0);
}

// format q2_K
struct Held_q2_K { q: vec2<u32>, s: vec2<u32>, dm: u32, half: u32 }
fn hold_q2_K(b: u32, g: u32) -> Held_q2_K {
  let at = 21u * b; let s = at + g / 4u * 2u; let q = at + 4u + 2u * g;
  return Held_q2_K(vec2<u32>(raw_1[q], raw_1[q + 1u]), vec2<u32>(raw_1[s], raw_1[s + 1u]), raw_1[at + 20u], g / 2u % 2u);
}
fn quad_q2_K(h: Held_q2_K, c: u32) -> vec4<f32> { return octets((h.q[c % 2u] >> (c / 2u * 2u)) & 0x03030303u, 0.0); }
fn scale_q2_K(h: Held_q2_K, s: u32) -> vec2<f32> {
  let w = h.s[s / 2u] >> (8u * (s % 2u * 2u + h.half));
  return unpack2x16float(h.dm) * vec2<f32>(f32(w & 15u), -f32((w >> 4u) & 15u));
}

// format q3_K
struct Held_q3_K { q: vec2<u32>, h: vec2<u32>, low: vec2<u32>, high: u32, d: f32, g: u32 }
fn hold_q3_K(b: u32, g: u32) -> Held_q3_K {
  let at = 110u * b;
  return Held_q3_K(words_at(at + 32u + 8u * g), words_at(at + g % 4u * 8u), words_at(at + 96u), word_at(at + 104u), half_at(at + 108u), g);
}
fn quad_q3_K(h: Held_q3_K, c: u32) -> vec4<f32> {
  let bit = h.g / 4u * 4u + c / 2u;
  return octets(((h.q[c % 2u] >> (c / 2u * 2u)) & 0x03030303u) | (((h.h[c % 2u] >> bit) & 0x01010101u) << 2u), 4.0);
}
fn scale_q3_K(h: Held_q3_K, s: u32) -> vec2<f32> {
  let n = h.g / 4u * 8u + s * 2u + h.g / 2u % 2u;
  let low = (select(h.low.x, h.low.y, n / 4u % 2u == 1u) >> (n % 4u * 8u + n / 8u * 4u)) & 15u;
  let high = (h.high >> (n % 4u * 8u + n / 4u * 2u)) & 3u;
  return vec2<f32>(h.d * (f32(low | (high << 4u)) - 32.0), 0.0);
}

// format q4_K
struct Held_q4_K { q: vec4<u32>, head: vec4<u32>, g: u32 }
fn hold_q4_K(b: u32, g: u32) -> Held_q4_K { return Held_q4_K(wide_1[9u * b + 1u + g], wide_1[9u * b], g); }
fn quad_q4_K(h: Held_q4_K, c: u32) -> vec4<f32> { return nibbles(h.q[c % 4u], c > 3u, 0.0); }
fn scale_q4_K(h: Held_q4_K, s: u32) -> vec2<f32> {
  return unpack2x16float(h.head.x) * scale_min_of(h.head.yzw, h.g / 2u * 2u + s) * vec2<f32>(1.0, -1.0);
}

// format q5_K
struct Held_q5_K { q: vec4<u32>, h: vec4<u32>, head: vec4<u32>, g: u32 }
fn hold_q5_K(b: u32, g: u32) -> Held_q5_K {
  return Held_q5_K(wide_1[11u * b + 3u + g], wide_1[11u * b + 1u + g % 2u], wide_1[11u * b], g);
}
fn quad_q5_K(h: Held_q5_K, c: u32) -> vec4<f32> {
  let bit = h.g / 2u * 2u + c / 4u;
  return octets(((h.q[c % 4u] >> (c & 4u)) & 0x0f0f0f0fu) | (((h.h[c % 4u] >> bit) & 0x01010101u) << 4u), 0.0);
}
fn scale_q5_K(h: Held_q5_K, s: u32) -> vec2<f32> {
  return unpack2x16float(h.head.x) * scale_min_of(h.head.yzw, h.g / 2u * 2u + s) * vec2<f32>(1.0, -1.0);
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
  return octets(((w[c % 2u] >> (strip / 2u * 4u)) & 0x0f0f0f0fu) | (((h.h[c % 2u] >> (2u * strip)) & 0x03030303u) << 4u), 32.0);
}
fn scale_q6_K(h: Held_q6_K, s: u32) -> vec2<f32> {
  return vec2<f32>(h.d * f32(i32(h.s[s / 2u] << (24u - 8u * (s % 2u * 2u + h.half))) >> 24u), 0.0);
}
// format end
