//! A layer of a decoder that looks at an encoder's states: attention to the text so far, attention to the source, a feed-forward part.

use crate::error::{TensorError, TensorResult};
use crate::models::decoder::description::LayerSpec;
use crate::models::decoder::feed::Feed;
use crate::models::decoder::mixers::attention::Attention;
use crate::models::decoder::norm::Norm;
use crate::models::decoder::{Context, normed};
use crate::models::weights::Tensors;
use crate::models::{KvCache, Projection, merge_heads, split_heads};
use crate::ops::attention::AttentionOptions;
use crate::tensor::Tensor;

/// x ← x + self(norm(x)), x ← x + cross(norm(x), source), x ← x + feed(norm(x)).
pub(super) struct CrossLayer {
    attention_norm: Option<Norm>,
    attention: Attention,
    cross_norm: Option<Norm>,
    cross: Cross,
    feed_norm: Option<Norm>,
    feed: Feed,
}

/// Attention of a text's queries to the keys of a source.
struct Cross {
    q: Projection, // d → H·D
    k: Projection,
    v: Projection,
    o: Projection, // H·D → d
    heads: usize,
    scale: Option<f64>,
}

/// Keys and values `[B,H,S,D]` of a source for one layer.
pub(super) type SourceKeys = (Tensor, Tensor);

impl CrossLayer {
    /// Reads the weights of layer `i`.
    pub fn load(w: &Tensors<'_>, i: usize, l: &LayerSpec, width: usize) -> TensorResult<CrossLayer> {
        let name = |part: &str| format!("blk.{i}.{part}");
        let norm = |part: &str, spec| Norm::load_if(w, &name(part), spec, width);
        let Some(a) = l.mixer.attention() else { return Err(TensorError::Internal("a layer without attention".into())) };
        let inner = a.heads * a.head_dim;
        let linear = |part: &str, inputs, outputs, bias| w.linear(&name(part), inputs, outputs, bias);
        Ok(CrossLayer {
            attention_norm: norm("attn_norm", l.attention_norm)?,
            attention: Attention::load(w, i, a, width)?,
            cross_norm: norm("cross_attn_norm", l.attention_norm)?,
            cross: Cross {
                q: linear("cross_attn_q", width, inner, a.qkv_bias)?,
                k: linear("cross_attn_k", width, inner, a.qkv_bias)?,
                v: linear("cross_attn_v", width, inner, a.qkv_bias)?,
                o: linear("cross_attn_o", inner, width, a.output_bias)?,
                heads: a.heads,
                scale: a.scale,
            },
            feed_norm: norm("ffn_norm", l.feed_norm)?,
            feed: Feed::load(w, i, &l.feed, width)?,
        })
    }

    /// What the layer's queries look at in a source of states `[B,S,d]`.
    pub fn source(&self, states: &Tensor) -> TensorResult<SourceKeys> {
        let c = &self.cross;
        Ok((split_heads(&c.k.forward(states)?, c.heads)?, split_heads(&c.v.forward(states)?, c.heads)?))
    }

    /// The residual stream `[B,T,d]` after layer `i`; `mask` hides the padding of the source.
    pub fn run(
        &self,
        i: usize,
        x: &Tensor,
        context: &Context,
        (k, v): &SourceKeys,
        mask: Option<&Tensor>,
        cache: &mut KvCache,
    ) -> TensorResult<Tensor> {
        let x = x.add(&self.attention.forward(i, &normed(self.attention_norm.as_ref(), x)?, context, cache)?)?;
        let h = normed(self.cross_norm.as_ref(), &x)?;
        let options = AttentionOptions { scale: self.cross.scale, causal: false, ..Default::default() };
        let a = split_heads(&self.cross.q.forward(&h)?, self.cross.heads)?.attention(k, v, mask, &options)?;
        let x = x.add(&self.cross.o.forward(&merge_heads(&a)?)?)?;
        x.add(&self.feed.forward(&normed(self.feed_norm.as_ref(), &x)?, &x)?)
    }
}
