//! Large products of f32 by Apple's Accelerate, which uses the matrix units that macOS offers no other way to.

use super::matrix::{Matrix, MatrixMut};

/// Products of fewer multiplications, 128 × 128 × 128, stay with `gemm`. Chosen without a measurement: no Mac has run this yet.
const MIN_PRODUCTS: usize = 1 << 21;

/// `CblasRowMajor`, `CblasNoTrans` and `CblasTrans` of cblas.h.
const ROW_MAJOR: i32 = 101;
const NO_TRANS: i32 = 111;
const TRANS: i32 = 112;

/// How `cblas_sgemm` is told of a matrix: whether it is transposed, and the distance of its rows (of its columns, if it is). `None` where
/// neither rows nor columns are contiguous, or overlap.
fn leading(m: &Matrix<f32>, rows: usize, cols: usize) -> Option<(i32, i32)> {
    let fits = |step: isize, least: usize| if step >= least.max(1) as isize { i32::try_from(step).ok() } else { None };
    if m.col == 1 || cols == 1 {
        if let Some(step) = fits(m.row, cols) {
            return Some((NO_TRANS, step));
        }
    }
    if m.row == 1 || rows == 1 { Some((TRANS, fits(m.col, rows)?)) } else { None }
}

/// The arguments of `cblas_sgemm` after the order: both transpositions, m, n, k, and the leading dimensions of a, b and c.
fn arguments([m, n, k]: [usize; 3], a: &Matrix<f32>, b: &Matrix<f32>, out: &MatrixMut<f32>) -> Option<[i32; 8]> {
    let int = |n: usize| i32::try_from(n).ok();
    let ((trans_a, lda), (trans_b, ldb)) = (leading(a, m, k)?, leading(b, k, n)?);
    let ldc = if out.row >= n as isize { i32::try_from(out.row).ok()? } else { return None };
    Some([trans_a, trans_b, int(m)?, int(n)?, int(k)?, lda, ldb, ldc])
}

#[cfg(target_os = "macos")]
#[link(name = "Accelerate", kind = "framework")]
unsafe extern "C" {
    #[allow(clippy::too_many_arguments)]
    fn cblas_sgemm(
        order: i32,
        trans_a: i32,
        trans_b: i32,
        m: i32,
        n: i32,
        k: i32,
        alpha: f32,
        a: *const f32,
        lda: i32,
        b: *const f32,
        ldb: i32,
        beta: f32,
        c: *mut f32,
        ldc: i32,
    );
}

/// The definition of the function, where tests run without the library.
#[cfg(all(test, not(target_os = "macos")))]
#[allow(clippy::too_many_arguments)]
unsafe fn cblas_sgemm(
    order: i32,
    trans_a: i32,
    trans_b: i32,
    m: i32,
    n: i32,
    k: i32,
    alpha: f32,
    a: *const f32,
    lda: i32,
    b: *const f32,
    ldb: i32,
    beta: f32,
    c: *mut f32,
    ldc: i32,
) {
    assert_eq!(order, ROW_MAJOR);
    assert!(lda >= if trans_a == TRANS { m } else { k } && ldb >= if trans_b == TRANS { k } else { n } && ldc >= n);
    let place = |trans: i32, row: i32, col: i32, ld: i32| (if trans == TRANS { col * ld + row } else { row * ld + col }) as usize;
    for i in 0..m {
        for j in 0..n {
            // SAFETY: the caller's promise.
            unsafe {
                let sum: f64 = (0..k).map(|p| *a.add(place(trans_a, i, p, lda)) as f64 * *b.add(place(trans_b, p, j, ldb)) as f64).sum();
                let to = c.add((i * ldc + j) as usize);
                *to = alpha * sum as f32 + if beta == 0.0 { 0.0 } else { beta * *to };
            }
        }
    }
}

/// `out[m, n] = factor · a[m, k] · b[k, n]`, or that added to `out`. `false`, and nothing is done, for small products and for matrices that
/// the library does not take.
///
/// # Safety
/// See `gemm`.
pub(super) unsafe fn sgemm(sizes: [usize; 3], a: Matrix<f32>, b: Matrix<f32>, out: MatrixMut<f32>, factor: f32) -> bool {
    let [m, n, k] = sizes;
    if m.saturating_mul(n).saturating_mul(k) < MIN_PRODUCTS {
        return false;
    }
    let Some([trans_a, trans_b, m, n, k, lda, ldb, ldc]) = arguments(sizes, &a, &b, &out) else { return false };
    let beta = if out.add { 1.0 } else { 0.0 };
    // SAFETY: the caller's promise; the arguments describe the same elements.
    unsafe { cblas_sgemm(ROW_MAJOR, trans_a, trans_b, m, n, k, factor, a.ptr, lda, b.ptr, ldb, beta, out.ptr, ldc) }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every order of the operands, with rows apart, written and added, against sums in f64 of elements taken one by one.
    #[test]
    fn matrices_of_every_order_are_described_to_the_library() {
        let [m, n, k] = [130, 129, 131];
        let value = |i: usize| ((i * 2_654_435_761) % 1009) as f32 / 504.5 - 1.0;
        let data: Vec<f32> = (0..140 * 150).map(value).collect();
        let orders = |rows: usize, cols: usize| {
            [(cols as isize, 1), (cols as isize + 5, 1), (1, rows as isize), (1, rows as isize + 3)].map(|(row, col)| Matrix {
                ptr: data.as_ptr(),
                row,
                col,
            })
        };
        let at = |x: &Matrix<f32>, r: usize, c: usize| data[(r as isize * x.row + c as isize * x.col) as usize] as f64;
        for (a, b) in orders(m, k).iter().flat_map(|a| orders(k, n).map(|b| (*a, b))) {
            for add in [false, true] {
                let mut c = vec![1.0; m * (n + 2)];
                let out = MatrixMut { ptr: c.as_mut_ptr(), row: n as isize + 2, add };
                // SAFETY: the matrices lie in `data` and `c`.
                assert!(unsafe { sgemm([m, n, k], a, b, out, 0.5) }, "{a:?} {b:?}");
                for (i, j) in [(0, 0), (m - 1, n - 1), (3, 77), (100, 5)] {
                    let want = 0.5 * (0..k).map(|p| at(&a, i, p) * at(&b, p, j)).sum::<f64>() + if add { 1.0 } else { 0.0 };
                    let got = c[i * (n + 2) + j] as f64;
                    assert!((got - want).abs() < 1e-4, "{a:?} {b:?} add {add}, ({i}, {j}): {got} instead of {want}");
                }
                assert_eq!(c[n], 1.0, "what lies between rows is left alone");
            }
        }
    }

    #[test]
    fn small_products_and_odd_strides_are_declined() {
        let mut c = [7.0f32; 4];
        let x = [1.0f32; 4];
        let matrix = |row, col| Matrix { ptr: x.as_ptr(), row, col };
        // SAFETY: nothing is read or written where the answer is `false`.
        assert!(!unsafe { sgemm([2, 2, 2], matrix(2, 1), matrix(2, 1), MatrixMut::new(c.as_mut_ptr(), 2), 1.0) });
        for (row, col) in [(0, 1), (1, 0), (2, 2), (-200, 1), (100, 1)] {
            let large = [200, 200, 200];
            // SAFETY: as above.
            assert!(!unsafe { sgemm(large, matrix(row, col), matrix(200, 1), MatrixMut::new(c.as_mut_ptr(), 200), 1.0) }, "{row} {col}");
        }
        assert_eq!(c, [7.0; 4]);
    }
}
