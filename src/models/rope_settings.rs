//! Rotary positions as the settings describe them: radians per position of each rotated pair, with the scalings for long contexts.

use crate::error::TensorResult;
use crate::models::settings::{NONE, Settings};
use crate::ops::rope::RopePairs;
use std::f64::consts::PI;

/// GGUF's names of LongRoPE's divisors for short and for long texts, one of each pair.
pub(crate) const FACTORS: [&str; 2] = ["rope_factors_short.weight", "rope_factors_long.weight"];

/// The divisor of pairs that do not rotate.
pub(crate) const NO_ROTATION: f64 = 1e30;

/// How heads are rotated.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RopeTable {
    /// Radians per position of each rotated pair; what a head has beyond these pairs stays as it is.
    pub freqs: Vec<f64>,
    /// What rotated elements are multiplied with.
    pub factor: f64,
    /// Which elements of a head are a pair.
    pub pairs: RopePairs,
    /// Whether GGUF's converter has reordered the rows of q and k, so that pairs are neighbours there.
    pub reordered: bool,
    /// θ, for files that say it.
    pub base: f64,
    /// The scaling that the frequencies went through, for files that say it.
    pub yarn: Option<Yarn>,
    /// Other frequencies for longer texts.
    pub long: Option<LongRope>,
    pub growth: Option<Growth>,
}

/// Turned elements of position p are multiplied with 1 + β·ln(1 + ⌊(p + shift)/original⌋).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Growth {
    pub beta: f64,
    pub original: f64,
    pub shift: f64,
}

/// YaRN (Peng et al., 2023).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Yarn {
    pub factor: f64,
    /// The length that the model was first trained with.
    pub original: f64,
    /// How often pairs turn in it that stay as they are, and that are slowed down by all of the factor.
    pub beta: (f64, f64),
}

impl Yarn {
    /// What rotated elements are multiplied with, if nothing else is said.
    pub fn usual(&self) -> f64 {
        1.0 + 0.1 * self.factor.max(1.0).ln()
    }
}

/// The frequencies of texts with more than `from` tokens (LongRoPE, Ding et al., 2024).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LongRope {
    pub from: usize,
    pub freqs: Vec<f64>,
}

/// What an architecture's settings say where they do not.
#[derive(Clone, Copy)]
pub(crate) struct RopeDefaults<'k> {
    /// θ.
    pub base: f64,
    /// Its key beside the object of `config.json`.
    pub base_key: &'k str,
    /// The object in the newer spelling.
    pub object: &'k str,
    /// The part of a head that is rotated, by default; `None` where only whole heads may be.
    pub part: Option<f64>,
    /// The key of that part beside the object of `config.json`.
    pub part_key: &'k str,
    /// Whether `alpha` scales θ once, instead of a scaling that goes by the length of the text.
    pub alpha: bool,
    /// Whether LongRoPE is called `yarn` in old files.
    pub yarn_is_longrope: bool,
    pub pairs: RopePairs,
    /// Whether GGUF's converter reorders the rows of q and k.
    pub reordered: bool,
    /// Whether LongRoPE's factors of short and long texts are keys of their own.
    pub mscales: bool,
    /// The length that LongRoPE starts from, where GGUF files leave it out.
    pub original: Option<usize>,
}

impl Default for RopeDefaults<'_> {
    fn default() -> Self {
        let (base_key, object) = ("rope_theta", "rope_parameters");
        let (part_key, pairs) = ("partial_rotary_factor", RopePairs::Halves);
        RopeDefaults {
            base: 10_000.0,
            base_key,
            object,
            part: None,
            part_key,
            alpha: false,
            yarn_is_longrope: false,
            pairs,
            reordered: false,
            mscales: false,
            original: None,
        }
    }
}

/// The object of `config.json` that has the scaling: `rope_scaling`, the older spelling, or else `newer`.
pub(crate) fn object<'k>(s: &Settings<'_>, newer: &'k str) -> TensorResult<&'k str> {
    match (s.has_object("rope_scaling"), s.has_object(newer)) {
        (true, true) => Err(s.refuse(NONE, "rope_scaling", &format!("`{newer}` says the same, or something else"))),
        (true, false) => Ok("rope_scaling"),
        (false, _) => Ok(newer),
    }
}

