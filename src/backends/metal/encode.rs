//! Runs a plan: one command buffer with one concurrent encoder for each submit, and barriers only where steps meet.

use super::compile::{Pipeline, Pipelines};
use super::device::{Gpu, MAX_BINDINGS};
use super::heaps::{PRIVATE, SHARED};
use super::memory::{Block, Memory, MetalBuffer};
use super::watch::{Times, summary};
use crate::backends::Repeat;
use crate::backends::bad_indices::{ERROR_RECORDS, RECORD_BYTES};
use crate::backends::codegen::{Barriers, Bound, StepShader, plan_shaders};
use crate::backends::lock::lock;
use crate::backends::plan_uniforms::{PlanUniforms, SubmitLength};
use crate::backends::run_memory::{RunMemory, label_slots};
use crate::backends::signposts::{Interval, Signpost};
use crate::backends::stages::{Stage, enter};
use crate::error::{TensorError, TensorResult};
use crate::events;
use crate::plan::{Buf, Plan, RunTimes, Timing};
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSString;
use objc2_metal::{
    MTLBarrierScope, MTLCommandBuffer, MTLCommandEncoder, MTLComputeCommandEncoder, MTLComputePipelineState, MTLDispatchType, MTLSize,
};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Plans kept before dead ones are looked for.
const PLANS_BEFORE_SWEEP: usize = 256;

/// A step, ready to be encoded.
struct Dispatch {
    pipeline: Arc<Pipeline>,
    /// The buffer of each binding after the first.
    buffers: SmallVec<[Bound; 8]>,
    grid: MTLSize,
    /// Where its numbers begin, in bytes.
    start: usize,
    /// Whether it waits for the steps before.
    barrier: bool,
    /// Whether a submit begins here.
    begins_submit: bool,
    name: &'static str,
    /// What captures show, where that is asked for.
    label: Option<String>,
    /// The step's place in the plan.
    step: usize,
}

/// What a plan needs that does not change between runs.
struct PreparedPlan {
    plan: Weak<Plan>,
    steps: Vec<Dispatch>,
    numbers: PlanUniforms,
    /// Memory of the numbers, used in turn: the GPU may still read those of the last run.
    blocks: Vec<Arc<Block>>,
    memory: Arc<Memory>,
    /// The one that has the numbers.
    current: usize,
    /// The ids of the buffers that the last run had for the plan's slots.
    slots: Vec<u64>,
    /// The error records, by bit, that its steps may write.
    records: u32,
    /// Barriers of a run.
    barriers: usize,
}

