//! Parameters: values that training replaces, with a place for their gradients.

use crate::error::{TensorError, TensorResult};
use crate::tensor::{GradCell, Tensor};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// A trainable value. Clones are the same parameter. Reading gives a snapshot; an optimizer replaces the value.
#[derive(Clone)]
pub struct Param(Arc<Cell>);

struct Cell {
    /// The value as the model reads it.
    value: Mutex<Tensor>,
    grad: Arc<GradCell>,
    trainable: AtomicBool,
}

impl Param {
    /// A parameter that begins with this value.
    ///
    /// # Errors
    /// When the value is not a float tensor.
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

    /// The value now: gradients of what is computed from it are collected in [`Param::grad`].
    pub fn get(&self) -> Tensor {
        self.value().clone()
    }

    /// Replaces the value by one of the same shape. It may be pending.
    ///
    /// # Errors
    /// When the shapes differ.
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

    /// The gradient collected since it was last forgotten; pending until asked for.
    pub fn grad(&self) -> Option<Tensor> {
        self.0.grad.get()
    }

    /// Replaces the collected gradient; gives the one before.
    pub fn set_grad(&self, grad: Option<Tensor>) -> Option<Tensor> {
        self.0.grad.replace(grad)
    }

    /// Forgets the gradient.
    pub fn zero_grad(&self) {
        self.set_grad(None);
    }

    /// Whether gradients are collected.
    pub fn is_trainable(&self) -> bool {
        self.0.trainable.load(Ordering::Relaxed)
    }

    /// Collects gradients (`true`, the beginning) or stays as it is (`false`).
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
