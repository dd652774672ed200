//! Language models: a file for each architecture, the decoder that runs what these describe, weights by name, the KV cache, generation.

mod activation;
pub mod adapter;
mod architectures;
mod block;
pub mod cache;
pub mod convert;
mod decoder;
pub mod encoder;
pub mod generate;
mod generation_defaults;
pub mod inference;
mod lacks;
mod memory_plan;
pub(crate) mod paged;
mod pass;
mod quantized;
mod rope_settings;
mod rounding;
pub mod sampler;
pub mod seq2seq;
pub mod settings;
pub mod stages;
mod text_part;
pub mod vision;
pub mod weights;
mod without_effect;

pub use adapter::Adapters;
pub use cache::{CachePart, KvCache, LayerCache};
pub use decoder::Decoder;
pub use encoder::{Embedder, Encoder};
pub use generate::{Generation, Reload, Session, pacing_for, tuning_key};
pub use generation_defaults::GenerationDefaults;
pub use inference::Inference;
pub use lacks::{Lacks, lacks};
pub use memory_plan::{MemoryPlan, Workload};
pub use pass::Pass;
pub use rounding::Rounding;
pub use sampler::Sampler;
pub use seq2seq::Seq2Seq;
pub use settings::Settings;
pub use stages::LayerStages;
pub use vision::{ImageProcessor, ImageTextModel, RgbImage, VisionTower};
pub use weights::Weights;

use crate::device::Device;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::nn::{Lora, Module};
use crate::ops::loss::{NllOptions, Reduction};
use crate::tensor::Tensor;
use std::sync::Arc;

/// A decoder-only transformer.
///
/// ```
/// use tensorlogic::models::{self, KvCache, Pass, Weights};
/// use tensorlogic::prelude::*;
/// let device = Device::cpu();
/// let model = models::load(&Weights::open("models/tiny/tiny.gguf", &device)?, None)?;
/// let tokens = Tensor::new(&[30, 27, 25], &device)?;
/// let residual = model.forward(&mut Pass::tokens(&tokens), &mut KvCache::none())?;
/// let normed = model.norm(&residual)?;
/// let logits = model.head(&normed)?;
/// let shape = model.shape();
/// assert_eq!((normed.dims(), logits.dims()), ([1, 3, shape.width].as_slice(), [1, 3, shape.vocab].as_slice()));
/// # Ok::<(), TensorError>(())
/// ```
pub trait Model: Send + Sync {
    /// Sizes that callers need.
    fn shape(&self) -> ModelShape;
    /// The residual stream `[B,T,d]` after the last block, *before* the final norm. Keys and values are appended to the cache; with
    /// [`KvCache::none`], tokens attend to those of the same pass only.
    ///
    /// # Errors
    /// When the tokens or embeddings do not have the shape that [`Pass`] says, or do not fit into the cache.
    fn forward(&self, pass: &mut Pass<'_>, cache: &mut KvCache) -> TensorResult<Tensor>;
    /// The final norm of a residual stream `[…,d]`: what transformers calls the last hidden state.
    ///
    /// # Errors
    /// When the last dimension is not as wide as the model.
    fn norm(&self, residual: &Tensor) -> TensorResult<Tensor>;
    /// Logits `[…,V]` in f32 of normed states `[…,d]`.
    ///
    /// # Errors
    /// When the last dimension is not as wide as the model.
    fn head(&self, normed: &Tensor) -> TensorResult<Tensor>;
    /// [`Model::forward`] of tokens `[T]` at positions `cache.len()..`: `[1,T,d]`, before the final norm. With [`KvCache::none`], tokens may be
    /// `[B,T]`: B texts at once, for training.
    ///
    /// # Errors
    /// Those of [`Model::forward`].
    ///
    /// ```
    /// use tensorlogic::models::{self, KvCache, Weights};
    /// use tensorlogic::prelude::*;
    /// let device = Device::cpu();
    /// let model = models::load(&Weights::open("models/tiny/tiny.gguf", &device)?, None)?;
    /// let tokens = Tensor::new(&[30, 27, 25], &device)?;
    /// let hidden = model.hidden(&tokens, &mut KvCache::none())?;
    /// assert_eq!(hidden.dims(), [1, 3, model.shape().width]);
    /// # Ok::<(), TensorError>(())
    /// ```
    fn hidden(&self, tokens: &Tensor, cache: &mut KvCache) -> TensorResult<Tensor> {
        self.forward(&mut Pass::tokens(tokens), cache)
    }
    /// Logits `[…,V]`, in f32, of what [`Model::hidden`] gives, `[…,d]`: the final norm and the head.
    ///
    /// # Errors
    /// Those of [`Model::norm`] and [`Model::head`].
    ///
    /// ```
    /// use tensorlogic::models::{self, KvCache, Weights};
    /// use tensorlogic::prelude::*;
    /// let device = Device::cpu();
    /// let model = models::load(&Weights::open("models/tiny/tiny.gguf", &device)?, None)?;
    /// let tokens = Tensor::new(&[30, 27, 25], &device)?;
    /// let hidden = model.hidden(&tokens, &mut KvCache::none())?;
    /// let last = model.logits(&hidden.narrow(1, 2, 1)?)?; // of the last token only
    /// assert_eq!(last.dims(), [1, 1, model.shape().vocab]);
    /// # Ok::<(), TensorError>(())
    /// ```
    fn logits(&self, hidden: &Tensor) -> TensorResult<Tensor> {
        self.head(&self.norm(hidden)?)
    }
    /// Whether decode steps are identical up to the token, the cache length and affinely changing scalars. If so, the recorded plan is
    /// replayed without building a graph.
    fn repeats(&self) -> bool {
        false
    }
    /// The length of texts up to which keys stay as they are: one that grows beyond is read again from its start, since its positions rotate
    /// otherwise.
    fn rereads_beyond(&self) -> Option<usize> {
        None
    }
    /// All weights, for example to count bytes.
    fn weights(&self) -> Vec<&Tensor>;
    /// How many bytes of [`Model::weights`] the step of a single token does not read: those of experts that it does not take.
    fn unread_bytes(&self) -> u64 {
        0
    }
    /// How many bytes of weights other processes hold for this model.
    fn distant_bytes(&self) -> u64 {
        0
    }
    /// The named linear layers of the blocks, to which adapters can be attached.
    fn layers(&mut self) -> Vec<Layer<'_>>;
}

/// A linear layer of a model and its names in other formats.
pub struct Layer<'a> {
    /// Hugging Face's module, as `model.layers.0.self_attn.q_proj`.
    pub module: String,
    /// GGUF's tensor without its end, as `blk.0.attn_q`.
    pub tensor: String,
    /// The head size, if the file orders the rows of each head differently from Hugging Face: interleaved pairs instead of halves.
    pub head_rows: Option<usize>,
    /// Whether Hugging Face's matrix is `[in,out]`.
    pub transposed: bool,
    /// The layer.
    pub linear: &'a mut Projection,
}

