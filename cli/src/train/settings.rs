//! What a run is asked to be: flags and a TOML file of the same words, put together and checked.

use crate::optimizer::OptimizerChoice;
use crate::output::Failure;
use clap::Args;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use tensorlogic::DType;
use tensorlogic::nn::GptConfig;
use tensorlogic::optim::Schedule;

/// Every setting; what is not given is `None`. Names in a TOML file are those of the flags.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Settings {
    /// Text files, folders of them, or one `.bin` token file (nanoGPT's or llm.c's)
    #[arg(value_name = "FILE")]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<PathBuf>,
    /// Tokenizer: `char`, `bpe:SIZE`, or a tokenizer.json [default: char]
    #[arg(long, value_name = "char|bpe:N|FILE", help_heading = "Text")]
    pub tokenizer: Option<String>,
    /// Fraction held out, from the end of the text [default: 0.1]
    #[arg(long, value_name = "SHARE", help_heading = "Text")]
    pub val: Option<f64>,
    /// Separate file of held-out text or tokens
    #[arg(long, value_name = "FILE", help_heading = "Text")]
    pub val_file: Option<PathBuf>,
    /// Transformer blocks [default: 4]
    #[arg(long, help_heading = "Model")]
    pub layers: Option<usize>,
    /// Attention heads [default: 4]
    #[arg(long, help_heading = "Model")]
    pub heads: Option<usize>,
    /// Width of the residual stream [default: 128]
    #[arg(long, help_heading = "Model")]
    pub width: Option<usize>,
    /// Context length in tokens [default: 64]
    #[arg(long, help_heading = "Model")]
    pub context: Option<usize>,
    /// Whether layers have biases [default: true]
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", help_heading = "Model")]
    pub bias: Option<bool>,
    /// Dropout probability [default: 0]
    #[arg(long, help_heading = "Model")]
    pub dropout: Option<f64>,
    /// Dropout of attention weights [default: --dropout]
    #[arg(long, help_heading = "Model")]
    pub attention_dropout: Option<f64>,
    /// Windows per batch [default: 12]
    #[arg(long, help_heading = "Training")]
    pub batch: Option<usize>,
    /// Batches whose gradients are accumulated in one step [default: 1]
    #[arg(long, help_heading = "Training")]
    pub accumulate: Option<usize>,
    /// Streams of batches whose gradients a step sums, a power of two; the ranks of `mpirun` share them, and their number changes no bit [default: 1]
    #[arg(long, help_heading = "Training")]
    pub lanes: Option<usize>,
    /// Number of steps [default: 2000]
    #[arg(long, help_heading = "Training")]
    pub steps: Option<u64>,
    /// Optimizer: adamw, adam, sgd, lion or muon [default: adamw]
    #[arg(long, value_name = "NAME", help_heading = "Training")]
    pub optimizer: Option<String>,
    /// Peak learning rate [default: 1e-3; sgd 0.1, lion 3e-4]
    #[arg(long, help_heading = "Training")]
    pub lr: Option<f64>,
    /// Final learning rate [default: a tenth of --lr]
    #[arg(long, help_heading = "Training")]
    pub min_lr: Option<f64>,
    /// Warm-up steps of the learning rate [default: 100]
    #[arg(long, help_heading = "Training")]
    pub warmup: Option<u64>,
    /// Learning rate after the warm-up: cosine or constant [default: cosine]
    #[arg(long, value_name = "cosine|constant", help_heading = "Training")]
    pub schedule: Option<String>,
    /// Step at which the cosine ends [default: --steps]
    #[arg(long, help_heading = "Training")]
    pub decay_steps: Option<u64>,
    /// Decay of the gradients' mean, or momentum [default: 0.9; muon 0.95]
    #[arg(long, help_heading = "Training")]
    pub beta1: Option<f64>,
    /// Decay of the mean of squares, or of Lion's momentum [default: 0.99]
    #[arg(long, help_heading = "Training")]
    pub beta2: Option<f64>,
    /// Weight decay, for matrices only; not supported by adam [default: 0.1]
    #[arg(long, help_heading = "Training")]
    pub weight_decay: Option<f64>,
    /// Clip gradients to this norm; 0 for no clipping [default: 1]
    #[arg(long, help_heading = "Training")]
    pub clip: Option<f64>,
    /// Seed of weights, data order and dropout [default: 1337]
    #[arg(long, help_heading = "Training")]
    pub seed: Option<u64>,
    /// Type of the computation; master weights stay f32 [default: f32]
    #[arg(long, value_name = "f32|f16|bf16", help_heading = "Training")]
    pub dtype: Option<String>,
    /// Keep only the input of each block for the backward pass, which computes the rest again: less memory, more time
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", help_heading = "Training")]
    pub checkpointing: Option<bool>,
    /// Steps between evaluations on held-out text; 0 evaluates only at the end [default: 250]
    #[arg(long, help_heading = "Reports")]
    pub eval_every: Option<u64>,
    /// Maximum batches per evaluation, spread over the held-out text; 0 for all of it [default: 200]
    #[arg(long, help_heading = "Reports")]
    pub eval_batches: Option<usize>,
    /// Steps between checkpoints; 0 saves only at the end [default: --eval-every]
    #[arg(long, help_heading = "Reports")]
    pub save_every: Option<u64>,
    /// Number of checkpoints to keep [default: 2]
    #[arg(long, help_heading = "Reports")]
    pub keep: Option<usize>,
    /// Steps between reports [default: 10]
    #[arg(long, help_heading = "Reports")]
    pub log_every: Option<u64>,
    /// Steps between samples; 0 for none [default: 0]
    #[arg(long, help_heading = "Reports")]
    pub sample_every: Option<u64>,
    /// Prompt of a sample [default: a line break]
    #[arg(long, value_name = "TEXT", help_heading = "Reports")]
    pub sample_prompt: Option<String>,
    /// Tokens per sample [default: 200]
    #[arg(long, help_heading = "Reports")]
    pub sample_tokens: Option<usize>,
}

