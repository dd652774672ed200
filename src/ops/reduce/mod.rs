//! Reductions along rows: sum, mean, product, extremes and where they are.

pub(crate) mod gpu;
#[cfg(all(test, feature = "gpu"))]
mod tests;

use crate::backends::cpu::operand::{piece, slice, strided, values};
use crate::backends::cpu::{share, vector::Real};
use crate::dtype::{DType, Element};
use crate::error::{TensorError, TensorResult};
use crate::layout::Layout;
use crate::ops::{Lit, Rhs};
use crate::plan::{AdapterInfo, Kernel, Step, Task, Value, Wgsl};
use crate::shape::{Shape, SignedIndex, dim};
use crate::tensor::{Grads, Key, Lowered, Meta, Op, Tensor, Vjp};
use std::panic::Location;
use std::sync::Arc;

/// What a reduction computes of each row.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ReduceOp {
    /// The sum.
    Sum,
    /// The mean.
    Mean,
    /// The largest; NaN if one is NaN.
    Max,
    /// The smallest; NaN if one is NaN.
    Min,
    /// The product.
    Prod,
    /// The first position of the largest; NaN counts as largest.
    ArgMax,
    /// The first position of the smallest; NaN counts as smallest.
    ArgMin,
    /// As `ArgMax`, but −1 where an element is NaN.
    ArgMaxOrNone,
}

/// `[rows, cols]` to `[rows]`.
#[derive(Clone, Debug)]
pub struct ReduceKernel {
    /// What to compute.
    pub op: ReduceOp,
}

/// What `ReduceOp::ArgMaxOrNone` gives for a row that holds a NaN instead of a position.
pub(crate) const NONE: i32 = -1;

/// Elements that are reduced at a time. Results of such pieces are combined in order, whichever thread made them.
const CHUNK_ELEMENTS: usize = 16_384;
/// Neighbouring rows that a reduction down columns takes together.
const BLOCK_ROWS: usize = 128;
/// Columns that it takes before it hands its sums over.
const BLOCK_COLUMNS: usize = 4096;

/// Numbers that can be reduced.
trait Number: Value + Element {
    fn start(op: ReduceOp) -> Self;
    fn combine(op: ReduceOp, a: Self, b: Self) -> Self;
    fn reduce(op: ReduceOp, x: &[Self]) -> Self;
    fn divide(self, n: usize) -> Self;
    /// Whether `self` takes the place of `best` as extreme.
    fn beats(self, op: ReduceOp, best: Self) -> bool;
}

macro_rules! integer {
    ($($t:ty),*) => { $(
        impl Number for $t {
            fn start(op: ReduceOp) -> $t {
                match op {
                    ReduceOp::Max | ReduceOp::ArgMax | ReduceOp::ArgMaxOrNone => <$t>::MIN,
                    ReduceOp::Min | ReduceOp::ArgMin => <$t>::MAX,
                    ReduceOp::Prod => 1,
                    ReduceOp::Sum | ReduceOp::Mean => 0,
                }
            }
            #[inline(always)]
            fn combine(op: ReduceOp, a: $t, b: $t) -> $t {
                match op {
                    ReduceOp::Max | ReduceOp::ArgMax | ReduceOp::ArgMaxOrNone => a.max(b),
                    ReduceOp::Min | ReduceOp::ArgMin => a.min(b),
                    ReduceOp::Prod => a.wrapping_mul(b),
                    ReduceOp::Sum | ReduceOp::Mean => a.wrapping_add(b),
                }
            }
            fn reduce(op: ReduceOp, x: &[$t]) -> $t {
                x.iter().fold(Self::start(op), |a, &b| Self::combine(op, a, b))
            }
            fn divide(self, n: usize) -> $t {
                (self as i128).checked_div(n as i128).unwrap_or(0) as $t
            }
            fn beats(self, op: ReduceOp, best: $t) -> bool {
                if op == ReduceOp::ArgMin { self < best } else { self > best }
            }
        }
    )* };
}
integer!(i32, u32, i64, u64);

