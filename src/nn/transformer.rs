//! A trainable GPT-2. Parameters have the names of Hugging Face's `gpt2`; weights are `[outputs, inputs]`.

use super::{Dropout, Embedding, LayerNorm, Linear, Module, MultiHeadAttention, checkpointed};
use crate::device::Device;
use crate::error::{TensorError, TensorResult};
use crate::ops::loss::NllOptions;
use crate::ops::random::Rng;
use crate::tensor::Tensor;
use std::sync::Arc;

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
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::nn::{Gpt, GptConfig, ModuleExt};
    ///
    /// let config = GptConfig { vocab: 65, context: 8, layers: 1, heads: 2, width: 16, bias: false, dropout: 0.0 };
    /// let model = Gpt::new(config, &mut Rng::new(1), &Device::cpu())?;
    /// // Embeddings of tokens and positions, twelve squares of the width in the block, three norms.
    /// assert_eq!(model.parameter_count(), 65 * 16 + 8 * 16 + 12 * 16 * 16 + 3 * 16);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn new(config: GptConfig, rng: &mut Rng, device: &Device) -> TensorResult<Gpt> {
        Gpt::padded(config, 1, rng, device)
    }

    /// A model whose table of embeddings has `vocab` rounded up to a multiple of `multiple` rows ([`super::align`]), for the speed of the product that
    /// gives the logits. Weights, logits and loss are those of [`Gpt::new`]: the rows added are no tokens, get no gradient and are not saved by
    /// [`GptConfig::weights_to_hub`].
    ///
    /// # Errors
    /// Those of [`Gpt::new`].
    ///
    /// ```
    /// # use tensorlogic::nn::{Gpt, GptConfig, Module};
    /// # use tensorlogic::{Device, Rng, Tensor, TensorResult};
    /// # fn main() -> TensorResult<()> {
    /// let config = GptConfig { vocab: 65, context: 8, layers: 1, heads: 2, width: 16, bias: false, dropout: 0.0 };
    /// let device = Device::cpu();
    /// let model = Gpt::padded(config, 64, &mut Rng::new(1), &device)?;
    /// let logits = model.forward(&Tensor::new(&[[1, 64]], &device)?)?;
    /// assert_eq!(logits.dims(), [1, 2, 65]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn padded(config: GptConfig, multiple: usize, rng: &mut Rng, device: &Device) -> TensorResult<Gpt> {
        let c = config;
        let proj = 0.02 / (2.0 * c.layers as f64).sqrt();
        // Every dropout has a stream of its own, all from the one seed.
        let mut seed = rng.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut drop = || {
            seed = seed.wrapping_add(0xD1B5_4A32_D192_ED03);
            Dropout::new(c.dropout, seed)
        };
        let wte = Embedding::new(super::align(c.vocab, multiple), c.width, 0.02, rng, device)?;
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

    /// Sets the dropout probability of attention weights; by default it equals that of everything else.
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
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::nn::{Gpt, GptConfig};
    ///
    /// let config = GptConfig { vocab: 65, context: 8, layers: 1, heads: 2, width: 16, bias: false, dropout: 0.0 };
    /// let model = Gpt::new(config, &mut Rng::new(1), &Device::cpu())?;
    /// let (tokens, targets) = (Tensor::new(&[[5, 6, 7]], &Device::cpu())?, Tensor::new(&[[6, 7, 8]], &Device::cpu())?);
    /// // Before training, all 65 tokens are about equally likely.
    /// assert!((model.loss(&tokens, &targets)?.item()? - 65f64.ln()).abs() < 0.5);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn loss(&self, tokens: &Tensor, targets: &Tensor) -> TensorResult<Tensor> {
        let logits = self.forward(tokens)?.reshape(((), self.config.vocab))?;
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
            x = if self.checkpointing { checkpointed(b, &x)? } else { b.forward(&x)? };
        }
        let logits = self.ln_f.forward(&x)?.matmul(&self.wte.weight.get().t()?)?;
        if logits.shape()[2] == self.config.vocab { Ok(logits) } else { logits.narrow(-1, 0, self.config.vocab) }
    }
    fn children(&self) -> Vec<(String, &dyn Module)> {
        let mut list: Vec<(String, &dyn Module)> = vec![("wte".into(), &self.wte), ("wpe".into(), &self.wpe), ("drop".into(), &self.drop)];
        list.extend(self.blocks.iter().enumerate().map(|(i, b)| (format!("h.{i}"), &**b as &dyn Module)));
        list.push(("ln_f".into(), &self.ln_f));
        list
    }
}
