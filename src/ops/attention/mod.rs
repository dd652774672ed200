//! Scaled dot-product attention: softmax(q·kᵀ·scale + mask)·v for each head, without storing the scores.

mod decode_split_kv;
mod dropout;
mod flash_coop;
pub(crate) mod gpu;
pub mod grad;
pub(crate) mod grad_gpu;
pub(crate) mod paged;
mod params;
mod stored;
#[cfg(all(test, feature = "gpu"))]
mod tests;

pub use dropout::AttentionDropout;

use crate::backends::cpu::gemm::{Matrix, MatrixMut, gemm};
use crate::backends::cpu::operand::{strided, values};
use crate::backends::cpu::{columns, dot, path, share, vector::Real};
use crate::dtype::DType;
use crate::error::{At, TensorError, TensorResult};
use crate::layout::Layout;
use crate::ops::{Lit, Rhs};
use crate::plan::{AdapterInfo, Kernel, Step, Task, Value, Wgsl};
use crate::shape::Shape;
use crate::tensor::{Grads, Key, Lowered, Meta, Mode, Op, Tensor, Vjp};
use dropout::Keep;
use paged::{PAGE, Pages, place};
use smallvec::SmallVec;
use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;

/// q `[B,H,T,D]`, k `[B,Hkv,S,D]`, v `[B,Hkv,S,Dv]` and an additive mask `[B,H,T,S]` where there is one, to `[B,H,T,Dv]`.
/// Parameter 0 is the number of valid keys; query t stands at position `valid − T + t`. With dropout, parameters 1 and 2 are the number of the draw and the
/// stream's key.
#[derive(Clone, Debug)]
pub struct AttentionKernel {
    /// Whether a query sees no key after its own position.
    pub causal: bool,
    /// What scores are multiplied with.
    pub scale: f64,
    /// How many keys up to its own position a query sees; 0 for all.
    pub window: u32,
    /// Whether there is a mask.
    pub mask: bool,
    /// Whether the logarithm of each query's Σ e^score `[B,H,T]` is a second result, for the gradient.
    pub sums: bool,
    /// The probability of dropping a weight, or 0.
    pub dropout: f64,
    /// c where scores are c·tanh(score/c) before the mask (Bello et al., 2017), or 0.
    pub softcap: f64,
    /// Whether keys and values are `[pages,Hkv,64,D]`, load 3 has each text's pages `[B,P]` and load 4 its number of keys `[B]`, i32: see `paged.rs`.
    pub paged: bool,
}

/// Queries that are taken together.
const QUERY_BLOCK: usize = 32;
/// Keys that are taken together.
const KEY_BLOCK: usize = 256;
/// Queries of one key head up to which keys are streamed past them, split among threads along the keys.
const STREAM_MAX_QUERIES: usize = 16;
/// Keys of a thread's share then.
const STREAM_KEYS: usize = 64;

/// What the operands' shapes and the parameters say.
#[derive(Clone, Copy)]
pub(super) struct AttentionSizes {
    pub batch: usize,
    pub heads: usize,
    pub kv_heads: usize,
    /// Query heads that share a key head.
    pub sharing: usize,
    pub t: usize,
    pub s: usize,
    pub d: usize,
    pub dv: usize,
    /// Keys that are there.
    valid: usize,
    causal: bool,
    window: usize,
}

impl AttentionSizes {
    pub fn of(kernel: &AttentionKernel, task: &dyn Task) -> AttentionSizes {
        let loads = &task.step().loads;
        let (q, k, v) = (loads[0].shape, loads[1].shape, loads[2].shape);
        AttentionSizes {
            batch: q[0],
            heads: q[1],
            kv_heads: k[1].max(1),
            sharing: (q[1] / k[1].max(1)).max(1),
            t: q[2],
            s: k[2],
            d: q[3],
            dv: v[3],
            // Texts whose keys are in pages have a number each.
            valid: if kernel.paged { 0 } else { (task.param(0).max(0.0) as usize).min(k[2]) },
            causal: kernel.causal,
            window: kernel.window as usize,
        }
    }
    /// The same of text `batch`, which may have a number of keys of its own.
    fn of_text(&self, batch: usize, pages: Option<&Pages<'_>>) -> AttentionSizes {
        AttentionSizes { valid: pages.map_or(self.valid, |p| p.valid(batch)), ..*self }
    }
    /// The keys that query `t` sees.
    pub fn seen(&self, t: usize) -> Range<usize> {
        // A query may stand before the first key.
        let position = self.valid as isize - self.t as isize + t as isize;
        let bound = |x: isize| x.clamp(0, self.valid as isize) as usize;
        let end = if self.causal { bound(position + 1) } else { self.valid };
        let start = if self.window > 0 { bound(position - self.window as isize + 1) } else { 0 };
        start.min(end)..end
    }
    /// The keys of a block that starts at `from` which query `t` sees, counted from there.
    pub fn seen_of(&self, t: usize, from: usize, len: usize) -> Range<usize> {
        let seen = self.seen(t);
        let bound = |x: usize| x.clamp(from, from + len) - from;
        bound(seen.start)..bound(seen.end)
    }
}

