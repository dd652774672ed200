//! What a description says, by the keys of GGUF's metadata. These are the keys of all architectures: a file gets those that the reader of its own
//! asks for.

use crate::io::GgufWriter;
use crate::io::gguf::ToValue;
use crate::models::architectures::GgufForm;
use crate::models::decoder::Description;
use crate::models::decoder::description::{
    AttentionSpec, DeltaSpec, ExpertsSpec, Flow, LatentSpec, LayerSpec, MixerSpec, NormKind, Scores, SsdSpec,
};
use crate::models::rope_settings::{NO_ROTATION, RopeTable, unscaled};

/// The keys below the architecture's name.
struct Metadata<'w, 'a> {
    name: &'static str,
    w: &'w mut GgufWriter<'a>,
}

impl Metadata<'_, '_> {
    fn set(&mut self, key: &str, value: impl ToValue) {
        self.w.set(&format!("{}.{key}", self.name), value);
    }
    fn size(&mut self, key: &str, value: usize) {
        self.set(key, value as u32);
    }
    fn number(&mut self, key: &str, value: Option<f64>) {
        value.into_iter().for_each(|v| self.set(key, v as f32));
    }
}

/// Sets the keys of what `d` describes. `feed` is the size of its dense feed-forward parts, where it has none the one that the settings say.
pub(super) fn metadata(d: &Description, form: &GgufForm, vocab: usize, feed: usize, w: &mut GgufWriter<'_>) {
    w.set("general.architecture", form.name);
    let mut k = Metadata { name: form.name, w };
    for (key, size) in [
        ("vocab_size", vocab),
        ("block_count", d.layers.len()),
        ("context_length", d.context),
        ("embedding_length", d.width),
        ("feed_forward_length", feed),
    ] {
        k.size(key, size);
    }
    let rms = matches!(d.norm.kind, NormKind::Rms | NormKind::RmsWithoutWeights);
    k.number(if rms { "attention.layer_norm_rms_epsilon" } else { "attention.layer_norm_epsilon" }, Some(d.norm.eps));
    k.number("embedding_scale", d.embed.scale);
    k.number("logit_scale", d.head.scale);
    k.number("final_logit_softcapping", d.head.softcap);
    k.number("residual_scale", d.layers.first().and_then(|l| l.residual));
    k.set("use_parallel_residual", d.layers.first().is_some_and(|l| l.flow == Flow::Parallel));
    mixers(&mut k, d);
    attention(&mut k, d, form);
    if let Some(experts) = d.layers.iter().find_map(|l| l.feed.experts.as_ref().map(|e| (l, e))) {
        self::experts(&mut k, d, experts);
    }
    if let Some(table) = d.ropes.first() {
        rotation(&mut k, d, table);
    }
}

/// The attention of the layers that have one.
fn attentions(d: &Description) -> impl Iterator<Item = &AttentionSpec> {
    d.layers.iter().filter_map(|l| l.mixer.attention())
}

/// Heads, windows and scores.
fn attention(k: &mut Metadata<'_, '_>, d: &Description, form: &GgufForm) {
    let Some(first) = attentions(d).next() else { return };
    k.size("attention.head_count", first.heads);
    // Layers with convolutions and state spaces are said to have no keys.
    let kv_heads = |l: &LayerSpec| l.mixer.attention().map_or(0, |a| a.kv_heads as u32);
    match d.layers.iter().any(|l| matches!(l.mixer, MixerSpec::ShortConv(_) | MixerSpec::Ssd(_) | MixerSpec::Selective(_))) {
        true => k.set("attention.head_count_kv", d.layers.iter().map(kv_heads).collect::<Vec<u32>>()),
        false => k.size("attention.head_count_kv", first.kv_heads),
    }
    k.size("attention.key_length", first.head_dim);
    k.size("attention.value_length", first.head_dim);
    k.number("attention.scale", first.scale);
    k.number("attention.clamp_kqv", first.clip);
    k.number("attn_logit_softcapping", first.softcap);
    // The steepest slopes are 2^(−range/n), the flattest 2^(−range).
    let flattest = first.alibi.as_ref().and_then(|a| a.slopes.iter().copied().reduce(f32::min));
    k.number("attention.max_alibi_bias", flattest.map(|slope| -f64::from(slope).log2()));
    if let Some(limited) = attentions(d).find(|a| a.window.is_some() && form.windows) {
        k.size("attention.sliding_window", limited.window.unwrap_or(0));
        let windowed = |l: &LayerSpec| l.mixer.attention().is_some_and(|a| a.window.is_some());
        k.set("attention.sliding_window_pattern", d.layers.iter().map(windowed).collect::<Vec<bool>>());
        k.number("rope.freq_base_swa", limited.rope.and_then(|r| d.ropes.get(r)).map(|r| r.base));
    }
}

