//! Energy of decoding and of training: joules a token or a step beyond what the device takes at rest, where the system counts them.

use crate::bench::{DecodeArgs, choose, prompts, read};
use crate::interrupt;
use crate::output::Failure;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tensorlogic::Device;
use tensorlogic::measure::{Energy, EnergyMeter};
use tensorlogic::models::{KvCache, Model, Sampler, Session};

/// Windows that are measured; their median is reported, with the least and the greatest.
const WINDOWS: usize = 3;
/// How long a window lasts at least: a board's counter moves every 100 ms.
const WINDOW: Duration = Duration::from_secs(3);
/// How long the device is left alone first.
const REST: Duration = Duration::from_secs(2);

/// What decoding takes.
pub struct TokenEnergy {
    /// What counts it.
    source: String,
    /// Watts at rest.
    idle: f64,
    /// Of each window, in order of joules a token above rest: those, and the watts of the whole device.
    windows: Vec<(f64, f64)>,
}

impl TokenEnergy {
    /// Decodes for some seconds; `None` where the system does not tell.
    pub fn of(model: &dyn Model, device: &Device, args: &DecodeArgs) -> Result<Option<TokenEnergy>, Failure> {
        let Some(mut meter) = EnergyMeter::of(device) else { return Ok(None) };
        device.synchronize()?;
        let Some(idle) = meter.idle_power(REST) else { return Ok(None) };
        let mut windows = Vec::new();
        for _ in 0..WINDOWS {
            let (tokens, energy) = meter.measure(|| decode(model, device, args));
            let (tokens, Some(energy)) = (tokens?, energy) else { return Ok(None) };
            let Energy { joules, seconds } = energy;
            windows.push((energy.above(idle) / tokens as f64, joules / seconds));
        }
        windows.sort_by(|a, b| a.0.total_cmp(&b.0));
        Ok(Some(TokenEnergy { source: meter.source(), idle, windows }))
    }

    /// One line.
    pub fn line(&self) -> String {
        let (middle, last) = (self.windows[WINDOWS / 2], self.windows[WINDOWS - 1]);
        format!(
            "energy          {:>10.2} mJ a token above rest, {:.2} to {:.2}; {:.0} W, at rest {:.0} W; prompts included ({})",
            1e3 * middle.0,
            1e3 * self.windows[0].0,
            1e3 * last.0,
            middle.1,
            self.idle,
            self.source
        )
    }

    /// For `--json`.
    pub fn json(&self) -> Value {
        json!({ "joules_per_token": self.windows[WINDOWS / 2].0, "least": self.windows[0].0, "most": self.windows[WINDOWS - 1].0,
            "watts": self.windows[WINDOWS / 2].1, "idle_watts": self.idle, "source": self.source })
    }
}

/// How often a counter is read at least, since it wraps around.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Counts what a training takes.
pub struct TrainingEnergy {
    meter: EnergyMeter,
    device: Device,
    /// Watts at rest.
    idle: f64,
    start: Instant,
    joules: f64,
    looked: Instant,
}

/// What the steps of a training took.
pub struct StepEnergy {
    source: String,
    idle: f64,
    watts: f64,
    /// Joules a step above rest.
    joules: f64,
}

impl TrainingEnergy {
    /// Leaves the device alone for a while, and counts from then on; `None` where the system does not tell.
    pub fn begin(device: &Device) -> Option<TrainingEnergy> {
        let mut meter = EnergyMeter::of(device)?;
        device.synchronize().ok()?;
        let idle = meter.idle_power(REST)?;
        let (joules, now) = (meter.joules()?, Instant::now());
        Some(TrainingEnergy { meter, device: device.clone(), idle, start: now, joules, looked: now })
    }

    /// To be called now and then.
    pub fn look(&mut self) {
        if self.looked.elapsed() > LOOK_EVERY {
            self.looked = Instant::now();
            let _ = self.meter.joules();
        }
    }

    /// What these steps took; `None` where they were made on another device, or the counter cannot be read any more.
    pub fn end(mut self, device: &Device, steps: u64) -> Option<StepEnergy> {
        let (joules, seconds) = (self.meter.joules()? - self.joules, self.start.elapsed().as_secs_f64());
        let above = Energy { joules, seconds }.above(self.idle) / steps as f64;
        let found = StepEnergy { source: self.meter.source(), idle: self.idle, watts: joules / seconds, joules: above };
        (steps > 0 && self.device == *device).then_some(found)
    }
}

impl StepEnergy {
    /// One line.
    pub fn line(&self) -> String {
        let StepEnergy { source, idle, watts, joules } = self;
        format!("energy: {joules:.3} J a step above rest, saves and evaluations included; {watts:.0} W, at rest {idle:.0} W ({source})")
    }

    /// For `--json`.
    pub fn json(&self) -> Value {
        json!({ "joules_per_step": self.joules, "watts": self.watts, "idle_watts": self.idle, "source": self.source })
    }
}

/// Decodes for one window; gives the tokens of all sequences.
fn decode(model: &dyn Model, device: &Device, args: &DecodeArgs) -> Result<usize, Failure> {
    let ids = prompts(model, args);
    let (start, mut tokens) = (Instant::now(), 0);
    let mut batch = KvCache::batch(&model.shape(), args.sequences, args.prompt + args.tokens, device)?;
    while start.elapsed() < WINDOW {
        if interrupt::requested() {
            return Err(Failure::Interrupted);
        }
        if args.sequences == 1 {
            let mut session = Session::new(model, args.prompt + args.tokens, device)?;
            let ids: Vec<u32> = ids.iter().map(|&i| i as u32).collect();
            let Some(logits) = session.prompt(&ids, interrupt::requested)? else { return Err(Failure::Interrupted) };
            let mut sampler = Sampler::default();
            session.generate(logits, &mut sampler)?.at_most(args.tokens).try_for_each(|token| token.map(drop))?;
        } else {
            let mut next = read(model, &ids, &mut batch, args, device)?;
            for _ in 1..args.tokens {
                next = choose(model, &model.hidden(&next, &mut batch)?)?;
                next.eval()?;
            }
        }
        tokens += args.tokens * args.sequences;
        device.synchronize()?;
    }
    Ok(tokens)
}
