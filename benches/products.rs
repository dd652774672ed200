//! Products of matrices in f16 and f32 at the shapes of training, by the device's own clock: milliseconds and TFLOP/s.
//!
//! `cargo bench --bench products`. The device is `TL_DEVICE`'s, else a GPU where there is one. `nt` is `x·Wᵀ`, `nn` `g·W`, `tn` `xᵀ·g`.

use tensorlogic::measure::Environment;
use tensorlogic::{DType, Device, Rng, Tensor, TensorResult};

/// Batches, M, N, K and which operands are stored the other way.
const SHAPES: [(usize, usize, usize, usize, &str); 14] = [
    (1, 4096, 4096, 4096, "nt"),
    (1, 4096, 4096, 4096, "nn"),
    (1, 4096, 4096, 4096, "tn"),
    (1, 16384, 1152, 384, "nt"),
    (1, 16384, 384, 1536, "nt"),
    (1, 16384, 1536, 384, "nn"),
    (4, 384, 1536, 4096, "tn"),
    (1, 16384, 3072, 768, "nt"),
    (1, 16384, 768, 3072, "nt"),
    (1, 16384, 50257, 768, "nt"),
    (384, 256, 256, 64, "nt"),
    (384, 256, 64, 256, "nn"),
    (1, 64, 3072, 768, "nt"),
    (1, 512, 3072, 768, "nt"),
];
/// Multiplications from which on f32 is left out.
const MOST_F32: usize = 1 << 36;
/// Products that are timed together.
const ROUNDS: usize = 10;

fn main() -> TensorResult<()> {
    let device = Device::auto()?;
    println!("{}", Environment::of(&device).line());
    let mut rng = Rng::new(1);
    for (batch, m, n, k, kind) in SHAPES {
        for dtype in [DType::F16, DType::F32] {
            if dtype == DType::F32 && m * n * k > MOST_F32 {
                continue;
            }
            let mut stored = |rows: usize, columns: usize, turned: bool| -> TensorResult<Tensor> {
                let [rows, columns] = if turned { [columns, rows] } else { [rows, columns] };
                let t = rng.normal(&[batch, rows, columns], DType::F32, &device)?.cast(dtype)?;
                t.eval()?;
                if turned { t.transpose(1, 2) } else { Ok(t) }
            };
            let (a, b) = (stored(m, k, kind == "tn")?, stored(k, n, kind == "nt")?);
            let run = |rounds: usize| -> TensorResult<()> {
                for _ in 0..rounds {
                    a.matmul(&b)?.eval()?;
                }
                device.synchronize()
            };
            run(3)?;
            let ((), profile) = device.profile(|| run(ROUNDS))?;
            let seconds = profile.rows().iter().filter_map(|r| r.seconds).sum::<f64>() / ROUNDS as f64;
            let rate = 2.0 * (batch * m * n * k) as f64 / seconds / 1e12;
            println!("{dtype} {kind} {batch}×{m}×{n}×{k}: {:.4} ms, {rate:.1} TFLOP/s", seconds * 1e3);
        }
    }
    Ok(())
}
