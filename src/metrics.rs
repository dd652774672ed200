//! All counters of a device in one struct, as numbers with names for other programs: Prometheus' text and JSON.

mod file;

pub(crate) use file::watch;
#[cfg(all(test, feature = "gpu", feature = "text"))]
pub(crate) use file::write_once;

use crate::device::{BufferPoolStats, Device};
use crate::eval::{EvalStats, eval_stats};
use crate::plan::{PipelineStats, QueueStats, TransferStats};
use std::fmt::Write;
use std::time::Duration;

/// What a device did since it was opened, and holds now. See [`Device::metrics`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics {
    /// The device's name.
    pub device: String,
    /// Time since it was opened.
    pub uptime: Duration,
    /// The pool: memory in use, free memory, requests, limits.
    pub pool: BufferPoolStats,
    /// Evaluations, their plans and their work.
    pub plans: EvalStats,
    /// Compiled kernels.
    pub kernels: PipelineStats,
    /// What was moved between host and device.
    pub transfers: TransferStats,
    /// Submits and waits.
    pub queue: QueueStats,
    /// Tokens that models generated on the device.
    pub tokens: u64,
    /// How often work came to this device from one that was lost or full ([`Device::fallback`]).
    pub fallbacks: u64,
}

/// A number with a name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric {
    /// Its name, without a prefix: `pool_in_use_bytes`. Totals, which never fall, end with `_total`.
    pub name: &'static str,
    /// What it is.
    pub help: &'static str,
    /// Its value.
    pub value: f64,
}

impl Device {
    /// All counters of this device in one struct. It takes some locks for a moment; nothing is measured.
    ///
    /// ```
    /// # use tensorlogic::{Device, DType, Tensor};
    /// let device = Device::cpu();
    /// Tensor::ones(&[4], DType::F32, &device)?.add(1.0)?.to_vec()?;
    /// let metrics = device.metrics();
    /// assert!(metrics.plans.evaluations > 0 && metrics.pool.allocation_count > 0);
    /// assert!(metrics.to_prometheus().contains("tensorlogic_evaluations_total{device=\"cpu"));
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn metrics(&self) -> Metrics {
        Metrics {
            device: self.name(),
            uptime: self.opened().elapsed(),
            pool: self.buffer_pool_stats(),
            plans: eval_stats(self),
            kernels: self.pipeline_stats(),
            transfers: self.transfers(),
            queue: self.queue_stats(),
            tokens: self.tokens(),
            fallbacks: self.fallbacks(),
        }
    }
}

