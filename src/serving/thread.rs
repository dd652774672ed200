//! The engine's thread: it owns model and device, and goes from step to step.

use super::adjust::{Adjust, log_probs};
use super::door::{Message, lock};
use super::limited::{Limited, Next};
use super::listeners::Listeners;
use super::lookup::Lookup;
use super::options::EngineOptions;
use super::pages::PAGE;
use super::queue::{Queue, Waiting};
use super::request::{Event, FinishReason, Request, Sampling, Usage};
use super::round::Round;
use super::scheduler::{Chunk, Full, HeldBack, Limits, RowId, Scheduler, Submission, Work};
use super::stats::EngineStats;
use super::steps::{Begun, ChoiceInput, Chosen, RowInput, Steps};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::eval::Download;
use crate::models::Model;
use crate::models::paged::PagedCache;
use crate::models::sampler::{NAN_TOKEN, nan_error};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Output tokens for which there must be room before a request begins.
const RESERVED_OUTPUT_TOKENS: usize = 256;

/// A request that the engine works on.
struct Live {
    /// Where others find how much of its prompt was cached.
    cached: Arc<AtomicUsize>,
    /// When it was submitted, until its prompt begins to be read.
    asked: Option<Instant>,
    waiting: Waiting,
    sampling: Sampling,
    adjust: Option<Adjust>,
    limits: Option<Limited>,
    logprobs: Option<usize>,
    ends: Vec<u32>,
    prompt: usize,
    written: usize,
    /// What its text makes one expect, where drafts are checked.
    lookup: Option<Lookup>,
}

impl Live {
    /// Whether several of its tokens can be chosen at once.
    fn can_be_drafted(&self) -> bool {
        self.limits.is_none() && self.adjust.is_none() && self.logprobs.is_none()
    }
}

/// A step that checks drafts: rows and tokens of each, and how much longer it takes than a step that writes.
#[derive(Clone, Copy)]
struct CheckStep {
    shape: [usize; 2],
    cost: f64,
}

/// Rows that are written at once at most where drafts are checked: with more, a step computes as much as it can.
const CHECKED_ROWS: usize = 4;
/// The shapes in which drafts are checked.
const CHECKS: [[usize; 2]; 4] = [[1, 4], [1, 8], [2, 4], [CHECKED_ROWS, 4]];

/// Tokens on their way to the host, one for each of these rows; false for one whose prompt goes on.
struct Flight {
    rows: Vec<(RowId, bool)>,
    chosen: Chosen,
    begun: Instant,
    /// Whether it reads prompts.
    reads: bool,
}

/// What the engine's thread shares with whoever has the engine.
pub(super) struct Common {
    pub stats: Arc<Mutex<EngineStats>>,
    /// Requests that were taken and have not ended.
    pub taken: Arc<AtomicUsize>,
    pub queue: Arc<Mutex<Queue>>,
    pub round: Arc<Round>,
    pub listeners: Listeners,
}

/// What the engine's thread has.
pub(super) struct Core {
    steps: Steps,
    scheduler: Scheduler,
    /// Steps that check drafts; none where drafts are not used.
    checks: Vec<CheckStep>,
    /// How much faster checking must be, as expected.
    min_gain: f64,
    live: HashMap<RowId, Live>,
    flight: VecDeque<Flight>,
    /// Steps that are submitted before the tokens of one are read.
    ahead: usize,
    own: EngineStats,
    shared: Common,
    vocab: usize,
    max_wait: Option<Duration>,
    /// When the last tokens came.
    arrived: Instant,
    /// Steps behind which the engine hangs, to try out what is done then.
    stall: Option<u64>,
}

