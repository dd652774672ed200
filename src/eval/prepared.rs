//! Steps that are prepared once and run again without a graph: a plan, what it is bound to, and which of that the caller gives anew.

use super::evaluator::{Lock, Recorded, base, recording};
use super::read::Download;
use super::run::eval_all;
use crate::backends::Buffer;
use crate::compile::Compiled;
use crate::error::{TensorError, TensorResult};
use crate::events;
use crate::tensor::{Meta, Tensor};
use smallvec::SmallVec;
use std::sync::Arc;

/// An evaluation that can be repeated. Several of them may write into the same tensors in turn, since none holds what is given to its runs.
pub(crate) struct PreparedStep {
    compiled: Arc<Compiled>,
    params: Vec<f64>,
    bound: Vec<Bound>,
    /// The result's shape and dtype, where it is not one of the given tensors.
    result: Option<Meta>,
}

/// Where a plan's input comes from.
enum Bound {
    /// The same in every run, as weights are.
    Fixed(Buffer),
    /// The tensor that is given in this place.
    Given(usize),
}

/// The memory of a stored tensor.
fn stored(t: &Tensor) -> TensorResult<&Buffer> {
    let (node, out) = base(t);
    let buffers = node.stored.get().ok_or_else(|| TensorError::Internal("a prepared step is given stored tensors only".into()))?;
    Ok(&buffers[out as usize])
}

impl PreparedStep {
    /// Evaluates `result`, which is pending, and keeps what ran. `given` are the tensors that later runs read or overwrite: stored ones that `result` is
    /// computed from, and pending ones that the evaluation writes in place.
    pub fn record(result: &Tensor, given: &[&Tensor]) -> TensorResult<PreparedStep> {
        let (done, recorded) = recording(|| eval_all(&[result]));
        done?;
        let Some(Recorded { compiled, params, bound }) = recorded else {
            return Err(TensorError::Internal("a step was not run by its device".into()));
        };
        let given: Vec<&Buffer> = given.iter().map(|t| stored(t)).collect::<TensorResult<_>>()?;
        let own = stored(result)?;
        let result = (!given.iter().any(|g| g.same(own))).then(|| Meta { dtype: result.dtype(), shape: *result.shape() });
        if compiled.plan.outputs.len() != usize::from(result.is_some()) {
            return Err(TensorError::Internal(format!("a step copies what it should write in place:\n{}", compiled.plan)));
        }
        let place = |b: Buffer| given.iter().position(|g| g.same(&b)).map_or(Bound::Fixed(b), Bound::Given);
        let bound = bound.into_iter().map(place).collect();
        Ok(PreparedStep { compiled, params, bound, result })
    }

    /// Runs it over these tensors in the places of those that it was recorded with; gives the result where it is none of them.
    #[track_caller]
    pub fn run(&self, given: &[&Tensor]) -> TensorResult<Option<Tensor>> {
        let at = std::panic::Location::caller();
        let Some(first) = given.first() else { return Err(TensorError::Internal("a prepared step without tensors".into())) };
        let device = first.device().clone();
        let (backend, plan) = (device.backend(), &self.compiled.plan);
        let mut lock = Lock::of(&device);
        let bound: SmallVec<[Buffer; 64]> = self
            .bound
            .iter()
            .map(|b| match b {
                Bound::Fixed(b) => Ok(b.clone()),
                Bound::Given(n) => stored(given[*n]).cloned(),
            })
            .collect::<TensorResult<_>>()?;
        let outputs: SmallVec<[Buffer; 1]> = plan.outputs.iter().map(|o| backend.alloc(o.bytes)).collect::<TensorResult<_>>()?;
        backend.run(plan, &bound, &outputs, &self.params)?;
        let e = lock.get();
        e.stats.evaluations += 1;
        e.stats.hits += 1;
        e.stats.repeats += 1;
        e.stats.count_work(&self.compiled.work, 1);
        e.stats.nodes = self.compiled.nodes;
        e.stats.dispatches = plan.steps.len();
        events::replayed(1);
        drop(lock);
        let result = self.result.zip(outputs.into_iter().next());
        Ok(result.map(|(meta, buffer)| Tensor::leaf(&device, meta, buffer, "prepared", at)))
    }
}

/// Starts the copy of the first `count` elements of a stored tensor.
pub(crate) fn download_first(t: &Tensor, count: usize) -> TensorResult<Download> {
    let bytes = t.dtype().bytes(count).unwrap_or(0);
    let pending = t.device().backend().start_reads(&[(stored(t)?, 0, bytes)])?;
    Ok(Download { pending, dtype: t.dtype() })
}
