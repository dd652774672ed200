//! From the states of an encoder to logits of tokens or of labels.

use super::description::{DenseSpec, ReadOut, ReadOutOf, ReadOutTo};
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::models::Projection;
use crate::models::decoder::norm::Norm;
use crate::models::weights::Tensors;
use crate::tensor::Tensor;

/// act(W·x + b).
#[derive(Clone)]
pub(super) struct HeadDense {
    linear: Projection,
    spec: DenseSpec,
}

impl HeadDense {
    /// Reads the weights of the layer that is called `name`, from `width` to `width`.
    pub fn load(w: &Tensors<'_>, name: &str, width: usize, spec: DenseSpec) -> TensorResult<HeadDense> {
        Ok(HeadDense { linear: w.linear(name, width, width, Some(spec.bias))?, spec })
    }

    pub fn forward(&self, x: &Tensor) -> TensorResult<Tensor> {
        self.spec.activation.of(&self.linear.forward(x)?)
    }

    pub fn weights(&self) -> impl Iterator<Item = &Tensor> {
        std::iter::once(&self.linear.weight).chain(&self.linear.bias)
    }
}

/// A head with its weights.
pub(super) struct Head {
    of: ReadOutOf,
    dense: Option<HeadDense>,
    norm: Option<Norm>,
    output: Projection,
}

impl Head {
    /// Reads the weights; none where a head for tokens is not in the file, as models that were made for embeddings leave it out.
    pub fn load(w: &Tensors<'_>, spec: &ReadOut, embedding: &Tensor, width: usize, tied: bool) -> TensorResult<Option<Head>> {
        if matches!(spec.to, ReadOutTo::Vocabulary { .. }) && spec.dense.is_some() && !w.has("head_dense.weight") {
            return Ok(None);
        }
        let dense = spec.dense.map(|dense| HeadDense::load(w, "head_dense", width, dense)).transpose()?;
        let norm = Norm::load_if(w, "head_norm", spec.norm, width)?;
        let output = match &spec.to {
            ReadOutTo::Vocabulary { bias } => w.head(embedding, tied, *bias)?,
            ReadOutTo::Labels { names, bias } => w.linear("cls.output", width, names.len(), Some(*bias))?,
        };
        Ok(Some(Head { of: spec.of, dense, norm, output }))
    }

    /// Logits in f32 of states `[B,T,d]`: `[B,T,V]` of tokens, `[B,L]` of labels. `first` are the states `[B,d]` of the first tokens, `shares` `[B,T,1]`
    /// the part of each token in a mean.
    pub fn forward(&self, states: &Tensor, first: &Tensor, shares: &Tensor) -> TensorResult<Tensor> {
        let logits = |x: &Tensor| {
            let x = self.dense.as_ref().map_or_else(|| Ok(x.clone()), |dense| dense.forward(x))?;
            let x = self.norm.as_ref().map_or_else(|| Ok(x.clone()), |norm| norm.forward(&x))?;
            self.output.forward(&x)?.cast(DType::F32)
        };
        match self.of {
            ReadOutOf::Tokens => logits(states),
            ReadOutOf::First => logits(first),
            ReadOutOf::Mean => logits(&mean(states, shares)?.cast(states.dtype())?),
            ReadOutOf::MeanOfLogits => mean(&logits(states)?, shares),
        }
    }

    pub fn weights(&self) -> impl Iterator<Item = &Tensor> {
        let norm = self.norm.iter().flat_map(Norm::weights);
        self.dense.iter().flat_map(HeadDense::weights).chain(norm).chain([&self.output.weight]).chain(&self.output.bias)
    }
}

/// The sum over tokens of `[B,T,n]` by their shares, in f32.
fn mean(x: &Tensor, shares: &Tensor) -> TensorResult<Tensor> {
    x.cast(DType::F32)?.mul(shares)?.sum(&[1], false)
}
