//! GLM 4.7 Flash (Z.ai, 2026): DeepSeek V3 with other sizes, in which each layer says whether it has experts.

use super::deepseek::{self, UsualLatent};
use super::experts;
use crate::error::TensorResult;
use crate::models::decoder::Description;
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let usual =
        UsualLatent { query_rank: 768, rank: 512, nope_dim: 192, rope_dim: 64, value: 256, eps: 1e-5, partial_rope: false, joint: false };
    let mut d = deepseek::decoder(s, "glm4_moe_lite", &usual)?;
    let mut experts = experts::experts(s, &experts::routed(Some([64, 4])), experts::deepseek(s, [1, 1], true, 1.8)?)?;
    let size = experts::size(s, "moe_intermediate_size", 1536)?;
    experts.shared = experts::shared(s, "n_shared_experts", size, 1)?;
    let layers = d.layers.len();
    let sparse = match experts::by_types(s, layers)? {
        Some(sparse) => sparse,
        None => (0..layers).map(|i| i > 0).collect(),
    };
    // What other architectures have for it.
    let as_types = sparse.iter().take_while(|sparse| !**sparse).count() as f64;
    s.only_number(NONE, "first_k_dense_replace", as_types, "`mlp_layer_types` says otherwise, or nothing, which means 1")?;
    experts::put(&mut d, &experts, size, |i| sparse[i]);
    experts::without_predictors(s, &mut d)?;
    Ok(d)
}
