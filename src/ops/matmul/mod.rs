//! Matrix products.

pub mod fused_gemv;
pub(crate) mod gemm_coop;
mod gemm_tensor;
pub(crate) mod gemv;
mod gemv_int8;
mod gemv_simd;
pub(crate) mod gpu;
mod int8;
mod product;
#[cfg(all(test, feature = "gpu"))]
mod tests;
pub(crate) mod weights;

use crate::backends::cpu::gemm::{Matrix, MatrixMut, Sizes, gemm};
use crate::backends::cpu::operand::{is_bf16, slice, strided, target, values};
#[cfg(target_arch = "x86_64")]
use crate::backends::cpu::product::{can, product};
#[cfg(target_arch = "aarch64")]
use crate::backends::cpu::product_bf16::{can, product};
use crate::backends::cpu::{columns, dot, path, share, transpose, vector::Real};
use crate::dtype::{DType, Element};
use crate::error::{At, TensorError, TensorResult};
use crate::layout::Layout;
use crate::plan::{AdapterInfo, FusedGemv, Kernel, SliceMut, Step, Task, Value, Wgsl};
use crate::shape::Shape;
use crate::tensor::{Grads, Key, Lowered, Meta, Mode, Op, Tensor, Vjp};
use std::panic::Location;
use std::sync::Arc;

/// a `[batch, M, K]` and b `[batch, N, K]` to `[batch, M, N]`.
#[derive(Clone, Debug)]
pub struct MatMulKernel;

/// Rows of b that a thread takes at a time when it streams them.
const STREAM_ROWS: usize = 32;
/// Results of a streamed product that are handed to the store together.
const RESULTS_PER_STORE: usize = 1024;
/// Neighbouring results that a thread takes at a time where b is stored the other way.
const COLUMN_BLOCK: usize = 256;
/// Rows of a from which on b is transposed before the product.
const PACK_MIN_ROWS: usize = 24;
/// Rows of b that are decoded together before they are transposed.
const TRANSPOSE_ROWS: usize = 16;
/// Elements that are decoded at a time.
const DECODE_ELEMENTS: usize = 8192;

fn sizes(step: &Step) -> Sizes {
    let (a, b) = (step.loads[0].shape, step.loads[1].shape);
    Sizes { batch: a[0], m: a[1], n: b[1], k: a[2] }
}

/// Load 1 in a packed format whose neighbours in memory are neighbouring rows, as a weight is seen by the gradient of a product's left side:
/// decoded piece by piece in the order in which a panel wants them.
struct Columns<'a> {
    dtype: DType,
    bytes: &'a [u8],
    /// The first element, and how far it is from one batch to the next and along the product's K.
    first: usize,
    batch: usize,
    step: usize,
}