macro_rules! float {
    ($($t:ty),*) => { $(
        impl Number for $t {
            fn start(op: ReduceOp) -> $t {
                match op {
                    ReduceOp::Max | ReduceOp::ArgMax | ReduceOp::ArgMaxOrNone => <$t>::NEG_INFINITY,
                    ReduceOp::Min | ReduceOp::ArgMin => <$t>::INFINITY,
                    ReduceOp::Prod => 1.0,
                    ReduceOp::Sum | ReduceOp::Mean => 0.0,
                }
            }
            #[inline(always)]
            fn combine(op: ReduceOp, a: $t, b: $t) -> $t {
                match op {
                    ReduceOp::Max | ReduceOp::ArgMax | ReduceOp::ArgMaxOrNone => if (a > b) | a.is_nan() { a } else { b },
                    ReduceOp::Min | ReduceOp::ArgMin => if (a < b) | a.is_nan() { a } else { b },
                    ReduceOp::Prod => a * b,
                    ReduceOp::Sum | ReduceOp::Mean => a + b,
                }
            }
            fn reduce(op: ReduceOp, x: &[$t]) -> $t {
                match op {
                    ReduceOp::Sum | ReduceOp::Mean => <$t as Real>::sum(x),
                    ReduceOp::Max => <$t as Real>::max(x),
                    ReduceOp::Min => lanes(x, Self::start(op), |a, b| if (a < b) | a.is_nan() { a } else { b }),
                    ReduceOp::Prod => lanes(x, 1.0, |a, b| a * b),
                    ReduceOp::ArgMax | ReduceOp::ArgMin | ReduceOp::ArgMaxOrNone => x.iter().fold(Self::start(op), |a, &b| Self::combine(op, a, b)),
                }
            }
            fn divide(self, n: usize) -> $t {
                self / n as $t
            }
            fn beats(self, op: ReduceOp, best: $t) -> bool {
                !best.is_nan() && (self.is_nan() || if op == ReduceOp::ArgMin { self < best } else { self > best })
            }
        }
    )* };
}
float!(f32, f64);

/// Sixteen running results side by side, so that one need not wait for the other.
fn lanes<T: Copy>(x: &[T], start: T, f: impl Fn(T, T) -> T) -> T {
    let (chunks, rest) = x.as_chunks::<16>();
    let mut acc = [start; 16];
    for c in chunks {
        for i in 0..16 {
            acc[i] = f(acc[i], c[i]);
        }
    }
    rest.iter().chain(&acc).fold(start, |a, &b| f(a, b))
}

impl ReduceKernel {
    fn rows<T: Number>(&self, task: &dyn Task) {
        let (rows, cols) = shape(task.step());
        let (op, pieces) = (self.op, cols.div_ceil(CHUNK_ELEMENTS).max(1));
        let whole = slice::<T>(task, 0);
        let buffer: &mut [T] = if whole.is_some() { values(task, 0) } else { values(task, cols.min(CHUNK_ELEMENTS)) };
        let mut reduce = |row: usize, p: usize| {
            let (start, end) = (p * CHUNK_ELEMENTS, cols.min((p + 1) * CHUNK_ELEMENTS));
            let x = match whole {
                Some(x) => &x[row * cols + start..row * cols + end],
                None => piece(task, 0, None, row * cols + start, &mut buffer[..end - start]),
            };
            T::reduce(op, x)
        };
        let finish = |x: T| if op == ReduceOp::Mean { x.divide(cols) } else { x };
        if pieces == 1 {
            // Enough rows at a time that the store's program runs over more than a few elements.
            let chunk = (CHUNK_ELEMENTS / cols.max(1)).clamp(1, 256);
            let range = share(rows, chunk, task.thread(), task.threads());
            let results: &mut [T] = values(task, chunk);
            for first in range.clone().step_by(chunk) {
                let n = chunk.min(range.end - first);
                for (i, r) in results[..n].iter_mut().enumerate() {
                    *r = finish(reduce(first + i, 0));
                }
                task.store(0, first, T::slice_mut(&mut results[..n]));
            }
            return;
        }
        let partial = task.shared(rows * pieces * size_of::<T>()).cast::<T>();
        for n in share(rows * pieces, 1, task.thread(), task.threads()) {
            // SAFETY: there is room for every piece's result, and each is written by one thread.
            unsafe { *partial.add(n) = reduce(n / pieces, n % pieces) };
        }
        task.barrier();
        for row in share(rows, 1, task.thread(), task.threads()) {
            // SAFETY: all results were written before the barrier.
            let parts = unsafe { std::slice::from_raw_parts(partial.add(row * pieces), pieces) };
            let combined = parts.iter().fold(T::start(op), |a, &b| T::combine(op, a, b));
            task.store(0, row, T::slice_mut(&mut [finish(combined)]));
        }
    }

