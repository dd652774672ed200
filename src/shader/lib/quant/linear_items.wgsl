// How the items of a format of integers under scales are unpacked once linear_loads.wgsl has loaded them: `packed_FORMAT`, `quad_FORMAT` and
// `scale_FORMAT`, see items.wgsl. Quads of low bits that are nibbles at a known place become floats without a shift.

#if SHIFTED_WORDS
// Word c of the integers: the block begins in the middle of a word (b is even) or at its start, behind which the half takes two bytes.
#if LOW_WIDTH == 8
fn low_numbers(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, c: u32) -> u32 {
  let here = select(x, y, c > 3u);
  let next = select(vec4<u32>(x.yzw, y.x), vec4<u32>(y.yzw, z.x), c > 3u);
  let n = next[c & 3u];
  return select((here[c & 3u] >> 16u) | (n << 16u), n, z.y == 1u);
}
#else
fn low_numbers(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, c: u32) -> u32 {
  let next = vec4<u32>(x.yzw, y.x);
  return select((x >> vec4<u32>(16u)) | (next << vec4<u32>(16u)), next, y.y == 1u)[c];
}
#endif
#else
fn low_numbers(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, c: u32) -> u32 { return x[c]; }
#endif

fn packed_${FORMAT}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> u32 {
#if LOW_WIDTH == 8
  return low_numbers(x, y, z, c);
#elif WHOLE && HIGH
  return ((low_numbers(x, y, z, c & 3u) >> (c & 4u)) & 0x0f0f0f0fu) | (spread(y.y >> (4u * c)) << 4u);
#elif K_SCALES && HIGH
  let bit = g / 2u * 2u + c / 4u;
  return ((low_numbers(x, y, z, c & 3u) >> (c & 4u)) & 0x0f0f0f0fu) | (((z[c & 3u] >> bit) & 0x01010101u) << 4u);
#elif WHOLE || K_SCALES
  return (low_numbers(x, y, z, c & 3u) >> (c & 4u)) & 0x0f0f0f0fu;
#elif LOW_WIDTH == 4
  let run = c / 2u;
  return ((x[run % 2u * 2u + c % 2u] >> (run / 2u * 4u)) & 0x0f0f0f0fu) | (((y[c % 2u] >> (2u * run)) & 0x03030303u) << 4u);
#elif HIGH
  let bit = g / 4u * 4u + c / 2u;
  return ((x[c % 2u] >> (c / 2u * 2u)) & 0x03030303u) | (((x[2u + c % 2u] >> bit) & 0x01010101u) << 2u);
#else
  return (x[c % 2u] >> (c / 2u * 2u)) & 0x03030303u;
#endif
}

fn quad_${FORMAT}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> vec4<f32> {
#if SIGNED
  return octets(packed_${FORMAT}(x, y, z, g, c) ^ 0x80808080u, 128.0);
#elif (WHOLE || K_SCALES) && !HIGH
  return nibbles(low_numbers(x, y, z, c & 3u), c > 3u, ${LESS}.0);
#else
  return octets(packed_${FORMAT}(x, y, z, g, c), ${LESS}.0);
#endif
}

fn scale_${FORMAT}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, s: u32) -> vec2<f32> {
#if SHIFTED_WORDS
  let d = unpack2x16float(x.x);
#if LOW_WIDTH == 8
  return vec2<f32>(select(d.x, d.y, z.y == 1u), 0.0);
#else
  return vec2<f32>(select(d.x, d.y, y.y == 1u), 0.0);
#endif
#elif WHOLE && MINIMUMS
  return unpack2x16float(y.x);
#elif WHOLE
  return vec2<f32>(bitcast<f32>(y.x), 0.0);
#elif K_SCALES
  return unpack2x16float(y.x) * scale_min_of(y.yzw, g / 2u, s) * vec2<f32>(1.0, -1.0);
#elif NIBBLE_SCALES
  let w = x[2u + s / 2u] >> (8u * (s % 2u * 2u + g / 2u % 2u));
  return unpack2x16float(y.x) * vec2<f32>(f32(w & 15u), -f32((w >> 4u) & 15u));
#elif SCALE_SIGNED
  return vec2<f32>(bitcast<f32>(z.x) * f32(i32(y[2u + s / 2u] << (24u - 8u * (s % 2u * 2u + g / 2u % 2u))) >> 24u), 0.0);
#else
  let n = g / 4u * 8u + s * 2u + g / 2u % 2u;
  let low = (select(y.x, y.y, n / 4u % 2u == 1u) >> (n % 4u * 8u + n / 8u * 4u)) & 15u;
  let high = (y.z >> (n % 4u * 8u + n / 4u * 2u)) & 3u;
  return vec2<f32>(bitcast<f32>(y.w) * (f32(low | (high << 4u)) - ${SCALE_LESS}.0), 0.0);
#endif
}
