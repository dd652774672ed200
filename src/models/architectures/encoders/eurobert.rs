//! EuroBERT (Boizard et al., 2025): Llama whose tokens see the whole text.

use super::common::{self, Task};
use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::architectures::common::{Usual, biases, decoder};
use crate::models::encoder::description::{DenseSpec, EncoderSpec, ReadOut, ReadOutOf, ReadOutTo};
use crate::models::settings::{NONE, Settings};

pub(super) fn describe(s: &Settings<'_>) -> TensorResult<EncoderSpec> {
    let mut stack = decoder(s, "eurobert", &Usual { eps: 1e-5, ..Usual::default() })?;
    biases(s, &mut stack)?;
    let mut e = EncoderSpec::new(stack);
    let of = match s.text(NONE, "classifier_pooling")? {
        None | Some("late") => ReadOutOf::MeanOfLogits,
        Some("mean") => ReadOutOf::Mean,
        Some("bos") => ReadOutOf::First,
        Some(_) => return Err(s.refuse(NONE, "classifier_pooling", "supported: late, mean and bos")),
    };
    e.read_out = match common::task(s)? {
        Task::States => None,
        Task::MaskedTokens => {
            let bias = s.flag(NONE, "mlp_bias")?.unwrap_or(false);
            Some(ReadOut { of: ReadOutOf::Tokens, dense: None, norm: None, to: ReadOutTo::Vocabulary { bias } })
        }
        Task::Labels => {
            let dense = Some(DenseSpec { activation: ActivationFn::GeluExact, bias: true });
            e.stack.names = e.stack.names.with_top(&[("head_dense", "dense"), ("cls.output", "classifier")]);
            Some(ReadOut { of, dense, norm: None, to: ReadOutTo::Labels { names: s.labels()?, bias: true } })
        }
    };
    Ok(e)
}
