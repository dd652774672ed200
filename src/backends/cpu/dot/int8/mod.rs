//! Block formats times activations of int8, each 32 with a scale: opt-in, since it changes results by about 0.4 %. With AVX2 up to four rows of
//! activations are multiplied as integers; elsewhere, with more rows, and where AVX-512 decodes faster, the rounded activations are floats again.

#[cfg(target_arch = "x86_64")]
mod avx2;

use super::{Path, gemv, gemv_multi};
use crate::dtype::DType;
use std::cell::RefCell;

/// Activations that share a scale.
pub const GROUP: usize = 32;
/// The largest integer.
const MAX: f32 = 127.0;
/// Groups whose largest activation is smaller count as zeros: their scale would not have all of its bits.
pub const SMALLEST: f32 = 1e-30;

/// Rows of activations as integers.
#[derive(Default)]
struct Rounded {
    integers: Vec<i8>,
    /// Of each group.
    scales: Vec<f32>,
    /// The same activations as floats.
    floats: Vec<f32>,
}

/// The scale of a group with this largest activation, and what integers are activations times.
fn scale_of(most: f32) -> [f32; 2] {
    if most >= SMALLEST { [most / MAX, MAX / most] } else { [0.0, 0.0] }
}

impl Rounded {
    /// Rounds groups of activations. `false` where one of them is not finite.
    fn round(&mut self, path: Path, x: &[f32]) -> bool {
        self.integers.resize(x.len(), 0);
        self.scales.resize(x.len() / GROUP, 0.0);
        #[cfg(target_arch = "x86_64")]
        if matches!(path, Path::Avx2 | Path::Avx512) {
            // SAFETY: the path's features, which every caller checked.
            return unsafe { avx2::round(x, &mut self.integers, &mut self.scales) };
        }
        let _ = path;
        for ((group, integers), scale) in
            x.as_chunks::<GROUP>().0.iter().zip(self.integers.as_chunks_mut::<GROUP>().0).zip(&mut self.scales)
        {
            let [of, inverse] = scale_of(group.iter().fold(0f32, |m, x| m.max(x.abs())));
            *scale = of;
            integers.iter_mut().zip(group).for_each(|(q, x)| *q = (x * inverse).round_ties_even() as i8);
        }
        x.iter().all(|x| x.is_finite())
    }

    /// The rounded activations.
    fn floats(&mut self, path: Path) -> &[f32] {
        self.floats.resize(self.integers.len(), 0.0);
        #[cfg(target_arch = "x86_64")]
        if matches!(path, Path::Avx2 | Path::Avx512) {
            // SAFETY: the path's features, which every caller checked.
            unsafe { avx2::floats(&self.integers, &self.scales, &mut self.floats) };
            return &self.floats;
        }
        let _ = path;
        let groups = self.integers.as_chunks::<GROUP>().0.iter().zip(&self.scales);
        for (out, (integers, scale)) in self.floats.as_chunks_mut::<GROUP>().0.iter_mut().zip(groups) {
            out.iter_mut().zip(integers).for_each(|(out, &q)| *out = q as f32 * scale);
        }
        &self.floats
    }
}

thread_local! {
    static ROUNDED: RefCell<Rounded> = RefCell::default();
}

/// Rounds groups of activations where they lie; all stay as they are where one is not finite.
pub fn round_int8(path: Path, x: &mut [f32]) {
    assert!(path.is_available(), "the {} path needs a processor that has it", path.name());
    ROUNDED.with_borrow_mut(|rounded| {
        if rounded.round(path, x) {
            x.copy_from_slice(rounded.floats(path));
        }
    })
}

/// [`gemv_multi`] of activations that are rounded to int8 first; `dtype` is a block format. A row that is not finite is not rounded.
///
/// # Panics
/// See [`gemv`].
pub fn gemv_int8(path: Path, dtype: DType, w: &[u8], row_bytes: usize, x: &[f32], y: &mut [f32], [m, ldy]: [usize; 2]) {
    ROUNDED.with_borrow_mut(|rounded| {
        assert!(path.is_available(), "the {} path needs a processor that has it", path.name());
        let finite = rounded.round(path, x);
        #[cfg(target_arch = "x86_64")]
        if finite && (path == Path::Avx2 || path == Path::Avx512 && !super::avx512::decodes(dtype)) && m > 0 {
            super::check_product(path, dtype, (w, row_bytes), x, y, [m, ldy]);
            // SAFETY: the lengths and the processor's features were checked just above.
            if unsafe { avx2::products(dtype, w, row_bytes, rounded, y, [m, ldy]) } {
                return;
            }
        }
        let x = if finite { rounded.floats(path) } else { x };
        match m {
            1 => gemv(path, dtype, w, row_bytes, x, y),
            _ => gemv_multi(path, dtype, w, row_bytes, x, y, [m, ldy]),
        }
    })
}
