//! Memory that is held longer than intended: growth since a baseline, and what outlives a scope, by the lines that asked for it.

use crate::backends::{Backend, report::Holder};
use crate::device::{Device, MemoryProfile};
use crate::error::TensorResult;
use crate::eval::base;
use crate::events;
use crate::tensor::Tensor;
use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

/// Growth that is not reported unless [`LeakDetector::tolerance`] says otherwise, in bytes.
const TOLERANCE: usize = 1 << 20;
/// The op that kept tensors are recorded as.
const KEPT_OP: &str = "kept by the scope";

/// Memory that is held, by line.
#[derive(Clone, Debug, PartialEq)]
pub struct Leak {
    /// Bytes in use above the baseline.
    pub grew: usize,
    /// Who holds memory that was requested since the baseline, largest first: bytes, number of buffers, op and line.
    pub by_line: Vec<Holder>,
}

impl fmt::Display for Leak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes more than at the baseline", self.grew)?;
        for h in &self.by_line {
            let place = h.at.map_or("?".into(), |at| format!("{}:{}", at.file(), at.line()));
            write!(f, "\n  {} bytes in {} buffers: {} at {place}", h.bytes, h.buffers, h.op)?;
        }
        Ok(())
    }
}

/// Finds memory that grows from step to step, and names the lines whose tensors are kept.
///
/// From [`LeakDetector::baseline`] on every request for memory is recorded, until the detector is dropped.
///
/// ```standalone_crate
/// # use tensorlogic::{Device, DType, Tensor, leaks::LeakDetector};
/// # fn main() -> tensorlogic::TensorResult<()> {
/// let device = Device::cpu();
/// let mut detector = LeakDetector::new(&device).tolerance(64 << 10);
/// detector.baseline();
/// let mut losses = Vec::new();
/// for step in 0..3 {
///     let loss = Tensor::full(step as f64, &[128, 128], DType::F32, &device)?.exp()?;
///     loss.eval()?;
///     losses.push(loss); // 64 KiB more with each step
/// }
/// let leak = detector.check().expect("192 KiB are held");
/// assert_eq!((leak.grew, leak.by_line[0].op, leak.by_line[0].buffers), (3 * 64 << 10, "exp", 3));
/// losses.clear();
/// assert!(detector.check().is_none());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct LeakDetector {
    devices: Vec<Device>,
    tolerance: usize,
    recordings: Vec<MemoryProfile>,
    baseline: usize,
}

/// The device, and the CPU where small values of the device's tensors lie.
fn memories(device: &Device) -> Vec<Device> {
    if device.capabilities().host_memory { vec![device.clone()] } else { vec![device.clone(), Device::cpu()] }
}

fn in_use(devices: &[Device]) -> usize {
    devices.iter().map(|d| d.memory().in_use).sum()
}

/// What recordings hold, largest first.
fn held(recordings: &[MemoryProfile]) -> Vec<Holder> {
    let mut all: Vec<Holder> = recordings.iter().flat_map(|r| r.report().held).collect();
    all.sort_by_key(|h| std::cmp::Reverse(h.bytes));
    all
}

impl LeakDetector {
    /// A detector for the device's memory; call [`LeakDetector::baseline`] when the program has warmed up.
    pub fn new(device: &Device) -> LeakDetector {
        LeakDetector { devices: memories(device), tolerance: TOLERANCE, recordings: Vec::new(), baseline: usize::MAX }
    }

    /// How many bytes more than at the baseline are no leak; 1 MiB unless set.
    pub fn tolerance(self, bytes: usize) -> LeakDetector {
        LeakDetector { tolerance: bytes, ..self }
    }

    /// Takes the memory in use now as the baseline, and records requests from now on.
    pub fn baseline(&mut self) {
        self.recordings.clear();
        self.recordings = self.devices.iter().map(Device::memory_profile).collect();
        self.baseline = in_use(&self.devices);
    }

    /// What is held above baseline and tolerance; `None` without a leak, or a baseline. Without a leak this is a comparison of two numbers.
    pub fn check(&self) -> Option<Leak> {
        let grew = in_use(&self.devices).saturating_sub(self.baseline);
        if grew <= self.tolerance {
            return None;
        }
        let leak = Leak { grew, by_line: held(&self.recordings) };
        events::leak_found(leak.grew, leak.by_line.len());
        Some(leak)
    }
}

/// A scope that goes on: see [`Device::scope`].
pub struct Scope {
    backend: Arc<dyn Backend>,
    recordings: Vec<MemoryProfile>,
    kept: RefCell<Vec<Tensor>>,
}

impl Scope {
    /// Computes a tensor that is meant to outlive the scope, and gives it back.
    ///
    /// # Errors
    /// Those of the evaluation.
    ///
    /// ```standalone_crate
    /// use tensorlogic::prelude::*;
    /// let device = Device::cpu();
    /// let (sum, outlived) = device.scope(|s| s.keep(&Tensor::ones(&[1000], DType::F32, &device)?.sum_all()?))?;
    /// assert_eq!((sum.item()?, outlived.len()), (1000.0, 0)); // the sum is there, and nothing else outlived the scope
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn keep(&self, tensor: &Tensor) -> TensorResult<Tensor> {
        tensor.eval()?;
        self.kept.borrow_mut().push(tensor.clone());
        Ok(tensor.clone())
    }

    /// Who holds memory that was requested since the scope began, largest first.
    pub fn held(&self) -> Vec<Holder> {
        held(&self.recordings)
    }

    /// What outlives the scope besides what it keeps.
    fn outlived(self) -> Vec<Holder> {
        for tensor in self.kept.borrow().iter() {
            let buffers = base(tensor).0.stored.get();
            buffers.into_iter().flatten().for_each(|b| self.backend.label(b, KEPT_OP, tensor.node.at));
        }
        let mut outlived = self.held();
        outlived.retain(|h| h.op != KEPT_OP);
        outlived
    }
}

impl Device {
    /// Runs `work`, and tells what memory that it requested is still held afterwards, by op and line, besides the tensors given to
    /// [`Scope::keep`]. Waits for the device at the end.
    ///
    /// ```standalone_crate
    /// # use tensorlogic::{Device, DType, Tensor};
    /// # fn main() -> tensorlogic::TensorResult<()> {
    /// let device = Device::cpu();
    /// let mut cache = None;
    /// let (sum, outlived) = device.scope(|s| {
    ///     let x = Tensor::ones(&[1000], DType::F32, &device)?.add(1.0)?;
    ///     x.eval()?;
    ///     cache = Some(x.clone()); // forgotten here
    ///     s.keep(&x.sum_all()?)
    /// })?;
    /// assert_eq!(sum.item()?, 2000.0);
    /// assert_eq!((outlived.len(), outlived[0].op), (1, "add"));
    /// # drop(cache);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of `work` and of the device.
    pub fn scope<T>(&self, work: impl FnOnce(&Scope) -> TensorResult<T>) -> TensorResult<(T, Vec<Holder>)> {
        let recordings = memories(self).iter().map(Device::memory_profile).collect();
        let scope = Scope { backend: self.backend().clone(), recordings, kept: RefCell::default() };
        let value = work(&scope)?;
        // What waits for a submit holds its memory.
        self.backend().synchronize()?;
        let outlived = scope.outlived();
        events::scope_outlived(outlived.iter().map(|h| h.bytes).sum(), outlived.len());
        Ok((value, outlived))
    }
}
