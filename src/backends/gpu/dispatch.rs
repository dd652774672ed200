//! One step of a plan ready to be recorded: its pipeline, its uniforms, its bind groups.

use super::core::Core;
use super::memory::GpuBuffer;
use super::pipelines::Pipeline;
use crate::backends::codegen::Bound;
use crate::backends::codegen::StepShader;
use crate::error::{TensorError, TensorResult};
use crate::plan::{Buf, Plan, WINDOW_UNIT};
use smallvec::SmallVec;
use std::sync::Arc;

/// A step, ready to be recorded.
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

/// The buffer of a plan's uniforms, and where those of a run begin in it, in bytes.
#[derive(Clone, Copy)]
pub(super) struct UniformBlock<'a> {
    pub block: &'a wgpu::Buffer,
    pub start: u64,
}

impl Dispatch {
    /// A step that reports to an error record, and whose uniforms begin at word `start`; with its place in the plan and its name.
    pub fn new(pipeline: Arc<Pipeline>, shader: &StepShader, record: usize, start: usize, (step, name): (usize, &'static str)) -> Dispatch {
        Dispatch {
            pipeline,
            buffers: shader.views.iter().map(|v| if let Bound::Errors(_) = v.buf { Bound::Errors(record) } else { v.buf }).collect(),
            grid: shader.grid,
            start: start as u64 * 4,
            bytes: shader.rows() as u64 * 16,
            groups: SmallVec::new(),
            next: 0,
            newest: 0,
            last: false,
            name,
            step,
        }
    }

    /// Lets go of the bind groups, where the uniforms lie in another buffer now.
    pub fn forget_groups(&mut self) {
        self.groups.clear();
    }

    /// Finds or makes the bind group of a run; at most `kept` groups are kept.
    pub fn bind<'b>(
        &mut self,
        core: &Core,
        uniforms: UniformBlock<'_>,
        run: usize,
        kept: usize,
        find: impl Fn(Buf) -> Option<&'b GpuBuffer>,
    ) -> TensorResult<()> {
        let missing = || TensorError::Internal("a plan was run with fewer buffers than it names".into());
        let mut ids: SmallVec<[u64; 8]> = SmallVec::from_slice(&[run as u64]);
        for b in &self.buffers {
            ids.push(match b {
                Bound::Plan(b) => find(*b).ok_or_else(missing)?.0.id(),
                Bound::Errors(_) | Bound::Scratch | Bound::Codebooks => 0,
            });
        }
        if let Some(at) = self.groups.iter().position(|g| g.0 == ids) {
            self.next = at;
            return Ok(());
        }
        let whole = |buffer, offset, size| wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset, size });
        let mut raws: SmallVec<[Option<wgpu::Buffer>; 8]> = SmallVec::new();
        for b in &self.buffers {
            raws.push(if let Bound::Plan(b) = b { Some(find(*b).ok_or_else(missing)?.0.raw()) } else { None });
        }
        let mut entries: SmallVec<[wgpu::BindGroupEntry<'_>; 8]> = SmallVec::new();
        let own = whole(uniforms.block, uniforms.start + self.start, std::num::NonZeroU64::new(self.bytes));
        entries.push(wgpu::BindGroupEntry { binding: 0, resource: own });
        for (n, b) in self.buffers.iter().enumerate() {
            let buffer = match (&raws[n], b) {
                (Some(raw), _) => raw,
                (None, Bound::Errors(n)) => core.records.buffer(*n),
                (None, Bound::Codebooks) => &core.codebooks,
                (None, _) => &core.scratch,
            };
            let (start, size) = part(*b, buffer.size());
            entries.push(wgpu::BindGroupEntry { binding: n as u32 + 1, resource: whole(buffer, start, size) });
        }
        let descriptor = wgpu::BindGroupDescriptor { label: None, layout: &self.pipeline.layout, entries: &entries };
        let made = core.driver.guarded(|| core.driver.device.create_bind_group(&descriptor));
        let group = made.map_err(|e| core.driver.refused(format!("{}: {e}", self.name)))?;
        if self.groups.len() < kept {
            self.next = self.groups.len();
            self.groups.push((ids, group));
        } else {
            self.next = (self.newest + 1) % self.groups.len();
            self.groups[self.next] = (ids, group);
        }
        self.newest = self.next;
        Ok(())
    }
}

/// The part of a buffer of `bytes` that is bound: where it begins, and its size unless it is all of it.
fn part(bound: Bound, bytes: u64) -> (u64, Option<std::num::NonZeroU64>) {
    let Bound::Plan(buf @ Buf::Window { units, .. }) = bound else { return (0, None) };
    let start = buf.start() as u64;
    (start, std::num::NonZeroU64::new((u64::from(units) * WINDOW_UNIT as u64).min(bytes.saturating_sub(start))))
}

/// Records dispatches of a plan in a pass; `after` follows each of them. With the plan given as `labels`, captures show each in a group that
/// has its step's label.
pub(super) fn record_all(
    pass: &mut wgpu::ComputePass<'_>,
    steps: &[Dispatch],
    labels: Option<&Plan>,
    after: impl Fn(&mut wgpu::ComputePass<'_>, usize),
) {
    let mut current: *const Pipeline = std::ptr::null();
    for (n, d) in steps.iter().enumerate() {
        if !std::ptr::eq(current, Arc::as_ptr(&d.pipeline)) {
            pass.set_pipeline(&d.pipeline.raw);
            current = Arc::as_ptr(&d.pipeline);
        }
        pass.set_bind_group(0, &d.groups[d.next].1, &[]);
        if let Some(plan) = labels {
            pass.push_debug_group(&plan.steps[d.step].label());
        }
        pass.dispatch_workgroups(d.grid[0], d.grid[1], d.grid[2]);
        if labels.is_some() {
            pass.pop_debug_group();
        }
        after(pass, n);
    }
}
