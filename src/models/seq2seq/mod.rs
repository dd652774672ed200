//! Models of two stacks, an encoder that reads a source and a decoder that writes: T5 from text, Whisper from sound.

pub(crate) mod description;
mod layer;
pub mod speech;

use crate::autograd::no_grad;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::models::architectures::seq2seq;
use crate::models::block::Block;
use crate::models::decoder::mixers;
use crate::models::decoder::norm::Norm;
use crate::models::decoder::{Context, DecoderLayer, Description, normed};
use crate::models::encoder::relative;
use crate::models::inference::{Inputs, MASKED};
use crate::models::settings::Settings;
use crate::models::weights::Tensors;
use crate::models::{KvCache, ModelShape, Projection, Weights};
use crate::ops::convolution::{ConvOptions, WindowOptions};
use crate::tensor::Tensor;
use description::Seq2SeqSpec;
use layer::{CrossLayer, SourceKeys};
use std::panic::Location;

/// An encoder and a decoder: T5 (Raffel et al., 2020), Whisper (Radford et al., 2022).
pub struct Seq2Seq {
    spec: Seq2SeqSpec,
    /// Of the decoder.
    shape: ModelShape,
    tokens: Tensor, // [V, d]
    encoder: Stack<DecoderLayer>,
    decoder: Stack<CrossLayer>,
    convolutions: Option<[Projection; 2]>, // [d, mels, 3], [d, d, 3]
    head: Projection,                      // d → V
}

/// Layers and what is around them.
struct Stack<L> {
    positions: Option<Tensor>, // [context, d]
    relative: Option<Tensor>,  // [rows, H]
    layers: Vec<L>,
    norm: Option<Norm>,
}

/// What a decoder looks at: a batch of sources that the encoder has read.
pub struct Source {
    states: Tensor, // [B, S, d]
    keys: Vec<SourceKeys>,
    mask: Option<Tensor>, // [B, 1, 1, S]
}

impl Source {
    /// The encoder's last states `[B,S,d]` in f32.
    ///
    /// # Errors
    /// Those of the evaluation.
    ///
    /// ```
    /// use tensorlogic::models::inference::{Inputs, Padding};
    /// use tensorlogic::models::{Seq2Seq, Weights};
    /// use tensorlogic::prelude::*;
    /// let model = Seq2Seq::load(&Weights::open("tests/vectors/encoders/models2/t5-relu", &Device::cpu())?, None)?;
    /// let source = model.read(&Inputs::padded(&[vec![5, 6, 7, 1], vec![8, 1]], Padding::Right)?)?;
    /// assert_eq!((source.batch(), source.states()?.dims()), (2, &[2, 4, 48][..]));
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn states(&self) -> TensorResult<Tensor> {
        self.states.cast(DType::F32)
    }

    /// The number of sources.
    pub fn batch(&self) -> usize {
        self.states.dims()[0]
    }
}

impl<L> Stack<L> {
    fn load(w: &Tensors<'_>, d: &Description, spec: &Seq2SeqSpec, layers: Vec<L>) -> TensorResult<Stack<L>> {
        let positions = d.embed.positions.map(|p| w.tensor("position_embd.weight", &[d.context + p.offset, d.width])).transpose()?;
        let heads = d.layers.first().and_then(|l| l.mixer.attention()).map_or(0, |a| a.heads);
        let relative = spec.relative.map(|r| w.tensor("relative_bias.weight", &[r.rows, heads])).transpose()?;
        Ok(Stack { positions, relative, layers, norm: Norm::load_if(w, "output_norm", d.final_norm.then_some(d.norm), d.width)? })
    }
}

impl Seq2Seq {
    /// Whether weights are those of such a model.
    ///
    /// # Errors
    /// [`TensorError::Format`] where the file does not name its architecture.
    ///
    /// ```
    /// use tensorlogic::Device;
    /// use tensorlogic::models::{Seq2Seq, Weights};
    /// let has_two_stacks = |path: &str| Seq2Seq::is_for(&Weights::open(path, &Device::cpu())?);
    /// assert!(has_two_stacks("tests/vectors/encoders/models2/t5-relu")?);
    /// assert!(!has_two_stacks("models/tiny/tiny.gguf")?); // a decoder alone
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn is_for(weights: &Weights) -> TensorResult<bool> {
        Ok(seq2seq::find(weights.architecture()?).is_some())
    }

