//! A character GPT trained from a text file: nanoGPT's shakespeare_char shape (6 layers, 6 heads, 384 wide, context 256) and recipe.
//!
//! `cargo run --release --example char_gpt -- TEXT [--tiny] [--steps N] [--seed N] [--sample N]`; `--tiny` is a shape that a CPU trains in
//! seconds. `TL_DEVICE=cpu` (or `gpu`, `vulkan`, `metal`) chooses the device. `tl train` does the same with checkpoints.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;
use tensorlogic::autograd::no_grad;
use tensorlogic::data::{DataLoader, LoaderOptions, Order, TokenFile, TokenWindows};
use tensorlogic::models::Sampler;
use tensorlogic::nn::{Gpt, GptConfig, Module, ModuleExt};
use tensorlogic::optim::{AdamW, Optimizer, Schedule, decay_matrices};
use tensorlogic::{Device, Rng, Tensor, TensorError, TensorResult};

/// What is trained, and how.
pub struct Recipe {
    /// The model; its vocabulary is the text's.
    pub model: GptConfig,
    /// Sequences of a step.
    pub batch: usize,
    /// Updates.
    pub steps: u64,
    /// Highest learning rate; the last is a tenth of it.
    pub lr: f64,
    /// Updates until the highest learning rate.
    pub warmup: u64,
    /// The seed of weights, batches and samples.
    pub seed: u64,
    /// Characters of the sample at the end.
    pub sample: usize,
}

impl Recipe {
    /// nanoGPT's `config/train_shakespeare_char.py`.
    pub fn shakespeare_char() -> Recipe {
        let model = GptConfig { vocab: 0, context: 256, layers: 6, heads: 6, width: 384, bias: false, dropout: 0.2 };
        Recipe { model, batch: 64, steps: 5000, lr: 1e-3, warmup: 100, seed: 1337, sample: 500 }
    }
    /// The same on a CPU in seconds.
    pub fn tiny() -> Recipe {
        let model = GptConfig { vocab: 0, context: 32, layers: 2, heads: 2, width: 32, bias: false, dropout: 0.0 };
        Recipe { model, batch: 8, steps: 200, lr: 3e-3, warmup: 20, seed: 1337, sample: 200 }
    }
}

/// A text as numbers: each character's place among the characters that occur.
struct Characters {
    known: Vec<char>,
    ids: Vec<u32>,
}

impl Characters {
    fn of(text: &str) -> Characters {
        let mut known: Vec<char> = text.chars().collect();
        known.sort_unstable();
        known.dedup();
        let ids = text.chars().map(|c| known.binary_search(&c).unwrap_or(0) as u32).collect();
        Characters { known, ids }
    }
}

/// Random windows of a part of a text, read ahead by a thread: each batch is `[B, T]` characters and `[B, T]` of what follows them.
fn batches(ids: &[u32], range: Range<usize>, recipe: &Recipe, seed: u64, device: &Device) -> TensorResult<DataLoader> {
    let windows = TokenWindows::new(Arc::new(TokenFile::from_tokens(ids)), range, recipe.model.context, 1)?;
    DataLoader::new(windows, LoaderOptions { batch: recipe.batch, order: Order::Random, seed, ..Default::default() }, device)
}

/// The mean loss of a few batches.
fn estimate(model: &Gpt, ids: &[u32], range: Range<usize>, recipe: &Recipe, device: &Device) -> TensorResult<f64> {
    model.eval();
    let mut loader = batches(ids, range, recipe, 99, device)?;
    let rounds = 8;
    let mut sum = 0.0;
    for _ in 0..rounds {
        let [x, y] = &loader.next_batch()?[..] else { break };
        sum += no_grad(|| model.loss(x, y))?.item()?;
    }
    model.train();
    Ok(sum / rounds as f64)
}

