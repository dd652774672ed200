//! Matrix products of blocks on one thread.

pub use super::matrix::{Matrix, MatrixMut};

use super::vector::Real;
#[cfg(target_os = "macos")]
use crate::dtype::DType;

/// `[batch, m, k]` times `[batch, n, k]`.
#[derive(Clone, Copy)]
pub struct Sizes {
    /// Products.
    pub batch: usize,
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// Terms of a sum.
    pub k: usize,
}

/// `out[m, n] = factor · a[m, k] · b[k, n]`, or that added to `out`.
///
/// # Safety
/// The matrices must lie in memory, and `out` must not overlap the others or be used by anything else meanwhile.
pub unsafe fn gemm<T: Real>([m, n, k]: [usize; 3], a: Matrix<T>, b: Matrix<T>, out: MatrixMut<T>, factor: T) {
    if m == 0 || n == 0 {
        return;
    }
    // SAFETY: the caller's promise.
    #[cfg(target_os = "macos")]
    if unsafe { by_accelerate([m, n, k], a, b, out, factor) } {
        return;
    }
    // SAFETY: the caller's promise.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.ptr,
            1,
            out.row,
            out.add,
            a.ptr,
            a.col,
            a.row,
            b.ptr,
            b.col,
            b.row,
            T::of(1.0),
            factor,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

/// The same by Apple's Accelerate, for f32. `false` where it is not used.
///
/// # Safety
/// See [`gemm`].
#[cfg(target_os = "macos")]
unsafe fn by_accelerate<T: Real>(sizes: [usize; 3], a: Matrix<T>, b: Matrix<T>, out: MatrixMut<T>, factor: T) -> bool {
    let of = |m: Matrix<T>| Matrix { ptr: m.ptr.cast::<f32>(), row: m.row, col: m.col };
    let out = MatrixMut { ptr: out.ptr.cast::<f32>(), row: out.row, add: out.add };
    // SAFETY: the caller's promise; the elements are f32.
    T::DTYPE == DType::F32 && unsafe { super::accelerate::sgemm(sizes, of(a), of(b), out, factor.wide() as f32) }
}
