//! Alternating updates (AltUp, Baykal et al., 2023) with a learned augmented residual (LAuReL, Menghani et al., 2024), as Gemma 3n has them.
//!
//! The residual stream has n copies x₀ … xₙ₋₁, of which a layer computes one, a. With r(x) = tanh(Wr·rms(x)/d): predictions
//! pᵢ = xᵢ + Σⱼ (Wp·r(xₐ))ᵢⱼ·xⱼ; y is what the layer makes of pₐ; results pᵢ + (1 + (Wc·r(y))ᵢ)·(y − pₐ). LAuReL adds h + rms(Wr·Wl·h) to what
//! attention leaves, and their sum is divided by √2.

use super::norm::Norm;
use crate::error::TensorResult;
use crate::models::Projection;
use crate::models::decoder::description::AltUpSpec;
use crate::models::weights::Tensors;
use crate::tensor::Tensor;

/// The matrices before the first and behind the last layer.
pub(crate) struct AltUpEnds {
    copies: Vec<Projection>,
    joins: Vec<Projection>,
}

impl AltUpEnds {
    /// Reads the weights for a model of this width.
    pub fn load(w: &Tensors<'_>, spec: AltUpSpec, width: usize) -> TensorResult<AltUpEnds> {
        let all = |name: &str| w.linears(name, [spec.copies - 1, width, width]);
        Ok(AltUpEnds { copies: all("altup_proj")?, joins: all("altup_unembd_proj")? })
    }

    /// x `[B,T,d]` to its copies `[n,B,T,d]`, each of x's magnitude.
    pub fn copies(&self, x: &Tensor) -> TensorResult<Tensor> {
        let mut all = vec![x.clone()];
        for matrix in &self.copies {
            all.push(as_large(&matrix.forward(x)?, x)?);
        }
        Tensor::stack(&all, 0)
    }

    /// Copies `[n,B,T,d]` to their mean `[B,T,d]`, each of the first one's magnitude.
    pub fn join(&self, x: &Tensor) -> TensorResult<Tensor> {
        let first = x.narrow(0, 0, 1)?.squeeze(0)?;
        let mut sum = first.clone();
        for (k, matrix) in self.joins.iter().enumerate() {
            let copy = matrix.forward(&x.narrow(0, k + 1, 1)?.squeeze(0)?)?;
            sum = sum.add(&as_large(&copy, &first)?)?;
        }
        sum.mul(1.0 / (self.joins.len() + 1) as f32)
    }

    /// The weights.
    pub fn weights(&self) -> impl Iterator<Item = &Tensor> {
        self.copies.iter().chain(&self.joins).map(|p| &p.weight)
    }
}

/// y with the root mean square of x.
fn as_large(y: &Tensor, x: &Tensor) -> TensorResult<Tensor> {
    let size = x.square()?.mean(&[-1], true)?.sqrt()?;
    y.mul(&size.div(&y.square()?.mean(&[-1], true)?.clamp(Some(1e-5), None)?.sqrt()?)?)
}

/// A layer's part.
#[derive(Clone)]
pub(crate) struct AltUp {
    spec: AltUpSpec,
    router: Projection, // d → n
    router_norm: Norm,
    predict: Projection,   // n → n²
    correct: Projection,   // n → n
    scale: Option<Tensor>, // [d]
    left: Projection,      // d → r
    right: Projection,     // r → d
    laurel_norm: Norm,
}