impl Core {
    pub fn new(model: Arc<dyn Model>, device: &Device, options: &EngineOptions, shared: Common) -> TensorResult<Core> {
        let shape = model.shape();
        let possible = model.rereads_beyond().unwrap_or(usize::MAX).min(shape.context);
        let context = options.context.unwrap_or(possible);
        if context < 2 || context > possible {
            return Err(TensorError::Config(format!("a context of {context} tokens; the model supports 2 to {possible}")));
        }
        if options.rows == 0 || options.waiting == 0 || options.chunk == Some(0) {
            return Err(TensorError::Config("an engine needs at least one row, one place to wait and one token a chunk".into()));
        }
        let row_pages = context.div_ceil(PAGE);
        let most = row_pages.saturating_mul(options.rows);
        let elements = 2 * shape.kv_heads * PAGE * shape.head_dim;
        let room = (options.kv_bytes / PagedCache::page_bytes(&shape).max(1)).min(u32::MAX as usize / elements.max(1) - 1);
        let pages = room.max(row_pages).min(most);
        let (widths, shapes) = shapes(options, device, context);
        let checks: Vec<[usize; 2]> =
            CHECKS.into_iter().filter(|&[rows, _]| options.lookup.is_some() && !options.deterministic && rows <= options.rows).collect();
        let min_gain = options.lookup.unwrap_or(f64::INFINITY);
        let chosen = widths.iter().copied().chain(shapes.iter().map(|s| s[0])).chain(checks.iter().map(|[r, t]| r * t));
        let rows = chosen.max().unwrap_or(1);
        let widest = shapes.iter().chain(&checks).map(|shape| shape[1]).max().unwrap_or(0);
        let mut steps = Steps::new(model, device, pages + 1, rows, (context + widest).div_ceil(PAGE))?;
        widths.iter().try_for_each(|&w| steps.prepare_write(w))?;
        let (mut widest, mut timed) = (0, Vec::new());
        for &shape in &shapes {
            steps.prepare_read(shape)?;
            // One shape is there in any case; what comes behind is larger.
            let time = steps.time_read(shape)?;
            if widest > 0 && !options.deterministic && time > options.itl_budget {
                steps.drop_read(shape);
                continue;
            }
            shared.round.longest.fetch_max(time.as_millis() as u64, Relaxed);
            widest = widest.max(shape[1]);
            timed.push((shape, time));
        }
        let mut measured = Vec::new();
        for shape in checks {
            steps.prepare_check(shape)?;
            let cost = steps.time_check(shape)?;
            // With every token right there must be something to gain.
            match cost * min_gain < shape[1] as f64 {
                true => measured.push(CheckStep { shape, cost }),
                false => steps.drop_check(shape),
            }
        }
        // Chunks of a prompt that goes on behind a prefix are those that it would have without.
        let chunk = shapes.first().map_or(1, |s| s[1]);
        let chunk_pages = (1..=chunk).find(|n| (n * PAGE).is_multiple_of(chunk)).unwrap_or(chunk);
        let limits = Limits {
            rows: options.rows,
            waiting: usize::MAX,
            pages,
            context,
            shapes: timed,
            between_writes: options.itl_budget,
            reserve: (!options.deterministic).then_some(RESERVED_OUTPUT_TOKENS),
            prefix_pages: if options.deterministic { chunk_pages } else { 1 },
            share_written: !options.deterministic,
        };
        let ahead = usize::from(device.capabilities().queue);
        let scheduler = Scheduler::new(limits);
        let (live, flight, own) = (HashMap::new(), VecDeque::new(), EngineStats::default());
        let checks = measured;
        let core = Core {
            steps,
            scheduler,
            checks,
            min_gain,
            live,
            flight,
            ahead,
            own,
            shared,
            vocab: shape.vocab,
            max_wait: options.max_wait,
            arrived: Instant::now(),
            stall: steps_until_stall(),
        };
        core.publish();
        Ok(core)
    }

    /// Tokens of prompt and answer that one request may have.
    pub fn longest(&self) -> usize {
        self.scheduler.longest()
    }

    /// Shows others the state.
    fn publish(&self) {
        let ([running, _], pages) = (self.scheduler.counts(), self.scheduler.page_counts());
        *lock(&self.shared.stats) = EngineStats {
            running,
            pages: pages.total,
            pages_available: pages.available,
            pages_cached: pages.cached,
            put_back: self.scheduler.times_returned(),
            ..self.own.clone()
        };
    }

    pub fn run(mut self, messages: &Receiver<Message>) {
        let stopped = TensorError::State("the engine has stopped".into());
        let reason = self.serve(messages).unwrap_or(stopped);
        self.shared.round.last.store(true, Relaxed);
        self.fail_all(&reason);
        // Those that were not looked at.
        self.shared.listeners.fail_all(&reason);
    }

