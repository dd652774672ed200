//! What the server counts, as Prometheus's text. Names and meanings are vLLM's, with `tl_` in front, where vLLM has them.

use super::Server;
use hyper::StatusCode;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use tensorlogic::serving::Distribution;

#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }
}

/// What routers read of a replica, by vLLM's names: gateways' endpoint pickers ask for these.
const ROUTED: [&str; 3] = ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"];
/// Upper bounds of times to a first token and of whole requests, in seconds.
const LONG: &[f64] = &[0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.25, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0];
/// Those of times between tokens.
const SHORT: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5];

/// How often durations were below each bound.
struct Histogram {
    bounds: &'static [f64],
    counts: Vec<AtomicU64>,
    nanoseconds: AtomicU64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Histogram {
        Histogram { bounds, counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(), nanoseconds: AtomicU64::new(0) }
    }
    fn observe(&self, from: Instant, to: Instant) {
        let time = to.saturating_duration_since(from);
        let at = self.bounds.partition_point(|&b| b < time.as_secs_f64());
        self.counts[at].fetch_add(1, Relaxed);
        self.nanoseconds.fetch_add(time.as_nanos() as u64, Relaxed);
    }
    fn write(&self, name: &str, help: &str, out: &mut String) {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} histogram");
        let mut sum = 0;
        for (i, count) in self.counts.iter().enumerate() {
            sum += count.load(Relaxed);
            let bound = self.bounds.get(i).map_or("+Inf".to_string(), f64::to_string);
            let _ = writeln!(out, "{name}_bucket{{le=\"{bound}\"}} {sum}");
        }
        let seconds = self.nanoseconds.load(Relaxed) as f64 / 1e9;
        let _ = writeln!(out, "{name}_sum {seconds}\n{name}_count {sum}");
    }
}

/// A histogram of the engine's.
fn distribution(name: &str, help: &str, d: &Distribution, out: &mut String) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} histogram");
    let mut count = 0;
    for (i, n) in d.counts().iter().enumerate() {
        count += n;
        let bound = d.bounds().get(i).map_or("+Inf".to_string(), f64::to_string);
        let _ = writeln!(out, "{name}_bucket{{le=\"{bound}\"}} {count}");
    }
    let _ = writeln!(out, "{name}_sum {}\n{name}_count {count}", d.sum());
}

/// All counts.
pub struct Metrics {
    pub prompt_tokens: Counter,
    generated: Counter,
    /// Answers by why they ended.
    finished: Mutex<BTreeMap<&'static str, u64>>,
    /// Requests by route and status.
    requests: Mutex<BTreeMap<(&'static str, u16), u64>>,
    /// Requests that got an error, by its kind.
    rejected: Mutex<BTreeMap<&'static str, u64>>,
    first_token: Histogram,
    between_tokens: Histogram,
    whole: Histogram,
    /// Kernels that any device compiled at most.
    pipelines: AtomicUsize,
    pub connections: AtomicUsize,
    pub connections_refused: Counter,
}

impl Metrics {
    pub fn new() -> Metrics {
        Metrics {
            prompt_tokens: Counter::default(),
            generated: Counter::default(),
            finished: Mutex::default(),
            requests: Mutex::default(),
            rejected: Mutex::default(),
            first_token: Histogram::new(LONG),
            between_tokens: Histogram::new(SHORT),
            whole: Histogram::new(LONG),
            pipelines: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            connections_refused: Counter::default(),
        }
    }

    /// A token came: the first of its answer, or the one after the token at `last`.
    pub fn token(&self, last: Option<Instant>, begun: Instant, at: Instant) {
        self.generated.add(1);
        match last {
            Some(last) => self.between_tokens.observe(last, at),
            None => self.first_token.observe(begun, at),
        }
    }

    /// An answer ended.
    pub fn finished(&self, reason: &'static str, begun: Instant) {
        self.whole.observe(begun, Instant::now());
        *self.finished.lock().unwrap_or_else(PoisonError::into_inner).entry(reason).or_default() += 1;
    }

    pub fn request(&self, route: &'static str, status: StatusCode) {
        *self.requests.lock().unwrap_or_else(PoisonError::into_inner).entry((route, status.as_u16())).or_default() += 1;
    }

    /// A request got an error of this kind.
    pub fn rejected(&self, reason: &'static str) {
        *self.rejected.lock().unwrap_or_else(PoisonError::into_inner).entry(reason).or_default() += 1;
    }

