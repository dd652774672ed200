//! The steps of an engine on its device: for each shape one that was prepared, over tensors that are overwritten between runs.

use super::adjust::Adjust;
use super::choose::{Choice, settings, stream};
use super::pages::PAGE;
use super::request::Sampling;
use crate::backends::Bytes;
use crate::device::Device;
use crate::dtype::{DType, Element};
use crate::error::{TensorError, TensorResult};
use crate::eval::{Download, PreparedStep, download_first};
use crate::models::paged::PagedCache;
use crate::models::{KvCache, Model, Pass};
use crate::ops::cutoff::SETTINGS;
use crate::plan::StorageMode;
use crate::tensor::Tensor;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a row gives to a step.
pub(super) struct RowInput<'a> {
    /// The tokens that are read; one in a step that writes, unless it is under way.
    pub tokens: &'a [u32],
    /// The row's place in the step before, whose token is the one to read.
    pub from: Option<usize>,
    /// The first token's position.
    pub start: usize,
    pub pages: &'a [u32],
    /// How many tokens the row has drawn.
    pub draws: u32,
    pub sampling: &'a Sampling,
}

/// What the choice of a row's next token depends on besides its [`Sampling`].
#[derive(Clone, Copy, Default)]
pub(super) struct ChoiceInput<'a> {
    /// Changes of its logits.
    pub adjust: Option<&'a Adjust>,
    /// The tokens that may be chosen, as bits; `None`: all.
    pub allowed: Option<&'a [u32]>,
    /// Whether its logits are wanted.
    pub scored: bool,
}

/// The submitted part of a step that gives logits.
pub(super) struct Begun {
    width: usize,
    choice: Choice,
    logits: Tensor,
}

/// What a step gives, on its way to the host.
pub(super) struct Chosen {
    pub tokens: Download,
    /// The logits of all rows, where one wants its own, and the type that they have.
    pub logits: Option<(Download, DType)>,
}

/// Numbers on the device that the host overwrites.
struct Shared<T> {
    tensor: Tensor,
    host: Vec<T>,
}

impl<T: Element + PartialEq> Shared<T> {
    fn new(shape: &[usize], device: &Device) -> TensorResult<Shared<T>> {
        let host = vec![T::zeroed(); shape.iter().product()];
        // Memory of the device's own, which may be overwritten.
        let tensor = Tensor::from_bytes_in(Bytes::of_vec(host.clone()), T::DTYPE, shape, device, StorageMode::Private)?;
        Ok(Shared { tensor, host })
    }
    /// Overwrites what is there, behind all work that was submitted.
    fn set(&mut self, numbers: Vec<T>) -> TensorResult<()> {
        if numbers != self.host {
            self.tensor.copy_from_slice(&numbers)?;
            self.host = numbers;
        }
        Ok(())
    }
}

/// Numbers of a row in a step that writes: token, place in the step before, position, slot, keys.
const NUMBERS: usize = 5;

/// A step that reads prompts, with what it reads of each token (token, position, slot) and each row (keys, the last token's place).
struct ReadStep {
    step: PreparedStep,
    numbers: Shared<i32>,
    rows: Shared<i32>,
}

/// All prepared steps and their tensors.
pub(super) struct Steps {
    model: Arc<dyn Model>,
    device: Device,
    pools: Vec<Tensor>,
    numbers: Shared<i32>,
    /// Pages of each row, `[rows,pages]`.
    table: Shared<i32>,
    /// The tokens that were chosen last, i32 `[rows]`.
    last: Tensor,
    draws: Shared<u32>,
    keys: Shared<u32>,
    settings: Shared<f32>,
    writes: BTreeMap<usize, PreparedStep>,
    reads: BTreeMap<[usize; 2], ReadStep>,
    /// Steps that read tokens of rows and have the logits behind each of them.
    checks: BTreeMap<[usize; 2], ReadStep>,
    choices: HashMap<(usize, Choice), PreparedStep>,
    /// Steps that change logits by divisors and addends `[rows,V]`, which are there from the first on.
    adjusts: HashMap<usize, PreparedStep>,
    changes: Option<[Shared<f32>; 2]>,
    /// Rows of a step at most, and pages of a row.
    most: [usize; 2],
}