impl PreparedPlan {
    fn new<'t>(gpu: &Gpu, plan: &Arc<Plan>, steps: impl Iterator<Item = (usize, &'t StepShader, Arc<Pipeline>)>) -> PreparedPlan {
        let (mut dispatches, mut numbers, mut records) = (vec![], PlanUniforms::default(), 0);
        let tuning = gpu.adapter.tuning_in_force();
        let mut length = SubmitLength::new(&tuning.submit, gpu.adapter.pacing(|p| p.submit_steps), plan.steps.len());
        let (mut failing, mut barriers) = (0, Barriers::default());
        for (number, shader, pipeline) in steps {
            let step = &plan.steps[number];
            let start = numbers.add(shader, || gpu.bad_indices.tag(step.name, step.at)) * 4;
            let record = failing % ERROR_RECORDS;
            if shader.fails {
                records |= 1 << record;
                failing += 1;
            }
            let begins_submit = length.add(step);
            if begins_submit {
                // Command buffers follow each other by a fence.
                barriers.restart();
            }
            let buffers = shader.views.iter().map(|v| if let Bound::Errors(_) = v.buf { Bound::Errors(record) } else { v.buf }).collect();
            let [width, height, depth] = shader.grid.map(|n| n as usize);
            let barrier = barriers.before(step, shader, record);
            let grid = MTLSize { width, height, depth };
            let label = gpu.labels.then(|| step.label());
            dispatches.push(Dispatch { pipeline, buffers, grid, start, barrier, begins_submit, name: step.name, label, step: number });
        }
        numbers.seal();
        let (slots, memory, barriers) = (vec![0; plan.slots.len()], gpu.memory.clone(), barriers.count);
        let plan = Arc::downgrade(plan);
        PreparedPlan { plan, steps: dispatches, numbers, blocks: vec![], memory, current: 0, slots, records, barriers }
    }

    /// Writes the numbers of these runs, where they have changed, to memory that nothing uses.
    fn number(&mut self, gpu: &Gpu, runs: usize, params: &[f64], repeated: Option<Repeat<'_>>) -> TensorResult<()> {
        if self.numbers.reserve(runs) {
            self.give_up_blocks();
            self.numbers.forget();
        }
        let bytes = self.numbers.len() * 4;
        let Some(words) = self.numbers.update(runs, params, repeated)?.filter(|w| !w.is_empty()) else { return Ok(()) };
        let free = self.blocks.iter().position(|b| !b.is_used(&gpu.watch));
        if free.is_none() {
            let Some(block) = gpu.memory.create(bytes, SHARED) else {
                self.numbers.forget();
                return Err(gpu.memory.full(bytes, None, "out of memory for a plan's numbers"));
            };
            self.blocks.push(block);
        }
        self.current = free.unwrap_or(self.blocks.len() - 1);
        // SAFETY: nothing uses the block, which only this plan's runs bind, one at a time.
        unsafe { self.blocks[self.current].write(0, bytemuck::cast_slice(words)) };
        Ok(())
    }

    /// Lets go of the memory of its numbers, which is kept until what was submitted is done with it.
    fn give_up_blocks(&mut self) {
        self.blocks.drain(..).for_each(|b| self.memory.retired.add(b));
    }
}

impl Drop for PreparedPlan {
    fn drop(&mut self) {
        self.give_up_blocks();
    }
}

type Encoder = Retained<ProtocolObject<dyn MTLComputeCommandEncoder>>;

/// A concurrent encoder, behind the last one.
fn encoder(gpu: &Gpu, commands: &ProtocolObject<dyn MTLCommandBuffer>) -> TensorResult<Encoder> {
    let none = || TensorError::DeviceLost(format!("{} gives no encoder", gpu.watch.device));
    let encoder = commands.computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent).ok_or_else(none)?;
    encoder.waitForFence(&gpu.fence);
    Ok(encoder)
}

/// A command buffer that is being filled. Only one is at a time.
struct Commands<'g> {
    gpu: &'g Gpu,
    raw: Retained<ProtocolObject<dyn MTLCommandBuffer>>,
    encoder: Encoder,
    number: u64,
    pipeline: *const Pipeline,
    /// The buffer bound at each index: its number and offset.
    bound: [(u64, usize); MAX_BINDINGS + 1],
    /// The names of its steps, in order.
    names: Vec<&'static str>,
}

