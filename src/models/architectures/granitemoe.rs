//! Granite 3 with experts (IBM, 2024): Granite's multipliers; the weights are the softmax over the chosen experts' logits; gates and ups in one tensor.

use super::common::{self, Usual};
use super::{experts, granite};
use crate::error::TensorResult;
use crate::models::decoder::Description;
use crate::models::decoder::description::{ExpertLayout, RouterSpec, Scores};
use crate::models::decoder::names::Names;
use crate::models::settings::Settings;

/// The weights are the softmax over the chosen experts' logits.
pub(super) const ROUTER: RouterSpec = RouterSpec { chosen: Scores::Softmax, ..RouterSpec::new(Scores::AsTheyAre) };

/// The names of the experts' tensors and of the router.
pub(super) const NAMES: [(&str, &str); 3] = [
    ("ffn_gate_inp", "block_sparse_moe.router.layer"),
    ("ffn_gate_up_exps", "block_sparse_moe.input_linear"),
    ("ffn_down_exps", "block_sparse_moe.output_linear"),
];

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let mut d = common::decoder(s, "granitemoe", &Usual { rope: common::reordered(), experts: true, ..Usual::default() })?;
    common::attention_biases(s, &mut d)?;
    granite::multipliers(s, &mut d)?;
    let mut experts = experts::experts(s, &experts::counts([8, 2]), ROUTER)?;
    experts.layout = ExpertLayout::Joint;
    let size = d.layers[0].feed.size;
    experts::put(&mut d, &experts, size, |_| true);
    d.names = Names::llama().with(&NAMES);
    Ok(d)
}
