//! Metal: the native backend, whose kernels are compiled and encoded by this library itself, and the names of the engine backend's API.
//!
//! The backend is executed on Linux over a Metal of the tests' own (`tests/metal`), and type-checked for macOS.

#[cfg(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal)))]
mod barriers;
#[cfg(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal)))]
mod device;
#[cfg(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal)))]
mod encode;
#[cfg(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal)))]
mod features;
#[cfg(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal)))]
mod memory;
#[cfg(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal)))]
mod native;
#[cfg(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal)))]
mod text;
#[cfg(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal)))]
mod transfer;
#[cfg(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal)))]
mod watch;

#[cfg(feature = "gpu")]
pub use crate::metal::*;
#[cfg(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal)))]
pub use memory::MetalBuffer;
#[cfg(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal)))]
pub use native::NativeMetal;
