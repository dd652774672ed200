//! OPT (Zhang et al., 2022): learned positions whose table begins with two rows of no position, ReLU, biases; the 350M model has its norms behind
//! the sums.

use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::decoder::Description;
use crate::models::decoder::description::{FeedForm, Flow, LearnedPositions, NormKind, NormSpec, Sizes};
use crate::models::decoder::names::Names;
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let width = s.need(NONE, "hidden_size", 1 << 20)?;
    let heads = s.need(NONE, "num_attention_heads", 1 << 14)?;
    let context = s.need(NONE, "max_position_embeddings", 1 << 24)?;
    if width % heads != 0 {
        return Err(s.wrong(format!("{heads} heads do not divide {width} ({})", s.sizes())));
    }
    let z = Sizes {
        width,
        layers: s.need(NONE, "num_hidden_layers", 4096)?,
        heads,
        kv_heads: heads,
        head_dim: width / heads,
        feed: s.need(NONE, "ffn_dim", 1 << 22)?,
        context,
    };
    let same = "only embeddings of the width of the model are implemented";
    s.only_number(NONE, "word_embed_proj_dim", width as f64, same)?;
    let weighted = s.flag(NONE, "layer_norm_elementwise_affine")?.unwrap_or(true);
    let bias = Some(s.flag(NONE, "enable_bias")?.unwrap_or(true));
    let before = s.flag(NONE, "do_layer_norm_before")?.unwrap_or(true);
    let last = before && !s.flag(NONE, "_remove_final_layer_norm")?.unwrap_or(false);
    let activation = ActivationFn::read(s, "activation_function", ActivationFn::Relu)?;
    let kind = if weighted { NormKind::Layer } else { NormKind::LayerWithoutWeights };
    let mut d = Description::new("opt", z, NormSpec { kind, ..NormSpec::layer(1e-5) }, names());
    d.attentions(|a| {
        a.rope = None;
        (a.qkv_bias, a.output_bias) = (bias, bias);
    });
    d.each(|l| {
        l.flow = if before { Flow::Sequential } else { Flow::NormedSums };
        (l.feed.form, l.feed.activation, l.feed.bias) = (FeedForm::Plain, activation, bias);
    });
    d.embed.positions = Some(LearnedPositions { offset: 2 });
    d.final_norm = last;
    d.head.tied = true;
    Ok(d)
}

fn names() -> Names {
    Names::new(
        "model.",
        "decoder.layers",
        &[
            ("token_embd", "model.decoder.embed_tokens"),
            ("position_embd", "model.decoder.embed_positions"),
            ("output_norm", "model.decoder.final_layer_norm"),
            ("output", "lm_head"),
        ],
        &[
            ("attn_norm", "self_attn_layer_norm"),
            ("attn_q", "self_attn.q_proj"),
            ("attn_k", "self_attn.k_proj"),
            ("attn_v", "self_attn.v_proj"),
            ("attn_output", "self_attn.out_proj"),
            ("ffn_norm", "final_layer_norm"),
            ("ffn_up", "fc1"),
            ("ffn_down", "fc2"),
        ],
    )
}
