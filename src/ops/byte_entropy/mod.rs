//! Shannon entropy of the window of bytes around each position.

pub(crate) mod gpu;
mod patches;
#[cfg(all(test, feature = "gpu"))]
mod tests;

pub use patches::PatchRule;

use crate::backends::cpu::operand::{slice, target, values};
use crate::backends::cpu::share;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::plan::{AdapterInfo, Kernel, Step, Task, Value, Wgsl};
use crate::shape::Shape;
use crate::tensor::{Grads, Key, Lowered, Meta, Op, Tensor, Vjp};
use std::panic::Location;
use std::sync::Arc;

/// The largest window, in bytes.
pub const MAX_WINDOW: usize = 65_536;
/// Positions that a thread of the CPU takes at a time, at least.
const MIN_POSITIONS_PER_PASS: usize = 16_384;
/// Operations for each byte: one enters the window, one leaves it.
const OPS: u64 = 12;

/// Bytes `[rows, cols]` and the steps of c·log2 c in fixed point to entropies `[rows, cols]`.
#[derive(Clone, Copy, Debug)]
pub struct ByteEntropyKernel {
    window: usize,
    scale: f32,
}

/// The function f(c) = c·log2 c at integers, in fixed point. With counts c and n = Σ c, a histogram's entropy is (f(n) − Σ f(c)) / n bits.
/// Sums of integers are exact, so that an entropy does not depend on how many bytes have passed through its window.
struct FixedPoint {
    /// f(c + 1) − f(c) for c from 0.
    steps: Vec<u32>,
    /// What makes a multiple of entropy, in units of 8 bits, of a number in fixed point.
    scale: f32,
}

impl FixedPoint {
    /// For histograms of at most `most` bytes: as many fractional bits as 32 bits have room for.
    fn new(most: usize) -> FixedPoint {
        let f = |c: usize| if c < 2 { 0.0 } else { c as f64 * (c as f64).log2() };
        let one = (0..=30).rev().map(|bits| f64::from(1u32 << bits)).find(|one| f(most) * one < f64::from(u32::MAX)).unwrap_or(1.0);
        let at = |c: usize| (f(c) * one).round() as u32;
        FixedPoint { steps: (0..most).map(|c| at(c + 1) - at(c)).collect(), scale: (0.125 / one) as f32 }
    }
}

/// A window that slides along a row of bytes.
struct Window<'a> {
    steps: &'a [u32],
    scale: f32,
    counts: [u32; 256],
    /// Bytes in the window.
    bytes: u32,
    /// f(bytes), and Σ f(counts).
    whole: u32,
    sum: u32,
}

impl Window<'_> {
    fn enter(&mut self, byte: u8) {
        let count = &mut self.counts[byte as usize];
        self.sum = self.sum.wrapping_add(self.steps[*count as usize]);
        *count += 1;
    }
    fn leave(&mut self, byte: u8) {
        let count = &mut self.counts[byte as usize];
        *count -= 1;
        self.sum = self.sum.wrapping_sub(self.steps[*count as usize]);
    }
    /// A byte enters and none leaves.
    fn grow(&mut self, byte: u8) {
        self.whole = self.whole.wrapping_add(self.steps[self.bytes as usize]);
        self.bytes += 1;
        self.enter(byte);
    }
    /// A byte leaves and none enters.
    fn shrink(&mut self, byte: u8) {
        self.bytes -= 1;
        self.whole = self.whole.wrapping_sub(self.steps[self.bytes as usize]);
        self.leave(byte);
    }

    /// The entropies at positions `first..first + out.len()` of a row of `cols` bytes, of which `row` holds those from `start` on.
    fn slide(&mut self, row: &[u8], start: usize, cols: usize, [below, above]: [usize; 2], first: usize, out: &mut [f32]) {
        let Some(last) = (first + out.len()).checked_sub(1) else { return };
        row[first.saturating_sub(below) - start..(first + above).min(cols) - start].iter().for_each(|&b| self.grow(b));
        for i in first..=last {
            out[i - first] = (self.whole - self.sum) as f32 * self.scale / self.bytes as f32;
            if i == last {
                break;
            }
            match (i >= below, i + above < cols) {
                (true, true) => {
                    self.leave(row[i - below - start]);
                    self.enter(row[i + above - start]);
                }
                (true, false) => self.shrink(row[i - below - start]),
                (false, true) => self.grow(row[i + above - start]),
                (false, false) => {}
            }
        }
    }
}

impl ByteEntropyKernel {
    /// Bytes before a position, and from it on, that are in its window.
    fn halves(&self) -> [usize; 2] {
        [self.window / 2, self.window - self.window / 2]
    }
}

