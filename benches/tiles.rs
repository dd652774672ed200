//! Each tile and split-K of products of few rows in f16, by the device's own clock: what the costs in a tuning table were fitted to.
//!
//! `cargo bench --bench tiles -- [--only TEXT,…]` prints M, N, K, the tile (`warps, fragments, BK`), splits and microseconds. The device is
//! `TL_DEVICE`'s, else a GPU. Weights take turns over more memory than caches have, as the layers of a model do; several products run side by
//! side in an evaluation.

mod only;

use std::time::{Duration, Instant};
use tensorlogic::eval::eval_all;
use tensorlogic::measure::Environment;
use tensorlogic::tuning::{GemmTile, GemmTuning, Tuning};
use tensorlogic::{DType, Device, Rng, Tensor, TensorResult};

/// K, and M and N that are multiplied with it.
const SHAPES: [(usize, &[[usize; 2]]); 3] = [
    (4096, &[[16, 4096], [64, 4096], [128, 4096], [256, 4096], [512, 4096], [1024, 4096]]),
    (768, &[[64, 768], [64, 3072], [256, 3072], [512, 3072], [1024, 2304]]),
    (3072, &[[64, 768], [512, 768], [1024, 768]]),
];
const SPLITS: [usize; 4] = [1, 2, 4, 8];
/// Bytes that weights take turns over.
const ROTATED_BYTES: usize = 256 << 20;
/// Products of an evaluation.
const SIDE_BY_SIDE: usize = 8;
/// Work before the first measurement: after a moment without it a GPU is slower for a while.
const WARM_UP: Duration = Duration::from_millis(300);

/// The class's table with one tile that is always split into `splits` parts of K, or as many as fit.
fn forced(class: &Tuning, tile: GemmTile, splits: usize, k: usize) -> Tuning {
    let tile = GemmTile { busy_us: [1.0; 4], alone_us: 1.0, ..tile };
    let bk = tile.bk as usize;
    let min_split_k = k.div_ceil(bk).div_ceil(splits) * bk;
    let gemm = GemmTuning { tiles: vec![tile], min_split_k, store_us: 0.0, split_us: [0.0; 3], ..class.gemm.clone() };
    Tuning { compute_units: u32::MAX, gemm, ..class.clone() }
}

fn main() -> TensorResult<()> {
    let only = only::only()?;
    let name = std::env::var("TL_DEVICE").unwrap_or_else(|_| "gpu".into());
    let first = Device::open_with_tuning(&name, Tuning::nvidia())?;
    println!("{}", Environment::of(&first).line());
    let class = first.tuning().cloned().unwrap_or_else(Tuning::nvidia);
    for tile in class.gemm.tiles.iter().copied() {
        for splits in SPLITS {
            for (k, sides) in SHAPES {
                let wanted = |[m, n]: &&[usize; 2]| only.split(',').any(|o| format!("{m}×{n}×{k}").contains(o));
                let wanted: Vec<[usize; 2]> = sides.iter().filter(wanted).copied().collect();
                if wanted.is_empty() {
                    continue;
                }
                let device = Device::open_with_tuning(&name, forced(&class, tile, splits, k))?;
                for [m, n] in wanted {
                    let us = time(&device, [m, n, k])?;
                    println!("{m} {n} {k} {:?} {:?} {} {splits} {us:.2}", tile.warps, tile.fragments, tile.bk);
                }
            }
        }
    }
    Ok(())
}

/// Microseconds of a product.
fn time(device: &Device, [m, n, k]: [usize; 3]) -> TensorResult<f64> {
    let mut rng = Rng::new(1);
    let mut filled = |shape: &[usize]| -> TensorResult<Tensor> {
        let t = rng.normal(shape, DType::F32, device)?.cast(DType::F16)?;
        t.eval()?;
        Ok(t)
    };
    let a = filled(&[m, k])?;
    let count = ROTATED_BYTES.div_ceil(2 * n * k).clamp(SIDE_BY_SIDE, 64);
    let weights: Vec<Tensor> = (0..count).map(|_| filled(&[n, k])).collect::<TensorResult<_>>()?;
    let run = |at: usize| -> TensorResult<()> {
        let all: Vec<Tensor> = (0..SIDE_BY_SIDE).map(|i| a.matmul(&weights[(at + i) % count].t()?)).collect::<TensorResult<_>>()?;
        eval_all(&all.iter().collect::<Vec<_>>())
    };
    let began = Instant::now();
    let mut at = 0;
    while at < 2 * SIDE_BY_SIDE || at < 64 && began.elapsed() < WARM_UP {
        run(at)?;
        at += SIDE_BY_SIDE;
    }
    device.synchronize()?;
    let mut least = f64::INFINITY;
    for _ in 0..3 {
        let ((), profile) = device.profile(|| run(at))?;
        at += SIDE_BY_SIDE;
        least = least.min(profile.rows().iter().filter_map(|r| r.seconds).sum::<f64>() / SIDE_BY_SIDE as f64);
    }
    Ok(least * 1e6)
}
