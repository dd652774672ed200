//! `tl bench`: measures speed next to the limit that memory bandwidth sets.

use crate::bench_serve::{self, BenchServeArgs};
use crate::dtypes::{self, DtypesArgs};
use crate::energy::TokenEnergy;
use crate::layers::{self, RankGroup};
use crate::model::ModelArgs;
use crate::output::{self, Failure};
use crate::random_model::{SHAPES, Shape, random_file, random_model};
use crate::ranks::RankArgs;
use crate::suites::{self, CompareArgs, RunArgs};
use crate::{Global, interrupt};
use crate::{strategies, tune};
use clap::{Args, Subcommand};
use serde_json::json;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tensorlogic::eval::{EvalStats, eval_all, eval_stats};
use tensorlogic::io::human_bytes;
use tensorlogic::models::{KvCache, Model, Sampler, Session, Weights, pacing_for};
use tensorlogic::profile::Profile;
use tensorlogic::quant::{MIXES, WeightTypes};
use tensorlogic::strategy::with_pacing;
use tensorlogic::{DType, Device, PipelineStrategy, Tensor, TensorResult};

/// Measure speed
#[derive(Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

impl BenchArgs {
    /// Whether ranks share the work.
    pub fn runs_on_ranks(&self) -> bool {
        matches!(self.what, What::Decode(_))
    }
}

#[derive(Subcommand)]
enum What {
    Decode(DecodeArgs),
    Dtypes(Box<DtypesArgs>),
    Serve(Box<BenchServeArgs>),
    Run(RunArgs),
    Compare(CompareArgs),
}

/// Sequences at once at most.
const MAX_SEQUENCES: usize = 1 << 16;

/// Measure prompt and decode speed in tokens per second, next to the limit
#[derive(Args)]
#[command(
    after_help = "The limit is the device's memory bandwidth divided by the bytes of weights that a token reads. The bandwidth is the best of several sums over a
buffer (as large as the weights if those may fit into a cache), measured before, between and after the runs; if a run was faster,
its own bandwidth is used.

Examples:
  tl bench decode                                      the default model
  tl bench decode -m model.gguf --device vulkan
  tl bench decode --shape gpt2-124m --type f16         random weights, no download
  tl bench decode --shape llama-1b --type q4_0 --json
  tl bench decode --shape gpt-oss-20b --type mxfp4     4 of 32 experts a token; the limit counts only those
  tl bench decode --shape gpt2-124m --type f16 --sequences 64
  tl bench decode --strategy all                       the pipeline strategies in turn, with verdicts"
)]
pub struct DecodeArgs {
    /// Random weights of this shape instead of a file: gpt2-124m, smollm2-135m, llama-1b, llama-8b, qwen3-0.6b, qwen3-8b, gemma3-1b,
    /// qwen3-30b-a3b, gpt-oss-20b or lfm2-350m
    #[arg(long, conflicts_with = "model")]
    shape: Option<String>,
    /// Type of the random weights: f32, f16, bf16, q8_0, q4_0, q4_1, q4_K_M, …; mxfp4 applies to experts only; other weights are q8_0
    #[arg(long = "type", requires = "shape", conflicts_with = "model", default_value = "q4_0")]
    weights: String,
    /// Write the random weights to this GGUF file, for other programs to read, and measure nothing
    #[arg(long, value_name = "FILE", requires = "shape")]
    write: Option<PathBuf>,
    /// Prompt length in tokens
    #[arg(short, long, default_value_t = 64)]
    pub prompt: usize,
    /// Tokens to generate
    #[arg(short = 'n', long, default_value_t = 64)]
    pub tokens: usize,
    /// Number of runs; the median is printed
    #[arg(short, long, default_value_t = 5)]
    pub runs: usize,
    /// Number of sequences decoded at once, each with its own prompt
    #[arg(short, long, default_value_t = 1)]
    pub sequences: usize,
    /// Pipeline strategy: standard, optimized, low-latency, high-throughput, auto; or all, to compare them in at least 7 runs each
    #[arg(long, env = "TL_STRATEGY", default_value = "standard")]
    strategy: String,
    /// Also profile each operation of a prompt and of the decode steps, by the GPU's clock
    #[arg(long)]
    profile: bool,
    /// Also measure energy for some seconds: joules per token beyond the device at rest (RAPL, or NVIDIA's management library)
    #[arg(long)]
    energy: bool,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    ranks: RankArgs,
}

