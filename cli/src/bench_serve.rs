//! `tl bench serve`: the engine of many requests against a batch of the same sequences; a server's measurement is in `bench_http.rs`.

use crate::bench::{Batch, weights_of};
use crate::model::ModelArgs;
use crate::output::{self, Failure};
use crate::{Global, bench_http, interrupt};
use clap::Args;
use serde_json::json;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tensorlogic::Device;
use tensorlogic::models::{KvCache, Model, pacing_for};
use tensorlogic::serving::{Answer, Engine, EngineOptions, Event, Request};
use tensorlogic::strategy::with_pacing;

/// How many tokens, from least to most.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Lengths {
    pub least: usize,
    pub most: usize,
}

impl FromStr for Lengths {
    type Err = String;
    fn from_str(text: &str) -> Result<Lengths, String> {
        let (least, most) = text.split_once('-').unwrap_or((text, text));
        let number = |part: &str| part.trim().parse::<usize>().map_err(|e| e.to_string());
        match (number(least)?, number(most)?) {
            (least, most) if least <= most => Ok(Lengths { least, most }),
            _ => Err("the range ends below its beginning".into()),
        }
    }
}

impl fmt::Display for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Lengths { least, most } = self;
        if least == most { write!(f, "{least}") } else { write!(f, "{least}-{most}") }
    }
}

impl Lengths {
    /// The length; an error where it is a range.
    fn one(self, option: &str) -> Result<usize, Failure> {
        match self.least == self.most {
            true => Ok(self.least),
            false => Err(Failure::Usage(format!("{option} {self}: with --offline all requests have one length"))),
        }
    }
}

/// Measure many requests at once: a server's at URL, or the engine's alone
#[derive(Args)]
#[command(
    after_help = "With URL, each number of --clients sends --requests requests, one at a time each; with --rate, requests come at random times, so many a second. Prompts are
random tokens. First token, token, gap between chunks, throughput and goodput are defined as those of `vllm bench serve`; --json has all of them.

With --offline, each number of clients submits as many requests at once and waits for all answers; in turn, a batch of the same sequences is read and written as by
`tl bench decode --sequences`. Decode counts the tokens after the moment at which every client has its first; in all counts all of them, prompts
included in the time. The median of the rounds is printed, and the median of the rounds' ratios.

Examples:
  tl bench serve http://127.0.0.1:8080 --clients 1,8,64 --requests 256
  tl bench serve http://127.0.0.1:8080 --clients 16 --prompt 16-2000 --tokens 16-512
  tl bench serve http://127.0.0.1:8080 --rate 2,4,inf --prompt 512 --tokens 128 --goodput ttft:200,tpot:50
  tl bench serve --offline                             the default model
  tl bench serve --offline --clients 1,8,64 --shape gpt2-124m --type f16 --device vulkan
  tl bench serve --offline --clients 16 --deterministic"
)]
pub struct BenchServeArgs {
    /// Address of a server with OpenAI's interface, such as http://127.0.0.1:8080
    #[arg(conflicts_with = "offline", required_unless_present = "offline")]
    url: Option<String>,
    /// Measure the engine alone, without a network
    #[arg(long)]
    offline: bool,
    /// Requests for each number of clients or rate
    #[arg(long, default_value_t = 100, requires = "url")]
    pub requests: usize,
    /// Requests a second, at random times (Poisson), instead of a number of clients; inf for all at once
    #[arg(long, value_delimiter = ',', requires = "url", conflicts_with = "clients")]
    pub rate: Vec<f64>,
    /// Limits in ms that a request must keep to count as good: ttft:MS, tpot:MS, e2el:MS
    #[arg(long, value_delimiter = ',', value_name = "LIMIT", requires = "url")]
    pub goodput: Vec<String>,
    /// The server's model, where it has several
    #[arg(long, value_name = "MODEL", requires = "url")]
    pub name: Option<String>,
    /// The server's key
    #[arg(long, value_name = "KEY", requires = "url")]
    pub api_key: Option<String>,
    /// Tokens that the model knows, where the server does not say it
    #[arg(long, value_name = "N", requires = "url")]
    pub vocab: Option<u32>,
    /// Seed of prompts and times
    #[arg(long, default_value_t = 0, requires = "url")]
    pub seed: u64,
    /// Numbers of clients
    #[arg(long, value_delimiter = ',', default_value = "1,4,8,16")]
    pub clients: Vec<usize>,
    /// Random weights of a shape that `tl bench decode --shape` knows, instead of a file
    #[arg(long, conflicts_with = "model")]
    shape: Option<String>,
    /// Type of the random weights: f32, f16, bf16, q8_0, q4_0, q4_1, …
    #[arg(long = "type", requires = "shape", conflicts_with = "model", default_value = "q4_0")]
    weights: String,
    /// Prompt length in tokens; with URL also a range such as 16-2000, from which each request's is drawn
    #[arg(short, long, default_value = "64")]
    pub prompt: Lengths,
    /// Tokens to generate; with URL also a range
    #[arg(short = 'n', long, default_value = "64")]
    pub tokens: Lengths,
    /// Number of rounds
    #[arg(short, long, default_value_t = 5)]
    runs: usize,
    /// Answers have the same bits whatever else the engine does
    #[arg(long)]
    deterministic: bool,
    #[command(flatten)]
    model: ModelArgs,
}

