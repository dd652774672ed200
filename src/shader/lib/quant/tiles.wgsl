// GGML's block formats read from their own bytes: quad `v` of a row of load N, four weights. START: the first element; K: those of a row.
//
// Blocks are aligned to 2 bytes only, except Q4_1, Q5_1, Q4_K, Q5_K and Q2_K, whose sizes are multiples of 4.

#if CODED
#include "quant/coded_bytes.wgsl" RAW = "raw_${N}"
#include "quant/${FORMAT}.wgsl" PART = 1, RAW = "raw_${N}"
#if N == 1
#include "quant/coded.wgsl" T = ""
#endif
#else
#if N == 1
#include "quant/common.wgsl"
#endif
#include "quant/bytes.wgsl"
#if K_SCALES
#if N == 1
#include "quant/scale_min.wgsl"
#endif
// The same from word `at` on, of sub-block j.
fn scale_min${S}(at: u32, j: u32) -> vec2<f32> { return scale_min_of(vec3<u32>(raw_${N}[at], raw_${N}[at + 1u], raw_${N}[at + 2u]), j / 2u, j % 2u); }
#endif
#endif
fn block_of${S}(row: u32) -> u32 { return (${START}) / ${BLOCK_SIZE}u + row * (${K} / ${BLOCK_SIZE}u); }
#if CODED
fn weights4${S}(row: u32, v: u32) -> vec4<f32> {
  let b = block_of${S}(row) + v / ${BLOCK_QUADS}u; let g = v % ${BLOCK_QUADS}u / 8u;
#include "quant/item.wgsl" OF = "_${FORMAT}${S}", PLACE = "b, g"
  let by = scale_${FORMAT}(x, y, z, g, v % 8u / ${8 / CODED_PARTS}u);
  return fma(quad_${FORMAT}(x, y, z, g, v % 8u), vec4<f32>(by.x), vec4<f32>(by.y));
}
#else
#include "quant/linear_quads.wgsl"
fn weights4${S}(row: u32, v: u32) -> vec4<f32> { return ${FORMAT}${S}(block_of${S}(row) + v / ${BLOCK_QUADS}u, v % ${BLOCK_QUADS}u); }
#endif
