//! Nomic BERT (Nussbaum et al., 2024): BERT whose queries and keys rotate, without learned positions, with a gated feed-forward part and without biases.

use super::common::{self, BERT, EncoderKeys, Task};
use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::decoder::description::FeedForm;
use crate::models::decoder::names::Names;
use crate::models::encoder::description::EncoderSpec;
use crate::models::settings::Settings;

const KEYS: EncoderKeys = EncoderKeys { default_activation: ActivationFn::Silu, head_dim: true, ..BERT };

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<EncoderSpec> {
    let mut e = common::layers(s, "nomic_bert", &KEYS, names())?;
    common::joint_and_rotated(s, &mut e, 1000.0)?;
    e.types = common::types(s, 2)?;
    e.stack.attentions(|a| (a.qkv_bias, a.output_bias) = (Some(false), Some(false)));
    e.stack.each(|l| (l.feed.form, l.feed.bias) = (FeedForm::Gated, Some(false)));
    match common::task(s)? {
        Task::States => {}
        Task::MaskedTokens => {
            let activation = ActivationFn::read(s, KEYS.activation, KEYS.default_activation)?;
            e.read_out = Some(common::masked_tokens(activation, e.stack.norm));
        }
        Task::Labels => {
            e.stack.names = e.stack.names.with_top(&[("head_dense", "nomic_bert.pooler.dense"), ("cls.output", "classifier")]);
            e.read_out = Some(common::labels(s, ActivationFn::Tanh)?);
        }
    }
    Ok(e)
}

fn names() -> Names {
    Names::new(
        "nomic_bert.",
        "encoder.layers",
        &[
            ("token_embd", "nomic_bert.embeddings.word_embeddings"),
            ("token_types", "nomic_bert.embeddings.token_type_embeddings"),
            ("token_embd_norm", "nomic_bert.emb_ln"),
            ("pooler", "nomic_bert.pooler.dense"),
            ("head_dense", "cls.predictions.transform.dense"),
            ("head_norm", "cls.predictions.transform.layer_norm"),
            ("output", "cls.predictions.decoder"),
            ("output.bias", "cls.predictions.bias"),
        ],
        &[
            ("attn_qkv", "attn.Wqkv"),
            ("attn_output", "attn.out_proj"),
            ("attn_norm", "norm1"),
            ("ffn_up", "mlp.fc11"),
            ("ffn_gate", "mlp.fc12"),
            ("ffn_down", "mlp.fc2"),
            ("ffn_norm", "norm2"),
        ],
    )
}
