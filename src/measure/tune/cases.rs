//! What `tl tune` measures: products, attention, reductions, kernels over rows, unpacking and elementwise work at the shapes of models.

use crate::autograd::{GradOptions, grad};
use crate::backends::Bytes;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::measure::limits::random;
use crate::ops::attention::AttentionOptions;
use crate::quant;
use crate::tensor::Tensor;
use crate::tuning::Tuning;
use std::sync::Arc;

/// A part of a table whose numbers serve kernels of their own, and is kept or dropped as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TuningGroup {
    /// Products of many rows: tiles, split-K and the number of compute units.
    Gemm,
    /// Products of few rows.
    Gemv,
    /// Attention.
    Attention,
    /// Reductions.
    Reduce,
    /// Kernels over rows: softmax and norms.
    Rows,
    /// Unpacking of block formats.
    Unpack,
    /// Elementwise work.
    Map,
}

impl TuningGroup {
    /// All groups, in the order in which they are shown.
    pub const ALL: [TuningGroup; 7] = [
        TuningGroup::Gemm,
        TuningGroup::Gemv,
        TuningGroup::Attention,
        TuningGroup::Reduce,
        TuningGroup::Rows,
        TuningGroup::Unpack,
        TuningGroup::Map,
    ];

    /// The group's field of the table.
    pub fn name(self) -> &'static str {
        match self {
            TuningGroup::Gemm => "gemm",
            TuningGroup::Gemv => "gemv",
            TuningGroup::Attention => "attention",
            TuningGroup::Reduce => "reduce",
            TuningGroup::Rows => "rows",
            TuningGroup::Unpack => "unpack",
            TuningGroup::Map => "map",
        }
    }

    /// Gives `to` this group's numbers of `from`.
    pub(super) fn copy(self, from: &Tuning, to: &mut Tuning) {
        match self {
            TuningGroup::Gemm => (to.compute_units, to.gemm) = (from.compute_units, from.gemm.clone()),
            TuningGroup::Gemv => to.gemv = from.gemv.clone(),
            TuningGroup::Attention => to.attention = from.attention.clone(),
            TuningGroup::Reduce => to.reduce = from.reduce.clone(),
            TuningGroup::Rows => to.rows = from.rows.clone(),
            TuningGroup::Unpack => to.unpack = from.unpack.clone(),
            TuningGroup::Map => to.map = from.map.clone(),
        }
    }
}

/// The results of one evaluation, not yet evaluated.
pub(super) type TuneRun = Box<dyn Fn() -> TensorResult<Vec<Tensor>>>;

/// Prepares a case on a device.
type MakeRun = Box<dyn Fn(&Device) -> TensorResult<TuneRun>>;

/// Work of one shape. Inputs are made for each device.
pub(super) struct TuneCase {
    pub group: TuningGroup,
    pub name: String,
    /// How much there is to do: operations, and bytes times what a GPU does while it moves one.
    pub work: f64,
    /// Makes the inputs on a device.
    pub make: MakeRun,
}

/// Operations that take a GPU about as long as moving a byte.
const OPERATIONS_OF_A_BYTE: f64 = 30.0;
/// Bytes of weights that take turns within an evaluation, so that no cache holds them.
const ROTATED: usize = 96 << 20;

/// A weight `[n, k]` of a dtype. Packing takes long: rows repeat.
fn weight(n: usize, k: usize, dtype: DType, seed: u64, device: &Device) -> TensorResult<Tensor> {
    if !dtype.is_block() {
        return random(&[n, k], dtype, seed, device);
    }
    let rows = n.min(16);
    let mut packed = quant::random_blocks(dtype, rows * k, 1.0, seed)?.repeat(n.div_ceil(rows));
    packed.truncate(dtype.bytes(n * k).unwrap_or(0));
    let t = Tensor::from_bytes(Bytes::Owned(Arc::new(packed)), dtype, &[n, k], device)?;
    t.eval()?;
    Ok(t)
}

/// `m` rows of f16 times several weights `[n, k]`; with `transposed`, the left and the right side are stored the other way.
pub(super) fn product(group: TuningGroup, size: [usize; 3], dtype: DType, transposed: [bool; 2], several: usize) -> TuneCase {
    product_of(group, size, [DType::F16, dtype], transposed, several)
}

