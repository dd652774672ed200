//! Shapes as arguments: arrays and tuples of sizes, one of which may be left open.

use crate::shape::Shape;
use smallvec::{Array, SmallVec};

/// One size of [`Sizes`]: a number, or `()` for a size that is left open. -1 leaves it open too, as in PyTorch.
pub trait Size {
    /// The size, or -1 where it is left open.
    fn size(&self) -> isize;
}
impl Size for usize {
    fn size(&self) -> isize {
        // No tensor has a size above this; the method that is called refuses it.
        isize::try_from(*self).unwrap_or(isize::MAX)
    }
}
impl Size for isize {
    fn size(&self) -> isize {
        *self
    }
}
impl Size for i32 {
    fn size(&self) -> isize {
        *self as isize
    }
}
impl Size for () {
    fn size(&self) -> isize {
        -1
    }
}

/// The sizes that [`Tensor::reshape`](crate::Tensor::reshape) and [`Tensor::expand`](crate::Tensor::expand) take: an array, slice or vector of
/// `usize`, `isize` or `i32`, a tuple of them in which `()` stands for the open size, one number, or a [`Shape`] (`Shape::SCALAR` for none).
///
/// ```
/// # use tensorlogic::prelude::*;
/// let x = Tensor::new(&[1, 2, 3, 4, 5, 6], &Device::cpu())?;
/// let rows = x.dims()[0] / 3;
/// assert_eq!(x.reshape((2, ()))?.dims(), [2, 3]);
/// assert_eq!(x.reshape([rows, 3])?.dims(), [2, 3]);
/// assert_eq!(x.reshape(&[-1, 1])?.dims(), [6, 1]);
/// assert_eq!(x.reshape((rows, 1, ()))?.reshape(6)?.dims(), [6]);
/// # Ok::<(), TensorError>(())
/// ```
pub trait Sizes {
    /// The sizes, outermost first; -1 where one is left open.
    fn sizes(&self) -> SmallVec<[isize; 8]>;
}

impl<S: Size> Sizes for [S] {
    fn sizes(&self) -> SmallVec<[isize; 8]> {
        self.iter().map(Size::size).collect()
    }
}
impl<S: Size, const N: usize> Sizes for [S; N] {
    fn sizes(&self) -> SmallVec<[isize; 8]> {
        self[..].sizes()
    }
}
impl<S: Size> Sizes for Vec<S> {
    fn sizes(&self) -> SmallVec<[isize; 8]> {
        self[..].sizes()
    }
}
impl<A: Array<Item: Size>> Sizes for SmallVec<A> {
    fn sizes(&self) -> SmallVec<[isize; 8]> {
        self[..].sizes()
    }
}
impl Sizes for Shape {
    fn sizes(&self) -> SmallVec<[isize; 8]> {
        self.dims().sizes()
    }
}
impl<S: Sizes + ?Sized> Sizes for &S {
    fn sizes(&self) -> SmallVec<[isize; 8]> {
        (**self).sizes()
    }
}

macro_rules! single {
    ($($t:ty),*) => { $(
        impl Sizes for $t {
            fn sizes(&self) -> SmallVec<[isize; 8]> {
                [*self].sizes()
            }
        }
    )* };
}
single!(usize, isize, i32, ());

macro_rules! tuples {
    ($(($($t:ident $n:tt),*))*) => { $(
        impl<$($t: Size),*> Sizes for ($($t,)*) {
            fn sizes(&self) -> SmallVec<[isize; 8]> {
                smallvec::smallvec![$(self.$n.size()),*]
            }
        }
    )* };
}
tuples! {
    (A 0)
    (A 0, B 1)
    (A 0, B 1, C 2)
    (A 0, B 1, C 2, D 3)
    (A 0, B 1, C 2, D 3, E 4)
    (A 0, B 1, C 2, D 3, E 4, F 5)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7)
}
