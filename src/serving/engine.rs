//! The engine as programs have it: requests in, events out.

use super::answer::{Answer, RequestHandle};
use super::door::{Door, Message, lock};
use super::listeners::Listeners;
use super::options::EngineOptions;
use super::queue::{Queue, Waiting};
use super::request::{Event, Refusal, Request};
use super::round::Round;
use super::stats::EngineStats;
use super::thread::{Common, Core};
use crate::device::Device;
use crate::error::{TensorError, TensorResult};
use crate::models::Model;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a step may take to end where the engine is dropped.
const LEFT_BEHIND: Duration = Duration::from_secs(60);
/// Many requests at once on one model. Dropping it ends all of them.
///
/// ```
/// use tensorlogic::models::{self, Weights};
/// use tensorlogic::serving::{Engine, EngineOptions, Request};
/// use tensorlogic::Device;
///
/// let device = Device::cpu();
/// let file = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny/tiny.gguf");
/// let model = models::load(&Weights::open(file, &device)?, None)?;
/// let engine = Engine::start(model, &device, EngineOptions { rows: 4, context: Some(128), ..Default::default() })?;
/// let answers: Vec<_> = [[5, 6, 7], [8, 9, 10]].iter().map(|prompt| engine.submit(Request::new(prompt, 8))).collect::<Result<_, _>>()?;
/// for answer in answers {
///     let (tokens, usage) = answer.wait()?;
///     assert_eq!((tokens.len(), usage.prompt), (8, 3));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Engine {
    door: Arc<Mutex<Door>>,
    thread: Option<JoinHandle<()>>,
    stats: Arc<Mutex<EngineStats>>,
    longest: usize,
    vocab: usize,
    /// Requests that were taken and have not ended, and how many there may be.
    taken: Arc<AtomicUsize>,
    most: usize,
    /// Those that wait, how many tokens they may have, and how long they may wait.
    queue: Arc<Mutex<Queue>>,
    rows: usize,
    waiting_tokens: usize,
    max_wait: Option<Duration>,
    round: Arc<Round>,
    listeners: Listeners,
}

impl Engine {
    /// Takes a model of this device, and prepares every step that requests will need.
    ///
    /// # Errors
    /// [`TensorError::Config`] for options that cannot be, [`TensorError::Unsupported`] for a model whose attention has no form for pages;
    /// those of the device, for instance where there is no room for keys and values.
    ///
    /// ```
    /// use tensorlogic::models::{self, Weights};
    /// use tensorlogic::serving::{Engine, EngineOptions};
    /// use tensorlogic::Device;
    ///
    /// let device = Device::cpu();
    /// let model = models::load(&Weights::open("models/tiny/tiny.gguf", &device)?, None)?;
    /// let engine = Engine::start(model, &device, EngineOptions { rows: 1, context: Some(128), ..Default::default() })?;
    /// assert_eq!((engine.longest(), engine.vocab()), (128, 65));
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn start(model: impl Into<Arc<dyn Model>>, device: &Device, options: EngineOptions) -> TensorResult<Engine> {
        let model = model.into();
        let vocab = model.shape().vocab;
        let stats = Arc::new(Mutex::new(EngineStats::default()));
        let (sender, receiver) = channel();
        let (started, start) = channel();
        let taken = Arc::new(AtomicUsize::new(0));
        let queue = Arc::new(Mutex::new(Queue::default()));
        let round = Arc::new(Round::new());
        let listeners = Listeners::default();
        let shared =
            Common { stats: stats.clone(), taken: taken.clone(), queue: queue.clone(), round: round.clone(), listeners: listeners.clone() };
        let device = device.clone();
        let most = options.rows.saturating_add(options.waiting);
        let (rows, waiting_tokens, max_wait) = (options.rows, options.waiting_tokens, options.max_wait);
        let run = move || match Core::new(model, &device, &options, shared) {
            Ok(core) => {
                let _ = started.send(Ok(core.longest()));
                core.run(&receiver);
            }
            Err(e) => drop(started.send(Err(e))),
        };
        let thread = std::thread::Builder::new().name("engine".into()).spawn(run);
        let thread = thread.map_err(|e| TensorError::State(format!("the engine's thread: {e}")))?;
        let longest = start.recv().map_err(|_| TensorError::State("the engine's thread ended".into()))??;
        let door = Arc::new(Mutex::new(Door { next: 0, sender }));
        Ok(Engine {
            door,
            thread: Some(thread),
            stats,
            longest,
            vocab,
            taken,
            most,
            queue,
            rows,
            waiting_tokens,
            max_wait,
            round,
            listeners,
        })
    }

