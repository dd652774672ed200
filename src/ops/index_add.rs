//! Rows added to a table by index: the transpose of `index_select`, without atomics, so that results are the same bits every time.

use crate::backends::cpu::operand::values;
use crate::backends::cpu::{share, vector::Real};
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::layout::Layout;
use crate::plan::{AdapterInfo, Kernel, Lane, Step, Task, Wgsl};
use crate::shape::{Shape, dim};
use crate::tensor::{Grads, Key, Lowered, Meta, Op, Tensor, Vjp};
use std::panic::Location;
use std::sync::Arc;

/// Table `[n, inner]`, indices `[count]` and rows `[count, inner]` to `[n, inner]`.
#[derive(Clone, Debug)]
pub struct IndexAddKernel;

impl IndexAddKernel {
    fn run<T: Real>(&self, task: &dyn Task) {
        let step = task.step();
        let (n, inner) = (step.loads[0].shape[0], step.loads[0].shape[1]);
        let count = step.loads[1].shape.count();
        // Rows by index, in their order: `starts[r]..starts[r + 1]` of `order` are the rows that are added to row r.
        let size = (n + 2 + count) * size_of::<u32>();
        let lists = task.shared(size).cast::<u32>();
        if task.thread() == 0 {
            // SAFETY: the memory has this size, and only this thread uses it before the barrier.
            let (starts, order) = unsafe { std::slice::from_raw_parts_mut(lists, n + 2 + count) }.split_at_mut(n + 2);
            sort(task, n, count, starts, order);
        }
        task.barrier();
        // SAFETY: written before the barrier, and not any more.
        let (starts, order) = unsafe { std::slice::from_raw_parts(lists, n + 2 + count) }.split_at(n + 2);
        let (sum, row): (&mut [T], &mut [T]) = (values(task, inner), values(task, inner));
        for r in share(n, (4096 / inner.max(1)).max(1), task.thread(), task.threads()) {
            task.load(0, r * inner, T::lane(sum));
            for &i in &order[starts[r] as usize..starts[r + 1] as usize] {
                task.load(2, i as usize * inner, T::lane(row));
                T::axpy(sum, T::of(1.0), row);
            }
            task.store(0, r * inner, T::lane(sum));
        }
    }
}

/// A counting sort of the positions `0..count` by their index.
fn sort(task: &dyn Task, n: usize, count: usize, starts: &mut [u32], order: &mut [u32]) {
    starts.fill(0);
    let each = |f: &mut dyn FnMut(usize, usize)| {
        let mut i = 0;
        let mut wide = [0i64; 256];
        while i < count {
            let len = wide.len().min(count - i);
            read(task, i, &mut wide[..len]);
            for &index in &wide[..len] {
                if index < 0 || index as usize >= n {
                    task.fail(index, n);
                } else {
                    f(i, index as usize);
                }
                i += 1;
            }
        }
    };
    // starts[r + 2] counts row r, then the sums make starts[r + 1] the place where row r begins; filling moves it to where it ends.
    each(&mut |_, r| starts[r + 2] += 1);
    for r in 2..n + 2 {
        starts[r] += starts[r - 1];
    }
    each(&mut |i, r| {
        order[starts[r + 1] as usize] = i as u32;
        starts[r + 1] += 1;
    });
}

fn read(task: &dyn Task, start: usize, out: &mut [i64]) {
    macro_rules! lane {
        ($t:ty, $v:ident) => {{
            let mut x = [0 as $t; 256];
            task.load(1, start, Lane::$v(&mut x[..out.len()]));
            out.iter_mut().zip(&x).for_each(|(o, &x)| *o = x as i64);
        }};
    }
    match task.step().loads[1].dtype().compute() {
        DType::I64 => lane!(i64, I64),
        DType::U32 => lane!(u32, U32),
        _ => lane!(i32, I32),
    }
}

impl Kernel for IndexAddKernel {
    fn cpu(&self, task: &dyn Task) {
        match task.step().loads[0].dtype().compute() {
            DType::F64 => self.run::<f64>(task),
            _ => self.run::<f32>(task),
        }
    }
    fn ops(&self, step: &Step) -> u64 {
        step.loads[2].shape.count() as u64
    }
    fn wgsl(&self, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
        crate::ops::gpu::index_add(step, adapter)
    }
}

struct IndexAdd {
    dim: usize,
}

impl Op for IndexAdd {
    fn name(&self) -> &'static str {
        "index_add"
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
            let inner: usize = (0..s.rank()).filter(|&d| d != self.dim).map(|d| s[d]).product();
            (Layout::contiguous(s).permute(&order), Shape::of(&[s[self.dim], inner]))
        };
        let (table, table_shape) = first(inputs[0].shape);
        let (rows, rows_shape) = first(inputs[2].shape);
        let (out, out_shape) = first(outputs[0].shape);
        Lowered::Kernel {
            kernel: Arc::new(IndexAddKernel),
            loads: vec![(0, table, table_shape), (1, Layout::contiguous(inputs[1].shape), inputs[1].shape), (2, rows, rows_shape)],
            stores: vec![(0, out, out_shape)],
        }
    }
    fn grad(&self, v: &Vjp) -> Option<TensorResult<Grads>> {
        let rows = v.grad().index_select(self.dim as isize, &v.inputs[1]);
        Some(rows.map(|r| vec![Some(v.grad().clone()), None, Some(r)]))
    }
}

impl Tensor {
    /// This tensor with entry `i` of `rows`' dimension `d` added to the entry that `index[i]` names, in order; an entry may be named more than
    /// once. `index` holds integers, one per entry of `rows`. Floats only. A bad index is an error of the evaluation.
    #[track_caller]
    pub fn index_add(&self, d: isize, index: &Tensor, rows: &Tensor) -> TensorResult<Tensor> {
        let at = Location::caller();
        let k = dim(d, self.rank(), "index_add", at)?;
        self.size_for("index_add", k, at)?;
        if index.rank() != 1 || !index.dtype().is_int() || !self.dtype().is_float() || self.dtype().is_block() {
            let m = format!("{} by {}{}: want floats and one-dimensional integers", self.dtype(), index.dtype(), index.shape());
            return Err(TensorError::dtype("index_add", at, m));
        }
        let fits =
            rows.rank() == self.rank() && (0..self.rank()).all(|i| rows.shape()[i] == if i == k { index.numel() } else { self.shape()[i] });
        if !fits {
            let m = format!("{} entries of {} by {} do not fit {}", index.numel(), rows.shape(), index.shape(), self.shape());
            return Err(TensorError::shape("index_add", at, m));
        }
        if index.numel() == 0 {
            return Ok(self.clone());
        }
        let rows = if rows.dtype().compute() == self.dtype().compute() { rows.clone() } else { rows.cast_at(self.dtype(), at)? };
        Tensor::op1(IndexAdd { dim: k }, smallvec::smallvec![self.clone(), index.clone(), rows], Default::default(), self.meta(), at)
    }
}
