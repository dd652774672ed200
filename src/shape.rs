//! A tensor's sizes, stored inline, without allocation.

use crate::error::{At, TensorError, TensorResult};
use std::fmt;
use std::ops::Deref;

/// The most dimensions a tensor can have.
pub const MAX_RANK: usize = 8;

/// The sizes of a tensor's dimensions, outermost first. Derefs to `[usize]`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    rank: u8,
    dims: [usize; MAX_RANK],
}

impl Shape {
    /// The shape of a scalar.
    pub const SCALAR: Shape = Shape { rank: 0, dims: [1; MAX_RANK] };

    /// A shape of these sizes. Fails above eight dimensions, or if the element count, or the bytes of 8-byte elements, overflow.
    ///
    /// # Errors
    /// [`TensorError::Shape`] for more than eight dimensions or too many elements.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let at = std::panic::Location::caller();
    /// assert_eq!(Shape::new(&[2, 3], "my_op", at)?.dims(), [2, 3]);
    /// assert!(Shape::new(&[1; 9], "my_op", at).is_err());
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn new(dims: &[usize], op: &'static str, at: At) -> TensorResult<Shape> {
        if dims.len() > MAX_RANK {
            return Err(TensorError::shape(op, at, format!("{} dimensions; at most {MAX_RANK} are supported", dims.len())));
        }
        // Zero sizes must not hide an overflow of the others.
        let fits = dims.iter().filter(|&&d| d > 0).try_fold(8usize, |n, &d| n.checked_mul(d)).is_some_and(|n| n <= isize::MAX as usize);
        if !fits {
            return Err(TensorError::shape(op, at, format!("{dims:?} has too many elements")));
        }
        Ok(Shape::of(dims))
    }

    /// A shape of sizes that are known to be valid: at most eight, no overflow.
    pub fn of(dims: &[usize]) -> Shape {
        let mut s = Shape { rank: dims.len() as u8, dims: [1; MAX_RANK] };
        s.dims[..dims.len()].copy_from_slice(dims);
        s
    }
    /// The number of elements.
    pub fn count(&self) -> usize {
        self.iter().product()
    }
    /// The sizes.
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank as usize]
    }
    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.rank as usize
    }
    /// This shape with the size of dimension `dim` set to `size`.
    pub fn with(mut self, dim: usize, size: usize) -> Shape {
        self.dims[dim] = size;
        self
    }
    /// This shape without dimension `dim`.
    pub fn without(&self, dim: usize) -> Shape {
        let mut v: smallvec::SmallVec<[usize; 8]> = self.dims().into();
        v.remove(dim);
        Shape::of(&v)
    }

    /// The shape that both broadcast to, as in PyTorch and numpy.
    ///
    /// # Errors
    /// [`TensorError::Shape`] where two sizes differ and neither is 1, or the result has too many elements.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let at = std::panic::Location::caller();
    /// let [a, b] = [Shape::new(&[2, 1], "my_op", at)?, Shape::new(&[3], "my_op", at)?];
    /// assert_eq!(a.broadcast(&b, "my_op", at)?.dims(), [2, 3]);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn broadcast(&self, other: &Shape, op: &'static str, at: At) -> TensorResult<Shape> {
        let rank = self.rank().max(other.rank());
        let mut out = [1; MAX_RANK];
        for i in 0..rank {
            let pick = |s: &Shape| if i + s.rank() >= rank { s.dims[i + s.rank() - rank] } else { 1 };
            out[i] = match (pick(self), pick(other)) {
                (a, b) if a == b => a,
                (1, b) => b,
                (a, 1) => a,
                (a, b) => {
                    return Err(TensorError::shape(
                        op,
                        at,
                        format!("{self} and {other} do not broadcast: sizes {a} and {b} differ in dimension {i}"),
                    ));
                }
            };
        }
        Shape::new(&out[..rank], op, at)
    }
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        self.dims()
    }
}
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, d) in self.iter().enumerate() {
            write!(f, "{}{d}", if i > 0 { "," } else { "" })?;
        }
        f.write_str("]")
    }
}
impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The number of a dimension, or of a position along one: `usize`, `isize` or `i32`. Negative numbers count from the end, -1 is the last.
///
/// ```
/// use tensorlogic::prelude::*;
/// let x = Tensor::zeros(&[2, 3, 5], DType::F32, &Device::cpu())?;
/// let last = x.rank() - 1; // a usize
/// assert_eq!(x.select(last, 0)?.dims(), x.select(-1, 0)?.dims());
/// # Ok::<(), TensorError>(())
/// ```
pub trait SignedIndex: Copy {
    /// The number; negative ones count from the end.
    fn signed(self) -> isize;
}
impl SignedIndex for isize {
    fn signed(self) -> isize {
        self
    }
}
impl SignedIndex for i32 {
    fn signed(self) -> isize {
        self as isize
    }
}
impl SignedIndex for usize {
    fn signed(self) -> isize {
        // Beyond every end, which the method that is called refuses.
        isize::try_from(self).unwrap_or(isize::MAX)
    }
}

/// Converts a user's dimension, where `-1` is the last, to an index. Checked against `rank`.
///
/// # Errors
/// [`TensorError::Shape`] where there is no such dimension.
///
/// ```
/// use tensorlogic::shape::dim;
///
/// let at = std::panic::Location::caller();
/// assert_eq!(dim(-1, 3, "my_op", at)?, 2);
/// assert!(dim(3, 3, "my_op", at).is_err());
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
pub fn dim(d: impl SignedIndex, rank: usize, op: &'static str, at: At) -> TensorResult<usize> {
    let (d, r) = (d.signed(), rank.max(1) as isize);
    if d < -r || d >= r {
        return Err(TensorError::shape(op, at, format!("dimension {d} of a tensor with {rank}; allowed are {} to {}", -r, r - 1)));
    }
    Ok(if d < 0 { (d + r) as usize } else { d as usize })
}
