//! Elementwise operations.

use super::graph::{Call, Kind, Pick, broadcast};
use super::ops::{List, away, away_from_wholes, bounded, bounded_text, bounds};
use crate::conformance_support::Array;
use tensorlogic::{DType, Tensor, TensorResult};

type Guard = Option<(f64, f64)>;

fn guarded(x: &Tensor, guard: Guard) -> TensorResult<Tensor> {
    guard.map_or_else(|| Ok(x.clone()), |(half, middle)| x.tanh()?.mul(half)?.add(middle))
}

fn guarded_array(x: &Array, guard: Guard) -> Array {
    guard.map_or_else(|| x.clone(), |(half, middle)| x.map(|v| v.tanh() * half + middle))
}

/// Where a function jumps or bends.
#[derive(Clone, Copy)]
enum Breaks {
    Nowhere,
    At(&'static [f64]),
    Wholes,
    Halves,
}

impl Breaks {
    fn clear(self, p: &Pick, x: usize, guard: Guard) -> bool {
        let mut v = p.of(x).clone();
        v.array = guarded_array(&v.array, guard);
        v.error *= guard.map_or(1.0, |g| g.0.max(1.0));
        match self {
            Breaks::Nowhere => true,
            Breaks::At(points) => away(&v, points),
            Breaks::Wholes => away_from_wholes(&v, 1.0),
            Breaks::Halves => away_from_wholes(&v, 2.0),
        }
    }
}

type One = fn(&Tensor) -> TensorResult<Tensor>;

/// A function of one float.
fn unary(l: &mut List, name: &'static str, call: One, f: fn(f64) -> f64, (low, high): (f64, f64), breaks: Breaks) {
    l.add(name, move |p| {
        let (x, guard) = bounded(p, low, high)?;
        breaks.clear(p, x, guard).then(|| {
            let c = Call::new(format!("{}.{name}()", bounded_text(0, guard)), &[x], move |t| call(&guarded(&t[0], guard)?));
            c.reference(move |a| guarded_array(&a[0], guard).map(f))
        })
    });
}

/// Numbers that functions take.
const NUMBERS: [f64; 4] = [0.25, 0.5, 1.0, 2.0];

/// A function of one float and numbers, one of which is `{n}` in its settings.
fn with_number(
    l: &mut List,
    name: &'static str,
    settings: &'static str,
    f: fn(f64, f64) -> f64,
    breaks: fn(f64) -> Vec<f64>,
    call: fn(&Tensor, f64) -> TensorResult<Tensor>,
) {
    l.add(name, move |p| {
        let (x, guard) = bounded(p, -8.0, 8.0)?;
        let n = NUMBERS[p.below(NUMBERS.len())];
        let mut v = p.of(x).clone();
        v.array = guarded_array(&v.array, guard);
        v.error *= guard.map_or(1.0, |g| g.0.max(1.0));
        away(&v, &breaks(n)).then(|| {
            let text = format!("{}.{name}({})", bounded_text(0, guard), settings.replace("{n}", &format!("{n:?}")));
            Call::new(text, &[x], move |t| call(&guarded(&t[0], guard)?, n))
                .reference(move |a| guarded_array(&a[0], guard).map(|v| f(v, n)))
        })
    });
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}
fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}
fn sign(x: f64) -> f64 {
    if x == 0.0 { x } else { x.signum() }
}
fn elu(x: f64, alpha: f64) -> f64 {
    if x > 0.0 { x } else { alpha * x.exp_m1() }
}

const ALL: (f64, f64) = (-8.0, 8.0);
const ZERO: Breaks = Breaks::At(&[0.0]);

macro_rules! unaries {
    ($l:expr; $($name:ident, $f:expr, $range:expr, $breaks:expr;)*) => { $(unary($l, stringify!($name), |x| x.$name(), $f, $range, $breaks);)* };
}

pub fn list(l: &mut List) {
    functions(l);
    activations(l);
    activations_with_numbers(l);
    binary(l);
    ternary(l);
    integers(l);
    truth(l);
    types(l);
}

