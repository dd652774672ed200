//! Plans made ready to run: what each step needs that does not change between runs, and its operands bound to the memory of one run.

use super::compile;
use super::map::Compiled;
use super::span::{AddressRange, StridedView};
use crate::backends::stages::{Stage, enter};
use crate::error::{TensorError, TensorResult};
use crate::plan::{Buf, IdentityHasher, Load, Plan, Source, Step, Work};
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// Bytes moved that are worth a thread.
const BYTES_PER_THREAD: usize = 32 << 10;
/// Floating-point operations that are worth a thread.
const OPS_PER_THREAD: u64 = 250_000;
/// Prepared plans that may pile up before dead ones are looked for.
const PLANS_BEFORE_SWEEP: usize = 64;

/// Plans that were run before.
#[derive(Default)]
pub(super) struct PreparedPlans(HashMap<usize, (Weak<Plan>, Vec<PreparedStep>), IdentityHasher>);

impl PreparedPlans {
    /// What a plan's steps need, found once per plan.
    pub(super) fn of(&mut self, plan: &Arc<Plan>) -> TensorResult<&[PreparedStep]> {
        let (plans, key) = (&mut self.0, Arc::as_ptr(plan) as usize);
        if plans.get(&key).is_none_or(|(known, _)| known.strong_count() == 0) {
            if plans.len() >= PLANS_BEFORE_SWEEP {
                plans.retain(|_, (plan, _)| plan.strong_count() > 0);
            }
            let _stage = enter(Stage::Compile);
            let steps = plan.steps.iter().map(prepare).collect::<TensorResult<_>>()?;
            plans.insert(key, (Arc::downgrade(plan), steps));
        }
        Ok(&plans[&key].1)
    }
}

/// A step as prepared once for its plan.
pub(super) struct PreparedStep {
    pub loads: Vec<Compiled>,
    pub stores: Vec<Compiled>,
    pub map: Option<Compiled>,
    /// The most threads that the step's size is worth.
    pub threads: usize,
    /// Bytes of registers that the step's programs need.
    pub registers: usize,
    /// The step's operands: the sources of each load (a map's sources come as one load), the sources of each store, the targets.
    pub operands: Vec<BoundOperand>,
    /// Where each of these groups ends.
    pub ends: Vec<usize>,
}

/// Which source of its step an operand is.
pub(super) struct BoundOperand {
    pub role: Role,
    pub reach: AddressRange,
}

#[derive(Clone, Copy)]
pub(super) enum Role {
    /// A load's source.
    Load(usize, usize),
    /// A store's source.
    Store(usize, usize),
    /// A store's target.
    Target(usize),
}

impl Role {
    pub(super) fn source(self, step: &Step) -> &Source {
        match self {
            Role::Load(l, k) => &step.loads[l].sources[k],
            Role::Store(s, k) => &step.stores[s].sources[k],
            Role::Target(s) => &step.stores[s].target,
        }
    }
}

/// What a step needs.
fn prepare(step: &Step) -> TensorResult<PreparedStep> {
    if step.stores.iter().any(|s| s.program.has(crate::scalar::Prim::SwapPair)) {
        return Err(TensorError::Unsupported(format!("{}: a step that was fused for a GPU, on the CPU", step.name)));
    }
    let loads: Vec<Compiled> = step.loads.iter().map(compile::load).collect();
    let mut groups: Vec<Vec<Role>> = Vec::new();
    let (stores, map) = match &step.work {
        Work::Map => {
            let (code, sources) = compile::map(step);
            groups.push(sources.into_iter().map(|(s, k)| Role::Store(s, k)).collect());
            (Vec::new(), Some(code))
        }
        Work::Kernel(_) => {
            groups.extend(step.loads.iter().enumerate().map(|(l, load)| (0..load.sources.len()).map(|k| Role::Load(l, k)).collect()));
            groups.extend(step.stores.iter().enumerate().map(|(s, store)| (0..store.sources.len()).map(|k| Role::Store(s, k)).collect()));
            (step.stores.iter().map(compile::store).collect(), None)
        }
    };
    groups.push((0..step.stores.len()).map(Role::Target).collect());
    let ends = groups.iter().scan(0, |end, g| {
        *end += g.len();
        Some(*end)
    });
    let ends = ends.collect();
    let operands = groups.into_iter().flatten().map(|role| {
        let reach = AddressRange::of(&role.source(step).layout).ok_or_else(|| outside(step, role))?;
        Ok(BoundOperand { role, reach })
    });
    let operands: Vec<BoundOperand> = operands.collect::<TensorResult<_>>()?;
    let threads = worth(step, map.as_ref(), &operands).max(1);
    let registers = loads.iter().chain(&stores).chain(&map).map(Compiled::scratch).max().unwrap_or(0);
    Ok(PreparedStep { loads, stores, map, threads, registers, operands, ends })
}

