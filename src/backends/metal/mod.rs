//! Metal: the native backend, whose kernels are compiled and encoded by this library itself, and the names of the engine backend's API.
//!
//! The backend is executed on Linux over a Metal of the tests' own (`tests/metal`), and type-checked for macOS.

mod archive;
mod compile;
mod device;
mod encode;
mod heaps;
mod memory;
mod native;
mod residency;
mod transfer;
mod watch;

pub use crate::metal::*;
pub use memory::MetalBuffer;
pub use native::NativeMetal;
