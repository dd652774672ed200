//! Radians per position of each rotated pair, with the scaling for long contexts that the settings ask for.

use crate::error::TensorResult;
use crate::models::settings::{NONE, Settings};
use std::f64::consts::PI;

/// Positions that tables of rotations hold at most; a model with a longer context is used up to this one.
pub(crate) const MAX_POSITIONS: usize = 1 << 17;

/// The object of `config.json` that has the scaling: `rope_scaling`, the older spelling, or else `newer`.
pub(crate) fn object<'k>(s: &Settings<'_>, newer: &'k str) -> TensorResult<&'k str> {
    match (s.has_object("rope_scaling"), s.has_object(newer)) {
        (true, true) => Err(s.refuse(NONE, "rope_scaling", &format!("`{newer}` says the same, or something else"))),
        (true, false) => Ok("rope_scaling"),
        (false, _) => Ok(newer),
    }
}

/// θ^(−2i/D) for the pairs i of a head of size D.
pub(crate) fn unscaled(base: f64, head_dim: usize) -> Vec<f64> {
    (0..head_dim / 2).map(|i| base.powf(-2.0 * i as f64 / head_dim as f64)).collect()
}

/// What an object of `config.json` with `rope_type` and its parameters makes of `base`. Contexts up to `context` are used.
pub(crate) fn from_config(s: &Settings<'_>, object: &str, base: f64, head_dim: usize, context: usize) -> TensorResult<Vec<f64>> {
    let key = |k: &str| format!("{object}.{k}");
    let need = |k: &str| s.positive(NONE, &key(k))?.ok_or_else(|| s.wrong(format!("`{}` is missing", key(k))));
    s.only_number(NONE, &key("partial_rotary_factor"), 1.0, "only heads that rotate as a whole are implemented")?;
    let mut freqs = unscaled(base, head_dim);
    let (kind, old) = (s.text(NONE, &key("rope_type"))?, s.text(NONE, &key("type"))?);
    match kind.or(old).unwrap_or("default") {
        "default" => {}
        "linear" => {
            let factor = need("factor")?;
            // The length that the model was first trained with changes nothing here.
            s.positive(NONE, &key("original_max_position_embeddings"))?;
            freqs.iter_mut().for_each(|f| *f /= factor);
        }
        "dynamic" => {
            // The base grows with contexts beyond `max_position_embeddings`, which are refused.
            need("factor")?;
            s.positive(NONE, &key("original_max_position_embeddings"))?;
        }
        "llama3" => {
            let (factor, low, high) = (need("factor")?, need("low_freq_factor")?, need("high_freq_factor")?);
            let original = s.positive(NONE, &key("original_max_position_embeddings"))?.unwrap_or(context as f64);
            if high <= low {
                return Err(s.refuse(NONE, &key("high_freq_factor"), &format!("`low_freq_factor` is {low}, and has to be less")));
            }
            for f in &mut freqs {
                let wavelength = 2.0 * PI / *f;
                let smooth = ((original / wavelength - low) / (high - low)).clamp(0.0, 1.0);
                *f = (1.0 - smooth) * *f / factor + smooth * *f;
            }
        }
        _ => {
            let name = if kind.is_some() { "rope_type" } else { "type" };
            return Err(s.refuse(NONE, &key(name), "known are default, linear, dynamic and llama3"));
        }
    }
    Ok(freqs)
}

/// What GGUF's keys make of `base`.
pub(crate) fn from_gguf(s: &Settings<'_>, base: f64, head_dim: usize) -> TensorResult<Vec<f64>> {
    let whole = format!("only heads that rotate as a whole are implemented ({})", s.sizes());
    s.only_number("rope.dimension_count", NONE, head_dim as f64, &whole)?;
    s.only_number("rope.scaling.attn_factor", NONE, 1.0, "a factor of attention scores is not implemented")?;
    // The length that the model was first trained with changes nothing for the scalings below.
    s.number("rope.scaling.original_context_length", NONE)?;
    // The first files had another name for it. 0 stands for no scaling.
    let old = s.number("rope.scale_linear", NONE)?;
    let (key, factor) = match s.number("rope.scaling.factor", NONE)? {
        Some(factor) => ("rope.scaling.factor", factor),
        None => ("rope.scale_linear", old.unwrap_or(1.0)),
    };
    let factor = if factor == 0.0 { 1.0 } else { factor };
    let mut freqs = unscaled(base, head_dim);
    match s.text("rope.scaling.type", NONE)? {
        Some("none") => {}
        None | Some("linear") if factor > 0.0 => freqs.iter_mut().for_each(|f| *f /= factor),
        None | Some("linear") => return Err(s.refuse(key, NONE, "it has to be above 0")),
        Some(_) => return Err(s.refuse("rope.scaling.type", NONE, "known are none and linear")),
    }
    Ok(freqs)
}
