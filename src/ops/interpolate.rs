//! Sizes changed by interpolation, along one dimension after the other.

use crate::dtype::DType;
use crate::error::{At, TensorError, TensorResult};
use crate::tensor::{Mode, Tensor};
use std::panic::Location;

/// How values between elements are made up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interpolation {
    /// The element at or before the place, as PyTorch's `nearest`.
    Nearest,
    /// The element whose middle is nearest, as `nearest-exact`.
    NearestExact,
    /// On the line between two elements: `linear`, `bilinear`, `trilinear` by the number of dimensions.
    Linear,
    /// On a cubic through four elements (Keys, 1981, with a = −0.75): `bicubic`.
    Cubic,
}

/// What [`Tensor::interpolate`] makes of the dimensions after the first two.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Resize<'a> {
    /// These sizes.
    To(&'a [usize]),
    /// The sizes times these factors, rounded down; places are computed by the factors.
    By(&'a [f64]),
}

impl Tensor {
    /// `[N,C,…]` with one to three further dimensions resized, with PyTorch's meaning of `interpolate`. With `align_corners` the middles of the outermost
    /// elements stay where they are, else their outer edges do. Floats are computed in f32 (f64 in f64); [`Interpolation::Nearest`] and
    /// [`Interpolation::NearestExact`] take every dtype but block formats.
    ///
    /// # Errors
    /// When the number of dimensions does not fit the mode (cubic: four), the new sizes are not one for each dimension after the first two, a size is 0, a
    /// factor is not above 0, `align_corners` is asked of nearest, or integers are to be interpolated.
    ///
    /// ```
    /// # use tensorlogic::ops::{Interpolation, Resize};
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[[1.0, 3.0]]], &Device::cpu())?;
    /// assert_eq!(x.interpolate(Resize::To(&[4]), Interpolation::Nearest, false)?.to_vec()?, [1.0, 1.0, 3.0, 3.0]);
    /// assert_eq!(x.interpolate(Resize::By(&[2.0]), Interpolation::Linear, false)?.to_vec()?, [1.0, 1.5, 2.5, 3.0]);
    /// assert_eq!(x.interpolate(Resize::To(&[3]), Interpolation::Linear, true)?.to_vec()?, [1.0, 2.0, 3.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn interpolate(&self, to: Resize<'_>, mode: Interpolation, align_corners: bool) -> TensorResult<Tensor> {
        let at = Location::caller();
        let nearest = matches!(mode, Interpolation::Nearest | Interpolation::NearestExact);
        let axes = axes(self.dims(), to, mode, align_corners && !nearest, at)?;
        if align_corners && nearest {
            return Err(TensorError::shape("interpolate", at, "align_corners is for linear and cubic"));
        }
        if self.dtype().is_block() || !nearest && !self.dtype().is_float() {
            return Err(TensorError::dtype("interpolate", at, format!("{:?} of {}; cast it first", mode, self.dtype())));
        }
        Mode { at: Some(at), ..Mode::current() }.run(|| {
            if nearest {
                return axes.iter().enumerate().try_fold(self.clone(), |x, (i, axis)| {
                    let index = axis.indices(|o| vec![axis.nearest(o, mode)]);
                    x.index_select(i + 2, &Tensor::from_vec(index, &[axis.outputs], self.device())?)
                });
            }
            let wide = if self.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
            let same = axes.iter().all(|a| a.inputs == a.outputs);
            let x = axes.iter().enumerate().try_fold(self.cast(wide)?, |x, (i, axis)| match mode {
                // As PyTorch: what keeps its size stays as it is.
                Interpolation::Linear if axis.inputs == axis.outputs => Ok(x),
                Interpolation::Cubic if same => Ok(x),
                Interpolation::Linear => x.sum_of_taps(i + 2, axis, |o| axis.linear(o).to_vec()),
                _ => x.sum_of_taps(i + 2, axis, |o| axis.cubic(o).to_vec()),
            })?;
            x.cast(self.dtype())
        })
    }

    /// Along dimension `d`, sums of elements times weights: those that `taps` gives for each output.
    fn sum_of_taps(&self, d: usize, axis: &ResizedAxis, taps: impl Fn(usize) -> Vec<(usize, f64)>) -> TensorResult<Tensor> {
        let all: Vec<Vec<(usize, f64)>> = (0..axis.outputs).map(taps).collect();
        let mut sizes = vec![1; self.rank()];
        sizes[d] = axis.outputs;
        let mut sum: Option<Tensor> = None;
        for k in 0..all.first().map_or(0, Vec::len) {
            let index: Vec<i32> = all.iter().map(|t| t[k].0 as i32).collect();
            let weights = Tensor::from_vec(all.iter().map(|t| t[k].1 as f32).collect(), &sizes, self.device())?;
            let weights = match self.dtype() {
                DType::F64 => Tensor::from_vec(all.iter().map(|t| t[k].1).collect(), &sizes, self.device())?,
                _ => weights,
            };
            let part = self.index_select(d, &Tensor::from_vec(index, &[axis.outputs], self.device())?)?.mul(&weights)?;
            sum = Some(match sum {
                Some(sum) => sum.add(&part)?,
                None => part,
            });
        }
        Ok(sum.unwrap_or_else(|| self.clone()))
    }
}

