//! What fuses into what: dispatch counts written by hand from the rules of `compile/fuse.rs`, and plans of two spellings compared.

use crate::common::devices;
use tensorlogic::ops::Activation;
use tensorlogic::ops::attention::AttentionOptions;
use tensorlogic::ops::rope::RopePairs;
use tensorlogic::{DType, Device, Tensor, TensorResult};

fn leaf(shape: &[usize]) -> Tensor {
    Tensor::from_vec(vec![0.5f32; shape.iter().product()], shape, &Device::cpu()).unwrap()
}

/// Compares the number of dispatches of `f` with `expect`.
#[track_caller]
fn check(expect: usize, f: impl Fn() -> TensorResult<Tensor>) {
    let plan = f().unwrap().explain().unwrap();
    let got: usize = plan.lines().last().unwrap().split(' ').next().unwrap().parse().unwrap();
    assert_eq!(got, expect, "\n{plan}");
}

#[test]
fn elementwise_chains_are_one_dispatch() {
    let (a, b) = (leaf(&[4, 6]), leaf(&[6]));
    check(1, || a.add(&b)?.mul(2.0)?.relu()?.exp()?.sub(&a));
    check(1, || a.gelu_tanh());
    check(1, || a.add(&b)?.gelu_tanh());
    check(1, || a.exp()?.add(&b)?.mish()?.gelu()?.sub(&b));
    check(1, || a.t()?.add(&leaf(&[6, 4]))?.neg());
    check(1, || a.reshape(&[2, 12])?.add(1.0)?.reshape(&[24])?.mul(3.0));
}

#[test]
fn chains_go_into_kernels() {
    let (a, w, c) = (leaf(&[4, 6]), leaf(&[5, 6]), leaf(&[5]));
    check(1, || a.matmul(&w.t()?)?.add(&c)?.relu());
    check(1, || a.mul(2.0)?.sum(&[1], false)?.sqrt());
    check(1, || a.add(1.0)?.softmax(-1)?.mul(3.0));
    check(1, || a.rms_norm(Some(&leaf(&[6])), 1e-5)?.mul(&leaf(&[4, 6])));
    check(2, || a.matmul(&w.t()?)?.silu()?.mul(&a.matmul(&leaf(&[5, 6]).t()?)?));
    // A function that uses its argument several times goes into the store whole, the bias before it too.
    check(1, || a.matmul(&w.t()?)?.add(&c)?.gelu_tanh());
    check(1, || a.matmul(&w.t()?)?.mish());
    check(2, || a.matmul(&w.t()?)?.add(&c)?.gelu_tanh()?.matmul(&leaf(&[5, 6])));
    // A residual goes into the store of the product.
    check(2, || a.add(&a.matmul(&w.t()?)?.matmul(&leaf(&[5, 6]))?));
}

