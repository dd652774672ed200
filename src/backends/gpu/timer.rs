//! Timestamps of the GPU's own clock around runs or around each of their steps, read when timing ends.

use super::core::Core;
use super::dispatch::{Dispatch, record_all};
use crate::error::TensorResult;
use crate::plan::{Plan, RunTimes, Timing};
use std::sync::Arc;
use std::time::Instant;

/// Timestamps of one query set.
const QUERIES: u32 = wgpu::QUERY_SET_MAX_QUERIES;

/// What two timestamps stand around.
struct Mark {
    /// The run, and the step's place in its plan; without a step, a part of the run.
    run: usize,
    step: Option<usize>,
    set: usize,
    from: u32,
    to: u32,
}

/// Timing that is going on.
pub(super) struct Timer {
    detail: Timing,
    /// Whether timestamps may stand between the dispatches of a pass.
    inside: bool,
    /// Whether the GPU has timestamps at all.
    able: bool,
    sets: Vec<(wgpu::QuerySet, u32)>,
    runs: Vec<RunTimes>,
    marks: Vec<Mark>,
}

impl Timer {
    pub fn new(core: &Core, detail: Timing) -> Timer {
        let has = |f| core.driver.device.features().contains(f);
        Timer {
            detail,
            able: has(wgpu::Features::TIMESTAMP_QUERY),
            inside: has(wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES),
            sets: vec![],
            runs: vec![],
            marks: vec![],
        }
    }

    /// Room for `count` timestamps in one set: the set and the first.
    fn queries(&mut self, core: &Core, count: u32) -> TensorResult<(usize, u32)> {
        if self.sets.last().is_none_or(|s| s.1 + count > QUERIES) {
            let descriptor = wgpu::QuerySetDescriptor { label: Some("times"), ty: wgpu::QueryType::Timestamp, count: QUERIES };
            let set = core.driver.guarded(|| core.driver.device.create_query_set(&descriptor)).map_err(|e| core.driver.refused(e))?;
            self.sets.push((set, 0));
        }
        let at = self.sets.len() - 1;
        let first = self.sets[at].1;
        self.sets[at].1 += count;
        Ok((at, first))
    }

    /// Encodes and submits the dispatches of a plan as a plain run does, with timestamps.
    pub fn submit(&mut self, core: &Core, plan: &Arc<Plan>, steps: &[Dispatch]) -> TensorResult<()> {
        let host = Instant::now();
        let run = self.runs.len();
        let labels = (core.labels || self.detail == Timing::Steps).then_some(&**plan);
        let most = if self.detail == Timing::Runs || !self.able { usize::MAX } else { QUERIES as usize / 2 - 1 };
        let mut rest = steps;
        while !rest.is_empty() {
            let end = rest.iter().position(|d| d.last).map_or(rest.len(), |e| e + 1).min(most);
            let (now, later) = rest.split_at(end);
            rest = later;
            let mut encoder = core.driver.encoder();
            if !self.able {
                record_all(&mut encoder.begin_compute_pass(&Default::default()), now, labels, |_, _| {});
            } else if self.detail == Timing::Runs || self.inside {
                let each = self.detail == Timing::Steps;
                let (set, first) = self.queries(core, if each { now.len() as u32 + 1 } else { 2 })?;
                let queries = &self.sets[set].0;
                let writes = wgpu::ComputePassTimestampWrites {
                    query_set: queries,
                    beginning_of_pass_write_index: Some(first),
                    end_of_pass_write_index: (!each).then_some(first + 1),
                };
                let descriptor = wgpu::ComputePassDescriptor { label: None, timestamp_writes: Some(writes) };
                record_all(&mut encoder.begin_compute_pass(&descriptor), now, labels, |pass, n| {
                    if each {
                        pass.write_timestamp(queries, first + 1 + n as u32);
                    }
                });
                match each {
                    false => self.marks.push(Mark { run, step: None, set, from: first, to: first + 1 }),
                    true => self.marks.extend(now.iter().enumerate().map(|(n, d)| {
                        let from = first + n as u32;
                        Mark { run, step: Some(d.step), set, from, to: from + 1 }
                    })),
                }
            } else {
                let (set, first) = self.queries(core, 2 * now.len() as u32)?;
                for (n, d) in now.iter().enumerate() {
                    let from = first + 2 * n as u32;
                    let writes = wgpu::ComputePassTimestampWrites {
                        query_set: &self.sets[set].0,
                        beginning_of_pass_write_index: Some(from),
                        end_of_pass_write_index: Some(from + 1),
                    };
                    let descriptor = wgpu::ComputePassDescriptor { label: None, timestamp_writes: Some(writes) };
                    record_all(&mut encoder.begin_compute_pass(&descriptor), std::slice::from_ref(d), labels, |_, _| {});
                    self.marks.push(Mark { run, step: Some(d.step), set, from, to: from + 1 });
                }
            }
            core.queue.submit(encoder);
        }
        self.runs.push(RunTimes::since(host, plan));
        Ok(())
    }

    /// Waits for everything timed and reads its timestamps.
    pub fn finish(mut self, core: &Core) -> TensorResult<Vec<RunTimes>> {
        let period = core.driver.queue.get_timestamp_period() as f64 * 1e-9;
        let mut ticks = Vec::with_capacity(self.sets.len());
        for (set, used) in &self.sets {
            let bytes = *used as u64 * 8;
            let usage = wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC;
            let resolved = core.driver.buffer("times", bytes.max(16), usage)?;
            let mut encoder = core.driver.encoder();
            encoder.resolve_query_set(set, 0..*used, &resolved, 0);
            core.queue.send(Some(encoder.finish()));
            let mut t = vec![0u64; *used as usize];
            core.fetch(&mut None, Some((&resolved, 0, bytes)), 0, |b| {
                bytemuck::cast_slice_mut::<_, u8>(&mut t).copy_from_slice(b);
            })?;
            ticks.push(t);
        }
        // Seconds from the first timestamp on: as they are, the numbers are too large for their last digits.
        let first = self.marks.iter().map(|m| ticks[m.set][m.from as usize]).min().unwrap_or(0);
        for m in &self.marks {
            self.runs[m.run].add(m.step, [m.from, m.to].map(|n| ticks[m.set][n as usize].saturating_sub(first) as f64 * period));
        }
        core.queue.wait()?;
        Ok(self.runs)
    }
}
