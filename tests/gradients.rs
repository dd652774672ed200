//! Gradients of every differentiable operation: f64 against finite differences, then f32 on every device against f64.

use tensorlogic::autograd::{GradOptions, checkpoint, grad, no_grad};
use tensorlogic::ops::attention::AttentionOptions;
use tensorlogic::ops::loss::{NllOptions, Reduction};
use tensorlogic::ops::pad::PadMode;
use tensorlogic::ops::rope::RopePairs;
use tensorlogic::{DType, Device, Rng, Tensor, TensorResult};

type Function<'a> = dyn Fn(&[Tensor]) -> TensorResult<Tensor> + 'a;

fn devices() -> Vec<Device> {
    match Device::open("vulkan") {
        Ok(gpu) => vec![Device::cpu(), gpu],
        Err(e) if std::env::var("TL_REQUIRE_GPU").is_ok_and(|v| v == "1") => panic!("{e}"),
        Err(_) => vec![Device::cpu()],
    }
}

/// A tensor of these values, seen through a layout other than the plain one.
fn lay(values: &[f64], shape: &[usize], layout: usize, dtype: DType, device: &Device) -> Tensor {
    let make = |v: Vec<f64>, shape: &[usize]| {
        let t = Tensor::from_vec(v.iter().map(|&x| x as f32).collect::<Vec<f32>>(), shape, device);
        if dtype == DType::F64 { Tensor::from_vec(v, shape, device).unwrap() } else { t.unwrap().cast(dtype).unwrap() }
    };
    let n = shape.len();
    match layout {
        1 if n >= 2 => {
            // Stored transposed.
            let t = make(values.to_vec(), shape).transpose(-1, -2).unwrap();
            let bytes = t.to_bytes().unwrap();
            let bytes = tensorlogic::backends::Bytes::Owned(std::sync::Arc::new(bytes));
            Tensor::from_bytes(bytes, dtype, t.dims(), device).unwrap().transpose(-1, -2).unwrap()
        }
        2 if n >= 1 => {
            // A part of something larger.
            let mut margins = vec![(0, 0); n];
            margins[n - 1] = (1, 2);
            let big = make(values.to_vec(), shape).pad(&margins, PadMode::Constant(9.0)).unwrap();
            big.eval().unwrap();
            big.narrow(-1, 1, shape[n - 1]).unwrap()
        }
        _ => make(values.to_vec(), shape),
    }
}

/// Weights that make a scalar of a result, so that every element's gradient differs.
fn scalar(y: &Tensor) -> TensorResult<Tensor> {
    let n = y.numel();
    let weights = Tensor::arange(0.0, n as f64, 1.0, DType::F32, y.device())?.mul(0.37)?.sin()?.add(1.5)?;
    let shape: Vec<isize> = y.dims().iter().map(|&d| d as isize).collect();
    y.mul(&weights.cast(y.dtype())?.reshape(&shape)?)?.sum_all()
}

fn gradients(f: &Function, inputs: &[Tensor]) -> TensorResult<Vec<Vec<f64>>> {
    let leaves: Vec<Tensor> = inputs.iter().map(|t| t.requires_grad()).collect::<TensorResult<_>>()?;
    scalar(&f(&leaves)?)?.backward()?;
    // All in one plan: one gradient's kernels must leave what another's need.
    let grads: Vec<Tensor> = leaves.iter().filter_map(Tensor::grad).collect();
    tensorlogic::eval::eval_all(&grads.iter().collect::<Vec<_>>())?;
    leaves
        .iter()
        .map(|t| match t.grad() {
            Some(g) => {
                assert_eq!((g.dims(), g.dtype()), (t.dims(), t.dtype()));
                Ok(g.to_vec()?.iter().map(|&v| v as f64).collect())
            }
            None => Ok(vec![0.0; t.numel()]),
        })
        .collect()
}

