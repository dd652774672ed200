//! Tiles of a product in AVX-512 registers: up to 14 rows by 32 columns, each row's numbers broadcast against vectors of columns.

// Loops over the rows of a tile index several arrays at once.
#![allow(clippy::needless_range_loop)]

use core::arch::x86_64::*;

/// Rows of the tallest tile: with two vectors of columns each, 28 of the 32 registers hold sums.
pub(super) const MAX_TILE_ROWS: usize = 14;
/// Steps of k that a packed row holds at most; sums go to memory in between, which also keeps them accurate.
pub(super) const MAX_K_STEPS: usize = 1024;
/// Numbers more than that many steps of k lie between packed rows, so that rows do not share cache sets.
pub(super) const ROW_PADDING: usize = 16;

/// The columns of a tile: how many vectors, and the lanes of each that exist.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    vectors: usize,
    lanes: [u16; 2],
}

impl Columns {
    /// The first `n` columns of a panel of 16 or 32.
    pub(super) fn of(width: usize, n: usize) -> Columns {
        let lanes = |from: usize| ((1u32 << n.saturating_sub(from).min(16)) - 1) as u16;
        Columns { vectors: width / 16, lanes: [lanes(0), lanes(16)] }
    }
}

/// Memory that is fetched while a tile is computed: from where, and how many bytes for each step.
#[derive(Clone, Copy)]
pub(super) struct Later {
    pub at: *const u8,
    pub bytes: usize,
}

impl Later {
    /// Nothing is wanted later.
    pub(super) const NONE: Later = Later { at: core::ptr::null(), bytes: 0 };
}

/// How numbers are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stored {
    F32,
    F16,
    Bf16,
}

impl Stored {
    fn kind(self) -> u8 {
        match self {
            Stored::F32 => F32,
            Stored::F16 => F16,
            Stored::Bf16 => BF16,
        }
    }
    pub(super) fn bytes(self) -> usize {
        if self == Stored::F32 { 4 } else { 2 }
    }
}

/// Columns that lie side by side in an operand, `step` bytes from one step of k to the next.
#[derive(Clone, Copy)]
pub(super) struct InPlace {
    pub at: *const u8,
    pub stored: Stored,
    pub step: usize,
}

/// What a tile reads and writes: `steps` of k; rows of numbers (f32, or pairs of bf16), `row` apart; a packed panel of columns, and how far
/// beyond it lies what is wanted next; the result's rows `c_row` apart, how they are stored, and whether to add to them (f32 only).
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub steps: usize,
    pub rows: *const f32,
    pub row: usize,
    pub panel: *const f32,
    pub ahead: usize,
    pub later: Later,
    /// Columns that are read from the operand instead of a panel.
    pub operand: Option<InPlace>,
    pub c: *mut u8,
    pub c_row: usize,
    pub c_stored: Stored,
    pub columns: Columns,
    pub add: bool,
}

/// Sixteen f32 as bf16, rounded to the nearest; the bits of `to_bf16`.
#[inline]
#[target_feature(enable = "avx512f")]
fn round_bf16(x: __m512) -> __m256i {
    let bits = _mm512_castps_si512(x);
    let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
    let rounded = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7FFF));
    // A NaN stays one, and quiet.
    let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
    let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x40_0000));
    _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(_mm512_mask_blend_epi32(nan, rounded, quiet)))
}

/// Sixteen columns' numbers as f32; zero where the mask has no lane.
///
/// # Safety
/// The lanes' numbers lie at `at`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn columns_in_place<const K: u8>(at: *const u8, mask: u16) -> __m512 {
    // SAFETY: the caller's promise; masked lanes are not read.
    unsafe {
        match K {
            F32 => _mm512_maskz_loadu_ps(mask, at.cast()),
            F16 => _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, at.cast())),
            _ => _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, at.cast())))),
        }
    }
}

/// Where a tile's columns are: in a packed panel, or in an operand of this type.
const PACKED: u8 = 0;
const F32: u8 = 1;
const F16: u8 = 2;
const BF16: u8 = 3;

macro_rules! heights {
    ($v:literal, $k:ident) => {
        [
            run::<1, $v, $k> as Run,
            run::<2, $v, $k>,
            run::<3, $v, $k>,
            run::<4, $v, $k>,
            run::<5, $v, $k>,
            run::<6, $v, $k>,
            run::<7, $v, $k>,
            run::<8, $v, $k>,
            run::<9, $v, $k>,
            run::<10, $v, $k>,
            run::<11, $v, $k>,
            run::<12, $v, $k>,
            run::<13, $v, $k>,
            run::<14, $v, $k>,
        ]
    };
}

type Run = unsafe fn(Tile);

