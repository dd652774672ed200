//! What architectures with experts have in common: the keys of numbers, routers and layers.

use crate::error::TensorResult;
use crate::models::decoder::Description;
use crate::models::decoder::description::{Divisor, ExpertLayout, ExpertsSpec, GroupSpec, RouterSpec, Scores, SharedSpec};
use crate::models::settings::{NONE, Settings};

/// The Hub's keys of how many experts there are, in several spellings, and how many a token takes, with both numbers where they are left out.
pub(super) struct Counts<'k> {
    pub count: &'k [&'k str],
    pub used: &'k str,
    pub usual: Option<[usize; 2]>,
}

/// The keys of most architectures.
pub(super) fn counts(usual: [usize; 2]) -> Counts<'static> {
    Counts { count: &["num_experts", "num_local_experts"], used: "num_experts_per_tok", usual: Some(usual) }
}

/// The keys of DeepSeek and its kin.
pub(super) fn routed(usual: Option<[usize; 2]>) -> Counts<'static> {
    Counts { count: &["n_routed_experts", "num_local_experts"], used: "num_experts_per_tok", usual }
}

/// Experts that `router` chooses.
pub(super) fn experts(s: &Settings<'_>, keys: &Counts<'_>, router: RouterSpec) -> TensorResult<ExpertsSpec> {
    let limit = 1 << 16;
    let mut count = None;
    for key in keys.count {
        match (count, s.size("expert_count", key, limit)?) {
            (Some(a), Some(b)) if a != b => return Err(s.refuse("expert_count", key, &format!("`{}` is {a}", keys.count[0]))),
            (None, found) => count = found,
            _ => {}
        }
    }
    let used = s.size("expert_used_count", keys.used, limit)?;
    let usual = keys.usual.filter(|_| s.is_hub()).map_or([None; 2], |n| n.map(Some));
    let count = count.or(usual[0]).ok_or_else(|| s.wrong(format!("`{}` is missing", s.name("expert_count", keys.count[0]))))?;
    let missing = || s.refuse("expert_count", keys.count[0], &format!("`{}` is missing", s.name("expert_used_count", keys.used)));
    let used = used.or(usual[1]).ok_or_else(missing)?;
    if used > count {
        return Err(s.refuse("expert_used_count", keys.used, &format!("there are {count} experts")));
    }
    if let Some(g) = router.groups.filter(|g| count % g.count != 0 || g.used > g.count || g.used * (count / g.count) < used) {
        let text =
            format!("{count} experts in {} groups, {} of them selected, do not give {used} experts ({})", g.count, g.used, s.sizes());
        return Err(s.wrong(text));
    }
    Ok(ExpertsSpec { count, used, router, layout: ExpertLayout::OneByOne, bias: Some(false), shared: None, with_dense: None })
}

/// The size of an expert.
pub(super) fn size(s: &Settings<'_>, hub: &str, usual: usize) -> TensorResult<usize> {
    let found = s.size("expert_feed_forward_length", hub, 1 << 22)?;
    found.or(s.is_hub().then_some(usual)).ok_or_else(|| s.wrong(format!("`{}` is missing", s.name("expert_feed_forward_length", hub))))
}

/// Gives the layers for which `sparse` holds experts of this size.
pub(super) fn put(d: &mut Description, experts: &ExpertsSpec, size: usize, sparse: impl Fn(usize) -> bool) {
    for (_, l) in d.layers.iter_mut().enumerate().filter(|(i, _)| sparse(*i)) {
        (l.feed.size, l.feed.experts) = (size, Some(experts.clone()));
    }
}

/// The groups of a router whose `best` best experts count.
pub(super) fn groups(s: &Settings<'_>, usual: [usize; 2], best: usize) -> TensorResult<Option<GroupSpec>> {
    let usual = if s.is_hub() { usual } else { [1, 1] };
    let count = s.size("expert_group_count", "n_group", 1 << 12)?.unwrap_or(usual[0]);
    let used = s.size("expert_group_used_count", "topk_group", 1 << 12)?.unwrap_or(usual[1]);
    // All of them are no choice.
    Ok((count > 1 && used != count).then_some(GroupSpec { count, used, best }))
}