    /// Works until it is to stop, or the device is lost: that error is given.
    fn serve(&mut self, messages: &Receiver<Message>) -> Option<TensorError> {
        let mut idle = false;
        loop {
            let mut cancelled = 0;
            loop {
                let message = if idle { messages.recv().ok() } else { messages.try_recv().ok() };
                idle = false;
                match message {
                    Some(Message::Submit(id, request, waiting, cached, asked)) => self.submit(id, *request, waiting, cached, asked),
                    Some(Message::Cancel(id)) => {
                        if let Some(live) = self.live.remove(&id) {
                            self.leave_queue(&live);
                            cancelled += 1;
                        }
                        self.shared.listeners.remove(id);
                        self.scheduler.end(id, true);
                    }
                    Some(Message::Stop) => return None,
                    None => break,
                }
            }
            self.shared.round.begin();
            if self.stall.is_some_and(|steps| self.own.read_steps + self.own.write_steps >= steps) {
                while !self.shared.round.given_up.load(Relaxed) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                return None;
            }
            // A panic ends what runs, as an error of the device does, and not the engine.
            match catch_unwind(AssertUnwindSafe(|| self.step())) {
                Ok(Ok(busy)) => idle = !busy,
                // Whoever has the engine can open the device anew.
                Ok(Err(e @ TensorError::DeviceLost(_))) => return Some(e),
                Ok(Err(e)) => self.fail_all(&e),
                Err(_) => self.fail_all(&TensorError::Internal("a step of the engine panicked".into())),
            }
            self.shared.round.end();
            if self.shared.round.given_up.load(Relaxed) {
                return None;
            }
            self.own.cancelled += cancelled as u64;
            self.publish();
            self.shared.taken.fetch_sub(cancelled, Relaxed);
        }
    }

    fn submit(&mut self, id: RowId, request: Request, waiting: Waiting, cached: Arc<AtomicUsize>, asked: Instant) {
        let Request { prompt, max_tokens, sampling, ends, logprobs, constraint, cache_name } = request;
        let adjust = Adjust::of(&sampling, &prompt);
        let limits = constraint.map(|c| Limited::new(c, self.vocab));
        let lookup = (!self.checks.is_empty()).then(|| Lookup::new(&prompt));
        let (asked, written) = (Some(asked), 0);
        let live = Live { cached, asked, waiting, sampling, adjust, limits, logprobs, ends, prompt: prompt.len(), written, lookup };
        match self.scheduler.submit(Submission { id, prompt, most: max_tokens, name: cache_name }) {
            Ok(()) => {
                self.live.insert(id, live);
            }
            Err(Full::TooLong | Full::Waiting) => {
                self.leave_queue(&live);
                self.shared.taken.fetch_sub(1, Relaxed);
                self.shared.listeners.end(id, Event::Failed(TensorError::State("out of pages for the request".into())));
            }
        }
    }

    /// One round; false if there is nothing to do.
    fn step(&mut self) -> TensorResult<bool> {
        if self.ahead == 0 && self.choices_look_back() {
            // The next choice depends on tokens that are on their way.
            self.arrive_all()?;
            self.limit();
        } else if !self.flight.is_empty() && self.check_of(&self.scheduler.writing()).is_some() {
            // What is behind the last token can be guessed where the last token is known.
            self.arrive_all()?;
        }
        let work = self.scheduler.next(!self.flight.is_empty());
        self.end_late(&work);
        let done = match &work {
            Work::Idle => return Ok(false),
            Work::Wait => self.arrive(),
            Work::Read(shape, chunks) => self.read(*shape, chunks),
            Work::Write(rows) => match self.check_of(rows).filter(|_| self.flight.is_empty()) {
                Some(shape) => self.check(shape, rows),
                None => self.write(rows),
            },
        };
        match done {
            Ok(()) => {}
            Err(e @ TensorError::OutOfMemory { .. }) => {
                // What is under way was given out before.
                self.arrive_all()?;
                self.scheduler.undo(&work);
                self.give_way(&e);
            }
            Err(e) => return Err(e),
        }
        let ahead = if matches!(work, Work::Write(_)) { self.ahead } else { 0 };
        while self.flight.len() > ahead {
            self.arrive()?;
        }
        Ok(true)
    }

    /// Whether the next choice of a request depends on its tokens, all of which must have arrived.
    fn choices_look_back(&self) -> bool {
        self.live.values().any(|l| l.limits.is_some() || l.adjust.as_ref().is_some_and(Adjust::looks_back))
    }