fn functions(l: &mut List) {
    use Breaks::{Halves, Nowhere, Wholes};
    unaries! { l;
        neg, |x| -x, ALL, Nowhere;
        abs, f64::abs, ALL, ZERO;
        sign, sign, ALL, ZERO;
        sqrt, f64::sqrt, (0.2, 9.0), Nowhere;
        rsqrt, |x| 1.0 / x.sqrt(), (0.2, 9.0), Nowhere;
        reciprocal, |x| 1.0 / x, (0.3, 5.0), Nowhere;
        exp, f64::exp, (-4.0, 2.0), Nowhere;
        exp2, f64::exp2, (-4.0, 3.0), Nowhere;
        expm1, f64::exp_m1, (-4.0, 2.0), Nowhere;
        log, f64::ln, (0.2, 9.0), Nowhere;
        log2, f64::log2, (0.2, 9.0), Nowhere;
        log10, f64::log10, (0.2, 9.0), Nowhere;
        log1p, f64::ln_1p, (-0.6, 9.0), Nowhere;
        sin, f64::sin, ALL, Nowhere;
        cos, f64::cos, ALL, Nowhere;
        tan, f64::tan, (-1.2, 1.2), Nowhere;
        asin, f64::asin, (-0.9, 0.9), Nowhere;
        acos, f64::acos, (-0.9, 0.9), Nowhere;
        atan, f64::atan, ALL, Nowhere;
        sinh, f64::sinh, (-3.0, 3.0), Nowhere;
        cosh, f64::cosh, (-3.0, 3.0), Nowhere;
        tanh, f64::tanh, ALL, Nowhere;
        asinh, f64::asinh, ALL, Nowhere;
        acosh, f64::acosh, (1.2, 9.0), Nowhere;
        atanh, f64::atanh, (-0.8, 0.8), Nowhere;
        erf, libm::erf, (-3.0, 3.0), Nowhere;
        erfc, libm::erfc, (-3.0, 2.0), Nowhere;
        sigmoid, sigmoid, ALL, Nowhere;
        floor, f64::floor, ALL, Wholes;
        ceil, f64::ceil, ALL, Wholes;
        round, f64::round_ties_even, ALL, Halves;
        trunc, f64::trunc, ALL, Wholes;
        frac, f64::fract, ALL, Wholes;
        square, |x| x * x, ALL, Nowhere;
    }
}

fn activations(l: &mut List) {
    use Breaks::{At, Nowhere};
    unaries! { l;
        relu, |x| x.max(0.0), ALL, ZERO;
        relu6, |x| x.clamp(0.0, 6.0), ALL, At(&[0.0, 6.0]);
        selu, |x| 1.050_700_987_355_480_5 * elu(x, 1.673_263_242_354_377_2), ALL, ZERO;
        silu, |x| x * sigmoid(x), ALL, Nowhere;
        gelu, |x| 0.5 * x * (1.0 + libm::erf(x / 2f64.sqrt())), ALL, Nowhere;
        gelu_tanh, |x| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh()), ALL, Nowhere;
        softplus, softplus, ALL, ZERO;
        log_sigmoid, |x| -softplus(-x), ALL, ZERO;
        mish, |x| x * softplus(x).tanh(), ALL, ZERO;
        softsign, |x| x / (1.0 + x.abs()), ALL, ZERO;
        hardsigmoid, |x| (x + 3.0).clamp(0.0, 6.0) / 6.0, ALL, At(&[-3.0, 3.0]);
        hardswish, |x| x * (x + 3.0).clamp(0.0, 6.0) / 6.0, ALL, At(&[-3.0, 3.0]);
        contiguous, |x| x, (-1e9, 1e9), Nowhere;
    }
}

