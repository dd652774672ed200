//! The benchmark suites: products, elementwise work, reductions, transfers, activations, the gains of fusion, pooling, batches and aligned
//! sizes, the data loader, half precision and independent work.

use super::limits::{Limits, random, variants};
use super::runner::{CATEGORIES, Case, Runner, Traffic, chain_of_eight, chain_of_eight_of, count, first_of_product, firsts};
use super::{Environment, Options, Outcome, Record, Work, first, pairs};
use crate::backends::Bytes;
use crate::data::{DataLoader, Dataset, Field, LoaderOptions, Order, Part};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::eval::without_fusion;
use crate::tensor::Tensor;
use std::cell::RefCell;
use std::sync::Arc;

/// Measures the operations under one heading.
type Category = fn(&mut Runner<'_>, &'static str) -> TensorResult<Vec<Record>>;

/// Measures the categories whose heading contains `only` (all, if empty); `done` sees each record at once.
///
/// # Errors
/// Those of the device, and when a measured result is wrong.
///
/// ```
/// use tensorlogic::Device;
/// use tensorlogic::measure::{Options, suite};
/// let sums = suite(&Device::cpu(), &Options::quick(), "reduction", &mut |record| println!("{}", record.size))?;
/// assert!(sums.iter().all(|record| record.operation == "Sum" && record.wall.samples.len() == 3));
/// assert_eq!(sums.iter().map(|record| &*record.size).collect::<Vec<_>>(), ["1K", "10K", "100K", "1M"]);
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
pub fn suite(device: &Device, options: &Options, only: &str, done: &mut dyn FnMut(&Record)) -> TensorResult<Vec<Record>> {
    let limits = Limits::new(device, *options);
    let mut r = Runner { device: device.clone(), options: *options, limits, environment: Environment::of(device), done };
    let all: [Category; CATEGORIES.len()] = [
        products,
        elementwise,
        reductions,
        transfers,
        activations,
        fusion,
        pooling,
        batches,
        aligned,
        loaders,
        pairs::halves,
        pairs::independent,
    ];
    let mut records = Vec::new();
    for (name, run) in CATEGORIES.into_iter().zip(all) {
        if name.to_lowercase().contains(&only.to_lowercase()) {
            records.extend(run(&mut r, name)?);
        }
    }
    Ok(records)
}

/// The sizes of the log.
const SIZES: [usize; 4] = [1_000, 10_000, 100_000, 1_000_000];

/// Some random inputs of `n` elements in the device's float type.
fn inputs(r: &Runner<'_>, n: usize, seed: u64) -> TensorResult<Vec<Tensor>> {
    let dtype = r.device.default_float();
    (0..variants((n * dtype.block_bytes()) as u64)).map(|v| random(&[n], dtype, seed + v as u64, &r.device)).collect()
}

fn products(r: &mut Runner<'_>, category: &'static str) -> TensorResult<Vec<Record>> {
    let (dtype, device) = (r.device.default_float(), r.device.clone());
    let mut out = Vec::new();
    for n in [64, 128, 256, 512, 1024] {
        let bytes = (3 * n * n * dtype.block_bytes()) as u64;
        let make =
            |seed: u64| (0..variants(bytes)).map(|v| random(&[n, n], dtype, seed + v as u64, &device)).collect::<TensorResult<Vec<_>>>();
        let (a, b) = (make(10)?, make(50)?);
        let expect = a.iter().zip(&b).map(|(a, b)| first_of_product(a, b)).collect::<TensorResult<_>>()?;
        let run = Box::new(|v: usize| Ok(a[v].matmul(&b[v])?.into()));
        let work = Work { variants: a.len(), run, expect, tolerance: 5e-3 };
        let (operation, size, operations) = ("MatMul".to_string(), format!("{n}x{n}"), 2 * (n * n * n) as u64);
        out.push(r.record(Case {
            suite: "metal",
            category,
            operation,
            size,
            bytes,
            operations,
            traffic: Traffic::Product(dtype),
            work,
        })?);
    }
    Ok(out)
}