/// `$fma` adds products of a number with a vector's to a vector of sums; `$kinds` are where columns can be; `$bf16` rounds sums.
macro_rules! tiles {
    ($name:ident, $features:literal, $kinds:expr, $fma:expr, $bf16:expr) => {
        pub(super) mod $name {
            use super::*;

            /// By where the columns are, by vectors of columns less one, and by rows less one.
            static RUNS: &[[[Run; MAX_TILE_ROWS]; 2]] = &$kinds;

            /// Computes a tile of `height` rows.
            ///
            /// # Safety
            /// The processor has the features; `height` packed rows and the panel hold `steps` numbers a row and a column, and the result
            /// has the rows and columns.
            pub unsafe fn tile(height: usize, t: Tile) {
                let kind = t.operand.map_or(PACKED, |o| o.stored.kind()) as usize;
                // SAFETY: the caller's promise.
                unsafe { RUNS[kind][t.columns.vectors - 1][height - 1](t) }
            }

            /// # Safety
            /// See `tile`.
            #[target_feature(enable = $features)]
            unsafe fn run<const H: usize, const V: usize, const K: u8>(t: Tile) {
                let (fma, bf16) = ($fma, $bf16);
                let mut acc = [[_mm512_setzero_ps(); V]; H];
                // SAFETY: the caller's promise; the last vector's lanes are masked.
                unsafe {
                    let size = t.c_stored.bytes();
                    for h in 0..H {
                        // The result's lines are on their way while the sums are made.
                        for v in 0..V {
                            _mm_prefetch::<_MM_HINT_T0>(t.c.wrapping_add((h * t.c_row + v * 16) * size).cast());
                        }
                    }
                    let (mut a, mut b, mut later) = (t.rows, t.panel, t.later.at);
                    let (mut operand, step) = t.operand.map_or((core::ptr::null(), 0), |o| (o.at, o.step));
                    let wide = 16 * if K == F32 { 4 } else { 2 };
                    for _ in 0..t.steps {
                        let mut x = [_mm512_setzero_ps(); V];
                        for v in 0..V {
                            if K == PACKED {
                                _mm_prefetch::<_MM_HINT_T0>(b.wrapping_add(t.ahead + v * 16).cast());
                                x[v] = _mm512_loadu_ps(b.add(v * 16));
                            } else {
                                x[v] = columns_in_place::<K>(operand.wrapping_add(v * wide), t.columns.lanes[v]);
                            }
                        }
                        for h in 0..H {
                            let y = _mm512_set1_ps(*a.add(h * t.row));
                            for v in 0..V {
                                acc[h][v] = fma(y, x[v], acc[h][v]);
                            }
                        }
                        a = a.add(1);
                        if K == PACKED {
                            _mm_prefetch::<_MM_HINT_T1>(later.cast());
                            later = later.wrapping_add(t.later.bytes);
                            b = b.add(V * 16);
                        } else {
                            operand = operand.wrapping_add(step);
                        }
                    }
                    for h in 0..H {
                        for v in 0..V {
                            let c = t.c.wrapping_add((h * t.c_row + v * 16) * size);
                            let mask = t.columns.lanes[v];
                            match t.c_stored {
                                Stored::F32 if t.add => {
                                    let sum = _mm512_add_ps(acc[h][v], _mm512_maskz_loadu_ps(mask, c.cast()));
                                    _mm512_mask_storeu_ps(c.cast(), mask, sum);
                                }
                                Stored::F32 => _mm512_mask_storeu_ps(c.cast(), mask, acc[h][v]),
                                Stored::F16 => {
                                    let half = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(acc[h][v]);
                                    _mm256_mask_storeu_epi16(c.cast(), mask, half);
                                }
                                Stored::Bf16 => _mm256_mask_storeu_epi16(c.cast(), mask, bf16(acc[h][v])),
                            }
                        }
                    }
                }
            }
        }
    };
}

tiles!(
    floats,
    "avx512f,avx512bw,avx512vl",
    [
        [heights!(1, PACKED), heights!(2, PACKED)],
        [heights!(1, F32), heights!(2, F32)],
        [heights!(1, F16), heights!(2, F16)],
        [heights!(1, BF16), heights!(2, BF16)]
    ],
    |y: __m512, x: __m512, sum: __m512| _mm512_fmadd_ps(y, x, sum),
    |x: __m512| round_bf16(x)
);
tiles!(
    pairs,
    "avx512f,avx512bw,avx512vl,avx512bf16",
    [[heights!(1, PACKED), heights!(2, PACKED)]],
    |y: __m512, x: __m512, sum: __m512| {
        // SAFETY: both types are 64 bytes of any content.
        let (y, x) = unsafe { (core::mem::transmute::<__m512, __m512bh>(y), core::mem::transmute::<__m512, __m512bh>(x)) };
        _mm512_dpbf16_ps(sum, y, x)
    },
    // The same bits: these sums are never subnormal, which the instruction would take for zero.
    // SAFETY: both types are 32 bytes of any content.
    |x: __m512| unsafe { core::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(x)) }
);
