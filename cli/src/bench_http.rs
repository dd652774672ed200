//! `tl bench serve URL`: a server under load, over HTTP, measured at its clients by vLLM's definitions.

use crate::bench_serve::{BenchServeArgs, Lengths};
use crate::output::{self, Failure};
use crate::{Global, interrupt};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, ErrorKind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread::Scope;
use std::time::{Duration, Instant};
use ureq::Agent;

/// Bytes of a client's stack.
const STACK: usize = 256 << 10;

/// How a connection that the server has closed is told.
const CLOSED: [ErrorKind; 4] = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset, ErrorKind::ConnectionAborted, ErrorKind::BrokenPipe];

/// A server and what is sent to it.
struct Client<'a> {
    agent: Agent,
    url: String,
    model: String,
    vocab: u32,
    args: &'a BenchServeArgs,
}

/// What happened to one request, in time since it was sent.
#[derive(Clone, Debug, Default)]
struct Sample {
    /// Tokens of the prompt.
    prompt: usize,
    /// Chunks with text.
    chunks: Vec<Duration>,
    /// Tokens of the answer, as the server counts them.
    tokens: usize,
}

impl Sample {
    fn first(&self) -> f64 {
        self.chunks.first().map_or(0.0, Duration::as_secs_f64)
    }
    fn whole(&self) -> f64 {
        self.chunks.last().map_or(0.0, Duration::as_secs_f64)
    }
    /// Seconds for each token after the first.
    fn each(&self) -> Option<f64> {
        (self.tokens > 1).then(|| (self.whole() - self.first()) / (self.tokens - 1) as f64)
    }
    /// Seconds between chunks.
    fn gaps(&self) -> impl Iterator<Item = f64> {
        self.chunks.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64())
    }
}

/// How requests come.
#[derive(Clone, Copy)]
enum Load {
    /// So many clients, each with one request at a time.
    Clients(usize),
    /// So many a second, at random times (Poisson); infinite: all at once.
    Rate(f64),
}

/// Runs the subcommand against this server.
pub fn run(url: &str, args: &BenchServeArgs, global: Global) -> Result<(), Failure> {
    let rates = &args.rate;
    if args.requests == 0 || rates.iter().any(|r| r.is_nan() || *r <= 0.0) {
        return Err(Failure::Usage("need at least 1 request, and rates above 0".into()));
    }
    let limits = limits(&args.goodput)?;
    let client = Client::connect(url, args)?;
    interrupt::install();
    let loads: Vec<Load> = match rates.is_empty() {
        true => args.clients.iter().map(|&n| Load::Clients(n)).collect(),
        false => rates.iter().map(|&r| Load::Rate(r)).collect(),
    };
    if !global.json {
        output::result(&format!("{} at {}, {} prompt tokens, {} tokens", client.model, client.url, args.prompt, args.tokens))?;
        output::result("    load   requests/s     tok/s   first token (p99)    a token (p99)   between chunks (p99)   failed")?;
    }
    let mut rows = Vec::new();
    for (k, load) in loads.into_iter().enumerate() {
        let (samples, failed, time) = client.measure(load, k * args.requests)?;
        let row = report(&samples, failed, time, &limits);
        if !global.json {
            let n = |name: &str| row[name].as_f64().unwrap_or(f64::NAN);
            let load = match load {
                Load::Clients(n) => format!("{n} cl."),
                Load::Rate(r) => format!("{r}/s"),
            };
            output::result(&format!(
                "{load:>8} {:>12.2} {:>9.1} {:>8.1} ({:>6.1}) ms {:>6.2} ({:>6.2}) ms {:>10.2} ({:>6.2}) ms {failed:>8}",
                n("request_throughput"),
                n("output_throughput"),
                n("median_ttft_ms"),
                n("p99_ttft_ms"),
                n("median_tpot_ms"),
                n("p99_tpot_ms"),
                n("median_itl_ms"),
                n("p99_itl_ms")
            ))?;
        }
        let (clients, rate) = match load {
            Load::Clients(n) => (json!(n), Value::Null),
            // JSON has no infinity; vLLM writes this word.
            Load::Rate(r) => (Value::Null, if r.is_finite() { json!(r) } else { "inf".into() }),
        };
        let mut row = row;
        row["max_concurrency"] = clients;
        row["request_rate"] = rate;
        rows.push(row);
    }
    match global.json {
        true => {
            let value = json!({ "url": client.url, "model": client.model, "prompt_tokens": shown(args.prompt), "tokens": shown(args.tokens), "loads": rows });
            output::result(&value.to_string())
        }
        false => Ok(()),
    }
}

