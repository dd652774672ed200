//! Rows combined with those of a table by index, in order and without atomics, so that results are the same bits every time.

pub(crate) mod gpu;
#[cfg(all(test, feature = "gpu"))]
mod tests;

use crate::backends::cpu::operand::{by_index, values};
use crate::backends::cpu::{share, vector::Real};
use crate::dtype::DType;
use crate::dtype::Element;
use crate::error::{TensorError, TensorResult};
use crate::layout::Layout;
use crate::ops::Lit;
use crate::plan::{AdapterInfo, Kernel, Step, Task, Value, Wgsl};
use crate::shape::{Shape, SignedIndex, dim};
use crate::tensor::{Grads, Key, Lowered, Meta, Mode, Op, Tensor, Vjp};
use std::panic::Location;
use std::sync::Arc;

/// What an entry becomes when another one is named for its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Combine {
    /// The sum.
    Add,
    /// The other one: of several, the last.
    Set,
    /// The product.
    Mul,
    /// The smaller.
    Min,
    /// The larger.
    Max,
}

impl Combine {
    /// The operation's name with an index for each row.
    fn name(self) -> &'static str {
        match self {
            Combine::Add => "index_add",
            Combine::Set => "index_copy",
            Combine::Mul => "index_mul",
            Combine::Min => "index_min",
            Combine::Max => "index_max",
        }
    }
}

/// Table `[n, inner]`, indices `[count]` and rows `[count, inner]` to `[n, inner]`.
#[derive(Clone, Debug)]
pub struct IndexAddKernel(pub Combine);

/// Numbers that can be combined.
trait Entry: Value + Element {
    /// y ← y with x.
    fn combine(how: Combine, y: &mut [Self], x: &[Self]);
}
macro_rules! entry {
    ($($t:ty: $add:expr, $mul:expr, $nan:expr;)*) => { $(impl Entry for $t {
        fn combine(how: Combine, y: &mut [$t], x: &[$t]) {
            let each = |y: &mut [$t], f: &dyn Fn($t, $t) -> $t| y.iter_mut().zip(x).for_each(|(y, &x)| *y = f(*y, x));
            match how {
                Combine::Add => $add(y, x),
                Combine::Set => y.copy_from_slice(x),
                Combine::Mul => each(y, &$mul),
                Combine::Min => each(y, &|y, x| if $nan(y) || y < x { y } else { x }),
                Combine::Max => each(y, &|y, x| if $nan(y) || y > x { y } else { x }),
            }
        }
    })* };
}
macro_rules! wrapping {
    ($t:ty) => {
        |y: &mut [$t], x: &[$t]| y.iter_mut().zip(x).for_each(|(y, &x)| *y = y.wrapping_add(x))
    };
}
entry! {
    f32: |y, x| f32::axpy(y, 1.0, x), |y, x| y * x, f32::is_nan;
    f64: |y, x| f64::axpy(y, 1.0, x), |y, x| y * x, f64::is_nan;
    i32: wrapping!(i32), i32::wrapping_mul, |_| false;
    u32: wrapping!(u32), u32::wrapping_mul, |_| false;
    i64: wrapping!(i64), i64::wrapping_mul, |_| false;
    u64: wrapping!(u64), u64::wrapping_mul, |_| false;
}

impl IndexAddKernel {
    fn run<T: Entry>(&self, task: &dyn Task) {
        let step = task.step();
        let (n, inner) = (step.loads[0].shape[0], step.loads[0].shape[1]);
        let count = step.loads[1].shape.count();
        // Rows by index, in their order: `starts[r]..starts[r + 1]` of `order` are the rows that are added to row r.
        let size = (n + 2 + count) * size_of::<u32>();
        let lists = task.shared(size).cast::<u32>();
        if task.thread() == 0 {
            // SAFETY: the memory has this size, and only this thread uses it before the barrier.
            let (starts, order) = unsafe { std::slice::from_raw_parts_mut(lists, n + 2 + count) }.split_at_mut(n + 2);
            by_index(task, 1, n, count, starts, order);
        }
        task.barrier();
        // SAFETY: written before the barrier, and not any more.
        let (starts, order) = unsafe { std::slice::from_raw_parts(lists, n + 2 + count) }.split_at(n + 2);
        let (sum, row): (&mut [T], &mut [T]) = (values(task, inner), values(task, inner));
        for r in share(n, (4096 / inner.max(1)).max(1), task.thread(), task.threads()) {
            task.load(0, r * inner, T::slice_mut(sum));
            for &i in &order[starts[r] as usize..starts[r + 1] as usize] {
                task.load(2, i as usize * inner, T::slice_mut(row));
                T::combine(self.0, sum, row);
            }
            task.store(0, r * inner, T::slice_mut(sum));
        }
    }
}

