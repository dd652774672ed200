//! Gains as floors: how many times as long the slow way takes as the fast one, measured in turn.

use super::floor::Floor;
use super::limits::random;
use super::runner::{count, first_of_product};
use super::{Options, Outcome, Work, first, measure};
use crate::backends::Bytes;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::eval::without_fusion;
use crate::ops::Activation;
use crate::quant;
use crate::tensor::Tensor;
use std::sync::Arc;

/// Turns of both ways; the middle ratio counts.
const ROUNDS: usize = 3;

/// Two ways to the same values.
struct Gain<'a> {
    name: &'static str,
    what: String,
    slow: Work<'a>,
    fast: Work<'a>,
    /// Whether the host's part counts: the wall's clock, where a GPU has one of its own.
    wall: bool,
    bound: Option<f64>,
}

impl Gain<'_> {
    fn measure(self, device: &Device, options: &Options) -> TensorResult<Floor> {
        let seconds = |work: &Work<'_>| -> TensorResult<f64> {
            let times = measure(device, work, options)?;
            Ok(if self.wall { times.wall.median } else { times.best().median })
        };
        let mut turns = (0..ROUNDS).map(|_| Ok([seconds(&self.slow)?, seconds(&self.fast)?])).collect::<TensorResult<Vec<_>>>()?;
        turns.sort_by(|a, b| (a[0] / a[1]).total_cmp(&(b[0] / b[1])));
        let [slow, fast] = turns[ROUNDS / 2];
        let bound = self.bound.map(|b| (b, true));
        Ok(Floor { name: self.name, what: self.what, seconds: fast, value: slow / fast, unit: "times", bound, verdict: None })
    }
}

/// Two operands of each of two evaluations that take turns.
fn operands(device: &Device, shapes: [&[usize]; 2], dtype: DType) -> TensorResult<Vec<[Tensor; 2]>> {
    (0..2).map(|v| Ok([random(shapes[0], dtype, v, device)?, random(shapes[1], dtype, 10 + v, device)?])).collect()
}

/// `y` with every operation a dispatch of its own.
fn unfused(y: Tensor) -> TensorResult<Outcome> {
    without_fusion(|| y.eval().map(drop))?;
    Ok(y.into())
}

/// Measures the gains of fusion, batches, halves, packed weights and the pool.
pub(super) fn gains(device: &Device, options: &Options) -> TensorResult<Vec<Floor>> {
    let on_gpu = |b: f64| (!device.capabilities().host_memory).then_some(b);
    Ok(vec![
        fused_product(device, options, on_gpu(1.1))?,
        fused_pair(device, options, on_gpu(1.2))?,
        batch(device, options)?,
        halves(device, options, on_gpu(1.5))?,
        packed_weights(device, options, if options.quick { None } else { Some(2.0) })?,
        pool(device, options, on_gpu(1.2))?,
    ])
}

/// A small product with its activation in one dispatch or in two.
fn fused_product(device: &Device, options: &Options, bound: Option<f64>) -> TensorResult<Floor> {
    const SIDE: usize = 64;
    let dtype = device.default_float();
    let x = operands(device, [&[SIDE, SIDE]; 2], dtype)?;
    let y = |v: usize| x[v][0].matmul_with_activation(&x[v][1], Activation::ReLU);
    let expect = x.iter().map(|x| Ok(first_of_product(&x[0], &x[1])?.max(0.0))).collect::<TensorResult<Vec<_>>>()?;
    let work = |run| Work { variants: 2, run, expect: expect.clone(), tolerance: 5e-3 };
    let (slow, fast) = (work(Box::new(|v| unfused(y(v)?))), work(Box::new(|v| Ok(y(v)?.into()))));
    let what = format!("product and ReLU of {dtype}[{SIDE},{SIDE}]: gain of one dispatch");
    Gain { name: "fused_product", what, slow, fast, wall: false, bound }.measure(device, options)
}

/// A sum and its activation in one dispatch or in two.
fn fused_pair(device: &Device, options: &Options, bound: Option<f64>) -> TensorResult<Floor> {
    let (dtype, n) = (device.default_float(), if options.quick { 1 << 12 } else { 1_000_000 });
    let x = operands(device, [&[n]; 2], dtype)?;
    let y = |v: usize| x[v][0].fused_add_relu(&x[v][1]);
    let expect = x.iter().map(|x| Ok((first(&x[0])? + first(&x[1])?).max(0.0))).collect::<TensorResult<Vec<_>>>()?;
    let work = |run| Work { variants: 2, run, expect: expect.clone(), tolerance: 2e-3 };
    let (slow, fast) = (work(Box::new(|v| unfused(y(v)?))), work(Box::new(|v| Ok(y(v)?.into()))));
    let what = format!("sum and ReLU of {dtype}[{}]: gain of one dispatch", count(n));
    Gain { name: "fused_pair", what, slow, fast, wall: false, bound }.measure(device, options)
}

