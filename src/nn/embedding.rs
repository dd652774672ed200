//! Tables of vectors by index.

use super::{Module, Param, init};
use crate::device::Device;
use crate::error::TensorResult;
use crate::ops::random::Rng;
use crate::tensor::Tensor;

/// Rows of a table `[count, width]` for integer indices of any shape.
pub struct Embedding {
    /// `[count, width]`.
    pub weight: Param,
}

impl Embedding {
    /// A table of normal entries of this standard deviation (PyTorch: 1).
    pub fn new(count: usize, width: usize, std: f64, rng: &mut Rng, device: &Device) -> TensorResult<Embedding> {
        Ok(Embedding { weight: Param::new(&init::normal(&[count, width], std, rng, device)?)? })
    }
}

impl Module for Embedding {
    fn forward(&self, index: &Tensor) -> TensorResult<Tensor> {
        self.weight.get().embedding(index)
    }
    fn own_parameters(&self) -> Vec<(&'static str, &Param)> {
        vec![("weight", &self.weight)]
    }
}
