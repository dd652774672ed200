//! Floors of the fused operations by name: at each size for which gains are quoted, one dispatch is not slower than two.

use super::compare::Change;
use super::floor::Floor;
use super::pairs::NAMED;
use super::runner::count;
use super::{Options, Stats, measure};
use crate::device::Device;
use crate::error::{TensorError, TensorResult};

/// Turns of both ways: so many runs of each side are compared.
const ROUNDS: usize = 3;

/// A fused operation at a size: the side of its matrices, or elements.
struct Fused {
    name: &'static str,
    operation: &'static str,
    size: usize,
}

const FUSED: [Fused; 12] = [
    Fused { name: "matmul_relu_64", operation: "MatMul+ReLU", size: 64 },
    Fused { name: "matmul_relu_256", operation: "MatMul+ReLU", size: 256 },
    Fused { name: "matmul_relu_1024", operation: "MatMul+ReLU", size: 1024 },
    Fused { name: "add_relu_10k", operation: "Add+ReLU", size: 10_000 },
    Fused { name: "add_relu_100k", operation: "Add+ReLU", size: 100_000 },
    Fused { name: "add_relu_1m", operation: "Add+ReLU", size: 1_000_000 },
    Fused { name: "mul_relu_10k", operation: "Mul+ReLU", size: 10_000 },
    Fused { name: "mul_relu_100k", operation: "Mul+ReLU", size: 100_000 },
    Fused { name: "mul_relu_1m", operation: "Mul+ReLU", size: 1_000_000 },
    Fused { name: "affine_10k", operation: "Affine", size: 10_000 },
    Fused { name: "affine_100k", operation: "Affine", size: 100_000 },
    Fused { name: "affine_1m", operation: "Affine", size: 1_000_000 },
];

/// Measures the gain of each: at least 1, as the comparison of two runs judges it.
pub(super) fn fused_floors(device: &Device, options: &Options) -> TensorResult<Vec<Floor>> {
    FUSED.iter().map(|f| f.measure(device, options)).collect()
}

impl Fused {
    fn measure(&self, device: &Device, options: &Options) -> TensorResult<Floor> {
        let op = NAMED.iter().find(|op| op.name == self.operation);
        let op = op.ok_or_else(|| TensorError::Internal(format!("no operation {}", self.operation)))?;
        let (size, turns) = if options.quick { (op.sizes()[0], 1) } else { (self.size, ROUNDS) };
        let x = op.inputs(size, device)?;
        let works = [op.work(&x, false)?, op.work(&x, true)?];
        let mut runs: [Vec<Stats>; 2] = Default::default();
        for _ in 0..turns {
            for (runs, work) in runs.iter_mut().zip(&works) {
                runs.push(measure(device, work, options)?.best().clone());
            }
        }
        let change = Change::between(self.name, &runs[0], &runs[1]);
        Ok(Floor {
            name: self.name,
            what: format!("{} of {}, {}: gain of one dispatch", self.operation, device.default_float(), count(size)),
            seconds: change.after,
            value: change.before / change.after,
            unit: "times",
            bound: Some((1.0, true)),
            verdict: Some(change.verdict),
        })
    }
}
