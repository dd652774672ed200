//! Attention of a layer: projections, norms and rotations of queries and keys, the cache, the output matrix.

use crate::error::{TensorError, TensorResult};
use crate::models::decoder::Context;
use crate::models::decoder::description::{AttentionSpec, Gate, JointQkv, KeysFrom, QkNormOf};
use crate::models::decoder::norm::Norm;
use crate::models::decoder::scores;
use crate::models::weights::Tensors;
use crate::models::{KvCache, Projection, merge_heads, split_heads};
use crate::ops::attention::AttentionOptions;
use crate::tensor::{Mode, Tensor};
use std::sync::Arc;

/// Attention with its weights.
#[derive(Clone)]
pub(crate) struct Attention {
    spec: Arc<AttentionSpec>,
    qkv: Qkv,
    o: Projection, // H·D → d
    q_norm: Option<Norm>,
    k_norm: Option<Norm>,
    /// A logit of each head that belongs to no key, `[H]`.
    sinks: Option<Tensor>,
    output_norm: Option<Norm>,
    gate: Option<Projection>, // d → H
    value_norm: Option<Norm>,
}

/// The matrices of queries d → H·D, keys and values d → Hkv·D.
#[derive(Clone)]
enum Qkv {
    Separate {
        q: Projection,
        /// None where keys are another layer's.
        k: Option<Projection>,
        /// None where values are another layer's or the keys.
        v: Option<Projection>,
    },
    /// Their rows in this order.
    Joint(Projection),
}

impl Attention {
    /// Reads the weights of layer `i`.
    pub fn load(w: &Tensors<'_>, i: usize, spec: &AttentionSpec, width: usize) -> TensorResult<Attention> {
        let name = |part: &str| format!("blk.{i}.{part}");
        let (heads, kv_heads, size) = (spec.heads, spec.kv_heads, spec.head_dim);
        let (q, kv) = (heads * size, kv_heads * size);
        let own = !matches!(spec.keys, KeysFrom::Layer(_));
        if !own {
            // Files may carry what the other layer's keys stand for.
            ["attn_k.weight", "attn_v.weight", "attn_k_norm.weight", "attn_v_norm.weight"].iter().for_each(|part| w.skip(&name(part)));
        }
        let queries = if spec.gate == Some(Gate::Element) { 2 * q } else { q };
        let qkv = match spec.joint {
            JointQkv::Separate => Qkv::Separate {
                q: w.linear(&name("attn_q"), width, queries, spec.qkv_bias)?,
                k: if own { Some(w.linear(&name("attn_k"), width, kv, spec.qkv_bias)?) } else { None },
                v: if spec.keys == KeysFrom::Own { Some(w.linear(&name("attn_v"), width, kv, spec.qkv_bias)?) } else { None },
            },
            JointQkv::Sorted => Qkv::Joint(w.linear(&name("attn_qkv"), width, q + 2 * kv, spec.qkv_bias)?),
            JointQkv::Grouped => {
                let groups = [kv_heads, heads / kv_heads, size];
                Qkv::Joint(w.linear_by(&name("attn_qkv"), width, q + 2 * kv, spec.qkv_bias, |t| sorted(t, groups))?)
            }
        };
        let qk_norm = |part: &str, heads: usize| {
            let Some(n) = spec.qk_norm else { return Ok(None) };
            Ok(Some(match n.of {
                QkNormOf::Head => Norm::load(w, &name(part), n.norm, size)?,
                QkNormOf::EachHead => Norm::load_heads(w, &name(part), n.norm, heads, size)?,
                QkNormOf::Width => Norm::load(w, &name(part), n.norm, heads * size)?,
            }))
        };
        Ok(Attention {
            qkv,
            q_norm: qk_norm("attn_q_norm", heads)?,
            k_norm: if own { qk_norm("attn_k_norm", kv_heads)? } else { None },
            value_norm: Norm::load_if(w, &name("attn_v_norm"), spec.value_norm, size)?,
            sinks: if spec.sinks { Some(w.vector(&name("attn_sinks.weight"), heads)?) } else { None },
            output_norm: Norm::load_if(w, &name("attn_sub_norm"), spec.output_norm, q)?,
            gate: match spec.gate {
                Some(Gate::Head) => Some(w.linear(&name("attn_gate"), width, heads, Some(false))?),
                _ => None,
            },
            o: w.linear(&name("attn_output"), q, width, spec.output_bias)?,
            spec: Arc::new(spec.clone()),
        })
    }

