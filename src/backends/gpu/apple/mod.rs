//! What wgpu does not do on Apple's systems: memory of our own that the host sees, files bound in place, and a look at whether commands failed.
//!
//! Type-checked from Linux (`cargo xtask check-targets`, in `.ci/run`), never executed.

mod buffer;
pub(super) mod import;
pub(super) mod watch;
