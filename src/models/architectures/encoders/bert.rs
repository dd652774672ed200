//! BERT (Devlin et al., 2019), also MiniLM, BGE, E5 and GTE: x = norm(E[tokens] + P[positions] + S[kinds]), then layers with norms behind the sums. The
//! pooler is tanh(W·h + b) of the first token. GGUF has RoBERTa, XLM-R and DistilBERT under this name too, with the positions that texts begin with first.

use super::common::{self, BERT, Task};
use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::decoder::description::{JointQkv, LearnedPositions};
use crate::models::decoder::names::Names;
use crate::models::encoder::description::EncoderSpec;
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<EncoderSpec> {
    let mut e = common::layers(s, "bert", &BERT, names("bert."))?;
    absolute(s)?;
    e.types = common::types(s, 2)?;
    e.stack.embed.positions = Some(LearnedPositions { offset: 0 });
    if s.gguf_shape("blk.0.attn_qkv.weight").is_some() {
        e.stack.attentions(|a| a.joint = JointQkv::Sorted);
    }
    let norm = e.stack.norm;
    match common::task(s)? {
        Task::States => {}
        Task::MaskedTokens => {
            let activation = ActivationFn::read(s, BERT.activation, BERT.default_activation)?;
            e.read_out = Some(common::masked_tokens(activation, norm));
            // A second head, which tells whether two texts follow each other.
            e.stack.unused =
                &["embeddings.position_ids", "predictions.decoder.bias", "cls.seq_relationship.weight", "cls.seq_relationship.bias"];
        }
        Task::Labels => {
            e.stack.names = e.stack.names.with_top(&[("head_dense", "bert.pooler.dense"), ("cls.output", "classifier")]);
            e.read_out = Some(common::labels(s, ActivationFn::Tanh)?);
        }
    }
    Ok(e)
}

/// Positions are numbers, not distances.
pub(super) fn absolute(s: &Settings<'_>) -> TensorResult<()> {
    match s.text(NONE, "position_embedding_type")? {
        None | Some("absolute") => Ok(()),
        Some(_) => Err(s.refuse(NONE, "position_embedding_type", "only absolute positions are implemented")),
    }
}

/// BERT's names behind `prefix`, which ends with a dot.
fn names(prefix: &'static str) -> Names {
    Names::new(
        prefix,
        "encoder.layer",
        &[
            ("token_embd", "bert.embeddings.word_embeddings"),
            ("position_embd", "bert.embeddings.position_embeddings"),
            ("token_types", "bert.embeddings.token_type_embeddings"),
            ("token_embd_norm", "bert.embeddings.LayerNorm"),
            ("pooler", "bert.pooler.dense"),
            ("head_dense", "cls.predictions.transform.dense"),
            ("head_norm", "cls.predictions.transform.LayerNorm"),
            ("output", "cls.predictions.decoder"),
            ("output.bias", "cls.predictions.bias"),
        ],
        LAYER,
    )
}

/// The parts of a layer.
pub(super) const LAYER: &[(&str, &str)] = &[
    ("attn_q", "attention.self.query"),
    ("attn_k", "attention.self.key"),
    ("attn_v", "attention.self.value"),
    ("attn_output", "attention.output.dense"),
    ("attn_norm", "attention.output.LayerNorm"),
    ("ffn_up", "intermediate.dense"),
    ("ffn_down", "output.dense"),
    ("ffn_norm", "output.LayerNorm"),
];