/// Runs the subcommand.
pub fn run(args: &BenchArgs, global: Global) -> Result<(), Failure> {
    match &args.what {
        What::Decode(args) => decode(args, global),
        What::Dtypes(args) => dtypes::run(args, global),
        What::Serve(args) => bench_serve::run(args, global),
        What::Run(args) => suites::run(args, global),
        What::Compare(args) => suites::compare(args, global),
    }
}

/// The median of some runs, with the least and the greatest.
struct Rate {
    median: f64,
    least: f64,
    most: f64,
}

impl Rate {
    fn of(tokens: usize, mut times: Vec<Duration>) -> Rate {
        times.sort();
        let rate = |t: &Duration| tokens as f64 / t.as_secs_f64().max(1e-9);
        Rate { median: rate(&times[times.len() / 2]), least: rate(&times[times.len() - 1]), most: rate(&times[0]) }
    }
}

/// The name, path and weights of a model, or of random weights of this shape and type.
pub fn weights_of(
    shape: Option<&str>,
    of_type: &str,
    model: &ModelArgs,
    device: &Device,
    global: Global,
) -> Result<(String, PathBuf, Weights), Failure> {
    if let Some(name) = shape {
        let (shape, wanted) = shape_of(name, of_type)?;
        return Ok((
            format!("{name} {wanted} (random weights)"),
            PathBuf::from(name),
            model.rounded(Weights::from_gguf(random_model(shape, wanted)?, device)),
        ));
    }
    let path = model.path(global)?;
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let weights = model.open(&path, device)?;
    Ok((name, path, weights))
}

/// The shape and the types of weights of these names.
fn shape_of(name: &str, of_type: &str) -> Result<(&'static Shape, WeightTypes), Failure> {
    let names = || SHAPES.iter().map(|s| s.name).collect::<Vec<_>>().join(", ");
    let shape = SHAPES.iter().find(|s| s.name == name);
    let shape = shape.ok_or_else(|| Failure::Usage(format!("--shape {name}: expected one of {}", names())))?;
    let names = || DType::WEIGHTS.map(DType::name).into_iter().chain(MIXES.iter().map(|m| m.name)).collect::<Vec<_>>().join(", ");
    let wanted = of_type.parse().map_err(|_| Failure::Usage(format!("--type {of_type}: expected one of {}", names())))?;
    Ok((shape, wanted))
}

fn decode(args: &DecodeArgs, global: Global) -> Result<(), Failure> {
    if let (Some(file), Some(name)) = (&args.write, &args.shape) {
        let (shape, types) = shape_of(name, &args.weights)?;
        std::fs::write(file, random_file(shape, types)?).map_err(|e| Failure::Error(format!("{}: {e}", file.display())))?;
        return output::result(&file.display().to_string());
    }
    let quiet = Global { quiet: true, ..global };
    let open = |device: &Device| Ok(weights_of(args.shape.as_deref(), &args.weights, &args.model, device, quiet)?.2);
    layers::run(&args.ranks, &args.model, global, open, |group, global| decode_over(args, global, group))
}