/// Gradients of `f` for inputs of these shapes with values in `range`.
#[track_caller]
fn check(name: &str, shapes: &[&[usize]], range: (f64, f64), f: impl Fn(&[Tensor]) -> TensorResult<Tensor>) {
    let cpu = Device::cpu();
    let mut rng = Rng::new(name.len() as u64 * 77 + shapes.len() as u64);
    let values: Vec<Vec<f64>> = shapes
        .iter()
        .map(|s| {
            rng.uniform(s, DType::F32, &cpu).unwrap().to_vec().unwrap().iter().map(|&u| range.0 + (range.1 - range.0) * u as f64).collect()
        })
        .collect();
    for layout in 0..3 {
        let f64s: Vec<Tensor> = values.iter().zip(shapes).map(|(v, s)| lay(v, s, layout, DType::F64, &cpu)).collect();
        let leaves: Vec<Tensor> = f64s.iter().map(|t| t.requires_grad().unwrap()).collect();
        scalar(&f(&leaves).unwrap_or_else(|e| panic!("{name}: {e}"))).unwrap().backward().unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut exact = Vec::new();
        for (k, leaf) in leaves.iter().enumerate() {
            let got = leaf.grad().map_or(vec![0.0; leaf.numel()], |g| g.to_vec_of::<f64>().unwrap_or_else(|e| panic!("{name}: {e}")));
            // Five-point differences: the error is of the order h⁴.
            let h = 1e-3;
            for i in 0..values[k].len().min(40) {
                let at = |step: f64| {
                    let mut moved = values.clone();
                    moved[k][i] += step;
                    let x: Vec<Tensor> = moved.iter().zip(shapes).map(|(v, s)| Tensor::from_vec(v.clone(), s, &cpu).unwrap()).collect();
                    scalar(&f(&x).unwrap()).unwrap().item().unwrap()
                };
                let want = (8.0 * (at(h) - at(-h)) - (at(2.0 * h) - at(-2.0 * h))) / (12.0 * h);
                assert!(
                    (got[i] - want).abs() <= 1e-7 + 1e-6 * want.abs(),
                    "{name}, layout {layout}: gradient {i} of input {k} is {}, not {want}",
                    got[i]
                );
            }
            exact.push(got);
        }
        for device in devices() {
            let f32s: Vec<Tensor> = values.iter().zip(shapes).map(|(v, s)| lay(v, s, layout, DType::F32, &device)).collect();
            let got = gradients(&f, &f32s).unwrap_or_else(|e| panic!("{name} on {}: {e}", device.name()));
            for (k, (got, want)) in got.iter().zip(&exact).enumerate() {
                let size = want.iter().fold(1.0f64, |m, v| m.max(v.abs()));
                for (i, (g, w)) in got.iter().zip(want).enumerate() {
                    assert!(
                        (g - w).abs() <= 3e-4 * size,
                        "{name} on {}, layout {layout}: gradient {i} of input {k} is {g}, not {w}",
                        device.name()
                    );
                }
            }
        }
    }
}

macro_rules! unary {
    ($($name:ident in $range:expr),* $(,)?) => { $(check(stringify!($name), &[&[3, 5]], $range, |x| x[0].$name());)* };
}

#[test]
fn elementwise() {
    unary!(
        neg in (-2.0, 2.0), abs in (0.1, 2.0), sqrt in (0.2, 3.0), rsqrt in (0.3, 3.0), reciprocal in (0.3, 3.0), exp in (-2.0, 2.0),
        exp2 in (-2.0, 2.0), expm1 in (-2.0, 2.0), log in (0.2, 3.0), log2 in (0.2, 3.0), log10 in (0.2, 3.0), log1p in (-0.5, 3.0),
        sin in (-3.0, 3.0), cos in (-3.0, 3.0), tan in (-1.0, 1.0), asin in (-0.8, 0.8), acos in (-0.8, 0.8), atan in (-3.0, 3.0),
        sinh in (-2.0, 2.0), cosh in (-2.0, 2.0), tanh in (-2.0, 2.0), asinh in (-2.0, 2.0), acosh in (1.3, 3.0), atanh in (-0.7, 0.7),
        erf in (-2.0, 2.0), sigmoid in (-3.0, 3.0), square in (-2.0, 2.0), relu in (0.1, 2.0), gelu in (-3.0, 3.0), gelu_tanh in (-3.0, 3.0),
        silu in (-3.0, 3.0), softplus in (0.1, 3.0), mish in (0.1, 3.0), softsign in (0.1, 3.0), hardswish in (-2.5, 2.5),
        log_sigmoid in (0.1, 3.0),
    );
    check("elu", &[&[7]], (-2.0, -0.1), |x| x[0].elu(1.3));
    check("leaky_relu", &[&[7]], (-2.0, -0.1), |x| x[0].leaky_relu(0.2));
    check("clamp", &[&[9]], (-2.0, 2.0), |x| x[0].clamp(Some(-5.0), Some(5.0))?.mul(&x[0].clamp(Some(2.5), None)?));
    check("powers", &[&[7]], (0.3, 2.0), |x| x[0].pow(2.5)?.add(&x[0].pow(2)?)?.add(&x[0].pow(-1.0)?));
    check("casts", &[&[7]], (0.3, 2.0), |x| x[0].mul(&x[0].cast(DType::F64).unwrap_or_else(|_| x[0].clone()))?.cast(x[0].dtype()));
}