fn activations_with_numbers(l: &mut List) {
    let zero = |_| vec![0.0];
    with_number(l, "leaky_relu", "{n}", |x, n| if x > 0.0 { x } else { n * x }, zero, |t, n| t.leaky_relu(n));
    with_number(l, "elu", "{n}", elu, zero, |t, n| t.elu(n));
    with_number(l, "celu", "{n}", |x, n| if x > 0.0 { x } else { n * (x / n).exp_m1() }, zero, |t, n| t.celu(n));
    with_number(
        l,
        "softplus_with",
        "{n}, 3.0",
        |x, n| if n * x > 3.0 { x } else { softplus(n * x) / n },
        |n| vec![0.0, 3.0 / n],
        |t, n| t.softplus_with(n, 3.0),
    );
    with_number(l, "hardtanh", "-1.0, {n}", |x, n| x.clamp(-1.0, n), |n| vec![-1.0, n], |t, n| t.hardtanh(-1.0, n));
    with_number(l, "hardshrink", "{n}", |x, n| if x.abs() <= n { 0.0 } else { x }, |n| vec![-n, n], |t, n| t.hardshrink(n));
    with_number(l, "softshrink", "{n}", |x, n| x - x.clamp(-n, n), |n| vec![-n, n], |t, n| t.softshrink(n));
    with_number(l, "threshold", "{n}, 1.5", |x, n| if x > n { x } else { 1.5 }, |n| vec![n], |t, n| t.threshold(n, 1.5));
    with_number(l, "clamp", "Some(-{n}), Some({n})", |x, n| x.clamp(-n, n), |n| vec![-n, n], |t, n| t.clamp(Some(-n), Some(n)));
    with_number(l, "clamp", "None, Some({n})", |x, n| x.min(n), |n| vec![n], |t, n| t.clamp(None, Some(n)));
    with_number(l, "nan_to_num", "{n}, None, Some({n})", |x, _| x, |_| vec![], |t, n| t.nan_to_num(n, None, Some(n)));
    with_number(l, "add", "{n}", |x, n| x + n, |_| vec![], |t, n| t.add(n));
    with_number(l, "mul", "{n}", |x, n| x * n, |_| vec![], |t, n| t.mul(n));
    with_number(l, "pow", "(2.0 * {n}) as i64", |x, n| x.powi((2.0 * n) as i32), |_| vec![], |t, n| t.pow((2.0 * n) as i32 as i64));
    l.add("prelu", |p| {
        let x = p.value(|v| v.kind == Kind::Float && v.rank() >= 2)?;
        let channels = p.shape(x)[1];
        let w = p.value(|v| v.kind == Kind::Float && (v.array.shape == [channels] || v.array.shape == [1]))?;
        let one = p.shape(w) == [1];
        away(p.of(x), &[0.0]).then(|| {
            let c = Call::new("{0}.prelu(&{1})", &[x, w], |t| t[0].prelu(&t[1]));
            c.reference(move |a| a[0].index_map(|i, v| if v > 0.0 { v } else { v * a[1].data[if one { 0 } else { i[1] }] }))
        })
    });
}

/// A function of two floats that broadcast: the second in an interval, and without a jump or a bend where `clear` says so.
fn two(
    l: &mut List,
    name: &'static str,
    call: fn(&Tensor, &Tensor) -> TensorResult<Tensor>,
    f: fn(f64, f64) -> f64,
    ranges: [(f64, f64); 2],
    clear: fn(f64, f64) -> f64,
) {
    l.add(name, move |p| {
        let (x, a) = bounded(p, ranges[0].0, ranges[0].1)?;
        let y = p.partner(x)?;
        let b = bounds(p.of(y), ranges[1].0, ranges[1].1);
        let margin = 4.0 * (p.of(x).margin() + p.of(y).margin());
        let (ax, ay) = (guarded_array(&p.of(x).array, a), guarded_array(&p.of(y).array, b));
        if ax.zip(&ay, clear).data.iter().any(|v| v.abs() < margin) {
            return None;
        }
        let text = format!("{}.{name}(&{})", bounded_text(0, a), bounded_text(1, b));
        let c = Call::new(text, &[x, y], move |t| call(&guarded(&t[0], a)?, &guarded(&t[1], b)?));
        Some(c.reference(move |v| guarded_array(&v[0], a).zip(&guarded_array(&v[1], b), f)))
    });
}

