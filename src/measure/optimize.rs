//! Memory optimization as one call: analysis of plans, the best order of buffers, defragmentation, and a check that results keep their bits.

use super::{ReuseHistogram, Stats};
use crate::device::{Defragmentation, Device};
use crate::error::{TensorError, TensorResult};
use crate::eval::{cached_plans, eval_all, plan_of, with_order};
use crate::plan::{BufferOrder, Plan};
use crate::tensor::Tensor;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// Runs of each side whose median is told.
const RUNS: usize = 5;

/// What a memory optimization found and did. See [`Device::optimize_memory`].
#[derive(Clone, Debug)]
pub struct MemoryPlanReport {
    /// Plans that were looked at.
    pub plans: usize,
    /// Planned bytes of each order and the bytes that are live at most in it, for the work that was given.
    pub orders: Vec<(BufferOrder, usize, usize)>,
    /// Planned bytes of intermediates in order [`BufferOrder::Program`]; `None` without work to plan.
    pub program_bytes: Option<usize>,
    /// Planned bytes of intermediates of the largest plan, as it is used from now on.
    pub planned_bytes: usize,
    /// The bytes that are live at most in that plan: its lower bound.
    pub most_live: usize,
    /// What caches are asked to hold in that plan: the bytes that it reads of intermediates, by the bytes moved since they were touched.
    pub reuse: ReuseHistogram,
    /// What the defragmentation did.
    pub defragmentation: Defragmentation,
    /// Whether the work gave the same bits before and after; `None` without work.
    pub same_bits: Option<bool>,
    /// Bytes allocated at most while the work ran, beyond what was before it: before and after.
    pub peaks: Option<[usize; 2]>,
    /// Median seconds of the work, before and after.
    pub seconds: Option<[f64; 2]>,
}

impl MemoryPlanReport {
    /// The planned bytes beyond those that are live at most, as a part of the latter.
    pub fn slack(&self) -> f64 {
        if self.most_live == 0 { 0.0 } else { self.planned_bytes as f64 / self.most_live as f64 - 1.0 }
    }
}

impl fmt::Display for MemoryPlanReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "plans: {} looked at", self.plans)?;
        for (order, planned, live) in &self.orders {
            let slack = if *live == 0 { 0.0 } else { 100.0 * (*planned as f64 / *live as f64 - 1.0) };
            writeln!(f, "  {:<10} {planned:>12} bytes planned, {live:>12} live at most, slack {slack:.1} %", order.name())?;
        }
        let before = self.program_bytes.map_or(String::new(), |b| format!("{b} -> "));
        writeln!(f, "planned: {before}{} bytes; bound {} (slack {:.1} %)", self.planned_bytes, self.most_live, 100.0 * self.slack())?;
        writeln!(f, "caches: of the bytes read of intermediates {}", self.reuse)?;
        let d = &self.defragmentation;
        writeln!(f, "before: {}\nafter: {}", d.before, d.after)?;
        writeln!(f, "defragmentation: {} bytes moved, {} given back, {:.3} s", d.moved_bytes, d.freed_bytes, d.seconds)?;
        if let Some([before, after]) = self.peaks {
            writeln!(f, "peak of a run: {before} -> {after} bytes")?;
        }
        if let Some([before, after]) = self.seconds {
            writeln!(f, "time of a run: {:.3} -> {:.3} ms", before * 1e3, after * 1e3)?;
        }
        if let Some(same) = self.same_bits {
            writeln!(f, "validation: {}", if same { "every bit is the same" } else { "other bits" })?;
        }
        Ok(())
    }
}

/// Of the largest plan the bytes that it takes, those that are live at most, and what it reads again.
fn planned(plans: &[Arc<Plan>]) -> (usize, usize, ReuseHistogram) {
    let largest = plans.iter().max_by_key(|p| p.planned_bytes());
    largest.map_or_else(Default::default, |p| (p.planned_bytes(), p.memory.most_live, ReuseHistogram::of([&**p])))
}

/// What some runs of a work gave and took.
struct Runs {
    bytes: Vec<u8>,
    peak: usize,
    seconds: f64,
}

