//! Entropy of the bytes of a file: the library's operation, and a kernel of one's own that follows the definition.
//!
//! `cargo run --example byte_entropy [FILE]`. The kernel is `calculate_entropy` of an optimization guide for Metal, in WGSL. There a window
//! begins at `max(0u, id - 128u)`, a difference of unsigned integers that wraps around: the first 128 windows are empty and their results
//! 0. Here it begins at 0.

use std::time::Instant;
use tensorlogic::ops::custom::CustomOp;
use tensorlogic::{Device, Tensor, TensorResult};

/// Row by row: each position counts the 256 bytes around it.
static CALCULATE_ENTROPY: CustomOp = CustomOp::rows("calculate_entropy")
    .wgsl(
        "fn calculate_entropy(row: u32, cols: u32, lane: u32) {
           for (var id = lane; id < cols; id += WORKGROUP) {
             let start = id - min(id, 128u);
             let end = min(cols, id + 128u);
             var histogram: array<u32, 256>;
             for (var v = 0u; v < 256u; v++) { histogram[v] = 0u; }
             for (var i = start; i < end; i++) { histogram[u32(load_0(row * cols + i))]++; }
             var entropy = 0.0;
             for (var v = 0u; v < 256u; v++) {
               if (histogram[v] > 0u) {
                 let p = f32(histogram[v]) / f32(end - start);
                 entropy -= p * log2(p);
               }
             }
             store_0(row * cols + id, entropy / 8.0); // to [0, 1]
           }
         }",
    )
    .cpu(|x, _, out| {
        for id in 0..out.len() {
            let window = &x[0][id.saturating_sub(128)..(id + 128).min(out.len())];
            let mut histogram = [0u32; 256];
            window.iter().for_each(|&b| histogram[b as usize] += 1);
            let shares = histogram.iter().filter(|c| **c > 0).map(|&c| c as f32 / window.len() as f32);
            out[id] = -shares.map(|p| p * p.log2()).sum::<f32>() / 8.0;
        }
    })
    // 256 counts and 256 terms.
    .cost(1024);

/// The largest difference of two results.
fn difference(a: &Tensor, b: &Tensor) -> TensorResult<f64> {
    if a.numel() == 0 { Ok(0.0) } else { a.sub(b)?.abs()?.max_all()?.item() }
}

/// Entropies of rows of bytes by the library's operation and by the kernel, and the seconds that each took.
fn both(bytes: &Tensor) -> TensorResult<[(Tensor, f64); 2]> {
    let device = bytes.device();
    let timed = |run: &dyn Fn() -> TensorResult<Tensor>| {
        // The first run compiles.
        run()?.eval()?;
        device.synchronize()?;
        let start = Instant::now();
        let result = run()?;
        result.eval()?;
        device.synchronize()?;
        Ok((result, start.elapsed().as_secs_f64()))
    };
    Ok([timed(&|| bytes.byte_entropy(256))?, timed(&|| CALCULATE_ENTROPY.apply(&[bytes], &[]))?])
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).unwrap_or_else(|| format!("{}/examples/byte_entropy.rs", env!("CARGO_MANIFEST_DIR")));
    let mut bytes = std::fs::read(&path)?;
    // Whole rows, each of which the kernel gives to one workgroup.
    let cols = 1024;
    bytes.truncate((bytes.len() / cols * cols).min(1 << 20));
    let mut devices = vec![Device::cpu()];
    devices.extend(["gpu", "vulkan", "metal", "dx12"].iter().find_map(|name| Device::open(name).ok()));
    for device in devices {
        let rows = Tensor::from_vec(bytes.clone(), &[bytes.len() / cols, cols], &device)?;
        let [(ours, fast), (custom, slow)] = both(&rows)?;
        let mean = if ours.numel() > 0 { ours.mean(&[], false)?.item()? } else { 0.0 };
        println!("{}: {} bytes, mean entropy {mean:.4}", device.name(), bytes.len());
        println!(
            "  byte_entropy {:.2} ms, calculate_entropy {:.2} ms, largest difference {:.1e}",
            fast * 1e3,
            slow * 1e3,
            difference(&ours, &custom)?
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_and_the_operation_agree_from_the_first_byte_on() {
        let gpu = Device::open("gpu").or_else(|_| Device::open("vulkan")).ok();
        for device in [Some(Device::cpu()), gpu].into_iter().flatten() {
            let bytes: Vec<u8> = (0..3 * 700u32).map(|i| (i.wrapping_mul(i) >> 7) as u8 ^ (i >> 5) as u8).collect();
            let rows = Tensor::from_vec(bytes.clone(), &[3, 700], &device).unwrap();
            let [(ours, _), (custom, _)] = both(&rows).unwrap();
            assert!(difference(&ours, &custom).unwrap() < 1e-5, "{}", device.name());
            assert!(ours.to_vec().unwrap()[..128].iter().all(|&h| h > 0.5), "{}", device.name());
        }
    }
}
