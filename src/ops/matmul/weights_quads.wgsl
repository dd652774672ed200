// `weights4(row, v)`: quad v of a row of load 1, read from its buffer (READS_BLOCKS, READS_HALVES, READS_FLOATS) or through the generated loads,
// as vec4 where rows are whole quads (READS_QUADS), zero beyond a row's end. S: the end of the functions' names; N: which load; START: its first
// element; K: elements of a row; SMALL: a parameter below 2^31.

#if READS_BLOCKS
#include "quant/tiles.wgsl"
#elif READS_HALVES
#include "wide_halves.wgsl" NAME = wide${S}
fn weights4${S}(row: u32, v: u32) -> vec4<f32> {
  let q = raw_${N}[(${START} + row * ${K}) / 8u + v / 2u];
  return wide${S}(select(q.xy, q.zw, v % 2u == 1u));
}
#elif READS_FLOATS
fn weights4${S}(row: u32, v: u32) -> vec4<f32> { return bitcast<vec4<f32>>(raw_${N}[(${START} + row * ${K}) / 4u + v]); }
#elif READS_QUADS
fn weights4${S}(row: u32, v: u32) -> vec4<f32> {
  var w = vec4<f32>(0.0);
  if (4u * v < ${K}) { w = load4_1(row * ${K} + 4u * v); }
  return w;
}
#else
fn weights4${S}(row: u32, v: u32) -> vec4<f32> {
  let size = ${K}; let at = row * size + 4u * v;
  var w = vec4<f32>(0.0);
  if (4u * v < size) { w.x = load_1(at); }
  if (4u * v + 1u < size) { w.y = load_1(at + 1u); }
  if (4u * v + 2u < size) { w.z = load_1(at + 2u); }
  if (4u * v + 3u < size) { w.w = load_1(at + 3u); }
  return w;
}
#endif
