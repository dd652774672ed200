//! Lifetimes in, slots out: two values share a slot when their lives do not overlap.

use super::fuse::Steps;
use super::{Compiled, Graph};
use crate::error::TensorResult;
use crate::plan::{Buf, Input, Output, Plan, Source, Step};
use smallvec::SmallVec;
use std::sync::Arc;

/// Gives every value its buffer: bound inputs, results, and slots for the rest.
pub(super) fn plan(steps: Steps, graph: &Graph, same: &[u32], mut inputs: Vec<Input>) -> TensorResult<Compiled> {
    let Steps { mut list, values } = steps;
    let mut home: Vec<Option<Buf>> = values.iter().map(|v| v.bound.map(Buf::Input)).collect();
    let mut outputs = Vec::new();
    let mut kept = Vec::new();
    for (i, n) in graph.nodes.iter().enumerate() {
        let root = same[i] as usize;
        if !n.keep || n.bound.is_some() || n.is_view() {
            continue;
        }
        let mut bufs: SmallVec<[Buf; 1]> = SmallVec::new();
        for out in 0..n.node.metas.len() as u32 {
            let v = values.iter().position(|v| v.of == Some((root as u32, out))).expect("a kept value was emitted");
            let buf = *home[v].get_or_insert_with(|| {
                outputs.push(Output { dtype: values[v].dtype, bytes: values[v].bytes });
                Buf::Output(outputs.len() as u16 - 1)
            });
            if let Buf::Input(k) = buf {
                inputs[k as usize].written = true;
            }
            bufs.push(buf);
        }
        kept.push((i as u32, bufs));
    }

    // The last step that touches each value.
    let mut last = vec![0usize; values.len()];
    for (i, s) in list.iter().enumerate() {
        each_source(s, |src| {
            if let Buf::Slot(v) = src.buf {
                last[v as usize] = i;
            }
        });
    }
    let mut slots: Vec<usize> = Vec::new();
    let mut free: Vec<usize> = Vec::new();
    let mut holds: Vec<(usize, usize)> = Vec::new(); // (last step, slot)
    for i in 0..list.len() {
        holds.retain(|&(end, slot)| {
            if end < i {
                free.push(slot);
            }
            end >= i
        });
        let mut wanted: SmallVec<[usize; 4]> = SmallVec::new();
        each_source(&list[i], |src| {
            if let Buf::Slot(v) = src.buf {
                if home[v as usize].is_none() && !wanted.contains(&(v as usize)) {
                    wanted.push(v as usize);
                }
            }
        });
        for v in wanted {
            let bytes = values[v].bytes.max(16);
            let best = (0..free.len()).filter(|&f| slots[free[f]] >= bytes).min_by_key(|&f| slots[free[f]]);
            let slot = match best {
                Some(f) => free.swap_remove(f),
                // A free slot that is too small grows: slots are leased per run, so growing costs nothing.
                None => match (0..free.len()).max_by_key(|&f| slots[free[f]]) {
                    Some(f) => {
                        let s = free.swap_remove(f);
                        slots[s] = bytes;
                        s
                    }
                    None => {
                        slots.push(bytes);
                        slots.len() - 1
                    }
                },
            };
            holds.push((last[v], slot));
            home[v] = Some(Buf::Slot(slot as u16));
        }
    }
    for s in &mut list {
        let place = |src: &mut Source| {
            if let Buf::Slot(v) = src.buf {
                src.buf = home[v as usize].expect("every touched value has a home");
            }
            src.layout = src.layout.simplified();
        };
        for l in &mut s.loads {
            l.sources.iter_mut().for_each(place);
        }
        for st in &mut s.stores {
            st.sources.iter_mut().for_each(place);
            place(&mut st.target);
        }
    }
    let plan = Plan { steps: list, inputs, outputs, slots, params: graph.params };
    let work = plan.amount();
    Ok(Compiled { plan: Arc::new(plan), kept, nodes: graph.nodes.len(), work, growth: Default::default() })
}

fn each_source(s: &Step, mut f: impl FnMut(&Source)) {
    for l in &s.loads {
        l.sources.iter().for_each(&mut f);
    }
    for st in &s.stores {
        st.sources.iter().for_each(&mut f);
        f(&st.target);
    }
}