/// How many threads a step's size is worth.
fn worth(step: &Step, map: Option<&Compiled>, operands: &[BoundOperand]) -> usize {
    let bytes_of = |source: &Source| source.layout.shape.count() / source.dtype.block() * source.dtype.block_bytes();
    let stored: usize = step.stores.iter().map(|s| s.shape.count() * s.target.dtype.block_bytes()).sum();
    match (&step.work, map) {
        (Work::Kernel(kernel), _) => {
            let ops = kernel.ops(step);
            // A gather's table is mostly left alone: no more is read than the operations could use.
            let read = |l: &Load| (l.sources.iter().map(bytes_of).sum::<usize>() as u64).min(ops.saturating_mul(8));
            let moved = stored as u64 + step.loads.iter().map(read).sum::<u64>();
            usize::try_from((ops / OPS_PER_THREAD).max(moved / BYTES_PER_THREAD as u64)).unwrap_or(usize::MAX)
        }
        (Work::Map, map) => {
            let moved: usize = operands.iter().map(|o| bytes_of(o.role.source(step))).sum();
            let count = step.stores.first().map_or(0, |s| s.shape.count());
            (moved / BYTES_PER_THREAD).max(count * map.map_or(0, Compiled::cost) / (8 * BYTES_PER_THREAD))
        }
    }
}

fn outside(step: &Step, role: Role) -> TensorError {
    let layout = &role.source(step).layout;
    let message = format!("a window of {} at an offset of {} does not lie within its buffer", layout.shape, layout.offset);
    TensorError::Index { op: step.name, message, at: step.at }
}

/// The address and the size of a bound buffer.
#[derive(Clone, Copy)]
pub(super) struct Place(pub *mut u8, pub usize);

impl Place {
    /// The part from byte `start` on, of at most so many bytes; `None` beyond the end.
    pub fn part(self, start: usize, bytes: usize) -> Option<Place> {
        let rest = self.1.checked_sub(start)?;
        Some(Place(self.0.wrapping_add(start), rest.min(bytes)))
    }
}

/// Binds the operands of all steps to memory and checks that they lie within it.
pub(super) fn bind<'a>(
    plan: &'a Plan,
    prepared: &[PreparedStep],
    place: &dyn Fn(Buf) -> Option<Place>,
    params: &[f64],
) -> TensorResult<Vec<StridedView<'a>>> {
    let mut views: Vec<StridedView<'a>> = Vec::with_capacity(prepared.iter().map(|p| p.operands.len()).sum());
    for (step, prepared) in plan.steps.iter().zip(prepared) {
        let first = views.len();
        for operand in &prepared.operands {
            let source = operand.role.source(step);
            let start = match source.offset {
                None => Some(0.0),
                Some(p) => params.get(p as usize).copied(),
            };
            let view = place(source.buf)
                .zip(start)
                .and_then(|(Place(base, bytes), start)| StridedView::new(base, bytes, source.dtype, &source.layout, &operand.reach, start));
            views.push(view.ok_or_else(|| outside(step, operand.role))?);
        }
        let reads = prepared.operands.len() - step.stores.len();
        let (read, written) = views[first..].split_at_mut(reads);
        let (reading, writing) = prepared.operands.split_at(reads);
        for (t, target) in written.iter_mut().zip(writing) {
            t.apart = !read.iter().zip(reading).any(|(s, source)| s.may_overlap(&source.reach, t, &target.reach));
        }
    }
    Ok(views)
}
