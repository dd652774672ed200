//! Progress of a run on stderr: a bar with loss, speed, memory and remaining time, or plain lines without a terminal.

use super::trainer::Trainer;
use crate::Global;
use crate::energy::TrainingEnergy;
use crate::output::{self, Failure};
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};
use tensorlogic::models::{self, Sampler, Session, Weights};
use tensorlogic::text::Tokenizer;
use tensorlogic::{Device, Rng};

/// Minimum seconds between plain lines.
const PLAIN: f64 = 5.0;
const BAR: usize = 24;

/// The progress reporter of a run.
pub struct TrainingReport {
    quiet: bool,
    terminal: bool,
    drawn: bool,
    steps: u64,
    tokens: usize,
    /// The last report's step and time, for the speed since.
    mark: (u64, Instant),
    /// How long the data was waited for until then, and in a step since the report before.
    stalled: Duration,
    stall: Option<Duration>,
    speed: Option<f64>,
    said: Option<Instant>,
    val: Option<f64>,
    /// What counts the energy of the run.
    pub energy: Option<TrainingEnergy>,
}

impl TrainingReport {
    /// For a run of `steps` in all that stands at `first`, with so many tokens a step.
    pub fn new(global: Global, steps: u64, first: u64, tokens: usize) -> TrainingReport {
        let terminal = std::io::stderr().is_terminal();
        let mark = (first, Instant::now());
        TrainingReport {
            quiet: global.quiet,
            terminal,
            drawn: false,
            steps,
            tokens,
            mark,
            stalled: Duration::ZERO,
            stall: None,
            speed: None,
            said: None,
            val: None,
            energy: None,
        }
    }

    /// A line of its own.
    pub fn note(&mut self, line: &str) {
        self.clear();
        if !self.quiet {
            output::note(line);
        }
    }

    /// Data was waited for so long, until step `step`, in all.
    pub fn stalled(&mut self, step: u64, all: Duration) {
        let steps = u32::try_from(step.saturating_sub(self.mark.0)).unwrap_or(u32::MAX).max(1);
        self.stall = Some((all - self.stalled.min(all)) / steps);
        self.stalled = all;
    }

    /// A step's loss has arrived; `at` is when the step was done, whatever was only submitted since.
    pub fn trained(&mut self, step: u64, loss: f64, lr: f64, at: Instant, device: &Device) {
        let (now, before) = (at, self.mark);
        let seconds = at.saturating_duration_since(before.1).as_secs_f64();
        if step > before.0 && seconds > 0.0 {
            let rate = (step - before.0) as f64 / seconds;
            // A steady figure: each report counts a fifth.
            self.speed = Some(self.speed.map_or(rate, |s| 0.8 * s + 0.2 * rate));
        }
        self.mark = (step, now);
        if self.quiet {
            return;
        }
        let speed = self.speed.map_or(String::new(), |s| {
            let left = Duration::from_secs_f64((self.steps.saturating_sub(step) as f64 / s.max(1e-9)).min(1e9));
            format!(" · {} tok/s · {} left", grouped((s * self.tokens as f64) as u64), clock(left))
        });
        let val = self.val.map_or(String::new(), |v| format!(" · held out {v:.4}"));
        let memory = output::peak_memory(&device.memory());
        let stall = self.stall.map_or(String::new(), |s| format!(" · data waited for {:.2} ms a step", s.as_secs_f64() * 1e3));
        let line = format!("step {step}/{} · loss {loss:.4}{val} · lr {lr:.2e}{speed}{stall} · {memory}", self.steps);
        if self.terminal {
            let full = (step as usize * BAR / self.steps.max(1) as usize).min(BAR);
            let mut err = std::io::stderr().lock();
            let _ = write!(err, "\r\x1b[K[{}{}] {line}", "#".repeat(full), ".".repeat(BAR - full));
            let _ = err.flush();
            self.drawn = true;
        } else if self.said.is_none_or(|t| t.elapsed().as_secs_f64() >= PLAIN) {
            self.said = Some(Instant::now());
            output::note(&line);
        }
    }

    /// An evaluation is done.
    pub fn evaluated(&mut self, step: u64, loss: f64, best: bool) {
        self.val = Some(loss);
        self.note(&format!("step {step}: held-out loss {loss:.4}{}", if best { ", the best so far" } else { "" }));
        self.resumed(step);
    }

    /// Writes a sample of the model that was just saved.
    pub fn sample(&mut self, step: u64, t: &Trainer) -> Result<(), Failure> {
        if self.quiet {
            return Ok(());
        }
        let folder = t.saved_model();
        let model = models::load(&Weights::open(&folder, &t.device)?, Some(t.recipe.dtype))?;
        let tokenizer = Tokenizer::from_file(folder.join("tokenizer.json"))?;
        let mut ids = tokenizer.encode(&t.recipe.sample_prompt, true)?;
        if ids.is_empty() {
            ids.push(0);
        }
        ids.truncate(t.config.context / 2 + 1);
        let mut session = Session::new(&*model, t.config.context, &t.device)?;
        let mut sampler = Sampler { temperature: 0.8, top_k: 200, rng: Rng::new(step), ..Sampler::default() };
        let mut text = String::new();
        let mut add = |piece: &str| -> Result<(), Failure> {
            text.push_str(piece);
            Ok(())
        };
        crate::generate::answer(&mut session, &tokenizer, &ids, t.recipe.sample_tokens, &mut sampler, None, &mut add)?;
        self.note(&format!("--- sample at step {step}:\n{}{}\n---", t.recipe.sample_prompt.trim_start(), text.trim_end()));
        Ok(())
    }

    /// Training continues: time since the last step is not counted.
    pub fn resumed(&mut self, step: u64) {
        self.mark = (step, Instant::now());
    }

    /// Hides the bar, so that something else can be printed.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.drawn) {
            let mut err = std::io::stderr().lock();
            let _ = write!(err, "\r\x1b[K");
            let _ = err.flush();
        }
    }

    /// Leaves the finished bar on the screen.
    pub fn done(&mut self) {
        if std::mem::take(&mut self.drawn) {
            output::note("");
        }
    }
}

/// Formats a number with commas.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// Formats a duration.
fn clock(t: Duration) -> String {
    let s = t.as_secs();
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{}:{:02} min", s / 60, s % 60),
        _ => format!("{}:{:02} h", s / 3600, s % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_times_read_well() {
        assert_eq!([0, 999, 1000, 1234567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        let times = [5, 65, 3599, 3600, 7265].map(|s| clock(Duration::from_secs(s)));
        assert_eq!(times, ["5 s", "1:05 min", "59:59 min", "1:00 h", "2:01 h"]);
    }
}
