//! What the CPU does, what it can do at best, and PyTorch and llama.cpp, alternately.
//!
//! `cargo bench --bench cpu_speed -- [--peer PYTHON] [--peer-llama LLAMA_BENCH] [--models FOLDER] [--only TEXT] [--rounds N] [--markdown]`.
//! In each round the limit is measured, then this engine, then the peer; a row shows the medians, and the medians of the rounds' ratios. Models
//! are read from `--models` (`SmolLM2-135M-Instruct.Q4_1.gguf`, `gemma-3-270m-q4_k_m.gguf`; rows of files that are not there are left out);
//! GPT-2's files, of random weights, are written there where they are missing (1.3 GB). Threads are `TL_NUM_THREADS`, else the cores.

#[path = "cpu_speed/gpt2.rs"]
mod gpt2;
#[path = "cpu_speed/peers.rs"]
mod peers;

use peers::{Llama, Python};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;
use tensorlogic::measure::{Environment, Limits, Options, Stats, Work, first, measure};
use tensorlogic::models::{self, Model, Rounding, Sampler, Session, Weights};
use tensorlogic::{DType, Device, Rng, Tensor};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Tokens of a prompt, and tokens written.
const TOKENS: usize = 128;
const WRITTEN: usize = 64;

struct Args {
    python: Option<String>,
    llama: Option<PathBuf>,
    models: Option<PathBuf>,
    only: String,
    rounds: usize,
    markdown: bool,
    /// Load this file, print when the first token is there, and end.
    load: Option<PathBuf>,
}

fn args() -> Result<Args> {
    let mut a = Args { python: None, llama: None, models: None, only: String::new(), rounds: 5, markdown: false, load: None };
    let mut rest = std::env::args().skip(1);
    while let Some(arg) = rest.next() {
        let mut value = || rest.next().ok_or(format!("{arg} wants a value"));
        match arg.as_str() {
            "--peer" => a.python = Some(value()?),
            "--peer-llama" => a.llama = Some(value()?.into()),
            "--models" => a.models = Some(value()?.into()),
            "--only" => a.only = value()?,
            "--rounds" => a.rounds = value()?.parse::<usize>()?.max(1),
            "--markdown" => a.markdown = true,
            "--load" => a.load = Some(value()?.into()),
            // What cargo adds.
            "--bench" => {}
            other => return Err(format!("unknown argument {other}").into()),
        }
    }
    Ok(a)
}

fn main() -> ExitCode {
    match args().and_then(|args| if let Some(file) = &args.load { load(file) } else { run(args) }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("cpu_speed: {e}");
            ExitCode::from(2)
        }
    }
}

/// What a row must reach: a part of the limit, a multiple of the peer's speed, a time in seconds; 0 where nothing is asked.
#[derive(Clone, Copy, Default)]
struct Bound {
    limit: f64,
    peer: f64,
    seconds: f64,
}

const fn of_limit(limit: f64) -> Bound {
    Bound { limit, peer: 0.0, seconds: 0.0 }
}
const fn of_peer(peer: f64) -> Bound {
    Bound { limit: 0.0, peer, seconds: 0.0 }
}
const fn within(seconds: f64) -> Bound {
    Bound { limit: 0.0, peer: 0.0, seconds }
}

impl Bound {
    fn text(&self) -> String {
        let mut parts = Vec::new();
        if self.limit > 0.0 {
            parts.push(format!("{:.2} of limit", self.limit));
        }
        if self.peer > 0.0 {
            parts.push(format!("{:.1}x peer", self.peer));
        }
        if self.seconds > 0.0 {
            parts.push(time(self.seconds));
        }
        parts.join(", ")
    }

    /// `None` where what it asks for was not measured.
    fn met(&self, r: &Measured) -> Option<bool> {
        let reaches = |bound: f64, value: Option<f64>| if bound > 0.0 { value.map(|v| v >= bound) } else { Some(true) };
        let quick = self.seconds == 0.0 || r.seconds <= self.seconds;
        Some(reaches(self.limit, r.of_limit)? && reaches(self.peer, r.of_peer)? && quick)
    }
}

/// What bounds a row.
#[derive(Clone, Copy)]
enum Limit {
    None,
    /// f32 operations, or those of bf16 dot products.
    F32(f64),
    Bf16(f64),
    /// Bytes copied, or read; a copy counts both ways.
    Copy(u64),
    Read(u64),
}

