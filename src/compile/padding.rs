//! Rows of intermediates padded to whole memory transactions, and off the multiples of 4 KiB, which fall into the same sets of a cache.

use super::Graph;
use super::fuse::Steps;
use crate::layout::Layout;
use crate::plan::{Buf, Source, Step, Work};
use crate::shape::{MAX_RANK, Shape};

/// Rows that lie a multiple of this many bytes apart share sets of a cache.
const ALIASING: usize = 4096;

/// Pads the rows of the values that take memory for the run (`slots`) that only elementwise steps touch, which can take the strides. `line` is the bytes of one
/// memory transaction. Gives how many values were padded.
pub(super) fn pad_rows(steps: &mut Steps, slots: &[bool], graph: &Graph, line: usize) -> usize {
    // Of each value the elements of a row and from row to row.
    let mut rows: Vec<Option<(usize, usize)>> = vec![None; steps.values.len()];
    for (v, value) in steps.values.iter().enumerate().filter(|(v, _)| slots[*v]) {
        let Some((node, out)) = value.of else { continue };
        let shape = graph.nodes[node as usize].meta(out).shape;
        let size = value.dtype.block_bytes();
        let Some(&columns) = shape.dims().last().filter(|&&c| c > 1 && shape.count() > c && value.dtype.block() == 1) else { continue };
        let mut pitch = (columns * size).next_multiple_of(line.max(size));
        if pitch.is_multiple_of(ALIASING) {
            pitch += line;
        }
        rows[v] = (pitch != columns * size && pitch.is_multiple_of(size)).then_some((columns, pitch / size));
    }
    // A kernel may add in another order where an operand has gaps; elementwise steps give the same bits for any strides.
    for step in steps.list.iter_mut().filter(|s| matches!(s.work, Work::Kernel(_))) {
        each(step, |s| {
            if let Buf::Slot(v) = s.buf {
                rows[v as usize] = None;
            }
        });
    }
    for step in &mut steps.list {
        each(step, |s| {
            if let Buf::Slot(v) = s.buf {
                let row = &mut rows[v as usize];
                *row = row.filter(|&(columns, pitch)| s.offset.is_none() && padded(&s.layout, columns, pitch).is_some());
            }
        });
    }
    for step in &mut steps.list {
        each(step, |s| {
            if let Buf::Slot(v) = s.buf {
                if let Some((columns, pitch)) = rows[v as usize] {
                    s.layout = padded(&s.layout, columns, pitch).expect("just asked");
                }
            }
        });
    }
    for (value, row) in steps.values.iter_mut().zip(&rows) {
        if let Some((columns, pitch)) = row {
            value.bytes = value.bytes / columns * pitch;
        }
    }
    rows.iter().flatten().count()
}

fn each(step: &mut Step, mut f: impl FnMut(&mut Source)) {
    step.loads.iter_mut().flat_map(|l| &mut l.sources).for_each(&mut f);
    for store in &mut step.stores {
        store.sources.iter_mut().for_each(&mut f);
        f(&mut store.target);
    }
}

/// A layout over rows of `columns` elements as it is over rows that lie `pitch` elements apart; `None` where it crosses the ends of rows other
/// than by whole rows.
fn padded(layout: &Layout, columns: usize, pitch: usize) -> Option<Layout> {
    let simple = layout.simplified();
    let (row, column) = (simple.offset / columns, (simple.offset % columns) as isize);
    // The first and the last column that is touched.
    let (mut first, mut last) = (column, column);
    let mut dims: Vec<(usize, isize)> = Vec::new();
    let rows_of = |stride: isize| stride / columns as isize * pitch as isize;
    for (&n, &stride) in simple.shape.iter().zip(simple.strides()) {
        let reach = (n as isize - 1) * stride;
        let whole = (columns as isize).checked_rem(stride).is_some_and(|r| r == 0).then(|| columns / stride.unsigned_abs());
        if stride % columns as isize == 0 {
            dims.push((n, rows_of(stride)));
        } else if reach.unsigned_abs() < columns {
            (first, last) = (first + reach.min(0), last + reach.max(0));
            dims.push((n, stride));
        } else {
            // Whole rows, one behind the other.
            let inner = whole.filter(|&w| stride > 0 && n % w == 0)?;
            last += (inner as isize - 1) * stride;
            dims.extend([(n / inner, pitch as isize), (inner, stride)]);
        }
    }
    if first < 0 || last >= columns as isize || dims.len() > MAX_RANK {
        return None;
    }
    let (sizes, steps): (Vec<usize>, Vec<isize>) = dims.into_iter().unzip();
    let mut strides = [0; MAX_RANK];
    strides[..steps.len()].copy_from_slice(&steps);
    Some(Layout { shape: Shape::of(&sizes), strides, offset: row * pitch + column as usize })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padded_layouts_name_the_same_elements() {
        let (columns, pitch) = (6, 8);
        let over = |dims: &[usize]| Layout::contiguous(Shape::of(dims));
        let kinds = [
            over(&[24]),
            over(&[4, 6]),
            over(&[2, 2, 6]).permute(&[2, 0, 1]),
            over(&[4, 6]).slice(1, 5, 6, -1),
            over(&[4, 6]).slice(1, 1, 3, 2).slice(0, 3, 2, -2),
            over(&[4, 3, 2]).permute(&[1, 0, 2]),
            over(&[12, 2]).slice(1, 1, 1, 1),
        ];
        for layout in kinds {
            let p = padded(&layout, columns, pitch).unwrap_or_else(|| panic!("{layout:?} can be padded"));
            assert_eq!(p.shape.count(), layout.shape.count());
            for i in 0..layout.shape.count() {
                let at = layout.at(i);
                assert_eq!(p.at(i), at / columns * pitch + at % columns, "element {i} of {layout:?}");
            }
        }
        // Windows over the end of a row are of no stride.
        assert!(padded(&Layout { offset: 3, ..over(&[6]) }, columns, pitch).is_none());
        assert!(padded(&over(&[8]), columns, pitch).is_none());
    }
}
