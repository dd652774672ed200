//! How a step follows from gradients: SGD, Adam, AdamW, Lion, Muon.

use super::StepNumbers;
use crate::error::TensorResult;
use crate::ops::Lit;
use crate::tensor::Tensor;

/// An update rule over flat tensors.
///
/// ```
/// use tensorlogic::optim::{Optimizer, Rule, StepNumbers};
/// use tensorlogic::prelude::*;
///
/// /// Steps as long as the learning rate, against the gradient's sign.
/// struct SignSgd;
///
/// impl Rule for SignSgd {
///     fn states(&self) -> usize {
///         0
///     }
///     fn remember(&self, _: &Tensor, _: &Tensor, _: &[Tensor], _: &StepNumbers) -> TensorResult<Vec<Tensor>> {
///         Ok(vec![])
///     }
///     fn update(&self, x: &Tensor, grad: &Tensor, _: &[Tensor], n: &StepNumbers, _: &[(usize, &[usize])]) -> TensorResult<Tensor> {
///         x.sub(&grad.sign()?.mul(n.lr)?)
///     }
/// }
///
/// let p = Param::new(&Tensor::new(&[1.0, -2.0], &Device::cpu())?)?;
/// let mut optimizer = Optimizer::new(SignSgd, vec![("p".into(), p.clone())], 0.5)?;
/// p.get().square()?.sum_all()?.backward()?;
/// optimizer.step()?;
/// assert_eq!(p.get().to_vec()?, [0.5, -1.5]);
/// # Ok::<(), TensorError>(())
/// ```
pub trait Rule: Send + Sync {
    /// How many tensors it remembers per parameter.
    fn states(&self) -> usize;
    /// Its own weight decay.
    fn weight_decay(&self) -> f64 {
        0.0
    }
    /// Whether each element's update depends on that element alone, so that slices of a buffer can be updated apart, wherever they are cut. Where it
    /// does not, slices are cut between parameters.
    fn is_elementwise(&self) -> bool {
        true
    }
    /// The new states, from the old values, the gradient and the old states.
    ///
    /// # Errors
    /// Those of its operations; [`Optimizer::step`](super::Optimizer::step) passes them on.
    fn remember(&self, value: &Tensor, grad: &Tensor, states: &[Tensor], n: &StepNumbers) -> TensorResult<Vec<Tensor>>;
    /// The new values, from the old ones, the gradient and the new states. `members` are the parameters inside the flat tensors: start and shape.
    ///
    /// # Errors
    /// Those of its operations; [`Optimizer::step`](super::Optimizer::step) passes them on.
    fn update(
        &self,
        value: &Tensor,
        grad: &Tensor,
        states: &[Tensor],
        n: &StepNumbers,
        members: &[(usize, &[usize])],
    ) -> TensorResult<Tensor>;
}

/// Stochastic gradient descent, with momentum and Nesterov's look ahead if asked for, as PyTorch's.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sgd {
    /// Share of the last direction that is kept.
    pub momentum: f64,
    /// Whether the gradient is looked at where momentum leads (Sutskever et al., 2013).
    pub nesterov: bool,
    /// Added to the gradient, times the value.
    pub weight_decay: f64,
}

impl Rule for Sgd {
    fn states(&self) -> usize {
        usize::from(self.momentum != 0.0)
    }
    fn weight_decay(&self) -> f64 {
        self.weight_decay
    }
    fn remember(&self, value: &Tensor, grad: &Tensor, states: &[Tensor], n: &StepNumbers) -> TensorResult<Vec<Tensor>> {
        let grad = decayed(value, grad, n)?;
        states.iter().map(|s| s.mul(Lit(self.momentum))?.add(&grad)).collect()
    }
    fn update(&self, value: &Tensor, grad: &Tensor, states: &[Tensor], n: &StepNumbers, _: &[(usize, &[usize])]) -> TensorResult<Tensor> {
        let grad = decayed(value, grad, n)?;
        let way = match states.first() {
            None => grad,
            Some(m) if self.nesterov => grad.add(&m.mul(Lit(self.momentum))?)?,
            Some(m) => m.clone(),
        };
        value.sub(&way.mul(n.lr)?)
    }
}