impl Kernel for IndexAddKernel {
    fn cpu(&self, task: &dyn Task) {
        match task.step().loads[0].dtype().compute() {
            DType::F64 => self.run::<f64>(task),
            DType::I64 => self.run::<i64>(task),
            DType::U64 => self.run::<u64>(task),
            DType::I32 => self.run::<i32>(task),
            DType::U32 => self.run::<u32>(task),
            _ => self.run::<f32>(task),
        }
    }
    fn ops(&self, step: &Step) -> u64 {
        step.loads[2].shape.count() as u64
    }
    fn wgsl(&self, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
        gpu::index_add(self.0, step, adapter)
    }
}

struct IndexAdd {
    dim: usize,
    how: Combine,
}

impl Op for IndexAdd {
    fn name(&self) -> &'static str {
        self.how.name()
    }
    fn key(&self, key: &mut Key) {
        key.word(self.dim as u64).word(self.how as u64);
    }
    fn define(&self, _: &[Tensor]) -> Option<TensorResult<Tensor>> {
        None
    }
    fn lower(&self, inputs: &[Meta], outputs: &[Meta]) -> Lowered {
        let first = |s: Shape| {
            let mut order: Vec<usize> = (0..s.rank()).collect();
            order.remove(self.dim);
            order.insert(0, self.dim);
            let inner: usize = (0..s.rank()).filter(|&d| d != self.dim).map(|d| s[d]).product();
            (Layout::contiguous(s).permute(&order), Shape::of(&[s[self.dim], inner]))
        };
        let (table, table_shape) = first(inputs[0].shape);
        let (rows, rows_shape) = first(inputs[2].shape);
        let (out, out_shape) = first(outputs[0].shape);
        Lowered::Kernel {
            kernel: Arc::new(IndexAddKernel(self.how)),
            loads: vec![(0, table, table_shape), (1, Layout::contiguous(inputs[1].shape), inputs[1].shape), (2, rows, rows_shape)],
            stores: vec![(0, out, out_shape)],
        }
    }
    fn grad(&self, v: &Vjp) -> Option<TensorResult<Grads>> {
        let (table, index, rows, g) = (&v.inputs[0], &v.inputs[1], &v.inputs[2], v.grad());
        let d = self.dim;
        let picked = |t: &Tensor| t.index_select(d, index);
        let run = || {
            let (table, rows) = match self.how {
                Combine::Add => (g.clone(), picked(g)?),
                Combine::Set => (g.index_copy(d, index, &rows.zeros_like()?)?, picked(g)?),
                // Shared evenly by all that are equal to the result.
                Combine::Min | Combine::Max => {
                    let out = &v.outputs[0];
                    let (own, others) = (table.rounded()?.eq(out)?.cast(g.dtype())?, rows.rounded()?.eq(&picked(out)?)?.cast(g.dtype())?);
                    let part = g.div(&own.index_add(d, index, &others)?)?;
                    (own.mul(&part)?, others.mul(&picked(&part)?)?)
                }
                // The product of the others: without a zero among them the result over the entry, with one it is there only for the zero.
                Combine::Mul => {
                    let zero = |t: &Tensor| t.eq(0.0);
                    let filled = |t: &Tensor| zero(t)?.where_(Lit(1.0), t);
                    let product = filled(table)?.combine(d, index, &filled(rows)?, Combine::Mul)?;
                    let zeros = zero(table)?.cast(g.dtype())?.index_add(d, index, &zero(rows)?.cast(g.dtype())?)?;
                    let alone = zeros.eq(1.0)?.where_(&product.mul(g)?, Lit(0.0))?;
                    let none = zeros.eq(0.0)?.where_(&product.mul(g)?, Lit(0.0))?;
                    let rest = |t: &Tensor, alone: &Tensor, none: &Tensor| zero(t)?.where_(alone, &none.div(&filled(t)?)?);
                    (rest(table, &alone, &none)?, rest(rows, &picked(&alone)?, &picked(&none)?)?)
                }
            };
            Ok(vec![Some(table), None, Some(rows)])
        };
        Some(run())
    }
}

