//! What all suites share: their headings, a case with what limits it, and the record that a measurement of it gives.

use super::limits::Limits;
use super::{Environment, Options, Record, Work, first, measure};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::eval::eval_stats;
use crate::tensor::Tensor;

/// The headings, in order: the first five are those of the benchmark log.
pub const CATEGORIES: [&str; 12] = [
    "Matrix Multiplication",
    "Element-wise Operations",
    "Reduction Operations",
    "Memory Transfer Bandwidth",
    "Activation Functions",
    "Fusion",
    "Buffer Pool",
    "Batches",
    "Aligned Sizes",
    "Data Loader",
    "Half Precision",
    "Independent Work",
];

/// What limits an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Traffic {
    /// Reading and writing memory.
    Copy,
    /// The same by products of matrices of this dtype, whose rate matrix units may raise.
    Product(DType),
    /// Reading it.
    Read,
    /// The way from the host to the device.
    Upload,
    /// The way from the device to the host.
    Download,
}

/// An operation with what is known about it.
pub(super) struct Case<'a> {
    pub suite: &'a str,
    pub category: &'a str,
    pub operation: String,
    pub size: String,
    pub bytes: u64,
    pub operations: u64,
    pub traffic: Traffic,
    pub work: Work<'a>,
}

/// What a run of a suite carries along.
pub(super) struct Runner<'a> {
    pub device: Device,
    pub options: Options,
    pub limits: Limits,
    pub environment: Environment,
    pub done: &'a mut dyn FnMut(&Record),
}

impl Runner<'_> {
    pub fn record(&mut self, case: Case<'_>) -> TensorResult<Record> {
        let times = measure(&self.device, &case.work, &self.options)?;
        let transfer = matches!(case.traffic, Traffic::Upload | Traffic::Download);
        let dispatches = if transfer { 0 } else { eval_stats(&self.device).dispatches };
        let mut limit = self.limit(&case)?;
        if limit.is_some_and(|l| l > times.best().median) {
            // Faster than possible: the limit may have been measured while the machine was busy.
            match transfer {
                true => self.limits.transfer_again(case.bytes, case.traffic == Traffic::Upload)?,
                false => self.limits.again(case.bytes, case.traffic != Traffic::Read)?,
            }
            limit = self.limit(&case)?;
        }
        let record = Record {
            suite: case.suite.into(),
            category: case.category.into(),
            operation: case.operation,
            size: case.size,
            environment: self.environment.clone(),
            bytes: case.bytes,
            operations: case.operations,
            dispatches,
            batch: times.batch,
            wall: times.wall,
            gpu: times.gpu,
            limit,
        };
        (self.done)(&record);
        Ok(record)
    }

    /// Seconds that a case takes at least, where that is known.
    fn limit(&mut self, case: &Case<'_>) -> TensorResult<Option<f64>> {
        let (write, dtype) = match case.traffic {
            Traffic::Upload | Traffic::Download => return self.limits.transfer(case.bytes, case.traffic == Traffic::Upload),
            Traffic::Product(dtype) => (true, dtype),
            Traffic::Copy => (true, DType::F32),
            Traffic::Read => (false, DType::F32),
        };
        self.limits.seconds_of(case.bytes, write, case.operations, dtype).map(Some)
    }
}

/// A count as people write it: 1K, 10K, 1M, 64Mi.
pub(super) fn count(n: usize) -> String {
    match n {
        n if n >= 1 << 20 && n.is_multiple_of(1 << 20) => format!("{}Mi", n >> 20),
        n if n >= 1_000_000 && n.is_multiple_of(1_000_000) => format!("{}M", n / 1_000_000),
        n if n >= 1 << 10 && n.is_multiple_of(1 << 10) => format!("{}Ki", n >> 10),
        n if n >= 1000 && n.is_multiple_of(1000) => format!("{}K", n / 1000),
        n => n.to_string(),
    }
}

/// Scale, bias, relu, square, add, tanh, multiply, clamp.
pub(super) fn chain_of_eight(x: &Tensor) -> TensorResult<Tensor> {
    x.mul(1.5)?.add(0.25)?.relu()?.square()?.add(0.125)?.tanh()?.mul(2.0)?.clamp(Some(0.25), Some(1.5))
}
/// The same of one number.
pub(super) fn chain_of_eight_of(x: f64) -> f64 {
    let y = (x * 1.5 + 0.25).max(0.0);
    ((y * y + 0.125).tanh() * 2.0).clamp(0.25, 1.5)
}

/// What the first elements of some inputs give.
pub(super) fn firsts(inputs: &[Tensor], f: impl Fn(f64) -> f64) -> TensorResult<Vec<f64>> {
    inputs.iter().map(|x| Ok(f(first(x)?))).collect()
}

/// The first element of the product of two matrices, in f64.
pub(super) fn first_of_product(a: &Tensor, b: &Tensor) -> TensorResult<f64> {
    let (row, column) = (a.narrow(0, 0, 1)?.to_vec()?, b.narrow(1, 0, 1)?.to_vec()?);
    Ok(row.iter().zip(&column).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum())
}
