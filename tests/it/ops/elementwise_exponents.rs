//! Elementwise functions of f32 at every exponent, on every device, against f64: within the bounds that the guide states.

use crate::common::devices;
use tensorlogic::ops::custom::CustomOp;
use tensorlogic::scalar::{Binary, Unary};
use tensorlogic::{DType, Device, Tensor, TensorResult};

/// What a bound counts in last places of, besides those of the result.
#[derive(Clone, Copy, PartialEq)]
enum Of {
    /// The result alone.
    Result,
    /// The argument, or the larger of two, where that is larger than the result.
    Argument,
    /// The result; a factor of it may be subnormal, which costs |x| times the smallest normal f32 (on a CPU, the smallest subnormal one).
    Product,
    /// As `Product`, and the bound grows by 1 + |2u|, as the exponential of the rounded 2u does; 2u = 1.5958·x·(1 + 0.044715·x²).
    Tanh,
    /// The result; an argument's half may be subnormal, which costs twice the smallest normal f32.
    Half,
    /// The largest of the result and the terms of a sum, whose halves may be subnormal, which costs twice the smallest normal f32.
    Terms,
    /// The larger argument, and the result times 1 + |a − b|, as the exponential of the rounded difference is.
    Difference,
}

impl Of {
    /// The guide's words.
    fn words(self) -> &'static str {
        match self {
            Of::Result => "",
            Of::Argument => "of the larger of result and arguments",
            Of::Product => "± \\|x\\|·2⁻¹²⁶",
            Of::Tanh => "times 1 + \\|2u\\|, ± \\|x\\|·2⁻¹²⁶",
            Of::Half => "± 2⁻¹²⁵",
            Of::Terms => "of the largest of result and terms, ± 2⁻¹²⁵",
            Of::Difference => "times 1 + \\|a − b\\|, or of the larger argument, ± 2⁻¹²⁵",
        }
    }
}

/// A function of one argument: its meaning in f64 and its bounds on a CPU and on a GPU.
struct One {
    name: &'static str,
    f: fn(&Tensor) -> TensorResult<Tensor>,
    want: fn(f64) -> f64,
    ulps: [f64; 2],
    of: Of,
}

/// A function of two arguments.
struct Two {
    name: &'static str,
    f: fn(&Tensor, &Tensor) -> TensorResult<Tensor>,
    want: fn(f64, f64) -> f64,
    ulps: [f64; 2],
    of: Of,
}

/// A function of three arguments, with the terms of its sum.
struct Three {
    name: &'static str,
    f: fn(&Tensor, &Tensor, &Tensor) -> TensorResult<Tensor>,
    want: fn(f64, f64, f64) -> f64,
    terms: fn(&[f64]) -> f64,
    ulps: [f64; 2],
    of: Of,
}

fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

fn sigmoid(x: f64) -> f64 {
    let e = (-x.abs()).exp();
    (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)
}

/// 2u of gelu's tanh form.
fn twice_u(x: f64) -> f64 {
    2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)
}

const SELU: [f64; 2] = [1.0507009873554804934193349852946, 1.6732632423543772848170429916717];

macro_rules! rows {
    ($t:ident: $($name:literal, |$($x:ident),+| $f:expr, |$($v:ident),+| $want:expr, $cpu:literal, $gpu:literal, $of:ident;)*) => {
        vec![$($t { name: $name, f: |$($x),+| $f, want: |$($v),+| $want, ulps: [$cpu, $gpu], of: Of::$of }),*]
    };
}

