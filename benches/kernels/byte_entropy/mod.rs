//! The entropy of the 256 bytes around each byte.

use super::workload::{Form, Limit, Shader, Truth, Variant, Workload, shader, sizes};
use tensorlogic::shader::params::Field;
use tensorlogic::{DType, Device, Tensor};

/// What the templates read as `p.NAME`.
const SIZES: &[Field] = &sizes(["bytes"]);

static WINDOW: Shader = shader!("1_window", SIZES, |_, s| Ok(Form { workgroup: 64, grid: [s[0].div_ceil(64), 1], ..Form::default() }));
static SLIDE: Shader = shader!("2_slide", SIZES, |_, s| Ok(Form { workgroup: 64, grid: [s[0].div_ceil(64 * 128), 1], ..Form::default() }));
static TABLE: Shader = shader!("3_table", SIZES, |_, s| Ok(Form { workgroup: 32, grid: [s[0].div_ceil(32 * 128), 1], ..Form::default() }));

fn variant(shader: &'static Shader) -> Variant {
    Variant::of(shader, &[], |s, x| shader.apply(&[&x[0]], s, DType::F32, s)).everywhere()
}

pub fn workload() -> Workload {
    Workload {
        name: "entropy of bytes, window 256",
        timed: &[4 << 20],
        small: &[1 << 15],
        ragged: &[10_007],
        limit: Limit::Copy(|s| 5 * s[0]),
        together: 1,
        // Stretches of one value between others, of which small ones are more frequent.
        inputs: |s, r, d| {
            let random = r.uniform(s, DType::F32, &Device::cpu())?.to_vec()?;
            let byte = |(i, v): (usize, &f32)| if i / 300 % 4 == 0 { 7 } else { (v * v * 255.0) as u8 };
            Ok(vec![Tensor::from_vec(random.iter().enumerate().map(byte).collect::<Vec<u8>>(), s, d)?])
        },
        results: |s| s[0],
        truth: |s, x, at| {
            let window = &x[0][at.saturating_sub(128)..(at + 128).min(s[0])];
            let mut counts = [0u32; 257];
            window.iter().for_each(|&b| counts[b as usize] += 1);
            let shares = counts.iter().filter(|c| **c > 0).map(|&c| f64::from(c) / window.len() as f64);
            // To 1e-6 of the largest entropy.
            Truth { value: -shares.map(|p| p * p.log2()).sum::<f64>() / 8.0, scale: 0.25 }
        },
        variants: vec![variant(&WINDOW), variant(&SLIDE), variant(&TABLE), Variant::engine(|x| x[0].byte_entropy(256))],
    }
}
