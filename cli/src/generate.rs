//! `tl generate`: a prompt in, text out, token by token.

use crate::model::{ModelArgs, warn_unknown};
use crate::output::{self, Failure};
use crate::{Global, interrupt};
use clap::Args;
use std::io::{IsTerminal, Read, Write};
use std::time::{Duration, Instant};
use tensorlogic::eval::eval_stats;
use tensorlogic::models::{ModelShape, Sampler, Session};
use tensorlogic::profile::{ProfileOptions, Schedule, SortBy, StepProfiler, trace_files};
use tensorlogic::text::Message;
use tensorlogic::{Device, PipelineStrategy, Rng};

/// Continue a prompt, or answer it if the model has a chat template
#[derive(Args)]
#[command(after_help = "Examples:
  tl generate \"Why is the sky blue?\"
  tl generate --raw \"Once upon a time\" -n 100 --temp 0.8 --seed 7
  tl generate -m model.gguf -f question.txt > answer.txt
  tl generate -m tiny --temp 0.8 \"ROMEO:\"
  git diff | tl generate -p \"Write a commit message for:\"")]
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
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub model: ModelArgs,
}

/// How tokens are chosen.
#[derive(Args, Clone)]
pub struct SamplingArgs {
    /// Temperature: 0 always takes the most likely token, higher values vary more
    #[arg(long, visible_alias = "temperature", default_value_t = 0.0)]
    temp: f64,
    /// Sample from the K most likely tokens; 0 for all
    #[arg(long, default_value_t = 0)]
    top_k: usize,
    /// Sample from the smallest set of tokens with this total probability
    #[arg(long, default_value_t = 1.0)]
    top_p: f64,
    /// Drop tokens below this fraction of the most likely token's probability
    #[arg(long, default_value_t = 0.0)]
    min_p: f64,
    /// Repetition penalty: divide the logits of earlier tokens by this; 1 for none
    #[arg(long, visible_alias = "repetition-penalty", default_value_t = 1.0)]
    repeat_penalty: f64,
    /// Random seed
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Context length in tokens [default: 4096, or the model's maximum if lower]
    #[arg(short, long)]
    pub ctx: Option<usize>,
}

impl SamplingArgs {
    /// The sampler that the options describe.
    pub fn sampler(&self) -> Result<Sampler, Failure> {
        let s = Sampler {
            temperature: self.temp,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repeat_penalty,
            rng: Rng::new(self.seed),
        };
        s.check().map_err(|e| Failure::Usage(e.to_string()))?;
        Ok(s)
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
    tokenizer: &tensorlogic::text::Tokenizer,
    ids: &[u32],
    max_tokens: usize,
    sampler: &mut Sampler,
    mut profiler: Option<&mut StepProfiler>,
    mut emit: impl FnMut(&str) -> Result<(), Failure>,
) -> Result<Stats, Failure> {
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
    let mut text = tokenizer.stream(true);
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
        let piece = text.push(token)?;
        if !piece.is_empty() {
            emit(&piece)?;
        }
    }
    stats.time = first.elapsed();
    generation.finish();
    let rest = text.finish()?;
    if !rest.is_empty() {
        emit(&rest)?;
    }
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
    let started = Instant::now();
    let prompt = read_prompt(args)?;
    let mut sampler = args.sampling.sampler()?;
    args.model.dtype()?;
    let path = args.model.path_or_tiny(global)?;
    let loaded = args.model.load_from(&path, global)?;
    interrupt::install();
    warn_unknown(&loaded.tokenizer, args.system.as_deref().into_iter().chain([prompt.as_str()]), global)?;
    let ids = match &loaded.template {
        Some(template) if !args.raw => {
            let mut messages = Vec::new();
            if let Some(s) = &args.system {
                messages.push(Message::new("system", s));
            }
            messages.push(Message::new("user", &prompt));
            loaded.encode_chat(template, &messages)?
        }
        _ => {
            if args.system.is_some() && !global.quiet {
                output::note("the model has no chat template: --system is ignored");
            }
            loaded.tokenizer.encode(&prompt, true)?
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
    let mut all = String::new();
    let stats = answer(&mut session, &loaded.tokenizer, &ids, args.max_tokens, &mut sampler, profiler.as_mut(), |piece| {
        if global.json {
            all.push_str(piece);
            return Ok(());
        }
        out.write_all(piece.as_bytes())?;
        Ok(out.flush()?)
    })
    .map_err(|e| loaded.failed(e))?;
    session.fallbacks().iter().for_each(|note| output::note(&note.to_string()));
    let device = session.device().clone();
    if global.json {
        let speed = |n: usize, t: Duration| (!t.is_zero() && n > 0).then(|| n as f64 / t.as_secs_f64());
        let memory = device.memory();
        let value = serde_json::json!({
            "text": all, "end": stats.end.name(), "prompt_tokens": stats.prompt_tokens, "generated_tokens": stats.generated,
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
