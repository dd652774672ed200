//! `tl finetune`: trains LoRA adapters on a model from a text or from conversations; `tl merge`: adds adapters to a model's weights.

use crate::generate::context_of;
use crate::model::{self, ModelArgs};
use crate::optimizer::OptimizerChoice;
use crate::output::{self, Failure};
use crate::{Global, interrupt};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tensorlogic::autograd::no_grad;
use tensorlogic::eval::eval_stats;
use tensorlogic::models::{self, Adapters, Model, Pass};
use tensorlogic::nn::LoraConfig;
use tensorlogic::ops::loss::Reduction;
use tensorlogic::optim::Schedule;
use tensorlogic::text::{ChatTemplate, Message, Tokenizer};
use tensorlogic::train::AdaptiveBatch;
use tensorlogic::{DType, Device, Rng, Tensor, TensorError};

/// Train LoRA adapters for a model; its weights stay frozen, and packed weights stay packed
#[derive(Args)]
#[command(
    after_help = "A text file is split into windows of --ctx tokens. A .jsonl file has one example per line: {\"text\": …}, {\"prompt\": …, \"completion\": …}
or {\"messages\": [{\"role\": …, \"content\": …}, …]}; the last two are rendered with the model's chat template if it has one. The last tenth is
held out and scored before and after.

The learning rate warms up for a twentieth of the steps and then falls along a cosine to a tenth. Ctrl-C saves the current adapters.

Examples:
  tl finetune notes.txt -o notes-adapter
  tl generate --adapter notes-adapter --raw \"On Monday\"
  tl finetune chats.jsonl --mask-prompt -m model.gguf -o adapter --merge merged.gguf
  tl finetune more.txt --adapter notes-adapter -o better-adapter --steps 300"
)]
pub struct FinetuneArgs {
    /// Text file, or examples as .jsonl
    data: PathBuf,
    /// Folder for the adapters: PEFT's adapter_config.json and adapter_model.safetensors
    #[arg(short, long, value_name = "DIR")]
    out: PathBuf,
    /// Replace an existing adapter in the folder
    #[arg(long)]
    overwrite: bool,
    /// Also write the merged model: a .gguf file for a GGUF model, a folder for a Hub folder
    #[arg(long, value_name = "OUT")]
    merge: Option<PathBuf>,
    /// Number of steps
    #[arg(short = 'n', long, default_value_t = 100)]
    steps: u64,
    /// Examples per step
    #[arg(short, long, default_value_t = 4)]
    batch: usize,
    /// Maximum tokens per example [default: 256, or the model's maximum if lower]
    #[arg(short, long)]
    ctx: Option<usize>,
    /// Optimizer: adamw, adam, sgd, lion or muon, all without weight decay
    #[arg(long, value_name = "NAME", default_value = "adamw")]
    optimizer: String,
    /// Peak learning rate [default: 1e-4; sgd 0.01, lion 3e-5]
    #[arg(long)]
    lr: Option<f64>,
    /// Rank of the adapters
    #[arg(long, default_value_t = 8)]
    rank: usize,
    /// Alpha; adapters are scaled by alpha / rank
    #[arg(long, default_value_t = 16.0)]
    alpha: f64,
    /// Dropout probability of an adapter's input
    #[arg(long, default_value_t = 0.0)]
    dropout: f64,
    /// Layers that get adapters, such as q_proj,v_proj, or all [default: q_proj,v_proj; c_attn for GPT-2]
    #[arg(long, value_delimiter = ',')]
    targets: Vec<String>,
    /// Train on answers only: no loss on prompts, or on messages other than the last
    #[arg(long)]
    mask_prompt: bool,
    /// Fraction of the examples that is held out
    #[arg(long, default_value_t = 0.1)]
    val_fraction: f64,
    /// Seed of the adapters' initialisation and of the order of examples
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Steps between saves; 0 saves at the end only
    #[arg(long, default_value_t = 0)]
    save_every: u64,
    /// Keep only the input of each block for the backward pass, which computes the rest again: less memory, more time
    #[arg(long)]
    checkpointing: bool,
    /// Print statistics at the end: plan cache, dispatches, submits
    #[arg(long)]
    stats: bool,
    #[command(flatten)]
    model: ModelArgs,
}