#[test]
fn two_operands_broadcast() {
    let shapes: [&[usize]; 2] = [&[3, 1, 4], &[2, 4]];
    check("add", &shapes, (-2.0, 2.0), |x| x[0].add(&x[1]));
    check("sub", &shapes, (-2.0, 2.0), |x| x[0].sub(&x[1]));
    check("mul", &shapes, (-2.0, 2.0), |x| x[0].mul(&x[1]));
    check("div", &shapes, (0.5, 2.0), |x| x[0].div(&x[1]));
    check("pow", &shapes, (0.5, 2.0), |x| x[0].pow(&x[1]));
    check("fmod", &[&[5], &[5]], (1.2, 1.9), |x| x[0].mul(3.0)?.fmod(&x[1].add(1.6)?));
    check("remainder", &[&[5], &[5]], (1.2, 1.9), |x| x[0].mul(3.0)?.remainder(&x[1].add(1.6)?));
    check("maximum", &shapes, (-2.0, 2.0), |x| x[0].maximum(&x[1]));
    check("minimum", &shapes, (-2.0, 2.0), |x| x[0].minimum(&x[1]));
    check("atan2", &shapes, (0.5, 2.0), |x| x[0].atan2(&x[1]));
    check("copysign", &shapes, (0.5, 2.0), |x| x[0].copysign(&x[1].neg()?));
    check("where", &shapes, (-2.0, 2.0), |x| x[0].gt(&x[1])?.where_(&x[0].mul(2.0)?, &x[1]));
    check("the same tensor twice", &[&[4]], (0.5, 2.0), |x| x[0].mul(&x[0])?.div(&x[0].add(1.0)?)?.add(&x[0]));
    check("hypot", &shapes, (0.5, 2.0), |x| x[0].hypot(&x[1]));
    check("logaddexp", &shapes, (0.5, 2.0), |x| x[0].logaddexp(&x[1]));
    check("lerp", &shapes, (0.5, 2.0), |x| x[0].lerp(&x[1], 0.3));
    check("addcmul", &[&[3], &[3], &[3]], (0.5, 2.0), |x| x[0].addcmul(&x[1], &x[2], 0.7));
}

