//! The gradient of windows that overlap, as those of a convolution: elements that share a place are summed, one axis at a time.

use crate::dtype::DType;
use crate::error::TensorResult;
use crate::layout::Layout;
use crate::ops::write::windows;
use crate::shape::Shape;
use crate::tensor::{Meta, Tensor};
use smallvec::SmallVec;

/// Most parts of a sum tap by tap.
const MAX_TAPS: usize = 64;
/// How many times as many elements as the gradient and the base have together a fold may write.
const MAX_FOLD_GROWTH: usize = 32;

/// Up to this many rows are added by one elementwise step; more are reduced.
const MAX_ADDED_TAPS: usize = 16;

/// Whether two elements of a window of positive strides may share a place.
pub(super) fn has_overlap(window: &Layout) -> bool {
    let mut dims: SmallVec<[(isize, usize); 8]> =
        window.strides().iter().zip(window.shape.iter()).filter(|(_, n)| **n > 1).map(|(&s, &n)| (s, n)).collect();
    dims.sort_unstable();
    let mut reach = 0;
    dims.iter().any(|&(stride, n)| {
        let meets = stride <= reach;
        reach += (n as isize - 1) * stride;
        meets
    })
}

/// Zeros of the base's shape to which the elements of `g` are added, each at its place in the window. Sums are in f32, of f64 in f64.
///
/// There are two ways, and the one that moves fewer elements is taken. Tap by tap: parts of the window whose elements lie apart are each written
/// into zeros of the base's shape, and these are added. By folds: two dimensions of the window at a time become one, until all elements lie
/// apart; for windows over several axes that is a fold an axis, and the work grows with the sum of the kernel's sizes, not with their product.
/// `None` where both would take far more memory than there are elements, as strides without a common divisor can.
pub(super) fn sum_overlapping(window: &Layout, base: &Meta, g: &Tensor) -> TensorResult<Option<Tensor>> {
    let wide = Meta { dtype: if base.dtype == DType::F64 { DType::F64 } else { DType::F32 }, shape: base.shape };
    let (taps, folds) = (Taps::of(window), Fold::all(window, base));
    // What is filled with zeros, written and read again.
    let by_taps = taps.as_ref().map_or(usize::MAX, |t| t.count.saturating_mul(base.shape.count()));
    let by_folds =
        folds.as_ref().map_or(usize::MAX, |(folds, _)| folds.iter().map(Fold::written).fold(base.shape.count(), usize::saturating_add));
    let sum = match (taps, folds) {
        (Some(taps), _) if by_taps <= by_folds => taps.sum(window, &wide, g)?,
        (_, Some((folds, rest))) => {
            let mut sum = g.cast(wide.dtype)?;
            for fold in folds {
                sum = fold.apply(&sum)?;
            }
            windows(wide, vec![(rest, sum)], g.node.at)?
        }
        _ => return Ok(None),
    };
    sum.cast(base.dtype).map(Some)
}

/// The dimensions of a window without which its elements lie apart.
struct Taps {
    dims: SmallVec<[usize; 8]>,
    /// Elements of these dimensions together.
    count: usize,
}

impl Taps {
    /// The shortest dimensions, until the rest lies apart; `None` where that makes too many parts.
    fn of(window: &Layout) -> Option<Taps> {
        let mut dims: SmallVec<[usize; 8]> = (0..window.shape.rank()).collect();
        dims.sort_by_key(|&d| window.shape[d]);
        let mut rest = *window;
        let mut count = 1;
        for n in 0..dims.len() {
            count *= window.shape[dims[n]];
            rest = rest.slice(dims[n], 0, 1, 1);
            if count > MAX_TAPS {
                return None;
            }
            if !has_overlap(&rest) {
                dims.truncate(n + 1);
                return Some(Taps { dims, count });
            }
        }
        None
    }

    fn sum(&self, window: &Layout, wide: &Meta, g: &Tensor) -> TensorResult<Tensor> {
        let part = |tap: usize| {
            let (mut rest, mut layout, mut part) = (tap, *window, g.cast(wide.dtype)?);
            for &d in &self.dims {
                let i = rest % window.shape[d];
                rest /= window.shape[d];
                layout = layout.slice(d, i, 1, 1);
                part = part.narrow(d, i, 1)?;
            }
            windows(*wide, vec![(layout, part)], g.node.at)
        };
        let mut sum = part(0)?;
        for tap in 1..self.count {
            sum = sum.add(&part(tap)?)?;
        }
        Ok(sum)
    }
}

