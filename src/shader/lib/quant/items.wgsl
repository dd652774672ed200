// GGML's block formats for products of a few rows: items of 32 weights whose quads come from the same words.
//
// loads.wgsl: `first(at, i)`, `second` and `third`: item `i` as it is stored, in as many rows of four words as it needs (structures of them end
// up in memory). Here: `packed`: quad `c` of an item, an integer a byte, Q8_0's with a sign, the others with what all of the format have too
// much (`Items::less`); `quad`: the same as whole floats; `scale`: what the quads of part `s` of the item are multiplied with, and what is added.

#if CODED
#include "quant/coded.wgsl" T = ""
#else
#include "quant/common.wgsl"
#if K_SCALES
#include "quant/scale_min.wgsl"
#endif
#include "quant/linear_items.wgsl"
#endif
fn quad(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, i: u32, c: u32) -> vec4<f32> { return quad_${FORMAT}(x, y, z, i % ${BLOCK_ITEMS}u, c); }
#if INTEGERS
fn packed(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, i: u32, c: u32) -> u32 { return packed_${FORMAT}(x, y, z, i % ${BLOCK_ITEMS}u, c); }
#endif
fn scale(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, i: u32, s: u32) -> vec2<f32> { return scale_${FORMAT}(x, y, z, i % ${BLOCK_ITEMS}u, s); }