/// Add LoRA adapters to a model's weights
#[derive(Args)]
#[command(after_help = "Weights in block formats become f16 if an adapter is added to them; `tl quantize` can pack them again.

Examples:
  tl merge --adapter notes-adapter merged.gguf
  tl merge -m folder --adapter notes-adapter merged-folder")]
pub struct MergeArgs {
    /// Output: a .gguf file for a GGUF model, a folder for a Hub folder
    out: PathBuf,
    /// Folder of the adapters, in PEFT's format (as written by `tl finetune`)
    #[arg(long, value_name = "DIR")]
    adapter: PathBuf,
    /// Model: a GGUF file, a folder in Hub layout, a name from `tl pull --list`, or `OWNER/REPO[:FILE]` [default: smollm2-135m-instruct]
    #[arg(short, long)]
    model: Option<String>,
    /// Download a missing model without asking
    #[arg(short, long)]
    yes: bool,
}

/// One example: its tokens, and the first that is to be learnt.
struct Example {
    tokens: Vec<u32>,
    from: usize,
}

/// Runs `tl finetune`.
pub fn run(args: &FinetuneArgs, global: Global) -> Result<(), Failure> {
    check(args)?;
    let path = args.model.path(global)?;
    if let Some(out) = &args.merge {
        check_merge(&path, out)?;
    }
    let mut device = args.model.device()?;
    loop {
        match tune(args, &path, &device, global) {
            Err(Failure::Device(e)) => device = model::go_on(&device, e)?,
            done => return done,
        }
        if !global.quiet {
            output::note("training restarts: adapters are saved without the optimizer's state");
        }
    }
}

/// Fine-tunes on this device, from the beginning.
fn tune(args: &FinetuneArgs, path: &Path, device: &Device, global: Global) -> Result<(), Failure> {
    let weights = args.model.open(path, device)?;
    let (tokenizer, template) = model::texts(&weights, path)?;
    // Gradients of f16 would need their loss scaled.
    let mut model = models::load(&weights, Some(args.model.dtype()?.unwrap_or(DType::F32))).map_err(|e| model::unreadable(path, e))?;
    let ctx = context_of(args.ctx, 256, &model.shape(), global)?;
    let mut examples = read(args, ctx, &tokenizer, template.as_ref(), global)?;

    let adapters = match &args.model.adapter {
        Some(folder) => {
            let adapters = Adapters::load(folder, &mut *model)?;
            adapters.unfreeze()?;
            adapters
        }
        None => {
            let config = LoraConfig { rank: args.rank, alpha: args.alpha, dropout: args.dropout, targets: args.targets.clone() };
            config.check().map_err(|e| Failure::Usage(e.to_string()))?;
            Adapters::attach(&mut *model, &config, &mut Rng::new(args.seed)).map_err(|e| Failure::Usage(e.to_string()))?
        }
    };
    let count = ((examples.len() as f64 * args.val_fraction) as usize).min(examples.len() - 1).min(64);
    let held_out = examples.split_off(examples.len() - count);
    if !global.quiet {
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        output::note(&format!("{name} on {}, its weights frozen", device.name()));
        let (learnt, all) = (adapters.parameter_count(), model.weights().iter().map(|w| w.numel()).sum::<usize>());
        output::note(&format!(
            "{learnt} trainable parameters, {all} frozen ({:.2} %), in {}, {} examples, {} held out",
            100.0 * learnt as f64 / all as f64,
            adapters.config().targets.join(", "),
            examples.len(),
            held_out.len()
        ));
    }
    interrupt::install();
    let mut tuner = Tuner { args, model: &*model, adapters: &adapters, device, base: path.display().to_string() };
    let before = tuner.score(&held_out)?;
    let start = Instant::now();
    let (steps, last, tokens) = tuner.train(&examples, global)?;
    let seconds = start.elapsed().as_secs_f64();
    let e = eval_stats(device);
    let stats = format!(
        "plans: {} hits, {} misses · last step: {} nodes, {} dispatches, {:.0} µs to build and match · submits: {}",
        e.hits,
        e.misses,
        e.nodes,
        e.dispatches,
        e.overhead.as_secs_f64() * 1e6,
        device.submits()
    );
    tuner.save()?;
    let after = tuner.score(&held_out)?;
    if let (Some(out), false) = (&args.merge, interrupt::requested()) {
        merge(&adapters, path, out)?;
    }
    let memory = device.memory();
    if global.json {
        let value = json!({ "adapter": args.out, "merged": args.merge, "steps": steps, "loss": last, "held_out_before": before,
            "held_out_after": after, "parameters": adapters.parameter_count(), "tokens_per_s": tokens as f64 / seconds,
            "peak_memory_bytes": memory.peak, "peak_allocated_bytes": memory.peak_allocated, "device": device.name() });
        output::result(&value.to_string())?;
    } else {
        output::result(&args.out.display().to_string())?;
    }
    if !global.quiet {
        let held_out = match (before, after) {
            (Some(b), Some(a)) => format!(", held out {b:.4} before and {a:.4} after"),
            _ => String::new(),
        };
        let memory = output::peak_memory(&memory);
        output::note(&format!("{steps} steps, loss {last:.4}{held_out}, {:.1} tok/s · {memory}", tokens as f64 / seconds));
    }
    if args.stats && !global.quiet {
        output::note(&stats);
    }
    if interrupt::requested() { Err(Failure::Interrupted) } else { Ok(()) }
}