/// The gradient with weight decay as part of it.
fn decayed(value: &Tensor, grad: &Tensor, n: &StepNumbers) -> TensorResult<Tensor> {
    if n.weight_decay == 0.0 { Ok(grad.clone()) } else { grad.add(&value.mul(n.weight_decay)?) }
}

/// Adam with decoupled weight decay (Loshchilov and Hutter, 2019).
#[derive(Clone, Copy, Debug)]
pub struct AdamW {
    /// Decay of the mean of gradients and of their squares.
    pub betas: (f64, f64),
    /// Added to the root.
    pub eps: f64,
    /// Share of each value that a step takes away, times the learning rate.
    pub weight_decay: f64,
}

impl Default for AdamW {
    fn default() -> Self {
        AdamW { betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.01 }
    }
}

impl Rule for AdamW {
    fn states(&self) -> usize {
        2
    }
    fn weight_decay(&self) -> f64 {
        self.weight_decay
    }
    fn remember(&self, _: &Tensor, grad: &Tensor, states: &[Tensor], _: &StepNumbers) -> TensorResult<Vec<Tensor>> {
        let (b1, b2) = self.betas;
        let m = states[0].mul(Lit(b1))?.add(&grad.mul(Lit(1.0 - b1))?)?;
        let v = states[1].mul(Lit(b2))?.add(&grad.mul(grad)?.mul(Lit(1.0 - b2))?)?;
        Ok(vec![m, v])
    }
    fn update(&self, value: &Tensor, _: &Tensor, states: &[Tensor], n: &StepNumbers, _: &[(usize, &[usize])]) -> TensorResult<Tensor> {
        let (b1, b2) = self.betas;
        let (c1, c2) = (1.0 - b1.powf(n.t as f64), 1.0 - b2.powf(n.t as f64));
        let root = states[1].sqrt()?.mul(1.0 / c2.sqrt())?.add(Lit(self.eps))?;
        value.mul(1.0 - n.lr * n.weight_decay)?.sub(&states[0].mul(n.lr / c1)?.div(&root)?)
    }
}

/// Adam (Kingma and Ba, 2015), without weight decay.
#[derive(Clone, Copy, Debug)]
pub struct Adam {
    /// Decay of the mean of gradients and of their squares.
    pub betas: (f64, f64),
    /// Added to the root.
    pub eps: f64,
}

impl Default for Adam {
    fn default() -> Self {
        Adam { betas: (0.9, 0.999), eps: 1e-8 }
    }
}

impl Adam {
    fn as_adamw(&self) -> AdamW {
        AdamW { betas: self.betas, eps: self.eps, weight_decay: 0.0 }
    }
}

impl Rule for Adam {
    fn states(&self) -> usize {
        2
    }
    fn remember(&self, value: &Tensor, grad: &Tensor, states: &[Tensor], n: &StepNumbers) -> TensorResult<Vec<Tensor>> {
        self.as_adamw().remember(value, grad, states, n)
    }
    fn update(&self, value: &Tensor, grad: &Tensor, states: &[Tensor], n: &StepNumbers, m: &[(usize, &[usize])]) -> TensorResult<Tensor> {
        self.as_adamw().update(value, grad, states, n, m)
    }
}

/// Sign of an interpolated momentum (Chen et al., 2023).
#[derive(Clone, Copy, Debug)]
pub struct Lion {
    /// Weight of the momentum in the step, and its decay.
    pub betas: (f64, f64),
    /// Share of each value that a step takes away, times the learning rate.
    pub weight_decay: f64,
}

impl Default for Lion {
    fn default() -> Self {
        Lion { betas: (0.9, 0.99), weight_decay: 0.0 }
    }
}

