//! Language models, one file per architecture, and what they share: weights by name, the KV cache, generation.

pub mod cache;
pub mod gemma3;
pub mod generate;
pub mod gpt2;
pub mod llama;
pub mod sampler;
pub mod weights;

pub use cache::KvCache;
pub use generate::{Generation, Session};
pub use sampler::Sampler;
pub use weights::Weights;

use crate::device::Device;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::tensor::Tensor;

/// A decoder-only transformer.
pub trait Model: Send + Sync {
    /// Sizes that callers need.
    fn shape(&self) -> ModelShape;
    /// The hidden states `[1,T,d]` after the last block (and its norm) of tokens `[T]`, which stand at positions `cache.len()..`; their keys
    /// and values are appended to the cache.
    fn hidden(&self, tokens: &Tensor, cache: &mut KvCache) -> TensorResult<Tensor>;
    /// Logits `[…,V]` of hidden states `[…,d]`, in f32.
    fn logits(&self, hidden: &Tensor) -> TensorResult<Tensor>;
    /// Every weight, for counting bytes.
    fn weights(&self) -> Vec<&Tensor>;
}

/// Sizes of a model.
#[derive(Clone, Debug)]
pub struct ModelShape {
    /// Architecture: `llama`, `gpt2`, `gemma3`.
    pub architecture: &'static str,
    /// Blocks.
    pub layers: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Size of a head.
    pub head_dim: usize,
    /// Tokens in the vocabulary.
    pub vocab: usize,
    /// Positions the model was made for.
    pub context: usize,
    /// The dtype of activations and cache.
    pub dtype: DType,
}

/// Loads the model that `weights` hold. `dtype` is the type of activations; by default f32 on the CPU and f16 on a GPU (f32 for Gemma 3,
/// whose residual stream overflows f16).
pub fn load(weights: &Weights, dtype: Option<DType>) -> TensorResult<Box<dyn Model>> {
    let dtype = |default: DType| dtype.unwrap_or(default);
    let default = weights.device().default_float();
    Ok(match weights.architecture()? {
        "llama" => Box::new(llama::Llama::load(weights, dtype(default))?),
        "gpt2" => Box::new(gpt2::Gpt2::load(weights, dtype(default))?),
        "gemma3" | "gemma3_text" => Box::new(gemma3::Gemma3::load(weights, dtype(DType::F32))?),
        other => return Err(TensorError::Unsupported(format!("models of architecture `{other}`; known are llama, gpt2 and gemma3"))),
    })
}

/// A linear layer `x·wᵀ + b` with `w` `[out,in]`, which may be packed in a block format.
pub struct Linear {
    /// `[out,in]`.
    pub weight: Tensor,
    /// `[out]`.
    pub bias: Option<Tensor>,
}

impl Linear {
    /// `[…,in]` to `[…,out]`.
    pub fn forward(&self, x: &Tensor) -> TensorResult<Tensor> {
        let y = x.matmul(&self.weight.t()?)?;
        match &self.bias {
            Some(b) => y.add(b),
            None => Ok(y),
        }
    }
}

/// `[1,T,H·D]` to `[1,H,T,D]`.
pub(crate) fn split_heads(x: &Tensor, heads: usize) -> TensorResult<Tensor> {
    let (t, d) = (x.dims()[1], x.dims()[2] / heads);
    x.reshape(&[1, t as isize, heads as isize, d as isize])?.transpose(1, 2)
}

/// `[1,H,T,D]` to `[1,T,H·D]`.
pub(crate) fn merge_heads(x: &Tensor) -> TensorResult<Tensor> {
    let [_, h, t, d] = x.dims() else { return Err(TensorError::Invalid(format!("merge_heads of {}", x.shape()))) };
    let (h, t, d) = (*h as isize, *t as isize, *d as isize);
    x.transpose(1, 2)?.reshape(&[1, t, h * d])
}

/// Tables of a rotary embedding on a device: cosines and signed sines `[context,D]`.
pub(crate) struct Rope {
    cos: Tensor,
    sin: Tensor,
    pairs: crate::ops::rope::RopePairs,
}

impl Rope {
    pub(crate) fn new(context: usize, freqs: &[f64], pairs: crate::ops::rope::RopePairs, device: &Device) -> TensorResult<Rope> {
        let (cos, sin) = crate::ops::rope::rope_tables(context, freqs, pairs);
        let shape = [context, freqs.len() * 2];
        Ok(Rope { cos: Tensor::from_vec(cos, &shape, device)?, sin: Tensor::from_vec(sin, &shape, device)?, pairs })
    }

    /// The tables of positions `start..start + len`.
    pub(crate) fn at(&self, start: usize, len: usize) -> TensorResult<Rope> {
        Ok(Rope { cos: self.cos.narrow(0, start, len)?, sin: self.sin.narrow(0, start, len)?, pairs: self.pairs })
    }

    /// Rotates heads `[1,H,T,D]`.
    pub(crate) fn rotate(&self, x: &Tensor) -> TensorResult<Tensor> {
        x.rope(&self.cos, &self.sin, self.pairs)
    }
}
