// What an item's quads and scales are once its words are there: items of a block format, or of two quads.

#if READS_BLOCKS
#include "quant/items.wgsl"
#else
#if READS_HALVES
#include "wide_halves.wgsl" NAME = wide
fn quad(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, i: u32, c: u32) -> vec4<f32> { return wide(select(x.xy, x.zw, c == 1u)); }
#else
fn quad(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, i: u32, c: u32) -> vec4<f32> { return bitcast<vec4<f32>>(select(x, y, c == 1u)); }
#endif
fn scale(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, i: u32, s: u32) -> vec2<f32> { return vec2<f32>(1.0, 0.0); }
#endif
