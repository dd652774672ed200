//! Linear attention as a recurrence: a matrix of state for each head, which every token decays, writes to and reads.
//!
//! What the token mixers of many models come to: the gated delta rule (Yang et al., 2025), Mamba-2's state space duality (Dao & Gu, 2024), linear
//! attention with decay. The tokens are gone through one after the other.

pub(crate) mod gpu;
#[cfg(test)]
mod tests;

use crate::backends::cpu::operand::values;
use crate::backends::cpu::share;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::plan::{AdapterInfo, Kernel, Step, Task, Value, Wgsl};
use crate::shape::Shape;
use crate::tensor::{Key, Lowered, Meta, Op, Tensor};
use std::panic::Location;
use std::sync::Arc;

/// What a scan goes over, each f32 or rounded to less: of B sequences, T tokens, H heads of values with P columns, and G heads of keys (H is a
/// multiple of G) with N rows of state.
pub(crate) struct LinearScan<'t> {
    /// What reads the state, `[B,T,G,N]`.
    pub q: &'t Tensor,
    /// Where it is written, `[B,T,G,N]`.
    pub k: &'t Tensor,
    /// What is written, `[B,T,H,P]`.
    pub v: &'t Tensor,
    /// What the state is multiplied with before that, `[B,T,H]`, or of each row, `[B,T,H,N]`.
    pub decay: &'t Tensor,
    /// The delta rule's rate of learning, `[B,T,H]`: what the key finds is subtracted from v, and the difference written β times.
    pub beta: Option<&'t Tensor>,
    /// The state before the first token, `[B,H,N,P]` in f32.
    pub state: &'t Tensor,
}

/// The sizes of a scan.
#[derive(Clone, Copy)]
struct ScanSizes {
    batch: usize,
    tokens: usize,
    heads: usize,
    key_heads: usize,
    rows: usize,
    columns: usize,
}

impl ScanSizes {
    /// Of a step's loads, in the order q, k, v, decay, state, β.
    fn of(step: &Step) -> ScanSizes {
        let (k, v) = (&step.loads[1].shape, &step.loads[2].shape);
        ScanSizes { batch: v[0], tokens: v[1], heads: v[2], key_heads: k[2], rows: k[3], columns: v[3] }
    }
}

/// Goes through the tokens; the results are y `[B,T,H,P]` and the state after the last token.
#[derive(Clone, Copy, Debug)]
pub struct LinearScanKernel {
    /// Whether there is β.
    pub delta: bool,
    /// Whether each row of the state has a decay of its own.
    pub by_row: bool,
}

/// The buffers of one thread: rows of the state, and what a token brings.
struct ScanBuffers<'r> {
    state: &'r mut [f32],
    q: &'r mut [f32],
    k: &'r mut [f32],
    decay: &'r mut [f32],
    v: &'r mut [f32],
    y: &'r mut [f32],
}

impl LinearScanKernel {
    /// One token of one head, for some columns: v becomes what is written, y what is read.
    fn step(self, r: &mut ScanBuffers<'_>, beta: f32) {
        let width = r.v.len();
        let decay = |n: usize| r.decay[if self.by_row { n } else { 0 }];
        if self.delta {
            // y is where the sum of what the key finds goes meanwhile.
            r.y.fill(0.0);
            for (n, row) in r.state.chunks_exact_mut(width).enumerate() {
                let (a, k) = (decay(n), r.k[n]);
                for (s, found) in row.iter_mut().zip(r.y.iter_mut()) {
                    *s *= a;
                    *found += k * *s;
                }
            }
            r.v.iter_mut().zip(r.y.iter()).for_each(|(v, found)| *v = beta * (*v - found));
        }
        r.y.fill(0.0);
        for (n, row) in r.state.chunks_exact_mut(width).enumerate() {
            let (a, k, q) = (if self.delta { 1.0 } else { decay(n) }, r.k[n], r.q[n]);
            for ((s, v), y) in row.iter_mut().zip(r.v.iter()).zip(r.y.iter_mut()) {
                *s = a * *s + k * v;
                *y += q * *s;
            }
        }
    }
}

impl Kernel for LinearScanKernel {
    fn cpu(&self, task: &dyn Task) {
        let z = ScanSizes::of(task.step());
        let heads = z.batch * z.heads;
        // Heads are shared out, or columns of them where there are too few.
        let blocks = task.threads().div_ceil(heads.max(1)).min(z.columns).max(1);
        let most = z.columns.div_ceil(blocks);
        let decays = if self.by_row { z.rows } else { 1 };
        let [state, q, k, decay, v, y] = [z.rows * most, z.rows, z.rows, decays, most, most].map(|n| values::<f32>(task, n));
        for item in share(heads * blocks, 1, task.thread(), task.threads()) {
            let (head, first) = (item / blocks, item % blocks * most);
            let width = most.min(z.columns.saturating_sub(first));
            if width == 0 {
                continue;
            }
            let (b, h) = (head / z.heads, head % z.heads);
            let key_head = h / (z.heads / z.key_heads);
            let at = |n: usize| (head * z.rows + n) * z.columns + first;
            let state = &mut state[..z.rows * width];
            for (n, row) in state.chunks_exact_mut(width).enumerate() {
                task.load(4, at(n), f32::slice_mut(row));
            }
            let mut buffers = ScanBuffers { state, q, k, decay, v: &mut v[..width], y: &mut y[..width] };
            for t in b * z.tokens..(b + 1) * z.tokens {
                let (key, value) = ((t * z.key_heads + key_head) * z.rows, t * z.heads + h);
                task.load(0, key, f32::slice_mut(buffers.q));
                task.load(1, key, f32::slice_mut(buffers.k));
                task.load(2, value * z.columns + first, f32::slice_mut(buffers.v));
                task.load(3, value * decays, f32::slice_mut(buffers.decay));
                let mut beta = [1.0f32];
                if self.delta {
                    task.load(5, value, f32::slice_mut(&mut beta));
                }
                self.step(&mut buffers, beta[0]);
                task.store(0, value * z.columns + first, f32::slice_mut(buffers.y));
            }
            for (n, row) in buffers.state.chunks_exact_mut(width).enumerate() {
                task.store(1, at(n), f32::slice_mut(row));
            }
        }
    }
    fn ops(&self, step: &Step) -> u64 {
        let z = ScanSizes::of(step);
        let each = if self.delta { 7 } else { 5 };
        (z.batch * z.tokens * z.heads * z.rows * z.columns) as u64 * each
    }
    fn wgsl(&self, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
        gpu::linear_scan(*self, step, adapter)
    }
}