#[test]
fn views() {
    let s: [&[usize]; 1] = [&[4, 6]];
    check("transpose", &s, (-2.0, 2.0), |x| x[0].t());
    check("permute", &[&[2, 3, 4]], (-2.0, 2.0), |x| x[0].permute(&[2, 0, 1]));
    check("reshape", &s, (-2.0, 2.0), |x| x[0].reshape(&[3, -1]));
    check("reshape of a transpose", &s, (-2.0, 2.0), |x| x[0].t()?.reshape(&[8, 3])?.exp());
    check("narrow", &s, (-2.0, 2.0), |x| x[0].narrow(1, 2, 3));
    check("slice", &s, (-2.0, 2.0), |x| x[0].slice(1, 1, 6, 2));
    check("select", &s, (-2.0, 2.0), |x| x[0].select(0, 2));
    check("flip", &s, (-2.0, 2.0), |x| x[0].flip(1)?.narrow(1, 1, 3));
    check("expand", &[&[1, 3]], (-2.0, 2.0), |x| x[0].expand(&[2, 4, 3]));
    check("unfold", &[&[2, 9]], (-2.0, 2.0), |x| x[0].unfold(1, 4, 2));
    check("split", &s, (-2.0, 2.0), |x| {
        let p = x[0].split_with_sizes(&[1, 2, 3], 1)?;
        p[0].mul(&p[2])?.add(&p[1].sum(&[1], true)?)
    });
    check("heads", &[&[2, 3, 12]], (-2.0, 2.0), |x| {
        let p = x[0].split_with_sizes(&[4, 4, 4], -1)?;
        let head = |t: &Tensor| t.reshape(&[2, 3, 2, 2])?.transpose(1, 2);
        head(&p[0])?.mul(&head(&p[1])?)?.add(&head(&p[2])?)
    });
    check("cat", &[&[2, 3], &[2, 2]], (-2.0, 2.0), |x| Tensor::cat(&[&x[0], &x[1], &x[0].exp()?], 1));
    check("stack", &[&[2, 3], &[2, 3]], (-2.0, 2.0), |x| Tensor::stack(&[&x[0], &x[1]], 1));
    check("unstack", &[&[3, 2]], (-2.0, 2.0), |x| {
        let p = x[0].unstack(0)?;
        p[0].mul(&p[2])
    });
    check("pad", &s, (-2.0, 2.0), |x| x[0].pad(&[(1, 0), (2, 1)], PadMode::Constant(1.0)));
    check("pad reflect", &s, (-2.0, 2.0), |x| x[0].pad(&[(1, 0), (2, 1)], PadMode::Reflect));
    check("roll", &s, (-2.0, 2.0), |x| x[0].roll(2, 1));
    check("tile", &s, (-2.0, 2.0), |x| x[0].tile(&[2, 1]));
    check("write", &[&[4, 3], &[2, 3]], (-2.0, 2.0), |x| x[0].exp()?.write(&x[1].exp()?, 0, 1));
}

#[test]
fn reductions() {
    let s: [&[usize]; 1] = [&[3, 4, 2]];
    check("sum", &s, (-2.0, 2.0), |x| x[0].sum(&[1], false));
    check("mean", &s, (-2.0, 2.0), |x| x[0].mean(&[0, 2], true));
    check("sum_all", &s, (-2.0, 2.0), |x| x[0].exp()?.sum_all());
    check("max", &s, (-2.0, 2.0), |x| x[0].max(&[1], false));
    check("min", &s, (-2.0, 2.0), |x| x[0].min(&[-1], true));
    check("prod", &s, (0.5, 2.0), |x| x[0].prod(&[1], false));
    check("var", &s, (-2.0, 2.0), |x| x[0].var(&[1], 1, false));
    check("std", &s, (-2.0, 2.0), |x| x[0].std(&[1], 0, false));
    check("logsumexp", &s, (-2.0, 2.0), |x| x[0].logsumexp(&[1], false));
    check("norm", &s, (0.5, 2.0), |x| x[0].norm(2.0, &[1], false));
    check("softmax", &s, (-2.0, 2.0), |x| x[0].softmax(1));
    check("log_softmax", &s, (-2.0, 2.0), |x| x[0].log_softmax(-1));
}

#[test]
fn products() {
    check("matmul", &[&[3, 4], &[4, 5]], (-2.0, 2.0), |x| x[0].matmul(&x[1]));
    check("matmul of a batch", &[&[2, 3, 4], &[4, 5]], (-2.0, 2.0), |x| x[0].matmul(&x[1]));
    check("matmul broadcast", &[&[2, 1, 3, 4], &[3, 4, 2]], (-2.0, 2.0), |x| x[0].matmul(&x[1]));
    check("linear", &[&[3, 4], &[5, 4], &[5]], (-2.0, 2.0), |x| x[0].matmul(&x[1].t()?)?.add(&x[2])?.gelu());
    check("vectors", &[&[4], &[4, 3]], (-2.0, 2.0), |x| x[0].matmul(&x[1]));
}

