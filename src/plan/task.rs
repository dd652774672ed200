//! A kernel's view of one step on the CPU: its share of the threads, its operands and scratch.

use super::Step;

/// Values in the type a program computes in.
pub enum SliceMut<'a> {
    /// f32, f16, bf16 and block formats.
    F32(&'a mut [f32]),
    /// f64.
    F64(&'a mut [f64]),
    /// i32, i16, u16, i8, u8.
    I32(&'a mut [i32]),
    /// u32 and bool.
    U32(&'a mut [u32]),
    /// i64.
    I64(&'a mut [i64]),
    /// u64.
    U64(&'a mut [u64]),
}

/// Rust types that programs compute in.
pub trait Value: Copy + Default + Send + Sync + PartialOrd + 'static {
    /// The slice as a `SliceMut`.
    fn slice_mut(v: &mut [Self]) -> SliceMut<'_>;
}

macro_rules! value {
    ($($t:ty = $v:ident),*) => { $(impl Value for $t { fn slice_mut(v: &mut [Self]) -> SliceMut<'_> { SliceMut::$v(v) } })* };
}

value!(f32 = F32, f64 = F64, i32 = I32, u32 = U32, i64 = I64, u64 = U64);

/// Memory of a plain operand on the CPU.
#[derive(Clone, Copy)]
pub struct Raw {
    /// The first byte of the buffer.
    pub ptr: *mut u8,
    /// Bytes in the buffer.
    pub len: usize,
    /// The first element, constant and run-time part together.
    pub offset: usize,
}

/// One thread's view of a step on the CPU.
pub trait Task {
    /// The step.
    fn step(&self) -> &Step;
    /// This thread's number.
    fn thread(&self) -> usize;
    /// Threads that run this step.
    fn threads(&self) -> usize;
    /// Waits until every thread of the step is here.
    fn barrier(&self);
    /// Elements `start..start + out.len()` of load `k`. The lane must be of the load's compute type.
    fn load(&self, k: usize, start: usize, out: SliceMut<'_>);
    /// Writes elements `start..` of store `k`; the values are used as scratch.
    fn store(&self, k: usize, start: usize, values: SliceMut<'_>);
    /// Memory of load `k`'s source 0.
    fn raw_load(&self, k: usize) -> Raw;
    /// Memory of store `k`'s target.
    fn raw_store(&self, k: usize) -> Raw;
    /// The kernel's `n`-th run-time parameter.
    fn param(&self, n: usize) -> f64;
    /// Scratch of this thread, at least `bytes` long and 64-byte aligned; its content is arbitrary. One piece per call of the kernel.
    #[allow(clippy::mut_from_ref)] // each call gives other memory
    fn scratch(&self, bytes: usize) -> &mut [u8];
    /// Scratch shared by the threads of the step: the same `bytes` for all, 64-byte aligned.
    fn shared(&self, bytes: usize) -> *mut u8;
    /// Reports an index outside its dimension; the run goes on and its read-back gives the error.
    fn fail(&self, index: i64, size: usize);
}
