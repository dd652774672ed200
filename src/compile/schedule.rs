//! Order: a step that only fills a place which is there anyway (a result, a window of a larger buffer) moves up to where its operands are
//! ready, and what computes an operand for it alone moves with it, so that nothing waits in memory: the gradients of weights come right
//! after those of what they were multiplied with.

use super::fuse::Steps;
use crate::plan::{Buf, Source, Step};
use std::collections::{HashMap, HashSet};

/// Steps of a plan up to which `by_time` looks for their order; the time grows with their number times that of the steps that are ready.
const MAX_REORDERED_STEPS: usize = 2048;

/// The steps that read a buffer and those that write it, with the elements that each touches.
#[derive(Default)]
struct Accesses {
    reads: Vec<(usize, Option<(isize, isize)>)>,
    writes: Vec<(usize, Option<(isize, isize)>)>,
}

fn meet(a: Option<(isize, isize)>, b: Option<(isize, isize)>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a.0 <= b.1 && b.0 <= a.1,
        _ => true,
    }
}

/// The operands of a step, with whether it writes them.
fn operands(s: &Step) -> impl Iterator<Item = (&Source, bool)> {
    s.reads().map(|r| (r, false)).chain(s.stores.iter().map(|t| (&t.target, true)))
}

/// What limits the order of steps.
struct Constraints {
    /// The steps that must come before each step.
    before: Vec<Vec<usize>>,
    /// The steps that read each value, and those that write it.
    readers: Vec<Vec<usize>>,
    writers: Vec<Vec<usize>>,
}

impl Steps {
    fn constraints(&self) -> Constraints {
        let mut before: Vec<Vec<usize>> = Vec::with_capacity(self.list.len());
        let mut accesses: HashMap<Buf, Accesses> = HashMap::new();
        let (mut readers, mut writers) = (vec![Vec::new(); self.values.len()], vec![Vec::new(); self.values.len()]);
        for (i, s) in self.list.iter().enumerate() {
            let mut list: Vec<usize> = Vec::new();
            for (x, writes) in operands(s) {
                let here = x.range();
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
                    if writes { &mut list.writes } else { &mut list.reads }.push((i, x.range()));
                }
                if let Buf::Slot(v) = x.buf {
                    let list: &mut Vec<usize> = if writes { &mut writers[v as usize] } else { &mut readers[v as usize] };
                    if list.last() != Some(&i) {
                        list.push(i);
                    }
                }
            }
        }
        Constraints { before, readers, writers }
    }

    /// Moves steps up. `kept` says which values outlive the run.
    pub fn schedule_for_memory(&mut self, kept: impl Fn(usize) -> bool) {
        let count = self.list.len();
        let Constraints { before, readers, writers } = self.constraints();
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

    /// An order of steps in which values are read soon after they are written: always the step next that frees the most bytes and takes the
    /// fewest, of equal ones that whose operands are youngest. `slots` says which values take memory for the run. `None` where there are
    /// too many steps to choose from.
    pub fn by_time(&self, slots: &[bool]) -> Option<Vec<usize>> {
        let count = self.list.len();
        if count > MAX_REORDERED_STEPS {
            return None;
        }
        let before = self.constraints().before;
        let mut behind = vec![Vec::new(); count];
        before.iter().enumerate().for_each(|(i, list)| list.iter().for_each(|&b| behind[b].push(i)));
        let mut missing: Vec<usize> = before.iter().map(Vec::len).collect();
        // The values that take memory for the run which each step touches, and by how many steps each value is still to be touched.
        let touched = |s: &Step| {
            let slot = |(x, _): (&Source, bool)| if let Buf::Slot(v) = x.buf { slots[v as usize].then_some(v as usize) } else { None };
            let mut list: Vec<usize> = operands(s).filter_map(slot).collect();
            list.sort_unstable();
            list.dedup();
            list
        };
        let touched: Vec<Vec<usize>> = self.list.iter().map(touched).collect();
        let mut rest = vec![0usize; self.values.len()];
        touched.iter().flatten().for_each(|&v| rest[v] += 1);
        let mut since: Vec<Option<usize>> = vec![None; self.values.len()];
        let mut ready: Vec<usize> = (0..count).filter(|&i| missing[i] == 0).collect();
        let mut order = Vec::with_capacity(count);
        while !ready.is_empty() {
            let growth = |i: usize| {
                let of = |&v: &usize| {
                    let bytes = self.values[v].bytes as isize;
                    isize::from(since[v].is_none()) * bytes - isize::from(rest[v] == 1) * bytes
                };
                touched[i].iter().map(of).sum::<isize>()
            };
            let age = |i: usize| touched[i].iter().filter_map(|&v| since[v]).max().map_or(0, |at| at + 1);
            let next = (0..ready.len()).min_by_key(|&r| (growth(ready[r]), std::cmp::Reverse(age(ready[r])), ready[r]))?;
            let i = ready.swap_remove(next);
            for &v in &touched[i] {
                since[v].get_or_insert(order.len());
                rest[v] -= 1;
            }
            order.push(i);
            for &b in &behind[i] {
                missing[b] -= 1;
                if missing[b] == 0 {
                    ready.push(b);
                }
            }
        }
        (order.len() == count).then_some(order)
    }
}
