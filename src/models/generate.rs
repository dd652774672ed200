//! Text generation: the prompt in chunks, then token by token. Each step is submitted before the previous token is read back; short steps
//! share a submit.

mod recovery;

pub use recovery::Reload;

use crate::device::{Device, FallbackNote, RunningGeneration};
use crate::error::{TensorError, TensorResult};
use crate::eval::{Download, Replay, eval_all, plan_of};
use crate::models::sampler::{NAN_TOKEN, nan_error};
use crate::models::{KvCache, Model, Pass, Sampler};
use crate::plan::Plan;
use crate::strategy::{MIN_CHUNK, Pacing, PipelineStrategy, ROUNDED_PROMPT, with_pacing};
use crate::tensor::Tensor;
use recovery::ModelRef;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The values of a strategy for a model on a device, for work of `sequences` sequences at once: for batches that a program runs itself, in
/// [`with_pacing`]. `Auto` goes by the device and its load.
pub fn pacing_for(strategy: PipelineStrategy, model: &dyn Model, device: &Device, sequences: usize) -> Arc<Pacing> {
    let strategy = strategy.resolve(device.capabilities().queue, device.generations().max(sequences), usize::MAX);
    let table = if strategy == PipelineStrategy::Optimized { device.backend().model_tuning(&tuning_key(model)) } else { None };
    table.map_or_else(|| Pacing::shared(strategy).clone(), |table| Arc::new(Pacing::optimized(Arc::new(table))))
}

/// What tables of [`PipelineStrategy::Optimized`] are kept by: equal for models whose weights have the same shapes and dtypes.
pub fn tuning_key(model: &dyn Model) -> String {
    let shape = model.shape();
    let mut sizes: Vec<String> = model.weights().iter().map(|w| format!("{:?} {}", w.dims(), w.dtype())).collect();
    sizes.sort_unstable();
    let sizes = sizes.join(";").bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    format!("{} of {} layers, {} wide, {} {sizes:016x}", shape.architecture, shape.layers, shape.width, shape.dtype)
}

/// A model with the cache of one conversation.
pub struct Session<'m> {
    model: ModelRef<'m>,
    device: Device,
    cache: KvCache,
    /// Capacity in tokens; the cache has a little more, for padding.
    context: usize,
    capacity: usize,
    tokens: Vec<u32>,
    strategy: PipelineStrategy,
    /// The values of the strategy, unless that is `Auto`.
    pacing: Arc<Pacing>,
    /// Loads the model again.
    reload: Option<Reload<'m>>,
    fallbacks: Vec<FallbackNote>,
}

