//! Rows of a table by index.

pub(crate) mod gpu;
#[cfg(all(test, feature = "gpu"))]
mod tests;

use crate::backends::cpu::operand::{slice, values};
use crate::backends::cpu::share;
use crate::dtype::{DType, Element};
use crate::error::{At, TensorError, TensorResult};
use crate::layout::Layout;
use crate::plan::{AdapterInfo, Kernel, Step, Task, Value, Wgsl};
use crate::shape::{Shape, SignedIndex, dim};
use crate::tensor::{Grads, Key, Lowered, Meta, Mode, Op, Tensor, Vjp};
use std::panic::Location;
use std::sync::Arc;

/// Table `[n, inner]` and indices `[count]` to `[count, inner]`.
#[derive(Clone, Debug)]
pub struct GatherKernel;

/// Elements that are moved at a time.
const ELEMENTS_PER_PASS: usize = 4096;

impl GatherKernel {
    fn run<T: Value + Element>(&self, task: &dyn Task) {
        let step = task.step();
        let (n, inner) = (step.loads[0].shape[0], step.loads[0].shape[1]);
        let count = step.loads[1].shape.count();
        // Short rows are collected, so that the store's program runs over more than a few elements.
        let batch = (ELEMENTS_PER_PASS / inner.max(1)).max(1);
        let buffer: &mut [T] = values(task, inner.min(ELEMENTS_PER_PASS) * batch);
        let mut indices = Indices::new(task);
        for first in share(count, batch, task.thread(), task.threads()).step_by(batch) {
            let rows = batch.min(count - first);
            for start in (0..inner).step_by(ELEMENTS_PER_PASS) {
                let len = ELEMENTS_PER_PASS.min(inner - start);
                for i in 0..rows {
                    let index = indices.get(first + i);
                    if index < 0 || index as u64 >= n as u64 {
                        task.fail(index, n);
                    }
                    let row = index.clamp(0, (n as i64 - 1).max(0)) as usize;
                    let out = &mut buffer[i * len..(i + 1) * len];
                    if n > 0 {
                        task.load(0, row * inner + start, T::slice_mut(out));
                    } else {
                        out.fill(T::default());
                    }
                }
                // Pieces of a long row are stored one by one; then there is one row.
                task.store(0, first * inner + start, T::slice_mut(&mut buffer[..rows * len]));
            }
        }
    }

    /// Copies rows as they are stored, where nothing else is to be done.
    fn copy(&self, task: &dyn Task) -> bool {
        let step = task.step();
        let (load, store) = (&step.loads[0], &step.stores[0]);
        let (Some(from), Some(to)) = (load.plain(), store.plain()) else { return false };
        if from.dtype != to.dtype || from.dtype.is_block() || !from.layout.is_contiguous() || load.shape[0] == 0 {
            return false;
        }
        let (n, bytes, size) = (load.shape[0], load.shape[1] * from.dtype.block_bytes(), from.dtype.block_bytes());
        let (source, target) = (task.raw_load(0), task.raw_store(0));
        let mut indices = Indices::new(task);
        for i in share(step.loads[1].shape.count(), (4 * ELEMENTS_PER_PASS / bytes.max(1)).max(1), task.thread(), task.threads()) {
            let index = indices.get(i);
            if index < 0 || index as u64 >= n as u64 {
                task.fail(index, n);
            }
            let row = index.clamp(0, n as i64 - 1) as usize;
            // SAFETY: the backend checked that both operands lie within their buffers; each row is written by one thread.
            unsafe {
                let (from, to) = (source.ptr.add(source.offset * size + row * bytes), target.ptr.add(target.offset * size + i * bytes));
                std::ptr::copy(from, to, bytes);
            }
        }
        true
    }
}

/// Indices, read a few at a time.
struct Indices<'a> {
    task: &'a dyn Task,
    dtype: DType,
    count: usize,
    known: std::ops::Range<usize>,
    buffer: [i64; 64],
    whole: Option<&'a [i32]>,
}

