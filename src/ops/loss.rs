//! Losses: how far a prediction is from its target, per element, on average or in sum.

use crate::dtype::DType;
use crate::error::{At, TensorError, TensorResult};
use crate::ops::Rhs;
use crate::scalar::{Binary, Unary};
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
}
impl Default for NllOptions<'_> {
    fn default() -> Self {
        NllOptions { weight: None, ignore_index: -100, reduction: Reduction::Mean }
    }
}

impl Tensor {
    fn reduced(&self, how: Reduction) -> TensorResult<Tensor> {
        match how {
            Reduction::None => Ok(self.clone()),
            Reduction::Mean => self.mean_all(),
            Reduction::Sum => self.sum_all(),
        }
    }

    fn distance(&self, target: &Tensor, at: At) -> TensorResult<Tensor> {
        self.binary_at(Binary::Sub, Rhs::Tensor(target), at)?.unary_at(Unary::Abs, at)
    }

    /// (x − target)².
    #[track_caller]
    pub fn mse_loss(&self, target: &Tensor, reduction: Reduction) -> TensorResult<Tensor> {
        let at = Location::caller();
        let d = self.binary_at(Binary::Sub, Rhs::Tensor(target), at)?;
        d.binary_at(Binary::Mul, Rhs::Tensor(&d), at)?.reduced(reduction)
    }

    /// |x − target|.
    #[track_caller]
    pub fn l1_loss(&self, target: &Tensor, reduction: Reduction) -> TensorResult<Tensor> {
        self.distance(target, Location::caller())?.reduced(reduction)
    }

    /// With d = |x − target|: d²/2 up to `delta`, from there `delta` · (d − delta/2) (Huber, 1964).
    #[track_caller]
    pub fn huber_loss(&self, target: &Tensor, delta: f64, reduction: Reduction) -> TensorResult<Tensor> {
        let at = Location::caller();
        let d = self.distance(target, at)?;
        let square = d.binary_at(Binary::Mul, Rhs::Tensor(&d), at)?.binary_at(Binary::Mul, Rhs::Lit(0.5), at)?;
        let line = d.binary_at(Binary::Sub, Rhs::Float(0.5 * delta), at)?.binary_at(Binary::Mul, Rhs::Float(delta), at)?;
        d.binary_at(Binary::Le, Rhs::Float(delta), at)?.where_at(Rhs::Tensor(&square), Rhs::Tensor(&line), at)?.reduced(reduction)
    }

    /// With d = |x − target|: d²/(2·`beta`) below `beta` (PyTorch: 1), from there d − beta/2.
    #[track_caller]
    pub fn smooth_l1_loss(&self, target: &Tensor, beta: f64, reduction: Reduction) -> TensorResult<Tensor> {
        let at = Location::caller();
        let d = self.distance(target, at)?;
        if beta == 0.0 {
            return d.reduced(reduction);
        }
        let square = d.binary_at(Binary::Mul, Rhs::Tensor(&d), at)?.binary_at(Binary::Mul, Rhs::Float(0.5 / beta), at)?;
        let line = d.binary_at(Binary::Sub, Rhs::Float(0.5 * beta), at)?;
        d.binary_at(Binary::Lt, Rhs::Float(beta), at)?.where_at(Rhs::Tensor(&square), Rhs::Tensor(&line), at)?.reduced(reduction)
    }

    /// Binary cross entropy of probabilities; logarithms are limited to −100, as in PyTorch.
    #[track_caller]
    pub fn binary_cross_entropy(&self, target: &Tensor, weight: Option<&Tensor>, reduction: Reduction) -> TensorResult<Tensor> {
        let at = Location::caller();
        let low = |t: Tensor| t.clamp_at(Some(-100.0), None, at);
        let yes = low(self.unary_at(Unary::Log, at)?)?;
        let no = low(self.unary_at(Unary::Neg, at)?.unary_at(Unary::Log1p, at)?)?;
        // −(t·yes + (1 − t)·no) = t·(no − yes) − no
        let way = no.binary_at(Binary::Sub, Rhs::Tensor(&yes), at)?.binary_at(Binary::Mul, Rhs::Tensor(target), at)?;
        way.binary_at(Binary::Sub, Rhs::Tensor(&no), at)?.weighted(weight, at)?.reduced(reduction)
    }

    /// Binary cross entropy of logits, stable for any size of them. `pos_weight` multiplies the loss of positive targets.
    #[track_caller]
    pub fn binary_cross_entropy_with_logits(
        &self,
        target: &Tensor,
        weight: Option<&Tensor>,
        pos_weight: Option<&Tensor>,
        reduction: Reduction,
    ) -> TensorResult<Tensor> {
        let at = Location::caller();
        // (1 − t)·x − (1 + (p − 1)·t)·log_sigmoid(x)
        let tail = self.log_sigmoid()?;
        let tail = match pos_weight {
            Some(p) => {
                let more = p.binary_at(Binary::Sub, Rhs::Lit(1.0), at)?.binary_at(Binary::Mul, Rhs::Tensor(target), at)?;
                tail.binary_at(Binary::Mul, Rhs::Tensor(&more.binary_at(Binary::Add, Rhs::Lit(1.0), at)?), at)?
            }
            None => tail,
        };
        let rest = target.unary_at(Unary::Neg, at)?.binary_at(Binary::Add, Rhs::Lit(1.0), at)?;
        let loss = rest.binary_at(Binary::Mul, Rhs::Tensor(self), at)?.binary_at(Binary::Sub, Rhs::Tensor(&tail), at)?;
        loss.weighted(weight, at)?.reduced(reduction)
    }