impl<'m> Session<'m> {
    /// A conversation of at most `context` tokens.
    ///
    /// # Errors
    /// [`TensorError::Config`] where the model supports fewer than `context` tokens; those of [`KvCache::new`].
    ///
    /// ```
    /// use tensorlogic::models::{self, Session, Weights};
    /// use tensorlogic::prelude::*;
    /// let device = Device::cpu();
    /// let model = models::load(&Weights::open("models/tiny/tiny.gguf", &device)?, None)?;
    /// let session = Session::new(&*model, 64, &device)?;
    /// assert_eq!((session.context(), session.tokens().len()), (64, 0));
    /// assert!(Session::new(&*model, 257, &device).is_err()); // the model supports 256
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn new(model: &'m dyn Model, context: usize, device: &Device) -> TensorResult<Session<'m>> {
        let mut session = Session::without_cache(model, context, device)?;
        session.new_cache()?;
        Ok(session)
    }

    fn without_cache(model: &'m dyn Model, context: usize, device: &Device) -> TensorResult<Session<'m>> {
        let shape = model.shape();
        if context > shape.context {
            return Err(TensorError::Config(format!("a context of {context} tokens; the model supports {}", shape.context)));
        }
        let mut session = Session {
            model: ModelRef::Given(model),
            device: device.clone(),
            cache: KvCache::none(),
            context,
            // Room for the padding of the last chunk.
            capacity: context.next_multiple_of(MIN_CHUNK),
            tokens: Vec::new(),
            strategy: PipelineStrategy::Standard,
            pacing: Pacing::shared(PipelineStrategy::Standard).clone(),
            reload: None,
            fallbacks: Vec::new(),
        };
        session.set_strategy(device.strategy());
        Ok(session)
    }

    /// Paces this session by a strategy instead of its device's. [`PipelineStrategy::Optimized`] takes the table that was measured for models
    /// of these shapes on this adapter, where one is kept.
    ///
    /// ```
    /// use tensorlogic::models::{self, Session, Weights};
    /// use tensorlogic::{Device, PipelineStrategy};
    ///
    /// let device = Device::cpu();
    /// let file = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny/tiny.gguf");
    /// let model = models::load(&Weights::open(file, &device)?, None)?;
    /// let session = Session::new(&*model, 64, &device)?.strategy(PipelineStrategy::LowLatency);
    /// assert_eq!(session.pacing(64).max_tokens_per_submit, 1);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn strategy(mut self, strategy: PipelineStrategy) -> Session<'m> {
        self.set_strategy(strategy);
        self
    }

    /// As [`Session::strategy`], between two answers.
    pub fn set_strategy(&mut self, strategy: PipelineStrategy) {
        self.strategy = strategy;
        self.pacing = pacing_for(strategy, &*self.model, &self.device, 1);
    }

    /// Paces this session by values of one's own, such as [`Pacing::of`] a strategy with some fields changed.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tensorlogic::models::{self, Session, Weights};
    /// use tensorlogic::strategy::Pacing;
    /// use tensorlogic::{Device, PipelineStrategy};
    ///
    /// let device = Device::cpu();
    /// let file = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny/tiny.gguf");
    /// let model = models::load(&Weights::open(file, &device)?, None)?;
    /// let mut session = Session::new(&*model, 64, &device)?;
    /// let mut pacing = Pacing::of(PipelineStrategy::Standard);
    /// pacing.max_submit_time = Duration::from_secs(1);
    /// session.set_pacing(pacing);
    /// assert_eq!(session.pacing(64).max_submit_time, Duration::from_secs(1));
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn set_pacing(&mut self, pacing: Pacing) {
        self.strategy = pacing.strategy;
        self.pacing = Arc::new(pacing);
    }

    /// The values by which `tokens` tokens would be generated now: `Auto` goes by the device, its load and this number.
    pub fn pacing(&self, tokens: usize) -> Arc<Pacing> {
        match self.strategy {
            PipelineStrategy::Auto => {
                let queue = self.device.capabilities().queue;
                Pacing::shared(self.strategy.resolve(queue, self.device.generations(), tokens)).clone()
            }
            _ => self.pacing.clone(),
        }
    }

    /// The session's model.
    pub fn model(&self) -> &dyn Model {
        &*self.model
    }
    /// Tokens so far: prompts and generated ones.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }
    /// Capacity in tokens.
    pub fn context(&self) -> usize {
        self.context
    }
    fn is_full(&self) -> bool {
        self.cache.len() >= self.context
    }
    /// Drops everything after the first `len` tokens. A model with states goes back to the end of the last prompt, or to the start, and the next
    /// prompt reads the tokens behind that point again.
    pub fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
        // Keys of a longer text may have been rotated otherwise.
        let kept = match self.model.rereads_beyond() {
            Some(limit) if self.cache.len() > limit && self.tokens.len() <= limit => 0,
            _ => self.tokens.len(),
        };
        self.cache.truncate(kept);
    }

