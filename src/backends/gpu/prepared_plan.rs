//! A plan made ready to run: its dispatches, and the uniforms that they read.

use super::core::Core;
use super::dispatch::{Dispatch, UniformBlock};
use super::error_records::ERROR_RECORDS;
use super::memory::GpuBuffer;
use super::pipelines::Pipeline;
use crate::backends::Repeat;
use crate::backends::codegen::StepShader;
use crate::backends::plan_uniforms::{PlanUniforms, SubmitLength};
use crate::error::TensorResult;
use crate::plan::{Buf, Plan};
use std::sync::{Arc, Weak};

/// Bind groups kept per step and run: outputs often alternate between two buffers.
const BIND_GROUPS_KEPT: usize = 4;

/// What a plan needs that does not change between runs.
pub(super) struct PreparedPlan {
    pub plan: Weak<Plan>,
    pub steps: Vec<Dispatch>,
    uniforms: PlanUniforms,
    block: Option<wgpu::Buffer>,
    /// The ids of the buffers that the last run had for the plan's slots.
    pub slots: Vec<u64>,
    /// The error records, by bit, that its steps may write.
    pub records: u32,
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
            uniforms: PlanUniforms::default(),
            block: None,
            slots: vec![0; plan.slots.len()],
            records: 0,
        };
        let tuning = core.adapter.tuning_in_force();
        let mut length = SubmitLength::new(&tuning.submit, core.adapter.pacing(|p| p.submit_steps), plan.steps.len());
        let mut failing = 0;
        for (number, shader, pipeline) in steps {
            let step = &plan.steps[number];
            let start = p.uniforms.add(shader, || core.records.tag(step.name, step.at));
            let record = failing % ERROR_RECORDS;
            if shader.fails {
                p.records |= 1 << record;
                failing += 1;
            }
            if length.add(step) {
                p.end_submit();
            }
            p.steps.push(Dispatch::new(pipeline, shader, record, start, (number, step.name)));
        }
        p.end_submit();
        p.uniforms.seal();
        p.make_block(core)?;
        Ok(p)
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

    /// Makes the buffer of the uniforms, for as many runs as there are uniforms for. Groups that name another one are let go.
    fn make_block(&mut self, core: &Core) -> TensorResult<()> {
        if self.uniforms.len() == 0 {
            return Ok(());
        }
        let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        self.block = Some(core.driver.buffer("uniforms", self.uniforms.len() as u64 * 4, usage)?);
        self.uniforms.forget();
        self.steps.iter_mut().for_each(Dispatch::forget_groups);
        Ok(())
    }

    /// Writes the uniforms of these runs, where they have changed.
    pub fn write_uniforms(&mut self, core: &Core, runs: usize, params: &[f64], repeated: Option<Repeat<'_>>) -> TensorResult<()> {
        if self.uniforms.reserve(runs) {
            self.make_block(core)?;
        }
        let words = self.uniforms.update(runs, params, repeated)?;
        if let (Some(block), Some(words)) = (&self.block, words) {
            core.driver.queue.write_buffer(block, 0, bytemuck::cast_slice(words));
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
        let start = (run * self.uniforms.stride() * 4) as u64;
        self.steps.iter_mut().try_for_each(|d| d.bind(core, UniformBlock { block, start }, run, BIND_GROUPS_KEPT * runs, &find))
    }
}