impl<'a> Columns<'a> {
    fn of(task: &'a dyn Task) -> Option<Columns<'a>> {
        let load = &task.step().loads[1];
        let source = load.plain().filter(|s| s.dtype.is_block())?;
        let strides = source.layout.reshape(load.shape)?.strides;
        let raw = task.raw_load(1);
        let block = source.dtype.block();
        let [batch, step] = [strides[0], strides[2]].map(|s| usize::try_from(s).ok().filter(|s| s.is_multiple_of(block)));
        let whole = strides[1] == 1 && raw.offset.is_multiple_of(block) && load.shape[1].is_multiple_of(block) && !raw.ptr.is_null();
        if !whole {
            return None;
        }
        // SAFETY: the backend checked that the operand lies within its buffer, which nobody writes meanwhile.
        let bytes = unsafe { std::slice::from_raw_parts(raw.ptr.cast_const(), raw.len) };
        Some(Columns { dtype: source.dtype, bytes, first: raw.offset, batch: batch?, step: step? })
    }

    /// Rows `n0..n0 + n`, side by side: `[K, n]`.
    fn panel(&self, batch: usize, n0: usize, n: usize, panel: &mut [f32]) {
        let (block, size) = (self.dtype.block(), self.dtype.block_bytes());
        for (k, out) in panel.chunks_exact_mut(n).enumerate() {
            let at = (self.first + batch * self.batch + k * self.step + n0) / block * size;
            dot::dequantize(path::current(), self.dtype, &self.bytes[at..at + n / block * size], out);
        }
    }
}

/// Arithmetic of a store's program from which on it pays to run it over long pieces.
const LONG_EPILOGUE_OPS: usize = 4;

/// The memory of the result, where its store has a long program and the memory is as the product's own result would be: row-major, of its
/// type, and nothing that the program reads.
fn bare_target<T: Real>(task: &dyn Task) -> Option<*mut T> {
    let store = &task.step().stores[0];
    let to = &store.target;
    let own = to.dtype == T::DTYPE && to.layout.is_contiguous() && store.sources.iter().all(|s| !s.may_overlap(to));
    if !own || store.program.arithmetic() < LONG_EPILOGUE_OPS || store.program.dtype() != T::DTYPE {
        return None;
    }
    let raw = task.raw_store(0);
    // SAFETY: the backend checked that the elements lie within the buffer.
    Some(unsafe { raw.ptr.cast::<T>().add(raw.offset) })
}

/// Runs the store's program over the whole result, which lies in the target as the product left it.
fn finish<T: Real>(task: &dyn Task, s: &Sizes, out: *mut T) {
    task.barrier();
    let count = s.batch * s.m * s.n;
    let piece: &mut [T] = values(task, DECODE_ELEMENTS.min(count));
    for start in share(count, DECODE_ELEMENTS, task.thread(), task.threads()).step_by(DECODE_ELEMENTS) {
        let n = DECODE_ELEMENTS.min(count - start);
        // SAFETY: written before the barrier, by all threads; from here on each piece belongs to one.
        piece[..n].copy_from_slice(unsafe { std::slice::from_raw_parts(out.add(start), n) });
        task.store(0, start, T::slice_mut(&mut piece[..n]));
    }
}

/// A few rows of a, rounded to int8 where that is asked for, against rows of b in memory, in any format. `false` where b is not like that.
fn stream(task: &dyn Task, s: &Sizes, int8: bool) -> bool {
    let load = &task.step().loads[1];
    let Some(source) = load.plain() else { return false };
    let floats = matches!(source.dtype, DType::F32 | DType::F16 | DType::BF16) || source.dtype.is_block();
    let (block, size) = (source.dtype.block(), source.dtype.block_bytes());
    let raw = task.raw_load(1);
    let Some(strides) = source.layout.reshape(load.shape).map(|l| l.strides) else { return false };
    let distance = if s.n == 1 { s.k as isize } else { strides[1] };
    let regular = (strides[2] == 1 || s.k == 1) && distance >= s.k as isize && (strides[0] >= 0 || s.batch == 1);
    let whole = s.k.is_multiple_of(block) && distance as usize % block == 0 && raw.offset.is_multiple_of(block);
    let whole = whole && (s.batch == 1 || (strides[0] as usize).is_multiple_of(block));
    if s.m > path::current().streamed_rows(source.dtype) || s.k == 0 || !floats || !regular || !whole || raw.ptr.is_null() {
        return false;
    }
    // SAFETY: the backend checked that the operand lies within its buffer, which nobody writes meanwhile.
    let bytes = unsafe { std::slice::from_raw_parts(raw.ptr.cast_const(), raw.len) };
    let row_bytes = distance as usize / block * size;
    let a = slice::<f32>(task, 0);
    let buffer: &mut [f32] = if a.is_some() { values(task, 0) } else { values(task, s.m * s.k) };
    let results: &mut [f32] = values(task, s.m * RESULTS_PER_STORE);
    let both_bf16 = source.dtype == DType::BF16 && is_bf16(task, 0);
    let range = share(s.batch * s.n, STREAM_ROWS, task.thread(), task.threads());
    let (mut at, mut loaded) = (range.start, usize::MAX);
    while at < range.end {
        let (batch, row) = (at / s.n, at % s.n);
        let rows = RESULTS_PER_STORE.min(s.n - row).min(range.end - at);
        let x = match a {
            Some(a) => &a[batch * s.m * s.k..][..s.m * s.k],
            None => {
                if loaded != batch {
                    task.load(0, batch * s.m * s.k, f32::slice_mut(buffer));
                    loaded = batch;
                }
                &*buffer
            }
        };
        let first = raw.offset / block * size + batch * (strides[0].max(0) as usize) / block * size + row * row_bytes;
        let direct = if s.m == 1 { target::<f32>(task, 0, at, rows) } else { None };
        let in_place = direct.is_some();
        let y = direct.unwrap_or(&mut results[..s.m * rows]);
        if int8 {
            dot::gemv_int8(path::current(), source.dtype, &bytes[first..], row_bytes, x, y, [s.m, rows]);
        } else if both_bf16 {
            dot::gemv_bf16(path::current(), &bytes[first..], row_bytes, x, y, [s.m, rows]);
        } else if s.m == 1 {
            dot::gemv(path::current(), source.dtype, &bytes[first..], row_bytes, x, y);
        } else {
            dot::gemv_multi(path::current(), source.dtype, &bytes[first..], row_bytes, x, y, [s.m, rows]);
        }
        for (i, y) in y.chunks_exact_mut(rows).enumerate().filter(|_| !in_place) {
            task.store(0, (batch * s.m + i) * s.n + row, f32::slice_mut(y));
        }
        at += rows;
    }
    true
}

impl MatMulKernel {
    /// A few rows of a against b stored with neighbouring rows side by side. `false` where b is not like that.
    fn col_major(&self, task: &dyn Task, s: &Sizes) -> bool {
        let load = &task.step().loads[1];
        let Some(source) = load.plain() else { return false };
        let Some(strides) = source.layout.reshape(load.shape).map(|l| l.strides) else { return false };
        let raw = task.raw_load(1);
        if s.m > dot::MAX_ROWS
            || strides[1] != 1
            || strides[2] < s.n as isize
            || !matches!(source.dtype, DType::F32 | DType::F16 | DType::BF16)
        {
            return false;
        }
        let x: &mut [f32] = values(task, s.m * s.k);
        let y: &mut [f32] = values(task, COLUMN_BLOCK);
        let blocks = s.n.div_ceil(COLUMN_BLOCK);
        let mut loaded = usize::MAX;
        for item in share(s.batch * blocks, 1, task.thread(), task.threads()) {
            let (batch, n0) = (item / blocks, item % blocks * COLUMN_BLOCK);
            let n = COLUMN_BLOCK.min(s.n - n0);
            if loaded != batch {
                task.load(0, batch * s.m * s.k, f32::slice_mut(x));
                loaded = batch;
            }
            let first = (raw.offset as isize + batch as isize * strides[0]) as usize + n0;
            for m in 0..s.m {
                let (x, y) = (&x[m * s.k..(m + 1) * s.k], &mut y[..n]);
                y.fill(0.0);
                // SAFETY: the backend checked that the operand lies within its buffer: `n` neighbours from `first` on in each of K rows.
                unsafe {
                    match source.dtype {
                        DType::F16 => columns::add(raw.ptr.cast::<columns::F16>().add(first), strides[2] as usize, x, y),
                        DType::BF16 => columns::add(raw.ptr.cast::<columns::Bf16>().add(first), strides[2] as usize, x, y),
                        _ => columns::add(raw.ptr.cast::<f32>().add(first), strides[2] as usize, x, y),
                    }
                }
                task.store(0, (batch * s.m + m) * s.n + n0, f32::slice_mut(y));
            }
        }
        true
    }

