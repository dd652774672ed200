//! The forward pass that all decoders share, over a description of what each consists of.

mod altup;
mod dense;
mod dense_and_experts;
pub(crate) mod description;
mod experts;
pub(crate) mod feed;
pub(crate) mod mixers;
pub(crate) mod names;
pub(crate) mod norm;
pub(crate) mod part;
mod per_layer;
pub(crate) mod rope;
mod router;
mod scores;

pub(crate) use description::Description;

use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::models::block::{self, Block};
use crate::models::rope_settings::FACTORS;
use crate::models::settings::Settings;
use crate::models::weights::{Tensors, Weights};
use crate::models::{KvCache, Layer, LayerCache, Model, ModelShape, Pass, Projection};
use crate::tensor::Tensor;
use altup::{AltUp, AltUpEnds};
use description::{Flow, HeadSpec, LayerSpec, NormSpec};
use feed::Feed;
use mixers::Mixer;
use norm::Norm;
use part::Part;
use per_layer::{PerLayerInput, PerLayerTable};
use rope::Rope;
use std::sync::Arc;

/// Positions behind the context that padding may take.
const PADDING: usize = 512;

/// A language model of a decoder's layers.
pub struct Decoder {
    shape: ModelShape,
    description: Description,
    /// What stands around the layers; `None` in a part whose layers lie behind another part.
    ends: Option<Ends>,
    per_layer: Option<PerLayerTable>,
    altup: Option<AltUpEnds>,
    /// The number of the first of `layers`.
    first: usize,
    layers: Vec<DecoderLayer>,
    ropes: Vec<Rope>,
    /// Linear biases of keys' positions, `[1,H,1,keys]`.
    biases: Option<Tensor>,
    /// The head size where GGUF's converter reordered the rows of q and k, so that rotated pairs are neighbours.
    reordered: Option<usize>,
    /// Whether the Hub's matrices are `[in,out]`.
    transposed: bool,
}

/// What stands before the first layer and behind the last.
struct Ends {
    tokens: Tensor,            // [V, d]
    positions: Option<Tensor>, // [context, d]
    embed_norm: Option<Norm>,
    norm: Option<Norm>,
    head: Projection, // d → V
}

/// A layer with its weights.
#[derive(Clone)]
pub(crate) struct DecoderLayer {
    flow: Flow,
    residual: Option<f32>,
    attention_norm: Option<Norm>,
    mixer: Option<Mixer>,
    attention_post_norm: Option<Norm>,
    feed_norm: Option<Norm>,
    feed: Option<Feed>,
    feed_post_norm: Option<Norm>,
    feed_scale: Option<f32>,
    per_layer: Option<PerLayerInput>,
    scalar: Option<Tensor>, // [1]
    altup: Option<AltUp>,
}

/// What layers of one pass read besides their inputs.
#[derive(Clone)]
pub(crate) struct Context {
    /// The tables of the positions.
    pub ropes: Arc<[Rope]>,
    pub mask: Option<Tensor>,
    /// Biases of positions: linear ones, `[1,H,1,keys]`, of at least as many keys as there are, or one for each query too.
    pub biases: Option<Tensor>,
    /// Keys that are valid.
    pub kv_len: Option<usize>,
    /// Whether a query sees only keys up to its own position.
    pub causal: bool,
    /// The tokens' embeddings for each layer, `[B,T,L,P]`.
    pub per_layer: Option<Tensor>,
}

impl Decoder {
    /// Reads the weights; activations and cache are of `dtype`.
    ///
    /// # Errors
    /// When a tensor is missing or left over, or does not fit the settings, or a setting was not asked for.
    pub(crate) fn load(d: Description, s: &Settings<'_>, weights: &Weights, dtype: DType) -> TensorResult<Decoder> {
        let names = d.names.clone();
        let w = Tensors::new(weights, s, &names, dtype);
        let decoder = Decoder::read(d, &w, dtype)?;
        s.finish()?;
        w.finish(decoder.description.unused, &decoder.description.left_out)?;
        for (part, tensors, bytes) in w.parts_left_out(&decoder.description.left_out) {
            crate::events::part_left_out(part.trim_end_matches('.'), tensors, bytes);
        }
        Ok(decoder)
    }

