//! The work of a transformer on a GPU, each kind alone, compared with the device's bandwidth or PyTorch on the same device.
//!
//! `cargo bench --bench gpu_speed -- [--peer PYTHON] [--only TEXT]`. Times are the GPU's own clock's, weights take turns over more memory than its
//! caches have, and the first element of the last result of each sample is compared with the same operation on the CPU. Short kernels run
//! several in an evaluation, so that the way to the GPU is not measured: products and those over rows side by side, attention of one query one
//! after the other, as the layers of a model do. `--peer` runs
//! `benches/peers/pytorch_gpu.py` once, before the rows that are compared with it.

use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tensorlogic::backends::Bytes;
use tensorlogic::eval::eval_all;
use tensorlogic::measure::{Environment, Limits, Options, Outcome, Work, first, measure};
use tensorlogic::ops::attention::AttentionOptions;
use tensorlogic::ops::loss::NllOptions;
use tensorlogic::optim::{AdamW, Optimizer};
use tensorlogic::{DType, Device, Rng, Tensor, TensorError, TensorResult, nn, quant};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// What a row is compared with.
enum Against {
    /// Bytes that have to move, at the bandwidth of a copy.
    Bytes(f64),
    /// The peer's time of this name; the operations are for the rate.
    Peer(String, f64),
}

struct Bench {
    device: Device,
    rng: Rng,
    limits: Limits,
    peer: HashMap<String, f64>,
    only: String,
}

/// Short kernels of an evaluation.
const SIDE_BY_SIDE: usize = 8;
/// Times that a product takes turns with the same one and what follows it.
const TURNS: usize = 5;
/// Sequences, heads, tokens and elements of a head of attention over prompts.
const ATTENTION: [(usize, usize, usize, usize); 3] = [(8, 12, 1024, 64), (1, 32, 4096, 128), (64, 12, 64, 64)];
/// Bytes that weights take turns over.
const ROTATED: usize = 256 << 20;

impl Bench {
    fn tensor(&mut self, shape: &[usize], dtype: DType) -> TensorResult<Tensor> {
        let t = self.rng.normal(shape, DType::F32, &self.device)?.mul(0.1)?.cast(dtype)?;
        t.eval()?;
        Ok(t)
    }

    /// Weights of this shape, as many as no cache holds.
    fn weights(&mut self, shape: &[usize], dtype: DType) -> Result<Vec<Tensor>> {
        let count = shape.iter().product::<usize>();
        let bytes = dtype.bytes(count).ok_or("a size")?;
        let number = ROTATED.div_ceil(bytes).clamp(2, 64);
        if !dtype.is_block() {
            return (0..number).map(|_| Ok(self.tensor(shape, dtype)?)).collect();
        }
        // Packing takes long: they are copies of one, whose rows repeat.
        let (row, rows) = (shape[shape.len() - 1], count / shape[shape.len() - 1]);
        let values: Vec<f32> = self.tensor(&[rows.min(64), row], DType::F32)?.to_vec()?;
        let mut packed = quant::quantize(dtype, &values)?.repeat(rows.div_ceil(64));
        packed.truncate(dtype.bytes(count).ok_or("a size")?);
        let packed = Arc::new(packed);
        (0..number).map(|_| Ok(Tensor::from_bytes(Bytes::Owned(packed.clone()), dtype, shape, &self.device)?)).collect()
    }

    /// Measures `run` on inputs that take turns and prints the row.
    fn row(
        &mut self,
        what: &str,
        against: Against,
        floor: f64,
        expect: Vec<f64>,
        run: impl Fn(usize) -> TensorResult<Tensor>,
    ) -> Result<f64> {
        self.several(what, against, floor, 1, expect, run)
    }