/// The functions of one argument.
fn ones() -> Vec<One> {
    rows! { One:
        "neg", |x| x.neg(), |x| -x, 0.0, 0.0, Result;
        "abs", |x| x.abs(), |x| x.abs(), 0.0, 0.0, Result;
        "sign", |x| x.sign(), |x| if x == 0.0 || x.is_nan() { 0.0 } else { x.signum() }, 0.0, 0.0, Result;
        "floor", |x| x.floor(), |x| x.floor(), 0.0, 0.0, Result;
        "ceil", |x| x.ceil(), |x| x.ceil(), 0.0, 0.0, Result;
        "round", |x| x.round(), |x| x.round_ties_even(), 0.0, 0.0, Result;
        "trunc", |x| x.trunc(), |x| x.trunc(), 0.0, 0.0, Result;
        "frac", |x| x.frac(), |x| x.fract(), 0.0, 0.0, Result;
        "relu", |x| x.relu(), |x| if x < 0.0 { 0.0 } else { x }, 0.0, 0.0, Result;
        "relu6", |x| x.relu6(), |x| x.clamp(0.0, 6.0), 0.0, 0.0, Result;
        "hardtanh", |x| x.hardtanh(-1.0, 1.0), |x| x.clamp(-1.0, 1.0), 0.0, 0.0, Result;
        "hardshrink", |x| x.hardshrink(0.5), |x| if x.abs() <= 0.5 { 0.0 } else { x }, 0.0, 0.0, Result;
        "threshold", |x| x.threshold(0.5, -2.0), |x| if x <= 0.5 { -2.0 } else { x }, 0.0, 0.0, Result;
        "softshrink", |x| x.softshrink(0.5), |x| x - x.clamp(-0.5, 0.5), 0.5, 0.5, Result;
        "square", |x| x.square(), |x| x * x, 0.5, 0.5, Result;
        "leaky_relu", |x| x.leaky_relu(0.01), |x| if x > 0.0 { x } else { x * 0.01f32 as f64 }, 0.5, 0.5, Result;
        "sqrt", |x| x.sqrt(), |x| x.sqrt(), 0.5, 5.0, Result;
        "rsqrt", |x| x.rsqrt(), |x| x.sqrt().recip(), 1.5, 2.5, Result;
        "reciprocal", |x| x.reciprocal(), |x| x.recip(), 0.5, 2.5, Result;
        "exp", |x| x.exp(), |x| x.exp(), 1.5, 2.0, Result;
        "exp2", |x| x.exp2(), |x| x.exp2(), 2.0, 2.0, Result;
        "expm1", |x| x.expm1(), |x| x.exp_m1(), 3.0, 4.0, Result;
        "log", |x| x.log(), |x| x.ln(), 2.0, 3.0, Result;
        "log2", |x| x.log2(), |x| x.log2(), 3.0, 4.0, Result;
        "log10", |x| x.log10(), |x| x.log10(), 3.0, 4.0, Result;
        "log1p", |x| x.log1p(), |x| x.ln_1p(), 3.0, 4.0, Result;
        "sin", |x| x.sin(), |x| x.sin(), 2.0, 2.0, Result;
        "cos", |x| x.cos(), |x| x.cos(), 2.0, 2.0, Result;
        "tan", |x| x.tan(), |x| x.tan(), 2.0, 8.0, Result;
        "asin", |x| x.asin(), |x| x.asin(), 2.0, 5.0, Result;
        "acos", |x| x.acos(), |x| x.acos(), 2.0, 5.0, Result;
        "atan", |x| x.atan(), |x| x.atan(), 2.0, 5.0, Result;
        "sinh", |x| x.sinh(), |x| x.sinh(), 2.0, 6.0, Result;
        "cosh", |x| x.cosh(), |x| x.cosh(), 2.0, 6.0, Result;
        "tanh", |x| x.tanh(), |x| x.tanh(), 3.0, 5.0, Result;
        "asinh", |x| x.asinh(), |x| libm::asinh(x), 0.51, 6.0, Result;
        "acosh", |x| x.acosh(), |x| if x < 1.0 { f64::NAN } else { libm::acosh(x) }, 0.51, 8.0, Result;
        "atanh", |x| x.atanh(), |x| libm::atanh(x), 0.51, 6.0, Result;
        "erf", |x| x.erf(), |x| libm::erf(x), 3.0, 5.0, Result;
        "sigmoid", |x| x.sigmoid(), |x| sigmoid(x), 3.0, 6.0, Result;
        "elu", |x| x.elu(1.0), |x| if x > 0.0 { x } else { x.exp_m1() }, 3.0, 4.0, Result;
        "celu", |x| x.celu(2.0), |x| if x > 0.0 { x } else { 2.0 * (x / 2.0).exp_m1() }, 3.0, 4.0, Half;
        "selu", |x| x.selu(), |x| SELU[0] * if x > 0.0 { x } else { SELU[1] * x.exp_m1() }, 4.0, 6.0, Result;
        "softplus", |x| x.softplus(), |x| softplus(x), 3.0, 6.0, Result;
        "softplus_with", |x| x.softplus_with(2.0, 20.0), |x| if 2.0 * x > 20.0 { x } else { softplus(2.0 * x) / 2.0 }, 3.0, 6.0, Result;
        "log_sigmoid", |x| x.log_sigmoid(), |x| -softplus(-x), 3.0, 6.0, Result;
        "softsign", |x| x.softsign(), |x| x / (1.0 + x.abs()), 1.5, 3.5, Result;
        "hardsigmoid", |x| x.hardsigmoid(), |x| (x + 3.0).clamp(0.0, 6.0) / 6.0, 1.5, 3.5, Result;
        "hardswish", |x| x.hardswish(), |x| x * (x + 3.0).clamp(0.0, 6.0) / 6.0, 2.0, 4.0, Product;
        "silu", |x| x.silu(), |x| x * sigmoid(x), 4.0, 7.0, Product;
        "mish", |x| x.mish(), |x| x * softplus(x).tanh(), 6.0, 12.0, Product;
        "gelu", |x| x.gelu(), |x| 0.5 * x * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2), 3.0, 4.0, Argument;
        "gelu_tanh", |x| x.gelu_tanh(), |x| x * sigmoid(twice_u(x)), 4.0, 7.0, Tanh;
        "clamp", |x| x.clamp(Some(-0.5), Some(3.0)), |x| x.clamp(-0.5, 3.0), 0.0, 0.0, Result;
        "nan_to_num", |x| x.nan_to_num(0.5, Some(7.0), None), |x| if x.is_nan() { 0.5 } else if x == f64::INFINITY { 7.0 } else { x.max(-f64::from(f32::MAX)) }, 0.0, 0.0, Result;
        "erfc", |x| x.erfc(), |x| libm::erfc(x), 3.0, 5.0, Argument;
    }
}