    /// Panels of b times blocks of a.
    fn blocks<T: Real>(&self, task: &dyn Task, s: &Sizes) {
        let (thread, threads) = (task.thread(), task.threads());
        let a = match strided::<T>(task, 0) {
            Some(a) => a,
            None => {
                let count = s.batch * s.m * s.k;
                let copy = task.shared(count * size_of::<T>()).cast::<T>();
                for start in share(count, DECODE_ELEMENTS, thread, threads).step_by(DECODE_ELEMENTS) {
                    // SAFETY: there is room for all elements, and each piece is written by one thread.
                    let piece = unsafe { std::slice::from_raw_parts_mut(copy.add(start), DECODE_ELEMENTS.min(count - start)) };
                    task.load(0, start, T::slice_mut(piece));
                }
                task.barrier();
                (copy.cast_const(), [(s.m * s.k) as isize, s.k as isize, 1, 0, 0, 0, 0, 0])
            }
        };
        let b = strided::<T>(task, 1);
        let columns = if b.is_none() { Columns::of(task) } else { None };
        // Sizes of blocks depend on the shape alone, so that results do not depend on the number of threads.
        let items = |width: usize, height: usize| s.batch * s.n.div_ceil(width) * s.m.div_ceil(height);
        let sizes = [(256, 512), (128, 512), (128, 128)].into_iter().find(|&(w, h)| items(w, h) >= 32);
        let (width, height) = sizes.unwrap_or(if items(128, 128) >= 8 { (128, 128) } else { (64, 64) });
        // A panel is whole blocks of the format.
        let width = columns.as_ref().map_or(width, |c| width.next_multiple_of(c.dtype.block()));
        let (panels, slabs) = (s.n.div_ceil(width), s.m.div_ceil(height));
        // The product is fastest where neighbouring rows of b lie side by side; b is brought into that order panel by panel.
        let turn = columns.is_some() || s.m >= PACK_MIN_ROWS && b.is_none_or(|(_, st)| st[2] == 1 && st[1] > 1);
        let room = width.min(s.n) * s.k;
        let panel: &mut [T] = values(task, if turn || b.is_none() { room } else { 0 });
        let rows: &mut [T] = values(task, if turn && b.is_none() && columns.is_none() { TRANSPOSE_ROWS * s.k } else { 0 });
        let plain = target::<T>(task, 0, 0, 0).map(|t| t.as_mut_ptr());
        // A long program over short pieces of rows waits for its sources: it runs over the whole result afterwards.
        let later = if plain.is_none() && width < s.n { bare_target::<T>(task) } else { None };
        let direct = plain.or(later);
        let results: &mut [T] = if direct.is_some() { values(task, 0) } else { values(task, height.min(s.m) * width.min(s.n)) };
        let mut loaded = usize::MAX;
        for item in share(s.batch * panels * slabs, 1, thread, threads) {
            let (batch, p, slab) = (item / slabs / panels, item / slabs % panels, item % slabs);
            let (n0, m0) = (p * width, slab * height);
            let (n, m) = (width.min(s.n - n0), height.min(s.m - m0));
            let place = b.map(|(ptr, st)| (ptr.wrapping_offset(batch as isize * st[0] + n0 as isize * st[1]), st));
            let right = match place {
                Some((ptr, st)) if !turn => Matrix { ptr, row: st[2], col: st[1] },
                _ if turn => Matrix { ptr: panel.as_ptr(), row: n as isize, col: 1 },
                _ => Matrix { ptr: panel.as_ptr(), row: 1, col: s.k as isize },
            };
            if loaded != item / slabs && right.ptr == panel.as_ptr() {
                loaded = item / slabs;
                let size = size_of::<T>();
                match (place, &columns) {
                    // SAFETY: the operand lies within its buffer, and the panel has room for it.
                    (Some((ptr, st)), _) => unsafe { transpose(size, ptr.cast(), st[1], panel.as_mut_ptr().cast(), n as isize, n, s.k) },
                    (None, Some(columns)) => {
                        if let SliceMut::F32(panel) = T::slice_mut(&mut panel[..n * s.k]) {
                            columns.panel(batch, n0, n, panel);
                        }
                    }
                    (None, None) if turn => {
                        for r in (0..n).step_by(TRANSPOSE_ROWS) {
                            let h = TRANSPOSE_ROWS.min(n - r);
                            task.load(1, (batch * s.n + n0 + r) * s.k, T::slice_mut(&mut rows[..h * s.k]));
                            // SAFETY: as above.
                            unsafe {
                                transpose(size, rows.as_ptr().cast(), s.k as isize, panel.as_mut_ptr().add(r).cast(), n as isize, h, s.k)
                            };
                        }
                    }
                    (None, None) => task.load(1, (batch * s.n + n0) * s.k, T::slice_mut(&mut panel[..n * s.k])),
                }
            }
            let (ptr, st) = a;
            let left = Matrix { ptr: ptr.wrapping_offset(batch as isize * st[0] + m0 as isize * st[1]), row: st[1], col: st[2] };
            let first = (batch * s.m + m0) * s.n + n0;
            // SAFETY: the operands lie within their buffers or the scratch made for them; each block of the result belongs to one thread.
            unsafe {
                match direct {
                    Some(out) => gemm([m, n, s.k], left, right, MatrixMut::new(out.add(first), s.n), T::of(1.0)),
                    None => gemm([m, n, s.k], left, right, MatrixMut::new(results.as_mut_ptr(), n), T::of(1.0)),
                }
            }
            if direct.is_none() {
                if n == s.n {
                    task.store(0, first, T::slice_mut(&mut results[..m * n]));
                } else {
                    for (i, row) in results[..m * n].chunks_exact_mut(n).enumerate() {
                        task.store(0, first + i * s.n, T::slice_mut(row));
                    }
                }
            }
        }
        if let Some(out) = later {
            finish(task, s, out);
        }
    }

