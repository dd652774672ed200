//! `tl bench decode --strategy all`: the pipeline strategies in turn, each metric with a verdict against Standard.

use crate::bench::{DecodeArgs, WarmUp, choose, prompts, read};
use crate::output::{self, Failure};
use crate::{Global, interrupt, table};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tensorlogic::eval::Download;
use tensorlogic::measure::{Change, Stats, Verdict, cpu_time};
use tensorlogic::models::{KvCache, Model, Sampler, Session, pacing_for};
use tensorlogic::strategy::with_pacing;
use tensorlogic::{DType, Device, PipelineStrategy, Tensor};

/// Runs at least: fewer cannot tell a difference from chance.
const MIN_RUNS: usize = 7;

/// What one run gave.
struct Run {
    first: Duration,
    /// Times between tokens, of all sequences together where there are several.
    gaps: Vec<Duration>,
    /// From the first token to the last.
    decode: Duration,
    /// The host's processor time of the whole run.
    cpu: Option<Duration>,
    tokens: Vec<i32>,
}

/// A metric of which less is better, as seconds.
struct Metric {
    name: &'static str,
    /// One value a run.
    of: fn(&Run) -> Option<f64>,
    /// How the values of all runs become the number that is shown.
    shown: fn(&Stats) -> f64,
}

/// The value that this part of them does not exceed.
fn quantile(values: &[Duration], part: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let at = ((sorted.len() as f64 * part).ceil() as usize).clamp(1, sorted.len().max(1)) - 1;
    sorted.get(at).map(Duration::as_secs_f64)
}

const METRICS: [Metric; 6] = [
    Metric { name: "first token, p50", of: |r| Some(r.first.as_secs_f64()), shown: |s| s.median },
    Metric { name: "first token, p95", of: |r| Some(r.first.as_secs_f64()), shown: |s| s.p95 },
    Metric { name: "between tokens, p50", of: |r| quantile(&r.gaps, 0.5), shown: |s| s.median },
    Metric { name: "between tokens, p99", of: |r| quantile(&r.gaps, 0.99), shown: |s| s.median },
    Metric { name: "time a token", of: |r| Some(r.decode.as_secs_f64() / r.gaps.len().max(1) as f64), shown: |s| s.median },
    Metric { name: "host CPU a token", of: |r| r.cpu.map(|cpu| cpu.as_secs_f64() / r.tokens.len().max(1) as f64), shown: |s| s.median },
];

/// Measures all strategies in turn and prints the comparison.
pub fn compare(model: &dyn Model, name: &str, device: &Device, args: &DecodeArgs, global: Global) -> Result<(), Failure> {
    let mut bench: Box<dyn Bench + '_> = match args.sequences {
        1 => Box::new(Single { session: Session::new(model, args.prompt + args.tokens, device)?, args }),
        count => {
            Box::new(BatchRun { model, device, args, cache: KvCache::batch(&model.shape(), count, args.prompt + args.tokens, device)? })
        }
    };
    for strategy in PipelineStrategy::ALL {
        let mut warm_up = WarmUp::new(device);
        while !warm_up.is_over() {
            bench.run(strategy)?;
        }
    }
    let count = args.runs.max(MIN_RUNS);
    let mut runs: Vec<Vec<Run>> = PipelineStrategy::ALL.iter().map(|_| Vec::new()).collect();
    for turn in 0..count {
        // Another one begins each time, so that none always follows the same.
        for i in 0..runs.len() {
            let at = (i + turn) % runs.len();
            runs[at].push(bench.run(PipelineStrategy::ALL[at])?);
        }
    }
    let (differences, standard, mut wrong) = (differences(&runs), &runs[0][0].tokens, false);
    let mut told = vec![];
    for d in &differences {
        let distance = d.distance(model, device, args, standard)?;
        // Other strategies run Standard's kernels, and write its tokens.
        wrong |= d.strategy != PipelineStrategy::Optimized || distance.is_nan() || distance > rounding(model.shape().dtype);
        told.push(d.told(count, args.sequences, distance));
    }
    let rows = rows(&runs);
    if global.json {
        let rows: Vec<Value> = rows.iter().map(StrategyRow::to_json).collect();
        let value = json!({ "model": name, "device": device.name(), "dtype": model.shape().dtype.name(), "sequences": args.sequences,
            "prompt_tokens": args.prompt, "tokens": args.tokens, "runs": count, "tokens_equal": told.is_empty(), "differences": told, "rows": rows });
        output::result(&value.to_string())?;
    } else {
        output::result(&format!("{name}, activations {}, on {}", model.shape().dtype, device.name()))?;
        let sequences = if args.sequences > 1 { format!("{} sequences at once, ", args.sequences) } else { String::new() };
        output::result(&format!("{sequences}{} tokens after a prompt of {}, {count} interleaved runs", args.tokens, args.prompt))?;
        let head = ["", "strategy", "ms", "against standard", "noise", ""].map(String::from).to_vec();
        let cells: Vec<Vec<String>> = std::iter::once(head).chain(rows.iter().map(StrategyRow::cells)).collect();
        table::lines(&cells, &[2, 3, 4]).iter().try_for_each(|line| output::result(line))?;
        for (strategy, runs) in PipelineStrategy::ALL.iter().zip(&runs) {
            let times: Vec<f64> = runs.iter().filter_map(METRICS[4].of).collect();
            let rate = Stats::of(times).map_or(0.0, |s| 1.0 / s.median.max(1e-12));
            output::result(&format!("{strategy:<16} {:>10.1} tok/s", rate * args.sequences as f64))?;
        }
        match &told[..] {
            [] => output::result("greedy tokens are equal in all strategies")?,
            _ if wrong => output::result("greedy tokens DIFFER between strategies")?,
            _ => output::result(&format!("greedy tokens are equal but for rounding: {}", told.join("; ")))?,
        }
    }
    if wrong { Err(Failure::Error(format!("strategies gave different greedy tokens: {}", told.join("; ")))) } else { Ok(()) }
}

