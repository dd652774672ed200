//! Compiled kernels kept for the next process: a binary archive of Metal's for each GPU, system and version of this library.

use super::device::Gpu;
use crate::backends::captures::url;
use crate::backends::kept::{self, SaveBudget, Summed};
use crate::backends::lock::lock;
use crate::events;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSArray, NSString};
use objc2_metal::{
    MTLBinaryArchive, MTLBinaryArchiveDescriptor, MTLComputePipelineDescriptor, MTLComputePipelineState, MTLDevice, MTLFunction,
    MTLPipelineOption,
};
use std::sync::Mutex;
use std::time::Duration;

type Function = Retained<ProtocolObject<dyn MTLFunction>>;
type State = Retained<ProtocolObject<dyn MTLComputePipelineState>>;

/// An archive, and the kernels that it lacks.
pub(super) struct Archive {
    raw: Retained<ProtocolObject<dyn MTLBinaryArchive>>,
    pub file: Summed,
    /// Whether the file had any kernels.
    filled: bool,
    missing: Mutex<Vec<Function>>,
    budget: Mutex<SaveBudget>,
}

// SAFETY: kernels are looked up in the archive by any thread, and added to it by one while none looks.
unsafe impl Send for Archive {}
// SAFETY: as above.
unsafe impl Sync for Archive {}

impl Archive {
    /// What earlier processes compiled; `None` where nothing can be kept. A file that is damaged is deleted, and made anew.
    pub fn open(gpu: &Gpu) -> Option<Archive> {
        let (_, file) = kept::place(&kept::folder(false)?, &format!("{} | {}", gpu.adapter.key, kept::system()), ["kernels", "metallib"]);
        let file = Summed(file);
        autoreleasepool(|_| {
            let descriptor = MTLBinaryArchiveDescriptor::new();
            if file.is_whole() {
                descriptor.setUrl(Some(&url(&file.0)));
            }
            let told = gpu.device.newBinaryArchiveWithDescriptor_error(&descriptor).ok();
            let filled = descriptor.url().is_some() && told.is_some();
            let raw = told.or_else(|| {
                descriptor.setUrl(None);
                gpu.device.newBinaryArchiveWithDescriptor_error(&descriptor).ok()
            })?;
            if !filled {
                file.delete();
            }
            events::kernel_cache_opened(filled as usize, std::fs::metadata(&file.0).map_or(0, |m| m.len() as usize));
            Some(Archive { raw, file, filled, missing: Mutex::default(), budget: Mutex::default() })
        })
    }

    /// Adds the kernels that it lacks, and writes the file, unless that was done often enough for the time that it takes. A folder that cannot be
    /// written is not an error: the next process compiles again.
    pub fn save(&self, compiling: Duration) {
        if lock(&self.budget).allows(compiling) {
            self.write();
        }
    }

    fn write(&self) {
        let missing = std::mem::take(&mut *lock(&self.missing));
        if missing.is_empty() {
            return;
        }
        lock(&self.budget).spend(|| {
            let bytes = autoreleasepool(|_| {
                missing.iter().for_each(|f| drop(self.raw.addComputePipelineFunctionsWithDescriptor_error(&descriptor(f, None))));
                self.file.replace(|part| self.raw.serializeToURL_error(&url(part)).ok())
            });
            bytes.into_iter().for_each(events::kernel_cache_saved);
        });
    }
}

impl Drop for Archive {
    /// What was compiled after the budget was spent.
    fn drop(&mut self) {
        self.write();
    }
}

fn descriptor(function: &Function, archive: Option<&Archive>) -> Retained<MTLComputePipelineDescriptor> {
    let descriptor = MTLComputePipelineDescriptor::new();
    descriptor.setComputeFunction(Some(function));
    archive.iter().for_each(|a| descriptor.setBinaryArchives(Some(&NSArray::from_slice(&[&*a.raw]))));
    descriptor
}

/// The pipeline of a function, from the archive where that has it, and whether it does.
///
/// # Errors
/// What Metal says about the kernel.
pub(super) fn pipeline(gpu: &Gpu, archive: Option<&Archive>, function: &Function, name: &str) -> Result<(State, bool), String> {
    let make = |archive, options| {
        let descriptor = descriptor(function, archive);
        descriptor.setLabel(Some(&NSString::from_str(name)));
        gpu.device.newComputePipelineStateWithDescriptor_options_reflection_error(&descriptor, options, None)
    };
    if let Some(a) = archive {
        if a.filled
            && let Ok(found) = make(archive, MTLPipelineOption::FailOnBinaryArchiveMiss)
        {
            return Ok((found, true));
        }
        lock(&a.missing).push(function.clone());
    }
    make(None, MTLPipelineOption::None).map(|made| (made, false)).map_err(|e| e.localizedDescription().to_string())
}
