//! Softmax of each row of a matrix in f32.

use super::workload::{Form, Limit, Shader, Truth, Variant, Workload, shader, sizes};
use tensorlogic::plan::AdapterInfo;
use tensorlogic::shader::params::Field;
use tensorlogic::{DType, Tensor, TensorResult};

/// What the templates read as `p.NAME`.
const SIZES: &[Field] = &sizes(["rows", "cols"]);

static PLAIN: Shader = shader!("1_plain", SIZES, |_, s| Ok(Form { workgroup: 64, grid: [s[0].div_ceil(64), 1], ..Form::default() }));
static WORKGROUP: Shader = shader!("2_workgroup", SIZES, |_, s| Ok(row(s, vec![])));
static ONLINE: Shader = shader!("3_online", SIZES, |_, s| Ok(row(s, vec![])));
static RESIDENT: Shader = shader!("4_resident", SIZES, resident);
static VEC4: Shader = shader!("5_vec4", SIZES, resident);

/// Threads of a row.
const THREADS: usize = 256;

/// A workgroup for each row.
fn row(sizes: &[usize], consts: Vec<(&'static str, u32)>) -> Form {
    Form { consts, workgroup: THREADS as u32, grid: [sizes[0], 1], ..Form::default() }
}

/// The same with as many vec4 of registers as hold the row.
fn resident(_: &AdapterInfo, sizes: &[usize]) -> Result<Form, &'static str> {
    match sizes[1].div_ceil(4 * THREADS) {
        vec4s @ 0..=8 => Ok(row(sizes, vec![("RESIDENT", vec4s as u32)])),
        _ => Err("a row of so many columns does not fit registers"),
    }
}

fn variant(shader: &'static Shader, whole: &'static [usize]) -> Variant {
    let run = move |s: &[usize], x: &[Tensor]| -> TensorResult<Tensor> { shader.apply(&[&x[0]], s, DType::F32, s) };
    Variant::of(shader, whole, run)
}

pub fn workload() -> Workload {
    Workload {
        name: "softmax of rows of f32",
        timed: &[8192, 4096],
        small: &[16, 256],
        ragged: &[5, 1237],
        limit: Limit::Copy(|s| 8 * s[0] * s[1]),
        together: 2,
        inputs: |s, r, d| Ok(vec![r.normal(s, DType::F32, d)?.mul(3.0)?]),
        results: |s| s[0] * s[1],
        truth: |s, x, at| {
            let row = &x[0][at / s[1] * s[1]..][..s[1]];
            let top = row.iter().fold(f32::MIN, |m, x| m.max(*x)) as f64;
            let value = (x[0][at] as f64 - top).exp() / row.iter().map(|x| (*x as f64 - top).exp()).sum::<f64>();
            // WGSL's exp(x) may be off by 3 + 2 |x| units in the last place.
            Truth { value, scale: 20.0 * value }
        },
        variants: vec![
            variant(&PLAIN, &[]),
            variant(&WORKGROUP, &[]),
            variant(&ONLINE, &[]),
            variant(&RESIDENT, &[]),
            variant(&VEC4, &[1, 4]),
            Variant::engine(|x| x[0].softmax(-1)),
        ],
    }
}
