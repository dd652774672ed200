//! A run that stops and continues is the run that never stopped, bit for bit; models go to files and come back; too little memory changes nothing.
//!
//! It is a program of its own since it limits a device's memory, which other tests share.

mod common;

use common::{alone, devices};
use std::path::PathBuf;
use std::sync::Arc;
use tensorlogic::data::{DataLoader, LoaderOptions, Order, TokenFile, TokenWindows};
use tensorlogic::error::TensorError;
use tensorlogic::eval::eval_stats;
use tensorlogic::io::{SafeTensors, save_folder, write_safetensors};
use tensorlogic::models::{self, Session, Weights};
use tensorlogic::nn::{Gpt, GptConfig, Module, ModuleExt};
use tensorlogic::optim::{AdamW, Optimizer, Schedule, decay_matrices};
use tensorlogic::train::{AdaptiveBatch, AdaptiveRows, Checkpoints, load_training, save_training};
use tensorlogic::{DType, Device, Rng, Tensor};

fn place(name: &str) -> PathBuf {
    let p = std::env::temp_dir().join(format!("tl-training-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&p);
    std::fs::create_dir_all(&p).unwrap();
    p
}

const CONFIG: GptConfig = GptConfig { vocab: 29, context: 16, layers: 2, heads: 2, width: 24, bias: false, dropout: 0.2 };

struct Run {
    model: Gpt,
    optimizer: Optimizer,
    loader: DataLoader,
    schedule: Schedule,
}

impl Run {
    fn new(precision: DType, seed: u64, device: &Device) -> Run {
        let model = Gpt::new(CONFIG, &mut Rng::new(seed), device).unwrap();
        let groups = decay_matrices(model.named_parameters(), 0.1);
        let mut optimizer = Optimizer::with_groups(AdamW::default(), groups, 1e-2).unwrap().max_grad_norm(1.0);
        if precision != DType::F32 {
            optimizer = optimizer.mixed_precision(precision).unwrap();
        }
        let tokens = Arc::new(TokenFile::from_tokens(&(0..400).map(|i| (i * i + i / 7) % 29).collect::<Vec<u32>>()));
        let windows = TokenWindows::new(tokens, 0..400, CONFIG.context, 4).unwrap();
        let options = LoaderOptions { batch: 4, order: Order::Shuffled, seed, ..LoaderOptions::default() };
        let loader = DataLoader::new(windows, options, device).unwrap();
        Run { model, optimizer, loader, schedule: Schedule::warmup_cosine(1e-2, 1e-3, 3, 20) }
    }

    fn step(&mut self) -> Tensor {
        self.optimizer.set_lr(self.schedule.at(self.optimizer.steps()));
        let b = self.loader.next_batch().unwrap();
        let loss = self.model.loss(&b[0], &b[1]).unwrap();
        self.optimizer.scale_loss(&loss).unwrap().backward().unwrap();
        let loss = loss.detach();
        self.optimizer.step_with(&[&loss]).unwrap();
        self.optimizer.zero_grad().unwrap();
        loss
    }

    /// Every number of model and optimizer, and the losses' bits.
    fn bits(&self) -> Vec<Vec<u8>> {
        self.optimizer.state().unwrap().0.values().map(|t| t.to_bytes().unwrap()).collect()
    }
}

#[test]
fn a_run_continues_bit_for_bit() {
    let _alone = alone();
    for device in devices() {
        for precision in [DType::F32, DType::F16, DType::BF16] {
            let mut whole = Run::new(precision, 5, &device);
            let losses: Vec<u64> = (0..12).map(|_| whole.step().item().unwrap().to_bits()).collect();
            assert!(losses.windows(2).all(|w| w[0] != w[1]));
            let root = place("continue");
            let all = Checkpoints::new(&root, 2);
            all.prepare().unwrap();
            let mut run = Run::new(precision, 5, &device);
            let mut again = Vec::new();
            for step in 0..12u64 {
                if step % 3 == 2 {
                    all.save(step, |f| save_training(f, &run.model, &run.optimizer, Some(&run.loader), serde_json::json!({ "n": step })))
                        .unwrap();
                    // Everything anew, from another seed: only what was saved can bring the same numbers.
                    run = Run::new(precision, 77, &device);
                    let (found, wrong) = all.latest().unwrap();
                    assert!(found == Some(step) && wrong.is_empty());
                    let own = load_training(&all.path(step), &run.model, &mut run.optimizer, Some(&mut run.loader)).unwrap();
                    assert_eq!(own["n"], step);
                }
                again.push(run.step().item().unwrap().to_bits());
            }
            assert_eq!(again, losses, "losses in {precision} on {}", device.name());
            assert!(run.bits() == whole.bits(), "weights in {precision} on {}", device.name());
            assert_eq!(all.steps().unwrap(), [11, 8], "older ones are gone");
            std::fs::remove_dir_all(root).unwrap();
        }
    }
}

#[test]
fn the_newest_whole_checkpoint_counts() {
    let _alone = alone();
    let root = place("newest");
    let all = Checkpoints::new(root.join("c"), 3);
    assert_eq!(all.latest().unwrap().0, None);
    all.prepare().unwrap();
    for step in [1, 2, 10, 3] {
        all.save(step, |f| f.bytes("x", &[step as u8; 100])).unwrap();
    }
    assert_eq!(all.steps().unwrap(), [10, 3, 2, 1]);
    all.save(11, |f| f.bytes("x", &[1])).unwrap();
    assert_eq!(all.steps().unwrap(), [11, 10, 3]);
    // A flipped bit, a file that is gone, a torn list: each time the one before is taken.
    std::fs::write(all.path(11).join("x"), [0]).unwrap();
    let (step, wrong) = all.latest().unwrap();
    assert!(step == Some(10) && wrong.len() == 1 && wrong[0].to_string().contains("step-00000011"));
    std::fs::remove_file(all.path(10).join("x")).unwrap();
    assert_eq!(all.latest().unwrap().0, Some(3));
    std::fs::write(all.path(3).join("manifest.json"), "{\"files\": {").unwrap();
    let (step, wrong) = all.latest().unwrap();
    assert!(step.is_none() && wrong.len() == 3);
    // A save that fails leaves no trace.
    assert!(all.save(12, |f| f.bytes("x", &[1]).and_then(|_| Err(TensorError::Value("no".into())))).is_err());
    assert_eq!(all.steps().unwrap(), [11, 10, 3]);
    assert_eq!(std::fs::read_dir(root.join("c")).unwrap().count(), 3);
    std::fs::remove_dir_all(root).unwrap();
}

#[test]
fn a_checkpoint_of_another_model_is_refused() {
    let _alone = alone();
    let device = Device::cpu();
    let root = place("other");
    let mut run = Run::new(DType::F32, 1, &device);
    run.step();
    save_folder(root.join("a"), |f| save_training(f, &run.model, &run.optimizer, None, serde_json::Value::Null)).unwrap();
    let small = Gpt::new(GptConfig { width: 16, ..CONFIG }, &mut Rng::new(1), &device).unwrap();
    let mut o = Optimizer::new(AdamW::default(), small.named_parameters(), 1e-3).unwrap();
    let e = load_training(&root.join("a"), &small, &mut o, None).unwrap_err().to_string();
    assert!(e.contains("wte.weight has shape [29,24]"), "{e}");
    std::fs::remove_dir_all(root).unwrap();
}

#[test]
fn a_trained_model_is_the_same_from_its_files() {
    let _alone = alone();
    for (device, bias) in devices().into_iter().flat_map(|d| [(d.clone(), false), (d, true)]) {
        let config = GptConfig { bias, ..CONFIG };
        let model = Gpt::new(config, &mut Rng::new(3), &device).unwrap();
        // Norms and biases other than 1 and 0, so that no layer can be mistaken for another.
        let mut rng = Rng::new(8);
        for p in model.parameters() {
            let noise = rng.normal(p.get().dims(), DType::F32, &device).unwrap().mul(0.1).unwrap();
            p.set(&p.get().detach().add(&noise).unwrap()).unwrap();
        }
        let root = place("files");
        let weights = config.weights_to_hub(&model.state()).unwrap();
        save_folder(root.join("m"), |f| {
            f.bytes("config.json", config.to_hub(None).to_string().as_bytes())?;
            f.file("model.safetensors", |out| write_safetensors(&weights, &[("format", "pt")], |b| out.put(b)))
        })
        .unwrap();
        let files = SafeTensors::open(root.join("m")).unwrap();
        assert_eq!(files.metadata(), [("format".to_string(), "pt".to_string())]);
        assert_eq!(files.tensors().len(), weights.len());
        // As the models that generate read it: the same logits.
        let tokens: Vec<u32> = (0..16).map(|i| (i * 5 + 2) % 29).collect();
        let loaded = models::load(&Weights::open(root.join("m"), &device).unwrap(), Some(DType::F32)).unwrap();
        let got = Session::new(&*loaded, 16, &device).unwrap().score(&tokens).unwrap().to_vec().unwrap();
        model.eval();
        let x = Tensor::from_vec(tokens.iter().map(|&t| t as i32).collect(), &[1, 16], &device).unwrap();
        let want = model.forward(&x).unwrap().to_vec().unwrap();
        assert_eq!(got.len(), want.len());
        for (a, b) in got.iter().zip(&want) {
            assert!((a - b).abs() < 1e-4, "{a} is not {b} on {}", device.name());
        }
        // Back into a model that trains: the same bits.
        assert_eq!(
            GptConfig::from_hub(&serde_json::from_slice(&std::fs::read(root.join("m/config.json")).unwrap()).unwrap()).unwrap(),
            GptConfig { dropout: 0.0, ..config }
        );
        let back = Gpt::new(config, &mut Rng::new(4), &device).unwrap();
        back.load_hub(&files).unwrap();
        for (name, p) in model.named_parameters() {
            assert_eq!(back.state()[&name].to_vec().unwrap(), p.get().to_vec().unwrap(), "{name}");
        }
        std::fs::remove_dir_all(root).unwrap();
    }
}

/// A limit that holds a part of the batch, raised in mid-run.
#[test]
fn parts_grow_back_when_memory_is_there_again_and_do_not_swing() {
    let _alone = alone();
    let config = GptConfig { context: 32, width: 16, layers: 1, dropout: 0.0, ..CONFIG };
    let tokens: Vec<i32> = (0..32 * 32).map(|i| (i * i + 3) % 29).collect();
    for device in devices() {
        let model = Gpt::new(config, &mut Rng::new(2), &device).unwrap();
        let mut o = Optimizer::new(AdamW::default(), model.named_parameters(), 1e-3).unwrap();
        let batch = vec![Tensor::from_vec(tokens.clone(), &[32, 32], &device).unwrap(); 2];
        let mut adaptive = AdaptiveBatch::new().grow_after(5);
        let mut step = |adaptive: &mut AdaptiveBatch| {
            adaptive.step(&model, &mut o, std::slice::from_ref(&batch), |b| model.loss(&b[0], &b[1])).unwrap().item().unwrap()
        };
        for _ in 0..3 {
            step(&mut adaptive);
        }
        assert_eq!((adaptive.parts(), adaptive.failures()), (1, 0));
        let held = device.memory().in_use;
        device.set_memory_limit(held + (400 << 10));
        step(&mut adaptive);
        let (parts, first) = (adaptive.parts(), adaptive.failures());
        assert!((2..32).contains(&parts), "{parts} parts on {}", device.name());
        // 200 steps: what is tried in vain changes no step's parts, and is tried ever more seldom: after 10, 20, 40 and then each 40 steps.
        for _ in 0..200 {
            step(&mut adaptive);
            assert_eq!(adaptive.parts(), parts, "on {}", device.name());
        }
        let trials = adaptive.failures() - first;
        assert!((1..=6).contains(&trials), "{trials} trials on {}", device.name());
        device.set_memory_limit(None);
        let mut steps = 0;
        while adaptive.parts() > 1 && steps < 200 {
            step(&mut adaptive);
            steps += 1;
        }
        assert_eq!(adaptive.parts(), 1, "on {}", device.name());
        println!("{}: {parts} parts, {trials} trials in 200 steps, whole again after {steps} steps", device.name());
        // Bounds: never more rows than asked for, and no fewer.
        let mut bounded = AdaptiveBatch::new().with_rows(4, 8).grow_after(1);
        for _ in 0..6 {
            step(&mut bounded);
        }
        device.set_memory_limit(device.memory().in_use + 1000);
        let e = bounded.step(&model, &mut o, std::slice::from_ref(&batch), |b| model.loss(&b[0], &b[1]));
        device.set_memory_limit(None);
        assert!(matches!(e, Err(TensorError::OutOfMemory { .. })) && bounded.parts() <= 8, "{} parts", bounded.parts());
    }
}

#[test]
fn rows_of_an_inference_follow_the_memory_within_their_bounds() {
    let _alone = alone();
    for device in devices() {
        let mut rng = Rng::new(1);
        let w = rng.normal(&[64, 2048], DType::F32, &device).unwrap();
        let x = rng.normal(&[600, 64], DType::F32, &device).unwrap();
        tensorlogic::eval::eval_all(&[&w, &x]).unwrap();
        let largest = std::cell::Cell::new(0);
        let f = |part: &[Tensor]| {
            largest.set(largest.get().max(part[0].dims()[0]));
            part[0].matmul(&w)?.softmax(-1)?.square()?.sum(&[-1], false)
        };
        let want = f(std::slice::from_ref(&x)).unwrap().to_vec().unwrap();
        let mut rows = AdaptiveRows::new(64, 2, 256).unwrap().grow_after(2);
        let check = |rows: &mut AdaptiveRows| {
            let got = rows.run(std::slice::from_ref(&x), f).unwrap().to_vec().unwrap();
            assert!(got.len() == 600 && got.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-5), "on {}", device.name());
        };
        largest.set(0);
        check(&mut rows);
        assert_eq!((rows.rows(), rows.failures(), largest.get()), (128, 0, 128), "on {}", device.name());
        (0..2).for_each(|_| check(&mut rows));
        assert_eq!((rows.rows(), rows.failures(), largest.get()), (256, 0, 256), "on {}", device.name());
        // Twenty rows take 160 KiB.
        device.empty_cache();
        device.set_memory_limit(device.memory().in_use + (200 << 10));
        check(&mut rows);
        assert!(rows.rows() < 64 && rows.failures() > 0, "{} rows on {}", rows.rows(), device.name());
        device.set_memory_limit(None);
        (0..4).for_each(|_| check(&mut rows));
        assert_eq!(rows.rows(), 256, "on {}", device.name());
        device.set_memory_limit(device.memory().in_use + 1000);
        let e = rows.run(std::slice::from_ref(&x), f);
        device.set_memory_limit(None);
        assert!(matches!(e, Err(TensorError::OutOfMemory { .. })) && rows.rows() >= 2, "{e:?}");
        assert!(rows.run(&[x.clone(), w.clone()], f).unwrap_err().to_string().contains("one number of rows"));
        assert!(AdaptiveRows::new(4, 8, 16).is_err() && AdaptiveRows::new(4, 0, 16).is_err());
    }
}

#[test]
fn attention_with_dropped_weights_is_attention() {
    let _alone = alone();
    for device in devices() {
        let mut model = Gpt::new(GptConfig { dropout: 0.0, ..CONFIG }, &mut Rng::new(3), &device).unwrap();
        let x = Tensor::from_vec((0..32).map(|i| (i * 7) % 29).collect::<Vec<i32>>(), &[2, 16], &device).unwrap();
        let fused = model.forward(&x).unwrap().to_vec().unwrap();
        // A probability that practically never drops: other kernels, the same numbers.
        model.set_attention_dropout(1e-12);
        let kept = model.forward(&x).unwrap().to_vec().unwrap();
        assert!(fused.iter().zip(&kept).all(|(a, b)| (a - b).abs() < 1e-4), "on {}", device.name());
        model.set_attention_dropout(0.5);
        let dropped = model.forward(&x).unwrap().to_vec().unwrap();
        assert!(fused.iter().zip(&dropped).any(|(a, b)| (a - b).abs() > 1e-3), "on {}", device.name());
        model.eval();
        assert_eq!(model.forward(&x).unwrap().to_vec().unwrap(), fused);
    }
}

#[test]
fn a_step_is_one_plan_and_one_submit() {
    let _alone = alone();
    for device in devices() {
        let mut run = Run::new(DType::F32, 5, &device);
        (0..4).for_each(|_| drop(run.step()));
        let (before, submits) = (eval_stats(&device), device.submits());
        (0..20).for_each(|_| drop(run.step()));
        let after = eval_stats(&device);
        assert_eq!((after.misses - before.misses, after.evaluations - before.evaluations), (0, 20), "on {}", device.name());
        assert_eq!(device.submits() - submits, 20, "on {}", device.name());
    }
}

#[test]
fn a_step_without_memory_changes_nothing() {
    let _alone = alone();
    for precision in [DType::F32, DType::F16] {
        let device = Device::cpu();
        let mut run = Run::new(precision, 5, &device);
        (0..3).for_each(|_| drop(run.step()));
        let place = run.loader.state();
        let (before, random) = (run.bits(), run.model.random_state());
        // What is held stays; the step's own memory is not to be had.
        device.set_memory_limit(Some(device.memory().in_use + 1000));
        let b = run.loader.next_batch();
        let failed = b.and_then(|b| {
            let loss = run.model.loss(&b[0], &b[1])?;
            run.optimizer.scale_loss(&loss)?.backward()?;
            run.optimizer.step()
        });
        device.set_memory_limit(None);
        assert!(matches!(failed, Err(TensorError::OutOfMemory { .. })), "{failed:?}");
        run.optimizer.zero_grad().unwrap();
        assert!(run.bits() == before);
        // And the run goes on as if it had not happened.
        run.loader.load_state(place).unwrap();
        run.model.load_random_state(&random).unwrap();
        let mut whole = Run::new(precision, 5, &device);
        (0..5).for_each(|_| drop(whole.step()));
        (0..2).for_each(|_| drop(run.step()));
        assert!(run.bits() == whole.bits(), "{precision}");
    }
}

#[test]
fn parts_of_a_batch_are_the_batch() {
    let _alone = alone();
    for device in devices() {
        let run = |parts: usize, together: usize| {
            let mut run = Run::new(DType::F32, 5, &device);
            // Dropout would differ: it is drawn anew for each part.
            run.model.eval();
            let mut adaptive = AdaptiveBatch::with_parts(parts);
            let mut losses = Vec::new();
            for _ in 0..4 {
                let batches: Vec<_> = (0..together).map(|_| run.loader.next_batch().unwrap()).collect();
                let loss = adaptive.step(&run.model, &mut run.optimizer, &batches, |b| run.model.loss(&b[0], &b[1])).unwrap();
                losses.push(loss.item().unwrap());
            }
            assert_eq!(adaptive.parts(), parts);
            (losses, run.model.state()["h.0.mlp.c_fc.weight"].to_vec().unwrap())
        };
        for together in [1, 3] {
            let (losses, weights) = run(1, together);
            for parts in [2, 3, 4] {
                let (l, w) = run(parts, together);
                assert!(losses.iter().zip(&l).all(|(a, b)| (a - b).abs() < 1e-4), "{parts} parts: {l:?} is not {losses:?}");
                let off = weights.iter().zip(&w).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(off < 1e-3, "{parts} parts of {together}: {off} on {}", device.name());
            }
        }
    }
}

#[test]
fn a_step_that_finds_no_memory_is_made_in_parts() {
    let _alone = alone();
    let config = GptConfig { context: 64, width: 32, dropout: 0.0, ..CONFIG };
    let tokens: Vec<i32> = (0..32 * 64).map(|i| (i * i + 3) % 29).collect();
    let run = |limit: Option<usize>, device: &Device| {
        let model = Gpt::new(config, &mut Rng::new(2), device).unwrap();
        let mut o = Optimizer::new(AdamW::default(), model.named_parameters(), 1e-2).unwrap();
        let batch = vec![Tensor::from_vec(tokens.clone(), &[32, 64], device).unwrap(); 2];
        let (mut adaptive, mut losses) = (AdaptiveBatch::new(), Vec::new());
        let held = device.memory().in_use;
        device.set_memory_limit(limit.map(|l| held + l));
        for _ in 0..4 {
            losses.push(adaptive.step(&model, &mut o, std::slice::from_ref(&batch), |b| model.loss(&b[0], &b[1])).and_then(|l| l.item()));
        }
        device.set_memory_limit(None);
        (losses, adaptive.parts())
    };
    for device in devices() {
        let (whole, parts) = run(None, &device);
        assert_eq!(parts, 1);
        // A batch of 32 needs about 8 MB for what the backward pass reads.
        let (less, parts) = run(Some(2 << 20), &device);
        assert!((4..=32).contains(&parts), "{parts} parts");
        for (a, b) in whole.iter().zip(&less) {
            let (a, b) = (a.as_ref().unwrap(), b.as_ref().unwrap());
            assert!((a - b).abs() < 1e-3, "{a} {b}");
        }
        let (none, parts) = run(Some(1000), &device);
        assert!(matches!(none[0], Err(TensorError::OutOfMemory { .. })) && parts == 32, "{none:?}");
    }
}

#[test]
fn a_thousand_steps_hold_no_more_memory_than_ten() {
    let _alone = alone();
    for device in devices() {
        let mut run = Run::new(DType::F32, 5, &device);
        let mut held = 0;
        for step in 1..=1000 {
            let loss = run.step();
            if step % 100 == 0 {
                assert!(loss.item().unwrap().is_finite());
            }
            drop(loss);
            if step == 10 {
                held = device.memory().in_use;
            }
        }
        assert_eq!(device.memory().in_use, held, "on {}", device.name());
    }
}
