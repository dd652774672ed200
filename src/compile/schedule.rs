//! Order: a step that only fills a place which is there anyway (a result, a window of a larger buffer) moves up to where its operands are
//! ready, and what computes an operand for it alone moves with it, so that nothing waits in memory: the gradients of weights come right
//! after those of what they were multiplied with.

use super::fuse::Steps;
use crate::plan::{Buf, Source, Step};
use std::collections::{HashMap, HashSet};

/// The steps that read a buffer and those that write it, with the elements that each touches.
#[derive(Default)]
struct Accesses {
    reads: Vec<(usize, Option<(isize, isize)>)>,
    writes: Vec<(usize, Option<(isize, isize)>)>,
}

/// The first and the last element that an operand touches; `None` where that is not known before the run.
fn range(s: &Source) -> Option<(isize, isize)> {
    if s.offset.is_some() {
        return None;
    }
    let at = s.layout.offset as isize;
    let steps = || s.layout.shape.iter().zip(s.layout.strides()).map(|(&n, &st)| (n as isize - 1).max(0) * st);
    Some((at + steps().map(|d| d.min(0)).sum::<isize>(), at + steps().map(|d| d.max(0)).sum::<isize>()))
}

fn meet(a: Option<(isize, isize)>, b: Option<(isize, isize)>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a.0 <= b.1 && b.0 <= a.1,
        _ => true,
    }
}

/// The operands of a step, with whether it writes them.
fn operands(s: &Step) -> impl Iterator<Item = (&Source, bool)> {
    let reads = s.loads.iter().flat_map(|l| &l.sources).chain(s.stores.iter().flat_map(|t| &t.sources));
    reads.map(|r| (r, false)).chain(s.stores.iter().map(|t| (&t.target, true)))
}

impl Steps {
    /// Moves steps up. `kept` says which values outlive the run.
    pub fn schedule_for_memory(&mut self, kept: impl Fn(usize) -> bool) {
        let count = self.list.len();
        // What must come before each step, and who reads and writes each value.
        let mut before: Vec<Vec<usize>> = Vec::with_capacity(count);
        let mut accesses: HashMap<Buf, Accesses> = HashMap::new();
        let (mut readers, mut writers) = (vec![Vec::new(); self.values.len()], vec![Vec::new(); self.values.len()]);
        for (i, s) in self.list.iter().enumerate() {
            let mut list: Vec<usize> = Vec::new();
            for (x, writes) in operands(s) {
                let here = range(x);
                if let Some(others) = accesses.get(&self.home(x.buf)) {
                    let reads = if writes { &others.reads[..] } else { &[] };
                    list.extend(others.writes.iter().chain(reads).filter(|a| meet(a.1, here)).map(|a| a.0));
                }
            }
            list.sort_unstable();
            list.dedup();
            before.push(list);
            for (x, writes) in operands(s) {
                if x.buf != Buf::Iota {
                    let list = accesses.entry(self.home(x.buf)).or_default();
                    if writes { &mut list.writes } else { &mut list.reads }.push((i, range(x)));
                }
                if let Buf::Slot(v) = x.buf {
                    let list: &mut Vec<usize> = if writes { &mut writers[v as usize] } else { &mut readers[v as usize] };
                    if list.last() != Some(&i) {
                        list.push(i);
                    }
                }
            }
        }
        let lasting = |v: usize| self.values[v].bound.is_some() || kept(v);
        // The step that computes a value for this one alone.
        let own = |i: usize, x: &Source| match x.buf {
            Buf::Slot(v) if !lasting(v as usize) && readers[v as usize] == [i] => match writers[v as usize][..] {
                [w] if w < i && self.list[w].stores.len() == 1 => Some(w),
                _ => None,
            },
            _ => None,
        };
        // For each step the step that it follows: itself where it stays.
        let mut anchors: Vec<usize> = (0..count).collect();
        let mut behind: Vec<Vec<usize>> = vec![Vec::new(); count];
        for (i, s) in self.list.iter().enumerate() {
            let fills = s.stores.iter().all(|t| match t.target.buf {
                Buf::Slot(v) => {
                    let part = || t.target.dtype.bytes(t.shape.count()).is_some_and(|bytes| bytes < self.values[v as usize].bytes);
                    lasting(v as usize) || part()
                }
                _ => false,
            });
            if !fills {
                continue;
            }
            let mut group: HashSet<usize> = HashSet::from([i]);
            let mut open = vec![i];
            while let Some(m) = open.pop() {
                for (x, writes) in operands(&self.list[m]) {
                    if let Some(w) = own(m, x).filter(|&w| !writes && anchors[w] == w) {
                        if group.insert(w) {
                            open.push(w);
                        }
                    }
                }
            }
            let others = group.iter().flat_map(|&m| &before[m]).filter(|d| !group.contains(d));
            let Some(anchor) = others.map(|&d| anchors[d]).max() else { continue };
            // A member that stands there already stays.
            let mut moved: Vec<usize> = group.into_iter().filter(|&m| m > anchor).collect();
            moved.sort_unstable();
            for m in moved {
                anchors[m] = anchor;
                behind[anchor].push(m);
            }
        }
        let mut old: Vec<Option<Step>> = std::mem::take(&mut self.list).into_iter().map(Some).collect();
        for i in 0..count {
            if anchors[i] == i {
                self.list.extend(old[i].take());
                for &j in &behind[i] {
                    self.list.extend(old[j].take());
                }
            }
        }
    }
}