impl Tensor {
    /// This tensor with entry `i` of `rows`' dimension `d` added to the entry that `index[i]` names, in order; an entry may be named more than
    /// once. `index` holds integers, one per entry of `rows`. A bad index is an error of the evaluation.
    /// `[…,N,…]` with `[K]` and rows `[…,K,…]` → `[…,N,…]`.
    ///
    /// # Errors
    /// When the shapes do not fit, or the index is not of one dimension.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], &Device::cpu())?;
    /// let index = Tensor::new(&[0, 0], &Device::cpu())?;
    /// let rows = Tensor::new(&[[10.0, 10.0], [20.0, 20.0]], &Device::cpu())?;
    /// assert_eq!(x.index_add(0, &index, &rows)?.to_vec()?, [31.0, 32.0, 3.0, 4.0, 5.0, 6.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn index_add(&self, d: impl SignedIndex, index: &Tensor, rows: &Tensor) -> TensorResult<Tensor> {
        self.combine(d, index, rows, Combine::Add)
    }

    /// This tensor with entry `i` of `rows`' dimension `d` in the place of the entry that `index[i]` names; of several for one place the last.
    /// `[…,N,…]` with `[K]` and rows `[…,K,…]` → `[…,N,…]`.
    ///
    /// # Errors
    /// As for [`Tensor::index_add`].
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], &Device::cpu())?;
    /// let index = Tensor::new(&[2], &Device::cpu())?;
    /// let rows = Tensor::new(&[[0.0, 9.0]], &Device::cpu())?;
    /// assert_eq!(x.index_copy(0, &index, &rows)?.to_vec()?, [1.0, 2.0, 3.0, 4.0, 0.0, 9.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn index_copy(&self, d: impl SignedIndex, index: &Tensor, rows: &Tensor) -> TensorResult<Tensor> {
        self.combine(d, index, rows, Combine::Set)
    }

    /// This tensor with each element of `source` combined with the element of dimension `d` at the same place of `index`, and otherwise at the
    /// same place: the opposite of [`Tensor::gather`]. `index` has as many dimensions as both, is nowhere larger than `source`, and larger than
    /// this tensor in `d` only. Elements for the same place are taken in order. A bad index is an error of the evaluation.
    /// `[…,N,…]` with `index` and `source` of `[…,K,…]` → `[…,N,…]`.
    ///
    /// # Errors
    /// When the shapes do not fit, or the index does not hold integers.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1.0, 2.0, 3.0], &Device::cpu())?;
    /// let index = Tensor::new(&[0, 2], &Device::cpu())?;
    /// let source = Tensor::new(&[7.0, 8.0], &Device::cpu())?;
    /// assert_eq!(x.scatter(0, &index, &source, Combine::Max)?.to_vec()?, [7.0, 2.0, 8.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn scatter(&self, d: impl SignedIndex, index: &Tensor, source: &Tensor, how: Combine) -> TensorResult<Tensor> {
        let at = Location::caller();
        let k = dim(d, self.rank(), "scatter", at)?;
        let n = self.rank();
        let fits = index.rank() == n
            && source.rank() == n
            && (0..n).all(|i| index.shape()[i] <= source.shape()[i] && (i == k || index.shape()[i] <= self.shape()[i]));
        if !fits || !index.dtype().is_int() {
            let m = format!(
                "{}{} from {} into {}: expected integers of a matching shape",
                index.dtype(),
                index.shape(),
                source.shape(),
                self.shape()
            );
            return Err(TensorError::shape("scatter", at, m));
        }
        let run = || {
            let (place, mut part) = (self.places(k, index)?, source.clone());
            for (i, &size) in index.dims().iter().enumerate() {
                part = part.narrow(i, 0, size)?;
            }
            let sizes: smallvec::SmallVec<[usize; 8]> = self.dims().iter().copied().collect();
            let (flat, part) = (self.reshape(&[self.numel()])?, part.reshape(&[index.numel()])?);
            flat.combine(0, &place, &part, how)?.reshape(&sizes)
        };
        Mode { at: Some(at), ..Mode::current() }.run(run)
    }

    #[track_caller]
    fn combine(&self, d: impl SignedIndex, index: &Tensor, rows: &Tensor, how: Combine) -> TensorResult<Tensor> {
        let at = Location::caller();
        let op = how.name();
        let k = dim(d, self.rank(), op, at)?;
        if self.rank() == 0 && rows.rank() == 0 && index.numel() == 1 {
            return self.unsqueeze(0)?.combine(0, &index.reshape(&[1])?, &rows.unsqueeze(0)?, how)?.squeeze(0);
        }
        self.size_for(op, k, at)?;
        if index.rank() != 1 || !index.dtype().is_int() || self.dtype().is_block() || self.dtype() == DType::Bool {
            let m = format!("{} by {}{}: expected numbers and a one-dimensional integer index", self.dtype(), index.dtype(), index.shape());
            return Err(TensorError::dtype(op, at, m));
        }
        let fits =
            rows.rank() == self.rank() && (0..self.rank()).all(|i| rows.shape()[i] == if i == k { index.numel() } else { self.shape()[i] });
        if !fits {
            let m = format!("{} entries of {} by {} do not fit {}", index.numel(), rows.shape(), index.shape(), self.shape());
            return Err(TensorError::shape(op, at, m));
        }
        if index.numel() == 0 {
            return Ok(self.clone());
        }
        let rows = if rows.dtype().compute() == self.dtype().compute() { rows.clone() } else { rows.cast(self.dtype())? };
        let inputs = smallvec::smallvec![self.clone(), index.clone(), rows];
        Tensor::op1(IndexAdd { dim: k, how }, inputs, Default::default(), self.meta(), at)
    }
}