    /// Reads the weights of a part of the model alone. That tensors are left over, or settings not asked for, is for the part with the ends to find.
    ///
    /// # Errors
    /// As for [`Decoder::load`]; [`TensorError::Unsupported`] where layers read more of each other than the residual stream.
    pub(crate) fn load_part(d: Description, s: &Settings<'_>, weights: &Weights, dtype: DType, part: &Part) -> TensorResult<Decoder> {
        if d.layers.iter().any(|l| l.per_layer.is_some() || l.altup.is_some()) {
            return Err(TensorError::Unsupported(format!(
                "{}: every layer reads the tokens: its layers must be in one place",
                d.architecture
            )));
        }
        let (names, width) = (d.names.clone(), d.width);
        let w = Tensors::new(weights, s, &names, dtype);
        let decoder = Decoder::read_part(d, &w, dtype, part)?;
        let far =
            |(i, l): (usize, &LayerCache)| matches!(l, LayerCache::OfLayer(of) if part.layers.contains(&i) != part.layers.contains(of));
        if let Some(i) = decoder.shape.cache.iter().enumerate().position(far) {
            let m = format!("layer {i} reads the keys of a layer in another part ({width} wide): distribute the layers otherwise");
            return Err(TensorError::Unsupported(m));
        }
        if part.ends {
            s.finish()?;
            let (unused, left_out) = (decoder.description.unused, &decoder.description.left_out);
            let left: Vec<String> = w.left(unused, left_out).into_iter().filter(|name| part.has(name)).collect();
            if let Some(name) = left.first() {
                return Err(TensorError::Unsupported(format!(
                    "the tensor `{name}` has no place in the model that {} describes",
                    weights.file()
                )));
            }
        }
        Ok(decoder)
    }

    /// Reads the weights from `w`, which records what was asked for.
    pub(crate) fn read(d: Description, w: &Tensors<'_>, dtype: DType) -> TensorResult<Decoder> {
        let all = Part { layers: 0..d.layers.len(), ends: true };
        Decoder::read_part(d, w, dtype, &all)
    }

    fn read_part(d: Description, w: &Tensors<'_>, dtype: DType, part: &Part) -> TensorResult<Decoder> {
        let width = d.width;
        let ends = part.ends.then(|| Ends::load(&d, w)).transpose()?;
        let own = d.layers.iter().enumerate().filter(|(i, _)| part.layers.contains(i));
        let layers = own.map(|(i, l)| DecoderLayer::load(w, i, l, width)).collect::<TensorResult<Vec<_>>>()?;
        let first = d.layers.first();
        let per_layer = first.and_then(|l| l.per_layer).map(|s| PerLayerTable::load(w, s, d.layers.len(), width)).transpose()?;
        let altup = first.and_then(|l| l.altup).map(|s| AltUpEnds::load(w, s, width)).transpose()?;
        // Llama 3's scaling, worked out by GGUF's converter: one divisor per pair.
        let mut tables = d.ropes.clone();
        if let Some(table) = tables.first_mut().filter(|_| !w.is_hub() && w.has("rope_freqs.weight")) {
            let factors = w.vector("rope_freqs.weight", table.freqs.len())?.to_vec()?;
            table.slow(&factors);
        }
        if let Some(table) = tables.first_mut().filter(|t| !w.is_hub() && t.long.is_some()) {
            let [short, long] = FACTORS.map(|name| w.vector(name, table.freqs.len())?.to_vec());
            table.divide(&short?, &long?);
        }
        let context = if tables.is_empty() { d.context } else { d.context.min(d.rope_positions) };
        let ropes = tables.iter().map(|t| Rope::new(context, t, w.device())).collect::<TensorResult<Vec<_>>>()?;
        if d.layers.is_empty() {
            return Err(TensorError::Internal("a decoder without layers".into()));
        }
        let cache: Vec<LayerCache> = d.layers.iter().map(|l| mixers::cache(l, width, dtype)).collect();
        let shape = ModelShape {
            architecture: d.architecture,
            layers: d.layers.len(),
            heads: d.layers.iter().find_map(|l| l.mixer.attention()).map_or(0, |a| a.heads),
            kv_heads: d.kv_heads,
            head_dim: d.head_dim,
            width,
            vocab: ends.as_ref().map_or(0, |e| e.tokens.dims()[0]),
            context,
            dtype,
            cache: cache.into(),
            places: Arc::default(),
        };
        // A cache has room for the padding of its last chunk.
        let alibi = d.layers.iter().find_map(|l| l.mixer.attention()?.alibi.as_ref());
        let biases = alibi.map(|a| scores::alibi(a, context + PADDING, w.device())).transpose()?;
        let reordered = d.ropes.first().filter(|r| r.reordered && !w.is_hub()).map(|_| shape.head_dim);
        let transposed = d.names.transposed;
        let first = part.layers.start;
        Ok(Decoder { shape, ends, per_layer, altup, first, layers, ropes, biases, reordered, transposed, description: d })
    }

