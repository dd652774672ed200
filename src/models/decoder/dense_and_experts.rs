//! A dense feed-forward part next to experts, each with norms of its own: norm₁(dense(h)) + norm₂(experts(norm(x))).

use super::dense::{DENSE, Dense};
use super::description::{DenseWithExperts, ExpertsSpec, FeedSpec};
use super::experts::Experts;
use super::norm::Norm;
use crate::error::TensorResult;
use crate::models::weights::Tensors;
use crate::tensor::Tensor;

/// Both parts with their weights.
#[derive(Clone)]
pub(crate) struct DenseAndExperts {
    pub dense: Dense,
    pub experts: Experts,
    dense_norm: Norm,
    input_norm: Norm,
    experts_norm: Norm,
}

impl DenseAndExperts {
    /// Reads the weights of layer `i`.
    pub fn load(
        w: &Tensors<'_>,
        i: usize,
        feed: &FeedSpec,
        experts: &ExpertsSpec,
        with_dense: DenseWithExperts,
        width: usize,
    ) -> TensorResult<DenseAndExperts> {
        let norm = |part: &str| Norm::load(w, &format!("blk.{i}.{part}"), with_dense.norm, width);
        let of_experts = FeedSpec { size: with_dense.expert_size, ..feed.clone() };
        Ok(DenseAndExperts {
            dense: Dense::load(w, i, DENSE, feed, width)?,
            experts: Experts::load(w, i, &of_experts, experts, width)?,
            dense_norm: norm("post_ffw_norm_1")?,
            input_norm: norm("pre_ffw_norm_2")?,
            experts_norm: norm("post_ffw_norm_2")?,
        })
    }

    /// `[B,T,d]` to `[B,T,d]`; `h` is the normed `x`.
    pub fn forward(&self, h: &Tensor, x: &Tensor) -> TensorResult<Tensor> {
        let experts = self.experts.forward_by(&self.input_norm.forward(x)?, x)?;
        self.dense_norm.forward(&self.dense.forward(h)?)?.add(&self.experts_norm.forward(&experts)?)
    }

    /// The norms.
    pub fn norms(&self) -> impl Iterator<Item = &Norm> {
        [&self.dense_norm, &self.input_norm, &self.experts_norm].into_iter().chain(self.dense.norm())
    }
}