impl<'a> Indices<'a> {
    fn new(task: &'a dyn Task) -> Indices<'a> {
        let load = &task.step().loads[1];
        let (dtype, count) = (load.dtype().compute(), load.shape.count());
        Indices { task, dtype, count, known: 0..0, buffer: [0; 64], whole: slice::<i32>(task, 1) }
    }
    fn get(&mut self, i: usize) -> i64 {
        if let Some(whole) = self.whole {
            return whole[i] as i64;
        }
        if !self.known.contains(&i) {
            let n = (self.count - i).min(64);
            self.known = i..i + n;
            macro_rules! read {
                ($t:ty) => {{
                    let mut lane = [0 as $t; 64];
                    self.task.load(1, i, <$t>::slice_mut(&mut lane[..n]));
                    self.buffer[..n].iter_mut().zip(&lane).for_each(|(o, &x)| *o = x as i64);
                }};
            }
            match self.dtype {
                DType::I32 => read!(i32),
                DType::U32 => read!(u32),
                DType::I64 => read!(i64),
                DType::U64 => read!(u64),
                DType::F64 => read!(f64),
                _ => read!(f32),
            }
        }
        self.buffer[i - self.known.start]
    }
}

impl Kernel for GatherKernel {
    fn cpu(&self, task: &dyn Task) {
        if self.copy(task) {
            return;
        }
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
        step.stores[0].shape.count() as u64
    }
    fn wgsl(&self, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
        gpu::gather(step, adapter)
    }
}

/// Rows of a table by index, along a dimension.
struct Gather {
    dim: usize,
}

impl Op for Gather {
    fn name(&self) -> &'static str {
        "index_select"
    }
    fn key(&self, key: &mut Key) {
        key.word(self.dim as u64);
    }
    fn define(&self, _: &[Tensor]) -> Option<TensorResult<Tensor>> {
        None
    }
    fn lower(&self, inputs: &[Meta], outputs: &[Meta]) -> Lowered {
        let first = |s: Shape| {
            let mut order: Vec<usize> = (0..s.rank()).collect();
            order.remove(self.dim);
            order.insert(0, self.dim);
            let n = s[self.dim];
            let inner: usize = (0..s.rank()).filter(|&d| d != self.dim).map(|d| s[d]).product();
            (Layout::contiguous(s).permute(&order), Shape::of(&[n, inner]))
        };
        let (table, table_shape) = first(inputs[0].shape);
        let (out, out_shape) = first(outputs[0].shape);
        Lowered::Kernel {
            kernel: Arc::new(GatherKernel {}),
            loads: vec![(0, table, table_shape), (1, Layout::contiguous(inputs[1].shape), inputs[1].shape)],
            stores: vec![(0, out, out_shape)],
        }
    }
    fn grad(&self, v: &Vjp) -> Option<TensorResult<Grads>> {
        let zeros = v.inputs[0].zeros_like();
        Some(zeros.and_then(|z| z.index_add(self.dim, &v.inputs[1], v.grad())).map(|g| vec![Some(g), None]))
    }
}