/// θ^(−2i/D) for the pairs i of the first D elements of a head.
pub(crate) fn unscaled(base: f64, size: usize) -> Vec<f64> {
    (0..size / 2).map(|i| base.powf(-2.0 * i as f64 / size as f64)).collect()
}

impl RopeTable {
    /// What the settings say about heads of this size, in contexts of up to `context` positions.
    pub fn read(s: &Settings<'_>, defaults: RopeDefaults<'_>, head_dim: usize, context: usize) -> TensorResult<RopeTable> {
        if !s.is_hub() {
            let base = s.positive("rope.freq_base", NONE)?.unwrap_or(defaults.base);
            return RopeTable::from_gguf(s, base, defaults, head_dim);
        }
        let object = object(s, defaults.object)?;
        RopeTable::from_config(s, object, defaults, head_dim, context)
    }

    /// Unscaled rotations of `size` elements of each head.
    pub fn unscaled(s: &Settings<'_>, defaults: RopeDefaults<'_>, base: f64, size: usize) -> RopeTable {
        let pairs = if defaults.reordered && !s.is_hub() { RopePairs::Adjacent } else { defaults.pairs };
        let freqs = unscaled(base, size);
        RopeTable { freqs, factor: 1.0, pairs, reordered: defaults.reordered, base, yarn: None, long: None, growth: None }
    }

    /// What multiplies elements and rotates none.
    pub fn growing(growth: Growth) -> RopeTable {
        let (freqs, pairs) = (vec![0.0], RopePairs::Halves);
        RopeTable { freqs, factor: 1.0, pairs, reordered: false, base: 1.0, yarn: None, long: None, growth: Some(growth) }
    }

    /// What an object of `config.json` with `rope_type` and its parameters says, and θ beside it.
    pub fn from_config(
        s: &Settings<'_>,
        object: &str,
        defaults: RopeDefaults<'_>,
        head_dim: usize,
        context: usize,
    ) -> TensorResult<RopeTable> {
        let key = |k: &str| format!("{object}.{k}");
        let (inside, beside) = (s.positive(NONE, &key("rope_theta"))?, s.positive(NONE, defaults.base_key)?);
        let base = inside.or(beside).unwrap_or(defaults.base);
        let (kind, old) = (s.text(NONE, &key("rope_type"))?, s.text(NONE, &key("type"))?);
        if kind == Some("proportional") {
            return RopeTable::proportional(s, object, defaults, base, head_dim);
        }
        let size = rotated(s, &key("partial_rotary_factor"), defaults, head_dim)?;
        let mut table = RopeTable::unscaled(s, defaults, base, size);
        match kind.or(old).unwrap_or("default") {
            "default" => {}
            "linear" => {
                let factor = need(s, &key("factor"))?;
                // The length that the model was first trained with changes nothing here.
                s.positive(NONE, &key("original_max_position_embeddings"))?;
                table.freqs.iter_mut().for_each(|f| *f /= factor);
            }
            "dynamic" => {
                // The base grows with contexts beyond `max_position_embeddings`, which are refused.
                need(s, &key("factor"))?;
                s.positive(NONE, &key("original_max_position_embeddings"))?;
                // Except where α scales it once.
                let alpha = if defaults.alpha { s.positive(NONE, &key("alpha"))? } else { None };
                if let Some(alpha) = alpha {
                    table.base *= alpha.powf(size as f64 / (size as f64 - 2.0));
                    table.freqs = unscaled(table.base, size);
                }
            }
            "llama3" => table.llama3(s, object, context)?,
            "yarn" if !defaults.yarn_is_longrope => table.yarn(s, object, context)?,
            "longrope" | "su" | "yarn" => {
                table.longrope(s, object, context)?;
                if defaults.mscales {
                    let (short, long) = (need(s, &key("short_mscale"))?, need(s, &key("long_mscale"))?);
                    s.only_number(NONE, &key("long_mscale"), short, "a factor that differs from `short_mscale` is not implemented")?;
                    table.factor = long;
                }
            }
            _ => {
                let name = if kind.is_some() { "rope_type" } else { "type" };
                return Err(s.refuse(NONE, &key(name), "supported: default, linear, dynamic, llama3, yarn and longrope"));
            }
        }
        Ok(table)
    }