impl AltUp {
    /// Reads the weights of layer `i`.
    pub fn load(w: &Tensors<'_>, i: usize, spec: AltUpSpec, width: usize) -> TensorResult<AltUp> {
        let name = |part: &str| format!("blk.{i}.{part}");
        let linear = |part: &str, inputs: usize, outputs: usize| w.linear(&name(part), inputs, outputs, Some(false));
        let scale = w.vector(&name("altup_correct_scale.weight"), width)?;
        Ok(AltUp {
            router: linear("altup_router", width, spec.copies)?,
            router_norm: Norm::load(w, &name("altup_router_norm"), spec.norm, width)?,
            predict: linear("altup_predict_coef", spec.copies, spec.copies * spec.copies)?,
            correct: linear("altup_correct_coef", spec.copies, spec.copies)?,
            scale: spec.scaled.then_some(scale),
            left: linear("laurel_l", width, spec.laurel)?,
            right: linear("laurel_r", spec.laurel, width)?,
            laurel_norm: Norm::load(w, &name("laurel_post_norm"), spec.norm, width)?,
            spec,
        })
    }

    fn routed(&self, x: &Tensor) -> TensorResult<Tensor> {
        let width = x.dims().last().copied().unwrap_or(1);
        self.router.forward(&self.router_norm.forward(x)?.mul(1.0 / width as f32)?)?.tanh()
    }

    /// The predictions `[B,T,d]` of each of the copies `[n,B,T,d]`.
    pub fn predict(&self, x: &Tensor) -> TensorResult<Vec<Tensor>> {
        let n = self.spec.copies;
        let copies = (0..n).map(|k| x.narrow(0, k, 1)?.squeeze(0)).collect::<TensorResult<Vec<_>>>()?;
        let factors = self.predict.forward(&self.routed(&copies[self.spec.active])?)?; // [B, T, n²]
        let prediction = |i: usize| {
            copies
                .iter()
                .enumerate()
                .try_fold(copies[i].clone(), |sum, (j, copy)| sum.add(&copy.mul(&factors.narrow(-1, i * n + j, 1)?)?))
        };
        (0..n).map(prediction).collect()
    }

    /// The copy that the layer computes.
    pub fn active(&self) -> usize {
        self.spec.active
    }

    /// h + rms(Wr·Wl·h).
    pub fn laurel(&self, h: &Tensor) -> TensorResult<Tensor> {
        h.add(&self.laurel_norm.forward(&self.right.forward(&self.left.forward(h)?)?)?)
    }

    /// The predictions, corrected by what the layer made of the active one.
    pub fn correct(&self, predictions: &[Tensor], y: &Tensor) -> TensorResult<Vec<Tensor>> {
        let factors = self.correct.forward(&self.routed(y)?)?.add(1.0)?; // [B, T, n]
        let news = y.sub(&predictions[self.spec.active])?;
        predictions.iter().enumerate().map(|(i, p)| p.add(&news.mul(&factors.narrow(-1, i, 1)?)?)).collect()
    }

    /// The active copy as the layer's embeddings see it.
    pub fn seen(&self, corrected: &[Tensor]) -> TensorResult<Tensor> {
        let x = &corrected[self.spec.active];
        self.scale.as_ref().map_or_else(|| Ok(x.clone()), |scale| x.mul(scale)?.cast(x.dtype()))
    }

    /// The linear layers with GGUF's names of their parts.
    pub fn projections(&self) -> Vec<(&'static str, &Projection)> {
        vec![
            ("altup_router", &self.router),
            ("altup_predict_coef", &self.predict),
            ("altup_correct_coef", &self.correct),
            ("laurel_l", &self.left),
            ("laurel_r", &self.right),
        ]
    }
    /// As [`AltUp::projections`], to be changed.
    pub fn projections_mut(&mut self) -> Vec<(&'static str, &mut Projection)> {
        vec![
            ("altup_router", &mut self.router),
            ("altup_predict_coef", &mut self.predict),
            ("altup_correct_coef", &mut self.correct),
            ("laurel_l", &mut self.left),
            ("laurel_r", &mut self.right),
        ]
    }
    /// The norms.
    pub fn norms(&self) -> impl Iterator<Item = &Norm> {
        [&self.router_norm, &self.laurel_norm].into_iter()
    }
    /// What is neither a linear layer nor a norm.
    pub fn others(&self) -> impl Iterator<Item = &Tensor> {
        self.scale.iter()
    }
}
