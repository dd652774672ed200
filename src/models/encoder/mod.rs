//! Encoders of texts: the layers of a decoder whose tokens see each other, for embeddings, masked tokens and labels of texts.

pub(crate) mod description;
mod read_out;
pub(crate) mod relative;
mod sentence;

pub use sentence::Embedder;

use crate::autograd::no_grad;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{At, TensorError, TensorResult};
use crate::eval::eval_all;
use crate::models::activation::ActivationFn;
use crate::models::architectures::{self, encoders};
use crate::models::block::Block;
use crate::models::decoder::norm::Norm;
use crate::models::decoder::rope::Rope;
use crate::models::decoder::{Context, DecoderLayer, normed};
use crate::models::inference::inputs::{Checked, wrong};
use crate::models::inference::outputs::{pooled, token_states};
use crate::models::inference::{Inputs, MASKED, Pooling};
use crate::models::settings::{NONE, Settings};
use crate::models::weights::Tensors;
use crate::models::{KvCache, ModelShape, Pass, Weights};
use crate::tensor::Tensor;
use description::{DenseSpec, EncoderSpec, ReadOutTo};
use read_out::{Head, HeadDense};
use std::panic::Location;
use std::sync::Arc;

/// An encoder of texts, or a decoder without its head whose states serve as embeddings: BERT, RoBERTa, XLM-R, DistilBERT, MPNet, Nomic BERT,
/// Jina v3, ModernBERT, EuroBERT, EmbeddingGemma, Qwen 3 Embedding and other decoders.
pub struct Encoder {
    shape: ModelShape,
    spec: EncoderSpec,
    tokens: Tensor,            // [V, d]
    positions: Option<Tensor>, // [context + offset, d]
    types: Option<Tensor>,     // [types, d]
    embed_norm: Option<Norm>,
    layers: Vec<DecoderLayer>,
    norm: Option<Norm>,
    ropes: Vec<Rope>,
    relative: Option<Tensor>, // [rows, H]
    pooler: Option<HeadDense>,
    head: Option<Head>,
    /// What turns a label's logit into a score.
    score: ActivationFn,
}

/// The results of [`Encoder::run`], in f32 and in host memory: tensors of [`Device::cpu`].
#[derive(Clone, Debug)]
pub struct EncoderOutputs {
    /// Hidden states `[B,T,d]` after the last layer: transformers' `last_hidden_state`. Those of padding mean nothing.
    pub hidden_states: Tensor,
    /// With [`Encoder::run_keeping_layers`], transformers' `hidden_states`: the input `[B,T,d]` of each layer, and last `hidden_states`.
    pub layers: Option<Vec<Tensor>>,
    /// tanh(W·h + b) `[B,d]` of the first token of each text, where the model has such a layer: transformers' `pooler_output`.
    pub pooler: Option<Tensor>,
    /// Logits of tokens `[B,T,V]` or of labels `[B,L]`, where the model has a head.
    pub logits: Option<Tensor>,
    /// What the labels' logits stand for `[B,L]`, where the model has labels: with one label σ(logit), with several the logits themselves, unless
    /// `config.json` names another function. sentence-transformers' `CrossEncoder.predict`.
    pub scores: Option<Tensor>,
    /// Row by row, whether there was a token.
    valid: Vec<bool>,
}

impl EncoderOutputs {
    /// One vector `[B,d]` per row, of the hidden states of its tokens; sums are in f64.
    ///
    /// # Errors
    /// Those of reading the states.
    ///
    /// ```
    /// use tensorlogic::models::inference::{Inputs, Padding, Pooling};
    /// use tensorlogic::models::{Encoder, Weights};
    /// use tensorlogic::prelude::*;
    /// let encoder = Encoder::load(&Weights::open("tests/vectors/encoders/models2/bert-odd", &Device::cpu())?, None)?;
    /// let outputs = encoder.run(&Inputs::padded(&[vec![5, 6, 7, 8], vec![9, 10]], Padding::Right)?)?;
    /// let vectors = outputs.pooled(Pooling::Cls)?;
    /// assert_eq!(vectors.dims(), [2, 48]);
    /// assert_eq!(vectors.to_vec()?[..48], outputs.token_states(0)?[0]); // the state of the first token
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn pooled(&self, pooling: Pooling) -> TensorResult<Tensor> {
        pooled(&self.hidden_states, &self.valid, pooling)
    }

