//! Gives every value its buffer: bound inputs, results, and slots for the rest, in the order that was asked for (`plan::BufferOrder`).

use super::fuse::Steps;
use super::placement::{ALIGNMENT, Lifetime, Memory, Placement, best_fit, by_first_use, by_size, improve, most_live};
use super::{CompileOptions, Compiled, Graph, padding};
use crate::error::TensorResult;
use crate::plan::{Buf, BufferOrder, Input, Output, Plan, PlanMemory, Source, Step, WINDOW_UNIT};
use smallvec::SmallVec;
use std::collections::HashSet;
use std::sync::Arc;

/// The part of the bound that a plan may need beyond it before values share slots as windows, which makes kernels declare operands as written.
const SLACK_BEFORE_WINDOWS: usize = 50;

/// Bytes beyond the bound from which values share slots as windows: fewer are not worth kernels that declare what they read as written.
const MIN_WINDOW_SAVING: usize = 1 << 20;

/// The least bytes of a slot.
const SMALLEST_SLOT: usize = 16;

/// The plan of these steps.
pub(super) fn plan(
    mut steps: Steps,
    graph: &Graph,
    same: &[u32],
    mut inputs: Vec<Input>,
    options: &CompileOptions<'_>,
) -> TensorResult<Compiled> {
    let values = &steps.values;
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

    let slots: Vec<bool> = home.iter().map(Option::is_none).collect();
    let arranged = arrange(&mut steps, &slots, graph, options);
    let mut starts = vec![0; steps.values.len()];
    let places = &arranged.placement.places;
    let shared: HashSet<usize> = places.iter().filter(|p| options.windows && p.1 > 0).map(|p| p.0).collect();
    for (&v, &(slot, start)) in arranged.values.iter().zip(places) {
        let units = |bytes: usize| bytes.div_ceil(WINDOW_UNIT) as u32;
        home[v] = Some(match shared.contains(&slot) {
            true => Buf::Window { slot: slot as u16, start: units(start), units: units(steps.values[v].bytes.max(SMALLEST_SLOT)) },
            false => Buf::Slot(slot as u16),
        });
        starts[v] = if options.windows { 0 } else { start };
    }
    for s in &mut steps.list {
        let place = |src: &mut Source| {
            if let Buf::Slot(v) = src.buf {
                src.buf = home[v as usize].expect("every touched value has a home");
                src.layout.offset += starts[v as usize] / src.dtype.block_bytes() * src.dtype.block();
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
    let (slots, memory) = (arranged.placement.slots, arranged.memory);
    let plan = Plan { steps: steps.list, inputs, outputs, slots, params: graph.params, memory };
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

/// Steps in their order, with the values that take memory for the run and their places.
struct Arranged {
    values: Vec<usize>,
    placement: Placement,
    memory: PlanMemory,
}

/// The values that take memory for the run, in order of first use, and their lives.
fn lifetimes<'a>(steps: impl Iterator<Item = &'a Step>, bytes: &[usize], slots: &[bool]) -> (Vec<usize>, Vec<Lifetime>) {
    let mut number: Vec<Option<usize>> = vec![None; slots.len()];
    let (mut values, mut lives): (Vec<usize>, Vec<Lifetime>) = Default::default();
    for (i, step) in steps.enumerate() {
        each_source(step, |source| {
            let Buf::Slot(v) = source.buf else { return };
            let v = v as usize;
            if slots[v] {
                let n = *number[v].get_or_insert_with(|| {
                    values.push(v);
                    lives.push(Lifetime { bytes: bytes[v].max(SMALLEST_SLOT), first: i, last: i });
                    lives.len() - 1
                });
                lives[n].last = i;
            }
        });
    }
    (values, lives)
}

/// The sum of bytes times steps from the first to the last use.
fn held(lives: &[Lifetime]) -> u128 {
    lives.iter().map(|v| v.bytes as u128 * (v.last - v.first) as u128).sum()
}

/// The search of `Auto` over these lives: for whole slots, then, where these need far more than `bound`, for windows of them.
fn search(lives: &[Lifetime], known: Placement, bound: usize, options: &CompileOptions<'_>) -> (Placement, usize) {
    let memory = Memory { ranges: options.ranges.then_some(ALIGNMENT), leased: options.leased };
    let (whole, passes) = improve(lives, known, bound, memory);
    if !options.windows || whole.bytes() <= bound + (bound / SLACK_BEFORE_WINDOWS).max(MIN_WINDOW_SAVING) {
        return (whole, passes);
    }
    let (windows, more) = improve(lives, whole.clone(), bound, Memory { ranges: Some(WINDOW_UNIT), ..memory });
    // Many values in one slot can be more than a buffer holds.
    let placement = if windows.slots.iter().all(|&bytes| (options.fits)(bytes)) { windows } else { whole };
    (placement, passes + more)
}

/// Orders the steps and places their values. `slots` says which values take memory for the run.
fn arrange(steps: &mut Steps, slots: &[bool], graph: &Graph, options: &CompileOptions<'_>) -> Arranged {
    let memory = Memory { ranges: options.ranges.then_some(ALIGNMENT), leased: options.leased };
    let padded = if options.order == BufferOrder::Workgroup { padding::pad_rows(steps, slots, graph, options.line) } else { 0 };
    let bytes: Vec<usize> = steps.values.iter().map(|v| v.bytes).collect();
    let (values, lives) = lifetimes(steps.list.iter(), &bytes, slots);
    let mut passes = 0;
    // Steps in another order, and what follows from it.
    let moved = |steps: &Steps| {
        let order = steps.by_time(slots).filter(|o| o.iter().enumerate().any(|(n, &i)| n != i))?;
        let (values, lives) = lifetimes(order.iter().map(|&i| &steps.list[i]), &bytes, slots);
        Some((order, values, lives))
    };
    let bound = most_live(&lives);
    let program = best_fit(&lives);
    let mut best = (None, values, bound, Placement::default());
    best.3 = match options.order {
        BufferOrder::Spatial if options.ranges => by_first_use(&lives),
        BufferOrder::Size => by_size(&lives, memory),
        BufferOrder::Program | BufferOrder::Workgroup | BufferOrder::Spatial => program,
        BufferOrder::Temporal => {
            if let Some((order, values, other)) = moved(steps).filter(|m| (held(&m.2), most_live(&m.2)) < (held(&lives), bound)) {
                best = (Some(order), values, most_live(&other), Placement::default());
                best_fit(&other)
            } else {
                program
            }
        }
        BufferOrder::Auto => {
            let most = program.bytes();
            let (mut placement, ran) = search(&lives, program, bound, options);
            passes = ran + 1;
            if let Some((order, values, other)) = moved(steps).filter(|m| most_live(&m.2) < bound) {
                let bound = most_live(&other);
                let (found, ran) = search(&other, best_fit(&other), bound, options);
                let cost = |p: &Placement| (p.leased(memory), p.bytes());
                if found.bytes() <= most && cost(&found) < cost(&placement) {
                    (best, passes) = ((Some(order), values, bound, Placement::default()), ran + 1);
                    placement = found;
                }
            }
            placement
        }
    };
    let (order, values, most_live, placement) = best;
    let moved_steps = order.iter().flatten().enumerate().filter(|(n, i)| n != *i).count();
    if let Some(order) = order {
        let mut old: Vec<Option<Step>> = std::mem::take(&mut steps.list).into_iter().map(Some).collect();
        steps.list = order.into_iter().filter_map(|i| old[i].take()).collect();
    }
    Arranged { values, placement, memory: PlanMemory { order: options.order, most_live, passes, moved_steps, padded } }
}
