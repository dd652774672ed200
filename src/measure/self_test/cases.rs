//! What the self-test computes: every kind of kernel in the dtypes that it has, on numbers that are the same on every machine.

use crate::backends::Bytes;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::ops::attention::AttentionOptions;
use crate::ops::rope::{RopePairs, rope_tables};
use crate::quant;
use crate::tensor::Tensor;
use std::sync::Arc;

pub(super) const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// What a case computes on a device.
type CaseRun = Box<dyn Fn(&Device) -> TensorResult<Tensor> + Send + Sync>;

/// One computation.
pub(super) struct SelfTestCase {
    /// The kind of kernel, the operation, its sizes and dtype.
    pub name: String,
    /// The largest difference that is right, as a part of the largest value; 0 for the same values.
    pub tolerance: f64,
    pub run: CaseRun,
}

/// Numbers in [−1, 1) that look random: multiples of 2⁻¹², which every dtype of 16 bits rounds alike.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut s = (seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        (s >> 51) as f32 / 4096.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Such numbers as a tensor.
pub(super) fn noise(shape: &[usize], dtype: DType, seed: u64, device: &Device) -> TensorResult<Tensor> {
    Tensor::from_vec(numbers(shape.iter().product(), seed), shape, device)?.cast(dtype)
}

/// Integers from −`size` to `size`, as floats.
pub(super) fn integers(shape: &[usize], size: i32, seed: u64) -> Vec<f32> {
    let scale = |v: &f32| ((v + 1.0) * (size as f32 + 0.5)).floor() - size as f32;
    numbers(shape.iter().product(), seed).iter().map(scale).collect()
}

/// A weight `[rows, columns]` in any dtype of weights.
pub(super) fn weight(rows: usize, columns: usize, dtype: DType, seed: u64, device: &Device) -> TensorResult<Tensor> {
    if !dtype.is_block() {
        return noise(&[rows, columns], dtype, seed, device);
    }
    // Formats that are only read have random codes.
    let encoded = dtype.format().is_some_and(|f| f.is_encoded());
    let bytes = if encoded {
        quant::quantize(dtype, &numbers(rows * columns, seed))?
    } else {
        quant::random_blocks(dtype, rows * columns, 1.0, seed)?
    };
    let bytes: Arc<Vec<u8>> = Arc::new(bytes);
    let len = bytes.len();
    Tensor::from_bytes(Bytes::Shared(bytes, 0, len), dtype, &[rows, columns], device)
}

/// How far a dtype's results may be from the CPU's, as a part of the largest.
pub(super) fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2e-3,
        DType::BF16 => 1.6e-2,
        _ => 2e-5,
    }
}

