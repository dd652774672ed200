// How the products with experts' weights read both operands, and sum over a row group. RAW_X: another file reads x.

const PART: u32 = QUADS / PARTS; // quads of a part

#include "quant/item_order.wgsl"
#if !RAW_X
// Quad v of row m of x, zero beyond its end.
fn x_quad(m: u32, v: u32) -> vec4<f32> {
  let base = m * p.k; let k = 4u * v;
  var x = vec4<f32>();
#if VEC_X
  if (k < p.k) { x = vec4<f32>(load4_0(base + k)); }
#else
  if (k < p.k) { x.x = f32(load_0(base + k)); }
  if (k + 1u < p.k) { x.y = f32(load_0(base + k + 1u)); }
  if (k + 2u < p.k) { x.z = f32(load_0(base + k + 2u)); }
  if (k + 3u < p.k) { x.w = f32(load_0(base + k + 3u)); }
#endif
  return x;
}
#endif

#include "weights_items.wgsl" SMALL = p.pairs
${SUM}
