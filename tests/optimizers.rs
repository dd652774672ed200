//! Optimizers against plain loops in f64; updates are in place and few dispatches; models learn.
//!
//! It is a program of its own since it counts a device's dispatches and memory, in which other tests would have a part.

mod common;

use common::{alone, devices};
use tensorlogic::eval::eval_stats;
use tensorlogic::nn::{Gpt, GptConfig, Mlp, Module, ModuleExt, Param};
use tensorlogic::ops::loss::Reduction;
use tensorlogic::optim::{Adam, AdamW, Lion, Muon, Optimizer, ParamGroup, Rule, Schedule, Sgd, clip_grad_norm, decay_matrices};
use tensorlogic::{DType, Device, Rng, Tensor};

/// Two parameters `[3, 5]` and `[7]` under a loss Σ c·p² whose gradient is 2·c·p: ten steps of the rule against the loop `reference(p, g, state, t)`.
#[track_caller]
fn check<R: Rule + Copy + 'static>(name: &str, rule: R, lr: f64, reference: impl Fn(&mut f64, f64, &mut [f64; 2], i32)) {
    for device in devices() {
        let mut rng = Rng::new(3);
        let values = [rng.normal(&[3, 5], DType::F32, &device).unwrap(), rng.normal(&[7], DType::F32, &device).unwrap()];
        let params: Vec<Param> = values.iter().map(|v| Param::new(v).unwrap()).collect();
        let mut want: Vec<Vec<f64>> = values.iter().map(|v| v.to_vec().unwrap().iter().map(|&x| x as f64).collect()).collect();
        let mut states: Vec<Vec<[f64; 2]>> = want.iter().map(|w| vec![[0.0; 2]; w.len()]).collect();
        let named = params.iter().enumerate().map(|(i, p)| (format!("p{i}"), p.clone())).collect();
        let mut o = Optimizer::new(rule, named, lr).unwrap();
        for t in 1..=10 {
            o.zero_grad().unwrap();
            let loss = params
                .iter()
                .enumerate()
                .map(|(i, p)| p.get().square().unwrap().sum_all().unwrap().mul(0.5 + i as f64).unwrap())
                .reduce(|a, b| a.add(&b).unwrap())
                .unwrap();
            loss.backward().unwrap();
            o.step().unwrap();
            let before: f64 = want.iter().enumerate().map(|(i, w)| w.iter().map(|v| v * v).sum::<f64>() * (0.5 + i as f64)).sum();
            assert!((loss.item().unwrap() - before).abs() < 1e-4 * before.max(1.0), "{name}: loss {} not {before}", loss.item().unwrap());
            for (i, w) in want.iter_mut().enumerate() {
                for (p, s) in w.iter_mut().zip(&mut states[i]) {
                    let g = 2.0 * (0.5 + i as f64) * *p;
                    reference(p, g, s, t);
                }
            }
        }
        for (p, w) in params.iter().zip(&want) {
            for (a, b) in p.get().to_vec().unwrap().iter().zip(w) {
                assert!((*a as f64 - b).abs() < 2e-5, "{name} on {}: {a} is not {b}", device.name());
            }
        }
    }
}

#[test]
fn rules_match_loops() {
    let _alone = alone();
    check("sgd", Sgd::default(), 0.1, |p, g, _, _| *p -= 0.1 * g);
    let momentum = Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.1 };
    check("momentum", momentum, 0.05, |p, g, s, _| {
        s[0] = 0.9 * s[0] + g + 0.1 * *p;
        *p -= 0.05 * s[0];
    });
    let nesterov = Sgd { nesterov: true, ..momentum };
    check("nesterov", nesterov, 0.05, |p, g, s, _| {
        let g = g + 0.1 * *p;
        s[0] = 0.9 * s[0] + g;
        *p -= 0.05 * (g + 0.9 * s[0]);
    });
    let adam = |p: &mut f64, g: f64, s: &mut [f64; 2], t: i32| {
        s[0] = 0.9 * s[0] + 0.1 * g;
        s[1] = 0.999 * s[1] + 0.001 * g * g;
        *p -= 0.05 * s[0] / (1.0 - 0.9f64.powi(t)) / ((s[1] / (1.0 - 0.999f64.powi(t))).sqrt() + 1e-8);
    };
    check("adam", Adam::default(), 0.05, adam);
    check("adamw", AdamW { weight_decay: 0.2, ..AdamW::default() }, 0.05, move |p, g, s, t| {
        *p *= 1.0 - 0.05 * 0.2;
        adam(p, g, s, t);
    });
    check("lion", Lion { weight_decay: 0.1, ..Lion::default() }, 0.01, |p, g, s, _| {
        let way = (0.9 * s[0] + 0.1 * g).signum();
        s[0] = 0.99 * s[0] + 0.01 * g;
        *p = *p * (1.0 - 0.01 * 0.1) - 0.01 * way;
    });
}

