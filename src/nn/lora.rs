//! Low-rank adapters (LoRA; Hu et al., 2021, arXiv 2106.09685): two thin trainable matrices next to a frozen layer.

use super::{Dropout, Module, Param, init};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::ops::random::Rng;
use crate::tensor::Tensor;
use std::sync::Arc;

/// The configuration of adapters, in PEFT's terms.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraConfig {
    /// Rank: columns of the thin matrices.
    pub rank: usize,
    /// The product of the matrices is scaled by `alpha / rank`.
    pub alpha: f64,
    /// Probability of dropping an element of an adapter's input while training.
    pub dropout: f64,
    /// Last parts of the names of the adapted layers, such as `q_proj`; empty for the model's default.
    pub targets: Vec<String>,
}

impl Default for LoraConfig {
    fn default() -> LoraConfig {
        LoraConfig { rank: 8, alpha: 16.0, dropout: 0.0, targets: Vec::new() }
    }
}

impl LoraConfig {
    /// The scale, `alpha / rank`.
    pub fn scale(&self) -> f64 {
        self.alpha / self.rank.max(1) as f64
    }

    /// # Errors
    /// If a value is out of range.
    ///
    /// ```
    /// use tensorlogic::nn::LoraConfig;
    ///
    /// LoraConfig::default().check()?;
    /// let error = LoraConfig { rank: 0, ..LoraConfig::default() }.check().unwrap_err();
    /// assert!(error.to_string().contains("expected a rank from 1 to 65536"));
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn check(&self) -> TensorResult<()> {
        if self.rank == 0 || self.rank > 1 << 16 || !self.alpha.is_finite() || !(0.0..1.0).contains(&self.dropout) {
            let m = format!("adapters of rank {}, alpha {} and dropout {}", self.rank, self.alpha, self.dropout);
            return Err(TensorError::Config(format!("{m}: expected a rank from 1 to 65536, a finite alpha, and a dropout in 0..1")));
        }
        Ok(())
    }
}

/// An adapter: adds `scale · (x·Aᵀ)·Bᵀ` to a layer's result. Clones are the same adapter.
#[derive(Clone)]
pub struct Lora {
    /// `[rank, inputs]`.
    pub a: Param,
    /// `[outputs, rank]`.
    pub b: Param,
    /// The scale of the product.
    pub scale: f64,
    dropout: Arc<Dropout>,
}

impl Lora {
    /// An adapter initialised like PEFT's: A uniform within 1/√inputs, B zero, so that it initially adds nothing.
    ///
    /// # Errors
    /// When a parameter would have too many elements.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::nn::{Lora, LoraConfig};
    ///
    /// let mut rng = Rng::new(1);
    /// let adapter = Lora::new(8, 3, &LoraConfig::default(), &mut rng, &Device::cpu())?;
    /// let x = rng.normal(&[2, 8], DType::F32, &Device::cpu())?;
    /// assert_eq!(adapter.forward(&x)?.to_vec()?, [0.0; 6]); // nothing, before it is trained
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn new(inputs: usize, outputs: usize, config: &LoraConfig, rng: &mut Rng, device: &Device) -> TensorResult<Lora> {
        let a = init::kaiming_uniform(&[config.rank, inputs], inputs, rng, device)?;
        let b = Tensor::zeros(&[outputs, config.rank], DType::F32, device)?;
        Lora::from_parts(&a, &b, config, u64::from(rng.draws))
    }

    /// An adapter of these values `[rank, inputs]` and `[outputs, rank]`.
    ///
    /// # Errors
    /// If they are not float tensors.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::nn::{Lora, LoraConfig};
    ///
    /// let config = LoraConfig { rank: 1, alpha: 2.0, ..LoraConfig::default() };
    /// let (a, b) = (Tensor::new(&[[1.0, 2.0]], &Device::cpu())?, Tensor::new(&[[1.0], [3.0]], &Device::cpu())?);
    /// let adapter = Lora::from_parts(&a, &b, &config, 0)?;
    /// let x = Tensor::new(&[[1.0, 1.0]], &Device::cpu())?;
    /// assert_eq!(adapter.forward(&x)?.to_vec()?, [6.0, 18.0]); // 2 · 3 · [1, 3]
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn from_parts(a: &Tensor, b: &Tensor, config: &LoraConfig, seed: u64) -> TensorResult<Lora> {
        let dropout = Arc::new(Dropout::new(config.dropout, seed));
        Ok(Lora { a: Param::new(a)?, b: Param::new(b)?, scale: config.scale(), dropout })
    }

    /// The matrix that it adds to the layer's weight: `scale · B·A`, `[outputs, inputs]` in f32.
    ///
    /// # Errors
    /// When the shapes of `a` and `b` do not fit each other, or they are on different devices.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::nn::{Lora, LoraConfig};
    ///
    /// let config = LoraConfig { rank: 1, alpha: 2.0, ..LoraConfig::default() };
    /// let (a, b) = (Tensor::new(&[[1.0, 2.0]], &Device::cpu())?, Tensor::new(&[[1.0], [3.0]], &Device::cpu())?);
    /// let adapter = Lora::from_parts(&a, &b, &config, 0)?;
    /// assert_eq!(adapter.delta()?.to_vec2::<f32>()?, [[2.0, 4.0], [6.0, 12.0]]);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn delta(&self) -> TensorResult<Tensor> {
        let product = self.b.get().detach().cast(DType::F32)?.matmul(&self.a.get().detach().cast(DType::F32)?)?;
        product.mul(crate::ops::Lit(self.scale))
    }
}

impl Module for Lora {
    fn forward(&self, x: &Tensor) -> TensorResult<Tensor> {
        let thin = self.dropout.forward(x)?.matmul(&self.a.get().cast(x.dtype())?.t()?)?;
        // A literal: the scale is part of the plan and costs no dispatch.
        thin.matmul(&self.b.get().cast(x.dtype())?.t()?)?.mul(crate::ops::Lit(self.scale))
    }
    fn own_parameters(&self) -> Vec<(&'static str, &Param)> {
        vec![("lora_A.weight", &self.a), ("lora_B.weight", &self.b)]
    }
    fn children(&self) -> Vec<(String, &dyn Module)> {
        vec![("lora_dropout".into(), &*self.dropout)]
    }
}
