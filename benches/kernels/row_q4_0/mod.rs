//! One row times a weight in Q4_0: blocks of 32 weights, each a scale in f16 and 16 bytes with two weights of four bits.

use super::row_f16::{truth, variant};
use super::workload::{Form, Limit, Shader, Variant, Workload, random, shader, sizes};
use std::sync::Arc;
use tensorlogic::backends::Bytes;
use tensorlogic::shader::params::Field;
use tensorlogic::{DType, Device, Rng, Tensor, TensorResult};

/// What the templates read as `p.NAME`.
const SIZES: &[Field] = &sizes(["n", "k"]);

static PLAIN: Shader = shader!("1_plain", SIZES, |_, s| Ok(Form { workgroup: 64, grid: [s[0].div_ceil(64), 1], ..Form::default() }));
static WORKGROUP: Shader = shader!("2_workgroup", SIZES, |_, s| Ok(Form { workgroup: 64, grid: [s[0], 1], ..Form::default() }));
static BLOCKS: Shader = shader!("3_blocks", SIZES, |_, s| Ok(Form { workgroup: 64, grid: [s[0], 1], raw: vec![1], ..Form::default() }));
static ROWS: Shader =
    shader!("4_rows", SIZES, |_, s| Ok(Form { workgroup: 64, grid: [s[0].div_ceil(4), 1], raw: vec![1], ..Form::default() }));
static HALVES: Shader =
    shader!("5_halves", SIZES, |_, s| Ok(Form { workgroup: 64, grid: [s[0].div_ceil(4), 1], raw: vec![1], ..Form::default() }));

/// Blocks with random weights, and scales of a few sizes.
fn weights(shape: &[usize], rng: &mut Rng, device: &Device) -> TensorResult<Tensor> {
    let blocks = shape[0] * shape[1] / 32;
    let words = rng.bits(&[5 * blocks], &Device::cpu())?.to_bytes()?;
    let mut bytes = Vec::with_capacity(18 * blocks);
    for word in words.as_chunks::<20>().0 {
        // An f16 between 2⁻⁶ and 2⁻⁵: its exponent's bits, and ten random ones.
        bytes.extend([word[0], 0x24 | (word[1] & 3)]);
        bytes.extend_from_slice(&word[4..]);
    }
    Tensor::from_bytes(Bytes::Owned(Arc::new(bytes)), DType::Q4_0, shape, device)
}

pub fn workload() -> Workload {
    Workload {
        name: "one row times Q4_0",
        timed: &[4096, 14336],
        small: &[96, 256],
        ragged: &[37, 1120],
        limit: Limit::Copy(|s| s[0] * s[1] / 32 * 18),
        together: 4,
        inputs: |s, r, d| Ok(vec![random(&[1, s[1]], DType::F16, r, d)?, weights(s, r, d)?]),
        results: |s| s[0],
        truth,
        variants: vec![
            variant(&PLAIN, &[1, 32]),
            variant(&WORKGROUP, &[1, 32]),
            variant(&BLOCKS, &[1, 32]),
            variant(&ROWS, &[1, 32]),
            variant(&HALVES, &[1, 32]),
            Variant::engine(|x| x[0].matmul(&x[1].t()?)),
        ],
    }
}
