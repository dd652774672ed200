//! `tl train`: from text to a model that `tl generate` runs.

mod corpus;
mod curve;
mod ranks;
mod report;
mod settings;
mod trainer;

use crate::energy::{StepEnergy, TrainingEnergy};
use crate::generate::{profile_into, profiled};
use crate::output::{self, Failure};
use crate::ranks::{RankArgs, check_device, end, global_of, join, note_binding, open_device, together};
use crate::{Global, interrupt};
use clap::Args;
use corpus::Corpus;
use report::TrainingReport;
use settings::{Recipe, Settings};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tensorlogic::Device;
use tensorlogic::distributed::{Ranks, Vote};
use tensorlogic::eval::Download;
use tensorlogic::train::{Checkpoints, LaneStep};
use trainer::{Trainer, TrainingProgress, saved_progress};

/// Train a GPT on text from scratch; `tl generate` runs the resulting folder
#[derive(Args)]
#[command(
    after_help = "The folder contains the best model so far (config.json, model.safetensors, tokenizer.json), the loss curve (loss.csv, loss.svg),
the settings (train.toml), and the newest checkpoints. `saved K` on stdout means that step K is durably on disk and can be
resumed; a run that is killed before its first `saved` starts again with --resume. Ctrl-C or SIGUSR1 saves and exits.

Examples:
  tl train book.txt -o book                     a small character-level model
  tl generate -m book --raw \"Once\" --temp 0.8   try it
  tl train -o book --resume --steps 4000        continue, bit-exactly
  tl train texts/ -o stories --tokenizer bpe:4096 --layers 6 --width 384 --heads 6 --context 256
  tl train input.txt -o out --config recipes/shakespeare_char.toml --device gpu
  tl ckpt verify book                           print the step to resume from
  mpirun -n 4 tl train texts/ -o stories --lanes 4   on four GPUs, of one machine or several (docs/distributed.md)"
)]
pub struct TrainArgs {
    /// Folder of the run
    #[arg(short, long, value_name = "DIR")]
    out: PathBuf,
    /// TOML file of settings, named like the flags; flags take precedence
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Continue from the newest checkpoint in the folder, or start if there is none
    #[arg(long)]
    resume: bool,
    /// Save and exit after this many steps of this run
    #[arg(long, value_name = "STEPS")]
    stop_after: Option<u64>,
    /// Save and exit after this many seconds of this run
    #[arg(long, value_name = "SECONDS")]
    max_seconds: Option<f64>,
    /// Under mpirun or srun: each rank keeps a part of the optimizer's states (ZeRO-1); the results are the same bits
    #[arg(long)]
    shard_states: bool,
    /// Device: auto, cpu, gpu, vulkan, metal or dx12; the last four accept an index, such as vulkan:1
    #[arg(long, env = "TL_DEVICE", default_value = "auto")]
    device: String,
    /// Print statistics at the end: plan cache, dispatches, submits
    #[arg(long)]
    stats: bool,
    /// Count energy: joules per step beyond the device at rest (RAPL, or NVIDIA's management library); the device is left alone for 2 s first
    #[arg(long)]
    energy: bool,
    /// Profile some steps into this folder: traces for ui.perfetto.dev and tables
    #[arg(long, value_name = "DIR")]
    profile: Option<PathBuf>,
    #[command(flatten)]
    ranks: RankArgs,
    #[command(flatten)]
    settings: Settings,
}

