//! Every scalar primitive and cast against f64 arithmetic on the host.

use super::*;
use crate::scalar::definition;

/// Compares a program over f32 inputs with its meaning in f64.
#[track_caller]
fn check(m: &GpuBackend, name: &str, p: Program, inputs: &[Vec<f64>], want: impl Fn(&[f64]) -> f64, rel: f64, abs: f64) {
    let n = inputs[0].len();
    let sources = (0..inputs.len()).map(|k| flat(Buf::Input(k as u16), DType::F32, n)).collect();
    let d = p.dtype();
    let step = map(Shape::of(&[n]), p, sources, flat(Buf::Output(0), d, n));
    let got = run(
        m,
        vec![step],
        inputs.iter().map(|v| (DType::F32, encode(v, DType::F32))).collect(),
        vec![(d, n * d.block_bytes())],
        vec![],
        &[],
    )
    .unwrap();
    let got = decode(&got[0], d);
    let mut worst: f64 = 0.0;
    for i in 0..n {
        let args: Vec<f64> = inputs.iter().map(|v| v[i] as f32 as f64).collect();
        let (g, w) = (got[i], want(&args));
        let w32 = w as f32 as f64;
        if g.is_nan() && w.is_nan() || g == w32 {
            continue;
        }
        let e = (g - w).abs();
        // Subnormal results may be flushed.
        assert!(e <= abs + rel * w.abs() || e < 1.2e-38, "{name}{args:?} gives {g}, {w} is right");
        worst = worst.max(e / (w.abs() + abs / rel.max(1e-30)));
    }
    if std::env::var("TL_TEST_VERBOSE").is_ok() {
        eprintln!("{name}: {worst:e}");
    }
}

fn range(low: f64, high: f64, n: usize) -> Vec<f64> {
    (0..n).map(|i| low + (high - low) * i as f64 / (n - 1) as f64).collect()
}

#[test]
fn unary_primitives() {
    let Some(m) = backend() else { return };
    let m = &**m;
    let special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        1e-6,
        -1e-6,
        3e-3,
        -3e-3,
        2.5,
        -2.5,
        3.5,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        1e30,
        -1e30,
        1e-30,
    ];
    for &u in Unary::ALL.iter().filter(|u| u.takes_float()) {
        let periodic = matches!(u, Unary::Sin | Unary::Cos | Unary::Tan);
        let mut x: Vec<f64> = special.to_vec();
        // A signed zero's reciprocal differs between devices; infinities of rsqrt are checked below.
        if matches!(u, Unary::Recip | Unary::Rsqrt) {
            x.retain(|x| *x != 0.0 && *x > -1e29);
        }
        x.extend(range(-1.0, 1.0, 401));
        x.extend(range(-12.0, 12.0, 501));
        x.extend(range(0.0, 100.0, 301).iter().skip(1));
        x.extend(range(0.9, 1.1, 101));
        x.extend(range(-80.0, 80.0, 301));
        if periodic {
            // tan magnifies the rounding of its argument near its poles.
            let far = if u == Unary::Tan { 1000.0 } else { 20000.0 };
            x.extend(range(-far, far, 333));
        }
        if matches!(u, Unary::Recip | Unary::Rsqrt) {
            x.retain(|x| *x != 0.0);
        }
        let p = program(&[inst(Prim::Source(0), &[], DType::F32), inst(Prim::Unary(u), &[0], u.result(DType::F32))]);
        let (rel, abs) = match u {
            Unary::Sin | Unary::Cos => (0.0, 4e-7),
            Unary::Tan => (2e-6, 4e-7),
            Unary::Tanh | Unary::Erf | Unary::Sigmoid => (2e-6, 3e-7),
            Unary::Exp2 => (2e-5, 0.0),
            Unary::Acos | Unary::Acosh | Unary::Asinh | Unary::Atanh => (1e-6, 3e-7),
            _ => (1e-6, 0.0),
        };
        check(m, u.name(), p, &[x], |a| definition::unary(u, a[0]), rel, abs);
    }
}