fn binary(l: &mut List) {
    const WIDE: (f64, f64) = (-1e9, 1e9);
    const ABOVE: (f64, f64) = (0.4, 5.0);
    let smooth = |_: f64, _: f64| f64::INFINITY;
    // How far the quotient is from a whole number.
    let whole = |x: f64, y: f64| x / y - (x / y).round();
    macro_rules! binaries {
        ($($name:ident, $f:expr, $first:expr, $second:expr, $clear:expr;)*) => { $(two(l, stringify!($name), |x, y| x.$name(y), $f, [$first, $second], $clear);)* };
    }
    binaries! {
        add, |x, y| x + y, WIDE, WIDE, smooth;
        sub, |x, y| x - y, WIDE, WIDE, smooth;
        mul, |x, y| x * y, WIDE, WIDE, smooth;
        div, |x, y| x / y, WIDE, ABOVE, smooth;
        pow, f64::powf, ABOVE, (-2.0, 2.0), smooth;
        div_trunc, |x, y| (x / y).trunc(), ALL, ABOVE, whole;
        div_floor, |x, y| (x / y).floor(), ALL, ABOVE, whole;
        fmod, |x, y| x % y, ALL, ABOVE, whole;
        remainder, f64::rem_euclid, ALL, ABOVE, whole;
        minimum, f64::min, WIDE, WIDE, |x, y| x - y;
        maximum, f64::max, WIDE, WIDE, |x, y| x - y;
        fmin, f64::min, WIDE, WIDE, |x, y| x - y;
        fmax, f64::max, WIDE, WIDE, |x, y| x - y;
        atan2, f64::atan2, ABOVE, WIDE, smooth;
        copysign, f64::copysign, WIDE, WIDE, |x, y| x.abs().min(y.abs());
        hypot, f64::hypot, WIDE, WIDE, |x, y| (x.abs() - y.abs()).abs().min(x.abs()).min(y.abs());
        xlogy, |x, y| x * y.ln(), WIDE, ABOVE, |x, _| x;
        fused_add_relu, |x, y| (x + y).max(0.0), WIDE, WIDE, |x, y| x + y;
        fused_mul_relu, |x, y| (x * y).max(0.0), WIDE, WIDE, |x, y| x * y;
        logaddexp, |x, y| x.max(y) + (-(x - y).abs()).exp().ln_1p(), ALL, ALL, |x, y| x - y;
    }
    macro_rules! comparisons {
        ($($name:ident $op:tt;)*) => { $(l.add(stringify!($name), |p| {
            let x = p.value(|v| v.kind == Kind::Float || v.kind == Kind::Int)?;
            let y = p.partner(x)?;
            let margin = if p.of(x).kind == Kind::Int { 0.0 } else { 4.0 * (p.of(x).margin() + p.of(y).margin()) };
            let near = p.of(x).array.zip(&p.of(y).array, |x, y| (x - y).abs()).data.iter().any(|v| *v < margin);
            let c = Call::new(concat!("{0}.", stringify!($name), "(&{1})"), &[x, y], |t| t[0].$name(&t[1])).kind(Kind::Bool);
            (!near).then(|| c.reference(|a| a[0].zip(&a[1], |x, y| f64::from(x $op y))))
        });)* };
    }
    comparisons! { eq ==; ne !=; lt <; le <=; gt >; ge >=; }
}

