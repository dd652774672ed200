//! The uniforms that a plan's kernels read at run time, one block for each step and run, and where a plan's submits end.

use super::Repeat;
use super::codegen::{StepShader, UniformWord, param_bits};
use crate::error::{TensorError, TensorResult};
use crate::plan::{Step, Work};
use crate::strategy::SubmitSteps;
use crate::tuning::SubmitTuning;

/// Words between the starts of two steps' blocks: 256 bytes.
const UNIFORM_ALIGN_WORDS: usize = 64;
/// Runs of a submit that room for their uniforms is made for at least.
const REPLAYS_PER_SUBMIT: usize = 8;

/// The uniforms of all steps of a plan, once for each run of a submit.
#[derive(Default)]
pub(super) struct PlanUniforms {
    words: Vec<u32>,
    /// How many there are for a run.
    stride: usize,
    patches: Vec<(usize, UniformWord)>,
    /// Whether the device has the first run's words.
    written: bool,
}

impl PlanUniforms {
    /// Appends the uniforms of a step; gives where they begin, in words. `tag` gives the number by which an error finds the step.
    pub fn add(&mut self, shader: &StepShader, tag: impl Fn() -> u32) -> usize {
        let start = self.words.len();
        for (n, w) in shader.words.iter().enumerate() {
            self.words.push(match *w {
                UniformWord::Const(v) => v,
                UniformWord::Tag => tag(),
                w => {
                    self.patches.push((start + n, w));
                    0
                }
            });
        }
        self.words.resize(start + (shader.rows() * 4).next_multiple_of(UNIFORM_ALIGN_WORDS), 0);
        start
    }

    /// Ends the list of steps: these are the uniforms of one run.
    pub fn seal(&mut self) {
        self.stride = self.words.len();
    }

    /// How many words there is room for.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Words of one run.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Makes room for this many runs; gives whether there is more than before.
    pub fn reserve(&mut self, runs: usize) -> bool {
        let grows = self.words.len() < runs * self.stride;
        if grows {
            // Whoever submits several runs may submit more of them next time.
            let first = self.words[..self.stride].to_vec();
            self.words = first.repeat(runs.next_power_of_two().max(REPLAYS_PER_SUBMIT));
        }
        grows
    }

    /// Notes that the device has none of the words.
    pub fn forget(&mut self) {
        self.written = false;
    }

    /// Sets the uniforms of these runs; gives the words that the device lacks, all of them or none.
    ///
    /// # Errors
    /// `TensorError::Internal` where there are fewer parameters than the plan names.
    pub fn update(&mut self, runs: usize, params: &[f64], repeated: Option<Repeat<'_>>) -> TensorResult<Option<&[u32]>> {
        // Known is only what stands there for the first run.
        self.written &= runs == 1;
        for run in 0..runs {
            let param = |n: u16| {
                let grown = repeated.and_then(|c| c.growth.get(n as usize)).map_or(0.0, |g| run as f64 * g);
                params
                    .get(n as usize)
                    .map(|p| p + grown)
                    .ok_or_else(|| TensorError::Internal(format!("a plan needs parameter {n} of {}", params.len())))
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
        let lacks = !self.written;
        self.written = true;
        Ok(lacks.then(|| &self.words[..runs * self.stride]))
    }
}

/// Decides where a submit ends, so that the GPU starts early on long work.
pub(super) struct SubmitLength<'a> {
    limits: &'a SubmitTuning,
    max_steps: usize,
    ops: u64,
    steps: usize,
}

impl SubmitLength<'_> {
    pub fn new(limits: &SubmitTuning, lengths: SubmitSteps, steps: usize) -> SubmitLength<'_> {
        let max_steps = if steps > 2 * limits.max_steps && lengths != SubmitSteps::Whole { limits.max_steps } else { usize::MAX };
        let first = if let SubmitSteps::First(n) = lengths { n } else { max_steps };
        // Steps that the first submit does not have count as taken.
        let taken = if max_steps == usize::MAX { 0 } else { max_steps.saturating_sub(first) };
        SubmitLength { limits, max_steps, ops: 0, steps: taken }
    }

    /// Counts a step; gives whether it begins a new submit.
    pub fn add(&mut self, step: &Step) -> bool {
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
