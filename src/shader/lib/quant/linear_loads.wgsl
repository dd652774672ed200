// How the items of a format of integers under scales are loaded, from its descriptor: the words of 32 weights of block `b`, of its item `g`, for
// linear_items.wgsl. What is loaded with what is chosen by the kind of scales, so that no word is loaded twice and none is for nothing.

#if K_SCALES
// Blocks are whole rows of 16 bytes: an item's low bits; both halves and all scales; high bits, of two items in 16 bytes.
fn first_${FORMAT}${S}(b: u32, g: u32) -> vec4<u32> { return wide_${N}[${BYTES / 16}u * b + ${LOW_AT / 16}u + g]; }
fn second_${FORMAT}${S}(b: u32, g: u32) -> vec4<u32> { return wide_${N}[${BYTES / 16}u * b]; }
#if HIGH
fn third_${FORMAT}${S}(b: u32, g: u32) -> vec4<u32> { return wide_${N}[${BYTES / 16}u * b + ${HIGH_AT / 16}u + g % 2u]; }
#endif
#elif SHIFTED_WORDS
// The words of a whole block and what is beside it, as it begins at an even byte.
fn first_${FORMAT}${S}(b: u32, g: u32) -> vec4<u32> {
  let at = ${BYTES / 2}u * b / 2u;
  return vec4<u32>(raw_${N}[at], raw_${N}[at + 1u], raw_${N}[at + 2u], raw_${N}[at + 3u]);
}
#if LOW_WIDTH == 8
fn second_${FORMAT}${S}(b: u32, g: u32) -> vec4<u32> {
  let at = ${BYTES / 2}u * b / 2u;
  return vec4<u32>(raw_${N}[at + 4u], raw_${N}[at + 5u], raw_${N}[at + 6u], raw_${N}[at + 7u]);
}
fn third_${FORMAT}${S}(b: u32, g: u32) -> vec4<u32> { return vec4<u32>(raw_${N}[${BYTES / 2}u * b / 2u + 8u], b & 1u, 0u, 0u); }
#else
fn second_${FORMAT}${S}(b: u32, g: u32) -> vec4<u32> { return vec4<u32>(raw_${N}[${BYTES / 2}u * b / 2u + 4u], b & 1u, 0u, 0u); }
#endif
#elif WHOLE && IN_WORDS
fn first_${FORMAT}${S}(b: u32, g: u32) -> vec4<u32> {
  let at = ${BYTES / 4}u * b;
  return vec4<u32>(raw_${N}[at + ${LOW_AT / 4}u], raw_${N}[at + ${LOW_AT / 4 + 1}u], raw_${N}[at + ${LOW_AT / 4 + 2}u], raw_${N}[at + ${LOW_AT / 4 + 3}u]);
}
#if HIGH
fn second_${FORMAT}${S}(b: u32, g: u32) -> vec4<u32> { return vec4<u32>(raw_${N}[${BYTES / 4}u * b], raw_${N}[${BYTES / 4}u * b + ${HIGH_AT / 4}u], 0u, 0u); }
#else
fn second_${FORMAT}${S}(b: u32, g: u32) -> vec4<u32> { return vec4<u32>(raw_${N}[${BYTES / 4}u * b], 0u, 0u, 0u); }
#endif
#elif WHOLE
fn first_${FORMAT}${S}(b: u32, g: u32) -> vec4<u32> {
  let at = ${BYTES}u * b;
  return vec4<u32>(words_at${S}(at + ${LOW_AT}u), word_at${S}(at + ${LOW_AT + 8}u), word_at${S}(at + ${LOW_AT + 12}u));
}
fn second_${FORMAT}${S}(b: u32, g: u32) -> vec4<u32> {
  return vec4<u32>(bitcast<u32>(half_at${S}(${BYTES}u * b + ${D}u)), word_at${S}(${BYTES}u * b + ${HIGH_AT}u), 0u, 0u);
}
#elif NIBBLE_SCALES
// Eight bytes of low bits and the eight scales of half a block; both halves.
fn first_${FORMAT}${S}(b: u32, g: u32) -> vec4<u32> {
  let at = ${BYTES / 4}u * b; let q = at + ${LOW_AT / 4}u + 2u * g; let s = at + ${SCALES_AT / 4}u + g / 4u * 2u;
  return vec4<u32>(raw_${N}[q], raw_${N}[q + 1u], raw_${N}[s], raw_${N}[s + 1u]);
}
fn second_${FORMAT}${S}(b: u32, g: u32) -> vec4<u32> { return vec4<u32>(raw_${N}[${BYTES / 4}u * b + ${D / 4}u], 0u, 0u, 0u); }
#elif SCALE_SIGNED
// 16 bytes of low bits, from two places; eight of high bits and the scales of half a block; the half.
fn first_${FORMAT}${S}(b: u32, g: u32) -> vec4<u32> {
  let q = ${BYTES}u * b + ${LOW_AT}u + g / 4u * ${LOW_LANES}u + g % 4u * 8u;
  return vec4<u32>(words_at${S}(q), words_at${S}(q + 32u));
}
fn second_${FORMAT}${S}(b: u32, g: u32) -> vec4<u32> {
  return vec4<u32>(words_at${S}(${BYTES}u * b + ${HIGH_AT}u + 8u * g), words_at${S}(${BYTES}u * b + ${SCALES_AT}u + g / 4u * 8u));
}
fn third_${FORMAT}${S}(b: u32, g: u32) -> vec4<u32> { return vec4<u32>(bitcast<u32>(half_at${S}(${BYTES}u * b + ${D}u)), 0u, 0u, 0u); }
#else
// Eight bytes of low bits and eight of high ones, which the other half of the block shares; all scales and the half.
fn first_${FORMAT}${S}(b: u32, g: u32) -> vec4<u32> {
  return vec4<u32>(words_at${S}(${BYTES}u * b + ${LOW_AT}u + 8u * g), words_at${S}(${BYTES}u * b + ${HIGH_AT}u + g % 4u * 8u));
}
fn second_${FORMAT}${S}(b: u32, g: u32) -> vec4<u32> {
  let at = ${BYTES}u * b;
  return vec4<u32>(words_at${S}(at + ${SCALES_AT}u), word_at${S}(at + ${SCALE_HIGH_AT}u), bitcast<u32>(half_at${S}(at + ${D}u)));
}
#endif
