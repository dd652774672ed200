//! Mamba 2 (Dao & Gu, 2024): x ← x + ssd(rms(x)) in every layer, and nothing else.

use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::decoder::Description;
use crate::models::decoder::description::{Flow, GatedNorm, MixerSpec, NormSpec, Sizes, SsdSpec};
use crate::models::decoder::names::Names;
use crate::models::settings::{NONE, Settings};

/// Positions of a model that has no limit.
pub(super) const CONTEXT: usize = 1 << 20;

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let width = s.need("embedding_length", "hidden_size", 1 << 20)?;
    let layers = s.need("block_count", "num_hidden_layers", 4096)?;
    let eps = s.positive("attention.layer_norm_rms_epsilon", "layer_norm_epsilon")?.unwrap_or(1e-5);
    let bias = s.flag(NONE, "use_bias")?.unwrap_or(false);
    let keys = SsdKeys {
        heads: ("num_heads", 128),
        head_dim: ("head_dim", 64),
        groups: ("n_groups", 8),
        state: ("state_size", 128),
        taps: ("conv_kernel", 4),
        conv_bias: "use_conv_bias",
        activation: "hidden_act",
        inner: inner(s, width)?,
    };
    let mut spec = keys.read(s)?;
    (spec.input_bias, spec.output_bias) = (bias, bias);
    spec.norm = Some(GatedNorm { eps, groups: spec.groups, gate_after: false });
    let z = Sizes { width, layers, heads: spec.heads, kv_heads: 0, head_dim: 0, feed: 0, context: context(s)? };
    let names = Names::new(
        "backbone.",
        "layers",
        &[("token_embd", "backbone.embeddings"), ("output_norm", "backbone.norm_f"), ("output", "lm_head")],
        &PARTS,
    );
    let mut d = Description::new("mamba2", z, NormSpec::rms(eps), names);
    d.each(|l| (l.flow, l.mixer) = (Flow::MixerOnly, MixerSpec::Ssd(spec.clone())));
    for key in INITIAL.iter().chain(&["chunk_size", "residual_in_fp32", "time_step_rank"]) {
        s.ignore(key);
    }
    Ok(d)
}

/// Elements of x of a model of this width.
pub(super) fn inner(s: &Settings<'_>, width: usize) -> TensorResult<usize> {
    if s.is_hub() { Ok(s.size(NONE, "expand", 64)?.unwrap_or(2) * width) } else { s.need("ssm.inner_size", NONE, 1 << 22) }
}

/// Positions. Files of GGUF say them, and that there are no heads and no feed-forward parts.
pub(super) fn context(s: &Settings<'_>) -> TensorResult<usize> {
    for key in ["feed_forward_length", "attention.head_count"] {
        s.only_number(key, NONE, 0.0, "this architecture has none")?;
    }
    Ok(s.size("context_length", NONE, 1 << 24)?.unwrap_or(CONTEXT))
}

/// Keys of how Δ is drawn before training.
pub(super) const INITIAL: [&str; 4] = ["rescale_prenorm_residual", "time_step_floor", "time_step_max", "time_step_min"];

/// The Hub's names of a layer's parts.
pub(super) const PARTS: [(&str, &str); 8] = [
    ("attn_norm", "norm"),
    ("ssm_in", "mixer.in_proj"),
    ("ssm_conv1d", "mixer.conv1d"),
    ("ssm_a", "mixer.A_log"),
    ("ssm_d", "mixer.D"),
    ("ssm_dt.bias", "mixer.dt_bias"),
    ("ssm_norm", "mixer.norm"),
    ("ssm_out", "mixer.out_proj"),
];

/// The keys of a state space layer in `config.json`, with the sizes where they are missing.
pub(super) struct SsdKeys {
    pub heads: (&'static str, usize),
    pub head_dim: (&'static str, usize),
    pub groups: (&'static str, usize),
    pub state: (&'static str, usize),
    pub taps: (&'static str, usize),
    pub conv_bias: &'static str,
    pub activation: &'static str,
    /// Elements of all heads.
    pub inner: usize,
}

impl SsdKeys {
    /// The layer without biases of its matrices, norm and scales.
    pub(super) fn read(&self, s: &Settings<'_>) -> TensorResult<SsdSpec> {
        let size = |gguf: &str, (key, usual): (&str, usize)| -> TensorResult<usize> { Ok(s.size(gguf, key, 1 << 16)?.unwrap_or(usual)) };
        let heads = size("ssm.time_step_rank", self.heads)?;
        // The size may be "auto".
        let head_dim = match s.is_text(self.head_dim.0) {
            _ if !s.is_hub() => self.inner / heads,
            true if s.text(NONE, self.head_dim.0)? == Some("auto") => self.inner / heads,
            true => return Err(s.refuse(NONE, self.head_dim.0, "expected a size or auto")),
            false => size(NONE, self.head_dim)?,
        };
        let (groups, state, taps) =
            (size("ssm.group_count", self.groups)?, size("ssm.state_size", self.state)?, size("ssm.conv_kernel", self.taps)?);
        if heads * head_dim != self.inner || heads % groups != 0 || taps < 2 {
            let (inner, sizes) = (self.inner, s.sizes());
            let message =
                format!("{heads} heads of {head_dim} in {groups} groups do not make {inner}, or {taps} taps are too few ({sizes})");
            return Err(s.wrong(message));
        }
        let limits = s.numbers("time_step_limit")?.unwrap_or_else(|| vec![0.0, f64::INFINITY]);
        let &[least, most] = &limits[..] else { return Err(s.refuse(NONE, "time_step_limit", "expected two numbers")) };
        Ok(SsdSpec {
            heads,
            head_dim,
            groups,
            state,
            taps,
            conv_bias: s.flag(NONE, self.conv_bias)?.unwrap_or(true),
            input_bias: false,
            output_bias: false,
            activation: ActivationFn::read(s, self.activation, ActivationFn::Silu)?,
            step_limits: (least, most),
            norm: None,
            input_scale: None,
            scales: None,
        })
    }
}
