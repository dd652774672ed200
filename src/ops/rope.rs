//! Rotary position embedding (Su et al., 2021), as elementwise work over two views of the same tensor, so that it fuses anywhere.

use crate::error::{TensorError, TensorResult};
use crate::layout::Layout;
use crate::shape::Shape;
use crate::tensor::Tensor;
use std::panic::Location;

/// Which elements of a head are rotated together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RopePairs {
    /// Elements 2i and 2i+1: GGUF's Llama and the original paper.
    Adjacent,
    /// Elements i and i + D/2: GPT-NeoX, Hugging Face's Llama, Gemma.
    Halves,
}

impl Tensor {
    /// Rotates pairs of the last dimension. `cos` and `sin` hold one entry per element of the last dimension (the same for both of a pair) and
    /// broadcast to this tensor's shape; `sin` is negative at the first element of each pair. [`rope_tables`] makes them.
    /// `[…,D]` → `[…,D]`.
    ///
    /// # Errors
    /// When the last dimension is odd, or the tables do not broadcast to this tensor's shape.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::ops::rope::{RopePairs, rope_tables};
    /// let device = Device::cpu();
    /// let (cos, sin) = rope_tables(3, &[1.0], RopePairs::Halves);
    /// let (cos, sin) = (Tensor::from_vec(cos, &[3, 2], &device)?, Tensor::from_vec(sin, &[3, 2], &device)?);
    /// let x = Tensor::new(&[[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]], &Device::cpu())?;
    /// // The pair (1, 0) transposed by 0, 1 and 2 radians.
    /// let got = x.rope(&cos, &sin, RopePairs::Halves)?.to_vec()?;
    /// for (p, v) in got.chunks(2).enumerate() {
    ///     assert!((v[0] - (p as f32).cos()).abs() < 1e-6 && (v[1] - (p as f32).sin()).abs() < 1e-6);
    /// }
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn rope(&self, cos: &Tensor, sin: &Tensor, pairs: RopePairs) -> TensorResult<Tensor> {
        let at = Location::caller();
        let d = self.dims().last().copied().unwrap_or(0);
        if d == 0 || d % 2 != 0 {
            return Err(TensorError::shape("rope", at, format!("the last dimension of {} is not even", self.shape())));
        }
        // The partner of each element: the pair's dimension seen backwards. No data moves.
        let l = self.layout();
        let r = self.rank() - 1;
        let step = l.strides[r];
        let (inner, outer) = match pairs {
            RopePairs::Adjacent => ((2, -step), (d / 2, 2 * step)),
            RopePairs::Halves => ((d / 2, step), (2, -step * (d as isize / 2))),
        };
        let mut dims: smallvec::SmallVec<[usize; 9]> = self.dims().into();
        dims[r] = outer.0;
        dims.push(inner.0);
        let shape = Shape::new(&dims, "rope", at)?;
        let mut swapped = Layout { shape, ..l };
        swapped.strides[r] = outer.1;
        swapped.strides[r + 1] = inner.1;
        let first = match pairs {
            RopePairs::Adjacent => step,
            RopePairs::Halves => step * (d as isize / 2),
        };
        swapped.offset = (l.offset as isize + first) as usize;
        let split =
            |t: &Tensor| -> smallvec::SmallVec<[usize; 9]> { t.dims()[..t.rank() - 1].iter().copied().chain([outer.0, inner.0]).collect() };
        let x = self.reshape(&split(self))?;
        let transposed = self.view(swapped, at).mul(&sin.reshape(&split(sin))?)?;
        let y = x.mul(&cos.reshape(&split(cos))?)?.add(&transposed)?;
        y.reshape(self.shape())
    }
}

/// Tables for [`Tensor::rope`]: cosines and signed sines, each `[positions][dim]` row by row, for frequencies `freqs` (one per pair, in
/// radians per position). Angles are computed in f64.
pub fn rope_tables(positions: usize, freqs: &[f64], pairs: RopePairs) -> (Vec<f32>, Vec<f32>) {
    let half = freqs.len();
    let (mut cos, mut sin) = (vec![0.0; positions * half * 2], vec![0.0; positions * half * 2]);
    for p in 0..positions {
        for (i, f) in freqs.iter().enumerate() {
            let (s, c) = (p as f64 * f).sin_cos();
            let row = p * half * 2;
            let (a, b) = match pairs {
                RopePairs::Adjacent => (2 * i, 2 * i + 1),
                RopePairs::Halves => (i, i + half),
            };
            (cos[row + a], cos[row + b]) = (c as f32, c as f32);
            (sin[row + a], sin[row + b]) = (-s as f32, s as f32);
        }
    }
    (cos, sin)
}