/// How a row's seconds are shown.
#[derive(Clone, Copy)]
enum Unit {
    Time,
    /// Operations of one evaluation.
    Gflops(f64),
    /// Tokens of one evaluation.
    Tokens(f64),
}

impl Unit {
    fn text(self, seconds: f64) -> String {
        match self {
            Unit::Time => time(seconds),
            Unit::Gflops(n) => format!("{:.0} GFLOP/s", n / seconds / 1e9),
            Unit::Tokens(n) => format!("{:.0} tok/s", n / seconds),
        }
    }
}

fn time(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.*} µs", if s < 1e-5 { 2 } else { 0 }, s * 1e6),
        s => format!("{:.*} ms", if s < 0.1 { 2 } else { 0 }, s * 1e3),
    }
}

/// A row's medians.
struct Measured {
    seconds: f64,
    limit: Option<f64>,
    peer: Option<f64>,
    of_limit: Option<f64>,
    of_peer: Option<f64>,
}

fn median(v: Vec<f64>) -> Option<f64> {
    Stats::of(v).map(|s| s.median)
}

struct Bench {
    args: Args,
    device: Device,
    python: Option<Python>,
    llama: Option<Llama>,
    lines: Vec<String>,
}

/// A row of the table.
struct Row<'a> {
    name: &'a str,
    unit: Unit,
    limit: Limit,
    bounds: [Bound; 2],
    /// Times that the expression does the work.
    repeats: f64,
}

impl Bench {
    fn wants(&self, name: &str) -> bool {
        name.contains(&self.args.only)
    }

    fn options() -> Options {
        let ms = std::time::Duration::from_millis;
        Options { samples: 7, warm_up: ms(10), sample: ms(3), quick: false }
    }

    fn limit(&self, limit: Limit) -> Result<Option<f64>> {
        let mut limits = Limits::new(&self.device, Self::options());
        Ok(match limit {
            Limit::None => None,
            Limit::F32(operations) => Some(operations / limits.operations()?),
            Limit::Bf16(operations) => Some(operations / bf16_rate(threads()).map_or_else(|| limits.operations(), Ok)?),
            Limit::Copy(bytes) => Some(limits.moved(bytes, true)?),
            // Weights are more than any cache holds.
            Limit::Read(bytes) => Some(bytes as f64 / limits.read_bandwidth()?),
        })
    }

    /// Limit, own time and the peer's in turn, and the line that shows them.
    fn row(
        &mut self,
        name: &str,
        unit: Unit,
        limit: Limit,
        bounds: [Bound; 2],
        mut own: impl FnMut() -> Result<f64>,
        mut peer: impl FnMut(&mut Bench) -> Result<Option<f64>>,
    ) -> Result<()> {
        let (mut limits, mut seconds, mut peers) = (Vec::new(), Vec::new(), Vec::new());
        let (mut of_limit, mut of_peer) = (Vec::new(), Vec::new());
        for _ in 0..self.args.rounds {
            let l = self.limit(limit)?;
            let s = own()?;
            let p = peer(self)?;
            seconds.push(s);
            if let Some(l) = l {
                limits.push(l);
                of_limit.push(l / s);
            }
            if let Some(p) = p {
                peers.push(p);
                of_peer.push(p / s);
            }
        }
        let seconds = median(seconds).ok_or("a row took no time")?;
        let [limits, peers, of_limit, of_peer] = [limits, peers, of_limit, of_peer].map(median);
        let r = Measured { seconds, limit: limits, peer: peers, of_limit, of_peer };
        let show = |s: Option<f64>| s.map_or("-".into(), |s| unit.text(s));
        let ratio = |s: Option<f64>| s.map_or("-".into(), |s| format!("{s:.2}"));
        let mark = |b: &Bound| match b.met(&r) {
            Some(true) => format!("{} met", b.text()),
            Some(false) => format!("{} MISSED", b.text()),
            None => format!("{} ?", b.text()),
        };
        let cells = [
            name.to_string(),
            unit.text(r.seconds),
            show(r.limit),
            ratio(r.of_limit),
            show(r.peer),
            ratio(r.of_peer),
            mark(&bounds[0]),
            mark(&bounds[1]),
        ];
        println!("{}", line(&cells));
        self.lines.push(format!("| {} |", cells.join(" | ")));
        Ok(())
    }