#[test]
fn norms_attention_and_rope() {
    check("layer_norm", &[&[3, 8], &[8], &[8]], (-2.0, 2.0), |x| x[0].layer_norm(Some(&x[1]), Some(&x[2]), 1e-5));
    check("layer_norm without weight", &[&[2, 3, 8]], (-2.0, 2.0), |x| x[0].layer_norm(None, None, 1e-5));
    check("rms_norm", &[&[3, 8], &[8]], (-2.0, 2.0), |x| x[0].rms_norm(Some(&x[1]), 1e-6));
    check("group_norm", &[&[2, 4, 3], &[4], &[4]], (-2.0, 2.0), |x| x[0].group_norm(2, Some(&x[1]), Some(&x[2]), 1e-5));
    let attend = |o: AttentionOptions| move |x: &[Tensor]| x[0].attention(&x[1], &x[2], x.get(3), &o);
    let qkv: [&[usize]; 3] = [&[2, 2, 3, 4], &[2, 2, 3, 4], &[2, 2, 3, 5]];
    check("attention", &qkv, (-1.0, 1.0), attend(AttentionOptions { causal: false, ..Default::default() }));
    check("causal attention", &qkv, (-1.0, 1.0), attend(AttentionOptions::default()));
    let grouped: [&[usize]; 3] = [&[1, 4, 3, 4], &[1, 2, 6, 4], &[1, 2, 6, 4]];
    check("grouped attention", &grouped, (-1.0, 1.0), attend(AttentionOptions { kv_len: Some(5), window: Some(3), ..Default::default() }));
    let masked: [&[usize]; 4] = [&[1, 2, 3, 4], &[1, 2, 4, 4], &[1, 2, 4, 4], &[2, 1, 4]];
    check("masked attention", &masked, (-1.0, 1.0), attend(AttentionOptions { causal: false, scale: Some(0.7), ..Default::default() }));
    for pairs in [RopePairs::Adjacent, RopePairs::Halves] {
        check("rope", &[&[3, 6], &[3, 6], &[3, 6]], (-1.0, 1.0), |x| x[0].rope(&x[1], &x[2], pairs));
    }
}

fn indices(values: &[i32], shape: &[usize], like: &Tensor) -> Tensor {
    Tensor::from_vec(values.to_vec(), shape, like.device()).unwrap()
}

#[test]
fn rows_by_index() {
    check("index_select", &[&[5, 3]], (-2.0, 2.0), |x| x[0].index_select(0, &indices(&[4, 1, 1, 0], &[4], &x[0])));
    check("index_select of columns", &[&[3, 5]], (-2.0, 2.0), |x| x[0].index_select(1, &indices(&[4, 1, 1, 0], &[4], &x[0])));
    check("gather", &[&[3, 5]], (-2.0, 2.0), |x| x[0].gather(1, &indices(&[4, 1, 0, 0, 2, 2], &[3, 2], &x[0])));
    check("embedding", &[&[7, 4]], (-2.0, 2.0), |x| x[0].embedding(&indices(&[6, 0, 6, 3, 3, 6], &[2, 3], &x[0])));
    check("index_add", &[&[5, 3], &[4, 3]], (-2.0, 2.0), |x| x[0].index_add(0, &indices(&[4, 1, 1, 0], &[4], &x[0]), &x[1].exp()?));
}

#[test]
fn losses() {
    let s: [&[usize]; 2] = [&[4, 3], &[4, 3]];
    check("mse_loss", &s, (-2.0, 2.0), |x| x[0].mse_loss(&x[1], Reduction::Mean));
    check("l1_loss", &s, (-2.0, 2.0), |x| x[0].l1_loss(&x[1], Reduction::Sum));
    check("huber_loss", &s, (-2.0, 2.0), |x| x[0].huber_loss(&x[1], 0.7, Reduction::None));
    check("smooth_l1_loss", &s, (-2.0, 2.0), |x| x[0].smooth_l1_loss(&x[1], 0.7, Reduction::Mean));
    check("binary_cross_entropy", &s, (0.1, 0.9), |x| x[0].binary_cross_entropy(&x[1], None, Reduction::Mean));
    check("binary_cross_entropy_with_logits", &s, (0.1, 0.9), |x| {
        x[0].binary_cross_entropy_with_logits(&x[1], None, None, Reduction::Mean)
    });
    check("kl_div", &s, (0.1, 0.9), |x| x[0].kl_div(&x[1], false, Reduction::Sum));
    for reduction in [Reduction::None, Reduction::Mean, Reduction::Sum] {
        check("cross_entropy", &[&[4, 7]], (-2.0, 2.0), |x| {
            x[0].cross_entropy(&indices(&[0, 6, -100, 3], &[4], &x[0]), &NllOptions { reduction, ..Default::default() })
        });
    }
}

