//! Fine-tunes every weight of a GPT-2 from the Hugging Face Hub on a text file.
//!
//! `cargo run --release --example gpt2_finetune -- FOLDER TEXT [--steps N] [--batch N] [--context N] [--lr X]`, with `FOLDER` as
//! `tl pull openai-community/gpt2` prints it. `TL_DEVICE=cpu` (or `gpu`, `vulkan`, `metal`) chooses the device. `tl finetune` trains adapters
//! instead, which takes less memory.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use tensorlogic::data::{DataLoader, LoaderOptions, TokenFile, TokenWindows};
use tensorlogic::io::SafeTensors;
use tensorlogic::nn::{Gpt, GptConfig, ModuleExt};
use tensorlogic::optim::{AdamW, Optimizer, Schedule, decay_matrices};
use tensorlogic::text::Tokenizer;
use tensorlogic::{Device, Rng, Tensor, TensorError, TensorResult};

/// How it is trained.
pub struct Settings {
    /// Updates.
    pub steps: u64,
    /// Sequences of a step.
    pub batch: usize,
    /// Tokens of a sequence.
    pub context: usize,
    /// Highest learning rate.
    pub lr: f64,
}

/// Reads `config.json` and `model.safetensors` of a folder in Hub layout.
pub fn from_pretrained(folder: &Path, device: &Device) -> TensorResult<Gpt> {
    let path = folder.join("config.json");
    let text = std::fs::read(&path).map_err(|e| TensorError::Value(format!("{}: {e}", path.display())))?;
    let json: serde_json::Value = serde_json::from_slice(&text).map_err(|e| TensorError::Value(format!("{}: {e}", path.display())))?;
    let config = GptConfig { dropout: 0.1, ..GptConfig::from_hub(&json)? };
    let model = Gpt::new(config, &mut Rng::new(0), device)?;
    model.load_hub(&SafeTensors::open(folder)?)?;
    Ok(model)
}

/// Trains on a text as tokens; gives the loss of each step.
pub fn run(model: &Gpt, tokens: &[u32], s: &Settings, device: &Device, mut log: impl FnMut(&str)) -> TensorResult<Vec<f64>> {
    let t = s.context.min(model.config.context);
    // Windows side by side, each once in a round, in another order each time.
    let windows = TokenWindows::new(Arc::new(TokenFile::from_tokens(tokens)), 0..tokens.len(), t, t)?;
    let mut loader = DataLoader::new(windows, LoaderOptions { batch: s.batch, seed: 1, ..Default::default() }, device)?;
    let groups = decay_matrices(model.named_parameters(), 0.01);
    let mut optimizer = Optimizer::with_groups(AdamW::default(), groups, s.lr)?.max_grad_norm(1.0);
    let schedule = Schedule::warmup_cosine(s.lr, 0.0, s.steps / 10, s.steps);
    model.train();
    let mut losses = Vec::new();
    let start = Instant::now();
    for step in 0..s.steps {
        let [x, y] = &loader.next_batch()?[..] else { break };
        optimizer.set_lr(schedule.at(step));
        optimizer.zero_grad()?;
        let loss = model.loss(x, y)?;
        loss.backward()?;
        optimizer.step()?;
        losses.push(loss);
        if (step + 1) % 10 == 0 || step + 1 == s.steps {
            let (rate, now) =
                (((step + 1) as usize * s.batch * t) as f64 / start.elapsed().as_secs_f64(), losses[losses.len() - 1].item()?);
            log(&format!("step {:>4}  loss {now:.4}  {rate:.0} tokens/s", step + 1));
        }
    }
    losses.iter().map(Tensor::item).collect()
}

fn main() -> TensorResult<()> {
    let usage = || TensorError::Value("gpt2_finetune FOLDER TEXT [--steps N] [--batch N] [--context N] [--lr X]".into());
    let mut s = Settings { steps: 100, batch: 4, context: 256, lr: 3e-5 };
    let mut paths = Vec::new();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|v| v.parse::<f64>().ok()).ok_or_else(usage);
        match arg.as_str() {
            "--steps" => s.steps = number()? as u64,
            "--batch" => s.batch = number()? as usize,
            "--context" => s.context = number()? as usize,
            "--lr" => s.lr = number()?,
            path => paths.push(path.to_string()),
        }
    }
    let [folder, text] = &paths[..] else { return Err(usage()) };
    let device = Device::auto()?;
    let model = from_pretrained(Path::new(folder), &device)?;
    let tokenizer = Tokenizer::from_file(Path::new(folder).join("tokenizer.json"))?;
    let text = std::fs::read_to_string(text).map_err(|e| TensorError::Value(format!("{text}: {e}")))?;
    let tokens = tokenizer.encode(&text, false)?;
    println!("{} parameters, {} tokens, on {}", model.parameter_count(), tokens.len(), device.name());
    run(&model, &tokens, &s, &device, |line| println!("{line}"))?;
    Ok(())
}