type BinaryRow = (&'static str, fn(&Tensor, &Tensor) -> TensorResult<Tensor>, fn(f64, f64) -> f64);

fn elementwise(r: &mut Runner<'_>, category: &'static str) -> TensorResult<Vec<Record>> {
    let mut out = Vec::new();
    let ops: [BinaryRow; 2] = [("Add", |a, b| a.add(b), |a, b| a + b), ("Mul", |a, b| a.mul(b), |a, b| a * b)];
    for (name, op, of) in ops {
        for n in SIZES {
            let (a, b) = (inputs(r, n, 1)?, inputs(r, n, 100)?);
            let expect = a.iter().zip(&b).map(|(a, b)| Ok(of(first(a)?, first(b)?))).collect::<TensorResult<_>>()?;
            let work = Work { variants: a.len(), run: Box::new(|v| Ok(op(&a[v], &b[v])?.into())), expect, tolerance: 2e-3 };
            let bytes = (3 * n * a[0].dtype().block_bytes()) as u64;
            let (operation, size) = (name.to_string(), count(n));
            let operations = n as u64;
            out.push(r.record(Case { suite: "metal", category, operation, size, bytes, operations, traffic: Traffic::Copy, work })?);
        }
    }
    Ok(out)
}

/// The sum of what a tensor holds, in f64.
pub(super) fn total(x: &Tensor) -> TensorResult<f64> {
    // Piece by piece: as f32 it may be larger than what a GPU binds.
    const MAX_ELEMENTS: usize = 16 << 20;
    let mut sum = 0.0;
    for start in (0..x.numel()).step_by(MAX_ELEMENTS) {
        let piece = x.narrow(0, start, MAX_ELEMENTS.min(x.numel() - start))?;
        sum += piece.to_vec()?.iter().map(|v| *v as f64).sum::<f64>();
    }
    Ok(sum)
}

fn reductions(r: &mut Runner<'_>, category: &'static str) -> TensorResult<Vec<Record>> {
    let mut out = Vec::new();
    for n in SIZES {
        let x = inputs(r, n, 1)?;
        let expect = x.iter().map(total).collect::<TensorResult<_>>()?;
        let work = Work { variants: x.len(), run: Box::new(|v| Ok(x[v].sum_all()?.into())), expect, tolerance: 5e-3 };
        let (operation, size, bytes) = ("Sum".to_string(), count(n), (n * x[0].dtype().block_bytes()) as u64);
        let operations = n as u64;
        out.push(r.record(Case { suite: "metal", category, operation, size, bytes, operations, traffic: Traffic::Read, work })?);
    }
    Ok(out)
}

fn transfers(r: &mut Runner<'_>, category: &'static str) -> TensorResult<Vec<Record>> {
    let (dtype, device) = (r.device.default_float(), r.device.clone());
    let mut out = Vec::new();
    for to_device in [true, false] {
        for n in SIZES {
            let x = inputs(r, n, 1)?;
            let expect = firsts(&x, |v| v)?;
            let host: Vec<Arc<Vec<u8>>> = x.iter().map(|x| Ok(Arc::new(x.to_bytes()?))).collect::<TensorResult<_>>()?;
            let decode = |b: &[u8]| match dtype.block_bytes() {
                2 => half::f16::from_le_bytes([b[0], b[1]]).to_f64(),
                _ => f32::from_le_bytes([b[0], b[1], b[2], b[3]]) as f64,
            };
            let run: Box<dyn Fn(usize) -> TensorResult<Outcome> + '_> = if to_device {
                // At once: small values would wait until something needs them.
                Box::new(|v| Ok(Tensor::from_bytes_in(Bytes::Owned(host[v].clone()), dtype, &[n], &device, device.storage_mode())?.into()))
            } else {
                Box::new(|v| Ok(Outcome::Value(decode(&x[v].to_bytes()?))))
            };
            let work = Work { variants: x.len(), run, expect, tolerance: 1e-6 };
            let operation = if to_device { "Host→Device" } else { "Device→Host" }.to_string();
            let (size, bytes) = (count(n), (n * dtype.block_bytes()) as u64);
            out.push(r.record(Case {
                suite: "metal",
                category,
                operation,
                size,
                bytes,
                operations: 0,
                traffic: if to_device { Traffic::Upload } else { Traffic::Download },
                work,
            })?);
        }
    }
    out.extend(pairs::large_downloads(r, category)?);
    Ok(out)
}

type UnaryRow = (&'static str, u64, fn(&Tensor) -> TensorResult<Tensor>, fn(f64) -> f64);

fn activations(r: &mut Runner<'_>, category: &'static str) -> TensorResult<Vec<Record>> {
    let mut out = Vec::new();
    let gelu = |x: f64| 0.5 * x * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044_715 * x * x * x)).tanh());
    // The operations of GELU as the log counts them: eight.
    let ops: [UnaryRow; 2] = [("ReLU", 1, |x| x.relu(), |x| x.max(0.0)), ("GELU", 8, |x| x.gelu_tanh(), gelu)];
    for (name, each, op, of) in ops {
        for n in SIZES {
            let x = inputs(r, n, 1)?;
            let expect = firsts(&x, of)?;
            let work = Work { variants: x.len(), run: Box::new(|v| Ok(op(&x[v])?.into())), expect, tolerance: 2e-3 };
            let (operation, size, bytes) = (name.to_string(), count(n), (2 * n * x[0].dtype().block_bytes()) as u64);
            let operations = each * n as u64;
            out.push(r.record(Case { suite: "metal", category, operation, size, bytes, operations, traffic: Traffic::Copy, work })?);
        }
    }
    Ok(out)
}