/// Five Newton-Schulz steps by loops in f64.
fn orthogonal(x: &[f64], rows: usize, cols: usize) -> Vec<f64> {
    let product = |a: &[f64], b: &[f64], n: usize, k: usize, m: usize| -> Vec<f64> {
        (0..n * m).map(|i| (0..k).map(|j| a[i / m * k + j] * b[j * m + i % m]).sum()).collect()
    };
    let transposed = |a: &[f64], n: usize, m: usize| -> Vec<f64> { (0..n * m).map(|i| a[i % n * m + i / n]).collect() };
    let (mut y, n, m) = if rows > cols { (transposed(x, rows, cols), cols, rows) } else { (x.to_vec(), rows, cols) };
    let norm = y.iter().map(|v| v * v).sum::<f64>().sqrt() + 1e-7;
    y.iter_mut().for_each(|v| *v /= norm);
    for _ in 0..5 {
        let a = product(&y, &transposed(&y, n, m), n, m, n);
        let aa = product(&a, &a, n, n, n);
        let b: Vec<f64> = a.iter().zip(&aa).map(|(a, aa)| -4.7750 * a + 2.0315 * aa).collect();
        y = product(&b, &y, n, n, m).iter().zip(&y).map(|(by, y)| 3.4445 * y + by).collect();
    }
    if rows > cols { transposed(&y, n, m) } else { y }
}

/// Muon for matrices and AdamW for the rest in one optimizer, each against loops in f64; what it remembers comes back bit for bit.
#[test]
fn muon_and_groups_with_rules_of_their_own_match_loops() {
    let _alone = alone();
    for device in devices() {
        for like_adamw in [false, true] {
            let shapes: [&[usize]; 4] = [&[5, 3], &[4, 6], &[7], &[3, 2]];
            let mut rng = Rng::new(5);
            let values: Vec<Tensor> = shapes.iter().map(|s| rng.normal(s, DType::F32, &device).unwrap()).collect();
            let params: Vec<(String, Param)> = values.iter().enumerate().map(|(i, v)| (format!("p{i}"), Param::new(v).unwrap())).collect();
            let wide = |t: &Tensor| -> Vec<f64> { t.to_vec().unwrap().iter().map(|&v| v as f64).collect() };
            let mut want: Vec<Vec<f64>> = values.iter().map(wide).collect();
            let mut moments: Vec<Vec<[f64; 2]>> = want.iter().map(|w| vec![[0.0; 2]; w.len()]).collect();
            let muon = Muon { like_adamw, ..Muon::default() };
            let build = |params: &[(String, Param)]| {
                let groups = vec![
                    ParamGroup::new(params[..2].to_vec()).rule(muon).weight_decay(0.1),
                    ParamGroup::new(params[2..].to_vec()).lr_scale(0.5).weight_decay(0.0),
                ];
                Optimizer::with_groups(AdamW::default(), groups, 0.02).unwrap()
            };
            let mut o = build(&params);
            for t in 1..=6 {
                o.zero_grad().unwrap();
                // Gradients that are no multiple of the values: 2·c·p + sin p.
                let loss = |p: &Tensor| p.square()?.sub(&p.cos()?)?.sum_all();
                let sum = params.iter().map(|(_, p)| loss(&p.get()).unwrap()).reduce(|a, b| a.add(&b).unwrap()).unwrap();
                sum.backward().unwrap();
                o.step().unwrap();
                for (i, w) in want.iter_mut().enumerate() {
                    let grads: Vec<f64> = w.iter().map(|p| 2.0 * p + p.sin()).collect();
                    if i < 2 {
                        let (rows, cols) = (shapes[i][0], shapes[i][1]);
                        moments[i].iter_mut().zip(&grads).for_each(|(m, g)| m[0] = 0.95 * m[0] + g);
                        let ahead: Vec<f64> = grads.iter().zip(&moments[i]).map(|(g, m)| g + 0.95 * m[0]).collect();
                        let scale = match like_adamw {
                            true => 0.2 * (rows.max(cols) as f64).sqrt(),
                            false => (rows as f64 / cols as f64).max(1.0).sqrt(),
                        };
                        let way = orthogonal(&ahead, rows, cols);
                        w.iter_mut().zip(way).for_each(|(p, v)| *p = *p * (1.0 - 0.02 * 0.1) - 0.02 * scale * v);
                    } else {
                        for ((p, m), g) in w.iter_mut().zip(&mut moments[i]).zip(grads) {
                            m[0] = 0.9 * m[0] + 0.1 * g;
                            m[1] = 0.999 * m[1] + 0.001 * g * g;
                            *p -= 0.01 * m[0] / (1.0 - 0.9f64.powi(t)) / ((m[1] / (1.0 - 0.999f64.powi(t))).sqrt() + 1e-8);
                        }
                    }
                }
                if t == 3 {
                    // Another optimizer goes on with what this one remembers.
                    let (state, steps) = o.state().unwrap();
                    let (names, bits): (Vec<_>, Vec<_>) = state.iter().map(|(n, v)| (n.clone(), v.to_vec().unwrap())).unzip();
                    let mut next = build(&params);
                    next.load_state(&state, steps).unwrap();
                    let again = next.state().unwrap().0;
                    assert!(again.iter().zip(names.iter().zip(&bits)).all(|((n, v), (m, b))| n == m && v.to_vec().unwrap() == *b));
                    o = next;
                }
            }
            for ((_, p), w) in params.iter().zip(&want) {
                for (a, b) in p.get().to_vec().unwrap().iter().zip(w) {
                    assert!((*a as f64 - b).abs() < 5e-5, "{} on {}: {a} is not {b}", p.get().shape(), device.name());
                }
            }
        }
    }
}