    /// A row whose work is one expression over inputs that take turns.
    fn expression(
        &mut self,
        row: Row<'_>,
        inputs: &[Tensor],
        f: impl Fn(&Tensor) -> tensorlogic::TensorResult<Tensor>,
        expect: impl Fn(&Tensor) -> Result<f64>,
    ) -> Result<()> {
        let Row { name, unit, limit, bounds, repeats } = row;
        let expect = inputs.iter().map(expect).collect::<Result<Vec<_>>>()?;
        let device = self.device.clone();
        let own = || {
            let work =
                Work { variants: inputs.len(), run: Box::new(|v| Ok(f(&inputs[v])?.into())), expect: expect.clone(), tolerance: 2e-2 };
            Ok(measure(&device, &work, &Self::options())?.wall.median / repeats)
        };
        self.row(name, unit, limit, bounds, own, |b| b.python.as_mut().map_or(Ok(None), |p| p.seconds(name)))
    }
}

fn line(cells: &[String; 8]) -> String {
    let widths = [22, 14, 14, 6, 14, 6, 26, 26];
    let pad = |(c, w): (&String, usize)| format!("{c}{}", " ".repeat(w - c.chars().count().min(w)));
    cells.iter().zip(widths).map(pad).collect::<Vec<_>>().join("  ")
}

fn threads() -> usize {
    tensorlogic::backends::cpu::threads()
}

fn run(args: Args) -> Result<()> {
    let device = Device::cpu();
    println!("{}", Environment::of(&device).line());
    let python = args.python.as_ref().map(|p| Python::start(p, threads())).transpose()?;
    let llama = args.llama.as_ref().map(|p| Llama::new(p, threads())).transpose()?;
    for peer in [python.as_ref().map(|p| &p.name), llama.as_ref().map(|l| &l.name)].into_iter().flatten() {
        println!("beside {peer}");
    }
    let head = ["", "measured", "limit", "of it", "peer", "ratio", "floor", "goal"].map(String::from);
    println!("{}", line(&head));
    let mut b = Bench { args, device, python, llama, lines: Vec::new() };
    products(&mut b)?;
    elements(&mut b)?;
    small_additions(&mut b)?;
    language(&mut b)?;
    if b.args.markdown {
        println!("\n| {} |\n|{}", head.join(" | "), "---|".repeat(head.len()));
        b.lines.iter().for_each(|l| println!("{l}"));
    }
    Ok(())
}

fn random(shape: &[usize], dtype: DType, seed: u64, device: &Device) -> Result<Tensor> {
    let t = Rng::new(seed).uniform(shape, DType::F32, device)?.sub(0.5)?.cast(dtype)?;
    t.eval()?;
    Ok(t)
}

fn products(b: &mut Bench) -> Result<()> {
    for (dtype, sizes, bounds) in [
        (DType::F32, &[256, 512, 1024, 2048][..], [of_limit(0.90), of_limit(0.95)]),
        (DType::F16, &[256, 512, 1024, 2048], [of_limit(0.85), of_limit(0.92)]),
        (DType::BF16, &[256, 512, 1024, 2048], [of_limit(0.70), of_limit(0.93)]),
    ] {
        for (n, order) in sizes.iter().map(|&n| (n, "nn")).chain([(1024, "nt")]) {
            let name = format!("gemm {dtype} {n} {order}");
            if !b.wants(&name) {
                continue;
            }
            let operations = 2.0 * (n as f64).powi(3);
            let limit = if dtype == DType::BF16 { Limit::Bf16(operations) } else { Limit::F32(operations) };
            let a = (0..2).map(|v| random(&[n, n], dtype, v, &b.device)).collect::<Result<Vec<_>>>()?;
            let w = random(&[n, n], dtype, 9, &b.device)?;
            let w = if order == "nt" { w.t()? } else { w };
            let column = w.narrow(1, 0, 1)?.to_vec()?;
            let expect = |a: &Tensor| {
                let row = a.narrow(0, 0, 1)?.to_vec()?;
                Ok(row.iter().zip(&column).map(|(&x, &y)| x as f64 * y as f64).sum())
            };
            b.expression(Row { name: &name, unit: Unit::Gflops(operations), limit, bounds, repeats: 1.0 }, &a, |a| a.matmul(&w), expect)?;
        }
    }
    Ok(())
}

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
}

