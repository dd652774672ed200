//! More elements around or beside those that are there: pad, tile, roll, repeat.

use crate::error::{TensorError, TensorResult};
use crate::layout::Layout;
use crate::shape::{Shape, SignedIndex, dim};
use crate::tensor::{Grads, Key, Lowered, Meta, Op, Tensor, Vjp};
use smallvec::SmallVec;
use std::panic::Location;

/// What stands in the margins of [`Tensor::pad`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum PadMode {
    /// A number.
    Constant(f64),
    /// The elements mirrored at the edge element, which is not repeated.
    Reflect,
    /// The edge element.
    Replicate,
    /// The elements of the other end.
    Circular,
}

/// Input 1 in a window of input 0.
struct Inset {
    start: SmallVec<[usize; 8]>,
}

impl Op for Inset {
    fn name(&self) -> &'static str {
        "pad"
    }
    fn key(&self, key: &mut Key) {
        self.start.iter().for_each(|&s| {
            key.word(s as u64);
        });
    }
    fn define(&self, _: &[Tensor]) -> Option<TensorResult<Tensor>> {
        None
    }
    fn lower(&self, inputs: &[Meta], outputs: &[Meta]) -> Lowered {
        let mut window = Layout::contiguous(outputs[0].shape);
        for (d, &start) in self.start.iter().enumerate() {
            window = window.slice(d, start, inputs[1].shape[d], 1);
        }
        Lowered::Windows { base: Some(0), pieces: vec![(1, window, None)] }
    }
    fn grad(&self, v: &Vjp) -> Option<TensorResult<Grads>> {
        let run = || {
            let mut inside = v.grad().clone();
            let mut margin = if v.wants(0) { Some(v.grad().clone()) } else { None };
            for (d, &start) in self.start.iter().enumerate() {
                inside = inside.narrow(d, start, v.inputs[1].shape()[d])?;
            }
            if let Some(m) = &mut margin {
                let op = Inset { start: self.start.clone() };
                let inputs = smallvec::smallvec![m.clone(), inside.zeros_like()?];
                *m = Tensor::op1(op, inputs, Default::default(), m.meta(), m.node.at)?;
            }
            Ok(vec![margin, Some(inside)])
        };
        Some(run())
    }
}

