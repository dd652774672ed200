//! MiniCPM 3 (OpenBMB, 2024): attention by latents whose rotated parts are of halves; multipliers of embeddings, of what is added to the residual
//! stream, and a divisor of logits.

use super::deepseek::{self, UsualLatent};
use super::{Named, common, folded};
use crate::error::TensorResult;
use crate::io::GgufWriter;
use crate::models::decoder::Description;
use crate::models::decoder::description::{MixerSpec, NormSpec};
use crate::models::settings::{NONE, Settings};
use crate::ops::rope::RopePairs;

const USUAL: UsualLatent =
    UsualLatent { query_rank: 768, rank: 256, nope_dim: 64, rope_dim: 32, value: 64, eps: 1e-6, partial_rope: false, joint: true };

/// `scale_emb`, `scale_depth` and `dim_model_base` of the models that there are, which llama.cpp takes for all.
const SCALES: [f64; 3] = [12.0, 1.4, 256.0];

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let mut d = deepseek::decoder(s, "minicpm3", &USUAL)?;
    d.ropes.iter_mut().for_each(|table| table.pairs = RopePairs::Halves);
    let bias = common::bias(s, "mlp_bias", false)?;
    d.each(|l| {
        l.feed.bias = bias;
        if let MixerSpec::Latent(latent) = &mut l.mixer {
            // As in folders.
            latent.norm = NormSpec::rms(1e-6);
        }
    });
    if !s.is_hub() {
        scale(&mut d, SCALES);
        return Ok(d);
    }
    let depth = s.number(NONE, "scale_depth")?.unwrap_or(1.0);
    let (embedding, base) = (s.number(NONE, "scale_emb")?.unwrap_or(1.0), s.positive(NONE, "dim_model_base")?.unwrap_or(1.0));
    scale(&mut d, [embedding, depth, base]);
    Ok(d)
}

/// Sets the multipliers.
fn scale(d: &mut Description, [embedding, depth, base]: [f64; 3]) {
    let residual = depth / (d.layers.len() as f64).sqrt();
    d.each(|l| l.residual = Some(residual));
    d.embed.scale = Some(embedding);
    d.head.scale = Some(base / d.width as f64);
}

/// Sizes of heads, as one matrix of keys and values gives them.
pub(super) fn gguf_keys(_: &Settings<'_>, d: &Description, _: &mut Vec<Named>, w: &mut GgufWriter<'_>) -> TensorResult<()> {
    let Some(MixerSpec::Latent(spec)) = d.layers.first().map(|l| &l.mixer) else { return Ok(()) };
    w.set("minicpm3.attention.head_count_kv", spec.heads as u32);
    w.set("minicpm3.attention.key_length", (spec.nope_dim + spec.rope_dim) as u32);
    w.set("minicpm3.attention.value_length", spec.value as u32);
    Ok(())
}

/// Other multipliers than llama.cpp's are in the tensors.
pub(super) fn fold(d: &mut Description, tensors: &mut Vec<Named>) -> TensorResult<()> {
    let mut usual = d.clone();
    scale(&mut usual, SCALES);
    let by = |own: Option<f64>, usual: Option<f64>| own.unwrap_or(1.0) / usual.unwrap_or(1.0);
    folded::multiply_ends(tensors, by(d.embed.scale, usual.embed.scale), by(d.head.scale, usual.head.scale))?;
    let residual = by(d.layers[0].residual, usual.layers[0].residual);
    folded::multiply(tensors, |part| match part {
        "attn_output.weight" | "attn_output.bias" | "ffn_down.weight" | "ffn_down.bias" => residual,
        _ => 1.0,
    })?;
    *d = usual;
    deepseek::joined(tensors)
}
