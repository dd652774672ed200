//! Products of few rows that share their left side, in one dispatch, with the normalization of it: what the compiler makes of them on a GPU.

use crate::backends::cpu::operand::values;
use crate::backends::cpu::{share, vector::Real};
use crate::plan::{AdapterInfo, FusedGemv, Kernel, Step, Task, Value, Wgsl};
use std::sync::Arc;

/// Load 0 `[1, M, K]`, normalised where that is part of it, times each of the loads `[1, N, K]` behind it, into a store for each; then the
/// weight and the bias of the normalization.
pub struct FusedGemvKernel(pub FusedGemv);

impl Kernel for FusedGemvKernel {
    fn cpu(&self, task: &dyn Task) {
        let loads = &task.step().loads;
        let (m, k, count) = (loads[0].shape[1], loads[0].shape[2], self.0.products);
        let x = values::<f32>(task, m * k);
        task.load(0, 0, f32::slice_mut(x));
        if let Some(norm) = self.0.norm {
            let weight = values::<f32>(task, if norm.weight { k } else { 0 });
            let bias = values::<f32>(task, if norm.bias { k } else { 0 });
            if norm.weight {
                task.load(count + 1, 0, f32::slice_mut(weight));
            }
            if norm.bias {
                task.load(count + 1 + norm.weight as usize, 0, f32::slice_mut(bias));
            }
            for row in x.chunks_exact_mut(k.max(1)) {
                let mean = if norm.rms { 0.0 } else { (f32::sum(row) as f64 / k as f64) as f32 };
                let variance = f32::deviation(row, mean) as f64 / k as f64;
                f32::normalize(row, mean, (1.0 / (variance + norm.eps).sqrt()) as f32, weight, bias);
            }
        }
        let row = values::<f32>(task, k);
        for p in 0..count {
            let n = loads[p + 1].shape[1];
            // A thread keeps its columns: where the next store reads what this one wrote, it wrote it itself.
            for column in share(n, 1, task.thread(), task.threads()) {
                task.load(p + 1, column * k, f32::slice_mut(row));
                for i in 0..m {
                    let mut y = [f32::dot(&x[i * k..(i + 1) * k], row)];
                    task.store(p, i * n + column, f32::slice_mut(&mut y));
                }
            }
        }
    }
    fn ops(&self, step: &Step) -> u64 {
        let left = step.loads[0].shape.count() as u64;
        let norm = if self.0.norm.is_some() { 6 * left } else { 0 };
        norm + (1..=self.0.products).map(|p| 2 * left * step.loads[p].shape[1] as u64).sum::<u64>()
    }
    fn portable(&self) -> bool {
        !self.0.vec4_store
    }
    fn wgsl(&self, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
        super::gpu::fused_gemv(step, &self.0, adapter)
    }
    fn gemv_products(&self, _: &Step) -> Option<FusedGemv> {
        Some(self.0)
    }
    fn fuse_gemv(&self, fused: FusedGemv) -> Option<Arc<dyn Kernel>> {
        Some(Arc::new(FusedGemvKernel(fused)))
    }
}
