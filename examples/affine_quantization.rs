//! Affine quantization of a weight matrix: the errors of one scale for the tensor, for each row, and for each block of 128, and a product
//! with each.
//!
//! `cargo run --example affine_quantization`. The weights are made up: normal numbers whose rows differ in size as those of trained models
//! do (by a log-normal factor), with one in a thousand ten times as large.

use tensorlogic::ops::affine::{DynamicQuantizer, Quantized, block_wise_quantize};
use tensorlogic::quant::Affine;
use tensorlogic::{DType, Device, Rng, Tensor, TensorResult};

/// Weights `[n, k]` as described above.
fn weights(n: usize, k: usize, device: &Device) -> TensorResult<Tensor> {
    let mut rng = Rng::new(1);
    let rows = rng.normal(&[n, 1], DType::F32, device)?.mul(0.5)?.exp()?;
    let outliers = rng.uniform(&[n, k], DType::F32, device)?.lt(0.001)?.where_(10.0, 1.0)?;
    rng.normal(&[n, k], DType::F32, device)?.mul(&rows)?.mul(&outliers)?.mul(0.02)
}

/// ‖a − b‖ / ‖b‖.
fn relative(a: &Tensor, b: &Tensor) -> TensorResult<f64> {
    Ok((a.sub(b)?.square()?.sum_all()?.item()? / b.square()?.sum_all()?.item()?).sqrt())
}

/// A line of the table: bits a weight, error of the weights, and of the product with them.
fn line(name: &str, w: &Tensor, x: &Tensor, q: &Quantized) -> TensorResult<String> {
    let bits = q.bytes() as f64 * 8.0 / w.numel() as f64;
    let exact = x.matmul(&w.t()?)?;
    let (own, product) = (relative(&q.dequantize()?, w)?, relative(&x.matmul_quantized(q)?, &exact)?);
    Ok(format!("| {name} | {bits:.2} | {:.2} % | {:.2} % |", own * 100.0, product * 100.0))
}

/// The table of the guide.
fn table(device: &Device) -> TensorResult<String> {
    let w = weights(512, 1000, device)?;
    let x = Rng::new(2).normal(&[16, 1000], DType::F32, device)?;
    let mut out = String::from("| | bits a weight | error of the weights | error of products |\n|---|---|---|---|\n");
    for (bits, base) in [(8, Affine::int8()), (4, Affine::int4())] {
        for (groups, affine) in [("tensor", base), ("row", base.per_channel(0)), ("block of 128", base.block(128))] {
            out += &format!("{}\n", line(&format!("{bits} bits, a scale for each {groups}"), &w, &x, &w.quantize(&affine)?)?);
        }
    }
    Ok(out)
}

fn main() -> TensorResult<()> {
    let device = Device::auto()?;
    println!("{}", device.name());
    print!("{}", table(&device)?);

    // The same by the names of the guide that they come from.
    let w = weights(512, 1000, &device)?;
    let quantizer = DynamicQuantizer::new(8)?.per_channel(0);
    let q = quantizer.quantize_weights(&w)?;
    println!("\nscales {}, zero points {}, integers {}{}", q.scale().shape(), q.zero_point().shape(), q.q().dtype(), q.q().shape());
    println!("largest error {:.5}", quantizer.dequantize_weights(&q)?.sub(&w)?.abs()?.max_all()?.item()?);
    let q = block_wise_quantize(&w, 128)?;
    println!("blocks across rows: {} blocks of {}, for {}", q.q().dims()[0], q.q().dims()[1], q.shape());

    // One step, which reads the integers as they are.
    let x = Rng::new(2).normal(&[1, 1000], DType::F32, &device)?;
    x.eval()?;
    print!("{}", x.matmul_quantized(&w.quantize(&Affine::int4().block(128))?)?.relu()?.explain()?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guide_has_this_table() {
        let table = table(&Device::cpu()).unwrap();
        let page = include_str!("../docs/guide/13-affine-quantization.md");
        assert!(page.contains(&table), "docs/guide/13-affine-quantization.md lacks this table:\n{table}");
    }
}
