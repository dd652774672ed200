// A format of integers under scales by quads, from its descriptor: `FORMAT(b, v)` is quad `v` of block `b`, four successive weights.

#include "quant/linear_field.wgsl" NAME = low_bits, AT = (LOW_AT), WIDTH = (LOW_WIDTH), LANES = (LOW_LANES)
#if HIGH
#include "quant/linear_field.wgsl" NAME = high_bits, AT = (HIGH_AT), WIDTH = (HIGH_WIDTH), LANES = (HIGH_LANES)
#endif
fn integers${S}(b: u32, v: u32) -> vec4<f32> {
#if SIGNED
  return octets(low_bits${S}(b, v) ^ 0x80808080u, 128.0);
#elif HIGH
  return octets(low_bits${S}(b, v) | (high_bits${S}(b, v) << ${LOW_WIDTH}u), ${LESS}.0);
#else
  return octets(low_bits${S}(b, v), ${LESS}.0);
#endif
}
fn ${FORMAT}${S}(b: u32, v: u32) -> vec4<f32> {
#if MINIMUMS
  let dm = unpack2x16float(raw_${N}[${BYTES / 4}u * b + ${D / 4}u]);
#if WHOLE
  return fma(vec4<f32>(dm.x), integers${S}(b, v), vec4<f32>(dm.y));
#elif K_SCALES
  let by = dm * scale_min${S}(${BYTES / 4}u * b + ${SCALES_AT / 4}u, v / 8u);
  return fma(vec4<f32>(by.x), integers${S}(b, v), vec4<f32>(-by.y));
#else
  let s = byte_at${S}(${BYTES}u * b + ${SCALES_AT}u + v / 4u);
  return (dm.x * f32(s & 15u)) * integers${S}(b, v) - dm.y * f32(s >> 4u);
#endif
#elif WHOLE
  return half_at${S}(${BYTES}u * b + ${D}u) * integers${S}(b, v);
#else
  return (half_at${S}(${BYTES}u * b + ${D}u) * scale_of${S}(b, v / 4u)) * integers${S}(b, v);
#endif
}
#if !WHOLE && !MINIMUMS
// The scale of the 16 values of group g.
fn scale_of${S}(b: u32, g: u32) -> f32 {
#if SCALE_SIGNED
  return f32(i32(byte_at${S}(${BYTES}u * b + ${SCALES_AT}u + g) << 24u) >> 24u);
#else
  let low = (byte_at${S}(${BYTES}u * b + ${SCALES_AT}u + g % ${SCALE_LANES}u) >> (g / ${SCALE_LANES}u * ${SCALE_WIDTH}u)) & ${(1 << SCALE_WIDTH) - 1}u;
#if SCALE_HIGH
  let high = (byte_at${S}(${BYTES}u * b + ${SCALE_HIGH_AT}u + g % ${SCALE_HIGH_LANES}u) >> (g / ${SCALE_HIGH_LANES}u * ${SCALE_HIGH_WIDTH}u)) & ${(1 << SCALE_HIGH_WIDTH) - 1}u;
  return f32(low | (high << ${SCALE_WIDTH}u)) - ${SCALE_LESS}.0;
#else
  return f32(low) - ${SCALE_LESS}.0;
#endif
#endif
}
#endif