/// A number, or a range as a text.
fn shown(lengths: Lengths) -> Value {
    if lengths.least == lengths.most { lengths.most.into() } else { lengths.to_string().into() }
}

/// Limits in milliseconds, such as `ttft:100`.
fn limits(texts: &[String]) -> Result<Vec<(String, f64)>, Failure> {
    let read = |text: &String| {
        let found = text.split_once(':').and_then(|(name, ms)| Some((name.to_string(), ms.parse::<f64>().ok()?)));
        let found = found.filter(|(name, ms)| ["ttft", "tpot", "e2el"].contains(&&**name) && *ms > 0.0);
        found.ok_or_else(|| Failure::Usage(format!("--goodput {text}: expected ttft:MS, tpot:MS or e2el:MS")))
    };
    texts.iter().map(read).collect()
}

impl Client<'_> {
    fn connect<'a>(url: &str, args: &'a BenchServeArgs) -> Result<Client<'a>, Failure> {
        let url = url.trim_end_matches('/').trim_end_matches("/v1").to_string();
        let config = Agent::config_builder().http_status_as_error(false).max_idle_connections(4096).max_idle_connections_per_host(4096);
        let mut client = Client { agent: config.build().into(), url, model: String::new(), vocab: 0, args };
        let models = client.get("/v1/models")?;
        let given = args.name.as_deref().or(models["data"][0]["id"].as_str());
        client.model = given.ok_or_else(|| Failure::Error(format!("{}/v1/models names no model", client.url)))?.to_string();
        client.vocab = match args.vocab {
            Some(n) => n,
            None => {
                let props = client.get("/props").ok().and_then(|props| props["n_vocab"].as_u64());
                props.ok_or_else(|| Failure::Usage("the server does not say how many tokens there are; give --vocab".into()))? as u32
            }
        };
        match client.vocab {
            0 => Err(Failure::Usage("--vocab 0: there must be a token".into())),
            _ => Ok(client),
        }
    }

    fn get(&self, path: &str) -> Result<Value, Failure> {
        let failed = |e: &dyn std::fmt::Display| Failure::Error(format!("{}{path}: {e}", self.url));
        let mut request = self.agent.get(format!("{}{path}", self.url));
        if let Some(key) = &self.args.api_key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let mut reply = request.call().map_err(|e| failed(&e))?;
        let text = reply.body_mut().read_to_string().map_err(|e| failed(&e))?;
        if !reply.status().is_success() {
            return Err(failed(&format!("{} {text}", reply.status())));
        }
        serde_json::from_str(&text).map_err(|e| failed(&e))
    }

    /// All requests of a load behind so many of others, how many failed, and how long it took.
    fn measure(&self, load: Load, before: usize) -> Result<(Vec<Sample>, usize, Duration), Failure> {
        let (samples, errors) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        let next = AtomicUsize::new(0);
        let start = Instant::now();
        let one = |n: usize| match self.request((before + n) as u64) {
            Ok(sample) => samples.lock().unwrap_or_else(PoisonError::into_inner).push(sample),
            Err(e) => errors.lock().unwrap_or_else(PoisonError::into_inner).push(e),
        };
        std::thread::scope(|scope| -> Result<(), Failure> {
            match load {
                Load::Clients(clients) => {
                    for _ in 0..clients {
                        let (one, next) = (&one, &next);
                        let client = move || {
                            while !interrupt::requested() {
                                let n = next.fetch_add(1, Relaxed);
                                if n >= self.args.requests {
                                    break;
                                }
                                one(n);
                            }
                        };
                        spawn(scope, client)?;
                    }
                }
                Load::Rate(rate) => {
                    let (mut at, mut random) = (0.0, Random(self.args.seed));
                    for n in 0..self.args.requests {
                        let wait = Duration::from_secs_f64(at).saturating_sub(start.elapsed());
                        std::thread::sleep(wait);
                        if interrupt::requested() {
                            break;
                        }
                        let one = &one;
                        spawn(scope, move || one(n))?;
                        if rate.is_finite() {
                            at += -(1.0 - random.unit()).ln() / rate;
                        }
                    }
                }
            }
            Ok(())
        })?;
        let time = start.elapsed();
        if interrupt::requested() {
            return Err(Failure::Interrupted);
        }
        let samples = samples.into_inner().unwrap_or_else(PoisonError::into_inner);
        let errors = errors.into_inner().unwrap_or_else(PoisonError::into_inner);
        match (samples.is_empty(), errors.first()) {
            (true, Some(first)) => Err(Failure::Error(format!("every request failed; the first: {first}"))),
            _ => Ok((samples, errors.len(), time)),
        }
    }

    /// Request `n`: random tokens, so that no cache has them.
    fn request(&self, n: u64) -> Result<Sample, String> {
        let mut random = Random(self.args.seed ^ (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let [count, tokens] = [self.args.prompt, self.args.tokens].map(|of| random.within(of));
        let prompt: Vec<u32> = (0..count).map(|_| (random.unit() * f64::from(self.vocab)) as u32).collect();
        let body = json!({ "model": self.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true,
            "stream": true, "stream_options": { "include_usage": true } });
        let body = body.to_string();
        let send = || {
            let mut request = self.agent.post(format!("{}/v1/completions", self.url)).header("content-type", "application/json");
            if let Some(key) = &self.args.api_key {
                request = request.header("authorization", format!("Bearer {key}"));
            }
            (Instant::now(), request.send(&body))
        };
        // A server may close a connection behind an answer, of which the next request is told by an error: that takes another connection, and its
        // time goes on.
        let (sent, reply) = match send() {
            (sent, Err(ureq::Error::Io(e))) if CLOSED.contains(&e.kind()) => (sent, send().1),
            answered => answered,
        };
        let reply = reply.map_err(|e| e.to_string())?;
        let status = reply.status();
        let mut lines = BufReader::new(reply.into_body().into_reader());
        if !status.is_success() {
            let mut text = String::new();
            let _ = lines.read_line(&mut text);
            return Err(format!("{status} {text}"));
        }
        let mut sample = Sample { prompt: count, ..Sample::default() };
        let mut line = String::new();
        while lines.read_line(&mut line).map_err(|e| e.to_string())? > 0 {
            sample.take(line.trim(), sent.elapsed())?;
            line.clear();
        }
        if sample.chunks.is_empty() { Err("the answer is empty".into()) } else { Ok(sample) }
    }
}

/// A client's thread, which takes little.
fn spawn<'s>(scope: &'s Scope<'s, '_>, work: impl FnOnce() + Send + 's) -> Result<(), Failure> {
    std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work)?;
    Ok(())
}

