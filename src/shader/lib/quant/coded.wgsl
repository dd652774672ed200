// How the items of a format whose values are codes are unpacked. T: the end of the functions' names.
//
// `packed_FORMAT`: quad `c` of an item, an integer a byte; `quad_FORMAT`: the same as floats; `scale_FORMAT`: what the quads of part `s` are
// multiplied with, and what is added.

// The low four bits of h, one in each byte.
fn ones${T}(h: u32) -> u32 { return ((h & 15u) * 0x00204081u) & 0x01010101u; }
// Numbers of two and of four bits, one in each byte.
fn crumbs${T}(h: u32) -> u32 { return (h & 3u) | ((h & 12u) << 6u) | ((h & 48u) << 12u) | ((h & 192u) << 18u); }
fn nibble_bytes${T}(h: u32) -> u32 { return (h & 15u) | ((h & 0xf0u) << 4u) | ((h & 0xf00u) << 8u) | ((h & 0xf000u) << 12u); }
// Bytes from 1 to 127, those negative whose bit is set in `signs`.
fn with_signs${T}(w: u32, signs: u32) -> u32 { let s = ones${T}(signs); return (w ^ (255u * s)) + s; }
// Seven signs and an eighth, set where the number of the others that are set is odd.
fn even_signs${T}(seven: u32) -> u32 { return seven | ((countOneBits(seven) & 1u) << 7u); }
// 8, 25 and 43 for four numbers of two bits.
fn of_three${T}(entry: u32) -> u32 { let c = crumbs${T}(entry); return 0x08080808u + 17u * c + ((c >> 1u) & 0x01010101u); }
// Floats of four bits, doubled and 12 more, for four nibbles: 0, 1, 2, 3, 4, 6, 8 and 12, with a sign.
fn e2m1${T}(q: u32) -> u32 {
  let high = (q >> 2u) & 0x01010101u;
  let v = (q & 0x07070707u) + (q & (3u * high)) + 2u * (high & q & (q >> 1u));
  return 0x0c0c0c0cu + v - 2u * (v & (255u * ((q >> 3u) & 0x01010101u)));
}
// The levels of IQ4_NL for four nibbles: bytes with a sign.
fn level${T}(i: u32) -> u32 {
  let four = vec4<u32>(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u)[i >> 2u];
  return (four >> (8u * (i & 3u))) & 255u;
}
fn levels${T}(q: u32) -> u32 {
  return level${T}(q & 15u) | (level${T}((q >> 8u) & 15u) << 8u) | (level${T}((q >> 16u) & 15u) << 16u) | (level${T}((q >> 24u) & 15u) << 24u);
}
#if HAS_BOOK
// Entry i of the format's codebook: 16 bits.
fn entry_${FORMAT}${T}(i: u32) -> u32 { return (codebooks[${BOOK}u + i / 2u] >> (16u * (i & 1u))) & 0xffffu; }
#endif
#include "quant/${FORMAT}.wgsl" PART = 2
#if INTEGERS
fn quad_${FORMAT}${T}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> vec4<f32> {
  let w = vec4<i32>(vec4<u32>(packed_${FORMAT}${T}(x, y, z, g, c)) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u);
  return vec4<f32>(w - vec4<i32>(${LESS}));
}
#endif
