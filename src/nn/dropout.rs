//! Dropout.

use super::Module;
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::ops::attention::AttentionDropout;
use crate::ops::random::Rng;
use crate::tensor::Tensor;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// While training, sets each element to 0 with probability `p` and scales the rest by 1/(1 − p) (Srivastava et al., 2014).
pub struct Dropout {
    /// The bits of the probability.
    p: AtomicU64,
    rng: Mutex<Rng>,
    training: AtomicBool,
}

impl Dropout {
    /// Dropout with its own random stream. Starts in training mode.
    pub fn new(p: f64, seed: u64) -> Dropout {
        Dropout { p: AtomicU64::new(p.to_bits()), rng: Mutex::new(Rng::new(seed)), training: AtomicBool::new(true) }
    }

    /// The state of the random stream, for checkpoints.
    pub fn rng(&self) -> Rng {
        self.rng.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// Restores the state of the random stream.
    pub fn set_rng(&self, rng: Rng) {
        *self.rng.lock().unwrap_or_else(|e| e.into_inner()) = rng;
    }

    /// Sets the probability.
    pub fn set_probability(&self, p: f64) {
        self.p.store(p.to_bits(), Ordering::Relaxed);
    }

    fn probability(&self) -> f64 {
        f64::from_bits(self.p.load(Ordering::Relaxed))
    }

    /// Dropout of attention weights by the stream's next draw, which is taken; nothing when inactive.
    ///
    /// # Errors
    /// When the probability is not between 0 and 1.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::nn::{Dropout, ModuleExt};
    ///
    /// let drop = Dropout::new(0.25, 7);
    /// let draw = drop.draw()?.expect("active while training");
    /// assert_eq!((draw.p, drop.rng().draws), (0.25, 1));
    /// drop.eval();
    /// assert!(drop.draw()?.is_none());
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn draw(&self) -> TensorResult<Option<AttentionDropout>> {
        if !self.is_active() {
            return Ok(None);
        }
        AttentionDropout::new(self.probability(), &mut self.rng.lock().unwrap_or_else(|e| e.into_inner())).map(Some)
    }

    /// Whether dropout is active.
    pub fn is_active(&self) -> bool {
        self.probability() > 0.0 && self.training.load(Ordering::Relaxed)
    }
}

impl Module for Dropout {
    fn forward(&self, x: &Tensor) -> TensorResult<Tensor> {
        if !self.is_active() {
            return Ok(x.clone());
        }
        let draw = self.rng.lock().unwrap_or_else(|e| e.into_inner()).uniform(x.dims(), DType::F32, x.device())?;
        let p = self.probability();
        let scale = draw.ge(p)?.where_(1.0 / (1.0 - p).max(1e-12), 0.0)?;
        x.mul(&scale.cast(x.dtype())?)
    }
    fn on_mode(&self, training: bool) {
        self.training.store(training, Ordering::Relaxed);
    }
    fn random(&self) -> Option<Rng> {
        Some(self.rng())
    }
    fn set_random(&self, stream: Rng) {
        self.set_rng(stream);
    }
}
