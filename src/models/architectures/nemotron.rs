//! Nemotron-4 and Minitron (NVIDIA, 2024): layer norms times 1 + w, half of each head rotated, a plain part with max(x, 0)².

use super::common::{self, Usual};
use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::decoder::Description;
use crate::models::decoder::description::{FeedForm, NormKind, NormSpec};
use crate::models::rope_settings::RopeDefaults;
use crate::models::settings::Settings;

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let rope = RopeDefaults { part: Some(0.5), ..RopeDefaults::default() };
    let (norm, eps_key, activation) = (NormKind::Layer, "norm_eps", ActivationFn::ReluSquared);
    let mut d = common::decoder(s, "nemotron", &Usual { norm, eps: 1e-5, eps_key, activation, rope, ..Usual::default() })?;
    common::biases(s, &mut d)?;
    d.norms(NormSpec { plus_one: true, ..d.norm });
    d.each(|l| l.feed.form = FeedForm::Plain);
    Ok(d)
}