fn decode_over(args: &DecodeArgs, global: Global, group: &RankGroup) -> Result<(), Failure> {
    if args.prompt == 0 || args.tokens < 2 || args.runs == 0 || args.sequences == 0 {
        return Err(Failure::Usage("need a prompt of at least 1 token, 2 tokens to generate, 1 run and 1 sequence".into()));
    }
    if args.sequences > MAX_SEQUENCES {
        return Err(Failure::Usage(format!("{} sequences; the maximum is {MAX_SEQUENCES}", args.sequences)));
    }
    let strategy = match args.strategy.as_str() {
        "all" => None,
        name => Some(name.parse::<PipelineStrategy>().map_err(|e| Failure::Usage(format!("--strategy: {e}, all")))?),
    };
    let (device, dtype) = (group.device(&args.model)?, args.model.dtype()?);
    let open = |device: &Device| weights_of(args.shape.as_deref(), &args.weights, &args.model, device, global);
    let (name, path, weights) = open(&device)?;
    let model = group.build(&args.model, &weights, dtype, |device| Ok(open(device)?.2), &path, global)?;
    let shape = model.shape();
    let tokens = args.prompt.saturating_add(args.tokens);
    if tokens > shape.context {
        return Err(Failure::Usage(format!("{tokens} tokens; the model supports {}", shape.context)));
    }
    interrupt::install();
    if strategy.is_none_or(|s| s == PipelineStrategy::Optimized) {
        tune::for_model(&args.model.device, &device, &*model, global)?;
    }
    let Some(strategy) = strategy else { return strategies::compare(&*model, &name, &device, args, global) };
    device.set_strategy(strategy);
    let all: u64 = model.weights().iter().map(|t| t.dtype().bytes(t.numel()).unwrap_or(0) as u64).sum();
    // Those of other ranks are read in a step too, one rank after the other.
    let bytes = all - model.unread_bytes() + model.distant_bytes();
    let Measured { prompt, decode, bandwidth, stats } = if args.sequences > 1 {
        let pacing = pacing_for(strategy, &*model, &device, args.sequences);
        with_pacing(&pacing, || measure_batch(&*model, &device, args, bytes, pacing.submits_ahead))?
    } else {
        measure(&*model, &device, args, bytes)?
    };
    // The weights are read once for all sequences. Whatever else the machine was busy with while the sums ran: what was reached is possible.
    let weights = bytes as f64 / args.sequences.max(1) as f64;
    let bandwidth = bandwidth.max(decode.most * weights);
    let limit = bandwidth / weights;
    let profile = if args.profile { Some(steps(&*model, &device, args)?) } else { None };
    let energy = if args.energy { TokenEnergy::of(&*model, &device, args)? } else { None };
    let micros = stats.overhead.as_secs_f64() * 1e6;
    let memory = device.memory();
    if global.json {
        let rate = |r: &Rate| json!({ "median": r.median, "least": r.least, "most": r.most });
        let value = json!({ "model": name, "device": device.name(), "dtype": shape.dtype.name(), "strategy": strategy.name(), "runs": args.runs,
            "sequences": args.sequences, "prompt_tokens": args.prompt, "prompt_tokens_per_s": rate(&prompt), "tokens": args.tokens, "tokens_per_s": rate(&decode),
            "weight_bytes_per_token": weights.round() as u64, "bandwidth_bytes_per_s": bandwidth, "limit_tokens_per_s": limit, "of_limit": decode.median / limit,
            "dispatches": stats.dispatches, "nodes": stats.nodes, "match_and_bind_us": micros, "peak_memory_bytes": memory.peak, "peak_allocated_bytes": memory.peak_allocated,
            "energy": energy.as_ref().map(TokenEnergy::json) });
        return output::result(&value.to_string());
    }
    output::result(&format!("{name}, activations {}, on {}", shape.dtype, device.name()))?;
    if strategy != PipelineStrategy::Standard {
        output::result(&format!("strategy {strategy}"))?;
    }
    if args.sequences > 1 {
        output::result(&format!("{} sequences at once; the figures count the tokens of all of them", args.sequences))?;
    }
    for (what, tokens, r) in [("prompt", args.prompt, &prompt), ("decode", args.tokens, &decode)] {
        let Rate { median, least, most } = r;
        output::result(&format!("{what} {tokens:>6} tok {median:>10.1} tok/s   median of {}, {least:.1} to {most:.1}", args.runs))?;
    }
    output::result(&format!(
        "limit             {limit:>10.1} tok/s   {} of weights a {} at {:.1} GB/s; decode is at {:.0} %",
        human_bytes(bytes),
        if args.sequences > 1 { "step" } else { "token" },
        bandwidth / 1e9,
        100.0 * decode.median / limit
    ))?;
    output::result(&format!(
        "a step             {:>4} dispatches of {} nodes, matched and bound in {micros:.0} µs",
        stats.dispatches, stats.nodes
    ))?;
    output::result(&output::peak_memory(&memory))?;
    match energy {
        Some(energy) => output::result(&energy.line())?,
        None if args.energy => output::result("energy            not reported by this system")?,
        None => {}
    }
    profile.map_or(Ok(()), |p| output::result(&p))
}

