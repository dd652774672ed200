//! What is asked of an engine, and what it answers.

use crate::error::{TensorError, TensorResult};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How one request's tokens are chosen. Each has a stream of random numbers of its own: it depends on the seed and on how many tokens were drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 always takes the most likely token; higher values flatten the distribution.
    pub temperature: f64,
    /// Keeps the `top_k` most likely tokens, including ties with the last one; 0 for all.
    pub top_k: usize,
    /// Keeps the smallest set of most likely tokens with this total probability; 1 for all.
    pub top_p: f64,
    /// Keeps tokens at least `min_p` times as likely as the most likely one; 0 for all.
    pub min_p: f64,
    /// The seed of the stream.
    pub seed: u64,
    /// Subtracted from the logits of tokens that were written.
    pub presence_penalty: f64,
    /// The same, as often as the token was written.
    pub frequency_penalty: f64,
    /// Divides the positive logits of tokens of prompt and answer, and multiplies the negative ones (Keskar et al., 2019); 1 for none.
    pub repetition_penalty: f64,
    /// Numbers that are added to the logits of tokens.
    pub bias: Vec<(u32, f32)>,
}

impl Default for Sampling {
    fn default() -> Self {
        let (presence_penalty, frequency_penalty, repetition_penalty) = (0.0, 0.0, 1.0);
        let bias = Vec::new();
        Sampling {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: 0,
            presence_penalty,
            frequency_penalty,
            repetition_penalty,
            bias,
        }
    }
}

impl Sampling {
    /// Fails on settings outside their ranges.
    ///
    /// # Errors
    /// [`TensorError::Config`], which names the setting.
    ///
    /// ```
    /// use tensorlogic::serving::Sampling;
    ///
    /// Sampling { temperature: 0.8, top_p: 0.95, ..Default::default() }.check()?;
    /// let error = Sampling { top_p: 1.5, ..Default::default() }.check().unwrap_err();
    /// assert_eq!(error.to_string(), "top-p is 1.5; expected more than 0, at most 1");
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn check(&self) -> TensorResult<()> {
        let &Sampling { temperature, top_k, top_p, min_p, repetition_penalty, .. } = self;
        for (name, v) in [("presence penalty", self.presence_penalty), ("frequency penalty", self.frequency_penalty)] {
            if !v.is_finite() {
                return Err(TensorError::Config(format!("{name} is {v}; expected a finite number")));
            }
        }
        if let Some((token, v)) = self.bias.iter().find(|(_, v)| v.is_nan()) {
            return Err(TensorError::Config(format!("the bias of token {token} is {v}; expected a number")));
        }
        crate::models::Sampler { temperature, top_k, top_p, min_p, repetition_penalty, ..Default::default() }.check()
    }
    /// Whether tokens are drawn.
    pub(crate) fn draws(&self) -> bool {
        self.temperature > 0.0
    }
    /// Whether they are drawn from a part of the vocabulary.
    pub(crate) fn cuts(&self) -> bool {
        self.draws() && (self.top_k > 0 || self.top_p < 1.0 || self.min_p > 0.0)
    }
}

/// What an answer may consist of, a grammar for instance: it is asked which tokens may come next, and told which one came. Both happen on the engine's thread,
/// where all other requests wait for it. Where it fails or panics, its own request ends and no other.
///
/// ```
/// use tensorlogic::models::{self, Weights};
/// use tensorlogic::serving::{Constraint, Engine, EngineOptions, Request};
/// use tensorlogic::{Device, TensorResult};
///
/// /// Token 7, so many times.
/// #[derive(Clone, Debug)]
/// struct Sevens(usize);
///
/// impl Constraint for Sevens {
///     fn allow(&mut self, tokens: &mut [u32]) -> TensorResult<bool> {
///         tokens[0] |= u32::from(self.0 > 0) << 7;
///         Ok(self.0 == 0)
///     }
///     fn wrote(&mut self, _token: u32) -> TensorResult<()> {
///         self.0 -= 1;
///         Ok(())
///     }
///     fn fork(&self) -> Box<dyn Constraint> {
///         Box::new(self.clone())
///     }
/// }
///
/// # let file = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny/tiny.gguf");
/// # let model = models::load(&Weights::open(file, &Device::cpu())?, None)?;
/// # let engine = Engine::start(model, &Device::cpu(), EngineOptions { rows: 2, context: Some(128), ..Default::default() })?;
/// let request = Request { constraint: Some(Box::new(Sevens(3))), ..Request::new(&[5, 6], 100) };
/// assert_eq!(engine.submit(request)?.wait()?.0, [7, 7, 7]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Constraint: Send + fmt::Debug {
    /// Marks the tokens that may come next, token `t` by bit `t % 32` of word `t / 32`; no bit is set before. The result says whether the answer may end
    /// here, by one of [`Request::ends`]; where it may and no bit is set, it ends.
    ///
    /// # Errors
    /// Why the answer cannot go on; the request fails with it.
    fn allow(&mut self, tokens: &mut [u32]) -> TensorResult<bool>;

    /// This token came.
    ///
    /// # Errors
    /// Why the answer cannot go on; the request fails with it.
    fn wrote(&mut self, token: u32) -> TensorResult<()>;

    /// A constraint in the same state.
    fn fork(&self) -> Box<dyn Constraint>;
}

