//! Attention with several heads, of a sequence to itself or to another one.

use super::{Dropout, Linear, Module};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::ops::attention::AttentionOptions;
use crate::ops::random::Rng;
use crate::tensor::Tensor;
use std::panic::Location;

/// Attention with several heads (Vaswani et al., 2017) over `[B, T, width]`: causal or full self-attention by [`Module::forward`], with a mask or to
/// another sequence by [`MultiHeadAttention::attend`]. In self-attention one product computes queries, keys and values.
///
/// ```
/// # use tensorlogic::nn::MultiHeadAttention;
/// # use tensorlogic::{DType, Device, Rng, Tensor, TensorResult};
/// # fn main() -> TensorResult<()> {
/// let (device, mut rng) = (Device::cpu(), Rng::new(1));
/// let layer = MultiHeadAttention::new(32, 4, false, true, [0.1, 0.1], &mut rng, &device)?;
/// let x = rng.normal(&[2, 5, 32], DType::F32, &device)?;
/// let memory = rng.normal(&[2, 7, 32], DType::F32, &device)?;
/// // Cross-attention to seven positions, of which the second sequence has only three.
/// let lengths = Tensor::new(&[[7], [3]], &device)?;
/// let valid = Tensor::arange(0.0, 7.0, 1.0, DType::I32, &device)?.lt(&lengths)?;
/// let y = layer.attend(&x, Some(&memory), Some(&valid.unsqueeze(1)?.unsqueeze(1)?))?;
/// assert_eq!(y.dims(), [2, 5, 32]);
/// # Ok(())
/// # }
/// ```
pub struct MultiHeadAttention {
    /// `[3·width, width]`: rows of the queries, then of the keys, then of the values.
    pub c_attn: Linear,
    /// `[width, width]`.
    pub c_proj: Linear,
    /// Dropout of attention weights while training; initially none.
    pub drop: Dropout,
    heads: usize,
    causal: bool,
}

impl MultiHeadAttention {
    /// A layer with normally distributed weights, of these standard deviations: that of queries, keys and values, and that of the output projection.
    ///
    /// # Errors
    /// [`TensorError::Config`] where `width` is not divisible by `heads`; those of [`Linear::normal`].
    ///
    /// ```
    /// use tensorlogic::nn::{Module, MultiHeadAttention};
    /// use tensorlogic::prelude::*;
    /// let (cpu, mut rng) = (Device::cpu(), Rng::new(1));
    /// let layer = MultiHeadAttention::new(12, 3, true, true, [0.02, 0.01], &mut rng, &cpu)?;
    /// assert_eq!(layer.forward(&Tensor::zeros(&[2, 5, 12], DType::F32, &cpu)?)?.dims(), [2, 5, 12]);
    /// assert!(MultiHeadAttention::new(12, 5, true, true, [0.02, 0.01], &mut rng, &cpu).is_err());
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn new(
        width: usize,
        heads: usize,
        causal: bool,
        bias: bool,
        [std, proj_std]: [f64; 2],
        rng: &mut Rng,
        device: &Device,
    ) -> TensorResult<MultiHeadAttention> {
        if heads == 0 || width % heads != 0 {
            return Err(TensorError::Config(format!("attention: width {width} is not divisible by {heads} heads")));
        }
        Ok(MultiHeadAttention {
            c_attn: Linear::normal(width, 3 * width, bias, std, rng, device)?,
            c_proj: Linear::normal(width, width, bias, proj_std, rng, device)?,
            drop: Dropout::new(0.0, rng.seed ^ 0xA77E_4710),
            heads,
            causal,
        })
    }

