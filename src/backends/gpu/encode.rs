//! Runs a plan: numbers patched, slots leased, one pass, one submit. What does not change between runs is prepared once per plan.

use super::core::{Core, ERROR_RECORDS, lock};
use super::operand::Bound;
use super::pipelines::{Pipeline, Pipelines, on_all_threads};
use super::pool::{GpuBuffer, PRIVATE};
use super::timer::Timer;
use super::uniforms::{UniformWord, param_bits};
use super::wgsl::{CodegenOptions, step_text};
use crate::backends::Chain;
use crate::backends::pool::PoolControl;
use crate::error::{TensorError, TensorResult};
use crate::plan::{Buf, PipelineStats, Plan, Work};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// Words between the starts of two steps' blocks: 256 bytes.
const UNIFORM_ALIGN_WORDS: usize = 64;
/// Bind groups kept per step and run: outputs often alternate between two buffers.
const BIND_GROUPS_KEPT: usize = 4;
/// Runs of a submit that room for their numbers is made for at least.
const REPLAYS_PER_SUBMIT: usize = 8;
/// Steps of a plan from which on their texts are written on several threads.
const PARALLEL_CODEGEN_MIN_STEPS: usize = 16;
/// Plans kept before dead ones are looked for.
const PLANS_BEFORE_SWEEP: usize = 256;

pub(super) struct Dispatch {
    pipeline: Arc<Pipeline>,
    /// The buffer of each binding after the first.
    buffers: SmallVec<[Bound; 8]>,
    grid: [u32; 3],
    start: u64,
    bytes: u64,
    /// Bind groups by the number of the run and the ids of their buffers.
    groups: SmallVec<[(SmallVec<[u64; 8]>, wgpu::BindGroup); 2]>,
    /// The group of the run that is being encoded, and the one that was made last.
    next: usize,
    newest: usize,
    /// Whether the submit ends here.
    pub last: bool,
    name: &'static str,
    /// The step's place in the plan.
    pub step: usize,
}

struct PreparedPlan {
    plan: Weak<Plan>,
    steps: Vec<Dispatch>,
    /// The numbers of all steps, once for each run of a submit.
    words: Vec<u32>,
    /// How many there are for a run.
    stride: usize,
    patches: Vec<(usize, UniformWord)>,
    /// Whether the block buffer holds the first run's words.
    written: bool,
    block: Option<wgpu::Buffer>,
    slots: Vec<u64>,
    /// The error records, by bit, that its steps may write.
    fails: u32,
}

/// Plans made ready, and the pipelines that they share.
#[derive(Default)]
pub(super) struct Runner {
    pipelines: Pipelines,
    plans: HashMap<usize, PreparedPlan>,
    leased: Vec<GpuBuffer>,
    /// Timing, while it is asked for.
    pub timer: Option<Timer>,
}

impl Runner {
    /// How many pipelines there are, and where they are kept.
    pub fn pipelines(&self) -> PipelineStats {
        self.pipelines.stats()
    }
    /// Forgets every plan, so that the next run writes its texts anew.
    pub fn forget(&mut self) {
        self.plans.clear();
    }