fn ternary(l: &mut List) {
    let three = |p: &mut Pick| {
        let x = p.float()?;
        let y = p.partner(x)?;
        let xy = broadcast(&p.shape(x), &p.shape(y))?;
        let z = p.value(|v| v.kind == Kind::Float && broadcast(&xy, &v.array.shape).is_some())?;
        Some([x, y, z])
    };
    fn combined(a: &[Array], f: impl Fn(f64, f64, f64) -> f64) -> Array {
        // The third beside the first two.
        let full = a[0].zip(&a[1], |_, _| 0.0).zip(&a[2], |_, _| 0.0);
        let [x, y, z] = [0, 1, 2].map(|i| full.zip(&a[i], |_, v| v));
        Array { data: (0..full.data.len()).map(|i| f(x.data[i], y.data[i], z.data[i])).collect(), shape: full.shape }
    }
    l.add("addcmul", move |p| {
        let (v, n) = (three(p)?, p.number(-2.0, 2.0));
        let c = Call::new(format!("{{0}}.addcmul(&{{1}}, &{{2}}, {n:?})"), &v, move |t| t[0].addcmul(&t[1], &t[2], n));
        Some(c.reference(move |a| combined(a, |x, y, z| x + n * y * z)))
    });
    l.add("addcdiv", move |p| {
        let (v, n) = (three(p)?, p.number(-2.0, 2.0));
        let g = bounds(p.of(v[2]), 0.4, 5.0);
        let text = format!("{{0}}.addcdiv(&{{1}}, &{}, {n:?})", bounded_text(2, g));
        let c = Call::new(text, &v, move |t| t[0].addcdiv(&t[1], &guarded(&t[2], g)?, n));
        Some(c.reference(move |a| combined(&[a[0].clone(), a[1].clone(), guarded_array(&a[2], g)], |x, y, z| x + n * y / z)))
    });
    l.add("lerp", move |p| {
        let v = three(p)?;
        away(p.of(v[2]), &[-0.5, 0.5]).then(|| {
            Call::new("{0}.lerp(&{1}, &{2})", &v, |t| t[0].lerp(&t[1], &t[2])).reference(|a| combined(a, |x, y, z| x + z * (y - x)))
        })
    });
    l.add("lerp", |p| {
        let x = p.float()?;
        let (y, n) = (p.partner(x)?, p.number(-1.0, 2.0));
        let c = Call::new(format!("{{0}}.lerp(&{{1}}, {n:?})"), &[x, y], move |t| t[0].lerp(&t[1], n));
        Some(c.reference(move |a| a[0].zip(&a[1], |x, y| x + n * (y - x))))
    });
    l.add("clamp_tensors", move |p| {
        let v = three(p)?;
        let margin = 4.0 * v.iter().map(|&i| p.of(i).margin()).sum::<f64>();
        let arrays = v.map(|i| p.of(i).array.clone());
        // Where two of them meet, the gradient has a choice: tests/it/ops/kinks.rs.
        let apart = combined(&arrays, |x, low, high| (x - low).abs().min((x - high).abs()).min((low - high).abs()));
        let c = Call::new("{0}.clamp_tensors(Some(&{1}), Some(&{2}))", &v, |t| t[0].clamp_tensors(Some(&t[1]), Some(&t[2])));
        apart.data.iter().all(|&d| d > margin).then(|| c.reference(|a| combined(a, |x, low, high| x.max(low).min(high))))
    });
    l.add("fused_affine", move |p| {
        let c = Call::new("{0}.fused_affine(&{1}, &{2})", &three(p)?, |t| t[0].fused_affine(&t[1], &t[2]));
        Some(c.reference(|a| combined(a, |x, y, z| x * y + z)))
    });
    l.add("fused_affine", move |p| {
        let (x, m, n) = (p.float()?, p.number(-2.0, 2.0), p.number(-2.0, 2.0));
        let c = Call::new(format!("{{0}}.fused_affine({m:?}, {n:?})"), &[x], move |t| t[0].fused_affine(m, n));
        Some(c.reference(move |a| a[0].map(|x| x * m + n)))
    });
    l.add("where_", move |p| {
        let x = p.value(|v| v.kind != Kind::Bool)?;
        let y = p.partner(x)?;
        let xy = broadcast(&p.shape(x), &p.shape(y))?;
        let c = p.value(|v| v.kind == Kind::Bool && broadcast(&xy, &v.array.shape).is_some())?;
        let call = Call::new("{2}.where_(&{0}, &{1})", &[x, y, c], |t| t[2].where_(&t[0], &t[1])).kind(p.of(x).kind);
        Some(call.reference(|a| combined(a, |x, y, c| if c != 0.0 { x } else { y })))
    });
    l.add("masked_fill", |p| {
        let x = p.float()?;
        let shape = p.shape(x);
        let (m, n) = (p.value(|v| v.kind == Kind::Bool && broadcast(&shape, &v.array.shape).is_some())?, p.number(-2.0, 2.0));
        let c = Call::new(format!("{{0}}.masked_fill(&{{1}}, {n:?})"), &[x, m], move |t| t[0].masked_fill(&t[1], n));
        Some(c.reference(move |a| a[0].zip(&a[1], |x, m| if m != 0.0 { n } else { x })))
    });
}

