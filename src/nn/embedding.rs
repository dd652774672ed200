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
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::nn::Embedding;
    ///
    /// let table = Embedding::new(10, 4, 1.0, &mut Rng::new(1), &Device::cpu())?;
    /// let rows = table.forward(&Tensor::new(&[[3, 5, 3]], &Device::cpu())?)?;
    /// assert_eq!(rows.dims(), [1, 3, 4]);
    /// assert_eq!(rows.i((0, 0))?.to_vec()?, rows.i((0, 2))?.to_vec()?); // both are row 3 of the table
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn new(count: usize, width: usize, std: f64, rng: &mut Rng, device: &Device) -> TensorResult<Embedding> {
        Ok(Embedding { weight: Param::new(&init::normal(&[count, width], std, rng, device)?)?, padding: None })
    }

    /// With `padding` as the padding index, like PyTorch's `padding_idx`: its row is initialised to zeros and receives no gradient.
    ///
    /// # Errors
    /// If the table has no such row.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::nn::Embedding;
    ///
    /// let table = Embedding::new(10, 2, 1.0, &mut Rng::new(1), &Device::cpu())?.with_padding(0)?;
    /// assert_eq!(table.forward(&Tensor::new(&[0], &Device::cpu())?)?.to_vec()?, [0.0, 0.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
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