impl Sample {
    /// Takes a line of the stream, which came at this time.
    fn take(&mut self, line: &str, at: Duration) -> Result<(), String> {
        let Some(data) = line.strip_prefix("data:").map(str::trim).filter(|data| *data != "[DONE]") else { return Ok(()) };
        let value: Value = serde_json::from_str(data).map_err(|e| format!("{e}: {data}"))?;
        if value["error"].is_object() {
            return Err(value["error"]["message"].to_string());
        }
        if value["choices"].as_array().is_some_and(|all| !all.is_empty()) {
            self.chunks.push(at);
        }
        if let Some(tokens) = value["usage"]["completion_tokens"].as_u64() {
            self.tokens = tokens as usize;
        }
        Ok(())
    }
}

/// Steele, Lea and Flood's SplitMix64 (2014).
struct Random(u64);

impl Random {
    /// A number from 0 to 1, without 1.
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A length of a range, each as likely; nothing is drawn where there is one.
    fn within(&mut self, Lengths { least, most }: Lengths) -> usize {
        if least == most { least } else { least + (self.unit() * (most - least + 1) as f64) as usize }
    }
}

/// The number that this share of all is below, between the two next to it, as NumPy has it.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let at = share * sorted.len().saturating_sub(1) as f64;
    let part = at - at.floor();
    let [low, high] = [at.floor(), at.ceil()].map(|i| sorted.get(i as usize).copied().unwrap_or(f64::NAN));
    low + (high - low) * part
}