/// Whole numbers: i32 without overflow.
fn integers(l: &mut List) {
    type Two = fn(&Tensor, &Tensor) -> TensorResult<Tensor>;
    let int = |l: &mut List, name: &'static str, call: Two, f: fn(i32, i32) -> i32, divisor: bool| {
        l.add(name, move |p| {
            let x = p.int()?;
            let y = p.partner(x)?;
            let large = |i: usize| p.of(i).array.data.iter().any(|v| v.abs() > 1000.0);
            // A shift or divisor is at least 1.
            let (to, text) = if divisor { (1.0, "{1}.abs()?.clamp(Some(1.0), Some(9.0))?") } else { (0.0, "{1}") };
            let fixed = move |v: &Tensor| if to > 0.0 { v.abs()?.clamp(Some(1.0), Some(9.0)) } else { Ok(v.clone()) };
            let second = move |v: f64| if to > 0.0 { v.abs().clamp(1.0, 9.0) as i32 } else { v as i32 };
            (!large(x) && !large(y)).then(|| {
                let c = Call::new(format!("{{0}}.{name}(&{text})"), &[x, y], move |t| call(&t[0], &fixed(&t[1])?)).kind(Kind::Int);
                c.reference(move |a| a[0].zip(&a[1], |x, y| f64::from(f(x as i32, second(y)))))
            })
        });
    };
    int(l, "add", |x, y| x.add(y), |x, y| x + y, false);
    int(l, "mul", |x, y| x.mul(y), |x, y| x * y, false);
    int(l, "maximum", |x, y| x.maximum(y), i32::max, false);
    int(l, "div_floor", |x, y| x.div_floor(y), i32::div_euclid, true);
    int(l, "div_trunc", |x, y| x.div_trunc(y), |x, y| x / y, true);
    int(l, "remainder", |x, y| x.remainder(y), i32::rem_euclid, true);
    int(l, "fmod", |x, y| x.fmod(y), |x, y| x % y, true);
    int(l, "bitwise_and", |x, y| x.bitwise_and(y), |x, y| x & y, false);
    int(l, "bitwise_or", |x, y| x.bitwise_or(y), |x, y| x | y, false);
    int(l, "bitwise_xor", |x, y| x.bitwise_xor(y), |x, y| x ^ y, false);
    int(l, "bitwise_left_shift", |x, y| x.bitwise_left_shift(y), |x, y| x << y, true);
    int(l, "bitwise_right_shift", |x, y| x.bitwise_right_shift(y), |x, y| x >> y, true);
    let one = |l: &mut List, name: &'static str, call: One, f: fn(f64) -> f64| {
        l.add(name, move |p| {
            Some(Call::new(format!("{{0}}.{name}()"), &[p.int()?], move |t| call(&t[0])).kind(Kind::Int).reference(move |a| a[0].map(f)))
        });
    };
    one(l, "bitwise_not", |x| x.bitwise_not(), |x| f64::from(!(x as i32)));
    one(l, "neg", |x| x.neg(), |x| -x);
    one(l, "abs", |x| x.abs(), f64::abs);
    one(l, "sign", |x| x.sign(), sign);
}

