//! Runs a plan: uniforms patched, slots leased, one pass, one submit. What does not change between runs is prepared once per plan.

use super::core::Core;
use super::dispatch::{Dispatch, record_all};
use super::memory::{GpuBuffer, PRIVATE};
use super::pipelines::Pipelines;
use super::prepared_plan::PreparedPlan;
use super::timer::Timer;
use crate::backends::Repeat;
use crate::backends::codegen::plan_shaders;
use crate::backends::run_memory::{RunMemory, label_slots};
use crate::backends::stages::{Stage, enter};
use crate::error::TensorResult;
use crate::events;
use crate::plan::{PipelineStats, Plan};
use std::collections::HashMap;
use std::sync::Arc;

/// Plans kept before dead ones are looked for.
const PLANS_BEFORE_SWEEP: usize = 256;

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
    /// Forgets every plan, so that the next run writes its shaders anew.
    pub fn forget(&mut self) {
        self.plans.clear();
    }

    /// Lets go of the bind groups of all plans, and with them of the buffers that they name.
    pub fn forget_groups(&mut self) {
        self.plans.values_mut().for_each(PreparedPlan::forget_groups);
    }

    fn prepare(&mut self, core: &Core, plan: &Arc<Plan>) -> TensorResult<PreparedPlan> {
        let shaders = plan_shaders(plan, &core.adapter.info_in_force(), core.quirks(), core.max_bindings)?;
        let compiled = self.pipelines.compile(core, shaders.iter().map(|(n, shader)| (shader, plan.steps[*n].name)))?;
        events::kernels_prepared(shaders.len(), compiled);
        PreparedPlan::new(core, plan, shaders.iter().filter_map(|(n, shader)| Some((*n, shader, self.pipelines.get(&shader.source)?))))
    }

    /// Prepares a plan unless it is prepared already.
    pub fn ready(&mut self, core: &Core, plan: &Arc<Plan>) -> TensorResult<()> {
        let key = Arc::as_ptr(plan) as usize;
        if self.plans.get(&key).is_none_or(|p| p.plan.upgrade().is_none()) {
            let _stage = enter(Stage::Compile);
            let p = self.prepare(core, plan)?;
            if self.plans.len() >= PLANS_BEFORE_SWEEP {
                self.plans.retain(|_, p| p.plan.strong_count() > 0);
            }
            self.plans.insert(key, p);
        }
        Ok(())
    }

    /// Encodes and submits a plan; with `repeated` as often as there are outputs, in one submit where the plan is one.
    pub fn run(
        &mut self,
        core: &Arc<Core>,
        plan: &Arc<Plan>,
        inputs: &[&GpuBuffer],
        outputs: &[&GpuBuffer],
        params: &[f64],
        repeated: Option<Repeat<'_>>,
    ) -> TensorResult<()> {
        let _stage = enter(Stage::Encode);
        let defer = core.queue.pending.may_defer();
        core.check()?;
        self.ready(core, plan)?;
        // A plan's uniforms are written before anything that waits for a submit; one that is being submitted holds the submit lock.
        core.queue.flush_deferred();
        let Some(p) = self.plans.get_mut(&(Arc::as_ptr(plan) as usize)) else { return Ok(()) };
        let whole = p.is_one_submit() && self.timer.is_none();
        let runs = if repeated.is_some() { outputs.len() } else { 1 };
        if let Some(repeated) = repeated.filter(|_| runs > 1 && !whole) {
            let (mut inputs, mut params) = (inputs.to_vec(), params.to_vec());
            for out in outputs {
                self.run(core, plan, &inputs, &[*out], &params, None)?;
                repeated.advance(&mut inputs, out, &mut params);
            }
            return Ok(());
        }
        p.write_uniforms(core, runs, params, repeated)?;
        self.leased.clear();
        for (n, bytes) in plan.slots.iter().enumerate() {
            let b = core.lease(*bytes, PRIVATE, p.slots[n])?;
            p.slots[n] = b.0.id();
            self.leased.push(b);
        }
        label_slots(&core.memory.pool, plan, self.leased.iter().map(|b| b.0.alloc_id));
        let labels = core.labels.then_some(&**plan);
        let mut encoder = whole.then(|| core.driver.encoder());
        for run in 0..runs {
            let memory = RunMemory { inputs, outputs, leased: &self.leased, repeated };
            // Bind groups first: making one can fail, and a pass once begun should not be dropped half way.
            p.bind(core, run, runs, |buf| memory.find(run, buf))?;
            if let Some(encoder) = &mut encoder {
                record_all(&mut encoder.begin_compute_pass(&Default::default()), &p.steps, labels, |_, _| {});
            }
        }
        core.records.expect(p.records);
        match (&mut self.timer, encoder) {
            (None, Some(encoder)) if defer => {
                let used = self.leased.drain(..).chain(inputs.iter().chain(outputs).map(|&b| b.clone())).collect();
                core.queue.defer(encoder, used);
            }
            (None, Some(encoder)) => core.queue.submit(encoder),
            (None, None) => submit(core, &p.steps, labels),
            (Some(t), _) => t.submit(core, plan, &p.steps)?,
        }
        // The queue keeps order: whoever gets these next writes after this run is done.
        self.leased.clear();
        core.check()
    }
}

/// Encodes and submits dispatches: one pass, and one submit unless the work is long.
fn submit(core: &Core, steps: &[Dispatch], labels: Option<&Plan>) {
    let mut rest = steps;
    while !rest.is_empty() {
        let end = rest.iter().position(|d| d.last).map_or(rest.len(), |e| e + 1);
        let (now, later) = rest.split_at(end);
        rest = later;
        let mut encoder = core.driver.encoder();
        record_all(&mut encoder.begin_compute_pass(&Default::default()), now, labels, |_, _| {});
        core.queue.submit(encoder);
    }
}