impl Kernel for ByteEntropyKernel {
    fn cpu(&self, task: &dyn Task) {
        let step = task.step();
        let (rows, cols) = (step.loads[0].shape[0], step.loads[0].shape[1]);
        let [below, above] = self.halves();
        let width = MIN_POSITIONS_PER_PASS.max(4 * self.window).min(cols.max(1));
        let pieces = cols.div_ceil(width);
        let steps = values::<u32>(task, step.loads[1].shape.count());
        task.load(1, 0, u32::slice_mut(steps));
        let stored = slice::<u8>(task, 0);
        let room = if stored.is_some() { 0 } else { (width + self.window).min(cols) };
        let (wide, bytes) = (values::<i32>(task, room), task.scratch(room));
        let results = values::<f32>(task, width);
        for item in share(rows * pieces, 1, task.thread(), task.threads()) {
            let (row, first) = (item / pieces, item % pieces * width);
            let len = width.min(cols - first);
            let (start, end) = (first.saturating_sub(below), (first + len + above).min(cols));
            let bytes = match stored {
                Some(all) => &all[row * cols + start..row * cols + end],
                None => {
                    let wide = &mut wide[..end - start];
                    task.load(0, row * cols + start, i32::slice_mut(wide));
                    bytes.iter_mut().zip(&*wide).for_each(|(b, w)| *b = *w as u8);
                    &bytes[..end - start]
                }
            };
            let mut window = Window { steps, scale: self.scale, counts: [0; 256], bytes: 0, whole: 0, sum: 0 };
            let at = row * cols + first;
            let direct = target::<f32>(task, 0, at, len);
            let in_place = direct.is_some();
            let out = direct.unwrap_or(&mut results[..len]);
            window.slide(bytes, start, cols, [below, above], first, out);
            if !in_place {
                task.store(0, at, f32::slice_mut(out));
            }
        }
    }
    fn ops(&self, step: &Step) -> u64 {
        OPS * step.loads[0].shape.count() as u64
    }
    fn wgsl(&self, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
        gpu::byte_entropy(self, step, adapter)
    }
}

struct ByteEntropy(ByteEntropyKernel);

impl Op for ByteEntropy {
    fn name(&self) -> &'static str {
        "byte_entropy"
    }
    fn key(&self, key: &mut Key) {
        key.word(self.0.window as u64).word(self.0.scale.to_bits().into());
    }
    fn define(&self, _: &[Tensor]) -> Option<TensorResult<Tensor>> {
        None
    }
    fn lower(&self, inputs: &[Meta], outputs: &[Meta]) -> Lowered {
        let (m, out) = (&inputs[0], &outputs[0]);
        let cols = m.shape[m.shape.rank() - 1];
        let table = Shape::of(&[m.shape.count() / cols.max(1), cols]);
        let whole = |m: &Meta| crate::layout::Layout::contiguous(m.shape);
        Lowered::Kernel {
            kernel: Arc::new(self.0),
            loads: vec![(0, whole(m), table), (1, whole(&inputs[1]), inputs[1].shape)],
            stores: vec![(0, whole(out), table)],
        }
    }
    fn grad(&self, _: &Vjp) -> Option<TensorResult<Grads>> {
        Some(Ok(vec![None, None]))
    }
}

impl Tensor {
    /// Shannon entropy of the bytes around each byte, as f32 of the same shape: u8 `[…, N]` gives `[…, N]`.
    ///
    /// The window of position i holds the bytes i − ⌊w/2⌋ … i + ⌈w/2⌉ − 1 of its row, less those beyond the row's ends. With p_v the share
    /// of value v among them, the result is −Σ p_v·log2 p_v / 8: 0 where all bytes are equal, 1 where each of the 256 values is equally
    /// frequent. A window of w < 256 bytes reaches log2(w) / 8 at most. Results are within 1e-6 of this definition.
    ///
    /// # Errors
    /// When this tensor does not hold bytes, has no dimension, or the window is not 1 to [`MAX_WINDOW`] bytes.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let bytes: Vec<u8> = (0..=255).chain([7; 512]).collect();
    /// let entropy = Tensor::from_vec(bytes, &[768], &Device::cpu())?.byte_entropy(256)?.to_vec()?;
    /// assert_eq!((entropy[128], entropy[640]), (1.0, 0.0)); // bytes 0..256, each value once; bytes 512..768, all equal
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn byte_entropy(&self, window: usize) -> TensorResult<Tensor> {
        let at = Location::caller();
        if self.dtype() != DType::U8 {
            let m = format!("{}{}: expected bytes (u8); did you mean .cast(DType::U8)?", self.dtype(), self.shape());
            return Err(TensorError::dtype("byte_entropy", at, m));
        }
        let Some(&cols) = self.dims().last() else {
            return Err(TensorError::shape("byte_entropy", at, "a scalar has no row of bytes; expected […, N]"));
        };
        if !(1..=MAX_WINDOW).contains(&window) {
            let m = format!("a window of {window} bytes: expected 1 to {MAX_WINDOW}");
            return Err(TensorError::shape("byte_entropy", at, m));
        }
        // A window holds no more than a row does.
        let FixedPoint { steps, scale } = FixedPoint::new(window.min(cols.max(1)));
        let count = steps.len();
        let steps = Tensor::from_vec(steps, &[count], self.device())?;
        let meta = Meta { dtype: DType::F32, shape: *self.shape() };
        let op = ByteEntropy(ByteEntropyKernel { window: window.min(2 * cols.max(1)), scale });
        Tensor::op1(op, smallvec::smallvec![self.clone(), steps], Default::default(), meta, at)
    }
}