/// What is rounded to bf16 on its way into products is stored as bf16, once, by the kernel that computes it.
#[test]
fn rounded_activations_are_stored_as_bf16() {
    for d in devices() {
        let matrix = |rows: usize, step: f64| {
            let (values, shape) = wave(&[rows, 16], step);
            Tensor::from_vec(values.iter().map(|v| *v as f32).collect(), &shape, &d).unwrap().eval().unwrap().clone()
        };
        let round = |t: &Tensor| t.cast(DType::BF16)?.cast(DType::F32);
        let (x, gain) = (matrix(9, 0.37), Tensor::full(1.5, &[16], DType::F32, &d).unwrap().eval().unwrap().clone());
        let [w, v] = [(7, 0.11), (5, 0.23)].map(|(rows, step)| matrix(rows, step).cast(DType::BF16).unwrap().eval().unwrap().clone());
        let normed = || x.layer_norm(Some(&gain), None, 1e-5);
        let one = round(&normed().unwrap()).unwrap().matmul(&w.t().unwrap()).unwrap();
        let plan = one.explain().unwrap();
        assert!(plan.contains("bf16[9,16]") || plan.contains("bf16[144]"), "on {}:\n{plan}", d.name());
        assert_eq!(plan.matches("\n%").count() + usize::from(plan.starts_with('%')), 2, "on {}:\n{plan}", d.name());
        // Two products share what was rounded; what reads the numbers as they were still has them.
        let (normed, same) = (normed().unwrap(), normed().unwrap());
        let rounded = round(&normed).unwrap();
        let two = [rounded.matmul(&w.t().unwrap()).unwrap(), rounded.matmul(&v.t().unwrap()).unwrap(), same.mul(1.0).unwrap()];
        tensorlogic::eval::eval_all(&[&two[0], &two[1], &two[2]]).unwrap();
        let bf16 = |v: f64| f64::from(half::bf16::from_f32(v as f32).to_f32());
        let row = |i: usize| -> Vec<f64> {
            let r: Vec<f64> = x.to_vec().unwrap()[16 * i..16 * (i + 1)].iter().map(|v| f64::from(*v)).collect();
            let mean = r.iter().sum::<f64>() / 16.0;
            let var = r.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 16.0;
            r.iter().map(|v| (v - mean) / (var + 1e-5).sqrt() * 1.5).collect()
        };
        for (got, w) in [(&one, &w), (&two[0], &w), (&two[1], &v)] {
            let weights = w.cast(DType::F32).unwrap().to_vec().unwrap();
            let outs = w.dims()[0];
            for (i, got) in got.to_vec().unwrap().chunks(outs).enumerate() {
                for (o, got) in got.iter().enumerate() {
                    let want: f64 = row(i).iter().zip(&weights[16 * o..]).map(|(x, w)| bf16(*x) * f64::from(*w)).sum();
                    // A value beside the border of two bf16 may be rounded to the other one.
                    assert!((f64::from(*got) - want).abs() < 2e-2, "on {}: row {i}, column {o}: {got}, not {want}", d.name());
                }
            }
        }
        let exact: Vec<f64> = (0..9).flat_map(row).collect();
        crate::common::assert_close("the norm itself", &two[2].to_vec().unwrap(), &exact, 1e-5, 1e-5);
    }
}

#[test]
fn common_subexpressions_run_once() {
    let (a, w) = (leaf(&[4, 6]), leaf(&[5, 6]));
    check(2, || a.matmul(&w.t()?)?.add(&a.matmul(&w.t()?)?.softmax(-1)?));
}

#[test]
fn windows_are_filled_by_whoever_computes() {
    let (a, w) = (leaf(&[4, 6]), leaf(&[6, 6]));
    // Both pieces are stored in place by the kernels.
    check(2, || Tensor::cat(&[&a.matmul(&w)?, &a.softmax(-1)?], 0));
    // A leaf has to be copied in.
    check(2, || Tensor::cat(&[&a.matmul(&w)?, &a], 1));
}

#[test]
fn spellings_give_one_plan() {
    let (a, w, c) = (leaf(&[4, 6]), leaf(&[5, 6]), leaf(&[5]));
    let x = a.matmul(&w.t().unwrap()).unwrap().add(&c).unwrap().relu().unwrap();
    let y =
        a.matmul(&w.permute(&[1, 0]).unwrap()).unwrap().add(&c.unsqueeze(0).unwrap()).unwrap().maximum(tensorlogic::ops::Lit(0.0)).unwrap();
    assert_eq!(x.explain().unwrap(), y.explain().unwrap());
}