impl Tensor {
    /// With margins: for each dimension how many elements come before and after. Negative numbers cut elements off.
    /// `[…,N,…]` → `[…,before+N+after,…]`.
    ///
    /// # Errors
    /// When there is not one pair per dimension, a margin cuts off more than there is, or the mode has nothing to take from.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1, 2], &Device::cpu())?;
    /// assert_eq!(x.pad(&[(1, 2)], PadMode::Constant(9.0))?.to_vec1::<i32>()?, [9, 1, 2, 9, 9]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn pad(&self, margins: &[(isize, isize)], mode: PadMode) -> TensorResult<Tensor> {
        let at = Location::caller();
        if margins.len() != self.rank() {
            return Err(TensorError::shape("pad", at, format!("{} paddings for the dimensions of {}", margins.len(), self.shape())));
        }
        let mut x = self.clone();
        for (d, &(before, after)) in margins.iter().enumerate() {
            let size = self.shape()[d] as isize;
            let total = size.checked_add(before).and_then(|s| s.checked_add(after)).filter(|&s| s >= 0);
            let Some(total) = total else {
                return Err(TensorError::shape("pad", at, format!("padding {before} and {after} of dimension {d} of {}", self.shape())));
            };
            x = match mode {
                PadMode::Constant(_) => {
                    let (low, high) = ((-before).max(0), size + after.min(0));
                    if low >= high && size > 0 { x.narrow(d, 0, 0)? } else { x.narrow(d, low as usize, (high - low).max(0) as usize)? }
                }
                _ if before == 0 && after == 0 => x,
                // What is cut off does not come round again.
                PadMode::Circular if before < 0 || after < 0 => {
                    let (low, high) = ((-before).max(0), (size + after.min(0)).max((-before).max(0)));
                    let cut = x.narrow(d, low as usize, (high - low) as usize)?;
                    cut.pad_by_index(d, before.max(0), total, mode)?
                }
                _ => x.pad_by_index(d, before, total, mode)?,
            };
        }
        let PadMode::Constant(value) = mode else { return Ok(x) };
        if margins.iter().all(|m| m.0 <= 0 && m.1 <= 0) {
            return Ok(x);
        }
        let sizes: SmallVec<[usize; 8]> = self.dims().iter().zip(margins).map(|(&s, m)| (s as isize + m.0 + m.1) as usize).collect();
        let shape = Shape::new(&sizes, "pad", at)?;
        let start = margins.iter().map(|m| m.0.max(0) as usize).collect();
        let x = x.cast(self.stored())?;
        let base = Tensor::full(value, &sizes, x.dtype(), self.device())?;
        if x.numel() == 0 {
            return Ok(base);
        }
        let meta = Meta { dtype: x.dtype(), shape };
        Tensor::op1(Inset { start }, smallvec::smallvec![base, x], Default::default(), meta, at)
    }

    /// Dimension `d` made `total` long by picking elements, element `before` of the result being the first.
    #[track_caller]
    fn pad_by_index(&self, d: usize, before: isize, total: isize, mode: PadMode) -> TensorResult<Tensor> {
        let at = Location::caller();
        let size = self.shape()[d] as isize;
        let after = total - size - before;
        let most = match mode {
            PadMode::Reflect => size - 1,
            PadMode::Circular => size,
            _ => isize::MAX,
        };
        if (size == 0 && total > 0) || before > most || after > most {
            let m = format!("padding {before} and {after} of dimension {d} of {}: too few elements", self.shape());
            return Err(TensorError::shape("pad", at, m));
        }
        let pick = |i: isize| match mode {
            PadMode::Reflect if i < 0 => -i,
            PadMode::Reflect if i >= size => 2 * (size - 1) - i,
            PadMode::Circular => i.rem_euclid(size),
            _ => i.clamp(0, size - 1),
        };
        let index: Vec<i32> = (0..total).map(|i| pick(i - before) as i32).collect();
        self.index_select(d, &Tensor::from_vec(index, &[total as usize], self.device())?)
    }

    /// Repeated `repeats` times along each dimension; missing leading dimensions or repeats count as 1. `[M,N]` by `[2,3]` → `[2·M,3·N]`.
    ///
    /// # Errors
    /// When the result has too many dimensions or elements.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1, 2], &Device::cpu())?;
    /// assert_eq!(x.tile(&[2, 2])?.to_vec2::<i32>()?, [[1, 2, 1, 2], [1, 2, 1, 2]]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn tile(&self, repeats: &[usize]) -> TensorResult<Tensor> {
        let at = Location::caller();
        let rank = self.rank().max(repeats.len());
        // Each dimension becomes a pair: copies, and the elements.
        if 2 * rank > crate::shape::MAX_RANK {
            let mut x = self.clone();
            for _ in self.rank()..rank {
                x = x.unsqueeze(0)?;
            }
            for (d, &n) in (rank - repeats.len()..).zip(repeats) {
                x = if n == 0 { x.narrow(d, 0, 0)? } else { Tensor::cat(&vec![&x; n], d)? };
            }
            return Ok(x);
        }
        let (mut split, mut full, mut joined) = (Vec::new(), Vec::new(), Vec::new());
        for d in 0..rank {
            let size = if d + self.rank() >= rank { self.shape()[d + self.rank() - rank] } else { 1 };
            let n = if d + repeats.len() >= rank { repeats[d + repeats.len() - rank] } else { 1 };
            split.extend([1, size]);
            full.extend([n, size]);
            joined.push(
                n.checked_mul(size)
                    .ok_or_else(|| TensorError::shape("tile", at, format!("{} by {repeats:?} is too large", self.shape())))?,
            );
        }
        let joined: Vec<usize> = Shape::new(&joined, "tile", at)?.iter().copied().collect();
        self.reshape(&split)?.broadcast_to(&full)?.reshape(&joined)
    }

    /// Each element of dimension `d` repeated `n` times in place. `[…,N,…]` → `[…,N·n,…]`.
    ///
    /// # Errors
    /// When there is no such dimension, or the result is too large.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1, 2], &Device::cpu())?;
    /// assert_eq!(x.repeat_interleave(2, 0)?.to_vec1::<i32>()?, [1, 1, 2, 2]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn repeat_interleave(&self, n: usize, d: impl SignedIndex) -> TensorResult<Tensor> {
        let at = Location::caller();
        let k = dim(d, self.rank(), "repeat_interleave", at)?;
        let size = self.size_for("repeat_interleave", k, at)?;
        let wide = self.unsqueeze(k + 1)?;
        let mut sizes: SmallVec<[usize; 9]> = wide.dims().iter().copied().collect();
        sizes[k + 1] = n;
        let wide = wide.expand(&sizes)?;
        sizes.remove(k + 1);
        sizes[k] = size.saturating_mul(n);
        wide.reshape(&sizes)
    }

    /// Elements moved `shift` places along dimension `d`; what leaves at one end comes in at the other. `[…,N,…]` → `[…,N,…]`.
    ///
    /// # Errors
    /// When there is no such dimension.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1, 2, 3], &Device::cpu())?;
    /// assert_eq!(x.roll(1, 0)?.to_vec1::<i32>()?, [3, 1, 2]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn roll(&self, shift: isize, d: impl SignedIndex) -> TensorResult<Tensor> {
        let at = Location::caller();
        let k = dim(d, self.rank(), "roll", at)?;
        let size = self.size_for("roll", k, at)?;
        let shift = if size == 0 { 0 } else { shift.rem_euclid(size as isize) as usize };
        if shift == 0 {
            return Ok(self.clone());
        }
        Tensor::cat(&[&self.narrow(k, size - shift, shift)?, &self.narrow(k, 0, size - shift)?], k)
    }

    /// All windows of `size` neighbours of dimension `d`, each `step` after the one before, as a view: the dimension counts the windows, a
    /// new last dimension the elements of each. `[…,N,…]` → `[…,⌊(N-size)/step⌋+1,…,size]`.
    ///
    /// # Errors
    /// When there is no such dimension, it is shorter than a window, `step` is 0, or the result has too many dimensions.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1, 2, 3, 4], &Device::cpu())?;
    /// assert_eq!(x.unfold(0, 2, 1)?.to_vec2::<i32>()?, [[1, 2], [2, 3], [3, 4]]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn unfold(&self, d: impl SignedIndex, size: usize, step: usize) -> TensorResult<Tensor> {
        let at = Location::caller();
        let k = dim(d, self.rank(), "unfold", at)?;
        let whole = if self.rank() == 0 { self.unsqueeze(0)? } else { self.clone() };
        let n = whole.shape()[k];
        if step == 0 || size > n || whole.dtype() != self.stored() {
            return Err(TensorError::shape("unfold", at, format!("windows of {size} every {step} in dimension {k} of {}", self.shape())));
        }
        let l = whole.layout();
        let mut sizes: SmallVec<[usize; 9]> = whole.dims().into();
        sizes[k] = (n - size) / step + 1;
        sizes.push(size);
        let shape = Shape::new(&sizes, "unfold", at)?;
        let mut out = Layout { shape, ..l };
        out.strides[k] = l.strides[k] * step as isize;
        out.strides[whole.rank()] = l.strides[k];
        if self.rank() == 0 {
            // A scalar has one window: itself.
            return whole.view(out, at).reshape(&[size]);
        }
        Ok(whole.view(out, at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Device};

    /// Compares `f` of 0, 1, … of this shape with what is expected.
    #[track_caller]
    fn check(shape: &[usize], expect_shape: &[usize], expect: &[f32], f: impl Fn(&Tensor) -> TensorResult<Tensor>) {
        let x = Tensor::arange(0.0, shape.iter().product::<usize>() as f64, 1.0, DType::F32, &Device::cpu()).unwrap();
        let y = f(&x.reshape(shape).unwrap()).unwrap();
        assert_eq!((y.dims(), y.to_vec().unwrap().as_slice()), (expect_shape, expect));
    }

    #[test]
    fn margins_and_repeats() {
        check(&[2, 2], &[3, 3], &[9., 9., 9., 0., 1., 9., 2., 3., 9.], |x| x.pad(&[(1, 0), (0, 1)], PadMode::Constant(9.0)));
        check(&[4], &[4], &[1., 2., 3., 7.], |x| x.pad(&[(-1, 1)], PadMode::Constant(7.0)));
        check(&[3], &[7], &[2., 1., 0., 1., 2., 1., 0.], |x| x.pad(&[(2, 2)], PadMode::Reflect));
        check(&[3], &[5], &[0., 0., 1., 2., 2.], |x| x.pad(&[(1, 1)], PadMode::Replicate));
        check(&[3], &[5], &[2., 0., 1., 2., 0.], |x| x.pad(&[(1, 1)], PadMode::Circular));
        check(&[2], &[2, 4], &[0., 1., 0., 1., 0., 1., 0., 1.], |x| x.tile(&[2, 2]));
        check(&[2], &[4], &[0., 0., 1., 1.], |x| x.repeat_interleave(2, 0));
        check(&[4], &[4], &[3., 0., 1., 2.], |x| x.roll(1, 0));
        check(&[5], &[2, 3], &[0., 1., 2., 2., 3., 4.], |x| x.unfold(0, 3, 2));
    }
}