    /// Chooses the next token of each row whose prompt is read to its end. While the device computes the logits, earlier tokens arrive if a choice depends on
    /// them, and masks are computed. `None` if tokens were lost because memory ran out: the rows are then read again.
    fn choose(&mut self, step: &Begun, rows: &[(RowId, bool)]) -> TensorResult<Option<Chosen>> {
        if self.ahead > 0 && self.choices_look_back() {
            let returned = self.scheduler.times_returned();
            self.arrive_all()?;
            if self.scheduler.times_returned() != returned {
                self.read_again(rows.iter().map(|row| row.0), &TensorError::State("tokens were lost for want of memory".into()));
                return Ok(None);
            }
            self.limit();
        }
        let input = |(id, ends): &(RowId, bool)| {
            self.live.get(id).filter(|_| *ends).map_or(ChoiceInput::default(), |l| ChoiceInput {
                adjust: l.adjust.as_ref(),
                allowed: l.limits.as_ref().map(|limits| &limits.allowed[..]),
                scored: l.logprobs.is_some(),
            })
        };
        let inputs: Vec<ChoiceInput<'_>> = rows.iter().map(input).collect();
        self.steps.choose(step, &inputs).map(Some)
    }

    /// Memory is short: the newest row waits until another has ended, or ends where none could go on instead.
    fn give_way(&mut self, e: &TensorError) {
        match self.scheduler.hold_back() {
            HeldBack::Ends(id) => self.finish(id, Err(e.clone())),
            HeldBack::Waits | HeldBack::Nobody => {}
        }
    }

    fn arrive_all(&mut self) -> TensorResult<()> {
        while !self.flight.is_empty() {
            self.arrive()?;
        }
        Ok(())
    }

    /// Finds the tokens that may come next where requests limit them, and ends those that are at their end, or wrong.
    fn limit(&mut self) {
        let look = |(&id, live): (&RowId, &mut Live)| {
            let limits = live.limits.as_mut().filter(|l| l.stale)?;
            match limits.look(&live.ends) {
                Ok(Next::Open) => None,
                Ok(Next::End) => Some((id, Ok(FinishReason::Stop))),
                Err(e) => Some((id, Err(e))),
            }
        };
        let ended: Vec<_> = self.live.iter_mut().filter_map(look).collect();
        ended.into_iter().for_each(|(id, how)| self.finish(id, how));
    }

    /// The shape in which drafts of these rows are best checked, where that is faster than to write a token for each.
    fn check_of(&self, rows: &[RowId]) -> Option<[usize; 2]> {
        if self.checks.is_empty() || rows.is_empty() || rows.len() > CHECKED_ROWS {
            return None;
        }
        let lookups = rows.iter().map(|id| self.live.get(id).filter(|l| l.can_be_drafted())?.lookup.as_ref());
        let lookups: Vec<&Lookup> = lookups.collect::<Option<_>>()?;
        let longest = rows.iter().map(|&id| self.scheduler.tokens(id).len()).max()?;
        let height = self.checks.iter().map(|c| c.shape[0]).filter(|&height| height >= rows.len()).min()?;
        let possible = self.checks.iter().filter(|c| c.shape[0] == height && longest + c.shape[1] <= self.scheduler.longest());
        let gain = |c: &CheckStep| {
            let hits: f64 = lookups.iter().map(|l| l.expected_hits(c.shape[1] - 1)).sum();
            (1.0 + hits / lookups.len() as f64) / c.cost
        };
        let (best, gain) = possible.map(|c| (c.shape, gain(c))).max_by(|a, b| a.1.total_cmp(&b.1))?;
        (lookups.iter().any(|l| l.expects()) && gain > self.min_gain).then_some(best)
    }