    fn weighted(&self, weight: Option<&Tensor>, at: At) -> TensorResult<Tensor> {
        match weight {
            Some(w) => self.binary_at(Binary::Mul, Rhs::Tensor(w), at),
            None => Ok(self.clone()),
        }
    }

    /// The Kullback-Leibler divergence of log-probabilities from `target`: probabilities, or with `log_target` their logarithms.
    #[track_caller]
    pub fn kl_div(&self, target: &Tensor, log_target: bool, reduction: Reduction) -> TensorResult<Tensor> {
        let at = Location::caller();
        let loss = if log_target {
            let gap = target.binary_at(Binary::Sub, Rhs::Tensor(self), at)?;
            target.unary_at(Unary::Exp, at)?.binary_at(Binary::Mul, Rhs::Tensor(&gap), at)?
        } else {
            target.xlogy(target)?.binary_at(Binary::Sub, Rhs::Tensor(&target.binary_at(Binary::Mul, Rhs::Tensor(self), at)?), at)?
        };
        loss.reduced(reduction)
    }

    /// The negative log-probability of each target class, for log-probabilities `[N, C, …]` (or `[C]`) and integer targets `[N, …]`.
    /// A target outside the classes is an error of the evaluation.
    #[track_caller]
    pub fn nll_loss(&self, target: &Tensor, options: &NllOptions) -> TensorResult<Tensor> {
        let at = Location::caller();
        let class = usize::from(self.rank() > 1);
        let fits = self.rank() >= 1 && *target.shape() == self.shape().without(class);
        if !fits || !target.dtype().is_int() {
            let m = format!("{}{} for {}: want integers, one per row of classes", target.dtype(), target.shape(), self.shape());
            return Err(TensorError::shape("nll_loss", at, m));
        }
        let kept = target.binary_at(Binary::Ne, Rhs::Int(options.ignore_index), at)?;
        let index = kept.where_at(Rhs::Tensor(target), Rhs::Int(0), at)?;
        let picked = self.gather(class as isize, &index.unsqueeze(class as isize)?)?.squeeze(class as isize)?;
        // An ignored −∞ times the weight 0 must not become NaN.
        let loss = kept.where_at(Rhs::Tensor(&picked.unary_at(Unary::Neg, at)?), Rhs::Lit(0.0), at)?;
        loss.over_classes(target, options, self.dtype() == DType::F64, at)?.cast_at(self.stored(), at)
    }

    /// Losses by row with the classes' weights, reduced.
    fn over_classes(&self, target: &Tensor, options: &NllOptions, wide: bool, at: At) -> TensorResult<Tensor> {
        if options.weight.is_none() && options.reduction != Reduction::Mean {
            return self.reduced(options.reduction);
        }
        let kept = target.binary_at(Binary::Ne, Rhs::Int(options.ignore_index), at)?;
        let (loss, weight) = match options.weight {
            Some(w) => {
                let index = kept.where_at(Rhs::Tensor(target), Rhs::Int(0), at)?;
                let sizes: Vec<isize> = target.dims().iter().map(|&d| d as isize).collect();
                let weight = w.index_select(0, &index.flatten(0, -1)?)?.reshape(&sizes)?;
                let weight = kept.where_at(Rhs::Tensor(&weight), Rhs::Lit(0.0), at)?;
                (kept.where_at(Rhs::Tensor(&self.binary_at(Binary::Mul, Rhs::Tensor(&weight), at)?), Rhs::Lit(0.0), at)?, weight)
            }
            None => (self.clone(), kept.cast_at(if wide { DType::F64 } else { DType::F32 }, at)?),
        };
        match options.reduction {
            Reduction::None => Ok(loss),
            Reduction::Sum => loss.sum_all(),
            Reduction::Mean => loss.sum_all()?.div(&weight.sum_all()?),
        }
    }

    /// [`Tensor::nll_loss`] of the logarithm of the softmax over classes: the loss of a classifier or language model for logits `[N, C, …]`.
    /// Neither probabilities nor their logarithms are stored; f16 and bf16 logits give an f32 loss by row before it is reduced.
    #[track_caller]
    pub fn cross_entropy(&self, target: &Tensor, options: &NllOptions) -> TensorResult<Tensor> {
        self.cross_entropy_wide(target, options)?.cast_at(self.stored(), Location::caller())
    }

    /// [`Tensor::cross_entropy`], not rounded to the logits' type: f16 and bf16 logits give an f32 loss.
    #[track_caller]
    pub fn cross_entropy_wide(&self, target: &Tensor, options: &NllOptions) -> TensorResult<Tensor> {
        let at = Location::caller();
        let losses = self.class_losses(target, usize::from(self.rank() > 1), options.ignore_index, at)?;
        losses.over_classes(target, options, self.dtype() == DType::F64, at)
    }
}

/// The mean of (prediction − target)²: [`Tensor::mse_loss`] with [`Reduction::Mean`], as a function.
///
/// # Errors
/// When the shapes do not broadcast, or the dtypes do not promote.
#[track_caller]
pub fn mse_loss(predictions: &Tensor, target: &Tensor) -> TensorResult<Tensor> {
    predictions.mse_loss(target, Reduction::Mean)
}