/// What one number of clients gave, medians.
struct ClientsRow {
    clients: usize,
    /// Tokens per second of a batch, after its prompts.
    batch: f64,
    /// The same of the engine.
    engine: f64,
    /// The engine's by the batch's.
    ratio: f64,
    /// Tokens per second from the requests to the last token.
    whole: f64,
    /// From the requests to the first token of each client.
    first_token: Duration,
}

/// Runs the subcommand.
pub fn run(args: &BenchServeArgs, global: Global) -> Result<(), Failure> {
    if args.prompt.least == 0 || args.tokens.least < 2 || args.runs == 0 || args.clients.is_empty() || args.clients.contains(&0) {
        return Err(Failure::Usage("need a prompt of at least 1 token, 2 tokens to generate, 1 run and 1 client".into()));
    }
    if let Some(url) = &args.url {
        return bench_http::run(url, args, global);
    }
    let (prompt, written) = (args.prompt.one("--prompt")?, args.tokens.one("--tokens")?);
    let (device, dtype) = (args.model.device()?, args.model.dtype()?);
    let (name, path, weights) = weights_of(args.shape.as_deref(), &args.weights, &args.model, &device, global)?;
    let model: Arc<dyn Model> = args.model.build(&weights, &path, dtype)?.into();
    let tokens = prompt.saturating_add(written);
    if tokens > model.shape().context {
        return Err(Failure::Usage(format!("{tokens} tokens; the model supports {}", model.shape().context)));
    }
    interrupt::install();
    if !global.json {
        output::result(&format!("{name}, activations {}, on {}", model.shape().dtype, device.name()))?;
        output::result("clients   decode alone    by the engine   ratio    in all        first token")?;
    }
    let mut rows = Vec::new();
    for &clients in &args.clients {
        let row = measure(&model, &device, args, [clients, prompt, written])?;
        if !global.json {
            let ClientsRow { batch, engine, ratio, whole, first_token, .. } = row;
            let first = first_token.as_secs_f64() * 1e3;
            output::result(&format!(
                "{clients:>7} {batch:>9.1} tok/s {engine:>10.1} tok/s {ratio:>7.3} {whole:>8.1} tok/s {first:>9.1} ms"
            ))?;
        }
        rows.push(row);
    }
    if !global.json {
        return Ok(());
    }
    let rows = rows.iter().map(|r| {
        json!({ "clients": r.clients, "batch_tokens_per_s": r.batch, "tokens_per_s": r.engine, "of_batch": r.ratio,
            "whole_tokens_per_s": r.whole, "first_token_s": r.first_token.as_secs_f64() })
    });
    let value = json!({ "model": name, "device": device.name(), "prompt_tokens": prompt, "tokens": written, "runs": args.runs,
        "deterministic": args.deterministic, "clients": rows.collect::<Vec<_>>() });
    output::result(&value.to_string())
}