/// Runs `tl merge`.
pub fn run_merge(args: &MergeArgs, global: Global) -> Result<(), Failure> {
    let path = model::path(args.model.as_deref(), args.yes, global)?;
    check_merge(&path, &args.out)?;
    let mut base = models::load(&model::open(&path, &Device::cpu())?, Some(DType::F32)).map_err(|e| model::unreadable(&path, e))?;
    merge(&Adapters::load(&args.adapter, &mut *base)?, &path, &args.out)?;
    match global.json {
        true => output::result(&json!({ "merged": args.out, "model": path, "adapter": args.adapter }).to_string()),
        false => output::result(&args.out.display().to_string()),
    }
}

fn merge(adapters: &Adapters, base: &Path, out: &Path) -> Result<(), Failure> {
    if base.is_dir() {
        adapters.merge_folder(base, out)?;
    } else {
        adapters.merge_gguf(base, out)?;
    }
    Ok(())
}

/// Refuses what cannot be written, before anything was learnt.
fn check(args: &FinetuneArgs) -> Result<(), Failure> {
    if args.steps == 0 || args.batch == 0 || args.ctx.is_some_and(|n| n < 2) {
        return Err(Failure::Usage("need at least 1 step, 1 example per step and 2 tokens of context".into()));
    }
    let (lr, _) = steps_of(args)?;
    if !(lr > 0.0 && lr.is_finite()) {
        return Err(Failure::Usage(format!("--lr: {lr} is not a learning rate above 0")));
    }
    if !(0.0..1.0).contains(&args.val_fraction) {
        return Err(Failure::Usage(format!("--val-fraction: {} is not a fraction between 0 and 1", args.val_fraction)));
    }
    if args.out.join("adapter_config.json").exists() && !args.overwrite {
        return Err(Failure::Usage(format!("{} already contains an adapter: --overwrite replaces it", args.out.display())));
    }
    is_ours(&args.out, "adapter_config.json")
}

/// The highest learning rate, and the optimizer.
fn steps_of(args: &FinetuneArgs) -> Result<(f64, OptimizerChoice), Failure> {
    let choice = OptimizerChoice::new(Some(&args.optimizer), (None, Some(0.999)), Some(0.0))?;
    Ok((args.lr.unwrap_or(choice.usual_lr(1e-4)), choice))
}