/// DeepSeek V3's router: σ of the logits, a correction for the choice, groups by their two best; weights that add up to 1 if `norm` is usual or said,
/// and a scale.
pub(super) fn deepseek(s: &Settings<'_>, usual_groups: [usize; 2], norm: bool, scale: f64) -> TensorResult<RouterSpec> {
    only_text(s, "scoring_func", &["sigmoid", "noaux_tc"])?;
    only_text(s, "topk_method", &["noaux_tc"])?;
    s.only_number("expert_gating_func", NONE, 2.0, "only sigmoid (2) is implemented for this architecture")?;
    let groups = groups(s, usual_groups, 2)?;
    let router = RouterSpec { correction: true, groups, ..RouterSpec::new(Scores::Sigmoid) };
    weighted(s, router, norm, scale)
}

/// The router with the divisor and the scale of weights that the settings give.
pub(super) fn weighted(s: &Settings<'_>, router: RouterSpec, norm: bool, scale: f64) -> TensorResult<RouterSpec> {
    let norm = s.flag("expert_weights_norm", "norm_topk_prob")?.unwrap_or(norm && s.is_hub());
    let scale = s.number("expert_weights_scale", "routed_scaling_factor")?.unwrap_or(if s.is_hub() { scale } else { 1.0 });
    Ok(RouterSpec { divisor: norm.then_some(Divisor { plus: 1e-20, least: 0.0 }), scale, ..router })
}

/// Several shared experts of `size` each, by a key of their number.
pub(super) fn shared(s: &Settings<'_>, hub: &str, size: usize, usual: usize) -> TensorResult<Option<SharedSpec>> {
    let count = s.count("expert_shared_count", hub)?.unwrap_or(if s.is_hub() { usual as f64 } else { 0.0 });
    if !(0.0..=4096.0).contains(&count) || count.fract() != 0.0 {
        return Err(s.refuse("expert_shared_count", hub, "expected a whole number from 0 to 4096"));
    }
    Ok((count > 0.0).then_some(SharedSpec { size: size * count as usize, gated: false, mean: false }))
}

/// How many layers are dense before the first with experts.
pub(super) fn dense_first(s: &Settings<'_>, usual: usize) -> TensorResult<usize> {
    s.only_number(NONE, "moe_layer_freq", 1.0, "only experts in every layer behind the dense ones are implemented")?;
    let found = s.count("leading_dense_block_count", "first_k_dense_replace")?;
    Ok(found.unwrap_or(if s.is_hub() { usual as f64 } else { 0.0 }).max(0.0) as usize)
}

/// The layers that `mlp_layer_types` gives experts.
pub(super) fn by_types(s: &Settings<'_>, layers: usize) -> TensorResult<Option<Vec<bool>>> {
    let Some(types) = s.texts("mlp_layer_types")? else { return Ok(None) };
    if types.len() != layers || types.iter().any(|t| !["dense", "sparse"].contains(t)) {
        return Err(s.refuse(NONE, "mlp_layer_types", &format!("expected {layers} times dense or sparse ({})", s.sizes())));
    }
    Ok(Some(types.iter().map(|t| *t == "sparse").collect()))
}

/// Leaves out the layers that predict further tokens, which stand behind the others.
pub(super) fn without_predictors(s: &Settings<'_>, d: &mut Description) -> TensorResult<()> {
    if !s.is_hub() {
        // There they are counted with the others.
        let (key, all) = ("nextn_predict_layers", d.layers.len());
        let count = s.number(key, NONE)?.unwrap_or(0.0);
        if !(0..all).any(|n| n as f64 == count) {
            return Err(s.refuse(key, NONE, &format!("there are {all} layers")));
        }
        d.layers.truncate(all - count as usize);
        d.left_out = (d.layers.len()..all).map(|n| format!("blk.{n}.")).collect();
        return Ok(());
    }
    let mut count = 0.0;
    for key in ["num_nextn_predict_layers", "num_mtp_layers"] {
        count = s.number(NONE, key)?.unwrap_or(0.0).clamp(count, 64.0);
    }
    d.left_out = (0..count as usize).map(|n| format!("model.layers.{}.", d.layers.len() + n)).collect();
    Ok(())
}

/// Refuses a text that is there and none of these.
pub(super) fn only_text(s: &Settings<'_>, key: &str, known: &[&str]) -> TensorResult<()> {
    match s.text(NONE, key)? {
        Some(text) if !known.contains(&text) => Err(s.refuse(NONE, key, &format!("implemented is {}", known.join(", ")))),
        _ => Ok(()),
    }
}