    /// All of them, with what the engine counts.
    pub fn text(&self, server: &Server) -> String {
        let s = server.models.stats();
        let used = s.pages.saturating_sub(s.pages_available) as f64 / s.pages.max(1) as f64;
        let hosts = server.models.loaded();
        // Models may share a device.
        let pipelines = hosts.iter().map(|h| h.device.pipeline_stats().pipelines).max().unwrap_or(0);
        let pipelines = self.pipelines.fetch_max(pipelines, Relaxed).max(pipelines);
        let round = server.models.in_round().unwrap_or_default();
        let mut out = String::new();
        let mut one = |kind: &str, name: &str, help: &str, value: f64| {
            // What routers read by vLLM's names has these too.
            let aliases: &[&str] = if ROUTED.contains(&name) { &["tl_", "vllm:"] } else { &["tl_"] };
            for prefix in aliases {
                let _ = writeln!(out, "# HELP {prefix}{name} {help}\n# TYPE {prefix}{name} {kind}\n{prefix}{name} {value}");
            }
        };
        one("gauge", "num_requests_running", "Answers that are read or written.", s.running as f64);
        one("gauge", "num_requests_waiting", "Answers that wait.", s.waiting as f64);
        one("gauge", "kv_cache_usage_perc", "Share of the pages of keys and values that answers need, 0 to 1.", used);
        one("gauge", "kv_cache_pages", "Pages of keys and values, of 64 positions each.", s.pages as f64);
        one("counter", "num_preemptions_total", "Answers whose pages were taken away, to be read again later.", s.put_back as f64);
        one("counter", "prompt_tokens_total", "Tokens of prompts.", self.prompt_tokens.0.load(Relaxed) as f64);
        one("counter", "generation_tokens_total", "Tokens that were written.", self.generated.0.load(Relaxed) as f64);
        one(
            "counter",
            "prefix_cache_queries_total",
            "Tokens of prompts that were looked for in the cache.",
            (s.read_tokens + s.cached_tokens) as f64,
        );
        one("counter", "prefix_cache_hits_total", "Those that were found.", s.cached_tokens as f64);
        one("counter", "read_steps_total", "Steps that read prompts.", s.read_steps as f64);
        one("counter", "write_steps_total", "Steps that wrote tokens.", s.write_steps as f64);
        one("counter", "spec_decode_num_drafts_total", "Steps that checked guessed tokens.", s.check_steps as f64);
        one("counter", "spec_decode_num_draft_tokens_total", "Tokens that were guessed.", s.drafted_tokens as f64);
        one("counter", "spec_decode_num_accepted_tokens_total", "Those that were right.", s.accepted_tokens as f64);
        one("counter", "cancelled_total", "Answers that were cancelled.", s.cancelled as f64);
        one("counter", "pipelines_compiled_total", "Kernels that the device compiled.", pipelines as f64);
        one("gauge", "engine_round_seconds", "How long the engine has been in its round.", round.as_secs_f64());
        one("gauge", "models_loaded", "Models that are loaded.", hosts.len() as f64);
        one("counter", "model_loads_total", "Times that a model was loaded.", server.models.loads.load(Relaxed) as f64);
        one("gauge", "connections", "Open connections.", self.connections.load(Relaxed) as f64);
        one("counter", "connections_refused_total", "Connections beyond the limit.", self.connections_refused.0.load(Relaxed) as f64);
        self.first_token.write("tl_time_to_first_token_seconds", "From a request's arrival to its first token.", &mut out);
        self.between_tokens.write("tl_inter_token_latency_seconds", "Between two tokens of an answer.", &mut out);
        self.whole.write("tl_e2e_request_latency_seconds", "From a request's arrival to its answer's end.", &mut out);
        distribution(
            "tl_request_queue_time_seconds",
            "From a request's arrival to the step that begins its prompt.",
            &s.queue_time,
            &mut out,
        );
        distribution("tl_read_step_seconds", "Steps that read prompts.", &s.read_time, &mut out);
        distribution("tl_write_step_seconds", "Steps that wrote tokens.", &s.write_time, &mut out);
        distribution("tl_check_step_seconds", "Steps that checked guessed tokens.", &s.check_time, &mut out);
        distribution("tl_batch_size", "Answers for which a step wrote.", &s.batch_size, &mut out);
        out.push_str(
            "# HELP tl_requests_rejected_total Requests that got an error, by its kind.\n# TYPE tl_requests_rejected_total counter\n",
        );
        for (reason, n) in &*self.rejected.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = writeln!(out, "tl_requests_rejected_total{{reason=\"{reason}\"}} {n}");
        }
        out.push_str("# HELP tl_request_success_total Answers by why they ended.\n# TYPE tl_request_success_total counter\n");
        for (reason, n) in &*self.finished.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = writeln!(out, "tl_request_success_total{{finished_reason=\"{reason}\"}} {n}");
        }
        out.push_str("# HELP tl_http_requests_total Requests by route and status.\n# TYPE tl_http_requests_total counter\n");
        for ((route, status), n) in &*self.requests.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = writeln!(out, "tl_http_requests_total{{handler=\"{route}\",status=\"{status}\"}} {n}");
        }
        out
    }
}
