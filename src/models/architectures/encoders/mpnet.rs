//! MPNet (Song et al., 2020): RoBERTa without kinds of tokens, with a bias of the scores by the distance of query and key, which all layers share.

use super::common::{self, BERT, Task};
use super::roberta::{self, CLASSIFIER};
use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::decoder::names::Names;
use crate::models::encoder::description::{EncoderSpec, RelativeSpec};
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<EncoderSpec> {
    let mut e = common::layers(s, "mpnet", &BERT, names())?;
    // There are no kinds, whatever it says.
    s.number(NONE, "type_vocab_size")?;
    // transformers counts 32 of them, whatever the table's size, and takes token 1 for padding.
    let rows = s.size(NONE, "relative_attention_num_buckets", 1 << 16)?.unwrap_or(32);
    if rows < 32 {
        return Err(s.refuse(NONE, "relative_attention_num_buckets", "distances fall into 32 buckets"));
    }
    e.relative = Some(RelativeSpec { rows, buckets: 32, farthest: 128 });
    roberta::counted_positions(s, &mut e, 1.0)?;
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
        "mpnet.",
        "encoder.layer",
        &[
            ("token_embd", "mpnet.embeddings.word_embeddings"),
            ("position_embd", "mpnet.embeddings.position_embeddings"),
            ("token_embd_norm", "mpnet.embeddings.LayerNorm"),
            ("relative_bias", "mpnet.encoder.relative_attention_bias"),
            ("pooler", "mpnet.pooler.dense"),
            ("head_dense", "lm_head.dense"),
            ("head_norm", "lm_head.layer_norm"),
            ("output", "lm_head.decoder"),
            ("output.bias", "lm_head.bias"),
        ],
        &[
            ("attn_q", "attention.attn.q"),
            ("attn_k", "attention.attn.k"),
            ("attn_v", "attention.attn.v"),
            ("attn_output", "attention.attn.o"),
            ("attn_norm", "attention.LayerNorm"),
            ("ffn_up", "intermediate.dense"),
            ("ffn_down", "output.dense"),
            ("ffn_norm", "output.LayerNorm"),
        ],
    )
}
