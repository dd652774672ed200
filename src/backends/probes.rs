//! Finds what a driver does otherwise than most, by small plans whose results are known.

use super::codegen::DriverQuirks;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::layout::Layout;
use crate::plan::{Buf, Input, Kernel, Load, Output, Plan, Source, Step, Store, Work};
use crate::scalar::{Binary, Inst, Prim, Program, Unary};
use crate::shape::Shape;
use std::sync::Arc;

/// Runs a plan over these values under these assumptions; gives what it wrote.
pub(super) type RunPlan<'r> = &'r dyn Fn(&Arc<Plan>, &[f32], DriverQuirks) -> TensorResult<Vec<half::f16>>;

/// The quirks of the driver behind `run`.
///
/// # Errors
/// Those of `run`.
pub(super) fn quirks(run: RunPlan<'_>) -> TensorResult<DriverQuirks> {
    let soft_f16 = !rounds_f16(run, DriverQuirks::default())?;
    // With these set, shaders have the forms that are tried out.
    let tried = DriverQuirks { soft_f16, ordered: true, infinite: true, few_bindings: false };
    let [ordered, infinite] = keeps_nan(run, tried)?;
    Ok(DriverQuirks { ordered, infinite, ..tried })
}

/// As [`quirks`], where kernels that are written for what was found give right results: arithmetic that is wrong in every form is no quirk.
///
/// # Errors
/// [`TensorError::UnsupportedDevice`] where they do not; those of `run`.
#[cfg_attr(not(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal))), allow(dead_code))]
pub(super) fn sound_quirks(run: RunPlan<'_>) -> TensorResult<DriverQuirks> {
    let found = quirks(run)?;
    match !found.soft_f16 || rounds_f16(run, found)? {
        true => Ok(found),
        false => Err(TensorError::UnsupportedDevice("values are wrong when they are rounded to f16, in every form that was tried".into())),
    }
}

/// Whether the device packs f16 as IEEE says: nearest, halves to even, overflow to infinity, subnormals kept. WGSL promises none of it.
pub(super) fn rounds_f16(run: RunPlan<'_>, assumed: DriverQuirks) -> TensorResult<bool> {
    let values = [
        1.0,
        -1.000_488_3,
        1.001_464_8,
        65504.0,
        65519.0,
        65520.0,
        1e9,
        6.1e-5,
        3.0e-6,
        5.9e-8,
        -2.0e-8,
        0.333_333_34f32,
        2049.0,
        2051.0,
        -0.0,
        f32::INFINITY,
    ];
    let got = run(&map_to_f16(values.len(), Program::identity(DType::F32)), &values, assumed)?;
    Ok(values.iter().zip(got).all(|(v, g)| half::f16::from_f32(*v).to_bits() == g.to_bits()))
}

/// Whether the short forms of min and max, and those of tanh and sigmoid, give what they should for NaN and infinities. WGSL lets compilers
/// assume that there are none: NVIDIA's makes a minimum of a comparison, but leaves exp and divisions alone.
fn keeps_nan(run: RunPlan<'_>, tried: DriverQuirks) -> TensorResult<[bool; 2]> {
    let values = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e38, -1e38, 50.0, -50.0, 0.5, -0.5, -f32::NAN, 0.0, 3.0];
    let lit = |v: f64| Inst { op: Prim::Lit(v.to_bits()), args: [0; 3], dtype: DType::F32 };
    let inst = |op, args| Inst { op, args, dtype: DType::F32 };
    let mut limits = Program::identity(DType::F32);
    limits.insts.extend([lit(-2.0), inst(Prim::Binary(Binary::Max), [0, 1, 0]), lit(2.0), inst(Prim::Binary(Binary::Min), [2, 3, 0])]);
    let mut curves = Program::identity(DType::F32);
    let unary = |op, of| inst(Prim::Unary(op), [of, 0, 0]);
    let binary = |op, a, b| inst(Prim::Binary(op), [a, b, 0]);
    // tanh(x) + sigmoid(x) + sigmoid(2x), of which the last has a form of its own.
    curves.insts.extend([unary(Unary::Tanh, 0), unary(Unary::Sigmoid, 0), lit(2.0), binary(Binary::Mul, 0, 3), unary(Unary::Sigmoid, 4)]);
    curves.insts.extend([binary(Binary::Add, 1, 2), binary(Binary::Add, 6, 5)]);
    fn sigmoid(v: f32) -> f32 {
        1.0 / (1.0 + (-v).exp())
    }
    let sum = |v: f32| v.tanh() + sigmoid(v) + sigmoid(2.0 * v);
    let same = |got: Vec<half::f16>, f: fn(f32) -> f32| {
        got.iter().zip(values).all(|(g, v)| if v.is_nan() { g.is_nan() } else { (g.to_f32() - f(v)).abs() < 1e-3 })
    };
    let of = |program| run(&map_to_f16(values.len(), program), &values, tried);
    Ok([same(of(limits)?, |v| v.clamp(-2.0, 2.0)), same(of(curves)?, sum)])
}

/// A program over so many f32 values, rounded to f16.
fn map_to_f16(count: usize, program: Program) -> Arc<Plan> {
    to_f16(count, Work::Map, vec![], program, vec![values(Buf::Input(0), DType::F32, count)])
}

/// A kernel over so many f32 values, whose results, as many, are rounded to f16.
#[cfg_attr(not(feature = "gpu"), allow(dead_code))]
pub(super) fn kernel_to_f16(count: usize, kernel: Arc<dyn Kernel>) -> Arc<Plan> {
    let sources = vec![values(Buf::Input(0), DType::F32, count)];
    let load = Load { shape: Shape::of(&[count]), program: Program::identity(DType::F32), sources };
    to_f16(count, Work::Kernel(kernel), vec![load], Program::value(DType::F32), vec![])
}

/// All values of a buffer.
fn values(buf: Buf, dtype: DType, count: usize) -> Source {
    Source { buf, dtype, layout: Layout::contiguous(Shape::of(&[count])), offset: None, aligned: true }
}

/// A step from one buffer of f32 to one of f16, as many values; `program` and `sources` are those of what it stores.
fn to_f16(count: usize, work: Work, loads: Vec<Load>, program: Program, sources: Vec<Source>) -> Arc<Plan> {
    let store = Store { shape: Shape::of(&[count]), program, sources, target: values(Buf::Output(0), DType::F16, count) };
    let step = Step { name: "check", at: std::panic::Location::caller(), work, loads, stores: vec![store], params: vec![] };
    Arc::new(Plan {
        steps: vec![step],
        inputs: vec![Input { dtype: DType::F32, written: false }],
        outputs: vec![Output { dtype: DType::F16, bytes: 2 * count }],
        slots: vec![],
        params: 0,
        memory: Default::default(),
    })
}