    /// The same for evaluations that do as much as `number` times the row says.
    fn several(
        &mut self,
        what: &str,
        against: Against,
        floor: f64,
        number: usize,
        expect: Vec<f64>,
        run: impl Fn(usize) -> TensorResult<Tensor>,
    ) -> Result<f64> {
        let seconds = self.time(number, expect, run)?;
        let (rate, fraction) = match against {
            Against::Bytes(bytes) => {
                let limit = self.limits.copy_bandwidth()?;
                (format!("{:.0} GB/s", bytes / seconds / 1e9), Some((bytes / seconds / limit, "of copy")))
            }
            Against::Peer(name, operations) => {
                let other = self.peer.get(&name).map(|p| (p / seconds, "of PyTorch"));
                (format!("{:.1} TFLOP/s", operations / seconds / 1e12), other)
            }
        };
        let fraction = fraction.map_or("not compared".into(), |(f, of)| format!("{f:.2} {of}{}", verdict(f, floor)));
        println!("{what:<58} {:>10.2} µs  {rate:>14}  {fraction}", seconds * 1e6);
        Ok(seconds)
    }

    /// Seconds by the GPU's clock of one of `number` in an evaluation.
    fn time(&self, number: usize, expect: Vec<f64>, run: impl Fn(usize) -> TensorResult<Tensor>) -> Result<f64> {
        let work = Work { variants: expect.len(), run: Box::new(|v| Ok(Outcome::Tensor(run(v)?))), expect, tolerance: 0.02 };
        // After a moment without work an H100 runs short kernels up to twice as slowly for a while.
        let options = Options { samples: 11, warm_up: Duration::from_millis(300), ..Options::new() };
        Ok(measure(&self.device, &work, &options)?.best().median / number as f64)
    }

    fn wanted(&self, what: &str) -> bool {
        what.contains(&self.only)
    }

    /// f16 products `x·Wᵀ`, and what bias and GELU cost behind them.
    fn products(&mut self) -> Result<()> {
        let shapes = [
            (4096, 4096, 4096, 0.33),
            (8192, 8192, 8192, 0.33),
            (16, 4096, 4096, 0.3),
            (64, 3072, 768, 0.3),
            (256, 4096, 4096, 0.3),
            (1024, 2304, 768, 0.3),
            (4096, 3072, 768, 0.3),
            (4096, 14336, 4096, 0.3),
            (512, 50257, 768, 0.3),
        ];
        for (m, n, k, floor) in shapes {
            let what = format!("product f16 {m}×{n}×{k}");
            if !self.wanted(&what) {
                continue;
            }
            let a = self.tensor(&[m, k], DType::F16)?;
            let w = self.weights(&[n, k], DType::F16)?;
            let cpu = Device::cpu();
            let row = a.narrow(0, 0, 1)?.to_device(&cpu)?.cast(DType::F32)?;
            let expect: Vec<f64> = w
                .iter()
                .map(|w| first(&row.matmul(&w.narrow(0, 0, 1)?.to_device(&cpu)?.cast(DType::F32)?.t()?)?))
                .collect::<TensorResult<_>>()?;
            let against = Against::Peer(format!("product {m} {n} {k}"), 2.0 * (m * n * k) as f64);
            // As the peer runs them, one behind the other; a long one says the same alone.
            let number = if 2 * m * n * k < 1 << 35 { SIDE_BY_SIDE.min(w.len()) } else { 1 };
            let each = |v: usize, op: &dyn Fn(&Tensor) -> TensorResult<Tensor>| -> TensorResult<Tensor> {
                let all: Vec<Tensor> = (0..number).map(|i| op(&w[(v + i) % w.len()])).collect::<TensorResult<_>>()?;
                eval_all(&all.iter().collect::<Vec<_>>())?;
                Ok(all[0].clone())
            };
            let product = |v| each(v, &|w| a.matmul(&w.t()?));
            let plain = self.several(&what, against, floor, number, expect.clone(), product)?;
            if m >= 4096 && n < 14336 {
                let bias = self.tensor(&[n], DType::F16)?;
                let small = |v: usize| -> TensorResult<f64> {
                    let y = row.matmul(&w[v].narrow(0, 0, 1)?.to_device(&cpu)?.cast(DType::F32)?.t()?)?;
                    first(&y.add(&bias.narrow(0, 0, 1)?.to_device(&cpu)?.cast(DType::F32)?)?.gelu_tanh()?)
                };
                let expect_with: Vec<f64> = (0..w.len()).map(small).collect::<TensorResult<_>>()?;
                let against = Against::Peer(format!("product {m} {n} {k}"), 2.0 * (m * n * k) as f64);
                let what = format!("… with bias and gelu {m}×{n}×{k}");
                let fused = |v| each(v, &|w| a.matmul(&w.t()?)?.add(&bias)?.gelu_tanh());
                let mut ratios = vec![self.several(&what, against, 0.0, number, expect_with.clone(), fused)? / plain];
                // In turn: a warmer GPU is slower.
                for _ in 1..TURNS {
                    let plain = self.time(number, expect.clone(), product)?;
                    ratios.push(self.time(number, expect_with.clone(), fused)? / plain);
                }
                ratios.sort_by(f64::total_cmp);
                let [least, median, most] = [0, TURNS / 2, TURNS - 1].map(|i| (ratios[i] - 1.0) * 100.0);
                println!("  bias and gelu: {median:+.1} % (floor +5 %), {least:+.1} to {most:+.1} in {TURNS} turns");
            }
        }
        Ok(())
    }

