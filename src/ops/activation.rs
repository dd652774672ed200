//! Activations: functions that networks put between their layers, written in elementwise primitives so that they fuse anywhere.

use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::ops::Lit;
use crate::shape::SignedIndex;
use crate::tensor::{Mode, RareFields, Tensor};
use std::panic::Location;
use std::sync::Arc;

impl Tensor {
    /// `self` where it is positive, else `other`; what most activations are made of. NaN goes to `other`.
    #[track_caller]
    fn positive_or(&self, other: &Tensor) -> TensorResult<Tensor> {
        self.gt(Lit(0.0))?.where_(self, other)
    }

    /// ln(1 + exp(−|x|)), which lies between 0 and ln 2.
    #[track_caller]
    fn log1p_exp_minus_abs(&self) -> TensorResult<Tensor> {
        self.float()?.abs()?.neg()?.exp()?.log1p()
    }

    /// This tensor, or f32 where it holds integers, whose arithmetic would wrap.
    #[track_caller]
    fn float(&self) -> TensorResult<Tensor> {
        if self.dtype().is_float() { Ok(self.clone()) } else { self.cast(DType::F32) }
    }

    /// `f(self)`, of which gradients keep `self` alone: they compute `slope`, its derivative there, again.
    #[track_caller]
    fn remembering_input(
        &self,
        f: impl Fn(&Tensor) -> TensorResult<Tensor>,
        slope: impl Fn(&Tensor) -> TensorResult<Tensor> + Send + Sync + 'static,
    ) -> TensorResult<Tensor> {
        let at = Location::caller();
        let here = Mode { at: Some(at), ..Mode::current() };
        if !self.node.tracked || !here.grad {
            return here.run(|| f(self));
        }
        let y = Mode { grad: false, ..here }.run(|| f(self))?;
        let backward = move |x: &[Tensor], g: &Tensor| Ok(vec![Some(g.mul(&slope(&x[0])?)?)]);
        Ok(y.alias(std::slice::from_ref(self), RareFields { backward: Some(Arc::new(backward)), ..RareFields::default() }, at))
    }

