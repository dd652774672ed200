//! `--suite memory`: what each order of buffers plans, takes and costs, for a decode step, a prompt, a training step and random graphs.

use super::compare::{Verdict, verdict};
use super::{Options, ReuseHistogram, Stats};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::eval::{eval_all, plan_of, with_order};
use crate::io::{Gguf, GgufWriter};
use crate::models::{self, KvCache, Model, Weights};
use crate::nn::{Gpt, GptConfig, Module};
use crate::ops::random::Rng;
use crate::plan::{BufferOrder, Plan};
use crate::tensor::Tensor;
use serde_json::{Value, json};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// Random graphs of the suite.
const GRAPHS: u64 = 200;
/// Operations of one of them.
const GRAPH_STEPS: usize = 40;

/// What an order of buffers did to a workload.
#[derive(Clone, Debug)]
pub struct MemoryRow {
    /// The workload.
    pub workload: &'static str,
    /// The order.
    pub order: BufferOrder,
    /// Its plans: 1, or those of all random graphs, whose figures are added up.
    pub plans: usize,
    /// Bytes of the plans' slots.
    pub planned: usize,
    /// Bytes live at most in this order of steps: no placement needs fewer.
    pub live: usize,
    /// Steps that do not run in the program's place.
    pub moved_steps: usize,
    /// Intermediates with padded rows.
    pub padded: usize,
    /// Half of the bytes that are read of intermediates were touched at most this many moved bytes before.
    pub reuse_distance: u64,
    /// All bytes that are read of intermediates, by that distance.
    pub reuse: ReuseHistogram,
    /// Bytes allocated at most during a run, beyond what was before it.
    pub peak: usize,
    /// Seconds to make the plans, the rest of the compiler included.
    pub compile: f64,
    /// Wall-clock seconds of one run; `None` for random graphs, which are not timed.
    pub wall: Option<Stats>,
    /// Seconds of one run by the GPU's clock: the sum over its steps. `None` where the device has none, and for random graphs.
    pub gpu: Option<Stats>,
    /// The time against `Program`'s, beyond the noise.
    pub verdict: Option<Verdict>,
    /// Whether all results have the bits that they have in order `Program`.
    pub same_bits: bool,
}

impl MemoryRow {
    /// The planned bytes beyond `live`, as a part of it.
    pub fn slack(&self) -> f64 {
        if self.live == 0 { 0.0 } else { self.planned as f64 / self.live as f64 - 1.0 }
    }
    /// The members of a JSON object.
    pub fn to_json(&self) -> Value {
        json!({ "suite": "memory", "workload": self.workload, "order": self.order.name(), "plans": self.plans, "planned_bytes": self.planned,
            "live_bytes": self.live, "slack": self.slack(), "moved_steps": self.moved_steps, "padded": self.padded,
            "reuse_distance_bytes": self.reuse_distance, "reuse_histogram": self.reuse.to_json(), "peak_bytes": self.peak, "compile_s": self.compile,
            "wall_s": self.wall.as_ref().map(|w| w.median), "gpu_s": self.gpu.as_ref().map(|g| g.median), "verdict": self.verdict.map(word), "same_bits": self.same_bits })
    }
}

fn word(v: Verdict) -> &'static str {
    match v {
        Verdict::Faster => "faster",
        Verdict::Slower => "slower",
        Verdict::Same => "no difference",
    }
}

impl fmt::Display for MemoryRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<14} {:<10} {:>12} {:>12} {:>6.1} %", self.workload, self.order, self.planned, self.live, 100.0 * self.slack())?;
        write!(f, " {:>6} {:>6} {:>12} {:>12}", self.moved_steps, self.padded, self.reuse_distance, self.peak)?;
        let time = |stats: &Option<Stats>| stats.as_ref().map_or(String::new(), |s| format!("{:.3} ms", s.median * 1e3));
        let (wall, gpu) = (time(&self.wall), time(&self.gpu));
        write!(f, " {:>9.3} ms {wall:>12} {gpu:>12}  {:<13}", self.compile * 1e3, self.verdict.map_or("", word))?;
        f.write_str(if self.same_bits { " same bits" } else { " OTHER BITS" })
    }
}

/// The heading of rows that are printed.
pub const MEMORY_HEADING: &str = "workload       order           planned         live    slack  moved padded   reuse dist.         peak      compile         time     GPU time  \
against program";