    /// The hidden states of a row's tokens, without those of padding.
    ///
    /// # Errors
    /// When there is no such row.
    ///
    /// ```
    /// use tensorlogic::models::inference::{Inputs, Padding};
    /// use tensorlogic::models::{Encoder, Weights};
    /// use tensorlogic::prelude::*;
    /// let encoder = Encoder::load(&Weights::open("tests/vectors/encoders/models2/bert-odd", &Device::cpu())?, None)?;
    /// let outputs = encoder.run(&Inputs::padded(&[vec![5, 6, 7, 8], vec![9, 10]], Padding::Right)?)?;
    /// assert_eq!(outputs.hidden_states.dims(), [2, 4, 48]);
    /// assert_eq!(outputs.token_states(1)?.len(), 2); // two of the four columns are padding
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn token_states(&self, row: usize) -> TensorResult<Vec<Vec<f32>>> {
        token_states(&self.hidden_states, &self.valid, row)
    }
}

/// What the settings describe.
fn describe(s: &Settings<'_>, weights: &Weights) -> TensorResult<EncoderSpec> {
    let name = weights.architecture()?;
    if let Some(known) = encoders::find(name).filter(|known| weights.is_hub() || encoders::IN_GGUF.contains(&known.names[0])) {
        return (known.describe)(s);
    }
    if !weights.is_hub() {
        let (file, known) = (weights.file(), encoders::IN_GGUF.map(|name| name.replace('_', "-")).join(", "));
        return Err(TensorError::Unsupported(format!("{file}: `general.architecture` is \"{name}\"; encoders in GGUF are {known}")));
    }
    let Some(decoder) = architectures::find(name) else {
        let names: Vec<&str> = encoders::ENCODERS.iter().map(|a| a.names[0]).collect();
        let message = format!("{}: `model_type` is \"{name}\"; encoders that are supported are {}", weights.file(), names.join(", "));
        return Err(TensorError::Unsupported(message));
    };
    if let Some(describe) = decoder.encoder
        && let Some(both) = describe(s)?
    {
        return Ok(both);
    }
    let stack = decoder.described(s)?;
    encoders::of_states(s)?;
    if stack.layers.iter().any(|l| l.mixer.attention().is_none_or(|a| a.alibi.is_some())) {
        return Err(TensorError::Unsupported(format!(
            "{}: embeddings by a model with linear biases of positions or other mixers than attention",
            weights.file()
        )));
    }
    Ok(EncoderSpec { causal: true, ..EncoderSpec::new(stack) })
}

impl Encoder {
    /// Whether a file is that of an encoder: its architecture has no other use, it has no head, or sentence-transformers wrote its folder.
    ///
    /// # Errors
    /// [`TensorError::Format`] where the file does not name its architecture.
    ///
    /// ```
    /// use tensorlogic::Device;
    /// use tensorlogic::models::{Encoder, Weights};
    /// let is_encoder = |path: &str| Encoder::is_for(&Weights::open(path, &Device::cpu())?);
    /// assert!(is_encoder("tests/vectors/encoders/models2/bert-odd")?);
    /// assert!(!is_encoder("models/tiny/tiny.gguf")?); // GPT-2
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn is_for(weights: &Weights) -> TensorResult<bool> {
        let config = weights.config();
        let both = config.is_some_and(|c| c["use_bidirectional_attention"] == true);
        let bare = config
            .is_some_and(|c| c["architectures"][0].as_str().is_some_and(|name| name.ends_with("Model") && !name.ends_with("LMHeadModel")));
        let made_for = weights.folder().is_some_and(|folder| folder.join("modules.json").exists());
        Ok(encoders::find(weights.architecture()?).is_some() || both || bare || made_for)
    }

