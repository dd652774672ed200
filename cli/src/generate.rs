//! `tl generate`: a prompt in, text out, token by token.

use crate::answer::{ChatOptions, Shown, message};
use crate::layers::{self, RankGroup};
use crate::model::{ModelArgs, warn_unknown};
use crate::output::{self, Failure};
use crate::ranks::RankArgs;
use crate::{Global, interrupt};
use clap::Args;
use std::io::{IsTerminal, Read, Write};
use std::time::{Duration, Instant};
use tensorlogic::eval::eval_stats;
use tensorlogic::models::{GenerationDefaults, ModelShape, Sampler, Session};
use tensorlogic::profile::{ProfileOptions, Schedule, SortBy, StepProfiler, trace_files};
use tensorlogic::text::{AnswerPart, AnswerReader, Tokenizer};
use tensorlogic::{Device, PipelineStrategy, Rng};

/// Continue a prompt, or answer it if the model has a chat template
#[derive(Args)]
#[command(after_help = "Examples:
  tl generate \"Why is the sky blue?\"
  tl generate --raw \"Once upon a time\" -n 100 --temp 0.8 --seed 7
  tl generate -m model.gguf -f question.txt > answer.txt
  tl generate -m tiny --temp 0.8 \"ROMEO:\"
  git diff | tl generate -p \"Write a commit message for:\"
  tl generate -m large.gguf --device vulkan:0+vulkan:1 \"Hello\"   layers on two GPUs
  mpirun -n 2 tl generate -m large.gguf \"Hello\"                  or on two ranks (docs/distributed.md)")]
pub struct GenerateArgs {
    /// Prompt; combined with `-p` if both are given
    prompt: Option<String>,
    /// Prompt
    #[arg(short, long = "prompt", value_name = "TEXT")]
    p: Option<String>,
    /// Read the prompt from a file
    #[arg(short, long)]
    file: Option<std::path::PathBuf>,
    /// Maximum number of tokens to generate
    #[arg(short = 'n', long, default_value_t = 256)]
    max_tokens: usize,
    /// Continue the prompt verbatim, without the model's chat template
    #[arg(long)]
    raw: bool,
    /// System prompt
    #[arg(long, conflicts_with = "raw")]
    system: Option<String>,
    /// Print statistics: plan cache, dispatches, memory, where tokens were sampled
    #[arg(long)]
    stats: bool,
    /// Pipeline strategy: standard, optimized, low-latency, high-throughput or auto
    #[arg(long, env = "TL_STRATEGY", default_value_t = PipelineStrategy::Standard)]
    strategy: PipelineStrategy,
    /// Profile some steps into this folder: traces for ui.perfetto.dev and tables
    #[arg(long, value_name = "DIR")]
    profile: Option<std::path::PathBuf>,
    #[command(flatten)]
    chat: ChatOptions,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    ranks: RankArgs,
}

/// How tokens are chosen: by these options, else as the model's files say, else the most likely token is taken.
#[derive(Args, Clone)]
pub struct SamplingArgs {
    /// Temperature: 0 always takes the most likely token, higher values vary more [default: as the model's files say, else 0]
    #[arg(long, visible_alias = "temperature")]
    temp: Option<f64>,
    /// Sample from the K most likely tokens; 0 for all [default: as the model's files say, else 0]
    #[arg(long)]
    top_k: Option<usize>,
    /// Sample from the smallest set of tokens with this total probability [default: as the model's files say, else 1]
    #[arg(long)]
    top_p: Option<f64>,
    /// Drop tokens below this fraction of the most likely token's probability [default: as the model's files say, else 0]
    #[arg(long)]
    min_p: Option<f64>,
    /// Repetition penalty: divide the logits of earlier tokens by this; 1 for none [default: as the model's files say, else 1]
    #[arg(long, visible_alias = "repetition-penalty")]
    repeat_penalty: Option<f64>,
    /// Random seed
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Context length in tokens [default: 4096, or the model's maximum if lower]
    #[arg(short, long)]
    pub ctx: Option<usize>,
}

impl SamplingArgs {
    /// The sampler that the options describe, over the defaults of the model's files.
    pub fn sampler(&self, defaults: &GenerationDefaults) -> Result<Sampler, Failure> {
        let s = Sampler {
            temperature: self.temp.unwrap_or(defaults.temperature),
            top_k: self.top_k.unwrap_or(defaults.top_k),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            min_p: self.min_p.unwrap_or(defaults.min_p),
            repetition_penalty: self.repeat_penalty.unwrap_or(defaults.repetition_penalty),
            rng: Rng::new(self.seed),
        };
        s.check().map_err(|e| Failure::Usage(e.to_string()))?;
        Ok(s)
    }

