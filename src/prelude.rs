//! What most programs use: `use tensorlogic::prelude::*;`.
//!
//! ```
//! use tensorlogic::prelude::*;
//!
//! fn main() -> TensorResult<()> {
//!     let device = Device::cpu();
//!     let x = Tensor::new(&[[1.0, 2.0], [3.0, 4.0]], &device)?;
//!     let y = (1.0 - &x)?.i((.., 1))?;
//!     assert_eq!(y.to_vec1::<f32>()?, [-1.0, -3.0]);
//!     Ok(())
//! }
//! ```

pub use crate::device::Device;
pub use crate::dtype::{DType, Element};
pub use crate::error::{TensorError, TensorResult};
pub use crate::eval::eval_all;
pub use crate::nn::{Module, Param};
pub use crate::ops::{
    Activation, AttentionDropout, AttentionOptions, Combine, ConvOptions, NllOptions, PadMode, Reduction, Rng, WindowOptions, manual_seed,
};
pub use crate::shape::Shape;
pub use crate::tensor::Tensor;