/// Where a strategy's runs wrote other tokens than Standard's first.
struct Difference {
    strategy: PipelineStrategy,
    /// How many of its runs.
    runs: usize,
    /// The first of them differs in this token, in the order in which all sequences' tokens come.
    place: usize,
    /// What it wrote there.
    token: i32,
}

/// The strategies some of whose runs wrote other tokens than Standard's first.
fn differences(runs: &[Vec<Run>]) -> Vec<Difference> {
    let right = &runs[0][0].tokens;
    let of = |(strategy, runs): (PipelineStrategy, &Vec<Run>)| {
        let place = |r: &Run| r.tokens.iter().zip(right).position(|(a, b)| a != b);
        let first = runs.iter().find(|r| place(r).is_some())?;
        let (runs, place) = (runs.iter().filter_map(place).count(), place(first)?);
        Some(Difference { strategy, runs, place, token: first.tokens[place] })
    };
    PipelineStrategy::ALL.into_iter().zip(runs).filter_map(of).collect()
}

/// How far apart logits may be that kernels of other tiles and splits round differently, as a part of the largest.
fn rounding(dtype: DType) -> f32 {
    match dtype {
        DType::F16 => 4e-3,
        DType::BF16 => 3e-2,
        _ => 1e-4,
    }
}

impl Difference {
    /// How far apart the logits of both tokens are behind what Standard wrote before them, as a part of the largest.
    fn distance(&self, model: &dyn Model, device: &Device, args: &DecodeArgs, standard: &[i32]) -> Result<f32, Failure> {
        let (count, vocab) = (args.sequences, model.shape().vocab);
        let mut cache = KvCache::batch(&model.shape(), count, args.prompt + args.tokens, device)?;
        let mut hidden = model.hidden(&Tensor::from_vec(prompts(model, args), &[count, args.prompt], device)?, &mut cache)?;
        for tokens in standard.chunks_exact(count).take(self.place / count) {
            hidden = model.hidden(&Tensor::from_vec(tokens.to_vec(), &[count, 1], device)?, &mut cache)?;
        }
        let last = hidden.narrow(1, hidden.dims()[1] - 1, 1)?;
        let logits: Vec<f32> = model.logits(&last)?.cast(DType::F32)?.to_vec()?;
        let own = &logits[self.place % count * vocab..][..vocab];
        let largest = own.iter().fold(f32::MIN_POSITIVE, |most, v| most.max(v.abs()));
        Ok((own[standard[self.place] as usize] - own[self.token as usize]).abs() / largest)
    }

    fn told(&self, runs: usize, sequences: usize, distance: f32) -> String {
        let (token, sequence) = (self.place / sequences + 1, self.place % sequences + 1);
        format!(
            "{} in {} of {runs} runs, first in token {token} of sequence {sequence}, between logits {:.3} % of the largest apart",
            self.strategy,
            self.runs,
            distance * 100.0
        )
    }
}

