//! A transformer's encoder block.

use super::{Dropout, LayerNorm, Linear, Module, ModuleExt, MultiHeadAttention};
use crate::device::Device;
use crate::error::{TensorError, TensorResult};
use crate::ops::Activation;
use crate::ops::random::Rng;
use crate::tensor::Tensor;
use std::collections::BTreeMap;

/// The settings of an [`EncoderBlock`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EncoderConfig {
    /// Elements of a position's vector.
    pub width: usize,
    /// Attention heads; `width` is a multiple of their number.
    pub heads: usize,
    /// Elements between the two layers of the feed-forward part.
    pub hidden: usize,
    /// The function between them. PyTorch's `gelu` is [`Activation::Gelu`].
    pub activation: Activation,
    /// Probability of dropping an attention weight, a hidden element, or an element of a part's result, while training.
    pub dropout: f64,
    /// Whether norms come before each part (Xiong et al., 2020) and not after each sum (Vaswani et al., 2017).
    pub norm_first: bool,
    /// Whether a position sees no later one.
    pub causal: bool,
    /// Added to the variance by the norms.
    pub eps: f64,
}

impl EncoderConfig {
    /// PyTorch's defaults for `nn.TransformerEncoderLayer(width, heads, hidden)`: ReLU, norms after, dropout 0.1.
    pub fn new(width: usize, heads: usize, hidden: usize) -> EncoderConfig {
        EncoderConfig { width, heads, hidden, activation: Activation::ReLU, dropout: 0.1, norm_first: false, causal: false, eps: 1e-5 }
    }
}

/// Self-attention and a feed-forward part, each with a residual connection and a norm: PyTorch's `nn.TransformerEncoderLayer` with `batch_first`.
///
/// ```
/// # use tensorlogic::nn::{EncoderBlock, EncoderConfig, Module, ModuleExt};
/// # use tensorlogic::ops::Activation;
/// # use tensorlogic::{DType, Device, Rng, TensorResult};
/// # fn main() -> TensorResult<()> {
/// let (device, mut rng) = (Device::cpu(), Rng::new(1));
/// let config = EncoderConfig { activation: Activation::Gelu, norm_first: true, ..EncoderConfig::new(64, 4, 256) };
/// let block = EncoderBlock::new(config, &mut rng, &device)?;
/// block.eval();
/// let x = rng.normal(&[2, 10, 64], DType::F32, &device)?;
/// assert_eq!(block.forward(&x)?.dims(), [2, 10, 64]);
/// # Ok(())
/// # }
/// ```
pub struct EncoderBlock {
    /// Its settings.
    pub config: EncoderConfig,
    /// The attention.
    pub self_attn: MultiHeadAttention,
    /// `[hidden, width]`.
    pub linear1: Linear,
    /// `[width, hidden]`.
    pub linear2: Linear,
    /// The norm of the attention.
    pub norm1: LayerNorm,
    /// The norm of the feed-forward part.
    pub norm2: LayerNorm,
    /// Dropout of hidden elements, of the attention's result and of the feed-forward part's.
    drop: [Dropout; 3],
}

impl EncoderBlock {
    /// A block in training mode. Linear layers are initialised as PyTorch's; weights of the attention are normal, with the variances that PyTorch's have.
    ///
    /// # Errors
    /// [`TensorError::Config`] where `width` is not divisible by `heads`; when a parameter would have too many elements.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::nn::{EncoderBlock, EncoderConfig, ModuleExt};
    ///
    /// let block = EncoderBlock::new(EncoderConfig::new(8, 2, 16), &mut Rng::new(1), &Device::cpu())?;
    /// assert_eq!(block.parameter_count(), 600);
    /// assert!(EncoderBlock::new(EncoderConfig::new(8, 3, 16), &mut Rng::new(1), &Device::cpu()).is_err()); // 8 is not a multiple of 3
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn new(config: EncoderConfig, rng: &mut Rng, device: &Device) -> TensorResult<EncoderBlock> {
        let EncoderConfig { width, heads, hidden, dropout, causal, eps, .. } = config;
        // Of a uniform distribution within ±√(6 / (inputs + outputs)), and within ±1/√inputs.
        let stds = [(2.0 / (4 * width) as f64).sqrt(), (1.0 / (3 * width) as f64).sqrt()];
        let mut self_attn = MultiHeadAttention::new(width, heads, causal, true, stds, rng, device)?;
        let mut stream = rng.seed ^ u64::from(rng.draws) << 32;
        let mut drop = || {
            stream = stream.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(0xD1B5_4A32_D192_ED03);
            Dropout::new(dropout, stream)
        };
        self_attn.drop = drop();
        Ok(EncoderBlock {
            config,
            self_attn,
            linear1: Linear::new(width, hidden, true, rng, device)?,
            linear2: Linear::new(hidden, width, true, rng, device)?,
            norm1: LayerNorm::new(width, true, eps, device)?,
            norm2: LayerNorm::new(width, true, eps, device)?,
            drop: [drop(), drop(), drop()],
        })
    }