type NamedUnary = (&'static str, fn(&Tensor) -> TensorResult<Tensor>);
const UNARY: [NamedUnary; 16] = [
    ("relu", |x| x.relu()),
    ("sigmoid", |x| x.sigmoid()),
    ("tanh", |x| x.tanh()),
    ("gelu", |x| x.gelu()),
    ("gelu_tanh", |x| x.gelu_tanh()),
    ("silu", |x| x.silu()),
    ("exp", |x| x.exp()),
    ("log", |x| x.abs()?.add(0.5)?.log()),
    ("sqrt", |x| x.abs()?.sqrt()),
    ("rsqrt", |x| x.abs()?.add(0.5)?.rsqrt()),
    ("sin", |x| x.mul(9.0)?.sin()),
    ("cos", |x| x.mul(9.0)?.cos()),
    ("error function", |x| x.erf()),
    ("floor", |x| x.mul(5.0)?.floor()),
    ("clamp", |x| x.clamp(Some(-0.5), Some(0.25))),
    ("softplus", |x| x.softplus()),
];
type NamedBinary = (&'static str, fn(&Tensor, &Tensor) -> TensorResult<Tensor>);
const BINARY: [NamedBinary; 10] = [
    ("add", |a, b| a.add(b)),
    ("sub", |a, b| a.sub(b)),
    ("mul", |a, b| a.mul(b)),
    ("div", |a, b| a.div(&b.abs()?.add(0.5)?)),
    ("pow", |a, b| a.abs()?.add(0.25)?.pow(b)),
    ("fmod", |a, b| a.mul(7.0)?.fmod(&b.abs()?.add(0.5)?)),
    ("maximum", |a, b| a.maximum(b)),
    ("minimum", |a, b| a.minimum(b)),
    ("atan2", |a, b| a.atan2(b)),
    ("lt", |a, b| a.lt(b)),
];
const ROW_REDUCTIONS: [NamedUnary; 13] = [
    ("sum", |x| x.sum(&[-1], false)),
    ("mean", |x| x.mean(&[-1], false)),
    ("max", |x| x.max(&[-1], false)),
    ("min", |x| x.min(&[-1], false)),
    ("argmax", |x| x.argmax(-1)),
    ("sum of columns", |x| x.sum(&[0], false)),
    ("var", |x| x.var(&[-1], 1, false)),
    ("log of summed exponentials", |x| x.logsumexp(&[-1], false)),
    ("softmax", |x| x.softmax(-1)),
    ("log_softmax", |x| x.log_softmax(-1)),
    ("layer_norm", |x| x.layer_norm(None, None, 1e-5)),
    ("rms_norm", |x| x.rms_norm(None, 1e-6)),
    ("cumsum", |x| x.cumsum(-1)),
];
const INTEGERS: [NamedBinary; 6] = [
    ("add", |a, b| a.add(b)),
    ("mul", |a, b| a.mul(b)),
    ("minimum", |a, b| a.minimum(b)),
    ("eq", |a, b| a.eq(b)),
    ("bitwise_and", |a, b| a.bitwise_and(b)),
    ("bitwise_xor", |a, b| a.bitwise_xor(b)),
];

/// The list of cases while it is made.
pub(super) struct List(Vec<SelfTestCase>);

impl List {
    pub(super) fn add(&mut self, name: String, tolerance: f64, run: impl Fn(&Device) -> TensorResult<Tensor> + Send + Sync + 'static) {
        self.0.push(SelfTestCase { name, tolerance, run: Box::new(run) });
    }

    fn elementwise(&mut self) {
        for dtype in FLOATS {
            for (name, f) in UNARY {
                self.add(format!("map {name} [33,70] {dtype}"), rounding(dtype), move |d| f(&noise(&[33, 70], dtype, 1, d)?));
            }
            for (name, f) in BINARY {
                let of = move |d: &Device| f(&noise(&[33, 70], dtype, 1, d)?, &noise(&[33, 1], dtype, 2, d)?);
                self.add(format!("map {name} [33,70]·[33,1] {dtype}"), rounding(dtype), of);
            }
        }
        for dtype in [DType::I32, DType::U32, DType::I8, DType::U8] {
            for (name, f) in INTEGERS {
                let make = move |seed, d: &Device| Tensor::from_vec(integers(&[19, 37], 5, seed), &[19, 37], d)?.abs()?.cast(dtype);
                self.add(format!("map {name} [19,37] {dtype}"), 0.0, move |d| f(&make(1, d)?, &make(2, d)?));
            }
        }
    }

    fn rows(&mut self) {
        for dtype in FLOATS {
            for (name, f) in ROW_REDUCTIONS {
                for shape in [[17, 100], [3, 5000]] {
                    // Of equal ones the first counts, on every device.
                    let tolerance = if name == "argmax" { 0.0 } else { rounding(dtype) };
                    let name = format!("rows {name} [{},{}] {dtype}", shape[0], shape[1]);
                    self.add(name, tolerance, move |d| f(&noise(&shape, dtype, 3, d)?));
                }
            }
        }
    }

    fn products(&mut self) {
        for dtype in DType::WEIGHTS.into_iter().filter(|d| d.format().is_none_or(|f| f.linear().is_some())) {
            let activations = if dtype.is_block() { DType::F32 } else { dtype };
            // Block formats: a GPU rounds what it unpacks, or the activations, to 16 bits.
            let tolerance = if dtype.is_block() { 1e-2 } else { rounding(dtype) };
            for rows in [1, 5, 40] {
                let product = move |d: &Device| noise(&[rows, 512], activations, 4, d)?.matmul(&weight(96, 512, dtype, 5, d)?.t()?);
                self.add(format!("product [{rows},512]·[96,512]ᵀ {dtype}"), tolerance, product);
            }
        }
        for dtype in FLOATS {
            for [m, n, k] in [[64, 64, 64], [130, 72, 96], [33, 70, 40]] {
                let product = move |d: &Device| {
                    let c = noise(&[m, k], dtype, 6, d)?.matmul(&noise(&[k, n], dtype, 7, d)?)?;
                    c.add(&noise(&[n], dtype, 8, d)?)?.gelu_tanh()?.add(&noise(&[m, n], dtype, 9, d)?)
                };
                self.add(format!("product [{m},{k}]·[{k},{n}], bias, gelu, residual {dtype}"), rounding(dtype), product);
            }
        }
        // Both sides in memory as f16, as tensor operations read them: weights in rows, and in columns.
        let stored = |shape: &[usize], seed, d: &Device| noise(shape, DType::F16, seed, d).and_then(|x| x.eval().cloned());
        let rows = move |d: &Device| stored(&[70, 72], 13, d)?.matmul(&stored(&[136, 72], 14, d)?.t()?);
        self.add("product [70,72]·[136,72]ᵀ, stored f16".into(), rounding(DType::F16), rows);
        let columns = move |d: &Device| stored(&[72, 72], 13, d)?.t()?.matmul(&stored(&[72, 136], 14, d)?);
        self.add("product [72,72]ᵀ·[72,136], stored f16".into(), rounding(DType::F16), columns);
    }

    fn attention(&mut self) {
        for dtype in FLOATS {
            for (queries, keys, head, window) in
                [(40, 40, 64, None), (33, 70, 80, Some(21)), (1, 40, 64, None), (1, 700, 128, None), (4, 130, 64, None)]
            {
                let attention = move |d: &Device| {
                    let (q, k) = (noise(&[1, 4, queries, head], dtype, 10, d)?, noise(&[1, 2, keys, head], dtype, 11, d)?);
                    let options = AttentionOptions { window, ..Default::default() };
                    q.attention(&k, &noise(&[1, 2, keys, head], dtype, 12, d)?, None, &options)
                };
                let window = window.map(|w| format!(", window {w}")).unwrap_or_default();
                self.add(format!("attention {queries} queries, {keys} keys of {head}{window} {dtype}"), rounding(dtype), attention);
            }
        }
    }

    fn others(&mut self) {
        for dtype in FLOATS {
            self.add(format!("gather embedding {dtype}"), 0.0, move |d| {
                noise(&[50, 24], dtype, 13, d)?.embedding(&Tensor::from_vec(vec![7i32, 0, 49, 7, 12], &[5], d)?)
            });
            self.add(format!("scatter added rows {dtype}"), rounding(dtype), move |d| {
                let index = Tensor::from_vec((0..40).map(|n| n * n % 9).collect::<Vec<i32>>(), &[40], d)?;
                noise(&[9, 12], dtype, 14, d)?.index_add(0, &index, &noise(&[40, 12], dtype, 15, d)?)
            });
            self.add(format!("copy transpose {dtype}"), 0.0, move |d| noise(&[37, 70], dtype, 16, d)?.transpose(0, 1)?.contiguous());
            self.add(format!("copy cat, flip {dtype}"), 0.0, move |d| {
                let (a, b) = (noise(&[5, 30], dtype, 17, d)?, noise(&[9, 30], dtype, 18, d)?);
                Tensor::cat(&[a, b], 0)?.flip(1)
            });
            self.add(format!("sort [7,300] {dtype}"), 0.0, move |d| Ok(noise(&[7, 300], dtype, 19, d)?.sort(-1, false)?.0));
            self.add(format!("rope [2,9,32] {dtype}"), rounding(dtype), move |d| {
                let freqs: Vec<f64> = (0..16).map(|n| 1.0 / 1e4f64.powf(f64::from(n) / 16.0)).collect();
                let (cos, sin) = rope_tables(9, &freqs, RopePairs::Halves);
                let table = |t| Tensor::from_vec(t, &[9, 32], d);
                noise(&[2, 9, 32], dtype, 20, d)?.rope(&table(cos)?, &table(sin)?, RopePairs::Halves)
            });
            self.add(format!("convolution [1,4,12,12]·[6,4,3,3] {dtype}"), rounding(dtype), move |d| {
                noise(&[1, 4, 12, 12], dtype, 21, d)?.conv(&noise(&[6, 4, 3, 3], dtype, 22, d)?, None, &Default::default())
            });
            for to in FLOATS.into_iter().filter(|to| *to != dtype) {
                self.add(format!("map cast {dtype} to {to}"), 0.0, move |d| noise(&[29, 31], dtype, 23, d)?.cast(to));
            }
        }
        for dtype in DType::BLOCKS.into_iter().filter(|d| d.format().is_some_and(|f| f.linear().is_some())) {
            self.add(format!("unpack [4,512] {dtype}"), rounding(DType::F16), move |d| weight(4, 512, dtype, 24, d)?.cast(DType::F32));
        }
    }
}

/// Every case, in the order in which they are shown.
pub(super) fn cases() -> Vec<SelfTestCase> {
    let mut list = List(vec![]);
    list.elementwise();
    list.rows();
    list.products();
    list.attention();
    list.others();
    list.training();
    list.models();
    list.codebooks();
    list.0
}
