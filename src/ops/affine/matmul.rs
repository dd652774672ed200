//! Products with affinely quantized weights, which are decoded on their way into the product.

use super::decode;
use super::gpu;
use super::weights::AffineWeights;
use crate::backends::cpu::gemm::{Matrix, MatrixMut, gemm};
use crate::backends::cpu::operand::{slice, values};
use crate::backends::cpu::{dot, path, share};
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::layout::Layout;
use crate::plan::{AdapterInfo, Kernel, Step, Task, Value, Wgsl};
use crate::quant::Bits;
use crate::shape::Shape;
use crate::tensor::{Grads, Key, Lowered, Meta, Op, Tensor, Vjp};
use std::sync::Arc;

/// x `[m, k]`, integers `[n, row_bytes]`, scales and zero points to `[m, n]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AffineMatMulKernel(pub AffineWeights);

/// Rows of weights that are decoded together, for a few rows of x and for many.
const PANEL_ROWS: [usize; 2] = [16, 64];
/// Rows of x that are multiplied with a panel at a time.
const SLAB_ROWS: usize = 256;
/// Elements of x that are copied at a time.
const COPY_ELEMENTS: usize = 8192;

impl AffineMatMulKernel {
    /// Decodes rows `first..first + rows` of the weights.
    fn panel(&self, task: &dyn Task, first: usize, rows: usize, buffers: &mut PanelBuffers, panel: &mut [f32]) {
        let AffineWeights { k, row_bytes, group, row_groups, bits, .. } = self.0;
        let own_groups = k.div_ceil(group);
        for (r, out) in (first..first + rows).zip(panel.chunks_exact_mut(k)) {
            // What all rows share is loaded once.
            if row_groups > 0 || r == first {
                task.load(2, r * row_groups, f32::slice_mut(&mut buffers.scale[..own_groups]));
                task.load(3, r * row_groups, i32::slice_mut(&mut buffers.zero[..own_groups]));
            }
            task.load(1, r * row_bytes, i32::slice_mut(&mut buffers.integers[..row_bytes]));
            let groups = out.chunks_mut(group).zip(buffers.scale.iter().zip(&*buffers.zero));
            for (g, (out, (&scale, &zero))) in groups.enumerate() {
                match bits {
                    Bits::Eight => {
                        let q = &buffers.integers[g * group..][..out.len()];
                        out.iter_mut().zip(q).for_each(|(o, &q)| *o = (q - zero) as f32 * scale);
                    }
                    Bits::Four => {
                        for (i, o) in out.iter_mut().enumerate() {
                            let at = g * group + i;
                            *o = (decode::nibble(buffers.integers[at / 2], at % 2) - zero) as f32 * scale;
                        }
                    }
                }
            }
        }
    }
}

/// A thread's scratch for rows of weights.
struct PanelBuffers<'a> {
    integers: &'a mut [i32],
    scale: &'a mut [f32],
    zero: &'a mut [i32],
}

impl Kernel for AffineMatMulKernel {
    fn cpu(&self, task: &dyn Task) {
        let AffineWeights { n, k, row_bytes, group, .. } = self.0;
        let m = task.step().loads[0].shape[0];
        let x = match slice::<f32>(task, 0) {
            Some(x) => x,
            None => {
                let count = m * k;
                let copy = task.shared(count * size_of::<f32>()).cast::<f32>();
                for start in share(count, COPY_ELEMENTS, task.thread(), task.threads()).step_by(COPY_ELEMENTS) {
                    // SAFETY: there is room for all elements, and each piece is written by one thread.
                    let piece = unsafe { std::slice::from_raw_parts_mut(copy.add(start), COPY_ELEMENTS.min(count - start)) };
                    task.load(0, start, f32::slice_mut(piece));
                }
                task.barrier();
                // SAFETY: written before the barrier, and not any more.
                unsafe { std::slice::from_raw_parts(copy, count) }
            }
        };
        let few = m <= dot::MAX_ROWS;
        let height = PANEL_ROWS[usize::from(!few)].min(n);
        let own_groups = k.div_ceil(group);
        let mut buffers =
            PanelBuffers { integers: values(task, row_bytes), scale: values(task, own_groups), zero: values(task, own_groups) };
        let panel = values::<f32>(task, height * k);
        let results = values::<f32>(task, SLAB_ROWS.min(m) * height);
        for p in share(n.div_ceil(height), 1, task.thread(), task.threads()) {
            let first = p * height;
            let rows = height.min(n - first);
            self.panel(task, first, rows, &mut buffers, &mut panel[..rows * k]);
            for m0 in (0..m).step_by(SLAB_ROWS) {
                let slab = SLAB_ROWS.min(m - m0);
                let y = &mut results[..slab * rows];
                if few {
                    let panel = bytemuck::cast_slice(&panel[..rows * k]);
                    for (x, y) in x.chunks_exact(k).zip(y.chunks_exact_mut(rows)) {
                        dot::gemv(path::current(), DType::F32, panel, k * size_of::<f32>(), x, y);
                    }
                } else {
                    let left = Matrix { ptr: x[m0 * k..].as_ptr(), row: k as isize, col: 1 };
                    let right = Matrix { ptr: panel.as_ptr(), row: 1, col: k as isize };
                    // SAFETY: the matrices lie in slices of these sizes, and the results are this thread's.
                    unsafe { gemm([slab, rows, k], left, right, MatrixMut::new(y.as_mut_ptr(), rows), 1.0) };
                }
                for (i, row) in y.chunks_exact_mut(rows).enumerate() {
                    task.store(0, (m0 + i) * n + first, f32::slice_mut(row));
                }
            }
        }
    }
    fn ops(&self, step: &Step) -> u64 {
        2 * (step.loads[0].shape[0] * self.0.n * self.0.k) as u64
    }
    fn wgsl(&self, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
        gpu::matmul(&self.0, step, adapter)
    }
}

/// The product of x `[…, k]` with the transpose of quantized weights.
pub(super) struct AffineMatMul(pub AffineWeights);

impl Op for AffineMatMul {
    fn name(&self) -> &'static str {
        "matmul_quantized"
    }
    fn key(&self, key: &mut Key) {
        let w = &self.0;
        key.word(w.bits as u64).word(w.group as u64).word(w.row_groups as u64).word(w.row_bytes as u64);
    }
    fn define(&self, _: &[Tensor]) -> Option<TensorResult<Tensor>> {
        None
    }
    fn lower(&self, inputs: &[Meta], outputs: &[Meta]) -> Lowered {
        let w = self.0;
        let m = inputs[0].shape.count() / w.k.max(1);
        let shapes = [&[m, w.k][..], &[w.n, w.row_bytes], &[inputs[2].shape.count()], &[inputs[3].shape.count()]].map(Shape::of);
        let loads = inputs.iter().zip(shapes).enumerate().map(|(k, (i, shape))| (k, Layout::contiguous(i.shape), shape)).collect();
        let stores = vec![(0, Layout::contiguous(outputs[0].shape), Shape::of(&[m, w.n]))];
        Lowered::Kernel { kernel: Arc::new(AffineMatMulKernel(w)), loads, stores }
    }
    fn grad(&self, v: &Vjp) -> Option<TensorResult<Grads>> {
        let run = || {
            let w = decode::weights(&self.0, &v.inputs[1], &v.inputs[2], &v.inputs[3])?;
            Ok(vec![Some(v.grad().matmul(&w.cast(v.grad().dtype())?)?), None, None, None])
        };
        Some(run())
    }
}