/// The functions of two arguments.
fn twos() -> Vec<Two> {
    rows! { Two:
        "add", |a, b| a.add(b), |a, b| a + b, 0.5, 0.5, Result;
        "sub", |a, b| a.sub(b), |a, b| a - b, 0.5, 0.5, Result;
        "mul", |a, b| a.mul(b), |a, b| a * b, 0.5, 0.5, Result;
        "div", |a, b| a.div(b), |a, b| a / b, 0.5, 2.5, Result;
        "minimum", |a, b| a.minimum(b), |a, b| a.min(b), 0.0, 0.0, Result;
        "maximum", |a, b| a.maximum(b), |a, b| a.max(b), 0.0, 0.0, Result;
        "fmin", |a, b| a.fmin(b), |a, b| a.min(b), 0.0, 0.0, Result;
        "fmax", |a, b| a.fmax(b), |a, b| a.max(b), 0.0, 0.0, Result;
        "copysign", |a, b| a.copysign(b), |a, b| a.copysign(b), 0.0, 0.0, Result;
        "nextafter", |a, b| a.nextafter(b), |a, b| libm::nextafterf(a as f32, b as f32).into(), 0.0, 0.0, Result;
        "fmod", |a, b| a.fmod(b), |a, b| a % b, 0.0, 0.0, Result;
        "remainder", |a, b| a.remainder(b), |a, b| { let r = a % b; if r != 0.0 && (r < 0.0) != (b < 0.0) { r + b } else { r } }, 0.5, 0.5, Result;
        "pow", |a, b| a.pow(b), |a, b| a.powf(b), 1.0, 16.0, Result;
        "atan2", |a, b| a.atan2(b), |a, b| a.atan2(b), 2.0, 10.0, Result;
        "hypot", |a, b| a.hypot(b), |a, b| libm::hypot(a, b), 2.0, 5.0, Result;
        "xlogy", |a, b| a.xlogy(b), |a, b| a * b.ln(), 3.0, 4.0, Result;
        "logaddexp", |a, b| a.logaddexp(b), |a, b| a.max(b) + (-(a - b).abs()).exp().ln_1p(), 3.0, 6.0, Difference;
        "prelu", |a, b| slopes(a, b)?.reshape(&[-1]), |a, b| if a > 0.0 { a } else { a * b }, 0.5, 0.5, Result;
        "where_", |a, b| a.gt(b)?.where_(a, b), |a, b| if a > b { a } else { b }, 0.0, 0.0, Result;
        "masked_fill", |a, b| a.masked_fill(&b.gt(0.0)?, 2.5), |a, b| if b > 0.0 { 2.5 } else { a }, 0.0, 0.0, Result;
        "fused_add_relu", |a, b| a.fused_add_relu(b), |a, b| if a + b < 0.0 { 0.0 } else { a + b }, 0.5, 0.5, Result;
        "fused_mul_relu", |a, b| a.fused_mul_relu(b), |a, b| if a * b < 0.0 { 0.0 } else { a * b }, 0.5, 0.5, Result;
        "glu", |a, b| Tensor::cat(&[a, b], 0)?.glu(0), |a, b| a * sigmoid(b), 4.0, 7.0, Product;
    }
}