    /// Tokens of prompt and answer that one request may have.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// What the engine did and has to do.
    pub fn stats(&self) -> EngineStats {
        let stats = lock(&self.stats).clone();
        // Those that the engine has not looked at yet wait as well.
        let waiting = self.taken.load(Relaxed).saturating_sub(stats.running);
        EngineStats { waiting, ..stats }
    }

    /// Ids of the model's vocabulary are below this number.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Whether the engine's thread is there; without it all requests are refused. It ends by [`Engine::stop`], and where its device is lost.
    pub fn is_running(&self) -> bool {
        !self.round.last.load(Relaxed) && self.thread.as_ref().is_some_and(|t| !t.is_finished())
    }

    /// How long the engine has been busy with one round of its work, a step or two; zero while it has none. Where this grows to seconds, the device hangs.
    pub fn in_round(&self) -> Duration {
        self.round.time()
    }

    /// Whether the engine has been in its round for longer than `limit`, and for ten times as long as in any before.
    pub fn is_stuck(&self, limit: Duration) -> bool {
        let longest = Duration::from_millis(self.round.longest.load(Relaxed));
        self.is_running() && self.in_round() > limit.max(10 * longest)
    }

    /// Ends all requests, each with [`Event::Failed`] for this reason, and takes no more; does not wait for the engine's thread, not even where this is dropped:
    /// for an engine that is stuck. Its thread ends when its step does.
    pub fn give_up(&self, reason: &TensorError) {
        self.round.last.store(true, Relaxed);
        self.round.given_up.store(true, Relaxed);
        self.listeners.fail_all(reason);
    }

    /// Ends all requests, each with [`Event::Failed`], and takes no more. Does not wait.
    pub fn stop(&self) {
        let _ = lock(&self.door).sender.send(Message::Stop);
    }

    /// Takes a request; its events come as the engine goes on.
    ///
    /// # Errors
    /// [`Refusal`]: the prompt is too long or wrong, or too many requests wait, or it would wait too long.
    ///
    /// ```
    /// use tensorlogic::models::{self, Weights};
    /// use tensorlogic::serving::{Engine, EngineOptions, Event, Refusal, Request};
    /// use tensorlogic::Device;
    ///
    /// # let model = models::load(&Weights::open("models/tiny/tiny.gguf", &Device::cpu())?, None)?;
    /// # let engine = Engine::start(model, &Device::cpu(), EngineOptions { rows: 1, context: Some(128), ..Default::default() })?;
    /// let answer = engine.submit(Request::new(&[5, 6, 7], 4))?;
    /// assert_eq!(answer.filter(|event| matches!(event, Event::Token(_))).count(), 4);
    /// assert!(matches!(engine.submit(Request::new(&[], 4)), Err(Refusal::Invalid(_)))); // nothing to go on from
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn submit(&self, request: Request) -> Result<Answer, Refusal> {
        let (events, receiver) = channel();
        // Whoever does not listen has dropped the answer, which cancels it.
        let handle = self.submit_to(request, move |event| drop(events.send(event)))?;
        Ok(Answer { handle, events: receiver, done: false })
    }