#[test]
fn binary_primitives() {
    let Some(m) = backend() else { return };
    let m = &**m;
    let v = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        2.0,
        -2.0,
        3.0,
        -3.0,
        0.5,
        -0.5,
        7.25,
        -7.25,
        1e4,
        13.0,
        1e-3,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        0.3,
        5.5,
        24.0,
        -31.0,
    ];
    let (mut a, mut b) = (vec![], vec![]);
    for x in v {
        for y in v {
            a.push(x);
            b.push(y);
        }
    }
    for i in 0..500 {
        a.push(((i * 7919) % 1000) as f64 / 37.0 - 9.0);
        b.push(((i * 104729) % 1000) as f64 / 91.0 - 5.0);
    }
    for &op in Binary::ALL.iter().filter(|b| !b.bits()) {
        let p = program(&[
            inst(Prim::Source(0), &[], DType::F32),
            inst(Prim::Source(1), &[], DType::F32),
            inst(Prim::Binary(op), &[0, 1], op.result(DType::F32)),
        ]);
        // Division by a zero or by an infinity is left to the device.
        let keep = |i: &usize| !(op == Binary::Div && (b[*i] == 0.0 || b[*i].is_infinite()));
        let at: Vec<usize> = (0..a.len()).filter(keep).collect();
        let (a, b) = (at.iter().map(|&i| a[i]).collect(), at.iter().map(|&i| b[i]).collect());
        let want = |v: &[f64]| match op {
            // The neighbours of f32.
            Binary::Nextafter => libm::nextafterf(v[0] as f32, v[1] as f32).into(),
            _ => definition::binary(op, v[0], v[1]),
        };
        check(m, op.name(), p, &[a, b], want, 1e-6, if op == Binary::Atan2 { 3e-7 } else { 0.0 });
    }
}

#[test]
fn integer_primitives() {
    let Some(m) = backend() else { return };
    let m = &**m;
    let v: [i64; 17] = [0, 1, -1, 2, -2, 3, -3, 5, 7, 8, 31, 32, 33, 100, -100, 2147483647, -2147483648];
    for d in [DType::I32, DType::U32, DType::I8, DType::U8] {
        // The value after a store in d.
        let fit = |x: i64| decode(&encode(&[x as f64], d), d)[0] as i64;
        let (mut a, mut b) = (vec![], vec![]);
        for x in v {
            for y in v {
                a.push(fit(x));
                b.push(fit(y));
            }
        }
        for &op in Binary::ALL.iter().filter(|b| !b.float_only()) {
            let want = |x: i64, y: i64| match op {
                Binary::Add => x + y,
                Binary::Sub => x - y,
                Binary::Mul => x.wrapping_mul(y),
                Binary::Div => {
                    if y == 0 {
                        0
                    } else {
                        x / y
                    }
                }
                Binary::Fmod => {
                    if y == 0 {
                        x
                    } else {
                        x % y
                    }
                }
                Binary::Remainder => {
                    if y == 0 {
                        x
                    } else {
                        ((x % y) + y) % y
                    }
                }
                Binary::Pow if y < 0 => match x {
                    1 => 1,
                    -1 => {
                        if y % 2 == 0 {
                            1
                        } else {
                            -1
                        }
                    }
                    _ => 0,
                },
                Binary::Pow => (0..y.min(300)).fold(1i64, |p, _| p.wrapping_mul(x)),
                Binary::Min => x.min(y),
                Binary::Max => x.max(y),
                Binary::Eq => (x == y) as i64,
                Binary::Ne => (x != y) as i64,
                Binary::Lt => (x < y) as i64,
                Binary::Le => (x <= y) as i64,
                Binary::Gt => (x > y) as i64,
                Binary::Ge => (x >= y) as i64,
                Binary::And => x & y,
                Binary::Or => x | y,
                Binary::Xor => x ^ y,
                Binary::Shl => {
                    if (0..32).contains(&y) {
                        x << y
                    } else {
                        0
                    }
                }
                Binary::Shr => {
                    if (0..32).contains(&y) {
                        x >> y
                    } else if d == DType::U32 {
                        0
                    } else {
                        x >> 31
                    }
                }
                _ => unreachable!(),
            };
            let out = op.result(d);
            let p = program(&[inst(Prim::Source(0), &[], d), inst(Prim::Source(1), &[], d), inst(Prim::Binary(op), &[0, 1], out)]);
            let n = a.len();
            let bytes = |v: &[i64]| encode(&v.iter().map(|x| *x as f64).collect::<Vec<_>>(), d);
            let s = map(Shape::of(&[n]), p, vec![flat(Buf::Input(0), d, n), flat(Buf::Input(1), d, n)], flat(Buf::Output(0), out, n));
            let got = run(m, vec![s], vec![(d, bytes(&a)), (d, bytes(&b))], vec![(out, n * out.block_bytes())], vec![], &[]).unwrap();
            for (i, g) in decode(&got[0], out).iter().enumerate() {
                // Large powers of large numbers were cut short above.
                if op == Binary::Pow && b[i] > 300 {
                    continue;
                }
                let w = want(a[i], b[i]);
                let w = if out == DType::Bool { w } else { decode(&wrap(w, d), d)[0] as i64 };
                assert_eq!(*g as i64, w, "{d} {} of {} and {}", op.name(), a[i], b[i]);
            }
        }
    }
}