    /// Rows whose elements are neighbours across rows: whole blocks of rows are reduced at once. `false` where the operand is not like that.
    fn columns<T: Number>(&self, task: &dyn Task) -> bool {
        let (rows, cols) = shape(task.step());
        let Some((base, strides)) = strided::<T>(task, 0) else { return false };
        if strides[0] != 1 || rows < 4 || cols < 2 {
            return false;
        }
        let (row_blocks, depths) = (rows.div_ceil(BLOCK_ROWS), cols.div_ceil(BLOCK_COLUMNS));
        let partial = task.shared(depths * rows * size_of::<T>()).cast::<T>();
        for n in share(row_blocks * depths, 1, task.thread(), task.threads()) {
            let (row_block, depth) = (n / depths, n % depths);
            let (first, len) = (row_block * BLOCK_ROWS, BLOCK_ROWS.min(rows - row_block * BLOCK_ROWS));
            // SAFETY: each block of a depth has its own room, written by one thread.
            let sums = unsafe { std::slice::from_raw_parts_mut(partial.add(depth * rows + first), len) };
            let mut total = [T::start(self.op); BLOCK_ROWS];
            for start in (depth * BLOCK_COLUMNS..cols.min((depth + 1) * BLOCK_COLUMNS)).step_by(64) {
                // Short runs of additions, for accuracy.
                let mut acc = [T::start(self.op); BLOCK_ROWS];
                for c in start..(start + 64).min(cols).min((depth + 1) * BLOCK_COLUMNS) {
                    // SAFETY: the operand has these elements: `len` rows from `first` on, one after the other, of column c.
                    let x = unsafe { std::slice::from_raw_parts(base.offset(c as isize * strides[1]).add(first), len) };
                    combine_all(self.op, &mut acc[..len], x);
                }
                combine_all(self.op, &mut total[..len], &acc[..len]);
            }
            sums.copy_from_slice(&total[..len]);
        }
        task.barrier();
        let results: &mut [T] = values(task, BLOCK_ROWS);
        for row_block in share(row_blocks, 1, task.thread(), task.threads()) {
            let (first, len) = (row_block * BLOCK_ROWS, BLOCK_ROWS.min(rows - row_block * BLOCK_ROWS));
            results.fill(T::start(self.op));
            for depth in 0..depths {
                // SAFETY: all were written before the barrier.
                combine_all(self.op, &mut results[..len], unsafe { std::slice::from_raw_parts(partial.add(depth * rows + first), len) });
            }
            if self.op == ReduceOp::Mean {
                results.iter_mut().for_each(|x| *x = x.divide(cols));
            }
            task.store(0, first, T::slice_mut(&mut results[..len]));
        }
        true
    }

