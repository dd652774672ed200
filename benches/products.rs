//! Products of matrices in f16 and f32 at the shapes of training, by the device's own clock: milliseconds and TFLOP/s.
//!
//! `cargo bench --bench products -- [--only TEXT,…]`. The device is `TL_DEVICE`'s, else a GPU where there is one. `nt` is `x·Wᵀ`, `nn` `g·W`,
//! `tn` `xᵀ·g`; what follows the product in the same kernel stands behind it: a bias, tanh-GELU, what a residual adds.

mod only;

use std::time::{Duration, Instant};
use tensorlogic::measure::Environment;
use tensorlogic::{DType, Device, Rng, Tensor, TensorResult};

/// Batches, M, N, K, which operands are stored the other way, and what follows.
const SHAPES: [(usize, usize, usize, usize, &str); 32] = [
    (1, 4096, 4096, 4096, "nt"),
    (1, 4096, 4096, 4096, "nn"),
    (1, 4096, 4096, 4096, "tn"),
    (1, 4096, 4096, 4096, "nt+bias+gelu"),
    (1, 4096, 3072, 768, "nt"),
    (1, 4096, 3072, 768, "nt+bias+gelu"),
    (1, 8000, 2304, 768, "nt+bias"),
    (1, 8000, 768, 768, "nt+bias+residual"),
    (1, 8000, 3072, 768, "nt+bias+gelu"),
    (1, 8000, 768, 3072, "nt+bias+residual"),
    (1, 16384, 1152, 384, "nt"),
    (1, 16384, 384, 1536, "nt"),
    (1, 16384, 1536, 384, "nn"),
    (4, 384, 1536, 4096, "tn"),
    (1, 16384, 3072, 768, "nt"),
    (1, 16384, 768, 3072, "nt"),
    (1, 16384, 50257, 768, "nt"),
    (1, 16384, 768, 50257, "nn"),
    (1, 50257, 768, 16384, "tn"),
    (384, 256, 256, 64, "nt"),
    (384, 256, 64, 256, "nn"),
    (1, 16, 4096, 4096, "nt"),
    (1, 256, 4096, 4096, "nt"),
    (1, 64, 768, 3072, "nt+bias+residual"),
    (1, 64, 3072, 768, "nt"),
    (1, 64, 768, 768, "nt+bias+residual"),
    (1, 64, 2304, 768, "nt+bias"),
    (1, 32, 4096, 14336, "nt"),
    (1, 64, 4096, 4096, "nt"),
    (1, 512, 768, 768, "nt"),
    (1, 512, 3072, 768, "nt"),
    (1, 1024, 2304, 768, "nt"),
];
/// Multiplications from which on f32 is left out.
const MAX_F32: usize = 1 << 36;
/// Products that are timed together.
const ROUNDS: usize = 10;
/// Work before each measurement: after a moment without it an H100 is slower for a while.
const WARM_UP: Duration = Duration::from_millis(100);

fn main() -> TensorResult<()> {
    let only = only::only()?;
    let device = Device::auto()?;
    println!("{}", Environment::of(&device).line());
    let mut rng = Rng::new(1);
    for (batch, m, n, k, kind) in SHAPES {
        for dtype in [DType::F16, DType::F32] {
            let name = format!("{dtype} {kind} {batch}×{m}×{n}×{k}");
            if !only.split(',').any(|o| name.contains(o)) || dtype == DType::F32 && (m * n * k > MAX_F32 || kind.len() > 2) {
                continue;
            }
            let mut filled = |shape: &[usize]| -> TensorResult<Tensor> {
                let t = rng.normal(shape, DType::F32, &device)?.cast(dtype)?;
                t.eval()?;
                Ok(t)
            };
            let (a, b) = match &kind[..2] {
                "nt" => (filled(&[batch, m, k])?, filled(&[batch, n, k])?.transpose(1, 2)?),
                "nn" => (filled(&[batch, m, k])?, filled(&[batch, k, n])?),
                _ => (filled(&[batch, k, m])?.transpose(1, 2)?, filled(&[batch, k, n])?),
            };
            let bias = filled(&[n])?;
            let residual = if kind.ends_with("residual") { filled(&[batch, m, n])? } else { bias.clone() };
            let step = || -> TensorResult<()> {
                let mut y = a.matmul(&b)?;
                for part in kind.split('+').skip(1) {
                    y = match part {
                        "bias" => y.add(&bias)?,
                        "gelu" => y.gelu_tanh()?,
                        _ => y.add(&residual)?,
                    };
                }
                y.eval().map(drop)
            };
            let began = Instant::now();
            while began.elapsed() < WARM_UP {
                step()?;
                device.synchronize()?;
            }
            let ((), profile) = device.profile(|| (0..ROUNDS).try_for_each(|_| step()))?;
            let seconds = profile.rows().iter().filter_map(|r| r.seconds).sum::<f64>() / ROUNDS as f64;
            let rate = 2.0 * (batch * m * n * k) as f64 / seconds / 1e12;
            println!("{name}: {:.4} ms, {rate:.1} TFLOP/s", seconds * 1e3);
        }
    }
    Ok(())
}
