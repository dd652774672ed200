//! Scalar programs as WGSL functions.

use super::options::CodegenOptions;
use super::uniforms::{UniformWord, Uniforms};
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::scalar::{Binary, Inst, Prim, Program, Unary};
use std::f64::consts::LOG2_E;
use std::fmt::Write;

/// The WGSL type that values of a dtype are computed in.
pub(super) fn lane(d: DType) -> TensorResult<&'static str> {
    match d.compute() {
        DType::F32 => Ok("f32"),
        DType::I32 => Ok("i32"),
        DType::U32 => Ok("u32"),
        _ => Err(TensorError::Unsupported(format!("{d} on a GPU; cast it to f32 or i32, or use the cpu"))),
    }
}

/// The function that packs two floats into f16 halves of a word.
pub(super) fn pack_f16(soft: bool) -> &'static str {
    if soft { "tl_pack_soft" } else { "tl_pack_hard" }
}

/// A float as WGSL. Infinities, NaN and subnormals are given by their bits, which WGSL refuses in constants.
pub(super) fn float(v: f32) -> String {
    if v.is_normal() || v.to_bits() == 0 { format!("({v:?}f)") } else { format!("tl_bits({}u)", v.to_bits()) }
}

fn literal(v: f64, d: DType) -> TensorResult<String> {
    Ok(match lane(d)? {
        "f32" => float(v as f32),
        "i32" => format!("i32({})", super::uniforms::param_bits(v, d) as i32),
        _ => format!("{}u", super::uniforms::param_bits(v, d)),
    })
}

/// Replaces the arguments `a` and `b` in a primitive's expression.
fn fill(source: &str, a: &str, b: &str) -> String {
    let mut out = String::with_capacity(source.len() + 16);
    let mut name = String::new();
    for c in source.chars().chain(['\0']) {
        if c.is_ascii_alphanumeric() || c == '_' {
            name.push(c);
            continue;
        }
        match name.as_str() {
            "a" => out.push_str(a),
            "b" => out.push_str(b),
            other => out.push_str(other),
        }
        name.clear();
        if c != '\0' {
            out.push(c);
        }
    }
    out
}

/// `x` of dtype `from` converted to dtype `to`, rounded to it.
pub(super) fn cast(x: &str, from: DType, to: DType) -> TensorResult<String> {
    let f = lane(from)?;
    let float = || if f == "f32" { x.to_string() } else { format!("f32({x})") };
    let int = || match f {
        "f32" => format!("tl_i32({x})"),
        "u32" => format!("bitcast<i32>({x})"),
        _ => x.to_string(),
    };
    Ok(match to {
        DType::F16 if from == DType::F16 => x.to_string(),
        // Not by packing and unpacking: NVIDIA's compiler takes the two for nothing, and the rounding with them.
        DType::F16 => format!("tl_round_f16({})", float()),
        DType::BF16 => format!("tl_round_bf16({})", float()),
        DType::I32 => int(),
        DType::U32 if f == "f32" => format!("tl_u32({x})"),
        DType::U32 if f == "i32" => format!("bitcast<u32>({x})"),
        DType::U32 => x.to_string(),
        DType::I8 | DType::U8 => wrap(&int(), to),
        DType::Bool if f == "f32" => format!("tl_true({x})"),
        DType::Bool if f == "i32" => format!("u32({x} != 0)"),
        DType::Bool => format!("u32({x} != 0u)"),
        _ => {
            lane(to)?;
            float()
        }
    })
}

/// An integer result brought back to the width of its dtype.
fn wrap(x: &str, d: DType) -> String {
    match d {
        DType::I8 => format!("((({x}) << 24u) >> 24u)"),
        DType::U8 => format!("(({x}) & 255)"),
        DType::Bool => format!("u32(({x}) != 0u)"),
        _ => x.to_string(),
    }
}

