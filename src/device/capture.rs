//! Frame captures: what a GPU is given while a function runs, as a document for the system's developer tools.

use super::Device;
use crate::backends::Backend;
use crate::error::TensorResult;
use std::path::Path;
use std::sync::Arc;

/// Ends the capture when dropped.
struct Capturing<'d>(&'d Arc<dyn Backend>);

impl Drop for Capturing<'_> {
    fn drop(&mut self) {
        self.0.stop_capture();
    }
}

impl Device {
    /// Does `work` and writes what the GPU was given meanwhile to `path`, a GPU trace document (`.gputrace`) that Xcode opens. What was submitted
    /// before is waited for first, what `work` submits at its end. The document is written where `work` fails or panics too.
    ///
    /// Only the device `metal` has captures, and only where the process was started with `MTL_CAPTURE_ENABLED=1`. Steps, buffers and command
    /// buffers then have labels.
    ///
    /// # Errors
    /// [`TensorError::Unsupported`](crate::TensorError::Unsupported) where the device has no captures or they are not enabled,
    /// [`TensorError::Config`](crate::TensorError::Config) where `path` does not end in `.gputrace` or exists,
    /// [`TensorError::State`](crate::TensorError::State) during another capture, those of `work`, and the device's.
    ///
    /// ```
    /// use tensorlogic::{Device, Tensor, TensorError};
    /// let device = Device::cpu();
    /// let captured = device.capture("sum.gputrace", || Tensor::from_vec(vec![1.0f32; 8], &[8], &device)?.sum(&[0], false)?.to_vec());
    /// assert!(matches!(captured, Err(TensorError::Unsupported(why)) if why.contains("the device `metal` has them")));
    /// ```
    pub fn capture<T>(&self, path: impl AsRef<Path>, work: impl FnOnce() -> TensorResult<T>) -> TensorResult<T> {
        let backend = self.backend();
        backend.start_capture(path.as_ref())?;
        let capturing = Capturing(backend);
        let result = work();
        let waited = self.synchronize();
        drop(capturing);
        waited.and(result)
    }
}