    /// Blocks in the fastest order that this processor has. `false` where that is not faster than `blocks`.
    fn packed(&self, task: &dyn Task, s: &Sizes) -> bool {
        #[cfg(target_arch = "x86_64")]
        let can = can(s) && Columns::of(task).is_none();
        #[cfg(target_arch = "aarch64")]
        let can = can(task, s);
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        if can {
            let plain = target::<f32>(task, 0, 0, 0).map(|t| t.as_mut_ptr());
            let later = if plain.is_none() { bare_target::<f32>(task) } else { None };
            // SAFETY: the target was checked to be as large as the result.
            unsafe { product(task, s, plain.or(later)) };
            if let Some(out) = later {
                finish(task, s, out);
            }
            return true;
        }
        let _ = (task, s);
        false
    }

    /// Integers: rows against rows.
    fn integers<T: Value + Element>(&self, task: &dyn Task, s: &Sizes, dot: impl Fn(&[T], &[T]) -> T) {
        let (a, b): (&mut [T], &mut [T]) = (values(task, s.k), values(task, 16 * s.k));
        let results: &mut [T] = values(task, 16);
        let groups = s.n.div_ceil(16);
        for item in share(s.batch * groups, 1, task.thread(), task.threads()) {
            let (batch, n0) = (item / groups, item % groups * 16);
            let n = 16.min(s.n - n0);
            task.load(1, (batch * s.n + n0) * s.k, T::slice_mut(&mut b[..n * s.k]));
            for m in 0..s.m {
                task.load(0, (batch * s.m + m) * s.k, T::slice_mut(a));
                for (j, r) in results[..n].iter_mut().enumerate() {
                    *r = dot(a, &b[j * s.k..(j + 1) * s.k]);
                }
                task.store(0, (batch * s.m + m) * s.n + n0, T::slice_mut(&mut results[..n]));
            }
        }
    }
}

impl Kernel for MatMulKernel {
    fn cpu(&self, task: &dyn Task) {
        let s = sizes(task.step());
        macro_rules! integers {
            ($t:ty) => {
                self.integers::<$t>(task, &s, |a, b| a.iter().zip(b).fold(0, |sum: $t, (&x, &y)| sum.wrapping_add(x.wrapping_mul(y))))
            };
        }
        match task.step().loads[0].dtype().compute() {
            DType::F64 => self.blocks::<f64>(task, &s),
            DType::I32 => integers!(i32),
            DType::U32 => integers!(u32),
            DType::I64 => integers!(i64),
            DType::U64 => integers!(u64),
            _ if stream(task, &s, false) || self.col_major(task, &s) || self.packed(task, &s) => {}
            _ => self.blocks::<f32>(task, &s),
        }
    }
    fn ops(&self, step: &Step) -> u64 {
        let s = sizes(step);
        2 * (s.batch * s.m * s.n * s.k) as u64
    }
    fn wgsl(&self, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
        gpu::matmul(step, adapter)
    }
    fn gemv_products(&self, step: &Step) -> Option<FusedGemv> {
        let kind = gpu::matmul_kind(step)?;
        Some(FusedGemv { products: 1, gated: false, vec4_store: false, norm: None, kind, experts: false })
    }
    fn fuse_gemv(&self, fused: FusedGemv) -> Option<Arc<dyn Kernel>> {
        Some(Arc::new(fused_gemv::FusedGemvKernel(fused)))
    }
}

/// Batched matrix product.
struct MatMul;

/// The gradient `aᵀ·g` of the right side. A weight's has few elements and sums over every row of the batch: on a GPU those rows
/// are shared among several products, whose results are added. Where the right side is a transpose, so is its gradient: then it lies as
/// what was transposed does.
fn weight_gradient(a: &Tensor, g: &Tensor, right: &Tensor) -> TensorResult<Tensor> {
    let shape = right.shape();
    let strides = right.layout().strides;
    let transposed = shape.rank() == 2 && a.rank() == 2 && strides[0] == 1 && strides[1] > 1;
    let (l, r) = if transposed { (g, a) } else { (a, g) };
    let turn = |t: Tensor| if transposed { t.t() } else { Ok(t) };
    let matrix = shape.rank() == 2 && a.dtype().is_float() && a.numel() > 0 && g.numel() > 0;
    let (k, n) = match *shape.dims() {
        [n, k] if transposed => (k, n),
        [k, n] => (k, n),
        _ => (1, 1),
    };
    let rows = l.numel() / k.max(1);
    let parts = if matrix { a.device().backend().gradient_parts(rows, k * n) } else { None };
    let Some(parts) = parts else { return turn(l.t()?.matmul(r)?)?.sum_to(shape) };
    let part = |t: &Tensor, size: usize| t.reshape(&[parts, rows / parts, size]);
    let products = part(l, k)?.transpose(1, 2)?.matmul(&part(r, n)?)?;
    turn(if parts == 1 { products.squeeze(0)? } else { products.sum(&[0], false)? })
}

impl Op for MatMul {
    fn name(&self) -> &'static str {
        "matmul"
    }
    fn key(&self, _: &mut Key) {}
    fn define(&self, _: &[Tensor]) -> Option<TensorResult<Tensor>> {
        None
    }
    fn lower(&self, inputs: &[Meta], outputs: &[Meta]) -> Lowered {
        // a [..., M, K], b [..., K, N], out [..., M, N], all with the output's batch dimensions by broadcast.
        let out = outputs[0].shape;
        let r = out.rank();
        let (m, n, k) = (out[r - 2], out[r - 1], inputs[0].shape[inputs[0].shape.rank() - 1]);
        let batch: usize = out[..r - 2].iter().product();
        let spread = |s: Shape, rows: usize, cols: usize| {
            let mut full = out;
            full = full.with(r - 2, rows).with(r - 1, cols);
            Layout::contiguous(s).broadcast_to(full)
        };
        let a = spread(inputs[0].shape, m, k);
        let mut order: Vec<usize> = (0..r).collect();
        order.swap(r - 2, r - 1);
        let b = spread(inputs[1].shape, k, n).permute(&order);
        Lowered::Kernel {
            kernel: Arc::new(MatMulKernel {}),
            loads: vec![(0, a, Shape::of(&[batch, m, k])), (1, b, Shape::of(&[batch, n, k]))],
            stores: vec![(0, Layout::contiguous(out), Shape::of(&[batch, m, n]))],
        }
    }
    fn grad(&self, v: &Vjp) -> Option<TensorResult<Grads>> {
        let run = || {
            let (g, a, b) = (v.grad(), &v.inputs[0], &v.inputs[1]);
            let left = if v.wants(0) { Some(g.matmul(&b.t()?)?.sum_to(a.shape())?) } else { None };
            let right = if v.wants(1) { Some(weight_gradient(a, g, b)?) } else { None };
            Ok(vec![left, right])
        };
        Some(run())
    }
}