/// `prelu` of `a`, each element with the slope of `b` at its place.
fn slopes(a: &Tensor, b: &Tensor) -> TensorResult<Tensor> {
    a.reshape(&[1, -1])?.prelu(b)
}

/// The functions of three arguments.
fn threes() -> Vec<Three> {
    macro_rules! rows {
        ($($name:literal, |$x:ident, $a:ident, $b:ident| $f:expr, $want:expr, $terms:expr, $cpu:literal, $gpu:literal, $of:ident;)*) => {
            vec![$(Three { name: $name, f: |$x, $a, $b| $f, want: $want, terms: $terms, ulps: [$cpu, $gpu], of: Of::$of }),*]
        };
    }
    let one: fn(&[f64]) -> f64 = |v| v[0];
    rows! {
        "clamp_tensors", |x, a, b| x.clamp_tensors(Some(a), Some(b)), |x, a, b| x.max(a).min(b), one, 0.0, 0.0, Result;
        "lerp", |x, a, b| x.lerp(a, b), |x, a, w| if w.abs() < 0.5 { x + w * (a - x) } else { a - (1.0 - w) * (a - x) }, |v| v[0].abs().max(v[1].abs()), 3.0, 3.0, Terms;
        "addcmul", |x, a, b| x.addcmul(a, b, 0.7), |x, a, b| x + f64::from(0.7f32) * a * b, one, 3.0, 3.0, Terms;
        "addcmul", |x, a, b| x.addcmul(a, b, -3e-20), |x, a, b| x + f64::from(-3e-20f32) * a * b, one, 3.0, 3.0, Terms;
        "addcmul", |x, a, b| x.addcmul(a, b, 5e20), |x, a, b| x + f64::from(5e20f32) * a * b, one, 3.0, 3.0, Terms;
        "addcdiv", |x, a, b| x.addcdiv(a, b, 0.7), |x, a, b| x + f64::from(0.7f32) * a / b, one, 3.0, 6.0, Terms;
        "addcdiv", |x, a, b| x.addcdiv(a, b, -3e-20), |x, a, b| x + f64::from(-3e-20f32) * a / b, one, 3.0, 6.0, Terms;
        "addcdiv", |x, a, b| x.addcdiv(a, b, 5e20), |x, a, b| x + f64::from(5e20f32) * a / b, one, 3.0, 6.0, Terms;
    }
}

/// The distance of f32 numbers near `v`.
fn last_place(v: f64) -> f64 {
    let v = v.abs().clamp(f32::MIN_POSITIVE as f64, f32::MAX as f64);
    2f64.powi((v.to_bits() >> 52) as i32 - 1023 - 23)
}

/// How many last places a result is away from the bound's 0, and how many were allowed.
struct Verdict {
    right: bool,
    ulps: f64,
}

/// Judges one result by the guide's rules.
fn judge(args: &[f64], got: f32, want: f64, ulps: f64, of: Of, gpu: bool) -> Verdict {
    let smallest = if gpu { f32::MIN_POSITIVE as f64 } else { 2f64.powi(-149) };
    let largest = args.iter().fold(0f64, |m, a| m.max(a.abs()));
    let (unit, more) = match of {
        Of::Result => (last_place(want), 0.0),
        Of::Argument => (last_place(want).max(last_place(largest)), 0.0),
        Of::Product => (last_place(want), largest * smallest),
        Of::Tanh => (last_place(want) * (1.0 + twice_u(args[0]).abs()), largest * smallest),
        Of::Difference => ((last_place(want) * (1.0 + (args[0] - args[1]).abs())).max(last_place(args[0].max(args[1]))), 2.0 * smallest),
        Of::Half => (last_place(want), 2.0 * smallest),
        // The only argument is the largest term.
        Of::Terms => (last_place(want).max(last_place(args[0])), 2.0 * smallest),
    };
    // The halves of the bounds are those of rounding, which the reference's own rounding may exceed by this much.
    let bound = ulps * unit * (1.0 + 1e-6) + more;
    let got64 = f64::from(got);
    let far = |right| Verdict { right, ulps: 0.0 };
    if want.is_nan() || got.is_nan() {
        return far(want.is_nan() && got.is_nan());
    }
    if got64 == want {
        return far(true);
    }
    // From here on an f32 rounds to infinity.
    let end = 2f64.powi(128) - 2f64.powi(103);
    if got.is_infinite() {
        return far(want.abs() + bound >= end && (got > 0.0) == (want > 0.0));
    }
    if want.abs() - bound >= end {
        return far(false);
    }
    // A result that may be subnormal may be 0 on a GPU.
    if gpu && want.abs() - bound < f32::MIN_POSITIVE as f64 && (got == 0.0 || got64.abs() <= f32::MIN_POSITIVE as f64) {
        return far(got == 0.0 || (got64 - want).abs() <= f32::MIN_POSITIVE as f64);
    }
    let error = (got64 - want).abs();
    Verdict { right: error <= bound, ulps: (error - more).max(0.0) / unit }
}

