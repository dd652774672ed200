//! The training loop's state: model, optimizer, data; one step, one evaluation, one checkpoint.

use super::corpus::Corpus;
use super::curve::Curve;
use super::settings::{Recipe, Settings};
use crate::output::Failure;
use crate::ranks::together;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tensorlogic::autograd::no_grad;
use tensorlogic::data::{DataLoader, Dataset, LoaderOptions, Order, Part, TokenWindows};
use tensorlogic::distributed::{Ranks, Vote};
use tensorlogic::error::TensorError;
use tensorlogic::eval::{EvalStats, eval_stats};
use tensorlogic::io::save::save;
use tensorlogic::io::write_safetensors;
use tensorlogic::nn::{Gpt, GptConfig, ModuleExt};
use tensorlogic::optim::Optimizer;
use tensorlogic::train::{AdaptiveBatch, Checkpoints, LaneStep, Stage, load_training, save_training_state};
use tensorlogic::{DType, Device, Rng, Tensor, TensorResult};

/// Progress stored in a checkpoint besides model, optimizer, data and random state.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TrainingProgress {
    /// Number of completed steps.
    pub step: u64,
    /// The best evaluation: its loss and step.
    pub best: Option<(f64, u64)>,
    /// The step of the last evaluation.
    pub evaluated: Option<u64>,
    /// Seconds spent, over all runs.
    pub seconds: f64,
    /// Parts that a batch is computed in.
    pub parts: usize,
    /// The run's settings.
    pub settings: Settings,
}

/// Everything that a step changes.
pub struct Trainer {
    pub recipe: Recipe,
    pub device: Device,
    pub config: GptConfig,
    pub progress: TrainingProgress,
    pub curve: Curve,
    /// The evaluator's counters after the last step.
    pub last_step: EvalStats,
    model: Gpt,
    adaptive: AdaptiveBatch,
    ranks: Ranks,
    lanes: LaneStep,
    optimizer: Optimizer,
    loader: DataLoader,
    held_out: Option<HeldOut>,
    folder: PathBuf,
    checkpoints: Checkpoints,
    config_json: Vec<u8>,
    tokenizer_json: Vec<u8>,
}

/// The windows of an evaluation.
struct HeldOut {
    windows: TokenWindows,
    /// Their numbers.
    chosen: Vec<usize>,
}

const MODEL: &str = "model.safetensors";
const CONFIG: &str = "config.json";

impl Trainer {
    /// A new run. With `sharded`, each rank keeps a part of the optimizer's states.
    pub fn new(
        recipe: Recipe,
        settings: Settings,
        corpus: &Corpus,
        folder: &Path,
        device: &Device,
        (ranks, sharded): (&Ranks, bool),
    ) -> Result<Trainer, Failure> {
        let config = GptConfig { vocab: corpus.tokenizer.vocab_size(), ..recipe.model };
        let mut model = Gpt::new(config, &mut Rng::new(recipe.seed), device)?;
        model.set_attention_dropout(recipe.attention_dropout);
        model.set_checkpointing(recipe.checkpointing);
        let mut optimizer = recipe.optimizer.build(model.named_parameters(), recipe.schedule.at(0))?;
        if recipe.clip > 0.0 {
            optimizer = optimizer.max_grad_norm(recipe.clip);
        }
        if recipe.dtype != DType::F32 {
            optimizer = optimizer.mixed_precision(recipe.dtype)?;
        }
        let mut lanes = LaneStep::new(ranks, recipe.lanes)?;
        if sharded {
            lanes = lanes.shard_states(&mut optimizer)?;
        }
        let (tokens, range) = &corpus.train;
        let windows = TokenWindows::new(tokens.clone(), range.clone(), config.context, 1)?;
        let options = LoaderOptions { batch: recipe.batch, order: Order::Random, seed: recipe.seed, ..LoaderOptions::default() };
        let [first, run, all] = [lanes.own().start, lanes.own().len(), recipe.lanes].map(|n| (n * recipe.accumulate) as u64);
        let loader = DataLoader::new(windows, options, device)?.with_share(first, run, all)?;
        let held_out = match &corpus.val {
            Some((tokens, range)) => {
                let windows = TokenWindows::new(tokens.clone(), range.clone(), config.context, config.context)?;
                let most = if recipe.eval_batches == 0 { usize::MAX } else { recipe.eval_batches.saturating_mul(recipe.batch) };
                let (all, n) = (windows.len(), windows.len().min(most));
                Some(HeldOut { chosen: (0..n).map(|i| i * all / n).collect(), windows })
            }
            None => None,
        };
        let end = corpus.tokenizer.end_tokens().first().copied();
        let config_json = serde_json::to_vec_pretty(&config.to_hub(end)).map_err(|e| Failure::Error(e.to_string()))?;
        let checkpoints = Checkpoints::new(folder.join("checkpoints"), recipe.keep);
        let progress = TrainingProgress { parts: 1, settings, ..TrainingProgress::default() };
        Ok(Trainer {
            device: device.clone(),
            config,
            progress,
            curve: Curve::default(),
            last_step: EvalStats::default(),
            adaptive: AdaptiveBatch::new(),
            ranks: ranks.clone(),
            lanes,
            model,
            optimizer,
            loader,
            held_out,
            folder: folder.into(),
            checkpoints,
            config_json,
            tokenizer_json: corpus.tokenizer_json.clone(),
            recipe,
        })
    }