/// What other layers than those with attention consist of.
fn mixers(k: &mut Metadata<'_, '_>, d: &Description) {
    for layer in &d.layers {
        match &layer.mixer {
            MixerSpec::Latent(spec) => return latent(k, spec),
            MixerSpec::ShortConv(spec) => return k.size("shortconv.l_cache", spec.taps),
            MixerSpec::Delta(spec) => return delta(k, d, spec),
            MixerSpec::Ssd(s) => {
                ssd(k, s);
                return k.size("attention.head_count", 0);
            }
            MixerSpec::Beside(both) => return ssd(k, &both.ssd),
            // Others have attention by latents.
            MixerSpec::DeltaByRow(s) => {
                k.size("ssm.conv_kernel", s.taps);
                k.size("kda.head_dim", s.head_dim);
            }
            MixerSpec::Selective(s) => {
                k.size("ssm.conv_kernel", s.taps);
                k.size("ssm.inner_size", s.inner);
                k.size("ssm.state_size", s.state);
                k.size("ssm.time_step_rank", s.rank);
                k.set("ssm.dt_b_c_rms", s.norm.is_some());
                return k.size("attention.head_count", 0);
            }
            _ => {}
        }
    }
}

fn ssd(k: &mut Metadata<'_, '_>, s: &SsdSpec) {
    k.size("ssm.conv_kernel", s.taps);
    k.size("ssm.inner_size", s.inner());
    k.size("ssm.state_size", s.state);
    k.size("ssm.time_step_rank", s.heads);
    k.size("ssm.group_count", s.groups);
}

fn delta(k: &mut Metadata<'_, '_>, d: &Description, s: &DeltaSpec) {
    k.size("ssm.conv_kernel", s.taps);
    k.size("ssm.inner_size", s.value_heads * s.value_dim);
    k.size("ssm.state_size", s.key_dim);
    k.size("ssm.time_step_rank", s.value_heads);
    k.size("ssm.group_count", s.key_heads);
    let recurrent: Vec<bool> = d.layers.iter().map(|l| matches!(l.mixer, MixerSpec::Delta(_))).collect();
    if let Some(first) = recurrent.iter().position(|recurrent| !recurrent) {
        k.size("full_attention_interval", first + 1);
    }
    k.set("attention.recurrent_layers", recurrent);
}

/// All heads share the latent, as if it were the key and the value of one head; their own sizes are beside it.
fn latent(k: &mut Metadata<'_, '_>, s: &LatentSpec) {
    let head = s.nope_dim + s.rope_dim;
    for (key, size) in [
        ("attention.head_count", s.heads),
        ("attention.head_count_kv", 1),
        ("attention.kv_lora_rank", s.rank),
        ("attention.key_length", s.rank + s.rope_dim),
        ("attention.value_length", s.rank),
        ("attention.key_length_mla", head),
        ("attention.value_length_mla", s.value),
    ] {
        k.size(key, size);
    }
    s.query_rank.into_iter().for_each(|rank| k.size("attention.q_lora_rank", rank));
}

