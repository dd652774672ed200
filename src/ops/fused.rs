//! Fused operations by name: each builds the plain graph, and the compiler makes one kernel of it, as it does of the unfused spelling.

use crate::error::TensorResult;
use crate::ops::Rhs;
use crate::tensor::Tensor;

/// What [`Tensor::matmul_with_activation`] applies to the product before it is stored.
///
/// There is no kernel per activation: the function becomes part of the product's store, so that the list may grow at no cost.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Activation {
    /// Nothing: the product alone.
    #[default]
    None = 0,
    /// max(x, 0).
    ReLU = 1,
    /// The tanh approximation of gelu, `0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))`: [`Tensor::gelu_tanh`].
    GeluTanh = 2,
    /// x · sigmoid(x), also called swish.
    SiLU = 3,
    /// The hyperbolic tangent.
    Tanh = 4,
    /// 1 / (1 + e⁻ˣ).
    Sigmoid = 5,
    /// x · Φ(x) by the error function: [`Tensor::gelu`], as PyTorch's `gelu`.
    Gelu = 6,
    /// ln(1 + eˣ).
    Softplus = 7,
    /// x · tanh(softplus(x)).
    Mish = 8,
    /// x · min(max(x + 3, 0), 6) / 6.
    HardSwish = 9,
    /// min(max(x, 0), 6).
    ReLU6 = 10,
}

impl Activation {
    /// An older name, with the number 2, of [`Activation::GeluTanh`]: the approximation, unlike [`Activation::Gelu`] and [`Tensor::gelu`].
    #[deprecated(note = "`GELU` is the tanh approximation: write `GeluTanh`, or `Gelu` for the error function")]
    pub const GELU: Activation = Activation::GeluTanh;

    /// Every activation, in the order of their numbers.
    pub const ALL: [Activation; 11] = [
        Activation::None,
        Activation::ReLU,
        Activation::GeluTanh,
        Activation::SiLU,
        Activation::Tanh,
        Activation::Sigmoid,
        Activation::Gelu,
        Activation::Softplus,
        Activation::Mish,
        Activation::HardSwish,
        Activation::ReLU6,
    ];

    /// The function of each element of `x`.
    ///
    /// # Errors
    /// For dtypes that the function is not defined on.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[-1.0, 2.0], &Device::cpu())?;
    /// assert_eq!(Activation::ReLU.apply(&x)?.to_vec()?, [0.0, 2.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn apply(self, x: &Tensor) -> TensorResult<Tensor> {
        match self {
            Activation::None => Ok(x.clone()),
            Activation::ReLU => x.relu(),
            Activation::GeluTanh => x.gelu_tanh(),
            Activation::SiLU => x.silu(),
            Activation::Tanh => x.tanh(),
            Activation::Sigmoid => x.sigmoid(),
            Activation::Gelu => x.gelu(),
            Activation::Softplus => x.softplus(),
            Activation::Mish => x.mish(),
            Activation::HardSwish => x.hardswish(),
            Activation::ReLU6 => x.relu6(),
        }
    }
}

impl Tensor {
    /// `activation(self · b)`: `self` `[…, M, K]`, `b` `[…, K, N]`, the result `[…, M, N]`. The same graph, and so the same plan, as
    /// `a.matmul(&b)?.relu()?`: one dispatch and no intermediate.
    ///
    /// # Errors
    /// As [`Tensor::matmul`], on the caller's line.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let a = Tensor::new(&[[1.0, -2.0]], &Device::cpu())?;
    /// let b = Tensor::new(&[[3.0], [4.0]], &Device::cpu())?;
    /// assert_eq!(a.matmul_with_activation(&b, Activation::ReLU)?.to_vec()?, [0.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn matmul_with_activation(&self, b: &Tensor, activation: Activation) -> TensorResult<Tensor> {
        activation.apply(&self.matmul(b)?)
    }

    /// max(self + rhs, 0); shapes broadcast. The same graph as `a.add(&b)?.relu()?`. `[A,B]` and `[B]` → `[A,B]`.
    ///
    /// # Errors
    /// When the shapes do not broadcast, or the dtypes do not promote.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[-2.0, 0.0, 3.0], &Device::cpu())?;
    /// assert_eq!(x.fused_add_relu(1.0)?.to_vec()?, [0.0, 1.0, 4.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn fused_add_relu<'a>(&self, rhs: impl Into<Rhs<'a>>) -> TensorResult<Tensor> {
        self.add(rhs)?.relu()
    }

    /// max(self · rhs, 0) element by element; shapes broadcast. The same graph as `a.mul(&b)?.relu()?`. `[A,B]` and `[B]` → `[A,B]`.
    ///
    /// # Errors
    /// When the shapes do not broadcast, or the dtypes do not promote.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[-2.0, 0.0, 3.0], &Device::cpu())?;
    /// assert_eq!(x.fused_mul_relu(-1.0)?.to_vec()?, [2.0, 0.0, 0.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn fused_mul_relu<'a>(&self, rhs: impl Into<Rhs<'a>>) -> TensorResult<Tensor> {
        self.mul(rhs)?.relu()
    }

    /// `self · scale + bias` element by element; shapes broadcast, and both may be numbers. The same graph as
    /// `x.mul(&scale)?.add(&bias)?`, rounded once. `[A,B]`, `[B]` and `[B]` → `[A,B]`.
    ///
    /// # Errors
    /// When the shapes do not broadcast, or the dtypes do not promote.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[-2.0, 0.0, 3.0], &Device::cpu())?;
    /// assert_eq!(x.fused_affine(2.0, 1.0)?.to_vec()?, [-3.0, 1.0, 7.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn fused_affine<'a, 'b>(&self, scale: impl Into<Rhs<'a>>, bias: impl Into<Rhs<'b>>) -> TensorResult<Tensor> {
        self.mul(scale)?.add(bias)
    }
}
