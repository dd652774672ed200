//! Block formats, decoded one element at a time from their stored bytes.

use crate::dtype::DType;
use std::fmt::Write;

/// The 6-bit scale and minimum number `j` of Q4_K and Q5_K, from the 12 bytes at `s`.
const SCALES: &str = "var sc: u32;
  var mn: u32;
  if j < 4u {
    sc = BYTE(s + j) & 63u;
    mn = BYTE(s + j + 4u) & 63u;
  } else {
    sc = (BYTE(s + j + 4u) & 15u) | ((BYTE(s + j - 4u) >> 6u) << 4u);
    mn = (BYTE(s + j + 4u) >> 4u) | ((BYTE(s + j) >> 6u) << 4u);
  }
  ";

/// The part of a decoder after `a`, the block's first byte, and `k`, the element's place in the block.
fn body(d: DType) -> String {
    match d {
        DType::Q4_0 => "let q = (BYTE(a + 2u + (k & 15u)) >> ((k >> 4u) << 2u)) & 15u;
  return HALF(a) * (f32(q) - 8.0);"
            .into(),
        DType::Q4_1 => "let q = (BYTE(a + 4u + (k & 15u)) >> ((k >> 4u) << 2u)) & 15u;
  return fma(HALF(a), f32(q), HALF(a + 2u));"
            .into(),
        DType::Q5_0 => {
            "let q = ((BYTE(a + 6u + (k & 15u)) >> ((k >> 4u) << 2u)) & 15u) | (((BYTE(a + 2u + (k >> 3u)) >> (k & 7u)) & 1u) << 4u);
  return HALF(a) * (f32(q) - 16.0);"
                .into()
        }
        DType::Q5_1 => {
            "let q = ((BYTE(a + 8u + (k & 15u)) >> ((k >> 4u) << 2u)) & 15u) | (((BYTE(a + 4u + (k >> 3u)) >> (k & 7u)) & 1u) << 4u);
  return fma(HALF(a), f32(q), HALF(a + 2u));"
                .into()
        }
        DType::Q8_0 => "let q = bitcast<i32>(BYTE(a + 2u + k) << 24u) >> 24u;
  return HALF(a) * f32(q);"
            .into(),
        // Within a 256-block: halves of 128 share 32 bytes of quants, a row of 32 is a pair of bits, a scale serves 16.
        DType::Q2_K => "let h = k >> 7u;
  let r = (k >> 5u) & 3u;
  let sc = BYTE(a + (k >> 4u));
  let q = (BYTE(a + 16u + (h << 5u) + (k & 31u)) >> (r << 1u)) & 3u;
  return HALF(a + 80u) * f32(sc & 15u) * f32(q) - HALF(a + 82u) * f32(sc >> 4u);"
            .into(),
        DType::Q3_K => "let h = k >> 7u;
  let r = (k >> 5u) & 3u;
  let j = k >> 4u;
  let low = (BYTE(a + 96u + (j & 7u)) >> ((j >> 3u) << 2u)) & 15u;
  let sc = low | (((BYTE(a + 104u + (j & 3u)) >> ((j >> 2u) << 1u)) & 3u) << 4u);
  let bit = (BYTE(a + (k & 31u)) >> ((h << 2u) + r)) & 1u;
  let q = (BYTE(a + 32u + (h << 5u) + (k & 31u)) >> (r << 1u)) & 3u;
  return HALF(a + 108u) * (f32(sc) - 32.0) * (f32(q + (bit << 2u)) - 4.0);"
            .into(),
        DType::Q4_K => format!(
            "let j = k >> 5u;
  let s = a + 4u;
  {SCALES}let q = (BYTE(a + 16u + ((k >> 6u) << 5u) + (k & 31u)) >> ((j & 1u) << 2u)) & 15u;
  return HALF(a) * f32(sc) * f32(q) - HALF(a + 2u) * f32(mn);"
        ),
        DType::Q5_K => format!(
            "let j = k >> 5u;
  let s = a + 4u;
  {SCALES}let low = (BYTE(a + 48u + ((k >> 6u) << 5u) + (k & 31u)) >> ((j & 1u) << 2u)) & 15u;
  let q = low | (((BYTE(a + 16u + (k & 31u)) >> j) & 1u) << 4u);
  return HALF(a) * f32(sc) * f32(q) - HALF(a + 2u) * f32(mn);"
        ),
        // Within a half of 128: four rows of 32, low nibbles of 64 bytes for rows 0 and 1, high ones for rows 2 and 3.
        _ => "let h = k >> 7u;
  let r = (k >> 5u) & 3u;
  let l = k & 31u;
  let low = (BYTE(a + (h << 6u) + ((r & 1u) << 5u) + l) >> ((r >> 1u) << 2u)) & 15u;
  let q = low | (((BYTE(a + 128u + (h << 5u) + l) >> (r << 1u)) & 3u) << 4u);
  let sc = bitcast<i32>(BYTE(a + 192u + (k >> 4u)) << 24u) >> 24u;
  return HALF(a + 208u) * f32(sc) * (f32(q) - 32.0);"
            .into(),
    }
}

/// Writes helpers for a view of words and gives the statements that return element `e` of it.
pub(super) fn decode(text: &mut String, d: DType, view: &str, id: usize) -> String {
    let (n, bytes) = (d.block(), d.block_bytes());
    let _ = write!(text, "fn y{id}(a: u32) -> u32 {{\n  return ({view}[a >> 2u] >> ((a & 3u) << 3u)) & 0xffu;\n}}\n");
    // Scales lie at even bytes, so that one never straddles two words.
    let _ = write!(text, "fn h{id}(a: u32) -> f32 {{\n  return unpack2x16float({view}[a >> 2u] >> ((a & 2u) << 3u)).x;\n}}\n");
    let text = body(d).replace("BYTE", &format!("y{id}")).replace("HALF", &format!("h{id}"));
    format!("let a = (e / {n}u) * {bytes}u;\n  let k = e % {n}u;\n  {text}")
}