    /// One row times a weight.
    fn rows_of_one(&mut self) -> Result<()> {
        use DType::{F16, F32, Q4_0, Q4_1, Q4_K, Q8_0};
        for (n, k, activations, dtype, floor) in [
            (4096, 14336, F16, F16, 0.95),
            (50257, 768, F16, F16, 0.95),
            (4096, 14336, F16, Q8_0, 0.9),
            (4096, 14336, F16, Q4_0, 0.75),
            (4096, 14336, F16, Q4_1, 0.75),
            (4096, 14336, F16, Q4_K, 0.75),
            // What floats of 32 bits cost, which are not multiplied as integers.
            (4096, 14336, F32, Q4_0, 0.0),
            (4096, 14336, F32, Q4_K, 0.0),
        ] {
            let what = format!("gemv {}{dtype} {n}×{k}", if activations == F32 { "f32 · " } else { "" });
            if !self.wanted(&what) {
                continue;
            }
            // Different rows: the same product would be computed once.
            let x = (0..SIDE_BY_SIDE).map(|_| self.tensor(&[1, k], activations)).collect::<TensorResult<Vec<_>>>()?;
            let w = self.weights(&[n, k], dtype)?;
            let cpu = Device::cpu();
            let xc = x[0].to_device(&cpu)?.cast(DType::F32)?;
            let expect = w.iter().map(|w| first(&xc.matmul(&w.narrow(0, 0, 1)?.to_device(&cpu)?.t()?)?)).collect::<TensorResult<_>>()?;
            let bytes = dtype.bytes(n * k).ok_or("a size")? as f64;
            self.several(&what, Against::Bytes(bytes), floor, SIDE_BY_SIDE, expect, |v| {
                let all: Vec<Tensor> =
                    x.iter().enumerate().map(|(i, x)| x.matmul(&w[(v + i) % w.len()].t()?)).collect::<TensorResult<_>>()?;
                eval_all(&all.iter().collect::<Vec<_>>())?;
                Ok(all[0].clone())
            })?;
        }
        Ok(())
    }