#[test]
fn index_add_matches_loops() {
    for device in devices() {
        for (n, inner, count) in [(1, 1, 5), (7, 3, 300), (50, 600, 1000), (300, 8, 3), (4, 1030, 70)] {
            let mut rng = Rng::new(n as u64);
            let table = rng.normal(&[n, inner], DType::F32, &device).unwrap();
            let rows = rng.normal(&[count, inner], DType::F32, &device).unwrap();
            let index = rng.integers(0, n as i32, &[count], &device).unwrap();
            let mut want: Vec<f64> = table.to_vec().unwrap().iter().map(|&v| v as f64).collect();
            let (r, ix) = (rows.to_vec().unwrap(), index.to_vec_of::<i32>().unwrap());
            for (i, &t) in ix.iter().enumerate() {
                for c in 0..inner {
                    want[t as usize * inner + c] += r[i * inner + c] as f64;
                }
            }
            let got = table.index_add(0, &index, &rows).unwrap().to_vec().unwrap();
            for (i, (g, w)) in got.iter().zip(&want).enumerate() {
                assert!((*g as f64 - w).abs() < 1e-3, "{n} {inner} {count}: element {i} is {g}, not {w}");
            }
        }
    }
}

#[test]
fn gradients_of_gradients() {
    let cpu = Device::cpu();
    let x = Tensor::from_vec(vec![0.5f64, 1.5, -0.7], &[3], &cpu).unwrap().requires_grad().unwrap();
    // f = Σ x³·sin(x): f' = 3x² sin x + x³ cos x, f'' = 6x sin x + 6x² cos x − x³ sin x
    let y = x.mul(&x).unwrap().mul(&x).unwrap().mul(&x.sin().unwrap()).unwrap().sum_all().unwrap();
    let first = grad(&[&y], &[&x], &GradOptions { create_graph: true, ..Default::default() }).unwrap().remove(0);
    let second = grad(&[&first], &[&x], &GradOptions::default()).unwrap().remove(0);
    for (i, &v) in [0.5f64, 1.5, -0.7].iter().enumerate() {
        let (s, c) = (v.sin(), v.cos());
        assert!((first.to_vec_of::<f64>().unwrap()[i] - (3.0 * v * v * s + v * v * v * c)).abs() < 1e-12);
        assert!((second.to_vec_of::<f64>().unwrap()[i] - (6.0 * v * s + 6.0 * v * v * c - v * v * v * s)).abs() < 1e-12);
    }
    // Through a kernel's gradient by hand and one by definition.
    let second_of = |f: &dyn Fn(&Tensor) -> TensorResult<Tensor>| {
        let first = |v: Vec<f64>| -> (Tensor, Tensor) {
            let x = Tensor::from_vec(v, &[2, 3], &cpu).unwrap().requires_grad().unwrap();
            let y = scalar(&f(&x).unwrap()).unwrap();
            let g = grad(&[&y], &[&x], &GradOptions { create_graph: true, ..Default::default() }).unwrap().remove(0);
            (x, g)
        };
        let v = vec![0.3, -0.8, 1.2, 0.4, 0.1, -0.5];
        let (x, g) = first(v.clone());
        let got = grad(&[&scalar(&g).unwrap()], &[&x], &GradOptions::default()).unwrap()[0].to_vec_of::<f64>().unwrap();
        for i in 0..6 {
            let at = |h: f64| {
                let mut v = v.clone();
                v[i] += h;
                scalar(&first(v).1.detach()).unwrap().item().unwrap()
            };
            let want = (at(1e-5) - at(-1e-5)) / 2e-5;
            assert!((got[i] - want).abs() < 1e-6, "element {i} is {}, not {want}", got[i]);
        }
    };
    second_of(&|x| x.softmax(-1));
    second_of(&|x| x.layer_norm(None, None, 1e-5));
    second_of(&|x| x.matmul(&x.t()?));
    second_of(&|x| x.narrow(1, 0, 2)?.gelu());
}