    /// Loads the model that a folder in Hub layout holds. `dtype` is the type of activations; by default f32, since T5's overflow f16.
    ///
    /// # Errors
    /// As for [`load`](crate::models::load); [`TensorError::Unsupported`] for a GGUF file.
    ///
    /// ```
    /// use tensorlogic::Device;
    /// use tensorlogic::models::{Seq2Seq, Weights};
    /// let model = Seq2Seq::load(&Weights::open("tests/vectors/encoders/models2/t5-relu", &Device::cpu())?, None)?;
    /// assert_eq!((model.start(), model.ends()), (0, &[1][..])); // of the answer
    /// assert_eq!((model.shape().layers, model.shape().vocab), (3, 320));
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn load(weights: &Weights, dtype: Option<DType>) -> TensorResult<Seq2Seq> {
        let Some(known) = seq2seq::find(weights.architecture()?).filter(|_| weights.is_hub()) else {
            let names: Vec<&str> = seq2seq::SEQ2SEQ.iter().map(|a| a.name).collect();
            let message = format!(
                "{}: `model_type` is \"{}\"; of models with two stacks, those in Hub folders of {} are supported",
                weights.file(),
                weights.architecture()?,
                names.join(" and ")
            );
            return Err(TensorError::Unsupported(message));
        };
        let dtype = dtype.unwrap_or(DType::F32);
        let settings = Settings::new(weights)?;
        let spec = (known.describe)(&settings)?;
        let names = [spec.encoder.names.clone(), spec.decoder.names.clone()];
        let [w, dw] = [0, 1].map(|i| Tensors::new(weights, &settings, &names[i], dtype));
        let (e, d) = (&spec.encoder, &spec.decoder);
        let tokens = w.embedding(d.width)?;
        let layers = e.layers.iter().enumerate().map(|(i, l)| DecoderLayer::load(&w, i, l, e.width)).collect::<TensorResult<Vec<_>>>()?;
        let encoder = Stack::load(&w, e, &spec, layers)?;
        let layers = d.layers.iter().enumerate().map(|(i, l)| CrossLayer::load(&dw, i, l, d.width)).collect::<TensorResult<Vec<_>>>()?;
        let decoder = Stack::load(&dw, d, &spec, layers)?;
        let convolution = |name: &str, inputs: usize| {
            let (weight, bias) = (w.tensor(&format!("{name}.weight"), &[e.width, inputs, 3])?, w.vector(&format!("{name}.bias"), e.width)?);
            Ok::<_, TensorError>(Projection::new(weight, Some(bias)))
        };
        let convolutions = match spec.audio {
            Some(audio) => Some([convolution("conv1", audio.mels)?, convolution("conv2", e.width)?]),
            None => None,
        };
        let head = w.head(&tokens, true, false)?;
        settings.finish_encoder_decoder()?;
        dw.add_to(&w);
        w.finish(e.unused, &[])?;
        let Some(first) = d.layers.first().and_then(|l| l.mixer.attention()) else {
            return Err(TensorError::Internal("a decoder without layers".into()));
        };
        let shape = ModelShape {
            architecture: d.architecture,
            layers: d.layers.len(),
            heads: first.heads,
            kv_heads: first.kv_heads,
            head_dim: first.head_dim,
            width: d.width,
            vocab: tokens.dims()[0],
            context: d.context,
            dtype,
            cache: d.layers.iter().map(|l| mixers::cache(l, d.width, dtype)).collect(),
            places: std::sync::Arc::default(),
        };
        crate::events::model_loaded(shape.architecture, shape.layers, shape.context);
        Ok(Seq2Seq { shape, tokens, encoder, decoder, convolutions, head, spec })
    }

    /// Sizes of the decoder.
    pub fn shape(&self) -> &ModelShape {
        &self.shape
    }

    /// The token that every answer begins with.
    pub fn start(&self) -> u32 {
        self.spec.start
    }

    /// The tokens that end an answer.
    pub fn ends(&self) -> &[u32] {
        &self.spec.ends
    }

    /// The device of the weights.
    pub fn device(&self) -> &Device {
        self.tokens.device()
    }

