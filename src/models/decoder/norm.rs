//! The norms of a decoder with their weights.

use super::description::{NormKind, NormSpec};
use crate::error::TensorResult;
use crate::models::weights::Tensors;
use crate::tensor::Tensor;

/// A norm of vectors, or of heads with weights of their own.
#[derive(Clone)]
pub(crate) struct Norm {
    spec: NormSpec,
    weight: Option<Tensor>,
    bias: Option<Tensor>,
    /// Whether the weights differ from head to head, and are multiplied with afterwards.
    each_head: bool,
}

impl Norm {
    /// Reads the weights `[len]` of the norm that GGUF calls `name`.
    pub fn load(w: &Tensors<'_>, name: &str, spec: NormSpec, len: usize) -> TensorResult<Norm> {
        let weighted = !matches!(spec.kind, NormKind::LayerWithoutWeights | NormKind::RmsWithoutWeights);
        let weight = if weighted { Some(w.norm(&format!("{name}.weight"), &[len], spec.plus_one)?) } else { None };
        let bias = if spec.kind == NormKind::Layer { Some(w.vector(&format!("{name}.bias"), len)?) } else { None };
        Ok(Norm { spec, weight, bias, each_head: false })
    }

    /// Reads the weights `[heads,size]` of a norm of heads.
    pub fn load_heads(w: &Tensors<'_>, name: &str, spec: NormSpec, heads: usize, size: usize) -> TensorResult<Norm> {
        let weight = w.norm_of_heads(name, heads, size, spec.plus_one)?.unsqueeze(1)?; // [H, 1, D]
        Ok(Norm { spec, weight: Some(weight), bias: None, each_head: true })
    }

    /// The same norm of each of these if there is one.
    pub fn load_if(w: &Tensors<'_>, name: &str, spec: Option<NormSpec>, len: usize) -> TensorResult<Option<Norm>> {
        spec.map(|s| Norm::load(w, name, s, len)).transpose()
    }

    /// Normalises the last dimension.
    pub fn forward(&self, x: &Tensor) -> TensorResult<Tensor> {
        let (weight, eps) = (if self.each_head { None } else { self.weight.as_ref() }, self.spec.eps);
        let y = match self.spec.kind {
            NormKind::Rms | NormKind::RmsWithoutWeights => x.rms_norm(weight, eps)?,
            _ => x.layer_norm(weight, self.bias.as_ref(), eps)?,
        };
        match &self.weight {
            Some(w) if self.each_head => y.mul(w)?.cast(x.dtype()),
            _ => Ok(y),
        }
    }

    /// The weights.
    pub fn weights(&self) -> impl Iterator<Item = &Tensor> {
        self.weight.iter().chain(&self.bias)
    }
}
