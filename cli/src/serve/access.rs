//! The access log: a span for each request, which ends with its answer's last byte. It says who asked for what and what it took, and never what was asked.
//! `-v`, `TL_LOG=serve=info` and `--log-json` show it; programs that take the library's spans elsewhere see the same.

use super::answer::Usage;
use hyper::{Method, StatusCode};
use std::time::Duration;
use tracing::Span;
use tracing::field::Empty;

/// A request on its way. The span ends where the last of those who have it drops it.
pub struct Access(Span);

impl Access {
    /// A request of this route, which came now.
    pub fn new(id: &str, method: &Method, route: &'static str) -> Access {
        let span = tracing::info_span!(
            target: "tensorlogic::serve",
            "request",
            id,
            method = method.as_str(),
            route,
            client = Empty,
            status = Empty,
            error = Empty,
            model = Empty,
            answers = Empty,
            prompt_tokens = Empty,
            cached_tokens = Empty,
            tokens = Empty,
            first_token_ms = Empty,
            finish = Empty,
        );
        // Its time begins here.
        span.in_scope(|| {});
        Access(span)
    }

    /// Whose key it has.
    pub fn client(&self, name: &str) {
        if !name.is_empty() {
            self.0.record("client", name);
        }
    }

    /// What it was told; `error` is the kind of what went wrong.
    pub fn status(&self, status: StatusCode, error: Option<&str>) {
        self.0.record("status", status.as_u16());
        if let Some(error) = error {
            self.0.record("error", error);
        }
    }

    /// Answers that were written, and why the last one ended.
    pub fn answered(&self, model: &str, answers: usize, usage: &Usage, first_token: Option<Duration>, finish: &str) {
        self.0.record("model", model);
        self.0.record("answers", answers);
        self.0.record("prompt_tokens", usage.prompt);
        self.0.record("cached_tokens", usage.cached);
        self.0.record("tokens", usage.written);
        if let Some(time) = first_token {
            self.0.record("first_token_ms", time.as_micros() as f64 / 1e3);
        }
        self.0.record("finish", finish);
    }
}
