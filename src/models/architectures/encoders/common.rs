//! What encoders have in common: the keys of sizes, layers with norms behind the sums, what `architectures` says of the head.

use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::decoder::Description;
use crate::models::decoder::description::{FeedForm, Flow, JointQkv, NormSpec, Sizes};
use crate::models::decoder::names::Names;
use crate::models::encoder::description::{DenseSpec, EncoderSpec, ReadOut, ReadOutOf, ReadOutTo};
use crate::models::rope_settings::{RopeDefaults, RopeTable};
use crate::models::settings::{NONE, Settings};

/// The keys of `config.json`, and what holds without them.
#[derive(Clone, Copy)]
pub(super) struct EncoderKeys {
    pub width: &'static str,
    pub layers: &'static str,
    pub heads: &'static str,
    pub feed: &'static str,
    pub activation: &'static str,
    pub default_activation: ActivationFn,
    /// The key of ε, where it is not a constant.
    pub eps: Option<&'static str>,
    pub default_eps: f64,
    /// Whether the size of a head has a key.
    pub head_dim: bool,
}

/// BERT's keys.
pub(super) const BERT: EncoderKeys = EncoderKeys {
    width: "hidden_size",
    layers: "num_hidden_layers",
    heads: "num_attention_heads",
    feed: "intermediate_size",
    activation: "hidden_act",
    default_activation: ActivationFn::GeluExact,
    eps: Some("layer_norm_eps"),
    default_eps: 1e-12,
    head_dim: false,
};

/// GGUF's names of the norms behind the sums.
const IN_GGUF: [(&str, &str); 2] = [("attn_norm", "attn_output_norm"), ("ffn_norm", "layer_output_norm")];

/// BERT's layers, x ← norm(x + attention(x)), x ← norm(x + W₂·act(W₁·x)) with biases everywhere, behind a norm of the embeddings.
pub(super) fn layers(s: &Settings<'_>, architecture: &'static str, keys: &EncoderKeys, names: Names) -> TensorResult<EncoderSpec> {
    let width = s.need("embedding_length", keys.width, 1 << 20)?;
    let heads = s.need("attention.head_count", keys.heads, 1 << 14)?;
    let given = if keys.head_dim { s.size(NONE, "head_dim", 1 << 12)? } else { None };
    if given.is_none() && width % heads != 0 {
        return Err(s.wrong(format!("{heads} heads do not divide {width} ({})", s.sizes())));
    }
    let z = Sizes {
        width,
        layers: s.need("block_count", keys.layers, 4096)?,
        heads,
        kv_heads: heads,
        head_dim: given.unwrap_or(width / heads),
        feed: s.need("feed_forward_length", keys.feed, 1 << 22)?,
        context: s.need("context_length", "max_position_embeddings", 1 << 24)?,
    };
    s.only_flag("attention.causal", NONE, false, "only encoders of this architecture are implemented")?;
    s.only_number("attention.head_count_kv", NONE, heads as f64, "only as many heads of keys as of queries are implemented")?;
    s.only_flag(NONE, "is_decoder", false, "only encoders of this architecture are implemented")?;
    let eps = keys.eps.map(|key| s.positive("attention.layer_norm_epsilon", key)).transpose()?.flatten().unwrap_or(keys.default_eps);
    let activation = ActivationFn::read(s, keys.activation, keys.default_activation)?;
    let norm = NormSpec::layer(eps);
    let mut stack = Description::new(architecture, z, norm, names.in_gguf(&IN_GGUF));
    stack.attentions(|a| (a.rope, a.qkv_bias, a.output_bias) = (None, Some(true), Some(true)));
    stack.each(|l| {
        l.flow = Flow::NormedSums;
        (l.feed.form, l.feed.activation, l.feed.bias) = (FeedForm::Plain, activation, Some(true));
    });
    stack.embed.norm = Some(norm);
    stack.final_norm = false;
    stack.head.tied = true;
    // Numbers that are counted, in old files.
    stack.unused = &["embeddings.position_ids", "embeddings.token_type_ids", "predictions.decoder.bias", "lm_head.decoder.bias"];
    Ok(EncoderSpec::new(stack))
}

