//! This machine's limits, measured in this process: copy and read bandwidth, multiplication rate, launch latency.

use super::probe::Probe;
use super::{Options, Outcome, Times, Work, measure};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::eval::without_fusion;
use crate::ops::random::Rng;
use crate::tensor::Tensor;
use std::collections::HashMap;

/// The limits of a device, each measured when it is first asked for.
pub struct Limits {
    device: Device,
    options: Options,
    moved: HashMap<(bool, usize), f64>,
    staged: HashMap<(bool, usize), f64>,
    fma: Option<f64>,
    matrix: Option<f64>,
    launch: Option<[f64; 2]>,
}

/// Bytes of inputs that take turns, where they are small.
const ROTATED_INPUT_BYTES: usize = 64 << 20;

/// Elements up to which the launch counts as much as the bytes.
const LAUNCH_BOUND: usize = 1 << 20;

/// Pieces in which many bytes cross between host and device; the best of them is the limit.
const COPY_BYTES: [usize; 3] = [4 << 20, 16 << 20, 32 << 20];

/// How many inputs of `bytes` each take turns.
pub(super) fn variants(bytes: u64) -> usize {
    (ROTATED_INPUT_BYTES / (bytes as usize).max(1)).clamp(2, 8)
}

impl Limits {
    /// Nothing is measured yet.
    pub fn new(device: &Device, options: Options) -> Limits {
        Limits { device: device.clone(), options, moved: HashMap::new(), staged: HashMap::new(), fma: None, matrix: None, launch: None }
    }

    fn probe(&self, probe: Probe, n: usize) -> TensorResult<Times> {
        let variants = variants(4 * n as u64);
        let inputs = (0..variants)
            .map(|v| {
                let x = Tensor::full(1.0 + v as f64, &[n], DType::F32, &self.device)?;
                x.eval()?;
                Ok(x)
            })
            .collect::<TensorResult<Vec<_>>>()?;
        let shaders = self.device.capabilities().shaders;
        let expect = (0..variants)
            .map(|v| {
                let x = 1.0 + v as f64;
                match probe {
                    Probe::Copy { .. } => x,
                    Probe::Read if !shaders => x * n as f64,
                    Probe::Read => x * (n / probe.threads(n)) as f64,
                    // x·mⁿ leaves the range of f32 in known ways only for x = 1.
                    Probe::Fma => f64::NAN,
                    Probe::Matrix { edge, .. } => Probe::matrix_sum(edge, x),
                }
            })
            .collect();
        let mut work = Work { variants, run: Box::new(|v| Ok(Outcome::Tensor(probe.of(&inputs[v])?))), expect, tolerance: 1e-3 };
        if probe == Probe::Fma {
            // 1·m·m… with m = 1 − 2⁻²⁴ in f32, each product rounded: every chain stays the same, whatever the rounding; the sum is near
            // their number where the loop was run, so the measured value is compared with the one of a first run.
            work.variants = 1;
            let value = super::first(probe.of(&inputs[0])?.eval()?)?;
            work.expect = vec![value];
        }
        measure(&self.device, &work, &self.options)
    }

    /// The largest power of two of elements that is measured: past every cache, and within what adapters bind.
    fn most(&self) -> usize {
        if self.options.quick { 1 << 16 } else { 1 << 25 }
    }

