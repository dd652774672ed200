//! Runs a plan: binds its inputs, gives its results memory, submits it, and stores the values in their nodes.

use super::evaluator::{Evaluator, Lock, Recorded, base, record_if_asked};
use crate::backends::{Backend, Buffer};
use crate::compile::Compiled;
use crate::cpu_fallback::{self, Purpose};
use crate::device::Device;
use crate::error::{TensorError, TensorResult};
use crate::events::{self, SpanKind, span};
use crate::plan::{Buf, Plan};
use crate::tensor::{Inputs, Tensor, release};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// Nodes of one evaluation; more are evaluated in parts.
const MAX_EVALUATION_NODES: usize = 20_000;

/// Passes of a defragmentation at most.
const MAX_PASSES: usize = 3;

/// Nodes of an evaluation up to which its successors are not all timed.
const UNTIMED_MAX_NODES: usize = 16;

/// Computes and stores the values of these tensors in one evaluation: one plan, one submit. Tensors of several devices are
/// evaluated device by device.
///
/// # Errors
/// Device failures only: shapes and dtypes were checked when the graph was built.
///
/// ```
/// # use tensorlogic::prelude::*;
/// let x = Tensor::new(&[1.0, 2.0], &Device::cpu())?;
/// let (sum, squares) = (x.sum_all()?, x.square()?);
/// eval_all(&[&sum, &squares])?;
/// assert!(sum.explain()?.is_empty() && squares.explain()?.is_empty()); // nothing is left to compute
/// assert_eq!((sum.item()?, squares.to_vec()?), (3.0, vec![1.0, 4.0]));
/// # Ok::<(), TensorError>(())
/// ```
pub fn eval_all(tensors: &[&Tensor]) -> TensorResult<()> {
    eval_for(tensors, Purpose::Keep)
}

pub(super) fn eval_for(tensors: &[&Tensor], purpose: Purpose) -> TensorResult<()> {
    if let [only] = tensors {
        return if base(only).0.stored.get().is_none() { eval_decided(only.device(), tensors, purpose) } else { Ok(()) };
    }
    let mut rest: Vec<&Tensor> = tensors.iter().copied().filter(|t| base(t).0.stored.get().is_none()).collect();
    while let Some(first) = rest.first() {
        let device = first.device().clone();
        let (own, other): (Vec<&Tensor>, Vec<&Tensor>) = rest.iter().partition(|t| *t.device() == device);
        eval_decided(&device, &own, purpose)?;
        rest = other;
    }
    Ok(())
}

/// Evaluates tensors of one device, where it is faster.
fn eval_decided(device: &Device, roots: &[&Tensor], purpose: Purpose) -> TensorResult<()> {
    if !eval_on(device, roots, purpose)? {
        // Whether the host would be faster is not known yet.
        if device.crossover().is_err() {
            device.set_adaptive(false);
        }
        eval_on(device, roots, purpose)?;
    }
    Ok(())
}

/// Evaluates tensors of one device. Returns false, without doing anything, if deciding where to run needs a measurement.
pub(crate) fn eval_on(device: &Device, roots: &[&Tensor], purpose: Purpose) -> TensorResult<bool> {
    let mut dead;
    let mut before = None;
    let after;
    {
        let _span = span(SpanKind::Evaluation);
        let mut lock = Lock::of(device);
        let e = lock.get();
        // Asking for the time twice takes as long as an operation of a small graph does.
        let timed = e.small < 64 || e.small % 64 == 0;
        let mut start = timed.then(Instant::now);
        let key = {
            let _span = span(SpanKind::Collect);
            e.collect(roots)
        };
        if e.order.len() > UNTIMED_MAX_NODES {
            e.small = 0;
            start.get_or_insert_with(Instant::now);
        } else {
            e.small += 1;
        }
        if e.order.len() > MAX_EVALUATION_NODES {
            let cut = e.cut(roots);
            if !cut.is_empty() && cut.len() < e.order.len() / 4 {
                events::evaluation_split(e.order.len());
                e.order.clear();
                drop(lock);
                eval_on(device, &cut.iter().collect::<Vec<_>>(), Purpose::Measure)?;
                return eval_on(device, roots, purpose);
            }
        }
        let misses = e.stats.misses;
        let compiled = e.plan(key, roots, device)?;
        let plan = &compiled.plan;
        let backend = device.backend();
        // SAFETY: collected under the lock that we hold.
        let bound: SmallVec<[Buffer; 4]> =
            e.stored.iter().flat_map(|&n| unsafe { &*n }.stored.get().into_iter().flatten().cloned()).collect();
        let on_host = match cpu_fallback::choose(device, &compiled, &bound, purpose) {
            Some(choice) => choice,
            None => {
                e.order.clear();
                return Ok(false);
            }
        };
        let host;
        let backend = if on_host {
            host = Device::cpu();
            host.backend()
        } else {
            backend
        };
        let mut outputs =
            allocate(backend, plan, purpose).or_else(|e| after_defragmenting(backend, e, || allocate(backend, plan, purpose)))?;
        if e.stats.misses == misses {
            before = start.map(|s| s.elapsed());
        }
        if on_host {
            events::ran_on_host(compiled.work.elements, compiled.work.ops);
            if !plan.steps.is_empty() {
                cpu_fallback::run(backend, plan, &bound, &outputs, &e.params)?;
            }
            outputs = outputs.into_iter().map(cpu_fallback::of_device).collect();
        } else {
            e.submit(backend, plan, &bound, &outputs, purpose)?;
        }
        after = before.map(|_| Instant::now());
        e.note_reads(roots, purpose);
        // SAFETY: collected under the lock that we hold; the roots keep the nodes alive.
        dead = unsafe { e.keep(&compiled, &bound, &outputs) };
        e.order.clear();
        if !on_host {
            record_if_asked(|| Recorded { compiled: compiled.clone(), params: e.params.clone(), bound: bound.into_vec() });
        }
        e.stats.evaluations += 1;
        e.stats.on_host += on_host as u64;
        e.stats.count_work(&compiled.work, 1);
        e.stats.nodes = compiled.nodes;
        e.stats.dispatches = plan.steps.len();
        e.stats.plans = e.plans.len();
        events::evaluated(compiled.nodes, plan.steps.len(), on_host);
        e.history.look(&e.stats, device);
        if e.stats.evaluations == 1 {
            crate::metrics::watch(device);
        }
    }
    release(&mut dead);
    if let Some((before, after)) = before.zip(after) {
        Lock::of(device).get().stats.overhead = before + after.elapsed();
    }
    Ok(true)
}