fn elements(b: &mut Bench) -> Result<()> {
    let device = b.device.clone();
    let vectors = |n: usize| (0..2).map(|v| random(&[n], DType::F32, v, &device)).collect::<Result<Vec<_>>>();
    if b.wants("chain") {
        let x = vectors(10_000_000)?;
        let chain = |x: &Tensor| x.mul(1.5)?.add(0.25)?.relu()?.gelu_tanh();
        let expect = |x: &Tensor| Ok(gelu((first(x)? * 1.5 + 0.25).max(0.0)));
        b.expression(
            Row { name: "chain", unit: Unit::Time, limit: Limit::Copy(80_000_000), bounds: [within(5e-3), within(2e-3)], repeats: 1.0 },
            &x,
            chain,
            expect,
        )?;
    }
    if b.wants("gelu") {
        let x = vectors(100_000)?;
        let expect = |x: &Tensor| Ok(gelu(first(x)?));
        let bounds = [within(45e-6), within(20e-6)];
        b.expression(
            Row { name: "gelu", unit: Unit::Time, limit: Limit::Copy(800_000), bounds, repeats: 1.0 },
            &x,
            Tensor::gelu_tanh,
            expect,
        )?;
    }
    let rows = (0..2).map(|v| random(&[1024, 1024], DType::F32, v, &device)).collect::<Result<Vec<_>>>()?;
    let row = |x: &Tensor| -> Result<Vec<f64>> { Ok(x.narrow(0, 0, 1)?.to_vec()?.into_iter().map(f64::from).collect()) };
    if b.wants("softmax") {
        let expect = |x: &Tensor| {
            let row = row(x)?;
            Ok(row[0].exp() / row.iter().map(|x| x.exp()).sum::<f64>())
        };
        let bounds = [within(250e-6), within(120e-6)];
        b.expression(
            Row { name: "softmax", unit: Unit::Time, limit: Limit::Copy(8 << 20), bounds, repeats: 1.0 },
            &rows,
            |x| x.softmax(-1),
            expect,
        )?;
    }
    if b.wants("layer_norm") {
        let weight = Tensor::ones(&[1024], DType::F32, &device)?;
        let bias = Tensor::zeros(&[1024], DType::F32, &device)?;
        let expect = |x: &Tensor| {
            let row = row(x)?;
            let mean = row.iter().sum::<f64>() / 1024.0;
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 1024.0;
            Ok((row[0] - mean) / (variance + 1e-5).sqrt())
        };
        let norm = |x: &Tensor| x.layer_norm(Some(&weight), Some(&bias), 1e-5);
        b.expression(
            Row {
                name: "layer_norm",
                unit: Unit::Time,
                limit: Limit::Copy(8 << 20),
                bounds: [within(150e-6), within(80e-6)],
                repeats: 1.0,
            },
            &rows,
            norm,
            expect,
        )?;
    }
    if b.wants("sum") {
        let x = vectors(10_000_000)?;
        let expect = |x: &Tensor| Ok(x.to_vec()?.iter().map(|&v| v as f64).sum::<f64>());
        b.expression(
            Row { name: "sum", unit: Unit::Time, limit: Limit::Read(40_000_000), bounds: [within(0.7e-3), within(0.5e-3)], repeats: 1.0 },
            &x,
            Tensor::sum_all,
            expect,
        )?;
    }
    Ok(())
}

/// Additions of 1,000 elements: what an evaluation costs besides its work.
fn small_additions(b: &mut Bench) -> Result<()> {
    let bounds = [within(3e-6), within(0.5e-6)];
    let x = (0..2).map(|v| random(&[1000], DType::F32, v, &b.device)).collect::<Result<Vec<_>>>()?;
    if b.wants("small") {
        b.expression(
            Row { name: "small", unit: Unit::Time, limit: Limit::None, bounds, repeats: 1.0 },
            &x,
            |x| x.add(1.0),
            |x| Ok(first(x)? + 1.0),
        )?;
    }
    let dependent = |x: &Tensor| (0..1000).try_fold(x.clone(), |y, _| y.add(1.0));
    if b.wants("graph") {
        b.expression(Row { name: "graph", unit: Unit::Time, limit: Limit::None, bounds, repeats: 1000.0 }, &x, dependent, |x| {
            Ok(first(x)? + 1000.0)
        })?;
    }
    if b.wants("graph unfused") {
        let unfused = |x: &Tensor| {
            let y = dependent(x)?;
            tensorlogic::eval::without_fusion(|| y.eval().map(drop))?;
            Ok(y)
        };
        b.expression(Row { name: "graph unfused", unit: Unit::Time, limit: Limit::None, bounds, repeats: 1000.0 }, &x, unfused, |x| {
            Ok(first(x)? + 1000.0)
        })?;
    }
    Ok(())
}