    fn prepare(&mut self, core: &Core, plan: &Arc<Plan>) -> TensorResult<PreparedPlan> {
        let soft_f16 = core.soft_f16.load(Ordering::Relaxed);
        let mut p = PreparedPlan {
            plan: Arc::downgrade(plan),
            steps: vec![],
            words: vec![],
            stride: 0,
            patches: vec![],
            written: false,
            block: None,
            slots: vec![0; plan.slots.len()],
            fails: 0,
        };
        let (mut ops, mut count, mut failing) = (0u64, 0usize, 0usize);
        let submit = &core.info.tuning.submit;
        let most = if plan.steps.len() > 2 * submit.max_steps { submit.max_steps } else { usize::MAX };
        let [ordered, infinite] = [&core.ordered, &core.infinite].map(|b| b.load(Ordering::Relaxed));
        let style = CodegenOptions { adapter: &core.info, soft_f16, ordered, infinite, few_bindings: false, quick: false };
        let (mut texts, mut numbers) = (Vec::with_capacity(plan.steps.len()), Vec::with_capacity(plan.steps.len()));
        let written = on_all_threads(&plan.steps, PARALLEL_CODEGEN_MIN_STEPS, |step| {
            let Some(text) = step_text(plan, step, style)? else { return Ok(None) };
            match text.views.len() > core.max_bindings {
                true => Ok(step_text(plan, step, CodegenOptions { few_bindings: true, ..style })?.or(Some(text))),
                false => Ok(Some(text)),
            }
        });
        for (number, text) in written.into_iter().enumerate() {
            if let Some(text) = text.transpose()?.flatten() {
                texts.push((text, plan.steps[number].name));
                numbers.push(number);
            }
        }
        self.pipelines.compile(core, &texts)?;
        for (number, (text, _)) in numbers.into_iter().zip(texts) {
            let step = &plan.steps[number];
            let Some(pipeline) = self.pipelines.get(&text.text) else { continue };
            let start = p.words.len();
            let rows = text.words.len().div_ceil(4).max(1);
            for (n, w) in text.words.iter().enumerate() {
                p.words.push(match *w {
                    UniformWord::Const(v) => v,
                    UniformWord::Tag => {
                        let mut tags = lock(&core.tags);
                        tags.push((step.name, step.at));
                        tags.len() as u32 - 1
                    }
                    w => {
                        p.patches.push((start + n, w));
                        0
                    }
                });
            }
            p.words.resize(start + (rows * 4).next_multiple_of(UNIFORM_ALIGN_WORDS), 0);
            let record = failing % ERROR_RECORDS;
            if text.fails {
                p.fails |= 1 << record;
                failing += 1;
            }
            let cost = match &step.work {
                Work::Kernel(k) => k.ops(step),
                Work::Map => step.stores[0].shape.count() as u64,
            };
            // A step that would make the submit too long begins a new one.
            if count == most || (ops > 0 && ops.saturating_add(cost) > submit.max_ops) {
                if let Some(d) = p.steps.last_mut() {
                    d.last = true;
                }
                (ops, count) = (0, 0);
            }
            (ops, count) = (ops.saturating_add(cost), count + 1);
            p.steps.push(Dispatch {
                pipeline,
                buffers: text.views.iter().map(|v| if let Bound::Errors(_) = v.buf { Bound::Errors(record) } else { v.buf }).collect(),
                grid: text.grid,
                start: start as u64 * 4,
                bytes: rows as u64 * 16,
                groups: SmallVec::new(),
                next: 0,
                newest: 0,
                last: false,
                name: step.name,
                step: number,
            });
        }
        if let Some(d) = p.steps.last_mut() {
            d.last = true;
        }
        p.stride = p.words.len();
        p.make_block(core)?;
        Ok(p)
    }

    /// Prepares a plan unless it is prepared already.
    pub fn ready(&mut self, core: &Core, plan: &Arc<Plan>) -> TensorResult<()> {
        let key = Arc::as_ptr(plan) as usize;
        if self.plans.get(&key).is_none_or(|p| p.plan.upgrade().is_none()) {
            let p = self.prepare(core, plan)?;
            if self.plans.len() >= PLANS_BEFORE_SWEEP {
                self.plans.retain(|_, p| p.plan.strong_count() > 0);
            }
            self.plans.insert(key, p);
        }
        Ok(())
    }

