//! The gradients of attention from the scores computed again, block by block (Dao, 2023): no tensor of all scores is stored.

pub use super::params::Part;
use super::{AttentionKernel, AttentionSizes, Keep};
use crate::backends::cpu::gemm::{Matrix, MatrixMut, gemm};
use crate::backends::cpu::operand::{strided, values};
use crate::backends::cpu::{share, vector::Real};
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::layout::Layout;
use crate::plan::{AdapterInfo, Kernel, Step, Task, Wgsl};
use crate::tensor::{Grads, Key, Lowered, Meta, Op, Tensor, Vjp};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// q `[B,H,T,D]`, k `[B,Hkv,S,D]`, v `[B,Hkv,S,Dv]`, the result's gradient `[B,H,T,Dv]`, the logarithm of each query's Σ e^score and the sum of
/// its result times its gradient `[B,H,T]`, to the gradients of q, k and v, or those that `part` says. The parameters are those of attention.
#[derive(Clone, Debug)]
pub struct AttentionGradKernel {
    /// The attention.
    pub of: AttentionKernel,
    /// What is asked for.
    pub part: Part,
}

/// Queries that are taken together.
const GRAD_QUERY_BLOCK: usize = 64;
/// Keys that are taken together.
const GRAD_KEY_BLOCK: usize = 128;