fn fusion(r: &mut Runner<'_>, category: &'static str) -> TensorResult<Vec<Record>> {
    let mut out = Vec::new();
    for n in [1_000, 1_000_000] {
        for fused in [true, false] {
            let x = inputs(r, n, 1)?;
            let expect = firsts(&x, chain_of_eight_of)?;
            let run = Box::new(|v: usize| {
                let y = chain_of_eight(&x[v])?;
                if !fused {
                    without_fusion(|| y.eval().map(drop))?;
                }
                Ok(y.into())
            });
            let work = Work { variants: x.len(), run, expect, tolerance: 8e-3 };
            let operation = if fused { "Chain of 8, fused" } else { "Chain of 8, TL_NO_FUSION" }.to_string();
            let (size, bytes) = (count(n), (2 * n * x[0].dtype().block_bytes()) as u64);
            let operations = 9 * n as u64;
            out.push(r.record(Case { suite: "metal", category, operation, size, bytes, operations, traffic: Traffic::Copy, work })?);
        }
    }
    out.extend(pairs::fused_by_name(r, category)?);
    Ok(out)
}

fn pooling(r: &mut Runner<'_>, category: &'static str) -> TensorResult<Vec<Record>> {
    let device = r.device.clone();
    let mut out = Vec::new();
    for n in [10_000, 1_000_000] {
        for pooled in [true, false] {
            let x = inputs(r, n, 1)?;
            let expect = firsts(&x, |v| v + 1.0)?;
            let run = Box::new(|v: usize| {
                if !pooled {
                    device.empty_cache();
                }
                Ok(x[v].add(1.0)?.into())
            });
            let work = Work { variants: x.len(), run, expect, tolerance: 2e-3 };
            let operation = if pooled { "Add, memory from the pool" } else { "Add, new memory each time" }.to_string();
            let (size, bytes) = (count(n), (2 * n * x[0].dtype().block_bytes()) as u64);
            let operations = n as u64;
            out.push(r.record(Case { suite: "metal", category, operation, size, bytes, operations, traffic: Traffic::Copy, work })?);
        }
    }
    Ok(out)
}

fn batches(r: &mut Runner<'_>, category: &'static str) -> TensorResult<Vec<Record>> {
    let (dtype, device) = (r.device.default_float(), r.device.clone());
    const WIDTHS: [usize; 3] = [256, 1024, 256];
    let (w1, w2) = (random(&[WIDTHS[0], WIDTHS[1]], dtype, 1, &device)?, random(&[WIDTHS[1], WIDTHS[2]], dtype, 2, &device)?);
    let [m1, m2] = [w1.to_vec()?, w2.to_vec()?];
    let mut out = Vec::new();
    for n in [1, 4, 16, 64] {
        let x = (0..4).map(|v| random(&[n, WIDTHS[0]], dtype, 10 + v, &device)).collect::<TensorResult<Vec<_>>>()?;
        let element = |x: &Tensor| -> TensorResult<f64> {
            let row = x.narrow(0, 0, 1)?.to_vec()?;
            Ok((0..WIDTHS[1])
                .map(|h| {
                    let sum: f64 = row.iter().enumerate().map(|(k, v)| *v as f64 * m1[k * WIDTHS[1] + h] as f64).sum();
                    sum.max(0.0) * m2[h * WIDTHS[2]] as f64
                })
                .sum())
        };
        let expect = x.iter().map(element).collect::<TensorResult<_>>()?;
        let run = Box::new(|v: usize| Ok(x[v].matmul(&w1)?.relu()?.matmul(&w2)?.into()));
        let work = Work { variants: x.len(), run, expect, tolerance: 2e-2 };
        let (weights, items) = (WIDTHS[0] * WIDTHS[1] + WIDTHS[1] * WIDTHS[2], n * (WIDTHS[0] + 2 * WIDTHS[1] + WIDTHS[2]));
        let (bytes, operations) = (((weights + items) * dtype.block_bytes()) as u64, (2 * n * weights) as u64);
        let (operation, size) = ("MLP 256-1024-256".to_string(), format!("batch {n}"));
        out.push(r.record(Case {
            suite: "metal",
            category,
            operation,
            size,
            bytes,
            operations,
            traffic: Traffic::Product(dtype),
            work,
        })?);
    }
    Ok(out)
}