fn median<T: PartialOrd + Copy>(mut all: Vec<T>) -> T {
    all.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    all[all.len() / 2]
}

/// So many clients with prompts and answers of one length each.
fn measure(
    model: &Arc<dyn Model>,
    device: &Device,
    args: &BenchServeArgs,
    [clients, prompt, tokens]: [usize; 3],
) -> Result<ClientsRow, Failure> {
    let pacing = pacing_for(device.strategy(), &**model, device, clients);
    let batch = Batch { count: clients, prompt, tokens, submits_ahead: pacing.submits_ahead };
    let context = prompt + tokens;
    let mut cache = KvCache::batch(&model.shape(), clients, context, device)?;
    let deterministic = args.deterministic;
    let options = EngineOptions { rows: clients, context: Some(context), kv_bytes: usize::MAX, deterministic, ..Default::default() };
    let engine = Engine::start(model.clone(), device, options)?;
    let prompts = batch.prompts(&**model);
    let (mut batches, mut decodes, mut ratios, mut wholes, mut firsts) = (vec![], vec![], vec![], vec![], vec![]);
    // The first round compiles.
    for round in 0..=args.runs {
        let (_, wrote) = with_pacing(&pacing, || batch.run(&**model, device, &mut cache))?;
        let times = serve(&engine, &prompts, tokens, round)?;
        if round == 0 {
            continue;
        }
        let alone = (clients * (tokens - 1)) as f64 / wrote.as_secs_f64();
        let begun = times.iter().map(|t| t[0]).max().unwrap_or_default();
        let end = times.iter().filter_map(|t| t.last().copied()).max().unwrap_or_default();
        let behind = times.iter().flatten().filter(|t| **t > begun).count();
        let decode = behind as f64 / (end - begun).as_secs_f64().max(1e-9);
        batches.push(alone);
        decodes.push(decode);
        ratios.push(decode / alone);
        wholes.push((clients * tokens) as f64 / end.as_secs_f64());
        firsts.extend(times.iter().map(|t| t[0]));
    }
    let [batch, engine, ratio, whole] = [batches, decodes, ratios, wholes].map(median);
    Ok(ClientsRow { clients, batch, engine, ratio, whole, first_token: median(firsts) })
}

/// When each client got each token, counted from when all requests were made.
fn serve(engine: &Engine, prompts: &[Vec<u32>], tokens: usize, round: usize) -> Result<Vec<Vec<Duration>>, Failure> {
    let start = Instant::now();
    // No round finds the prompts of another.
    let request = |prompt: &Vec<u32>| Request { cache_name: round.to_string().into(), ..Request::new(prompt, tokens) };
    let answers = prompts.iter().map(|p| engine.submit(request(p))).collect::<Result<Vec<Answer>, _>>();
    let answers = answers.map_err(|e| Failure::Error(e.to_string()))?;
    let read = |answer: Answer| {
        let mut times = Vec::with_capacity(tokens);
        for event in answer {
            match event {
                Event::Token(_) => times.push(start.elapsed()),
                Event::LogProbs(_) => {}
                Event::Finished(..) => break,
                Event::Failed(e) => return Err(Failure::from(e)),
            }
            if interrupt::requested() {
                return Err(Failure::Interrupted);
            }
        }
        Ok(times)
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = answers.into_iter().map(|answer| scope.spawn(move || read(answer))).collect();
        clients.into_iter().map(|c| c.join().unwrap_or_else(|_| Err(Failure::Error("a client failed".into())))).collect()
    })
}