    /// Encodes and submits a plan; with `chain` as often as there are outputs, in one submit where the plan is one.
    pub fn run(
        &mut self,
        core: &Arc<Core>,
        plan: &Arc<Plan>,
        inputs: &[&GpuBuffer],
        outputs: &[&GpuBuffer],
        params: &[f64],
        chain: Option<Chain<'_>>,
    ) -> TensorResult<()> {
        let hold = core.hold.swap(false, Ordering::Relaxed);
        core.check()?;
        self.ready(core, plan)?;
        // A plan's numbers are written before anything that waits for a submit; one that is being submitted has the turn.
        core.flush_held();
        let Some(p) = self.plans.get_mut(&(Arc::as_ptr(plan) as usize)) else { return Ok(()) };
        let whole = p.steps.iter().filter(|d| d.last).count() == 1 && self.timer.is_none();
        let runs = if chain.is_some() { outputs.len() } else { 1 };
        if let Some(chain) = chain.filter(|_| runs > 1 && !whole) {
            let (mut inputs, mut params) = (inputs.to_vec(), params.to_vec());
            for out in outputs {
                self.run(core, plan, &inputs, &[*out], &params, None)?;
                chain.go_on(&mut inputs, out, &mut params);
            }
            return Ok(());
        }
        p.number(core, runs, params, chain)?;
        self.leased.clear();
        for (n, bytes) in plan.slots.iter().enumerate() {
            let b = core.lease(*bytes, PRIVATE, p.slots[n])?;
            p.slots[n] = b.0.id;
            self.leased.push(b);
        }
        if core.pool.recording() {
            for (n, b) in self.leased.iter().enumerate() {
                if let Some(step) = plan.writer(Buf::Slot(n as u16)) {
                    core.pool.label(b.0.ticket, step.name, step.at);
                }
            }
        }
        let mut encoder = whole.then(|| core.device.create_command_encoder(&Default::default()));
        for run in 0..runs {
            let leased = &self.leased;
            let find = |b: Buf| match b {
                Buf::Input(n) if run > 0 && chain.is_some_and(|c| c.fed == n as usize) => outputs.get(run - 1).copied(),
                Buf::Input(n) => inputs.get(n as usize).copied(),
                Buf::Output(_) if chain.is_some() => outputs.get(run).copied(),
                Buf::Output(n) => outputs.get(n as usize).copied(),
                Buf::Slot(n) => leased.get(n as usize),
                Buf::Iota => None,
            };
            // Bind groups first: making one can fail, and a pass once begun should not be dropped half way.
            p.bind(core, run, runs, find)?;
            if let Some(encoder) = &mut encoder {
                record_all(&mut encoder.begin_compute_pass(&Default::default()), &p.steps, |_, _| {});
            }
        }
        if p.fails != 0 {
            core.may_fail.fetch_or(p.fails, Ordering::Relaxed);
        }
        match (&mut self.timer, encoder) {
            (None, Some(encoder)) if hold => {
                let used = self.leased.drain(..).chain(inputs.iter().chain(outputs).map(|&b| b.clone())).collect();
                let mut waiting = lock(&core.pending);
                waiting.run = Some((encoder, used));
                core.held.store(true, Ordering::Relaxed);
                drop(waiting);
                core.submits.fetch_add(1, Ordering::Relaxed);
            }
            (None, Some(encoder)) => finish(core, encoder),
            (None, None) => submit(core, &p.steps),
            (Some(t), _) => t.submit(core, plan, &p.steps)?,
        }
        // The queue keeps order: whoever gets these next writes after this run is done.
        self.leased.clear();
        core.check()
    }
}

impl PreparedPlan {
    /// Makes the buffer of the numbers, for as many runs as there are numbers for. Groups that name another one are let go.
    fn make_block(&mut self, core: &Core) -> TensorResult<()> {
        if self.words.is_empty() {
            return Ok(());
        }
        let descriptor = wgpu::BufferDescriptor {
            label: Some("numbers"),
            size: self.words.len() as u64 * 4,
            usage: wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        };
        self.block = Some(core.guarded(|| core.device.create_buffer(&descriptor)).map_err(|e| core.refused(e))?);
        self.written = false;
        self.steps.iter_mut().for_each(|d| d.groups.clear());
        Ok(())
    }

