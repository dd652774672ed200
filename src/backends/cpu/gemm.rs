//! Matrix products of blocks on one thread.

use super::vector::Real;

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

/// A matrix in memory: the first element, and the distance of rows and of columns.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<T> {
    /// The first element.
    pub ptr: *const T,
    /// Elements from a row to the next.
    pub row: isize,
    /// Elements from a column to the next.
    pub col: isize,
}

impl<T> Matrix<T> {
    /// The matrix from this row and column on.
    pub fn at(self, row: usize, col: usize) -> Matrix<T> {
        Matrix { ptr: self.ptr.wrapping_offset(row as isize * self.row + col as isize * self.col), ..self }
    }
}

/// `out[m, n] = factor · a[m, k] · b[k, n]`, added to `out` where `add` says so; `out`'s rows are `out_row` apart.
///
/// # Safety
/// The matrices must lie in memory, and `out` must be apart from the others and nobody else's.
#[allow(clippy::too_many_arguments)]
pub unsafe fn gemm<T: Real>(m: usize, n: usize, k: usize, a: Matrix<T>, b: Matrix<T>, out: *mut T, out_row: isize, factor: T, add: bool) {
    if m == 0 || n == 0 {
        return;
    }
    // SAFETY: the caller's promise.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out,
            1,
            out_row,
            add,
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