    /// Kernels over rows.
    fn over_rows(&mut self) -> Result<()> {
        for cols in [768, 4096, 50304] {
            let floor = if cols == 768 { 0.7 } else { 0.9 };
            type Op = fn(&Tensor, &Tensor, &Tensor, &Tensor) -> TensorResult<Tensor>;
            let ops: [(&str, f64, Op); 4] = [
                ("softmax", 2.0, |x, _, _, _| x.softmax(-1)),
                ("layer_norm", 2.0, |x, w, b, _| x.layer_norm(Some(w), Some(b), 1e-5)),
                ("rms_norm", 2.0, |x, w, _, _| x.rms_norm(Some(w), 1e-5)),
                ("cross entropy of each row", 1.0, |x, _, _, t| {
                    x.cross_entropy(t, &NllOptions { reduction: tensorlogic::ops::loss::Reduction::None, ..Default::default() })
                }),
            ];
            if !ops.iter().any(|(name, ..)| self.wanted(&format!("{name} f16[8192,{cols}]"))) {
                continue;
            }
            let number = if cols < 50304 { SIDE_BY_SIDE } else { 1 };
            let x = (0..2 * number.max(2)).map(|_| self.tensor(&[8192, cols], DType::F16)).collect::<TensorResult<Vec<_>>>()?;
            let (weight, bias) = (self.tensor(&[cols], DType::F16)?, self.tensor(&[cols], DType::F16)?);
            let target = Tensor::zeros(&[8192], DType::I32, &self.device)?;
            target.eval()?;
            for (name, passes, op) in ops {
                let what = format!("{name} f16[8192,{cols}]");
                if !self.wanted(&what) {
                    continue;
                }
                let cpu = Device::cpu();
                let host = |t: &Tensor| t.to_device(&cpu)?.cast(DType::F32);
                let (w, b, t) = (host(&weight)?, host(&bias)?, target.narrow(0, 0, 1)?.to_device(&cpu)?);
                let expect =
                    x.chunks(number).map(|x| first(&op(&host(&x[0].narrow(0, 0, 1)?)?, &w, &b, &t)?)).collect::<TensorResult<_>>()?;
                self.several(&what, Against::Bytes(passes * 2.0 * (8192 * cols) as f64), floor, number, expect, |v| {
                    let all: Vec<Tensor> =
                        x[v * number..][..number].iter().map(|x| op(x, &weight, &bias, &target)).collect::<TensorResult<_>>()?;
                    eval_all(&all.iter().collect::<Vec<_>>())?;
                    Ok(all[0].clone())
                })?;
            }
        }
        Ok(())
    }

    /// The best of a row of logits.
    fn choice(&mut self) -> Result<()> {
        let what = "place of the largest of f32[1,50257]";
        if !self.wanted(what) {
            return Ok(());
        }
        let x = (0..8).map(|_| self.tensor(&[1, 50257], DType::F32)).collect::<TensorResult<Vec<_>>>()?;
        let cpu = Device::cpu();
        let expect = x.iter().map(|x| first(&x.to_device(&cpu)?.argmax(-1)?)).collect::<TensorResult<_>>()?;
        self.row(what, Against::Bytes(4.0 * 50257.0), 0.0, expect, |v| x[v].argmax(-1))?;
        Ok(())
    }