#[test]
fn an_update_is_one_dispatch_in_place() {
    let _alone = alone();
    for device in devices() {
        let p = Param::new(&Tensor::ones(&[4096], DType::F32, &device).unwrap()).unwrap();
        let mut o = Optimizer::new(AdamW::default(), vec![("p".into(), p.clone())], 1e-2).unwrap();
        let grad = Tensor::full(0.5, &[4096], DType::F32, &device).unwrap();
        grad.eval().unwrap();
        let mut held = 0;
        for step in 0..5 {
            p.set_grad(Some(grad.clone()));
            o.step().unwrap();
            let stats = eval_stats(&device);
            // The states begin as one buffer of zeros, which the first step parts.
            assert!(step == 0 || stats.dispatches == 1, "{} dispatches on {}", stats.dispatches, device.name());
            if step == 2 {
                held = device.memory().in_use;
            }
        }
        assert_eq!(device.memory().in_use, held);
        assert!((p.get().to_vec().unwrap()[17] - 0.95).abs() < 1e-3);
    }
}

#[test]
fn snapshots_and_held_values_survive_an_update() {
    let _alone = alone();
    for device in devices() {
        let p = Param::new(&Tensor::ones(&[64], DType::F32, &device).unwrap()).unwrap();
        let mut o = Optimizer::new(Sgd::default(), vec![("p".into(), p.clone())], 0.5).unwrap();
        let old = p.get();
        let held = p.get().mul(3.0).unwrap();
        let loss = p.get().sum_all().unwrap();
        loss.backward().unwrap();
        o.step().unwrap();
        assert_eq!(p.get().to_vec().unwrap(), [0.5; 64]);
        assert_eq!(old.to_vec().unwrap(), [1.0; 64], "a snapshot of the old value");
        assert_eq!(held.to_vec().unwrap(), [3.0; 64], "a value computed from it");
        drop(old);
        // Now nobody holds the old value itself, only something computed from it.
        o.zero_grad().unwrap();
        let held = p.get().mul(3.0).unwrap().add(1.0).unwrap();
        let view = held.narrow(0, 3, 5).unwrap();
        p.get().sum_all().unwrap().backward().unwrap();
        o.step().unwrap();
        assert_eq!(p.get().to_vec().unwrap(), [0.0; 64]);
        assert_eq!(held.to_vec().unwrap(), [2.5; 64]);
        assert_eq!(view.to_vec().unwrap(), [2.5; 5]);
    }
}

#[test]
fn xor_is_learnt() {
    let _alone = alone();
    for device in devices() {
        let mut rng = Rng::new(1);
        let model = Mlp::new(&[2, 8, 1], Tensor::tanh, &mut rng, &device).unwrap();
        let x = Tensor::from_vec(vec![0.0f32, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0], &[4, 2], &device).unwrap();
        let y = Tensor::from_vec(vec![0.0f32, 1.0, 1.0, 0.0], &[4, 1], &device).unwrap();
        let mut o = Optimizer::new(AdamW::default(), model.named_parameters(), 0.05).unwrap();
        let mut last = f64::MAX;
        for _ in 0..200 {
            let loss = model.forward(&x).unwrap().mse_loss(&y, Reduction::Mean).unwrap();
            loss.backward().unwrap();
            o.step().unwrap();
            o.zero_grad().unwrap();
            last = loss.item().unwrap();
        }
        assert!(last < 0.01, "{last} on {}", device.name());
        assert!(eval_stats(&device).hits > 150);
    }
}

fn tiny(dropout: f64) -> GptConfig {
    GptConfig { vocab: 13, context: 8, layers: 2, heads: 2, width: 16, bias: true, dropout }
}

