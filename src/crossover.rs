//! The crossover between CPU and GPU: measured once on this machine, and kept in the user's cache folder.

use crate::backends::files::{cache_folder, write_whole};
use crate::cpu_fallback::Purpose;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::eval::eval_on;
use crate::events;
use crate::plan::FallbackModel;
use crate::tensor::Tensor;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The middle of each of both times of `time`, from the same runs; the first few do not count.
fn median(runs: usize, device: &Device, f: impl Fn() -> TensorResult<Tensor>) -> TensorResult<(f64, f64)> {
    for _ in 0..3 {
        time(device, &f)?;
    }
    let (mut whole, mut submitted): (Vec<f64>, Vec<f64>) =
        (0..runs).map(|_| time(device, &f)).collect::<TensorResult<Vec<_>>>()?.into_iter().unzip();
    whole.sort_by(f64::total_cmp);
    submitted.sort_by(f64::total_cmp);
    Ok((whole[runs / 2], submitted[runs / 2]))
}

/// Seconds from building `f`'s graph to its first element on the host, and to the end of the evaluation.
fn time(device: &Device, f: &impl Fn() -> TensorResult<Tensor>) -> TensorResult<(f64, f64)> {
    let start = Instant::now();
    let y = f()?;
    eval_on(device, &[&y], Purpose::Measure)?;
    let submitted = start.elapsed().as_secs_f64();
    let stored = y.node.stored.get();
    if let Some(b) = stored {
        device.backend().read(&b[0], 0, &mut [0; 4])?;
    }
    Ok((start.elapsed().as_secs_f64(), submitted))
}

fn measure(device: &Device) -> TensorResult<FallbackModel> {
    // Work that is still running would count as the way there and back.
    device.synchronize()?;
    let cpu = Device::cpu();
    let tiny = |d: &Device| Tensor::from_vec(vec![1.0f32; 64], &[64], d)?.add(1.0)?.relu();
    let (round_trip, submit) = median(24, device, || tiny(device))?;
    let (host, _) = median(24, &cpu, || tiny(&cpu))?;
    let n = 1 << 16;
    let x = Tensor::ones(&[n], DType::F32, &cpu)?;
    x.eval()?;
    // Three instructions an element: as long as the program of the usual chain.
    let (elements, _) = median(12, &cpu, || x.add(1.0)?.mul(0.5)?.tanh())?;
    let m = 128;
    let a = Tensor::ones(&[m, m], DType::F32, &cpu)?;
    a.eval()?;
    let (product, _) = median(12, &cpu, || a.matmul(&a))?;
    Ok(FallbackModel {
        round_trip,
        submit,
        host,
        host_element: (elements - host).max(1e-9) / (3 * n) as f64,
        host_op: (product - host).max(1e-9) / (2 * m * m * m) as f64,
    })
}

type Known = serde_json::Map<String, serde_json::Value>;

fn known(file: &Path) -> Known {
    std::fs::read(file).ok().and_then(|t| serde_json::from_slice(&t).ok()).unwrap_or_default()
}

/// Stores a measurement; where the folder cannot be written, the next process measures again.
fn store(file: &Path, key: &str, c: &FallbackModel) -> std::io::Result<()> {
    let mut all = known(file);
    all.insert(key.into(), serde_json::to_value(c)?);
    write_whole(file, &serde_json::to_vec_pretty(&all)?)
}

impl Device {
    /// Where this GPU and the CPU are equally fast on values in host memory: from the user's cache folder, or measured now (some
    /// milliseconds) and kept there for this adapter.
    ///
    /// # Errors
    /// Those of running work on the device.
    ///
    /// ```
    /// # if tensorlogic::Device::gpu().is_err() { return Ok(()); } // there is no GPU
    /// let gpu = tensorlogic::Device::gpu()?;
    /// let times = gpu.crossover()?;
    /// assert!(times.host < times.round_trip); // the CPU is done with tiny work before the GPU is
    /// println!("the CPU is faster up to {} elements", times.elements());
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn crossover(&self) -> TensorResult<FallbackModel> {
        self.crossover_in(cache_folder().map(|f| f.join("crossover.json")), false)
    }

    /// Like [`Device::crossover`], but measures in any case.
    ///
    /// # Errors
    /// Those of running work on the device.
    ///
    /// ```
    /// # if tensorlogic::Device::gpu().is_err() { return Ok(()); } // there is no GPU
    /// let gpu = tensorlogic::Device::gpu()?;
    /// let times = gpu.measure_crossover()?;
    /// assert_eq!(gpu.crossover()?, times); // what was measured last is in force
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn measure_crossover(&self) -> TensorResult<FallbackModel> {
        self.crossover_in(cache_folder().map(|f| f.join("crossover.json")), true)
    }

    pub(crate) fn crossover_in(&self, file: Option<PathBuf>, again: bool) -> TensorResult<FallbackModel> {
        if let Some(c) = self.measured().filter(|_| !again) {
            return Ok(c);
        }
        let key = format!("{} | {} | {}", self.name(), Device::cpu().name(), env!("CARGO_PKG_VERSION"));
        let stored: Option<FallbackModel> =
            file.as_ref().filter(|_| !again).and_then(|f| known(f).get(&key).and_then(|v| serde_json::from_value(v.clone()).ok()));
        let c = match stored {
            Some(c) => {
                events::crossover_found(c.round_trip, c.host);
                c
            }
            None => {
                let c = measure(self)?;
                events::crossover_measured(c.round_trip, c.host);
                if let Some(f) = &file {
                    let _ = store(f, &key, &c);
                }
                c
            }
        };
        *self.measured() = Some(c);
        Ok(c)
    }
}