/// Judges results and reports the worst of them.
struct Check<'a> {
    name: &'a str,
    device: &'a Device,
    ulps: [f64; 2],
    of: Of,
}

impl Check<'_> {
    /// The largest error, or the first few results beyond the bound.
    fn run(&self, args: &[Vec<f32>], got: &[f32], want: &dyn Fn(&[f64]) -> f64) -> Result<f64, String> {
        let gpu = !self.device.is_cpu();
        let (mut worst, mut wrong, mut count) = (0f64, String::new(), 0);
        for (i, &got) in got.iter().enumerate() {
            let x: Vec<f64> = args.iter().map(|a| f64::from(a[i])).collect();
            // NaN and infinities are judged on CPUs alone, as WGSL leaves them open.
            if gpu && x.iter().any(|x| !x.is_finite()) {
                continue;
            }
            let flushed = || x.iter().map(|x| if x.abs() < f32::MIN_POSITIVE as f64 { 0f64.copysign(*x) } else { *x }).collect::<Vec<_>>();
            let judged = |x: &[f64]| judge(x, got, want(x), self.ulps[usize::from(gpu)], self.of, gpu);
            let subnormal = gpu && x.iter().any(|x| *x != 0.0 && x.abs() < f32::MIN_POSITIVE as f64);
            let mut verdict = judged(&x);
            if subnormal && !verdict.right {
                // A GPU may take subnormal arguments as 0, of either sign.
                let zero = flushed();
                verdict = judged(&zero);
                verdict.right |= zero.len() == 1 && judged(&[-zero[0]]).right;
                // What becomes of a zero divisor, of whose sign nothing is left, is not promised.
                verdict.right |= zero.contains(&0.0) && zero.len() == 2;
            }
            if verdict.right {
                worst = worst.max(verdict.ulps);
                continue;
            }
            count += 1;
            if count <= 3 {
                wrong += &format!("\n    {}{x:?}: {got:e}, not {:e} ({:.2} last places)", self.name, want(&x), verdict.ulps);
            }
        }
        if std::env::var("TL_TEST_VERBOSE").is_ok() {
            println!("{} on {}: at most {worst:.2}", self.name, if gpu { "GPU" } else { "CPU" });
        }
        if count == 0 { Ok(worst) } else { Err(format!("{} on {}: {count} of {}{wrong}", self.name, self.device.name(), got.len())) }
    }
}