/// The low bits of an integer as d stores them.
fn wrap(x: i64, d: DType) -> Vec<u8> {
    x.to_le_bytes()[..d.block_bytes()].to_vec()
}

#[test]
fn casts_between_all_dtypes() {
    let Some(m) = backend() else { return };
    let m = &**m;
    let x = [0.0, 1.0, -1.0, 2.5, -2.5, 3.99, 100.0, 127.0, 200.0, 255.0, 0.1, 1e-3, 65504.0, 40000.0, 33.3];
    for from in ALL {
        for to in ALL {
            let values = decode(&encode(&x, from), from);
            let p = program(&[inst(Prim::Source(0), &[], from), inst(Prim::Cast, &[0], to)]);
            let n = x.len();
            let s = map(Shape::of(&[n]), p, vec![flat(Buf::Input(0), from, n)], flat(Buf::Output(0), to, n));
            let got = run(m, vec![s], vec![(from, encode(&x, from))], vec![(to, n * to.block_bytes())], vec![], &[]).unwrap();
            // Unsigned from negative floats saturates at zero, as Rust's casts do.
            let want: Vec<f64> = values.iter().map(|v| if to == DType::U32 && from.is_float() { v.max(0.0) } else { *v }).collect();
            assert_eq!(decode(&got[0], to), decode(&encode(&want, to), to), "{from} to {to}");
        }
    }
}

#[test]
fn sixteen_bit_results_of_quick_functions() {
    let Some(m) = backend() else { return };
    let x: Vec<f64> = decode(&encode(&range(-12.0, 12.0, 4001), DType::F16), DType::F16);
    let n = x.len();
    for (u, want) in [
        (Unary::Exp, f64::exp as fn(f64) -> f64),
        (Unary::Log, f64::ln),
        (Unary::Log2, f64::log2),
        (Unary::Tanh, f64::tanh),
        (Unary::Erf, libm::erf),
        (Unary::Sigmoid, |x| 1.0 / (1.0 + (-x).exp())),
    ] {
        let p = program(&[inst(Prim::Source(0), &[], DType::F16), inst(Prim::Unary(u), &[0], DType::F16)]);
        let s = map(Shape::of(&[n]), p, vec![flat(Buf::Input(0), DType::F16, n)], flat(Buf::Output(0), DType::F16, n));
        let got = run(&m, vec![s], vec![(DType::F16, encode(&x, DType::F16))], vec![(DType::F16, 2 * n)], vec![], &[]).unwrap();
        for (g, x) in decode(&got[0], DType::F16).iter().zip(&x) {
            let w = want(*x);
            let w16 = half::f16::from_f64(w).to_f64();
            // Half a unit in the last place, a little more where a rounding was close, and the promised absolute error.
            assert!(*g == w16 || g.is_nan() && w.is_nan() || (g - w).abs() <= w.abs() * 6e-4 + 1.1e-6, "{}({x}) is {g}, not {w}", u.name());
        }
    }
}