/// Tables of the operations of a prompt and of the steps after it.
fn steps(model: &dyn Model, device: &Device, args: &DecodeArgs) -> Result<String, Failure> {
    let tables = |prompt: Profile, steps: Profile| format!("prompt\n{prompt}\ndecode steps\n{steps}");
    if args.sequences > 1 {
        let ids = prompts(model, args);
        let mut cache = KvCache::batch(&model.shape(), args.sequences, args.prompt + args.tokens, device)?;
        let mut warm_up = WarmUp::new(device);
        while !warm_up.is_over() {
            read(model, &ids, &mut cache, args, device)?.eval()?;
            device.synchronize()?;
        }
        let (mut next, prompt) = device.profile(|| {
            let next = read(model, &ids, &mut cache, args, device)?;
            next.eval()?;
            Ok(next)
        })?;
        let ((), steps) = device.profile(|| {
            (1..args.tokens).try_for_each(|_| {
                next = choose(model, &model.hidden(&next, &mut cache)?)?;
                next.eval().map(drop)
            })
        })?;
        return Ok(tables(prompt, steps));
    }
    let mut session = Session::new(model, args.prompt + args.tokens, device)?;
    let ids: Vec<u32> = (0..args.prompt as u32).map(|i| i % model.shape().vocab as u32).collect();
    let mut warm_up = WarmUp::new(device);
    while !warm_up.is_over() {
        if session.prompt(&ids, interrupt::requested)?.is_none() {
            return Err(Failure::Interrupted);
        }
        device.synchronize()?;
        session.truncate(0);
    }
    let (logits, prompt) = device.profile(|| session.prompt(&ids, interrupt::requested))?;
    let Some(logits) = logits else { return Err(Failure::Interrupted) };
    let mut sampler = Sampler::default();
    let mut generation = session.generate(logits, &mut sampler)?.at_most(args.tokens);
    generation.token()?;
    device.synchronize()?;
    let ((), steps) = device.profile(|| (1..args.tokens).try_for_each(|_| generation.token().map(drop)))?;
    Ok(tables(prompt, steps))
}

/// What the runs gave.
struct Measured {
    prompt: Rate,
    decode: Rate,
    /// Bytes per second, met between the runs.
    bandwidth: f64,
    /// Of the last step.
    stats: EvalStats,
}

/// Runs that do not count: the first, which compiles, and on a GPU those after it until it has worked for a while, since a moment
/// without work makes it up to twice as slow.
pub struct WarmUp {
    left: Duration,
    since: Option<Instant>,
}

impl WarmUp {
    pub fn new(device: &Device) -> WarmUp {
        WarmUp { left: if device.is_cpu() { Duration::ZERO } else { Duration::from_millis(500) }, since: None }
    }
    /// Whether the run that ends now counts.
    pub fn is_over(&mut self) -> bool {
        match self.since {
            Some(since) => since.elapsed() >= self.left,
            None => {
                self.since = Some(Instant::now());
                false
            }
        }
    }
}