    /// Queries, keys and values `[B,T,H·D]`, normalised over their width and clipped.
    fn project(&self, h: &Tensor) -> TensorResult<[Tensor; 3]> {
        let s = &self.spec;
        let all = match &self.qkv {
            Qkv::Separate { q, k: Some(k), v: Some(v) } => [q.forward(h)?, k.forward(h)?, v.forward(h)?],
            Qkv::Separate { q, k: Some(k), .. } => {
                let (q, k) = (q.forward(h)?, k.forward(h)?);
                [q, k.clone(), k]
            }
            // Those of another layer stand for k and v.
            Qkv::Separate { q, .. } => {
                let q = q.forward(h)?;
                [q.clone(), q.clone(), q]
            }
            Qkv::Joint(all) => all.parts(h, [s.heads * s.head_dim, s.kv_heads * s.head_dim, s.kv_heads * s.head_dim])?,
        };
        let [q, k, v] = all;
        let of_width = |x: Tensor, norm: Option<&Norm>| match (norm, s.qk_norm) {
            (Some(norm), Some(n)) if n.of == QkNormOf::Width => norm.forward(&x),
            _ => Ok(x),
        };
        let all = [of_width(q, self.q_norm.as_ref())?, of_width(k, self.k_norm.as_ref())?, v];
        let Some(c) = s.clip else { return Ok(all) };
        let [q, k, v] = all;
        let clip = |x: Tensor| x.clamp(Some(-c), Some(c));
        Ok([clip(q)?, clip(k)?, clip(v)?])
    }

    /// The queries `[B,T,H·D]`, and the factors of the heads' results `[B,T,H·D]` if there is a gate.
    fn gate(&self, h: &Tensor, q: Tensor) -> TensorResult<(Tensor, Option<Tensor>)> {
        let (s, &[b, t, _]) = (&self.spec, h.dims()) else { return Ok((q, None)) };
        let merged = |x: &Tensor| x.reshape(&[b, t, s.heads * s.head_dim]);
        if s.gate == Some(Gate::Element) {
            let both = q.reshape(&[b, t, s.heads, 2 * s.head_dim])?;
            let part = |start| merged(&both.narrow(-1, start, s.head_dim)?);
            return Ok((part(0)?, Some(part(s.head_dim)?.sigmoid()?)));
        }
        let Some(gate) = &self.gate else { return Ok((q, None)) };
        let each = gate.forward(h)?.sigmoid()?.unsqueeze(-1)?.broadcast_to(&[b, t, s.heads, s.head_dim])?;
        Ok((q, Some(merged(&each)?)))
    }

    /// Queries or keys as heads `[B,H,T,D]`, normalised and rotated.
    fn heads(&self, x: &Tensor, heads: usize, norm: Option<&Norm>, rope: Option<usize>, context: &Context) -> TensorResult<Tensor> {
        let of = self.spec.qk_norm;
        let norm_at = |x: Tensor, at: bool| match (norm, of) {
            (Some(norm), Some(of)) if of.of != QkNormOf::Width && of.after_rope == at => norm.forward(&x),
            _ => Ok(x),
        };
        let x = norm_at(split_heads(x, heads)?, false)?;
        let x = match rope {
            Some(n) => context.ropes[n].rotate(&x)?,
            None => x,
        };
        norm_at(x, true)
    }

    /// `[B,T,d]` to `[B,T,d]`; keys and values go to layer `i` of the cache.
    pub fn forward(&self, i: usize, h: &Tensor, context: &Context, cache: &mut KvCache) -> TensorResult<Tensor> {
        let s = &*self.spec;
        let [q, k, v] = self.project(h)?;
        let (q, gate) = self.gate(h, q)?;
        let q = self.heads(&q, s.heads, self.q_norm.as_ref(), s.query_rope.or(s.rope), context)?; // [B, H, T, D]
        let q = match s.growth {
            Some(n) => context.ropes[n].grow(&q)?,
            None => q,
        };
        let a = match s.keys {
            KeysFrom::Layer(other) => {
                let (k, v) = cache.lent(other)?;
                self.attend(&q, [&k, &v], context)?
            }
            _ => {
                let k = self.heads(&k, s.kv_heads, self.k_norm.as_ref(), s.rope, context)?;
                let v = split_heads(&v, s.kv_heads)?;
                let v = self.value_norm.as_ref().map_or_else(|| Ok(v.clone()), |norm| norm.forward(&v))?;
                match cache.pages() {
                    Some(pages) => pages.attend(i, [&q, &k, &v], self.sinks.as_ref(), &self.paged_options(context)?)?,
                    None => {
                        let (k, v) = cache.append(i, &k, &v)?;
                        if s.lends {
                            cache.lend(i, &k, &v);
                        }
                        self.attend(&q, [&k, &v], context)?
                    }
                }
            }
        };
        let a = merge_heads(&a)?; // [B, T, H·D]
        let a = match gate {
            Some(gate) => a.mul(&gate)?,
            None => a,
        };
        match &self.output_norm {
            Some(norm) => self.o.forward(&norm.forward(&a)?),
            None => self.o.forward(&a),
        }
    }