/// A metric of one strategy; `change` is against Standard, which has none.
struct StrategyRow {
    metric: &'static str,
    strategy: PipelineStrategy,
    seconds: f64,
    /// The same of Standard.
    standard: f64,
    change: Option<Change>,
}

fn rows(runs: &[Vec<Run>]) -> Vec<StrategyRow> {
    let mut rows = Vec::new();
    for metric in &METRICS {
        let stats = |runs: &[Run]| runs.iter().map(metric.of).collect::<Option<Vec<f64>>>().and_then(Stats::of);
        let Some(standard) = stats(&runs[0]) else { continue };
        for (n, strategy) in PipelineStrategy::ALL.into_iter().enumerate() {
            let Some(own) = stats(&runs[n]) else { continue };
            let seconds = (metric.shown)(&own);
            let change = (n > 0).then(|| Change::between(metric.name, std::slice::from_ref(&standard), &[own]));
            rows.push(StrategyRow { metric: metric.name, strategy, seconds, standard: (metric.shown)(&standard), change });
        }
    }
    rows
}

impl StrategyRow {
    fn verdict(&self) -> &'static str {
        match self.change.as_ref().map(|c| c.verdict) {
            None => "",
            Some(Verdict::Faster) => "less",
            Some(Verdict::Slower) => "more",
            Some(Verdict::Same) => "no difference",
        }
    }

    fn relative(&self) -> f64 {
        self.seconds / self.standard.max(f64::MIN_POSITIVE) - 1.0
    }

    fn cells(&self) -> Vec<String> {
        let percent = |v: f64| format!("{:+.1} %", v * 100.0);
        let (change, noise) = match &self.change {
            Some(c) => (percent(self.relative()), format!("{:.1} %", c.noise * 100.0)),
            None => (String::new(), String::new()),
        };
        let metric = if self.change.is_none() { self.metric } else { "" };
        vec![metric.into(), self.strategy.to_string(), format!("{:.4}", self.seconds * 1e3), change, noise, self.verdict().into()]
    }

    fn to_json(&self) -> Value {
        let c = self.change.as_ref();
        json!({ "metric": self.metric, "strategy": self.strategy.name(), "seconds": self.seconds, "change": c.map(|_| self.relative()),
            "noise": c.map(|c| c.noise), "p": c.map(|c| c.p), "verdict": c.map(|_| self.verdict()) })
    }
}

/// What is run by each strategy.
trait Bench {
    fn run(&mut self, strategy: PipelineStrategy) -> Result<Run, Failure>;
}

/// One sequence, by a session.
struct Single<'a> {
    session: Session<'a>,
    args: &'a DecodeArgs,
}

impl Bench for Single<'_> {
    fn run(&mut self, strategy: PipelineStrategy) -> Result<Run, Failure> {
        let (session, args) = (&mut self.session, self.args);
        session.truncate(0);
        session.set_strategy(strategy);
        let ids: Vec<u32> = prompts(session.model(), args).into_iter().map(|t| t as u32).collect();
        let device = session.device().clone();
        let mut sampler = Sampler::default();
        device.synchronize()?;
        let (cpu, start) = (cpu_time(), Instant::now());
        let Some(logits) = session.prompt(&ids, interrupt::requested)? else { return Err(Failure::Interrupted) };
        let mut generation = session.generate(logits, &mut sampler)?.at_most(args.tokens);
        let ended = || Failure::Error("the context ended early".into());
        let mut tokens = vec![generation.token()?.ok_or_else(ended)? as i32];
        let first = start.elapsed();
        let (begun, mut gaps) = (Instant::now(), Vec::with_capacity(args.tokens));
        let mut last = begun;
        while tokens.len() < args.tokens {
            if interrupt::requested() {
                return Err(Failure::Interrupted);
            }
            tokens.push(generation.token()?.ok_or_else(ended)? as i32);
            let now = Instant::now();
            gaps.push(now - last);
            last = now;
        }
        let cpu = cpu.and_then(|before| Some(cpu_time()?.saturating_sub(before)));
        generation.finish();
        Ok(Run { first, gaps, decode: last - begun, cpu, tokens })
    }
}

/// Several sequences of one length, read and written together.
struct BatchRun<'a> {
    model: &'a dyn Model,
    device: &'a Device,
    args: &'a DecodeArgs,
    cache: KvCache,
}