/// The loss of predicting `targets` `[B,T]` from `tokens` `[B,T]`: the mean negative log-probability of the targets that are not negative.
///
/// # Errors
/// If the shapes differ, or those of the model.
///
/// ```
/// use tensorlogic::models::{self, Weights};
/// use tensorlogic::prelude::*;
/// let device = Device::cpu();
/// let model = models::load(&Weights::open("models/tiny/tiny.gguf", &device)?, None)?;
/// let (tokens, targets) = (Tensor::new(&[[30, 27, 25, 17]], &device)?, Tensor::new(&[[27, 25, 17, 27]], &device)?); // ROME, OMEO
/// let loss = models::loss(&*model, &tokens, &targets)?.item()?;
/// assert!(loss < 1.0); // to guess one of 65 characters costs ln 65 = 4.17
/// # Ok::<(), TensorError>(())
/// ```
pub fn loss(model: &dyn Model, tokens: &Tensor, targets: &Tensor) -> TensorResult<Tensor> {
    loss_with(model, tokens, targets, Reduction::Mean)
}

/// Like [`loss`], with a choice of reduction: the mean, the sum, or each target's loss.
///
/// # Errors
/// See [`loss`].
///
/// ```
/// use tensorlogic::models::{self, Weights};
/// use tensorlogic::prelude::*;
/// let device = Device::cpu();
/// let model = models::load(&Weights::open("models/tiny/tiny.gguf", &device)?, None)?;
/// let (tokens, targets) = (Tensor::new(&[[30, 27, 25, 17]], &device)?, Tensor::new(&[[27, 25, 17, 27]], &device)?); // ROME, OMEO
/// let mean = models::loss_with(&*model, &tokens, &targets, Reduction::Mean)?.item()?;
/// let sum = models::loss_with(&*model, &tokens, &targets, Reduction::Sum)?.item()?;
/// assert!((sum - 4.0 * mean).abs() < 1e-3); // of four targets
/// # Ok::<(), TensorError>(())
/// ```
pub fn loss_with(model: &dyn Model, tokens: &Tensor, targets: &Tensor, reduction: Reduction) -> TensorResult<Tensor> {
    loss_of(model, &mut Pass::tokens(tokens), targets, reduction)
}