impl AttentionGradKernel {
    fn run<T: Real>(&self, task: &dyn Task) {
        let z = AttentionSizes::of(&self.of, task);
        let (queries, keys) = (matches!(self.part, Part::All | Part::Queries), matches!(self.part, Part::All | Part::Keys));
        let items = share(z.batch * z.kv_heads, 1, task.thread(), task.threads());
        if items.is_empty() {
            return;
        }
        let widths = [(z.t, z.d), (z.s, z.d), (z.s, z.dv), (z.t, z.dv)];
        let memory = [0, 1, 2, 3].map(|k| strided::<T>(task, k));
        let rooms = [0, 1, 2, 3].map(|k: usize| values::<T>(task, if memory[k].is_some() { 0 } else { widths[k].0 * widths[k].1 }));
        let (lse, delta) = (values::<T>(task, z.t), values::<T>(task, z.t));
        let (rows, cols) = (GRAD_QUERY_BLOCK.min(z.t), GRAD_KEY_BLOCK.min(z.s));
        let (p, dp) = (values::<T>(task, rows * cols), values::<T>(task, rows * cols));
        let keep = Keep::of(self.of.dropout, task);
        let factors = values::<T>(task, if keep.is_some() { cols } else { 0 });
        let dq = values::<T>(task, if queries { z.t * z.d } else { 0 });
        let (dk, dv) = (values::<T>(task, if keys { z.s * z.d } else { 0 }), values::<T>(task, if keys { z.s * z.dv } else { 0 }));
        // Head `h` of batch `b` of operand `k` as a matrix.
        let mut heads: [Matrix<T>; 4] = [Matrix { ptr: std::ptr::null(), row: 0, col: 1 }; 4];
        let point_at_head = |heads: &mut [Matrix<T>; 4], rooms: &mut [&mut [T]; 4], k: usize, b: usize, h: usize, all: usize| {
            heads[k] = match memory[k] {
                Some((ptr, st)) => Matrix { ptr: ptr.wrapping_offset(b as isize * st[0] + h as isize * st[1]), row: st[2], col: st[3] },
                None => {
                    let (n, width) = widths[k];
                    task.load(k, (b * all + h) * n * width, T::slice_mut(rooms[k]));
                    Matrix { ptr: rooms[k].as_ptr(), row: width as isize, col: 1 }
                }
            };
        };
        let mut rooms = rooms;
        let one = T::of(1.0);
        for item in items {
            let (b, kv) = (item / z.kv_heads, item % z.kv_heads);
            point_at_head(&mut heads, &mut rooms, 1, b, kv, z.kv_heads);
            point_at_head(&mut heads, &mut rooms, 2, b, kv, z.kv_heads);
            dk.fill(T::ZERO);
            dv.fill(T::ZERO);
            for h in kv * z.sharing..(kv + 1) * z.sharing {
                let head = b * z.heads + h;
                point_at_head(&mut heads, &mut rooms, 0, b, h, z.heads);
                point_at_head(&mut heads, &mut rooms, 3, b, h, z.heads);
                task.load(4, head * z.t, T::slice_mut(lse));
                task.load(5, head * z.t, T::slice_mut(delta));
                dq.fill(T::ZERO);
                let [q, k, v, g] = heads;
                for t0 in (0..z.t).step_by(GRAD_QUERY_BLOCK) {
                    let n = GRAD_QUERY_BLOCK.min(z.t - t0);
                    let (first, end) = (z.seen(t0).start, z.seen(t0 + n - 1).end);
                    for from in (first..end).step_by(GRAD_KEY_BLOCK) {
                        let len = GRAD_KEY_BLOCK.min(end - from);
                        let (q, k, v, g) = (q.at(t0, 0), k.at(from, 0), v.at(from, 0), g.at(t0, 0));
                        let transposed = |m: Matrix<T>| Matrix { ptr: m.ptr, row: m.col, col: m.row };
                        let wide = len as isize;
                        // SAFETY: operands lie within their buffers or the scratch made for them; results are this thread's scratch.
                        unsafe {
                            gemm([n, len, z.d], q, transposed(k), MatrixMut::new(p.as_mut_ptr(), len), one);
                            gemm([n, len, z.dv], g, transposed(v), MatrixMut::new(dp.as_mut_ptr(), len), one);
                        }
                        for i in 0..n {
                            let seen = z.seen_of(t0 + i, from, len);
                            let (p, dp) = (&mut p[i * len..(i + 1) * len], &mut dp[i * len..(i + 1) * len]);
                            for out in [0..seen.start, seen.end..len] {
                                p[out.clone()].fill(T::ZERO);
                                dp[out].fill(T::ZERO);
                            }
                            let start = seen.start;
                            let (p, dp) = (&mut p[seen.clone()], &mut dp[seen]);
                            let keep = keep.map(|keep| (keep, (head * z.t + t0 + i) * z.s + from + start));
                            self.softmax_grad(p, dp, [lse[t0 + i], delta[t0 + i]], keep, factors);
                        }
                        let by_key = |m: &[T]| Matrix { ptr: m.as_ptr(), row: 1, col: wide };
                        // SAFETY: as above.
                        unsafe {
                            if keys {
                                gemm([len, z.dv, n], by_key(p), g, MatrixMut::sum(dv.as_mut_ptr().add(from * z.dv), z.dv), one);
                                gemm([len, z.d, n], by_key(dp), q, MatrixMut::sum(dk.as_mut_ptr().add(from * z.d), z.d), one);
                            }
                            if queries {
                                let dp = Matrix { ptr: dp.as_ptr(), row: wide, col: 1 };
                                gemm([n, z.d, len], dp, k, MatrixMut::sum(dq.as_mut_ptr().add(t0 * z.d), z.d), one);
                            }
                        }
                    }
                }
                if queries {
                    task.store(0, head * z.t * z.d, T::slice_mut(dq));
                }
            }
            if keys {
                let first = if queries { 1 } else { 0 };
                task.store(first, item * z.s * z.d, T::slice_mut(dk));
                task.store(first + 1, item * z.s * z.dv, T::slice_mut(dv));
            }
        }
    }

    /// The scores `p` and slopes `dp` of keys that one query sees, to the weights of values and the gradients of scores. `known` is the logarithm of the
    /// query's Σ e^score and the sum of its result times its gradient; with dropout, `keep` has the number of the first weight.
    fn softmax_grad<T: Real>(&self, p: &mut [T], dp: &mut [T], known: [T; 2], keep: Option<(Keep, usize)>, factors: &mut [T]) {
        let scale = T::of(self.of.scale);
        T::exp_of(p, scale, known[0]);
        let Some((keep, first)) = keep else { return T::slope(dp, p, known[1], scale) };
        let factors = &mut factors[..p.len()];
        keep.factors(first, factors);
        dp.iter_mut().zip(&*factors).for_each(|(d, f)| *d = *d * *f);
        T::slope(dp, p, known[1], scale);
        p.iter_mut().zip(&*factors).for_each(|(p, f)| *p = *p * *f);
    }
}