#[test]
fn a_decoder_layer_takes_eleven_dispatches() {
    let (d, heads, kv, hd, ff, cap) = (16, 4, 2, 4, 20, 8);
    let x = leaf(&[1, 1, d]);
    let (cos, sin) = (leaf(&[1, hd]), leaf(&[1, hd]));
    let linear = |x: &Tensor, n: usize| x.matmul(&leaf(&[n, x.dims()[2]]).t()?);
    check(11, || {
        let h = x.rms_norm(Some(&leaf(&[d])), 1e-5)?;
        let split = |t: Tensor, n: usize| t.reshape(&[1, 1, n as isize, hd as isize])?.transpose(1, 2);
        let q = split(linear(&h, heads * hd)?, heads)?.rope(&cos, &sin, RopePairs::Adjacent)?;
        let k = split(linear(&h, kv * hd)?, kv)?.rope(&cos, &sin, RopePairs::Adjacent)?;
        let v = split(linear(&h, kv * hd)?, kv)?;
        let k = leaf(&[1, kv, cap, hd]).write(&k, 2, 5)?;
        let v = leaf(&[1, kv, cap, hd]).write(&v, 2, 5)?;
        let a = q.attention(&k, &v, None, &AttentionOptions { kv_len: Some(6), ..Default::default() })?;
        let x = x.add(&linear(&a.transpose(1, 2)?.reshape(&[1, 1, d as isize])?, d)?)?;
        let h = x.rms_norm(Some(&leaf(&[d])), 1e-5)?;
        x.add(&linear(&linear(&h, ff)?.silu()?.mul(&linear(&h, ff)?)?, d)?)
    });
    let _ = DType::F32;
}

/// What an activation means, from its paper.
fn activation(a: Activation, x: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let softplus = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
    match a {
        Activation::None => x,
        Activation::ReLU => x.max(0.0),
        Activation::GeluTanh => 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh()),
        Activation::SiLU => x * sigmoid(x),
        Activation::Tanh => x.tanh(),
        Activation::Sigmoid => sigmoid(x),
        Activation::Gelu => 0.5 * x * (1.0 + libm::erf(x * 0.5f64.sqrt())),
        Activation::Softplus => softplus(x),
        Activation::Mish => x * softplus(x).tanh(),
        Activation::HardSwish => x * (x + 3.0).clamp(0.0, 6.0) / 6.0,
        Activation::ReLU6 => x.clamp(0.0, 6.0),
        _ => panic!("{a:?} has no definition here"),
    }
}

/// Two spellings on every device and in every float: the same plan of one dispatch, and the values that `define` gives.
#[track_caller]
fn check_fused(
    name: &str,
    operands: &[(Vec<f64>, Vec<usize>)],
    fused: impl Fn(&[Tensor]) -> TensorResult<Tensor>,
    unfused: impl Fn(&[Tensor]) -> TensorResult<Tensor>,
    define: impl Fn(&[Vec<f64>]) -> Vec<f64>,
) {
    for device in devices() {
        for (dtype, tolerance) in [(DType::F32, 2e-6), (DType::F16, 1e-3), (DType::BF16, 8e-3)] {
            let make = |(v, s): &(Vec<f64>, Vec<usize>)| {
                let t = Tensor::from_vec(v.iter().map(|&v| v as f32).collect(), s, &device)?.cast(dtype)?;
                t.eval()?;
                Ok(t)
            };
            let t = operands.iter().map(make).collect::<TensorResult<Vec<_>>>().unwrap();
            let (a, b) = (fused(&t).unwrap(), unfused(&t).unwrap());
            let (plan, other) = (a.explain().unwrap(), b.explain().unwrap());
            let case = format!("{name} {dtype} on {}", device.name());
            assert_eq!(plan, other, "{case}");
            assert!(plan.ends_with("\n1 dispatch\n"), "{case}:\n{plan}");
            // The inputs as the dtype holds them.
            let held: Vec<Vec<f64>> = t.iter().map(|t| t.to_vec().unwrap().into_iter().map(f64::from).collect()).collect();
            let (got, same, want) = (a.to_vec().unwrap(), b.to_vec().unwrap(), define(&held));
            assert_eq!(got, same, "{case}");
            assert_eq!((a.dtype(), got.len()), (dtype, want.len()), "{case}");
            for (g, w) in got.iter().zip(&want) {
                assert!((f64::from(*g) - w).abs() <= tolerance * (1.0 + w.abs()), "{case}: {g} for {w}");
            }
        }
    }
}

fn wave(shape: &[usize], step: f64) -> (Vec<f64>, Vec<usize>) {
    ((0..shape.iter().product::<usize>()).map(|i| (i as f64 * step).sin() * 2.0).collect(), shape.to_vec())
}

