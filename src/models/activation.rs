//! The function between the two products of a feed-forward block, by the names that configurations give it.

use crate::error::{TensorError, TensorResult};
use crate::models::settings::{NONE, Settings};
use crate::tensor::Tensor;

/// An elementwise function of a feed-forward block.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum ActivationFn {
    /// x·Φ(x) with the exact distribution function.
    GeluExact,
    /// x·Φ(x) with Φ approximated by tanh.
    GeluTanh,
    /// x·σ(1.702·x).
    GeluSigmoid,
    Relu,
    /// max(x, 0)².
    ReluSquared,
    Relu6,
    /// Slope 0.01 below 0.
    LeakyRelu,
    /// x·σ(x).
    Silu,
    /// Of x times a number.
    SiluOf(f32),
    Hardswish,
    Mish,
    Tanh,
    Sigmoid,
    Identity,
    /// With numbers that are learned in each layer, which the layer has.
    Xielu,
    /// GELU by tanh of what is more than `0` standard deviations above the mean of its row, less that bound, and of 0 elsewhere.
    SparseGeluTanh(f32),
}
use ActivationFn::*;

/// transformers' names.
const NAMES: [(&str, ActivationFn); 20] = [
    ("gelu", GeluExact),
    ("gelu_python", GeluExact),
    ("gelu_new", GeluTanh),
    ("gelu_fast", GeluTanh),
    ("gelu_accurate", GeluTanh),
    ("gelu_pytorch_tanh", GeluTanh),
    ("gelu_python_tanh", GeluTanh),
    ("quick_gelu", GeluSigmoid),
    ("relu", Relu),
    ("relu2", ReluSquared),
    ("relu6", Relu6),
    ("leaky_relu", LeakyRelu),
    ("silu", Silu),
    ("swish", Silu),
    ("hardswish", Hardswish),
    ("mish", Mish),
    ("tanh", Tanh),
    ("sigmoid", Sigmoid),
    ("linear", Identity),
    ("xielu", Xielu),
];

impl ActivationFn {
    /// The function that transformers calls so, if it has no numbers of its own.
    pub(crate) fn named(name: &str) -> Option<ActivationFn> {
        NAMES.iter().find(|(n, f)| *n == name && *f != Xielu).map(|(_, f)| *f)
    }

    /// What `config.json` says at `key`, or `default`, which is also what the architecture has in GGUF.
    pub(crate) fn read(s: &Settings<'_>, key: &str, default: ActivationFn) -> TensorResult<ActivationFn> {
        let Some(name) = s.text(NONE, key)? else { return Ok(default) };
        // One with numbers of its own is where the architecture has them.
        let usable = |f: ActivationFn| f != Xielu || default == Xielu;
        let known = NAMES.iter().find(|(n, f)| *n == name && usable(*f)).map(|(_, f)| *f);
        known.ok_or_else(|| s.refuse(NONE, key, &format!("supported: {}", NAMES.map(|n| n.0).join(", "))))
    }

    /// The function of every element.
    #[track_caller]
    pub(crate) fn of(self, x: &Tensor) -> TensorResult<Tensor> {
        match self {
            GeluExact => x.gelu(),
            GeluTanh => x.gelu_tanh(),
            GeluSigmoid => x.mul(1.702)?.sigmoid()?.mul(x),
            Relu => x.relu(),
            ReluSquared => x.relu()?.square(),
            Relu6 => x.relu6(),
            LeakyRelu => x.leaky_relu(0.01),
            Silu => x.silu(),
            SiluOf(by) => x.mul(by)?.silu(),
            Hardswish => x.hardswish(),
            Mish => x.mish(),
            Tanh => x.tanh(),
            Sigmoid => x.sigmoid(),
            Identity => Ok(x.clone()),
            SparseGeluTanh(deviations) => {
                let mean = x.mean(&[-1], true)?;
                let deviation = x.sub(&mean)?.square()?.mean(&[-1], true)?.sqrt()?;
                x.sub(&mean.add(&deviation.mul(deviations)?)?)?.relu()?.gelu_tanh()
            }
            Xielu => Err(TensorError::Internal("xIELU without its numbers".into())),
        }
    }
}