/// A run's settings, all given and all sane.
#[derive(Clone, Debug)]
pub struct Recipe {
    pub tokenizer: String,
    pub val: f64,
    /// Without the vocabulary, which the tokenizer has.
    pub model: GptConfig,
    pub attention_dropout: f64,
    pub batch: usize,
    pub accumulate: usize,
    pub lanes: usize,
    pub steps: u64,
    pub schedule: Schedule,
    pub optimizer: OptimizerChoice,
    pub clip: f64,
    pub seed: u64,
    pub dtype: DType,
    pub checkpointing: bool,
    pub eval_every: u64,
    pub eval_batches: usize,
    pub save_every: u64,
    pub keep: usize,
    pub log_every: u64,
    pub sample_every: u64,
    pub sample_prompt: String,
    pub sample_tokens: usize,
}

/// What must not change when a run continues.
const FIXED: [&str; 15] = [
    "files",
    "tokenizer",
    "val",
    "val-file",
    "layers",
    "heads",
    "width",
    "context",
    "bias",
    "batch",
    "accumulate",
    "lanes",
    "optimizer",
    "seed",
    "dtype",
];

impl Settings {
    /// The settings of a TOML file.
    pub fn read(path: &Path) -> Result<Settings, Failure> {
        let text = std::fs::read_to_string(path).map_err(|e| Failure::Error(format!("{}: {e}", path.display())))?;
        Settings::parse(&text).map_err(|e| Failure::Usage(format!("{}: {e}", path.display())))
    }

    /// The settings of TOML text.
    pub fn parse(text: &str) -> Result<Settings, String> {
        toml::from_str(text).map_err(|e| e.message().to_string())
    }

    /// As TOML text, without what is not given.
    pub fn to_toml(&self) -> Result<String, Failure> {
        toml::to_string(self).map_err(|e| Failure::Error(format!("settings: {e}")))
    }

    fn table(&self) -> Result<toml::Table, Failure> {
        toml::Table::try_from(self).map_err(|e| Failure::Error(format!("settings: {e}")))
    }

