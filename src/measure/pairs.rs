//! Rows that come in pairs: fused and unfused operations, f16 and f32, independent and dependent work, long and short downloads.

use super::downloads::download_work;
use super::limits::{random, variants};
use super::runner::{Case, Runner, Traffic, count, first_of_product};
use super::{Outcome, Record, Work, first};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::eval::{eval_all, without_fusion};
use crate::ops::Activation;
use crate::tensor::Tensor;

/// One of the fused operations by name.
pub(super) struct Named {
    pub name: &'static str,
    operands: usize,
    run: fn(&[Tensor]) -> TensorResult<Tensor>,
    /// The same of one element of each operand; `None` for a product of matrices, of which ReLU is taken.
    of: Option<fn(&[f64]) -> f64>,
}

pub(super) const NAMED: [Named; 4] = [
    Named { name: "MatMul+ReLU", operands: 2, run: |x| x[0].matmul_with_activation(&x[1], Activation::ReLU), of: None },
    Named { name: "Add+ReLU", operands: 2, run: |x| x[0].fused_add_relu(&x[1]), of: Some(|x| (x[0] + x[1]).max(0.0)) },
    Named { name: "Mul+ReLU", operands: 2, run: |x| x[0].fused_mul_relu(&x[1]), of: Some(|x| (x[0] * x[1]).max(0.0)) },
    Named { name: "Affine", operands: 3, run: |x| x[0].fused_affine(&x[1], &x[2]), of: Some(|x| x[0] * x[1] + x[2]) },
];

impl Named {
    /// The sizes for which gains are often quoted: sides of matrices, or elements.
    pub fn sizes(&self) -> [usize; 3] {
        if self.of.is_none() { [64, 256, 1024] } else { [10_000, 100_000, 1_000_000] }
    }

    /// Inputs of this size that take turns.
    pub fn inputs(&self, n: usize, device: &Device) -> TensorResult<Vec<Vec<Tensor>>> {
        let shape = if self.of.is_none() { vec![n, n] } else { vec![n] };
        operands(device, self.operands, &shape, device.default_float())
    }

    /// The operation on these inputs in one dispatch, or in one for each of its parts.
    pub fn work<'x>(&self, x: &'x [Vec<Tensor>], fused: bool) -> TensorResult<Work<'x>> {
        let (run, of) = (self.run, self.of);
        let first_of = |x: &Vec<Tensor>| match of {
            Some(of) => Ok(of(&x.iter().map(first).collect::<TensorResult<Vec<_>>>()?)),
            None => Ok(first_of_product(&x[0], &x[1])?.max(0.0)),
        };
        let expect = x.iter().map(first_of).collect::<TensorResult<_>>()?;
        let tolerance = if of.is_none() { 5e-3 } else { 2e-3 };
        Ok(Work { variants: x.len(), run: Box::new(move |v| fused_or_not(run(&x[v])?, fused)), expect, tolerance })
    }
}

/// The name of a row.
fn name(operation: &str, fused: bool) -> String {
    format!("{operation}, {}", if fused { "fused" } else { "TL_NO_FUSION" })
}

/// `y`, evaluated without fusion unless `fused`.
fn fused_or_not(y: Tensor, fused: bool) -> TensorResult<Outcome> {
    if !fused {
        without_fusion(|| y.eval().map(drop))?;
    }
    Ok(y.into())
}

/// Some inputs of an operation with `operands` operands of this shape each; they take turns.
fn operands(device: &Device, operands: usize, shape: &[usize], dtype: DType) -> TensorResult<Vec<Vec<Tensor>>> {
    let bytes = (operands * shape.iter().product::<usize>() * dtype.block_bytes()) as u64;
    let one = |seed| random(shape, dtype, seed, device);
    (0..variants(bytes) as u64).map(|v| (0..operands as u64).map(|k| one(100 * k + v)).collect()).collect()
}

/// The four fused operations at the sizes for which gains are often quoted.
pub(super) fn fused_by_name(r: &mut Runner<'_>, category: &'static str) -> TensorResult<Vec<Record>> {
    let dtype = r.device.default_float();
    let mut out = Vec::new();
    for op in &NAMED {
        for n in op.sizes() {
            for fused in [true, false] {
                let x = op.inputs(n, &r.device)?;
                let work = op.work(&x, fused)?;
                let (elements, operations, size, traffic) = match op.of {
                    None => (n * n, 2 * n * n * n + n * n, format!("{n}x{n}"), Traffic::Product(dtype)),
                    Some(_) => (n, 2 * n, count(n), Traffic::Copy),
                };
                let bytes = ((op.operands + 1) * elements * dtype.block_bytes()) as u64;
                let (operation, operations) = (name(op.name, fused), operations as u64);
                out.push(r.record(Case { suite: "metal", category, operation, size, bytes, operations, traffic, work })?);
            }
        }
    }
    Ok(out)
}