    /// Loads the encoder that a folder in Hub layout or a GGUF file (`bert`, `nomic-bert`) holds, or a folder's decoder without its head. `dtype` is the type of activations; by default f32 on the
    /// CPU and f16 on a GPU (f32 for Gemma).
    ///
    /// # Errors
    /// As for [`load`](crate::models::load); [`TensorError::Unsupported`] for a GGUF file of another architecture.
    ///
    /// ```
    /// use tensorlogic::Device;
    /// use tensorlogic::models::{Encoder, Weights};
    /// let weights = Weights::open("tests/vectors/encoders/models2/xlm-roberta-rank", &Device::cpu())?;
    /// let encoder = Encoder::load(&weights, None)?;
    /// assert_eq!((encoder.shape().layers, encoder.shape().width), (2, 48));
    /// assert_eq!(encoder.labels(), Some(&["LABEL_0".to_string()][..]));
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn load(weights: &Weights, dtype: Option<DType>) -> TensorResult<Encoder> {
        let settings = Settings::new(weights)?;
        let spec = describe(&settings, weights)?;
        let dtype = dtype.or(spec.stack.dtype).unwrap_or_else(|| weights.device().default_float());
        let names = spec.stack.names.clone();
        let tensors = Tensors::new(weights, &settings, &names, dtype);
        let encoder = Encoder::read(spec, &settings, &tensors, dtype)?;
        settings.finish_encoder()?;
        // The head of a decoder, which embeddings have no use for.
        let head: &[&str] = if encoder.spec.causal { &["lm_head.weight"] } else { &[] };
        tensors.finish(&[encoder.spec.stack.unused, head].concat(), &[])?;
        crate::events::model_loaded(encoder.shape.architecture, encoder.shape.layers, encoder.shape.context);
        Ok(encoder)
    }

    /// Reads the weights from `w`, which records what was asked for.
    pub(crate) fn read(spec: EncoderSpec, s: &Settings<'_>, w: &Tensors<'_>, dtype: DType) -> TensorResult<Encoder> {
        let d = &spec.stack;
        let width = d.width;
        let tied = s.flag(NONE, "tie_word_embeddings")?.unwrap_or(d.head.tied);
        let tokens = w.embedding(width)?;
        let positions = match d.embed.positions {
            Some(p) => Some(w.tensor("position_embd.weight", &[d.context + p.offset, width])?),
            None => None,
        };
        let types = spec.types.map(|n| w.tensor("token_types.weight", &[n, width])).transpose()?;
        let layers = d.layers.iter().enumerate().map(|(i, l)| DecoderLayer::load(w, i, l, width)).collect::<TensorResult<Vec<_>>>()?;
        let context = if d.ropes.is_empty() { d.context } else { d.context.min(d.rope_positions) };
        let ropes = d.ropes.iter().map(|t| Rope::new(context, t, w.device())).collect::<TensorResult<Vec<_>>>()?;
        let Some(first) = d.layers.first().and_then(|l| l.mixer.attention()) else {
            return Err(TensorError::Internal("an encoder without attention".into()));
        };
        let (heads, head_dim) = (first.heads, first.head_dim);
        let relative = spec.relative.map(|r| w.tensor("relative_bias.weight", &[r.rows, heads])).transpose()?;
        let pooler = match w.has("pooler.weight") {
            true => Some(HeadDense::load(w, "pooler", width, DenseSpec::tanh())?),
            false => None,
        };
        let head = match &spec.read_out {
            Some(read_out) => Head::load(w, read_out, &tokens, width, tied)?,
            None => None,
        };
        let score = score(s, &spec)?;
        let shape = ModelShape {
            architecture: d.architecture,
            layers: layers.len(),
            heads: first.heads,
            kv_heads: first.kv_heads,
            head_dim,
            width,
            vocab: tokens.dims()[0],
            context,
            dtype,
            cache: Arc::new([]),
            places: Arc::default(),
        };
        let embed_norm = Norm::load_if(w, "token_embd_norm", d.embed.norm, width)?;
        let norm = Norm::load_if(w, "output_norm", d.final_norm.then_some(d.norm), width)?;
        Ok(Encoder { shape, tokens, positions, types, embed_norm, layers, norm, ropes, relative, pooler, head, score, spec })
    }

    /// Sizes that callers need.
    pub fn shape(&self) -> &ModelShape {
        &self.shape
    }

    /// The names of the labels of a classifier, in the order of its logits.
    pub fn labels(&self) -> Option<&[String]> {
        match self.spec.read_out.as_ref().map(|r| &r.to) {
            Some(ReadOutTo::Labels { names, .. }) => Some(names),
            _ => None,
        }
    }

    /// How many kinds of tokens are told apart by [`Inputs::token_type_ids`].
    pub fn token_types(&self) -> usize {
        self.spec.types.unwrap_or(1)
    }

    /// Whether tokens see only those before them, so that the last one has seen the whole text.
    pub fn is_causal(&self) -> bool {
        self.spec.causal
    }