    /// Reads a batch of texts, padded on the right.
    ///
    /// # Errors
    /// [`TensorError::Argument`] when an input has a wrong shape, dtype or value; [`TensorError::Unsupported`] for a model that reads sound.
    ///
    /// ```
    /// use tensorlogic::models::inference::{Inputs, Padding};
    /// use tensorlogic::models::{Seq2Seq, Weights};
    /// use tensorlogic::prelude::*;
    /// let model = Seq2Seq::load(&Weights::open("tests/vectors/encoders/models2/t5-relu", &Device::cpu())?, None)?;
    /// let source = model.read(&Inputs::padded(&[vec![5, 6, 7, 1]], Padding::Right)?)?;
    /// assert_eq!(source.states()?.dims(), [1, 4, 48]);
    /// assert!(model.read(&Inputs::padded(&[vec![320]], Padding::Right)?).is_err()); // not in the vocabulary
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn read(&self, inputs: &Inputs) -> TensorResult<Source> {
        if self.spec.audio.is_some() {
            return Err(TensorError::Unsupported("this model reads sound (`Seq2Seq::listen`), not text".into()));
        }
        let context = self.spec.encoder.context;
        let c = inputs.check(&ModelShape { context, ..self.shape.clone() }, Location::caller())?;
        let device = self.device();
        no_grad(|| {
            let Some(ids) = c.tokens else { return Err(TensorError::Unsupported("this model reads tokens, not embeddings".into())) };
            let x = self.tokens.embedding(&Tensor::from_vec(ids, &[c.batch, c.len], device)?)?.cast(self.shape.dtype)?;
            let hidden = |&v: &bool| if v { 0.0 } else { MASKED };
            let mask = match c.valid.contains(&false) {
                true => Some(Tensor::from_vec(c.valid.iter().map(hidden).collect(), &[c.batch, 1, 1, c.len], device)?),
                false => None,
            };
            let biases = match (&self.encoder.relative, self.spec.relative) {
                (Some(table), Some(r)) => Some(relative::biases(table, r, c.len, device)?),
                _ => None,
            };
            self.source(x, mask, biases)
        })
    }

    /// Reads a batch of spectrograms `[B,mels,frames]`.
    ///
    /// # Errors
    /// [`TensorError::Value`] for another shape, [`TensorError::Unsupported`] for a model that reads text.
    ///
    /// ```
    /// use tensorlogic::models::{Seq2Seq, Weights};
    /// use tensorlogic::prelude::*;
    /// let model = Seq2Seq::load(&Weights::open("tests/vectors/encoders/models2/whisper-base", &Device::cpu())?, None)?;
    /// let source = model.listen(&Tensor::zeros(&[1, 20, 60], DType::F32, &Device::cpu())?)?; // 20 bands, 60 frames
    /// assert_eq!(source.states()?.dims(), [1, 30, 48]); // a state for two frames
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn listen(&self, features: &Tensor) -> TensorResult<Source> {
        let (Some(audio), Some([first, second])) = (self.spec.audio, &self.convolutions) else {
            return Err(TensorError::Unsupported("this model reads text (`Seq2Seq::read`), not sound".into()));
        };
        if features.rank() != 3 || features.dims()[1..] != [audio.mels, audio.frames] {
            let (mels, frames) = (audio.mels, audio.frames);
            return Err(TensorError::Value(format!("features have shape {}; this model reads [B,{mels},{frames}]", features.shape())));
        }
        no_grad(|| {
            let run = |x: &Tensor, c: &Projection, stride: usize| {
                let windows = WindowOptions { stride: vec![stride], padding: vec![(1, 1)], ..WindowOptions::default() };
                let options = ConvOptions { windows, ..ConvOptions::default() };
                crate::models::activation::ActivationFn::GeluExact.of(&x.conv(&c.weight, c.bias.as_ref(), &options)?)
            };
            let x = run(&run(&features.to_device(self.device())?.cast(self.shape.dtype)?, first, 1)?, second, 2)?;
            let mut x = x.transpose(1, 2)?.contiguous()?; // [B, S, d]
            if let Some(table) = &self.encoder.positions {
                x = x.add(&table.cast(self.shape.dtype)?)?;
            }
            self.source(x, None, None)
        })
    }

    /// Runs the encoder, and computes what the decoder's layers look at.
    fn source(&self, mut x: Tensor, mask: Option<Tensor>, biases: Option<Tensor>) -> TensorResult<Source> {
        let context = Context { ropes: [].into(), mask: mask.clone(), biases, kv_len: None, causal: false, per_layer: None };
        for (i, layer) in self.encoder.layers.iter().enumerate() {
            x = layer.run(i, &x, &context, &mut KvCache::none())?;
        }
        let states = normed(self.encoder.norm.as_ref(), &x)?;
        let keys = self.decoder.layers.iter().map(|l| l.source(&states)).collect::<TensorResult<Vec<_>>>()?;
        let all: Vec<&Tensor> = std::iter::once(&states).chain(keys.iter().flat_map(|(k, v)| [k, v])).collect();
        crate::eval::eval_all(&all)?;
        Ok(Source { states, keys, mask })
    }

