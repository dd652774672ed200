//! How an engine is set up.

use super::lookup::MIN_GAIN;
use std::time::Duration;

/// Bytes of keys and values that an engine takes by default.
const KV_BYTES: usize = 1 << 30;

/// How an engine is set up.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Requests that are read and written at a time.
    pub rows: usize,
    /// Requests that wait at most.
    pub waiting: usize,
    /// Tokens that the prompts of waiting requests have together at most, equal prompts counted once; one may always wait. No limit by
    /// default.
    pub waiting_tokens: usize,
    /// How long a request may wait before its prompt begins to be read; then it fails. One that is expected to wait longer is refused. `None`: as long as it
    /// takes.
    pub max_wait: Option<Duration>,
    /// Bytes of keys and values; 1 GiB by default. It is never less than one request of the whole context needs.
    pub kv_bytes: usize,
    /// Tokens of prompt and answer together; by default what the model was made for.
    pub context: Option<usize>,
    /// Prompt tokens that one step reads at most; by default 64 on a CPU and 512 on a GPU.
    pub chunk: Option<usize>,
    /// How long steps that read prompts may take together between two steps that write, since answers wait for them, by times measured at the start. One
    /// step there is in any case; larger shapes than this allows are left out.
    pub itl_budget: Duration,
    /// Whether an answer has the same bits whatever else the engine does: all steps that write then have one width, `rows`, those that read
    /// have one shape, and there must be room for a whole answer before it begins.
    pub deterministic: bool,
    /// Where prompt and answer repeat themselves, the next tokens are guessed and checked several at a time, if that is expected to be so many times as fast
    /// as one at a time, by how long both take at the start and by how many guesses were right. With up to four requests at a time, and never with
    /// [`EngineOptions::deterministic`]; `None`: never. Answers are those without it, but for the last bits of logits.
    pub lookup: Option<f64>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        let itl_budget = Duration::from_millis(50);
        let (context, chunk) = (None, None);
        EngineOptions {
            rows: 16,
            waiting: 1024,
            waiting_tokens: usize::MAX,
            max_wait: None,
            kv_bytes: KV_BYTES,
            context,
            chunk,
            itl_budget,
            deterministic: false,
            lookup: Some(MIN_GAIN),
        }
    }
}