/// A few bits of `n`, well mixed (Steele et al., 2014).
fn mix(n: u64) -> u64 {
    let n = n.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let n = (n ^ n >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let n = (n ^ n >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    n ^ n >> 31
}

/// Mantissas at the ends and in the middle of their range.
const MANTISSAS: [u32; 10] = [0, 1, 2, 0x3F_FFFF, 0x40_0000, 0x40_0001, 0x35_04F3, 0x49_0FDB, 0x7F_FFFE, 0x7F_FFFF];

/// Numbers of every exponent and both signs, `more` mantissas of each beside those of the list.
fn every_exponent(more: u64) -> Vec<f32> {
    let mut out = Vec::new();
    for upper in 0..512u32 {
        let drawn = (0..more).map(|n| mix(u64::from(upper) << 32 | n) as u32 & 0x7F_FFFF);
        out.extend(MANTISSAS.into_iter().chain(drawn).map(|m| f32::from_bits(upper << 23 | m)));
    }
    out
}

#[test]
fn functions_of_one_argument() {
    let x = every_exponent(54);
    let mut wrong = Vec::new();
    for device in devices() {
        let t = Tensor::from_vec(x.clone(), &[x.len()], &device).unwrap();
        for One { name, f, want, ulps, of } in ones() {
            let got = f(&t).unwrap().to_vec().unwrap();
            wrong.extend(Check { name, device: &device, ulps, of }.run(std::slice::from_ref(&x), &got, &|a| want(a[0])).err());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Every function under a sine and a tangent, in one kernel of bf16: these branch for large arguments, and a driver's compiler once lost the
/// argument there.
#[test]
fn functions_of_functions_in_bf16() {
    let x: Vec<f32> = (-8..8).map(|i| i as f32 * 0.171875 + 0.0859375).collect();
    let outer = ones().into_iter().filter(|g| ["sin", "tan"].contains(&g.name)).collect::<Vec<_>>();
    // What rounding the argument and the result may change, relative to each.
    let round = 2f64.powi(-7);
    for device in devices() {
        let t = Tensor::from_vec(x.clone(), &[x.len()], &device).unwrap().cast(DType::BF16).unwrap();
        let rounded = t.to_vec().unwrap();
        for (f, g) in ones().iter().flat_map(|f| outer.iter().map(move |g| (f, g))) {
            let got = (g.f)(&(f.f)(&t).unwrap()).unwrap().to_vec().unwrap();
            for (&x, &got) in rounded.iter().zip(&got) {
                let inner = (f.want)(x as f64);
                let want = (g.want)(inner);
                // Behind a pole of the tangent anything is right, and NaN stays NaN.
                let step = round * inner.abs().max(0.25);
                let slope = [inner - step, inner + step].map(|v| ((g.want)(v) - want).abs());
                let bound = slope[0].max(slope[1]) + round * want.abs() + 1e-3;
                let near = if want.is_finite() { bound > 1.0 || (got as f64 - want).abs() <= bound } else { got.is_nan() };
                assert!(near, "{}({}({x})) is {got}, not {want} (within {bound:.1e}), on {device:?}", g.name, f.name);
            }
        }
    }
}

/// Pairs of all exponents with all, of both signs; for powers also those whose result is a normal number.
fn pairs(name: &str) -> [Vec<f32>; 2] {
    let (mut a, mut b) = (Vec::new(), Vec::new());
    let draw = |n: u64| {
        let h = mix(n);
        let listed = MANTISSAS[(h >> 40) as usize % MANTISSAS.len()];
        if h >> 63 == 0 { listed } else { h as u32 & 0x7F_FFFF }
    };
    for upper in 0..512u32 {
        for other in 0..512u32 {
            let n = u64::from(upper << 9 | other);
            a.push(f32::from_bits(upper << 23 | draw(2 * n)));
            b.push(f32::from_bits(other << 23 | draw(2 * n + 1)));
        }
    }
    if name == "pow" {
        for x in every_exponent(6).into_iter().filter(|x| x.is_normal() && *x > 0.0) {
            for t in -8..9 {
                a.push(x);
                b.push((f64::from(t) * 15.9 / f64::from(x).log2()) as f32);
            }
        }
    }
    [a, b]
}

#[test]
fn functions_of_two_arguments() {
    let mut wrong = Vec::new();
    for device in devices() {
        for Two { name, f, want, ulps, of } in twos() {
            let [a, b] = pairs(name);
            let of_rust = |v: &[f32]| Tensor::from_vec(v.to_vec(), &[v.len()], &device).unwrap();
            let got = f(&of_rust(&a), &of_rust(&b)).unwrap().to_vec().unwrap();
            let keeps_numbers = matches!(name, "fmin" | "fmax");
            let meaning = move |x: &[f64]| {
                let (a, b) = (x[0], x[1]);
                match name {
                    // Rust's take the number where the other is NaN.
                    "minimum" | "maximum" | "hypot" | "logaddexp" | "prelu" if !keeps_numbers && (a.is_nan() || b.is_nan()) => {
                        special(name, a, b)
                    }
                    "logaddexp" if a == b && a.is_infinite() => a,
                    "xlogy" if a == 0.0 && !b.is_nan() => 0.0,
                    _ => want(a, b),
                }
            };
            wrong.extend(Check { name, device: &device, ulps, of }.run(&[a, b], &got, &meaning).err());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Triples: two of all pairs of exponents and signs, and one of any exponent, or one near the negative of what it is added to.
fn triples(three: &Three) -> [Vec<f32>; 3] {
    let [mut a, mut b] = pairs("");
    let mut x: Vec<f32> = (0..a.len() as u64).map(|n| f32::from_bits(mix(n << 20) as u32)).collect();
    let others = |v: &[f32]| v.iter().copied().skip(3).step_by(5).collect::<Vec<f32>>();
    let (more_a, more_b) = (others(&a), others(&b));
    for (n, (&a, &b)) in more_a.iter().zip(&more_b).enumerate() {
        let part = 0.5 + (mix(n as u64) >> 40) as f64 / (1u64 << 24) as f64;
        x.push(-((three.want)(0.0, a.into(), b.into()) * part).clamp(-f64::from(f32::MAX), f64::from(f32::MAX)) as f32);
    }
    a.extend(more_a);
    b.extend(more_b);
    [x, a, b]
}

#[test]
fn functions_of_three_arguments() {
    let mut wrong = Vec::new();
    for device in devices() {
        for three in threes() {
            let args = triples(&three);
            let [x, a, b] = args.each_ref().map(|v| Tensor::from_vec(v.clone(), &[v.len()], &device).unwrap());
            let got = (three.f)(&x, &a, &b).unwrap().to_vec().unwrap();
            let Three { name, want, terms, ulps, of, .. } = three;
            let gpu = !device.is_cpu();
            let (mut count, mut said) = (0, String::new());
            for (i, &got) in got.iter().enumerate() {
                let v = args.each_ref().map(|a| f64::from(a[i]));
                // What the issue of range is about: finite, normal arguments. Others are those of the steps.
                if !v.iter().all(|v| (*v as f32).is_normal()) {
                    continue;
                }
                let want = want(v[0], v[1], v[2]);
                let largest = terms(&v).abs().max((want - v[0]).abs());
                if !judge(&[largest], got, want, ulps[usize::from(gpu)], of, gpu).right {
                    count += 1;
                    if count <= 3 {
                        said += &format!("\n    {name}{v:?}: {got:e}, not {want:e}");
                    }
                }
            }
            if count > 0 {
                wrong.push(format!("{name} on {}: {count} of {}{said}", device.name(), got.len()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What functions that Rust defines otherwise give where an argument is NaN.
fn special(name: &str, a: f64, b: f64) -> f64 {
    match name {
        // An infinite side is infinitely long, whatever the other is (C99).
        "hypot" if a.is_infinite() || b.is_infinite() => f64::INFINITY,
        // The weight does not matter where x is positive.
        "prelu" if a > 0.0 => a,
        _ => f64::NAN,
    }
}

/// Divisors that are numbers rather than tensors: parameters of a plan, which a driver may invert once for all elements.
#[test]
fn divisors_that_are_numbers() {
    let x = every_exponent(6);
    let mut wrong = Vec::new();
    for device in devices() {
        let t = Tensor::from_vec(x.clone(), &[x.len()], &device).unwrap();
        for y in every_exponent(0).into_iter().step_by(37).filter(|y| y.is_normal()) {
            let got = t.div(y).unwrap().to_vec().unwrap();
            let check = Check { name: "div", device: &device, ulps: [0.5, 2.5], of: Of::Result };
            wrong.extend(check.run(std::slice::from_ref(&x), &got, &|a| a[0] / f64::from(y)).err());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Division by a driver that multiplies with a reciprocal and takes subnormal numbers as 0, which WGSL allows.
const RECIPROCAL_DRIVER: &str = "
fn normal_or_zero(x: f32) -> f32 {
  return select(x, 0.0, (bitcast<u32>(x) & 0x7f800000u) == 0u);
}
fn quotient(a: f32, b: f32) -> f32 {
  return normal_or_zero(a * normal_or_zero(1.0 / b));
}
";

/// The shader's own division, its `/` replaced by that of such a driver: all pairs of exponents are within the bound, where the bare
/// quotient gives 0 for 1.
#[test]
fn division_by_drivers_that_multiply_with_reciprocals() {
    let shader = include_str!("../../../src/backends/codegen/prelude.wgsl");
    let start = shader.find("fn tl_div(").expect("the prelude divides");
    let function = &shader[start..start + shader[start..].find("\n}").unwrap() + 2];
    let replaced = function.replace("fn tl_div(", "fn careful(").replace("(a / d)", "quotient(a, d)");
    assert!(replaced.contains("quotient(a, d)") && !replaced.contains(" / "), "{replaced}");
    let op = |name: &'static str, body: String| -> &'static CustomOp {
        Box::leak(Box::new(CustomOp::elementwise(name).wgsl(Box::leak(body.into_boxed_str()))))
    };
    let careful = op("careful", format!("{RECIPROCAL_DRIVER}{replaced}\n"));
    let bare = op("bare", format!("{RECIPROCAL_DRIVER}fn bare(a: f32, b: f32) -> f32 {{\n  return quotient(a, b);\n}}\n"));
    for device in devices().iter().filter(|d| !d.is_cpu()) {
        let [a, b] = pairs("div");
        let tensor = |v: &[f32]| Tensor::from_vec(v.to_vec(), &[v.len()], device).unwrap();
        let (x, y) = (tensor(&a), tensor(&b));
        let check = Check { name: "div", device, ulps: [0.5, 2.5], of: Of::Result };
        let got = |op: &CustomOp| op.apply(&[&x, &y], &[]).unwrap().to_vec().unwrap();
        let judged = |got: &[f32]| check.run(&[a.clone(), b.clone()], got, &|v| v[0] / v[1]);
        assert!(judged(&got(bare)).is_err(), "the driver divides well by itself");
        judged(&got(careful)).unwrap();
    }
}

/// Methods beside the elementwise ones that have no bound of their own, and why.
const WITHOUT_ROW: [(&str, &str); 11] = [
    ("cast", "rounds to nearest; tested by its own vectors"),
    ("contiguous", "changes no value"),
    ("isfinite", "gives truth values"),
    ("logical_and", "gives truth values"),
    ("logical_or", "gives truth values"),
    ("logical_xor", "gives truth values"),
    ("div_trunc", "the guide: rounds the rounded quotient"),
    ("div_floor", "the guide: rounds the rounded quotient"),
    ("fused_affine", "the guide: a product and a sum, each with its own bound and range"),
    ("apply", "an activation's own row"),
    ("matmul_with_activation", "a product and an activation's own row"),
];

/// The guide's table is this file's, and no primitive of floats is without a row.
#[test]
fn the_guides_bounds_are_these() {
    let number = |u: f64| if u == 0.0 { "exact".into() } else { format!("{u}") };
    let (ones, twos, mut threes) = (ones(), twos(), threes());
    // A function of several numbers has several rows.
    threes.dedup_by_key(|t| t.name);
    let rows = ones.iter().map(|o| (o.name, o.ulps, o.of)).chain(twos.iter().map(|t| (t.name, t.ulps, t.of)));
    let rows = rows.chain(threes.iter().map(|t| (t.name, t.ulps, t.of)));
    let mut groups: Vec<(Vec<&str>, [f64; 2], Of)> = Vec::new();
    for (name, ulps, of) in rows {
        match groups.iter_mut().find(|g| g.1 == ulps && g.2 == of) {
            Some(g) => g.0.push(name),
            None => groups.push((vec![name], ulps, of)),
        }
    }
    let mut table = String::from("| | CPU | GPU | |\n|---|---|---|---|");
    for (names, [cpu, gpu], of) in groups {
        let names: Vec<_> = names.into_iter().map(|n| format!("`{n}`")).collect();
        table += &format!("\n| {} | {} | {} | {} |", names.join(", "), number(cpu), number(gpu), of.words());
    }
    let page = include_str!("../../../docs/guide/4-precision.md");
    assert!(page.contains(&table), "docs/guide/4-precision.md lacks this table:\n{table}");
    let named: Vec<_> = ones.iter().map(|o| o.name).chain(twos.iter().map(|t| t.name)).chain(threes.iter().map(|t| t.name)).collect();
    // Those that give truth values are not rounded.
    let unary = Unary::ALL.iter().filter(|u| u.takes_float() && u.result(DType::F32) == DType::F32).map(|u| u.name());
    let binary = Binary::ALL.iter().filter(|b| !b.bits() && !b.compares()).map(|b| b.name());
    let missing: Vec<_> = unary.chain(binary).filter(|n| !named.contains(n)).collect();
    assert!(missing.is_empty(), "no row for {missing:?}");
    let composite = [
        include_str!("../../../src/ops/arithmetic.rs"),
        include_str!("../../../src/ops/activation.rs"),
        include_str!("../../../src/ops/elementwise.rs"),
        include_str!("../../../src/ops/fused.rs"),
    ];
    let defined = composite.iter().flat_map(|file| file.lines()).filter_map(|line| line.strip_prefix("    pub fn "));
    let defined = defined.map(|rest| &rest[..rest.find(['(', '<']).unwrap()]);
    let missing: Vec<_> = defined.filter(|n| !named.contains(n) && !WITHOUT_ROW.iter().any(|w| w.0 == *n)).collect();
    assert!(missing.is_empty(), "no row for {missing:?}");
}
