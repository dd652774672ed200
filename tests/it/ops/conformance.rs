//! Every operation in every dtype and over every kind of view, on the CPU and on a GPU, against plain loops in f64.

use crate::conformance_support::{Array, Data, LAYOUTS, Layout, check, devices, dtypes, noise};
use tensorlogic::ops::attention::AttentionOptions;
use tensorlogic::ops::pad::PadMode;
use tensorlogic::ops::rope::RopePairs;
use tensorlogic::{DType, Device, Tensor, TensorResult};

type Unary = fn(&Tensor) -> TensorResult<Tensor>;
type Binary = fn(&Tensor, &Tensor) -> TensorResult<Tensor>;

/// Name, method, definition, and the values it is tried on.
type UnaryCase = (&'static str, Unary, fn(f64) -> f64, (f64, f64));

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}
fn round_even(x: f64) -> f64 {
    x.round_ties_even()
}

const UNARY: &[UnaryCase] = &[
    ("neg", |x| x.neg(), |x| -x, (-9.0, 9.0)),
    ("abs", |x| x.abs(), f64::abs, (-9.0, 9.0)),
    ("sign", |x| x.sign(), |x| if x == 0.0 { 0.0 } else { x.signum() }, (-9.0, 9.0)),
    ("sqrt", |x| x.sqrt(), f64::sqrt, (0.0, 90.0)),
    ("rsqrt", |x| x.rsqrt(), |x| 1.0 / x.sqrt(), (1.0, 90.0)),
    ("reciprocal", |x| x.reciprocal(), |x| 1.0 / x, (1.0, 90.0)),
    ("exp", |x| x.exp(), f64::exp, (-9.0, 9.0)),
    ("exp2", |x| x.exp2(), f64::exp2, (-9.0, 9.0)),
    ("expm1", |x| x.expm1(), f64::exp_m1, (-9.0, 9.0)),
    ("log", |x| x.log(), f64::ln, (1.0, 90.0)),
    ("log2", |x| x.log2(), f64::log2, (1.0, 90.0)),
    ("log10", |x| x.log10(), f64::log10, (1.0, 90.0)),
    ("log1p", |x| x.log1p(), f64::ln_1p, (0.0, 90.0)),
    ("sin", |x| x.sin(), f64::sin, (-9.0, 9.0)),
    ("cos", |x| x.cos(), f64::cos, (-9.0, 9.0)),
    ("tan", |x| x.tan(), f64::tan, (-1.2, 1.2)),
    ("asin", |x| x.asin(), f64::asin, (-0.9, 0.9)),
    ("acos", |x| x.acos(), f64::acos, (-0.9, 0.9)),
    ("atan", |x| x.atan(), f64::atan, (-9.0, 9.0)),
    ("sinh", |x| x.sinh(), f64::sinh, (-5.0, 5.0)),
    ("cosh", |x| x.cosh(), f64::cosh, (-5.0, 5.0)),
    ("tanh", |x| x.tanh(), f64::tanh, (-9.0, 9.0)),
    ("asinh", |x| x.asinh(), f64::asinh, (-9.0, 9.0)),
    ("acosh", |x| x.acosh(), f64::acosh, (1.5, 9.0)),
    ("atanh", |x| x.atanh(), f64::atanh, (-0.9, 0.9)),
    ("erf", |x| x.erf(), libm::erf, (-4.0, 4.0)),
    ("sigmoid", |x| x.sigmoid(), sigmoid, (-9.0, 9.0)),
    ("floor", |x| x.floor(), f64::floor, (-9.0, 9.0)),
    ("ceil", |x| x.ceil(), f64::ceil, (-9.0, 9.0)),
    ("round", |x| x.round(), round_even, (-9.0, 9.0)),
    ("trunc", |x| x.trunc(), f64::trunc, (-9.0, 9.0)),
    ("square", |x| x.square(), |x| x * x, (-9.0, 9.0)),
    ("relu", |x| x.relu(), |x| x.max(0.0), (-9.0, 9.0)),
    ("relu6", |x| x.relu6(), |x| x.clamp(0.0, 6.0), (-9.0, 9.0)),
    ("silu", |x| x.silu(), |x| x * sigmoid(x), (-9.0, 9.0)),
    ("gelu", |x| x.gelu(), |x| 0.5 * x * (1.0 + libm::erf(x * 0.5f64.sqrt())), (-4.0, 9.0)),
    (
        "gelu_tanh",
        |x| x.gelu_tanh(),
        |x| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh()),
        (-4.0, 9.0),
    ),
    ("softplus", |x| x.softplus(), |x| x.max(0.0) + (-x.abs()).exp().ln_1p(), (-9.0, 9.0)),
    ("mish", |x| x.mish(), |x| x * x.exp().ln_1p().tanh(), (-9.0, 9.0)),
    ("elu", |x| x.elu(1.5), |x| if x > 0.0 { x } else { 1.5 * x.exp_m1() }, (-9.0, 9.0)),
    ("leaky_relu", |x| x.leaky_relu(0.25), |x| if x > 0.0 { x } else { 0.25 * x }, (-9.0, 9.0)),
    ("hardswish", |x| x.hardswish(), |x| x * (x + 3.0).clamp(0.0, 6.0) / 6.0, (-9.0, 9.0)),
    ("clamp", |x| x.clamp(Some(-2.0), Some(3.0)), |x| x.clamp(-2.0, 3.0), (-9.0, 9.0)),
    ("add 3", |x| x.add(3), |x| x + 3.0, (-9.0, 9.0)),
    ("mul 2.5", |x| x.mul(2.5), |x| x * 2.5, (-9.0, 9.0)),
    ("logical_not", |x| x.logical_not(), |x| f64::from(x == 0.0), (-2.0, 2.0)),
    ("isnan", |x| x.isnan(), |x| f64::from(x.is_nan()), (-2.0, 2.0)),
];

