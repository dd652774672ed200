//! Gradients besides those of single operations: of gradients, through one plan or many, of parts that are computed again; modes and errors.

use crate::common::devices;
use tensorlogic::autograd::{GradOptions, checkpoint, grad, no_grad};
use tensorlogic::nn::{Embedding, Module};
use tensorlogic::ops::attention::AttentionOptions;
use tensorlogic::ops::index_add::Combine;
use tensorlogic::ops::loss::NllOptions;
use tensorlogic::{DType, Device, Rng, Tensor, TensorResult};

/// Weights that make a scalar of a result, so that every element's gradient differs.
fn scalar(y: &Tensor) -> TensorResult<Tensor> {
    let n = y.numel();
    let weights = Tensor::arange(0.0, n as f64, 1.0, DType::F32, y.device())?.mul(0.37)?.sin()?.add(1.5)?;
    let shape: Vec<isize> = y.dims().iter().map(|&d| d as isize).collect();
    y.mul(&weights.cast(y.dtype())?.reshape(&shape)?)?.sum_all()
}

fn indices(values: &[i32], shape: &[usize], like: &Tensor) -> Tensor {
    Tensor::from_vec(values.to_vec(), shape, like.device()).unwrap()
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
    let smooth = NllOptions { label_smoothing: 0.2, ..Default::default() };
    second_of(&|x| x.cross_entropy(&indices(&[2, 0], &[2], x), &smooth));
    let shares = Tensor::from_vec(vec![0.2, 0.5, 0.3, 0.9, 0.4, 0.1], &[2, 3], &cpu).unwrap();
    second_of(&|x| x.cross_entropy(&shares, &smooth));
}

/// The gradient of a product to its only zero is the product of the others.
#[test]
fn products_with_zeros() {
    for device in devices() {
        let leaf = |v: &[f32]| Tensor::from_vec(v.to_vec(), &[v.len()], &device).unwrap().requires_grad().unwrap();
        let (x, y) = (leaf(&[2.0, 0.0, 3.0, 0.0]), leaf(&[5.0, 7.0, 0.0]));
        let out = x.scatter(0, &indices(&[0, 1, 3], &[3], &x), &y, Combine::Mul).unwrap();
        assert_eq!(out.to_vec().unwrap(), [10.0, 0.0, 3.0, 0.0]);
        out.sum_all().unwrap().backward().unwrap();
        assert_eq!(x.grad().unwrap().to_vec().unwrap(), [5.0, 7.0, 1.0, 0.0]);
        assert_eq!(y.grad().unwrap().to_vec().unwrap(), [2.0, 0.0, 0.0]);
    }
}

/// The row of padding is zeros, and stays so.
#[test]
fn no_gradient_reaches_the_row_of_padding() {
    for device in devices() {
        let table = Embedding::new(5, 3, 1.0, &mut Rng::new(1), &device).unwrap().with_padding(2).unwrap();
        let rows = table.forward(&indices(&[2, 0, 2, 4, 0], &[5], &table.weight.get())).unwrap();
        assert_eq!(rows.narrow(0, 0, 1).unwrap().to_vec().unwrap(), [0.0; 3]);
        scalar(&rows.exp().unwrap()).unwrap().backward().unwrap();
        let grad = table.weight.grad().unwrap().to_vec().unwrap();
        for (row, &reached) in [true, false, false, false, true].iter().enumerate() {
            assert!(grad[3 * row..3 * row + 3].iter().all(|&g| (g != 0.0) == reached), "row {row} on {}: {grad:?}", device.name());
        }
        assert!(Embedding::new(5, 3, 1.0, &mut Rng::new(1), &device).unwrap().with_padding(5).is_err());
    }
}

