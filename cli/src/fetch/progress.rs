//! How far a download is: a bar on a terminal, a line every few seconds elsewhere, nothing with `--quiet`.

use crate::output;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::cell::Cell;
use std::io::IsTerminal;
use std::time::{Duration, Instant};
use tensorlogic::io::human_bytes;

/// Interval between two lines without a terminal.
const EVERY: Duration = Duration::from_secs(5);

/// The progress display of a transfer.
pub struct Progress {
    bar: Option<ProgressBar>,
    lines: Option<Cell<Instant>>,
    total: Option<u64>,
    what: String,
}

impl Progress {
    /// Begins to show the transfer of `what`.
    pub fn new(what: &str, total: Option<u64>, quiet: bool) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = (!quiet && terminal).then(|| {
            // The style comes first: whatever is set on a visible bar is drawn.
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
            Self::style(&bar, total);
            bar.with_message(what.to_string())
        });
        let lines = (!quiet && !terminal).then(|| Cell::new(Instant::now()));
        if let Some(bar) = &bar {
            bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        Self { bar, lines, total, what: what.to_string() }
    }

    fn style(bar: &ProgressBar, total: Option<u64>) {
        let template = match total {
            Some(total) => {
                bar.set_length(total);
                "{msg} [{bar:30}] {binary_bytes}/{binary_total_bytes}  {binary_bytes_per_sec}  {eta}"
            }
            None => "{msg} {spinner} {binary_bytes}  {binary_bytes_per_sec}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
    }

    /// How much has been transferred.
    pub fn set(&self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(bytes);
        }
        if let Some(last) = self.lines.as_ref().filter(|last| last.get().elapsed() >= EVERY) {
            last.set(Instant::now());
            let of = self.total.map(|total| format!(" of {}", human_bytes(total))).unwrap_or_default();
            output::note(&format!("{}: {}{of}", self.what, human_bytes(bytes)));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
