//! Learning rates over time.

/// A learning rate for each step.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// Always the same.
    Constant(f64),
    /// From `from` to `to` in a straight line over `steps`, then `to`.
    Linear {
        /// At step 0.
        from: f64,
        /// From step `steps` on.
        to: f64,
        /// How long the way is.
        steps: u64,
    },
    /// From `from` to `to` along half a cosine over `steps`, then `to` (Loshchilov and Hutter, 2017).
    Cosine {
        /// At step 0.
        from: f64,
        /// From step `steps` on.
        to: f64,
        /// How long the way is.
        steps: u64,
    },
    /// `start`, multiplied by `factor` every `every` steps.
    Step {
        /// At the beginning.
        start: f64,
        /// What each stage multiplies by.
        factor: f64,
        /// Steps of a stage.
        every: u64,
    },
    /// One after the other: each but the last for so many steps, counted anew.
    Join(Vec<(Schedule, u64)>),
}

impl Schedule {
    /// Linear warm-up to `peak` over `warmup` steps, then a cosine down to `end` at step `total`: the usual one for transformers.
    pub fn warmup_cosine(peak: f64, end: f64, warmup: u64, total: u64) -> Schedule {
        let first = peak / (warmup.max(1) as f64);
        let rise = Schedule::Linear { from: first, to: peak, steps: warmup.saturating_sub(1) };
        let fall = Schedule::Cosine { from: peak, to: end, steps: total.saturating_sub(warmup) };
        Schedule::Join(vec![(rise, warmup), (fall, u64::MAX)])
    }

    /// The rate for this step, counted from 0.
    pub fn at(&self, step: u64) -> f64 {
        let way = |steps: u64| if steps == 0 { 1.0 } else { (step as f64 / steps as f64).min(1.0) };
        match self {
            Schedule::Constant(lr) => *lr,
            Schedule::Linear { from, to, steps } => from + (to - from) * way(*steps),
            Schedule::Cosine { from, to, steps } => to + (from - to) * 0.5 * (1.0 + (std::f64::consts::PI * way(*steps)).cos()),
            Schedule::Step { start, factor, every } => start * factor.powf((step / (*every).max(1)) as f64),
            Schedule::Join(parts) => {
                let mut rest = step;
                for (i, (s, n)) in parts.iter().enumerate() {
                    if rest < *n || i + 1 == parts.len() {
                        return s.at(rest);
                    }
                    rest -= n;
                }
                0.0
            }
        }
    }
}