/// The same with the dtypes of both sides.
pub(super) fn product_of(
    group: TuningGroup,
    [m, n, k]: [usize; 3],
    [left, dtype]: [DType; 2],
    transposed: [bool; 2],
    several: usize,
) -> TuneCase {
    let bytes = dtype.bytes(n * k).unwrap_or(0);
    let number = (ROTATED / bytes.max(1)).clamp(1, several.max(1));
    let layout = match transposed {
        [false, false] => "",
        [false, true] => ", right side transposed",
        [true, false] => ", left side transposed",
        [true, true] => ", both sides transposed",
    };
    let make = move |device: &Device| -> TensorResult<TuneRun> {
        let x = if transposed[0] { random(&[k, m], left, 1, device)?.t()? } else { random(&[m, k], left, 1, device)? };
        let weights =
            (0..number)
                .map(|i| {
                    if transposed[1] {
                        random(&[k, n], dtype, 2 + i as u64, device)
                    } else {
                        weight(n, k, dtype, 2 + i as u64, device)?.t()
                    }
                })
                .collect::<TensorResult<Vec<_>>>()?;
        Ok(Box::new(move || weights.iter().map(|w| x.matmul(w)).collect()))
    };
    let work = number as f64 * (2.0 * (m * n * k) as f64 + OPERATIONS_OF_A_BYTE * bytes as f64);
    TuneCase { group, name: format!("product {m}×{n}×{k} {dtype}{layout}"), work, make: Box::new(make) }
}

/// Attention of `queries` of each of `heads` heads, which share the keys of `kv` heads.
pub(super) fn attention([batch, heads, kv, queries, keys, d]: [usize; 6], dtype: DType) -> TuneCase {
    let make = move |device: &Device| -> TensorResult<TuneRun> {
        let q = random(&[batch, heads, queries, d], dtype, 1, device)?;
        let k = random(&[batch, kv, keys, d], dtype, 2, device)?;
        let v = random(&[batch, kv, keys, d], dtype, 3, device)?;
        let options = AttentionOptions { causal: true, ..Default::default() };
        Ok(Box::new(move || Ok(vec![q.attention(&k, &v, None, &options)?])))
    };
    let operations = 4.0 * (batch * heads * queries * keys * d) as f64;
    let work = operations + OPERATIONS_OF_A_BYTE * (4 * batch * kv * keys * d) as f64;
    let name = format!("attention of {batch}×{heads}/{kv} heads of {d}, {queries} queries, {keys} keys");
    TuneCase { group: TuningGroup::Attention, name, work, make: Box::new(make) }
}

/// The gradients of queries, keys and values of causal attention, with the attention that they need.
fn attention_gradients([batch, heads, kv, queries, keys, d]: [usize; 6], dtype: DType) -> TuneCase {
    let make = move |device: &Device| -> TensorResult<TuneRun> {
        let input = |heads, n, seed| random(&[batch, heads, n, d], dtype, seed, device)?.requires_grad();
        let (q, k, v) = (input(heads, queries, 1)?, input(kv, keys, 2)?, input(kv, keys, 3)?);
        let options = AttentionOptions { causal: true, ..Default::default() };
        Ok(Box::new(move || grad(&[&q.attention(&k, &v, None, &options)?], &[&q, &k, &v], &GradOptions::default())))
    };
    // The backward pass has five products where attention has two.
    let operations = 3.5 * 4.0 * (batch * heads * queries * keys * d) as f64;
    let work = operations + OPERATIONS_OF_A_BYTE * (12 * batch * kv * keys * d) as f64;
    let name = format!("gradients of attention of {batch}×{heads}/{kv} heads of {d}, {queries} queries, {keys} keys");
    TuneCase { group: TuningGroup::Attention, name, work, make: Box::new(make) }
}

/// One operation on `x` of this shape.
pub(super) fn unary(
    group: TuningGroup,
    what: &str,
    shape: [usize; 2],
    dtype: DType,
    op: impl Fn(&Tensor) -> TensorResult<Tensor> + Clone + 'static,
) -> TuneCase {
    let count = shape[0] * shape[1];
    let make = move |device: &Device| -> TensorResult<TuneRun> {
        let (x, op) = (random(&shape, dtype, 1, device)?, op.clone());
        Ok(Box::new(move || Ok(vec![op(&x)?])))
    };
    let work = OPERATIONS_OF_A_BYTE * (2 * dtype.bytes(count).unwrap_or(0)) as f64;
    TuneCase { group, name: format!("{what} [{}, {}] {dtype}", shape[0], shape[1]), work, make: Box::new(make) }
}