/// Orders of long rows with equal elements, infinities and NaN, against a stable sort.
#[test]
fn sorting_matches_a_stable_sort() {
    let check = |device: &Device, n: usize, descending: bool| {
        let mut state = 7u64 + n as u64;
        let values: Vec<f32> = (0..3 * n)
            .map(|_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                match state >> 33 & 63 {
                    0 => f32::INFINITY,
                    1 => f32::NEG_INFINITY,
                    2 if device.is_cpu() => f32::NAN,
                    v => v as f32 - 30.0,
                }
            })
            .collect();
        let x = Tensor::from_vec(values.clone(), &[3, n], device).unwrap();
        let (sorted, order) = x.sort(-1, descending).unwrap();
        let (sorted, order) = (sorted.to_vec().unwrap(), order.to_vec_of::<i32>().unwrap());
        for r in 0..3 {
            let row = &values[r * n..(r + 1) * n];
            let mut want: Vec<usize> = (0..n).collect();
            let key = |i: usize| if row[i].is_nan() { (1, 0.0) } else { (0, row[i]) };
            want.sort_by(|&a, &b| {
                let by = key(a).partial_cmp(&key(b)).unwrap();
                if descending { by.reverse() } else { by }
            });
            for (i, &w) in want.iter().enumerate() {
                let (got, at) = (sorted[r * n + i], order[r * n + i] as usize);
                assert!(at == w && (got == row[w] || got.is_nan() && row[w].is_nan()), "{n} on {}: place {i} of row {r}", device.name());
            }
        }
    };
    for device in devices() {
        for n in [1, 2, 3, 7, 64, 65, 1000] {
            check(&device, n, false);
            check(&device, n, true);
        }
    }
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

/// Gradients in f16 and bf16 of what has gradients by hand, against those in f32 of the same numbers.
#[test]
fn half_precision_gradients() {
    type Op = fn(&[Tensor]) -> TensorResult<Tensor>;
    let ops: [(&str, &[&[usize]], Op); 7] = [
        ("attention", &[&[2, 4, 40, 16], &[2, 2, 40, 16], &[2, 2, 40, 16]], |x| x[0].attention(&x[1], &x[2], None, &Default::default())),
        // Scores that differ by far more than f16 can hold as powers of one number.
        ("attention, steep", &[&[1, 2, 150, 16], &[1, 1, 150, 16], &[1, 1, 150, 16]], |x| {
            x[0].attention(&x[1], &x[2], None, &AttentionOptions { scale: Some(2.0), ..Default::default() })
        }),
        ("attention in a window", &[&[1, 4, 90, 24], &[1, 2, 140, 24], &[1, 2, 140, 40]], |x| {
            x[0].attention(&x[1], &x[2], None, &AttentionOptions { window: Some(30), kv_len: Some(131), ..Default::default() })
        }),
        ("layer_norm", &[&[70, 36], &[36], &[36]], |x| x[0].layer_norm(Some(&x[1]), Some(&x[2]), 1e-5)),
        ("rms_norm", &[&[70, 33], &[33]], |x| x[0].rms_norm(Some(&x[1]), 1e-5)),
        ("cross_entropy", &[&[9, 70]], |x| {
            x[0].cross_entropy_wide(&indices(&[0, 69, 3, 4, 5, -100, 7, 8, 9], &[9], &x[0]), &NllOptions::default())?.mul(9.0)
        }),
        ("gelu_tanh", &[&[3, 50]], |x| x[0].gelu_tanh()),
    ];
    for device in devices() {
        for dtype in [DType::F16, DType::BF16] {
            for (name, shapes, op) in &ops {
                let mut rng = Rng::new(4);
                let values: Vec<Tensor> = shapes
                    .iter()
                    .map(|s| rng.normal(s, DType::F32, &device).unwrap().cast(dtype).unwrap().cast(DType::F32).unwrap())
                    .collect();
                for v in &values {
                    v.eval().unwrap();
                }
                let run = |dtype: DType| -> Vec<Vec<f32>> {
                    let leaves: Vec<Tensor> = values.iter().map(|v| v.cast(dtype).unwrap().requires_grad().unwrap()).collect();
                    scalar(&op(&leaves).unwrap().cast(DType::F32).unwrap()).unwrap().backward().unwrap();
                    leaves
                        .iter()
                        .map(|l| {
                            assert_eq!(l.grad().unwrap().dtype(), dtype);
                            l.grad().unwrap().to_vec().unwrap()
                        })
                        .collect()
                };
                for (got, want) in run(dtype).iter().zip(run(DType::F32)) {
                    let size = want.iter().fold(1e-3f32, |m, v| m.max(v.abs()));
                    let tolerance = if dtype == DType::F16 { 0.01 } else { 0.06 };
                    for (g, w) in got.iter().zip(&want) {
                        assert!((g - w).abs() <= tolerance * size, "{name} {dtype} on {}: {g}, not {w}", device.name());
                    }
                }
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
