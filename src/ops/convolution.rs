//! Convolutions and pooling over any number of dimensions, as products and reductions over views of windows.

use crate::dtype::DType;
use crate::error::{At, TensorError, TensorResult};
use crate::ops::pad::PadMode;
use crate::shape::MAX_RANK;
use crate::tensor::{Mode, Tensor};
use std::panic::Location;

/// Where windows lie. Lists have an entry per dimension after the channels; an empty list stands for the usual number everywhere.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WindowOptions {
    /// Steps between windows; usually 1, of pools the window's size.
    pub stride: Vec<usize>,
    /// Margins before and after; usually none. Those of a convolution are zeros, those of a pool no elements.
    pub padding: Vec<(usize, usize)>,
    /// Distance between neighbours in a window; usually 1.
    pub dilation: Vec<usize>,
    /// Pools: whether a last window may reach beyond the end, if it begins before it.
    pub ceil: bool,
}

/// Settings of [`Tensor::conv`] and [`Tensor::conv_transpose`].
#[derive(Clone, Debug, PartialEq)]
pub struct ConvOptions {
    /// Where the windows lie.
    pub windows: WindowOptions,
    /// Groups of channels that do not see each other.
    pub groups: usize,
    /// Elements that [`Tensor::conv_transpose`] adds at each dimension's end; usually none.
    pub output_padding: Vec<usize>,
}
impl Default for ConvOptions {
    fn default() -> Self {
        ConvOptions { windows: WindowOptions::default(), groups: 1, output_padding: Vec::new() }
    }
}

/// What a mean over a window is divided by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Divisor {
    /// The elements of the window inside of the tensor and its margins (PyTorch's `count_include_pad`).
    WithMargins,
    /// Those inside of the tensor.
    Elements,
    /// This number.
    Fixed(f64),
}

/// One dimension's windows.
#[derive(Clone, Copy)]
struct WindowAxis {
    size: usize,
    kernel: usize,
    stride: usize,
    padding: (usize, usize),
    dilation: usize,
    /// How many windows there are.
    count: usize,
}

impl WindowAxis {
    fn reach(&self) -> usize {
        self.dilation * (self.kernel - 1) + 1
    }
    /// The margins that the windows need, which cut off what no window sees.
    fn margins(&self) -> (isize, isize) {
        let seen = (self.count - 1) * self.stride + self.reach();
        (self.padding.0 as isize, seen as isize - (self.size + self.padding.0) as isize)
    }
    /// How many places of window `i` lie before `end` and, if they must, not before the start.
    fn places(&self, i: usize, inside: bool) -> usize {
        let end = self.padding.0 + self.size + if inside { 0 } else { self.padding.1 };
        let fits = |t: &usize| {
            let place = i * self.stride + t * self.dilation;
            place < end && (!inside || place >= self.padding.0)
        };
        (0..self.kernel).filter(fits).count()
    }
}

/// The windows of `sizes` by `kernel`.
fn axes(
    op: &'static str,
    sizes: &[usize],
    kernel: &[usize],
    strides: Option<&[usize]>,
    o: &WindowOptions,
    at: At,
) -> TensorResult<Vec<WindowAxis>> {
    let wrong = |m: String| TensorError::shape(op, at, m);
    let n = sizes.len();
    let lists =
        [("strides", o.stride.len()), ("paddings", o.padding.len()), ("dilations", o.dilation.len()), ("kernel sizes", kernel.len())];
    for (name, len) in lists {
        if len != n && (len != 0 || name == "kernel sizes") {
            return Err(wrong(format!("{len} {name} for {n} dimensions")));
        }
    }
    let axis = |i: usize| {
        let pick = |list: &[usize], usual: usize| list.get(i).copied().unwrap_or(usual);
        let stride = pick(&o.stride, strides.map_or(1, |s| s[i]));
        let (dilation, padding) = (pick(&o.dilation, 1), o.padding.get(i).copied().unwrap_or((0, 0)));
        let mut a = WindowAxis { size: sizes[i], kernel: kernel[i], stride, padding, dilation, count: 0 };
        if kernel[i] == 0 || stride == 0 || dilation == 0 {
            return Err(wrong(format!("a window of {} with stride {stride} and dilation {dilation}", kernel[i])));
        }
        let whole = sizes[i] + padding.0 + padding.1;
        let Some(rest) = whole.checked_sub(a.reach()) else {
            return Err(wrong(format!("windows that reach over {} of the {whole} elements of dimension {}", a.reach(), i + 2)));
        };
        a.count = if o.ceil { rest.div_ceil(stride) } else { rest / stride } + 1;
        if o.ceil && (a.count - 1) * stride >= sizes[i] + padding.0 {
            a.count -= 1;
        }
        Ok(a)
    };
    (0..n).map(axis).collect()
}