/// The cases of every group, the smallest of each group first, groups taking turns. `small` is for adapters that compute on a CPU.
pub(super) fn cases(small: bool) -> Vec<TuneCase> {
    use TuningGroup::*;
    let shrink = |n: usize| if small { (n / 16).max(32) } else { n };
    let rows = |n: usize| if small { n.min(128) } else { n };
    let several = if small { 2 } else { 12 };
    let plain = [false, false];
    let mut all = Vec::new();
    for (m, n, k, transposed) in [
        (16, 4096, 4096, plain),
        (64, 3072, 768, plain),
        (256, 4096, 4096, plain),
        (1024, 2304, 768, plain),
        (4096, 3072, 768, plain),
        (512, 4096, 1024, plain),
        (2048, 2048, 2048, plain),
        (1024, 768, 3072, [false, true]),
        (768, 3072, 4096, [true, true]),
        (1024, 4096, 1024, [true, false]),
    ] {
        all.push(product(Gemm, [rows(m), shrink(n), shrink(k).next_multiple_of(64)], DType::F16, transposed, several.min(4)));
    }
    for (m, n, k, dtype) in [
        (1, 3072, 768, DType::F16),
        (1, 4096, 4096, DType::F16),
        (4, 4096, 4096, DType::F16),
        (1, 50_257, 768, DType::F16),
        (1, 4096, 1024, DType::Q4_0),
        (1, 4096, 4096, DType::Q4_0),
        (1, 14_336, 4096, DType::Q4_0),
        (1, 4096, 4096, DType::Q4_K),
        (4, 4096, 4096, DType::Q4_0),
        (8, 4096, 4096, DType::Q4_K),
    ] {
        all.push(product(Gemv, [m, shrink(n), shrink(k).next_multiple_of(256)], dtype, plain, several));
    }
    for (m, n, k) in [(16, 4096, 4096), (48, 4096, 4096), (96, 4096, 4096), (48, 768, 768), (96, 768, 768)] {
        all.push(product(Unpack, [m, shrink(n), shrink(k).next_multiple_of(32)], DType::Q4_0, plain, several.min(4)));
    }
    for [batch, heads, kv, queries, keys, d] in [
        [1, 12, 12, 1, 512, 64],
        [1, 32, 8, 1, 512, 64],
        [1, 32, 8, 1, 4096, 128],
        [8, 32, 8, 1, 1024, 128],
        [1, 32, 8, 24, 1024, 64],
        [1, 12, 12, 48, 1024, 64],
        [1, 12, 12, 1024, 1024, 64],
        [1, 32, 8, 2048, 2048, 128],
    ] {
        let (queries, keys) = if small { (queries.min(48), keys.min(256)) } else { (queries, keys) };
        all.push(attention([batch.min(if small { 2 } else { 8 }), heads, kv, queries, keys, d], DType::F16));
    }
    for [heads, tokens, d] in [[12, 1024, 64], [16, 2048, 128]] {
        let tokens = if small { 64 } else { tokens };
        all.push(attention_gradients([1, heads, heads, tokens, tokens, d], DType::F16));
    }
    for shape in [[1, 1 << 20], [64, 65_536], [4096, 1024], [16, 4096]] {
        let shape = [rows(shape[0]), shrink(shape[1])];
        all.push(unary(Reduce, "sum", shape, DType::F32, |x| x.sum(&[-1], false)));
    }
    all.push(unary(Reduce, "argmax", [1, shrink(50_257)], DType::F32, |x| x.argmax(-1)));
    for shape in [[64, 1024], [1024, 4096], [4096, 768], [8192, 256]] {
        let shape = [rows(shape[0]), shrink(shape[1])];
        all.push(unary(Rows, "softmax", shape, DType::F16, |x| x.softmax(-1)));
        all.push(unary(Rows, "rms_norm", shape, DType::F16, |x| x.rms_norm(None, 1e-5)));
    }
    for power in [16, 19, 20, 21, 22, 23] {
        let power = if small { power - 4 } else { power };
        all.push(unary(Map, "gelu", [1, 1 << power], DType::F16, |x| x.gelu_tanh()));
    }
    all.push(unary(Map, "transpose", [shrink(2048), shrink(1024)], DType::F16, |x| x.t()?.add(1.0)));
    in_turns(all)
}

/// Groups take turns, each with its smallest work first: where time is short, something of each is measured.
pub(super) fn in_turns(mut all: Vec<TuneCase>) -> Vec<TuneCase> {
    all.sort_by(|a, b| a.work.total_cmp(&b.work));
    let mut seen = [0usize; TuningGroup::ALL.len()];
    let mut placed: Vec<(usize, TuneCase)> = all
        .into_iter()
        .map(|case| {
            let turn = &mut seen[case.group as usize];
            *turn += 1;
            (*turn, case)
        })
        .collect();
    placed.sort_by_key(|p| p.0);
    placed.into_iter().map(|p| p.1).collect()
}