impl Tensor {
    /// Whether products of `self` with parts of this weight's rows cost no more than one product with all of it: where products of few rows
    /// are one dispatch anyway, and each writes its results where they stay.
    pub(crate) fn splits_product(&self, weight: &Tensor) -> bool {
        let rows = self.numel() / self.dims().last().copied().unwrap_or(1).max(1);
        self.device().backend().fused_gemv_limits().is_some_and(|limits| rows <= limits.most(self.dtype(), weight.dtype()))
    }

    /// The product with a matrix of parts: its columns side by side, or the sum of the products with its rows.
    fn matmul_parts(&self, rhs: &Tensor, k: usize, parts: &[Tensor], at: At) -> TensorResult<Tensor> {
        let inner = self.dims()[self.rank() - 1];
        if inner != rhs.dims()[0] {
            let text = format!("{}·{}: inner sizes {inner} and {} differ", self.shape(), rhs.shape(), rhs.dims()[0]);
            return Err(TensorError::shape("matmul", at, text));
        }
        if k == 1 {
            let products = parts.iter().map(|part| self.matmul(part)).collect::<TensorResult<Vec<_>>>()?;
            return Tensor::cat(&products, -1);
        }
        let (mut start, mut sum) = (0, None::<Tensor>);
        for part in parts {
            let product = self.narrow(-1, start, part.dims()[0])?.matmul(part)?;
            start += part.dims()[0];
            sum = Some(sum.map_or(Ok(product.clone()), |sum| sum.add(&product))?);
        }
        sum.ok_or_else(|| TensorError::Internal("a matrix of no parts".into()))
    }