    /// Logits `[B,T,V]` in f32 after each of the tokens `[B,T]`, which follow those of the cache.
    ///
    /// # Errors
    /// [`TensorError::Value`] where tokens are not `[B,T]` with a row for each source, or do not fit into the context.
    ///
    /// ```
    /// use tensorlogic::models::inference::{Inputs, Padding};
    /// use tensorlogic::models::{KvCache, Seq2Seq, Weights};
    /// use tensorlogic::prelude::*;
    /// let model = Seq2Seq::load(&Weights::open("tests/vectors/encoders/models2/t5-relu", &Device::cpu())?, None)?;
    /// let source = model.read(&Inputs::padded(&[vec![5, 6, 7, 1]], Padding::Right)?)?;
    /// let mut cache = KvCache::new(model.shape(), 8, model.device())?;
    /// let logits = model.logits(&Tensor::new(&[[0, 9]], &Device::cpu())?, &source, &mut cache)?;
    /// assert_eq!((logits.dims(), cache.len()), (&[1, 2, 320][..], 2));
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn logits(&self, tokens: &Tensor, source: &Source, cache: &mut KvCache) -> TensorResult<Tensor> {
        let (start, device, dtype) = (cache.len(), self.device(), self.shape.dtype);
        let &[batch, len] = tokens.dims() else {
            return Err(TensorError::Value(format!("tokens have shape {}; expected [B,T]", tokens.shape())));
        };
        if batch != source.batch() || start + len > self.shape.context {
            let (sources, context) = (source.batch(), self.shape.context);
            return Err(TensorError::Value(format!(
                "{batch} rows of {} tokens for {sources} sources in a context of {context}",
                start + len
            )));
        }
        no_grad(|| {
            let mut x = self.tokens.embedding(&tokens.to_device(device)?)?.cast(dtype)?;
            if let Some(table) = &self.decoder.positions {
                x = x.add(&table.narrow(0, start, len)?.cast(dtype)?)?;
            }
            let keys = if cache.valid(len).is_some() { cache.capacity() } else { len };
            let biases = match (&self.decoder.relative, self.spec.relative) {
                (Some(table), Some(r)) => Some(relative::biases_behind(table, r, start..start + len, keys, device)?),
                _ => None,
            };
            let context = Context { ropes: [].into(), mask: None, biases, kv_len: cache.valid(len), causal: true, per_layer: None };
            for (i, (layer, keys)) in self.decoder.layers.iter().zip(&source.keys).enumerate() {
                x = layer.run(i, &x, &context, keys, source.mask.as_ref(), cache)?;
            }
            cache.advance(len);
            let x = normed(self.decoder.norm.as_ref(), &x)?;
            let x = self.spec.head_scale.map_or_else(|| Ok(x.clone()), |scale| x.mul(scale as f32))?;
            self.head.forward(&x)?.cast(DType::F32)
        })
    }

    /// The likeliest token after each other, for one source, behind `prompt` (the start token where it is empty), up to `max` new ones or a token that
    /// ends the answer, which is the last one then. `allowed` says whether a token may stand behind so many new ones.
    ///
    /// # Errors
    /// Those of [`Seq2Seq::logits`]; [`TensorError::Value`] for more than one source.
    ///
    /// ```
    /// use tensorlogic::models::inference::{Inputs, Padding};
    /// use tensorlogic::models::{Seq2Seq, Weights};
    /// use tensorlogic::prelude::*;
    /// let model = Seq2Seq::load(&Weights::open("tests/vectors/encoders/models2/t5-relu", &Device::cpu())?, None)?;
    /// let text = vec![231u32, 106, 77, 315, 58, 104, 206, 252, 205, 278, 18, 126, 184, 141, 126, 121, 15, 36, 175, 154];
    /// let source = model.read(&Inputs::padded(&[text], Padding::Right)?)?;
    /// assert_eq!(model.greedy(&source, &[], 3, |_, _| true)?, [236, 241, 241]); // as transformers answers
    /// assert_ne!(model.greedy(&source, &[], 1, |_, token| token != 236)?, [236]);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn greedy(&self, source: &Source, prompt: &[u32], max: usize, allowed: impl Fn(usize, u32) -> bool) -> TensorResult<Vec<u32>> {
        if source.batch() != 1 {
            return Err(TensorError::Value(format!("greedy: {} sources; expected one", source.batch())));
        }
        let start = [self.spec.start];
        let prompt = if prompt.is_empty() { &start[..] } else { prompt };
        let room = (prompt.len() + max).min(self.shape.context);
        let mut cache = KvCache::new(&self.shape, room, self.device())?;
        let (mut next, mut out) = (prompt.to_vec(), Vec::new());
        while out.len() < max && cache.len() + next.len() <= room {
            let ids: Vec<i32> = next.iter().map(|&id| id as i32).collect();
            let tokens = Tensor::from_vec(ids, &[1, next.len()], self.device())?;
            let logits = self.logits(&tokens, source, &mut cache)?;
            let last = logits.narrow(1, next.len() - 1, 1)?.to_vec()?;
            let fits = last.iter().enumerate().filter(|(id, _)| allowed(out.len(), *id as u32));
            let Some((best, _)) = fits.max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0))) else { break };
            out.push(best as u32);
            if self.spec.ends.contains(&(best as u32)) {
                break;
            }
            next = vec![best as u32];
        }
        Ok(out)
    }
}