/// A folder is written as a whole: one with other things in it is left alone.
fn is_ours(out: &Path, mark: &str) -> Result<(), Failure> {
    if out.exists() && !(out.is_dir() && (out.join(mark).exists() || out.read_dir().is_ok_and(|mut d| d.next().is_none()))) {
        return Err(Failure::Error(format!("{} already exists and has no {mark}: choose another folder", out.display())));
    }
    let parent = out.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !parent.is_dir() {
        return Err(Failure::Error(format!("folder {} does not exist", parent.display())));
    }
    can_write(parent)
}

/// Whether something can be made in the folder: that is known before hours of learning, not after them.
fn can_write(folder: &Path) -> Result<(), Failure> {
    let probe = folder.join(format!(".tl-{}.tmp", std::process::id()));
    let made = std::fs::create_dir(&probe).and_then(|()| std::fs::remove_dir(&probe));
    made.map_err(|e| Failure::Error(format!("cannot write to {}: {e}", folder.display())))
}

fn check_merge(base: &Path, out: &Path) -> Result<(), Failure> {
    let file = out.extension().is_some_and(|e| e == "gguf");
    if file == base.is_dir() {
        let (is, wants) = if file { ("a folder", "a folder") } else { ("a GGUF file", "a name that ends in .gguf") };
        return Err(Failure::Usage(format!("{} is {is}: the merged model needs {wants}, not {}", base.display(), out.display())));
    }
    if out.canonicalize().is_ok_and(|o| base.canonicalize().is_ok_and(|b| b == o)) {
        return Err(Failure::Error(format!("{} is the model itself: choose another name", out.display())));
    }
    let parent = out.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if file { can_write(parent) } else { is_ours(out, "manifest.json") }
}

/// The examples of the data file.
fn read(
    args: &FinetuneArgs,
    ctx: usize,
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
    global: Global,
) -> Result<Vec<Example>, Failure> {
    let name = args.data.display();
    let text = std::fs::read_to_string(&args.data).map_err(|e| Failure::Error(format!("{name}: {e}")))?;
    model::warn_unknown(tokenizer, [text.as_str()], global)?;
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    let (mut examples, mut dropped) = (Vec::new(), 0);
    if args.data.extension().is_some_and(|e| e == "jsonl") {
        for (n, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
            let wrong = |m: &str| Failure::Error(format!("{name}, line {}: {m}", n + 1));
            let value: Value = serde_json::from_str(line).map_err(|e| wrong(&format!("not JSON ({e})")))?;
            let mut e = example(&value, args.mask_prompt, tokenizer, template).map_err(|e| wrong(&e.to_string()))?;
            e.tokens.truncate(ctx + 1);
            if e.from < e.tokens.len() { examples.push(e) } else { dropped += 1 }
        }
    } else {
        let ids = tokenizer.encode(&text, false)?;
        // Neighbouring windows share a token: it is learnt in the first and read in the second.
        let step = ctx + 1 - bos.is_some() as usize;
        let mut at = 0;
        while at + 1 < ids.len() {
            let end = (at + step).min(ids.len());
            examples.push(Example { tokens: bos.into_iter().chain(ids[at..end].iter().copied()).collect(), from: 1 });
            at = end - bos.is_none() as usize;
            if end == ids.len() {
                break;
            }
        }
    }
    if examples.is_empty() {
        return Err(Failure::Error(format!("{name}: no training examples")));
    }
    if dropped > 0 && !global.quiet {
        output::note(&format!("{dropped} examples skipped: no target token within {ctx} tokens (--ctx)"));
    }
    Ok(examples)
}