    /// Of the pairs of the whole head, the first `partial_rotary_factor` rotate, each as it would if all did.
    fn proportional(s: &Settings<'_>, object: &str, defaults: RopeDefaults<'_>, base: f64, head_dim: usize) -> TensorResult<RopeTable> {
        let key = |k: &str| format!("{object}.{k}");
        let (part, factor) = (s.positive(NONE, &key("partial_rotary_factor"))?.unwrap_or(1.0), s.positive(NONE, &key("factor"))?);
        if part > 1.0 {
            return Err(s.refuse(NONE, &key("partial_rotary_factor"), "no more than the whole head can rotate"));
        }
        let mut table = RopeTable::unscaled(s, defaults, base, head_dim);
        let rotated_pairs = (part * head_dim as f64 / 2.0) as usize;
        table.freqs.iter_mut().for_each(|f| *f /= factor.unwrap_or(1.0));
        table.freqs[rotated_pairs..].fill(0.0);
        Ok(table)
    }

    fn llama3(&mut self, s: &Settings<'_>, object: &str, context: usize) -> TensorResult<()> {
        let key = |k: &str| format!("{object}.{k}");
        let (factor, low, high) = (need(s, &key("factor"))?, need(s, &key("low_freq_factor"))?, need(s, &key("high_freq_factor"))?);
        let original = s.positive(NONE, &key("original_max_position_embeddings"))?.unwrap_or(context as f64);
        if high <= low {
            return Err(s.refuse(NONE, &key("high_freq_factor"), &format!("`low_freq_factor` is {low}, and must be less")));
        }
        for f in &mut self.freqs {
            let wavelength = 2.0 * PI / *f;
            let smooth = ((original / wavelength - low) / (high - low)).clamp(0.0, 1.0);
            *f = (1.0 - smooth) * *f / factor + smooth * *f;
        }
        Ok(())
    }