/// Like [`loss_with`], of any pass without a cache, such as one with [`Pass::checkpointing`].
///
/// # Errors
/// See [`loss`].
///
/// ```
/// use tensorlogic::models::{self, Pass, Weights};
/// use tensorlogic::prelude::*;
/// let device = Device::cpu();
/// let model = models::load(&Weights::open("models/tiny/tiny.gguf", &device)?, None)?;
/// let (tokens, targets) = (Tensor::new(&[[30, 27, 25, 17]], &device)?, Tensor::new(&[[27, 25, 17, 27]], &device)?); // ROME, OMEO
/// let mut pass = Pass::tokens(&tokens).checkpointing(true);
/// let loss = models::loss_of(&*model, &mut pass, &targets, Reduction::Mean)?.item()?;
/// assert!((loss - models::loss(&*model, &tokens, &targets)?.item()?).abs() < 1e-3); // checkpoints change no value
/// # Ok::<(), TensorError>(())
/// ```
pub fn loss_of(model: &dyn Model, pass: &mut Pass<'_>, targets: &Tensor, reduction: Reduction) -> TensorResult<Tensor> {
    let logits = model.logits(&model.forward(pass, &mut KvCache::none())?)?;
    let vocab = *logits.dims().last().unwrap_or(&0);
    let options = NllOptions { ignore_index: -1, reduction, ..Default::default() };
    logits.reshape(((), vocab))?.cross_entropy_wide(&targets.flatten(0, -1)?, &options)
}

/// Sizes of a model.
#[derive(Clone, Debug)]
pub struct ModelShape {
    /// The architecture's name, as `llama`.
    pub architecture: &'static str,
    /// Blocks.
    pub layers: usize,
    /// Heads of queries of the first layer with attention; 0 without one.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Size of a head.
    pub head_dim: usize,
    /// Size of a hidden state.
    pub width: usize,
    /// Tokens in the vocabulary.
    pub vocab: usize,
    /// Positions the model was made for.
    pub context: usize,
    /// The dtype of activations and cache.
    pub dtype: DType,
    /// What each layer keeps of past tokens.
    pub cache: Arc<[LayerCache]>,
    /// Where each layer keeps it, if layers are distributed ([`LayerStages`]): on which device of this process, or with another rank (`None`). Empty where
    /// all layers are in one place.
    pub places: Arc<[Option<Device>]>,
}

/// Loads the model that `weights` hold. `dtype` is the type of activations; by default f32 on the CPU and f16 on a GPU (f32 for Gemma models,
/// whose residual stream overflows f16).
///
/// Every setting and every tensor of the file is used, known to have no effect on logits ([`settings::without_effect`]), or refused.
///
/// # Errors
/// When the architecture or a setting is not known or not implemented (the message names key, value and file), a tensor is left over, is
/// missing or of another shape than the settings say, or the system fails.
///
/// ```
/// use tensorlogic::models::{self, Weights};
/// use tensorlogic::{DType, Device};
/// let model = models::load(&Weights::open("models/tiny/tiny.gguf", &Device::cpu())?, None)?;
/// let shape = model.shape();
/// assert_eq!((shape.architecture, shape.layers, shape.heads, shape.width, shape.vocab), ("gpt2", 6, 6, 384, 65));
/// assert_eq!(shape.dtype, DType::F32); // of activations, on the CPU
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
pub fn load(weights: &Weights, dtype: Option<DType>) -> TensorResult<Box<dyn Model>> {
    let settings = Settings::new(weights)?;
    let description = describe(weights, &settings)?;
    let dtype = dtype.or(description.dtype).unwrap_or_else(|| weights.device().default_float());
    let model = Decoder::load(description, &settings, weights, dtype)?;
    let shape = model.shape();
    crate::events::model_loaded(shape.architecture, shape.layers, shape.context);
    Ok(Box::new(model))
}

/// An architecture of decoders that [`load`] reads from folders in Hub layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Supported {
    /// Its names: `model_type` of folders, `general.architecture` of GGUF files.
    pub names: &'static [&'static str],
    /// `general.architecture` of the GGUF file that a folder becomes ([`convert::write_gguf`]); such files are read. None where only folders are.
    pub gguf: Option<&'static str>,
}

/// The architectures of decoders.
///
/// ```
/// let qwen3 = tensorlogic::models::supported().find(|a| a.names.contains(&"qwen3")).unwrap();
/// assert_eq!(qwen3.gguf, Some("qwen3"));
/// let mistral = tensorlogic::models::supported().find(|a| a.names.contains(&"mistral")).unwrap();
/// assert_eq!(mistral.gguf, Some("llama"));
/// ```
pub fn supported() -> impl Iterator<Item = Supported> {
    architectures::ARCHITECTURES.iter().map(|a| Supported { names: a.names, gguf: a.gguf.map(|form| form.name) })
}

