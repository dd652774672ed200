// Groups of 32 integers of BITS bits under a scale and an offset, or (POINT) the integer that stands for zero. PART 1: how items are loaded, for
// loads.wgsl; 2: how they are unpacked, for coded.wgsl. A block is a word of scale and offset, f16 both, and the integers from the lowest bit up; no
// word behind it is read, which may lie behind the weight.

#if PART == 1
fn first_${FORMAT}${S}(b: u32, g: u32) -> vec4<u32> {
  let at = ${BITS + 1}u * b;
#if BITS == 2
  return vec4<u32>(${RAW}[at], ${RAW}[at + 1u], ${RAW}[at + 2u], 0u);
#else
  return vec4<u32>(${RAW}[at], ${RAW}[at + 1u], ${RAW}[at + 2u], ${RAW}[at + 3u]);
#endif
}
#if BITS > 3
fn second_${FORMAT}${S}(b: u32, g: u32) -> vec4<u32> {
  let at = ${BITS + 1}u * b + 4u;
#if BITS == 4
  return vec4<u32>(${RAW}[at], 0u, 0u, 0u);
#elif BITS == 5
  return vec4<u32>(${RAW}[at], ${RAW}[at + 1u], 0u, 0u);
#elif BITS == 6
  return vec4<u32>(${RAW}[at], ${RAW}[at + 1u], ${RAW}[at + 2u], 0u);
#else
  return vec4<u32>(${RAW}[at], ${RAW}[at + 1u], ${RAW}[at + 2u], ${RAW}[at + 3u]);
#endif
}
#endif
#if BITS > 7
fn third_${FORMAT}${S}(b: u32, g: u32) -> vec4<u32> { return vec4<u32>(${RAW}[${BITS + 1}u * b + 8u], 0u, 0u, 0u); }
#endif
#else
fn word_${FORMAT}${T}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, i: u32) -> u32 { return select(select(x, y, i > 3u), z, i > 7u)[i & 3u]; }
// Integers of eight bits are 128 less, so that they are bytes with a sign.
fn packed_${FORMAT}${T}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> u32 {
  let bit = 32u + ${4 * BITS}u * c;
  let w = (word_${FORMAT}${T}(x, y, z, bit / 32u) >> (bit & 31u)) | ((word_${FORMAT}${T}(x, y, z, bit / 32u + 1u) << 1u) << (31u - (bit & 31u)));
#if BITS == 8
  return w ^ 0x80808080u;
#else
  return (w & ${MASK}u) | (((w >> ${BITS}u) & ${MASK}u) << 8u) | (((w >> ${2 * BITS}u) & ${MASK}u) << 16u) |
    (((w >> ${3 * BITS}u) & ${MASK}u) << 24u);
#endif
}
fn scale_${FORMAT}${T}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, s: u32) -> vec2<f32> {
  let by = unpack2x16float(x.x);
#if POINT
  return vec2<f32>(by.x, (${128 * (BITS == 8)}.0 - f32(x.x >> 16u)) * by.x);
#else
  return vec2<f32>(by.x, fma(${128 * (BITS == 8)}.0, by.x, by.y));
#endif
}
#endif
