//! MiniCPM 3 (OpenBMB, 2024): attention by latents whose rotated parts are of halves; multipliers of embeddings, of what is added to the residual
//! stream, and a divisor of logits.

use super::common;
use super::deepseek::{self, UsualLatent};
use crate::error::TensorResult;
use crate::models::decoder::Description;
use crate::models::settings::{NONE, Settings};
use crate::ops::rope::RopePairs;

const USUAL: UsualLatent =
    UsualLatent { query_rank: 768, rank: 256, nope_dim: 64, rope_dim: 32, value: 64, eps: 1e-6, partial_rope: false };

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let mut d = deepseek::decoder(s, "minicpm3", &USUAL)?;
    d.ropes.iter_mut().for_each(|table| table.pairs = RopePairs::Halves);
    let bias = common::bias(s, "mlp_bias", false)?;
    let residual = s.number(NONE, "scale_depth")?.unwrap_or(1.0) / (d.layers.len() as f64).sqrt();
    d.each(|l| (l.feed.bias, l.residual) = (bias, Some(residual)));
    d.embed.scale = s.number(NONE, "scale_emb")?;
    d.head.scale = s.positive(NONE, "dim_model_base")?.map_or(Some(1.0 / d.width as f64), |base| Some(base / d.width as f64));
    Ok(d)
}