    /// The device of the weights.
    pub fn device(&self) -> &Device {
        self.tokens.device()
    }

    /// All weights, for example to count bytes.
    pub fn weights(&self) -> Vec<&Tensor> {
        let mut all = vec![&self.tokens];
        all.extend([&self.positions, &self.types, &self.relative].into_iter().flatten());
        all.extend(self.embed_norm.iter().chain(&self.norm).flat_map(Norm::weights));
        all.extend(self.layers.iter().flat_map(DecoderLayer::weights));
        all.extend(self.pooler.iter().flat_map(HeadDense::weights));
        all.extend(self.head.iter().flat_map(Head::weights));
        all
    }

    /// Runs the model once over a batch of texts, padded on either side, and waits for the results.
    ///
    /// # Errors
    /// [`TensorError::Argument`] when an input has a wrong shape, dtype or value; the message names it and the caller's line. Otherwise those of the
    /// evaluation: out of memory, a lost device.
    ///
    /// ```
    /// use tensorlogic::models::inference::{Inputs, Padding};
    /// use tensorlogic::models::{Encoder, Weights};
    /// use tensorlogic::prelude::*;
    /// let encoder = Encoder::load(&Weights::open("tests/vectors/encoders/models2/bert-odd", &Device::cpu())?, None)?;
    /// let outputs = encoder.run(&Inputs::padded(&[vec![5, 6, 7, 8], vec![9, 10]], Padding::Right)?)?;
    /// assert_eq!(outputs.hidden_states.dims(), [2, 4, 48]);
    /// assert_eq!(outputs.pooler.expect("BERT has a pooler").dims(), [2, 48]);
    /// assert!(outputs.logits.is_none()); // this file has no head
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn run(&self, inputs: &Inputs) -> TensorResult<EncoderOutputs> {
        self.run_at(inputs, false, Location::caller())
    }