    /// Number of parameters of the model.
    pub fn parameters(&self) -> usize {
        self.model.parameter_count()
    }

    /// The ranks of the run.
    pub fn ranks(&self) -> &Ranks {
        &self.ranks
    }

    /// How long steps waited for examples to be read, in all.
    pub fn stalled(&self) -> Duration {
        self.loader.stalled()
    }

    /// What steps took time for between ranks, in ms a step; `None` where nothing was exchanged.
    pub fn stages(&self) -> Option<String> {
        let stages = self.lanes.stages();
        let each = |stage: Stage| format!("{} {:.1}", stage.name(), stages.of(stage).as_secs_f64() * 1e3 / stages.steps() as f64);
        let times = || Stage::ALL.map(each).join(", ");
        let by = self.lanes.by();
        (stages.steps() > 0).then(|| format!("exchange: ms a step of rank {}, side by side: {}; by {by}", self.ranks.rank(), times()))
    }

    /// Tokens of a step.
    pub fn tokens_per_step(&self) -> usize {
        self.recipe.batch * self.recipe.accumulate * self.recipe.lanes * self.config.context
    }

    /// One update. Returns the loss, and the numbers of parts per batch before and now if the memory asked for another one.
    pub fn step(&mut self) -> Result<(Tensor, Option<[usize; 2]>), Failure> {
        self.optimizer.set_lr(self.recipe.schedule.at(self.progress.step));
        let (model, accumulate) = (&self.model, self.recipe.accumulate);
        let mut lane = || (0..accumulate).map(|_| self.loader.next_batch()).collect::<TensorResult<Vec<_>>>();
        let loss = if self.recipe.lanes == 1 {
            self.adaptive.step(model, &mut self.optimizer, &lane()?, |b| model.loss(&b[0], &b[1]))?
        } else {
            let batches = self.lanes.own().map(|_| lane()).collect::<TensorResult<Vec<_>>>();
            let batches = self.ranks.all_ok(batches)?;
            let position = self.progress.step * (self.recipe.lanes * accumulate) as u64;
            self.lanes.step(&mut self.adaptive, model, &mut self.optimizer, &batches, position, |b| model.loss(&b[0], &b[1]))?
        };
        let before = std::mem::replace(&mut self.progress.parts, self.adaptive.parts());
        self.progress.step += 1;
        self.last_step = eval_stats(&self.device);
        Ok((loss, (before != self.progress.parts).then_some([before, self.progress.parts])))
    }

    /// Whether there is held-out text.
    pub fn has_held_out(&self) -> bool {
        self.held_out.is_some()
    }