    /// Writes the numbers of these runs, where they have changed.
    fn number(&mut self, core: &Core, runs: usize, params: &[f64], chain: Option<Chain<'_>>) -> TensorResult<()> {
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
            core.queue.write_buffer(block, 0, bytemuck::cast_slice(&self.words[..runs * self.stride]));
            self.written = true;
        }
        Ok(())
    }

    /// Finds or makes the bind groups of a run, one of `runs` of a submit.
    fn bind<'b>(&mut self, core: &Core, run: usize, runs: usize, find: impl Fn(Buf) -> Option<&'b GpuBuffer>) -> TensorResult<()> {
        let Some(block) = &self.block else { return Ok(()) };
        let missing = || TensorError::Internal("a plan was run with fewer buffers than it names".into());
        let start = (run * self.stride * 4) as u64;
        for d in &mut self.steps {
            let mut ids: SmallVec<[u64; 8]> = SmallVec::from_slice(&[run as u64]);
            for b in &d.buffers {
                ids.push(match b {
                    Bound::Plan(b) => find(*b).ok_or_else(missing)?.0.id,
                    Bound::Errors(_) | Bound::Scratch => 0,
                });
            }
            if let Some(at) = d.groups.iter().position(|g| g.0 == ids) {
                d.next = at;
                continue;
            }
            let whole = |buffer, offset, size| wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset, size });
            let mut entries: SmallVec<[wgpu::BindGroupEntry<'_>; 8]> = SmallVec::new();
            entries.push(wgpu::BindGroupEntry { binding: 0, resource: whole(block, start + d.start, std::num::NonZeroU64::new(d.bytes)) });
            for (n, b) in d.buffers.iter().enumerate() {
                let buffer = match b {
                    Bound::Plan(b) => &find(*b).ok_or_else(missing)?.0.raw,
                    Bound::Errors(n) => &core.error_records[*n],
                    Bound::Scratch => &core.scratch,
                };
                entries.push(wgpu::BindGroupEntry { binding: n as u32 + 1, resource: whole(buffer, 0, None) });
            }
            let descriptor = wgpu::BindGroupDescriptor { label: None, layout: &d.pipeline.layout, entries: &entries };
            let group =
                core.guarded(|| core.device.create_bind_group(&descriptor)).map_err(|e| core.refused(format!("{}: {e}", d.name)))?;
            if d.groups.len() < BIND_GROUPS_KEPT * runs {
                d.next = d.groups.len();
                d.groups.push((ids, group));
            } else {
                d.next = (d.newest + 1) % d.groups.len();
                d.groups[d.next] = (ids, group);
            }
            d.newest = d.next;
        }
        Ok(())
    }
}

/// Encodes and submits dispatches: one pass, and one submit unless the work is long.
fn submit(core: &Core, steps: &[Dispatch]) {
    let mut rest = steps;
    while !rest.is_empty() {
        let end = rest.iter().position(|d| d.last).map_or(rest.len(), |e| e + 1);
        let (now, later) = rest.split_at(end);
        rest = later;
        let mut encoder = core.device.create_command_encoder(&Default::default());
        record_all(&mut encoder.begin_compute_pass(&Default::default()), now, |_, _| {});
        finish(core, encoder);
    }
}

/// Submits the commands of a run.
#[cfg_attr(not(target_vendor = "apple"), allow(unused_mut))]
fn finish(core: &Core, mut encoder: wgpu::CommandEncoder) {
    #[cfg(target_vendor = "apple")]
    core.watch.iter().for_each(|w| w.mark(&core.queue, &mut encoder));
    core.submit(encoder.finish());
    #[cfg(target_vendor = "apple")]
    core.watch.iter().for_each(|w| w.submitted());
}

/// Records dispatches in a pass; `after` follows each of them.
pub(super) fn record_all(pass: &mut wgpu::ComputePass<'_>, steps: &[Dispatch], after: impl Fn(&mut wgpu::ComputePass<'_>, usize)) {
    let mut current: *const Pipeline = std::ptr::null();
    for (n, d) in steps.iter().enumerate() {
        if !std::ptr::eq(current, Arc::as_ptr(&d.pipeline)) {
            pass.set_pipeline(&d.pipeline.raw);
            current = Arc::as_ptr(&d.pipeline);
        }
        pass.set_bind_group(0, &d.groups[d.next].1, &[]);
        pass.dispatch_workgroups(d.grid[0], d.grid[1], d.grid[2]);
        after(pass, n);
    }
}
