//! Every event and span that the library emits through `tracing`: level, target, fields and meaning, in this one list.
//!
//! An event is emitted by calling the function of its name. Without a subscriber, or below its level, that is the load of one static number;
//! without the feature `tracing`, nothing. The library installs no subscriber and prints nothing.

mod host;
#[cfg(all(test, feature = "gpu", feature = "text"))]
mod tests;

pub use host::HostSpan;
pub(crate) use host::{HostSpans, record_host_spans};

use std::cell::Cell;
use std::time::Instant;

/// A kind of event or span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventKind {
    /// Its name, which is the name in its metadata: `plan.missed`.
    pub name: &'static str,
    /// `error`, `warn`, `info`, `debug` or `trace`.
    pub level: &'static str,
    /// What happened.
    pub what: &'static str,
    /// Whether it lasts: a span.
    pub span: bool,
    /// Whether only GPUs emit it.
    pub gpu: bool,
}

/// The level's name in [`EventKind`].
macro_rules! level_name {
    (ERROR) => {
        "error"
    };
    (WARN) => {
        "warn"
    };
    (INFO) => {
        "info"
    };
    (DEBUG) => {
        "debug"
    };
    (TRACE) => {
        "trace"
    };
}

macro_rules! registry {
    (
        events { $($what:literal $level:ident $target:literal $gpu:literal $name:literal $event:ident($($field:ident: $type:ty),*);)* }
        spans { $($span_what:literal $span_level:ident $span_gpu:literal $span_name:literal $span:ident;)* }
    ) => {
        /// Every kind of event and span.
        pub const KINDS: &[EventKind] = &[
            $(EventKind { name: $name, level: level_name!($level), what: $what, span: false, gpu: $gpu },)*
            $(EventKind { name: $span_name, level: level_name!($span_level), what: $span_what, span: true, gpu: $span_gpu },)*
        ];

        $(
            #[doc = $what]
            #[inline]
            #[cfg_attr(not(all(feature = "gpu", feature = "text")), allow(dead_code))]
            pub(crate) fn $event($($field: $type),*) {
                #[cfg(feature = "tracing")]
                tracing::event!(name: $name, target: concat!("tensorlogic::", $target), tracing::Level::$level, $($field,)* $what);
                #[cfg(not(feature = "tracing"))]
                let _ = ($($field,)*);
            }
        )*

        /// What a span stands for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(not(feature = "gpu"), allow(dead_code))]
        pub(crate) enum SpanKind {
            $(#[doc = $span_what] $span,)*
        }

        impl SpanKind {
            /// The span's name.
            pub fn name(self) -> &'static str {
                match self {
                    $(SpanKind::$span => $span_name,)*
                }
            }

            #[cfg(feature = "tracing")]
            fn enter(self) -> tracing::span::EnteredSpan {
                match self {
                    $(SpanKind::$span => tracing::span!(target: "tensorlogic::span", tracing::Level::$span_level, $span_name).entered(),)*
                }
            }
        }
    };
}