/// Name, method, definition and range of the operands.
type BinaryCase = (&'static str, Binary, fn(f64, f64) -> f64, (f64, f64));

const BINARY: &[BinaryCase] = &[
    ("add", |a, b| a.add(b), |a, b| a + b, (-9.0, 9.0)),
    ("sub", |a, b| a.sub(b), |a, b| a - b, (-9.0, 9.0)),
    ("mul", |a, b| a.mul(b), |a, b| a * b, (-9.0, 9.0)),
    ("div", |a, b| a.div(b), |a, b| a / b, (1.0, 9.0)),
    ("div_trunc", |a, b| a.div_trunc(b), |a, b| (a / b).trunc(), (1.0, 9.0)),
    ("div_floor", |a, b| a.div_floor(b), |a, b| (a / b).floor(), (1.0, 9.0)),
    ("pow", |a, b| a.pow(b), f64::powf, (1.0, 4.0)),
    ("fmod", |a, b| a.fmod(b), |a, b| a % b, (1.0, 9.0)),
    ("minimum", |a, b| a.minimum(b), f64::min, (-9.0, 9.0)),
    ("maximum", |a, b| a.maximum(b), f64::max, (-9.0, 9.0)),
    ("atan2", |a, b| a.atan2(b), f64::atan2, (1.0, 9.0)),
    ("eq", |a, b| a.eq(b), |a, b| f64::from(a == b), (-2.0, 2.0)),
    ("lt", |a, b| a.lt(b), |a, b| f64::from(a < b), (-2.0, 2.0)),
    ("ge", |a, b| a.ge(b), |a, b| f64::from(a >= b), (-2.0, 2.0)),
    ("where", |a, b| a.gt(b)?.where_(a, b), f64::max, (-9.0, 9.0)),
    ("hypot", |a, b| a.hypot(b), f64::hypot, (-9.0, 9.0)),
    ("logaddexp", |a, b| a.logaddexp(b), |a, b| a.max(b) + (-(a - b).abs()).exp().ln_1p(), (-9.0, 9.0)),
];

/// Whether this case is run on this device: a GPU takes each operation over one view, and the first few over all.
fn chosen(device: &Device, op: usize, dtype: usize, layout: usize) -> bool {
    device.is_cpu() || (op + dtype) % LAYOUTS.len() == layout || (op == 0 && dtype == 0)
}

#[test]
fn unary() {
    for device in devices() {
        for (o, (name, method, define, range)) in UNARY.iter().enumerate() {
            for (d, &dtype) in dtypes(&device).iter().enumerate() {
                if !dtype.is_float() && (range.1 < 2.0 || dtype == DType::Bool && *name != "logical_not") {
                    continue;
                }
                for (l, &layout) in LAYOUTS.iter().enumerate().filter(|(l, _)| chosen(&device, o, d, *l)) {
                    let x = Data::new(layout, dtype, &[5, 7], *range, o as u64, &device);
                    let got = method(&x.tensor);
                    check(&format!("{name} {dtype} {layout:?}"), &device, got, x.array.map(define));
                    let _ = l;
                }
            }
        }
    }
}

#[test]
fn binary() {
    for device in devices() {
        for (o, (name, method, define, range)) in BINARY.iter().enumerate() {
            for (d, &dtype) in dtypes(&device).iter().enumerate() {
                // Rounding is not continuous, and powers soon leave small integers.
                let jumps = name.starts_with("div_") || *name == "fmod";
                if dtype == DType::Bool || (jumps && dtype.is_float()) || (*name == "pow" && matches!(dtype, DType::I8 | DType::I16)) {
                    continue;
                }
                for (l, &layout) in LAYOUTS.iter().enumerate().filter(|(l, _)| chosen(&device, o, d, *l)) {
                    let other = LAYOUTS[(l + o) % LAYOUTS.len()];
                    let a = Data::new(layout, dtype, &[5, 7], *range, 2 * o as u64, &device);
                    // The other operand's view is of its own kind where the shapes allow it.
                    let shape = &a.array.shape;
                    let b = if shape == &[5, 7] && other.keeps() {
                        Data::new(other, dtype, &[5, 7], *range, 2 * o as u64 + 1, &device)
                    } else {
                        Data::new(Layout::Contiguous, dtype, &shape[1..], *range, 2 * o as u64 + 1, &device)
                    };
                    check(
                        &format!("{name} {dtype} {layout:?} {other:?}"),
                        &device,
                        method(&a.tensor, &b.tensor),
                        a.array.zip(&b.array, define),
                    );
                }
            }
        }
    }
}

/// Reductions: method over axes, and the definition of one row's result.
type ReduceCase = (&'static str, fn(&Tensor, &[isize]) -> TensorResult<Tensor>, fn(&[f64]) -> f64);

fn mean(x: &[f64]) -> f64 {
    x.iter().sum::<f64>() / x.len() as f64
}
fn largest(x: &[f64]) -> f64 {
    x.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}
fn first(x: &[f64], best: f64) -> f64 {
    x.iter().position(|&v| v == best).unwrap() as f64
}

const REDUCE: &[ReduceCase] = &[
    ("sum", |x, d| x.sum(d, false), |x| x.iter().sum()),
    ("mean", |x, d| x.mean(d, false), mean),
    ("max", |x, d| x.max(d, false), largest),
    ("min", |x, d| x.min(d, false), |x| -largest(&x.iter().map(|v| -v).collect::<Vec<_>>())),
    ("prod", |x, d| x.mul(0.25)?.prod(d, false), |x| x.iter().map(|v| v * 0.25).product()),
    ("argmax", |x, d| x.argmax(d[0]), |x| first(x, largest(x))),
    ("argmin", |x, d| x.argmin(d[0]), |x| first(x, -largest(&x.iter().map(|v| -v).collect::<Vec<_>>()))),
    ("var", |x, d| x.var(d, 1, false), |x| x.iter().map(|v| (v - mean(x)).powi(2)).sum::<f64>() / (x.len() as f64 - 1.0)),
    ("logsumexp", |x, d| x.logsumexp(d, false), |x| x.iter().map(|v| v.exp()).sum::<f64>().ln()),
    ("norm", |x, d| x.norm(2.0, d, false), |x| x.iter().map(|v| v * v).sum::<f64>().sqrt()),
    ("any", |x, d| x.gt(1)?.any(d, false), |x| f64::from(x.iter().any(|&v| v > 1.0))),
    ("all", |x, d| x.lt(1)?.all(d, false), |x| f64::from(x.iter().all(|&v| v < 1.0))),
];

#[test]
fn reductions() {
    let shapes: [(&[usize], &[isize]); 7] = [
        (&[5, 7], &[1]),
        (&[5, 7], &[0]),
        (&[3, 5, 4], &[1]),
        (&[3, 5, 4], &[0, 2]),
        (&[2, 300], &[1]),
        (&[300, 5], &[0]),
        (&[1, 1], &[0]),
    ];
    for device in devices() {
        for (o, (name, method, define)) in REDUCE.iter().enumerate() {
            for (d, &dtype) in dtypes(&device).iter().enumerate() {
                if dtype == DType::Bool {
                    continue;
                }
                for (n, (shape, dims)) in shapes.iter().enumerate() {
                    let one_axis = name.starts_with("arg") || *name == "prod";
                    if (one_axis && (dims.len() > 1 || shape.contains(&300))) || (*name == "var" && shape[0] == 1) {
                        continue;
                    }
                    for (l, &layout) in LAYOUTS.iter().enumerate() {
                        let run = device.is_cpu() || (o + d + n) % LAYOUTS.len() == l;
                        if !run || !layout.keeps() {
                            continue;
                        }
                        let x = Data::new(layout, dtype, shape, (-3.0, 3.0), (o * 7 + n) as u64, &device);
                        let want = x.array.rows(dims, |row| vec![define(row)], false);
                        check(&format!("{name} {dtype} {layout:?} {shape:?} over {dims:?}"), &device, method(&x.tensor, dims), want);
                    }
                }
            }
        }
    }
}

/// Operations that keep the shape and work along the last dimension.
#[test]
fn rows() {
    type Case = (&'static str, Unary, fn(&[f64]) -> Vec<f64>);
    let cases: [Case; 4] = [
        (
            "softmax",
            |x| x.softmax(-1),
            |x| {
                let total: f64 = x.iter().map(|v| v.exp()).sum();
                x.iter().map(|v| v.exp() / total).collect()
            },
        ),
        (
            "log_softmax",
            |x| x.log_softmax(-1),
            |x| {
                let total: f64 = x.iter().map(|v| v.exp()).sum();
                x.iter().map(|v| v - total.ln()).collect()
            },
        ),
        (
            "layer_norm",
            |x| x.layer_norm(None, None, 1e-3),
            |x| {
                let mean = mean(x);
                let variance = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / x.len() as f64;
                x.iter().map(|v| (v - mean) / (variance + 1e-3).sqrt()).collect()
            },
        ),
        (
            "rms_norm",
            |x| x.rms_norm(None, 1e-3),
            |x| {
                let square = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
                x.iter().map(|v| v / (square + 1e-3).sqrt()).collect()
            },
        ),
    ];
    let shapes: [&[usize]; 5] = [&[5, 7], &[3, 2, 4], &[2, 300], &[1, 1], &[3, 1]];
    for device in devices() {
        for (o, (name, method, define)) in cases.iter().enumerate() {
            for (d, &dtype) in dtypes(&device).iter().enumerate() {
                if dtype == DType::Bool {
                    continue;
                }
                for (n, shape) in shapes.iter().enumerate() {
                    for (l, &layout) in LAYOUTS.iter().enumerate() {
                        if !device.is_cpu() && (o + d + n) % LAYOUTS.len() != l {
                            continue;
                        }
                        let x = Data::new(layout, dtype, shape, (-3.0, 3.0), (o * 5 + n) as u64, &device);
                        let want = x.array.rows(&[-1], define, true);
                        check(&format!("{name} {dtype} {layout:?} {shape:?}"), &device, method(&x.tensor), want);
                    }
                }
            }
        }
    }
}

#[test]
fn products() {
    // Shapes of both sides.
    let cases: [(&[usize], &[usize]); 13] = [
        (&[1, 1], &[1, 1]),
        (&[1, 7], &[7, 5]),
        (&[3, 5], &[5, 7]),
        (&[9, 33], &[33, 17]),
        (&[8, 64], &[64, 32]),
        (&[2, 3, 5], &[5, 4]),
        (&[2, 3, 5], &[2, 5, 4]),
        (&[2, 1, 3, 5], &[3, 5, 4]),
        (&[5], &[5, 3]),
        (&[3, 5], &[5]),
        (&[2, 0], &[0, 3]),
        (&[4, 2, 0], &[0, 3]),
        (&[0, 3], &[3, 2]),
    ];
    for device in devices() {
        for (d, &dtype) in dtypes(&device).iter().enumerate() {
            if dtype == DType::Bool || dtype == DType::U8 || dtype == DType::I8 {
                continue;
            }
            for (n, (left, right)) in cases.iter().enumerate() {
                for (l, &layout) in LAYOUTS.iter().enumerate().filter(|(_, l)| l.keeps()) {
                    if !device.is_cpu() && (d + n) % 3 != l % 3 {
                        continue;
                    }
                    let a = Data::new(layout, dtype, left, (-2.0, 2.0), n as u64, &device);
                    let other = LAYOUTS.iter().copied().filter(|l| l.keeps()).cycle().nth(l + n).unwrap();
                    let b = Data::new(other, dtype, right, (-2.0, 2.0), n as u64 + 100, &device);
                    let name = format!("matmul {dtype} {left:?} {layout:?} {right:?} {other:?}");
                    check(&name, &device, a.tensor.matmul(&b.tensor), a.array.matmul(&b.array));
                }
            }
        }
    }
}

/// Operations that move elements, which must come through unchanged.
#[test]
fn moves() {
    for device in devices() {
        for &dtype in &dtypes(&device) {
            for &layout in LAYOUTS.iter().filter(|l| l.keeps()) {
                let x = Data::new(layout, dtype, &[4, 6], (-3.0, 3.0), 3, &device);
                let (t, a) = (&x.tensor, &x.array);
                let name = |op: &str| format!("{op} {dtype} {layout:?}");
                check(&name("contiguous"), &device, t.contiguous(), a.clone());
                check(&name("permute, reshape"), &device, t.t().and_then(|t| t.reshape(&[3, 8])), a.permute(&[1, 0]).reshape(&[3, 8]));
                check(&name("flip"), &device, t.flip(0), a.pick(0, &[3, 2, 1, 0]));
                check(&name("slice"), &device, t.slice(1, 1, 6, 2), a.pick(1, &[1, 3, 5]));
                check(&name("expand"), &device, t.unsqueeze(1).and_then(|t| t.expand(&[4, 2, 6])), a.reshape(&[4, 1, 6]).pick(1, &[0, 0]));
                check(&name("cat"), &device, Tensor::cat(&[t, &t.narrow(0, 1, 2).unwrap()], 0), a.pick(0, &[0, 1, 2, 3, 1, 2]));
                check(&name("cat columns"), &device, Tensor::cat(&[t, t], 1), a.pick(1, &[0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]));
                check(&name("tile"), &device, t.tile(&[2, 1]), a.pick(0, &[0, 1, 2, 3, 0, 1, 2, 3]));
                check(&name("roll"), &device, t.roll(2, 1), a.pick(1, &[4, 5, 0, 1, 2, 3]));
                check(&name("unfold"), &device, t.unfold(1, 2, 4), a.pick(1, &[0, 1, 4, 5]).reshape(&[4, 2, 2]));
                check(&name("write"), &device, t.write(&t.narrow(1, 0, 2).unwrap(), 1, 3), a.pick(1, &[0, 1, 2, 0, 1, 5]));
                let index = Tensor::from_vec(vec![3i32, 0, 0], &[3], &device).unwrap();
                check(&name("index_select"), &device, t.index_select(0, &index), a.pick(0, &[3, 0, 0]));
                check(&name("index_select columns"), &device, t.index_select(1, &index), a.pick(1, &[3, 0, 0]));
                check(&name("embedding"), &device, t.embedding(&index), a.pick(0, &[3, 0, 0]));
                check(&name("tril"), &device, t.tril(1), a.index_map(|i, v| if i[1] <= i[0] + 1 { v } else { 0.0 }));
            }
        }
    }
}

/// What stands beside a window stays as it is, for windows of every length and place, in results and in values that only other steps read.
#[test]
fn windows_keep_to_themselves() {
    for device in devices() {
        for &dtype in &dtypes(&device) {
            for n in 1..=9 {
                for (before, after) in [(0, 1), (0, 2), (0, 3), (0, 5), (1, 0), (1, 2), (4, 1)] {
                    check_windows(&device, dtype, n, before, after);
                }
            }
        }
    }
}

/// A window of `n` elements behind `before` and before `after` others, by each operation that makes one.
fn check_windows(device: &Device, dtype: DType, n: usize, before: usize, after: usize) {
    let total = before + n + after;
    let name = |op: &str| format!("{op} of {n} elements after {before} and before {after}, {dtype}");
    let new = |n: usize, seed: usize| Data::new(Layout::Contiguous, dtype, &[1, n], (1.0, 3.0), seed as u64, device);
    let (x, whole) = (new(n, 1), new(total, 2));
    let margin = [(0, 0), (before as isize, after as isize)];
    let inside = |c: usize| (before..before + n).contains(&c);
    let padded = Array::from_fn(&[1, total], |i| if inside(i[1]) { x.array.at(&[0, i[1] - before]) } else { 1.0 });
    // Read again by another step, the window lies in memory that several values share.
    let again = |t: TensorResult<Tensor>| t.and_then(|t| t.flip(1)?.contiguous()?.flip(1));
    let pad = || x.tensor.pad(&margin, PadMode::Constant(1.0));
    check(&name("pad"), device, pad(), padded.clone());
    check(&name("pad, read again"), device, again(pad().and_then(|t| t.cumsum(0))), padded);
    let written = Array::from_fn(&[1, total], |i| if inside(i[1]) { x.array.at(&[0, i[1] - before]) } else { whole.array.at(i) });
    let write = || whole.tensor.contiguous()?.write(&x.tensor, 1, before);
    check(&name("write"), device, write(), written.clone());
    check(&name("write, read again"), device, again(write().and_then(|t| t.cumsum(0))), written.clone());
    let cat = || Tensor::cat(&[&whole.tensor.narrow(1, 0, before)?, &x.tensor, &whole.tensor.narrow(1, before + n, after)?], 1);
    check(&name("cat"), device, cat(), written.clone());
    check(&name("cat, read again"), device, again(cat().and_then(|t| t.cumsum(0))), written);
}

/// Every dtype into every other.
#[test]
fn casts() {
    for device in devices() {
        for &from in &dtypes(&device) {
            for &to in &dtypes(&device) {
                for &layout in LAYOUTS {
                    if !device.is_cpu() && layout != Layout::Stepped && layout != Layout::Contiguous {
                        continue;
                    }
                    // Negative numbers do not fit unsigned types: what becomes of them is not defined.
                    let low = if matches!(to, DType::U8 | DType::U16 | DType::U64) { 0.0 } else { -9.0 };
                    let x = Data::new(layout, from, &[5, 7], (low, 9.0), 5, &device);
                    let convert = |v: f64| match to {
                        DType::Bool => f64::from(v != 0.0),
                        t if t.is_int() => v.trunc(),
                        _ => v,
                    };
                    check(&format!("cast {from} to {to} {layout:?}"), &device, x.tensor.cast(to), x.array.map(convert));
                }
            }
        }
    }
}

#[test]
fn attention_and_rope() {
    for device in devices() {
        for &dtype in dtypes(&device).iter().filter(|d| d.is_float()) {
            for (heads, kv_heads, queries, keys, causal) in [
                (4, 2, 3, 5, true),
                (2, 2, 1, 7, false),
                (3, 1, 4, 4, true),
                (1, 1, 9, 33, true),
                (4, 2, 70, 77, true),
                (2, 1, 33, 40, false),
            ] {
                let (dim, out) = (8, 8);
                let q = Data::new(Layout::Transposed, dtype, &[2, heads, queries, dim], (-2.0, 2.0), 1, &device);
                let k = Data::new(Layout::Stepped, dtype, &[2, kv_heads, keys, dim], (-2.0, 2.0), 2, &device);
                let v = Data::new(Layout::Contiguous, dtype, &[2, kv_heads, keys, out], (-2.0, 2.0), 3, &device);
                let want = Array::from_fn(&[2, heads, queries, out], |i| {
                    let kv = i[1] / (heads / kv_heads);
                    let seen = if causal { keys - queries + i[2] + 1 } else { keys };
                    let score = |j: usize| {
                        (0..dim).map(|e| q.array.at(&[i[0], i[1], i[2], e]) * k.array.at(&[i[0], kv, j, e])).sum::<f64>()
                            / (dim as f64).sqrt()
                    };
                    let weights: Vec<f64> = (0..seen).map(|j| score(j).exp()).collect();
                    let total: f64 = weights.iter().sum();
                    weights.iter().enumerate().map(|(j, w)| w / total * v.array.at(&[i[0], kv, j, i[3]])).sum()
                });
                let options = AttentionOptions { causal, ..Default::default() };
                let got = q.tensor.attention(&k.tensor, &v.tensor, None, &options);
                check(&format!("attention {dtype} {heads}:{kv_heads} {queries}·{keys}"), &device, got, want);
            }
            for (pairs, partner) in
                [(RopePairs::Adjacent, (|i, _| i ^ 1) as fn(usize, usize) -> usize), (RopePairs::Halves, |i, d| (i + d / 2) % d)]
            {
                let x = Data::new(Layout::Stepped, dtype, &[2, 3, 8], (-2.0, 2.0), 4, &device);
                let cos = Data::new(Layout::Contiguous, dtype, &[3, 8], (-1.0, 1.0), 5, &device);
                let sin = Data::new(Layout::Transposed, dtype, &[3, 8], (-1.0, 1.0), 6, &device);
                let want = Array::from_fn(&[2, 3, 8], |i| {
                    let at = |e: usize| x.array.at(&[i[0], i[1], e]);
                    at(i[2]) * cos.array.at(&i[1..]) + at(partner(i[2], 8)) * sin.array.at(&i[1..])
                });
                check(&format!("rope {dtype} {pairs:?}"), &device, x.tensor.rope(&cos.tensor, &sin.tensor, pairs), want);
            }
        }
    }
}

/// The uniform draw is of one sequence everywhere, and flat.
#[test]
fn random_numbers_are_the_same_everywhere() {
    let draw = |device: &Device| tensorlogic::Rng::new(7).uniform(&[1000], DType::F32, device).unwrap().to_vec().unwrap();
    let expect = draw(&Device::cpu());
    assert!((expect.iter().sum::<f32>() / 1000.0 - 0.5).abs() < 0.05 && expect.iter().all(|v| (0.0..1.0).contains(v)));
    for device in devices() {
        assert_eq!(draw(&device), expect, "{}", device.name());
    }
    let _ = noise(1, 1);
}
