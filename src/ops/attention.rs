//! Scaled dot-product attention: softmax(q·kᵀ·scale + mask)·v for each head, without storing the scores.

use crate::error::{TensorError, TensorResult};
use crate::layout::Layout;
use crate::shape::Shape;
use crate::tensor::{Key, Lowered, Meta, Op, Tensor};
use std::panic::Location;
use std::sync::Arc;
use crate::backends::cpu::gemm::{Matrix, gemm};
use crate::backends::cpu::operand::{strided, values};
use crate::backends::cpu::{share, vector::Real};
use crate::dtype::DType;
use crate::plan::{AdapterInfo, Kernel, Step, Task, Wgsl};

/// q `[B,H,T,D]`, k `[B,Hkv,S,D]`, v `[B,Hkv,S,Dv]` and an additive mask `[B,H,T,S]` where there is one, to `[B,H,T,Dv]`.
/// Parameter 0 is the number of valid keys; query t stands at position `valid − T + t`.
#[derive(Clone, Debug)]
pub struct AttentionKernel {
    /// Whether a query sees no key after its own position.
    pub causal: bool,
    /// What scores are multiplied with.
    pub scale: f32,
    /// How many keys up to its own position a query sees; 0 for all.
    pub window: u32,
    /// Whether there is a mask.
    pub mask: bool,
}

/// Queries that are taken together.
const QUERIES: usize = 32;
/// Keys that are taken together.
const KEYS: usize = 256;

impl AttentionKernel {
    fn run<T: Real>(&self, task: &dyn Task) {
        let step = task.step();
        let (q, k, v) = (step.loads[0].shape, step.loads[1].shape, step.loads[2].shape);
        let (heads, t, d) = (q[1], q[2], q[3]);
        let (kv_heads, s, dv) = (k[1], k[2], v[3]);
        let valid = (task.param(0).max(0.0) as usize).min(s);
        let share_of = heads / kv_heads.max(1);
        let blocks = t.div_ceil(QUERIES);
        let range = share(q[0] * heads * blocks, 1, task.thread(), task.threads());
        if range.is_empty() {
            return;
        }
        let rows = QUERIES.min(t);
        let keys = KEYS.min(s.max(1));
        let queries = values::<T>(task, rows * d);
        let scores = values::<T>(task, rows * keys);
        let sums = values::<T>(task, rows * dv);
        let (key_room, value_room) = (values::<T>(task, keys * d), values::<T>(task, keys * dv));
        let masks = values::<T>(task, if self.mask { keys } else { 0 });
        let (key_memory, value_memory) = (strided::<T>(task, 1), strided::<T>(task, 2));
        let mut state = [(T::LOWEST, T::ZERO); QUERIES];
        for item in range {
            let (head, block) = (item / blocks, item % blocks);
            let (batch, h) = (head / heads, head % heads);
            let kv = batch * kv_heads + h / share_of.max(1);
            let (t0, n) = (block * QUERIES, QUERIES.min(t - block * QUERIES));
            task.load(0, (head * t + t0) * d, T::lane(&mut queries[..n * d]));
            // Positions of the block's queries; a query may stand before the first key.
            let position = |i: usize| valid as isize - t as isize + (t0 + i) as isize;
            let end_of = |i: usize| if self.causal { (position(i) + 1).clamp(0, valid as isize) as usize } else { valid };
            let start_of =
                |i: usize| if self.window > 0 { (position(i) - self.window as isize + 1).clamp(0, valid as isize) as usize } else { 0 };
            let (first, end) = (start_of(0), end_of(n - 1));
            state[..n].fill((T::LOWEST, T::ZERO));
            sums[..n * dv].fill(T::ZERO);
            for s0 in (first / KEYS * KEYS..end).step_by(KEYS) {
                let from = s0.max(first);
                let len = (s0 + KEYS).min(end) - from;
                let matrix = |memory: Option<(*const T, [isize; 8])>, load: usize, width: usize, room: &mut [T]| match memory {
                    Some((ptr, st)) => {
                        let at = batch as isize * st[0] + (kv % kv_heads) as isize * st[1] + from as isize * st[2];
                        Matrix { ptr: ptr.wrapping_offset(at), row: st[2], col: st[3] }
                    }
                    None => {
                        task.load(load, (kv * s + from) * width, T::lane(&mut room[..len * width]));
                        Matrix { ptr: room.as_ptr(), row: width as isize, col: 1 }
                    }
                };
                let keys = matrix(key_memory, 1, d, key_room);
                let transposed = Matrix { ptr: keys.ptr, row: keys.col, col: keys.row };
                let query = Matrix { ptr: queries.as_ptr(), row: d as isize, col: 1 };
                let scale = T::of(self.scale as f64);
                // SAFETY: the operands lie within their buffers or the scratch made for them, and the scores in scratch.
                unsafe { products(n, len, d, query, transposed, scores.as_mut_ptr(), len as isize, scale, false) };
                for i in 0..n {
                    let row = &mut scores[i * len..(i + 1) * len];
                    // The part of this block of keys that query i sees.
                    let high = end_of(i).clamp(from, from + len) - from;
                    let low = (start_of(i).clamp(from, from + len) - from).min(high);
                    row[..low].fill(T::ZERO);
                    row[high..].fill(T::ZERO);
                    if low == high {
                        continue;
                    }
                    if self.mask {
                        task.load(3, (head * t + t0 + i) * s + from + low, T::lane(&mut masks[..high - low]));
                        T::axpy(&mut row[low..high], T::of(1.0), &masks[..high - low]);
                    }
                    let seen = &mut row[low..high];
                    let (max, sum) = state[i];
                    let block_max = T::max(seen);
                    let new = if block_max.wide().is_nan() || block_max > max { block_max } else { max };
                    if new == T::LOWEST {
                        // All of them are masked out so far.
                        seen.fill(T::ZERO);
                        continue;
                    }
                    let block_sum = T::exp_sum(seen, new);
                    let keep = T::of((max.wide() - new.wide()).exp());
                    if keep != T::of(1.0) {
                        T::scale(&mut sums[i * dv..(i + 1) * dv], keep);
                    }
                    state[i] = (new, sum * keep + block_sum);
                }
                let weights = Matrix { ptr: scores.as_ptr(), row: len as isize, col: 1 };
                let seen = matrix(value_memory, 2, dv, value_room);
                // SAFETY: as above.
                unsafe { products(n, dv, len, weights, seen, sums.as_mut_ptr(), dv as isize, T::of(1.0), true) };
            }
            for (i, row) in sums[..n * dv].chunks_exact_mut(dv).enumerate() {
                // A query that sees no key gives zeros.
                let sum = state[i].1.wide();
                T::scale(row, T::of(if sum == 0.0 { 0.0 } else { 1.0 / sum }));
            }
            task.store(0, (head * t + t0) * dv, T::lane(&mut sums[..n * dv]));
        }
    }
}