registry! {
    events {
        "a device was opened" INFO "device" false "device.opened" device_opened(device: &str);
        "no hardware GPU was found: `auto` means the CPU" INFO "device" false "device.fallback" device_fallback(reason: &str);
        "a device was lost or is full: work continues on another one" WARN "device" false "device.left" device_left(from: &str, to: &str, reason: &str);
        "the device is lost" ERROR "device" true "device.lost" device_lost(device: &str, reason: &str);
        "the driver refused a command" ERROR "device" true "device.refused" device_refused(device: &str, message: &str);
        "the program waited for all submitted work" TRACE "device" false "device.synchronized" device_synchronized();
        "a tuning table is in force" DEBUG "device" true "device.tuned" device_tuned(device: &str, table: &str);
        "adaptive execution was turned on or off" DEBUG "device" false "device.adaptive" adaptive_changed(on: bool);
        "the crossover between CPU and GPU was measured" INFO "device" false "crossover.measured" crossover_measured(round_trip_s: f64, host_s: f64);
        "the crossover was found in the cache folder" DEBUG "device" false "crossover.found" crossover_found(round_trip_s: f64, host_s: f64);
        "a plan was found" TRACE "eval" false "plan.hit" plan_hit(nodes: usize);
        "no plan fits: one is compiled" DEBUG "eval" false "plan.missed" plan_missed(nodes: usize, plans: usize);
        "a plan was compiled" DEBUG "eval" false "plan.compiled" plan_compiled(steps: usize, slots: usize, slot_bytes: usize);
        "the least recently used plan was dropped" DEBUG "eval" false "plan.evicted" plan_evicted(plans: usize);
        "an evaluation ran" TRACE "eval" false "eval.done" evaluated(nodes: usize, dispatches: usize, on_host: bool);
        "a graph is evaluated in parts" DEBUG "eval" false "eval.split" evaluation_split(nodes: usize);
        "small work of a GPU ran on the CPU" TRACE "eval" true "eval.on_host" ran_on_host(elements: u64, operations: u64);
        "a stored value that was read before is computed on: the read cut a chain" TRACE "eval" false "eval.cut" chain_cut(file: &str, line: u32);
        "the steps of a generation are known and can be replayed" DEBUG "eval" false "replay.recorded" replay_recorded(dispatches: usize);
        "steps of a generation were replayed" TRACE "eval" false "replay.run" replayed(steps: usize);
        "a tensor was overwritten in place" TRACE "eval" false "value.overwritten" value_overwritten(bytes: usize);
        "memory was requested from the system" DEBUG "memory" false "buffer.made" buffer_made(bytes: usize, asked: usize);
        "a free buffer was reused" TRACE "memory" false "buffer.reused" buffer_reused(bytes: usize, asked: usize);
        "a buffer returned to the pool" TRACE "memory" false "buffer.returned" buffer_returned(bytes: usize);
        "a buffer returned to the system: the pool may not keep it" DEBUG "memory" false "buffer.freed" buffer_freed(bytes: usize);
        "free buffers were returned to the system" DEBUG "memory" false "buffer.evicted" buffers_evicted(buffers: usize);
        "memory is read in place" TRACE "memory" false "memory.mapped" memory_mapped(bytes: usize);
        "memory is no longer read in place" TRACE "memory" false "memory.unmapped" memory_unmapped(bytes: usize);
        "the pool was shrunk" DEBUG "memory" false "pool.shrunk" pool_shrunk(bytes: usize);
        "memory was given back to the system, and values moved for it" DEBUG "memory" false "memory.defragmented" defragmented(moved: u64, freed: u64);
        "the limits of memory were changed" DEBUG "memory" false "pool.limits" limits_changed(limit: usize, cache: usize);
        "the system had no room: the pool is emptied and the request repeated" WARN "memory" false "memory.retried" allocation_retried(bytes: usize);
        "a request for memory failed" WARN "memory" false "memory.out" out_of_memory(device: &str, asked: usize, in_use: usize);
        "a recording of memory began or ended" DEBUG "memory" false "memory.recording" memory_recording(on: bool);
        "a plan's kernels are ready" DEBUG "kernels" true "kernels.prepared" kernels_prepared(dispatches: usize, compiled: usize);
        "a kernel was compiled" DEBUG "kernels" true "kernel.compiled" kernel_compiled(op: &str, bytes: usize);
        "the kernels of a plan were compiled before" TRACE "kernels" true "kernel.found" kernels_found(kernels: usize);
        "a kernel could not be compiled" ERROR "kernels" true "kernel.failed" kernel_failed(op: &str, error: &str);
        "the file of compiled kernels was opened" DEBUG "kernels" true "kernel_cache.opened" kernel_cache_opened(kernels: usize, bytes: usize);
        "the file of compiled kernels was written" DEBUG "kernels" true "kernel_cache.saved" kernel_cache_saved(bytes: usize);
        "bytes were uploaded" TRACE "transfer" true "upload" uploaded(bytes: usize);
        "small uploads were joined" TRACE "transfer" true "upload.joined" uploads_joined(pieces: usize, bytes: usize);
        "bytes were written where host and device share memory" TRACE "transfer" true "upload.in_place" written_in_place(bytes: usize);
        "bytes are downloaded" TRACE "transfer" true "download" downloaded(bytes: usize);
        "bytes were read where host and device share memory" TRACE "transfer" true "download.in_place" read_in_place(bytes: usize);
        "commands were submitted" TRACE "queue" true "queue.submitted" submitted();
        "a run waits for the read that follows it" TRACE "queue" true "queue.held" run_deferred();
        "the host waited for the device" TRACE "queue" true "queue.waited" waited(seconds: f64);
        "an index in the data is out of range" ERROR "eval" true "index.bad" bad_index(op: &str, index: i64);
        "runs are timed from now on" DEBUG "profile" false "timing.started" timing_started();
        "timing ended" DEBUG "profile" false "timing.finished" timing_finished(runs: usize);
        "a cycle of a scheduled profile is complete" DEBUG "profile" false "profile.cycle" profile_cycle(cycle: usize, runs: usize);
        "a file was opened" DEBUG "io" false "file.opened" file_opened(format: &str, path: &str, bytes: usize);
        "a file was saved" DEBUG "io" false "file.saved" file_saved(path: &str);
        "a model was loaded" INFO "models" false "model.loaded" model_loaded(architecture: &str, layers: usize, context: usize);
        "a part of a model is left out: what it is for is not implemented" INFO "models" false "model.part_left_out" part_left_out(part: &str, tensors: usize, bytes: u64);
        "a chunk of a prompt was read" DEBUG "models" false "prompt.chunk" prompt_chunk(tokens: usize, position: usize);
        "a token was generated" TRACE "models" false "token" token(id: u32);
        "a generation ended" DEBUG "models" false "generation.ended" generation_ended(tokens: usize);
        "a padded batch ran through a model" DEBUG "models" false "inference.run" inference_run(rows: usize, columns: usize);
        "gradients were built" DEBUG "train" false "backward" backward(nodes: usize);
        "an optimizer updated the parameters" DEBUG "train" false "optimizer.step" optimizer_step(parameters: usize, lr: f64);
        "a batch was loaded" TRACE "train" false "batch.loaded" batch_loaded(fields: usize);
        "out of memory: batches are computed in more parts" WARN "train" false "batch.split" batch_split(parts: usize);
        "a checkpoint is on disk" INFO "train" false "checkpoint.saved" checkpoint_saved(step: u64);
        "a checkpoint is damaged and was skipped" WARN "train" false "checkpoint.damaged" checkpoint_damaged(step: u64);
        "a problem of the running program" WARN "diagnosis" false "diagnosis.finding" finding(what: &str, evidence: &str);
        "more memory is held than at the baseline" WARN "diagnosis" false "leak.found" leak_found(bytes: usize, holders: usize);
        "a scope ended, and memory of it is still held" DEBUG "diagnosis" false "scope.outlived" scope_outlived(bytes: usize, holders: usize);
        "metrics were written" TRACE "diagnosis" false "metrics.written" metrics_written(path: &str);
    }
    spans {
        "an evaluation, from graph to submit" DEBUG false "evaluation" Evaluation;
        "pending nodes are collected and their structure is hashed" TRACE false "collect" Collect;
        "a graph becomes a plan, or a plan's kernels are made" DEBUG false "compile" Compile;
        "pass: common subexpressions" TRACE false "pass.common" PassCommon;
        "pass: fusion, and emission of steps" TRACE false "pass.fuse" PassFuse;
        "pass: independent elementwise steps are fused" TRACE false "pass.siblings" PassSiblings;
        "pass: steps are ordered for memory" TRACE false "pass.order" PassOrder;
        "pass: products that share their left side are fused" TRACE true "pass.products" PassProducts;
        "pass: intermediates are assigned to slots" TRACE false "pass.memory" PassMemory;
        "inputs are checked, and a graph is built" DEBUG false "prepare" Prepare;
        "memory is bound and commands are recorded" TRACE false "encode" Encode;
        "commands are handed to the driver" TRACE true "submit" Submit;
        "steps run on the CPU, or the device is waited for" TRACE false "execute" Execute;
        "the host waits for the device" TRACE true "wait" Wait;
        "results are copied to the host" TRACE false "read" Read;
    }
}