/// An example of a line of JSON.
fn example(value: &Value, mask: bool, tokenizer: &Tokenizer, template: Option<&ChatTemplate>) -> Result<Example, Failure> {
    let bad = |m: &str| Failure::Error(m.into());
    let text = |key: &str| value[key].as_str();
    let end = tokenizer.end_tokens().first().copied();
    let messages: Vec<Message> = match (text("prompt"), text("completion"), value["messages"].as_array()) {
        (_, _, Some(list)) => serde_json::from_value(Value::Array(list.clone())).map_err(|e| bad(&format!("messages: {e}")))?,
        (Some(p), Some(c), None) => vec![Message::new("user", p), Message::new("assistant", c)],
        _ => {
            let t = text("text").ok_or_else(|| bad("expected \"text\", \"prompt\" and \"completion\", or \"messages\""))?;
            let tokens: Vec<u32> = tokenizer.encode(t, true)?.into_iter().chain(end).collect();
            return Ok(Example { tokens, from: 1 });
        }
    };
    let Some((last, earlier)) = messages.split_last() else { return Err(bad("`messages` is empty")) };
    let (tokens, prompt) = match template {
        Some(t) => (model::encode_chat(tokenizer, t, &messages, false)?, model::encode_chat(tokenizer, t, earlier, true)?),
        None => {
            let prompt: String = earlier.iter().map(|m| m.content.as_str()).collect();
            let prompt = tokenizer.encode(&prompt, true)?;
            let answer = tokenizer.encode(&last.content, false)?;
            (prompt.iter().copied().chain(answer).chain(end).collect(), prompt)
        }
    };
    let shared = tokens.iter().zip(&prompt).take_while(|(a, b)| a == b).count();
    Ok(Example { tokens, from: if mask { shared.max(1) } else { 1 } })
}

struct Tuner<'a> {
    args: &'a FinetuneArgs,
    model: &'a dyn Model,
    adapters: &'a Adapters,
    device: &'a Device,
    base: String,
}

impl Tuner<'_> {
    /// Tokens and what follows each, `[B,T]` both; −1 where nothing is to be learnt. T is a multiple of 32, so that few plans serve all.
    fn batch(&self, examples: &[&Example]) -> Result<(Tensor, Tensor, usize), Failure> {
        let longest = examples.iter().map(|e| e.tokens.len() - 1).max().unwrap_or(1);
        let t = longest.next_multiple_of(32).min(self.model.shape().context);
        let (mut x, mut y, mut count) = (Vec::new(), Vec::new(), 0);
        for e in examples {
            let n = e.tokens.len() - 1;
            x.extend(e.tokens[..n].iter().map(|&i| i as i32).chain(std::iter::repeat_n(0, t - n)));
            let learnt = e.tokens[1..].iter().enumerate().map(|(i, &id)| if i + 1 < e.from { -1 } else { id as i32 });
            y.extend(learnt.chain(std::iter::repeat_n(-1, t - n)));
            count += n + 1 - e.from;
        }
        let shape = [examples.len(), t];
        Ok((Tensor::from_vec(x, &shape, self.device)?, Tensor::from_vec(y, &shape, self.device)?, count))
    }

    /// The mean loss of a token of these examples.
    fn score(&self, examples: &[Example]) -> Result<Option<f64>, Failure> {
        self.adapters.train(false);
        let (mut sum, mut count) = (0.0, 0);
        for e in examples {
            let (x, y, n) = self.batch(&[e])?;
            sum += no_grad(|| models::loss(self.model, &x, &y))?.item()? * n as f64;
            count += n;
        }
        Ok((count > 0).then(|| sum / count as f64))
    }

    /// Learns; gives the updates made, the last loss, and the tokens read.
    fn train(&mut self, examples: &[Example], global: Global) -> Result<(u64, f64, usize), Failure> {
        let (args, mut order) = (self.args, Vec::new());
        let (lr, choice) = steps_of(args)?;
        let schedule = Schedule::warmup_cosine(lr, lr / 10.0, args.steps / 20 + 1, args.steps);
        let mut optimizer = choice.build(self.adapters.named_parameters(), lr)?.max_grad_norm(1.0);
        let (mut adaptive, modules) = (AdaptiveBatch::new(), self.adapters.modules());
        let progress = StepProgress::new(args.steps, global.quiet);
        self.adapters.train(true);
        let mut shuffle = args.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let start = Instant::now();
        let (mut tokens, mut pending, mut last) = (0, None::<(Tensor, usize)>, f64::NAN);
        // The speed is that of updates: tokens of those that are done, over time without saves.
        let mut saving = Duration::ZERO;
        let speed = |tokens: usize, saving: Duration| tokens as f64 / start.elapsed().saturating_sub(saving).as_secs_f64().max(1e-9);
        for step in 0..args.steps {
            if interrupt::requested() {
                break;
            }
            let mut chosen = Vec::new();
            while chosen.len() < args.batch {
                if order.is_empty() {
                    order = (0..examples.len()).collect();
                    for i in (1..order.len()).rev() {
                        shuffle ^= shuffle << 13;
                        shuffle ^= shuffle >> 7;
                        shuffle ^= shuffle << 17;
                        order.swap(i, (shuffle % (i as u64 + 1)) as usize);
                    }
                }
                chosen.extend(order.pop().map(|i| &examples[i]));
            }
            let (x, y, count) = self.batch(&chosen)?;
            tokens += chosen.iter().map(|e| e.tokens.len() - 1).sum::<usize>();
            let through = tokens;
            optimizer.set_lr(schedule.at(step));
            // The mean over the tokens of the whole batch, in however many parts it is computed.
            let part = |b: &[Tensor]| {
                let share = args.batch as f64 / (b[0].dims()[0] * count) as f64;
                let mut pass = Pass::tokens(&b[0]).checkpointing(args.checkpointing);
                models::loss_of(self.model, &mut pass, &b[1], Reduction::Sum)?.mul(share)
            };
            let parts = adaptive.parts();
            let loss = adaptive.step(&modules, &mut optimizer, &[vec![x, y]], part)?;
            if adaptive.parts() != parts && !global.quiet {
                let why = if adaptive.parts() > parts { "out of memory" } else { "memory is available again" };
                output::note(&format!("{why}: batches are now computed in {} part(s), with the same result", adaptive.parts()));
            }
            // The loss of the step before is read while this one runs.
            if let Some((before, done)) = pending.replace((loss, through)) {
                last = finite(before.item()?)?;
                progress.set(step, last, speed(done, saving));
            }
            if args.save_every > 0 && (step + 1) % args.save_every == 0 && step + 1 < args.steps {
                // Work that is still under way belongs to the steps.
                self.device.synchronize()?;
                let began = Instant::now();
                self.save()?;
                saving += began.elapsed();
            }
        }
        if let Some((loss, done)) = pending {
            last = finite(loss.item()?)?;
            progress.set(optimizer.steps(), last, speed(done, saving));
        }
        Ok((optimizer.steps(), last, tokens))
    }

    fn save(&self) -> Result<(), Failure> {
        let failed = |e: TensorError| match Failure::from(e) {
            Failure::Error(text) => Failure::Error(format!("{text}; progress since the last save (--save-every) is lost")),
            device => device,
        };
        self.adapters.save(&self.args.out, &self.base).map_err(failed)
    }
}