    /// Processes tokens and returns the logits `[V]` after the last one. `stop` is called between chunks; if it returns true, the rest is
    /// skipped and the result is `None`. After an error the session is as it was before.
    ///
    /// # Errors
    /// [`TensorError::Value`] where there are no tokens, they do not fit into the context, or one is not in the vocabulary; those of the
    /// evaluation.
    ///
    /// ```
    /// use tensorlogic::models::{self, Session, Weights};
    /// use tensorlogic::prelude::*;
    /// let device = Device::cpu();
    /// let model = models::load(&Weights::open("models/tiny/tiny.gguf", &device)?, None)?;
    /// let mut session = Session::new(&*model, 64, &device)?;
    /// let logits = session.prompt(&[30, 27, 25, 17, 27], || false)?.expect("nobody stopped it"); // ROMEO
    /// assert_eq!(logits.argmax(-1)?.item()?, 10.0); // a colon follows the name
    /// assert!(session.prompt(&[10], || true)?.is_none());
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn prompt(&mut self, tokens: &[u32], mut stop: impl FnMut() -> bool) -> TensorResult<Option<Tensor>> {
        self.recovering(|session, lost| match lost {
            [] => session.read(tokens, &mut stop),
            lost => session.read(&[lost, tokens].concat(), &mut stop),
        })
    }

    fn read(&mut self, tokens: &[u32], mut stop: impl FnMut() -> bool) -> TensorResult<Option<Tensor>> {
        let pacing = self.pacing(usize::MAX);
        with_pacing(&pacing, || self.read_paced(tokens, &mut stop, pacing.prompt_chunks))
    }

    fn read_paced(&mut self, tokens: &[u32], stop: &mut dyn FnMut() -> bool, chunks: &[usize]) -> TensorResult<Option<Tensor>> {
        if tokens.is_empty() {
            return Err(TensorError::Value("the prompt is empty; give at least one token".into()));
        }
        let tokens = &self.with_unread(tokens)?[..];
        let end = self.cache.len() + tokens.len();
        let mut rest = tokens;
        let mut logits = None;
        // Where few tokens take as long as many: one plan to compile, one run.
        let wide = self.device.capabilities().wide;
        let round = |n: usize| Some(n.next_power_of_two().max(MIN_CHUNK)).filter(|&n| wide && n < ROUNDED_PROMPT);
        // A state would take padding for text.
        let exact = self.cache.has_states();
        while !rest.is_empty() {
            if stop() {
                return Ok(None);
            }
            let room = self.cache.capacity() - self.cache.len();
            let whole = round(rest.len()).filter(|&n| n <= room && !exact);
            let size = match rest.len() {
                1 => 1,
                n => whole.unwrap_or(chunks.iter().copied().find(|&c| c <= n).unwrap_or(if exact { n } else { MIN_CHUNK })),
            };
            let size = if size > room { 1 } else { size };
            let valid = size.min(rest.len());
            // What pads the last chunk is written behind the valid positions: later tokens overwrite it, and no query sees it before.
            let mut chunk: Vec<i32> = rest[..valid].iter().map(|&t| t as i32).collect();
            chunk.resize(size, 0);
            let ids = Tensor::from_vec(chunk, &[size], &self.device)?;
            let (read, unread) = rest.split_at(valid);
            rest = unread;
            logits = self.or_return(|session| session.read_chunk(&ids, valid, end, rest.is_empty()))?;
            self.tokens.extend(read);
        }
        // Steps that are taken ahead may have to be undone.
        self.cache.keep_states();
        Ok(logits)
    }

    /// Reads the first `valid` of some tokens of a text that ends at `end`; the logits after the last one, where the text's end is wanted.
    fn read_chunk(&mut self, ids: &Tensor, valid: usize, end: usize, is_last: bool) -> TensorResult<Option<Tensor>> {
        let before = self.cache.len();
        crate::events::prompt_chunk(valid, before);
        let h = self.model.forward(&mut Pass::tokens(ids).of_text(end), &mut self.cache)?;
        let last = h.narrow(1, valid - 1, 1)?;
        self.cache.truncate(before + valid);
        if !is_last {
            eval_all(&self.cache.tensors().collect::<Vec<_>>())?;
            return Ok(None);
        }
        let logits = self.model.logits(&last)?.flatten(0, -1)?;
        eval_all(&[&logits])?;
        Ok(Some(logits))
    }