/// `gemm`, but for few rows in plain loops that have no start-up cost.
///
/// # Safety
/// As `gemm`.
#[allow(clippy::too_many_arguments)]
unsafe fn products<T: Real>(m: usize, n: usize, k: usize, a: Matrix<T>, b: Matrix<T>, out: *mut T, out_row: isize, factor: T, add: bool) {
    // SAFETY: the caller's promise.
    unsafe {
        if m > 4 || a.col != 1 || (b.row != 1 && b.col != 1) {
            return gemm(m, n, k, a, b, out, out_row, factor, add);
        }
        for i in 0..m {
            let x = std::slice::from_raw_parts(a.at(i, 0).ptr, k);
            let y = std::slice::from_raw_parts_mut(out.offset(i as isize * out_row), n);
            if b.row == 1 {
                for (j, y) in y.iter_mut().enumerate() {
                    let p = T::dot(x, std::slice::from_raw_parts(b.at(0, j).ptr, k)) * factor;
                    *y = if add { *y + p } else { p };
                }
            } else {
                if !add {
                    y.fill(T::ZERO);
                }
                for (j, &x) in x.iter().enumerate() {
                    T::axpy(y, x * factor, std::slice::from_raw_parts(b.at(j, 0).ptr, n));
                }
            }
        }
    }
}

impl Kernel for AttentionKernel {
    fn cpu(&self, task: &dyn Task) {
        match task.step().loads[0].dtype().compute() {
            DType::F64 => self.run::<f64>(task),
            _ => self.run::<f32>(task),
        }
    }
    fn ops(&self, step: &Step) -> u64 {
        let (q, k, v) = (step.loads[0].shape, step.loads[1].shape, step.loads[2].shape);
        2 * (q[0] * q[1] * q[2] * k[2] * (q[3] + v[3])) as u64
    }
    fn wgsl(&self, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
        crate::ops::gpu::attention(self.causal, self.scale, self.window, self.mask, step, adapter)
    }
}