    /// Reads each row's last token and a draft of those behind it, and writes what the model chooses, as far as the draft was right and one token further.
    fn check(&mut self, shape: [usize; 2], rows: &[RowId]) -> TensorResult<()> {
        let none = Sampling::default();
        let mut own: Vec<(Vec<u32>, Vec<u32>)> = Vec::with_capacity(rows.len());
        for &id in rows {
            let room = self.scheduler.extend(id, shape[1] - 1);
            let tokens = self.scheduler.tokens(id);
            let draft = self.live.get(&id).and_then(|l| l.lookup.as_ref()).map_or(Vec::new(), |l| l.draft(tokens, room));
            let read = tokens.last().copied().into_iter().chain(draft).collect();
            own.push((read, self.scheduler.pages(id).collect()));
        }
        let inputs = rows.iter().zip(&own).map(|(id, (tokens, pages))| {
            let live = self.live.get(id);
            let start = self.scheduler.read_tokens(*id).saturating_sub(1);
            let draws = live.map_or(0, |l| (start + 1 - l.prompt) as u32);
            RowInput { tokens, from: None, start, pages, draws, sampling: live.map_or(&none, |l| &l.sampling) }
        });
        let inputs: Vec<RowInput<'_>> = inputs.collect();
        let begun = Instant::now();
        let chosen = self.steps.check(shape, &inputs)?.wait::<i32>()?;
        self.own.check_time.observe(begun.elapsed().as_secs_f64());
        self.own.check_steps += 1;
        for ((&id, (read, _)), chosen) in rows.iter().zip(&own).zip(chosen.chunks(shape[1])) {
            self.own.drafted_tokens += read.len() as u64 - 1;
            for (n, &token) in chosen.iter().enumerate() {
                // The token before it was the draft's.
                if n > 0 {
                    self.scheduler.advance(id);
                    self.own.accepted_tokens += 1;
                }
                if !self.deliver(id, token, &[]) || read.get(n + 1) != Some(&(token as u32)) {
                    break;
                }
            }
        }
        Ok(())
    }

    fn read(&mut self, shape: [usize; 2], chunks: &[Chunk]) -> TensorResult<()> {
        let none = Sampling::default();
        let own: Vec<(Vec<u32>, Vec<u32>)> = chunks.iter().map(|c| self.texts(c.row, c.start, c.len)).collect();
        let inputs = chunks.iter().zip(&own).map(|(c, (tokens, pages))| {
            let live = self.live.get(&c.row).filter(|_| c.ends);
            let draws = live.map_or(0, |l| (c.start + c.len - l.prompt) as u32);
            RowInput { tokens, from: None, start: c.start, pages, draws, sampling: live.map_or(&none, |l| &l.sampling) }
        });
        let inputs: Vec<RowInput<'_>> = inputs.collect();
        let begun = Instant::now();
        let step = self.steps.begin_read(shape, &inputs)?;
        let rows: Vec<(RowId, bool)> = chunks.iter().map(|c| (c.row, c.ends)).collect();
        let Some(chosen) = self.choose(&step, &rows)? else { return Ok(()) };
        for chunk in chunks {
            let Some(live) = self.live.get_mut(&chunk.row) else { continue };
            let Some(asked) = live.asked.take() else { continue };
            lock(&self.shared.queue).begin(live.waiting, begun);
            self.own.queue_time.observe(begun.saturating_duration_since(asked).as_secs_f64());
        }
        self.own.read_steps += 1;
        self.own.read_tokens += chunks.iter().map(|c| c.len as u64).sum::<u64>();
        self.flight.push_back(Flight { rows, chosen, begun, reads: true });
        Ok(())
    }

    fn write(&mut self, rows: &[RowId]) -> TensorResult<()> {
        let none = Sampling::default();
        let places: HashMap<RowId, usize> = match self.flight.back() {
            Some(f) => f.rows.iter().enumerate().filter(|(_, (_, ends))| *ends).map(|(n, &(id, _))| (id, n)).collect(),
            None => HashMap::new(),
        };
        let starts: Vec<usize> = rows.iter().map(|&id| self.scheduler.read_tokens(id).saturating_sub(1)).collect();
        let own: Vec<(Vec<u32>, Vec<u32>)> = rows.iter().zip(&starts).map(|(&id, &start)| self.texts(id, start, 1)).collect();
        let inputs = rows.iter().zip(&own).zip(&starts).map(|((id, (tokens, pages)), &start)| {
            let live = self.live.get(id);
            let from = places.get(id).copied().filter(|_| tokens.is_empty());
            let draws = live.map_or(0, |l| (start + 1 - l.prompt) as u32);
            RowInput { tokens, from, start, pages, draws, sampling: live.map_or(&none, |l| &l.sampling) }
        });
        let inputs: Vec<RowInput<'_>> = inputs.collect();
        let begun = Instant::now();
        let step = self.steps.begin_write(&inputs)?;
        let rows: Vec<(RowId, bool)> = rows.iter().map(|&id| (id, true)).collect();
        let Some(chosen) = self.choose(&step, &rows)? else { return Ok(()) };
        self.own.batch_size.observe(rows.len() as f64);
        self.own.write_steps += 1;
        self.flight.push_back(Flight { rows, chosen, begun, reads: false });
        Ok(())
    }

