//! A plan made ready to run: its dispatches, and the numbers that they read.

use super::core::Core;
use super::dispatch::{Dispatch, Numbers};
use super::error_records::ERROR_RECORDS;
use super::memory::GpuBuffer;
use super::pipelines::Pipeline;
use crate::backends::Chain;
use crate::backends::codegen::StepShader;
use crate::backends::codegen::{UniformWord, param_bits};
use crate::error::{TensorError, TensorResult};
use crate::plan::{Buf, Plan, Step, Work};
use crate::strategy::SubmitSteps;
use crate::tuning::SubmitTuning;
use std::sync::{Arc, Weak};

/// Words between the starts of two steps' blocks: 256 bytes.
const UNIFORM_ALIGN_WORDS: usize = 64;
/// Bind groups kept per step and run: outputs often alternate between two buffers.
const BIND_GROUPS_KEPT: usize = 4;
/// Runs of a submit that room for their numbers is made for at least.
const REPLAYS_PER_SUBMIT: usize = 8;

/// What a plan needs that does not change between runs.
pub(super) struct PreparedPlan {
    pub plan: Weak<Plan>,
    pub steps: Vec<Dispatch>,
    /// The numbers of all steps, once for each run of a submit.
    words: Vec<u32>,
    /// How many there are for a run.
    stride: usize,
    patches: Vec<(usize, UniformWord)>,
    /// Whether the block buffer holds the first run's words.
    written: bool,
    block: Option<wgpu::Buffer>,
    /// The ids of the buffers that the last run had for the plan's slots.
    pub slots: Vec<u64>,
    /// The error records, by bit, that its steps may write.
    pub records: u32,
}

/// Decides where a submit ends, so that the GPU starts early on long work.
struct SubmitLength<'a> {
    limits: &'a SubmitTuning,
    max_steps: usize,
    ops: u64,
    steps: usize,
}

impl SubmitLength<'_> {
    fn new(limits: &SubmitTuning, lengths: SubmitSteps, steps: usize) -> SubmitLength<'_> {
        let max_steps = if steps > 2 * limits.max_steps && lengths != SubmitSteps::Whole { limits.max_steps } else { usize::MAX };
        let first = if let SubmitSteps::First(n) = lengths { n } else { max_steps };
        // Steps that the first submit does not have count as taken.
        let taken = if max_steps == usize::MAX { 0 } else { max_steps.saturating_sub(first) };
        SubmitLength { limits, max_steps, ops: 0, steps: taken }
    }

    /// Counts a step; gives whether it begins a new submit.
    fn add(&mut self, step: &Step) -> bool {
        let ops = match &step.work {
            Work::Kernel(k) => k.ops(step),
            Work::Map => step.stores[0].shape.count() as u64,
        };
        let begins = self.steps == self.max_steps || (self.ops > 0 && self.ops.saturating_add(ops) > self.limits.max_ops);
        if begins {
            (self.ops, self.steps) = (0, 0);
        }
        (self.ops, self.steps) = (self.ops.saturating_add(ops), self.steps + 1);
        begins
    }
}

impl PreparedPlan {
    /// Makes a plan ready: for each step that has something to do its place in the plan, its shader and its pipeline.
    pub fn new<'t>(
        core: &Core,
        plan: &Arc<Plan>,
        steps: impl Iterator<Item = (usize, &'t StepShader, Arc<Pipeline>)>,
    ) -> TensorResult<PreparedPlan> {
        let mut p = PreparedPlan {
            plan: Arc::downgrade(plan),
            steps: vec![],
            words: vec![],
            stride: 0,
            patches: vec![],
            written: false,
            block: None,
            slots: vec![0; plan.slots.len()],
            records: 0,
        };
        let tuning = core.tuning_in_force();
        let mut length = SubmitLength::new(&tuning.submit, core.pacing(|p| p.submit_steps), plan.steps.len());
        let mut failing = 0;
        for (number, text, pipeline) in steps {
            let step = &plan.steps[number];
            let start = p.add_words(core, step, text);
            let record = failing % ERROR_RECORDS;
            if text.fails {
                p.records |= 1 << record;
                failing += 1;
            }
            if length.add(step) {
                p.end_submit();
            }
            p.steps.push(Dispatch::new(pipeline, text, record, start, (number, step.name)));
        }
        p.end_submit();
        p.stride = p.words.len();
        p.make_block(core)?;
        Ok(p)
    }

