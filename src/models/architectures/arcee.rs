//! AFM (Arcee, 2025): Llama with a plain part of max(x, 0)² (So et al., 2021) instead of the gated one.

use super::common::{self, Usual};
use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::decoder::Description;
use crate::models::decoder::description::FeedForm;
use crate::models::settings::Settings;

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<Description> {
    let usual = Usual { eps: 1e-5, activation: ActivationFn::ReluSquared, rope: common::reordered(), ..Usual::default() };
    let mut d = common::decoder(s, "arcee", &usual)?;
    common::biases(s, &mut d)?;
    d.each(|l| l.feed.form = FeedForm::Plain);
    Ok(d)
}
