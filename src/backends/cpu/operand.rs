//! What kernels ask about their operands: memory to use in place, strides, rows.

use crate::dtype::{DType, Element};
use crate::plan::{Buf, Load, SliceMut, Source, Task, Value};
use crate::scalar::Prim;

/// Load `k` as memory: where it is plain, row-major and stored in the type T.
pub fn slice<T: Element>(task: &dyn Task, k: usize) -> Option<&[T]> {
    let load = &task.step().loads[k];
    let source = load.plain()?;
    if source.dtype != T::DTYPE || !source.layout.is_contiguous() || source.buf == Buf::Iota {
        return None;
    }
    let raw = task.raw_load(k);
    // SAFETY: the backend checked that the elements lie within the buffer and aligned it; nobody writes a step's operands meanwhile.
    Some(unsafe { std::slice::from_raw_parts(raw.ptr.cast::<T>().add(raw.offset), load.shape.count()) })
}

/// Elements `start..start + len` of store `k` as memory: where it is plain and stored in the type T. No other thread may ask for them.
#[allow(clippy::mut_from_ref)]
pub fn target<T: Element>(task: &dyn Task, k: usize, start: usize, len: usize) -> Option<&mut [T]> {
    let store = &task.step().stores[k];
    let to = store.plain()?;
    if to.dtype != T::DTYPE || start + len > store.shape.count() {
        return None;
    }
    let raw = task.raw_store(k);
    // SAFETY: the backend checked that the elements lie within the buffer; each belongs to one thread.
    Some(unsafe { std::slice::from_raw_parts_mut(raw.ptr.cast::<T>().add(raw.offset + start), len) })
}

/// Load `k` as memory with strides: the first element and the strides of the logical shape's dimensions, where it is plain and of type T.
pub fn strided<T: Element>(task: &dyn Task, k: usize) -> Option<(*const T, [isize; 8])> {
    let load = &task.step().loads[k];
    let source = load.plain()?;
    if source.dtype != T::DTYPE || source.buf == Buf::Iota {
        return None;
    }
    let strides = source.layout.reshape(load.shape)?.strides;
    let raw = task.raw_load(k);
    Some((raw.ptr.cast::<T>().wrapping_add(raw.offset).cast_const(), strides))
}

/// What a load reads as it lies in memory: a plain source, or bf16 that is read as f32.
pub fn stored(load: &Load) -> Option<&Source> {
    let widened = match &load.program.insts[..] {
        [read, cast] => read.op == Prim::Source(0) && read.dtype == DType::BF16 && cast.op == Prim::Cast && cast.dtype == DType::F32,
        _ => false,
    };
    load.plain().or_else(|| widened.then(|| &load.sources[0])).filter(|s| s.buf != Buf::Iota)
}

/// Whether load `k` has numbers of bf16 only: stored so, or rounded to them.
pub fn is_bf16(task: &dyn Task, k: usize) -> bool {
    let load = &task.step().loads[k];
    load.program.rounds_to_bf16() || stored(load).is_some_and(|s| s.dtype == DType::BF16)
}

/// How far behind a row memory is fetched while the row is computed: rows of several kernels pass over each row more than once, so the next
/// one should be there at once; of long rows, which do not stay in the L1 cache, only the next elements.
pub fn ahead(cols: usize) -> usize {
    if (1024..=4096).contains(&cols) { cols } else { 1024 }
}

/// Scratch as values.
#[allow(clippy::mut_from_ref)] // each call gives other memory
pub fn values<T: Value + Element>(task: &dyn Task, count: usize) -> &mut [T] {
    let bytes = task.scratch(count * size_of::<T>());
    // SAFETY: scratch is aligned to 64 bytes and as long as asked, and any bits are values of these types.
    unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), count) }
}

/// Elements `start..start + buffer.len()` of load `k`, in place where that is possible.
pub fn piece<'b, T: Value + Element>(task: &dyn Task, k: usize, whole: Option<&'b [T]>, start: usize, buffer: &'b mut [T]) -> &'b [T] {
    match whole {
        Some(whole) => &whole[start..start + buffer.len()],
        None => {
            task.load(k, start, T::slice_mut(buffer));
            buffer
        }
    }
}

/// A counting sort of the positions `0..count` by their index below `n`, which load `k` has: those of index r are
/// `starts[r]..starts[r + 1]` of `order`. There are n + 2 starts.
pub fn by_index(task: &dyn Task, k: usize, n: usize, count: usize, starts: &mut [u32], order: &mut [u32]) {
    starts.fill(0);
    let each = |f: &mut dyn FnMut(usize, usize)| {
        let mut i = 0;
        let mut wide = [0i64; 256];
        while i < count {
            let len = wide.len().min(count - i);
            read(task, k, i, &mut wide[..len]);
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

fn read(task: &dyn Task, k: usize, start: usize, out: &mut [i64]) {
    macro_rules! lane {
        ($t:ty, $v:ident) => {{
            let mut x = [0 as $t; 256];
            task.load(k, start, SliceMut::$v(&mut x[..out.len()]));
            out.iter_mut().zip(&x).for_each(|(o, &x)| *o = x as i64);
        }};
    }
    match task.step().loads[k].dtype().compute() {
        DType::I64 => lane!(i64, I64),
        DType::U64 => lane!(u64, U64),
        DType::U32 => lane!(u32, U32),
        _ => lane!(i32, I32),
    }
}