    /// Refuses wrong options, before a model is loaded.
    pub fn check(&self) -> Result<(), Failure> {
        self.sampler(&GenerationDefaults::default()).map(drop)
    }

    /// Says which settings come from the model's files, and which of them are not applied.
    pub fn note_defaults(&self, defaults: &GenerationDefaults, global: Global) {
        let Some(source) = defaults.source.as_deref().filter(|_| !global.quiet) else { return };
        let usual = GenerationDefaults::default();
        let all = [
            ("--temp", defaults.temperature, usual.temperature, self.temp.is_some()),
            ("--top-k", defaults.top_k as f64, usual.top_k as f64, self.top_k.is_some() || self.temp == Some(0.0)),
            ("--top-p", defaults.top_p, usual.top_p, self.top_p.is_some() || self.temp == Some(0.0)),
            ("--min-p", defaults.min_p, usual.min_p, self.min_p.is_some() || self.temp == Some(0.0)),
            ("--repeat-penalty", defaults.repetition_penalty, usual.repetition_penalty, self.repeat_penalty.is_some()),
        ];
        let sampled = self.temp.unwrap_or(defaults.temperature) > 0.0;
        let shown = |name: &str, value: f64, usual: f64| value != usual && (sampled || name == "--repeat-penalty");
        let taken = all.into_iter().filter(|(name, value, usual, given)| !given && shown(name, *value, *usual));
        let taken: Vec<String> = taken.map(|(name, value, ..)| format!("{name} {value}")).collect();
        if !taken.is_empty() {
            output::note(&format!("{source}: {}", taken.join(" ")));
        }
        if !defaults.not_applied.is_empty() {
            output::note(&format!("{source}: not applied: {}", defaults.not_applied.join(", ")));
        }
    }
}

/// Why a generation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The model produced an end token.
    Token,
    /// The requested number of tokens was reached.
    Length,
    /// The context is full.
    Context,
    /// Ctrl-C.
    Interrupt,
}

impl End {
    /// The name in `--json`.
    pub fn name(self) -> &'static str {
        match self {
            End::Token => "end",
            End::Length => "length",
            End::Context => "context",
            End::Interrupt => "interrupted",
        }
    }
}

/// Counts and times of one answer.
pub struct Stats {
    pub prompt_tokens: usize,
    pub prompt_time: Duration,
    pub generated: usize,
    pub time: Duration,
    /// Time of the first token.
    pub first: Option<Instant>,
    pub end: End,
}

impl Stats {
    /// The last line on stderr.
    pub fn line(&self, device: &Device) -> String {
        let rate = |n: usize, t: Duration| if t.is_zero() { 0.0 } else { n as f64 / t.as_secs_f64() };
        // The first token comes out of the prompt.
        let steps = self.generated.saturating_sub(1);
        let speed = if steps > 0 { format!(", {:.1} tok/s", rate(steps, self.time)) } else { String::new() };
        format!(
            "prompt: {} tok, {:.1} tok/s · generated: {} tok{speed} · {}",
            self.prompt_tokens,
            rate(self.prompt_tokens, self.prompt_time),
            self.generated,
            output::peak_memory(&device.memory())
        )
    }
}

