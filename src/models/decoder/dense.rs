//! A feed-forward part by itself.

use super::description::{FeedForm, FeedSpec};
use super::norm::Norm;
use crate::error::TensorResult;
use crate::models::Projection;
use crate::models::activation::ActivationFn;
use crate::models::weights::Tensors;
use crate::tensor::Tensor;

/// GGUF's names of gate, up and down.
pub(super) type FeedForwardParts = [&'static str; 3];
pub(super) const DENSE: FeedForwardParts = ["ffn_gate", "ffn_up", "ffn_down"];
/// Those of shared experts.
pub(super) const SHARED: FeedForwardParts = ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"];

/// act(g)·u, or what a form has in its place.
pub(super) fn gated(spec: &FeedSpec, g: &Tensor, u: &Tensor) -> TensorResult<Tensor> {
    match spec.form {
        FeedForm::GatedClamped { alpha, limit } => {
            let (g, u) = (g.clamp(None, Some(limit))?, u.clamp(Some(-limit), Some(limit))?);
            g.mul(alpha as f32)?.sigmoid()?.mul(&g)?.mul(&u.add(1.0)?)
        }
        _ => spec.activation.of(g)?.mul(u),
    }
}

/// A feed-forward part with its weights.
#[derive(Clone)]
pub(crate) struct Dense {
    spec: FeedSpec,
    parts: FeedForwardParts,
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
    /// From these numbers α₊, α₋, β and ε, or from tensors.
    fn load(w: &Tensors<'_>, name: &str, said: Option<[f64; 4]>) -> TensorResult<Xielu> {
        let number = |part: &str| w.number(&format!("{name}.{part}"));
        let softplus = |x: f32| f64::from(x).exp().ln_1p() as f32;
        let [above, below, beta, eps] = match said {
            Some(numbers) => numbers.map(|v| v as f32),
            None => [number("alpha_p")?, number("alpha_n")?, number("beta")?, number("eps")?],
        };
        Ok(Xielu { above: softplus(above), below: beta + softplus(below), beta, eps })
    }

    fn of(self, x: &Tensor) -> TensorResult<Tensor> {
        let above = x.square()?.mul(self.above)?;
        let below = x.clamp(None, Some(f64::from(self.eps)))?.expm1()?.sub(x)?.mul(self.below)?;
        x.gt(0.0)?.where_(&above, &below)?.add(&x.mul(self.beta)?)
    }
}

impl Dense {
    /// Reads the weights of layer `i` under the names `parts`.
    pub fn load(w: &Tensors<'_>, i: usize, parts: FeedForwardParts, spec: &FeedSpec, width: usize) -> TensorResult<Dense> {
        let name = |part: &str| format!("blk.{i}.{part}");
        let rows = if spec.form == FeedForm::GatedJoint { 2 * spec.size } else { spec.size };
        let gate = match spec.form {
            FeedForm::Plain | FeedForm::GatedJoint => None,
            _ => Some(w.linear(&name(parts[0]), width, spec.size, spec.bias)?),
        };
        Ok(Dense {
            spec: spec.clone(),
            parts,
            gate,
            up: w.linear(&name(parts[1]), width, rows, spec.bias)?,
            inner_norm: Norm::load_if(w, &name("ffn_sub_norm"), spec.inner_norm, spec.size)?,
            down: w.linear(&name(parts[2]), spec.size, width, spec.bias)?,
            xielu: match spec.activation {
                ActivationFn::Xielu => Some(Xielu::load(w, &name("ffn_act"), spec.xielu)?),
                _ => None,
            },
        })
    }

    /// `[B,T,d]` to `[B,T,d]`.
    pub fn forward(&self, h: &Tensor) -> TensorResult<Tensor> {
        let act = |x: &Tensor| self.xielu.map_or_else(|| self.spec.activation.of(x), |xielu| xielu.of(x));
        let inner = match (&self.gate, self.spec.form) {
            (Some(gate), FeedForm::GatedClamped { .. }) => gated(&self.spec, &gate.forward(h)?, &self.up.forward(h)?)?,
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
        let gate = self.gate.iter().map(|g| (self.parts[0], g));
        gate.chain([(self.parts[1], &self.up), (self.parts[2], &self.down)])
    }

    /// As [`Dense::projections`], to be changed.
    pub fn projections_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut Projection)> {
        let parts = self.parts;
        let gate = self.gate.iter_mut().map(move |g| (parts[0], g));
        gate.chain([(parts[1], &mut self.up), (parts[2], &mut self.down)])
    }

    /// The norm inside.
    pub fn norm(&self) -> Option<&Norm> {
        self.inner_norm.as_ref()
    }
}