/// Builds the pending results of a workload.
type Build<'a> = Box<dyn FnMut() -> TensorResult<Vec<Tensor>> + 'a>;

/// Measures all orders; `done` sees each workload's rows at once.
///
/// # Errors
/// Those of the device; [`TensorError::Internal`] if a result has other bits than in program order.
///
/// ```standalone_crate
/// use tensorlogic::Device;
/// use tensorlogic::measure::{MEMORY_HEADING, Options, memory};
/// println!("{MEMORY_HEADING}");
/// let rows = memory(&Device::cpu(), &Options::quick(), &mut |row| println!("{row}"))?;
/// assert_eq!(rows[0].workload, "decode step");
/// // No order plans less than is live at once, and none changes a bit of the results.
/// assert!(rows.iter().all(|row| row.planned >= row.live && row.same_bits));
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
pub fn memory(device: &Device, options: &Options, done: &mut dyn FnMut(&MemoryRow)) -> TensorResult<Vec<MemoryRow>> {
    let adaptive = device.adaptive();
    device.set_adaptive(false);
    let rows = rows(device, options, done);
    device.set_adaptive(adaptive);
    rows
}

fn rows(device: &Device, options: &Options, done: &mut dyn FnMut(&MemoryRow)) -> TensorResult<Vec<MemoryRow>> {
    let (layers, dim, prompt) = if options.quick { (2, 72, 16) } else { (4, 288, 512) };
    let model = models::load(&Weights::from_gguf(llama(layers, dim)?, device), Some(device.default_float()))?;
    let mut rng = Rng::new(1);
    let mut all = Vec::new();
    let mut cache = KvCache::new(&model.shape(), 256, device)?;
    let token = Tensor::from_vec(vec![1i32], &[1], device)?;
    let mut decode: Build<'_> = Box::new(|| {
        cache.truncate(0);
        cache.advance(100);
        Ok(vec![logits(&*model, &token, &mut cache)?])
    });
    all.extend(workload("decode step", device, options, &mut decode, done)?);
    let tokens = rng.integers(0, 512, &[prompt], device)?;
    tokens.eval()?;
    let mut prompt_cache = KvCache::new(&model.shape(), prompt, device)?;
    let mut read: Build<'_> = Box::new(|| {
        prompt_cache.truncate(0);
        Ok(vec![logits(&*model, &tokens, &mut prompt_cache)?])
    });
    all.extend(workload("prompt", device, options, &mut read, done)?);
    let (context, batch) = if options.quick { (16, 2) } else { (128, 4) };
    let config = GptConfig { vocab: 65, context, layers, heads: 6, width: dim, bias: false, dropout: 0.0 };
    let gpt = Gpt::new(config, &mut rng, device)?;
    let params = (&gpt as &dyn Module).named_parameters();
    let text = rng.integers(0, 65, &[batch, context + 1], device)?;
    text.eval()?;
    let mut train: Build<'_> = Box::new(|| {
        params.iter().for_each(|(_, p)| p.zero_grad());
        let loss = gpt.loss(&text.narrow(1, 0, context)?, &text.narrow(1, 1, context)?)?;
        loss.backward()?;
        Ok(params.iter().filter_map(|(_, p)| p.grad()).chain([loss]).collect())
    });
    all.extend(workload("training step", device, options, &mut train, done)?);
    all.extend(random_graphs(device, if options.quick { GRAPHS / 20 } else { GRAPHS }, done)?);
    Ok(all)
}

fn logits(model: &dyn Model, tokens: &Tensor, cache: &mut KvCache) -> TensorResult<Tensor> {
    model.logits(&model.hidden(tokens, cache)?)
}