/// Two dimensions of a window that become one: element `t` of `tap` and `i` of `place` are added up at `t · shift + i · step`.
struct Fold {
    /// The dimension that is summed over.
    tap: usize,
    /// The dimension whose elements keep their distance.
    place: usize,
    /// Their sizes.
    taps: usize,
    places: usize,
    shift: usize,
    step: usize,
    /// The stride in the base of the one dimension that they become.
    stride: isize,
    /// The other dimensions, and their elements together.
    others: SmallVec<[usize; 8]>,
    outer: usize,
}

impl Fold {
    /// The folds after which the elements of a window lie apart, and what it is then; `None` where one of them takes too much memory.
    fn all(window: &Layout, base: &Meta) -> Option<(Vec<Fold>, Layout)> {
        let limit = (window.shape.count() + base.shape.count()).saturating_mul(MAX_FOLD_GROWTH);
        let (mut folds, mut rest) = (Vec::new(), *window);
        while has_overlap(&rest) {
            let fold = Fold::best(&rest).filter(|f| f.written() <= limit)?;
            rest = fold.folded(&rest);
            folds.push(fold);
        }
        Some((folds, rest))
    }

    /// Of the folds of two dimensions that overlap, the one that writes the fewest elements; `None` of one dimension.
    fn best(window: &Layout) -> Option<Fold> {
        let rank = window.shape.rank();
        let pairs = (0..rank).flat_map(|tap| (0..rank).filter(move |&place| place != tap).map(move |place| (tap, place)));
        pairs.map(|(tap, place)| Fold::of(window, tap, place)).min_by_key(|f| (!f.meets(), f.written()))
    }

    fn of(window: &Layout, tap: usize, place: usize) -> Fold {
        let stride = gcd(window.strides[tap], window.strides[place]);
        let others: SmallVec<[usize; 8]> = (0..window.shape.rank()).filter(|&d| d != tap && d != place).collect();
        Fold {
            tap,
            place,
            taps: window.shape[tap],
            places: window.shape[place],
            shift: (window.strides[tap] / stride) as usize,
            step: (window.strides[place] / stride) as usize,
            stride,
            outer: others.iter().map(|&d| window.shape[d]).product(),
            others,
        }
    }

    /// Whether the two dimensions alone overlap.
    fn meets(&self) -> bool {
        (self.taps - 1) * self.shift >= self.step && (self.places - 1) * self.step >= self.shift
    }

    /// Elements of the dimension that the two become.
    fn len(&self) -> usize {
        (self.taps - 1) * self.shift + (self.places - 1) * self.step + 1
    }

    /// Elements that are written before they are summed.
    fn written(&self) -> usize {
        self.outer.saturating_mul(self.taps).saturating_mul(self.len() + self.shift)
    }

    /// The window with the one dimension behind the others.
    fn folded(&self, window: &Layout) -> Layout {
        let sizes: SmallVec<[usize; 8]> = self.others.iter().map(|&d| window.shape[d]).chain([self.len()]).collect();
        let mut out = Layout { offset: window.offset, ..Layout::contiguous(Shape::of(&sizes)) };
        for (i, &d) in self.others.iter().enumerate() {
            out.strides[i] = window.strides[d];
        }
        out.strides[self.others.len()] = self.stride;
        out
    }

    /// The sums. Each tap is written into a row of `len + shift` zeros; read again as rows of `len`, each starts `shift` places behind the
    /// one above it, so that what is added up stands in one column.
    fn apply(&self, g: &Tensor) -> TensorResult<Tensor> {
        let (outer, taps, places, len) = (self.outer, self.taps, self.places, self.len());
        let row = len + self.shift;
        let order: SmallVec<[usize; 8]> = self.others.iter().copied().chain([self.tap, self.place]).collect();
        let g = g.permute(&order)?;
        let sizes: SmallVec<[usize; 8]> = g.dims()[..self.others.len()].iter().copied().chain([len]).collect();
        let g = g.reshape(&[outer, taps, places])?;
        let mut spread = Layout::contiguous(Shape::of(&[outer, taps, places]));
        (spread.strides[0], spread.strides[1], spread.strides[2]) = ((taps * row) as isize, row as isize, self.step as isize);
        let meta = Meta { dtype: g.dtype(), shape: Shape::of(&[outer, taps * row]) };
        let rows = windows(meta, vec![(spread, g.clone())], g.node.at)?;
        let columns = rows.narrow(1, 0, taps * len)?.reshape(&[outer, taps, len])?;
        let sum = if taps <= MAX_ADDED_TAPS {
            let mut sum = columns.narrow(1, 0, 1)?;
            for t in 1..taps {
                sum = sum.add(&columns.narrow(1, t, 1)?)?;
            }
            sum
        } else {
            columns.sum(&[1], false)?
        };
        sum.reshape(&sizes)
    }
}

fn gcd(a: isize, b: isize) -> isize {
    if b == 0 { a } else { gcd(b, a % b) }
}