    fn positions<T: Number>(&self, task: &dyn Task) {
        let (rows, cols) = shape(task.step());
        let whole = slice::<T>(task, 0);
        let buffer: &mut [T] = if whole.is_some() { values(task, 0) } else { values(task, cols.min(CHUNK_ELEMENTS)) };
        for row in share(rows, 1, task.thread(), task.threads()) {
            let mut best: Option<(T, usize)> = None;
            for start in (0..cols).step_by(CHUNK_ELEMENTS) {
                let end = cols.min(start + CHUNK_ELEMENTS);
                let x = match whole {
                    Some(x) => &x[row * cols + start..row * cols + end],
                    None => piece(task, 0, None, row * cols + start, &mut buffer[..end - start]),
                };
                // The extreme first, in a loop without positions, and then its place.
                let op = if self.op == ReduceOp::ArgMin { ReduceOp::Min } else { ReduceOp::Max };
                let extreme = T::reduce(op, x);
                if best.is_none_or(|(b, _)| extreme.beats(self.op, b)) {
                    // NaN does not equal itself: the first element that nothing beats is it.
                    #[allow(clippy::eq_op)] // only NaN differs from itself
                    let at = x.iter().position(|&v| v == extreme || v != v);
                    best = at.map(|i| (extreme, start + i)).or(best);
                }
            }
            let at = match best {
                #[allow(clippy::eq_op)] // as above
                Some((x, _)) if self.op == ReduceOp::ArgMaxOrNone && x != x => NONE,
                best => best.map_or(0, |b| b.1) as i32,
            };
            task.store(0, row, i32::slice_mut(&mut [at]));
        }
    }

    fn run<T: Number>(&self, task: &dyn Task) {
        match self.op {
            ReduceOp::ArgMax | ReduceOp::ArgMin | ReduceOp::ArgMaxOrNone => self.positions::<T>(task),
            _ if self.columns::<T>(task) => {}
            _ => self.rows::<T>(task),
        }
    }
}

/// `a[i] ← combine(a[i], b[i])`, the op decided outside the loop.
fn combine_all<T: Number>(op: ReduceOp, a: &mut [T], b: &[T]) {
    macro_rules! each {
        ($($op:ident),*) => {
            match op {
                $(ReduceOp::$op => a.iter_mut().zip(b).for_each(|(a, &b)| *a = T::combine(ReduceOp::$op, *a, b)),)*
            }
        };
    }
    each!(Sum, Mean, Max, Min, Prod, ArgMax, ArgMin, ArgMaxOrNone);
}

/// Rows and columns of the operand.
fn shape(step: &Step) -> (usize, usize) {
    (step.loads[0].shape[0], step.loads[0].shape[1])
}

impl Kernel for ReduceKernel {
    fn cpu(&self, task: &dyn Task) {
        match task.step().loads[0].dtype().compute() {
            DType::F64 => self.run::<f64>(task),
            DType::I32 => self.run::<i32>(task),
            DType::U32 => self.run::<u32>(task),
            DType::I64 => self.run::<i64>(task),
            DType::U64 => self.run::<u64>(task),
            _ => self.run::<f32>(task),
        }
    }
    fn ops(&self, step: &Step) -> u64 {
        step.loads[0].shape.count() as u64
    }
    fn wgsl(&self, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
        gpu::reduce(self.op, step, adapter)
    }
}

/// A reduction over any axes.
struct Reduce {
    op: ReduceOp,
    /// Bit d says that dimension d is reduced.
    axes: u32,
}

