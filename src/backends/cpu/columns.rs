//! Matrix-vector products where the matrix is stored the other way: neighbouring results lie side by side.

use super::math;
use super::path::versions;

/// Results that are held in registers.
const REGISTER_RESULTS: usize = 64;
/// Rows of the matrix that are added before results go back to memory.
const ROWS_PER_FLUSH: usize = 8;

/// A stored number that is read as f32.
pub trait ColumnStorage: Copy {
    /// The value.
    fn value(self) -> f32;
}

impl ColumnStorage for f32 {
    #[inline(always)]
    fn value(self) -> f32 {
        self
    }
}

/// bf16, by its bits.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Bf16(u16);
impl ColumnStorage for Bf16 {
    #[inline(always)]
    fn value(self) -> f32 {
        f32::from_bits((self.0 as u32) << 16)
    }
}

/// f16, by its bits.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct F16(u16);
impl ColumnStorage for F16 {
    #[inline(always)]
    fn value(self) -> f32 {
        let size = (self.0 & 0x7FFF) as u32;
        // The exponent moves from bias 15 to bias 127; multiplying also normalizes subnormals.
        let finite = (f32::from_bits(size << 13) * f32::from_bits(0x7780_0000)).to_bits();
        let bits = if size >= 0x7C00 { 0x7F80_0000 | (size << 13) } else { finite };
        f32::from_bits(bits | ((self.0 & 0x8000) as u32) << 16)
    }
}

#[inline(always)]
fn add_body<S: ColumnStorage, const F: bool>(w: *const S, w_row: usize, x: &[f32], y: &mut [f32]) {
    for (k, x) in x.chunks(ROWS_PER_FLUSH).enumerate() {
        let w = w.wrapping_add(k * ROWS_PER_FLUSH * w_row);
        let mut at = 0;
        while at + REGISTER_RESULTS <= y.len() {
            let y = &mut y[at..at + REGISTER_RESULTS];
            let mut acc = [0f32; REGISTER_RESULTS];
            acc.copy_from_slice(y);
            for (r, &x) in x.iter().enumerate() {
                // SAFETY: the caller of `add` vouches for `y.len()` numbers in each of `x.len()` rows.
                let row = unsafe { &*w.add(r * w_row + at).cast::<[S; REGISTER_RESULTS]>() };
                for i in 0..REGISTER_RESULTS {
                    acc[i] = math::fma::<F>(x, row[i].value(), acc[i]);
                }
            }
            y.copy_from_slice(&acc);
            at += REGISTER_RESULTS;
        }
        for (r, &x) in x.iter().enumerate() {
            for (i, y) in y.iter_mut().enumerate().skip(at) {
                // SAFETY: as above.
                *y = math::fma::<F>(x, unsafe { *w.add(r * w_row + i) }.value(), *y);
            }
        }
    }
}

versions! {
    fn add_versions<S: ColumnStorage>(w: *const S, w_row: usize, x: &[f32], y: &mut [f32]) = add_body;
}

/// `y[i] += sum_k x[k] * w[k * w_row + i]`
///
/// # Safety
/// Each of the `x.len()` rows of w, `w_row` apart, must hold `y.len()` numbers.
pub unsafe fn add<S: ColumnStorage>(w: *const S, w_row: usize, x: &[f32], y: &mut [f32]) {
    add_versions(w, w_row, x, y);
}