    /// As [`Encoder::run`], with the states of every layer.
    ///
    /// # Errors
    /// Those of [`Encoder::run`].
    ///
    /// ```
    /// use tensorlogic::models::inference::{Inputs, Padding};
    /// use tensorlogic::models::{Encoder, Weights};
    /// use tensorlogic::prelude::*;
    /// let encoder = Encoder::load(&Weights::open("tests/vectors/encoders/models2/bert-odd", &Device::cpu())?, None)?;
    /// let outputs = encoder.run_keeping_layers(&Inputs::padded(&[vec![5, 6, 7]], Padding::Right)?)?;
    /// let layers = outputs.layers.expect("they are kept");
    /// assert_eq!(layers.len(), encoder.shape().layers + 1);
    /// assert_eq!(layers[3].to_vec()?, outputs.hidden_states.to_vec()?);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn run_keeping_layers(&self, inputs: &Inputs) -> TensorResult<EncoderOutputs> {
        self.run_at(inputs, true, Location::caller())
    }

    pub(crate) fn run_at(&self, inputs: &Inputs, keep: bool, at: At) -> TensorResult<EncoderOutputs> {
        let checked = inputs.check(&self.shape, at)?;
        let types = inputs.token_types(self.token_types(), at)?;
        no_grad(|| {
            let (states, kept) = self.states(inputs, &checked, types)?;
            let first = self.first(&states, &checked)?;
            let pooler = self.pooler.as_ref().map(|p| p.forward(&first)).transpose()?;
            let shares = self.shares(&checked)?;
            let logits = self.head.as_ref().map(|head| head.forward(&states, &first, &shares)).transpose()?;
            let mut results = vec![states.cast(DType::F32)?];
            results.extend(pooler.as_ref().map(|p| p.cast(DType::F32)).transpose()?);
            results.extend(logits.clone());
            for layer in kept.iter().filter(|_| keep) {
                results.push(layer.cast(DType::F32)?);
            }
            eval_all(&results.iter().collect::<Vec<_>>())?;
            let mut host = results.into_iter().map(|t| Tensor::from_vec(t.to_vec_of::<f32>()?, t.dims(), &Device::cpu()));
            let mut next = || host.next().unwrap_or_else(|| Err(TensorError::Internal("an encoder's result is missing".into())));
            let hidden_states = next()?;
            let pooler = if pooler.is_some() { Some(next()?) } else { None };
            let logits = if logits.is_some() { Some(next()?) } else { None };
            let scores = match (&logits, self.labels()) {
                (Some(logits), Some(_)) => Some(self.score.of(logits)?),
                _ => None,
            };
            let layers = if keep { Some(host.chain([Ok(hidden_states.clone())]).collect::<TensorResult<Vec<_>>>()?) } else { None };
            Ok(EncoderOutputs { hidden_states, layers, pooler, logits, scores, valid: checked.valid })
        })
    }

    /// The states `[B,T,d]` after the last layer, and the input of each.
    fn states(&self, inputs: &Inputs, c: &Checked, types: Option<Vec<i32>>) -> TensorResult<(Tensor, Vec<Tensor>)> {
        let (device, dtype, sizes) = (self.device(), self.shape.dtype, [c.batch, c.len]);
        let upload = |values: Vec<i32>| Tensor::from_vec(values, &sizes, device);
        let embed = &self.spec.stack.embed;
        let tokens = c.tokens.clone().map(&upload).transpose()?;
        let mut x = match (&tokens, &c.embeddings) {
            (Some(ids), _) => {
                let rows = self.tokens.embedding(ids)?;
                embed.scale.map_or_else(|| Ok(rows.clone()), |scale| rows.mul(scale as f32))?
            }
            (None, Some(x)) => x.to_device(device)?,
            (None, None) => return Err(TensorError::Internal("inputs without tokens and embeddings passed the checks".into())),
        }
        .cast(dtype)?;
        if let Some(table) = &self.types {
            let rows = match types {
                Some(ids) => table.embedding(&upload(ids)?)?,
                None => table.narrow(0, 0, 1)?,
            };
            x = x.add(&rows.cast(dtype)?)?;
        }
        if let Some(table) = &self.positions {
            x = x.add(&table.embedding(&upload(self.rows_of_positions(inputs, c))?)?.cast(dtype)?)?;
        }
        let mut x = normed(self.embed_norm.as_ref(), &x)?;
        let positions = c.positions.clone().map(upload).transpose()?;
        let contexts = self.contexts(c, positions.as_ref())?;
        let mut kept = Vec::with_capacity(self.layers.len());
        for (i, layer) in self.layers.iter().enumerate() {
            kept.push(x.clone());
            let near = self.spec.reach.get(i).copied().flatten();
            let Some((_, context)) = contexts.iter().find(|(reach, _)| *reach == near) else {
                return Err(TensorError::Internal("a layer without a mask".into()));
            };
            x = layer.run(i, &x, context, &mut KvCache::none())?;
        }
        Ok((normed(self.norm.as_ref(), &x)?, kept))
    }

    /// What layers read besides their inputs, by how far they see.
    fn contexts(&self, c: &Checked, positions: Option<&Tensor>) -> TensorResult<Vec<(Option<usize>, Context)>> {
        let (device, len) = (self.device(), c.len);
        // A pass without tokens of its own: rotations are by position.
        let nothing = Tensor::from_vec(vec![0i32], &[1], device)?;
        let mut pass = Pass::tokens(&nothing);
        pass.positions = positions;
        let ropes: Arc<[Rope]> = self.ropes.iter().map(|r| r.at(&pass, 0, len)).collect::<TensorResult<Vec<_>>>()?.into();
        let biases = match (&self.relative, self.spec.relative) {
            (Some(table), Some(r)) => Some(relative::biases(table, r, len, device)?),
            _ => None,
        };
        let hidden = |shown: bool| if shown { 0.0 } else { MASKED };
        let padding = match c.valid.contains(&false) {
            true => Some(Tensor::from_vec(c.valid.iter().map(|&v| hidden(v)).collect(), &[c.batch, 1, 1, len], device)?),
            false => None,
        };
        let mut reaches = vec![None];
        reaches.extend(self.spec.reach.iter().copied().filter(Option::is_some));
        reaches.sort_unstable();
        reaches.dedup();
        let context = |reach: Option<usize>| {
            let window = match reach.filter(|&reach| reach + 1 < len) {
                Some(reach) => {
                    let near = (0..len).flat_map(|q: usize| (0..len).map(move |k| hidden(q.abs_diff(k) <= reach))).collect();
                    Some(Tensor::from_vec(near, &[1, 1, len, len], device)?)
                }
                None => None,
            };
            let mask = match (window, &padding) {
                (Some(window), Some(padding)) => Some(window.add(padding)?),
                (window, padding) => window.or_else(|| padding.clone()),
            };
            let context =
                Context { ropes: ropes.clone(), mask, biases: biases.clone(), kv_len: None, causal: self.spec.causal, per_layer: None };
            Ok((reach, context))
        };
        reaches.into_iter().map(context).collect()
    }

    /// The row of the table of learned positions for each token.
    fn rows_of_positions(&self, inputs: &Inputs, c: &Checked) -> Vec<i32> {
        let offset = self.spec.stack.embed.positions.map_or(0, |p| p.offset) as i32;
        let plain = || (0..c.valid.len()).map(|i| (i % c.len) as i32).collect();
        match (self.spec.pad, &c.tokens) {
            (Some(pad), Some(tokens)) if inputs.position_ids.is_none() => {
                let pad = pad as i32;
                let counted = tokens.chunks(c.len).zip(c.valid.chunks(c.len)).flat_map(|(row, valid)| {
                    let mut before = 0;
                    row.iter().zip(valid).map(move |(&id, &valid)| {
                        let counts = valid && id != pad;
                        before += i32::from(counts);
                        if counts { before + pad } else { pad }
                    })
                });
                counted.collect()
            }
            _ => c.positions.clone().unwrap_or_else(plain).into_iter().map(|p| p + offset).collect(),
        }
    }

    /// The states `[B,d]` of the first token of each row.
    fn first(&self, states: &Tensor, c: &Checked) -> TensorResult<Tensor> {
        let first = |(row, valid): (usize, &[bool])| (row * c.len + valid.iter().position(|v| *v).unwrap_or(0)) as i32;
        let rows = c.valid.chunks(c.len).enumerate().map(first).collect();
        states.flatten(0, 1)?.index_select(0, &Tensor::from_vec::<i32>(rows, &[c.batch], self.device())?)
    }

    /// The share `[B,T,1]` of each token in the mean over its row.
    fn shares(&self, c: &Checked) -> TensorResult<Tensor> {
        let of_row = |row: &[bool]| {
            let share = 1.0 / row.iter().filter(|v| **v).count().max(1) as f32;
            row.iter().map(|&v| if v { share } else { 0.0 }).collect::<Vec<f32>>()
        };
        Tensor::from_vec(c.valid.chunks(c.len).flat_map(of_row).collect::<Vec<f32>>(), &[c.batch, c.len, 1], self.device())
    }
}