    /// Seconds that the simplest kernel takes to read `bytes` and, with `write`, to write half of them: for `write` they are read and written
    /// bytes together. Above 128 MiB an operand the largest measured size is scaled.
    ///
    /// # Errors
    /// Those of [`measure`].
    ///
    /// ```
    /// use tensorlogic::Device;
    /// use tensorlogic::measure::{Limits, Options};
    /// let mut limits = Limits::new(&Device::cpu(), Options::quick());
    /// let largest = limits.moved(524_288, true)?; // the most that quick options measure
    /// assert_eq!(limits.moved(1_048_576, true)?, 2.0 * largest);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn moved(&mut self, bytes: u64, write: bool) -> TensorResult<f64> {
        let (elements, n) = self.sizes(bytes, write);
        let seconds = match self.moved.get(&(write, n)) {
            Some(s) => *s,
            None => {
                let mut s = self.probe(if write { Probe::Copy { quads: 4 } } else { Probe::Read }, n)?.best().median;
                if write && n <= LAUNCH_BOUND && self.device.capabilities().shaders {
                    s = s.min(self.probe(Probe::Copy { quads: 1 }, n)?.best().median);
                }
                self.moved.insert((write, n), s);
                s
            }
        };
        // Small sizes are bound by the launch: they are not scaled.
        Ok(if elements > LAUNCH_BOUND || elements >= 2 * n { seconds * elements as f64 / n as f64 } else { seconds })
    }

    /// Elements of an operand where `bytes` are moved, and of the probe that stands for them.
    fn sizes(&self, bytes: u64, write: bool) -> (usize, usize) {
        let elements = (bytes as usize / if write { 8 } else { 4 }).max(1);
        // Few bytes move in less time than many; a launch takes as long for either.
        let least = if self.device.capabilities().queue { 4096 } else { 256 };
        // Where time is not scaled, fewer elements stand for more, so that what they take is a bound.
        let n = if elements > LAUNCH_BOUND { elements.next_power_of_two() } else { 1 << elements.ilog2() };
        (elements, n.clamp(least, self.most()))
    }

    /// Seconds that these bytes and f32 operations take at least.
    ///
    /// # Errors
    /// Those of [`measure`].
    ///
    /// ```
    /// use tensorlogic::Device;
    /// use tensorlogic::measure::{Limits, Options};
    /// let mut limits = Limits::new(&Device::cpu(), Options::quick());
    /// assert_eq!(limits.seconds(65_536, true, 0)?, limits.moved(65_536, true)?);
    /// // So many operations take longer than a few bytes.
    /// assert_eq!(limits.seconds(64, true, 1 << 40)?, (1u64 << 40) as f64 / limits.operations()?);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn seconds(&mut self, bytes: u64, write: bool, operations: u64) -> TensorResult<f64> {
        self.seconds_of(bytes, write, operations, DType::F32)
    }

    /// Seconds that these bytes, and operations of products of this dtype, take at least.
    ///
    /// # Errors
    /// Those of [`measure`].
    ///
    /// ```
    /// use tensorlogic::measure::{Limits, Options};
    /// use tensorlogic::{DType, Device};
    /// let mut limits = Limits::new(&Device::cpu(), Options::quick());
    /// let rate = limits.product_operations(DType::F16)?;
    /// assert_eq!(limits.seconds_of(64, true, 1 << 40, DType::F16)?, (1u64 << 40) as f64 / rate);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn seconds_of(&mut self, bytes: u64, write: bool, operations: u64, dtype: DType) -> TensorResult<f64> {
        let moved = self.moved(bytes, write)?;
        Ok(if operations == 0 { moved } else { moved.max(operations as f64 / self.product_operations(dtype)?) })
    }

    /// Measures once more what [`Limits::seconds`] stands on for these `bytes`, and keeps the better of both times: the
    /// machine may have been busy with something else the first time.
    ///
    /// # Errors
    /// Those of [`measure`].
    ///
    /// ```
    /// use tensorlogic::Device;
    /// use tensorlogic::measure::{Limits, Options};
    /// let mut limits = Limits::new(&Device::cpu(), Options::quick());
    /// let before = limits.seconds(65_536, true, 1000)?;
    /// limits.again(65_536, true)?;
    /// assert!(limits.seconds(65_536, true, 1000)? <= before); // the better of both times counts
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn again(&mut self, bytes: u64, write: bool) -> TensorResult<()> {
        let n = self.sizes(bytes, write).1;
        if let Some(seconds) = self.moved.remove(&(write, n)) {
            self.moved(bytes, write)?;
            self.moved.entry((write, n)).and_modify(|s| *s = s.min(seconds));
        }
        if let Some(rate) = self.fma.take() {
            self.fma = Some(self.operations()?.max(rate));
        }
        if let Some(rate) = self.matrix.take() {
            self.matrix = self.matrix_operations()?.map(|again| again.max(rate));
        }
        Ok(())
    }

    /// Seconds that bytes take at least on their way to the device or from it: those of the slower part, the host's or the device's, of a raw
    /// copy through staging memory, many bytes in pieces of the best size; where the device's memory is the host's, those of a copy. `None`
    /// where the device's interface has no such copies.
    ///
    /// # Errors
    /// Those of [`measure`].
    ///
    /// ```
    /// use tensorlogic::Device;
    /// use tensorlogic::measure::{Limits, Options};
    /// let mut limits = Limits::new(&Device::cpu(), Options::quick());
    /// let copy = limits.moved(131_072, true)?; // reads and writes as many bytes as are counted once here
    /// assert_eq!(limits.transfer(65_536, true)?, Some(copy));
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn transfer(&mut self, bytes: u64, to_device: bool) -> TensorResult<Option<f64>> {
        if self.device.capabilities().host_memory {
            return self.moved(2 * bytes, true).map(Some);
        }
        let mut best: Option<f64> = None;
        for piece in self.pieces(bytes as usize) {
            let seconds = match self.staged.get(&(to_device, piece)) {
                Some(seconds) => *seconds,
                None => match self.device.backend().staging_seconds(piece, to_device)? {
                    Some(seconds) => *self.staged.entry((to_device, piece)).or_insert(seconds),
                    None => return Ok(None),
                },
            };
            let whole = seconds * (bytes as f64 / piece as f64).max(1.0);
            best = Some(best.map_or(whole, |b| b.min(whole)));
        }
        Ok(best)
    }

    /// The sizes of the copies that stand for a transfer of `bytes`.
    fn pieces(&self, bytes: usize) -> Vec<usize> {
        let sizes: &[usize] = if self.options.quick { &[1 << 20] } else { &COPY_BYTES };
        if sizes.iter().all(|&size| bytes <= size) { vec![bytes] } else { sizes.to_vec() }
    }

    /// Measures once more what [`Limits::transfer`] stands on for these `bytes`, and keeps the better of both times.
    ///
    /// # Errors
    /// Those of [`measure`].
    ///
    /// ```
    /// use tensorlogic::Device;
    /// use tensorlogic::measure::{Limits, Options};
    /// let mut limits = Limits::new(&Device::cpu(), Options::quick());
    /// let before = limits.transfer(65_536, false)?;
    /// limits.transfer_again(65_536, false)?;
    /// assert!(limits.transfer(65_536, false)? <= before);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn transfer_again(&mut self, bytes: u64, to_device: bool) -> TensorResult<()> {
        if self.device.capabilities().host_memory {
            return self.again(2 * bytes, true);
        }
        for piece in self.pieces(bytes as usize) {
            if let (Some(before), Some(now)) =
                (self.staged.get(&(to_device, piece)).copied(), self.device.backend().staging_seconds(piece, to_device)?)
            {
                self.staged.insert((to_device, piece), now.min(before));
            }
        }
        Ok(())
    }

    /// Bytes per second of a large copy, read and written bytes together.
    ///
    /// # Errors
    /// Those of [`measure`].
    ///
    /// ```
    /// use tensorlogic::Device;
    /// use tensorlogic::measure::{Limits, Options};
    /// let mut limits = Limits::new(&Device::cpu(), Options::quick());
    /// assert_eq!(limits.copy_bandwidth()?, 524_288.0 / limits.moved(524_288, true)?);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn copy_bandwidth(&mut self) -> TensorResult<f64> {
        let bytes = 8 * self.most() as u64;
        Ok(bytes as f64 / self.moved(bytes, true)?)
    }
    /// Bytes per second of a large read.
    ///
    /// # Errors
    /// Those of [`measure`].
    ///
    /// ```
    /// use tensorlogic::Device;
    /// use tensorlogic::measure::{Limits, Options};
    /// let mut limits = Limits::new(&Device::cpu(), Options::quick());
    /// assert_eq!(limits.read_bandwidth()?, 262_144.0 / limits.moved(262_144, false)?);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn read_bandwidth(&mut self) -> TensorResult<f64> {
        let bytes = 4 * self.most() as u64;
        Ok(bytes as f64 / self.moved(bytes, false)?)
    }
    /// f32 operations per second of multiplications and additions in registers.
    ///
    /// # Errors
    /// Those of [`measure`].
    ///
    /// ```
    /// use tensorlogic::Device;
    /// use tensorlogic::measure::{Limits, Options};
    /// let mut limits = Limits::new(&Device::cpu(), Options::quick());
    /// let rate = limits.operations()?;
    /// assert!(rate > 1e6, "{rate} operations per second");
    /// assert_eq!(limits.operations()?, rate); // measured once, and kept
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn operations(&mut self) -> TensorResult<f64> {
        if let Some(v) = self.fma {
            return Ok(v);
        }
        let n = 4096;
        let v = Probe::Fma.operations(n, !self.device.capabilities().shaders) as f64 / self.probe(Probe::Fma, n)?.best().median;
        self.fma = Some(v);
        Ok(v)
    }
    /// Operations per second of matrix units on f16 with f32 sums, in registers; `None` where the device has none.
    ///
    /// # Errors
    /// Those of [`measure`].
    ///
    /// ```
    /// use tensorlogic::Device;
    /// use tensorlogic::measure::{Limits, Options};
    /// let mut limits = Limits::new(&Device::cpu(), Options::quick());
    /// assert_eq!(limits.matrix_operations()?, None); // only GPUs have such units
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn matrix_operations(&mut self) -> TensorResult<Option<f64>> {
        let Some([edge, lanes]) = self.device.backend().matrix_unit() else { return Ok(None) };
        if self.matrix.is_none() {
            let (probe, n) = (Probe::Matrix { edge, lanes }, if self.options.quick { 64 } else { 8192 });
            self.matrix = Some(probe.operations(n, false) as f64 / self.probe(probe, n)?.best().median);
        }
        Ok(self.matrix)
    }
    /// Operations per second that bound products of this dtype: those of matrix units for f16, else those of f32.
    ///
    /// # Errors
    /// Those of [`measure`].
    ///
    /// ```
    /// use tensorlogic::measure::{Limits, Options};
    /// use tensorlogic::{DType, Device};
    /// let mut limits = Limits::new(&Device::cpu(), Options::quick());
    /// assert_eq!(limits.product_operations(DType::F16)?, limits.operations()?); // the CPU has no matrix units
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn product_operations(&mut self, dtype: DType) -> TensorResult<f64> {
        let plain = self.operations()?;
        Ok(if dtype == DType::F16 { self.matrix_operations()?.map_or(plain, |m| m.max(plain)) } else { plain })
    }
    /// Seconds of a dispatch that depends on the one before, on 1,024 elements: by the GPU's clock (else the wall's), and by the wall's.
    ///
    /// # Errors
    /// Those of [`measure`].
    ///
    /// ```
    /// use tensorlogic::Device;
    /// use tensorlogic::measure::{Limits, Options};
    /// let mut limits = Limits::new(&Device::cpu(), Options::quick());
    /// let [best, wall] = limits.launch()?;
    /// assert!(best > 0.0 && best == wall); // the CPU has no clock of its own
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn launch(&mut self) -> TensorResult<[f64; 2]> {
        if let Some(v) = self.launch {
            return Ok(v);
        }
        let count = if self.options.quick { 20 } else { 1000 };
        let t = chain_of_dispatches(&self.device, count, &self.options)?;
        let v = [t.best().median / count as f64, t.wall.median / count as f64];
        self.launch = Some(v);
        Ok(v)
    }
}