    /// Takes a request whose events go to `listener`, which is called on the engine's thread and must not block. It is dropped behind the last event, and without
    /// one where the request is cancelled or the engine's thread ends.
    ///
    /// # Errors
    /// Those of [`Engine::submit`].
    ///
    /// ```
    /// use tensorlogic::models::{self, Weights};
    /// use tensorlogic::serving::{Engine, EngineOptions, Event, Request};
    /// use tensorlogic::Device;
    ///
    /// # let file = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny/tiny.gguf");
    /// # let model = models::load(&Weights::open(file, &Device::cpu())?, None)?;
    /// # let engine = Engine::start(model, &Device::cpu(), EngineOptions { rows: 2, context: Some(128), ..Default::default() })?;
    /// let (sender, events) = std::sync::mpsc::channel();
    /// let handle = engine.submit_to(Request::new(&[5, 6, 7], 8), move |event| drop(sender.send(event)))?;
    /// assert_eq!(events.iter().filter(|e| matches!(e, Event::Token(_))).count(), 8);
    /// drop(handle); // earlier, this would have cancelled the request
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn submit_to(&self, request: Request, listener: impl FnMut(Event) + Send + 'static) -> Result<RequestHandle, Refusal> {
        let invalid = |what: String| Err(Refusal::Invalid(TensorError::Value(what)));
        request.sampling.check().map_err(Refusal::Invalid)?;
        if request.prompt.is_empty() {
            return invalid("the prompt is empty; give at least one token".into());
        }
        if request.max_tokens == 0 {
            return invalid("max_tokens is 0; an answer has at least one token".into());
        }
        if let Some(t) = request.prompt.iter().find(|&&t| t as usize >= self.vocab) {
            return invalid(format!("token {t} is not in the vocabulary of {}", self.vocab));
        }
        if let Some((t, _)) = request.sampling.bias.iter().find(|(t, _)| *t as usize >= self.vocab) {
            return invalid(format!("the bias is for token {t}, which is not in the vocabulary of {}", self.vocab));
        }
        if let Some(n) = request.logprobs.filter(|&n| n > Request::MAX_LOGPROBS) {
            return invalid(format!("log-probabilities of {n} tokens; at most {} are given", Request::MAX_LOGPROBS));
        }
        if request.prompt.len() + 1 > self.longest {
            return Err(Refusal::TooLong { prompt: request.prompt.len(), longest: self.longest });
        }
        let cached = Arc::new(AtomicUsize::new(0));
        if self.round.last.load(Relaxed) {
            return Err(Refusal::Stopped);
        }
        let waiting = Waiting::of(&request);
        let mut door = lock(&self.door);
        if self.taken.load(Relaxed) >= self.most {
            return Err(Refusal::QueueFull);
        }
        let now = Instant::now();
        let mut queue = lock(&self.queue);
        // Where a row is free, its prompt is read next.
        let waits = self.taken.load(Relaxed) >= self.rows;
        if waits && queue.is_full(waiting, self.waiting_tokens) {
            return Err(Refusal::QueueFull);
        }
        let expected = queue.expected_wait(now);
        if let Some(limit) = self.max_wait.filter(|limit| expected > *limit) {
            return Err(Refusal::WaitTooLong { expected, limit });
        }
        queue.enter(waiting);
        drop(queue);
        self.taken.fetch_add(1, Relaxed);
        // Numbers and messages are in one order.
        door.next += 1;
        let id = door.next;
        self.listeners.add(id, Box::new(listener));
        let sent = door.sender.send(Message::Submit(id, Box::new(request), waiting, cached.clone(), now));
        drop(door);
        // It may have ended since.
        if sent.is_err() || self.round.last.load(Relaxed) {
            self.listeners.remove(id);
            lock(&self.queue).leave(waiting);
            self.taken.fetch_sub(1, Relaxed);
            return Err(Refusal::Stopped);
        }
        Ok(RequestHandle { id, door: self.door.clone(), cached })
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop();
        let Some(thread) = self.thread.take() else { return };
        while !thread.is_finished() {
            // One that hangs is left behind.
            if self.round.given_up.load(Relaxed) || self.round.time() > LEFT_BEHIND {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = thread.join();
    }
}