/// Runs code over the first element of rows, in the type that they are stored in.
macro_rules! with_rows {
    ($rows:expr, |$ptr:ident| $run:expr) => {{
        let bytes = $rows.bytes.as_ptr();
        match $rows.dtype {
            DType::F16 => {
                let $ptr = bytes.cast::<columns::F16>();
                $run
            }
            DType::BF16 => {
                let $ptr = bytes.cast::<columns::Bf16>();
                $run
            }
            _ => {
                let $ptr = bytes.cast::<f32>();
                $run
            }
        }
    }};
}

impl AttentionKernel {
    /// Caps scores, where that is asked for.
    fn cap<T: Real>(&self, scores: &mut [T]) {
        if self.softcap > 0.0 {
            T::softcap(scores, T::of(self.softcap));
        }
    }

    /// Blocks of queries against blocks of keys, with the softmax corrected as larger scores come.
    fn blocks<T: Real>(&self, task: &dyn Task, z: &AttentionSizes) {
        let blocks = z.t.div_ceil(QUERY_BLOCK);
        let range = share(z.batch * z.heads * blocks, 1, task.thread(), task.threads());
        if range.is_empty() {
            return;
        }
        let rows = QUERY_BLOCK.min(z.t);
        let keys = KEY_BLOCK.min(z.s.max(1));
        let queries = values::<T>(task, rows * z.d);
        let scores = values::<T>(task, rows * keys);
        let sums = values::<T>(task, rows * z.dv);
        let (key_room, value_room) = (values::<T>(task, keys * z.d), values::<T>(task, keys * z.dv));
        let masks = values::<T>(task, if self.mask { keys } else { 0 });
        let (key_memory, value_memory) = (strided::<T>(task, 1), strided::<T>(task, 2));
        let keep = Keep::of(self.dropout, task);
        let pages = self.pages(task);
        let step = if self.paged { PAGE } else { KEY_BLOCK };
        let mut state = [(T::LOWEST, T::ZERO); QUERY_BLOCK];
        for item in range {
            let (head, block) = (item / blocks, item % blocks);
            let (batch, kv) = (head / z.heads, head % z.heads / z.sharing);
            let z = &z.of_text(batch, pages.as_ref());
            let (t0, n) = (block * QUERY_BLOCK, QUERY_BLOCK.min(z.t - block * QUERY_BLOCK));
            task.load(0, (head * z.t + t0) * z.d, T::slice_mut(&mut queries[..n * z.d]));
            let (first, end) = (z.seen(t0).start, z.seen(t0 + n - 1).end);
            state[..n].fill((T::LOWEST, T::ZERO));
            sums[..n * z.dv].fill(T::ZERO);
            for s0 in (first / step * step..end).step_by(step) {
                let from = s0.max(first);
                let len = (s0 + step).min(end) - from;
                let (page, row) = place(pages.as_ref(), batch, from);
                let matrix = |memory: Option<(*const T, [isize; 8])>, load: usize, width: usize, room: &mut [T]| match memory {
                    Some((ptr, st)) => {
                        let at = page as isize * st[0] + kv as isize * st[1] + row as isize * st[2];
                        Matrix { ptr: ptr.wrapping_offset(at), row: st[2], col: st[3] }
                    }
                    None => {
                        task.load(load, ((page * z.kv_heads + kv) * z.s + row) * width, T::slice_mut(&mut room[..len * width]));
                        Matrix { ptr: room.as_ptr(), row: width as isize, col: 1 }
                    }
                };
                let keys = matrix(key_memory, 1, z.d, key_room);
                let transposed = Matrix { ptr: keys.ptr, row: keys.col, col: keys.row };
                let query = Matrix { ptr: queries.as_ptr(), row: z.d as isize, col: 1 };
                let scale = T::of(self.scale);
                // SAFETY: the operands lie within their buffers or the scratch made for them, and the scores in scratch.
                unsafe { products([n, len, z.d], query, transposed, MatrixMut::new(scores.as_mut_ptr(), len), scale) };
                for i in 0..n {
                    let row = &mut scores[i * len..(i + 1) * len];
                    let seen = z.seen_of(t0 + i, from, len);
                    row[..seen.start].fill(T::ZERO);
                    row[seen.end..].fill(T::ZERO);
                    if seen.is_empty() {
                        continue;
                    }
                    self.cap(&mut row[seen.clone()]);
                    if self.mask {
                        let masks = &mut masks[..seen.len()];
                        task.load(3, (head * z.t + t0 + i) * z.s + from + seen.start, T::slice_mut(masks));
                        T::axpy(&mut row[seen.clone()], T::of(1.0), masks);
                    }
                    let (max, sum) = state[i];
                    let (new, block_sum) = online_softmax(&mut row[seen.clone()], max);
                    if new == T::LOWEST {
                        continue;
                    }
                    let shrink = T::of((max.wide() - new.wide()).exp());
                    if shrink != T::of(1.0) {
                        T::scale(&mut sums[i * z.dv..(i + 1) * z.dv], shrink);
                    }
                    state[i] = (new, sum * shrink + block_sum);
                    // What is dropped counts in the sum: the softmax comes first.
                    if let Some(keep) = keep {
                        keep.apply((head * z.t + t0 + i) * z.s + from + seen.start, &mut row[seen]);
                    }
                }
                let weights = Matrix { ptr: scores.as_ptr(), row: len as isize, col: 1 };
                let seen = matrix(value_memory, 2, z.dv, value_room);
                // SAFETY: as above.
                unsafe { products([n, z.dv, len], weights, seen, MatrixMut::sum(sums.as_mut_ptr(), z.dv), T::of(1.0)) };
            }
            if self.sums {
                let mut logs = state.map(|(max, sum)| T::of(max.wide() + sum.wide().ln()));
                task.store(1, head * z.t + t0, T::slice_mut(&mut logs[..n]));
            }
            for (i, row) in sums[..n * z.dv].chunks_exact_mut(z.dv).enumerate() {
                T::scale(row, T::of(inverse(state[i].1.wide())));
            }
            task.store(0, (head * z.t + t0) * z.dv, T::slice_mut(&mut sums[..n * z.dv]));
        }
    }

