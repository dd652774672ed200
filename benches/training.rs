//! A training step of the character GPT (nanoGPT's shakespeare_char: 6 layers, 6 heads, 384 wide, context 256, batch 12, f32) or of GPT-2 124M: tokens
//! per second, the time of each kernel, and PyTorch beside it.
//!
//! `cargo bench --bench training -- [--model char|gpt2] [--dtype f32|f16|bf16] [--peer PYTHON] [--rounds N] [--batch N]
//! [--compiled] [--checkpoint] [--kernels] [--twice] [--explain]`. The device is `TL_DEVICE`'s, else a GPU where there is one. With `--peer`
//! the two take turns, and the ratio is that of their medians; `--compiled` asks the peer for torch.compile as well, in the first turn. With
//! `--checkpoint` a second model computes its blocks again in the backward pass, in turn with the first. `--twice` only makes some steps
//! twice from one seed, and fails if a bit differs.

use std::process::ExitCode;
use std::time::Instant;
use tensorlogic::measure::{Environment, Limits, Options};
use tensorlogic::nn::{Gpt, GptConfig, ModuleExt};
use tensorlogic::optim::{AdamW, Optimizer, decay_matrices};
use tensorlogic::{DType, Device, Rng, Tensor};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const CHAR: GptConfig = GptConfig { vocab: 65, context: 256, layers: 6, heads: 6, width: 384, bias: false, dropout: 0.0 };

struct Args {
    model: String,
    dtype: DType,
    batch: usize,
    rounds: usize,
    peer: Option<String>,
    kernels: bool,
    explain: bool,
    checkpoint: bool,
    compiled: bool,
    twice: bool,
}

fn args() -> Result<Args> {
    let mut a = Args {
        model: "char".into(),
        dtype: DType::F32,
        batch: 12,
        rounds: 3,
        peer: None,
        kernels: false,
        explain: false,
        checkpoint: false,
        compiled: false,
        twice: false,
    };
    let mut rest = std::env::args().skip(1);
    while let Some(arg) = rest.next() {
        let mut value = || rest.next().ok_or(format!("{arg} wants a value"));
        match arg.as_str() {
            "--model" => a.model = value()?,
            "--dtype" => {
                a.dtype = match value()?.as_str() {
                    "f32" => DType::F32,
                    "f16" => DType::F16,
                    "bf16" => DType::BF16,
                    other => return Err(format!("unknown dtype {other}; allowed are f32, f16, bf16").into()),
                }
            }
            "--batch" => a.batch = value()?.parse()?,
            "--rounds" => a.rounds = value()?.parse()?,
            "--peer" => a.peer = Some(value()?),
            "--kernels" => a.kernels = true,
            "--explain" => a.explain = true,
            "--checkpoint" => a.checkpoint = true,
            "--compiled" => a.compiled = true,
            "--twice" => a.twice = true,
            // What cargo adds.
            "--bench" => {}
            other => return Err(format!("unknown argument {other}").into()),
        }
    }
    Ok(a)
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("training: {e}");
            ExitCode::from(2)
        }
    }
}

/// A model, its optimizer and batches of random tokens.
struct Training {
    model: Gpt,
    optimizer: Optimizer,
    rng: Rng,
    batch: usize,
    device: Device,
}

impl Training {
    fn new(args: &Args, checkpointing: bool, device: &Device) -> Result<Training> {
        let config = match args.model.as_str() {
            "char" => CHAR,
            "gpt2" => GptConfig::GPT2,
            other => return Err(format!("unknown model {other}; allowed are char, gpt2").into()),
        };
        let mut rng = Rng::new(1);
        let mut model = Gpt::new(config, &mut rng, device)?;
        model.set_checkpointing(checkpointing);
        let rule = AdamW { betas: (0.9, 0.99), ..AdamW::default() };
        let mut optimizer = Optimizer::with_groups(rule, decay_matrices(model.named_parameters(), 0.1), 1e-3)?.max_grad_norm(1.0);
        if args.dtype != DType::F32 {
            optimizer = optimizer.mixed_precision(args.dtype)?;
        }
        Ok(Training { model, optimizer, rng, batch: args.batch, device: device.clone() })
    }

    /// The loss of a batch, pending.
    fn loss(&mut self) -> Result<Tensor> {
        let GptConfig { vocab, context, .. } = self.model.config;
        let tokens = self.rng.integers(0, vocab as i32, &[self.batch, context + 1], &self.device)?;
        tokens.eval()?;
        Ok(self.model.loss(&tokens.narrow(1, 0, context)?, &tokens.narrow(1, 1, context)?)?)
    }

    /// One step; waits for its loss.
    fn step(&mut self) -> Result<f64> {
        self.optimizer.zero_grad()?;
        let loss = self.loss()?;
        self.optimizer.scale_loss(&loss)?.backward()?;
        self.optimizer.step_with(&[&loss])?;
        Ok(loss.item()?)
    }

    /// Seconds of each of some steps.
    fn seconds(&mut self, steps: usize) -> Result<Vec<f64>> {
        (0..steps)
            .map(|_| {
                let began = Instant::now();
                self.step()?;
                Ok(began.elapsed().as_secs_f64())
            })
            .collect()
    }
}

fn median(mut v: Vec<f64>) -> f64 {
    v.sort_by(f64::total_cmp);
    v[v.len() / 2]
}

