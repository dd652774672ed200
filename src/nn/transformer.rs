//! Attention and a trainable GPT-2. Parameters have the names of Hugging Face's `gpt2`; weights are `[outputs, inputs]`.

use super::{Dropout, Embedding, LayerNorm, Linear, Module, ModuleExt};
use crate::autograd::checkpoint;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::ops::attention::AttentionOptions;
use crate::ops::loss::NllOptions;
use crate::ops::random::Rng;
use crate::tensor::Tensor;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Causal or full self-attention with several heads (Vaswani et al., 2017) over `[B, T, width]`. One product computes queries, keys and values.
pub struct MultiHeadAttention {
    /// `[3·width, width]`.
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

    /// Attention with dropout of its weights. The fused kernel does not support it, so the weights `[B, H, T, T]` are stored.
    fn dropped(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> TensorResult<Tensor> {
        let t = q.shape()[2];
        let scores = q.mul(1.0 / (q.shape()[3] as f64).sqrt())?.matmul(&k.transpose(-2, -1)?)?;
        let scores = if self.causal {
            let at = Tensor::arange(0.0, t as f64, 1.0, DType::I32, q.device())?;
            scores.masked_fill(&at.unsqueeze(1)?.lt(&at)?, f64::NEG_INFINITY)?
        } else {
            scores
        };
        self.drop.forward(&scores.softmax(-1)?)?.matmul(v)
    }
}

impl Module for MultiHeadAttention {
    fn forward(&self, x: &Tensor) -> TensorResult<Tensor> {
        let [b, t, c] = [x.shape()[0], x.shape()[1], x.shape()[2]];
        let qkv = self.c_attn.forward(x)?;
        let head = |n: usize| {
            let part = qkv.narrow(-1, n * c, c)?;
            part.reshape(&[b as isize, t as isize, self.heads as isize, (c / self.heads) as isize])?.transpose(1, 2)
        };
        let (q, k, v) = (head(0)?, head(1)?, head(2)?);
        let y = if self.drop.is_active() {
            self.dropped(&q, &k, &v)?
        } else {
            q.attention(&k, &v, None, &AttentionOptions { causal: self.causal, ..Default::default() })?
        };
        self.c_proj.forward(&y.transpose(1, 2)?.reshape(&[b as isize, t as isize, c as isize])?)
    }
    fn children(&self) -> Vec<(String, &dyn Module)> {
        vec![("c_attn".into(), &self.c_attn), ("c_proj".into(), &self.c_proj), ("drop".into(), &self.drop)]
    }
}

/// The configuration of a [`Gpt`].
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct GptConfig {
    /// Tokens in the vocabulary.
    pub vocab: usize,
    /// Positions.
    pub context: usize,
    /// Blocks.
    pub layers: usize,
    /// Attention heads.
    pub heads: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Whether linear layers and norms have a bias.
    pub bias: bool,
    /// Probability of dropping an element while training.
    pub dropout: f64,
}

impl GptConfig {
    /// GPT-2 124M.
    pub const GPT2: GptConfig = GptConfig { vocab: 50257, context: 1024, layers: 12, heads: 12, width: 768, bias: true, dropout: 0.0 };
}

struct TransformerBlock {
    ln_1: LayerNorm,
    attn: MultiHeadAttention,
    ln_2: LayerNorm,
    c_fc: Linear,
    c_proj: Linear,
    drop: [Dropout; 2],
}

impl TransformerBlock {
    /// The result. Only the input is kept for the backward pass, which recomputes the rest with the same dropout.
    fn checkpointed(self: &Arc<TransformerBlock>, x: &Tensor) -> TensorResult<Tensor> {
        let (block, before, again) = (self.clone(), self.random_state(), AtomicBool::new(false));
        let run = move |x: &[Tensor]| {
            if !again.swap(true, Ordering::Relaxed) {
                return block.forward(&x[0]);
            }
            let now = block.random_state();
            block.load_random_state(&before)?;
            let y = block.forward(&x[0]);
            block.load_random_state(&now)?;
            y
        };
        checkpoint(run, &[x])
    }
}

impl Module for TransformerBlock {
    fn forward(&self, x: &Tensor) -> TensorResult<Tensor> {
        let x = x.add(&self.drop[0].forward(&self.attn.forward(&self.ln_1.forward(x)?)?)?)?;
        let h = self.c_fc.forward(&self.ln_2.forward(&x)?)?.gelu_tanh()?;
        x.add(&self.drop[1].forward(&self.c_proj.forward(&h)?)?)
    }
    fn children(&self) -> Vec<(String, &dyn Module)> {
        vec![
            ("ln_1".into(), &self.ln_1),
            ("attn".into(), &self.attn),
            ("ln_2".into(), &self.ln_2),
            ("mlp.c_fc".into(), &self.c_fc),
            ("mlp.c_proj".into(), &self.c_proj),
            ("drop.0".into(), &self.drop[0]),
            ("drop.1".into(), &self.drop[1]),
        ]
    }
}

/// GPT-2 (Radford et al., 2019): learned positions, norms before each part, output weights tied to the embedding.
pub struct Gpt {
    /// Its shape.
    pub config: GptConfig,
    wte: Embedding,
    wpe: Embedding,
    drop: Dropout,
    blocks: Vec<Arc<TransformerBlock>>,
    ln_f: LayerNorm,
    checkpointing: bool,
}

impl Gpt {
    /// A model with GPT-2's initialisation: normal with standard deviation 0.02, and 1/√(2·layers) of that for projections into the residual stream.
    ///
    /// # Errors
    /// [`TensorError::Config`] where the width is not divisible by the number of heads; when a parameter would have too many elements.
    pub fn new(config: GptConfig, rng: &mut Rng, device: &Device) -> TensorResult<Gpt> {
        let c = config;
        let proj = 0.02 / (2.0 * c.layers as f64).sqrt();
        // Every dropout has a stream of its own, all from the one seed.
        let mut seed = rng.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut drop = || {
            seed = seed.wrapping_add(0xD1B5_4A32_D192_ED03);
            Dropout::new(c.dropout, seed)
        };
        let wte = Embedding::new(c.vocab, c.width, 0.02, rng, device)?;
        let wpe = Embedding::new(c.context, c.width, 0.02, rng, device)?;
        let first = drop();
        let mut blocks = Vec::new();
        for _ in 0..c.layers {
            let mut attn = MultiHeadAttention::new(c.width, c.heads, true, c.bias, [0.02, proj], rng, device)?;
            attn.drop = drop();
            blocks.push(Arc::new(TransformerBlock {
                ln_1: LayerNorm::new(c.width, c.bias, 1e-5, device)?,
                attn,
                ln_2: LayerNorm::new(c.width, c.bias, 1e-5, device)?,
                c_fc: Linear::normal(c.width, 4 * c.width, c.bias, 0.02, rng, device)?,
                c_proj: Linear::normal(4 * c.width, c.width, c.bias, proj, rng, device)?,
                drop: [drop(), drop()],
            }));
        }
        Ok(Gpt { config, wte, wpe, drop: first, blocks, ln_f: LayerNorm::new(c.width, c.bias, 1e-5, device)?, checkpointing: false })
    }