impl Metrics {
    /// The numbers by name. A limit that is not set is left out.
    pub fn values(&self) -> Vec<Metric> {
        let (pool, plans, moved, queue) = (&self.pool, &self.plans, &self.transfers, &self.queue);
        let metric = |name, help, value| Metric { name, help, value };
        let mut all = vec![
            metric("uptime_seconds", "Time since the device was opened", self.uptime.as_secs_f64()),
            metric("pool_in_use_bytes", "Memory of tensors and running plans, mapped files included", pool.in_use as f64),
            metric("pool_mapped_bytes", "The part of it that is read in place", pool.mapped as f64),
            metric("pool_peak_bytes", "Peak of memory in use", pool.peak as f64),
            metric("pool_peak_allocated_bytes", "Peak of allocated memory, to which the limit applies", pool.peak_allocated as f64),
            metric("pool_free_bytes", "Memory kept for reuse", pool.total_memory as f64),
            metric("pool_free_buffers", "Buffers kept for reuse", pool.total_pooled as f64),
            metric("pool_cache_limit_bytes", "Limit of memory kept for reuse", pool.cache_limit as f64),
            metric("pool_requests_total", "Requests for memory", pool.allocation_count as f64),
            metric("pool_reused_total", "Requests served by free buffers", pool.reuse_count as f64),
            metric("evaluations_total", "Evaluations", plans.evaluations as f64),
            metric("plan_hits_total", "Evaluations whose plan was known", plans.hits as f64),
            metric("plan_misses_total", "Evaluations that compiled a plan", plans.misses as f64),
            metric("plan_evictions_total", "Plans dropped from the cache", plans.evicted as f64),
            metric("plans", "Plans in the cache", plans.plans as f64),
            metric("replays_total", "Evaluations replayed without a graph", plans.repeats as f64),
            metric("host_evaluations_total", "Small evaluations that ran on the CPU instead", plans.on_host as f64),
            metric("chain_cuts_total", "Evaluations that went on from a value which the host had read", plans.cut as f64),
            metric("dispatches_total", "Dispatches", plans.steps as f64),
            metric("elements_total", "Elements read, written or computed", plans.elements as f64),
            metric("operations_total", "Floating-point operations of kernels", plans.operations as f64),
            metric("kernels", "Compiled kernels", self.kernels.pipelines as f64),
            metric("kernels_found", "Those that came from an earlier process's file", self.kernels.found as f64),
            metric("kernel_compile_seconds_total", "Time spent compiling kernels", self.kernels.seconds),
            metric("uploads_total", "Values brought to the device", moved.uploads as f64),
            metric("uploaded_bytes_total", "Their bytes", moved.uploaded_bytes as f64),
            metric("staging_writes_total", "Writes of staging memory", moved.staging_writes as f64),
            metric("in_place_writes_total", "Writes into memory that host and device share", moved.in_place_writes as f64),
            metric("downloads_total", "Values brought to the host", moved.downloads as f64),
            metric("downloaded_bytes_total", "Their bytes", moved.downloaded_bytes as f64),
            metric("in_place_reads_total", "Reads from memory that host and device share", moved.in_place_reads as f64),
            metric("submits_total", "Submits", queue.submits as f64),
            metric("waits_total", "Waits of the host for the device", queue.waits as f64),
            metric("wait_seconds_total", "Time that the host waited", queue.wait_seconds),
            metric("synchronizations_total", "Waits for everything that the program asked for", queue.synchronizations as f64),
            metric("tokens_total", "Tokens generated", self.tokens as f64),
            metric("fallbacks_total", "Times that work came here from a device which was lost or full", self.fallbacks as f64),
        ];
        all.extend(pool.limit.map(|limit| metric("pool_limit_bytes", "Limit of allocated memory", limit as f64)));
        all
    }

    /// The text that Prometheus reads: each number with its help, its type and the device as a label.
    pub fn to_prometheus(&self) -> String {
        prometheus(std::slice::from_ref(self))
    }

    /// The device's name and the numbers by name, as one JSON object.
    pub fn to_json(&self) -> serde_json::Value {
        let values = self.values().into_iter().map(|m| (m.name.to_string(), m.value.into()));
        serde_json::Value::Object([("device".to_string(), self.device.clone().into())].into_iter().chain(values).collect())
    }
}

/// The text that Prometheus reads, of several devices.
pub(crate) fn prometheus(all: &[Metrics]) -> String {
    let escaped = |name: &str| name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let devices: Vec<(String, Vec<Metric>)> = all.iter().map(|m| (escaped(&m.device), m.values())).collect();
    // Every device has the same numbers, but for those that are not known of all.
    let mut names: Vec<Metric> = Vec::new();
    for m in devices.iter().flat_map(|d| &d.1) {
        if !names.iter().any(|n| n.name == m.name) {
            names.push(*m);
        }
    }
    let mut out = String::new();
    for Metric { name, help, .. } in names {
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        let _ = writeln!(out, "# HELP tensorlogic_{name} {help}.\n# TYPE tensorlogic_{name} {kind}");
        for (device, values) in &devices {
            for m in values.iter().filter(|m| m.name == name) {
                let _ = writeln!(out, "tensorlogic_{name}{{device=\"{device}\"}} {}", m.value);
            }
        }
    }
    out
}
