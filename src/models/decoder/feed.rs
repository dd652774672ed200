//! The feed-forward part of a layer: one, experts, or both.

use super::dense::{DENSE, Dense};
use super::dense_and_experts::DenseAndExperts;
use super::description::FeedSpec;
use super::experts::Experts;
use super::norm::Norm;
use crate::error::TensorResult;
use crate::models::Projection;
use crate::models::weights::Tensors;
use crate::tensor::Tensor;

/// The feed-forward part of a layer with its weights.
#[derive(Clone)]
pub(crate) enum Feed {
    Dense(Box<Dense>),
    Experts(Box<Experts>),
    Both(Box<DenseAndExperts>),
}

impl Feed {
    /// Reads the weights of layer `i`.
    pub fn load(w: &Tensors<'_>, i: usize, spec: &FeedSpec, width: usize) -> TensorResult<Feed> {
        match &spec.experts {
            Some(experts) => match experts.with_dense {
                Some(with_dense) => Ok(Feed::Both(Box::new(DenseAndExperts::load(w, i, spec, experts, with_dense, width)?))),
                None => Ok(Feed::Experts(Box::new(Experts::load(w, i, spec, experts, width)?))),
            },
            None => Ok(Feed::Dense(Box::new(Dense::load(w, i, DENSE, spec, width)?))),
        }
    }

    /// `[B,T,d]` to `[B,T,d]`, of `x` behind the layer's norm.
    pub fn forward(&self, h: &Tensor, x: &Tensor) -> TensorResult<Tensor> {
        match self {
            Feed::Dense(dense) => dense.forward(h),
            Feed::Experts(experts) => experts.forward(h),
            Feed::Both(both) => both.forward(h, x),
        }
    }

    fn dense(&self) -> Option<&Dense> {
        match self {
            Feed::Dense(dense) => Some(&**dense),
            Feed::Experts(experts) => experts.shared(),
            Feed::Both(both) => Some(&both.dense),
        }
    }

    /// The linear layers with GGUF's names of their parts; experts' matrices are none.
    pub fn projections(&self) -> impl Iterator<Item = (&'static str, &Projection)> {
        self.dense().into_iter().flat_map(Dense::projections)
    }

    /// As [`Feed::projections`], to be changed.
    pub fn projections_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut Projection)> {
        let dense = match self {
            Feed::Dense(dense) => Some(&mut **dense),
            Feed::Experts(experts) => experts.shared_mut(),
            Feed::Both(both) => Some(&mut both.dense),
        };
        dense.into_iter().flat_map(Dense::projections_mut)
    }

    /// The norms.
    pub fn norms(&self) -> Vec<&Norm> {
        match self {
            Feed::Both(both) => both.norms().collect(),
            _ => self.dense().into_iter().filter_map(Dense::norm).collect(),
        }
    }

    /// What is neither a linear layer nor a norm.
    pub fn others(&self) -> Vec<&Tensor> {
        match self {
            Feed::Dense(_) => Vec::new(),
            Feed::Experts(experts) => experts.others(),
            Feed::Both(both) => both.experts.others(),
        }
    }

    /// How many bytes of [`Feed::others`] one token does not read.
    pub fn unread_bytes(&self) -> u64 {
        match self {
            Feed::Dense(_) => 0,
            Feed::Experts(experts) => experts.unread_bytes(),
            Feed::Both(both) => both.experts.unread_bytes(),
        }
    }
}
