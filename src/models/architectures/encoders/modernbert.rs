//! ModernBERT (Warner et al., 2024): norms before each part, except before the first attention; two layers of three see half a window to either side and
//! rotate by another θ; feed-forward parts W₂·(act(a) ⊙ b) with (a, b) = W₁·x.

use super::common::{self, BERT, EncoderKeys, Task};
use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::architectures::common::bias;
use crate::models::decoder::description::{FeedForm, Flow, NormKind, NormSpec};
use crate::models::decoder::names::Names;
use crate::models::encoder::description::{DenseSpec, EncoderSpec, ReadOut, ReadOutOf, ReadOutTo};
use crate::models::rope_settings::{self, RopeDefaults, RopeTable};
use crate::models::settings::{NONE, Settings};

const KEYS: EncoderKeys = EncoderKeys { activation: "hidden_activation", eps: Some("norm_eps"), default_eps: 1e-5, ..BERT };

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<EncoderSpec> {
    let mut e = common::layers(s, "modernbert", &KEYS, names())?;
    // Keys of the first files: the same number again, and what positions are not.
    s.only_number(NONE, "layer_norm_eps", e.stack.norm.eps, "`norm_eps` is the one that counts")?;
    s.text(NONE, "position_embedding_type")?;
    let kind = if s.flag(NONE, "norm_bias")?.unwrap_or(false) { NormKind::Layer } else { NormKind::LayerWithoutBias };
    let norm = NormSpec { kind, ..e.stack.norm };
    let (attention, feed) = (bias(s, "attention_bias", false)?, bias(s, "mlp_bias", false)?);
    common::joint_and_rotated_by(s, &mut e, ropes)?;
    e.stack.norms(norm);
    (e.stack.embed.norm, e.stack.final_norm) = (Some(norm), true);
    let limited = limited(s, e.stack.layers.len())?;
    let reach = s.size(NONE, "local_attention", 1 << 24)?.unwrap_or(128) / 2;
    e.reach = limited.iter().map(|limited| limited.then_some(reach)).collect();
    for (a, limited) in e.stack.attention_layers().zip(limited) {
        (a.rope, a.qkv_bias, a.output_bias) = (Some(usize::from(limited)), attention, attention);
    }
    e.stack.each(|l| (l.flow, l.feed.form, l.feed.bias) = (Flow::Sequential, FeedForm::GatedJoint, feed));
    e.stack.layers[0].attention_norm = None;
    e.read_out = read_out(s, norm)?;
    Ok(e)
}

/// In layers with windows, and those without, by `layer_types` or the number that old files have.
fn limited(s: &Settings<'_>, layers: usize) -> TensorResult<Vec<bool>> {
    let every = s.size(NONE, "global_attn_every_n_layers", 4096)?.unwrap_or(3);
    Ok(s.windowed_layers(layers)?.unwrap_or_else(|| (0..layers).map(|i| i % every != 0).collect()))
}

/// The rotations of layers that see all the text, and of the others.
fn ropes(s: &Settings<'_>, head_dim: usize, context: usize) -> TensorResult<Vec<RopeTable>> {
    let whole = RopeDefaults { base: 160_000.0, base_key: "global_rope_theta", ..Default::default() };
    let near = RopeDefaults { base: 10_000.0, base_key: "local_rope_theta", ..Default::default() };
    let part = |object: &'static str, defaults| {
        // The older spelling scales all layers.
        RopeTable::from_config(s, rope_settings::object(s, object)?, defaults, head_dim, context)
    };
    Ok(vec![part("rope_parameters.full_attention", whole)?, part("rope_parameters.sliding_attention", near)?])
}

fn read_out(s: &Settings<'_>, norm: NormSpec) -> TensorResult<Option<ReadOut>> {
    let activation = ActivationFn::read(s, "classifier_activation", ActivationFn::GeluExact)?;
    let dense = Some(DenseSpec { activation, bias: s.flag(NONE, "classifier_bias")?.unwrap_or(false) });
    let decoder_bias = s.flag(NONE, "decoder_bias")?.unwrap_or(true);
    let of = match s.text(NONE, "classifier_pooling")? {
        None | Some("cls") => ReadOutOf::First,
        Some("mean") => ReadOutOf::Mean,
        Some(_) => return Err(s.refuse(NONE, "classifier_pooling", "supported: cls and mean")),
    };
    Ok(match common::task(s)? {
        Task::States => None,
        Task::MaskedTokens => {
            Some(ReadOut { of: ReadOutOf::Tokens, dense, norm: Some(norm), to: ReadOutTo::Vocabulary { bias: decoder_bias } })
        }
        Task::Labels => Some(ReadOut { of, dense, norm: Some(norm), to: ReadOutTo::Labels { names: s.labels()?, bias: true } }),
    })
}

fn names() -> Names {
    Names::new(
        "model.",
        "layers",
        &[
            ("token_embd", "model.embeddings.tok_embeddings"),
            ("token_embd_norm", "model.embeddings.norm"),
            ("output_norm", "model.final_norm"),
            ("head_dense", "head.dense"),
            ("head_norm", "head.norm"),
            ("output", "decoder"),
            ("cls.output", "classifier"),
        ],
        &[
            ("attn_norm", "attn_norm"),
            ("attn_qkv", "attn.Wqkv"),
            ("attn_output", "attn.Wo"),
            ("ffn_norm", "mlp_norm"),
            ("ffn_up", "mlp.Wi"),
            ("ffn_down", "mlp.Wo"),
        ],
    )
}