/// Sixteen inputs of a small network one by one, or as a batch.
fn batch(device: &Device, options: &Options) -> TensorResult<Floor> {
    const INPUTS: usize = 16;
    const WIDTHS: [usize; 3] = [256, 1024, 256];
    let dtype = device.default_float();
    let [w1, w2] = [random(&WIDTHS[..2], dtype, 1, device)?, random(&WIDTHS[1..], dtype, 2, device)?];
    let x = (0..2).map(|v| random(&[INPUTS, WIDTHS[0]], dtype, 10 + v, device)).collect::<TensorResult<Vec<_>>>()?;
    let rows = x.iter().map(|x| (0..INPUTS).map(|i| single(x, i)).collect()).collect::<TensorResult<Vec<Vec<Tensor>>>>()?;
    let answer = |x: &Tensor| x.matmul(&w1)?.relu()?.matmul(&w2);
    let hidden = x.iter().map(|x| x.narrow(0, 0, 1)?.matmul(&w1)?.relu()).collect::<TensorResult<Vec<_>>>()?;
    let expect = hidden.iter().map(|h| first_of_product(h, &w2)).collect::<TensorResult<Vec<_>>>()?;
    let work = |run| Work { variants: 2, run, expect: expect.clone(), tolerance: 2e-2 };
    let slow = work(Box::new(|v| {
        // The first row comes last, since its answer is what is compared.
        for row in &rows[v][1..] {
            answer(row)?.eval()?;
        }
        Ok(answer(&rows[v][0])?.into())
    }));
    let fast = work(Box::new(|v| Ok(answer(&x[v])?.into())));
    let what = format!("{INPUTS} inputs of an MLP: gain of a batch");
    Gain { name: "batch", what, slow, fast, wall: true, bound: Some(2.0) }.measure(device, options)
}

/// Row `i` of `x` as a tensor of its own.
fn single(x: &Tensor, i: usize) -> TensorResult<Tensor> {
    let row = x.narrow(0, i, 1)?.contiguous()?;
    row.eval()?;
    Ok(row)
}

/// A product of elements in f32 and in f16.
fn halves(device: &Device, options: &Options, bound: Option<f64>) -> TensorResult<Floor> {
    let n = if options.quick { 1 << 12 } else { 16_000_000 };
    let [whole, half] = [DType::F32, DType::F16].map(|dtype| operands(device, [&[n]; 2], dtype));
    let (whole, half) = (whole?, half?);
    fn work(x: &[[Tensor; 2]]) -> TensorResult<Work<'_>> {
        let expect = x.iter().map(|x| Ok(first(&x[0])? * first(&x[1])?)).collect::<TensorResult<_>>()?;
        Ok(Work { variants: 2, run: Box::new(|v| Ok(x[v][0].mul(&x[v][1])?.into())), expect, tolerance: 2e-3 })
    }
    let what = format!("product of elements [{}]: gain of f16 over f32", count(n));
    Gain { name: "half", what, slow: work(&whole)?, fast: work(&half)?, wall: false, bound }.measure(device, options)
}

/// A row times a matrix in the device's usual type and in Q4_0, both larger than most caches.
fn packed_weights(device: &Device, options: &Options, bound: Option<f64>) -> TensorResult<Floor> {
    let (k, n) = if options.quick { (64, 32) } else { (4096, 14336) };
    let dtype = device.default_float();
    let x = (0..2).map(|v| random(&[1, k], dtype, v, device)).collect::<TensorResult<Vec<_>>>()?;
    let whole = random(&[n, k], dtype, 7, device)?;
    let values = whole.to_vec()?;
    let blocks = Bytes::Owned(Arc::new(quant::quantize(DType::Q4_0, &values)?));
    let packed = Tensor::from_bytes(blocks, DType::Q4_0, &[n, k], device)?;
    let work = |weights: &Tensor| -> TensorResult<Work<'static>> {
        let (x, weights) = (x.clone(), weights.clone());
        let row = weights.narrow(0, 0, 1)?.cast(DType::F32)?.to_vec()?;
        let sum = |x: &Tensor| Ok(x.to_vec()?.iter().zip(&row).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum());
        let expect = x.iter().map(sum).collect::<TensorResult<_>>()?;
        Ok(Work { variants: 2, run: Box::new(move |v| Ok(x[v].matmul(&weights.t()?)?.into())), expect, tolerance: 2e-2 })
    };
    let what = format!("row times {dtype}[{n},{k}]: gain of Q4_0 over {dtype}");
    Gain { name: "packed", what, slow: work(&whole)?, fast: work(&packed)?, wall: false, bound }.measure(device, options)
}

/// An addition into memory of the pool, or into new memory.
fn pool(device: &Device, options: &Options, bound: Option<f64>) -> TensorResult<Floor> {
    let (dtype, n) = (device.default_float(), if options.quick { 1 << 12 } else { 1_000_000 });
    let x = (0..2).map(|v| random(&[n], dtype, v, device)).collect::<TensorResult<Vec<_>>>()?;
    let expect = x.iter().map(|x| Ok(first(x)? + 1.0)).collect::<TensorResult<Vec<_>>>()?;
    let work = |run| Work { variants: 2, run, expect: expect.clone(), tolerance: 2e-3 };
    let slow = work(Box::new(|v| {
        device.empty_cache();
        Ok(x[v].add(1.0)?.into())
    }));
    let fast = work(Box::new(|v| Ok(x[v].add(1.0)?.into())));
    let what = format!("addition over {dtype}[{}]: gain of the pool", count(n));
    Gain { name: "pool", what, slow, fast, wall: true, bound }.measure(device, options)
}