/// The context where `--ctx` does not say it.
pub const CONTEXT: usize = 4096;

/// The context of `--ctx`, limited to the model's maximum, with a warning.
pub fn context_of(asked: Option<usize>, usual: usize, shape: &ModelShape, global: Global) -> Result<usize, Failure> {
    let most = shape.context;
    match asked {
        Some(0) => Err(Failure::Usage("--ctx 0: expected at least 1".into())),
        Some(n) if n > most => {
            if !global.quiet {
                output::note(&format!("--ctx {n}: the model supports {most} tokens, so the context is {most}"));
            }
            Ok(most)
        }
        n => Ok(n.unwrap_or(usual).min(most)),
    }
}

/// The message for a full context of `ctx` tokens.
pub fn full(ctx: usize, shape: &ModelShape) -> String {
    match ctx < shape.context {
        true => "the context is full; --ctx raises it".into(),
        false => format!("the context is full: the model supports {ctx} tokens"),
    }
}

/// Reads `ids` and generates until an end token; each piece of text goes to `emit` as soon as its characters are complete.
pub fn answer(
    session: &mut Session,
    tokenizer: &Tokenizer,
    ids: &[u32],
    max_tokens: usize,
    sampler: &mut Sampler,
    profiler: Option<&mut StepProfiler>,
    mut emit: impl FnMut(&str) -> Result<(), Failure>,
) -> Result<Stats, Failure> {
    let text = |part: AnswerPart| if let AnswerPart::Text(text) = part { emit(&text) } else { Ok(()) };
    let answering = Answering { session, tokenizer, sampler, max_tokens, profiler };
    answer_in_parts(answering, AnswerReader::plain(tokenizer), ids, text)
}

/// What an answer is made with.
pub struct Answering<'a, 'm, 'p> {
    pub session: &'a mut Session<'m>,
    pub tokenizer: &'a Tokenizer,
    pub sampler: &'a mut Sampler,
    /// The most tokens that it may have.
    pub max_tokens: usize,
    pub profiler: Option<&'a mut StepProfiler<'p>>,
}

/// As [`answer`], in the parts that the reader tells apart.
pub fn answer_in_parts(
    answering: Answering<'_, '_, '_>,
    mut reader: AnswerReader<&Tokenizer>,
    ids: &[u32],
    mut emit: impl FnMut(AnswerPart) -> Result<(), Failure>,
) -> Result<Stats, Failure> {
    let Answering { session, tokenizer, sampler, max_tokens, mut profiler } = answering;
    let mut stats =
        Stats { prompt_tokens: ids.len(), prompt_time: Duration::ZERO, generated: 0, time: Duration::ZERO, first: None, end: End::Length };
    let start = Instant::now();
    let Some(logits) = session.prompt(ids, interrupt::requested)? else {
        stats.end = End::Interrupt;
        return Ok(stats);
    };
    if max_tokens == 0 {
        stats.prompt_time = start.elapsed();
        return Ok(stats);
    }
    let mut generation = session.generate(logits, sampler)?.at_most(max_tokens);
    let mut first = start;
    loop {
        if interrupt::requested() {
            stats.end = End::Interrupt;
            break;
        }
        if stats.generated == max_tokens {
            break;
        }
        let Some(token) = generation.token()? else {
            stats.end = End::Context;
            break;
        };
        if stats.generated == 0 {
            first = Instant::now();
            stats.first = Some(first);
            stats.prompt_time = first - start;
        }
        stats.generated += 1;
        if let Some(p) = &mut profiler {
            p.step()?;
        }
        if tokenizer.end_tokens().contains(&token) {
            stats.end = End::Token;
            break;
        }
        reader.push(token)?.into_iter().try_for_each(&mut emit)?;
    }
    stats.time = first.elapsed();
    generation.finish();
    reader.finish()?.into_iter().try_for_each(&mut emit)?;
    Ok(stats)
}