impl Steps {
    /// With pools of `pages` pages, for steps of up to `rows` rows. A row may reach over `row_pages` pages, what a step reads beyond its end included:
    /// attention counts back from the last position of the step.
    pub fn new(model: Arc<dyn Model>, device: &Device, pages: usize, rows: usize, row_pages: usize) -> TensorResult<Steps> {
        let pools = PagedCache::pools(&model.shape(), pages, device)?;
        Ok(Steps {
            pools,
            numbers: Shared::new(&[NUMBERS, rows], device)?,
            table: Shared::new(&[rows, row_pages], device)?,
            last: Shared::<i32>::new(&[rows], device)?.tensor,
            draws: Shared::new(&[rows, 1], device)?,
            keys: Shared::new(&[rows, 1], device)?,
            settings: Shared::new(&[rows, SETTINGS], device)?,
            writes: BTreeMap::new(),
            reads: BTreeMap::new(),
            checks: BTreeMap::new(),
            choices: HashMap::new(),
            adjusts: HashMap::new(),
            changes: None,
            most: [rows, row_pages],
            model,
            device: device.clone(),
        })
    }

    /// Logits `[rows,V]` of hidden states `[rows,1,d]` or `[rows,d]`.
    fn logits(&self, hidden: &Tensor, rows: usize) -> TensorResult<Tensor> {
        self.model.logits(hidden)?.reshape((rows, ()))
    }

    /// The hidden states of a pass over pages.
    fn forward(&mut self, tokens: &Tensor, positions: &Tensor, [slots, table, lens]: [Tensor; 3]) -> TensorResult<Tensor> {
        let mut cache = KvCache::paged(PagedCache { pools: std::mem::take(&mut self.pools), slots, table, lens });
        let mut pass = Pass::tokens(tokens);
        pass.positions = Some(positions);
        let hidden = self.model.forward(&mut pass, &mut cache);
        self.pools = cache.into_pages().map(|p| p.pools).unwrap_or_default();
        hidden
    }

    fn step_tensors(&self) -> Vec<&Tensor> {
        self.pools.iter().chain([&self.numbers.tensor, &self.table.tensor, &self.last]).collect()
    }

    /// Prepares the step that writes a token for each of `width` rows.
    pub fn prepare_write(&mut self, width: usize) -> TensorResult<()> {
        // Nothing else of the graph is left, which would hold what is written in place.
        let logits = self.write_logits(width)?;
        let step = PreparedStep::record(&logits, &self.step_tensors())?;
        self.writes.insert(width, step);
        self.prepare_adjust(width, &logits)?;
        self.prepare_choices(width, &logits)
    }

    fn write_logits(&mut self, width: usize) -> TensorResult<Tensor> {
        let row = |k: usize| self.numbers.tensor.narrow(0, k, 1)?.narrow(1, 0, width)?.reshape(width);
        let [given, from, positions, slots, lens] = [row(0)?, row(1)?, row(2)?, row(3)?, row(4)?];
        let fed = self.last.index_select(0, &from.clamp(Some(0.0), None)?)?;
        // A row without a token, after a NaN, reads any.
        let tokens = from.lt(0.0)?.where_(&given, &fed)?.clamp(Some(0.0), None)?.reshape((width, 1))?;
        let table = self.table.tensor.narrow(0, 0, width)?;
        let hidden = self.forward(&tokens, &positions.reshape((width, 1))?, [slots.reshape((width, 1))?, table, lens])?;
        self.logits(&hidden, width)
    }

    /// Prepares the step that reads up to `tokens` tokens of each of `rows` rows.
    pub fn prepare_read(&mut self, shape: [usize; 2]) -> TensorResult<()> {
        let (step, logits) = self.record_read(shape, false)?;
        self.reads.insert(shape, step);
        self.prepare_adjust(shape[0], &logits)?;
        self.prepare_choices(shape[0], &logits)
    }

    /// Prepares the step that reads up to `tokens` tokens of each of `rows` rows and chooses a token behind each.
    pub fn prepare_check(&mut self, shape: [usize; 2]) -> TensorResult<()> {
        let (step, logits) = self.record_read(shape, true)?;
        self.checks.insert(shape, step);
        self.prepare_choices(shape[0] * shape[1], &logits)
    }

    fn record_read(&mut self, shape: [usize; 2], every: bool) -> TensorResult<(ReadStep, Tensor)> {
        let [rows, tokens] = shape;
        let numbers = Shared::<i32>::new(&[3, rows, tokens], &self.device)?;
        let ends = Shared::<i32>::new(&[2, rows], &self.device)?;
        let logits = self.read_logits(shape, every, &numbers, &ends)?;
        let mut given = self.step_tensors();
        given.extend([&numbers.tensor, &ends.tensor]);
        let step = PreparedStep::record(&logits, &given)?;
        Ok((ReadStep { step, numbers, rows: ends }, logits))
    }

