//! The feed-forward part of a layer.

use super::description::{FeedForm, FeedSpec};
use super::norm::Norm;
use crate::error::TensorResult;
use crate::models::Projection;
use crate::models::activation::ActivationFn;
use crate::models::weights::Tensors;
use crate::tensor::Tensor;

/// A feed-forward part with its weights.
#[derive(Clone)]
pub(crate) struct Feed {
    spec: FeedSpec,
    gate: Option<Projection>, // d → f
    up: Projection,           // d → f, or 2·f with the gate's rows first
    down: Projection,         // f → d
    inner_norm: Option<Norm>,
    /// The numbers of a learned activation.
    xielu: Option<Xielu>,
}

/// α₊·x² + β·x above 0, α₋·(e^min(x,ε) − 1 − x) + β·x below (Huang & Schlag, 2025).
#[derive(Clone, Copy)]
struct Xielu {
    above: f32,
    below: f32,
    beta: f32,
    eps: f32,
}

impl Xielu {
    fn load(w: &Tensors<'_>, name: &str) -> TensorResult<Xielu> {
        let number = |part: &str| w.number(&format!("{name}.{part}"));
        let softplus = |x: f32| f64::from(x).exp().ln_1p() as f32;
        let (beta, eps) = (number("beta")?, number("eps")?);
        Ok(Xielu { above: softplus(number("alpha_p")?), below: beta + softplus(number("alpha_n")?), beta, eps })
    }

    fn of(self, x: &Tensor) -> TensorResult<Tensor> {
        let above = x.square()?.mul(self.above)?;
        let below = x.clamp(None, Some(f64::from(self.eps)))?.expm1()?.sub(x)?.mul(self.below)?;
        x.gt(0.0)?.where_(&above, &below)?.add(&x.mul(self.beta)?)
    }
}

impl Feed {
    /// Reads the weights of layer `i`.
    pub fn load(w: &Tensors<'_>, i: usize, spec: &FeedSpec, width: usize) -> TensorResult<Feed> {
        let name = |part: &str| format!("blk.{i}.{part}");
        let rows = if spec.form == FeedForm::GatedJoint { 2 * spec.size } else { spec.size };
        let gate = match spec.form {
            FeedForm::Gated => Some(w.linear(&name("ffn_gate"), width, spec.size, spec.bias)?),
            _ => None,
        };
        Ok(Feed {
            spec: spec.clone(),
            gate,
            up: w.linear(&name("ffn_up"), width, rows, spec.bias)?,
            inner_norm: Norm::load_if(w, &name("ffn_sub_norm"), spec.inner_norm, spec.size)?,
            down: w.linear(&name("ffn_down"), spec.size, width, spec.bias)?,
            xielu: match spec.activation {
                ActivationFn::Xielu => Some(Xielu::load(w, &name("ffn_act"))?),
                _ => None,
            },
        })
    }

    /// `[B,T,d]` to `[B,T,d]`.
    pub fn forward(&self, h: &Tensor) -> TensorResult<Tensor> {
        let act = |x: &Tensor| self.xielu.map_or_else(|| self.spec.activation.of(x), |xielu| xielu.of(x));
        let inner = match (&self.gate, self.spec.form) {
            (Some(gate), _) => {
                let gate = act(&gate.forward(h)?)?;
                gate.mul(&self.up.forward(h)?)?
            }
            (None, FeedForm::GatedJoint) => {
                let [gate, up] = self.up.parts(h, [self.spec.size, self.spec.size])?;
                act(&gate)?.mul(&up)?
            }
            (None, _) => act(&self.up.forward(h)?)?,
        };
        match &self.inner_norm {
            Some(norm) => self.down.forward(&norm.forward(&inner)?),
            None => self.down.forward(&inner),
        }
    }

    /// The linear layers with GGUF's names of their parts.
    pub fn projections(&self) -> impl Iterator<Item = (&'static str, &Projection)> {
        let gate = self.gate.iter().map(|g| ("ffn_gate", g));
        gate.chain([("ffn_up", &self.up), ("ffn_down", &self.down)])
    }

    /// As [`Feed::projections`], to be changed.
    pub fn projections_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut Projection)> {
        let gate = self.gate.iter_mut().map(|g| ("ffn_gate", g));
        gate.chain([("ffn_up", &mut self.up), ("ffn_down", &mut self.down)])
    }

    /// The weights of norms.
    pub fn norms(&self) -> impl Iterator<Item = &Norm> {
        self.inner_norm.iter()
    }
}
