//! A number that must not be missed, with its bound.

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
}

impl Floor {
    /// Whether the bound is kept.
    pub fn met(&self) -> Option<bool> {
        self.bound.map(|(b, reach)| if reach { self.value >= b } else { self.value <= b })
    }
}

impl fmt::Display for Floor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bound = self.bound.map_or(String::new(), |(b, reach)| format!("{} {b}", if reach { "≥" } else { "≤" }));
        let met = self.met().map_or("", |m| if m { "met" } else { "MISSED" });
        write!(f, "{:<58} {:>11.2} µs {:>9.3} {:<16} {bound:>8} {met:<6}", self.what, self.seconds * 1e6, self.value, self.unit)
    }
}