impl<'g> Commands<'g> {
    /// Begins a command buffer, with the copies that wait for one. The caller holds the submit lock.
    fn new(gpu: &'g Gpu) -> TensorResult<Commands<'g>> {
        let raw = gpu.commands()?;
        gpu.encode_copies(&raw)?;
        let encoder = encoder(gpu, &raw)?;
        let number = gpu.watch.next();
        Ok(Commands { gpu, raw, encoder, number, pipeline: std::ptr::null(), bound: [(0, 0); MAX_BINDINGS + 1], names: vec![] })
    }

    fn set(&mut self, index: usize, block: &Block, offset: usize) {
        block.use_in(self.number);
        let (id, at) = self.bound[index];
        if (id, at) == (block.id, offset) {
            return;
        }
        self.bound[index] = (block.id, offset);
        // SAFETY: the offset is inside of the buffer, which stays alive until the command buffer is done: what is given up meanwhile is kept by
        // `Retired`. Every index that a kernel forms is within the layouts of its plan or clamped by the kernel.
        unsafe {
            match id == block.id {
                true => self.encoder.setBufferOffset_atIndex(offset, index),
                false => self.encoder.setBuffer_offset_atIndex(Some(&block.raw), offset, index),
            }
        }
    }

    /// Ends the encoder; where steps are checked it was one step's, whose name tells which failed.
    fn end_encoder(&mut self) {
        if self.gpu.checked || self.gpu.labels {
            let own = if self.gpu.checked { self.names.len().saturating_sub(1) } else { 0 };
            self.encoder.setLabel(Some(&NSString::from_str(&summary(&self.names[own..]))));
        }
        self.encoder.updateFence(&self.gpu.fence);
        self.encoder.endEncoding();
    }

    /// Before a step: where steps are checked, it gets an encoder of its own, which knows nothing of what the last one was given.
    fn begin_step(&mut self) -> TensorResult<()> {
        if self.gpu.checked && !self.names.is_empty() {
            self.end_encoder();
            self.encoder = encoder(self.gpu, &self.raw)?;
            (self.pipeline, self.bound) = (std::ptr::null(), [(0, 0); MAX_BINDINGS + 1]);
        }
        Ok(())
    }

    /// Encodes a step whose numbers begin at byte `start` of `numbers`, and all of whose buffers are there.
    fn dispatch<'b>(&mut self, d: &Dispatch, numbers: &Block, start: usize, find: impl Fn(Buf) -> Option<&'b MetalBuffer>) {
        let gpu = self.gpu;
        self.set(0, numbers, start + d.start);
        for (n, b) in d.buffers.iter().enumerate() {
            match b {
                Bound::Plan(b) => find(*b).into_iter().for_each(|m| self.set(n + 1, &m.0.block, m.0.offset + b.start())),
                Bound::Errors(record) => self.set(n + 1, &gpu.records, record * RECORD_BYTES as usize),
                Bound::Scratch => self.set(n + 1, &gpu.scratch, 0),
                Bound::Codebooks => self.set(n + 1, &gpu.codebooks, 0),
            }
        }
        d.label.iter().for_each(|label| self.encoder.pushDebugGroup(&NSString::from_str(label)));
        self.launch(&d.pipeline, d.grid, d.name);
        d.label.iter().for_each(|_| self.encoder.popDebugGroup());
    }

    fn launch(&mut self, pipeline: &Arc<Pipeline>, grid: MTLSize, name: &'static str) {
        if !std::ptr::eq(self.pipeline, Arc::as_ptr(pipeline)) {
            self.encoder.setComputePipelineState(&pipeline.state);
            self.pipeline = Arc::as_ptr(pipeline);
        }
        self.names.push(name);
        self.encoder.dispatchThreadgroups_threadsPerThreadgroup(grid, pipeline.threads);
    }

    fn commit(mut self, times: Option<Times>) {
        self.end_encoder();
        let _stage = enter(Stage::Submit);
        self.gpu.commit(&self.raw, self.names, times);
    }
}

/// Submits one workgroup of a kernel over these buffers.
pub(super) fn run_alone(gpu: &Gpu, pipeline: &Arc<Pipeline>, buffers: &[&MetalBuffer], name: &'static str) -> TensorResult<()> {
    autoreleasepool(|_| {
        let _submit_lock = lock(&gpu.submit_lock);
        let mut commands = Commands::new(gpu)?;
        buffers.iter().enumerate().for_each(|(n, b)| commands.set(n, &b.0.block, b.0.offset));
        commands.launch(pipeline, MTLSize { width: 1, height: 1, depth: 1 }, name);
        commands.commit(None);
        Ok(())
    })
}