/// A folder created by this run; it is removed if the run does not start.
struct Fresh<'a>(Option<&'a PathBuf>);
impl Drop for Fresh<'_> {
    fn drop(&mut self) {
        if let Some(folder) = self.0 {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// The settings of a run, in its folder.
pub const SETTINGS: &str = "train.toml";
/// The file that keeps two runs out of one folder. A run makes it first and leaves it there.
pub const LOCK: &str = ".lock";

/// A step's loss that is being copied to the host.
struct Pending {
    step: u64,
    lr: f64,
    loss: Download,
    /// When the loss was first seen to have arrived, which is when the step was done.
    done: Option<Instant>,
}

impl Pending {
    /// Checks whether the loss has arrived.
    fn look(&mut self) {
        if self.done.is_none() && self.loss.is_ready() {
            self.done = Some(Instant::now());
        }
    }
}

/// Runs the subcommand.
pub fn run(args: &TrainArgs, global: Global) -> Result<(), Failure> {
    let ranks = join(&args.ranks)?;
    let global = global_of(&ranks, global);
    let result = note_binding(&ranks, global).and_then(|()| run_rank(args, global, &ranks));
    end(&ranks, result)
}

/// What a run begins with.
struct Start {
    settings: Settings,
    recipe: Recipe,
    corpus: Corpus,
    device: Device,
    /// The step of the checkpoint to go on from.
    step: Option<u64>,
    _lock: Option<std::fs::File>,
}

/// Prepares the folder; one process does it, rank 0.
fn prepare(args: &TrainArgs, global: Global, ranks: &Ranks) -> Result<Start, Failure> {
    let mut settings = args.settings.clone();
    if let Some(file) = &args.config {
        settings = settings.over(&Settings::read(file)?)?;
    }
    for f in settings.files.iter_mut().chain(&mut settings.val_file) {
        // The folder can be moved to, and the files still be found.
        *f = std::fs::canonicalize(&*f).map_err(|e| Failure::Error(format!("{}: {e}", f.display())))?;
    }
    let folder = &args.out;
    std::fs::create_dir_all(folder).map_err(|e| Failure::Error(format!("{}: {e}", folder.display())))?;
    let lock = lock(folder)?;
    let found = newest(folder, args.resume, global)?;
    if let Some((_, saved)) = &found {
        settings = settings.over(&saved.settings)?;
        settings.may_continue(&saved.settings)?;
    } else if args.resume && folder.join(SETTINGS).exists() {
        // The run ended before its first checkpoint.
        settings = settings.over(&Settings::read(&folder.join(SETTINGS))?)?;
    }
    let recipe = settings.recipe()?;
    LaneStep::new(ranks, recipe.lanes).map_err(|e| Failure::Usage(format!("--lanes: {e}")))?;
    let device = open_device(&args.device, &args.ranks, ranks)?;
    let toml = settings.to_toml()?;
    tensorlogic::io::save::save(folder.join(SETTINGS), |out| std::io::Write::write_all(out, toml.as_bytes()))?;
    let corpus = match &found {
        Some(_) => Corpus::open(&settings, &recipe, folder)?,
        None => Corpus::prepare(&settings, &recipe, folder)?,
    };
    Ok(Start { settings, recipe, corpus, device, step: found.map(|f| f.0), _lock: Some(lock) })
}

/// What this rank begins with: what rank 0 prepared.
fn start(args: &TrainArgs, global: Global, ranks: &Ranks) -> Result<Start, Failure> {
    let own = if ranks.is_first() { prepare(args, global, ranks).map(Some) } else { Ok(None) };
    let own = together(ranks, own)?;
    let beginning = match &own {
        Some(s) => Some(ranks::Beginning { settings: s.settings.to_toml()?, step: s.step }),
        None => None,
    };
    let beginning = ranks::share(ranks, beginning)?;
    let start = own.map_or_else(
        || {
            let (settings, recipe) = ranks::parse(&beginning)?;
            let corpus = Corpus::open(&settings, &recipe, &args.out)?;
            let device = open_device(&args.device, &args.ranks, ranks)?;
            Ok(Start { settings, recipe, corpus, device, step: beginning.step, _lock: None })
        },
        Ok,
    );
    let start = together(ranks, start)?;
    ranks::check_corpus(ranks, &start.corpus)?;
    check_device(&args.device, &args.ranks, ranks, &start.device)?;
    ranks::compare_means(ranks, &start.device, global)?;
    Ok(start)
}

fn run_rank(args: &TrainArgs, global: Global, ranks: &Ranks) -> Result<(), Failure> {
    let started = Instant::now();
    let folder = &args.out;
    let mut fresh = Fresh((ranks.is_first() && !folder.exists()).then_some(folder));
    let Start { settings, recipe, corpus, mut device, step, _lock } = start(args, global, ranks)?;
    // Where small work is done must not depend on a measurement: two runs shall make the same bits.
    device.set_adaptive(false);
    interrupt::install();
    interrupt::install_save_and_end();
    let begin = || -> Result<Trainer, Failure> {
        let mut t = Trainer::new(recipe, settings, &corpus, folder, &device, (ranks, args.shard_states))?;
        t.prepare()?;
        if let Some(step) = step {
            t.load(step)?;
        }
        Ok(t)
    };
    let begun = begin();
    let mut t = together(ranks, begun)?;
    let mut report = TrainingReport::new(global, t.recipe.steps, t.progress.step, t.tokens_per_step());
    report.note(&format!(
        "{} parameters, {} tokens in a vocabulary of {}, on {}{}",
        report::grouped(t.parameters() as u64),
        report::grouped(corpus.train.1.len() as u64),
        t.config.vocab,
        on(&device, ranks),
        if t.progress.step > 0 { format!(", from step {}", t.progress.step) } else { String::new() }
    ));
    if t.progress.step >= t.recipe.steps {
        let more = "a larger --steps continues from there";
        report.note(&format!("the run is finished at step {} of {}; {more}", t.progress.step, t.recipe.steps));
    }
    crate::model::warn_unknown(&corpus.tokenizer, (t.recipe.sample_every > 0).then_some(t.recipe.sample_prompt.as_str()), global)?;
    fresh.0 = None;
    let first = t.progress.step;
    report.energy = if args.energy && ranks.is_first() { TrainingEnergy::begin(&device) } else { None };
    let end = loop {
        match train(args, global, &mut t, &mut report, started) {
            Err(Failure::Device(e)) if ranks.size() == 1 => {
                report.clear();
                device = crate::model::go_on(&device, e)?;
                t = moved(t, &corpus, folder, &device, ranks)?;
                report.note(&format!("training continues from step {}", t.progress.step));
            }
            end => break end?,
        }
    };
    report.done();
    let energy = report.energy.take().and_then(|e| e.end(&device, t.progress.step.saturating_sub(first)));
    match &energy {
        Some(energy) => report.note(&energy.line()),
        None if args.energy => report.note("energy: not reported by this system, or the device changed"),
        None => {}
    }
    if args.stats {
        let e = t.last_step;
        output::note(&format!(
            "plans: {} hits, {} misses, {} kept · a step: {} nodes, {} dispatches, {:.0} µs to build and match · submits: {} · {}",
            e.hits,
            e.misses,
            e.plans,
            e.nodes,
            e.dispatches,
            e.overhead.as_secs_f64() * 1e6,
            device.submits(),
            output::peak_memory(&device.memory())
        ));
        if let Some(line) = t.stages() {
            output::note(&line);
        }
    }
    if let Some((loss, step)) = t.progress.best {
        report.note(&format!("the best held-out loss is {loss:.4} at step {step}; that model is in {}", folder.display()));
    }
    if global.json {
        let memory = device.memory();
        let best = t.progress.best.map(|b| serde_json::json!({ "loss": b.0, "step": b.1 }));
        let value = serde_json::json!({ "step": t.progress.step, "best": best, "seconds": t.progress.seconds,
            "parameters": t.parameters(), "data_stall_seconds": t.stalled().as_secs_f64(), "peak_memory_bytes": memory.peak, "peak_allocated_bytes": memory.peak_allocated,
            "device": device.name(), "energy": energy.as_ref().map(StepEnergy::json) });
        output::result(&value.to_string())?;
    }
    if end == TrainingEnd::Interrupt { Err(Failure::Interrupted) } else { Ok(()) }
}

/// Where a run is computed.
fn on(device: &Device, ranks: &Ranks) -> String {
    match ranks.size() {
        1 => device.name(),
        n => format!("{}, one of {n} ranks by {}", device.name(), ranks.transport().name()),
    }
}

/// The run on another device, from its newest checkpoint, or from its beginning where there is none.
fn moved(left: Trainer, corpus: &Corpus, folder: &Path, device: &Device, ranks: &Ranks) -> Result<Trainer, Failure> {
    device.set_adaptive(false);
    let (recipe, settings) = (left.recipe.clone(), left.progress.settings.clone());
    drop(left);
    let mut t = Trainer::new(recipe, settings, corpus, folder, device, (ranks, false))?;
    t.prepare()?;
    if let (Some(step), _) = Checkpoints::new(folder.join("checkpoints"), 1).latest()? {
        t.load(step)?;
    }
    Ok(t)
}

#[derive(PartialEq, Clone, Copy)]
enum TrainingEnd {
    Done,
    Asked,
    Interrupt,
}

fn train(args: &TrainArgs, global: Global, t: &mut Trainer, report: &mut TrainingReport, started: Instant) -> Result<TrainingEnd, Failure> {
    let before = t.progress.seconds;
    let first = t.progress.step;
    let mut pending: Option<Pending> = None;
    let mut saved = (first > 0).then_some(first);
    let mut profiler = args.profile.as_deref().map(|folder| profile_into(folder, &t.device)).transpose()?;
    let silent = global.json || !t.ranks().is_first();
    let result = |line: String| if silent { Ok(()) } else { output::result(&line) };
    loop {
        let step = t.progress.step;
        let late = args.max_seconds.is_some_and(|s| started.elapsed() >= Duration::from_secs_f64(s.clamp(0.0, 1e9)));
        let asked = late || args.stop_after.is_some_and(|n| step - first >= n) || interrupt::save_and_end();
        let own = if interrupt::requested() {
            Vote::Interrupt
        } else if asked {
            Vote::Stop
        } else {
            Vote::GoOn
        };
        let mut end = match t.ranks().agree(own)? {
            Vote::Interrupt => Some(TrainingEnd::Interrupt),
            _ if step >= t.recipe.steps => Some(TrainingEnd::Done),
            Vote::Stop => Some(TrainingEnd::Asked),
            _ => None,
        };
        let due = |every: u64| every > 0 && step % every == 0 && step > first;
        // An evaluation that Ctrl-C cut short is made up for when the run goes on.
        let every = t.recipe.eval_every;
        let regular = every > 0 && step % every == 0 || end == Some(TrainingEnd::Done);
        let mut best = false;
        if regular && step > 0 && t.progress.evaluated != Some(step) {
            arrive(&mut pending, t, report)?;
            if let Some(loss) = t.evaluate(interrupt::requested)? {
                if !loss.is_finite() && t.recipe.dtype != tensorlogic::DType::F16 {
                    return Err(diverged("held-out loss", step, loss));
                }
                best = t.note_evaluation(loss);
                report.evaluated(step, loss, best);
            } else if t.has_held_out() {
                end = Some(TrainingEnd::Interrupt);
            }
        }
        let sample = due(t.recipe.sample_every);
        let new = saved != Some(step) && step > 0 && (sample || due(t.recipe.save_every) || end.is_some());
        if new || best {
            arrive(&mut pending, t, report)?;
            t.progress.seconds = before + started.elapsed().as_secs_f64();
            t.save().map_err(|e| match (e, saved) {
                (Failure::Error(text), Some(step)) => Failure::Error(format!("{text}; --resume continues from step {step}")),
                (e, _) => e,
            })?;
            saved = Some(step);
            report.clear();
            result(format!("saved {step}"))?;
            t.draw()?;
        }
        if sample {
            report.sample(step, t)?;
        }
        if saved == Some(step) {
            report.resumed(step);
        }
        if let Some(end) = end {
            if let Some(p) = profiler.take() {
                report.clear();
                profiled(p, global)?;
            }
            return Ok(end);
        }
        let (loss, parts) = t.step()?;
        if let Some(p) = &mut profiler {
            p.step()?;
        }
        pending.iter_mut().for_each(Pending::look);
        match parts {
            Some([before, parts]) if parts > before => {
                report.note(&format!("out of memory: a batch is now computed in {parts} parts; their gradients add up to the batch's"));
            }
            Some([_, parts]) => report.note(&format!("memory is available again: a batch is now computed in {parts} part(s)")),
            None => {}
        }
        if t.progress.step % t.recipe.log_every == 0 {
            // The loss of the report before has long arrived; this one is read at the next, so that nothing waits.
            let lr = t.recipe.schedule.at(t.progress.step - 1);
            let next = Pending { step: t.progress.step, lr, loss: loss.download()?, done: None };
            arrive(&mut pending, t, report)?;
            pending = Some(next);
        }
    }
}

/// Records a loss that has arrived.
fn arrive(pending: &mut Option<Pending>, t: &mut Trainer, report: &mut TrainingReport) -> Result<(), Failure> {
    pending.iter_mut().for_each(Pending::look);
    let Some(p) = pending.take() else { return Ok(()) };
    let loss = p.loss.wait::<f32>()?.first().copied().unwrap_or(f32::NAN) as f64;
    let done = p.done.unwrap_or_else(Instant::now);
    t.curve.trained(p.step, p.lr, loss);
    report.energy.iter_mut().for_each(TrainingEnergy::look);
    report.stalled(p.step, t.stalled());
    report.trained(p.step, loss, p.lr, done, &t.device);
    if !loss.is_finite() && t.recipe.dtype != tensorlogic::DType::F16 {
        return Err(diverged("loss", p.step, loss));
    }
    Ok(())
}

/// The error for a NaN or infinite loss.
fn diverged(what: &str, step: u64, loss: f64) -> Failure {
    Failure::Error(format!("the {what} of step {step} is {loss}; a lower --lr or a longer --warmup may help"))
}

/// Locks the folder, so that two runs cannot write into it.
fn lock(folder: &Path) -> Result<std::fs::File, Failure> {
    let path = folder.join(LOCK);
    let failed = |e: &dyn std::fmt::Display| Failure::Error(format!("{}: {e}", path.display()));
    let file = std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(|e| failed(&e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(failed(&"another tl train is running in this folder")),
        // A file system without locks is the user's choice.
        Err(std::fs::TryLockError::Error(_)) => Ok(file),
    }
}

/// The checkpoint to resume from.
fn newest(folder: &Path, resume: bool, global: Global) -> Result<Option<(u64, TrainingProgress)>, Failure> {
    let checkpoints = Checkpoints::new(folder.join("checkpoints"), 1);
    let steps = checkpoints.steps()?;
    if !resume {
        return match steps.first() {
            Some(step) => Err(Failure::Usage(format!(
                "{} contains a run at step {step}: use --resume to continue it, or another folder for a new run",
                folder.display()
            ))),
            None => Ok(None),
        };
    }
    let (step, wrong) = checkpoints.latest()?;
    if !global.quiet {
        wrong.iter().for_each(|e| output::note(&format!("skipped a damaged checkpoint: {e}")));
    }
    match step {
        Some(step) => Ok(Some((step, saved_progress(&checkpoints.path(step))?))),
        None if steps.is_empty() => Ok(None),
        None => Err(Failure::Error(format!("{}: every checkpoint is damaged; remove the folder to start over", folder.display()))),
    }
}
