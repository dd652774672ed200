//! A number that must not be missed, with its bound.

use super::Verdict;
use std::fmt;

/// One number with its bound.
#[derive(Clone, Debug)]
pub struct Floor {
    /// A short name; a peer's script reports its time under the same one.
    pub name: &'static str,
    /// What was measured.
    pub what: String,
    /// Seconds of one evaluation; for chains of dispatches, of one dispatch.
    pub seconds: f64,
    /// The number that the bound is about.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// The bound, and whether the number must reach it (else it must stay below); `None` where there is none on this device.
    pub bound: Option<(f64, bool)>,
    /// For gains that are judged as by `tl bench compare`, how the fast way differs from the slow one: the bound is kept unless it is slower
    /// beyond noise.
    pub verdict: Option<Verdict>,
}

impl Floor {
    /// Whether the bound is kept.
    pub fn met(&self) -> Option<bool> {
        self.bound.map(|(b, reach)| match self.verdict {
            Some(verdict) => verdict != Verdict::Slower,
            None if reach => self.value >= b,
            None => self.value <= b,
        })
    }
}

impl fmt::Display for Floor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bound = self.bound.map_or(String::new(), |(b, reach)| format!("{} {b}", if reach { "≥" } else { "≤" }));
        let met = self.met().map_or("", |m| if m { "met" } else { "MISSED" });
        let verdict = self.verdict.map_or("", |v| match v {
            Verdict::Faster => ", faster",
            Verdict::Slower => ", slower",
            Verdict::Same => ", no difference",
        });
        write!(f, "{:<58} {:>11.2} µs {:>9.3} {:<16} {bound:>8} {met:<6}{verdict}", self.what, self.seconds * 1e6, self.value, self.unit)
    }
}
