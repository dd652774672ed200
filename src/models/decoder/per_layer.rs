//! Embeddings of tokens for each layer (Gemma 3n, Google, 2025): p = (rms(W·x/√d) + √P·E[token])/√2, of which layer i takes its part pᵢ and adds
//! rms(Wo·(act(Wg·x) · pᵢ)) to the residual stream.

use super::norm::Norm;
use crate::error::{TensorError, TensorResult};
use crate::models::Projection;
use crate::models::activation::ActivationFn;
use crate::models::decoder::description::PerLayerSpec;
use crate::models::weights::Tensors;
use crate::tensor::Tensor;

/// The table of all layers.
pub(crate) struct PerLayerTable {
    table: Tensor,          // [V, L·P]
    projection: Projection, // d → L·P
    norm: Norm,
    spec: PerLayerSpec,
    layers: usize,
}

impl PerLayerTable {
    /// Reads the weights for a model of these layers and this width.
    pub fn load(w: &Tensors<'_>, spec: PerLayerSpec, layers: usize, width: usize) -> TensorResult<PerLayerTable> {
        let all = layers * spec.size;
        Ok(PerLayerTable {
            table: w.tensor("per_layer_token_embd.weight", &[spec.vocab, all])?,
            projection: w.linear("per_layer_model_proj", width, all, Some(false))?,
            norm: Norm::load(w, "per_layer_proj_norm", spec.norm, spec.size)?,
            spec,
            layers,
        })
    }

    /// The parts of all layers `[B,T,L,P]` for tokens `[B,T]` and their embeddings `[B,T,d]`.
    pub fn parts(&self, tokens: Option<&Tensor>, x: &Tensor) -> TensorResult<Tensor> {
        let Some(tokens) = tokens else {
            let message = "a pass of embeddings: this model looks its tokens up in every layer, so that it needs them";
            return Err(TensorError::Unsupported(message.into()));
        };
        let &[b, t, d] = x.dims() else { return Err(TensorError::Internal("embeddings of another shape".into())) };
        let split = |x: &Tensor| x.reshape(&[b, t, self.layers, self.spec.size]);
        let own = split(&self.projection.forward(x)?.mul(1.0 / (d as f32).sqrt())?)?;
        let known = tokens.lt(self.spec.vocab as f64)?.where_(tokens, &tokens.zeros_like()?)?;
        let rows = split(&self.table.embedding(&known)?)?.mul((self.spec.size as f32).sqrt())?;
        self.norm.forward(&own)?.add(&rows.cast(x.dtype())?)?.mul(std::f32::consts::FRAC_1_SQRT_2)
    }

    /// The weights.
    pub fn weights(&self) -> impl Iterator<Item = &Tensor> {
        [&self.table, &self.projection.weight].into_iter().chain(self.norm.weights())
    }
}

/// What a layer does with its part.
#[derive(Clone)]
pub(crate) struct PerLayerInput {
    gate: Projection,   // d → P
    output: Projection, // P → d
    norm: Norm,
    activation: ActivationFn,
}

impl PerLayerInput {
    /// Reads the weights of layer `i`; the last norm is `norm`.
    pub fn load(w: &Tensors<'_>, i: usize, spec: PerLayerSpec, width: usize) -> TensorResult<PerLayerInput> {
        let name = |part: &str| format!("blk.{i}.{part}");
        Ok(PerLayerInput {
            gate: w.linear(&name("inp_gate"), width, spec.size, Some(false))?,
            output: w.linear(&name("proj"), spec.size, width, Some(false))?,
            norm: Norm::load(w, &name("post_norm"), spec.norm, width)?,
            activation: spec.activation,
        })
    }

    /// What x `[B,T,d]` and the parts of all layers `[B,T,L,P]` add to the residual stream in layer `i`.
    pub fn forward(&self, i: usize, x: &Tensor, parts: &Tensor) -> TensorResult<Tensor> {
        let part = parts.narrow(2, i, 1)?.squeeze(2)?;
        let inner = self.activation.of(&self.gate.forward(x)?)?.mul(&part)?;
        self.norm.forward(&self.output.forward(&inner)?)
    }

    /// The linear layers with GGUF's names of their parts.
    pub fn projections(&self) -> Vec<(&'static str, &Projection)> {
        vec![("inp_gate", &self.gate), ("proj", &self.output)]
    }
    /// As [`PerLayerInput::projections`], to be changed.
    pub fn projections_mut(&mut self) -> Vec<(&'static str, &mut Projection)> {
        vec![("inp_gate", &mut self.gate), ("proj", &mut self.output)]
    }
    /// The norm.
    pub fn norms(&self) -> impl Iterator<Item = &Norm> {
        [&self.norm].into_iter()
    }
}