    /// The mean loss on the held-out windows, without dropout; `None` when there are none, or `stop` said so.
    pub fn evaluate(&self, stop: impl Fn() -> bool) -> Result<Option<f64>, Failure> {
        let Some(h) = &self.held_out else { return Ok(None) };
        self.model.eval();
        let mut rows = self.recipe.batch.div_ceil(self.progress.parts).min(h.chosen.len());
        let losses = loop {
            let own = self.evaluate_by(h, rows, &stop);
            let vote = match &own {
                Err(TensorError::OutOfMemory { .. }) if rows > 1 => Vote::Again,
                Err(_) => Vote::Fail,
                Ok(None) => Vote::Interrupt,
                Ok(Some(_)) => Vote::GoOn,
            };
            match self.ranks.agree(vote) {
                Ok(Vote::Again) => rows = rows.div_ceil(2),
                Ok(Vote::Interrupt) => break Ok(None),
                Ok(_) => break own,
                Err(e) => break Err(e),
            }
        };
        self.model.train();
        let Some(mut losses) = losses? else { return Ok(None) };
        self.ranks.transport().max_words(&mut losses)?;
        // In the order of the windows, whoever computed them.
        Ok(Some(losses.into_iter().map(f64::from_bits).sum::<f64>() / h.chosen.len() as f64))
    }

    /// The sum of losses of each chunk of windows, as bits; 0 for those of other ranks.
    fn evaluate_by(&self, h: &HeldOut, rows: usize, stop: &impl Fn() -> bool) -> TensorResult<Option<Vec<u64>>> {
        let t = self.config.context;
        let (mut inputs, mut targets) = (vec![0i32; rows * t], vec![0i32; rows * t]);
        let mut losses = Vec::new();
        let chunks = h.chosen.chunks(rows);
        let mut words = vec![0; chunks.len()];
        for (n, chunk) in chunks.enumerate().skip(self.ranks.rank()).step_by(self.ranks.size()) {
            if stop() {
                return Ok(None);
            }
            // Rows without a window count nothing.
            targets.fill(-100);
            for (row, &w) in chunk.iter().enumerate() {
                let parts = (&mut inputs[row * t..(row + 1) * t], &mut targets[row * t..(row + 1) * t]);
                h.windows.read(w, &mut [Part::I32(parts.0), Part::I32(parts.1)])?;
            }
            let x = Tensor::from_vec(inputs.clone(), &[rows, t], &self.device)?;
            let y = Tensor::from_vec(targets.clone(), &[rows, t], &self.device)?;
            let loss = no_grad(|| self.model.loss(&x, &y))?.mul(chunk.len() as f64)?;
            loss.eval()?;
            losses.push((n, loss));
        }
        for (n, loss) in losses {
            words[n] = loss.item()?.to_bits();
        }
        Ok(Some(words))
    }

    /// Records an evaluation; returns whether it is the best.
    pub fn note_evaluation(&mut self, loss: f64) -> bool {
        self.curve.evaluated(self.progress.step, loss);
        self.progress.evaluated = Some(self.progress.step);
        let better = loss.is_finite() && self.progress.best.is_none_or(|(best, _)| loss < best);
        if better {
            self.progress.best = Some((loss, self.progress.step));
        }
        better
    }

    /// Makes the run's folder ready, with what a model folder has besides weights.
    pub fn prepare(&self) -> Result<(), Failure> {
        if !self.ranks.is_first() {
            return Ok(());
        }
        self.checkpoints.prepare()?;
        save(self.folder.join(CONFIG), |out| std::io::Write::write_all(out, &self.config_json))?;
        Ok(())
    }

    /// Saves a checkpoint, and the model where it is the best so far. Both are durable when this returns. Rank 0 writes what all ranks agree on.
    pub fn save(&mut self) -> Result<(), Failure> {
        self.lanes.check_parameters(&self.optimizer)?;
        let state = self.lanes.state(&self.optimizer);
        let state = self.ranks.all_ok(state)?;
        let written = if self.ranks.is_first() { self.write(state) } else { Ok(()) };
        together(&self.ranks, written)
    }