/// Prompts and steps of one sequence.
fn measure(model: &dyn Model, device: &Device, args: &DecodeArgs, weights: u64) -> Result<Measured, Failure> {
    let reads = Reads::new(device, weights)?;
    let mut bandwidth = reads.best(3)?;
    let vocab = model.shape().vocab as u32;
    let ids: Vec<u32> = (0..args.prompt as u32).map(|i| (i * 7919 + 13) % vocab).collect();
    let mut session = Session::new(model, args.prompt + args.tokens, device)?;
    let (mut prompts, mut decodes, mut stats) = (Vec::new(), Vec::new(), EvalStats::default());
    let mut warm_up = WarmUp::new(device);
    while decodes.len() < args.runs {
        session.truncate(0);
        let mut sampler = Sampler::default();
        let start = Instant::now();
        let Some(logits) = session.prompt(&ids, interrupt::requested)? else { return Err(Failure::Interrupted) };
        device.synchronize()?;
        let read = start.elapsed();
        let mut generation = session.generate(logits, &mut sampler)?.at_most(args.tokens);
        generation.token()?;
        let first = Instant::now();
        for _ in 1..args.tokens {
            if interrupt::requested() {
                return Err(Failure::Interrupted);
            }
            if generation.token()?.is_none() {
                return Err(Failure::Error("the context ended early".into()));
            }
        }
        let wrote = first.elapsed();
        stats = eval_stats(device);
        generation.finish();
        if warm_up.is_over() {
            prompts.push(read);
            decodes.push(wrote);
        }
        bandwidth = bandwidth.max(reads.best(2)?);
    }
    Ok(Measured { prompt: Rate::of(args.prompt, prompts), decode: Rate::of(args.tokens - 1, decodes), bandwidth, stats })
}

/// Sums over a buffer, by which the bandwidth of a device is measured.
struct Reads {
    buffer: Tensor,
    /// Sums at a time.
    sums: usize,
}

impl Reads {
    /// Over a buffer that no cache holds, or one of the size of weights that a cache might hold as well.
    fn new(device: &Device, weights: u64) -> Result<Reads, Failure> {
        const COLUMNS: usize = 4096;
        // Adapters may bind as little as 128 MiB at a time.
        let most = if device.is_cpu() { 32768 } else { 7680 };
        let rows = (weights as usize / (4 * COLUMNS)).clamp(64, most);
        // As much work as a sum over the largest buffer on the CPU, and several dispatches on a GPU.
        let sums = (most / rows).clamp(if device.is_cpu() { 1 } else { 8 }, 64);
        let buffer = Tensor::full(1.0, &[rows, COLUMNS], DType::F32, device)?;
        buffer.eval()?;
        Ok(Reads { buffer, sums })
    }

    /// Bytes per second that the device reads: the best of some samples.
    fn best(&self, samples: usize) -> Result<f64, Failure> {
        let device = self.buffer.device();
        let mut best = 0f64;
        for _ in 0..samples {
            // Each with a factor of its own, or they would be found to be the same.
            let sum = |i: usize| self.buffer.mul(1.0 + i as f32)?.sum(&[-1], false);
            let totals = (0..self.sums).map(sum).collect::<Result<Vec<_>, _>>()?;
            device.synchronize()?;
            let start = Instant::now();
            eval_all(&totals.iter().collect::<Vec<_>>())?;
            device.synchronize()?;
            best = best.max((self.sums * self.buffer.numel() * 4) as f64 / start.elapsed().as_secs_f64());
        }
        Ok(best)
    }
}

/// Tokens of the prompts of several sequences, one after the other.
pub fn prompts(model: &dyn Model, args: &DecodeArgs) -> Vec<i32> {
    prompt_ids(model, args.sequences * args.prompt)
}

fn prompt_ids(model: &dyn Model, count: usize) -> Vec<i32> {
    (0..count).map(|i| ((i * 7919 + 13) % model.shape().vocab) as i32).collect()
}