impl Rule for Lion {
    fn states(&self) -> usize {
        1
    }
    fn weight_decay(&self) -> f64 {
        self.weight_decay
    }
    fn remember(&self, _: &Tensor, grad: &Tensor, states: &[Tensor], _: &StepNumbers) -> TensorResult<Vec<Tensor>> {
        Ok(vec![states[0].mul(Lit(self.betas.1))?.add(&grad.mul(Lit(1.0 - self.betas.1))?)?])
    }
    fn update(&self, value: &Tensor, grad: &Tensor, states: &[Tensor], n: &StepNumbers, _: &[(usize, &[usize])]) -> TensorResult<Tensor> {
        // The step wants the old momentum: what the new one was made from, m' = β₂·m + (1 − β₂)·g.
        let (b1, b2) = self.betas;
        let old = states[0].sub(&grad.mul(Lit(1.0 - b2))?)?.mul(Lit(1.0 / b2))?;
        let way = old.mul(Lit(b1))?.add(&grad.mul(Lit(1.0 - b1))?)?.sign()?;
        value.mul(1.0 - n.lr * n.weight_decay)?.sub(&way.mul(n.lr)?)
    }
}

/// Orthogonalized momentum for matrices (Jordan et al., 2024, by five Newton-Schulz steps); other parameters move by the sign of theirs, and are
/// better given another rule ([`super::ParamGroup::rule`]).
#[derive(Clone, Copy, Debug)]
pub struct Muon {
    /// Decay of the momentum.
    pub momentum: f64,
    /// Share of each value that a step takes away, times the learning rate.
    pub weight_decay: f64,
    /// Whether a step is as large as one of AdamW's, so that the same learning rate does (Liu et al., 2025): 0.2·√(the larger side). Without
    /// it, √(rows / columns) where that is more than 1.
    pub like_adamw: bool,
}

impl Default for Muon {
    fn default() -> Self {
        Muon { momentum: 0.95, weight_decay: 0.0, like_adamw: false }
    }
}

/// The nearest matrix with orthogonal rows or columns, roughly: singular values come to lie around 1.
fn orthogonal(x: &Tensor) -> TensorResult<Tensor> {
    let tall = x.shape()[0] > x.shape()[1];
    let mut y = if tall { x.t()? } else { x.clone() };
    y = y.div(&y.norm(2.0, &[], false)?.add(Lit(1e-7))?)?;
    for _ in 0..5 {
        let a = y.matmul(&y.t()?)?;
        let b = a.mul(Lit(-4.7750))?.add(&a.matmul(&a)?.mul(Lit(2.0315))?)?;
        y = y.mul(Lit(3.4445))?.add(&b.matmul(&y)?)?;
    }
    if tall { y.t() } else { Ok(y) }
}

impl Rule for Muon {
    fn states(&self) -> usize {
        1
    }
    fn weight_decay(&self) -> f64 {
        self.weight_decay
    }
    fn is_elementwise(&self) -> bool {
        false
    }
    fn remember(&self, _: &Tensor, grad: &Tensor, states: &[Tensor], _: &StepNumbers) -> TensorResult<Vec<Tensor>> {
        Ok(vec![states[0].mul(Lit(self.momentum))?.add(grad)?])
    }
    fn update(
        &self,
        value: &Tensor,
        grad: &Tensor,
        states: &[Tensor],
        n: &StepNumbers,
        members: &[(usize, &[usize])],
    ) -> TensorResult<Tensor> {
        let ahead = grad.add(&states[0].mul(Lit(self.momentum))?)?;
        let mut pieces = Vec::new();
        let mut end = 0;
        let gap = |pieces: &mut Vec<Tensor>, to: usize, end: usize| -> TensorResult<()> {
            if to > end {
                pieces.push(ahead.narrow(0, end, to - end)?.sign()?);
            }
            Ok(())
        };
        for &(start, shape) in members {
            gap(&mut pieces, start, end)?;
            let count: usize = shape.iter().product();
            let part = ahead.narrow(0, start, count)?;
            pieces.push(match shape {
                [rows, cols] => {
                    let scale = match self.like_adamw {
                        true => 0.2 * (*rows.max(cols) as f64).sqrt(),
                        false => (*rows as f64 / *cols as f64).max(1.0).sqrt(),
                    };
                    orthogonal(&part.reshape(&[*rows, *cols])?)?.mul(Lit(scale))?.flatten(0, -1)?
                }
                _ => part.sign()?,
            });
            end = start + count;
        }
        gap(&mut pieces, value.numel(), end)?;
        value.mul(1.0 - n.lr * n.weight_decay)?.sub(&Tensor::cat(&pieces, 0)?.mul(n.lr)?)
    }
}