/// What gives bool.
fn truth(l: &mut List) {
    macro_rules! tests {
        ($($name:ident $f:expr;)*) => { $(l.add(stringify!($name), |p| {
            let x = p.float()?;
            let c = Call::new(concat!("{0}.", stringify!($name), "()"), &[x], |t| t[0].$name()).kind(Kind::Bool);
            away(p.of(x), &[0.0]).then(|| c.reference(|a| a[0].map(|v| f64::from($f(v)))))
        });)* };
    }
    tests! { isnan f64::is_nan; isinf f64::is_infinite; isfinite f64::is_finite; logical_not |v| v == 0.0; signbit f64::is_sign_negative; }
    macro_rules! logic {
        ($($name:ident $f:expr;)*) => { $(l.add(stringify!($name), |p| {
            let x = p.value(|v| matches!(v.kind, Kind::Bool | Kind::Int))?;
            let y = p.partner(x)?;
            let c = Call::new(concat!("{0}.", stringify!($name), "(&{1})"), &[x, y], |t| t[0].$name(&t[1])).kind(Kind::Bool);
            Some(c.reference(|a| a[0].zip(&a[1], |x, y| f64::from($f(x != 0.0, y != 0.0)))))
        });)* };
    }
    logic! { logical_and |x, y| x && y; logical_or |x, y| x || y; logical_xor |x, y| x != y; }
}

/// Conversions.
fn types(l: &mut List) {
    l.add("cast", |p| {
        let x = p.value(|v| matches!(v.kind, Kind::Int | Kind::Bool | Kind::Byte))?;
        // To the floats' type; moved off the whole numbers, where other functions jump.
        let c = Call::new("{0}.cast({1}.dtype())?.add(0.25)", &[x, p.float()?], |t| t[0].cast(t[1].dtype())?.add(0.25));
        (p.of(x).scale() < 128.0).then(|| c.reference(|a| a[0].map(|v| v + 0.25)))
    });
    l.add("cast", |p| {
        let x = p.float()?;
        let small = p.of(x).array.data.iter().all(|v| v.abs() < 1000.0);
        let c = Call::new("{0}.cast(DType::I32)", &[x], |t| t[0].cast(DType::I32)).kind(Kind::Int);
        (small && super::ops::away_from_wholes(p.of(x), 1.0)).then(|| c.reference(|a| a[0].map(f64::trunc)))
    });
    l.add("cast", |p| {
        let x = p.value(|v| v.kind == Kind::Int || v.kind == Kind::Byte)?;
        Some(
            Call::new("{0}.cast(DType::Bool)", &[x], |t| t[0].cast(DType::Bool))
                .kind(Kind::Bool)
                .reference(|a| a[0].map(|v| f64::from(v != 0.0))),
        )
    });
    l.add("cast", |p| {
        let x = p.value(|v| v.kind == Kind::Byte || v.kind == Kind::Bool)?;
        Some(Call::new("{0}.cast(DType::I32)", &[x], |t| t[0].cast(DType::I32)).kind(Kind::Int).reference(|a| a[0].clone()))
    });
    l.add("to_device", |p| {
        Some(Call::new("{0}.to_device({0}.device())", &[p.float()?], |t| t[0].to_device(t[0].device())).reference(|a| a[0].clone()))
    });
    l.add("detach", |p| Some(Call::new("Ok({0}.detach())", &[p.float()?], |t| Ok(t[0].detach())).reference(|a| a[0].clone()).cuts()));
    l.add("zeros_like", |p| Some(Call::new("{0}.zeros_like()", &[p.float()?], |t| t[0].zeros_like()).reference(|a| a[0].map(|_| 0.0))));
    l.add("ones_like", |p| Some(Call::new("{0}.ones_like()", &[p.float()?], |t| t[0].ones_like()).reference(|a| a[0].map(|_| 1.0))));
}
