//! The arguments of calls, filters and tests.

use std::sync::Arc;

use super::meter::Res;
use super::value::Value;

/// The arguments of a call.
#[derive(Default)]
pub(crate) struct Args {
    pub(crate) plain: Vec<Value>,
    pub(crate) named: Vec<(Arc<str>, Value)>,
}

impl Args {
    /// An argument by place or name.
    pub(crate) fn get(&self, place: usize, name: &str) -> Option<&Value> {
        self.plain.get(place).or_else(|| self.named.iter().find(|(n, _)| &**n == name).map(|(_, v)| v))
    }
    /// An argument that must be there.
    pub(crate) fn need(&self, place: usize, name: &str) -> Res<&Value> {
        self.get(place, name).ok_or_else(|| format!("the argument '{name}' is missing"))
    }
    /// An argument that must be an integer, with its default.
    pub(crate) fn int(&self, place: usize, name: &str, otherwise: i64) -> Res<i64> {
        match self.get(place, name) {
            None => Ok(otherwise),
            Some(value) => value.as_int().ok_or_else(|| format!("the argument '{name}' must be an integer")),
        }
    }
    /// An argument that must be a text.
    pub(crate) fn text(&self, place: usize, name: &str) -> Res<&str> {
        let value = self.need(place, name)?;
        value.as_str().ok_or_else(|| format!("the argument '{name}' must be a text"))
    }
    /// An argument by its truth, false where it is not given.
    pub(crate) fn flag(&self, place: usize, name: &str) -> bool {
        self.get(place, name).is_some_and(Value::is_true)
    }
}