    fn write(&self, state: (BTreeMap<String, Tensor>, u64)) -> Result<(), Failure> {
        let step = self.progress.step;
        let own = serde_json::to_value(&self.progress).map_err(|e| Failure::Error(e.to_string()))?;
        let weights = state.0.iter().filter_map(|(n, t)| Some((n.strip_prefix("param.")?.to_string(), t.clone()))).collect();
        let weights = no_grad(|| self.config.weights_to_hub(&weights))?;
        self.checkpoints.save(step, |folder| {
            folder.bytes(CONFIG, &self.config_json)?;
            folder.bytes("tokenizer.json", &self.tokenizer_json)?;
            folder.file(MODEL, |out| write_safetensors(&weights, &[("format", "pt")], |bytes| out.put(bytes)))?;
            folder.bytes("loss.csv", self.curve.csv().as_bytes())?;
            save_training_state(folder, &self.model, state, Some(&self.loader), own)
        })?;
        self.publish()
    }

    /// Writes this step's weights into the run's folder if they are the best.
    fn publish(&self) -> Result<(), Failure> {
        let step = self.progress.step;
        if !self.ranks.is_first() || self.progress.best.is_some_and(|(_, best)| best != step) {
            return Ok(());
        }
        let path = self.checkpoints.path(step).join(MODEL);
        tensorlogic::io::save::link(&path, self.folder.join(MODEL))?;
        Ok(())
    }

    /// Writes the loss curve as CSV and SVG into the run's folder.
    pub fn draw(&self) -> Result<(), Failure> {
        if !self.ranks.is_first() {
            return Ok(());
        }
        let texts = [("loss.csv", self.curve.csv()), ("loss.svg", self.curve.svg(&self.title()))];
        for (name, text) in texts {
            save(self.folder.join(name), |out| std::io::Write::write_all(out, text.as_bytes()))?;
        }
        Ok(())
    }

    fn title(&self) -> String {
        let best = self.progress.best.map_or(String::new(), |(loss, step)| format!(", best {loss:.4} at step {step}"));
        format!("{} parameters, {} tokens a step{best}", self.parameters(), self.tokens_per_step())
    }

    /// The folder of the newest checkpoint as a model.
    pub fn saved_model(&self) -> PathBuf {
        self.checkpoints.path(self.progress.step)
    }

    /// Restores a checkpoint.
    pub fn load(&mut self, step: u64) -> Result<(), Failure> {
        let folder = self.checkpoints.path(step);
        let own = load_training(&folder, &self.model, &mut self.optimizer, Some(&mut self.loader))?;
        let settings = std::mem::take(&mut self.progress.settings);
        self.progress = serde_json::from_value(own).map_err(|e| Failure::Error(format!("{}: {e}", folder.display())))?;
        self.progress.settings = settings;
        self.adaptive = AdaptiveBatch::with_parts(self.progress.parts);
        let csv = std::fs::read_to_string(folder.join("loss.csv")).map_err(|e| Failure::Error(format!("{}: {e}", folder.display())))?;
        self.curve = Curve::parse(&csv).map_err(|e| Failure::Error(format!("{}/loss.csv: {e}", folder.display())))?;
        // The process may have ended between the checkpoint and these.
        self.publish()?;
        self.draw()
    }
}

/// The settings and the progress that a checkpoint holds.
pub fn saved_progress(folder: &Path) -> Result<TrainingProgress, Failure> {
    let path = folder.join("training.json");
    let failed = |e: &dyn std::fmt::Display| Failure::Error(format!("{}: {e}", path.display()));
    let text = std::fs::read(&path).map_err(|e| failed(&e))?;
    let mut value: serde_json::Value = serde_json::from_slice(&text).map_err(|e| failed(&e))?;
    serde_json::from_value(value["own"].take()).map_err(|e| failed(&e))
}