    /// The tokens of a row from `start` on, as far as they are known, and its pages.
    fn texts(&self, id: RowId, start: usize, len: usize) -> (Vec<u32>, Vec<u32>) {
        let tokens = (start..start + len).map_while(|at| self.scheduler.token(id, at)).collect();
        (tokens, self.scheduler.pages(id).collect())
    }

    /// Waits for the tokens of the oldest step and delivers them. Where there is no memory for them, the step's rows are read again.
    fn arrive(&mut self) -> TensorResult<()> {
        let Some(Flight { rows, chosen, begun, reads }) = self.flight.pop_front() else { return Ok(()) };
        let numbers = chosen.tokens.wait::<i32>().and_then(|tokens| {
            let logits = chosen.logits.map(|(copy, dtype)| floats(copy, dtype)).transpose()?;
            Ok((tokens, logits.unwrap_or_default()))
        });
        let (tokens, logits) = match numbers {
            Err(e @ TensorError::OutOfMemory { .. }) => {
                self.lose(&rows, &e);
                return Ok(());
            }
            numbers => numbers?,
        };
        let (before, now) = (self.arrived, Instant::now());
        self.arrived = now;
        let time = now.saturating_duration_since(begun.max(before)).as_secs_f64();
        let times = if reads { &mut self.own.read_time } else { &mut self.own.write_time };
        times.observe(time);
        let vocab = logits.len() / rows.len().max(1);
        for (place, ((id, ends), token)) in rows.into_iter().zip(tokens).enumerate() {
            if ends {
                self.deliver(id, token, logits.get(place * vocab..(place + 1) * vocab).unwrap_or_default());
            }
        }
        Ok(())
    }

    /// The tokens of a step are lost for want of memory: with those of the steps behind it, which read them.
    fn lose(&mut self, rows: &[(RowId, bool)], e: &TensorError) {
        let behind = std::mem::take(&mut self.flight);
        let lost: BTreeSet<RowId> = rows.iter().chain(behind.iter().flat_map(|f| &f.rows)).map(|(id, _)| *id).collect();
        self.give_way(e);
        self.read_again(lost, e);
    }

    /// Puts rows back, to read their tokens again; those that cannot end with this error.
    fn read_again(&mut self, rows: impl IntoIterator<Item = RowId>, e: &TensorError) {
        for id in rows {
            match self.scheduler.can_be_read_again(id) {
                true => self.scheduler.put_back(id),
                false => self.finish(id, Err(e.clone())),
            }
        }
    }

    /// Gives out a token that was chosen for a row, by these logits; false where the row has ended. What panics here is the row's own.
    fn deliver(&mut self, id: RowId, token: i32, logits: &[f32]) -> bool {
        let delivered = catch_unwind(AssertUnwindSafe(|| self.deliver_token(id, token, logits)));
        delivered.unwrap_or_else(|_| {
            self.finish(id, Err(TensorError::Internal("what hears the answer panicked".into())));
            false
        })
    }

    fn deliver_token(&mut self, id: RowId, token: i32, logits: &[f32]) -> bool {
        let Some(live) = self.live.get_mut(&id) else { return false };
        if token == NAN_TOKEN {
            self.finish(id, Err(nan_error()));
            return false;
        }
        let token = token as u32;
        let cached = self.scheduler.cached_tokens(id);
        if live.ends.contains(&token) {
            self.finish(id, Ok(FinishReason::Stop));
            return false;
        }
        if let Some(Err(e)) = live.limits.as_mut().map(|l| l.wrote(token)) {
            self.finish(id, Err(e));
            return false;
        }
        self.scheduler.wrote(id, token);
        live.written += 1;
        if live.written == 1 {
            self.own.cached_tokens += cached as u64;
            live.cached.store(cached, Relaxed);
        }
        self.own.written_tokens += 1;
        if let Some(adjust) = &mut live.adjust {
            adjust.wrote(token);
        }
        if let Some(lookup) = &mut live.lookup {
            lookup.wrote(self.scheduler.tokens(id));
        }
        if let Some(count) = live.logprobs {
            self.shared.listeners.tell(id, Event::LogProbs(log_probs(logits, token, count)));
        }
        self.shared.listeners.tell(id, Event::Token(token));
        if self.scheduler.is_complete(id) {
            self.finish(id, Ok(FinishReason::Length));
            return false;
        }
        true
    }

