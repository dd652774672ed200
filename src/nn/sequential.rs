//! Modules applied in sequence.

use super::{Linear, Module};
use crate::device::Device;
use crate::error::TensorResult;
use crate::ops::random::Rng;
use crate::tensor::Tensor;

/// Modules applied in sequence, named 0, 1, ….
#[derive(Default)]
pub struct Sequential(Vec<Box<dyn Module>>);

impl Sequential {
    /// An empty sequence.
    pub fn new() -> Sequential {
        Sequential::default()
    }
    /// Appends a module.
    pub fn push(mut self, m: impl Module + 'static) -> Sequential {
        self.0.push(Box::new(m));
        self
    }
}

impl Module for Sequential {
    fn forward(&self, x: &Tensor) -> TensorResult<Tensor> {
        self.0.iter().try_fold(x.clone(), |x, m| m.forward(&x))
    }
    fn children(&self) -> Vec<(String, &dyn Module)> {
        self.0.iter().enumerate().map(|(i, m)| (i.to_string(), &**m)).collect()
    }
}

/// A function of a tensor as a module: `Act(Tensor::relu)`.
pub struct Act(pub fn(&Tensor) -> TensorResult<Tensor>);

impl Module for Act {
    fn forward(&self, x: &Tensor) -> TensorResult<Tensor> {
        (self.0)(x)
    }
}

/// `[N, …]` to `[N, all the rest]`.
pub struct Flatten;

impl Module for Flatten {
    fn forward(&self, x: &Tensor) -> TensorResult<Tensor> {
        x.flatten(1, -1)
    }
}

/// Fully connected layers with an activation between them.
pub struct Mlp {
    layers: Vec<Linear>,
    act: fn(&Tensor) -> TensorResult<Tensor>,
}

impl Mlp {
    /// Layers of these widths, inputs first.
    ///
    /// # Errors
    /// Those of [`Linear::new`].
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::nn::{Mlp, ModuleExt};
    ///
    /// let model = Mlp::new(&[2, 8, 1], Tensor::relu, &mut Rng::new(1), &Device::cpu())?;
    /// assert_eq!(model.parameter_count(), 2 * 8 + 8 + 8 + 1);
    /// assert_eq!(model.forward(&Tensor::zeros(&[5, 2], DType::F32, &Device::cpu())?)?.dims(), [5, 1]);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn new(widths: &[usize], act: fn(&Tensor) -> TensorResult<Tensor>, rng: &mut Rng, device: &Device) -> TensorResult<Mlp> {
        let layers = widths.windows(2).map(|w| Linear::new(w[0], w[1], true, rng, device)).collect::<TensorResult<_>>()?;
        Ok(Mlp { layers, act })
    }
}

impl Module for Mlp {
    fn forward(&self, x: &Tensor) -> TensorResult<Tensor> {
        let mut x = x.clone();
        for (i, l) in self.layers.iter().enumerate() {
            x = l.forward(&x)?;
            if i + 1 < self.layers.len() {
                x = (self.act)(&x)?;
            }
        }
        Ok(x)
    }
    fn children(&self) -> Vec<(String, &dyn Module)> {
        self.layers.iter().enumerate().map(|(i, l)| (format!("layers.{i}"), l as &dyn Module)).collect()
    }
}