    fn ends(&self) -> TensorResult<&Ends> {
        self.ends.as_ref().ok_or_else(|| TensorError::Internal("a part of a model without its ends".into()))
    }

    /// What the first layer reads, `[B,T,d]`, the tokens where the pass has them, and T.
    fn embed(&self, pass: &Pass<'_>, cache: &KvCache) -> TensorResult<(Tensor, Option<Tensor>, usize)> {
        let (embed, ends) = (&self.description.embed, self.ends()?);
        let mut ids = None;
        let (mut x, t) = pass.embed(self.shape.dtype, |tokens| {
            ids = Some(tokens.clone());
            let rows = ends.tokens.embedding(tokens)?;
            embed.scale.map_or_else(|| Ok(rows.clone()), |scale| rows.mul(scale as f32))
        })?;
        if let (Some(table), Some(p)) = (&ends.positions, embed.positions) {
            let rows = match pass.positions {
                Some(positions) if p.offset == 0 => table.embedding(positions)?,
                Some(positions) => table.narrow(0, p.offset, self.shape.context)?.contiguous()?.embedding(positions)?,
                None => table.narrow(0, cache.len() + p.offset, t)?,
            };
            x = x.add(&rows.cast(self.shape.dtype)?)?;
        }
        Ok((normed(ends.embed_norm.as_ref(), &x)?, ids, t))
    }

    /// The residual stream behind this part's layers, from that before them, of t positions. The cache does not advance.
    fn run_layers(&self, x: Tensor, t: usize, per_layer: Option<Tensor>, pass: &mut Pass<'_>, cache: &mut KvCache) -> TensorResult<Tensor> {
        let ropes = self.ropes.iter().map(|r| r.at(pass, cache.len(), t)).collect::<TensorResult<Vec<_>>>()?;
        let context = Context {
            ropes: ropes.into(),
            mask: pass.mask.cloned(),
            biases: self.biases.clone(),
            kv_len: cache.valid(t),
            causal: true,
            per_layer,
        };
        block::run(&self.layers, self.first, x, &context, pass, cache)
    }

    /// As the first part of a model: the residual stream behind its layers, and T.
    pub(crate) fn begin(&self, pass: &mut Pass<'_>, cache: &mut KvCache) -> TensorResult<(Tensor, usize)> {
        let (x, _, t) = self.embed(pass, cache)?;
        Ok((self.run_layers(x, t, None, pass, cache)?, t))
    }

    /// As a later part: the residual stream behind its layers from that before them, `[B,T,d]`.
    pub(crate) fn go_on(&self, x: Tensor, pass: &mut Pass<'_>, cache: &mut KvCache) -> TensorResult<Tensor> {
        let t = x.dims().get(1).copied().unwrap_or(0);
        self.run_layers(x, t, None, pass, cache)
    }
}

impl Ends {
    fn load(d: &Description, w: &Tensors<'_>) -> TensorResult<Ends> {
        let tokens = w.embedding(d.width)?;
        let positions = d.embed.positions.map(|p| w.tensor("position_embd.weight", &[d.context + p.offset, d.width])).transpose()?;
        let head = w.head(&tokens, d.head.tied, d.head.bias)?;
        let embed_norm = Norm::load_if(w, "token_embd_norm", d.embed.norm, d.width)?;
        let norm = Norm::load_if(w, d.final_norm_name, d.final_norm.then_some(d.norm), d.width)?;
        Ok(Ends { tokens, positions, embed_norm, norm, head })
    }
}

impl DecoderLayer {
    /// Reads the weights of layer `i`.
    pub(crate) fn load(w: &Tensors<'_>, i: usize, l: &LayerSpec, width: usize) -> TensorResult<DecoderLayer> {
        let norm = |part: &str, spec| Norm::load_if(w, &format!("blk.{i}.{part}"), spec, width);
        let (of_mixer, of_feed) =
            (|n: Option<NormSpec>| n.filter(|_| l.flow.has_mixer()), |n: Option<NormSpec>| n.filter(|_| l.flow.has_feed()));
        Ok(DecoderLayer {
            flow: l.flow,
            residual: l.residual.map(|r| r as f32),
            attention_norm: norm("attn_norm", of_mixer(l.attention_norm))?,
            mixer: l.flow.has_mixer().then(|| Mixer::load(w, i, &l.mixer, width)).transpose()?,
            attention_post_norm: norm("post_attention_norm", of_mixer(l.attention_post_norm))?,
            feed_norm: norm("ffn_norm", of_feed(l.feed_norm))?,
            feed: l.flow.has_feed().then(|| Feed::load(w, i, &l.feed, width)).transpose()?,
            feed_post_norm: norm("post_ffw_norm", of_feed(l.feed_post_norm))?,
            feed_scale: l.feed_scale.map(|by| by as f32),
            per_layer: l.per_layer.map(|s| PerLayerInput::load(w, i, s, width)).transpose()?,
            scalar: if l.scalar { Some(w.vector(&format!("blk.{i}.layer_output_scale.weight"), 1)?) } else { None },
            altup: l.altup.map(|s| AltUp::load(w, i, s, width)).transpose()?,
        })
    }