/// The row of a prompt whose activations are rounded to bf16 before each product with weights in bf16, as llama.cpp does.
const ROUNDED: &str = "gpt2 bf16 rounded";

/// What a model's rows are held to: when writing, and when reading a prompt.
type Rows = (&'static str, PathBuf, Option<[Bound; 2]>, Option<[Bound; 2]>);

fn language(b: &mut Bench) -> Result<()> {
    const GPT2: [Bound; 2] = [of_peer(1.0), Bound { limit: 0.8, peer: 1.5, seconds: 0.0 }];
    let Some(folder) = b.args.models.clone() else {
        println!("no rows of language models: --models FOLDER says where they lie");
        return Ok(());
    };
    let (smollm2, gemma) = (folder.join("SmolLM2-135M-Instruct.Q4_1.gguf"), folder.join("gemma-3-270m-q4_k_m.gguf"));
    let mut rows: Vec<Rows> = vec![
        ("smollm2 q4_1", smollm2.clone(), Some([of_peer(1.0), of_peer(2.0)]), Some([of_peer(1.0), of_peer(3.0)])),
        ("gemma3 q4_k_m", gemma, Some([of_peer(1.0), of_peer(1.5)]), Some([of_peer(0.8), of_peer(1.5)])),
    ];
    let names = ["gpt2 f32", "gpt2 f16", "gpt2 bf16", "gpt2 q8_0", "gpt2 q4_0"];
    for (name, dtype) in names.into_iter().zip(gpt2::TYPES) {
        let prompt = (dtype == DType::BF16).then_some([of_peer(0.8), of_peer(1.2)]);
        rows.push((name, gpt2::path(&folder, dtype), (dtype != DType::BF16).then_some(GPT2), prompt));
        if b.wants(&format!("decode {name}")) || b.wants(&format!("prompt {name}")) {
            gpt2::make(&folder, dtype)?;
        }
    }
    rows.push((ROUNDED, gpt2::path(&folder, DType::BF16), None, Some([of_peer(1.2), of_peer(2.0)])));
    if b.wants(&format!("prompt {ROUNDED}")) {
        gpt2::make(&folder, DType::BF16)?;
    }
    for (name, path, decode, prompt) in rows {
        let [decoding, prompting] = [format!("decode {name}"), format!("prompt {name}")];
        let [decode, prompt] = [decode.filter(|_| b.wants(&decoding)), prompt.filter(|_| b.wants(&prompting))];
        if decode.is_none() && prompt.is_none() {
            continue;
        }
        if !path.exists() {
            println!("no rows of {name}: {} is not there", path.display());
            continue;
        }
        let mut model =
            models::load(&Weights::open(&path, &b.device)?.round_activations((name == ROUNDED).then_some(Rounding::Bf16)), None)?;
        let bytes: u64 = model.weights().iter().map(|t| t.dtype().bytes(t.numel()).unwrap_or(0) as u64).sum();
        if let Some(bounds) = decode {
            let own = || write(&*model, &Device::cpu());
            let peer = |b: &mut Bench| b.llama.as_ref().map(|l| l.seconds(&path, 0, WRITTEN)).transpose();
            b.row(&decoding, Unit::Tokens(1.0), Limit::Read(bytes), bounds, own, peer)?;
        }
        if let Some(bounds) = prompt {
            // The blocks' products; the output matrix serves the last token alone.
            let weights: usize = model.layers().iter().map(|l| l.linear.weight.numel()).sum();
            let limit = Limit::F32(2.0 * TOKENS as f64 * weights as f64);
            let own = || read(&*model, &Device::cpu());
            let peer = |b: &mut Bench| Ok(b.llama.as_ref().map(|l| l.seconds(&path, TOKENS, 0)).transpose()?.map(|s| s * TOKENS as f64));
            b.row(&prompting, Unit::Tokens(TOKENS as f64), limit, bounds, own, peer)?;
        }
    }
    if b.wants("load") && smollm2.exists() {
        let own = || loaded(&smollm2);
        let peer = |b: &mut Bench| b.llama.as_ref().map_or(Ok(None), |l| l.first_token(&smollm2));
        b.row("load smollm2 q4_1", Unit::Time, Limit::None, [within(150e-3), within(60e-3)], own, peer)?;
    }
    Ok(())
}

/// Seconds of a token when writing after a prompt of one.
fn write(model: &dyn Model, device: &Device) -> Result<f64> {
    let mut session = Session::new(model, WRITTEN + 8, device)?;
    let mut sampler = Sampler::default();
    let logits = session.prompt(&[1], || false)?.ok_or("the prompt was interrupted")?;
    let mut generation = session.generate(logits, &mut sampler)?;
    generation.token()?;
    let start = Instant::now();
    for _ in 1..WRITTEN {
        generation.token()?.ok_or("the context ended early")?;
    }
    Ok(start.elapsed().as_secs_f64() / (WRITTEN - 1) as f64)
}

/// Seconds of reading a prompt, the middle of three.
fn read(model: &dyn Model, device: &Device) -> Result<f64> {
    let vocab = model.shape().vocab as u32;
    let ids: Vec<u32> = (0..TOKENS as u32).map(|i| (i * 7919 + 13) % vocab).collect();
    let mut session = Session::new(model, TOKENS + 8, device)?;
    let mut times = Vec::new();
    for _ in 0..4 {
        session.truncate(0);
        let start = Instant::now();
        session.prompt(&ids, || false)?;
        device.synchronize()?;
        times.push(start.elapsed().as_secs_f64());
    }
    median(times.split_off(1)).ok_or_else(|| "no time was taken".into())
}

/// Seconds from the start of a process that opens the file to its end, right after its first token.
fn loaded(path: &Path) -> Result<f64> {
    let start = Instant::now();
    let out = std::process::Command::new(std::env::current_exe()?).arg("--load").arg(path).output()?;
    let seconds = start.elapsed().as_secs_f64();
    if !out.status.success() {
        return Err(String::from_utf8_lossy(&out.stderr).into_owned().into());
    }
    Ok(seconds)
}

fn load(path: &Path) -> Result<()> {
    let device = Device::cpu();
    let model = models::load(&Weights::open(path, &device)?, None)?;
    let mut session = Session::new(&*model, 64, &device)?;
    let mut sampler = Sampler::default();
    let logits = session.prompt(&[1], || false)?.ok_or("the prompt was interrupted")?;
    let token = session.generate(logits, &mut sampler)?.token()?;
    println!("{}", token.ok_or("there is no first token")?);
    Ok(())
}

/// bf16 operations per second of dot products in registers; `None` where the processor has none.
fn bf16_rate(threads: usize) -> Option<f64> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16") {
        const TURNS: usize = 1 << 21;
        let each = || {
            // SAFETY: the processor has the instructions.
            std::hint::black_box(unsafe { bf16_chains(TURNS) });
        };
        // Long enough that the start of a thread does not count.
        let times = (0..5)
            .map(|_| {
                let start = Instant::now();
                std::thread::scope(|s| {
                    (1..threads).for_each(|_| {
                        s.spawn(each);
                    });
                    each();
                });
                start.elapsed().as_secs_f64()
            })
            .collect();
        return median(times).map(|t| (threads * TURNS * 12 * 64) as f64 / t);
    }
    let _ = threads;
    None
}

/// `turns` dot products of 16 pairs into each of 12 sums.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bf16")]
fn bf16_chains(turns: usize) -> f32 {
    use std::arch::x86_64::*;
    let one = std::hint::black_box([0x3F80_3F80u32; 16]);
    // SAFETY: both types are 64 bytes of any content.
    let [x, y] = unsafe { [one, one].map(|x| std::mem::transmute::<[u32; 16], __m512bh>(x)) };
    let mut sums = [_mm512_setzero_ps(); 12];
    for _ in 0..turns {
        for s in &mut sums {
            *s = _mm512_dpbf16_ps(*s, x, y);
        }
    }
    sums.into_iter().map(|s| _mm512_reduce_add_ps(s)).sum()
}
