// How the items of a block format are loaded, see items.wgsl. N: which load; START: its first element; K: elements of a row; S: the end of the
// functions' names. Blocks of Q4_K and Q5_K are whole rows of 16 bytes and are read as such.

#if CODED
#include "quant/coded_bytes.wgsl" RAW = "raw_${N}"
#elif !K_SCALES
#include "quant/bytes.wgsl"
#endif
fn block_of${S}(row: u32) -> u32 { return (${START}) / ${BLOCK_SIZE}u + row * (${K} / ${BLOCK_SIZE}u); }
#if CODED
#include "quant/${FORMAT}.wgsl" PART = 1, RAW = "raw_${N}"
#else
#include "quant/linear_loads.wgsl"
#endif
fn first${S}(at: u32, i: u32) -> vec4<u32> { return first_${FORMAT}${S}(at + i / ${BLOCK_ITEMS}u, i % ${BLOCK_ITEMS}u); }
#if PLANES > 1
fn second${S}(at: u32, i: u32) -> vec4<u32> { return second_${FORMAT}${S}(at + i / ${BLOCK_ITEMS}u, i % ${BLOCK_ITEMS}u); }
#endif
#if PLANES > 2
fn third${S}(at: u32, i: u32) -> vec4<u32> { return third_${FORMAT}${S}(at + i / ${BLOCK_ITEMS}u, i % ${BLOCK_ITEMS}u); }
#endif
fn place${S}(row: u32) -> u32 { return block_of${S}(row); }