    /// Attention over a prompt, and of one query over a cache.
    fn attention(&mut self) -> Result<()> {
        for (b, h, s, d) in ATTENTION {
            let what = format!("attention, causal, B{b} H{h} T{s} D{d}");
            if !self.wanted(&what) {
                continue;
            }
            let mut part = || self.tensor(&[b, h, s, d], DType::F16);
            let (q, k, v) = (part()?, part()?, part()?);
            // The first query sees the first key alone.
            let expect = vec![first(&v)?];
            let operations = 2.0 * (b * h * s * s * d) as f64;
            let against = Against::Peer(format!("attention {b} {h} {s} {d}"), operations);
            self.row(&what, against, 0.25, expect, |_| q.attention(&k, &v, None, &AttentionOptions::default()))?;
        }
        for (b, h, s, d) in ATTENTION {
            let what = format!("attention and its gradients, B{b} H{h} T{s} D{d}");
            if !self.wanted(&what) {
                continue;
            }
            let mut part = || self.tensor(&[b, h, s, d], DType::F16)?.requires_grad();
            let inputs = [part()?, part()?, part()?];
            let slope = self.tensor(&[b, h, s, d], DType::F16)?;
            let gradient = |inputs: &[Tensor; 3]| -> TensorResult<Tensor> {
                inputs.iter().for_each(Tensor::zero_grad);
                let [q, k, v] = inputs;
                q.attention(k, v, None, &AttentionOptions::default())?.backward_with(&slope, false)?;
                // All three, of which little is added up.
                let corner = |t: &Tensor| -> TensorResult<Tensor> {
                    let grad = t.grad().ok_or_else(|| TensorError::State("no gradient".into()))?;
                    grad.narrow(0, b - 1, 1)?.narrow(1, h - 1, 1)?.narrow(2, s - 1, 1)?.narrow(3, 0, 8)
                };
                corner(q)?.add(&corner(k)?)?.add(&corner(v)?)
            };
            // The last key of a head counts for its last query alone, in f32 on the CPU.
            let cpu = Device::cpu();
            let last = |t: &Tensor| t.detach().narrow(0, b - 1, 1)?.narrow(1, h - 1, 1)?.to_device(&cpu)?.cast(DType::F32);
            let [q, k, v, g] = [last(&inputs[0])?, last(&inputs[1])?, last(&inputs[2])?, last(&slope)?.narrow(2, s - 1, 1)?];
            let scale = 1.0 / (d as f64).sqrt();
            let row = q.narrow(2, s - 1, 1)?;
            let weights = row.matmul(&k.transpose(-2, -1)?)?.mul(scale)?.softmax(-1)?;
            let own = g.matmul(&v.transpose(-2, -1)?)?;
            let of_scores = weights.mul(&own.sub(&weights.mul(&own)?.sum(&[-1], true)?)?)?.mul(scale)?;
            let (dq, dk) = (of_scores.matmul(&k)?, of_scores.narrow(3, s - 1, 1)?.mul(&row)?);
            let dv = weights.narrow(3, s - 1, 1)?.mul(&g)?;
            let expect = vec![first(&dq.add(&dk)?.add(&dv)?)?];
            // Two products of attention, and five of its gradients.
            let operations = 7.0 * (b * h * s * s * d) as f64;
            let against = Against::Peer(format!("attention_gradients {b} {h} {s} {d}"), operations);
            self.row(&what, against, 0.25, expect, |_| gradient(&inputs))?;
        }
        // A batch of sequences, as bandwidth means something at few keys only there; then one sequence.
        let wide = [(8, 1024), (8, 4096), (1, 1024), (1, 4096), (1, 32768)].map(|(b, s)| (b, 32, 8, 128, s, s));
        let small = [(12, 64), (12, 512), (12, 1024), (9, 256)].map(|(h, n)| (1, h, if h == 9 { 3 } else { h }, 64, 1024, n));
        for (b, h, hkv, d, s, valid) in wide.into_iter().chain(small) {
            let what = format!("attention of one query, B{b} H{h}/{hkv} S{s} D{d}, {valid} keys");
            if !self.wanted(&what) {
                continue;
            }
            let bytes = 2 * b * hkv * s * d * 2;
            let mut cache = || {
                (0..ROTATED.div_ceil(bytes).clamp(2, 32))
                    .map(|_| self.tensor(&[b, hkv, s, d], DType::F16))
                    .collect::<TensorResult<Vec<_>>>()
            };
            let (k, v) = (cache()?, cache()?);
            let q = self.tensor(&[b, h, 1, d], DType::F16)?;
            let options = AttentionOptions { kv_len: Some(valid), ..Default::default() };
            let cpu = Device::cpu();
            let head = |t: &Tensor| t.narrow(0, 0, 1)?.narrow(1, 0, 1)?.to_device(&cpu)?.cast(DType::F32);
            // Layer after layer, each with keys and values of its own.
            let layers = 8;
            let through = |q: Tensor, first: usize, k: &[Tensor], v: &[Tensor]| {
                (first..first + layers).try_fold(q, |q, n| q.attention(&k[n % k.len()], &v[n % v.len()], None, &options))
            };
            let heads = |t: &[Tensor]| t.iter().map(head).collect::<TensorResult<Vec<_>>>();
            let (own, own_k, own_v) = (head(&q)?, heads(&k)?, heads(&v)?);
            let expect = (0..k.len()).map(|n| first(&through(own.clone(), n, &own_k, &own_v)?)).collect::<TensorResult<_>>()?;
            let against = Against::Bytes((bytes / s * valid) as f64);
            // A model's few keys are bound by latency.
            let floor = if d == 128 { 0.6 } else { 0.0 };
            self.several(&what, against, floor, layers, expect, |n| through(q.clone(), n, &k, &v))?;
        }
        Ok(())
    }

