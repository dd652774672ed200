//! Pipeline strategies: how many tokens go in a submit, how prompts are cut, how the host waits, and which kernels serve a model.
//!
//! A strategy never changes what is computed. All but [`PipelineStrategy::Optimized`] run the same kernels, so that their results are equal bit
//! for bit; `Optimized` takes a table that was measured for the model, with which sums may be split, and so rounded, otherwise.

use crate::error::{TensorError, TensorResult};
use crate::tuning::SharedTuning;
use std::cell::RefCell;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// What a device, a session or an inference is to be good at.
///
/// | | tokens a submit | submits ahead | prompt chunks | waiting for a result | first submit of a long plan | kernels |
/// |---|---|---|---|---|---|---|
/// | `Standard` | up to 8 in 4 ms | 1 | 512 to 8 | awake for 200 µs, then asleep | as the tuning table says | the device's table |
/// | `Optimized` | as `Standard` | 1 | as `Standard` | as `Standard` | as `Standard` | the table measured for the model |
/// | `LowLatency` | 1 | 1 | 512 to 8 | awake for up to 50 ms | 32 dispatches | the device's table |
/// | `HighThroughput` | up to 32 in 20 ms | 4 | 2048 to 8 | asleep | the whole plan | the device's table |
/// | `Auto` | one of the others, by device and load | | | | | |
///
/// A device without a queue, the CPU, computes a step when it is asked for: there, `Standard`, `LowLatency` and `HighThroughput` differ in the
/// chunks of prompts only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PipelineStrategy {
    /// A balance of both: short steps share a submit, as long as their tokens do not visibly arrive in groups.
    #[default]
    Standard,
    /// The kernels of a table that was measured for the model's shapes on this adapter (`tl tune -m MODEL`, or
    /// `measure::tune_model`); those of [`PipelineStrategy::Standard`] where there is none.
    Optimized,
    /// Every token as soon as it can be there; the waiting thread keeps a core busy.
    LowLatency,
    /// The most tokens per second and the least of the host's time; tokens arrive in groups.
    HighThroughput,
    /// [`PipelineStrategy::HighThroughput`] where four or more generations share the device, [`PipelineStrategy::LowLatency`] for answers of up
    /// to eight tokens, else [`PipelineStrategy::Standard`], as on a device without a queue.
    Auto,
}

/// Generations on one device from which on `Auto` is for throughput.
const MANY_GENERATIONS: usize = 4;
/// Tokens of a short answer, for which `Auto` is for latency.
const SHORT_ANSWER: usize = 8;

impl PipelineStrategy {
    /// All strategies.
    pub const ALL: [PipelineStrategy; 5] = [
        PipelineStrategy::Standard,
        PipelineStrategy::Optimized,
        PipelineStrategy::LowLatency,
        PipelineStrategy::HighThroughput,
        PipelineStrategy::Auto,
    ];

    /// The name in `TL_STRATEGY` and `--strategy`.
    pub const fn name(self) -> &'static str {
        match self {
            PipelineStrategy::Standard => "standard",
            PipelineStrategy::Optimized => "optimized",
            PipelineStrategy::LowLatency => "low-latency",
            PipelineStrategy::HighThroughput => "high-throughput",
            PipelineStrategy::Auto => "auto",
        }
    }

    /// The strategy that `TL_STRATEGY` names; `None` where it is unset or empty.
    ///
    /// # Errors
    /// [`TensorError::Config`] where it names none.
    ///
    /// ```
    /// use tensorlogic::PipelineStrategy;
    ///
    /// let strategy = PipelineStrategy::from_env()?.unwrap_or(PipelineStrategy::LowLatency);
    /// let named = std::env::var("TL_STRATEGY").ok().filter(|name| !name.is_empty());
    /// assert_eq!(strategy.name(), named.unwrap_or("low-latency".into()));
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn from_env() -> TensorResult<Option<PipelineStrategy>> {
        let value = std::env::var("TL_STRATEGY").ok().filter(|v| !v.is_empty());
        value.map(|v| v.parse().map_err(|e| TensorError::Config(format!("TL_STRATEGY: {e}")))).transpose()
    }

    /// What `Auto` means on a device with or without a queue, which `generations` share, for `tokens` tokens at most; any other strategy means
    /// itself.
    pub fn resolve(self, queue: bool, generations: usize, tokens: usize) -> PipelineStrategy {
        match self {
            PipelineStrategy::Auto if !queue => PipelineStrategy::Standard,
            PipelineStrategy::Auto if generations >= MANY_GENERATIONS => PipelineStrategy::HighThroughput,
            PipelineStrategy::Auto if tokens <= SHORT_ANSWER => PipelineStrategy::LowLatency,
            PipelineStrategy::Auto => PipelineStrategy::Standard,
            other => other,
        }
    }
}