    /// The result for `x` `[B, T, width]`, with a mask as in [`MultiHeadAttention::attend`].
    ///
    /// # Errors
    /// When the input is not `[B, T, width]`, or the mask does not broadcast to `[B, heads, T, T]`.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::nn::{EncoderBlock, EncoderConfig, ModuleExt};
    ///
    /// let (device, mut rng) = (Device::cpu(), Rng::new(1));
    /// let block = EncoderBlock::new(EncoderConfig::new(8, 2, 16), &mut rng, &device)?;
    /// block.eval();
    /// let x = rng.normal(&[1, 3, 8], DType::F32, &device)?;
    /// // The third position is padding, which the others do not see.
    /// let padded = block.encode(&x, Some(&Tensor::new(&[true, true, false], &device)?))?.narrow(1, 0, 2)?;
    /// let alone = block.encode(&x.narrow(1, 0, 2)?, None)?;
    /// assert!(padded.sub(&alone)?.abs()?.max_all()?.item()? < 1e-5);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn encode(&self, x: &Tensor, mask: Option<&Tensor>) -> TensorResult<Tensor> {
        let attend = |x: &Tensor| self.drop[1].forward(&self.self_attn.attend(x, None, mask)?);
        if self.config.norm_first {
            let x = x.add(&attend(&self.norm1.forward(x)?)?)?;
            return x.add(&self.feed_forward(&self.norm2.forward(&x)?)?);
        }
        let x = self.norm1.forward(&x.add(&attend(x)?)?)?;
        self.norm2.forward(&x.add(&self.feed_forward(&x)?)?)
    }

    fn feed_forward(&self, x: &Tensor) -> TensorResult<Tensor> {
        let hidden = self.config.activation.apply(&self.linear1.forward(x)?)?;
        self.drop[2].forward(&self.linear2.forward(&self.drop[0].forward(&hidden)?)?)
    }

    /// Loads the values of PyTorch's `nn.TransformerEncoderLayer` by the names of its `state_dict`.
    ///
    /// # Errors
    /// If a name is missing or a shape differs; then nothing changes.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use std::collections::BTreeMap;
    /// use tensorlogic::io::SafeTensors;
    /// use tensorlogic::nn::{EncoderBlock, EncoderConfig};
    ///
    /// let (device, prefix) = (Device::cpu(), "post.relu.none.param.");
    /// let file = SafeTensors::open("tests/vectors/encoder/encoder.safetensors")?; // written by PyTorch
    /// let named = file.tensors().iter().filter_map(|t| Some((t.name.strip_prefix(prefix)?.to_string(), file.load(&t.name, &device))));
    /// let state = named.map(|(name, value)| Ok((name, value?))).collect::<TensorResult<BTreeMap<_, _>>>()?;
    /// let block = EncoderBlock::new(EncoderConfig::new(16, 4, 40), &mut Rng::new(1), &device)?;
    /// block.load_torch(&state)?;
    /// assert_eq!(block.self_attn.c_attn.weight.get().to_vec()?, state["self_attn.in_proj_weight"].to_vec()?);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn load_torch(&self, state: &BTreeMap<String, Tensor>) -> TensorResult<()> {
        let mut own = BTreeMap::new();
        for (name, _) in self.named_parameters() {
            let theirs = torch_name(&name);
            let Some(value) = state.get(&theirs) else { return Err(TensorError::Value(format!("no value for the parameter {theirs}"))) };
            own.insert(name, value.clone());
        }
        self.load_state(&own)
    }
}

/// What PyTorch calls a parameter of the block.
fn torch_name(name: &str) -> String {
    match name.strip_prefix("self_attn.c_attn.") {
        Some(part) => format!("self_attn.in_proj_{part}"),
        None => name.replace("self_attn.c_proj.", "self_attn.out_proj."),
    }
}

impl Module for EncoderBlock {
    fn forward(&self, x: &Tensor) -> TensorResult<Tensor> {
        self.encode(x, None)
    }
    fn children(&self) -> Vec<(String, &dyn Module)> {
        vec![
            ("self_attn".into(), &self.self_attn),
            ("linear1".into(), &self.linear1),
            ("linear2".into(), &self.linear2),
            ("norm1".into(), &self.norm1),
            ("norm2".into(), &self.norm2),
            ("drop.0".into(), &self.drop[0]),
            ("drop.1".into(), &self.drop[1]),
            ("drop.2".into(), &self.drop[2]),
        ]
    }
}
