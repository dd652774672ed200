//! Where small work is done: the choice between CPU and GPU for one evaluation, by the crossover measured on this machine.

use crate::backends::{Backend, Buffer};
use crate::compile::Compiled;
use crate::device::Device;
use crate::error::TensorResult;
use crate::plan::Plan;
use std::sync::Arc;

pub use crate::backends::files::cache_folder;
pub use crate::plan::FallbackModel;

/// What becomes of the results, which decides where small work is done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// They are kept.
    Keep,
    /// The host reads them next.
    Read,
    /// They are kept, and copied to the host next.
    Copy,
    /// The device's own speed is measured.
    Measure,
}

/// Whether the host does it: all inputs lie in host memory, and the CPU needs less time than the way to the GPU. `None` where that has not
/// been measured yet.
pub(crate) fn choose(device: &Device, c: &Compiled, bound: &[Buffer], purpose: Purpose) -> Option<bool> {
    if !device.adaptive() || purpose == Purpose::Measure || c.work.device_only || bound.iter().any(|b| b.on_host().is_none()) {
        return Some(false);
    }
    let measured = (*device.measured())?;
    let limit = if matches!(purpose, Purpose::Read | Purpose::Copy) { measured.round_trip } else { measured.submit };
    Some(measured.host_seconds(&c.work) < limit)
}

/// Runs a device's plan on the CPU over the inputs' host memory. A bad index in the data is reported at once.
pub(crate) fn run(cpu: &Arc<dyn Backend>, plan: &Arc<Plan>, bound: &[Buffer], outputs: &[Buffer], params: &[f64]) -> TensorResult<()> {
    let inputs: Vec<Buffer> = bound.iter().filter_map(|b| b.on_host().cloned().map(Buffer::Cpu)).collect();
    cpu.run(plan, &inputs, outputs, params)?;
    match outputs.first() {
        Some(first) => cpu.read(first, 0, &mut []),
        None => Ok(()),
    }
}

/// A result of the CPU as the value of a GPU's tensor.
pub(crate) fn of_device(b: Buffer) -> Buffer {
    match b {
        #[cfg(feature = "shaders")]
        Buffer::Cpu(b) => Buffer::Host(crate::backends::host::HostBuffer::new(b)),
        b => b,
    }
}