/// Elementwise work and a product in f16 and in f32.
pub(super) fn halves(r: &mut Runner<'_>, category: &'static str) -> TensorResult<Vec<Record>> {
    const SIDE: usize = 1024;
    let mut out = Vec::new();
    for dtype in [DType::F16, DType::F32] {
        for n in [1_000_000, 16_000_000] {
            let x = operands(&r.device, 2, &[n], dtype)?;
            let expect = x.iter().map(|x| Ok(first(&x[0])? * first(&x[1])?)).collect::<TensorResult<_>>()?;
            let work = Work { variants: x.len(), run: Box::new(|v| Ok(x[v][0].mul(&x[v][1])?.into())), expect, tolerance: 2e-3 };
            let (bytes, operations) = ((3 * n * dtype.block_bytes()) as u64, n as u64);
            let (operation, size) = (format!("Mul in {dtype}"), count(n));
            out.push(r.record(Case { suite: "metal", category, operation, size, bytes, operations, traffic: Traffic::Copy, work })?);
        }
        let x = operands(&r.device, 2, &[SIDE, SIDE], dtype)?;
        let expect = x.iter().map(|x| first_of_product(&x[0], &x[1])).collect::<TensorResult<_>>()?;
        let work = Work { variants: x.len(), run: Box::new(|v| Ok(x[v][0].matmul(&x[v][1])?.into())), expect, tolerance: 5e-3 };
        let (bytes, operations) = ((3 * SIDE * SIDE * dtype.block_bytes()) as u64, 2 * (SIDE * SIDE * SIDE) as u64);
        let (operation, size) = (format!("MatMul in {dtype}"), format!("{SIDE}x{SIDE}"));
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

/// Products of a matrix and a vector in a row of [`independent`].
const GEMVS: usize = 16;

/// Sixteen products of a matrix and a vector in one evaluation: each vector an input, or the product before it. A GPU may run the first
/// kind side by side.
pub(super) fn independent(r: &mut Runner<'_>, category: &'static str) -> TensorResult<Vec<Record>> {
    const SIDE: usize = 512;
    let (dtype, device) = (r.device.default_float(), r.device.clone());
    // Of variance 1 / SIDE, so that products neither grow nor vanish.
    let scale = (12.0 / SIDE as f64).sqrt();
    let matrix = |seed| {
        let w = random(&[SIDE, SIDE], DType::F32, seed, &device)?.mul(scale)?.cast(dtype)?;
        w.eval()?;
        Ok(w)
    };
    let w = (0..GEMVS as u64).map(|k| matrix(500 + k)).collect::<TensorResult<Vec<Tensor>>>()?;
    let host = w.iter().map(Tensor::to_vec).collect::<TensorResult<Vec<_>>>()?;
    let column = |x: &[f64], w: &[f32], j: usize| x.iter().enumerate().map(|(k, x)| x * f64::from(w[k * SIDE + j])).sum::<f64>();
    let x = operands(&device, GEMVS, &[1, SIDE], dtype)?;
    let vector = |x: &Tensor| Ok(x.to_vec()?.into_iter().map(f64::from).collect::<Vec<f64>>());
    let mut out = Vec::new();
    for dependent in [false, true] {
        let last = |x: &Vec<Tensor>| -> TensorResult<f64> {
            if !dependent {
                return Ok(column(&vector(&x[GEMVS - 1])?, &host[GEMVS - 1], 0));
            }
            let product = |x: Vec<f64>, w: &Vec<f32>| (0..SIDE).map(|j| column(&x, w, j)).collect();
            Ok(host.iter().fold(vector(&x[0])?, product)[0])
        };
        let expect = x.iter().map(last).collect::<TensorResult<_>>()?;
        let run = Box::new(|v: usize| -> TensorResult<Outcome> {
            if dependent {
                return Ok(w.iter().try_fold(x[v][0].clone(), |x, w| x.matmul(w))?.into());
            }
            let mut products = x[v].iter().zip(&w).map(|(x, w)| x.matmul(w)).collect::<TensorResult<Vec<_>>>()?;
            eval_all(&products.iter().collect::<Vec<_>>())?;
            Ok(products.swap_remove(GEMVS - 1).into())
        });
        let work = Work { variants: x.len(), run, expect, tolerance: 1e-2 };
        let bytes = (GEMVS * (SIDE * SIDE + 2 * SIDE) * dtype.block_bytes()) as u64;
        let (operation, operations) = (if dependent { "16 GEMVs, dependent" } else { "16 GEMVs, independent" }, GEMVS * 2 * SIDE * SIDE);
        let (operation, size, operations) = (operation.to_string(), format!("{SIDE}x{SIDE}"), operations as u64);
        out.push(r.record(Case { suite: "metal", category, operation, size, bytes, operations, traffic: Traffic::Read, work })?);
    }
    Ok(out)
}

/// Downloads from the device's own memory, through staging memory where the host does not see it: of one chunk, and of several.
pub(super) fn large_downloads(r: &mut Runner<'_>, category: &'static str) -> TensorResult<Vec<Record>> {
    let mut out = Vec::new();
    for bytes in [16 << 20, 128 << 20, 256 << 20] {
        // A tensor of this size may not fit here.
        let Some(work) = download_work(&r.device, bytes)? else { break };
        let (operation, size) = ("Device→Host, its own memory".to_string(), format!("{} MiB", bytes >> 20));
        let bytes = bytes as u64;
        out.push(r.record(Case { suite: "metal", category, operation, size, bytes, operations: 0, traffic: Traffic::Download, work })?);
    }
    Ok(out)
}