impl Op for Reduce {
    fn name(&self) -> &'static str {
        self.op.name()
    }
    fn key(&self, key: &mut Key) {
        key.word(self.op as u64).word(self.axes as u64);
    }
    fn define(&self, _: &[Tensor]) -> Option<TensorResult<Tensor>> {
        None
    }
    fn lower(&self, inputs: &[Meta], outputs: &[Meta]) -> Lowered {
        let shape = inputs[0].shape;
        let (gone, kept): (Vec<usize>, Vec<usize>) = (0..shape.rank()).partition(|d| self.axes >> d & 1 == 1);
        let order: Vec<usize> = kept.iter().chain(&gone).copied().collect();
        let rows = kept.iter().map(|&d| shape[d]).product();
        let cols = gone.iter().map(|&d| shape[d]).product();
        let layout = Layout::contiguous(shape).permute(&order);
        Lowered::Kernel {
            kernel: Arc::new(ReduceKernel { op: self.op }),
            loads: vec![(0, layout, Shape::of(&[rows, cols]))],
            stores: vec![(0, Layout::contiguous(outputs[0].shape), Shape::of(&[rows]))],
        }
    }
    fn grad(&self, v: &Vjp) -> Option<TensorResult<Grads>> {
        let x = &v.inputs[0];
        let dims: Vec<isize> = (0..x.rank()).filter(|d| self.axes >> d & 1 == 1).map(|d| d as isize).collect();
        // Results with the reduced dimensions back as size 1, so that they broadcast.
        let wide: Vec<usize> = (0..x.rank()).map(|d| if self.axes >> d & 1 == 1 { 1 } else { x.shape()[d] }).collect();
        let count = dims.iter().map(|&d| x.shape()[d as usize]).product::<usize>();
        let run = || {
            let g = v.grad().reshape(&wide)?;
            let spread = |t: &Tensor| t.broadcast_to(x.dims());
            let grad = match self.op {
                ReduceOp::Sum => spread(&g)?,
                ReduceOp::Mean => spread(&g.mul(Lit(1.0 / count.max(1) as f64))?)?,
                ReduceOp::Max | ReduceOp::Min => {
                    // Equal extremes share the gradient.
                    let hit = x.rounded()?.eq(&v.outputs[0].reshape(&wide)?)?.cast(v.grad().dtype())?;
                    hit.mul(&g.div(&hit.sum(&dims, true)?)?)?
                }
                ReduceOp::Prod => {
                    // y/x, and where one factor is zero the product of the others.
                    let zero = x.eq(Lit(0.0))?;
                    let others = zero.where_(Rhs::Lit(1.0), Rhs::Tensor(x))?;
                    let rest = others.prod(&dims, true)?;
                    let zeros = zero.cast(v.grad().dtype())?.sum(&dims, true)?;
                    let none = zeros.eq(Lit(0.0))?.where_(&rest.div(&others)?, &x.zeros_like()?)?;
                    let one = zeros.eq(Lit(1.0))?.bitwise_and(&zero)?;
                    g.mul(&one.where_(&rest.broadcast_to(x.dims())?, &none)?)?
                }
                ReduceOp::ArgMax | ReduceOp::ArgMin | ReduceOp::ArgMaxOrNone => return Ok(vec![None]),
            };
            Ok(vec![Some(grad)])
        };
        Some(run())
    }
}

impl Tensor {
    /// The values as memory holds them: what is computed in f32 and read before it is stored is finer than f16 or bf16, and equals no stored
    /// value of these types.
    #[track_caller]
    pub(crate) fn rounded(&self) -> TensorResult<Tensor> {
        match self.dtype() {
            DType::F16 | DType::BF16 => self.cast(DType::F32)?.cast(self.dtype()),
            _ => Ok(self.clone()),
        }
    }

