//! Scaled dot-product attention: softmax(q·kᵀ·scale + mask)·v for each head, without storing the scores.

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
    fn wgsl(&self, _step: &Step, _adapter: &AdapterInfo) -> Option<Wgsl> {
        None
    }
}