fn unary(op: Unary, a: &str, d: DType, CodegenOptions { quick, quirks, .. }: CodegenOptions<'_>) -> TensorResult<String> {
    let t = lane(d)?;
    if t == "f32" {
        return Ok(match op {
            Unary::Exp | Unary::Log | Unary::Log2 if quick => format!("{}({a})", op.name()),
            Unary::Tanh | Unary::Sigmoid if quick && quirks.infinite => format!("tl_{}_plain({a})", op.name()),
            _ if quick && op.has_quick_form() => format!("tl_{}_quick({a})", op.name()),
            Unary::IsNan | Unary::IsInf => format!("u32({})", fill(op.wgsl(), a, "")),
            Unary::LogicalNot => format!("(1u - tl_true({a}))"),
            Unary::Sign
            | Unary::Exp
            | Unary::Exp2
            | Unary::Log
            | Unary::Log2
            | Unary::Log10
            | Unary::Sin
            | Unary::Cos
            | Unary::Tan
            | Unary::Asin
            | Unary::Acos
            | Unary::Atan
            | Unary::Sqrt => {
                format!("tl_{}({a})", op.name())
            }
            _ => fill(op.wgsl(), a, ""),
        });
    }
    let signed = t == "i32";
    let out = match op {
        Unary::Neg if signed => format!("(0 - {a})"),
        Unary::Neg => format!("(0u - {a})"),
        Unary::Abs | Unary::Sign if signed => format!("{}({a})", op.name()),
        Unary::Sign => format!("min({a}, 1u)"),
        Unary::LogicalNot => return Ok(format!("u32({a} == {t}(0))")),
        Unary::IsNan | Unary::IsInf => return Ok("0u".into()),
        Unary::BitNot if d == DType::Bool => format!("(1u - {a})"),
        Unary::BitNot => format!("~({a})"),
        Unary::Abs | Unary::Floor | Unary::Ceil | Unary::Round | Unary::Trunc => a.to_string(),
        _ => return Err(TensorError::Unsupported(format!("{} of {d} on a GPU; cast it to f32 first", op.name()))),
    };
    Ok(wrap(&out, d))
}

fn binary(op: Binary, a: &str, b: &str, d: DType, number: [bool; 2], (ordered, param): (bool, bool)) -> TensorResult<String> {
    let t = lane(d)?;
    if op.compares() {
        // Drivers compare for "ordered and different": a NaN must be different from everything.
        return Ok(if op == Binary::Ne { format!("u32(!({a} == {b}))") } else { format!("u32({})", fill(op.wgsl(), a, b)) });
    }
    if t == "f32" {
        // An argument that is a literal need not be tested for NaN.
        let (call, than) = match op {
            Binary::Min => ("min", ">"),
            Binary::Max => ("max", "<"),
            Binary::Div => return Ok(format!("tl_div({a}, {b})")),
            _ => return Ok(fill(op.wgsl(), a, b)),
        };
        return Ok(match number {
            // Where comparisons with NaN are false, one comparison does.
            [_, true] if ordered => format!("select({a}, {b}, {a} {than} {b})"),
            [true, _] if ordered => format!("select({b}, {a}, {b} {than} {a})"),
            // The second argument is tested for NaN: preferably a parameter, which is the same for all elements.
            _ if ordered && param => format!("select({b}, {a}, {b} {than} {a} || tl_isnan({a}))"),
            _ if ordered => format!("select({a}, {b}, {a} {than} {b} || tl_isnan({b}))"),
            [_, true] => format!("select({call}({a}, {b}), {a}, tl_isnan({a}))"),
            [true, _] => format!("select({call}({a}, {b}), {b}, tl_isnan({b}))"),
            _ => fill(op.wgsl(), a, b),
        });
    }
    let s = &t[..1];
    let out = match op {
        Binary::Min => format!("min({a}, {b})"),
        Binary::Max => format!("max({a}, {b})"),
        Binary::Div => format!("tl_div_{s}({a}, {b})"),
        Binary::Pow => format!("tl_pow_{s}({a}, {b})"),
        Binary::Fmod => format!("tl_fmod_{s}({a}, {b})"),
        // Unsigned remainders have one sign.
        Binary::Remainder if s == "u" => format!("tl_fmod_u({a}, {b})"),
        Binary::Remainder => format!("tl_remainder_i({a}, {b})"),
        Binary::Shl => format!("tl_shl_{s}({a}, {b})"),
        Binary::Shr => format!("tl_shr_{s}({a}, {b})"),
        op if op.float_only() => {
            return Err(TensorError::Unsupported(format!("{} of {d} on a GPU; cast it to f32 first", op.name())));
        }
        _ => fill(op.wgsl(), a, b),
    };
    Ok(wrap(&out, d))
}

/// Whether this is a literal whose reciprocal is a normal f32.
fn plain_divisor(op: Prim) -> bool {
    matches!(op, Prim::Lit(v) if (2f64.powi(-126)..=2f64.powi(126)).contains(&f64::from_bits(v).abs()))
}