/// What the model of these settings consists of.
fn describe(weights: &Weights, settings: &Settings<'_>) -> TensorResult<decoder::Description> {
    let name = weights.architecture()?;
    let Some(known) = architectures::find(name) else {
        let key = if weights.is_hub() { "model_type" } else { "general.architecture" };
        let names: Vec<&str> = architectures::ARCHITECTURES.iter().map(|a| a.names[0]).collect();
        let (last, others) = names.split_last().unwrap_or((&"", &[]));
        let message = format!("{}: `{key}` is \"{name}\"; supported are {} and {last}", weights.file(), others.join(", "));
        return Err(TensorError::Unsupported(message));
    };
    known.described(settings)
}

/// A linear layer `x·wᵀ + b` with `w` `[out,in]`, which may be packed in a block format.
#[derive(Clone)]
pub struct Projection {
    /// `[out,in]`.
    pub weight: Tensor,
    /// `[out]`.
    pub bias: Option<Tensor>,
    /// What was learnt beside the weight.
    pub adapter: Option<Lora>,
    /// For each row the one of the file that it is, where they are in another order.
    pub(crate) file_rows: Option<Arc<[i32]>>,
    /// What it rounds activations to before it multiplies them by the weight: see [`Weights::round_activations`].
    pub(crate) rounding: Option<Rounding>,
}

impl Projection {
    /// A layer without an adapter.
    pub fn new(weight: Tensor, bias: Option<Tensor>) -> Projection {
        Projection { weight, bias, adapter: None, file_rows: None, rounding: None }
    }

    /// Output rows `start..start + len` as a layer of their own; the weight stays where it is.
    fn rows(&self, start: usize, len: usize) -> TensorResult<Projection> {
        let bias = self.bias.as_ref().map(|b| b.narrow(0, start, len)).transpose()?;
        Ok(Projection { rounding: self.rounding, ..Projection::new(self.weight.narrow(0, start, len)?, bias) })
    }

    /// The parts, of these sizes, of [`Projection::forward`]'s last dimension: slices of one product, or a product each.
    #[track_caller]
    pub(crate) fn parts<const N: usize>(&self, x: &Tensor, sizes: [usize; N]) -> TensorResult<[Tensor; N]> {
        let whole = match self.adapter.is_none() && x.splits_product(&self.weight) {
            true => None,
            false => Some(self.forward(x)?),
        };
        let (mut start, mut parts) = (0, Vec::with_capacity(N));
        for len in sizes {
            parts.push(match &whole {
                Some(y) => y.narrow(-1, start, len)?,
                None => self.rows(start, len)?.forward(x)?,
            });
            start += len;
        }
        parts.try_into().map_err(|_| TensorError::Internal(format!("not {N} parts of a product")))
    }

    /// `[…,in]` to `[…,out]`.
    ///
    /// # Errors
    /// Those of [`Tensor::matmul`], for a last dimension of another size; those of adding the bias and of the adapter.
    ///
    /// ```
    /// use tensorlogic::models::Projection;
    /// use tensorlogic::prelude::*;
    /// let device = Device::cpu();
    /// let (weight, bias) = (Tensor::new(&[[1.0, 2.0], [3.0, 4.0]], &device)?, Tensor::new(&[10.0, 20.0], &device)?);
    /// let y = Projection::new(weight, Some(bias)).forward(&Tensor::new(&[[1.0, 1.0]], &device)?)?;
    /// assert_eq!(y.to_vec2::<f32>()?, [[13.0, 27.0]]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> TensorResult<Tensor> {
        let mut y = match self.rounding {
            Some(Rounding::Int8) => x.matmul_int8(&self.weight)?,
            Some(Rounding::Bf16) => x.cast(DType::BF16)?.cast(x.dtype())?.matmul(&self.weight.unpacked_for(x)?.t()?)?,
            None => x.matmul(&self.weight.unpacked_for(x)?.t()?)?,
        };
        if let Some(b) = &self.bias {
            // A bias in f32 must not make the activations f32; the sum is rounded once.
            y = y.add(b)?.cast(x.dtype())?;
        }
        match &self.adapter {
            Some(a) => y.add(&a.forward(x)?),
            None => Ok(y),
        }
    }
}

/// `[B,T,H·D]` to `[B,H,T,D]`.
pub(crate) fn split_heads(x: &Tensor, heads: usize) -> TensorResult<Tensor> {
    let (b, t, d) = (x.dims()[0], x.dims()[1], x.dims()[2] / heads);
    x.reshape(&[b, t, heads, d])?.transpose(1, 2)
}

/// `[B,H,T,D]` to `[B,T,H·D]`.
pub(crate) fn merge_heads(x: &Tensor) -> TensorResult<Tensor> {
    let &[b, h, t, d] = x.dims() else { return Err(TensorError::Value(format!("merge_heads of {}", x.shape()))) };
    x.transpose(1, 2)?.reshape(&[b, t, h * d])
}