thread_local! {
    /// How many spans this thread is in, of those that are recorded.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// A span that somebody looks at.
struct Entered {
    kind: SpanKind,
    start: Option<Instant>,
    #[cfg(feature = "tracing")]
    _traced: tracing::span::EnteredSpan,
}

/// Ends its span when dropped.
#[must_use]
pub(crate) struct Span(Option<Box<Entered>>);

impl Drop for Span {
    fn drop(&mut self) {
        if let Some((kind, start)) = self.0.as_ref().and_then(|e| Some((e.kind, e.start?))) {
            DEPTH.set(DEPTH.get() - 1);
            host::add(kind, DEPTH.get(), start);
        }
    }
}

/// Whether a subscriber may look at spans.
#[inline]
fn traced() -> bool {
    #[cfg(feature = "tracing")]
    return tracing::level_filters::LevelFilter::current() >= tracing::Level::DEBUG;
    #[cfg(not(feature = "tracing"))]
    return false;
}

/// Enters a span, until the result is dropped. Does nothing where nobody looks.
#[inline]
pub(crate) fn span(kind: SpanKind) -> Span {
    if !traced() && !host::recording() { Span(None) } else { enter(kind) }
}

#[cold]
fn enter(kind: SpanKind) -> Span {
    let start = host::recording().then(Instant::now);
    DEPTH.set(DEPTH.get() + start.is_some() as u32);
    Span(Some(Box::new(Entered {
        kind,
        start,
        #[cfg(feature = "tracing")]
        _traced: kind.enter(),
    })))
}
