//! Tiles of a product in AVX-512 registers: up to 14 rows by 32 columns, each row's numbers broadcast against vectors of columns.

// Loops over the rows of a tile index several arrays at once.
#![allow(clippy::needless_range_loop)]

/// Rows of the tallest tile: with two vectors of columns each, 28 of the 32 registers hold sums.
pub(super) const TALL: usize = 14;
/// Steps of k that a packed row holds at most; sums go to memory in between, which also keeps them accurate.
pub(super) const DEPTH: usize = 1024;
/// Numbers more than that many steps of k lie between packed rows, so that rows do not share cache sets.
pub(super) const GAP: usize = 16;

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

/// What a tile reads and writes: `steps` of k; rows of numbers (f32, or pairs of bf16), `row` apart; a packed panel of columns, and how far
/// beyond it lies what is wanted next; the result's rows `c_row` apart, and whether to add to them.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub steps: usize,
    pub rows: *const f32,
    pub row: usize,
    pub panel: *const f32,
    pub ahead: usize,
    pub c: *mut f32,
    pub c_row: usize,
    pub columns: Columns,
    pub add: bool,
}

macro_rules! heights {
    ($v:literal) => {
        [
            run::<1, $v> as Run,
            run::<2, $v>,
            run::<3, $v>,
            run::<4, $v>,
            run::<5, $v>,
            run::<6, $v>,
            run::<7, $v>,
            run::<8, $v>,
            run::<9, $v>,
            run::<10, $v>,
            run::<11, $v>,
            run::<12, $v>,
            run::<13, $v>,
            run::<14, $v>,
        ]
    };
}

/// `$fma` adds products of a number with a vector's to a vector of sums.
macro_rules! tiles {
    ($name:ident, $features:literal, $fma:expr) => {
        pub(super) mod $name {
            use super::{TALL, Tile};
            use core::arch::x86_64::*;

            type Run = unsafe fn(Tile);

            /// By vectors of columns and by rows, both less one.
            static RUNS: [[Run; TALL]; 2] = [heights!(1), heights!(2)];

            /// Computes a tile of `height` rows.
            ///
            /// # Safety
            /// The processor has the features; `height` packed rows and the panel hold `steps` numbers a row and a column, and the result
            /// has the rows and columns.
            pub unsafe fn tile(height: usize, t: Tile) {
                // SAFETY: the caller's promise.
                unsafe { RUNS[t.columns.vectors - 1][height - 1](t) }
            }

            /// # Safety
            /// As `tile`.
            #[target_feature(enable = $features)]
            unsafe fn run<const H: usize, const V: usize>(t: Tile) {
                let fma = $fma;
                let mut acc = [[_mm512_setzero_ps(); V]; H];
                // SAFETY: the caller's promise; the last vector's lanes are masked.
                unsafe {
                    for h in 0..H {
                        // The result's lines are on their way while the sums are made.
                        _mm_prefetch::<_MM_HINT_T0>(t.c.add(h * t.c_row).cast());
                    }
                    let (mut a, mut b) = (t.rows, t.panel);
                    for _ in 0..t.steps {
                        let mut x = [_mm512_setzero_ps(); V];
                        for v in 0..V {
                            _mm_prefetch::<_MM_HINT_T0>(b.wrapping_add(t.ahead + v * 16).cast());
                            x[v] = _mm512_loadu_ps(b.add(v * 16));
                        }
                        for h in 0..H {
                            let y = _mm512_set1_ps(*a.add(h * t.row));
                            for v in 0..V {
                                acc[h][v] = fma(y, x[v], acc[h][v]);
                            }
                        }
                        a = a.add(1);
                        b = b.add(V * 16);
                    }
                    for h in 0..H {
                        for v in 0..V {
                            let c = t.c.add(h * t.c_row + v * 16);
                            let mask = t.columns.lanes[v];
                            let sum = if t.add { _mm512_add_ps(acc[h][v], _mm512_maskz_loadu_ps(mask, c)) } else { acc[h][v] };
                            _mm512_mask_storeu_ps(c, mask, sum);
                        }
                    }
                }
            }
        }
    };
}

tiles!(floats, "avx512f", |y: __m512, x: __m512, sum: __m512| _mm512_fmadd_ps(y, x, sum));
tiles!(pairs, "avx512f,avx512bf16", |y: __m512, x: __m512, sum: __m512| {
    // SAFETY: both types are 64 bytes of any content.
    let (y, x) = unsafe { (core::mem::transmute::<__m512, __m512bh>(y), core::mem::transmute::<__m512, __m512bh>(x)) };
    _mm512_dpbf16_ps(sum, y, x)
});