impl fmt::Display for PipelineStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for PipelineStrategy {
    type Err = TensorError;

    fn from_str(name: &str) -> TensorResult<PipelineStrategy> {
        PipelineStrategy::ALL.into_iter().find(|s| s.name() == name).ok_or_else(|| {
            let names = PipelineStrategy::ALL.map(PipelineStrategy::name).join(", ");
            TensorError::Config(format!("{name:?} is not a strategy; expected one of {names}"))
        })
    }
}

/// How many dispatches a submit of a plan with many of them has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitSteps {
    /// As the tuning table says.
    Tuned,
    /// The first submit this many, the others as the table says: the GPU begins early.
    First(usize),
    /// All in one, unless the table's limit of operations ends it.
    Whole,
}

/// The values of a strategy.
#[derive(Clone, Debug, PartialEq)]
pub struct Pacing {
    /// The strategy that has these values; never `Auto`.
    pub strategy: PipelineStrategy,
    /// Steps of a generation in one submit at most.
    pub max_tokens_per_submit: usize,
    /// How long they may take together, so that tokens do not visibly arrive in groups.
    pub max_submit_time: Duration,
    /// Submits of a batch whose tokens may be on their way before the first of them is waited for.
    pub submits_ahead: usize,
    /// Prompts run in chunks of these sizes, the largest first, so that few plans serve every length.
    pub prompt_chunks: &'static [usize],
    /// How long the host spins for a result before it sleeps.
    pub awake: Duration,
    /// Dispatches of a submit.
    pub submit_steps: SubmitSteps,
    /// The tuning table of kernels, where it is not the device's.
    pub table: Option<SharedTuning>,
    /// The number of that table; 0 without one.
    table_id: u64,
}

/// The least chunk of every strategy: shorter prompts are padded to it.
pub(crate) const MIN_CHUNK: usize = 8;
/// Prompts below this size are rounded up to a power of two where few tokens take as long as many.
pub(crate) const ROUNDED_PROMPT: usize = 512;

const CHUNKS: &[usize] = &[512, 128, 32, MIN_CHUNK];
const LARGE_CHUNKS: &[usize] = &[2048, 512, 128, 32, MIN_CHUNK];

impl Pacing {
    /// The values of a strategy without a table of its own; those of `Standard` for `Auto`, which has to be resolved first.
    pub fn of(strategy: PipelineStrategy) -> Pacing {
        let standard = Pacing {
            strategy,
            max_tokens_per_submit: 8,
            max_submit_time: Duration::from_millis(4),
            submits_ahead: 1,
            prompt_chunks: CHUNKS,
            awake: Duration::from_micros(200),
            submit_steps: SubmitSteps::Tuned,
            table: None,
            table_id: 0,
        };
        match strategy {
            PipelineStrategy::Standard | PipelineStrategy::Optimized => standard,
            PipelineStrategy::Auto => Pacing { strategy: PipelineStrategy::Standard, ..standard },
            PipelineStrategy::LowLatency => {
                Pacing { max_tokens_per_submit: 1, awake: Duration::from_millis(50), submit_steps: SubmitSteps::First(32), ..standard }
            }
            PipelineStrategy::HighThroughput => Pacing {
                max_tokens_per_submit: 32,
                max_submit_time: Duration::from_millis(20),
                submits_ahead: 4,
                prompt_chunks: LARGE_CHUNKS,
                awake: Duration::ZERO,
                submit_steps: SubmitSteps::Whole,
                ..standard
            },
        }
    }

    /// The values of `Optimized` with a measured table.
    pub fn optimized(table: SharedTuning) -> Pacing {
        let table_id = table.id();
        Pacing { table: Some(table), table_id, ..Pacing::of(PipelineStrategy::Optimized) }
    }

    /// The same, where the host spins for at least so long before it sleeps.
    pub(crate) fn awake_for(&self, time: Duration) -> Pacing {
        Pacing { awake: self.awake.max(time), ..self.clone() }
    }