    /// Few queries, as when tokens are generated one by one: each block of keys and values is read once for all heads that share it, in
    /// the type it is stored in; partial results of the blocks are merged at the end.
    fn stream(&self, task: &dyn Task, z: &AttentionSizes) {
        let n = z.sharing * z.t;
        let pages = self.pages(task);
        let chunks_of = |z: &AttentionSizes| (z.seen(0).start / STREAM_KEYS, z.seen(z.t - 1).end.div_ceil(STREAM_KEYS));
        let count = |(first, end): (usize, usize)| end.saturating_sub(first);
        let texts = if self.paged { z.batch } else { 1 };
        let chunks = (0..texts).map(|b| count(chunks_of(&z.of_text(b, pages.as_ref())))).max().unwrap_or(0).max(1);
        // A partial result: the sums, then the largest score and the sum of weights.
        let size = z.dv + 2;
        let partials = task.shared(z.batch * z.kv_heads * chunks * n * size * 4).cast::<f32>();
        let queries = values::<f32>(task, n * z.d);
        let scores = values::<f32>(task, n * STREAM_KEYS);
        let (key_room, value_room) = (values::<f32>(task, STREAM_KEYS * z.d), values::<f32>(task, STREAM_KEYS * z.dv));
        let masks = values::<f32>(task, if self.mask { STREAM_KEYS } else { 0 });
        let (key_memory, value_memory) = (rows(task, 1), rows(task, 2));
        let items = z.batch * z.kv_heads * chunks;
        // Of texts of several lengths some have no such chunk: threads take turns.
        let (own, every) = match self.paged {
            true => (task.thread()..items, task.threads()),
            false => (share(items, 1, task.thread(), task.threads()), 1),
        };
        for item in own.step_by(every) {
            let (kv, chunk) = (item / chunks, item % chunks);
            let (batch, kv_head) = (kv / z.kv_heads, kv % z.kv_heads);
            let z = &z.of_text(batch, pages.as_ref());
            let from = (chunks_of(z).0 + chunk) * STREAM_KEYS;
            let (page, row) = place(pages.as_ref(), batch, from);
            let len = STREAM_KEYS.min(z.valid.saturating_sub(from));
            let head = batch * z.heads + kv_head * z.sharing;
            task.load(0, head * z.t * z.d, f32::slice_mut(queries));
            // SAFETY: there is room for every item's partial results, and each is written by one thread.
            let partial = unsafe { std::slice::from_raw_parts_mut(partials.add(item * n * size), n * size) };
            let scores = &mut scores[..n * len];
            let keys = key_memory.as_ref().map(|m| m.at(page, kv_head, row));
            let at = (page * z.kv_heads + kv_head) * z.s + row;
            let keys = keys.unwrap_or_else(|| loaded(task, 1, at * z.d, &mut key_room[..len * z.d], z.d));
            if z.d > 0 && len > 0 {
                let row_bytes = keys.row * keys.dtype.block_bytes();
                // Keys stay in the cache from one query to the next.
                for (query, scores) in queries.chunks_exact(z.d).zip(scores.chunks_exact_mut(len)) {
                    dot::gemv(path::current(), keys.dtype, keys.bytes, row_bytes, query, scores);
                }
            }
            let values = value_memory.as_ref().map(|m| m.at(page, kv_head, row));
            let values = values.unwrap_or_else(|| loaded(task, 2, at * z.dv, &mut value_room[..len * z.dv], z.dv));
            for i in 0..n {
                let row = &mut scores[i * len..(i + 1) * len];
                let (sums, state) = partial[i * size..(i + 1) * size].split_at_mut(z.dv);
                sums.fill(0.0);
                let seen = z.seen_of(i % z.t, from, len);
                let weights = &mut row[seen.clone()];
                f32::scale(weights, self.scale as f32);
                self.cap(weights);
                if self.mask && !seen.is_empty() {
                    let masks = &mut masks[..seen.len()];
                    task.load(3, (head * z.t + i) * z.s + from + seen.start, f32::slice_mut(masks));
                    f32::axpy(weights, 1.0, masks);
                }
                let (max, sum) = online_softmax(weights, f32::LOWEST);
                state.copy_from_slice(&[max, sum]);
                if max == f32::LOWEST {
                    continue;
                }
                // SAFETY: as above, of values.
                with_rows!(values, |ptr| unsafe { columns::add(ptr.add(seen.start * values.row), values.row, weights, sums) });
            }
        }
        task.barrier();
        let out = values::<f32>(task, z.dv);
        for row in share(z.batch * z.kv_heads * n, 1, task.thread(), task.threads()) {
            let part = |chunk: usize| {
                // SAFETY: all partial results were written before the barrier.
                let p = unsafe { std::slice::from_raw_parts(partials.add(((row / n * chunks + chunk) * n + row % n) * size), size) };
                (&p[..z.dv], p[z.dv], p[z.dv + 1])
            };
            let max = (0..chunks).map(|c| part(c).1).fold(f32::LOWEST, |a, b| if b > a || b.is_nan() { b } else { a });
            out.fill(0.0);
            let mut total = 0.0;
            for (sums, at, sum) in (0..chunks).map(part).filter(|p| p.1 != f32::LOWEST) {
                let keep = (at - max).exp();
                total += sum * keep;
                f32::axpy(out, keep, sums);
            }
            f32::scale(out, inverse(total as f64) as f32);
            if self.sums {
                task.store(1, row, f32::slice_mut(&mut [max + total.ln()]));
            }
            // Rows of one key head are the queries of its heads, one head after the other.
            task.store(0, row * z.dv, f32::slice_mut(out));
        }
    }
}