impl Op for LinearScanKernel {
    fn name(&self) -> &'static str {
        "linear_scan"
    }
    fn key(&self, key: &mut Key) {
        key.word(u64::from(self.delta) | u64::from(self.by_row) << 1);
    }
    fn define(&self, _: &[Tensor]) -> Option<TensorResult<Tensor>> {
        None
    }
    fn lower(&self, inputs: &[Meta], outputs: &[Meta]) -> Lowered {
        Lowered::Kernel { kernel: Arc::new(*self), loads: Lowered::whole(inputs), stores: Lowered::whole(outputs) }
    }
}

impl LinearScan<'_> {
    /// y `[B,T,H,P]` of v's dtype, and the state `[B,H,N,P]` after the last token. Values that gradients are asked of go through the
    /// composition of ordinary operations.
    ///
    /// # Errors
    /// [`TensorError::Shape`] where the shapes do not fit.
    #[track_caller]
    pub(crate) fn run(&self) -> TensorResult<(Tensor, Tensor)> {
        let at = Location::caller();
        let (k, v, decay) = (self.k.dims(), self.v.dims(), self.decay.dims());
        let fits = match (k, v) {
            (&[b, t, g, n], &[bv, tv, h, p]) => {
                let beta = self.beta.is_none_or(|beta| beta.dims() == [b, t, h]);
                let shared = b == bv && t == tv && g > 0 && h % g == 0 && self.q.dims() == k && beta;
                shared && (decay == [b, t, h] || decay == [b, t, h, n]) && self.state.dims() == [b, h, n, p]
            }
            _ => false,
        };
        if !fits {
            let (q, k, v, state) = (self.q.shape(), self.k.shape(), self.v.shape(), self.state.shape());
            let message = format!("queries {q}, keys {k}, values {v}, decay {}, state {state} do not fit together", self.decay.shape());
            return Err(TensorError::shape("linear_scan", at, message));
        }
        let all = || [self.q, self.k, self.v, self.decay, self.state].into_iter().chain(self.beta);
        if all().any(|t| t.is_tracked() || t.dtype() == DType::F64) {
            return self.composed();
        }
        let kernel = LinearScanKernel { delta: self.beta.is_some(), by_row: decay.len() == 4 };
        let metas = [self.v.meta(), Meta { dtype: DType::F32, shape: Shape::of(self.state.dims()) }];
        let results = Tensor::op(Arc::new(kernel), all().cloned().collect(), Default::default(), metas.into_iter().collect(), at)?;
        let [y, state] = &results[..] else { return Err(TensorError::Internal("a scan has two results".into())) };
        Ok((y.clone(), state.clone()))
    }

    /// The same of ordinary operations, token by token.
    fn composed(&self) -> TensorResult<(Tensor, Tensor)> {
        let (&[_, tokens, g, n], &[b, _, h, p]) = (self.k.dims(), self.v.dims()) else {
            return Err(TensorError::Internal("checked".into()));
        };
        // A token's rows for every head of values, `[B,H,N,1]`.
        let rows = |x: &Tensor, t: usize| -> TensorResult<Tensor> {
            let own = x.narrow(1, t, 1)?.reshape(&[b, g, 1, n, 1])?;
            own.broadcast_to(&[b, g, h / g, n, 1])?.contiguous()?.reshape(&[b, h, n, 1])
        };
        let (mut state, mut all) = (self.state.clone(), Vec::with_capacity(tokens));
        for t in 0..tokens {
            let (q, k) = (rows(self.q, t)?, rows(self.k, t)?);
            let v = self.v.narrow(1, t, 1)?.reshape(&[b, h, 1, p])?;
            let decay = self.decay.narrow(1, t, 1)?.reshape((b, h, (), 1))?;
            state = state.mul(&decay)?;
            let written = match self.beta {
                Some(beta) => v.sub(&state.mul(&k)?.sum(&[2], true)?)?.mul(&beta.narrow(1, t, 1)?.reshape(&[b, h, 1, 1])?)?,
                None => v,
            };
            state = state.add(&k.mul(&written)?)?;
            all.push(state.mul(&q)?.sum(&[2], true)?.reshape(&[b, 1, h, p])?);
        }
        Ok((Tensor::cat(&all, 1)?.cast(self.v.dtype())?, state))
    }
}