fn experts(k: &mut Metadata<'_, '_>, d: &Description, (layer, experts): (&LayerSpec, &ExpertsSpec)) {
    let size = experts.with_dense.map_or(layer.feed.size, |both| both.expert_size);
    k.size("expert_count", experts.count);
    k.size("expert_used_count", experts.used);
    k.size("expert_feed_forward_length", size);
    let shared = experts.shared.map_or(0, |s| s.size);
    k.size("expert_shared_count", shared.div_ceil(size.max(1)));
    if shared > 0 {
        k.size("expert_shared_feed_forward_length", shared);
    }
    let router = &experts.router;
    k.set("expert_weights_norm", router.divisor.is_some());
    k.number("expert_weights_scale", Some(router.scale));
    let gating = match (router.scores, router.chosen) {
        (Scores::Softmax, _) => 1,
        (Scores::Sigmoid, _) | (_, Scores::Sigmoid) => 2,
        (_, Scores::Softmax) => 3,
        _ => 0,
    };
    k.size("expert_gating_func", gating);
    if let Some(groups) = router.groups {
        k.size("expert_group_count", groups.count);
        k.size("expert_group_used_count", groups.used);
    }
    let sparse: Vec<usize> = (0..d.layers.len()).filter(|&i| d.layers[i].feed.experts.is_some()).collect();
    k.size("leading_dense_block_count", sparse[0]);
    k.size("interleave_moe_layer_step", sparse.get(1).map_or(sparse[0] + 1, |second| second - sparse[0]));
}

/// The rotation of layers that see all keys.
fn rotation(k: &mut Metadata<'_, '_>, d: &Description, table: &RopeTable) {
    k.size("rope.dimension_count", 2 * table.freqs.len());
    k.number("rope.freq_base", Some(table.base));
    match (&table.long, &table.yarn) {
        (Some(long), _) => {
            k.set("rope.scaling.type", "longrope");
            k.number("rope.scaling.attn_factor", Some(table.factor));
            k.size("rope.scaling.original_context_length", long.from);
        }
        (None, Some(yarn)) => {
            k.set("rope.scaling.type", "yarn");
            k.number("rope.scaling.factor", Some(yarn.factor));
            k.size("rope.scaling.original_context_length", yarn.original as usize);
            k.number("rope.scaling.yarn_beta_fast", Some(yarn.beta.0));
            k.number("rope.scaling.yarn_beta_slow", Some(yarn.beta.1));
            let latent = d.layers.iter().find_map(|l| if let MixerSpec::Latent(s) = &l.mixer { Some(s) } else { None });
            match latent {
                // The scores' scale has grown by the square of 1 + m·ln(factor).
                Some(s) => {
                    let grown = (s.scale * ((s.nope_dim + s.rope_dim) as f64).sqrt()).sqrt();
                    k.number("rope.scaling.yarn_log_multiplier", Some((grown - 1.0) / yarn.factor.ln()).filter(|m| m.is_finite()));
                }
                // Readers multiply with 1 + 0.1·ln(factor) themselves.
                None => k.number("rope.scaling.attn_factor", Some(table.factor / yarn.usual())),
            }
        }
        (None, None) => {
            let factor = linear(table).unwrap_or(1.0);
            k.set("rope.scaling.type", if factor == 1.0 { "none" } else { "linear" });
            k.number("rope.scaling.factor", Some(factor));
        }
    }
}

/// What all frequencies are divided by, if it is one number.
pub(super) fn linear(table: &RopeTable) -> Option<f64> {
    let by = divisors(table);
    let first = *by.first()?;
    let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
    by.iter().all(|f| near(*f, first)).then(|| if near(first, 1.0) { 1.0 } else { first })
}

/// What each frequency is divided by.
pub(super) fn divisors(table: &RopeTable) -> Vec<f64> {
    unscaled(table.base, 2 * table.freqs.len()).iter().zip(&table.freqs).map(|(plain, f)| (plain / f).min(NO_ROTATION)).collect()
}