/// The program as a function `name(v, w, s0, s1, …)` of the kernel's value (where it has one), its partner (where it reads it) and its sources.
pub(super) fn function(
    p: &Program,
    name: &str,
    value: Option<DType>,
    sources: &[DType],
    meta: &mut Uniforms,
    style: CodegenOptions<'_>,
) -> TensorResult<String> {
    let mut args = Vec::new();
    if let Some(v) = value {
        args.push(format!("v: {}", lane(v)?));
        if p.has(Prim::SwapPair) {
            args.push(format!("w: {}", lane(v)?));
        }
    }
    for (n, d) in sources.iter().enumerate() {
        args.push(format!("s{n}: {}", lane(*d)?));
    }
    let mut body = String::new();
    for (n, i) in p.insts.iter().enumerate() {
        let arg = |k: usize| format!("r{}", i.args[k]);
        let of = |k: usize| p.insts[i.args[k] as usize].dtype;
        let number = |k: usize| matches!(p.insts[i.args[k] as usize].op, Prim::Lit(b) if !f64::from_bits(b).is_nan());
        let bad = || TensorError::Internal(format!("a program of {name} reads a source that it does not have"));
        let x = match i.op {
            Prim::Source(k) => cast_lane(&format!("s{k}"), *sources.get(k as usize).ok_or_else(bad)?, i.dtype)?,
            Prim::Value => cast_lane("v", value.ok_or_else(bad)?, i.dtype)?,
            Prim::SwapPair => cast_lane("w", value.ok_or_else(bad)?, i.dtype)?,
            Prim::Param(k) => {
                lane(i.dtype)?;
                meta.push(UniformWord::Param(k, i.dtype), &format!("scalar_{k}"))
            }
            Prim::Lit(b) => literal(f64::from_bits(b), i.dtype)?,
            Prim::Unary(Unary::Sigmoid) if style.quick && style.quirks.infinite => match scaled(p, i.args[0] as usize, -LOG2_E, 4) {
                Some(power) => format!("tl_sigmoid_of_power({power})"),
                None => unary(Unary::Sigmoid, &arg(0), of(0), style)?,
            },
            Prim::Unary(u) => unary(u, &arg(0), of(0), style)?,
            // A result is as wide as its own dtype says: bool and small integers may meet wider ones of the same compute type.
            // A number that no device's reciprocal takes out of the normal range.
            Prim::Binary(Binary::Div) if lane(i.dtype)? == "f32" && plain_divisor(p.insts[i.args[1] as usize].op) => {
                fill(Binary::Div.wgsl(), &arg(0), &arg(1))
            }
            Prim::Binary(b) => {
                let d = if b.compares() { of(0) } else { i.dtype };
                let param = matches!(p.insts[i.args[0] as usize].op, Prim::Param(_));
                binary(b, &arg(0), &arg(1), d, [number(0), number(1)], (style.quirks.ordered, param))?
            }
            Prim::Where => format!("select({}, {}, {} != 0u)", arg(2), arg(1), arg(0)),
            Prim::Cast => cast(&arg(0), of(0), i.dtype)?,
            Prim::Philox => format!("tl_philox({}, {}, {})", arg(0), arg(1), arg(2)),
        };
        let _ = writeln!(body, "  let r{n} = {x};");
    }
    let last = p.insts.len() - 1;
    Ok(format!("fn {name}({}) -> {} {{\n{body}  return r{last};\n}}\n", args.join(", "), lane(p.dtype())?))
}

/// Instruction `n` times a factor, where the factor goes into numbers that the instruction adds up or multiplies by.
fn scaled(p: &Program, n: usize, factor: f64, depth: u32) -> Option<String> {
    let Inst { op, args: [a, b, _], dtype } = p.insts[n];
    let of = |k: u16| scaled(p, k as usize, factor, depth.checked_sub(1)?);
    match op {
        _ if dtype.compute() != DType::F32 => None,
        Prim::Lit(v) => Some(f64::from_bits(v) * factor).filter(|v| (*v as f32).is_finite()).and_then(|v| literal(v, dtype).ok()),
        Prim::Binary(Binary::Mul) => of(a).map(|x| format!("({x} * r{b})")).or_else(|| Some(format!("(r{a} * {})", of(b)?))),
        Prim::Binary(Binary::Add) => Some(format!("({} + {})", of(a)?, of(b)?)),
        _ => None,
    }
}

/// A value passed on as another dtype of the same compute type, or converted without rounding.
pub(super) fn cast_lane(x: &str, from: DType, to: DType) -> TensorResult<String> {
    if lane(from)? == lane(to)? { Ok(x.to_string()) } else { cast(x, from, to) }
}