impl Tensor {
    /// Windows of all dimensions after the first two: `[N, C, counts…, kernels…]`; margins hold `fill`.
    fn windows(&self, axes: &[WindowAxis], fill: f64) -> TensorResult<Tensor> {
        let margins: Vec<(isize, isize)> = [(0, 0); 2].into_iter().chain(axes.iter().map(WindowAxis::margins)).collect();
        let mut x = self.pad(&margins, PadMode::Constant(fill))?;
        for (i, a) in axes.iter().enumerate() {
            x = x.unfold(2 + i, a.reach(), a.stride)?;
            if a.dilation > 1 {
                x = x.slice(-1, 0, a.reach(), a.dilation)?;
            }
        }
        Ok(x)
    }

    /// With a leading dimension where there is no batch.
    #[track_caller]
    fn batched(&self, op: &'static str, spatial: usize) -> TensorResult<(Tensor, bool)> {
        let at = Location::caller();
        if 2 + 2 * spatial > MAX_RANK {
            return Err(TensorError::shape(op, at, format!("windows of {spatial} dimensions: at most {}", (MAX_RANK - 2) / 2)));
        }
        match self.rank().checked_sub(spatial) {
            Some(2) => Ok((self.clone(), false)),
            Some(1) => Ok((self.unsqueeze(0)?, true)),
            _ => {
                Err(TensorError::shape(op, at, format!("{} for windows of {spatial} dimensions: expected [N,C,…] or [C,…]", self.shape())))
            }
        }
    }