/// One resized dimension.
struct ResizedAxis {
    inputs: usize,
    outputs: usize,
    /// Inputs per output.
    step: f64,
    align_corners: bool,
}

impl ResizedAxis {
    fn indices(&self, index: impl Fn(usize) -> Vec<usize>) -> Vec<i32> {
        (0..self.outputs).flat_map(index).map(|i| i as i32).collect()
    }

    /// In f32, whose rounding decides between neighbours.
    fn nearest(&self, output: usize, mode: Interpolation) -> usize {
        let place = if mode == Interpolation::NearestExact { output as f32 + 0.5 } else { output as f32 };
        ((place * self.step as f32).floor() as usize).min(self.inputs - 1)
    }

    /// The place of an output among the inputs, whose middles are whole numbers.
    fn place(&self, output: usize) -> f64 {
        if self.align_corners { self.step * output as f64 } else { self.step * (output as f64 + 0.5) - 0.5 }
    }

    fn linear(&self, output: usize) -> [(usize, f64); 2] {
        let place = self.place(output).max(0.0);
        let first = (place.floor() as usize).min(self.inputs - 1);
        let share = (place - first as f64).clamp(0.0, 1.0);
        [(first, 1.0 - share), ((first + 1).min(self.inputs - 1), share)]
    }

    fn cubic(&self, output: usize) -> [(usize, f64); 4] {
        const A: f64 = -0.75;
        let place = self.place(output);
        let first = place.floor().min(self.inputs as f64 - 1.0);
        let t = (place - first).clamp(0.0, 1.0);
        let near = |x: f64| ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0;
        let far = |x: f64| ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A;
        let at = |by: f64| (first + by).clamp(0.0, self.inputs as f64 - 1.0) as usize;
        [(at(-1.0), far(t + 1.0)), (at(0.0), near(t)), (at(1.0), near(1.0 - t)), (at(2.0), far(2.0 - t))]
    }
}

/// The resized dimensions of a tensor of these sizes.
fn axes(dims: &[usize], to: Resize<'_>, mode: Interpolation, align_corners: bool, at: At) -> TensorResult<Vec<ResizedAxis>> {
    let wrong = |m: String| Err(TensorError::shape("interpolate", at, m));
    let inner = dims.get(2..).unwrap_or_default();
    let given = match to {
        Resize::To(sizes) => sizes.len(),
        Resize::By(factors) => factors.len(),
    };
    if inner.is_empty() || inner.len() > 3 || mode == Interpolation::Cubic && inner.len() != 2 {
        return wrong(format!(
            "{mode:?} of {dims:?}: expected [N,C,…] followed by {} dimensions",
            if mode == Interpolation::Cubic { "two" } else { "one to three" }
        ));
    }
    if given != inner.len() {
        return wrong(format!("{given} new sizes for the {} dimensions after the first two of {dims:?}", inner.len()));
    }
    let mut axes = Vec::new();
    for (i, &inputs) in inner.iter().enumerate() {
        let (outputs, ratio) = match to {
            Resize::To(sizes) => (sizes[i], None),
            Resize::By(factors) if factors[i] > 0.0 && inputs as f64 * factors[i] < 2f64.powi(31) => {
                ((inputs as f64 * factors[i]).floor() as usize, Some(1.0 / factors[i]))
            }
            Resize::By(factors) => return wrong(format!("a factor of {} for a size of {inputs}", factors[i])),
        };
        if inputs == 0 || outputs == 0 {
            return wrong(format!("a size of {inputs} becomes {outputs}; both must be above 0"));
        }
        let step = match (align_corners, outputs) {
            (true, 1) => 0.0,
            (true, _) => (inputs - 1) as f64 / (outputs - 1) as f64,
            (false, _) => ratio.unwrap_or(inputs as f64 / outputs as f64),
        };
        axes.push(ResizedAxis { inputs, outputs, step, align_corners });
    }
    Ok(axes)
}