/// Queries and keys that rotate by one θ, `base` where no key says it, of one joint matrix of all rows of q, then k, then v.
pub(super) fn joint_and_rotated(s: &Settings<'_>, e: &mut EncoderSpec, base: f64) -> TensorResult<()> {
    let defaults = RopeDefaults { base, ..RopeDefaults::default() };
    joint_and_rotated_by(s, e, |s, head_dim, context| Ok(vec![RopeTable::read(s, defaults, head_dim, context)?]))
}

/// As [`joint_and_rotated`], by the first of the rotations that `ropes` gives for heads of a size in contexts of a length.
pub(super) fn joint_and_rotated_by(
    s: &Settings<'_>,
    e: &mut EncoderSpec,
    ropes: impl Fn(&Settings<'_>, usize, usize) -> TensorResult<Vec<RopeTable>>,
) -> TensorResult<()> {
    let head_dim = e.stack.attention_layers().next().map_or(0, |a| a.head_dim);
    let context = e.stack.context;
    if head_dim % 2 != 0 {
        return Err(s.wrong(format!("heads of size {head_dim} have no pairs to rotate ({})", s.sizes())));
    }
    e.stack.ropes = ropes(s, head_dim, context)?;
    e.stack.attentions(|a| (a.rope, a.joint) = (Some(0), JointQkv::Sorted));
    Ok(())
}

/// What `architectures` says that a model computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Task {
    /// States, and nothing of them.
    States,
    /// Logits of each token, for masked ones.
    MaskedTokens,
    /// Logits of labels of a text.
    Labels,
}

/// See [`Task`]; without the key the model computes states.
pub(super) fn task(s: &Settings<'_>) -> TensorResult<Task> {
    let names = if s.has_object("architectures") { s.texts("architectures")?.unwrap_or_default() } else { Vec::new() };
    match names[..] {
        [] => Ok(Task::States),
        [name] if name.ends_with("ForMaskedLM") || name.ends_with("ForPreTraining") => Ok(Task::MaskedTokens),
        [name] if name.ends_with("ForSequenceClassification") => Ok(Task::Labels),
        [name] if name.ends_with("Model") => Ok(Task::States),
        _ => Err(s.refuse(NONE, "architectures", "known ends are Model, ForMaskedLM and ForSequenceClassification")),
    }
}

/// Accepts a decoder whose states serve as embeddings, with or without its head.
pub(crate) fn of_states(s: &Settings<'_>) -> TensorResult<()> {
    let names = if s.has_object("architectures") { s.texts("architectures")?.unwrap_or_default() } else { Vec::new() };
    match names.iter().all(|name| name.ends_with("Model") || name.ends_with("ForCausalLM")) {
        true => Ok(()),
        false => Err(s.refuse(NONE, "architectures", "known ends are Model and ForCausalLM")),
    }
}

/// The head for masked tokens: norm(act(W·h + b)), then the embedding's rows and a bias.
pub(super) fn masked_tokens(activation: ActivationFn, norm: NormSpec) -> ReadOut {
    let dense = Some(DenseSpec { activation, bias: true });
    ReadOut { of: ReadOutOf::Tokens, dense, norm: Some(norm), to: ReadOutTo::Vocabulary { bias: true } }
}

/// The head for labels: W₂·act(W₁·h + b₁) + b₂ of the first token.
pub(super) fn labels(s: &Settings<'_>, activation: ActivationFn) -> TensorResult<ReadOut> {
    let dense = Some(DenseSpec { activation, bias: true });
    let to = ReadOutTo::Labels { names: s.labels()?, bias: true };
    Ok(ReadOut { of: ReadOutOf::First, dense, norm: None, to })
}

/// Vectors of kinds of tokens, as many as `type_vocab_size` says.
/// In GGUF as many as there are rows.
pub(super) fn types(s: &Settings<'_>, usual: usize) -> TensorResult<Option<usize>> {
    if !s.is_hub() {
        return Ok(s.gguf_shape("token_types.weight").map(|shape| shape[0]));
    }
    Ok(Some(s.size(NONE, "type_vocab_size", 1 << 16)?.unwrap_or(usual)))
}
