//! RoBERTa (Liu et al., 2019) and XLM-R (Conneau et al., 2020), also multilingual E5, BGE-M3 and its rerankers: BERT with positions that are counted from
//! behind the padding token's number, over the tokens that are not padding.

use super::bert::{self, LAYER};
use super::common::{self, BERT, Task};
use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::decoder::description::LearnedPositions;
use crate::models::decoder::names::Names;
use crate::models::encoder::description::EncoderSpec;
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<EncoderSpec> {
    described(s, "roberta")
}

pub(super) fn describe_xlm(s: &Settings<'_>) -> TensorResult<EncoderSpec> {
    described(s, "xlm-roberta")
}

fn described(s: &Settings<'_>, architecture: &'static str) -> TensorResult<EncoderSpec> {
    let mut e = common::layers(s, architecture, &BERT, names())?;
    bert::absolute(s)?;
    e.types = common::types(s, 2)?;
    counted_positions(s, &mut e, s.number(NONE, "pad_token_id")?.unwrap_or(1.0))?;
    e.read_out = match common::task(s)? {
        Task::States => None,
        // The function of this head is fixed.
        Task::MaskedTokens => Some(common::masked_tokens(ActivationFn::GeluExact, e.stack.norm)),
        Task::Labels => {
            e.stack.names = e.stack.names.with_top(CLASSIFIER);
            Some(common::labels(s, ActivationFn::Tanh)?)
        }
    };
    Ok(e)
}

/// Positions counted over the tokens that are not `pad`; the first of them is row `pad` + 1 of the table.
pub(super) fn counted_positions(s: &Settings<'_>, e: &mut EncoderSpec, pad: f64) -> TensorResult<()> {
    let rows = e.stack.context;
    if pad < 0.0 || pad.fract() != 0.0 || pad + 1.0 >= rows as f64 {
        return Err(s.refuse(NONE, "pad_token_id", &format!("positions begin behind it, and there are {rows}")));
    }
    let offset = pad as usize + 1;
    e.pad = Some(pad as u32);
    e.stack.context = rows - offset;
    e.stack.embed.positions = Some(LearnedPositions { offset });
    Ok(())
}

/// The parts of a classifier.
pub(super) const CLASSIFIER: &[(&str, &str)] = &[("head_dense", "classifier.dense"), ("cls.output", "classifier.out_proj")];

fn names() -> Names {
    Names::new(
        "roberta.",
        "encoder.layer",
        &[
            ("token_embd", "roberta.embeddings.word_embeddings"),
            ("position_embd", "roberta.embeddings.position_embeddings"),
            ("token_types", "roberta.embeddings.token_type_embeddings"),
            ("token_embd_norm", "roberta.embeddings.LayerNorm"),
            ("pooler", "roberta.pooler.dense"),
            ("head_dense", "lm_head.dense"),
            ("head_norm", "lm_head.layer_norm"),
            ("output", "lm_head.decoder"),
            ("output.bias", "lm_head.bias"),
        ],
        LAYER,
    )
}