    /// The same, shared by everybody who asks.
    pub(crate) fn shared(strategy: PipelineStrategy) -> &'static Arc<Pacing> {
        static ALL: OnceLock<[Arc<Pacing>; PipelineStrategy::ALL.len()]> = OnceLock::new();
        &ALL.get_or_init(|| PipelineStrategy::ALL.map(|s| Arc::new(Pacing::of(s))))[strategy as usize]
    }

    /// A number that differs where a prepared plan does: its table, and where its submits end. 0 for `Standard`.
    pub(crate) fn plan_key(&self) -> u64 {
        let submits = match self.submit_steps {
            SubmitSteps::Tuned => 0,
            SubmitSteps::First(n) => 2 * n as u64,
            SubmitSteps::Whole => 1,
        };
        self.table_id.rotate_left(17) ^ submits
    }
}

thread_local! {
    static SCOPE: RefCell<Option<Arc<Pacing>>> = const { RefCell::new(None) };
}

/// Runs `work` with these values in force on this thread, instead of those of the devices that it uses.
///
/// ```
/// use std::sync::Arc;
/// use tensorlogic::prelude::*;
/// use tensorlogic::strategy::{Pacing, PipelineStrategy, with_pacing};
///
/// let pacing = Arc::new(Pacing::of(PipelineStrategy::HighThroughput));
/// let sum = with_pacing(&pacing, || Tensor::ones(&[4, 4], DType::F32, &Device::cpu())?.sum(&[], false)?.item())?;
/// assert_eq!(sum, 16.0);
/// # Ok::<(), TensorError>(())
/// ```
pub fn with_pacing<T>(pacing: &Arc<Pacing>, work: impl FnOnce() -> T) -> T {
    struct Restore(Option<Arc<Pacing>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            SCOPE.set(self.0.take());
        }
    }
    let _restore = Restore(SCOPE.replace(Some(pacing.clone())));
    work()
}

/// What `look` finds in the values in force on this thread, which are those of `strategy` where there are no others.
pub(crate) fn in_force<T>(strategy: PipelineStrategy, look: impl FnOnce(&Pacing) -> T) -> T {
    SCOPE.with_borrow(|scope| look(scope.as_ref().unwrap_or_else(|| Pacing::shared(strategy))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::Tuning;

    #[test]
    fn names_are_read_back_and_others_refused() {
        for s in PipelineStrategy::ALL {
            assert_eq!(s.to_string().parse::<PipelineStrategy>().unwrap(), s);
            assert_ne!(Pacing::shared(s).strategy, PipelineStrategy::Auto, "{s}");
            assert_eq!(format!("{s:<20}").len(), 20);
        }
        let e = "fast".parse::<PipelineStrategy>().unwrap_err().to_string();
        assert_eq!(e, "\"fast\" is not a strategy; expected one of standard, optimized, low-latency, high-throughput, auto");
    }

    #[test]
    fn auto_goes_by_queue_load_and_length() {
        use PipelineStrategy::*;
        for (queue, generations, tokens, expected) in [
            (false, 9, 1, Standard),
            (true, 1, 100, Standard),
            (true, 3, 100, Standard),
            (true, 1, 8, LowLatency),
            (true, 4, 8, HighThroughput),
            (true, 4, 100, HighThroughput),
        ] {
            assert_eq!(Auto.resolve(queue, generations, tokens), expected, "{queue}, {generations} generations, {tokens} tokens");
            assert_eq!(Optimized.resolve(queue, generations, tokens), Optimized);
        }
    }

    #[test]
    fn plans_of_strategies_that_differ_in_them_have_different_keys() {
        let table = |units| Pacing::optimized(Arc::new(Tuning::by_formula("t", units, 1 << 20)));
        let all = [
            Pacing::of(PipelineStrategy::Standard),
            Pacing::of(PipelineStrategy::LowLatency),
            Pacing::of(PipelineStrategy::HighThroughput),
            table(8),
            table(9),
        ];
        let keys: std::collections::HashSet<u64> = all.iter().map(Pacing::plan_key).collect();
        assert_eq!(keys.len(), all.len());
        assert_eq!(Pacing::of(PipelineStrategy::Optimized).plan_key(), all[0].plan_key(), "without a table, plans are Standard's");
        assert_eq!(all[0].plan_key(), 0);
    }

    #[test]
    fn a_scope_ends_with_its_work_even_where_that_panics() {
        let now = || in_force(PipelineStrategy::Standard, |p| p.strategy);
        let low = Pacing::shared(PipelineStrategy::LowLatency);
        let inner = with_pacing(low, || with_pacing(Pacing::shared(PipelineStrategy::HighThroughput), now));
        assert_eq!((inner, now()), (PipelineStrategy::HighThroughput, PipelineStrategy::Standard));
        let panicked = std::panic::catch_unwind(|| with_pacing(low, || panic!("of the test")));
        assert!(panicked.is_err());
        assert_eq!(now(), PipelineStrategy::Standard);
    }
}