impl Clone for Box<dyn Constraint> {
    fn clone(&self) -> Self {
        self.fork()
    }
}

/// A prompt to go on from.
#[derive(Clone, Debug)]
pub struct Request {
    /// The prompt's tokens, one at least.
    pub prompt: Vec<u32>,
    /// Tokens to write at most.
    pub max_tokens: usize,
    /// How they are chosen.
    pub sampling: Sampling,
    /// Tokens that end the answer; they are not part of it.
    pub ends: Vec<u32>,
    /// Whether log-probabilities are wanted, and of how many of the most likely tokens besides the chosen one; at most [`Request::MAX_LOGPROBS`].
    pub logprobs: Option<usize>,
    /// What the answer may consist of.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Whose prefixes it shares: only requests with the same name read each other's cached keys and values.
    pub cache_name: Arc<str>,
}

impl Request {
    /// Most likely tokens whose log-probabilities are given at most.
    pub const MAX_LOGPROBS: usize = 20;

    /// The most likely tokens after a prompt, at most `max_tokens`.
    pub fn new(prompt: &[u32], max_tokens: usize) -> Request {
        Request {
            prompt: prompt.to_vec(),
            max_tokens,
            sampling: Sampling::default(),
            ends: Vec::new(),
            logprobs: None,
            constraint: None,
            cache_name: "".into(),
        }
    }
}

/// Why an answer ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FinishReason {
    /// A token that ends answers was chosen.
    Stop,
    /// There are as many tokens as there may be.
    Length,
}

/// What an answer took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Those of them that needed no reading, since an earlier prompt began alike.
    pub cached: usize,
    /// Tokens that were written, without one that ended the answer.
    pub written: usize,
}

/// Natural logarithms of the probabilities that the model gives, before settings of the choice change them.
#[derive(Clone, Debug, PartialEq)]
pub struct LogProbs {
    /// That of the token that was chosen.
    pub chosen: f32,
    /// Those of the most likely tokens, the best first.
    pub top: Vec<(u32, f32)>,
}

/// What happens to a request, in order. The last is [`Event::Finished`] or [`Event::Failed`].
#[derive(Clone, Debug)]
pub enum Event {
    /// The probabilities of the token that comes next, where they were asked for.
    LogProbs(LogProbs),
    /// The next token.
    Token(u32),
    /// The answer is whole.
    Finished(FinishReason, Usage),
    /// The answer ends here, for this reason.
    Failed(TensorError),
}

/// Why an engine does not take a request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// The prompt leaves no room for an answer.
    TooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens of prompt and answer that are possible.
        longest: usize,
    },
    /// Too many requests wait, or too many tokens of prompts.
    QueueFull,
    /// It would wait too long.
    WaitTooLong {
        /// How long, at the rate at which other requests begin.
        expected: Duration,
        /// How long it may wait.
        limit: Duration,
    },
    /// The request is wrong in itself.
    Invalid(TensorError),
    /// The engine has stopped.
    Stopped,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::TooLong { prompt, longest } => {
                write!(f, "the prompt has {prompt} tokens; with one token of the answer there is room for {longest}")
            }
            Refusal::QueueFull => f.write_str("too many requests are waiting"),
            Refusal::WaitTooLong { expected, limit } => {
                let [expected, limit] = [expected, limit].map(|t| t.as_secs_f64().ceil());
                write!(f, "the request would wait for about {expected} s; it may wait for {limit} s")
            }
            Refusal::Invalid(e) => write!(f, "{e}"),
            Refusal::Stopped => f.write_str("the engine has stopped"),
        }
    }
}

impl std::error::Error for Refusal {}
