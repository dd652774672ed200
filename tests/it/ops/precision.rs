//! Precision: what mixed dtypes promote to, held against PyTorch's rule, and that sums of halves are accumulated in f32.

use crate::common::devices;
use half::{bf16, f16};
use tensorlogic::{DType, Device, Rng, Tensor, TensorResult};

use DType::{BF16, Bool, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};

const PLAIN: [DType; 13] = [Bool, U8, I8, I16, U16, I32, U32, I64, U64, F16, BF16, F32, F64];

/// `torch.promote_types` of PyTorch 2.15 for the dtypes of `PLAIN` in this order; `-` is refused there.
const TORCH: [&str; 13] = [
    "bool u8   i8   i16  -    i32  -    i64  -    f16  bf16 f32  f64",
    "u8   u8   i16  i16  -    i32  -    i64  -    f16  bf16 f32  f64",
    "i8   i16  i8   i16  -    i32  -    i64  -    f16  bf16 f32  f64",
    "i16  i16  i16  i16  -    i32  -    i64  -    f16  bf16 f32  f64",
    "-    -    -    -    u16  -    -    -    -    f16  bf16 f32  f64",
    "i32  i32  i32  i32  -    i32  -    i64  -    f16  bf16 f32  f64",
    "-    -    -    -    -    -    u32  -    -    f16  bf16 f32  f64",
    "i64  i64  i64  i64  -    i64  -    i64  -    f16  bf16 f32  f64",
    "-    -    -    -    -    -    -    -    u64  f16  bf16 f32  f64",
    "f16  f16  f16  f16  f16  f16  f16  f16  f16  f16  f32  f32  f64",
    "bf16 bf16 bf16 bf16 bf16 bf16 bf16 bf16 bf16 f32  bf16 f32  f64",
    "f32  f32  f32  f32  f32  f32  f32  f32  f32  f32  f32  f32  f64",
    "f64  f64  f64  f64  f64  f64  f64  f64  f64  f64  f64  f64  f64",
];

/// Where PyTorch has no answer: the smallest dtype that holds both. And i32 for u8 with i8, on every device, since a GPU has no i16.
const OURS: [(DType, DType, DType); 18] = [
    (U8, I8, I32),
    (Bool, U16, U16),
    (U8, U16, U16),
    (I8, U16, I32),
    (I16, U16, I32),
    (U16, I32, I32),
    (Bool, U32, U32),
    (U8, U32, U32),
    (I8, U32, I64),
    (I16, U32, I64),
    (U16, U32, U32),
    (I32, U32, I64),
    (U16, I64, I64),
    (U32, I64, I64),
    (Bool, U64, U64),
    (U8, U64, U64),
    (U16, U64, U64),
    (U32, U64, U64),
];

/// And where there is none.
const NONE: [(DType, DType); 4] = [(I8, U64), (I16, U64), (I32, U64), (I64, U64)];

fn is_pair(a: DType, b: DType, x: DType, y: DType) -> bool {
    (x, y) == (a, b) || (y, x) == (a, b)
}

fn expected(a: DType, b: DType) -> Option<DType> {
    if let Some(&(_, _, d)) = OURS.iter().find(|&&(x, y, _)| is_pair(a, b, x, y)) {
        return Some(d);
    }
    let at = |d: DType| PLAIN.iter().position(|&p| p == d).unwrap();
    let torch = TORCH[at(a)].split_whitespace().nth(at(b)).unwrap();
    let found = PLAIN.into_iter().find(|d| d.name() == torch);
    assert!(found.is_some() || NONE.iter().any(|&(x, y)| is_pair(a, b, x, y)), "{a} with {b}");
    found
}

#[test]
fn promotion_is_pytorchs() {
    for a in PLAIN {
        for b in PLAIN {
            assert_eq!(a.promote(b).ok(), expected(a, b), "{a} with {b}");
        }
    }
    assert!(F32.promote(DType::Q4_0).is_err());
}

/// The table of the guide, as the library's own answers make it.
#[test]
fn the_guides_table_is_the_librarys() {
    let mut table = String::from("| |");
    for d in PLAIN {
        table += &format!(" **{d}** |");
    }
    table += "\n|---|";
    table += &"---|".repeat(PLAIN.len());
    for a in PLAIN {
        table += &format!("\n| **{a}** |");
        for b in PLAIN {
            let mark = if OURS.iter().any(|&(x, y, _)| is_pair(a, b, x, y)) { "†" } else { "" };
            table += &match a.promote(b) {
                Ok(d) => format!(" {d}{mark} |"),
                Err(_) => " – |".into(),
            };
        }
    }
    let page = include_str!("../../../docs/guide/4-precision.md");
    assert!(page.contains(&table), "docs/guide/4-precision.md lacks this table:\n{table}");
}

/// The tensor of `value` in `dtype`.
fn of(value: f64, dtype: DType, device: &Device) -> Tensor {
    let t = Tensor::full(value, &[3], dtype, device).unwrap();
    t.eval().unwrap();
    t
}

