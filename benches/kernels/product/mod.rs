//! The product of two matrices stored row by row: M × K times K × N.

use super::workload::{Form, Limit, Shader, Truth, Variant, Workload, random, shader, sizes};
use tensorlogic::plan::AdapterInfo;
use tensorlogic::shader::params::Field;
use tensorlogic::{DType, Tensor, TensorResult};

/// What the templates read as `p.NAME`.
const SIZES: &[Field] = &sizes(["m", "n", "k"]);

static PLAIN: Shader = shader!("1_plain", SIZES, |_, s| Ok(squares(s, 16)));
static TILES: Shader = shader!("2_tiles", SIZES, |_, s| Ok(squares(s, 16)));
static REGISTERS: Shader = shader!("3_registers", SIZES, |_, s| Ok(squares(s, 64)));
static MORE: Shader = shader!("4_more", SIZES, |_, s| Ok(squares(s, 128)));
static MATRICES: Shader = shader!("5_matrices", SIZES, matrices);

/// 256 threads for each square of results.
fn squares(sizes: &[usize], edge: usize) -> Form {
    Form { workgroup: 256, grid: [sizes[1].div_ceil(edge), sizes[0].div_ceil(edge)], ..Form::default() }
}

fn matrices(adapter: &AdapterInfo, sizes: &[usize]) -> Result<Form, &'static str> {
    if adapter.coop == 0 {
        return Err("this adapter has no cooperative matrices (f16 operands, f32 sums)");
    }
    let tile = 4 * adapter.coop;
    Ok(Form {
        consts: vec![("SUBGROUP", adapter.subgroup)],
        values: vec![("EDGE", adapter.coop.into())],
        workgroup: 4 * adapter.subgroup,
        grid: [sizes[1].div_ceil(tile as usize), sizes[0].div_ceil(tile as usize)],
        raw: vec![0, 1],
    })
}

fn variant(shader: &'static Shader, whole: &'static [usize]) -> Variant {
    Variant::of(shader, whole, |s, x| shader.apply(&[&x[0], &x[1]], s, x[0].dtype(), &[s[0], s[1]]))
}

fn truth(sizes: &[usize], x: &[Vec<f32>], at: usize) -> Truth {
    let &[_, n, k] = sizes else { return Truth { value: f64::NAN, scale: 0.0 } };
    let (row, column) = (at / n, at % n);
    let terms = (0..k).map(|i| x[0][row * k + i] as f64 * x[1][i * n + column] as f64);
    terms.fold(Truth { value: 0.0, scale: 0.0 }, |t, v| Truth { value: t.value + v, scale: t.scale + v.abs() })
}

fn workload(
    name: &'static str,
    inputs: fn(&[usize], &mut tensorlogic::Rng, &tensorlogic::Device) -> TensorResult<Vec<Tensor>>,
) -> Workload {
    Workload {
        name,
        timed: &[4096, 4096, 4096],
        small: &[96, 128, 64],
        ragged: &[67, 133, 45],
        limit: Limit::Operations(|s| 2 * s[0] * s[1] * s[2]),
        together: 1,
        inputs,
        results: |s| s[0] * s[1],
        truth,
        variants: vec![variant(&PLAIN, &[]), variant(&TILES, &[]), variant(&REGISTERS, &[]), variant(&MORE, &[])],
    }
}

/// Operands and results in f16, sums in f32.
pub fn f16() -> Workload {
    let mut l =
        workload("product f16", |s, r, d| Ok(vec![random(&[s[0], s[2]], DType::F16, r, d)?, random(&[s[2], s[1]], DType::F16, r, d)?]));
    l.variants.extend([variant(&MATRICES, &[1, 8, 8]), Variant::engine(|x| x[0].matmul(&x[1]))]);
    l
}

/// All in f32.
pub fn f32() -> Workload {
    let mut l =
        workload("product f32", |s, r, d| Ok(vec![random(&[s[0], s[2]], DType::F32, r, d)?, random(&[s[2], s[1]], DType::F32, r, d)?]));
    l.variants.push(Variant::engine(|x| x[0].matmul(&x[1])));
    l
}