/// Plans made ready, and the pipelines that they share.
#[derive(Default)]
pub(super) struct Runner {
    pub pipelines: Pipelines,
    plans: HashMap<usize, PreparedPlan>,
    leased: Vec<MetalBuffer>,
    /// Timing, while it is asked for.
    pub timer: Option<Timer>,
}

impl Runner {
    /// Forgets every plan, so that the next run writes its shaders anew.
    pub fn forget(&mut self) {
        self.plans.clear();
    }

    /// Prepares a plan unless it is prepared already.
    pub fn ready(&mut self, gpu: &Gpu, plan: &Arc<Plan>) -> TensorResult<()> {
        let key = Arc::as_ptr(plan) as usize;
        if self.plans.get(&key).is_none_or(|p| p.plan.upgrade().is_none()) {
            let _stage = enter(Stage::Compile);
            let shaders = plan_shaders(plan, &gpu.adapter.info_in_force(), *lock(&gpu.quirks), MAX_BINDINGS)?;
            let compiled = self.pipelines.compile(gpu, shaders.iter().map(|(n, shader)| (shader, plan.steps[*n].name)))?;
            gpu.kernels.fetch_add(compiled as u64, Relaxed);
            events::kernels_prepared(shaders.len(), compiled);
            let steps = shaders.iter().filter_map(|(n, shader)| Some((*n, shader, self.pipelines.get(&shader.source)?)));
            let p = PreparedPlan::new(gpu, plan, steps);
            if self.plans.len() >= PLANS_BEFORE_SWEEP {
                self.plans.retain(|_, p| p.plan.strong_count() > 0);
            }
            self.plans.insert(key, p);
        }
        Ok(())
    }

    /// What the pipeline of a plan's first step says: how many threads run in lockstep, and how many a threadgroup may have.
    pub fn limits(&mut self, gpu: &Gpu, plan: &Arc<Plan>) -> TensorResult<Option<[usize; 2]>> {
        self.ready(gpu, plan)?;
        let state = self.plans.get(&(Arc::as_ptr(plan) as usize)).and_then(|p| p.steps.first()).map(|d| &d.pipeline.state);
        Ok(state.map(|s| [s.threadExecutionWidth(), s.maxTotalThreadsPerThreadgroup()]))
    }

    /// Barriers of a run of a plan.
    pub fn barriers(&mut self, gpu: &Gpu, plan: &Arc<Plan>) -> TensorResult<usize> {
        self.ready(gpu, plan)?;
        Ok(self.plans.get(&(Arc::as_ptr(plan) as usize)).map_or(0, |p| p.barriers))
    }

    /// Encodes and submits a plan; with `repeated` as often as there are outputs, in one submit where the plan is one. Gives the number of submits.
    pub fn run(
        &mut self,
        gpu: &Gpu,
        plan: &Arc<Plan>,
        inputs: &[&MetalBuffer],
        outputs: &[&MetalBuffer],
        params: &[f64],
        repeated: Option<Repeat<'_>>,
    ) -> TensorResult<u64> {
        let (_stage, _interval) = (enter(Stage::Encode), Signpost::begin(Interval::Plan));
        gpu.watch.check()?;
        self.ready(gpu, plan)?;
        let Some(p) = self.plans.get_mut(&(Arc::as_ptr(plan) as usize)) else { return Ok(0) };
        let whole = self.timer.is_none() && p.steps.iter().skip(1).all(|d| !d.begins_submit);
        let runs = if repeated.is_some() { outputs.len() } else { 1 };
        if let Some(repeated) = repeated.filter(|_| runs > 1 && !whole) {
            let (mut inputs, mut params, mut submits) = (inputs.to_vec(), params.to_vec(), 0);
            for out in outputs {
                submits += self.run(gpu, plan, &inputs, &[*out], &params, None)?;
                repeated.advance(&mut inputs, out, &mut params);
            }
            return Ok(submits);
        }
        if p.steps.is_empty() {
            return Ok(0);
        }
        p.number(gpu, runs, params, repeated)?;
        self.leased.clear();
        for (n, bytes) in plan.slots.iter().enumerate() {
            let b = gpu.memory.lease(*bytes, PRIVATE, p.slots[n], || gpu.wait())?;
            p.slots[n] = b.0.block.id;
            self.leased.push(b);
        }
        label_slots(&gpu.memory.pool, plan, self.leased.iter().map(|b| b.0.alloc_id));
        let memory = RunMemory { inputs, outputs, leased: &self.leased, repeated };
        let has_all = |d: &Dispatch| d.buffers.iter().all(|b| if let Bound::Plan(b) = b { memory.find(0, *b).is_some() } else { true });
        if !p.steps.iter().all(has_all) {
            return Err(TensorError::Internal("a plan was run with fewer buffers than it names".into()));
        }
        gpu.bad_indices.expect(p.records);
        let host = Instant::now();
        let submits = autoreleasepool(|_| submit(gpu, p, runs, &mut self.timer, &memory))?;
        self.timer.iter_mut().for_each(|t| t.runs.push(RunTimes::since(host, plan)));
        // The fence keeps order: whoever gets these next writes after this run is done.
        self.leased.clear();
        gpu.watch.check()?;
        Ok(submits)
    }
}