    #[track_caller]
    fn reduce(&self, op: ReduceOp, dims: &[isize], keepdim: bool) -> TensorResult<Tensor> {
        let at = Location::caller();
        let name = op.name();
        let mut axes = 0u32;
        for &d in dims {
            axes |= 1 << dim(d, self.rank(), name, at)?;
        }
        if dims.is_empty() {
            axes = (1 << self.rank()) - 1;
        }
        let mut x = self.clone();
        let mut dtype = self.dtype();
        // As PyTorch: sums of bool and small integers are integers, means are floats.
        match op {
            ReduceOp::Sum | ReduceOp::Prod if !dtype.is_float() && dtype != DType::U64 => {
                dtype = if self.device().supports(DType::I64) { DType::I64 } else { DType::I32 };
                x = x.cast(dtype)?;
            }
            ReduceOp::Mean if !dtype.is_float() => {
                dtype = DType::F32;
                x = x.cast(dtype)?;
            }
            _ if dtype.is_block() => dtype = DType::F32,
            _ => {}
        }
        let empty = (0..self.rank()).any(|d| axes >> d & 1 == 1 && self.shape()[d] == 0);
        if empty && !matches!(op, ReduceOp::Sum | ReduceOp::Mean | ReduceOp::Prod) {
            return Err(TensorError::shape(name, at, format!("empty axis (shape {})", self.shape())));
        }
        let result = match op {
            ReduceOp::ArgMax | ReduceOp::ArgMin | ReduceOp::ArgMaxOrNone => DType::I32,
            _ => dtype,
        };
        let sizes: Vec<usize> = (0..self.rank())
            .filter(|d| keepdim || axes >> d & 1 == 0)
            .map(|d| if axes >> d & 1 == 1 { 1 } else { self.shape()[d] })
            .collect();
        Tensor::op1(Reduce { op, axes }, smallvec::smallvec![x], Default::default(), Meta { dtype: result, shape: Shape::of(&sizes) }, at)
    }

