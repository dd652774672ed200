// `place(row)`: where a row of load N begins; `first(at, i)`, `second` and `third`: its item i as it is stored, see weights_items.wgsl. S is the end
// of their names, START the first element, K those of a row.

#if READS_BLOCKS
#include "quant/loads.wgsl"
#elif READS_HALVES
fn place${S}(row: u32) -> u32 { return (${START} + row * ${K}) / 8u; }
fn first${S}(at: u32, i: u32) -> vec4<u32> { return raw_${N}[at + i]; }
#else
#include "weights_quads.wgsl"
fn place${S}(row: u32) -> u32 { return row; }
fn first${S}(row: u32, i: u32) -> vec4<u32> { return bitcast<vec4<u32>>(weights4${S}(row, 2u * i)); }
fn second${S}(row: u32, i: u32) -> vec4<u32> { return bitcast<vec4<u32>>(weights4${S}(row, 2u * i + 1u)); }
#endif