impl Bench for BatchRun<'_> {
    fn run(&mut self, strategy: PipelineStrategy) -> Result<Run, Failure> {
        let (model, device, args) = (self.model, self.device, self.args);
        let pacing = pacing_for(strategy, model, device, args.sequences);
        let ids = prompts(model, args);
        device.synchronize()?;
        let (cpu, start) = (cpu_time(), Instant::now());
        with_pacing(&pacing, || {
            let mut next = read(model, &ids, &mut self.cache, args, device)?;
            let mut tokens = next.download()?.wait::<i32>()?;
            let first = start.elapsed();
            let (begun, mut gaps) = (Instant::now(), Vec::with_capacity(args.tokens));
            let mut last = begun;
            let mut ahead: VecDeque<Download> = VecDeque::new();
            let mut arrive = |download: Download| -> Result<(), Failure> {
                tokens.extend(download.wait::<i32>()?);
                let now = Instant::now();
                gaps.push(now - last);
                last = now;
                Ok(())
            };
            for _ in 1..args.tokens {
                if interrupt::requested() {
                    return Err(Failure::Interrupted);
                }
                next = choose(model, &model.hidden(&next, &mut self.cache)?)?;
                ahead.push_back(next.download()?);
                if ahead.len() > pacing.submits_ahead {
                    ahead.pop_front().map_or(Ok(()), &mut arrive)?;
                }
            }
            ahead.into_iter().try_for_each(&mut arrive)?;
            let cpu = cpu.and_then(|before| Some(cpu_time()?.saturating_sub(before)));
            Ok(Run { first, gaps, decode: last - begun, cpu, tokens })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first: u64, gap: u64, tokens: usize) -> Run {
        let ms = Duration::from_millis;
        let gaps = vec![ms(gap); tokens - 1];
        Run { first: ms(first), decode: gaps.iter().sum(), gaps, cpu: Some(ms(tokens as u64)), tokens: vec![1; tokens] }
    }

    #[test]
    fn quantiles_by_hand() {
        let ms: Vec<Duration> = (1..=100).rev().map(Duration::from_millis).collect();
        assert_eq!([0.5, 0.95, 0.99, 1.0].map(|part| quantile(&ms, part)), [Some(0.05), Some(0.095), Some(0.099), Some(0.1)]);
        assert_eq!(quantile(&ms[..1], 0.5), Some(0.1));
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn strategies_with_other_tokens_are_named() {
        let mut runs: Vec<Vec<Run>> = (0..5).map(|_| (0..2).map(|_| run(1, 1, 6)).collect()).collect();
        assert!(differences(&runs).is_empty());
        runs[3][1].tokens[5] = 7;
        let found = differences(&runs);
        assert_eq!(found.len(), 1);
        let told = "in 1 of 2 runs, first in token 3 of sequence 2, between logits 1.000 % of the largest apart";
        assert_eq!(found[0].told(2, 2, 0.01), format!("{} {told}", PipelineStrategy::ALL[3]));
    }

    #[test]
    fn every_metric_of_every_strategy_has_a_verdict_against_standard() {
        // The second strategy is slower in its first token, the third faster between tokens, the others as Standard.
        let runs: Vec<Vec<Run>> = (0..5u64)
            .map(|s| (0..7u64).map(|i| run(100 + i % 2 + if s == 1 { 50 } else { 0 }, if s == 2 { 5 } else { 10 }, 21)).collect())
            .collect();
        let rows = rows(&runs);
        assert_eq!(rows.len(), METRICS.len() * PipelineStrategy::ALL.len());
        let verdict = |metric: &str, at: usize| {
            rows.iter().find(|r| r.metric == metric && r.strategy == PipelineStrategy::ALL[at]).map(StrategyRow::verdict).unwrap()
        };
        let first: Vec<&str> = (0..5).map(|s| verdict("first token, p50", s)).collect();
        assert_eq!(first, ["", "more", "no difference", "no difference", "no difference"]);
        let between: Vec<&str> = (0..5).map(|s| verdict("between tokens, p99", s)).collect();
        assert_eq!(between, ["", "no difference", "less", "no difference", "no difference"]);
        assert_eq!((0..5).map(|s| verdict("host CPU a token", s)).collect::<Vec<_>>()[1..], ["no difference"; 4]);
    }
}
