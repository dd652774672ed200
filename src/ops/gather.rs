//! Rows of a table by index.

use crate::backends::cpu::operand::{slice, values};
use crate::backends::cpu::share;
use crate::dtype::{DType, Element};
use crate::plan::{AdapterInfo, Kernel, Step, Task, Value, Wgsl};

/// Table `[n, inner]` and indices `[count]` to `[count, inner]`.
#[derive(Clone, Debug)]
pub struct GatherKernel;

/// Elements that are moved at a time.
const PIECE: usize = 4096;

impl GatherKernel {
    fn run<T: Value + Element>(&self, task: &dyn Task) {
        let step = task.step();
        let (n, inner) = (step.loads[0].shape[0], step.loads[0].shape[1]);
        let count = step.loads[1].shape.count();
        // Short rows are collected, so that the store's program runs over more than a few elements.
        let batch = (PIECE / inner.max(1)).max(1);
        let buffer: &mut [T] = values(task, inner.min(PIECE) * batch);
        let mut indices = Indices::new(task);
        for first in share(count, batch, task.thread(), task.threads()).step_by(batch) {
            let rows = batch.min(count - first);
            for start in (0..inner).step_by(PIECE) {
                let len = PIECE.min(inner - start);
                for i in 0..rows {
                    let index = indices.get(first + i);
                    if index < 0 || index as u64 >= n as u64 {
                        task.fail(index, n);
                    }
                    let row = index.clamp(0, (n as i64 - 1).max(0)) as usize;
                    let out = &mut buffer[i * len..(i + 1) * len];
                    if n > 0 {
                        task.load(0, row * inner + start, T::lane(out));
                    } else {
                        out.fill(T::default());
                    }
                }
                // Pieces of a long row are stored one by one; then there is one row.
                task.store(0, first * inner + start, T::lane(&mut buffer[..rows * len]));
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
        for i in share(step.loads[1].shape.count(), (4 * PIECE / bytes.max(1)).max(1), task.thread(), task.threads()) {
            let index = indices.get(i);
            if index < 0 || index as u64 >= n as u64 {
                task.fail(index, n);
            }
            let row = index.clamp(0, n as i64 - 1) as usize;
            // SAFETY: the machine checked that both operands lie within their buffers; each row is written by one thread.
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
                    self.task.load(1, i, <$t>::lane(&mut lane[..n]));
                    self.buffer[..n].iter_mut().zip(&lane).for_each(|(o, &x)| *o = x as i64);
                }};
            }
            match self.dtype {
                DType::I32 => read!(i32),
                DType::U32 => read!(u32),
                DType::I64 => read!(i64),
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
            _ => self.run::<f32>(task),
        }
    }
    fn ops(&self, step: &Step) -> u64 {
        step.stores[0].shape.count() as u64
    }
    fn wgsl(&self, _step: &Step, _adapter: &AdapterInfo) -> Option<Wgsl> {
        None
    }
}
