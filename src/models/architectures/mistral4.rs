//! Mistral 4 (Mistral AI, 2026): DeepSeek V3's attention and layers with weights by the softmax over all experts, and queries that grow with the
//! position p by 1 + β·ln(1 + ⌊p/original⌋).

use super::deepseek::{self, UsualLatent};
use super::{Named, common, experts};
use crate::error::TensorResult;
use crate::io::GgufWriter;
use crate::models::decoder::Description;
use crate::models::decoder::description::{ExpertLayout, MixerSpec, RouterSpec, Scores};
use crate::models::rope_settings::{Growth, RopeTable};
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    common::rope_is_said(s)?;
    let usual =
        UsualLatent { query_rank: 1024, rank: 256, nope_dim: 64, rope_dim: 64, value: 128, eps: 1e-6, partial_rope: true, joint: false };
    let mut d = deepseek::decoder(s, "mistral4", &usual)?;
    let (beta, original) = ("rope_parameters.llama_4_scaling_beta", "rope_parameters.original_max_position_embeddings");
    s.only_number(NONE, "rope_parameters.max_position_embeddings", d.context as f64, "`max_position_embeddings` must be the same")?;
    let (beta, original) = (s.number("attention.temperature_scale", beta)?, s.positive("attention.temperature_length", original)?);
    if let (Some(beta), Some(original)) = (beta, original) {
        d.ropes.push(RopeTable::growing(Growth { beta, original, shift: 0.0 }));
        d.each(|l| {
            if let MixerSpec::Latent(latent) = &mut l.mixer {
                latent.growth = Some(1);
            }
        });
    }
    s.only_number("expert_gating_func", NONE, 1.0, "only softmax (1) is implemented for this architecture")?;
    let router = RouterSpec { groups: experts::groups(s, [1, 1], 2)?, ..RouterSpec::new(Scores::Softmax) };
    let mut experts = experts::experts(s, &experts::routed(Some([128, 4])), experts::weighted(s, router, true, 1.0)?)?;
    experts.layout = ExpertLayout::Joint;
    d.names = deepseek::names()
        .with(&[("ffn_gate_up_exps.weight", "mlp.experts.gate_up_proj"), ("ffn_down_exps.weight", "mlp.experts.down_proj")]);
    let size = experts::size(s, "moe_intermediate_size", 2048)?;
    experts.shared = experts::shared(s, "n_shared_experts", size, 1)?;
    let dense = experts::dense_first(s, 0)?;
    experts::put(&mut d, &experts, size, |i| i >= dense);
    Ok(d)
}

/// The growth of queries.
pub(super) fn gguf_keys(_: &Settings<'_>, d: &Description, _: &mut Vec<Named>, w: &mut GgufWriter<'_>) -> TensorResult<()> {
    if let Some(growth) = d.ropes.get(1).and_then(|r| r.growth) {
        w.set("mistral4.attention.temperature_scale", growth.beta as f32);
        w.set("mistral4.attention.temperature_length", growth.original as u32);
    }
    Ok(())
}