    /// Ends a row and says why.
    fn finish(&mut self, id: RowId, how: TensorResult<FinishReason>) {
        let cached = self.scheduler.cached_tokens(id);
        self.scheduler.end(id, how.is_ok());
        let Some(live) = self.live.remove(&id) else { return };
        self.leave_queue(&live);
        self.shared.taken.fetch_sub(1, Relaxed);
        let usage = Usage { prompt: live.prompt, cached, written: live.written };
        self.shared.listeners.end(id, how.map_or_else(Event::Failed, |reason| Event::Finished(reason, usage)));
    }

    /// A request ends that may not have begun.
    fn leave_queue(&self, live: &Live) {
        if live.asked.is_some() {
            lock(&self.shared.queue).leave(live.waiting);
        }
    }

    /// Ends requests that have waited too long for their prompts to be read, whether they have a row or not, except those that `work` reads.
    fn end_late(&mut self, work: &Work) {
        let Some(limit) = self.max_wait else { return };
        let now = Instant::now();
        let is_read = |id: RowId| matches!(work, Work::Read(_, chunks) if chunks.iter().any(|chunk| chunk.row == id));
        // Those that are to be read again have begun.
        let is_late = |live: &Live| live.asked.is_some_and(|at| now.saturating_duration_since(at) > limit);
        let late: Vec<RowId> = self.live.iter().filter(|(id, live)| is_late(live) && !is_read(**id)).map(|(id, _)| *id).collect();
        for id in late {
            let m = format!("the request has waited for {:.0} s, as long as it may; try again later", limit.as_secs_f64());
            self.finish(id, Err(TensorError::State(m)));
        }
    }

    fn fail_all(&mut self, e: &TensorError) {
        self.flight.clear();
        for id in self.scheduler.ids() {
            self.finish(id, Err(e.clone()));
        }
    }
}

/// What `TL_TEST_STALL_AFTER` says, steps for every engine of the process or `STEPS:ENGINES` for so many of them.
fn steps_until_stall() -> Option<u64> {
    static ENGINES: AtomicUsize = AtomicUsize::new(0);
    let value = std::env::var("TL_TEST_STALL_AFTER").ok()?;
    let (steps, engines) = value.split_once(':').map_or((&*value, usize::MAX), |(s, e)| (s, e.parse().unwrap_or(0)));
    steps.parse().ok().filter(|_| ENGINES.fetch_add(1, Relaxed) < engines)
}

/// Waits for numbers of this type.
fn floats(copy: Download, dtype: DType) -> TensorResult<Vec<f32>> {
    match dtype {
        DType::F16 => Ok(copy.wait::<half::f16>()?.into_iter().map(half::f16::to_f32).collect()),
        DType::BF16 => Ok(copy.wait::<half::bf16>()?.into_iter().map(half::bf16::to_f32).collect()),
        _ => copy.wait::<f32>(),
    }
}

/// The widths of steps that write, and the shapes of those that read, the smallest first.
fn shapes(options: &EngineOptions, device: &Device, context: usize) -> (Vec<usize>, Vec<[usize; 2]>) {
    let host = device.capabilities().host_memory;
    let chunk = options.chunk.unwrap_or(if host { 64 } else { 512 }).min(context.next_power_of_two());
    if options.deterministic {
        // Short prompts share a step, and the parts of a long one do.
        let height = (chunk / PAGE).clamp(1, options.rows);
        let width = if chunk > PAGE { chunk / PAGE / height * PAGE } else { chunk };
        return (vec![options.rows], vec![[height, width]]);
    }
    let powers = |most: usize| {
        let mut all: Vec<usize> = (0..usize::BITS).map(|n| 1 << n).take_while(|&n| n < most).collect();
        all.push(most);
        all
    };
    // Where few tokens take as long as many, several prompts are read together.
    let together = if host { chunk } else { chunk.max(2048) };
    let widths = [16, 64, 256, 1024, 4096].into_iter().filter(|&c| c < chunk).chain([chunk]);
    let reads = widths.flat_map(|c| [1, 2, 4, 8, 16, 32].into_iter().filter(move |&r| r == 1 || (r * c <= together)).map(move |r| [r, c]));
    (powers(options.rows), reads.filter(|&[r, _]| r <= options.rows).collect())
}