impl Tensor {
    /// The entries of dimension `d` that `index` (integers, of one dimension or one number) names, in its order. A bad index is an error of the evaluation.
    /// `[…,N,…]` by `[K]` → `[…,K,…]`.
    ///
    /// # Errors
    /// When there is no such dimension, the index does not hold integers of one dimension, or names something in an empty dimension.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], &Device::cpu())?;
    /// let index = Tensor::new(&[2, 0], &Device::cpu())?;
    /// assert_eq!(x.index_select(0, &index)?.to_vec()?, [5.0, 6.0, 1.0, 2.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn index_select(&self, d: impl SignedIndex, index: &Tensor) -> TensorResult<Tensor> {
        let at = Location::caller();
        let k = dim(d, self.rank(), "index_select", at)?;
        if self.rank() == 0 && index.numel() == 1 {
            return self.unsqueeze(0)?.index_select(0, &index.reshape(&[1])?)?.squeeze(0);
        }
        if index.rank() == 0 {
            return self.index_select(d, &index.unsqueeze(0)?);
        }
        let size = self.size_for("index_select", k, at)?;
        if index.rank() != 1 || !index.dtype().is_int() {
            return Err(TensorError::dtype(
                "index_select",
                at,
                format!("the index is {}{}, not one-dimensional integers", index.dtype(), index.shape()),
            ));
        }
        if size == 0 && index.numel() > 0 {
            return Err(TensorError::shape("index_select", at, format!("dimension {k} of {} is empty", self.shape())));
        }
        if self.dtype().is_block() && k == self.rank() - 1 {
            return Err(TensorError::shape("index_select", at, format!("{} rows come in blocks; cast first", self.dtype())));
        }
        if let Some((dim, parts)) = self.parts() {
            return Mode { at: Some(at), ..Mode::current() }.run(|| self.select_of_parts(k, index, dim, parts, at));
        }
        let dtype = if self.dtype().is_block() { DType::F32 } else { self.dtype() };
        let shape = Shape::new(self.shape().with(k, index.numel()).dims(), "index_select", at)?;
        Tensor::op1(Gather { dim: k }, smallvec::smallvec![self.clone(), index.clone()], Default::default(), Meta { dtype, shape }, at)
    }

    /// [`Tensor::index_select`] of a tensor of parts: what each of them has, in the places of its own indices. A bad index is the first part's.
    fn select_of_parts(&self, k: usize, index: &Tensor, dim: usize, parts: &[Tensor], at: At) -> TensorResult<Tensor> {
        if dim != k {
            return Tensor::each_part((dim, parts), at, |part| part.index_select(k, index));
        }
        let mut sizes: smallvec::SmallVec<[usize; 8]> = smallvec::smallvec![1; self.rank()];
        sizes[k] = index.numel();
        Tensor::at_indices((dim, parts), index, |inside| inside.reshape(&sizes), |part, _, own| part.index_select(k, own))
    }

    /// For each element of `index`, the element of dimension `d` at that index and otherwise at the same place. `index` has as many
    /// dimensions as this tensor (none counts as one) and is nowhere larger but in `d`. A bad index is an error of the evaluation.
    /// `[…,N,…]` by `[…,K,…]` → `[…,K,…]`.
    ///
    /// # Errors
    /// When there is no such dimension, the shapes do not fit, or the index does not hold integers.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], &Device::cpu())?;
    /// let index = Tensor::new(&[[1], [0], [1]], &Device::cpu())?;
    /// assert_eq!(x.gather(1, &index)?.to_vec()?, [2.0, 3.0, 6.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn gather(&self, d: impl SignedIndex, index: &Tensor) -> TensorResult<Tensor> {
        let at = Location::caller();
        let k = dim(d, self.rank(), "gather", at)?;
        // One number counts as one dimension of size 1, here and there.
        if (self.rank() == 0 && index.rank() < 2 || self.rank() == 1 && index.rank() == 0) && index.dtype().is_int() {
            let sizes: smallvec::SmallVec<[usize; 1]> = index.dims().iter().copied().collect();
            return self.reshape(&[-1])?.index_select(0, &index.reshape(&[-1])?)?.reshape(&sizes);
        }
        let fits = index.rank() == self.rank() && (0..self.rank()).all(|i| i == k || index.shape()[i] <= self.shape()[i]);
        if !fits || !index.dtype().is_int() {
            let m = format!("the index is {}{} for {}: expected integers of a matching shape", index.dtype(), index.shape(), self.shape());
            return Err(TensorError::shape("gather", at, m));
        }
        let place = self.places(k, index)?;
        let sizes: smallvec::SmallVec<[usize; 8]> = index.dims().iter().copied().collect();
        self.reshape(&[self.numel()])?.index_select(0, &place)?.reshape(&sizes)
    }

    /// For `gather` and its opposite: the place of each picked element among all elements, or -1, which kernels report.
    #[track_caller]
    pub(crate) fn places(&self, k: usize, index: &Tensor) -> TensorResult<Tensor> {
        let wide = if self.device().supports(DType::I64) { DType::I64 } else { DType::I32 };
        if wide == DType::I32 && self.numel() > i32::MAX as usize {
            return Err(TensorError::Unsupported(format!("gather from {} elements here", self.numel())));
        }
        let size = self.shape().get(k).copied().unwrap_or(1) as i64;
        let index = index.cast(wide)?;
        let inside = index.ge(0i64)?.bitwise_and(&index.lt(size)?)?;
        let mut place = index.mul(Layout::contiguous(*self.shape()).strides[k] as i64)?;
        let strides = Layout::contiguous(*self.shape()).strides;
        for i in (0..self.rank()).filter(|&i| i != k) {
            let mut sizes: smallvec::SmallVec<[usize; 8]> = smallvec::smallvec![1; self.rank()];
            sizes[i] = index.shape()[i];
            let iota = Tensor::arange(0.0, index.shape()[i] as f64, 1.0, wide, self.device())?;
            place = place.add(&iota.mul(strides[i] as i64)?.reshape(&sizes)?)?;
        }
        inside.where_(&place, -1i64)?.flatten(0, -1)
    }

    /// Indices that count from the end of `size` entries where they are negative, as Python's: −1 becomes `size` − 1. `[…]` → `[…]`.
    ///
    /// # Errors
    /// When they are not integers.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let index = Tensor::new(&[0, -1], &Device::cpu())?;
    /// assert_eq!(index.wrap_negative(5)?.to_vec1::<i32>()?, [0, 4]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn wrap_negative(&self, size: usize) -> TensorResult<Tensor> {
        let at = Location::caller();
        if !self.dtype().is_int() {
            return Err(TensorError::dtype("wrap_negative", at, format!("the indices are {}, not integers", self.dtype())));
        }
        let moved = self.add(size as i64)?;
        self.lt(0)?.where_(&moved, self)
    }

    /// Rows of this `[V,D]` table for indices of any shape `[…]`: `[…,D]`.
    ///
    /// # Errors
    /// When this tensor is not `[V,D]`, or the index does not hold integers.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], &Device::cpu())?;
    /// let index = Tensor::new(&[[1, 1]], &Device::cpu())?;
    /// assert_eq!(x.embedding(&index)?.to_vec3::<f32>()?, [[[3.0, 4.0], [3.0, 4.0]]]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn embedding(&self, index: &Tensor) -> TensorResult<Tensor> {
        let at = Location::caller();
        if self.rank() != 2 {
            return Err(TensorError::shape("embedding", at, format!("the table is {}, not [V,D]", self.shape())));
        }
        let rows = self.index_select(0, &index.flatten(0, -1)?)?;
        let mut sizes: smallvec::SmallVec<[usize; 9]> = index.dims().iter().copied().collect();
        sizes.push(self.shape()[1]);
        rows.reshape(&sizes)
    }

    /// [`Tensor::embedding`] whose gradient leaves row `padding` alone, as PyTorch's `padding_idx`; a negative number counts from the end.
    /// `[V,D]` by `[…]` → `[…,D]`.
    ///
    /// # Errors
    /// As for [`Tensor::embedding`], or when there is no such row.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], &Device::cpu())?;
    /// let x = x.requires_grad()?;
    /// let index = Tensor::new(&[0, 2], &Device::cpu())?;
    /// x.embedding_with_padding(&index, -1)?.sum_all()?.backward()?;
    /// assert_eq!(x.grad().expect("collected").to_vec()?, [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn embedding_with_padding(&self, index: &Tensor, padding: isize) -> TensorResult<Tensor> {
        let at = Location::caller();
        let rows = self.embedding(index)?;
        let size = self.shape()[0] as isize;
        if padding < -size || padding >= size {
            return Err(TensorError::shape("embedding_with_padding", at, format!("row {padding} of {}", self.shape())));
        }
        let empty = index.eq(padding.rem_euclid(size) as i64)?.unsqueeze(-1)?;
        empty.where_(&rows.detach(), &rows)
    }
}