    /// Matrix product of the last two dimensions, the others broadcast: `[…,M,K]·[…,K,N]` gives `[…,M,N]`. A vector on the left counts as a
    /// row, on the right as a column, as in PyTorch. Sums are accumulated in f32 (f64 in f64, integers in their type).
    ///
    /// Weights in a block format stay packed: `x.matmul(&w.t()?)` with `w` `[N,K]` reads the blocks directly.
    ///
    /// # Errors
    /// When the inner sizes differ, the other dimensions do not broadcast, or the dtypes do not promote.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let a = Tensor::new(&[[1.0, 2.0], [3.0, 4.0]], &Device::cpu())?;
    /// let b = Tensor::new(&[[1.0, 0.0], [1.0, 1.0]], &Device::cpu())?;
    /// assert_eq!(a.matmul(&b)?.to_vec2::<f32>()?, [[3.0, 2.0], [7.0, 4.0]]);
    /// assert!(a.matmul(&b.i((.., ..1))?.t()?).unwrap_err().to_string().contains("inner sizes 2 and 1 differ"));
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn matmul(&self, rhs: &Tensor) -> TensorResult<Tensor> {
        let at = Location::caller();
        if self.rank() == 0 || rhs.rank() == 0 {
            return Err(TensorError::shape(
                "matmul",
                at,
                format!("{}·{}: scalars have no matrix product; use mul", self.shape(), rhs.shape()),
            ));
        }
        if let Some((k, parts)) = rhs.parts().filter(|_| rhs.rank() == 2) {
            return Mode { at: Some(at), ..Mode::current() }.run(|| self.matmul_parts(rhs, k, parts, at));
        }
        let row = self.rank() == 1;
        let column = rhs.rank() == 1;
        let a = if row { self.unsqueeze(0)? } else { self.clone() };
        let b = if column { rhs.unsqueeze(1)? } else { rhs.clone() };
        let (ra, rb) = (a.rank(), b.rank());
        let (m, k, n) = (a.shape()[ra - 2], a.shape()[ra - 1], b.shape()[rb - 1]);
        if b.shape()[rb - 2] != k {
            let hint = if n == k {
                "; did you mean b.t()?"
            } else if m == b.shape()[rb - 2] {
                "; did you mean a.t()?"
            } else {
                ""
            };
            let text = format!("{}·{}: inner sizes {k} and {} differ", self.shape(), rhs.shape(), b.shape()[rb - 2]);
            return Err(TensorError::Shape { op: "matmul", message: text, at, hint });
        }
        if a.dtype().is_block() {
            return Err(TensorError::dtype("matmul", at, format!("the left side is {}; cast it first", a.dtype())));
        }
        let dtype = if b.dtype().is_block() {
            a.dtype()
        } else {
            a.dtype().promote(b.dtype()).map_err(|e| TensorError::dtype("matmul", at, e.to_string()))?
        };
        if dtype == DType::Bool || (b.dtype().is_block() && !dtype.is_float()) {
            return Err(TensorError::dtype("matmul", at, format!("{} and {} have no product; cast first", a.dtype(), b.dtype())));
        }
        let mut a = if a.dtype().compute() == dtype.compute() { a } else { a.cast(dtype)? };
        let b = if b.dtype().compute() == dtype.compute() { b } else { b.cast(dtype)? };
        if dtype.is_int() && !a.device().capabilities().integer_products {
            // Without a kernel for them, integers are multiplied and summed one by one.
            let products = a.unsqueeze(-2)?.mul(&b.transpose(-2, -1)?.unsqueeze(-3)?)?;
            let mut y = products.sum(&[-1], false)?.cast(dtype)?;
            if column {
                y = y.squeeze(-1)?;
            }
            return if row { y.squeeze(if column { -1 } else { -2 }) } else { Ok(y) };
        }
        // A weight matrix against a batch is one tall product.
        let lead: smallvec::SmallVec<[usize; 8]> = a.shape()[..ra - 2].into();
        let folded = rb == 2 && ra > 2;
        if folded {
            // Counted from the other sizes, which says it also where k is 0.
            a = a.reshape(&[a.shape()[..ra - 1].iter().product::<usize>(), k])?;
        }
        let batch = if folded {
            Shape::SCALAR
        } else {
            Shape::of(&a.shape()[..a.rank() - 2]).broadcast(&Shape::of(&b.shape()[..rb - 2]), "matmul", at)?
        };
        let mut dims: smallvec::SmallVec<[usize; 9]> = batch.dims().into();
        dims.extend([a.shape()[a.rank() - 2], n]);
        let shape = Shape::new(&dims, "matmul", at)?;
        let mut y = Tensor::op1(MatMul, smallvec::smallvec![a, b], Default::default(), Meta { dtype, shape }, at)?;
        if folded {
            let mut sizes: smallvec::SmallVec<[usize; 9]> = lead.iter().copied().collect();
            sizes.extend([m, n]);
            y = y.reshape(&sizes)?;
        }
        if row {
            y = y.squeeze(-2)?;
        }
        if column {
            y = y.squeeze(-1)?;
        }
        Ok(y)
    }
}