/// A Llama with random weights, of SmolLM2's proportions.
fn llama(layers: usize, dim: usize) -> TensorResult<Gguf> {
    let (heads, kv_heads, feed_forward, vocab) = (9, 3, dim / 3 * 8, 4096);
    let mut w = GgufWriter::new();
    w.set("general.architecture", "llama");
    let numbers = [
        ("block_count", layers),
        ("embedding_length", dim),
        ("feed_forward_length", feed_forward),
        ("context_length", 1024),
        ("attention.head_count", heads),
        ("attention.head_count_kv", kv_heads),
    ];
    for (key, value) in numbers {
        w.set(&format!("llama.{key}"), value as u32);
    }
    let mut tensor = |name: String, shape: &[usize]| -> TensorResult<()> {
        let count = shape.iter().product::<usize>();
        let value = |i: usize| if shape.len() == 1 { 1.0 } else { ((i * 37 % 101) as f32 - 50.0) / 500.0 };
        w.tensor(&format!("{name}.weight"), DType::F32, shape, (0..count).flat_map(|i| value(i).to_le_bytes()).collect::<Vec<u8>>())?;
        Ok(())
    };
    let kv = kv_heads * dim / heads;
    tensor("token_embd".into(), &[vocab, dim])?;
    tensor("output_norm".into(), &[dim])?;
    for i in 0..layers {
        for (name, shape) in [
            ("attn_norm", &[dim][..]),
            ("attn_q", &[dim, dim]),
            ("attn_k", &[kv, dim]),
            ("attn_v", &[kv, dim]),
            ("attn_output", &[dim, dim]),
            ("ffn_norm", &[dim]),
            ("ffn_gate", &[feed_forward, dim]),
            ("ffn_up", &[feed_forward, dim]),
            ("ffn_down", &[dim, feed_forward]),
        ] {
            tensor(format!("blk.{i}.{name}"), shape)?;
        }
    }
    Gguf::from_bytes(w.to_bytes()?)
}

/// What was read of intermediates: the distance within which half of the bytes were touched before.
fn reuse_distance(plans: &[Arc<Plan>]) -> u64 {
    let mut all: Vec<(u64, u64)> = plans.iter().flat_map(|p| p.reuse_distances()).collect();
    all.sort_unstable();
    let half = all.iter().map(|d| d.1).sum::<u64>() / 2;
    let mut seen = 0;
    let far = all.iter().find(|(_, bytes)| {
        seen += bytes;
        seen > half
    });
    far.map_or(0, |d| d.0)
}

/// The row of these plans, without its times.
fn row(workload: &'static str, order: BufferOrder, plans: &[Arc<Plan>], compile: f64) -> MemoryRow {
    let sum = |f: fn(&Plan) -> usize| plans.iter().map(|p| f(p)).sum();
    MemoryRow {
        workload,
        order,
        plans: plans.len(),
        planned: sum(Plan::planned_bytes),
        live: sum(|p| p.memory.most_live),
        moved_steps: sum(|p| p.memory.moved_steps),
        padded: sum(|p| p.memory.padded),
        reuse_distance: reuse_distance(plans),
        reuse: ReuseHistogram::of(plans.iter().map(|p| &**p)),
        peak: 0,
        compile,
        wall: None,
        gpu: None,
        verdict: None,
        same_bits: true,
    }
}

fn eval_bytes(roots: &[Tensor]) -> TensorResult<Vec<Vec<u8>>> {
    eval_all(&roots.iter().collect::<Vec<_>>())?;
    roots.iter().map(Tensor::to_bytes).collect()
}

fn workload(
    name: &'static str,
    device: &Device,
    options: &Options,
    build: &mut Build<'_>,
    done: &mut dyn FnMut(&MemoryRow),
) -> TensorResult<Vec<MemoryRow>> {
    let (mut rows, mut bits) = (Vec::new(), None);
    for order in BufferOrder::ALL {
        let (found, got) = with_order(order, || -> TensorResult<_> {
            let roots = build()?;
            let start = Instant::now();
            let plan = plan_of(&roots.iter().collect::<Vec<_>>())?;
            let compile = start.elapsed().as_secs_f64();
            let mut found = row(name, order, &plan.into_iter().collect::<Vec<_>>(), compile);
            // Kernels are compiled, and memory is warm, before the peak is taken.
            let got = eval_bytes(&roots)?;
            drop(roots);
            let roots = build()?;
            device.reset_peak_memory();
            let before = device.memory().peak_allocated;
            eval_all(&roots.iter().collect::<Vec<_>>())?;
            found.peak = device.memory().peak_allocated - before;
            Ok((found, got))
        })?;
        found_bits(name, order, bits.get_or_insert_with(|| got.clone()), &got)?;
        rows.push(found);
    }
    // In turn, so that what else the machine does meets all of them.
    let mut times = vec![Vec::new(); rows.len()];
    for _ in 0..options.samples {
        for (row, times) in rows.iter().zip(&mut times) {
            let start = Instant::now();
            with_order(row.order, || eval_all(&build()?.iter().collect::<Vec<_>>()))?;
            device.synchronize()?;
            times.push(start.elapsed().as_secs_f64());
        }
    }
    let mut on_gpu = vec![Vec::new(); rows.len()];
    for _ in 0..if device.capabilities().clock { options.samples } else { 0 } {
        for (row, times) in rows.iter().zip(&mut on_gpu) {
            let ((), profile) = device.profile(|| with_order(row.order, || eval_all(&build()?.iter().collect::<Vec<_>>())).map(|_| ()))?;
            times.extend(profile.seconds().filter(|_| profile.gpu_clock));
        }
    }
    rows.iter_mut().zip(on_gpu).for_each(|(row, times)| row.gpu = Stats::of(times));
    let stats: Vec<Stats> = times.into_iter().filter_map(Stats::of).collect();
    for (row, s) in rows.iter_mut().zip(&stats) {
        row.verdict = (row.order != BufferOrder::Program).then(|| verdict(&stats[0], s));
        row.wall = Some(s.clone());
        done(row);
    }
    Ok(rows)
}