/// Rows of the table that a profile ends with.
const PROFILE_ROWS: usize = 10;

/// A profile of two groups of eight steps, written into a folder.
pub fn profile_into(folder: &std::path::Path, device: &Device) -> Result<StepProfiler<'static>, Failure> {
    let schedule = Schedule { wait: 1, warmup: 2, active: 8, repeat: 2 };
    Ok(device.profile_steps(schedule, ProfileOptions::all(), trace_files(folder.to_path_buf())?)?)
}

/// Ends a profile and shows the table of its last steps.
pub fn profiled(profiler: StepProfiler, global: Global) -> Result<(), Failure> {
    match profiler.finish()? {
        Some(profile) if !global.quiet => output::note(profile.table(SortBy::Time, PROFILE_ROWS).trim_end()),
        Some(_) => {}
        None => output::note("--profile: there were fewer than 4 steps, so none was recorded"),
    }
    Ok(())
}

/// Runs the subcommand.
pub fn run(args: &GenerateArgs, global: Global) -> Result<(), Failure> {
    let open = |device: &Device| args.model.open(&args.model.path_or_tiny(Global { quiet: true, ..global })?, device);
    layers::run(&args.ranks, &args.model, global, open, |group, global| generate(args, global, group))
}

fn generate(args: &GenerateArgs, global: Global, group: &RankGroup) -> Result<(), Failure> {
    let started = Instant::now();
    let prompt = read_prompt(args)?;
    args.sampling.check()?;
    args.model.dtype()?;
    let path = args.model.path_or_tiny(global)?;
    let loaded = args.model.load_over(&path, global, group)?;
    let mut sampler = args.sampling.sampler(&loaded.defaults)?;
    args.sampling.note_defaults(&loaded.defaults, global);
    interrupt::install();
    warn_unknown(&loaded.tokenizer, args.system.as_deref().into_iter().chain([prompt.as_str()]), global)?;
    let (ids, reader) = match &loaded.template {
        Some(template) if !args.raw => {
            let variables = args.chat.variables(template)?;
            let mut messages = Vec::new();
            messages.extend(args.system.iter().map(|s| message("system", s)));
            messages.push(message("user", &prompt));
            let ids = loaded.encode_messages(template, &messages, &variables)?;
            let reader = AnswerReader::new(&loaded.tokenizer, Some(template)).answering(&ids, args.chat.tools.is_some())?;
            (ids, reader)
        }
        _ => {
            if args.chat.tools.is_some() {
                return Err(Failure::Usage("--tools needs the model's chat template".into()));
            }
            if args.system.is_some() && !global.quiet {
                output::note("the model has no chat template: --system is ignored");
            }
            (loaded.tokenizer.encode(&prompt, true)?, AnswerReader::plain(&loaded.tokenizer))
        }
    };
    let ctx = context_of(args.sampling.ctx, CONTEXT, &loaded.model.shape(), global)?;
    if ids.len() > ctx {
        let (tokens, most) = (ids.len(), loaded.model.shape().context);
        return Err(Failure::Error(match tokens <= most {
            true => format!("the prompt has {tokens} tokens, the context holds {ctx}; raise --ctx (the model supports {most})"),
            false => format!("the prompt has {tokens} tokens, but the model supports {most}; shorten it"),
        }));
    }
    let wanted = ids.len().saturating_add(args.max_tokens).min(ctx);
    let mut session = loaded.session(wanted.next_power_of_two().min(ctx), args.strategy)?;
    if args.strategy == PipelineStrategy::Optimized && !loaded.device.is_cpu() && session.pacing(1).table.is_none() && !global.quiet {
        output::note("no table was measured for this model on this adapter: `tl tune -m MODEL` measures one");
    }
    let mut profiler = args.profile.as_deref().map(|folder| profile_into(folder, &loaded.device)).transpose()?;
    let mut out = std::io::stdout().lock();
    let mut shown = Shown::new(global);
    let tokenizer = &loaded.tokenizer;
    let emit = |part| shown.part(part, &mut out);
    let answering =
        Answering { session: &mut session, tokenizer, sampler: &mut sampler, max_tokens: args.max_tokens, profiler: profiler.as_mut() };
    let stats = answer_in_parts(answering, reader, &ids, emit).map_err(|e| loaded.failed(e))?;
    shown.end_thought();
    session.fallbacks().iter().for_each(|note| output::note(&note.to_string()));
    let device = session.device().clone();
    if global.json {
        let speed = |n: usize, t: Duration| (!t.is_zero() && n > 0).then(|| n as f64 / t.as_secs_f64());
        let memory = device.memory();
        let value = serde_json::json!({
            "text": shown.text, "thinking": shown.thinking(), "tool_calls": shown.calls_json(), "end": stats.end.name(), "prompt_tokens": stats.prompt_tokens, "generated_tokens": stats.generated,
            "prompt_tokens_per_s": speed(stats.prompt_tokens, stats.prompt_time), "tokens_per_s": speed(stats.generated.saturating_sub(1), stats.time),
            "first_token_s": stats.first.map(|first| (first - started).as_secs_f64()),
            "peak_memory_bytes": memory.peak, "peak_allocated_bytes": memory.peak_allocated, "device": device.name(), "strategy": args.strategy.name(), "model": path.display().to_string(),
        });
        writeln!(out, "{value}")?;
    } else if stats.generated > 0 {
        writeln!(out)?;
    }
    drop(out);
    // A step may be on its way that nobody waits for; drivers do not like programs that end before it does.
    device.synchronize()?;
    if let Some(p) = profiler {
        profiled(p, global)?;
    }
    if !global.quiet {
        if stats.end == End::Context {
            output::note(&full(ctx, &loaded.model.shape()));
        }
        if args.stats {
            let (e, compiled) = (eval_stats(&device), device.pipeline_stats());
            output::note(&format!(
                "plans: {} hits, {} misses, {} kept · last step: {} nodes, {} dispatches, {:.0} µs to build and match · submits: {} · sampled on the {} · \
                 first token {:.2} s after the start · {} kernels compiled in {:.2} s",
                e.hits,
                e.misses,
                e.plans,
                e.nodes,
                e.dispatches,
                e.overhead.as_secs_f64() * 1e6,
                device.submits(),
                if sampler.on_device(&device) { "device" } else { "host" },
                stats.first.map_or(0.0, |first| (first - started).as_secs_f64()),
                compiled.pipelines,
                compiled.seconds
            ));
        }
        output::note(&stats.line(&device));
    }
    if stats.end == End::Interrupt { Err(Failure::Interrupted) } else { Ok(()) }
}

fn read_prompt(args: &GenerateArgs) -> Result<String, Failure> {
    let mut parts: Vec<String> = [&args.p, &args.prompt].into_iter().flatten().cloned().collect();
    if let Some(file) = &args.file {
        parts.push(std::fs::read_to_string(file).map_err(|e| Failure::Error(format!("{}: {e}", file.display())))?);
    }
    let stdin = std::io::stdin();
    if args.file.is_none() && args.prompt.is_none() && !stdin.is_terminal() {
        let mut text = String::new();
        stdin.lock().read_to_string(&mut text).map_err(|e| Failure::Error(format!("the prompt on stdin: {e}")))?;
        if !text.trim().is_empty() {
            parts.push(text);
        }
    }
    let prompt = parts.join("\n");
    if prompt.is_empty() {
        return Err(Failure::Usage("no prompt: give it as an argument, with -p or -f, or on stdin (see tl generate --help)".into()));
    }
    Ok(prompt)
}