    /// max(x, 0).
    ///
    /// # Errors
    /// For bool, where the function is not defined on it; numbers of every dtype are taken.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[-2.0, 0.0, 3.0], &Device::cpu())?;
    /// assert_eq!(x.relu()?.to_vec()?, [0.0, 0.0, 3.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn relu(&self) -> TensorResult<Tensor> {
        self.maximum(Lit(0.0))
    }

    /// min(max(x, 0), 6).
    ///
    /// # Errors
    /// For bool, where the function is not defined on it; numbers of every dtype are taken.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[-1.0, 3.0, 9.0], &Device::cpu())?;
    /// assert_eq!(x.relu6()?.to_vec()?, [0.0, 3.0, 6.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn relu6(&self) -> TensorResult<Tensor> {
        self.clamp(Some(0.0), Some(6.0))
    }

    /// x where it is positive, else `slope` · x. PyTorch's default slope is 0.01.
    ///
    /// # Errors
    /// For bool, where the function is not defined on it; numbers of every dtype are taken.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[-2.0, 0.0, 3.0], &Device::cpu())?;
    /// assert_eq!(x.leaky_relu(0.5)?.to_vec()?, [-1.0, 0.0, 3.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn leaky_relu(&self, slope: f64) -> TensorResult<Tensor> {
        self.positive_or(&self.mul(slope)?)
    }

    /// x where it is positive, else `weight` · x. A weight of more than one element holds one slope per entry of dimension 1.
    ///
    /// # Errors
    /// When the weight is neither one number nor one per entry of dimension 1.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[-1.0, -1.0], [2.0, -4.0]], &Device::cpu())?;
    /// let slopes = Tensor::new(&[0.5, 0.25], &Device::cpu())?;
    /// assert_eq!(x.prelu(&slopes)?.to_vec()?, [-0.5, -0.25, 2.0, -1.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn prelu(&self, weight: &Tensor) -> TensorResult<Tensor> {
        let at = Location::caller();
        let channels = self.shape().get(1).copied().unwrap_or(1);
        if weight.numel() != 1 && (weight.rank() != 1 || weight.numel() != channels) {
            return Err(TensorError::shape(
                "prelu",
                at,
                format!("weight {} for {}: expected one slope, or {channels}", weight.shape(), self.shape()),
            ));
        }
        let mut sizes: smallvec::SmallVec<[isize; 8]> = smallvec::smallvec![1; self.rank()];
        if weight.numel() != 1 {
            sizes[1] = -1;
        }
        self.positive_or(&self.mul(&weight.reshape(&sizes)?)?)
    }

    /// The negative part, as which 0 counts and NaN: what an exponential of it is multiplied with in a gradient must not meet the infinity of
    /// a large x.
    #[track_caller]
    fn below_zero(&self) -> TensorResult<Tensor> {
        self.gt(Lit(0.0))?.where_(Lit(0.0), self)
    }

    /// x where it is positive, else `alpha` · (eˣ − 1) (Clevert et al., 2016).
    ///
    /// # Errors
    /// For bool, where the function is not defined on it; numbers of every dtype are taken.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[-2.0, 0.0, 3.0], &Device::cpu())?;
    /// let got = x.elu(1.0)?.to_vec()?;
    /// assert!(got.iter().zip([-0.864665, 0.0, 3.0]).all(|(a, b)| (a - b).abs() < 1e-4), "{got:?}");
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn elu(&self, alpha: f64) -> TensorResult<Tensor> {
        self.positive_or(&self.below_zero()?.expm1()?.mul(alpha)?)
    }

    /// x where it is positive, else `alpha` · (e^(x/alpha) − 1) (Barron, 2017).
    ///
    /// # Errors
    /// For bool, where the function is not defined on it; numbers of every dtype are taken.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[-2.0, 0.0, 3.0], &Device::cpu())?;
    /// let got = x.celu(2.0)?.to_vec()?;
    /// assert!(got.iter().zip([-1.264241, 0.0, 3.0]).all(|(a, b)| (a - b).abs() < 1e-4), "{got:?}");
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn celu(&self, alpha: f64) -> TensorResult<Tensor> {
        let tail = self.below_zero()?.div(alpha)?.expm1()?;
        self.positive_or(&tail.mul(alpha)?)
    }

    /// The self-normalizing elu of Klambauer et al. (2017).
    ///
    /// # Errors
    /// For bool, where the function is not defined on it; numbers of every dtype are taken.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[-2.0, 0.0, 3.0], &Device::cpu())?;
    /// let got = x.selu()?.to_vec()?;
    /// assert!(got.iter().zip([-1.520167, 0.0, 3.152103]).all(|(a, b)| (a - b).abs() < 1e-4), "{got:?}");
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn selu(&self) -> TensorResult<Tensor> {
        const ALPHA: f64 = 1.673_263_242_354_377_2;
        const SCALE: f64 = 1.050_700_987_355_480_5;
        let tail = self.below_zero()?.expm1()?.mul(Lit(ALPHA))?;
        self.positive_or(&tail)?.mul(Lit(SCALE))
    }

    /// x · sigmoid(x), also called swish.
    ///
    /// # Errors
    /// For bool, where the function is not defined on it; numbers of every dtype are taken.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[-2.0, 0.0, 3.0], &Device::cpu())?;
    /// let got = x.silu()?.to_vec()?;
    /// assert!(got.iter().zip([-0.238406, 0.0, 2.857722]).all(|(a, b)| (a - b).abs() < 1e-4), "{got:?}");
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn silu(&self) -> TensorResult<Tensor> {
        let f = |x: &Tensor| x.mul(&x.sigmoid()?);
        // s + x·s·(1 − s)
        let slope = |x: &Tensor| {
            let s = x.sigmoid()?;
            x.mul(&s.neg()?.add(Lit(1.0))?)?.add(Lit(1.0))?.mul(&s)
        };
        self.remembering_input(f, slope)
    }

    /// x · Φ(x) by the error function: PyTorch's `gelu` (Hendrycks and Gimpel, 2016).
    ///
    /// # Errors
    /// For bool, where the function is not defined on it; numbers of every dtype are taken.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[-2.0, 0.0, 3.0], &Device::cpu())?;
    /// let got = x.gelu()?.to_vec()?;
    /// assert!(got.iter().zip([-0.045500, 0.0, 2.995950]).all(|(a, b)| (a - b).abs() < 1e-4), "{got:?}");
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn gelu(&self) -> TensorResult<Tensor> {
        let normal = move |x: &Tensor| -> TensorResult<Tensor> {
            let e = x.mul(Lit(std::f64::consts::FRAC_1_SQRT_2))?.erf()?;
            e.add(Lit(1.0))?.mul(Lit(0.5))
        };
        let f = |x: &Tensor| x.mul(&normal(x)?);
        // Φ(x) + x·φ(x)
        let slope = move |x: &Tensor| {
            let density = x.mul(x)?.mul(Lit(-0.5))?.exp()?.mul(Lit(0.398_942_280_401_432_7))?;
            normal(x)?.add(&x.mul(&density)?)
        };
        self.remembering_input(f, slope)
    }

    /// The tanh approximation of gelu, as GPT-2 and Gemma use it: `0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))`.
    ///
    /// # Errors
    /// For bool, where the function is not defined on it; numbers of every dtype are taken.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[-2.0, 0.0, 3.0], &Device::cpu())?;
    /// let got = x.gelu_tanh()?.to_vec()?;
    /// assert!(got.iter().zip([-0.045402, 0.0, 2.996363]).all(|(a, b)| (a - b).abs() < 1e-4), "{got:?}");
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn gelu_tanh(&self) -> TensorResult<Tensor> {
        // 0.5·(1 + tanh(u)) = sigmoid(2u): one primitive less, and no cancellation for negative x.
        let x = self.float()?;
        const TWICE: f64 = 2.0 * 0.797_884_560_802_865_4;
        let bell = move |x: &Tensor| -> TensorResult<(Tensor, Tensor)> {
            let square = x.mul(x)?;
            let rise = square.mul(Lit(0.044715 * TWICE))?.add(Lit(TWICE))?;
            let u2 = x.mul(&rise)?;
            Ok((u2.sigmoid()?, square))
        };
        let f = |x: &Tensor| x.mul(&bell(x)?.0);
        // s + x·s·(1 − s)·(2u)'
        let slope = move |x: &Tensor| -> TensorResult<Tensor> {
            let (s, square) = bell(x)?;
            let inner = square.mul(Lit(3.0 * 0.044715 * TWICE))?.add(Lit(TWICE))?.mul(x)?;
            inner.mul(&s.neg()?.add(Lit(1.0))?)?.add(Lit(1.0))?.mul(&s)
        };
        x.remembering_input(f, slope)
    }

    /// ln(1 + eˣ), without overflow.
    ///
    /// # Errors
    /// For bool, where the function is not defined on it; numbers of every dtype are taken.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[-2.0, 0.0, 3.0], &Device::cpu())?;
    /// let got = x.softplus()?.to_vec()?;
    /// assert!(got.iter().zip([0.126928, 0.693147, 3.048587]).all(|(a, b)| (a - b).abs() < 1e-4), "{got:?}");
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn softplus(&self) -> TensorResult<Tensor> {
        let f = |x: &Tensor| x.maximum(Lit(0.0))?.add(&x.log1p_exp_minus_abs()?);
        // The parts have kinks at 0, the function has none.
        self.float()?.remembering_input(f, |x| x.sigmoid())
    }

    /// ln(1 + e^(`beta`·x)) / `beta`; x itself where `beta`·x is above `threshold`, as PyTorch's.
    ///
    /// # Errors
    /// For bool, where the function is not defined on it; numbers of every dtype are taken.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[-2.0, 0.0, 3.0], &Device::cpu())?;
    /// let got = x.softplus_with(2.0, 5.0)?.to_vec()?;
    /// assert!(got.iter().zip([0.009075, 0.346574, 3.0]).all(|(a, b)| (a - b).abs() < 1e-4), "{got:?}");
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn softplus_with(&self, beta: f64, threshold: f64) -> TensorResult<Tensor> {
        let x = self.float()?;
        let scaled = x.mul(beta)?;
        let soft = scaled.softplus()?.div(beta)?;
        scaled.gt(threshold)?.where_(&x, &soft)
    }

    /// ln(sigmoid(x)), without overflow.
    ///
    /// # Errors
    /// For bool, where the function is not defined on it; numbers of every dtype are taken.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[-2.0, 0.0, 3.0], &Device::cpu())?;
    /// let got = x.log_sigmoid()?.to_vec()?;
    /// assert!(got.iter().zip([-2.126928, -0.693147, -0.048587]).all(|(a, b)| (a - b).abs() < 1e-4), "{got:?}");
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn log_sigmoid(&self) -> TensorResult<Tensor> {
        let f = |x: &Tensor| x.minimum(Lit(0.0))?.sub(&x.log1p_exp_minus_abs()?);
        // The parts have kinks at 0, the function has none.
        self.float()?.remembering_input(f, |x| x.neg()?.sigmoid())
    }

    /// x · tanh(softplus(x)) (Misra, 2020).
    ///
    /// # Errors
    /// For bool, where the function is not defined on it; numbers of every dtype are taken.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[-2.0, 0.0, 3.0], &Device::cpu())?;
    /// let got = x.mish()?.to_vec()?;
    /// assert!(got.iter().zip([-0.252502, 0.0, 2.986535]).all(|(a, b)| (a - b).abs() < 1e-4), "{got:?}");
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn mish(&self) -> TensorResult<Tensor> {
        self.mul(&self.softplus()?.tanh()?)
    }

    /// x / (1 + |x|).
    ///
    /// # Errors
    /// For bool, where the function is not defined on it; numbers of every dtype are taken.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[-1.0, 0.0, 3.0], &Device::cpu())?;
    /// assert_eq!(x.softsign()?.to_vec()?, [-0.5, 0.0, 0.75]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn softsign(&self) -> TensorResult<Tensor> {
        let x = self.float()?;
        x.div(&x.abs()?.add(Lit(1.0))?)
    }

    /// c·tanh(x/c) for c > 0 (Bello et al., 2017).
    #[track_caller]
    pub(crate) fn softcap(&self, c: f64) -> TensorResult<Tensor> {
        self.mul(1.0 / c)?.tanh()?.mul(c)
    }

    /// min(max(x + 3, 0), 6) / 6.
    ///
    /// # Errors
    /// For bool, where the function is not defined on it; numbers of every dtype are taken.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[-3.0, 0.0, 9.0], &Device::cpu())?;
    /// assert_eq!(x.hardsigmoid()?.to_vec()?, [0.0, 0.5, 1.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn hardsigmoid(&self) -> TensorResult<Tensor> {
        self.float()?.add(Lit(3.0))?.clamp(Some(0.0), Some(6.0))?.div(6.0)
    }

    /// x · hardsigmoid(x).
    ///
    /// # Errors
    /// For bool, where the function is not defined on it; numbers of every dtype are taken.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[-3.0, 0.0, 9.0], &Device::cpu())?;
    /// assert_eq!(x.hardswish()?.to_vec()?, [0.0, 0.0, 9.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn hardswish(&self) -> TensorResult<Tensor> {
        self.mul(&self.hardsigmoid()?)
    }

    /// x limited to `low..=high`. PyTorch's defaults are −1 and 1. No gradient passes at the limits.
    ///
    /// # Errors
    /// For bool, where the function is not defined on it; numbers of every dtype are taken.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[-2.0, 0.0, 3.0], &Device::cpu())?;
    /// assert_eq!(x.hardtanh(-1.0, 1.0)?.to_vec()?, [-1.0, 0.0, 1.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn hardtanh(&self, low: f64, high: f64) -> TensorResult<Tensor> {
        self.clamp(Some(low), Some(high))
    }

    /// 0 where |x| is at most `lambda`, else x. PyTorch's default is 0.5.
    ///
    /// # Errors
    /// For bool, where the function is not defined on it; numbers of every dtype are taken.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[-2.0, 0.5, 3.0], &Device::cpu())?;
    /// assert_eq!(x.hardshrink(0.5)?.to_vec()?, [-2.0, 0.0, 3.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn hardshrink(&self, lambda: f64) -> TensorResult<Tensor> {
        let small = self.abs()?.le(lambda)?;
        small.where_(Lit(0.0), self)
    }

    /// x drawn `lambda` nearer to 0, and 0 where it was nearer than that. PyTorch's default is 0.5.
    ///
    /// # Errors
    /// For bool, where the function is not defined on it; numbers of every dtype are taken.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[-2.0, 0.25, 3.0], &Device::cpu())?;
    /// assert_eq!(x.softshrink(0.5)?.to_vec()?, [-1.5, 0.0, 2.5]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn softshrink(&self, lambda: f64) -> TensorResult<Tensor> {
        // x − clamp(x, −λ, λ), which also keeps NaN.
        let rest = self.sub(&self.clamp(Some(-lambda), Some(lambda))?)?;
        // At ±λ no gradient passes.
        let small = self.abs()?.le(lambda)?;
        small.where_(Lit(0.0), &rest)
    }

    /// x where it is above `threshold`, else `value`.
    ///
    /// # Errors
    /// For bool, where the function is not defined on it; numbers of every dtype are taken.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[-2.0, 0.0, 3.0], &Device::cpu())?;
    /// assert_eq!(x.threshold(1.0, 9.0)?.to_vec()?, [9.0, 9.0, 3.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn threshold(&self, threshold: f64, value: f64) -> TensorResult<Tensor> {
        let low = self.le(self.number(threshold))?;
        low.where_(self.number(value), self)
    }

    /// The first half of dimension `d` times the sigmoid of the second half (Dauphin et al., 2017). `[…,2·N,…]` → `[…,N,…]`.
    ///
    /// # Errors
    /// When there is no such dimension, or its size is odd.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[2.0, 0.0]], &Device::cpu())?;
    /// assert_eq!(x.glu(1)?.to_vec()?, [1.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn glu(&self, d: impl SignedIndex) -> TensorResult<Tensor> {
        let at = Location::caller();
        let k = crate::shape::dim(d, self.rank(), "glu", at)?;
        let size = self.size_for("glu", k, at)?;
        if size % 2 != 0 {
            return Err(TensorError::shape("glu", at, format!("dimension {k} of {} is not even", self.shape())));
        }
        let (a, b) = (self.narrow(k, 0, size / 2)?, self.narrow(k, size / 2, size / 2)?);
        a.mul(&b.sigmoid()?)
    }
}