/// Each sequence's next token, after such prompts, pending.
pub fn read(model: &dyn Model, ids: &[i32], cache: &mut KvCache, args: &DecodeArgs, device: &Device) -> TensorResult<Tensor> {
    read_of(model, ids, cache, [args.sequences, args.prompt], device)
}

fn read_of(model: &dyn Model, ids: &[i32], cache: &mut KvCache, shape: [usize; 2], device: &Device) -> TensorResult<Tensor> {
    cache.truncate(0);
    let prompt = Tensor::from_vec(ids.to_vec(), &shape, device)?;
    choose(model, &model.hidden(&prompt, cache)?)
}

/// Sequences of one length that are read and written together.
pub struct Batch {
    pub count: usize,
    /// Tokens of each prompt.
    pub prompt: usize,
    /// Tokens that each sequence writes.
    pub tokens: usize,
    /// Steps that are submitted before the tokens of one are read.
    pub submits_ahead: usize,
}

impl Batch {
    /// The tokens of each prompt.
    pub fn prompts(&self, model: &dyn Model) -> Vec<Vec<u32>> {
        prompt_ids(model, self.count * self.prompt).chunks(self.prompt).map(|ids| ids.iter().map(|&id| id as u32).collect()).collect()
    }

    /// How long the prompts and their first tokens take, and the other tokens.
    pub fn run(&self, model: &dyn Model, device: &Device, cache: &mut KvCache) -> Result<(Duration, Duration), Failure> {
        let ids = prompt_ids(model, self.count * self.prompt);
        let start = Instant::now();
        let mut next = read_of(model, &ids, cache, [self.count, self.prompt], device)?;
        let mut ahead = VecDeque::from([next.download()?]);
        device.synchronize()?;
        let took = start.elapsed();
        let first = Instant::now();
        for _ in 1..self.tokens {
            if interrupt::requested() {
                return Err(Failure::Interrupted);
            }
            let later = choose(model, &model.hidden(&next, cache)?)?;
            ahead.push_back(later.download()?);
            while ahead.len() > self.submits_ahead {
                ahead.pop_front().map(|d| d.wait::<i32>()).transpose()?;
            }
            next = later;
        }
        ahead.into_iter().try_for_each(|d| d.wait::<i32>().map(drop))?;
        Ok((took, first.elapsed()))
    }
}

/// The most likely token after each sequence.
pub fn choose(model: &dyn Model, hidden: &Tensor) -> TensorResult<Tensor> {
    let last = hidden.narrow(1, hidden.dims()[1] - 1, 1)?;
    model.logits(&last)?.argmax(-1)
}

/// The same for several sequences of one length that are read and written together, each step submitted before the last one's tokens are
/// read.
fn measure_batch(model: &dyn Model, device: &Device, args: &DecodeArgs, weights: u64, submits_ahead: usize) -> Result<Measured, Failure> {
    let reads = Reads::new(device, weights)?;
    let mut bandwidth = reads.best(3)?;
    let count = args.sequences;
    let batch = Batch { count, prompt: args.prompt, tokens: args.tokens, submits_ahead };
    let mut cache = KvCache::batch(&model.shape(), count, args.prompt + args.tokens, device)?;
    let (mut reading, mut decodes, mut stats) = (Vec::new(), Vec::new(), EvalStats::default());
    let mut warm_up = WarmUp::new(device);
    while decodes.len() < args.runs {
        let (took, wrote) = batch.run(model, device, &mut cache)?;
        stats = eval_stats(device);
        if warm_up.is_over() {
            reading.push(took);
            decodes.push(wrote);
        }
        bandwidth = bandwidth.max(reads.best(2)?);
    }
    let (prompt, decode) = (Rate::of(args.prompt * count, reading), Rate::of((args.tokens - 1) * count, decodes));
    Ok(Measured { prompt, decode, bandwidth, stats })
}