    /// These settings, and `below` where nothing is given.
    pub fn over(&self, below: &Settings) -> Result<Settings, Failure> {
        let mut all = below.table()?;
        all.extend(self.table()?);
        all.try_into().map_err(|e: toml::de::Error| Failure::Error(format!("settings: {}", e.message())))
    }

    /// Whether a run with these settings may continue one with `old` ones: an error that names what differs.
    pub fn may_continue(&self, old: &Settings) -> Result<(), Failure> {
        let (new, old) = (self.table()?, old.table()?);
        for name in FIXED {
            if new.get(name) != old.get(name) {
                let show = |t: &toml::Table| t.get(name).map_or("the default".into(), |v| v.to_string());
                let (was, is) = (show(&old), show(&new));
                return Err(Failure::Usage(format!("--resume: {name} was {was} and is {is} now; a resumed run must keep its settings")));
            }
        }
        Ok(())
    }

    /// Everything, with defaults, checked.
    pub fn recipe(&self) -> Result<Recipe, Failure> {
        let wrong = |name: &str, why: String| Err(Failure::Usage(format!("--{name}: {why}")));
        let model = GptConfig {
            vocab: 0,
            context: self.context.unwrap_or(64),
            layers: self.layers.unwrap_or(4),
            heads: self.heads.unwrap_or(4),
            width: self.width.unwrap_or(128),
            bias: self.bias.unwrap_or(true),
            dropout: self.dropout.unwrap_or(0.0),
        };
        let attention_dropout = self.attention_dropout.unwrap_or(model.dropout);
        let (batch, accumulate) = (self.batch.unwrap_or(12), self.accumulate.unwrap_or(1));
        let counts =
            [("context", model.context), ("layers", model.layers), ("heads", model.heads), ("width", model.width), ("batch", batch)];
        for (name, n) in counts.into_iter().chain([("accumulate", accumulate), ("keep", self.keep.unwrap_or(2))]) {
            if n == 0 || n > 1 << 24 {
                return wrong(name, format!("{n} is not a size"));
            }
        }
        let lanes = self.lanes.unwrap_or(1);
        if !lanes.is_power_of_two() || lanes > 1 << 16 {
            return wrong("lanes", format!("{lanes} is not a power of two up to 65536"));
        }
        if model.width % model.heads != 0 {
            return wrong("heads", format!("{} heads do not divide a width of {}", model.heads, model.width));
        }
        let shares = [("dropout", model.dropout), ("attention-dropout", attention_dropout), ("val", self.val.unwrap_or(0.1))];
        let optimizer = OptimizerChoice::new(self.optimizer.as_deref(), (self.beta1, self.beta2), self.weight_decay)?;
        for (name, p) in shares.into_iter().chain([("beta1", optimizer.betas.0), ("beta2", optimizer.betas.1)]) {
            if !(0.0..1.0).contains(&p) {
                return wrong(name, format!("{p} is not in 0..1"));
            }
        }
        let lr = self.lr.unwrap_or(optimizer.usual_lr(1e-3));
        let min_lr = self.min_lr.unwrap_or(lr / 10.0);
        let (weight_decay, clip) = (optimizer.weight_decay, self.clip.unwrap_or(1.0));
        for (name, v) in [("lr", lr), ("min-lr", min_lr), ("weight-decay", weight_decay), ("clip", clip)] {
            if !(v.is_finite() && v >= 0.0) {
                return wrong(name, format!("{v} is not a valid learning rate"));
            }
        }
        let (steps, warmup) = (self.steps.unwrap_or(2000), self.warmup.unwrap_or(100));
        let schedule = match self.schedule.as_deref().unwrap_or("cosine") {
            "cosine" => Schedule::warmup_cosine(lr, min_lr, warmup, self.decay_steps.unwrap_or(steps)),
            "constant" => Schedule::warmup_cosine(lr, lr, warmup, u64::MAX),
            other => return wrong("schedule", format!("{other}: expected cosine or constant")),
        };
        let dtype = match self.dtype.as_deref().unwrap_or("f32") {
            "f32" => DType::F32,
            "f16" => DType::F16,
            "bf16" => DType::BF16,
            other => return wrong("dtype", format!("{other}: expected f32, f16 or bf16")),
        };
        let eval_every = self.eval_every.unwrap_or(250);
        Ok(Recipe {
            tokenizer: self.tokenizer.clone().unwrap_or_else(|| "char".into()),
            val: if self.val_file.is_some() { 0.0 } else { self.val.unwrap_or(0.1) },
            model,
            attention_dropout,
            batch,
            accumulate,
            lanes,
            steps,
            schedule,
            optimizer,
            clip,
            seed: self.seed.unwrap_or(1337),
            dtype,
            checkpointing: self.checkpointing.unwrap_or(false),
            eval_every,
            eval_batches: self.eval_batches.unwrap_or(200),
            save_every: self.save_every.unwrap_or(eval_every),
            keep: self.keep.unwrap_or(2),
            log_every: self.log_every.unwrap_or(10).max(1),
            sample_every: self.sample_every.unwrap_or(0),
            sample_prompt: self.sample_prompt.clone().unwrap_or_else(|| "\n".into()),
            sample_tokens: self.sample_tokens.unwrap_or(200),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_win_over_the_file_and_mistakes_are_named() {
        let file = Settings::parse("layers = 6\nlr = 1e-3\nbias = false\nmin-lr = 1e-4").unwrap();
        let flags = Settings { layers: Some(2), seed: Some(u64::from(u32::MAX)), ..Settings::default() };
        let both = flags.over(&file).unwrap();
        assert_eq!((both.layers, both.lr, both.bias, both.seed), (Some(2), Some(1e-3), Some(false), Some(u32::MAX as u64)));
        assert_eq!(Settings::parse(&both.to_toml().unwrap()).unwrap(), both);
        assert!(Settings::parse("layer = 6").unwrap_err().contains("layer"));
        let e = both.may_continue(&file).unwrap_err().to_string();
        assert!(e.contains("layers was 6 and is 2"), "{e}");
        for (wrong, word) in [
            (Settings { heads: Some(3), ..Settings::default() }, "--heads: 3 heads do not divide"),
            (Settings { dropout: Some(1.0), ..Settings::default() }, "--dropout"),
            (Settings { lr: Some(f64::NAN), ..Settings::default() }, "--lr"),
            (Settings { batch: Some(0), ..Settings::default() }, "--batch"),
            (Settings { lanes: Some(3), ..Settings::default() }, "--lanes: 3 is not a power of two"),
            (Settings { dtype: Some("f8".into()), ..Settings::default() }, "--dtype"),
            (Settings { optimizer: Some("adamax".into()), ..Settings::default() }, "--optimizer: adamax: expected adamw, adam, sgd"),
            (
                Settings { optimizer: Some("adam".into()), weight_decay: Some(0.1), ..Settings::default() },
                "--weight-decay: adam does not support it",
            ),
            (Settings { schedule: Some("step".into()), ..Settings::default() }, "--schedule"),
        ] {
            let e = wrong.recipe().unwrap_err().to_string();
            assert!(e.contains(word), "{e}");
        }
    }

    /// nanoGPT's `config/train_shakespeare_char.py`, number by number.
    #[test]
    fn the_stored_recipe_is_nanogpts() {
        let r = Settings::parse(include_str!("../../../recipes/shakespeare_char.toml")).unwrap().recipe().unwrap();
        let m = r.model;
        assert_eq!((m.layers, m.heads, m.width, m.context, m.bias, m.dropout), (6, 6, 384, 256, false, 0.2));
        assert_eq!(
            (r.batch, r.accumulate, r.steps, r.optimizer.betas, r.optimizer.weight_decay, r.clip),
            (64, 1, 5000, (0.9, 0.99), 0.1, 1.0)
        );
        assert_eq!((r.eval_every, r.eval_batches, r.val, r.attention_dropout, r.tokenizer.as_str()), (250, 200, 0.1, 0.2, "char"));
        let lr = |step| r.schedule.at(step);
        assert!((lr(99) - 1e-3).abs() < 1e-9 && (lr(5000) - 1e-4).abs() < 1e-9 && (lr(2550) - 5.5e-4).abs() < 1e-5);
    }
}
