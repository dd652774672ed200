//! Eight operations on each element, one after the other: scale, bias, relu, square, add, tanh, multiply, clamp.

use super::workload::{Form, Limit, Shader, Truth, Variant, Workload, random, shader, sizes};
use tensorlogic::eval::without_fusion;
use tensorlogic::shader::params::Field;
use tensorlogic::{DType, Tensor, TensorResult};

/// What the templates read as `p.NAME`.
const SIZES: &[Field] = &sizes(["elements", "operation"]);

static EIGHT: Shader = shader!("1_eight", SIZES, |_, s| {
    let consts = vec![("OPERATION", s[1] as u32)];
    Ok(Form { consts, workgroup: 256, grid: [s[0].div_ceil(256), 1], ..Form::default() })
});
static FUSED: Shader = shader!("2_fused", SIZES, |_, s| Ok(Form { workgroup: 256, grid: [s[0].div_ceil(256), 1], ..Form::default() }));
static VEC4: Shader = shader!("3_vec4", SIZES, |_, s| Ok(Form { workgroup: 256, grid: [s[0].div_ceil(4096), 1], ..Form::default() }));

/// The chain as users write it.
fn chain(x: &Tensor) -> TensorResult<Tensor> {
    x.mul(1.5)?.add(0.25)?.relu()?.square()?.add(0.125)?.tanh()?.mul(2.0)?.clamp(Some(0.25), Some(1.5))
}

fn variant(shader: &'static Shader, whole: &'static [usize]) -> Variant {
    Variant::of(shader, whole, |s, x| shader.apply(&[&x[0]], s, DType::F32, s))
}

pub fn workload() -> Workload {
    let eight = |s: &[usize], x: &[Tensor]| (1..=8).try_fold(x[0].clone(), |x, op| EIGHT.apply(&[&x], &[s[0], op], DType::F32, s));
    Workload {
        name: "chain of eight on f32",
        timed: &[32 << 20],
        small: &[1 << 14],
        ragged: &[10_007],
        limit: Limit::Copy(|s| 8 * s[0]),
        together: 2,
        inputs: |s, r, d| Ok(vec![random(s, DType::F32, r, d)?.mul(2.0)?]),
        results: |s| s[0],
        truth: |_, x, at| {
            let y = (x[0][at] as f64 * 1.5 + 0.25).max(0.0);
            let value = ((y * y + 0.125).tanh() * 2.0).clamp(0.25, 1.5);
            // WGSL's tanh may be off by 1e-5.
            Truth { value, scale: 10.0 }
        },
        variants: vec![
            Variant::of(&EIGHT, &[], eight).everywhere(),
            Variant {
                name: "engine, no fusion",
                idea: "What the library does with TL_NO_FUSION=1.",
                ..Variant::engine(|x| {
                    let y = chain(&x[0])?;
                    without_fusion(|| y.eval().map(drop))?;
                    Ok(y)
                })
            },
            variant(&FUSED, &[]),
            variant(&VEC4, &[4]),
            Variant::engine(|x| chain(&x[0])),
        ],
    }
}