    /// The logits behind each token, or behind each row's last.
    fn read_logits(&mut self, [rows, tokens]: [usize; 2], every: bool, numbers: &Shared<i32>, ends: &Shared<i32>) -> TensorResult<Tensor> {
        let each = |k: usize| numbers.tensor.narrow(0, k, 1)?.squeeze(0);
        let [ids, positions, slots] = [each(0)?, each(1)?, each(2)?];
        let [lens, last] = [0, 1].map(|k| ends.tensor.narrow(0, k, 1).and_then(|t| t.squeeze(0)));
        let table = self.table.tensor.narrow(0, 0, rows)?;
        let hidden = self.forward(&ids, &positions, [slots, table, lens?])?;
        let width = hidden.dims()[2];
        let hidden = hidden.reshape(&[rows * tokens, width])?;
        if every {
            return self.logits(&hidden, rows * tokens);
        }
        self.logits(&hidden.index_select(0, &last?)?, rows)
    }

    fn prepare_choices(&mut self, width: usize, logits: &Tensor) -> TensorResult<()> {
        for choice in Choice::ALL {
            if self.choices.contains_key(&(width, choice)) {
                continue;
            }
            let part = |t: &Tensor| t.narrow(0, 0, width);
            let streams = [&part(&self.draws.tensor)?, &part(&self.keys.tensor)?];
            let tokens = choice.tokens(logits, streams, &part(&self.settings.tensor)?)?;
            // The old handle goes, so that the write happens in place.
            let old = std::mem::replace(&mut self.last, tokens.clone());
            self.last = old.write(&tokens, 0, 0)?;
            drop(old);
            let given = [&self.last, &self.draws.tensor, &self.keys.tensor, &self.settings.tensor, logits];
            let step = PreparedStep::record(&self.last, &given)?;
            self.choices.insert((width, choice), step);
        }
        Ok(())
    }

    /// Prepares the change of logits `[width,V]`, for every width once.
    fn prepare_adjust(&mut self, width: usize, logits: &Tensor) -> TensorResult<()> {
        if self.adjusts.contains_key(&width) {
            return Ok(());
        }
        let shape = [self.most[0], logits.dims()[1]];
        if self.changes.is_none() {
            self.changes = Some([Shared::new(&shape, &self.device)?, Shared::new(&shape, &self.device)?]);
        }
        let Some([divisors, addends]) = &self.changes else { return Ok(()) };
        let [d, a] = [divisors.tensor.narrow(0, 0, width)?, addends.tensor.narrow(0, 0, width)?];
        let l = logits.cast(DType::F32)?;
        let changed = l.gt(0.0)?.where_(&l.div(&d)?, &l.mul(&d)?)?.add(&a)?.cast(logits.dtype())?;
        let step = PreparedStep::record(&changed, &[logits, &divisors.tensor, &addends.tensor])?;
        self.adjusts.insert(width, step);
        Ok(())
    }