/// Settings of [`Tensor::attention`].
#[derive(Clone, Debug)]
pub struct AttentionOptions {
    /// Factor of the scores; 1/√D when absent.
    pub scale: Option<f64>,
    /// Whether a query sees only keys up to its own position.
    pub causal: bool,
    /// Keys that are valid, the rest is ignored; all when absent. A run-time parameter. The last query stands at position `kv_len - 1`.
    pub kv_len: Option<usize>,
    /// A query sees only this many latest positions (with `causal`); all when absent.
    pub window: Option<usize>,
}
impl Default for AttentionOptions {
    fn default() -> Self {
        AttentionOptions { scale: None, causal: true, kv_len: None, window: None }
    }
}

/// Scaled dot-product attention.
struct Attention {
    causal: bool,
    scale: f32,
    window: u32,
    mask: bool,
}

impl Op for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }
    fn key(&self, key: &mut Key) {
        key.word(self.scale.to_bits() as u64 | (self.causal as u64) << 32 | (self.mask as u64) << 33).word(self.window as u64);
    }
    fn define(&self, _: &[Tensor]) -> Option<TensorResult<Tensor>> {
        // Its parameter, the number of valid keys, is not among the inputs; `attention_reference` below is the definition.
        None
    }
    fn lower(&self, inputs: &[Meta], outputs: &[Meta]) -> Lowered {
        let mut loads: Vec<_> = (0..3).map(|i| (i, Layout::contiguous(inputs[i].shape), inputs[i].shape)).collect();
        if self.mask {
            let q = inputs[0].shape;
            let full = Shape::of(&[q[0], q[1], q[2], inputs[1].shape[2]]);
            loads.push((3, Layout::contiguous(inputs[3].shape).broadcast_to(full), full));
        }
        let kernel = AttentionKernel { causal: self.causal, scale: self.scale, window: self.window, mask: self.mask };
        let out = outputs[0].shape;
        Lowered::Kernel { kernel: Arc::new(kernel), loads, stores: vec![(0, Layout::contiguous(out), out)] }
    }
}

impl Tensor {
    /// `softmax(q·kᵀ·scale + mask)·v` for queries `[B,H,T,D]`, keys `[B,Hkv,S,D]` and values `[B,Hkv,S,Dv]`; `H` is a multiple of `Hkv`
    /// (grouped queries, Ainslie et al., 2023). `mask` is added to the scores and broadcasts to `[B,H,T,S]`.
    #[track_caller]
    pub fn attention(&self, k: &Tensor, v: &Tensor, mask: Option<&Tensor>, options: &AttentionOptions) -> TensorResult<Tensor> {
        let at = Location::caller();
        let (qs, ks, vs) = (self.shape(), k.shape(), v.shape());
        let fits = qs.rank() == 4 && ks.rank() == 4 && vs.rank() == 4 && qs[0] == ks[0] && ks[0] == vs[0] && ks[1] == vs[1] && ks[2] == vs[2] && qs[3] == ks[3];
        if !fits || ks[1] == 0 || qs[1] % ks[1] != 0 {
            return Err(TensorError::shape("attention", at, format!("q {qs}, k {ks}, v {vs}: want [B,H,T,D], [B,Hkv,S,D], [B,Hkv,S,Dv] with H a multiple of Hkv")));
        }
        let kv_len = options.kv_len.unwrap_or(ks[2]);
        if kv_len > ks[2] || kv_len == 0 || (options.causal && kv_len < qs[2]) {
            return Err(TensorError::shape("attention", at, format!("kv_len {kv_len} of {} keys for {} queries", ks[2], qs[2])));
        }
        let dtype = self.dtype();
        if !dtype.is_float() || dtype.is_block() || k.dtype().compute() != dtype.compute() || v.dtype().compute() != dtype.compute() {
            return Err(TensorError::dtype("attention", at, format!("q {dtype}, k {}, v {}: want floats of one kind", k.dtype(), v.dtype())));
        }
        let mut inputs: crate::tensor::Inputs = smallvec::smallvec![self.clone(), k.clone(), v.clone()];
        if let Some(m) = mask {
            let full = Shape::of(&[qs[0], qs[1], qs[2], ks[2]]);
            if full.broadcast(m.shape(), "attention", at)? != full {
                return Err(TensorError::shape("attention", at, format!("mask {} does not broadcast to {full}", m.shape())));
            }
            inputs.push(m.cast_at(dtype.compute(), at)?);
        }
        let scale = options.scale.unwrap_or(1.0 / (qs[3] as f64).sqrt()) as f32;
        let op = Attention { causal: options.causal, scale, window: options.window.unwrap_or(0) as u32, mask: mask.is_some() };
        let shape = Shape::of(&[qs[0], qs[1], qs[2], vs[3]]);
        Tensor::op1(op, inputs, smallvec::smallvec![kv_len as f64], Meta { dtype, shape }, at)
    }
}