/// Scores to weights: e to the distance from the largest score, this block's or `max`, which is given back with the weights' sum.
/// Where all scores are −∞ so far, the weights are zeros.
fn online_softmax<T: Real>(scores: &mut [T], max: T) -> (T, T) {
    let here = T::max(scores);
    let new = if here.wide().is_nan() || here > max { here } else { max };
    if new == T::LOWEST {
        scores.fill(T::ZERO);
        return (new, T::ZERO);
    }
    (new, T::exp_sum(scores, new))
}

/// 1/x, and zeros for a query that sees no key.
fn inverse(sum: f64) -> f64 {
    if sum == 0.0 { 0.0 } else { 1.0 / sum }
}

/// Keys or values as rows in memory.
struct Rows<'a> {
    dtype: DType,
    bytes: &'a [u8],
    /// Elements from a row to the next.
    row: usize,
    batch: usize,
    head: usize,
}

impl<'a> Rows<'a> {
    fn at(&self, batch: usize, head: usize, row: usize) -> Rows<'a> {
        let from = (batch * self.batch + head * self.head + row * self.row) * self.dtype.block_bytes();
        // Past the end where no rows are left.
        Rows { bytes: self.bytes.get(from..).unwrap_or(&[]), ..*self }
    }
}

/// Load `k` `[B,H,S,D]` as rows, where it is plain.
fn rows<'a>(task: &'a dyn Task, k: usize) -> Option<Rows<'a>> {
    let load = &task.step().loads[k];
    let source = load.plain()?;
    let st = source.layout.reshape(load.shape)?.strides;
    let dense = (st[3] == 1 || load.shape[3] == 1) && st[..3].iter().all(|&s| s >= 0) && st[2] >= load.shape[3] as isize;
    if !dense || !matches!(source.dtype, DType::F32 | DType::F16 | DType::BF16) {
        return None;
    }
    let raw = task.raw_load(k);
    // SAFETY: the backend checked that the operand lies within its buffer, which nobody writes meanwhile.
    let bytes = unsafe { std::slice::from_raw_parts(raw.ptr.cast_const(), raw.len) };
    let bytes = &bytes[raw.offset * source.dtype.block_bytes()..];
    Some(Rows { dtype: source.dtype, bytes, row: st[2] as usize, batch: st[0] as usize, head: st[1] as usize })
}