/// Tries once more what found no memory, after giving memory back. The caller holds the evaluator's lock.
fn after_defragmenting<T>(backend: &Arc<dyn Backend>, error: TensorError, again: impl FnOnce() -> TensorResult<T>) -> TensorResult<T> {
    match error {
        TensorError::OutOfMemory { .. } => backend.defragment(MAX_PASSES).and_then(|_| again()),
        error => Err(error),
    }
}

/// Memory for a plan's results; tells a memory recording what it is for.
fn allocate(backend: &Arc<dyn Backend>, plan: &Plan, purpose: Purpose) -> TensorResult<SmallVec<[Buffer; 2]>> {
    let mut outputs: SmallVec<[Buffer; 2]> = SmallVec::new();
    for o in &plan.outputs {
        outputs.push(if purpose == Purpose::Read { backend.alloc_result(o.bytes, o.dtype)? } else { backend.alloc(o.bytes)? });
    }
    if backend.pool().recording() {
        for (n, output) in outputs.iter().enumerate() {
            if let Some(step) = plan.writer(Buf::Output(n as u16)) {
                backend.label(output, step.name, step.at);
            }
        }
    }
    Ok(outputs)
}

impl Evaluator {
    /// Notes that the host reads these values, and whether this evaluation goes on from one that it read before.
    fn note_reads(&mut self, roots: &[&Tensor], purpose: Purpose) {
        let mut cut = None;
        for &n in &self.stored {
            // SAFETY: collected under the lock that the caller holds.
            let n = unsafe { &*n };
            if n.read.load(Relaxed) {
                n.read.store(false, Relaxed);
                cut = Some(n.at);
            }
        }
        if let Some(at) = cut {
            (self.stats.cut, self.cut_at) = (self.stats.cut + 1, cut);
            events::chain_cut(at.file(), at.line());
        }
        if purpose == Purpose::Read {
            self.stats.reads += 1;
            roots.iter().for_each(|root| base(root).0.read.store(true, Relaxed));
        }
    }

    /// Runs a plan on the device's own backend.
    fn submit(
        &self,
        backend: &Arc<dyn Backend>,
        plan: &Arc<Plan>,
        bound: &[Buffer],
        outputs: &[Buffer],
        purpose: Purpose,
    ) -> TensorResult<()> {
        if !plan.steps.is_empty() {
            if matches!(purpose, Purpose::Read | Purpose::Copy) {
                backend.defer_submit();
            }
            let run = || backend.run(plan, bound, outputs, &self.params);
            // What runs on the host may have begun to write in place before a kernel finds no memory.
            let begun = backend.capabilities().host_memory && plan.inputs.iter().any(|i| i.written);
            run().or_else(|e| if begun { Err(e) } else { after_defragmenting(backend, e, run) })?;
        }
        if backend.pool().recording() {
            // Values that were in host memory until now.
            for &n in &self.stored {
                // SAFETY: collected under the lock that the caller holds.
                let n = unsafe { &*n };
                n.stored.get().into_iter().flatten().filter(|b| b.is_resident()).for_each(|b| backend.label(b, "upload", n.at));
            }
        }
        Ok(())
    }

    /// Stores an evaluation's values in their nodes; gives the inputs that are no longer needed, to be released without the lock.
    ///
    /// # Safety
    /// The nodes of `order` were collected under the lock that the caller holds, and its roots keep them alive.
    unsafe fn keep(&self, compiled: &Compiled, bound: &[Buffer], outputs: &[Buffer]) -> Inputs {
        let mut dead = Inputs::new();
        for (at, bufs) in &compiled.kept {
            // SAFETY: as the caller promises.
            let n = unsafe { &*self.order[*at as usize] };
            let value = bufs
                .iter()
                .map(|b| match *b {
                    Buf::Input(i) => bound[i as usize].clone(),
                    Buf::Output(i) => outputs[i as usize].clone(),
                    Buf::Slot(_) | Buf::Window { .. } | Buf::Iota => unreachable!("kept values outlive the run"),
                })
                .collect();
            let _ = n.stored.set(value);
        }
        for &n in &self.order {
            // SAFETY: as above.
            let n = unsafe { &*n };
            if n.stored.get().is_none() {
                n.visited.store(true, Relaxed);
            }
        }
        // Only now may inputs go: nodes of `order` may be alive only through them.
        for (at, _) in &compiled.kept {
            // SAFETY: as above; stored nodes are not views.
            let n = unsafe { &*self.order[*at as usize] };
            if !n.tracked || n.inputs_freed.load(Relaxed) {
                // SAFETY: as above.
                let mut inputs = std::mem::take(unsafe { n.inputs() });
                if dead.is_empty() {
                    dead = inputs;
                } else {
                    dead.append(&mut inputs);
                }
            }
        }
        dead
    }
}