#[test]
fn a_small_gpt_learns_a_sequence_in_one_plan_a_step() {
    let _alone = alone();
    for device in devices() {
        for precision in [DType::F32, DType::F16, DType::BF16] {
            let mut rng = Rng::new(2);
            let model = Gpt::new(tiny(0.1), &mut rng, &device).unwrap();
            assert!(model.named_parameters().iter().any(|(n, _)| n == "h.1.attn.c_attn.weight"));
            let tokens: Vec<i32> = (0..16).map(|i| (i * i + 3) % 13).collect();
            let x = Tensor::from_vec(tokens.clone(), &[2, 8], &device).unwrap();
            let y = Tensor::from_vec(tokens.iter().map(|t| (t * 2 + 1) % 13).collect::<Vec<i32>>(), &[2, 8], &device).unwrap();
            let mut o =
                Optimizer::with_groups(AdamW::default(), decay_matrices(model.named_parameters(), 0.1), 1e-2).unwrap().max_grad_norm(1.0);
            if precision != DType::F32 {
                o = o.mixed_precision(precision).unwrap();
            }
            let schedule = Schedule::warmup_cosine(1e-2, 1e-3, 5, 80);
            let (mut first, mut last) = (0.0, 0.0);
            let mut evaluations = 0;
            for step in 0..80 {
                o.set_lr(schedule.at(step));
                let loss = model.loss(&x, &y).unwrap();
                o.scale_loss(&loss).unwrap().backward().unwrap();
                o.step().unwrap();
                o.zero_grad().unwrap();
                let now = eval_stats(&device).evaluations;
                if step > 3 {
                    assert_eq!(now, evaluations + 1, "one plan a step");
                }
                last = loss.item().unwrap();
                evaluations = eval_stats(&device).evaluations;
                if step == 0 {
                    first = last;
                }
            }
            assert!(first > 2.3 && last < 0.5, "{first} {last} {precision} on {}", device.name());
            assert!(o.grad_norm().unwrap().item().unwrap() > 0.0);
        }
    }
}

#[test]
fn clipping_and_accumulation() {
    let _alone = alone();
    let device = Device::cpu();
    let p = Param::new(&Tensor::ones(&[4], DType::F32, &device).unwrap()).unwrap();
    p.get().sum_all().unwrap().mul(3.0).unwrap().backward().unwrap();
    p.get().sum_all().unwrap().mul(2.0).unwrap().backward().unwrap();
    assert_eq!(p.grad().unwrap().to_vec().unwrap(), [5.0; 4]);
    let norm = clip_grad_norm(std::slice::from_ref(&p), 2.0).unwrap();
    assert!((norm.item().unwrap() - 10.0).abs() < 1e-4);
    assert!(p.grad().unwrap().to_vec().unwrap().iter().all(|g| (g - 1.0).abs() < 1e-5));
    let mut o = Optimizer::new(Sgd::default(), vec![("p".into(), p.clone())], 1.0).unwrap();
    o.zero_grad().unwrap();
    assert!(o.step().unwrap_err().to_string().contains("backward"));
}

#[test]
fn state_continues_bit_for_bit() {
    let _alone = alone();
    for device in devices() {
        let run = |stop: Option<usize>| -> Vec<f32> {
            let mut rng = Rng::new(9);
            let model = Gpt::new(tiny(0.0), &mut rng, &device).unwrap();
            let tokens: Vec<i32> = (0..8).collect();
            let x = Tensor::from_vec(tokens, &[1, 8], &device).unwrap();
            let mut o = Optimizer::new(AdamW::default(), model.named_parameters(), 1e-2).unwrap();
            for step in 0..6 {
                if stop == Some(step) {
                    let (state, steps) = o.state().unwrap();
                    let saved =
                        state.into_iter().map(|(k, v)| (k, Tensor::from_vec(v.to_vec().unwrap(), v.dims(), &device).unwrap())).collect();
                    let mut other = Rng::new(77);
                    let again = Gpt::new(tiny(0.0), &mut other, &device).unwrap();
                    let mut p = Optimizer::new(AdamW::default(), again.named_parameters(), 1e-2).unwrap();
                    p.load_state(&saved, steps).unwrap();
                    for _ in step..6 {
                        again.loss(&x, &x).unwrap().backward().unwrap();
                        p.step().unwrap();
                        p.zero_grad().unwrap();
                    }
                    return again.state()["wte.weight"].to_vec().unwrap();
                }
                model.loss(&x, &x).unwrap().backward().unwrap();
                o.step().unwrap();
                o.zero_grad().unwrap();
            }
            model.state()["wte.weight"].to_vec().unwrap()
        };
        assert_eq!(run(None), run(Some(3)), "on {}", device.name());
    }
}