/// Encodes and submits the runs of a plan: one command buffer, unless the work is long or steps are timed one by one. Gives the number of submits.
fn submit(gpu: &Gpu, p: &PreparedPlan, runs: usize, timer: &mut Option<Timer>, memory: &RunMemory<'_, MetalBuffer>) -> TensorResult<u64> {
    let (numbers, stride) = (&p.blocks[p.current], p.numbers.stride() * 4);
    let one_by_one = timer.as_ref().is_some_and(|t| t.detail == Timing::Steps);
    let mut submits = 0;
    for now in p.steps.chunk_by(|_, next| !next.begins_submit && !one_by_one) {
        let times = timer.as_mut().map(|t| t.mark(one_by_one.then_some(now[0].step)));
        let _submit_lock = lock(&gpu.submit_lock);
        let mut commands = Commands::new(gpu)?;
        for run in 0..runs {
            for (n, d) in now.iter().enumerate() {
                commands.begin_step()?;
                if d.barrier || n == 0 && run > 0 {
                    commands.encoder.memoryBarrierWithScope(MTLBarrierScope::Buffers);
                }
                commands.dispatch(d, numbers, run * stride, |b| memory.find(run, b));
            }
        }
        commands.commit(times);
        submits += 1;
    }
    Ok(submits)
}

/// Timing that is going on: the GPU's own times of command buffers.
pub(super) struct Timer {
    pub detail: Timing,
    pub runs: Vec<RunTimes>,
    /// The run, the step's place in its plan unless the run was timed as a whole, and the times.
    pub marks: Vec<(usize, Option<usize>, Times)>,
}

impl Timer {
    /// Where the times of a submit of the current run are left; `step` is the place in the plan of the only step that it has.
    fn mark(&mut self, step: Option<usize>) -> Times {
        let times = Times::default();
        self.marks.push((self.runs.len(), step, times.clone()));
        times
    }

    /// Waits for everything timed; gives the times from the first on.
    pub fn finish(mut self, gpu: &Gpu) -> TensorResult<Vec<RunTimes>> {
        gpu.wait_for(gpu.watch.submitted(), Duration::ZERO)?;
        let times: Vec<Option<[f64; 2]>> = self.marks.iter().map(|m| *lock(&m.2)).collect();
        let first = times.iter().flatten().map(|t| t[0]).fold(f64::INFINITY, f64::min);
        for ((run, step, _), times) in self.marks.iter().zip(times) {
            times.into_iter().for_each(|t| self.runs[*run].add(*step, t.map(|t| t - first)));
        }
        Ok(self.runs)
    }
}