fn found_bits(workload: &str, order: BufferOrder, want: &[Vec<u8>], got: &[Vec<u8>]) -> TensorResult<()> {
    if want == got {
        return Ok(());
    }
    Err(TensorError::Internal(format!("{workload}: results in order {order} have other bits than in program order")))
}

fn random_graphs(device: &Device, count: u64, done: &mut dyn FnMut(&MemoryRow)) -> TensorResult<Vec<MemoryRow>> {
    let (mut rows, mut bits): (Vec<MemoryRow>, Vec<Vec<Vec<u8>>>) = Default::default();
    for order in BufferOrder::ALL {
        let (mut plans, mut compile) = (Vec::new(), 0.0);
        device.reset_peak_memory();
        let before = device.memory().peak_allocated;
        for seed in 0..count {
            let got = with_order(order, || {
                let roots = random_graph(seed, device)?;
                let start = Instant::now();
                plans.extend(plan_of(&roots.iter().collect::<Vec<_>>())?);
                compile += start.elapsed().as_secs_f64();
                eval_bytes(&roots)
            })?;
            match bits.get(seed as usize) {
                Some(want) => found_bits("random graphs", order, want, &got)?,
                None => bits.push(got),
            }
        }
        let found = MemoryRow { peak: device.memory().peak_allocated - before, ..row("random graphs", order, &plans, compile) };
        done(&found);
        rows.push(found);
    }
    Ok(rows)
}

/// A graph of products, rows, sums and concatenations over values of different sizes; the last three tensors are its results.
pub(super) fn random_graph(seed: u64, device: &Device) -> TensorResult<Vec<Tensor>> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) + 1;
    let mut roll = |sides: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % sides
    };
    let leaf = |rows: usize, columns: usize| {
        let values = (0..rows * columns).map(|i| ((i * 37 % 101) as f32 - 50.0) / 100.0).collect();
        Tensor::from_vec(values, &[rows, columns], device)
    };
    let mut pool = vec![leaf(16, 48)?, leaf(64, 16)?, leaf(100, 100)?];
    for _ in 0..GRAPH_STEPS {
        let x = pool[pool.len() - 1 - roll(pool.len().min(6))].clone();
        let y = pool[roll(pool.len())].clone();
        let columns = x.dims()[1];
        let made = match roll(7) {
            0 => x.matmul(&leaf(columns, 8 + 8 * roll(20))?)?.tanh()?,
            1 => x.softmax(-1)?,
            2 => x.rms_norm(None, 1e-3)?,
            3 if x.dims()[0] == y.dims()[0] => Tensor::cat(&[&x, &y], 1)?.tanh()?,
            4 if x.dims() == y.dims() => x.add(&y)?.mul(&x)?.tanh()?,
            5 => x.sub(&x.mean(&[1], true)?)?,
            6 if x.dims()[0] <= 128 => x.t()?.contiguous()?,
            _ => x.layer_norm(None, None, 1e-3)?,
        };
        if made.numel() <= 1 << 16 {
            pool.push(made);
        }
    }
    Ok(pool.split_off(pool.len() - 3))
}
