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
//! | IQ4_NL | 32 | 18 | `d·t[q]`, t a table | 4 |
//! | IQ4_XS | 256, groups of 32 | 136 | `d·(s − 32)·t[q]` | 4, 6 |
//! | MXFP4 | 32 | 17 | `2^(e − 127)·q` | 4 (E2M1), 8 (e) |
//! | NVFP4 | 64, groups of 16 | 36 | `s·q` | 4 (E2M1), 8 (E4M3) |
//! | Q1_0 | 128 | 18 | `±d` | 1 |
//! | TQ1_0, TQ2_0 | 256 | 54, 66 | `d·(q − 1)` | 8 bits for five digits; 2 |
//! | IQ2_XXS, IQ2_XS, IQ2_S | 256 | 66, 74, 82 | `d·(2·s + 1)/8·±q`, eight q by a codebook | |
//! | IQ3_XXS, IQ3_S | 256 | 98, 110 | `d·(2·s + 1)·±q`, four q by a codebook | |
//! | F8_E4M3 | 32 | 36 | `s·q`, s an f32 | 8 (E4M3) |
//! | A2 to A6, A8 | 32 | 4 + 4·bits | `s·q + o`, s and o are f16 | 2, 3, 4, 5, 6, 8 |
//! | Z4, Z8 | 32 | 20, 36 | `s·(q − z)` | 4, 8 |
//! | IQ1_S, IQ1_M | 256 | 50, 56 | `d·(2·s + 1)·(q ± 1/8)`, eight q by a codebook | |
//!
//! # What follows from a descriptor
//!
//! A [`BlockFormat`] of integers under scales ([`Linear`]) names a format's fields. From it come its size, the plain reader on the CPU
//! (`Linear::decode`), the fields that the AVX2 and AVX-512 kernels load (`backends/cpu/dot`), the readers on a GPU, of single elements
//! (`backends/codegen/block_element.wgsl`), four weights (`shader/lib/quant/linear_quads.wgsl`) and 32 (`linear_loads.wgsl`, `linear_items.wgsl`), the
//! packers (`pack.rs`), its numbers in GGUF files, and the tests.
//!
//! A format whose values are something else ([`Coded`]: tables, codebooks, small floats) has a plain reader of 32 values in Rust and one in WGSL, from
//! which every other reader comes. Its values are multiplied as floats, or, where they are integers of a byte under a factor, as integers. Numbers that
//! are looked up in a codebook are looked up by kernels of a GPU in a buffer with all of them ([`codebooks`]).
//!
//! A new format is a descriptor in this folder (with WGSL, if it is coded), a line in the list below, and a [`DType`](crate::DType).

mod affine;
mod affine_groups;
mod block;
pub(crate) mod codebooks;
mod coded;
mod mix;
mod pack;
mod pack_codes;
mod rows;
#[cfg(test)]
mod tests;

pub use affine::{Affine, AffineParams, Bits, Granularity, Mapping};
pub(crate) use block::f16_to_f32;
pub use block::{BitField, BlockFormat, GgufType, Linear, Numbers, Scales, Values};
pub use codebooks::codebooks;
pub(crate) use coded::power_of_two;
pub use coded::{Coded, Factor, Packed, Table};
pub use mix::{MIXES, Mix, WeightTypes};
pub use rows::{dequantize, quantize, random_blocks};

/// Declares the files of the formats and the list of them.
macro_rules! formats {
    ($count:literal: $($file:ident),*; $($format:ident),*) => {
        $(mod $file;)*
        /// Every block format, in the order of [`DType::BLOCKS`](crate::DType::BLOCKS).
        pub const FORMATS: [&BlockFormat; $count] = [$(&$file::FORMAT,)* $(&affine_groups::$format),*];
    };
}
formats!(
    33: q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k,
    iq4_nl, iq4_xs, mxfp4, nvfp4, q1_0, tq1_0, tq2_0, iq2_xxs, iq2_xs, iq2_s, iq3_xxs, iq3_s, iq1_s, iq1_m, f8_e4m3;
    A2, A3, A4, A5, A6, A8, Z4, Z8
);

/// How many of them, the first ones, are integers under scales.
const LINEAR_COUNT: usize = 10;

/// The fields of those.
pub(crate) const LINEAR: [Linear; LINEAR_COUNT] = {
    let mut all = [*linear(0); LINEAR_COUNT];
    let mut n = 1;
    while n < LINEAR_COUNT {
        all[n] = *linear(n);
        n += 1;
    }
    all
};

/// The fields of format `n`, one of the first.
const fn linear(n: usize) -> &'static Linear {
    match FORMATS[n].linear() {
        Some(fields) => fields,
        None => panic!("formats of integers under scales come first"),
    }
}

/// `with_format!(dtype, N => block, _ => other)`: `block` where the dtype is a format of integers under scales, with the constant `N` its place in
/// [`LINEAR`], so that what it calls is compiled for each format; else `other`.
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
const _: () = assert!(LINEAR_COUNT == 10);