    /// All weights.
    pub(crate) fn weights(&self) -> Vec<&Tensor> {
        let norms = [&self.attention_norm, &self.attention_post_norm, &self.feed_norm, &self.feed_post_norm];
        let ends = self.per_layer.iter().flat_map(PerLayerInput::norms).chain(self.altup.iter().flat_map(AltUp::norms));
        let inner = self.mixer.iter().flat_map(Mixer::norms).chain(self.feed.iter().flat_map(Feed::norms)).chain(ends);
        let norms = norms.into_iter().flatten().chain(inner).flat_map(Norm::weights);
        let linear = self.projections().into_iter().flat_map(|p| std::iter::once(&p.weight).chain(&p.bias));
        let others = self.mixer.iter().flat_map(Mixer::others).chain(self.altup.iter().flat_map(AltUp::others));
        let others = others.chain(self.feed.iter().flat_map(Feed::others)).chain(&self.scalar);
        norms.chain(linear).chain(others).collect()
    }

    /// What the tokens' embeddings for layer `i` add to the residual stream x.
    fn of_tokens(&self, i: usize, x: &Tensor, context: &Context) -> TensorResult<Option<Tensor>> {
        let (Some(input), Some(parts)) = (&self.per_layer, &context.per_layer) else { return Ok(None) };
        input.forward(i, x, parts).map(Some)
    }

    /// What is added to the residual stream for a part's result.
    fn added(&self, y: Tensor, norm: Option<&Norm>) -> TensorResult<Tensor> {
        let y = match norm {
            Some(norm) => norm.forward(&y)?,
            None => y,
        };
        match self.residual {
            Some(r) => y.mul(r),
            None => Ok(y),
        }
    }
}

/// The normed tensor, or itself without a norm.
pub(crate) fn normed(norm: Option<&Norm>, x: &Tensor) -> TensorResult<Tensor> {
    norm.map_or_else(|| Ok(x.clone()), |norm| norm.forward(x))
}

impl Block for DecoderLayer {
    type Context = Context;

    fn run(&self, i: usize, x: &Tensor, context: &Context, cache: &mut KvCache) -> TensorResult<Tensor> {
        let (first, second) = (self.attention_norm.as_ref(), self.feed_norm.as_ref());
        let mut mixer = |h: &Tensor| {
            let y = self.mixer.as_ref().map_or_else(|| Ok(h.clone()), |m| m.forward(i, h, context, cache))?;
            self.added(y, self.attention_post_norm.as_ref())
        };
        let feed = |h: &Tensor, x: &Tensor| {
            let y = self.feed.as_ref().map_or_else(|| Ok(h.clone()), |f| f.forward(h, x))?;
            let y = self.feed_scale.map_or_else(|| Ok(y.clone()), |by| y.mul(by))?;
            self.added(y, self.feed_post_norm.as_ref())
        };
        if let Some(altup) = &self.altup {
            let predictions = altup.predict(x)?;
            let x = &predictions[altup.active()];
            let h = normed(first, x)?;
            let x = x.add(&mixer(&h)?)?.add(&altup.laurel(&h)?)?.mul(std::f32::consts::FRAC_1_SQRT_2)?;
            let x = x.add(&feed(&normed(second, &x)?, &x)?)?;
            let mut copies = altup.correct(&predictions, &x)?;
            if let Some(more) = self.of_tokens(i, &altup.seen(&copies)?, context)? {
                copies.iter_mut().skip(1).try_for_each(|copy| copy.add(&more).map(|sum| *copy = sum))?;
            }
            return Tensor::stack(&copies, 0);
        }
        let x = match self.flow {
            Flow::Sequential => {
                let x = x.add(&mixer(&normed(first, x)?)?)?;
                x.add(&feed(&normed(second, &x)?, &x)?)
            }
            Flow::FromNorms => {
                let h = normed(first, x)?;
                let h = normed(second, &h.add(&mixer(&h)?)?)?;
                h.add(&feed(&h, &h)?)
            }
            Flow::NormedSums => {
                let x = normed(first, &x.add(&mixer(x)?)?)?;
                normed(second, &x.add(&feed(&x, &x)?)?)
            }
            Flow::Parallel => {
                let h = normed(first, x)?;
                let h2 = if second.is_some() { normed(second, x)? } else { h.clone() };
                x.add(&mixer(&h)?)?.add(&feed(&h2, x)?)
            }
            Flow::MixerOnly => x.add(&mixer(&normed(first, x)?)?),
            Flow::FeedOnly => x.add(&feed(&normed(second, x)?, x)?),
        }?;
        let x = match self.of_tokens(i, &x, context)? {
            Some(more) => x.add(&more)?,
            None => x,
        };
        match &self.scalar {
            Some(by) => x.mul(by)?.cast(x.dtype()),
            None => Ok(x),
        }
    }

