//! Jina Embeddings v3 (Sturua et al., 2024): XLM-R whose queries and keys rotate, without learned positions. Its adapters for single tasks are not part of it.

use super::common::{self, BERT, EncoderKeys, Task};
use super::roberta::CLASSIFIER;
use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::decoder::names::Names;
use crate::models::encoder::description::EncoderSpec;
use crate::models::settings::Settings;

const KEYS: EncoderKeys = EncoderKeys { default_eps: 1e-5, ..BERT };

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<EncoderSpec> {
    let mut e = common::layers(s, "jina_embeddings_v3", &KEYS, names())?;
    common::joint_and_rotated(s, &mut e, 20_000.0)?;
    e.types = common::types(s, 1)?;
    e.read_out = match common::task(s)? {
        Task::States => None,
        Task::MaskedTokens => Some(common::masked_tokens(ActivationFn::GeluExact, e.stack.norm)),
        Task::Labels => {
            e.stack.names = e.stack.names.with_top(CLASSIFIER);
            Some(common::labels(s, ActivationFn::Tanh)?)
        }
    };
    Ok(e)
}

fn names() -> Names {
    Names::new(
        "roberta.",
        "encoder.layers",
        &[
            ("token_embd", "roberta.embeddings.word_embeddings"),
            ("token_types", "roberta.embeddings.token_type_embeddings"),
            ("token_embd_norm", "roberta.emb_ln"),
            ("pooler", "roberta.pooler.dense"),
            ("head_dense", "lm_head.dense"),
            ("head_norm", "lm_head.layer_norm"),
            ("output", "lm_head.decoder"),
            ("output.bias", "lm_head.bias"),
        ],
        &[
            ("attn_qkv", "mixer.Wqkv"),
            ("attn_output", "mixer.out_proj"),
            ("attn_norm", "norm1"),
            ("ffn_up", "mlp.fc1"),
            ("ffn_down", "mlp.fc2"),
            ("ffn_norm", "norm2"),
        ],
    )
}