    /// Cross-correlation, as PyTorch's convolutions, of `[N, C, …]` or `[C, …]` with a weight `[outputs, C / groups, …]` and, if there is one, a
    /// bias `[outputs]`, in one, two or three dimensions.
    ///
    /// # Errors
    /// When the shapes do not fit each other, the groups or the settings.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[[1.0, 2.0, 3.0, 4.0]]], &Device::cpu())?;
    /// let weight = Tensor::new(&[[[1.0, -1.0]]], &Device::cpu())?;
    /// assert_eq!(x.conv(&weight, None, &ConvOptions::default())?.to_vec()?, [-1.0, -1.0, -1.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn conv(&self, weight: &Tensor, bias: Option<&Tensor>, options: &ConvOptions) -> TensorResult<Tensor> {
        let at = Location::caller();
        Mode { at: Some(at), ..Mode::current() }.run(|| self.conv_at("conv", weight, bias, options, at))
    }

    fn conv_at(&self, op: &'static str, weight: &Tensor, bias: Option<&Tensor>, o: &ConvOptions, at: At) -> TensorResult<Tensor> {
        let spatial = weight.rank().saturating_sub(2);
        let (x, lone) = self.batched(op, spatial)?;
        let (batch, channels, groups) = (x.shape()[0], x.shape()[1], o.groups);
        let fits = spatial > 0 && groups > 0 && channels == weight.shape()[1] * groups && weight.shape()[0] % groups == 0;
        let outputs = if spatial > 0 { weight.shape()[0] } else { 0 };
        if !fits || bias.is_some_and(|b| b.dims() != [outputs]) {
            let with = bias.map_or(String::new(), |b| format!(" and bias {}", b.shape()));
            return Err(TensorError::shape(op, at, format!("{} with weight {}{with} in {groups} groups", self.shape(), weight.shape())));
        }
        let axes = axes(op, &x.dims()[2..], &weight.dims()[2..], None, &o.windows, at)?;
        let places: usize = axes.iter().map(|a| a.count).product();
        let (inner, own) = (channels / groups, outputs / groups);
        let taps = inner * axes.iter().map(|a| a.kernel).product::<usize>();
        // A group is a batch: [N·G, C/G, …] to rows [N, G, places, C/G·kernel].
        let mut sizes = x.dims().to_vec();
        (sizes[0], sizes[1]) = (batch * groups, inner);
        let windows = x.reshape(&sizes)?.windows(&axes, 0.0)?;
        let order: Vec<usize> = [0].into_iter().chain(2..2 + spatial).chain([1]).chain(2 + spatial..2 + 2 * spatial).collect();
        let rows = windows.permute(&order)?;
        let y = if groups == 1 {
            let rows = rows.reshape(&[batch * places, taps])?;
            rows.matmul(&weight.reshape(&[outputs, taps])?.t()?)?.reshape(&[batch, 1, places, outputs])?
        } else {
            let rows = rows.reshape(&[batch, groups, places, taps])?;
            rows.matmul(&weight.reshape(&[groups, own, taps])?.transpose(-1, -2)?)?
        };
        let mut sizes = vec![batch, outputs];
        sizes.extend(axes.iter().map(|a| a.count));
        let mut y = y.transpose(-1, -2)?.reshape(&sizes)?;
        if let Some(b) = bias {
            y = y.add(&b.reshape(&[&[outputs][..], &vec![1; spatial]].concat())?)?;
        }
        if lone { y.squeeze(0) } else { Ok(y) }
    }

    /// The transpose of [`Tensor::conv`] as a linear map, as PyTorch's `conv_transpose`: `[N, C, …]` or `[C, …]` with a weight
    /// `[C, outputs / groups, …]`. Padding takes elements away from the result.
    ///
    /// # Errors
    /// As for [`Tensor::conv`].
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[[1.0, 2.0]]], &Device::cpu())?;
    /// let weight = Tensor::new(&[[[1.0, 10.0]]], &Device::cpu())?;
    /// assert_eq!(x.conv_transpose(&weight, None, &ConvOptions::default())?.to_vec()?, [1.0, 12.0, 20.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn conv_transpose(&self, weight: &Tensor, bias: Option<&Tensor>, options: &ConvOptions) -> TensorResult<Tensor> {
        let at = Location::caller();
        Mode { at: Some(at), ..Mode::current() }.run(|| self.conv_transpose_at(weight, bias, options, at))
    }

    fn conv_transpose_at(&self, weight: &Tensor, bias: Option<&Tensor>, o: &ConvOptions, at: At) -> TensorResult<Tensor> {
        let op = "conv_transpose";
        let spatial = weight.rank().saturating_sub(2);
        let (x, lone) = self.batched(op, spatial)?;
        let (w, groups) = (&o.windows, o.groups);
        let fits = spatial > 0 && groups > 0 && x.shape()[1] == weight.shape()[0] && weight.shape()[0] % groups == 0;
        let lists = [w.stride.len(), w.padding.len(), w.dilation.len(), o.output_padding.len()];
        if !fits || w.stride.contains(&0) || lists.iter().any(|&n| n != 0 && n != spatial) || x.dims()[2..].contains(&0) {
            return Err(TensorError::shape(op, at, format!("{} with weight {} in {groups} groups", self.shape(), weight.shape())));
        }
        // Zeros between the elements, and as many around them that each weight meets each element.
        let mut y = x.clone();
        let mut margins = vec![(0isize, 0isize); 2];
        for i in 0..spatial {
            let (n, stride) = (y.shape()[i + 2], w.stride.get(i).copied().unwrap_or(1));
            if stride > 1 {
                let d = i + 2;
                let mut around = vec![(0, 0); y.rank() + 1];
                around[i + 3] = (0, stride as isize - 1);
                let mut sizes = y.dims().to_vec();
                sizes[i + 2] = n * stride;
                y = y.unsqueeze(d + 1)?.pad(&around, PadMode::Constant(0.0))?.reshape(&sizes)?.narrow(d, 0, (n - 1) * stride + 1)?;
            }
            let reach = (w.dilation.get(i).copied().unwrap_or(1) * weight.shape()[i + 2].saturating_sub(1)) as isize;
            let (before, after) = w.padding.get(i).copied().unwrap_or((0, 0));
            let more = o.output_padding.get(i).copied().unwrap_or(0) as isize;
            margins.push((reach - before as isize, reach - after as isize + more));
        }
        y = y.pad(&margins, PadMode::Constant(0.0))?;
        // [C, O/G, …] to [O, C/G, …], backwards.
        let (inner, own) = (weight.shape()[0] / groups, weight.shape()[1]);
        let kernel = &weight.dims()[2..];
        let mut transposed = weight.reshape(&[&[groups, inner, own], kernel].concat())?.transpose(1, 2)?;
        for d in 0..spatial {
            transposed = transposed.flip(d + 3)?;
        }
        let transposed = transposed.reshape(&[&[groups * own, inner], kernel].concat())?;
        let windows = WindowOptions { dilation: w.dilation.clone(), ..Default::default() };
        let y = y.conv_at(op, &transposed, bias, &ConvOptions { windows, groups, output_padding: vec![] }, at)?;
        if lone { y.squeeze(0) } else { Ok(y) }
    }

    /// The largest of each window of `[N, C, …]` or `[C, …]`, NaN if one is NaN; the gradient goes to the first of equal ones.
    ///
    /// # Errors
    /// When the settings do not fit the shape.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[[1.0, 4.0, 3.0, 2.0]]], &Device::cpu())?;
    /// let pairs = WindowOptions { stride: vec![2], ..WindowOptions::default() };
    /// assert_eq!(x.max_pool(&[2], &pairs)?.to_vec()?, [4.0, 3.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn max_pool(&self, kernel: &[usize], options: &WindowOptions) -> TensorResult<Tensor> {
        let at = Location::caller();
        let run = || {
            let (x, lone) = self.batched("max_pool", kernel.len())?;
            let axes = axes("max_pool", &x.dims()[2..], kernel, Some(kernel), options, at)?;
            let lowest = match x.dtype() {
                DType::U8 | DType::U16 | DType::U32 | DType::U64 | DType::Bool => 0.0,
                DType::I8 => i8::MIN as f64,
                DType::I16 => i16::MIN as f64,
                DType::I32 => i32::MIN as f64,
                DType::I64 => i64::MIN as f64,
                _ => f64::NEG_INFINITY,
            };
            let windows = x.windows(&axes, lowest)?;
            let inside: Vec<isize> = (2 + kernel.len() as isize..windows.rank() as isize).collect();
            let y = if x.is_tracked() {
                let taps: usize = kernel.iter().product();
                let sizes = [&windows.dims()[..2 + kernel.len()], &[taps]].concat();
                let rows = windows.reshape(&sizes)?;
                let best = rows.detach().argmax(-1)?.unsqueeze(-1)?;
                let hit = best.eq(&Tensor::arange(0.0, taps as f64, 1.0, DType::I32, x.device())?)?;
                hit.where_(&rows, 0.0)?.sum(&[-1], false)?
            } else {
                windows.max(&inside, false)?
            };
            if lone { y.squeeze(0) } else { Ok(y) }
        };
        Mode { at: Some(at), ..Mode::current() }.run(run)
    }

    /// The mean of each window of `[N, C, …]` or `[C, …]`.
    ///
    /// # Errors
    /// When the settings do not fit the shape.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::ops::Divisor;
    /// let x = Tensor::new(&[[[1.0, 4.0, 3.0, 2.0]]], &Device::cpu())?;
    /// let pairs = WindowOptions { stride: vec![2], ..WindowOptions::default() };
    /// assert_eq!(x.avg_pool(&[2], Divisor::Elements, &pairs)?.to_vec()?, [2.5, 2.5]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn avg_pool(&self, kernel: &[usize], divisor: Divisor, options: &WindowOptions) -> TensorResult<Tensor> {
        let at = Location::caller();
        let run = || {
            let (x, lone) = self.batched("avg_pool", kernel.len())?;
            let axes = axes("avg_pool", &x.dims()[2..], kernel, Some(kernel), options, at)?;
            let work = if self.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
            let inside: Vec<isize> = (2 + kernel.len() as isize..2 + 2 * kernel.len() as isize).collect();
            let mut y = x.cast(work)?.windows(&axes, 0.0)?.sum(&inside, false)?;
            if let Divisor::Fixed(by) = divisor {
                y = y.div(by)?;
            } else {
                for (i, a) in axes.iter().enumerate() {
                    let counts: Vec<f32> = (0..a.count).map(|w| a.places(w, divisor == Divisor::Elements) as f32).collect();
                    let mut sizes = vec![1; axes.len()];
                    sizes[i] = a.count;
                    y = y.div(&Tensor::from_vec(counts, &sizes, x.device())?.cast(work)?)?;
                }
            }
            let y = if lone { y.squeeze(0)? } else { y };
            if self.dtype().is_float() { y.cast(self.stored()) } else { Ok(y) }
        };
        Mode { at: Some(at), ..Mode::current() }.run(run)
    }
}