    /// The logits as the rows want them.
    fn adjust(&mut self, width: usize, rows: &[ChoiceInput<'_>], logits: &Tensor) -> TensorResult<Tensor> {
        let (step, changes) = self.adjusts.get(&width).zip(self.changes.as_mut()).ok_or_else(|| no_step("changes logits of", width))?;
        let [divisors, addends] = changes;
        let v = logits.dims()[1];
        let (mut d, mut a) = (vec![1f32; divisors.host.len()], vec![0f32; addends.host.len()]);
        for (i, row) in rows.iter().enumerate() {
            let own = i * v..(i + 1) * v;
            if let Some(adjust) = row.adjust {
                adjust.write(&mut d[own.clone()], &mut a[own.clone()]);
            }
            if let Some(allowed) = row.allowed {
                forbid(allowed, &mut a[own]);
            }
        }
        divisors.set(d)?;
        addends.set(a)?;
        step.run(&[logits, &divisors.tensor, &addends.tensor])?.ok_or_else(|| no_step("changes logits of", width))
    }

    /// Forgets a shape.
    pub fn drop_check(&mut self, shape: [usize; 2]) {
        self.checks.remove(&shape);
    }

    /// Forgets a shape.
    pub fn drop_read(&mut self, shape: [usize; 2]) {
        self.reads.remove(&shape);
    }

    /// How long a step takes that reads this shape, of rows whose pages are nobody's.
    pub fn time_read(&mut self, shape: [usize; 2]) -> TensorResult<Duration> {
        let s = self.reads.get(&shape).ok_or_else(|| no_step("reads", shape[0]))?;
        self.time(&s.step, &[&s.numbers.tensor, &s.rows.tensor], 1)
    }

    /// How much longer a step takes that reads this shape and has the logits of each token, and is waited for, than one of several that write for as many
    /// rows; by the least of several times.
    pub fn time_check(&mut self, shape: [usize; 2]) -> TensorResult<f64> {
        let check = self.checks.get(&shape).ok_or_else(|| no_step("checks", shape[0]))?;
        let write = self.writes.range(shape[0]..).next().map(|(_, step)| step).ok_or_else(|| no_step("writes for", shape[0]))?;
        let mut least = [Duration::MAX; 2];
        for _ in 0..5 {
            least[0] = least[0].min(self.time(&check.step, &[&check.numbers.tensor, &check.rows.tensor], 1)?);
            least[1] = least[1].min(self.time(write, &[], 2)?);
        }
        Ok(least[0].as_secs_f64() / least[1].as_secs_f64().max(1e-9))
    }

    /// How long a step takes, of `count` that are submitted together.
    fn time(&self, step: &PreparedStep, own: &[&Tensor], count: u32) -> TensorResult<Duration> {
        self.device.synchronize()?;
        let start = Instant::now();
        let mut given = self.step_tensors();
        given.extend(own);
        (0..count).try_for_each(|_| step.run(&given).map(drop))?;
        self.device.synchronize()?;
        Ok(start.elapsed() / count)
    }

    /// What rows of a step share: pages, and settings of the choice of `each` tokens of a row.
    fn set_rows(&mut self, rows: &[RowInput<'_>], each: usize) -> TensorResult<Choice> {
        let [most, row_pages] = self.most;
        let mut table = vec![0i32; most * row_pages];
        let (mut draws, mut keys, mut all) = (vec![0u32; most], vec![0u32; most], vec![0f32; most * SETTINGS]);
        let mut choice = Choice::Best;
        for (i, row) in rows.iter().enumerate() {
            table[i * row_pages..].iter_mut().zip(row.pages).for_each(|(t, &p)| *t = p as i32);
            choice = choice.max(Choice::of(row.sampling));
            for t in 0..each {
                let at = i * each + t;
                (draws[at], keys[at]) = (row.draws + t as u32, stream(row.sampling));
                all[at * SETTINGS..(at + 1) * SETTINGS].copy_from_slice(&settings(row.sampling));
            }
        }
        self.table.set(table)?;
        if choice > Choice::Best {
            self.draws.set(draws)?;
            self.keys.set(keys)?;
            self.settings.set(all)?;
        }
        Ok(choice)
    }

    /// Chooses a token of each row of logits; they are on their way to the host.
    pub fn choose(&mut self, Begun { width, choice, logits }: &Begun, rows: &[ChoiceInput<'_>]) -> TensorResult<Chosen> {
        let (width, choice) = (*width, *choice);
        let changed =
            rows.iter().any(|r| r.adjust.is_some() || r.allowed.is_some()).then(|| self.adjust(width, rows, logits)).transpose()?;
        let tokens = self.choose_first(width, choice, changed.as_ref().unwrap_or(logits), rows.len())?;
        let scored = rows.iter().any(|r| r.scored);
        let copy = || Ok((download_first(logits, rows.len() * logits.dims()[1])?, logits.dtype()));
        Ok(Chosen { tokens, logits: scored.then(copy).transpose()? })
    }

    /// The tokens of the first `count` rows of logits, on their way to the host.
    fn choose_first(&self, width: usize, choice: Choice, logits: &Tensor, count: usize) -> TensorResult<Download> {
        let step = self.choices.get(&(width, choice)).ok_or_else(|| no_step("chooses for", width))?;
        // The copy goes with it.
        self.device.backend().defer_submit();
        step.run(&[&self.last, &self.draws.tensor, &self.keys.tensor, &self.settings.tensor, logits])?;
        download_first(&self.last, count)
    }

    /// Submits the part of a step that gives the logits behind the last token of each row.
    pub fn begin_write(&mut self, rows: &[RowInput<'_>]) -> TensorResult<Begun> {
        let width = self.writes.range(rows.len()..).next().map(|(w, _)| *w).ok_or_else(|| no_step("writes for", rows.len()))?;
        let choice = self.set_rows(rows, 1)?;
        let most = self.most[0];
        let mut numbers = vec![0i32; NUMBERS * most];
        for (i, row) in rows.iter().enumerate() {
            let token = row.tokens.first().map_or(0, |&t| t as i32);
            let from = row.from.map_or(-1, |n| n as i32);
            let own = [token, from, row.start as i32, slot(row.pages, row.start)?, row.start as i32 + 1];
            own.into_iter().enumerate().for_each(|(k, n)| numbers[k * most + i] = n);
        }
        self.numbers.set(numbers)?;
        let step = self.writes.get(&width).ok_or_else(|| no_step("writes for", width))?;
        let logits = step.run(&self.step_tensors())?.ok_or_else(|| no_step("has logits for", width))?;
        Ok(Begun { width, choice, logits })
    }

    /// Submits the part of a step that reads tokens of each row, and gives the logits behind them.
    pub fn begin_read(&mut self, shape: [usize; 2], rows: &[RowInput<'_>]) -> TensorResult<Begun> {
        let choice = self.set_rows(rows, 1)?;
        let s = self.reads.get_mut(&shape).ok_or_else(|| no_step("reads", shape[0]))?;
        s.set(shape, rows)?;
        let logits = self.run_read(shape, false)?;
        Ok(Begun { width: shape[0], choice, logits })
    }

    /// Submits a step that reads tokens of each row, and chooses the token behind each of them: `shape[1]` for each row. Their logits stay as they are.
    pub fn check(&mut self, shape: [usize; 2], rows: &[RowInput<'_>]) -> TensorResult<Download> {
        let choice = self.set_rows(rows, shape[1])?;
        let s = self.checks.get_mut(&shape).ok_or_else(|| no_step("checks", shape[0]))?;
        s.set(shape, rows)?;
        let logits = self.run_read(shape, true)?;
        self.choose_first(shape[0] * shape[1], choice, &logits, rows.len() * shape[1])
    }

    fn run_read(&self, shape: [usize; 2], every: bool) -> TensorResult<Tensor> {
        let steps = if every { &self.checks } else { &self.reads };
        let s = steps.get(&shape).ok_or_else(|| no_step("reads", shape[0]))?;
        let mut given = self.step_tensors();
        given.extend([&s.numbers.tensor, &s.rows.tensor]);
        s.step.run(&given)?.ok_or_else(|| no_step("has logits for", shape[0]))
    }
}

impl ReadStep {
    /// Overwrites what it reads.
    fn set(&mut self, [height, width]: [usize; 2], rows: &[RowInput<'_>]) -> TensorResult<()> {
        let mut numbers = vec![0i32; 3 * height * width];
        let mut ends = vec![0i32; 2 * height];
        for (i, row) in rows.iter().enumerate() {
            // Padding repeats the last token, and overwrites what others left in the row's following slots, as far as it has pages: attention weighs them
            // by 0, which leaves a NaN as it is.
            let last = row.tokens.len().saturating_sub(1);
            for t in 0..width {
                let token = row.tokens.get(t.min(last)).map_or(0, |&token| token as i32);
                let at = match t <= last {
                    true => slot(row.pages, row.start + t)?,
                    false => slot(row.pages, row.start + t).unwrap_or(0),
                };
                let own = [token, (row.start + t.min(last)) as i32, at];
                own.into_iter().enumerate().for_each(|(k, n)| numbers[(k * height + i) * width + t] = n);
            }
            // The step's last position, padding or not, sees so many keys.
            ends[i] = (row.start + width) as i32;
            ends[height + i] = (i * width + row.tokens.len().max(1) - 1) as i32;
        }
        self.numbers.set(numbers)?;
        self.rows.set(ends)
    }
}

/// Takes from all tokens without a bit what none with one can lose; finite, since a type with less range makes infinity of it.
fn forbid(allowed: &[u32], addends: &mut [f32]) {
    const FAR: f32 = -1e30;
    for (part, addends) in addends.chunks_mut(32).enumerate() {
        let word = allowed.get(part).copied().unwrap_or(0);
        if word != u32::MAX {
            addends.iter_mut().enumerate().filter(|(t, _)| word >> t & 1 == 0).for_each(|(_, a)| *a = FAR);
        }
    }
}

/// Where a position lies.
fn slot(pages: &[u32], position: usize) -> TensorResult<i32> {
    let page = pages.get(position / PAGE).ok_or_else(|| TensorError::Internal(format!("position {position} has no page")))?;
    Ok((*page as usize * PAGE + position % PAGE) as i32)
}

fn no_step(does: &str, rows: usize) -> TensorError {
    TensorError::Internal(format!("no prepared step {does} {rows} rows"))
}