fn run(device: &Device, work: &mut dyn FnMut() -> TensorResult<Tensor>) -> TensorResult<Runs> {
    let mut out = Runs { bytes: Vec::new(), peak: 0, seconds: 0.0 };
    let mut times = Vec::new();
    for n in 0..=RUNS {
        let result = work()?;
        device.synchronize()?;
        device.reset_peak_memory();
        let before = device.memory().peak_allocated;
        let start = Instant::now();
        eval_all(&[&result])?;
        device.synchronize()?;
        // The first run compiles kernels.
        if n > 0 {
            times.push(start.elapsed().as_secs_f64());
            out.peak = out.peak.max(device.memory().peak_allocated - before);
        }
        out.bytes = result.to_bytes()?;
    }
    out.seconds = Stats::of(times).map_or(0.0, |s| s.median);
    Ok(out)
}

impl Device {
    /// Looks at the plans that the device keeps, and gives memory back to the system ([`Device::defragment`] in three passes). Plans are in
    /// the best order already where `TL_ORDER` is unset ([`BufferOrder::Auto`]); the report says how close they are to their bound. Nothing is
    /// planned anew and nothing is run, since the inputs of plans are gone: orders are compared, and results validated bit for bit, by
    /// [`Device::optimize_memory_of`], which is given the work.
    ///
    /// # Errors
    /// Those of [`Device::defragment`].
    ///
    /// ```standalone_crate
    /// use tensorlogic::{DType, Device, Rng};
    /// let device = Device::cpu();
    /// let x = Rng::new(1).normal(&[64, 64], DType::F32, &device)?;
    /// x.matmul(&x)?.softmax(-1)?.matmul(&x)?.eval()?;
    /// let report = device.optimize_memory()?;
    /// assert!(report.plans > 0 && report.planned_bytes >= report.most_live);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn optimize_memory(&self) -> TensorResult<MemoryPlanReport> {
        let plans = cached_plans(self);
        let defragmentation = self.defragment(3)?;
        let (planned_bytes, most_live, reuse) = planned(&plans);
        Ok(MemoryPlanReport {
            plans: plans.len(),
            orders: Vec::new(),
            program_bytes: None,
            planned_bytes,
            most_live,
            reuse,
            defragmentation,
            same_bits: None,
            peaks: None,
            seconds: None,
        })
    }

    /// As [`Device::optimize_memory`], for one work: plans it in every order, runs it in program order, defragments, runs it again in order
    /// `Auto`, and compares the results bit for bit, with the peak and the time of both. `work` builds the same pending result at each call.
    ///
    /// # Errors
    /// Those of the work and of [`Device::defragment`]; [`TensorError::Internal`] if a bit of the result changed.
    ///
    /// ```standalone_crate
    /// use tensorlogic::{DType, Device, Rng};
    /// let device = Device::cpu();
    /// let x = Rng::new(1).normal(&[64, 64], DType::F32, &device)?;
    /// let report = device.optimize_memory_of(|| x.matmul(&x)?.softmax(-1)?.matmul(&x))?;
    /// assert!(report.same_bits == Some(true) && report.planned_bytes <= report.program_bytes.unwrap());
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn optimize_memory_of(&self, mut work: impl FnMut() -> TensorResult<Tensor>) -> TensorResult<MemoryPlanReport> {
        let before = with_order(BufferOrder::Program, || run(self, &mut work))?;
        let mut orders = Vec::new();
        let mut plan = None;
        for order in BufferOrder::ALL {
            // Evaluated, too: a work may go on from what the call before it left pending.
            plan = with_order(order, || -> TensorResult<_> {
                let result = work()?;
                let plan = plan_of(&[&result])?;
                result.eval()?;
                Ok(plan)
            })?;
            orders.extend(plan.iter().map(|p| (order, p.planned_bytes(), p.memory.most_live)));
        }
        let mut report = self.optimize_memory()?;
        let after = with_order(BufferOrder::Auto, || run(self, &mut work))?;
        if before.bytes != after.bytes {
            return Err(TensorError::Internal(format!("{}: results have other bits after the optimization of memory", self.name())));
        }
        (report.planned_bytes, report.most_live, report.reuse) = planned(plan.as_slice());
        report.program_bytes = orders.iter().find(|o| o.0 == BufferOrder::Program).map(|o| o.1);
        report.orders = orders;
        report.same_bits = Some(true);
        report.peaks = Some([before.peak, after.peak]);
        report.seconds = Some([before.seconds, after.seconds]);
        Ok(report)
    }
}
