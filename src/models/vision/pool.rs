//! From the states of an image to one vector: a dense layer of the first token, or a learned query's attention.

use super::description::{ImagePool, VisionSpec};
use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::decoder::norm::Norm;
use crate::models::weights::Tensors;
use crate::models::{Projection, merge_heads, split_heads};
use crate::ops::attention::AttentionOptions;
use crate::tensor::Tensor;

/// A way to pool with its weights.
pub(super) enum Pool {
    None,
    First,
    FirstNormed,
    Dense(Projection, ActivationFn),
    Probe(Box<Probe>),
}

/// A learned query that attends to an image's states (Zhai et al., 2022).
pub(super) struct Probe {
    query: Tensor, // [1, 1, d]
    qkv: Projection,
    o: Projection,
    heads: usize,
    norm: Norm,
    up: Projection,
    down: Projection,
    activation: ActivationFn,
}

impl Pool {
    pub fn load(w: &Tensors<'_>, spec: &VisionSpec) -> TensorResult<Pool> {
        let d = &spec.stack;
        Ok(match spec.pool {
            ImagePool::Dense(size, activation) if w.has("pooler.weight") => {
                Pool::Dense(w.linear("pooler", d.width, size, Some(true))?, activation)
            }
            ImagePool::None | ImagePool::Dense(..) => Pool::None,
            ImagePool::First => Pool::First,
            ImagePool::FirstNormed => Pool::FirstNormed,
            ImagePool::Probe => {
                let layer = &d.layers[0];
                Pool::Probe(Box::new(Probe {
                    query: w.tensor("probe", &[1, 1, d.width])?,
                    qkv: w.linear("probe_qkv", d.width, 3 * d.width, Some(true))?,
                    o: w.linear("probe_output", d.width, d.width, Some(true))?,
                    heads: layer.mixer.attention().map_or(0, |a| a.heads),
                    norm: Norm::load(w, "probe_norm", d.norm, d.width)?,
                    up: w.linear("probe_up", d.width, layer.feed.size, Some(true))?,
                    down: w.linear("probe_down", layer.feed.size, d.width, Some(true))?,
                    activation: layer.feed.activation,
                }))
            }
        })
    }

    /// The vector `[B,d]` of states `[B,n,d]`; `norm` is the one behind the layers.
    pub fn forward(&self, states: &Tensor, norm: Option<&Norm>) -> TensorResult<Option<Tensor>> {
        let first = || states.narrow(1, 0, 1)?.squeeze(1);
        Ok(Some(match self {
            Pool::None => return Ok(None),
            Pool::First => first()?,
            Pool::FirstNormed => crate::models::decoder::normed(norm, &first()?.contiguous()?)?,
            Pool::Dense(linear, activation) => activation.of(&linear.forward(&first()?.contiguous()?)?)?,
            Pool::Probe(probe) => probe.forward(states)?,
        }))
    }
}

impl Probe {
    fn forward(&self, states: &Tensor) -> TensorResult<Tensor> {
        let (batch, width) = (states.dims()[0], states.dims()[2]);
        let query = self.query.cast(states.dtype())?.broadcast_to(&[batch, 1, width])?.contiguous()?;
        let parts = |x: &Tensor| self.qkv.parts(x, [width, width, width]);
        let [q, ..] = parts(&query)?;
        let [_, k, v] = parts(states)?;
        let heads = |x: &Tensor| split_heads(x, self.heads);
        let options = AttentionOptions { causal: false, ..Default::default() };
        let x = self.o.forward(&merge_heads(&heads(&q)?.attention(&heads(&k)?, &heads(&v)?, None, &options)?)?)?;
        let inner = self.activation.of(&self.up.forward(&self.norm.forward(&x)?)?)?;
        x.add(&self.down.forward(&inner)?)?.squeeze(1)
    }
}
