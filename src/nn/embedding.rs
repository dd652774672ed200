//! Embeddings: tables of vectors by index.

use super::{Module, Param, init};
use crate::device::Device;
use crate::error::{TensorError, TensorResult};
use crate::ops::random::Rng;
use crate::tensor::Tensor;

/// Rows of a table `[count, width]` for integer indices of any shape.
pub struct Embedding {
    /// `[count, width]`.
    pub weight: Param,
    padding: Option<usize>,
}

impl Embedding {
    /// A table of normally distributed entries with this standard deviation (PyTorch: 1).
    ///
    /// # Errors
    /// When the table would have too many elements.
    pub fn new(count: usize, width: usize, std: f64, rng: &mut Rng, device: &Device) -> TensorResult<Embedding> {
        Ok(Embedding { weight: Param::new(&init::normal(&[count, width], std, rng, device)?)?, padding: None })
    }

    /// With `padding` as the padding index, like PyTorch's `padding_idx`: its row is initialised to zeros and receives no gradient.
    ///
    /// # Errors
    /// If the table has no such row.
    pub fn with_padding(mut self, padding: usize) -> TensorResult<Embedding> {
        let table = self.weight.get().detach();
        if padding >= table.shape()[0] {
            return Err(TensorError::Value(format!("an embedding of {} has no row {padding}", table.shape())));
        }
        let zeros = Tensor::zeros(&[1, table.shape()[1]], table.dtype(), table.device())?;
        self.weight.set(&table.write(&zeros, 0, padding)?)?;
        self.padding = Some(padding);
        Ok(self)
    }
}

impl Module for Embedding {
    fn forward(&self, index: &Tensor) -> TensorResult<Tensor> {
        match self.padding {
            Some(row) => self.weight.get().embedding_with_padding(index, row as isize),
            None => self.weight.get().embedding(index),
        }
    }
    fn own_parameters(&self) -> Vec<(&'static str, &Param)> {
        vec![("weight", &self.weight)]
    }
}
