//! Losses: how far a prediction is from its target, per element, on average or in sum.

use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::ops::Lit;
use crate::tensor::Tensor;
use std::panic::Location;

/// What a loss gives of its elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Reduction {
    /// Every element's loss.
    None,
    /// Their mean.
    #[default]
    Mean,
    /// Their sum.
    Sum,
    /// Their sum over the size of the first dimension (PyTorch's `batchmean`); of a scalar its value.
    BatchMean,
}

/// Settings of [`Tensor::nll_loss`] and [`Tensor::cross_entropy`].
#[derive(Clone, Copy)]
pub struct NllOptions<'a> {
    /// A weight per class; a mean is then divided by the sum of the weights met.
    pub weight: Option<&'a Tensor>,
    /// Targets of this value count nothing.
    pub ignore_index: i64,
    /// What is given.
    pub reduction: Reduction,
    /// How much of each target is spread evenly over all classes (Szegedy et al., 2016), from 0 to 1; [`Tensor::cross_entropy`] only.
    pub label_smoothing: f64,
}
impl Default for NllOptions<'_> {
    fn default() -> Self {
        NllOptions { weight: None, ignore_index: -100, reduction: Reduction::Mean, label_smoothing: 0.0 }
    }
}

impl Tensor {
    #[track_caller]
    fn reduced(&self, how: Reduction) -> TensorResult<Tensor> {
        match how {
            Reduction::None => Ok(self.clone()),
            Reduction::Mean => self.mean_all(),
            Reduction::Sum => self.sum_all(),
            Reduction::BatchMean => self.sum_all()?.mul(1.0 / self.dims().first().copied().unwrap_or(1) as f64),
        }
    }

    #[track_caller]
    fn distance(&self, target: &Tensor) -> TensorResult<Tensor> {
        self.sub(target)?.abs()
    }