    /// What `work` gives; where it fails, the cache is as it was before.
    fn or_return<T>(&mut self, work: impl FnOnce(&mut Self) -> TensorResult<T>) -> TensorResult<T> {
        let point = self.cache.point();
        work(self).inspect_err(|_| self.cache.return_to(&point))
    }

    /// Processes tokens without sampling; returns the logits `[T,V]` after each of them, in one evaluation.
    ///
    /// # Errors
    /// [`TensorError::Value`] where the tokens do not fit into the context, or one is not in the vocabulary; those of the evaluation.
    ///
    /// ```
    /// use tensorlogic::models::{self, Session, Weights};
    /// use tensorlogic::prelude::*;
    /// let device = Device::cpu();
    /// let model = models::load(&Weights::open("models/tiny/tiny.gguf", &device)?, None)?;
    /// let mut session = Session::new(&*model, 64, &device)?;
    /// let logits = session.score(&[30, 27, 25, 17, 27])?; // ROMEO
    /// assert_eq!(logits.dims(), [5, 65]);
    /// let likeliest = logits.argmax(-1)?.to_vec1::<i32>()?;
    /// assert_eq!(likeliest[1..], [25, 17, 27, 10]); // behind RO: M, E, O and a colon
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn score(&mut self, tokens: &[u32]) -> TensorResult<Tensor> {
        self.recovering(|session, lost| {
            let pacing = session.pacing(usize::MAX);
            with_pacing(&pacing, || {
                if !lost.is_empty() {
                    session.read_paced(lost, &mut || false, pacing.prompt_chunks)?;
                }
                session.score_paced(tokens)
            })
        })
    }

    fn score_paced(&mut self, tokens: &[u32]) -> TensorResult<Tensor> {
        let all = &self.with_unread(tokens)?[..];
        let ids = Tensor::from_vec(all.iter().map(|&t| t as i32).collect::<Vec<_>>(), &[all.len()], &self.device)?;
        let logits = self.or_return(|session| {
            let h = session.model.hidden(&ids, &mut session.cache)?;
            let logits = session.model.logits(&h.narrow(1, all.len() - tokens.len(), tokens.len())?)?.squeeze(0)?;
            eval_all(&[&logits])?;
            Ok(logits)
        })?;
        self.tokens.extend(all);
        Ok(logits)
    }

    /// These tokens, behind the one that was given out last where no step has read it yet; checked.
    fn with_unread(&mut self, tokens: &[u32]) -> TensorResult<Vec<u32>> {
        if self.model.rereads_beyond().is_some_and(|limit| self.cache.len() <= limit && self.tokens.len() + tokens.len() > limit) {
            self.cache.truncate(0);
        }
        let unread = self.tokens.get(self.cache.len()..).unwrap_or_default();
        let all = [unread, tokens].concat();
        self.check(&all)?;
        self.tokens.truncate(self.cache.len());
        Ok(all)
    }

    fn check(&self, tokens: &[u32]) -> TensorResult<()> {
        let room = self.context.saturating_sub(self.cache.len());
        if tokens.len() > room {
            return Err(TensorError::Value(format!(
                "{} tokens, and the context of {} has room for {room} more",
                tokens.len(),
                self.context
            )));
        }
        let vocab = self.model.shape().vocab;
        match tokens.iter().find(|&&t| t as usize >= vocab) {
            Some(t) => Err(TensorError::Value(format!("token {t} is not in the vocabulary of {vocab}"))),
            None => Ok(()),
        }
    }

