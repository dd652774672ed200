//! Frame captures: what the GPU is given, as a document for Xcode.

use crate::error::{TensorError, TensorResult};
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSString, NSURL};
use objc2_metal::{MTLCaptureDescriptor, MTLCaptureDestination, MTLCaptureManager, MTLCommandQueue};
use std::path::Path;

/// A file as Metal names it.
pub(super) fn url(file: &Path) -> Retained<NSURL> {
    NSURL::fileURLWithPath(&NSString::from_str(&file.to_string_lossy()))
}

/// Begins a capture of all work of a queue, as a document at this path, which must end in `.gputrace` and not exist.
///
/// # Errors
/// [`TensorError::Unsupported`] where the process was not started with captures enabled, [`TensorError::State`] where one is going on,
/// [`TensorError::Config`] for a path that cannot be one, and what Metal says.
pub(super) fn start(queue: &ProtocolObject<dyn MTLCommandQueue>, device: &str, path: &Path) -> TensorResult<()> {
    if path.extension().is_none_or(|e| e != "gputrace") || path.exists() {
        return Err(TensorError::Config(format!("{}: a capture needs a path that ends in .gputrace and does not exist", path.display())));
    }
    autoreleasepool(|_| {
        // SAFETY: the object is the process's, and is asked by one thread at a time: of a queue's work there is one capture.
        let manager = unsafe { MTLCaptureManager::sharedCaptureManager() };
        if !manager.supportsDestination(MTLCaptureDestination::GPUTraceDocument) {
            let help = "captures are not enabled: start the program with MTL_CAPTURE_ENABLED=1 in its environment";
            return Err(TensorError::Unsupported(format!("a frame capture on {device}: {help}")));
        }
        if manager.isCapturing() {
            return Err(TensorError::State(format!("{device} is being captured already")));
        }
        let descriptor = MTLCaptureDescriptor::new();
        // SAFETY: a command queue, as is allowed.
        unsafe { descriptor.setCaptureObject(Some(queue.as_ref())) };
        descriptor.setDestination(MTLCaptureDestination::GPUTraceDocument);
        descriptor.setOutputURL(Some(&url(path)));
        manager
            .startCaptureWithDescriptor_error(&descriptor)
            .map_err(|e| TensorError::Unsupported(format!("a frame capture on {device}: {}", e.localizedDescription())))
    })
}

/// Ends the capture and writes the document.
pub(super) fn stop() {
    // SAFETY: as above.
    autoreleasepool(|_| unsafe { MTLCaptureManager::sharedCaptureManager() }.stopCapture());
}
