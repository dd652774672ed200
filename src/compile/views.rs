//! Views of views: a layout over a row-major space, seen through the layout of that space.

use crate::layout::Layout;
use crate::shape::{MAX_RANK, Shape};

/// `outer` picks elements of the row-major space of shape `space`, whose elements lie as `inner` says (`inner.shape` is `space`).
/// The layout that picks the same elements directly, or `None` where no strides can say so.
pub(crate) fn compose(outer: &Layout, space: &Shape, inner: &Layout) -> Option<Layout> {
    if outer.offset == 0 && outer.shape.count() == space.count() && outer.is_contiguous() {
        return inner.reshape(outer.shape);
    }
    if inner.is_contiguous() {
        return Some(Layout { offset: outer.offset + inner.offset, ..*outer });
    }
    if space.count() == 0 || outer.shape.count() == 0 {
        return Some(Layout { offset: 0, ..*outer });
    }
    let steps = Layout::contiguous(*space).strides;
    // Each dimension of `outer` must move along one dimension of `space` and stay inside it.
    let mut low = [0isize; MAX_RANK];
    let mut rest = outer.offset;
    for p in 0..space.rank() {
        low[p] = (rest / steps[p] as usize) as isize;
        rest %= steps[p] as usize;
    }
    let mut high = low;
    let mut out = Layout { shape: outer.shape, strides: [0; MAX_RANK], offset: 0 };
    let start: isize = (0..space.rank()).map(|p| low[p] * inner.strides[p]).sum();
    for d in 0..outer.shape.rank() {
        let (size, stride) = (outer.shape[d] as isize, outer.strides[d]);
        if size == 1 || stride == 0 {
            continue;
        }
        let p = (0..space.rank()).find(|&p| space[p] > 1 && steps[p] <= stride.abs() && stride % steps[p] == 0)?;
        let by = stride / steps[p];
        if by > 0 {
            high[p] += by * (size - 1)
        } else {
            low[p] += by * (size - 1)
        }
        if low[p] < 0 || high[p] >= space[p] as isize {
            return None;
        }
        out.strides[d] = by * inner.strides[p];
    }
    out.offset = (inner.offset as isize + start) as usize;
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with picking elements one by one.
    fn check(outer: Layout, inner: Layout, expect_some: bool) {
        let got = compose(&outer, &inner.shape, &inner);
        assert_eq!(got.is_some(), expect_some, "{outer:?} over {inner:?}");
        if let Some(got) = got {
            for i in 0..outer.shape.count() {
                assert_eq!(got.at(i), inner.at(outer.at(i)), "{outer:?} over {inner:?} at {i}");
            }
        }
    }

    #[test]
    fn equals_two_look_ups() {
        let c = |d: &[usize]| Layout::contiguous(Shape::of(d));
        let inner = c(&[4, 3, 6]).permute(&[2, 0, 1]);
        check(c(&[6, 4, 3]).permute(&[1, 0, 2]), inner, true);
        check(c(&[6, 4, 3]).slice(0, 5, 3, -2), inner, true);
        check(c(&[6, 4, 3]).slice(1, 1, 2, 2).permute(&[2, 1, 0]), inner, true);
        check(c(&[6, 2, 2, 3]), inner, true);
        check(c(&[24, 3]).slice(0, 2, 5, 1), inner, false);
        check(c(&[72]), inner, false);
        check(c(&[6, 1, 1]).broadcast_to(Shape::of(&[6, 4, 3])), c(&[2, 3]).permute(&[1, 0]).reshape(Shape::of(&[3, 2])).unwrap(), false);
        check(c(&[6, 4, 3]).slice(0, 5, 6, -1), inner, true);
    }
}