/// `count` dependent dispatches on 1,024 elements in one evaluation, without fusion.
pub(super) fn chain_of_dispatches(device: &Device, count: usize, options: &Options) -> TensorResult<Times> {
    let inputs = (0..2).map(|v| start(device, v)).collect::<TensorResult<Vec<_>>>()?;
    let work = Work {
        variants: 2,
        run: Box::new(|v| {
            let y = dependent(&inputs[v], count)?;
            without_fusion(|| y.eval().map(drop))?;
            Ok(Outcome::Tensor(y))
        }),
        expect: (0..2).map(|v| (v + count) as f64).collect(),
        tolerance: 1e-6,
    };
    measure(device, &work, options)
}

/// The operand of a chain of dispatches.
pub(super) fn start(device: &Device, v: usize) -> TensorResult<Tensor> {
    let x = Tensor::full(v as f64, &[1024], DType::F32, device)?;
    x.eval()?;
    Ok(x)
}

/// `count` additions of 1.
pub(super) fn dependent(x: &Tensor, count: usize) -> TensorResult<Tensor> {
    let mut y = x.clone();
    for _ in 0..count {
        y = y.add(1.0)?;
    }
    Ok(y)
}

/// Random numbers on the device, evaluated: zeros and ones take less power, and so run faster, than data does.
pub(super) fn random(shape: &[usize], dtype: DType, seed: u64, device: &Device) -> TensorResult<Tensor> {
    let t = Rng::new(seed).uniform(shape, DType::F32, device)?.sub(0.5)?.cast(dtype)?;
    t.eval()?;
    Ok(t)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_a_busy_machine_is_measured_again() {
        let mut l = Limits::new(&Device::cpu(), Options::quick());
        let (bytes, operations) = (8 * 4096, 1_000_000);
        let mut check = |busy: Option<(f64, f64)>, of: fn(f64) -> bool| {
            if let Some((seconds, rate)) = busy {
                l.moved.insert((true, 4096), seconds);
                l.fma = Some(rate);
                l.again(bytes, true).unwrap();
            }
            let limit = l.seconds(bytes, true, operations).unwrap();
            assert!(of(limit), "{limit} after {busy:?}");
        };
        check(None, |s| s > 0.0 && s < 100.0);
        // Both far slower than any machine is: the new ones count. Both far better: they stay.
        check(Some((1e3, 1.0)), |s| s > 0.0 && s < 100.0);
        check(Some((1e-12, 1e18)), |s| s == 1e-12);
    }
}