    /// (x − target)².
    ///
    /// # Errors
    /// When the shapes do not broadcast, the dtypes do not promote, or the tensors are on different devices.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1.0, 4.0], &Device::cpu())?;
    /// let target = Tensor::new(&[2.0, 1.0], &Device::cpu())?;
    /// assert_eq!(x.mse_loss(&target, Reduction::Mean)?.item()?, 5.0);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn mse_loss(&self, target: &Tensor, reduction: Reduction) -> TensorResult<Tensor> {
        let d = self.sub(target)?;
        d.mul(&d)?.reduced(reduction)
    }

    /// |x − target|.
    ///
    /// # Errors
    /// When the shapes do not broadcast, the dtypes do not promote, or the tensors are on different devices.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1.0, 4.0], &Device::cpu())?;
    /// let target = Tensor::new(&[2.0, 1.0], &Device::cpu())?;
    /// assert_eq!(x.l1_loss(&target, Reduction::Sum)?.item()?, 4.0);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn l1_loss(&self, target: &Tensor, reduction: Reduction) -> TensorResult<Tensor> {
        self.distance(target)?.reduced(reduction)
    }

    /// With d = |x − target|: d²/2 up to `delta`, from there `delta` · (d − delta/2) (Huber, 1964).
    ///
    /// # Errors
    /// When the shapes do not broadcast, the dtypes do not promote, or the tensors are on different devices.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1.0, 4.0], &Device::cpu())?;
    /// let target = Tensor::new(&[2.0, 1.0], &Device::cpu())?;
    /// assert_eq!(x.huber_loss(&target, 2.0, Reduction::None)?.to_vec()?, [0.5, 4.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn huber_loss(&self, target: &Tensor, delta: f64, reduction: Reduction) -> TensorResult<Tensor> {
        let d = self.distance(target)?;
        let square = d.mul(&d)?.mul(Lit(0.5))?;
        let line = d.sub(0.5 * delta)?.mul(delta)?;
        d.le(delta)?.where_(&square, &line)?.reduced(reduction)
    }

    /// With d = |x − target|: d²/(2·`beta`) below `beta` (PyTorch: 1), from there d − beta/2.
    ///
    /// # Errors
    /// When the shapes do not broadcast, the dtypes do not promote, or the tensors are on different devices.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1.0, 4.0], &Device::cpu())?;
    /// let target = Tensor::new(&[2.0, 1.0], &Device::cpu())?;
    /// assert_eq!(x.smooth_l1_loss(&target, 2.0, Reduction::None)?.to_vec()?, [0.25, 2.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn smooth_l1_loss(&self, target: &Tensor, beta: f64, reduction: Reduction) -> TensorResult<Tensor> {
        let d = self.distance(target)?;
        if beta == 0.0 {
            return d.reduced(reduction);
        }
        let square = d.mul(&d)?.mul(0.5 / beta)?;
        let line = d.sub(0.5 * beta)?;
        d.lt(beta)?.where_(&square, &line)?.reduced(reduction)
    }

    /// Binary cross entropy of probabilities; logarithms are limited to −100, as in PyTorch.
    ///
    /// # Errors
    /// When the shapes do not broadcast, the dtypes do not promote, or the tensors are on different devices.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[0.5, 0.25], &Device::cpu())?;
    /// let target = Tensor::new(&[1.0, 0.0], &Device::cpu())?;
    /// let got = x.binary_cross_entropy(&target, None, Reduction::None)?.to_vec()?;
    /// assert!(got.iter().zip([0.693147, 0.287682]).all(|(a, b)| (a - b).abs() < 1e-4), "{got:?}");
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn binary_cross_entropy(&self, target: &Tensor, weight: Option<&Tensor>, reduction: Reduction) -> TensorResult<Tensor> {
        let yes = self.log()?.clamp(Some(-100.0), None)?;
        let no = self.neg()?.log1p()?.clamp(Some(-100.0), None)?;
        // −(t·yes + (1 − t)·no) = t·(no − yes) − no
        let way = no.sub(&yes)?.mul(target)?;
        way.sub(&no)?.weighted(weight)?.reduced(reduction)
    }

    /// Binary cross entropy of logits, stable for any size of them. `pos_weight` multiplies the loss of positive targets.
    ///
    /// # Errors
    /// When the shapes do not broadcast, the dtypes do not promote, or the tensors are on different devices.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[0.0, 3.0], &Device::cpu())?;
    /// let target = Tensor::new(&[1.0, 0.0], &Device::cpu())?;
    /// let got = x.binary_cross_entropy_with_logits(&target, None, None, Reduction::None)?.to_vec()?;
    /// assert!(got.iter().zip([0.693147, 3.048587]).all(|(a, b)| (a - b).abs() < 1e-4), "{got:?}");
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn binary_cross_entropy_with_logits(
        &self,
        target: &Tensor,
        weight: Option<&Tensor>,
        pos_weight: Option<&Tensor>,
        reduction: Reduction,
    ) -> TensorResult<Tensor> {
        // (1 − t)·x − (1 + (p − 1)·t)·log_sigmoid(x)
        let tail = self.log_sigmoid()?;
        let tail = match pos_weight {
            Some(p) => {
                let more = p.sub(Lit(1.0))?.mul(target)?;
                tail.mul(&more.add(Lit(1.0))?)?
            }
            None => tail,
        };
        let rest = target.neg()?.add(Lit(1.0))?;
        let loss = rest.mul(self)?.sub(&tail)?;
        loss.weighted(weight)?.reduced(reduction)
    }

    #[track_caller]
    fn weighted(&self, weight: Option<&Tensor>) -> TensorResult<Tensor> {
        match weight {
            Some(w) => self.mul(w),
            None => Ok(self.clone()),
        }
    }

    /// The Kullback-Leibler divergence of log-probabilities from `target`: probabilities, or with `log_target` their logarithms.
    ///
    /// # Errors
    /// When the shapes do not broadcast, the dtypes do not promote, or the tensors are on different devices.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[0.5, 0.5], &Device::cpu())?;
    /// let target = Tensor::new(&[0.25, 0.75], &Device::cpu())?;
    /// let got = x.log()?.kl_div(&target, false, Reduction::Sum)?.to_vec()?;
    /// assert!(got.iter().zip([0.130812]).all(|(a, b)| (a - b).abs() < 1e-4), "{got:?}");
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn kl_div(&self, target: &Tensor, log_target: bool, reduction: Reduction) -> TensorResult<Tensor> {
        let loss = if log_target {
            let gap = target.sub(self)?;
            target.exp()?.mul(&gap)?
        } else {
            target.xlogy(target)?.sub(&target.mul(self)?)?
        };
        loss.reduced(reduction)
    }

    /// The negative log-probability of each target class, for log-probabilities `[N, C, …]` (or `[C]`) and integer targets `[N, …]`.
    /// A target outside the classes is an error of the evaluation.
    ///
    /// # Errors
    /// When the targets are not integers of the shape without the classes.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[-0.5, -1.0], [-2.0, -0.25]], &Device::cpu())?;
    /// let target = Tensor::new(&[0, 1], &Device::cpu())?;
    /// assert_eq!(x.nll_loss(&target, &NllOptions::default())?.item()?, 0.375);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn nll_loss(&self, target: &Tensor, options: &NllOptions) -> TensorResult<Tensor> {
        let at = Location::caller();
        let class = usize::from(self.rank() > 1);
        let fits = self.rank() >= 1 && *target.shape() == self.shape().without(class);
        if !fits || !target.dtype().is_int() {
            let m = format!("{}{} for {}: expected integers, one per row of classes", target.dtype(), target.shape(), self.shape());
            return Err(TensorError::shape("nll_loss", at, m));
        }
        let kept = target.ne(options.ignore_index)?;
        let index = kept.where_(target, 0)?;
        let picked = self.gather(class, &index.unsqueeze(class)?)?.squeeze(class)?;
        // An ignored −∞ times the weight 0 must not become NaN.
        let loss = kept.where_(&picked.neg()?, Lit(0.0))?;
        loss.over_classes(None, target, options, self.dtype() == DType::F64)?.cast(self.stored())
    }

    /// Losses by row with the classes' weights, reduced; to each row's loss comes its part of `spread`.
    #[track_caller]
    fn over_classes(&self, spread: Option<&Tensor>, target: &Tensor, options: &NllOptions, wide: bool) -> TensorResult<Tensor> {
        if options.weight.is_none() && spread.is_none() && options.reduction != Reduction::Mean {
            return self.reduced(options.reduction);
        }
        let kept = target.ne(options.ignore_index)?;
        let (mut loss, weight) = match options.weight {
            Some(w) => {
                let index = kept.where_(target, 0)?;
                let weight = w.index_select(0, &index.flatten(0, -1)?)?.reshape(target.shape())?;
                let weight = kept.where_(&weight, Lit(0.0))?;
                (kept.where_(&self.mul(&weight)?, Lit(0.0))?, weight)
            }
            None => (self.clone(), kept.cast(if wide { DType::F64 } else { DType::F32 })?),
        };
        if let Some(spread) = spread {
            let own = loss.mul(1.0 - options.label_smoothing)?;
            let spread = kept.where_(spread, Lit(0.0))?;
            loss = own.add(&spread)?;
        }
        match options.reduction {
            Reduction::Mean => loss.sum_all()?.div(&weight.sum_all()?),
            other => loss.reduced(other),
        }
    }

    /// [`Tensor::nll_loss`] of the logarithm of the softmax over classes: the loss of a classifier or language model for logits `[N, C, …]` (or
    /// `[C]`). Targets are classes, or floats of the logits' shape: a probability of every class; then no target is ignored, and a mean
    /// counts the rows. Neither probabilities nor their logarithms are stored; f16 and bf16 logits give an f32 loss by row before it is reduced.
    ///
    /// # Errors
    /// When the shapes do not fit, weights are not `[C]`, or the smoothing is not between 0 and 1.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let logits = Tensor::new(&[[0.0, 0.0], [9.0, 9.0]], &Device::cpu())?;
    /// let target = Tensor::new(&[0, 1], &Device::cpu())?;
    /// let got = logits.cross_entropy(&target, &NllOptions::default())?.to_vec()?;
    /// assert!(got.iter().zip([0.693147]).all(|(a, b)| (a - b).abs() < 1e-4), "{got:?}");
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn cross_entropy(&self, target: &Tensor, options: &NllOptions) -> TensorResult<Tensor> {
        self.cross_entropy_wide(target, options)?.cast(self.stored())
    }

    /// [`Tensor::cross_entropy`], not rounded to the logits' type: f16 and bf16 logits give an f32 loss.
    ///
    /// # Errors
    /// As for [`Tensor::cross_entropy`].
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let logits = Tensor::new(&[[0.0, 0.0], [9.0, 9.0]], &Device::cpu())?;
    /// let target = Tensor::new(&[0, 1], &Device::cpu())?;
    /// let got = logits.cross_entropy_wide(&target, &NllOptions::default())?.to_vec()?;
    /// assert!(got.iter().zip([0.693147]).all(|(a, b)| (a - b).abs() < 1e-4), "{got:?}");
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn cross_entropy_wide(&self, target: &Tensor, options: &NllOptions) -> TensorResult<Tensor> {
        let at = Location::caller();
        let class = usize::from(self.rank() > 1);
        let smoothing = options.label_smoothing;
        if !(0.0..=1.0).contains(&smoothing) {
            return Err(TensorError::Config(format!("label smoothing is between 0 and 1, not {smoothing}")));
        }
        let classes = self.size_for("cross_entropy", class, at)?;
        if let Some(w) = options.weight.filter(|w| w.dims() != [classes]) {
            return Err(TensorError::shape("cross_entropy", at, format!("weights of {} for {classes} classes", w.shape())));
        }
        let wide = if self.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        // The weights beside the logits.
        let mut sizes = vec![1; self.rank()];
        sizes[class] = classes;
        let weight = match options.weight {
            Some(w) => Some(w.cast(wide)?.reshape(&sizes)?),
            None => None,
        };
        if target.dtype().is_float() {
            return self.soft_losses(target, class, weight.as_ref(), smoothing)?.reduced(options.reduction);
        }
        let (losses, sums) = self.class_losses(target, class, options.ignore_index)?;
        if smoothing == 0.0 {
            return losses.over_classes(None, target, options, wide == DType::F64);
        }
        // Σ w·(s − x) over the classes, s being the logarithm of Σ eˣ: s·Σ w − Σ w·x.
        let x = self.cast(wide)?;
        let all = match &weight {
            Some(w) => sums.mul(&w.sum_all()?)?.sub(&x.mul(w)?.sum(&[class as isize], false)?)?,
            None => sums.mul(classes as f64)?.sub(&x.sum(&[class as isize], false)?)?,
        };
        let spread = all.mul(smoothing / classes as f64)?;
        losses.over_classes(Some(&spread), target, options, wide == DType::F64)
    }

    /// −Σ w·t·log softmax over dimension `class` for probabilities t.
    #[track_caller]
    fn soft_losses(&self, target: &Tensor, class: usize, weight: Option<&Tensor>, smoothing: f64) -> TensorResult<Tensor> {
        let at = Location::caller();
        if target.shape() != self.shape() {
            let m = format!("probabilities {} for logits {}: the shapes must be equal", target.shape(), self.shape());
            return Err(TensorError::shape("cross_entropy", at, m));
        }
        let wide = if self.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let (x, mut share) = (self.cast(wide)?, target.cast(wide)?);
        if smoothing > 0.0 {
            share = share.mul(1.0 - smoothing)?.add(smoothing / self.shape()[class].max(1) as f64)?;
        }
        let share = share.weighted(weight)?;
        let all = self.class_sums(class)?;
        // Σ t·(s − x), from the gaps, which are exact where logits are large; to the gradient, s stands outside of the sum: the shares of
        // the classes in it are not stored.
        let fixed = all.detach();
        let gaps = fixed.unsqueeze(class as isize)?.sub(&x)?.mul(&share)?.sum(&[class as isize], false)?;
        if !all.is_tracked() {
            return Ok(gaps);
        }
        gaps.add(&all.sub(&fixed)?.mul(&share.sum(&[class as isize], false)?)?)
    }
}

/// The mean of (prediction − target)²: [`Tensor::mse_loss`] with [`Reduction::Mean`], as a function.
///
/// # Errors
/// When the shapes do not broadcast, or the dtypes do not promote.
///
/// ```
/// # use tensorlogic::prelude::*;
/// use tensorlogic::ops::loss::mse_loss;
///
/// let (x, target) = (Tensor::new(&[1.0, 4.0], &Device::cpu())?, Tensor::new(&[2.0, 1.0], &Device::cpu())?);
/// assert_eq!(mse_loss(&x, &target)?.item()?, 5.0); // (1 + 9) / 2
/// # Ok::<(), TensorError>(())
/// ```
#[track_caller]
pub fn mse_loss(predictions: &Tensor, target: &Tensor) -> TensorResult<Tensor> {
    predictions.mse_loss(target, Reduction::Mean)
}
