//! Parameters: trainable values with their gradients.

use crate::error::{TensorError, TensorResult};
use crate::tensor::{GradCell, Tensor};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// A trainable value. Clones are the same parameter. Reading returns a snapshot; an optimizer replaces the value.
#[derive(Clone)]
pub struct Param(Arc<Cell>);

struct Cell {
    /// The value as the model reads it.
    value: Mutex<Tensor>,
    grad: Arc<GradCell>,
    trainable: AtomicBool,
}

impl Param {
    /// A parameter with this initial value.
    ///
    /// # Errors
    /// If the value is not a float tensor.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let weight = Param::new(&Tensor::new(&[1.0, 2.0], &Device::cpu())?)?;
    /// assert_eq!(weight.get().to_vec()?, [1.0, 2.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn new(value: &Tensor) -> TensorResult<Param> {
        let value = value.detach();
        let grad = value.requires_grad()?.cell().expect("requires_grad gives a cell");
        let p = Param(Arc::new(Cell { value: Mutex::new(value.clone()), grad, trainable: AtomicBool::new(true) }));
        p.set(&value)?;
        Ok(p)
    }

    fn value(&self) -> MutexGuard<'_, Tensor> {
        self.0.value.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The current value. Gradients of results computed from it accumulate in [`Param::grad`].
    pub fn get(&self) -> Tensor {
        self.value().clone()
    }

    /// Replaces the value by one of the same shape. It may be pending.
    ///
    /// # Errors
    /// If the shapes differ.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let weight = Param::new(&Tensor::new(&[1.0, 2.0], &Device::cpu())?)?;
    /// weight.set(&weight.get().mul(3.0)?)?;
    /// assert_eq!(weight.get().to_vec()?, [3.0, 6.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn set(&self, value: &Tensor) -> TensorResult<()> {
        let mut own = self.value();
        if value.shape() != own.shape() {
            let m = format!("a value of shape {} for a parameter of shape {}", value.shape(), own.shape());
            return Err(TensorError::shape("Param::set", std::panic::Location::caller(), m));
        }
        *own = if self.is_trainable() { value.detach().with_cell(self.0.grad.clone())? } else { value.detach() };
        Ok(())
    }

    /// The gradient accumulated since it was last cleared. It is computed when requested.
    pub fn grad(&self) -> Option<Tensor> {
        self.0.grad.get()
    }

    /// Replaces the accumulated gradient and returns the previous one.
    pub fn set_grad(&self, grad: Option<Tensor>) -> Option<Tensor> {
        self.0.grad.replace(grad)
    }

    /// Clears the gradient.
    pub fn zero_grad(&self) {
        self.set_grad(None);
    }

    /// Whether gradients are accumulated.
    pub fn is_trainable(&self) -> bool {
        self.0.trainable.load(Ordering::Relaxed)
    }

    /// Enables (`true`, the default) or disables gradients.
    ///
    /// # Errors
    /// Those of [`Param::set`], which replaces the value by itself.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let weight = Param::new(&Tensor::new(&[1.0, 2.0], &Device::cpu())?)?;
    /// weight.set_trainable(false)?;
    /// assert!(!weight.is_trainable());
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn set_trainable(&self, on: bool) -> TensorResult<()> {
        self.0.trainable.store(on, Ordering::Relaxed);
        let value = self.get();
        self.set(&value)
    }

    /// Whether both are the same parameter.
    pub fn same(&self, other: &Param) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