#[test]
fn mixed_expressions_compute_in_the_promoted_dtype() {
    for device in devices() {
        for a in PLAIN.into_iter().filter(|&d| device.supports(d)) {
            for b in PLAIN.into_iter().filter(|&d| device.supports(d)) {
                // Sums that narrow integers cannot hold, and wide ones can.
                let value = |d: DType| match d {
                    Bool => 1.0,
                    U8 => 200.0,
                    _ => 100.0,
                };
                let sum = of(value(a), a, &device).add(&of(value(b), b, &device));
                let Some(want) = expected(a, b) else {
                    let text = sum.err().unwrap().to_string();
                    assert!(text.contains("u64") && text.contains("cast"), "{text}");
                    continue;
                };
                if !device.supports(want) {
                    // i32 with u32 is i64, which a GPU has not.
                    let text = sum.err().unwrap().to_string();
                    assert!(text.contains("i64") && text.contains("cast"), "{text}");
                    continue;
                }
                let sum = sum.unwrap();
                assert_eq!(sum.dtype(), want, "{a} + {b} on {}", device.name());
                let exact = value(a) + value(b);
                let held = match want {
                    Bool => 1.0,
                    U8 => exact % 256.0,
                    I8 => f64::from(exact as i64 as i8),
                    _ => exact,
                };
                assert_eq!(sum.to_vec().unwrap(), [held as f32; 3], "{a} + {b} on {}", device.name());
            }
        }
    }
}

#[test]
fn numbers_leave_floats_as_they_are() {
    for device in devices() {
        for d in PLAIN.into_iter().filter(|&d| device.supports(d)) {
            let x = of(1.0, d, &device);
            let float = x.mul(2.5).unwrap();
            assert_eq!(float.dtype(), if d.is_float() { d } else { F32 });
            assert_eq!(float.to_vec().unwrap(), [2.5; 3]);
            let whole = x.add(2).unwrap();
            assert_eq!(whole.dtype(), if d == Bool { I32 } else { d });
            assert_eq!(whole.to_vec().unwrap(), [3.0; 3]);
        }
    }
}

/// A number in f64 and what a device made of it, within `steps` roundings of `dtype` and f32's accumulation over `mass` = Σ|terms|.
#[track_caller]
fn check(case: &str, got: TensorResult<Tensor>, want: f64, mass: f64) {
    let got = got.unwrap();
    let step = match got.dtype() {
        F16 => 2f64.powi(-11),
        BF16 => 2f64.powi(-8),
        _ => 2f64.powi(-24),
    };
    let value = got.item().unwrap();
    let bound = want.abs() * step * 1.01 + mass * 4e-6;
    assert!((value - want).abs() <= bound, "{case} on {}: {value} for {want} (± {bound})", got.device().name());
}

#[test]
fn sums_of_halves_accumulate_in_f32() {
    for device in devices() {
        for d in [F16, BF16] {
            // Added one by one in f16, ones stop at 2048; in bf16, at 256.
            let ones = of(1.0, d, &device);
            let n = 4096;
            let ones = ones.narrow(0, 0, 1).unwrap().expand(&[n]).unwrap().contiguous().unwrap();
            check(&format!("sum of ones, {d}"), ones.sum_all(), n as f64, 0.0);
            check(&format!("mean of ones, {d}"), ones.mean_all(), 1.0, 0.0);
            check(&format!("ones · ones, {d}"), ones.matmul(&ones), n as f64, 0.0);
            let columns = ones.reshape(&[n, 1]).unwrap();
            check(&format!("sum along the rows, {d}"), columns.sum(&[0], false).unwrap().squeeze_all(), n as f64, 0.0);
        }
    }
}

#[test]
fn long_dot_products_of_halves() {
    for device in devices() {
        for d in [F16, BF16] {
            for k in [1000, 16384] {
                let mut rng = Rng::new(k as u64);
                let draw = |rng: &mut Rng| -> TensorResult<(Tensor, Vec<f64>)> {
                    let t = rng.normal(&[k], F32, &Device::cpu())?.cast(d)?;
                    let held = t.to_vec()?.into_iter().map(f64::from).collect();
                    Ok((t.to_device(&device)?, held))
                };
                let ((a, x), (b, y)) = (draw(&mut rng).unwrap(), draw(&mut rng).unwrap());
                let terms = || x.iter().zip(&y).map(|(x, y)| x * y);
                let (want, mass) = (terms().sum(), terms().map(f64::abs).sum());
                let (row, column) = (a.reshape(&[1, k as isize]).unwrap(), b.reshape(&[k as isize, 1]).unwrap());
                check(&format!("{k} terms, matmul, {d}"), row.matmul(&column), want, mass);
                // The products are never rounded to halves: they are summed inside the same kernel.
                check(&format!("{k} terms, mul and sum, {d}"), a.mul(&b).unwrap().sum_all(), want, mass);
                let norm = x.iter().map(|x| x * x).sum::<f64>().sqrt();
                check(&format!("{k} terms, norm, {d}"), a.norm(2.0, &[], false), norm, norm);
            }
        }
    }
}