    /// YaRN (Peng et al., 2023), as transformers reads its keys.
    fn yarn(&mut self, s: &Settings<'_>, object: &str, context: usize) -> TensorResult<()> {
        let key = |k: &str| format!("{object}.{k}");
        let original = need(s, &key("original_max_position_embeddings"))?;
        let factor = s.positive(NONE, &key("factor"))?.unwrap_or(context as f64 / original);
        let (fast, slow) = (s.positive(NONE, &key("beta_fast"))?.unwrap_or(32.0), s.positive(NONE, &key("beta_slow"))?.unwrap_or(1.0));
        let whole = s.flag(NONE, &key("truncate"))?.unwrap_or(true);
        let (m, m_all) = (s.number(NONE, &key("mscale"))?.unwrap_or(0.0), s.number(NONE, &key("mscale_all_dim"))?.unwrap_or(0.0));
        let given = s.positive(NONE, &key("attention_factor"))?;
        let grown = |m: f64| if factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 };
        let from_scales = if m != 0.0 && m_all != 0.0 { grown(m) / grown(m_all) } else { grown(1.0) };
        self.factor = given.unwrap_or(from_scales);
        self.interpolate(Yarn { factor, original, beta: (fast, slow) }, whole);
        Ok(())
    }

    /// Divides the frequencies of pairs that turn less than the second number of `beta` in `original` positions by `factor`, leaves those that turn
    /// more often than the first, and goes over from one to the other between them.
    fn interpolate(&mut self, yarn: Yarn, whole: bool) {
        let Yarn { factor, original, beta: (fast, slow) } = yarn;
        self.yarn = Some(yarn);
        let size = (2 * self.freqs.len()) as f64;
        let pair = |turns: f64| size * (original / (turns * 2.0 * PI)).ln() / (2.0 * self.base.ln());
        let (low, high) = if whole { (pair(fast).floor(), pair(slow).ceil()) } else { (pair(fast), pair(slow)) };
        let (low, mut high) = (low.max(0.0), high.min(size - 1.0));
        if low == high {
            high += 0.001;
        }
        for (i, f) in self.freqs.iter_mut().enumerate() {
            let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
            *f = *f / factor * ramp + *f * (1.0 - ramp);
        }
    }

    /// LongRoPE (Ding et al., 2024): a divisor for each pair, others for texts beyond the original length.
    fn longrope(&mut self, s: &Settings<'_>, object: &str, context: usize) -> TensorResult<()> {
        let key = |k: &str| format!("{object}.{k}");
        let beside = s.positive(NONE, "original_max_position_embeddings")?;
        let original = s.positive(NONE, &key("original_max_position_embeddings"))?.or(beside).unwrap_or(context as f64);
        let factor = s.positive(NONE, &key("factor"))?.unwrap_or(context as f64 / original);
        let given = s.positive(NONE, &key("attention_factor"))?;
        let divided = |k: &str| -> TensorResult<Vec<f64>> {
            let by = s.numbers(&key(k))?.ok_or_else(|| s.wrong(format!("`{}` is missing", key(k))))?;
            if by.len() != self.freqs.len() || by.iter().any(|f| *f <= 0.0) {
                return Err(s.refuse(NONE, &key(k), &format!("expected {} numbers above 0 ({})", self.freqs.len(), s.sizes())));
            }
            Ok(self.freqs.iter().zip(by).map(|(f, by)| f / by).collect())
        };
        let (short, long) = (divided("short_factor")?, divided("long_factor")?);
        let grown = if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / original.ln()).sqrt() };
        *self = RopeTable {
            freqs: short,
            factor: given.unwrap_or(grown),
            long: Some(LongRope { from: original as usize, freqs: long }),
            ..self.clone()
        };
        Ok(())
    }

    /// What GGUF's keys make of `base`.
    pub fn from_gguf(s: &Settings<'_>, base: f64, defaults: RopeDefaults<'_>, head_dim: usize) -> TensorResult<RopeTable> {
        let size = match defaults.part {
            None => {
                let whole = format!("only heads that rotate as a whole are implemented ({})", s.sizes());
                s.only_number("rope.dimension_count", NONE, head_dim as f64, &whole)?;
                head_dim
            }
            Some(part) => {
                let usual = (head_dim as f64 * part) as usize;
                let size = s.size("rope.dimension_count", NONE, 1 << 12)?.unwrap_or(usual);
                if size > head_dim || size % 2 != 0 {
                    return Err(s.refuse("rope.dimension_count", NONE, &format!("heads are of size {head_dim}")));
                }
                size
            }
        };
        let mut table = RopeTable::unscaled(s, defaults, base, size);
        let kind = s.text("rope.scaling.type", NONE)?;
        if kind == Some("yarn") {
            table.yarn_of_gguf(s)?;
            return Ok(table);
        }
        let divided = s.has_tensor(FACTORS[0]) || s.has_tensor(FACTORS[1]);
        if divided {
            table.longrope_of_gguf(s, defaults.original)?;
        } else {
            s.only_number("rope.scaling.attn_factor", NONE, 1.0, "a factor of attention scores is not implemented")?;
        }
        // The length that the model was first trained with changes nothing for the scalings below.
        s.number("rope.scaling.original_context_length", NONE)?;
        // The first files had another name for it. 0 stands for no scaling.
        let old = s.number("rope.scale_linear", NONE)?;
        let (key, factor) = match s.number("rope.scaling.factor", NONE)? {
            Some(factor) => ("rope.scaling.factor", factor),
            None => ("rope.scale_linear", old.unwrap_or(1.0)),
        };
        let factor = if factor == 0.0 { 1.0 } else { factor };
        match kind {
            Some("none") => {}
            Some("longrope") if divided => {}
            None | Some("linear") if factor > 0.0 => table.freqs.iter_mut().for_each(|f| *f /= factor),
            None | Some("linear") => return Err(s.refuse(key, NONE, "it must be above 0")),
            Some(_) => {
                return Err(s.refuse(
                    "rope.scaling.type",
                    NONE,
                    "supported: none, linear and yarn, and longrope with its factors as tensors",
                ));
            }
        }
        Ok(table)
    }

    /// LongRoPE, whose divisors are [`FACTORS`]: [`RopeTable::divide`] does the rest. The rule is the Hub's, not llama.cpp's, which takes the
    /// divisors of long texts for short ones too where its context is long.
    fn longrope_of_gguf(&mut self, s: &Settings<'_>, usual: Option<usize>) -> TensorResult<()> {
        let key = "rope.scaling.original_context_length";
        let original = s.size(key, NONE, 1 << 24)?.or(usual);
        let original = original.ok_or_else(|| s.wrong(format!("`{}` is missing", s.name(key, NONE))))?;
        self.factor = s.positive("rope.scaling.attn_factor", NONE)?.unwrap_or(1.0);
        self.long = Some(LongRope { from: original, freqs: self.freqs.clone() });
        Ok(())
    }

    /// Divides the frequencies. Converters write [`NO_ROTATION`] for pairs that do not rotate.
    pub fn slow(&mut self, by: &[f32]) {
        let pairs = self.freqs.iter_mut().zip(by);
        pairs.for_each(|(f, by)| *f = if f64::from(*by) >= NO_ROTATION { 0.0 } else { *f / f64::from(*by) });
    }

    /// Divides the frequencies of short texts and those of long ones.
    pub fn divide(&mut self, short: &[f32], long: &[f32]) {
        let divide = |freqs: &mut Vec<f64>, by: &[f32]| freqs.iter_mut().zip(by).for_each(|(f, by)| *f /= f64::from(*by));
        divide(&mut self.freqs, short);
        self.long.iter_mut().for_each(|l| divide(&mut l.freqs, long));
    }

    /// As llama.cpp does it: the factor of rotated elements is 1 + 0.1·ln(factor), times `attn_factor`.
    fn yarn_of_gguf(&mut self, s: &Settings<'_>) -> TensorResult<()> {
        let missing = |key: &str| s.wrong(format!("`{}` is missing", s.name(key, NONE)));
        let need = |key: &str| s.positive(key, NONE)?.ok_or_else(|| missing(key));
        let (factor, original) = (need("rope.scaling.factor")?, need("rope.scaling.original_context_length")?);
        let attention = s.positive("rope.scaling.attn_factor", NONE)?.unwrap_or(1.0);
        let fast = s.positive("rope.scaling.yarn_beta_fast", NONE)?.unwrap_or(32.0);
        let slow = s.positive("rope.scaling.yarn_beta_slow", NONE)?.unwrap_or(1.0);
        let yarn = Yarn { factor, original, beta: (fast, slow) };
        // llama.cpp works this one out itself, whatever it is.
        let said = s.number("rope.scaling.yarn_attn_factor", NONE)?;
        if said.is_some_and(|said| (said / yarn.usual() - 1.0).abs() > 1e-3) {
            return Err(s.refuse("rope.scaling.yarn_attn_factor", NONE, &format!("llama.cpp takes {}", yarn.usual())));
        }
        s.only_number("rope.scaling.yarn_ext_factor", NONE, 1.0, "only 1 is implemented")?;
        // The latter is the share of the scores' scale.
        let shared = s.number("rope.scaling.yarn_log_multiplier", NONE)?.unwrap_or(0.0);
        self.factor = attention * yarn.usual() / (1.0 + 0.1 * shared * factor.max(1.0).ln());
        self.interpolate(yarn, true);
        Ok(())
    }
}

fn need(s: &Settings<'_>, key: &str) -> TensorResult<f64> {
    s.positive(NONE, key)?.ok_or_else(|| s.wrong(format!("`{key}` is missing")))
}

/// How many elements of a head are rotated.
fn rotated(s: &Settings<'_>, inside: &str, defaults: RopeDefaults<'_>, head_dim: usize) -> TensorResult<usize> {
    let key = defaults.part_key;
    let Some(usual) = defaults.part else {
        let whole = "only heads that rotate as a whole are implemented";
        s.only_number(NONE, inside, 1.0, whole)?;
        s.only_number(NONE, key, 1.0, whole)?;
        return Ok(head_dim);
    };
    let (within, beside) = (s.positive(NONE, inside)?, s.positive(NONE, key)?);
    let size = (head_dim as f64 * within.or(beside).unwrap_or(usual)) as usize;
    if size == 0 || size > head_dim || size % 2 != 0 {
        let key = if within.is_some() { inside } else { key };
        return Err(s.refuse(NONE, key, &format!("an even number of a head's {head_dim} elements has to rotate")));
    }
    Ok(size)
}