#[test]
fn matmul_with_activation_is_the_product_and_the_function() {
    let (m, k, n) = (5, 12, 7);
    for a in Activation::ALL {
        let define = |v: &[Vec<f64>]| {
            let dot = |i: usize, j: usize| (0..k).map(|e| v[0][i * k + e] * v[1][e * n + j]).sum::<f64>();
            (0..m * n).map(|p| activation(a, dot(p / n, p % n))).collect()
        };
        let operands = [wave(&[m, k], 0.7), wave(&[k, n], 1.3)];
        check_fused(
            &format!("{a:?}"),
            &operands,
            |t| t[0].matmul_with_activation(&t[1], a),
            |t| {
                let temp = t[0].matmul(&t[1])?;
                match a {
                    Activation::ReLU => temp.relu(),
                    Activation::GeluTanh => temp.gelu_tanh(),
                    _ => a.apply(&temp),
                }
            },
            define,
        );
    }
    assert_eq!([Activation::None as u32, Activation::ReLU as u32, Activation::GeluTanh as u32], [0, 1, 2]);
    assert!(Activation::ALL.iter().enumerate().all(|(i, &a)| a as usize == i));
    assert_eq!(Activation::default(), Activation::None);
}

#[test]
fn fused_elementwise_names() {
    let pair = [wave(&[6, 9], 0.7), wave(&[9], 1.3)];
    let each = |f: fn(f64, f64) -> f64| move |v: &[Vec<f64>]| v[0].iter().enumerate().map(|(i, &x)| f(x, v[1][i % 9])).collect::<Vec<_>>();
    check_fused("add_relu", &pair, |t| t[0].fused_add_relu(&t[1]), |t| t[0].add(&t[1])?.relu(), each(|a, b| (a + b).max(0.0)));
    check_fused("mul_relu", &pair, |t| t[0].fused_mul_relu(&t[1]), |t| t[0].mul(&t[1])?.relu(), each(|a, b| (a * b).max(0.0)));
    let three = [wave(&[6, 9], 0.7), wave(&[9], 1.3), wave(&[6, 1], 2.1)];
    check_fused(
        "affine",
        &three,
        |t| t[0].fused_affine(&t[1], &t[2]),
        |t| t[0].mul(&t[1])?.add(&t[2]),
        |v| (0..54).map(|i| v[0][i] * v[1][i % 9] + v[2][i / 9]).collect(),
    );
    check_fused(
        "affine of numbers",
        &three[..1],
        |t| t[0].fused_affine(2.0, -1.0),
        |t| t[0].mul(2.0)?.add(-1.0),
        |v| v[0].iter().map(|x| x * 2.0 - 1.0).collect(),
    );
}

#[test]
fn fused_names_report_the_users_line() {
    let (a, b) = (leaf(&[4, 3]), leaf(&[2, 5]));
    for e in [a.matmul_with_activation(&b, Activation::ReLU), a.fused_add_relu(&b), a.fused_mul_relu(&b), a.fused_affine(&b, &b)] {
        let text = e.err().unwrap().to_string();
        assert!(text.contains("it/ops/fusion.rs"), "{text}");
    }
}

#[test]
fn constants_go_into_products() {
    for device in devices() {
        for (m, k, n) in [(1, 8, 3), (5, 12, 7), (40, 33, 70)] {
            let x = Tensor::from_vec((0..m * k).map(|v| v as f32).collect(), &[m, k], &device).unwrap();
            let rows: Vec<f64> = (0..m).map(|i| (0..k).map(|e| (i * k + e) as f64).sum()).collect();
            for value in [0.0, 2.0] {
                let w = || Tensor::full(value, &[k, n], DType::F32, &device);
                let y = x.matmul(&w().unwrap()).unwrap();
                let got = y.to_vec().unwrap();
                assert!((0..m * n).all(|p| f64::from(got[p]) == rows[p / n] * value), "{m} {k} {n} on {}", device.name());
                let transposed = w().unwrap().t().unwrap().matmul(&x.t().unwrap()).unwrap().to_vec().unwrap();
                assert!((0..m * n).all(|p| f64::from(transposed[p]) == rows[p % m] * value), "{m} {k} {n} transposed on {}", device.name());
            }
        }
    }
}
