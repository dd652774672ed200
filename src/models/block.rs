//! How a model's blocks are run: with a cache as they are, or, for training, keeping only their inputs.

use super::{KvCache, Pass, Projection};
use crate::error::{TensorError, TensorResult};
use crate::nn::{Module, checkpointed};
use crate::tensor::Tensor;
use std::sync::Arc;

/// A transformer block of a model.
pub(crate) trait Block: Clone + Send + Sync + 'static {
    /// What blocks of one pass read besides their inputs.
    type Context: Clone + Send + Sync + 'static;
    /// The residual stream after block number `i`.
    fn run(&self, i: usize, x: &Tensor, context: &Self::Context, cache: &mut KvCache) -> TensorResult<Tensor>;
    /// Its linear layers, which may have adapters.
    fn projections(&self) -> Vec<&Projection>;
}

/// Runs blocks, the first of which is number `first`, one after the other, from the residual stream `x` on.
pub(crate) fn run<B: Block>(
    blocks: &[B],
    first: usize,
    mut x: Tensor,
    context: &B::Context,
    pass: &mut Pass<'_>,
    cache: &mut KvCache,
) -> TensorResult<Tensor> {
    if pass.checkpoints() && cache.valid(0).is_some() {
        return Err(TensorError::Config("blocks that keep only their inputs cannot have a cache: use KvCache::none()".into()));
    }
    for (i, block) in (first..).zip(blocks) {
        pass.keep(&x);
        x = if pass.checkpoints() {
            checkpointed(&Arc::new(CheckpointedBlock { i, block: block.clone(), context: context.clone() }), &x)?
        } else {
            block.run(i, &x, context, cache)?
        };
    }
    Ok(x)
}

/// A block with everything that it is computed again from.
struct CheckpointedBlock<B: Block> {
    i: usize,
    block: B,
    context: B::Context,
}

impl<B: Block> Module for CheckpointedBlock<B> {
    fn forward(&self, x: &Tensor) -> TensorResult<Tensor> {
        self.block.run(self.i, x, &self.context, &mut KvCache::none())
    }
    fn children(&self) -> Vec<(String, &dyn Module)> {
        let adapters = self.block.projections().into_iter().filter_map(|p| p.adapter.as_ref());
        adapters.enumerate().map(|(n, a)| (n.to_string(), a as &dyn Module)).collect()
    }
}