fn finite(loss: f64) -> Result<f64, Failure> {
    match loss.is_finite() {
        true => Ok(loss),
        false => Err(Failure::Error("the loss became NaN or infinite: lower --lr, or use --dtype f32".into())),
    }
}

/// A bar on a terminal, a line for every tenth of the way elsewhere, nothing with `--quiet`.
struct StepProgress {
    bar: Option<ProgressBar>,
    every: u64,
    steps: u64,
}

impl StepProgress {
    fn new(steps: u64, quiet: bool) -> StepProgress {
        let terminal = std::io::stderr().is_terminal();
        let bar = (!quiet && terminal).then(|| {
            let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::hidden());
            if let Ok(style) = ProgressStyle::with_template("step {pos}/{len} [{bar:30}] {msg}  {eta}") {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.set_draw_target(ProgressDrawTarget::stderr());
            bar
        });
        StepProgress { bar, every: if quiet || terminal { u64::MAX } else { (steps / 10).max(1) }, steps }
    }

    fn set(&self, done: u64, loss: f64, rate: f64) {
        let text = format!("loss {loss:.4}  {rate:.1} tok/s");
        if let Some(bar) = &self.bar {
            bar.set_message(text.clone());
            bar.set_position(done);
        }
        if done % self.every == 0 && done > 0 {
            output::note(&format!("step {done}/{}  {text}", self.steps));
        }
    }
}

impl Drop for StepProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