/// GPT-2's vocabulary as it is, and with rows added so that it is a multiple of 64: the logits of 32 positions.
fn aligned(r: &mut Runner<'_>, category: &'static str) -> TensorResult<Vec<Record>> {
    const VOCAB: usize = 50_257;
    const POSITIONS: usize = 32;
    const WIDTH: usize = 256;
    let (dtype, device) = (r.device.default_float(), r.device.clone());
    let mut out = Vec::new();
    for vocab in [VOCAB, crate::nn::align(VOCAB, 64)] {
        let x = (0..4).map(|v| random(&[POSITIONS, WIDTH], dtype, 10 + v, &device)).collect::<TensorResult<Vec<_>>>()?;
        let table = random(&[vocab, WIDTH], dtype, 1, &device)?;
        let row = table.narrow(0, 0, 1)?.to_vec()?;
        let dot = |x: &Tensor| -> TensorResult<f64> {
            let x = x.narrow(0, 0, 1)?.to_vec()?;
            Ok(x.iter().zip(&row).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum())
        };
        let expect = x.iter().map(dot).collect::<TensorResult<_>>()?;
        let run = Box::new(|v: usize| Ok(x[v].matmul(&table.t()?)?.into()));
        let work = Work { variants: x.len(), run, expect, tolerance: 2e-2 };
        let bytes = ((vocab * WIDTH + POSITIONS * (WIDTH + vocab)) * dtype.block_bytes()) as u64;
        let (operation, size, operations) = ("Logits".to_string(), vocab.to_string(), (2 * POSITIONS * WIDTH * vocab) as u64);
        out.push(r.record(Case {
            suite: "metal",
            category,
            operation,
            size,
            bytes,
            operations,
            traffic: Traffic::Product(dtype),
            work,
        })?);
    }
    Ok(out)
}

/// Examples of `size` ones in memory.
struct Ones {
    dtype: DType,
    size: usize,
}

impl Dataset for Ones {
    fn len(&self) -> usize {
        1024
    }
    fn fields(&self) -> Vec<Field> {
        vec![Field { dtype: self.dtype, shape: vec![self.size] }]
    }
    fn read(&self, _: usize, parts: &mut [Part]) -> TensorResult<()> {
        match parts {
            [Part::U8(p)] => p.fill(1),
            [Part::F32(p)] => p.fill(1.0),
            _ => return Err(TensorError::Internal("one field of bytes or floats".into())),
        }
        Ok(())
    }
}

/// Batches of 64 examples, read ahead by a thread, against one copy of as many bytes to the device.
fn loaders(r: &mut Runner<'_>, category: &'static str) -> TensorResult<Vec<Record>> {
    const BATCH: usize = 64;
    const SIZE: usize = 3 * 64 * 64;
    let device = r.device.clone();
    let mut out = Vec::new();
    for dtype in [DType::U8, DType::F32] {
        let n = BATCH * SIZE;
        let options = LoaderOptions { batch: BATCH, order: Order::Shuffled, ..LoaderOptions::default() };
        let loader = RefCell::new(DataLoader::new(Ones { dtype, size: SIZE }, options, &device)?);
        let host = Arc::new(if dtype == DType::U8 { vec![1u8; n] } else { bytemuck::cast_slice(&vec![1f32; n]).to_vec() });
        type Run<'a> = Box<dyn Fn(usize) -> TensorResult<Outcome> + 'a>;
        let runs: [(&str, Run); 2] = [
            ("Batch", Box::new(|_| Ok(loader.borrow_mut().next_batch()?.swap_remove(0).into()))),
            (
                "Copy of its bytes",
                Box::new(|_| {
                    let copy = Tensor::from_bytes_in(
                        Bytes::Owned(Arc::new(host.to_vec())),
                        dtype,
                        &[BATCH, SIZE],
                        &device,
                        device.storage_mode(),
                    )?;
                    Ok(copy.into())
                }),
            ),
        ];
        for (operation, run) in runs {
            let work = Work { variants: 1, run, expect: vec![1.0], tolerance: 1e-6 };
            let (size, bytes) = (format!("{BATCH}x{SIZE} {dtype}"), (n * dtype.block_bytes()) as u64);
            let operation = operation.to_string();
            out.push(r.record(Case { suite: "metal", category, operation, size, bytes, operations: 0, traffic: Traffic::Upload, work })?);
        }
    }
    Ok(out)
}