    /// One update of 124 million parameters.
    fn update(&mut self) -> Result<()> {
        if !self.wanted("AdamW") {
            return Ok(());
        }
        let p = nn::Param::new(&self.tensor(&[124_439_808 / 1024, 1024], DType::F32)?)?;
        let mut optimizer = Optimizer::new(AdamW::default(), vec![("weight".to_string(), p.clone())], 1e-3)?;
        let grad = self.tensor(&[124_439_808 / 1024, 1024], DType::F32)?;
        let mut step = || -> TensorResult<()> {
            optimizer.zero_grad()?;
            p.get().mul(&grad)?.sum_all()?.backward()?;
            optimizer.step()
        };
        for _ in 0..3 {
            step()?;
        }
        let ((), profile) = self.device.profile(|| (0..8).try_for_each(|_| step()))?;
        let longest =
            profile.rows().iter().filter_map(|r| Some((r.seconds? / r.count as f64, r.op.clone()))).max_by(|a, b| a.0.total_cmp(&b.0));
        let (seconds, _) = longest.ok_or("nothing ran")?;
        // Parameter, gradient and two moments are read, three of them written.
        let bytes = 28.0 * 124_439_808.0 / 1024.0 * 1024.0;
        let fraction = bytes / seconds / self.limits.copy_bandwidth()?;
        let met = if fraction >= 0.85 { "met" } else { "MISSED" };
        println!(
            "{:<58} {:>10.2} µs  {:>9.0} GB/s  {fraction:.2} of copy, floor 0.85: {met}",
            "AdamW, 124 M parameters",
            seconds * 1e6,
            bytes / seconds / 1e9
        );
        Ok(())
    }
}

/// Whether a floor is met, where there is one.
fn verdict(reached: f64, floor: f64) -> String {
    match (floor > 0.0, reached >= floor) {
        (false, _) => String::new(),
        (_, true) => format!(", floor {floor}: met"),
        (_, false) => format!(", floor {floor}: MISSED"),
    }
}

fn run() -> Result<()> {
    let (mut peer, mut only) = (None, String::new());
    let mut rest = std::env::args().skip(1);
    while let Some(arg) = rest.next() {
        match arg.as_str() {
            "--peer" => peer = Some(rest.next().ok_or("--peer wants a value")?),
            "--only" => only = rest.next().ok_or("--only wants a value")?,
            "--bench" => {}
            other => return Err(format!("unknown argument {other}").into()),
        }
    }
    let device = Device::auto()?;
    if device.is_cpu() {
        return Err("no GPU; `cargo bench --bench cpu_speed` is the CPU's".into());
    }
    println!("{}", Environment::of(&device).line());
    let mut times = HashMap::new();
    if let Some(python) = peer {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/peers/pytorch_gpu.py");
        let out = std::process::Command::new(&python).arg(script).output()?;
        if !out.status.success() {
            return Err(format!("{python} {script}: {}", String::from_utf8_lossy(&out.stderr).trim()).into());
        }
        for line in String::from_utf8(out.stdout)?.lines() {
            let v: serde_json::Value = serde_json::from_str(line)?;
            times.insert(v["name"].as_str().ok_or("a name")?.to_string(), v["seconds"].as_f64().ok_or("a time")?);
        }
    }
    let mut limits = Limits::new(&device, Options::new());
    println!("copy bandwidth {:.0} GB/s", limits.copy_bandwidth()? / 1e9);
    let mut b = Bench { rng: Rng::new(1), limits, peer: times, only, device };
    b.products()?;
    b.rows_of_one()?;
    b.over_rows()?;
    b.choice()?;
    b.attention()?;
    b.update()
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("gpu_speed: {e}");
            ExitCode::from(2)
        }
    }
}