fn run() -> Result<()> {
    let args = args()?;
    let device = Device::auto()?;
    println!("{}", Environment::of(&device).line());
    if args.twice {
        return twice(&args, &device);
    }
    let mut t = Training::new(&args, false, &device)?;
    let context = t.model.config.context;
    let tokens = (args.batch * context) as f64;
    if args.explain {
        let loss = t.loss()?;
        loss.backward()?;
        println!("{}", t.optimizer.explain()?);
        return Ok(());
    }
    // The first steps compile the plan.
    let first = t.step()?;
    t.step()?;
    println!("{} parameters, batch {} × {}; first loss {first:.4}", t.model.parameter_count(), args.batch, context);
    if args.kernels {
        let ((), profile) = device.profile(|| t.step().map(|_| ()).map_err(|e| tensorlogic::TensorError::Value(e.to_string())))?;
        let mut limits = Limits::new(&device, Options::quick());
        println!("{}", profile.with_limits(limits.copy_bandwidth()?, limits.operations()?));
    }
    let mut again = if args.checkpoint { Some(Training::new(&args, true, &device)?) } else { None };
    if let Some(t) = &mut again {
        t.seconds(2)?;
    }
    let (mut ours, mut theirs, mut checkpointed) = (Vec::new(), Vec::new(), Vec::new());
    let (mut peak, mut peak_checkpointed, mut highest) = (0, 0, 0);
    for round in 0..args.rounds {
        ours.extend(t.seconds(4)?);
        peak = taken(&device, &mut t)?;
        highest = device.memory().peak;
        if let Some(t) = &mut again {
            checkpointed.extend(t.seconds(4)?);
            peak_checkpointed = taken(&device, t)?;
        }
        if let Some(python) = &args.peer {
            theirs.push(peer(python, &args, args.compiled && round == 0, &device)?);
        }
    }
    let seconds = median(ours.clone());
    report("a step", &ours, tokens, peak);
    if again.is_none() {
        println!("memory at most: {:.0} MiB", highest as f64 / f64::from(1 << 20));
    }
    if again.is_some() {
        report("with checkpointed blocks", &checkpointed, tokens, peak_checkpointed);
    }
    for mode in theirs.first().into_iter().flatten() {
        let all: Vec<f64> = theirs.iter().flatten().filter(|l| l.0 == mode.0).map(|l| l.1).collect();
        let other = median(all);
        let memory = mode.2.map(|m| format!("; memory at most {:.0} MiB", m / f64::from(1 << 20))).unwrap_or_default();
        println!("{}: {:.1} ms, {:.0} tokens/s; ratio {:.2}{memory}", mode.0, other * 1e3, tokens / other, other / seconds);
    }
    Ok(())
}

/// Two trainings from one seed: the same losses, and the same parameters at the end.
fn twice(args: &Args, device: &Device) -> Result<()> {
    let run = || -> Result<(Vec<u64>, Vec<Vec<u8>>)> {
        let mut t = Training::new(args, false, device)?;
        let losses = (0..6).map(|_| Ok(t.step()?.to_bits())).collect::<Result<Vec<_>>>()?;
        let bytes = t.model.named_parameters().into_iter().map(|(_, p)| Ok(p.get().detach().to_bytes()?.to_vec()));
        Ok((losses, bytes.collect::<Result<Vec<_>>>()?))
    };
    let (first, second) = (run()?, run()?);
    if first != second {
        return Err(format!("two runs from one seed differ; losses {:?} and {:?}", first.0, second.0).into());
    }
    println!("two runs of 6 steps from one seed: the same bits in the losses and in {} parameters", first.1.len());
    Ok(())
}

fn report(what: &str, seconds: &[f64], tokens: f64, peak: usize) {
    let middle = median(seconds.to_vec());
    let least = seconds.iter().copied().fold(f64::INFINITY, f64::min);
    println!(
        "{what}: {:.1} ms (least {:.1}, {} steps), {:.0} tokens/s, {:.1} MiB besides parameters and their states",
        middle * 1e3,
        least * 1e3,
        seconds.len(),
        tokens / middle,
        peak as f64 / f64::from(1 << 20)
    );
}

/// Bytes that a step takes for itself.
fn taken(device: &Device, t: &mut Training) -> Result<usize> {
    device.synchronize()?;
    let before = device.memory().in_use;
    device.reset_peak_memory();
    t.step()?;
    Ok(device.memory().peak.saturating_sub(before))
}

/// The peer's name, seconds a step and most memory in bytes, for each of its modes.
fn peer(python: &str, args: &Args, compiled: bool, device: &Device) -> Result<Vec<(String, f64, Option<f64>)>> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/peers/pytorch_gpt.py");
    let out = std::process::Command::new(python)
        .args([script, "speed", "6"])
        .args((!compiled).then_some("--eager"))
        .args(["--model", &args.model, "--dtype", args.dtype.name(), "--batch", &args.batch.to_string()])
        .args(["--device", if device.is_cpu() { "cpu" } else { "cuda" }])
        .output()?;
    if !out.status.success() {
        return Err(format!("{python} {script}: {}", String::from_utf8_lossy(&out.stderr).trim()).into());
    }
    let mut list = Vec::new();
    for line in String::from_utf8(out.stdout)?.lines() {
        let v: serde_json::Value = serde_json::from_str(line)?;
        list.push((
            v["peer"].as_str().ok_or("the peer has no name")?.to_string(),
            v["seconds"].as_f64().ok_or("the peer printed no time")?,
            v["peak"].as_f64(),
        ));
    }
    Ok(list)
}