    /// Attention of `x` `[B, T, width]` to itself, or to `memory` `[B, S, width]` (cross-attention). `mask` broadcasts to `[B, heads, T, S]`: a bool mask
    /// is true where a query may see a key, as in PyTorch's `scaled_dot_product_attention`; a float mask is added to the scores. The mask of padded
    /// keys `[B, S]` is `valid.unsqueeze(1)?.unsqueeze(1)?`. A query that may see no key gives the projection of zeros.
    ///
    /// # Errors
    /// When a shape is not as above; for a causal layer with a memory, whose positions have no common order.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::nn::MultiHeadAttention;
    ///
    /// let (device, mut rng) = (Device::cpu(), Rng::new(1));
    /// let layer = MultiHeadAttention::new(8, 2, false, true, [0.1, 0.1], &mut rng, &device)?;
    /// let (x, memory) = (rng.normal(&[1, 2, 8], DType::F32, &device)?, rng.normal(&[1, 3, 8], DType::F32, &device)?);
    /// // A mask that hides the last of three keys does the same as to leave it out.
    /// let mask = Tensor::new(&[true, true, false], &device)?;
    /// let (masked, shorter) = (layer.attend(&x, Some(&memory), Some(&mask))?, layer.attend(&x, Some(&memory.narrow(1, 0, 2)?), None)?);
    /// assert!(masked.sub(&shorter)?.abs()?.max_all()?.item()? < 1e-5);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn attend(&self, x: &Tensor, memory: Option<&Tensor>, mask: Option<&Tensor>) -> TensorResult<Tensor> {
        let at = Location::caller();
        let width = self.c_proj.weight.get().shape()[0];
        let fits = |t: &Tensor| t.rank() == 3 && t.shape()[2] == width && t.shape()[0] == x.shape()[0];
        if !fits(x) || !memory.is_none_or(fits) {
            let other = memory.map_or(String::new(), |m| format!(" and {}", m.shape()));
            return Err(TensorError::shape("attention", at, format!("the input is {}{other}; expected [B,T,{width}]", x.shape())));
        }
        let [q, k, v] = self.project(x, memory)?;
        let mask = mask.map(additive).transpose()?;
        let options = AttentionOptions { causal: self.causal, dropout: self.drop.draw()?, ..Default::default() };
        let y = q.attention(&k, &v, mask.as_ref(), &options)?;
        let [b, t] = [x.shape()[0], x.shape()[1]];
        self.c_proj.forward(&y.transpose(1, 2)?.reshape(&[b, t, width])?)
    }

    /// Queries `[B, heads, T, size]` of `x`, and keys and values `[B, heads, S, size]` of `memory`, or of `x` as well.
    fn project(&self, x: &Tensor, memory: Option<&Tensor>) -> TensorResult<[Tensor; 3]> {
        let width = x.shape()[2];
        let split = |joint: &Tensor, n: usize| {
            let [b, t] = [joint.shape()[0], joint.shape()[1]];
            let part = joint.narrow(-1, n * width, width)?;
            part.reshape(&[b, t, self.heads, width / self.heads])?.transpose(1, 2)
        };
        let Some(memory) = memory else {
            let joint = self.c_attn.forward(x)?;
            return Ok([split(&joint, 0)?, split(&joint, 1)?, split(&joint, 2)?]);
        };
        if self.causal {
            return Err(TensorError::Config("attention: a causal layer cannot attend to a memory; make it with causal = false".into()));
        }
        let rows = |x: &Tensor, from: usize, count: usize| {
            let y = x.matmul(&self.c_attn.weight.get().narrow(0, from * width, count * width)?.t()?)?;
            match &self.c_attn.bias {
                Some(b) => y.add(&b.get().narrow(0, from * width, count * width)?),
                None => Ok(y),
            }
        };
        let (q, kv) = (rows(x, 0, 1)?, rows(memory, 1, 2)?);
        Ok([split(&q, 0)?, split(&kv, 0)?, split(&kv, 1)?])
    }
}

/// A mask that is added to scores: 0 where a bool mask is true, −∞ elsewhere.
fn additive(mask: &Tensor) -> TensorResult<Tensor> {
    if mask.dtype() == DType::Bool { mask.where_(0.0, f64::NEG_INFINITY) } else { Ok(mask.clone()) }
}

impl Module for MultiHeadAttention {
    fn forward(&self, x: &Tensor) -> TensorResult<Tensor> {
        self.attend(x, None, None)
    }
    fn children(&self) -> Vec<(String, &dyn Module)> {
        vec![("c_attn".into(), &self.c_attn), ("c_proj".into(), &self.c_proj), ("drop".into(), &self.drop)]
    }
}