    /// How queries attend to pages.
    fn paged_options(&self, context: &Context) -> TensorResult<AttentionOptions> {
        let s = &*self.spec;
        let scores = s.chunk.is_some() || context.biases.is_some() || context.mask.is_some();
        if scores || s.lends || s.growth.is_some() || !context.causal {
            let message = "attention with chunks, linear biases, a mask, growing queries or lent keys does not read pages yet";
            return Err(TensorError::Unsupported(message.into()));
        }
        Ok(AttentionOptions { scale: s.scale, window: s.window, softcap: s.softcap, ..Default::default() })
    }

    /// Heads `[B,H,T,D]` of what queries see of these keys and values.
    fn attend(&self, q: &Tensor, [k, v]: [&Tensor; 2], context: &Context) -> TensorResult<Tensor> {
        let s = &*self.spec;
        let biased = match (&context.biases, &context.mask) {
            (Some(biases), None) => Some(biases.narrow(-1, 0, k.dims()[2])?),
            (Some(biases), Some(mask)) => Some(biases.narrow(-1, 0, k.dims()[2])?.add(mask)?),
            (None, mask) => mask.clone(),
        };
        let sinks = self.sinks.as_ref();
        let learnt = sinks.is_some_and(|sinks| Mode::learns([q, k, v, sinks]));
        if s.chunk.is_some() || learnt {
            return scores::attention(s, sinks, [q, k, v], biased.as_ref(), context.kv_len);
        }
        let options = AttentionOptions {
            kv_len: context.kv_len,
            scale: s.scale,
            window: s.window,
            causal: context.causal,
            softcap: s.softcap,
            ..Default::default()
        };
        match sinks {
            Some(sinks) => q.attention_with_sinks(k, v, sinks, biased.as_ref(), &options),
            None => q.attention(k, v, biased.as_ref(), &options),
        }
    }

    /// The linear layers with GGUF's names of their parts.
    pub fn projections(&self) -> impl Iterator<Item = (&'static str, &Projection)> {
        let (joint, separate) = match &self.qkv {
            Qkv::Joint(all) => (Some(("attn_qkv", all)), None),
            Qkv::Separate { q, k, v } => (None, Some([("attn_q", Some(q)), ("attn_k", k.as_ref()), ("attn_v", v.as_ref())])),
        };
        let separate = separate.into_iter().flatten().filter_map(|(part, p)| Some((part, p?)));
        let gate = self.gate.iter().map(|g| ("attn_gate", g));
        joint.into_iter().chain(separate).chain(gate).chain([("attn_output", &self.o)])
    }

    /// As [`Attention::projections`], to be changed.
    pub fn projections_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut Projection)> {
        let (joint, separate) = match &mut self.qkv {
            Qkv::Joint(all) => (Some(("attn_qkv", all)), None),
            Qkv::Separate { q, k, v } => (None, Some([("attn_q", Some(q)), ("attn_k", k.as_mut()), ("attn_v", v.as_mut())])),
        };
        let separate = separate.into_iter().flatten().filter_map(|(part, p)| Some((part, p?)));
        let gate = self.gate.iter_mut().map(|g| ("attn_gate", g));
        joint.into_iter().chain(separate).chain(gate).chain([("attn_output", &mut self.o)])
    }

    /// The norms.
    pub fn norms(&self) -> impl Iterator<Item = &Norm> {
        self.q_norm.iter().chain(&self.k_norm).chain(&self.output_norm)
    }

    /// What is neither a linear layer nor a norm.
    pub fn others(&self) -> impl Iterator<Item = &Tensor> {
        self.sinks.iter()
    }
}

/// Rows `[Hkv·(g + 2)·D, …]` that have, for each key head, its g queries, its key and its value, with all queries first, then the keys, then the
/// values.
fn sorted(t: &Tensor, [kv_heads, g, size]: [usize; 3]) -> TensorResult<Tensor> {
    let inner: usize = t.dims()[1..].iter().product();
    let groups = t.reshape(&[kv_heads, g + 2, size * inner])?;
    let part = |start, len| -> TensorResult<Tensor> { groups.narrow(1, start, len)?.contiguous()?.reshape(((), inner)) };
    let rows = Tensor::cat(&[part(0, g)?, part(g, 1)?, part(g + 1, 1)?], 0)?;
    rows.reshape(t.shape())
}
