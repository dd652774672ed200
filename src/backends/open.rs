//! Opens a GPU by name: which backend serves it, and what stands in where one cannot.

use super::Backend;
#[cfg(feature = "gpu")]
use super::gpu::GpuBackend;
#[cfg(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal)))]
use super::metal::NativeMetal;
use crate::error::{TensorError, TensorResult};
use crate::tuning::Tuning;
use std::sync::Arc;

/// A GPU by the backend that serves it.
pub(crate) enum Served {
    #[cfg(feature = "gpu")]
    Wgpu(Arc<GpuBackend>),
    #[cfg(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal)))]
    Native(Arc<NativeMetal>),
}

impl Served {
    /// The backend.
    pub fn backend(&self) -> Arc<dyn Backend> {
        match *self {
            #[cfg(feature = "gpu")]
            Served::Wgpu(ref b) => b.clone(),
            #[cfg(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal)))]
            Served::Native(ref b) => b.clone(),
        }
    }

    /// Whether it is a driver that computes on the CPU.
    pub fn is_software(&self) -> bool {
        match *self {
            #[cfg(feature = "gpu")]
            Served::Wgpu(ref b) => b.is_software(),
            #[cfg(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal)))]
            Served::Native(_) => false,
        }
    }
}

/// An opened GPU.
pub(crate) struct OpenedGpu {
    pub backend: Arc<dyn Backend>,
    /// Whether it is a driver that computes on the CPU.
    pub software: bool,
    /// Why the backend that the name stands for was not taken; `None` where it was.
    pub stands_in: Option<String>,
}

/// Opens the GPU that a name such as `metal` or `vulkan:1` means, with this tuning table or the one in force for it.
///
/// # Errors
/// Those of [`serve`].
pub(crate) fn open(name: &str, tuning: Option<Tuning>) -> TensorResult<OpenedGpu> {
    let (served, stands_in) = serve(name, tuning)?;
    Ok(OpenedGpu { backend: served.backend(), software: served.is_software(), stands_in })
}

/// As [`open`]; gives the backend as what it is, and why it stands in for another one if it does.
///
/// `metal`, and `auto` and `gpu` on Apple's systems, mean the native backend, or wgpu where that cannot be opened; `metal-wgpu` means wgpu.
///
/// # Errors
/// [`TensorError::UnsupportedDevice`] for an unknown name, or where this machine has no such GPU; [`TensorError::Config`] for an invalid `TL_TUNING`.
pub(crate) fn serve(name: &str, tuning: Option<Tuning>) -> TensorResult<(Served, Option<String>)> {
    first_of(native(name, tuning.as_ref()), |why| through_wgpu(name, tuning, why))
}

/// The native backend where the name means it and it could be opened, else what `wgpu` opens, which is given the reason; with the reason.
///
/// # Errors
/// A mistake in the settings, with which nothing is opened; else those of `wgpu`.
fn first_of<S>(native: Option<TensorResult<S>>, wgpu: impl FnOnce(Option<&str>) -> TensorResult<S>) -> TensorResult<(S, Option<String>)> {
    let stands_in = match native {
        Some(Ok(served)) => return Ok((served, None)),
        Some(Err(e @ TensorError::Config(_))) => return Err(e),
        Some(Err(e)) => Some(e.to_string()),
        None => None,
    };
    Ok((wgpu(stands_in.as_deref())?, stands_in))
}

/// The native backend, if the name means it and the system has one.
#[cfg(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal)))]
fn native(name: &str, tuning: Option<&Tuning>) -> Option<TensorResult<Served>> {
    // The other GPUs of an Intel Mac go through wgpu.
    let named = matches!(name, "auto" | "gpu" | "gpu:0" | "metal" | "metal:0");
    named.then(|| Ok(Served::Native(tuning.map_or_else(NativeMetal::open, |t| NativeMetal::open_with(t.clone()))?)))
}

/// There is none on this system.
#[cfg(not(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal))))]
fn native(_name: &str, _tuning: Option<&Tuning>) -> Option<TensorResult<Served>> {
    None
}

#[cfg(feature = "gpu")]
fn through_wgpu(name: &str, tuning: Option<Tuning>, stands_in: Option<&str>) -> TensorResult<Served> {
    let selector = name.strip_prefix("metal-wgpu").map_or_else(|| name.to_string(), |index| format!("metal{index}"));
    let opened = tuning.map_or_else(|| GpuBackend::open(&selector), |t| GpuBackend::open_with(&selector, t));
    let backend = opened.map_err(|e| match (e, stands_in) {
        (TensorError::UnsupportedDevice(m), Some(why)) => TensorError::UnsupportedDevice(format!("{m} ({why})")),
        (e, _) => e,
    })?;
    Ok(Served::Wgpu(backend))
}

#[cfg(not(feature = "gpu"))]
fn through_wgpu(name: &str, _tuning: Option<Tuning>, stands_in: Option<&str>) -> TensorResult<Served> {
    let why = stands_in.map(|why| format!(" ({why})")).unwrap_or_default();
    Err(TensorError::UnsupportedDevice(format!(
        "`{name}`: built without the feature `gpu`{why}; rebuild with `--features gpu`, or use `cpu`"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is served, why it stands in, and what wgpu was told; or the error.
    fn choice(
        native: Option<TensorResult<&'static str>>,
        wgpu: TensorResult<&'static str>,
    ) -> (Result<&'static str, String>, [Option<String>; 2]) {
        let mut told = None;
        let got = first_of(native, |why| {
            told = why.map(str::to_string);
            wgpu
        });
        match got {
            Ok((served, why)) => (Ok(served), [why, told]),
            Err(e) => (Err(e.to_string()), [None, told]),
        }
    }

    #[test]
    fn the_native_backend_comes_first_and_wgpu_stands_in_with_the_reason() {
        let unsupported = |why: &str| TensorError::UnsupportedDevice(why.into());
        let none = || [None, None];
        assert_eq!(choice(Some(Ok("native")), Ok("wgpu")), (Ok("native"), none()));
        assert_eq!(choice(None, Ok("wgpu")), (Ok("wgpu"), none()), "a name that means no native backend");
        let wrong = unsupported("Metal computes sums wrong");
        let why = Some(wrong.to_string());
        assert_eq!(choice(Some(Err(wrong)), Ok("wgpu")), (Ok("wgpu"), [why.clone(), why]));
        // A mistake in a setting is told; nothing stands in.
        let config = TensorError::Config("TL_TUNING: no".into());
        let message = config.to_string();
        assert_eq!(choice(Some(Err(config)), Ok("wgpu")), (Err(message), none()));
        let (got, [_, told]) = choice(Some(Err(unsupported("no Metal"))), Err(unsupported("no Vulkan")));
        assert!(got.unwrap_err().contains("no Vulkan") && told.unwrap().contains("no Metal"));
    }
}