    /// The index of the largest element along dimension `d` (which goes), as i32: the first of equal ones; NaN counts as largest.
    /// `[A,N,B]` along 1 → `[A,B]`.
    ///
    /// # Errors
    /// When there is no such dimension, or it is empty.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], &Device::cpu())?;
    /// assert_eq!(x.argmax(1)?.to_vec1::<i32>()?, [2, 2]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn argmax(&self, d: impl SignedIndex) -> TensorResult<Tensor> {
        self.reduce(ReduceOp::ArgMax, &[d.signed()], false)
    }

    /// The index of the smallest element along dimension `d` (which goes), as i32: the first of equal ones; NaN counts as smallest.
    /// `[A,N,B]` along 1 → `[A,B]`.
    ///
    /// # Errors
    /// When there is no such dimension, or it is empty.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], &Device::cpu())?;
    /// assert_eq!(x.argmin(1)?.to_vec1::<i32>()?, [0, 0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn argmin(&self, d: impl SignedIndex) -> TensorResult<Tensor> {
        self.reduce(ReduceOp::ArgMin, &[d.signed()], false)
    }

    /// [`Tensor::argmax`] of floats, but [`NONE`] where an element is NaN.
    #[track_caller]
    pub(crate) fn choice(&self, d: impl SignedIndex) -> TensorResult<Tensor> {
        self.reduce(ReduceOp::ArgMaxOrNone, &[d.signed()], false)
    }

    /// The variance over dimensions `dims` (all, if empty), divided by `count - correction`.
    /// `[A,N,B]` over 1 → `[A,B]`, with `keepdim` `[A,1,B]`.
    ///
    /// # Errors
    /// When there is no such dimension.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], &Device::cpu())?;
    /// assert_eq!(x.var(&[1], 1, false)?.to_vec()?, [1.0, 1.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn var(&self, dims: &[isize], correction: isize, keepdim: bool) -> TensorResult<Tensor> {
        let mean = self.reduce(ReduceOp::Mean, dims, true)?;
        let centred = self.sub(&mean)?;
        let squares = centred.mul(&centred)?.reduce(ReduceOp::Sum, dims, keepdim)?;
        let count = self.numel() / mean.numel().max(1);
        squares.mul(1.0 / (count as f64 - correction as f64).max(0.0))
    }

    /// The standard deviation over dimensions `dims` (all, if empty): the root of [`Tensor::var`].
    /// `[A,N,B]` over 1 → `[A,B]`, with `keepdim` `[A,1,B]`.
    ///
    /// # Errors
    /// When there is no such dimension.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], &Device::cpu())?;
    /// assert_eq!(x.std(&[1], 1, false)?.to_vec()?, [1.0, 1.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn std(&self, dims: &[isize], correction: isize, keepdim: bool) -> TensorResult<Tensor> {
        self.var(dims, correction, keepdim)?.sqrt()
    }

    /// Whether all elements over dimensions `dims` (all, if empty) are not zero; true where there are none.
    /// `[A,N,B]` over 1 → `[A,B]`, with `keepdim` `[A,1,B]`.
    ///
    /// # Errors
    /// When there is no such dimension.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[0, 1], [2, 3]], &Device::cpu())?;
    /// assert_eq!(x.all(&[1], false)?.to_vec1::<u8>()?, [0, 1]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn all(&self, dims: &[isize], keepdim: bool) -> TensorResult<Tensor> {
        self.truth()?.reduce_or(ReduceOp::Min, 1.0, dims, keepdim)
    }

    /// Whether any element over dimensions `dims` (all, if empty) is not zero; false where there are none.
    /// `[A,N,B]` over 1 → `[A,B]`, with `keepdim` `[A,1,B]`.
    ///
    /// # Errors
    /// When there is no such dimension.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[0, 1], [0, 0]], &Device::cpu())?;
    /// assert_eq!(x.any(&[1], false)?.to_vec1::<u8>()?, [1, 0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn any(&self, dims: &[isize], keepdim: bool) -> TensorResult<Tensor> {
        self.truth()?.reduce_or(ReduceOp::Max, 0.0, dims, keepdim)
    }

    /// An extreme, or `empty` where there is nothing to choose from.
    #[track_caller]
    fn reduce_or(&self, op: ReduceOp, empty: f64, dims: &[isize], keepdim: bool) -> TensorResult<Tensor> {
        if self.numel() > 0 {
            return self.reduce(op, dims, keepdim);
        }
        let sum = self.reduce(ReduceOp::Sum, dims, keepdim)?;
        Tensor::full(empty, sum.dims(), self.stored(), self.device())
    }

    /// ln Σ eˣ over dimensions `dims` (all, if empty), from the largest element. `[A,N,B]` over 1 → `[A,B]`, with `keepdim` `[A,1,B]`.
    ///
    /// # Errors
    /// When there is no such dimension.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1000.0, 1000.0]], &Device::cpu())?;
    /// let got = x.logsumexp(&[1], false)?.to_vec()?;
    /// assert!(got.iter().zip([1000.693147]).all(|(a, b)| (a - b).abs() < 1e-3), "{got:?}");
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn logsumexp(&self, dims: &[isize], keepdim: bool) -> TensorResult<Tensor> {
        let x = if self.dtype().is_float() { self.clone() } else { self.cast(DType::F32)? };
        let max = x.reduce_or(ReduceOp::Max, f64::NEG_INFINITY, dims, true)?;
        // An infinite maximum has no differences.
        let base = max.isinf()?.where_(Lit(0.0), &max)?;
        let sum = x.sub(&base)?.exp()?.reduce(ReduceOp::Sum, dims, keepdim)?;
        let sizes: smallvec::SmallVec<[usize; 8]> = sum.dims().iter().copied().collect();
        sum.log()?.add(&base.reshape(&sizes)?)
    }

    /// The vector norm of order `p` over dimensions `dims` (all, if empty): (Σ |x|ᵖ)^(1/p); ±∞ gives the extreme of |x|, 0 the count of
    /// elements that are not zero. `[A,N,B]` over 1 → `[A,B]`, with `keepdim` `[A,1,B]`.
    ///
    /// # Errors
    /// When there is no such dimension.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[3.0, 4.0]], &Device::cpu())?;
    /// assert_eq!(x.norm(2.0, &[1], false)?.to_vec()?, [5.0]);
    /// assert_eq!(x.norm(f64::INFINITY, &[], false)?.to_vec()?, [4.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn norm(&self, p: f64, dims: &[isize], keepdim: bool) -> TensorResult<Tensor> {
        let x = if self.dtype().is_float() { self.clone() } else { self.cast(DType::F32)? };
        let size = x.abs()?;
        let powers = match p {
            f64::INFINITY => return size.reduce_or(ReduceOp::Max, 0.0, dims, keepdim),
            f64::NEG_INFINITY => return size.reduce_or(ReduceOp::Min, f64::INFINITY, dims, keepdim),
            0.0 => return x.truth()?.cast(x.stored())?.reduce(ReduceOp::Sum, dims, keepdim),
            1.0 => return size.reduce(ReduceOp::Sum, dims, keepdim),
            2.0 => x.mul(&x)?,
            _ => size.pow(p)?,
        };
        let sum = powers.reduce(ReduceOp::Sum, dims, keepdim)?;
        if !sum.node.tracked {
            return sum.root(p);
        }
        // At 0 a root is infinitely steep; the gradient of the norm there is 0, as PyTorch's.
        let zero = sum.eq(Lit(0.0))?;
        let other = zero.where_(Lit(1.0), &sum)?.root(p)?;
        zero.where_(Lit(0.0), &other)
    }

    /// The `p`th root.
    #[track_caller]
    fn root(&self, p: f64) -> TensorResult<Tensor> {
        if p == 2.0 { self.sqrt() } else { self.pow(1.0 / p) }
    }
}

