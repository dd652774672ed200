// GGML's block formats for products of a few rows: items of 32 weights whose quads come from the same words. `first_…(b, g)`, `second_…` and
// `third_…`: item `g` of block `b` as it is stored, in as many rows of four words as it needs (structures of them end up in memory).
// `packed_…`: quad `c` of an item, an integer a byte, Q8_0's with a sign, the others with what all of the format have too much
// (`Items::less`); `quad_…`: the same as whole floats, where that is not simply `octets` of them; `scale_…`: what the quads of part `s` of the item
// are multiplied with, and what is added. Functions that both files use stand in blocks.wgsl.
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
fn scale_min_of(w: vec3<u32>, pair: u32, s: u32) -> vec2<f32> { return vec2<f32>(w.xy); }
// end

// format q4_0
fn first_q4_0(b: u32, g: u32) -> vec4<u32> {
  let at = 9u * b / 2u;
  return vec4<u32>(raw_1[at], raw_1[at + 1u], raw_1[at + 2u], raw_1[at + 3u]);
}
fn second_q4_0(b: u32, g: u32) -> vec4<u32> { return vec4<u32>(raw_1[9u * b / 2u + 4u], b & 1u, 0u, 0u); }
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

// format q4_1
fn first_q4_1(b: u32, g: u32) -> vec4<u32> {
  let at = 5u * b;
  return vec4<u32>(raw_1[at + 1u], raw_1[at + 2u], raw_1[at + 3u], raw_1[at + 4u]);
}
fn second_q4_1(b: u32, g: u32) -> vec4<u32> { return vec4<u32>(raw_1[5u * b], 0u, 0u, 0u); }
fn quad_q4_1(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> vec4<f32> { return nibbles(x[c & 3u], c > 3u, 0.0); }
fn packed_q4_1(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> u32 { return (x[c & 3u] >> (c & 4u)) & 0x0f0f0f0fu; }
fn scale_q4_1(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, s: u32) -> vec2<f32> { return unpack2x16float(y.x); }

// format q5_0
fn first_q5_0(b: u32, g: u32) -> vec4<u32> {
  let at = 22u * b;
  return vec4<u32>(words_at(at + 6u), word_at(at + 14u), word_at(at + 18u));
}
fn second_q5_0(b: u32, g: u32) -> vec4<u32> { return vec4<u32>(word_at(22u * b + 2u), bitcast<u32>(half_at(22u * b)), 0u, 0u); }
fn packed_q5_0(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> u32 {
  return ((x[c & 3u] >> (c & 4u)) & 0x0f0f0f0fu) | (spread(y.x >> (4u * c)) << 4u);
}
fn scale_q5_0(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, s: u32) -> vec2<f32> { return vec2<f32>(bitcast<f32>(y.y), 0.0); }

// format q5_1
fn first_q5_1(b: u32, g: u32) -> vec4<u32> {
  let at = 6u * b;
  return vec4<u32>(raw_1[at + 2u], raw_1[at + 3u], raw_1[at + 4u], raw_1[at + 5u]);
}
fn second_q5_1(b: u32, g: u32) -> vec4<u32> { return vec4<u32>(raw_1[6u * b + 1u], raw_1[6u * b], 0u, 0u); }
fn packed_q5_1(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> u32 {
  return ((x[c & 3u] >> (c & 4u)) & 0x0f0f0f0fu) | (spread(y.x >> (4u * c)) << 4u);
}
fn scale_q5_1(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, s: u32) -> vec2<f32> { return unpack2x16float(y.y); }

// format q8_0
fn first_q8_0(b: u32, g: u32) -> vec4<u32> {
  let at = 17u * b / 2u;
  return vec4<u32>(raw_1[at], raw_1[at + 1u], raw_1[at + 2u], raw_1[at + 3u]);
}
fn second_q8_0(b: u32, g: u32) -> vec4<u32> {
  let at = 17u * b / 2u;
  return vec4<u32>(raw_1[at + 4u], raw_1[at + 5u], raw_1[at + 6u], raw_1[at + 7u]);
}
fn third_q8_0(b: u32, g: u32) -> vec4<u32> { return vec4<u32>(raw_1[17u * b / 2u + 8u], b & 1u, 0u, 0u); }
fn packed_q8_0(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> u32 {
  let here = select(x, y, c > 3u);
  let next = select(vec4<u32>(x.yzw, y.x), vec4<u32>(y.yzw, z.x), c > 3u);
  let n = next[c & 3u];
  return select((here[c & 3u] >> 16u) | (n << 16u), n, z.y == 1u);
}
fn scale_q8_0(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, s: u32) -> vec2<f32> {
  let d = unpack2x16float(x.x);
  return vec2<f32>(select(d.x, d.y, z.y == 1u), 0.0);
}

// format q2_K
fn first_q2_K(b: u32, g: u32) -> vec4<u32> {
  let at = 21u * b; let q = at + 4u + 2u * g; let s = at + g / 4u * 2u;
  return vec4<u32>(raw_1[q], raw_1[q + 1u], raw_1[s], raw_1[s + 1u]);
}
fn second_q2_K(b: u32, g: u32) -> vec4<u32> { return vec4<u32>(raw_1[21u * b + 20u], 0u, 0u, 0u); }
fn packed_q2_K(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> u32 { return (x[c % 2u] >> (c / 2u * 2u)) & 0x03030303u; }
fn scale_q2_K(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, s: u32) -> vec2<f32> {
  let w = x[2u + s / 2u] >> (8u * (s % 2u * 2u + g / 2u % 2u));
  return unpack2x16float(y.x) * vec2<f32>(f32(w & 15u), -f32((w >> 4u) & 15u));
}

// format q3_K
fn first_q3_K(b: u32, g: u32) -> vec4<u32> { return vec4<u32>(words_at(110u * b + 32u + 8u * g), words_at(110u * b + g % 4u * 8u)); }
fn second_q3_K(b: u32, g: u32) -> vec4<u32> {
  let at = 110u * b;
  return vec4<u32>(words_at(at + 96u), word_at(at + 104u), bitcast<u32>(half_at(at + 108u)));
}
fn packed_q3_K(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> u32 {
  let bit = g / 4u * 4u + c / 2u;
  return ((x[c % 2u] >> (c / 2u * 2u)) & 0x03030303u) | (((x[2u + c % 2u] >> bit) & 0x01010101u) << 2u);
}
fn scale_q3_K(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, s: u32) -> vec2<f32> {
  let n = g / 4u * 8u + s * 2u + g / 2u % 2u;
  let low = (select(y.x, y.y, n / 4u % 2u == 1u) >> (n % 4u * 8u + n / 8u * 4u)) & 15u;
  let high = (y.z >> (n % 4u * 8u + n / 4u * 2u)) & 3u;
  return vec2<f32>(bitcast<f32>(y.w) * (f32(low | (high << 4u)) - 32.0), 0.0);
}

// format q4_K
fn first_q4_K(b: u32, g: u32) -> vec4<u32> { return wide_1[9u * b + 1u + g]; }
fn second_q4_K(b: u32, g: u32) -> vec4<u32> { return wide_1[9u * b]; }
fn quad_q4_K(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> vec4<f32> { return nibbles(x[c & 3u], c > 3u, 0.0); }
fn packed_q4_K(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> u32 { return (x[c & 3u] >> (c & 4u)) & 0x0f0f0f0fu; }
fn scale_q4_K(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, s: u32) -> vec2<f32> {
  return unpack2x16float(y.x) * scale_min_of(y.yzw, g / 2u, s) * vec2<f32>(1.0, -1.0);
}

// format q5_K
fn first_q5_K(b: u32, g: u32) -> vec4<u32> { return wide_1[11u * b + 3u + g]; }
fn second_q5_K(b: u32, g: u32) -> vec4<u32> { return wide_1[11u * b]; }
fn third_q5_K(b: u32, g: u32) -> vec4<u32> { return wide_1[11u * b + 1u + g % 2u]; }
fn packed_q5_K(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> u32 {
  let bit = g / 2u * 2u + c / 4u;
  return ((x[c & 3u] >> (c & 4u)) & 0x0f0f0f0fu) | (((z[c & 3u] >> bit) & 0x01010101u) << 4u);
}
fn scale_q5_K(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, s: u32) -> vec2<f32> {
  return unpack2x16float(y.x) * scale_min_of(y.yzw, g / 2u, s) * vec2<f32>(1.0, -1.0);
}

// format q6_K
fn first_q6_K(b: u32, g: u32) -> vec4<u32> {
  let q = 210u * b + g / 4u * 64u + g % 4u * 8u;
  return vec4<u32>(words_at(q), words_at(q + 32u));
}
fn second_q6_K(b: u32, g: u32) -> vec4<u32> { return vec4<u32>(words_at(210u * b + 128u + 8u * g), words_at(210u * b + 192u + g / 4u * 8u)); }
fn third_q6_K(b: u32, g: u32) -> vec4<u32> { return vec4<u32>(bitcast<u32>(half_at(210u * b + 208u)), 0u, 0u, 0u); }
fn packed_q6_K(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> u32 {
  let strip = c / 2u;
  return ((x[strip % 2u * 2u + c % 2u] >> (strip / 2u * 4u)) & 0x0f0f0f0fu) | (((y[c % 2u] >> (2u * strip)) & 0x03030303u) << 4u);
}
fn scale_q6_K(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, s: u32) -> vec2<f32> {
  return vec2<f32>(bitcast<f32>(z.x) * f32(i32(y[2u + s / 2u] << (24u - 8u * (s % 2u * 2u + g / 2u % 2u))) >> 24u), 0.0);
}
// format end
