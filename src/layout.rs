//! Where the elements of a view lie in a buffer: sizes, strides (also 0 and negative) and an offset, all in elements.

use crate::shape::{MAX_RANK, Shape};

/// Strides and offset of a view over a buffer, in elements.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Layout {
    /// The view's sizes.
    pub shape: Shape,
    /// Elements to step per dimension; 0 repeats, negative runs backwards.
    pub strides: [isize; MAX_RANK],
    /// The first element.
    pub offset: usize,
}

impl Layout {
    /// Row-major, from element 0.
    pub fn contiguous(shape: Shape) -> Layout {
        let mut strides = [0; MAX_RANK];
        let mut step = 1isize;
        for i in (0..shape.rank()).rev() {
            strides[i] = step;
            step *= shape[i].max(1) as isize;
        }
        Layout { shape, strides, offset: 0 }
    }

    /// The strides of the view's dimensions.
    pub fn strides(&self) -> &[isize] {
        &self.strides[..self.shape.rank()]
    }

    /// Whether elements follow each other in row-major order (from any offset).
    pub fn is_contiguous(&self) -> bool {
        let mut step = 1isize;
        for i in (0..self.shape.rank()).rev() {
            if self.shape[i] != 1 {
                if self.strides[i] != step {
                    return self.shape.count() <= 1;
                }
                step *= self.shape[i] as isize;
            }
        }
        true
    }

    /// Dimensions reordered: dimension `i` of the result is dimension `order[i]` of `self`.
    pub fn permute(&self, order: &[usize]) -> Layout {
        let mut out = *self;
        let mut dims = [1; MAX_RANK];
        for (i, &o) in order.iter().enumerate() {
            dims[i] = self.shape[o];
            out.strides[i] = self.strides[o];
        }
        out.shape = Shape::of(&dims[..order.len()]);
        out
    }

    /// Elements `start, start + step, …` (`len` of them) of dimension `dim`; a negative step runs backwards.
    pub fn slice(&self, dim: usize, start: usize, len: usize, step: isize) -> Layout {
        let mut out = *self;
        if len > 0 {
            out.offset = (out.offset as isize + start as isize * self.strides[dim]) as usize;
        }
        out.strides[dim] *= step;
        out.shape = out.shape.with(dim, len);
        out
    }

    /// Broadcast to `shape`: dimensions of size 1, and new leading ones, are repeated. The caller has checked the shape.
    pub fn broadcast_to(&self, shape: Shape) -> Layout {
        let lead = shape.rank() - self.shape.rank();
        let mut strides = [0; MAX_RANK];
        for i in 0..self.shape.rank() {
            strides[i + lead] = if self.shape[i] == 1 && shape[i + lead] != 1 { 0 } else { self.strides[i] };
        }
        Layout { shape, strides, offset: self.offset }
    }

    /// These elements in row-major order with another shape of equal element count, or `None` if that needs a copy.
    pub fn reshape(&self, shape: Shape) -> Option<Layout> {
        if self.shape.count() == 0 || shape.count() == 0 {
            return Some(Layout { offset: self.offset, ..Layout::contiguous(shape) });
        }
        // Walk both shapes in groups of equal count; the old dimensions of a group must step as one.
        let old: smallvec::SmallVec<[(usize, isize); 8]> =
            self.shape.iter().zip(self.strides()).filter(|(d, _)| **d != 1).map(|(&d, &s)| (d, s)).collect();
        let mut out = Layout { shape, strides: [0; MAX_RANK], offset: self.offset };
        let (mut i, mut j) = (0, 0);
        while i < old.len() {
            let (first_old, first_new) = (i, j);
            let (mut n_old, mut n_new) = (old[i].0, 1);
            i += 1;
            while n_new != n_old {
                if n_new < n_old {
                    n_new *= shape[j];
                    j += 1;
                } else {
                    n_old *= old[i].0;
                    i += 1;
                }
            }
            if old[first_old..i].windows(2).any(|w| w[0].1 != w[1].1 * w[1].0 as isize) {
                return None;
            }
            let mut step = old[i - 1].1;
            for k in (first_new..j).rev() {
                out.strides[k] = step;
                step *= shape[k] as isize;
            }
        }
        Some(out)
    }

    /// The offset of the element with row-major index `i` in the view's shape.
    pub fn at(&self, mut i: usize) -> usize {
        let mut o = self.offset as isize;
        for d in (0..self.shape.rank()).rev() {
            let n = self.shape[d].max(1);
            o += (i % n) as isize * self.strides[d];
            i /= n;
        }
        o as usize
    }

    /// The layout with the fewest dimensions that gives the same elements in the same order: dimensions of size 1 are dropped, and
    /// adjacent dimensions that step as one are merged.
    pub fn simplified(&self) -> Layout {
        let mut dims: smallvec::SmallVec<[(usize, isize); 8]> = Default::default();
        for (&d, &s) in self.shape.iter().zip(self.strides()) {
            if d == 1 {
                continue;
            }
            match dims.last_mut() {
                Some((pd, ps)) if *ps == s * d as isize => {
                    *pd *= d;
                    *ps = s;
                }
                _ => dims.push((d, s)),
            }
        }
        let mut out = Layout { shape: Shape::SCALAR, strides: [0; MAX_RANK], offset: self.offset };
        let sizes: smallvec::SmallVec<[usize; 8]> = dims.iter().map(|d| d.0).collect();
        out.shape = Shape::of(&sizes);
        for (i, d) in dims.iter().enumerate() {
            out.strides[i] = d.1;
        }
        out
    }
}
