//! Attention by latents: of each position one small vector is kept, of which the keys and values of all heads are products.
//!
//! k_h = (K_h·c, r) and v_h = V_h·c with a position's latent c and rotated part r. Since q·K_h·c = (K_hᵀ·q)·c, queries are brought to the latent
//! instead: the scores are those of one key head (c, r), and V_h is applied to the weighted sum of latents.

use super::super::Context;
use super::super::description::LatentSpec;
use super::super::norm::Norm;
use crate::error::TensorResult;
use crate::models::weights::Tensors;
use crate::models::{KvCache, Projection, merge_heads, split_heads};
use crate::ops::attention::AttentionOptions;
use crate::tensor::Tensor;
use std::sync::Arc;

/// Attention by latents with its weights.
#[derive(Clone)]
pub(crate) struct Latent {
    spec: Arc<LatentSpec>,
    query: Query,
    kv_a: Projection, // d → rank + rotated
    kv_norm: Norm,
    k_b: Tensor,   // [H, rank, plain]
    v_b: Tensor,   // [H, value, rank]
    o: Projection, // H·value → d
}

/// How a hidden state becomes queries, d → H·(plain + rotated).
#[derive(Clone)]
enum Query {
    Direct(Projection),
    /// By a vector of its own.
    ByRank(Projection, Norm, Projection),
}

impl Latent {
    /// Reads the weights of layer `i`.
    pub fn load(w: &Tensors<'_>, i: usize, spec: &LatentSpec, width: usize) -> TensorResult<Latent> {
        let name = |part: &str| format!("blk.{i}.{part}");
        let queries = spec.heads * (spec.nope_dim + spec.rope_dim);
        let query = match spec.query_rank {
            Some(rank) => Query::ByRank(
                w.linear(&name("attn_q_a"), width, rank, spec.bias)?,
                Norm::load(w, &name("attn_q_a_norm"), spec.norm, rank)?,
                w.linear(&name("attn_q_b"), rank, queries, Some(false))?,
            ),
            None => Query::Direct(w.linear(&name("attn_q"), width, queries, Some(false))?),
        };
        let kv_a = w.linear(&name("attn_kv_a_mqa"), width, spec.rank + spec.rope_dim, spec.bias)?;
        let [k_b, v_b] = w.latent_keys_values(&format!("blk.{i}"), [spec.heads, spec.nope_dim, spec.value, spec.rank])?;
        Ok(Latent {
            query,
            kv_a,
            kv_norm: Norm::load(w, &name("attn_kv_a_norm"), spec.norm, spec.rank)?,
            k_b,
            v_b,
            o: w.linear(&name("attn_output"), spec.heads * spec.value, width, spec.bias)?,
            spec: Arc::new(spec.clone()),
        })
    }

    /// `[B,T,d]` to `[B,T,d]`; latents and rotated keys go to layer `i` of the cache.
    pub fn forward(&self, i: usize, h: &Tensor, context: &Context, cache: &mut KvCache) -> TensorResult<Tensor> {
        let s = &*self.spec;
        let rotated = |x: &Tensor| s.rope.map_or_else(|| Ok(x.clone()), |n| context.ropes[n].rotate(x));
        let q = match &self.query {
            Query::Direct(q) => q.forward(h)?,
            Query::ByRank(a, norm, b) => b.forward(&norm.forward(&a.forward(h)?)?)?,
        };
        let q = split_heads(&q, s.heads)?; // [B, H, T, plain + rotated]
        let q = match s.growth {
            Some(n) => context.ropes[n].grow(&q)?,
            None => q,
        };
        let to_latent = q.narrow(-1, 0, s.nope_dim)?.matmul(&self.k_b.transpose(1, 2)?)?.cast(h.dtype())?; // [B, H, T, rank]
        let q = Tensor::cat(&[to_latent, rotated(&q.narrow(-1, s.nope_dim, s.rope_dim)?)?], -1)?;
        let [c, r] = self.kv_a.parts(h, [s.rank, s.rope_dim])?;
        let k = Tensor::cat(&[self.kv_norm.forward(&c)?.unsqueeze(1)?, rotated(&r.unsqueeze(1)?)?], -1)?;
        let k = cache.append_rows(i, 0, &k)?; // [B, 1, S, rank + rotated]
        let options = AttentionOptions { kv_len: context.kv_len, scale: Some(s.scale), ..Default::default() };
        let a = q.attention(&k, &k.narrow(-1, 0, s.rank)?, context.mask.as_ref(), &options)?; // [B, H, T, rank]
        let a = a.matmul(&self.v_b.transpose(1, 2)?)?.cast(h.dtype())?; // [B, H, T, value]
        self.o.forward(&merge_heads(&a)?)
    }

    /// The linear layers with GGUF's names of their parts.
    pub fn projections(&self) -> Vec<(&'static str, &Projection)> {
        let mut all = match &self.query {
            Query::Direct(q) => vec![("attn_q", q)],
            Query::ByRank(a, _, b) => vec![("attn_q_a", a), ("attn_q_b", b)],
        };
        all.extend([("attn_kv_a_mqa", &self.kv_a), ("attn_output", &self.o)]);
        all
    }

    /// As [`Latent::projections`], to be changed.
    pub fn projections_mut(&mut self) -> Vec<(&'static str, &mut Projection)> {
        let mut all = match &mut self.query {
            Query::Direct(q) => vec![("attn_q", q)],
            Query::ByRank(a, _, b) => vec![("attn_q_a", a), ("attn_q_b", b)],
        };
        all.extend([("attn_kv_a_mqa", &mut self.kv_a), ("attn_output", &mut self.o)]);
        all
    }

    /// The norms.
    pub fn norms(&self) -> Vec<&Norm> {
        let query = match &self.query {
            Query::Direct(_) => None,
            Query::ByRank(_, norm, _) => Some(norm),
        };
        query.into_iter().chain([&self.kv_norm]).collect()
    }

    /// What is neither a linear layer nor a norm.
    pub fn others(&self) -> Vec<&Tensor> {
        vec![&self.k_b, &self.v_b]
    }
}
