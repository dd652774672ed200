//! A Metal for tests on systems without one: a small Objective-C runtime, and devices, queues and encoders on it that compute on the CPU.
//!
//! The library is built over it by `--cfg tensorlogic_fake_metal`, see `run.sh`; the code that runs is the code of macOS.

pub mod barriers;
#[path = "../../msl/clang.rs"]
mod clang;
pub mod compiler;
mod errors;
mod events;
pub mod faults;
#[allow(dead_code)]
#[path = "../../msl/kernel.rs"]
mod kernel;
mod memory;
pub mod metal;
#[allow(clippy::missing_safety_doc, missing_docs, non_snake_case, non_upper_case_globals)]
mod objc;
mod residency;
mod schedule;
#[path = "../../msl/source.rs"]
mod source;
#[allow(dead_code)]
#[path = "../../msl/toolchain.rs"]
mod toolchain;
pub mod tools;
#[path = "../../msl/traps.rs"]
mod traps;
use compiler as msl_kernel;

pub use objc::live;