#[test]
fn one_plan_gives_what_many_give() {
    for device in devices() {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let run = |together: bool| -> Vec<Vec<f32>> {
                let mut rng = Rng::new(2);
                let mut leaf = |shape: &[usize]| {
                    let t = rng.normal(shape, DType::F32, &device).unwrap().cast(dtype).unwrap();
                    t.eval().unwrap();
                    t.requires_grad().unwrap()
                };
                let [x, w, b, v] = [leaf(&[8, 16]), leaf(&[16]), leaf(&[16]), leaf(&[13, 16])];
                let target = indices(&[0, 1, 2, 3, 4, 5, 6, 7], &[8], &x);
                let h = x.layer_norm(Some(&w), Some(&b), 1e-5).unwrap().matmul(&v.t().unwrap()).unwrap();
                h.cross_entropy(&target, &NllOptions::default()).unwrap().mul(64.0).unwrap().backward().unwrap();
                let grads: Vec<Tensor> = [&x, &w, &b, &v].iter().filter_map(|t| t.grad()).collect();
                if together {
                    tensorlogic::eval::eval_all(&grads.iter().collect::<Vec<_>>()).unwrap();
                }
                grads.iter().map(|g| g.to_vec().unwrap()).collect()
            };
            for (a, b) in run(false).iter().zip(run(true)) {
                let size = a.iter().fold(0f32, |m, v| m.max(v.abs()));
                let tolerance = if dtype == DType::F32 { 1e-5 } else { 0.02 };
                assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= tolerance * size), "{dtype} on {}: {a:?} {b:?}", device.name());
            }
        }
    }
}

#[test]
fn modes_and_errors() {
    let cpu = Device::cpu();
    let x = Tensor::from_vec(vec![1.0f32, 2.0], &[2], &cpu).unwrap().requires_grad().unwrap();
    assert!(!no_grad(|| x.exp().unwrap()).is_tracked());
    assert!(!x.detach().exp().unwrap().is_tracked());
    assert!(x.exp().unwrap().is_tracked());
    let e = Tensor::ones(&[], DType::F32, &cpu).unwrap().backward().unwrap_err().to_string();
    assert!(e.contains("requires_grad"), "{e}");
    let e = x.exp().unwrap().backward().unwrap_err().to_string();
    assert!(e.contains("not one element"), "{e}");
    assert!(Tensor::from_vec(vec![1i32], &[1], &cpu).unwrap().requires_grad().is_err());
    // Gradients add up until they are forgotten; the value may be asked for before, between and after.
    let y = x.mul(&x).unwrap().sum_all().unwrap();
    assert_eq!(y.item().unwrap(), 5.0);
    y.backward().unwrap();
    x.mul(3.0).unwrap().sum_all().unwrap().backward().unwrap();
    assert_eq!(x.grad().unwrap().to_vec().unwrap(), [5.0, 7.0]);
    x.zero_grad();
    assert!(x.grad().is_none());
    // The graph is gone after backward, unless it was kept.
    let y = x.exp().unwrap().sum_all().unwrap();
    y.item().unwrap();
    y.backward_with(&y.ones_like().unwrap(), true).unwrap();
    y.backward().unwrap();
    let e = y.backward().unwrap_err().to_string();
    assert!(e.contains("retain_graph"), "{e}");
    let z = Tensor::ones(&[2], DType::F32, &cpu).unwrap().requires_grad().unwrap();
    let e = grad(&[&x.sum_all().unwrap()], &[&z], &GradOptions::default()).unwrap_err().to_string();
    assert!(e.contains("does not contribute"), "{e}");
}

#[test]
fn checkpointed_parts_give_the_same_gradients() {
    for device in devices() {
        let mut rng = Rng::new(5);
        let w: Vec<Tensor> = (0..3).map(|_| rng.normal(&[6, 6], DType::F32, &device).unwrap().requires_grad().unwrap()).collect();
        let x = rng.normal(&[4, 6], DType::F32, &device).unwrap().requires_grad().unwrap();
        let run = |check: bool| -> Vec<Vec<f32>> {
            let mut h = x.clone();
            for w in &w {
                let own = w.clone();
                let f = move |t: &[Tensor]| t[0].matmul(&own)?.gelu()?.add(&t[0]);
                h = if check { checkpoint(f, &[&h]).unwrap() } else { f(&[h.clone()]).unwrap() };
            }
            h.square().unwrap().mean_all().unwrap().backward().unwrap();
            let all = w.iter().chain([&x]).map(|t| t.grad().unwrap().to_vec().unwrap()).collect();
            w.iter().chain([&x]).for_each(Tensor::zero_grad);
            all
        };
        for (a, b) in run(false).iter().flatten().zip(run(true).iter().flatten()) {
            assert!((a - b).abs() <= 1e-5 * a.abs().max(1.0), "{a} {b} on {}", device.name());
        }
    }
}