    /// Generates from `logits` `[V]` (what [`Session::prompt`] gave): an iterator over tokens.
    ///
    /// # Errors
    /// When the sampler's settings are not allowed, or for what the evaluation met.
    ///
    /// ```
    /// use tensorlogic::models::{self, Sampler, Session, Weights};
    /// use tensorlogic::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let file = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny/tiny.gguf");
    /// let model = models::load(&Weights::open(file, &device)?, None)?;
    /// let mut session = Session::new(&*model, 64, &device)?;
    /// let logits = session.prompt(&[5, 6, 7], || false)?.expect("nobody stopped it");
    /// let mut sampler = Sampler::default();
    /// let tokens = session.generate(logits, &mut sampler)?.take(8).collect::<TensorResult<Vec<u32>>>()?;
    /// assert_eq!(tokens.len(), 8);
    /// assert_eq!(session.tokens()[3..], tokens);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn generate<'s>(&'s mut self, logits: Tensor, sampler: &'s mut Sampler) -> TensorResult<Generation<'s, 'm>> {
        sampler.check()?;
        let mut g = Generation {
            running: self.device.begin_generation(),
            prompt_len: self.tokens.len(),
            begun: sampler.rng.draws,
            session: self,
            sampler,
            next: None,
            here: VecDeque::new(),
            left: usize::MAX,
            wanted: usize::MAX,
            first: true,
            given: None,
            logits: None,
            replay: Replay::default(),
            draws: 0,
            drawn: None,
            arrived: None,
            pace: Duration::MAX,
            count: 1,
            failed: false,
        };
        let pacing = g.session.pacing(usize::MAX);
        if let Err(e) = with_pacing(&pacing, || g.choose(logits)) {
            g.recover(e)?;
        }
        Ok(g)
    }

    /// The plan of generating one token after `position` others, without running it.
    ///
    /// # Errors
    /// [`TensorError::Value`] where `position` is outside the context; those of building the step.
    ///
    /// ```
    /// use tensorlogic::models::{self, Sampler, Session, Weights};
    /// use tensorlogic::prelude::*;
    /// let device = Device::cpu();
    /// let model = models::load(&Weights::open("models/tiny/tiny.gguf", &device)?, None)?;
    /// let session = Session::new(&*model, 64, &device)?;
    /// let plan = session.plan_of_step(10, &mut Sampler::default())?.expect("there is something to compute");
    /// assert!(plan.amount().ops > 20_000_000); // a multiplication and an addition for each of 10.6 million weights
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn plan_of_step(mut self, position: usize, sampler: &mut Sampler) -> TensorResult<Option<Arc<Plan>>> {
        if position >= self.context {
            return Err(TensorError::Value(format!("position {position} is outside the context of {}", self.context)));
        }
        self.truncate(0);
        self.cache.advance(position);
        let token = Tensor::from_vec(vec![0i32], &[1], &self.device)?;
        let on_device = sampler.on_device(&self.device);
        with_pacing(&self.pacing(usize::MAX), || {
            let logits = self.step(&if on_device { token.relu()? } else { token })?;
            let next = if on_device { sampler.choose(&logits)? } else { logits };
            plan_of(&[&next])
        })
    }

    fn step(&mut self, token: &Tensor) -> TensorResult<Tensor> {
        let h = self.model.hidden(token, &mut self.cache)?;
        self.model.logits(&h)?.flatten(0, -1)
    }

    /// Whether the next token makes the text so long that it is read again from its start.
    fn rereads(&self) -> bool {
        self.model.rereads_beyond() == Some(self.cache.len())
    }

    /// The logits after the last token, from reading all again.
    fn reread(&mut self) -> TensorResult<Option<Tensor>> {
        let Some(last) = self.tokens.pop() else { return Ok(None) };
        self.read(&[last], &mut || false)
    }
}

/// Tokens as they are generated, an iterator of `TensorResult<u32>`; it ends when the context is full, or after an error. Dropping it leaves
/// the session with exactly the returned tokens, and the sampler as if no further token had been sampled.
pub struct Generation<'s, 'm> {
    session: &'s mut Session<'m>,
    sampler: &'s mut Sampler,
    /// The last token that was submitted, on the device, and those not yet read on their way to the host.
    next: Option<(Tensor, Download)>,
    /// Tokens that have arrived and were not given out yet.
    here: VecDeque<i32>,
    /// Tokens that may be chosen besides those that were.
    left: usize,
    /// Tokens that may be given out.
    wanted: usize,
    /// Tokens of the session before the first that is given out.
    prompt_len: usize,
    /// Random numbers drawn before the first token was chosen.
    begun: u32,
    /// Counts this generation on its device.
    running: RunningGeneration,
    /// Whether no token was given out yet.
    first: bool,
    /// The first token, which was given out before the step that reads it was submitted: that step's kernels may have to be compiled.
    given: Option<Tensor>,
    /// The next token's logits, when the host chooses.
    logits: Option<Tensor>,
    /// The recorded step, once known.
    replay: Replay,
    /// Random numbers that a step draws.
    draws: u32,
    /// Random numbers drawn for the tokens that were given out, when the device chooses.
    drawn: Option<u32>,
    /// When the last submit's tokens arrived, and how long a step took then.
    arrived: Option<Instant>,
    pace: Duration,
    /// Steps of the last submit: twice as many at most go next, so that the device does not run out of work meanwhile.
    count: usize,
    /// Whether the iterator has given an error, behind which there is nothing.
    failed: bool,
}