    fn projections(&self) -> Vec<&Projection> {
        let parts = self.mixer.iter().flat_map(Mixer::projections).chain(self.feed.iter().flat_map(Feed::projections));
        let more = self.per_layer.iter().flat_map(PerLayerInput::projections).chain(self.altup.iter().flat_map(AltUp::projections));
        parts.chain(more).map(|(_, p)| p).collect()
    }
}

impl Model for Decoder {
    fn shape(&self) -> ModelShape {
        self.shape.clone()
    }

    fn forward(&self, pass: &mut Pass<'_>, cache: &mut KvCache) -> TensorResult<Tensor> {
        let (x, ids, t) = self.embed(pass, cache)?;
        let per_layer = self.per_layer.as_ref().map(|table| table.parts(ids.as_ref(), &x)).transpose()?;
        let x = self.altup.as_ref().map_or_else(|| Ok(x.clone()), |altup| altup.copies(&x))?;
        let x = self.run_layers(x, t, per_layer, pass, cache)?;
        cache.advance(t);
        self.altup.as_ref().map_or_else(|| Ok(x.clone()), |altup| altup.join(&x))
    }

    fn norm(&self, residual: &Tensor) -> TensorResult<Tensor> {
        normed(self.ends()?.norm.as_ref(), residual)
    }

    fn head(&self, normed: &Tensor) -> TensorResult<Tensor> {
        let HeadSpec { scale, softcap, .. } = self.description.head;
        let mut logits = self.ends()?.head.forward(normed)?.cast(DType::F32)?;
        if let Some(scale) = scale {
            logits = logits.mul(scale as f32)?;
        }
        match softcap {
            Some(c) => logits.softcap(c),
            None => Ok(logits),
        }
    }

    fn repeats(&self) -> bool {
        true
    }

    fn rereads_beyond(&self) -> Option<usize> {
        self.description.ropes.iter().filter_map(|r| r.long.as_ref()).map(|long| long.from).min()
    }

    fn weights(&self) -> Vec<&Tensor> {
        let mut all: Vec<&Tensor> = Vec::new();
        if let Some(ends) = &self.ends {
            all.extend(ends.norm.iter().flat_map(Norm::weights));
            all.push(&ends.head.weight);
            all.extend(ends.head.bias.iter().chain(ends.embed_norm.iter().flat_map(Norm::weights)));
        }
        all.extend(self.per_layer.iter().flat_map(PerLayerTable::weights).chain(self.altup.iter().flat_map(AltUpEnds::weights)));
        all.extend(self.layers.iter().flat_map(DecoderLayer::weights));
        all
    }

    fn unread_bytes(&self) -> u64 {
        self.layers.iter().filter_map(|l| l.feed.as_ref()).map(Feed::unread_bytes).sum()
    }

    fn layers(&mut self) -> Vec<Layer<'_>> {
        let (names, reordered, transposed) = (&self.description.names, self.reordered, self.transposed);
        let mut all = Vec::new();
        for (i, l) in (self.first..).zip(&mut self.layers) {
            let mixer = l.mixer.iter_mut().flat_map(Mixer::projections_mut);
            let more = l.per_layer.iter_mut().flat_map(PerLayerInput::projections_mut);
            let more = more.chain(l.altup.iter_mut().flat_map(AltUp::projections_mut));
            for (part, linear) in mixer.chain(l.feed.iter_mut().flat_map(Feed::projections_mut)).chain(more) {
                let tensor = format!("blk.{i}.{part}");
                let [module, _] = names.hub(&tensor);
                let stored = names.gguf(&format!("{tensor}.weight"));
                let tensor = stored.strip_suffix(".weight").map_or(tensor, String::from);
                let head_rows = reordered.filter(|_| part == "attn_q" || part == "attn_k");
                all.push(Layer { module, tensor, head_rows, transposed, linear });
            }
        }
        all
    }
}
