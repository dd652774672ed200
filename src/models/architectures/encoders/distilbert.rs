//! DistilBERT (Sanh et al., 2019): BERT without kinds of tokens and without a pooler.

use super::common::{self, BERT, EncoderKeys, Task};
use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::decoder::description::{LearnedPositions, NormSpec};
use crate::models::decoder::names::Names;
use crate::models::encoder::description::EncoderSpec;
use crate::models::settings::{NONE, Settings};

const KEYS: EncoderKeys =
    EncoderKeys { width: "dim", layers: "n_layers", heads: "n_heads", feed: "hidden_dim", activation: "activation", eps: None, ..BERT };

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<EncoderSpec> {
    let mut e = common::layers(s, "distilbert", &KEYS, names())?;
    // They are in the file, however they began.
    s.flag(NONE, "sinusoidal_pos_embds")?;
    s.only_flag(NONE, "tie_weights_", true, "only an output matrix that is the embedding is implemented")?;
    e.stack.embed.positions = Some(LearnedPositions { offset: 0 });
    e.read_out = match common::task(s)? {
        Task::States => None,
        Task::MaskedTokens => {
            let activation = ActivationFn::read(s, KEYS.activation, KEYS.default_activation)?;
            Some(common::masked_tokens(activation, NormSpec::layer(1e-12)))
        }
        Task::Labels => {
            e.stack.names = e.stack.names.with_top(&[("head_dense", "pre_classifier"), ("cls.output", "classifier")]);
            Some(common::labels(s, ActivationFn::Relu)?)
        }
    };
    Ok(e)
}

fn names() -> Names {
    Names::new(
        "distilbert.",
        "transformer.layer",
        &[
            ("token_embd", "distilbert.embeddings.word_embeddings"),
            ("position_embd", "distilbert.embeddings.position_embeddings"),
            ("token_embd_norm", "distilbert.embeddings.LayerNorm"),
            ("head_dense", "vocab_transform"),
            ("head_norm", "vocab_layer_norm"),
            ("output", "vocab_projector"),
        ],
        &[
            ("attn_q", "attention.q_lin"),
            ("attn_k", "attention.k_lin"),
            ("attn_v", "attention.v_lin"),
            ("attn_output", "attention.out_lin"),
            ("attn_norm", "sa_layer_norm"),
            ("ffn_up", "ffn.lin1"),
            ("ffn_down", "ffn.lin2"),
            ("ffn_norm", "output_layer_norm"),
        ],
    )
}