/// Continues a text: each step reads the last window again. Windows are filled up at the end, which no earlier character sees.
fn sample(model: &Gpt, text: &Characters, recipe: &Recipe, device: &Device) -> TensorResult<String> {
    let mut sampler = Sampler { temperature: 0.8, rng: Rng::new(recipe.seed), ..Sampler::default() };
    let context = model.config.context;
    let mut ids = vec![text.known.binary_search(&'\n').unwrap_or(0) as u32];
    model.eval();
    for _ in 0..recipe.sample {
        let last = &ids[ids.len().saturating_sub(context)..];
        let mut window: Vec<i32> = last.iter().map(|&i| i as i32).collect();
        window.resize(context, 0);
        let x = Tensor::from_vec(window, &[1, context], device)?;
        let mut logits = no_grad(|| model.forward(&x)?.i((0, last.len() - 1)))?.to_vec()?;
        ids.push(sampler.choose_host(&mut logits, &ids)?);
    }
    model.train();
    Ok(ids[1..].iter().map(|&i| text.known[i as usize]).collect())
}

/// Trains on nine tenths of the text; gives the loss on the rest before and after, and a sample.
pub fn run(text: &str, mut recipe: Recipe, device: &Device, mut log: impl FnMut(&str)) -> TensorResult<(f64, f64, String)> {
    let text = Characters::of(text);
    recipe.model.vocab = text.known.len();
    let (all, cut) = (text.ids.len(), text.ids.len() * 9 / 10);
    let context = recipe.model.context;
    let mut rng = Rng::new(recipe.seed);
    let model = Gpt::new(recipe.model, &mut rng, device)?;
    log(&format!("{} characters of {} kinds, {} parameters", text.ids.len(), text.known.len(), model.parameter_count()));

    let rule = AdamW { betas: (0.9, 0.99), ..AdamW::default() };
    let groups = decay_matrices(model.named_parameters(), 0.1);
    let mut optimizer = Optimizer::with_groups(rule, groups, recipe.lr)?.max_grad_norm(1.0);
    let schedule = Schedule::warmup_cosine(recipe.lr, recipe.lr / 10.0, recipe.warmup, recipe.steps);

    let mut loader = batches(&text.ids, 0..cut, &recipe, recipe.seed, device)?;
    let before = estimate(&model, &text.ids, cut..all, &recipe, device)?;
    let (start, every) = (Instant::now(), (recipe.steps / 20).max(1));
    for step in 0..recipe.steps {
        let [x, y] = &loader.next_batch()?[..] else { break };
        optimizer.set_lr(schedule.at(step));
        optimizer.zero_grad()?;
        let loss = model.loss(x, y)?;
        loss.backward()?;
        optimizer.step()?;
        if (step + 1) % every == 0 {
            // The only read-back: between these lines nothing waits for the device.
            let loss = loss.item()?;
            let rate = ((step + 1) as usize * recipe.batch * context) as f64 / start.elapsed().as_secs_f64();
            log(&format!("step {:>5}  loss {loss:.4}  {rate:.0} characters/s", step + 1));
        }
    }
    let after = estimate(&model, &text.ids, cut..all, &recipe, device)?;
    log(&format!("validation loss {before:.4} before, {after:.4} after"));
    Ok((before, after, sample(&model, &text, &recipe, device)?))
}

fn main() -> TensorResult<()> {
    let wrong = |m: &str| TensorError::Value(format!("{m}: char_gpt TEXT [--tiny] [--steps N] [--seed N] [--sample N]"));
    let args: Vec<String> = std::env::args().skip(1).collect();
    let mut recipe = if args.iter().any(|a| a == "--tiny") { Recipe::tiny() } else { Recipe::shakespeare_char() };
    let mut file = None;
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        let mut number = || rest.next().and_then(|v| v.parse::<u64>().ok()).ok_or_else(|| wrong("a number is missing"));
        match arg.as_str() {
            "--tiny" => {}
            "--steps" => recipe.steps = number()?,
            "--seed" => recipe.seed = number()?,
            "--sample" => recipe.sample = number()? as usize,
            path => file = Some(path.to_string()),
        }
    }
    let file = file.ok_or_else(|| wrong("no text"))?;
    let text = std::fs::read_to_string(&file).map_err(|e| TensorError::Value(format!("{file}: {e}")))?;
    let (_, _, sample) = run(&text, recipe, &Device::auto()?, |line| println!("{line}"))?;
    println!("{sample}");
    Ok(())
}
