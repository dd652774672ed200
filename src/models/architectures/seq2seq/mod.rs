//! The models of two stacks that there are, a file for each family.

mod t5;
mod whisper;

use crate::error::TensorResult;
use crate::models::seq2seq::description::Seq2SeqSpec;
use crate::models::settings::{NONE, Settings};

/// An architecture of two stacks.
pub(crate) struct Seq2SeqArchitecture {
    /// Its name in `model_type`.
    pub name: &'static str,
    /// What the settings describe.
    pub describe: fn(&Settings<'_>) -> TensorResult<Seq2SeqSpec>,
}

/// The list.
pub(crate) const SEQ2SEQ: &[Seq2SeqArchitecture] =
    &[Seq2SeqArchitecture { name: "t5", describe: t5::describe }, Seq2SeqArchitecture { name: "whisper", describe: whisper::describe }];

/// The architecture of this name.
pub(crate) fn find(name: &str) -> Option<&'static Seq2SeqArchitecture> {
    SEQ2SEQ.iter().find(|a| a.name == name)
}

/// The token that answers begin with, and those that end them.
fn tokens(s: &Settings<'_>, usual_end: u32) -> TensorResult<(u32, Vec<u32>)> {
    let id = |key: &str, v: f64| match v >= 0.0 && v.fract() == 0.0 && v < f64::from(u32::MAX) {
        true => Ok(v as u32),
        false => Err(s.refuse(NONE, key, "expected the number of a token")),
    };
    let (key, end) = ("decoder_start_token_id", "eos_token_id");
    let start = s.number(NONE, key)?.map_or(Ok(0), |v| id(key, v))?;
    let ends = match s.is_list(end) {
        true => s.numbers(end)?.unwrap_or_default(),
        false if s.is_null(end) => Vec::new(),
        false => vec![s.number(NONE, end)?.unwrap_or(f64::from(usual_end))],
    };
    Ok((start, ends.into_iter().map(|v| id(end, v)).collect::<TensorResult<_>>()?))
}

/// Refuses a folder whose `architectures` is not `known`, which is the model with both stacks and the output matrix.
fn only_generation(s: &Settings<'_>, known: &str) -> TensorResult<()> {
    let names = if s.has_object("architectures") { s.texts("architectures")?.unwrap_or_default() } else { Vec::new() };
    match names.iter().all(|name| *name == known) {
        true => Ok(()),
        false => Err(s.refuse(NONE, "architectures", &format!("only {known} is implemented"))),
    }
}
