//! One row times a weight in f16 whose rows are its columns, `x·Wᵀ`: what a model does for each token.

use super::workload::{Form, Limit, Shader, Truth, Variant, Workload, random, shader, sizes};
use tensorlogic::DType;
use tensorlogic::plan::AdapterInfo;
use tensorlogic::shader::params::Field;

/// What the templates read as `p.NAME`.
const SIZES: &[Field] = &sizes(["n", "k"]);

static PLAIN: Shader = shader!("1_plain", SIZES, |_, s| Ok(Form { workgroup: 64, grid: [s[0].div_ceil(64), 1], ..Form::default() }));
static WORKGROUP: Shader = shader!("2_workgroup", SIZES, |_, s| Ok(Form { workgroup: 128, grid: [s[0], 1], ..Form::default() }));
static VEC8: Shader = shader!("3_vec8", SIZES, |_, s| Ok(Form { workgroup: 128, grid: [s[0], 1], raw: vec![1], ..Form::default() }));
static SUBGROUP: Shader = shader!("4_subgroup", SIZES, subgroup_rows);
static PREFETCH: Shader = shader!("5_prefetch", SIZES, subgroup_rows);

/// A row for each subgroup, four of them in a workgroup.
fn subgroup_rows(adapter: &AdapterInfo, sizes: &[usize]) -> Result<Form, &'static str> {
    if adapter.subgroup == 0 {
        return Err("this adapter has no subgroups of one known size");
    }
    let consts = vec![("SUBGROUP", adapter.subgroup)];
    Ok(Form { consts, workgroup: 4 * adapter.subgroup, grid: [sizes[0].div_ceil(4), 1], raw: vec![1], ..Form::default() })
}

/// The sum of products of the row and row `at` of the weight.
pub fn truth(sizes: &[usize], x: &[Vec<f32>], at: usize) -> Truth {
    let row = &x[1][at * sizes[1]..][..sizes[1]];
    let terms = x[0].iter().zip(row).map(|(a, b)| *a as f64 * *b as f64);
    terms.fold(Truth { value: 0.0, scale: 0.0 }, |t, v| Truth { value: t.value + v, scale: t.scale + v.abs() })
}

pub fn variant(shader: &'static Shader, whole: &'static [usize]) -> Variant {
    Variant::of(shader, whole, |s, x| shader.apply(&[&x[0], &x[1]], s, DType::F16, &[1, s[0]]))
}

pub fn workload() -> Workload {
    Workload {
        name: "one row times f16",
        timed: &[4096, 14336],
        small: &[96, 256],
        ragged: &[37, 1147],
        limit: Limit::Copy(|s| 2 * s[0] * s[1]),
        together: 2,
        inputs: |s, r, d| Ok(vec![random(&[1, s[1]], DType::F16, r, d)?, random(s, DType::F16, r, d)?]),
        results: |s| s[0],
        truth,
        variants: vec![
            variant(&PLAIN, &[]),
            variant(&WORKGROUP, &[]),
            variant(&VEC8, &[1, 8]),
            variant(&SUBGROUP, &[1, 8]),
            variant(&PREFETCH, &[1, 8]),
            Variant::engine(|x| x[0].matmul(&x[1].t()?)),
        ],
    }
}