impl Generation<'_, '_> {
    /// Limits the number of tokens, so that none is computed in vain; after them `token` returns `None`.
    pub fn at_most(mut self, tokens: usize) -> Self {
        self.wanted = tokens;
        // One was chosen already.
        self.left = tokens.saturating_sub(1);
        if tokens == 0 {
            (self.next, self.logits) = (None, None);
        }
        self
    }

    fn choose(&mut self, logits: Tensor) -> TensorResult<()> {
        if self.sampler.on_device(&self.session.device) {
            let token = self.sampler.choose(&logits)?;
            // The step and the copy of its token are one submit.
            let download = token.download()?;
            self.next = Some((token, download));
        } else {
            eval_all(&[&logits])?;
            self.logits = Some(logits);
        }
        Ok(())
    }

    /// The next token, or `None` when the context is full.
    ///
    /// # Errors
    /// [`TensorError::Numeric`] where the logits contain NaN; those of the evaluation.
    ///
    /// ```
    /// use tensorlogic::models::{self, Sampler, Session, Weights};
    /// use tensorlogic::prelude::*;
    /// let device = Device::cpu();
    /// let model = models::load(&Weights::open("models/tiny/tiny.gguf", &device)?, None)?;
    /// let mut session = Session::new(&*model, 64, &device)?;
    /// let logits = session.prompt(&[30, 27, 25, 17, 27], || false)?.expect("nobody stopped it"); // ROMEO
    /// let mut sampler = Sampler::default();
    /// let mut generation = session.generate(logits, &mut sampler)?.at_most(2);
    /// assert_eq!(generation.token()?, Some(10)); // a colon
    /// assert_eq!(generation.token()?, Some(0)); // the end of the line
    /// assert_eq!(generation.token()?, None);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn token(&mut self) -> TensorResult<Option<u32>> {
        loop {
            let pacing = self.session.pacing(self.wanted);
            match with_pacing(&pacing, || self.token_paced(&pacing)) {
                // The session goes on elsewhere, if it can; this token is computed there.
                Err(e) if self.session.reload.is_some() => self.recover(e)?,
                done => return done,
            }
        }
    }

    fn token_paced(&mut self, pacing: &Pacing) -> TensorResult<Option<u32>> {
        if let Some(logits) = self.logits.take() {
            let mut host = logits.to_vec()?;
            let token = self.sampler.choose_host(&mut host, &self.session.tokens)?;
            self.session.tokens.push(token);
            self.session.device.count_token(token);
            if self.left > 0 && !self.session.is_full() {
                self.left -= 1;
                let logits = if self.session.rereads() {
                    self.session.reread()?
                } else {
                    let id = Tensor::from_vec(vec![token as i32], &[1], &self.session.device)?;
                    Some(self.session.step(&id)?)
                };
                logits.map(|l| self.choose(l)).transpose()?;
            }
            return Ok(Some(token));
        }
        if self.here.is_empty() {
            if let Some(token) = self.given.take() {
                self.submit(&token, pacing)?;
            }
            if self.next.is_none() && self.left > 0 && self.session.rereads() && !self.session.is_full() {
                self.reread()?;
            }
            let Some((token, download)) = self.next.take() else { return Ok(None) };
            if std::mem::take(&mut self.first) {
                self.drawn = Some(self.sampler.rng.draws);
                self.given = Some(token);
            } else {
                self.drawn = self.drawn.map(|d| d.wrapping_add(self.draws));
                self.submit(&token, pacing)?;
            }
            self.here.extend(download.wait::<i32>()?);
            let (now, count) = (Instant::now(), self.here.len() as u32);
            self.pace = self.arrived.replace(now).map_or(Duration::MAX, |before| (now - before) / count.max(1));
        } else {
            self.drawn = self.drawn.map(|d| d.wrapping_add(self.draws));
        }
        let Some(id) = self.here.pop_front() else { return Ok(None) };
        if id == NAN_TOKEN {
            return Err(nan_error());
        }
        self.session.tokens.push(id as u32);
        self.session.device.count_token(id as u32);
        Ok(Some(id as u32))
    }

    /// Chooses the next token after the whole text was read again.
    fn reread(&mut self) -> TensorResult<()> {
        self.left -= 1;
        self.replay = Replay::default();
        let before = self.sampler.rng.draws;
        if let Some(logits) = self.session.reread()? {
            self.choose(logits)?;
        }
        self.draws = self.sampler.rng.draws.wrapping_sub(before);
        Ok(())
    }

    /// Submits the step that reads a token, which stays on the device: the step does not wait for the host to see it. The token may be
    /// `NAN_TOKEN`, which is not an index. Once it is known what a step is, several go at once.
    fn submit(&mut self, token: &Tensor, pacing: &Pacing) -> TensorResult<()> {
        let taken = self.session.cache.len();
        // A step must not take the text to where it is read again.
        let end = self.session.model.rereads_beyond().filter(|limit| taken <= *limit).unwrap_or(self.session.context);
        let room = end.min(self.session.context).saturating_sub(taken).min(self.left);
        if room == 0 {
            return Ok(());
        }
        let quick = (pacing.max_submit_time.as_nanos() / self.pace.as_nanos().max(1)) as usize;
        let most = if self.session.device.capabilities().queue { pacing.max_tokens_per_submit.min(2 * self.count).min(room) } else { 1 };
        let count = quick.clamp(1, most);
        if let Some(draws) = self.draws.checked_mul(count as u32).and_then(|d| self.sampler.rng.draws.checked_add(d)) {
            if let Some(next) = self.replay.replay(token, count)? {
                self.sampler.rng.draws = draws;
                self.session.cache.advance(count);
                self.left -= count;
                self.count = count;
                self.next = Some(next);
                return Ok(());
            }
        } else {
            self.replay = Replay::default();
        }
        self.left -= 1;
        let logits = self.session.step(&token.relu()?)?;
        let before = self.sampler.rng.draws;
        if !self.session.model.repeats() {
            self.choose(logits)?;
            self.draws = self.sampler.rng.draws.wrapping_sub(before);
            return Ok(());
        }
        let next = self.sampler.choose(&logits)?;
        // While somebody holds them they are stored, since the states that they come from are overwritten.
        drop(logits);
        self.draws = self.sampler.rng.draws.wrapping_sub(before);
        let download = self.replay.record(token, &next)?;
        self.next = Some((next, download));
        Ok(())
    }

    /// Ends the generation: the session then contains exactly the returned tokens.
    pub fn finish(self) {}
}

impl Iterator for Generation<'_, '_> {
    type Item = TensorResult<u32>;

    fn next(&mut self) -> Option<TensorResult<u32>> {
        if self.failed {
            return None;
        }
        let token = self.token().transpose();
        self.failed = matches!(token, Some(Err(_)));
        token
    }
}

impl std::iter::FusedIterator for Generation<'_, '_> {}

impl Drop for Generation<'_, '_> {
    fn drop(&mut self) {
        crate::events::generation_ended(self.session.tokens.len());
        self.session.cache.truncate(self.session.tokens.len());
        if let Some(drawn) = self.drawn {
            self.sampler.rng.draws = drawn;
        }
    }
}