/// Elements of load `k` from `start` on as rows in scratch.
fn loaded<'a>(task: &dyn Task, k: usize, start: usize, room: &'a mut [f32], width: usize) -> Rows<'a> {
    if !room.is_empty() {
        task.load(k, start, f32::slice_mut(room));
    }
    Rows { dtype: DType::F32, bytes: bytemuck::cast_slice(room), row: width, batch: 0, head: 0 }
}

/// `gemm` of m by n by k, but for few rows in plain loops that have no start-up cost.
///
/// # Safety
/// As `gemm`.
unsafe fn products<T: Real>([m, n, k]: [usize; 3], a: Matrix<T>, b: Matrix<T>, out: MatrixMut<T>, factor: T) {
    // SAFETY: the caller's promise.
    unsafe {
        if m > 4 || a.col != 1 || (b.row != 1 && b.col != 1) {
            return gemm([m, n, k], a, b, out, factor);
        }
        for i in 0..m {
            let x = std::slice::from_raw_parts(a.at(i, 0).ptr, k);
            let y = std::slice::from_raw_parts_mut(out.ptr.offset(i as isize * out.row), n);
            if b.row == 1 {
                for (j, y) in y.iter_mut().enumerate() {
                    let p = T::dot(x, std::slice::from_raw_parts(b.at(0, j).ptr, k)) * factor;
                    *y = if out.add { *y + p } else { p };
                }
            } else {
                if !out.add {
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
        let z = AttentionSizes::of(self, task);
        match task.step().loads[0].dtype().compute() {
            DType::F64 => self.blocks::<f64>(task, &z),
            _ if z.sharing * z.t <= STREAM_MAX_QUERIES && z.t > 0 && self.dropout == 0.0 => self.stream(task, &z),
            _ => self.blocks::<f32>(task, &z),
        }
    }
    fn ops(&self, step: &Step) -> u64 {
        let (q, k, v) = (step.loads[0].shape, step.loads[1].shape, step.loads[2].shape);
        2 * (q[0] * q[1] * q[2] * k[2] * (q[3] + v[3])) as u64
    }
    fn wgsl(&self, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
        gpu::attention(self, step, adapter)
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
    /// Dropout of the weights; none when absent.
    pub dropout: Option<AttentionDropout>,
    /// c where scores are c·tanh(score/c), before the mask is added (Bello et al., 2017; Gemma 2); as they are when absent.
    pub softcap: Option<f64>,
}
impl Default for AttentionOptions {
    fn default() -> Self {
        AttentionOptions { scale: None, causal: true, kv_len: None, window: None, dropout: None, softcap: None }
    }
}

impl AttentionOptions {
    /// c divides scores.
    fn check_softcap(&self, at: At) -> TensorResult<()> {
        match self.softcap {
            Some(c) if !(c > 0.0 && (c as f32).is_normal()) => Err(TensorError::Argument {
                op: "attention",
                message: format!("softcap {c} must be a positive f32 that is neither subnormal nor infinite"),
                at,
            }),
            _ => Ok(()),
        }
    }
}

/// Queries from which on what is attended to is in memory, not computed where it is read.
const MATERIALIZE_MIN_QUERIES: usize = 32;

/// Scaled dot-product attention.
struct Attention(AttentionKernel);

impl Op for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }
    fn key(&self, key: &mut Key) {
        let a = &self.0;
        key.word(a.scale.to_bits()).word(a.causal as u64 | (a.mask as u64) << 1 | (a.window as u64) << 2).word(a.dropout.to_bits());
        key.word(a.softcap.to_bits());
    }
    fn define(&self, _: &[Tensor]) -> Option<TensorResult<Tensor>> {
        // Its parameters, such as the number of valid keys, are not among the inputs.
        None
    }
    fn lower(&self, inputs: &[Meta], outputs: &[Meta]) -> Lowered {
        let mut loads = Lowered::whole(&inputs[..3]);
        if self.0.mask {
            let q = inputs[0].shape;
            let full = Shape::of(&[q[0], q[1], q[2], inputs[1].shape[2]]);
            loads.push((3, Layout::contiguous(inputs[3].shape).broadcast_to(full), full));
        }
        Lowered::Kernel { kernel: Arc::new(self.0.clone()), loads, stores: Lowered::whole(outputs) }
    }
    /// Matrices take many queries in f16 from memory only.
    fn materialize_input(&self, _: usize, inputs: &[Meta]) -> bool {
        inputs[0].dtype == DType::F16 && inputs[0].shape[2] >= MATERIALIZE_MIN_QUERIES
    }
    fn grad(&self, v: &Vjp) -> Option<TensorResult<Grads>> {
        // A mask's gradient has as many elements as there are scores: then they may be stored. So has the slope of capped ones.
        let kernel = !Mode::current().grad && v.outputs.len() == 2 && !self.0.mask && self.0.softcap == 0.0;
        Some(if kernel { grad::gradients(&self.0, v) } else { self.0.gradient(v) })
    }
}

impl AttentionKernel {
    /// Gradients of queries, keys, values and mask, in operations that have gradients themselves: from the probabilities, computed again.
    fn gradient(&self, v: &Vjp) -> TensorResult<Grads> {
        let (q, k, value) = (&v.inputs[0], &v.inputs[1], &v.inputs[2]);
        let [b, h, t, d] = [q.shape()[0], q.shape()[1], q.shape()[2], q.shape()[3]];
        let [groups, s, dv] = [k.shape()[1], k.shape()[2], value.shape()[3]];
        let device = q.device();
        // Query heads that share a key head lie side by side: [B, Hkv, sharing, T, ...].
        let split = |x: &Tensor, n: usize| x.reshape(&[b, groups, h / groups, t, n]);
        let (q5, g5, o5) = (split(q, d)?, split(v.grad(), dv)?, split(&v.outputs[0], dv)?);
        let (k5, v5) = (k.unsqueeze(2)?, value.unsqueeze(2)?);
        let mut seen = self.visible(t, s, v.params[0], device)?;
        let mut scores = q5.matmul(&k5.transpose(-2, -1)?)?.mul(Lit(self.scale))?;
        scores = self.capped(scores)?;
        let bounded = scores.clone();
        if self.mask {
            let m = &v.inputs[3];
            let full = m.broadcast_to(&[b, h, t, s])?;
            let full = split(&full, s)?;
            // A query whose scores are all −∞ has no weights and no gradient.
            seen = seen.bitwise_and(&full.gt(f64::NEG_INFINITY)?)?;
            scores = scores.add(&full)?;
        }
        let p = seen.where_(Rhs::Tensor(&scores), Rhs::Lit(-3e38))?.softmax(-1)?;
        let p = seen.where_(Rhs::Tensor(&p), Rhs::Lit(0.0))?;
        let dot = g5.mul(&o5)?.sum(&[-1], true)?;
        let mut slope = g5.matmul(&v5.transpose(-2, -1)?)?;
        let mut kept = p.clone();
        if self.dropout > 0.0 {
            let factors = split(&self.keep_factors(Shape::of(&[b, h, t, s]), v.params, p.dtype(), device, q.node.at)?, s)?;
            slope = slope.mul(&factors)?;
            kept = kept.mul(&factors)?;
        }
        let slope = p.mul(&slope.sub(&dot)?)?;
        let mut scaled = slope.mul(Lit(self.scale))?;
        if self.softcap > 0.0 {
            // (c·tanh(s/c))' = 1 − tanh(s/c)².
            scaled = scaled.mul(&bounded.div(Lit(self.softcap))?.square()?.neg()?.add(1.0)?)?;
        }
        let back = |x: Tensor, like: &Tensor| x.reshape(like.shape()).map(Some);
        let mut grads = vec![None; v.inputs.len()];
        if v.wants(0) {
            grads[0] = back(scaled.matmul(&k5)?, q)?;
        }
        if v.wants(1) {
            grads[1] = back(scaled.transpose(-2, -1)?.matmul(&q5)?.sum(&[2], false)?, k)?;
        }
        if v.wants(2) {
            grads[2] = back(kept.transpose(-2, -1)?.matmul(&g5)?.sum(&[2], false)?, value)?;
        }
        if self.mask && v.wants(3) {
            grads[3] = Some(slope.reshape(&[b, h, t, s])?.sum_to(v.inputs[3].shape())?);
        }
        Ok(grads)
    }
}

impl Tensor {
    /// `softmax(q·kᵀ·scale + mask)·v` for queries `[B,H,T,D]`, keys `[B,Hkv,S,D]` and values `[B,Hkv,S,Dv]`; `H` is a multiple of `Hkv`
    /// (grouped queries, Ainslie et al., 2023). `mask` is added to the scores and broadcasts to `[B,H,T,S]`.
    ///
    /// # Errors
    /// When the shapes are not these, `kv_len` is not between 1 (with `causal`: the number of queries) and the number of keys, or the dtypes are not one float
    /// dtype; when the probability of dropout is not between 0 and 1, or the soft cap is not positive.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let device = Device::cpu();
    /// let q = Tensor::randn(&[1, 4, 5, 8], DType::F32, &device)?;
    /// let kv = Tensor::randn(&[1, 2, 5, 8], DType::F32, &device)?;
    /// let y = q.attention(&kv, &kv, None, &AttentionOptions::default())?;
    /// assert_eq!(y.dims(), [1, 4, 5, 8]);
    /// // The first query of a causal attention sees the first key alone.
    /// assert_eq!(y.i((0, 0, 0))?.to_vec()?, kv.i((0, 0, 0))?.to_vec()?);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn attention(&self, k: &Tensor, v: &Tensor, mask: Option<&Tensor>, options: &AttentionOptions) -> TensorResult<Tensor> {
        Ok(self.attended(k, v, mask, options, false, Location::caller())?.swap_remove(0))
    }

    /// As [`Tensor::attention`] without dropout, where a sink of each head `[H]` takes its weight of the softmax and has no value (Xiao et al., 2024).
    /// Has no gradient.
    #[track_caller]
    pub(crate) fn attention_with_sinks(
        &self,
        k: &Tensor,
        v: &Tensor,
        sinks: &Tensor,
        mask: Option<&Tensor>,
        options: &AttentionOptions,
    ) -> TensorResult<Tensor> {
        let options = AttentionOptions { dropout: None, ..options.clone() };
        let mask = mask.map(Tensor::detach);
        with_sinks(&self.detach().attended(&k.detach(), &v.detach(), mask.as_ref(), &options, true, Location::caller())?, sinks)
    }

    /// The values, and the logarithms of sums where `sums` asks for them or a gradient will.
    fn attended(
        &self,
        k: &Tensor,
        v: &Tensor,
        mask: Option<&Tensor>,
        options: &AttentionOptions,
        sums: bool,
        at: At,
    ) -> TensorResult<Vec<Tensor>> {
        let (qs, ks, vs) = (self.shape(), k.shape(), v.shape());
        let fits = qs.rank() == 4
            && ks.rank() == 4
            && vs.rank() == 4
            && qs[0] == ks[0]
            && ks[0] == vs[0]
            && ks[1] == vs[1]
            && ks[2] == vs[2]
            && qs[3] == ks[3];
        if !fits || ks[1] == 0 || qs[1] % ks[1] != 0 {
            return Err(TensorError::shape(
                "attention",
                at,
                format!("q {qs}, k {ks}, v {vs}: expected [B,H,T,D], [B,Hkv,S,D], [B,Hkv,S,Dv] with H a multiple of Hkv"),
            ));
        }
        let kv_len = options.kv_len.unwrap_or(ks[2]);
        if kv_len > ks[2] || kv_len == 0 || (options.causal && kv_len < qs[2]) {
            return Err(TensorError::shape("attention", at, format!("kv_len {kv_len} of {} keys for {} queries", ks[2], qs[2])));
        }
        let dtype = self.dtype();
        if !dtype.is_float() || dtype.is_block() || k.dtype().compute() != dtype.compute() || v.dtype().compute() != dtype.compute() {
            return Err(TensorError::dtype(
                "attention",
                at,
                format!("q {dtype}, k {}, v {}: expected the same float dtype", k.dtype(), v.dtype()),
            ));
        }
        options.dropout.as_ref().map_or(Ok(()), AttentionDropout::check)?;
        options.check_softcap(at)?;
        let mut inputs: crate::tensor::Inputs = smallvec::smallvec![self.clone(), k.clone(), v.clone()];
        if let Some(m) = mask {
            let full = Shape::of(&[qs[0], qs[1], qs[2], ks[2]]);
            if full.broadcast(m.shape(), "attention", at)? != full {
                return Err(TensorError::shape("attention", at, format!("mask {} does not broadcast to {full}", m.shape())));
            }
            inputs.push(m.cast(dtype.compute())?);
        }
        let scale = options.scale.unwrap_or(1.0 / (qs[3] as f64).sqrt());
        let tracked = Mode::learns(&inputs);
        let kernel = AttentionKernel {
            causal: options.causal,
            scale,
            window: options.window.unwrap_or(0) as u32,
            mask: mask.is_some(),
            sums: sums || (tracked && mask.is_none() && options.softcap.is_none()),
            dropout: options.dropout.as_ref().map_or(0.0, |d| d.p),
            softcap: options.softcap.unwrap_or(0.0),
            paged: false,
        };
        let mut params: SmallVec<[f64; 2]> = smallvec::smallvec![kv_len as f64];
        if let Some(d) = options.dropout.as_ref().filter(|d| d.p > 0.0) {
            params.extend([f64::from(d.rng.draws), f64::from(d.rng.key())]);
        }
        let mut metas = smallvec::smallvec![Meta { dtype, shape: Shape::of(&[qs[0], qs[1], qs[2], vs[3]]) }];
        if kernel.sums {
            let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
            metas.push(Meta { dtype: wide, shape: Shape::of(&[qs[0], qs[1], qs[2]]) });
        }
        // Kernels with dropout have no form for matrix units, and products of stored weights have.
        if kernel.dropout > 0.0
            && !kernel.mask
            && dtype == DType::F16
            && qs[2] >= MATERIALIZE_MIN_QUERIES
            && self.device().backend().matrices()
        {
            return Ok(vec![kernel.with_stored_weights(&inputs, &params, at)?]);
        }
        Tensor::op(Arc::new(Attention(kernel)), inputs, params, metas, at)
    }
}

/// Attention's values `[B,H,T,D]` and the logarithm L of each query's Σ e^score `[B,H,T]`, with a sink s of each head `[H]`: the values times
/// e^L / (e^L + e^s).
fn with_sinks(results: &[Tensor], sinks: &Tensor) -> TensorResult<Tensor> {
    let [values, sums] = results else { return Err(TensorError::Internal("attention without its sums".into())) };
    let kept = sums.sub(&sinks.detach().reshape(&[1, -1, 1])?)?.sigmoid()?.unsqueeze(-1)?;
    values.mul(&kept)?.cast(values.dtype())
}