/// What `config.json` says of scores, as sentence-transformers writes it.
fn score(s: &Settings<'_>, spec: &EncoderSpec) -> TensorResult<ActivationFn> {
    let one = matches!(spec.read_out.as_ref().map(|r| &r.to), Some(ReadOutTo::Labels { names, .. }) if names.len() == 1);
    s.text(NONE, "sentence_transformers.version")?;
    for key in ["sentence_transformers.activation_fn", "sbert_ce_default_activation_function"] {
        match s.text(NONE, key)?.map(|name| name.rsplit('.').next().unwrap_or(name)) {
            None => {}
            Some("Identity") => return Ok(ActivationFn::Identity),
            Some("Sigmoid") => return Ok(ActivationFn::Sigmoid),
            Some(_) => return Err(s.refuse(NONE, key, "supported: Identity and Sigmoid")),
        }
    }
    Ok(if one { ActivationFn::Sigmoid } else { ActivationFn::Identity })
}

impl Inputs {
    /// The kinds of tokens, each below `count`.
    fn token_types(&self, count: usize, at: At) -> TensorResult<Option<Vec<i32>>> {
        let Some(types) = &self.token_type_ids else { return Ok(None) };
        let want = self.tokens.as_ref().or(self.embeddings.as_ref()).map(|t| t.dims()[..2].to_vec()).unwrap_or_default();
        if types.dims() != want {
            return Err(wrong(at, format!("token_type_ids: the shape is {}; expected {want:?}, as the tokens'", types.shape())));
        }
        let values = types.to_vec()?;
        match values.iter().find(|&&v| v < 0.0 || v >= count as f32 || v.fract() != 0.0) {
            Some(v) => Err(wrong(at, format!("token_type_ids: {v} is not one of the model's {count} kinds, counted from 0"))),
            None => Ok(Some(values.into_iter().map(|v| v as i32).collect())),
        }
    }
}