impl Kernel for AttentionGradKernel {
    fn cpu(&self, task: &dyn Task) {
        match task.step().loads[0].dtype().compute() {
            DType::F64 => self.run::<f64>(task),
            _ => self.run::<f32>(task),
        }
    }
    fn ops(&self, step: &Step) -> u64 {
        let (q, k, v) = (step.loads[0].shape, step.loads[1].shape, step.loads[2].shape);
        2 * (q[0] * q[1] * q[2] * k[2] * (3 * q[3] + 2 * v[3])) as u64
    }
    fn wgsl(&self, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
        super::grad_gpu::attention_grad(&self.of, self.part, step, adapter)
    }
}

/// Gradients of attention.
struct AttentionGrad(AttentionGradKernel);

impl Op for AttentionGrad {
    fn name(&self) -> &'static str {
        match self.0.part {
            Part::All => "attention_grad",
            Part::Queries => "attention_grad_q",
            Part::Keys => "attention_grad_kv",
        }
    }
    fn key(&self, key: &mut Key) {
        let a = &self.0.of;
        key.word(a.scale.to_bits()).word(a.causal as u64 | (a.window as u64) << 2).word(a.dropout.to_bits());
    }
    fn define(&self, _: &[Tensor]) -> Option<TensorResult<Tensor>> {
        // Several results, and a parameter; `Attention::gradient` is the definition.
        None
    }
    fn lower(&self, inputs: &[Meta], outputs: &[Meta]) -> Lowered {
        let flat = |m: &Meta| (Layout::contiguous(m.shape), m.shape);
        let loads = inputs.iter().enumerate().map(|(i, m)| (i, flat(m).0, m.shape)).collect();
        let stores = outputs.iter().enumerate().map(|(i, m)| (i, flat(m).0, m.shape)).collect();
        Lowered::Kernel { kernel: Arc::new(self.0.clone()), loads, stores }
    }
}

/// The gradients of queries, keys and values.
pub(super) fn gradients(of: &AttentionKernel, v: &Vjp) -> TensorResult<Grads> {
    let (q, k, value) = (&v.inputs[0], &v.inputs[1], &v.inputs[2]);
    let g = v.grad().cast(v.outputs[0].dtype())?;
    let wide = v.outputs[1].dtype();
    let delta = g.cast(wide)?.mul(&v.outputs[0].cast(wide)?)?.sum(&[-1], false)?;
    let inputs: SmallVec<[Tensor; 3]> = smallvec![q.clone(), k.clone(), value.clone(), g, v.outputs[1].clone(), delta];
    let params: SmallVec<[f64; 2]> = v.params.into();
    let run = |part: Part, metas: SmallVec<[Meta; 1]>| {
        Tensor::op(Arc::new(AttentionGrad(AttentionGradKernel { of: of.clone(), part })), inputs.clone(), params.clone(), metas, q.node.at)
    };
    let mut grads = vec![None; v.inputs.len()];
    let mut give = |from: usize, list: Vec<Tensor>| {
        for (i, t) in list.into_iter().enumerate() {
            grads[from + i] = Some(t);
        }
    };
    if q.device().capabilities().joint_gradients {
        give(0, run(Part::All, smallvec![q.meta(), k.meta(), value.meta()])?);
        return Ok(grads);
    }
    // Sums over keys for the queries, and over queries for the keys: a kernel each.
    if v.wants(0) {
        give(0, run(Part::Queries, smallvec![q.meta()])?);
    }
    if v.wants(1) || v.wants(2) {
        give(1, run(Part::Keys, smallvec![k.meta(), value.meta()])?);
    }
    Ok(grads)
}