/// The figures of a load, by the names of `vllm bench serve`.
fn report(samples: &[Sample], failed: usize, time: Duration, limits: &[(String, f64)]) -> Value {
    let seconds = time.as_secs_f64().max(1e-9);
    let [inputs, outputs] = [|s: &Sample| s.prompt, |s: &Sample| s.tokens].map(|of| samples.iter().map(of).sum::<usize>());
    let chunks: usize = samples.iter().map(|s| s.chunks.len()).sum();
    let within = |s: &Sample, (name, ms): &(String, f64)| {
        let own = match &**name {
            "ttft" => s.first(),
            "tpot" => s.each().unwrap_or(0.0),
            _ => s.whole(),
        };
        own * 1e3 <= *ms
    };
    let good = samples.iter().filter(|s| limits.iter().all(|limit| within(s, limit))).count();
    let mut value = json!({ "completed": samples.len(), "failed": failed, "duration": seconds, "total_input_tokens": inputs,
        "total_output_tokens": outputs, "request_throughput": samples.len() as f64 / seconds, "output_throughput": outputs as f64 / seconds,
        "total_token_throughput": (inputs + outputs) as f64 / seconds, "tokens_per_chunk": outputs as f64 / chunks.max(1) as f64,
        "request_goodput": (!limits.is_empty()).then(|| good as f64 / seconds) });
    let all: [(&str, Vec<f64>); 4] = [
        ("ttft", samples.iter().map(Sample::first).collect()),
        ("tpot", samples.iter().filter_map(Sample::each).collect()),
        ("itl", samples.iter().flat_map(Sample::gaps).collect()),
        ("e2el", samples.iter().map(Sample::whole).collect()),
    ];
    for (name, mut times) in all {
        times.sort_by(f64::total_cmp);
        let mean = times.iter().sum::<f64>() / times.len().max(1) as f64;
        for (of, seconds) in [("mean", mean), ("median", percentile(&times, 0.5)), ("p99", percentile(&times, 0.99))] {
            value[format!("{of}_{name}_ms")] = (seconds * 1e3).into();
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(ms: &[u64], tokens: usize) -> Sample {
        Sample { prompt: 10, chunks: ms.iter().map(|&ms| Duration::from_millis(ms)).collect(), tokens }
    }

    #[test]
    fn figures_are_those_of_the_definitions() {
        let samples = [sample(&[100, 110, 130], 3), sample(&[200, 220], 5), sample(&[300], 1)];
        let limits = limits(&["ttft:250".into(), "tpot:10".into()]).unwrap();
        let value = report(&samples, 2, Duration::from_secs(2), &limits);
        let close = |name: &str, want: f64| assert!((value[name].as_f64().unwrap() - want).abs() < 1e-9, "{name}: {}", value[name]);
        close("request_throughput", 1.5);
        close("output_throughput", 4.5);
        close("total_token_throughput", 19.5);
        close("mean_ttft_ms", 200.0);
        // 15 and 5 ms.
        close("mean_tpot_ms", 10.0);
        close("median_itl_ms", 20.0);
        close("p99_e2el_ms", 220.0 + 0.98 * 80.0);
        close("tokens_per_chunk", 1.5);
        // The second alone: the first takes 15 ms a token, the third 300 ms to its first.
        close("request_goodput", 0.5);
        assert_eq!((&value["completed"], &value["failed"]), (&json!(3), &json!(2)));
    }

    #[test]
    fn streams_are_read_by_their_chunks() {
        let mut s = Sample::default();
        for (line, ms) in [
            (": ping", 1),
            ("", 2),
            (r#"data: {"choices": [{"text": "a"}]}"#, 5),
            (r#"data: {"choices": [{"text": "b"}], "usage": null}"#, 9),
            (r#"data: {"choices": [], "usage": {"completion_tokens": 4}}"#, 10),
            ("data: [DONE]", 11),
        ] {
            s.take(line, Duration::from_millis(ms)).unwrap();
        }
        assert_eq!((s.chunks.len(), s.tokens, s.whole()), (2, 4, 0.009));
        assert!(s.take(r#"data: {"error": {"message": "m"}}"#, Duration::ZERO).unwrap_err().contains('m'));
    }

    #[test]
    fn lengths_are_all_of_their_range_and_as_likely() {
        let read = |text: &str| text.parse::<Lengths>();
        assert_eq!((read("64").unwrap().to_string(), read("16-2000").unwrap().to_string()), ("64".into(), "16-2000".into()));
        for wrong in ["", "-", "9-8", "a", "1-2-3"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        let (mut random, mut counts) = (Random(3), [0; 5]);
        (0..100_000).for_each(|_| counts[random.within(read("3-7").unwrap()) - 3] += 1);
        assert!(counts.iter().all(|n| (19_000..21_000).contains(n)), "{counts:?}");
        assert_eq!(random.within(read("5").unwrap()), 5);
    }

    #[test]
    fn arrivals_are_as_often_as_was_said() {
        let mut random = Random(1);
        let mean = (0..100_000).map(|_| -(1.0 - random.unit()).ln()).sum::<f64>() / 1e5;
        assert!((mean - 1.0).abs() < 0.02, "{mean}");
        assert!((0..1000).map(|_| random.unit()).all(|u| (0.0..1.0).contains(&u)));
    }
}
