//! Bandwidth and throughput of a device over time, each beside its limit.

use super::limits::{Limits, random, variants};
use super::{Options, Outcome, Times, Work, first, measure};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::tensor::Tensor;
use std::collections::BTreeMap;

/// Measures what a device reaches now: the bandwidth of copies and the rate of matrix products, with averages over all calls.
///
/// Times are those of [`measure`]: inputs take turns, so that caches do not serve large copies twice, and results are checked.
///
/// ```standalone_crate
/// use tensorlogic::measure::{Options, PerformanceMonitor};
/// use tensorlogic::{DType, Device};
/// let mut monitor = PerformanceMonitor::new(&Device::cpu(), Options::quick());
/// let copied = monitor.bandwidth(1 << 20, 3)?;
/// println!("{:.1} GB/s, {:.0} % of the limit", copied.value * 1e-9, copied.fraction() * 100.0);
/// let product = monitor.throughput(64, DType::F32, 3)?;
/// println!("{:.1} GFLOP/s", product.value * 1e-9);
/// assert!(copied.value > 0.0 && product.count == 1 && product.average == product.value);
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
pub struct PerformanceMonitor {
    device: Device,
    options: Options,
    limits: Limits,
    bandwidth: Running,
    throughput: BTreeMap<&'static str, Running>,
}

/// A measured rate beside its limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Bytes or operations per second, now.
    pub value: f64,
    /// What the simplest kernels reach on this device.
    pub limit: f64,
    /// The mean of all values of this kind, this one included.
    pub average: f64,
    /// Their number.
    pub count: u64,
}

impl Measured {
    /// The part of the limit that was reached.
    pub fn fraction(&self) -> f64 {
        self.value / self.limit
    }
}

/// A mean that grows.
#[derive(Clone, Copy, Default)]
struct Running {
    sum: f64,
    count: u64,
}

impl Running {
    fn add(&mut self, value: f64, limit: f64) -> Measured {
        self.sum += value;
        self.count += 1;
        Measured { value, limit, average: self.sum / self.count as f64, count: self.count }
    }
    fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }
}

impl PerformanceMonitor {
    /// A monitor that has measured nothing yet; limits are measured with these options when they are first needed.
    pub fn new(device: &Device, options: Options) -> PerformanceMonitor {
        let limits = Limits::new(device, options);
        PerformanceMonitor { device: device.clone(), options, limits, bandwidth: Running::default(), throughput: BTreeMap::new() }
    }

    fn times(&self, samples: usize, work: &Work<'_>) -> TensorResult<Times> {
        if samples == 0 {
            return Err(TensorError::Value("a measurement needs at least 1 sample".into()));
        }
        measure(&self.device, work, &Options { samples, ..self.options })
    }

    /// Bytes per second that copies of `bytes` move, read and written bytes together: the median of `n` samples.
    ///
    /// # Errors
    /// Those of [`measure`]; [`TensorError::Value`] where `n` is 0.
    ///
    /// ```standalone_crate
    /// use tensorlogic::Device;
    /// use tensorlogic::measure::{Options, PerformanceMonitor};
    /// let mut monitor = PerformanceMonitor::new(&Device::cpu(), Options::quick());
    /// let (a, b) = (monitor.bandwidth(1 << 16, 3)?, monitor.bandwidth(1 << 16, 3)?);
    /// assert_eq!((b.count, b.average), (2, (a.value + b.value) / 2.0));
    /// assert!(monitor.bandwidth(1 << 16, 0).is_err()); // no samples
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn bandwidth(&mut self, bytes: usize, n: usize) -> TensorResult<Measured> {
        let elements = (bytes / 4).max(1);
        let inputs = (0..variants(4 * elements as u64))
            .map(|v| {
                let x = Tensor::full(1.0 + v as f64, &[elements], DType::F32, &self.device)?;
                x.eval()?;
                Ok(x)
            })
            .collect::<TensorResult<Vec<_>>>()?;
        let expect = (0..inputs.len()).map(|v| -1.0 - v as f64).collect();
        let run = Box::new(|v: usize| Ok(Outcome::Tensor(inputs[v].neg()?)));
        let seconds = self.times(n, &Work { variants: inputs.len(), run, expect, tolerance: 1e-6 })?.best().median;
        let moved = 8 * elements as u64;
        let mut least = self.limits.moved(moved, true)?;
        if least > seconds {
            self.limits.again(moved, true)?;
            least = self.limits.moved(moved, true)?;
        }
        Ok(self.bandwidth.add(moved as f64 / seconds, moved as f64 / least))
    }

    /// Operations per second of a product of two matrices `[size, size]` of `dtype`, 2·size³ each: the median of `n` samples. The limit is
    /// that of matrix units for f16 where the device has some, else that of f32.
    ///
    /// # Errors
    /// Those of [`measure`]; [`TensorError::Value`] where `size` or `n` is 0.
    ///
    /// ```standalone_crate
    /// use tensorlogic::measure::{Options, PerformanceMonitor};
    /// use tensorlogic::{DType, Device};
    /// let mut monitor = PerformanceMonitor::new(&Device::cpu(), Options::quick());
    /// let product = monitor.throughput(32, DType::F32, 3)?;
    /// assert_eq!(monitor.average_throughput(DType::F32), Some(product.value));
    /// assert_eq!(monitor.average_throughput(DType::F16), None); // each dtype has an average of its own
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn throughput(&mut self, size: usize, dtype: DType, n: usize) -> TensorResult<Measured> {
        if size == 0 {
            return Err(TensorError::Value("a product of matrices of size 0 has no throughput".into()));
        }
        let bytes = (size * size * dtype.block_bytes()) as u64;
        let inputs = (0..variants(2 * bytes) as u64)
            .map(|v| Ok([random(&[size, size], dtype, v, &self.device)?, random(&[size, size], dtype, 100 + v, &self.device)?]))
            .collect::<TensorResult<Vec<_>>>()?;
        let expect = inputs.iter().map(|[a, b]| first(a.matmul(b)?.eval()?)).collect::<TensorResult<Vec<f64>>>()?;
        let run = Box::new(|v: usize| Ok(Outcome::Tensor(inputs[v][0].matmul(&inputs[v][1])?)));
        let seconds = self.times(n, &Work { variants: inputs.len(), run, expect, tolerance: 1e-6 })?.best().median;
        let value = 2.0 * (size as f64).powi(3) / seconds;
        let mut limit = self.limits.product_operations(dtype)?;
        if limit < value {
            self.limits.again(8 * (size * size) as u64, true)?;
            limit = self.limits.product_operations(dtype)?;
        }
        Ok(self.throughput.entry(dtype.name()).or_default().add(value, limit))
    }

    /// The mean of all bandwidths so far, in bytes per second; `None` before the first.
    pub fn average_bandwidth(&self) -> Option<f64> {
        self.bandwidth.mean()
    }

    /// The mean of all rates of products of `dtype` so far, in operations per second; `None` before the first.
    pub fn average_throughput(&self, dtype: DType) -> Option<f64> {
        self.throughput.get(dtype.name())?.mean()
    }
}