macro_rules! reductions {
    ($($doc:literal $all:ident $name:ident $op:ident, $total:expr, $rows:expr;)*) => { impl Tensor { $(
        #[doc = concat!($doc, " over dimensions `dims`; over all, if empty. `[A,N,B]` over 1 → `[A,B]`, with `keepdim` `[A,1,B]`.")]
        ///
        /// # Errors
        /// When there is no such dimension; an extreme also when there is nothing to choose from.
        ///
        #[doc = concat!(
            "```\n# use tensorlogic::prelude::*;\nlet x = Tensor::new(&[[1.0, 2.0], [3.0, 4.0]], &Device::cpu())?;\n",
            "assert_eq!(x.", stringify!($name), "(&[1], false)?.to_vec()?, ", stringify!($rows), ");\n# Ok::<(), TensorError>(())\n```"
        )]
        #[track_caller]
        pub fn $name(&self, dims: &[isize], keepdim: bool) -> TensorResult<Tensor> {
            self.reduce(ReduceOp::$op, dims, keepdim)
        }
        #[doc = concat!($doc, " over all elements: `[…]` → `[]`.")]
        ///
        /// # Errors
        /// For an extreme when there are no elements.
        ///
        #[doc = concat!(
            "```\n# use tensorlogic::prelude::*;\nlet x = Tensor::new(&[[1.0, 2.0], [3.0, 4.0]], &Device::cpu())?;\n",
            "assert_eq!(x.", stringify!($all), "()?.item()?, ", stringify!($total), ");\n# Ok::<(), TensorError>(())\n```"
        )]
        #[track_caller]
        pub fn $all(&self) -> TensorResult<Tensor> {
            self.reduce(ReduceOp::$op, &[], false)
        }
    )* } };
}
reductions! {
    "The sum, accumulated in f32 (integers: i64 on the CPU, i32 on a GPU)," sum_all sum Sum, 10.0, [3.0, 7.0];
    "The mean, accumulated in f32," mean_all mean Mean, 2.5, [1.5, 3.5];
    "The largest element (NaN if one is NaN)" max_all max Max, 4.0, [2.0, 4.0];
    "The smallest element (NaN if one is NaN)" min_all min Min, 1.0, [1.0, 3.0];
    "The product" prod_all prod Prod, 24.0, [2.0, 12.0];
}

impl ReduceOp {
    /// PyTorch's name.
    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Mean => "mean",
            ReduceOp::Max => "max",
            ReduceOp::Min => "min",
            ReduceOp::Prod => "prod",
            ReduceOp::ArgMax => "argmax",
            ReduceOp::ArgMin => "argmin",
            ReduceOp::ArgMaxOrNone => "choice",
        }
    }
}
