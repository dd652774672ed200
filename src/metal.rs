//! The engine backend's API: buffers, typed handles and five kernels on Metal, or with the same calls on any other GPU.
//!
//! ```
//! use std::sync::Arc;
//! use tensorlogic::backends::RawBackend;
//! use tensorlogic::backends::metal::{self, MetalBackend, MetalOps};
//!
//! # fn main() -> tensorlogic::TensorResult<()> {
//! # if !MetalBackend::is_available() { return Ok(()); } // only Apple's systems have one
//! let backend = Arc::new(MetalBackend::initialize()?); // or RawGpuBackend: the same on Vulkan and DX12
//! let ops = MetalOps::new(backend.clone())?;
//! let shared = metal::MTLResourceOptions::StorageModeShared;
//! let a = backend.create_buffer_with_data(&[1.0f32, 2.0, 3.0, 4.0], shared)?;
//! let b = backend.create_buffer_with_data(&[5.0f32, 6.0, 7.0, 8.0], shared)?;
//! let c = backend.create_buffer(16, shared)?;
//! ops.matmul(&a, &b, &c, 2, 2, 2)?;
//! let mut result = [0.0f32; 4];
//! backend.copy_buffer_to_host(&c, &mut result)?;
//! assert_eq!(result, [19.0, 22.0, 43.0, 50.0]);
//! # Ok(())
//! # }
//! ```
//!
//! [`Tensor`](crate::Tensor) is the better way to compute: it fuses, plans memory and takes every dtype. This layer is for code that
//! wants to hold buffers and decide on each dispatch itself. Its kernels are run by the same backend.

mod backend;
mod buffer;
mod kernels;
mod ops;
mod pipeline;

pub use backend::{MetalBackend, Opened, RawBackend, RawGpuBackend};
pub use buffer::{BufferHandle, MTLResourceOptions, StorageBuffer};
pub use ops::MetalOps;
pub use pipeline::{AdapterDevice, ComputePipeline, MTLSize};
