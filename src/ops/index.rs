//! `x.i((.., 1))`: numbers, ranges and index tensors, one per dimension, as Python's brackets.

use crate::error::{At, TensorError, TensorResult};
use crate::shape::SignedIndex;
use crate::tensor::Tensor;
use smallvec::SmallVec;
use std::ops::{Bound, Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};
use std::panic::Location;

/// What [`Tensor::i`] takes of one dimension.
#[derive(Clone)]
pub enum Pick {
    /// One entry; the dimension goes. Negative numbers count from the end: -1 is the last.
    At(isize),
    /// The entries between two bounds, each of which may count from the end.
    Range(Bound<isize>, Bound<isize>),
    /// The entries that a tensor of integers names: [`Tensor::index_select`].
    Tensor(Tensor),
}

macro_rules! pick_numbers {
    ($($t:ty),*) => { $(
        impl From<$t> for Pick {
            fn from(n: $t) -> Pick {
                Pick::At(n.signed())
            }
        }
    )* };
}
pick_numbers!(usize, isize, i32);

macro_rules! pick_ranges {
    ($($t:ident |$r:ident| $start:expr, $end:expr;)*) => { $(
        impl<P: SignedIndex> From<$t<P>> for Pick {
            fn from($r: $t<P>) -> Pick {
                Pick::Range($start, $end)
            }
        }
    )* };
}
pick_ranges! {
    Range |r| Bound::Included(r.start.signed()), Bound::Excluded(r.end.signed());
    RangeFrom |r| Bound::Included(r.start.signed()), Bound::Unbounded;
    RangeTo |r| Bound::Unbounded, Bound::Excluded(r.end.signed());
    RangeInclusive |r| Bound::Included(r.start().signed()), Bound::Included(r.end().signed());
    RangeToInclusive |r| Bound::Unbounded, Bound::Included(r.end.signed());
}
impl From<RangeFull> for Pick {
    fn from(_: RangeFull) -> Pick {
        Pick::Range(Bound::Unbounded, Bound::Unbounded)
    }
}
impl From<&Tensor> for Pick {
    fn from(t: &Tensor) -> Pick {
        Pick::Tensor(t.clone())
    }
}

/// What [`Tensor::i`] takes: one [`Pick`], or a tuple of them for the leading dimensions.
pub trait Picks {
    /// The picks, one per leading dimension.
    fn picks(self) -> SmallVec<[Pick; 8]>;
}
impl<P: Into<Pick>> Picks for P {
    fn picks(self) -> SmallVec<[Pick; 8]> {
        smallvec::smallvec![self.into()]
    }
}
macro_rules! tuples {
    ($(($($t:ident $n:tt),*))*) => { $(
        impl<$($t: Into<Pick>),*> Picks for ($($t,)*) {
            fn picks(self) -> SmallVec<[Pick; 8]> {
                smallvec::smallvec![$(self.$n.into()),*]
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

impl Tensor {
    /// Part of this tensor, as Python's `x[...]`: a number takes one entry of its dimension, which goes; a range takes those inside it; a tensor
    /// of integers takes those that it names. Numbers and bounds may be negative and then count from the end. Dimensions after the given ones
    /// are taken whole. Numbers and ranges give views: nothing is copied.
    ///
    /// Of a shape `[2,3]`, `i(1)` and `i((1, ..))` have `[3]`, `i((.., 1))` has `[2]`, `i((.., 1..))` has `[2,2]`, and `i((.., -1))` is the last column.
    ///
    /// # Errors
    /// When there are more indices than dimensions, or one lies outside; unlike in Python, a range too. A bad entry of an index tensor is an error
    /// of the evaluation.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1, 2, 3], [4, 5, 6]], &Device::cpu())?;
    /// assert_eq!(x.i((.., 1))?.to_vec1::<i32>()?, [2, 5]);
    /// assert_eq!(x.i(-1)?.to_vec1::<i32>()?, [4, 5, 6]);
    /// assert_eq!(x.i((0, ..2))?.to_vec1::<i32>()?, [1, 2]);
    /// assert_eq!(x.i((1, 2))?.to_scalar::<i32>()?, 6);
    /// let order = Tensor::new(&[2, 0], &Device::cpu())?;
    /// assert_eq!(x.i((.., &order))?.to_vec2::<i32>()?, [[3, 1], [6, 4]]);
    /// assert!(x.i((.., 3)).is_err());
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn i(&self, picks: impl Picks) -> TensorResult<Tensor> {
        self.pick_at(&picks.picks(), Location::caller())
    }

    fn pick_at(&self, picks: &[Pick], at: At) -> TensorResult<Tensor> {
        if picks.len() > self.rank() {
            let m = format!("{} indices for {}, which has {} dimensions", picks.len(), self.shape(), self.rank());
            return Err(TensorError::shape("i", at, m));
        }
        let mode = crate::tensor::Mode { at: Some(at), ..crate::tensor::Mode::current() };
        let mut t = self.clone();
        // Dimensions of the result so far.
        let mut k = 0isize;
        for (d, pick) in picks.iter().enumerate() {
            let size = self.shape()[d] as isize;
            let outside = |what: String| {
                let m = format!("{what} of dimension {d} of {}, which has {size}", self.shape());
                TensorError::shape("i", at, m)
            };
            // From the end where it is negative.
            let wrap = |n: isize| if n < 0 { n + size } else { n };
            match pick {
                Pick::At(n) => {
                    let place = wrap(*n);
                    if place < 0 || place >= size {
                        return Err(outside(format!("index {n}")));
                    }
                    t = mode.run(|| t.select(k, place as usize))?;
                    continue;
                }
                Pick::Range(low, high) => {
                    let start = match low {
                        Bound::Included(n) | Bound::Excluded(n) => wrap(*n),
                        Bound::Unbounded => 0,
                    };
                    let end = match high {
                        // `..=-1` ends after the last entry.
                        Bound::Included(n) => wrap(*n).saturating_add(1),
                        Bound::Excluded(n) => wrap(*n),
                        Bound::Unbounded => size,
                    };
                    if start < 0 || end < start || end > size {
                        return Err(outside(range_text(low, high)));
                    }
                    if (start, end) != (0, size) {
                        t = mode.run(|| t.narrow(k, start as usize, (end - start) as usize))?;
                    }
                }
                Pick::Tensor(index) => {
                    t = mode.run(|| t.index_select(k, index))?;
                    if index.rank() == 0 {
                        t = mode.run(|| t.squeeze(k))?;
                        continue;
                    }
                }
            }
            k += 1;
        }
        Ok(t)
    }
}

/// A range as Rust writes it.
fn range_text(low: &Bound<isize>, high: &Bound<isize>) -> String {
    let start = match low {
        Bound::Included(n) | Bound::Excluded(n) => n.to_string(),
        Bound::Unbounded => String::new(),
    };
    match high {
        Bound::Included(n) => format!("{start}..={n}"),
        Bound::Excluded(n) => format!("{start}..{n}"),
        Bound::Unbounded => format!("{start}.."),
    }
}
