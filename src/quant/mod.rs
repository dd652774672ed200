//! GGML's block formats: a descriptor each, and what reads and writes rows of them. And affine quantization.
//!
//! A tensor in a block format stores 32 or 256 successive values of a row in one block of bytes: integers `q` of a few bits each, and scales that
//! turn them into values. The layouts are those of llama.cpp's `ggml-common.h` (structures `block_q4_0` …) and the values those of
//! `dequantize_row_…` in its `ggml-quants.c`; a test compares with blocks that its package `gguf` wrote.
//!
//! | format | values | bytes | value | bits of q, s, m |
//! |---|---|---|---|---|
//! | Q4_0, Q5_0 | 32 | 18, 22 | `d·(q − 8)`, `d·(q − 16)` | 4, 5 |
//! | Q4_1, Q5_1 | 32 | 20, 24 | `d·q + m` | 4, 5; m is f16 |
//! | Q8_0 | 32 | 34 | `d·q` | 8, signed |
//! | Q2_K | 256, groups of 16 | 84 | `d·s·q − dmin·m` | 2, 4, 4 |
//! | Q3_K | 256, groups of 16 | 110 | `d·(s − 32)·(q − 4)` | 3, 6 |
//! | Q4_K, Q5_K | 256, groups of 32 | 144, 176 | `d·s·q − dmin·m` | 4 and 5, 6, 6 |
//! | Q6_K | 256, groups of 16 | 210 | `d·s·(q − 32)` | 6, 8 (signed) |
//!
//! # What follows from a descriptor
//!
//! A [`BlockFormat`] names a format's fields. From it come its size, the plain reader on the CPU (`BlockFormat::decode`), the fields that the
//! AVX2 and AVX-512 kernels load (`backends/cpu/dot`), the reader of single elements on a GPU (`backends/codegen/block_element.wgsl`), the packers
//! (`pack.rs`), its numbers in GGUF files, and the tests. The readers for matrix products on a GPU are WGSL beside the descriptor.
//!
//! A new format is a descriptor and its WGSL in this folder, a line in the list below, and a [`DType`](crate::DType).

mod affine;
mod block;
mod pack;
mod rows;
#[cfg(test)]
mod tests;

pub use affine::{Affine, AffineParams, Bits, Granularity, Mapping};
pub(crate) use block::f16_to_f32;
pub use block::{BitField, BlockFormat, GgufType, Numbers, Scales};
pub use rows::{dequantize, quantize};

/// Declares the files of the formats and the list of them.
macro_rules! formats {
    ($count:literal: $($file:ident),*) => {
        $(mod $file;)*
        /// Every block format, in the order of [`DType::BLOCKS`](crate::DType::BLOCKS).
        pub const FORMATS: [&BlockFormat; $count] = [$(&$file::FORMAT),*];
    };
}
formats!(10: q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k);

/// `with_format!(dtype, N => block, _ => plain)`: `block` where the dtype is a block format, with the constant `N` its place in [`FORMATS`], so
/// that what it calls is compiled for each format; else `plain`.
macro_rules! with_format {
    (@ $($number:literal)*; $dtype:expr, $n:ident => $block:expr, _ => $plain:expr) => {
        match $dtype.block_number() {
            $(Some($number) => {
                const $n: usize = $number;
                $block
            })*
            _ => $plain,
        }
    };
    ($dtype:expr, $n:ident => $block:expr, _ => $plain:expr) => {
        $crate::quant::with_format!(@ 0 1 2 3 4 5 6 7 8 9; $dtype, $n => $block, _ => $plain)
    };
}
pub(crate) use with_format;
// `with_format` has an arm for each.
const _: () = assert!(FORMATS.len() == 10);
