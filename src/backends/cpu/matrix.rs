//! Matrices in memory, as products of blocks take them.

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

/// Where a product of blocks is written.
#[derive(Clone, Copy)]
pub struct MatrixMut<T> {
    /// The first element; columns are neighbours.
    pub ptr: *mut T,
    /// Elements from a row to the next.
    pub row: isize,
    /// Whether the product is added to what stands there.
    pub add: bool,
}

impl<T> MatrixMut<T> {
    /// Overwrites rows that are `row` elements apart.
    pub fn new(ptr: *mut T, row: usize) -> MatrixMut<T> {
        MatrixMut { ptr, row: row as isize, add: false }
    }
    /// Adds to them.
    pub fn sum(ptr: *mut T, row: usize) -> MatrixMut<T> {
        MatrixMut { add: true, ..MatrixMut::new(ptr, row) }
    }
}