#[test]
fn halves_beyond_their_range() {
    for device in devices() {
        // 300² is beyond f16's 65,504, but the root of the mean of squares is not, and only it is stored.
        let x = Tensor::from_vec_gpu(&device, vec![f16::from_f32(300.0); 512], [512]).unwrap();
        check("root mean square", x.square().unwrap().mean_all().unwrap().sqrt(), 300.0, 0.0);
        // A sum beyond it is infinite once it is stored in f16. Read at once it never is, and comes in f32.
        let sum = x.sum_all().unwrap();
        sum.eval().unwrap();
        assert_eq!(sum.item().unwrap(), f64::INFINITY);
        assert_eq!(x.sum_all().unwrap().item().unwrap(), 153_600.0);
        check("sum in f32", x.cast(F32).unwrap().sum_all(), 153_600.0, 0.0);
        let y = Tensor::from_vec_gpu(&device, vec![bf16::from_f32(300.0); 512], vec![2, 256]).unwrap();
        assert_eq!((y.dtype(), y.dims()), (BF16, &[2, 256][..]));
        check("sum in bf16", y.sum_all(), 153_600.0, 0.0);
    }
}

/// Rounded to f16 it takes a shorter form: at the ends of the range and beyond.
#[test]
fn gelu_of_halves() {
    for device in devices() {
        let values = [0.0f32, 1e-4, 0.5, -0.5, 3.0, -3.0, -7.5, 40.0, -40.0, 65504.0, -65504.0, f32::INFINITY, f32::NAN];
        let x = Tensor::from_vec(values.to_vec(), &[values.len()], &device).unwrap().cast(F16).unwrap();
        let got = x.gelu_tanh().unwrap().cast(F32).unwrap().to_vec().unwrap();
        for (v, got) in values.map(f64::from).into_iter().zip(got) {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (v + 0.044715 * v.powi(3));
            let want = v / (1.0 + (-2.0 * u).exp());
            let near = (f64::from(got) - want).abs() <= 1e-3 * want.abs() + 1e-6;
            assert!(near || f64::from(got) == want || (got.is_nan() && want.is_nan()), "gelu({v}) on {}: {got}, not {want}", device.name());
        }
    }
}

#[test]
fn a_gpu_computes_in_f16_unless_told_otherwise() {
    for device in devices() {
        let want = if device.is_cpu() || !device.supports(F16) { F32 } else { F16 };
        assert_eq!(device.default_float(), want);
        for d in [want, F32, BF16] {
            let x = Rng::new(1).normal(&[8, 8], d, &device).unwrap();
            let y = x.matmul(&x).unwrap().add(&x).unwrap().softmax(-1).unwrap();
            assert_eq!(y.dtype(), d);
            let sums = y.cast(F32).unwrap().sum(&[1], false).unwrap().to_vec().unwrap();
            assert!(sums.iter().all(|s| (s - 1.0).abs() < 0.02), "{sums:?}");
        }
    }
}

/// A cast rounds where its result goes on in the same kernel too: every half, the numbers between two, and their neighbours.
#[test]
fn casts_to_sixteen_bits_round_within_a_kernel() {
    fn check(dtype: DType, round: fn(f32) -> f32, of: fn(u16) -> f32) {
        let mut values = vec![];
        for bits in 0..0x7fffu16 {
            let (low, high) = (of(bits), of(bits + 1));
            if low.is_finite() && (low == 0.0 || low.is_normal()) && (high.is_infinite() || high.is_normal()) {
                let between = if high.is_finite() { (f64::from(low) + f64::from(high)) as f32 / 2.0 } else { low * (1.0 + f32::EPSILON) };
                let near = [low, between, f32::from_bits(between.to_bits() - 1), f32::from_bits(between.to_bits() + 1)];
                values.extend(near.into_iter().filter(|v| *v == 0.0 || v.is_normal()).flat_map(|v| [v, -v]));
            }
        }
        let want: Vec<f32> = values.iter().map(|v| 2.0 * round(*v)).collect();
        for device in devices() {
            let x = Tensor::from_vec(values.clone(), &[values.len()], &device).unwrap();
            let y = x.cast(dtype).unwrap().cast(F32).unwrap().mul(2.0).unwrap();
            assert_eq!(y.explain().unwrap().matches("dispatch").count(), 1, "{}", y.explain().unwrap());
            let got = y.to_vec().unwrap();
            let wrong = got.iter().zip(&want).position(|(g, w)| g != w);
            if let Some(i) = wrong {
                panic!("{dtype} on {}: {:e} gives {:e}, not {:e}", device.name(), values[i], got[i], want[i]);
            }
        }
    }
    check(F16, |v| f16::from_f32(v).to_f32(), |bits| f16::from_bits(bits).to_f32());
    check(BF16, |v| bf16::from_f32(v).to_f32(), |bits| bf16::from_bits(bits).to_f32());
}
