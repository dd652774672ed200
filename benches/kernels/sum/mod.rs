//! The sum of one long row of f16.

use super::workload::{Form, Limit, Shader, Truth, Variant, Workload, random, shader, sizes};
use tensorlogic::shader::params::Field;
use tensorlogic::{DType, Tensor, TensorResult};

/// What the templates read as `p.NAME`.
const SIZES: &[Field] = &sizes(["elements", "parts"]);

static STRETCHES: Shader =
    shader!("1_stretches", SIZES, |_, s| Ok(Form { workgroup: 64, grid: [s[1].div_ceil(64), 1], ..Form::default() }));
static NEIGHBOURS: Shader =
    shader!("2_neighbours", SIZES, |_, s| Ok(Form { workgroup: 64, grid: [s[1].div_ceil(64), 1], ..Form::default() }));
static TREE: Shader = shader!("3_tree", SIZES, |_, s| Ok(Form { workgroup: 256, grid: [s[1], 1], ..Form::default() }));
static PREFETCH: Shader = shader!("4_prefetch", SIZES, |_, s| Ok(Form { workgroup: 256, grid: [s[1], 1], ..Form::default() }));
static ONCE: Shader = shader!("5_once", SIZES, |_, s| Ok(Form { workgroup: 256, grid: [s[1], 1], ..Form::default() }));

/// Workgroups of 256 threads with at least 16 elements a thread, no more than a GPU has room for.
fn groups(n: usize) -> usize {
    n.div_ceil(4096).min(1024)
}

/// `parts` sums of the elements of a row.
fn parts(shader: &'static Shader, x: &Tensor, parts: usize) -> TensorResult<Tensor> {
    shader.apply(&[x], &[x.numel(), parts], DType::F32, &[parts])
}

/// Sums of sums until one is left, in a dispatch each.
fn until_one(shader: &'static Shader, x: &Tensor, next: fn(usize) -> usize) -> TensorResult<Tensor> {
    let mut x = parts(shader, x, next(x.numel()))?;
    while x.numel() > 1 {
        x = parts(shader, &x, next(x.numel()))?;
    }
    Ok(x)
}

pub fn workload() -> Workload {
    Workload {
        name: "sum of a row of f16",
        timed: &[64 << 20],
        small: &[1 << 15],
        ragged: &[70_003],
        limit: Limit::Copy(|s| 2 * s[0]),
        together: 2,
        // Their mean is not 0, so that there is something to be found; their sum is an f16.
        inputs: |s, r, d| Ok(vec![random(s, DType::F32, r, d)?.add(1.0 / 2048.0)?.cast(DType::F16)?]),
        results: |_| 1,
        truth: |_, x, _| {
            let (value, scale) = x[0].iter().fold((0.0, 0.0), |(v, s), x| (v + *x as f64, s + x.abs() as f64));
            Truth { value, scale }
        },
        variants: vec![
            Variant::of(&STRETCHES, &[], |_, x| until_one(&STRETCHES, &x[0], |n| n.div_ceil(256))).everywhere(),
            Variant::of(&NEIGHBOURS, &[], |_, x| until_one(&NEIGHBOURS, &x[0], |n| n.div_ceil(256).min(1 << 16))).everywhere(),
            Variant::of(&TREE, &[], |_, x| until_one(&TREE, &x[0], groups)).everywhere(),
            Variant::of(&PREFETCH, &[4], |_, x| {
                let own = parts(&PREFETCH, &x[0], groups(x[0].numel()))?;
                if own.numel() > 1 { parts(&TREE, &own, 1) } else { Ok(own) }
            })
            .everywhere(),
            Variant::of(&ONCE, &[4], |s, x| ONCE.apply(&[&x[0]], &[s[0], groups(s[0])], DType::F32, &[1])).everywhere(),
            Variant::engine(|x| x[0].sum_all()?.reshape(&[1])),
        ],
    }
}
