//! Apertus (Swiss AI, 2025): Llama with normed heads of queries and keys and a plain part of xIELU (Huang & Schlag, 2025), whose two slopes are
//! learned in each layer.

use super::Named;
use super::common::{self, Usual};
use crate::error::TensorResult;
use crate::io::GgufWriter;
use crate::models::activation::ActivationFn;
use crate::models::decoder::Description;
use crate::models::decoder::description::{FeedForm, QkNorm, QkNormOf};
use crate::models::decoder::names::Names;
use crate::models::rope_settings::RopeDefaults;
use crate::models::settings::Settings;

/// The numbers of xIELU.
const NUMBERS: [&str; 4] = ["alpha_p", "alpha_n", "beta", "eps"];

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    common::rope_is_said(s)?;
    let rope = RopeDefaults { base: 12_000_000.0, ..RopeDefaults::default() };
    let usual = Usual { eps: 1e-5, activation: ActivationFn::Xielu, rope, ..Usual::default() };
    let mut d = common::decoder(s, "apertus", &usual)?;
    let (norm, bias) = (d.norm, common::bias(s, "attention_bias", false)?);
    d.attentions(|a| {
        a.qk_norm = Some(QkNorm { norm, of: QkNormOf::Head, after_rope: false });
        (a.qkv_bias, a.output_bias) = (bias, bias);
    });
    d.each(|l| l.feed.form = FeedForm::Plain);
    if !s.is_hub() {
        let all = NUMBERS.map(|part| numbers(s, &key(part), d.layers.len()));
        let [above, below, beta, eps] = all;
        let (above, below, beta, eps) = (above?, below?, beta?, eps?);
        d.layers.iter_mut().enumerate().for_each(|(i, l)| l.feed.xielu = Some([above[i], below[i], beta[i], eps[i]]));
    }
    d.names =
        Names::llama().with(&[("attn_norm", "attention_layernorm"), ("ffn_norm", "feedforward_layernorm"), ("ffn_act", "mlp.act_fn")]);
    Ok(d)
}

/// The key of a number, which is the same for all architectures.
fn key(part: &str) -> String {
    format!("xielu.{part}")
}

/// A number for each layer by a whole key of GGUF.
fn numbers(s: &Settings<'_>, key: &str, layers: usize) -> TensorResult<Vec<f64>> {
    let all = s.by_whole_key(key)?.filter(|all| all.len() == layers);
    all.ok_or_else(|| s.wrong(format!("`{key}` must be a number for each of {layers} layers ({})", s.sizes())))
}

/// xIELU's numbers, which are tensors of layers in folders, are lists.
pub(super) fn gguf_keys(_: &Settings<'_>, _: &Description, tensors: &mut Vec<Named>, w: &mut GgufWriter<'_>) -> TensorResult<()> {
    for part in NUMBERS {
        let end = format!(".ffn_act.{part}");
        let all = tensors.iter().filter(|(name, _)| name.ends_with(&end)).map(|(_, t)| t.to_vec());
        w.set(&key(part), all.collect::<TensorResult<Vec<_>>>()?.concat());
    }
    tensors.retain(|(name, _)| !name.contains(".ffn_act."));
    Ok(())
}