    /// Sets the dropout probability of attention weights; by default it equals that of everything else. At 0, attention is a single fused
    /// kernel in training, too.
    pub fn set_attention_dropout(&mut self, p: f64) {
        self.blocks.iter().for_each(|b| b.attn.drop.set_probability(p));
    }

    /// Whether each block keeps only its input for the backward pass and recomputes the rest (Chen et al., 2016): less memory, more time.
    pub fn set_checkpointing(&mut self, on: bool) {
        self.checkpointing = on;
    }

    /// The loss of predicting `targets` `[B, T]` from `tokens` `[B, T]`: the mean negative log-probability, a scalar.
    ///
    /// # Errors
    /// When `tokens` is not `[B, T]` with T within the context, or `targets` does not have an integer for each of them.
    pub fn loss(&self, tokens: &Tensor, targets: &Tensor) -> TensorResult<Tensor> {
        let logits = self.forward(tokens)?.reshape(&[-1, self.config.vocab as isize])?;
        // The logits stay as the product gives them: as f32 they would be the largest tensor of a step.
        logits.cross_entropy_wide(&targets.flatten(0, -1)?, &NllOptions::default())
    }
}

impl Module for Gpt {
    /// Logits `[B, T, vocab]` for tokens `[B, T]`.
    fn forward(&self, tokens: &Tensor) -> TensorResult<Tensor> {
        if tokens.rank() != 2 || tokens.shape()[1] > self.config.context {
            let m = format!("tokens are {}, not [B, T] with T at most {}", tokens.shape(), self.config.context);
            return Err(TensorError::shape("gpt", std::panic::Location::caller(), m));
        }
        let t = tokens.shape()[1];
        let positions = self.wpe.weight.get().narrow(0, 0, t)?;
        let mut x = self.drop.forward(&self.wte.forward(tokens)?.add(&positions)?)?;
        for b in &self.blocks {
            x = if self.checkpointing { b.checkpointed(&x)? } else { b.forward(&x)? };
        }
        self.ln_f.forward(&x)?.matmul(&self.wte.weight.get().t()?)
    }
    fn children(&self) -> Vec<(String, &dyn Module)> {
        let mut list: Vec<(String, &dyn Module)> = vec![("wte".into(), &self.wte), ("wpe".into(), &self.wpe), ("drop".into(), &self.drop)];
        list.extend(self.blocks.iter().enumerate().map(|(i, b)| (format!("h.{i}"), &**b as &dyn Module)));
        list.push(("ln_f".into(), &self.ln_f));
        list
    }
}