    /// Appends the numbers of a step; gives where they begin, in words.
    fn add_words(&mut self, core: &Core, step: &Step, text: &StepShader) -> usize {
        let start = self.words.len();
        for (n, w) in text.words.iter().enumerate() {
            self.words.push(match *w {
                UniformWord::Const(v) => v,
                UniformWord::Tag => core.records.tag(step.name, step.at),
                w => {
                    self.patches.push((start + n, w));
                    0
                }
            });
        }
        self.words.resize(start + (text.rows() * 4).next_multiple_of(UNIFORM_ALIGN_WORDS), 0);
        start
    }

    /// Ends a submit behind the last dispatch.
    fn end_submit(&mut self) {
        if let Some(d) = self.steps.last_mut() {
            d.last = true;
        }
    }

    /// Whether all dispatches go in one submit.
    pub fn is_one_submit(&self) -> bool {
        self.steps.iter().filter(|d| d.last).count() == 1
    }

    /// Makes the buffer of the numbers, for as many runs as there are numbers for. Groups that name another one are let go.
    fn make_block(&mut self, core: &Core) -> TensorResult<()> {
        if self.words.is_empty() {
            return Ok(());
        }
        let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        self.block = Some(core.driver.buffer("numbers", self.words.len() as u64 * 4, usage)?);
        self.written = false;
        self.steps.iter_mut().for_each(Dispatch::forget_groups);
        Ok(())
    }

    /// Writes the numbers of these runs, where they have changed.
    pub fn number(&mut self, core: &Core, runs: usize, params: &[f64], chain: Option<Chain<'_>>) -> TensorResult<()> {
        if self.words.len() < runs * self.stride {
            // Whoever submits several runs may submit more of them next time.
            let first = self.words[..self.stride].to_vec();
            self.words = first.repeat(runs.next_power_of_two().max(REPLAYS_PER_SUBMIT));
            self.make_block(core)?;
        }
        // Known is only what stands there for the first run.
        self.written &= runs == 1;
        for run in 0..runs {
            let param = |n: u16| {
                let grown = chain.and_then(|c| c.growth.get(n as usize)).map_or(0.0, |g| run as f64 * g);
                params
                    .get(n as usize)
                    .map(|p| p + grown)
                    .ok_or_else(|| TensorError::Internal(format!("a plan wants parameter {n} of {}", params.len())))
            };
            for &(at, w) in &self.patches {
                let v = match w {
                    UniformWord::Offset(base, n) => base.wrapping_add(param(n)? as i64 as u32),
                    UniformWord::Param(n, d) => param_bits(param(n)?, d),
                    UniformWord::Const(v) => v,
                    UniformWord::Tag => continue,
                };
                let word = &mut self.words[run * self.stride + at];
                self.written &= *word == v;
                *word = v;
            }
        }
        if let Some(block) = self.block.as_ref().filter(|_| !self.written) {
            core.driver.queue.write_buffer(block, 0, bytemuck::cast_slice(&self.words[..runs * self.stride]));
            self.written = true;
        }
        Ok(())
    }

    /// Lets go of the bind groups.
    pub fn forget_groups(&mut self) {
        self.steps.iter_mut().for_each(Dispatch::forget_groups);
    }

    /// Finds or makes the bind groups of a run, one of `runs` of a submit.
    pub fn bind<'b>(&mut self, core: &Core, run: usize, runs: usize, find: impl Fn(Buf) -> Option<&'b GpuBuffer>) -> TensorResult<()> {
        let Some(block) = &self.block else { return Ok(()) };
        let start = (run * self.stride * 4) as u64;
        self.steps.iter_mut().try_for_each(|d| d.bind(core, Numbers { block, start }, run, BIND_GROUPS_KEPT * runs, &find))
    }
}
