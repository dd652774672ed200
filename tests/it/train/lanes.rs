//! Steps of lanes on several ranks, which are threads here: the same bits on any number of them, distributed states, and agreement about errors.

use crate::common::{devices, noise_f32, selector, tiny_llama_file};
use crate::threads::{run, run_by};
use std::sync::{Arc, Mutex};
use tensorlogic::backends::cpu::CpuBackend;
use tensorlogic::distributed::{Exchanged, PendingExchange, Ranks, Transport, Vote, check_devices, sums};
use tensorlogic::eval::eval_stats;
use tensorlogic::models::{self, Adapters, Pass, Weights};
use tensorlogic::nn::{Gpt, GptConfig, Linear, LoraConfig, Module, ModuleExt, Sequential};
use tensorlogic::ops::loss::Reduction;
use tensorlogic::optim::{AdamW, Lion, Muon, Optimizer, Sgd, decay_matrices};
use tensorlogic::train::{AdaptiveBatch, LaneStep};
use tensorlogic::{DType, Device, Rng, Tensor, TensorError, TensorResult};

const LANES: usize = 4;
const STEPS: u64 = 4;

/// How a small model is trained.
#[derive(Clone, Copy)]
struct Case {
    rule: &'static str,
    half: bool,
    checkpointing: bool,
    sharded: bool,
    /// Batches of a lane.
    accumulate: u64,
}

/// What a run ends with: losses, everything that the optimizer has, and the bytes of states on each rank.
type End = (Vec<u32>, Vec<(String, Vec<u32>)>, usize);

fn train(case: Case, ranks: Ranks, device: &Device) -> TensorResult<End> {
    let config = GptConfig { vocab: 61, context: 16, layers: 2, heads: 2, width: 48, bias: true, dropout: 0.1 };
    let mut model = Gpt::new(config, &mut Rng::new(3), device)?;
    model.set_checkpointing(case.checkpointing);
    let groups = decay_matrices(model.named_parameters(), 0.1);
    let optimizer = match case.rule {
        "sgd" => Optimizer::with_groups(Sgd { momentum: 0.9, ..Sgd::default() }, groups, 1e-1)?,
        "lion" => Optimizer::with_groups(Lion::default(), groups, 3e-3)?,
        "muon" => Optimizer::with_groups(Muon::default(), groups, 1e-2)?,
        _ => Optimizer::with_groups(AdamW::default(), groups, 1e-2)?,
    };
    let mut optimizer = optimizer.max_grad_norm(0.5);
    if case.half {
        optimizer = optimizer.mixed_precision(DType::F16)?;
        // So large that the first gradients overflow.
        let (mut state, steps) = optimizer.state()?;
        state.insert("scale.0".into(), Tensor::from_vec(vec![4_194_304.0f32], &[], device)?);
        optimizer.load_state(&state, steps)?;
    }
    let mut step = LaneStep::new(&ranks, LANES)?;
    if case.sharded {
        step = step.shard_states(&mut optimizer)?;
    }
    let mut adaptive = AdaptiveBatch::new();
    let mut losses = Vec::new();
    for n in 0..STEPS {
        let tokens = |seed: u64| {
            let values = noise_f32(2 * 16, seed, 30.0).iter().map(|v| (v.abs() as i32) % 61).collect();
            Tensor::from_vec::<i32>(values, &[2, 16], device)
        };
        let part = |lane: usize, k: u64| {
            let seed = n * 100 + k * 20 + lane as u64;
            Ok(vec![tokens(seed)?, tokens(seed + 50)?])
        };
        let batch = |lane: usize| (0..case.accumulate).map(|k| part(lane, k)).collect();
        let batches = step.own().map(batch).collect::<TensorResult<Vec<_>>>()?;
        let position = n * LANES as u64 * case.accumulate;
        let loss = step.step(&mut adaptive, &model, &mut optimizer, &batches, position, |b| model.loss(&b[0], &b[1]))?;
        losses.push((loss.item()? as f32).to_bits());
    }
    step.check_parameters(&optimizer)?;
    let (state, updates) = step.state(&optimizer)?;
    assert_eq!(updates, STEPS);
    let bits = |t: &Tensor| Ok(t.to_vec()?.iter().map(|v: &f32| v.to_bits()).collect());
    let state = state.iter().map(|(name, t)| Ok((name.clone(), bits(t)?))).collect::<TensorResult<Vec<_>>>()?;
    Ok((losses, state, optimizer.state_bytes()))
}

#[test]
fn ranks_and_distributed_states_change_no_bit() {
    for device in devices() {
        let cases = [
            Case { rule: "adamw", half: false, checkpointing: false, sharded: true, accumulate: 1 },
            Case { rule: "adamw", half: false, checkpointing: false, sharded: false, accumulate: 1 },
            Case { rule: "adamw", half: true, checkpointing: true, sharded: true, accumulate: 2 },
            Case { rule: "adamw", half: true, checkpointing: false, sharded: false, accumulate: 2 },
            Case { rule: "muon", half: false, checkpointing: false, sharded: true, accumulate: 1 },
            Case { rule: "muon", half: true, checkpointing: false, sharded: true, accumulate: 1 },
            Case { rule: "lion", half: true, checkpointing: false, sharded: true, accumulate: 1 },
            Case { rule: "sgd", half: false, checkpointing: true, sharded: false, accumulate: 1 },
        ];
        for case in cases {
            let what = |size| format!("{} half {} on {size} ranks of {}", case.rule, case.half, device.name());
            let (losses, state, whole) = train(Case { sharded: false, ..case }, Ranks::alone(), &device).unwrap();
            if case.half {
                let skipped = state.iter().find(|(name, _)| name == "scale.2").unwrap();
                let skipped = f32::from_bits(skipped.1[0]) as u64;
                assert!((1..STEPS).contains(&skipped), "{skipped} steps of {STEPS} overflowed: the test shows less than it says");
            }
            for (size, shared) in [(1, false), (2, false), (4, false), (2, true), (4, true)] {
                if shared && (case.sharded || !cfg!(target_os = "linux")) {
                    continue;
                }
                for (rank, end) in run_by(shared, size, |ranks| train(case, ranks, &device)).into_iter().enumerate() {
                    let (l, s, own) = end.unwrap_or_else(|e| panic!("{}: {e}", what(size)));
                    assert_eq!(l, losses, "{}", what(size));
                    for ((name, a), (_, b)) in s.iter().zip(&state) {
                        assert!(a == b, "{name} of rank {rank}: {}", what(size));
                    }
                    // Slices are whole blocks, and Muon's whole matrices.
                    let most = if !case.sharded { whole } else { whole / size + 2 * 2 * 4096 * 4 };
                    assert!(own <= most, "{own} of {whole} bytes: {}", what(size));
                }
            }
        }
    }
}

/// A second processor device, and the GPU under test opened twice, each with its own memory, queue and plans.
fn device_pairs() -> Vec<[Device; 2]> {
    let mut pairs = vec![[Device::cpu(), Device::from_backend(CpuBackend::with_threads(2))]];
    if let Some(name) = selector() {
        let opened = [name.to_string(), format!("{name}:0")].map(|name| Device::open(&name));
        if let [Ok(first), Ok(second)] = opened {
            if first.name() == second.name() && first != second {
                [&first, &second].into_iter().for_each(|d| d.set_adaptive(false));
                pairs.push([first, second]);
            }
        }
    }
    pairs
}

#[test]
fn ranks_with_a_device_each_end_alike() {
    let pairs = device_pairs();
    // Vulkan's adapters have numbers.
    assert!(pairs.len() == 2 || selector() != Some("vulkan"), "the GPU under test was not opened twice");
    for pair in pairs {
        for half in [false, true] {
            let case = Case { rule: "adamw", half, checkpointing: false, sharded: false, accumulate: 1 };
            let (losses, state, _) = train(case, Ranks::alone(), &pair[0]).unwrap();
            let on_its_own = |ranks: Ranks| {
                let device = &pair[ranks.rank()];
                train(case, ranks, device)
            };
            for (rank, end) in run(2, on_its_own).into_iter().enumerate() {
                let (l, s, _) = end.unwrap_or_else(|e| panic!("rank {rank} on {}: {e}", pair[rank].name()));
                assert_eq!((l, s), (losses.clone(), state.clone()), "rank {rank} on {}, half {half}", pair[rank].name());
            }
        }
    }
}

/// Adapters of a packed model, whose blocks keep only their inputs, with weights in half precision and distributed states.
#[test]
fn adapters_learn_the_same_on_any_number_of_ranks() {
    let file = concat!(env!("TENSORLOGIC_ROOT"), "/models/tiny/tiny.gguf");
    for device in devices() {
        // A GPU may be software, on which the trained model takes its time.
        let weights = || match device.is_cpu() {
            true => Weights::open(file, &device),
            false => Ok(Weights::from_gguf(tiny_llama_file(DType::Q8_0, |_, _| ()), &device)),
        };
        let train = |ranks: Ranks, sharded: bool, half: bool| -> TensorResult<End> {
            let mut model = models::load(&weights()?, Some(DType::F32))?;
            let config = LoraConfig { rank: if device.is_cpu() { 4 } else { 32 }, dropout: 0.1, ..LoraConfig::default() };
            let adapters = Adapters::attach(&mut *model, &config, &mut Rng::new(5))?;
            adapters.train(true);
            let modules = adapters.modules();
            let mut optimizer = Optimizer::new(AdamW::default(), adapters.named_parameters(), 1e-2)?.max_grad_norm(0.1);
            if half {
                optimizer = optimizer.mixed_precision(DType::F16)?;
            }
            let mut step = LaneStep::new(&ranks, LANES)?;
            if sharded {
                step = step.shard_states(&mut optimizer)?;
            }
            let (mut adaptive, mut losses) = (AdaptiveBatch::new(), Vec::new());
            for n in 0..STEPS {
                let tokens = |seed: u64| {
                    let values = noise_f32(2 * 16, seed, 30.0).iter().map(|v| (v.abs() as i32) % 61).collect();
                    Tensor::from_vec::<i32>(values, &[2, 16], &device)
                };
                let batch = |lane: usize| Ok(vec![vec![tokens(n * 100 + lane as u64)?, tokens(n * 100 + 50 + lane as u64)?]]);
                let batches = step.own().map(batch).collect::<TensorResult<Vec<_>>>()?;
                let loss = |b: &[Tensor]| models::loss_of(&*model, &mut Pass::tokens(&b[0]).checkpointing(true), &b[1], Reduction::Mean);
                let loss = step.step(&mut adaptive, &modules, &mut optimizer, &batches, n * LANES as u64, loss)?;
                losses.push((loss.item()? as f32).to_bits());
            }
            step.check_parameters(&optimizer)?;
            let bits = |t: &Tensor| Ok(t.to_vec()?.iter().map(|v: &f32| v.to_bits()).collect());
            let state = step.state(&optimizer)?.0.iter().map(|(name, t)| Ok((name.clone(), bits(t)?))).collect::<TensorResult<Vec<_>>>()?;
            Ok((losses, state, optimizer.state_bytes()))
        };
        for half in [false, true] {
            let (losses, state, whole) = train(Ranks::alone(), false, half).unwrap();
            assert!(state.iter().any(|(name, bits)| name.starts_with("state0.") && bits.iter().any(|b| *b != 0)), "nothing was learnt");
            for size in [2, 4] {
                let ends = run(size, |ranks| train(ranks, true, half).unwrap());
                for (l, s, own) in &ends {
                    assert!((l, s) == (&losses, &state), "half {half}, {size} ranks on {}", device.name());
                    assert!(*own < whole, "{own} of {whole} bytes");
                }
                assert_eq!(ends.iter().map(|e| e.2).sum::<usize>(), whole);
            }
        }
    }
}

/// A model large enough that the blocks of slices are small beside it: states of a rank are at most 1/N of all, and 2 % more.
#[test]
fn a_rank_keeps_its_part_of_the_states() {
    for muon in [false, true] {
        let own = run(4, |ranks| -> TensorResult<usize> {
            let mut rng = Rng::new(1);
            let layers = (0..16).map(|_| Linear::new(256, 256, true, &mut rng, &Device::cpu())).collect::<TensorResult<Vec<_>>>()?;
            let params =
                layers.iter().enumerate().flat_map(|(n, l)| l.named_parameters().into_iter().map(move |(k, p)| (format!("{n}.{k}"), p)));
            let groups = decay_matrices(params.collect(), 0.1);
            let mut optimizer = match muon {
                true => Optimizer::with_groups(Muon::default(), groups, 1e-3)?,
                false => Optimizer::with_groups(AdamW::default(), groups, 1e-3)?,
            };
            let whole = optimizer.state_bytes();
            LaneStep::new(&ranks, 4)?.shard_states(&mut optimizer)?;
            assert!(optimizer.state_bytes() as f64 <= whole as f64 * (0.25 + 0.02), "{} of {whole}", optimizer.state_bytes());
            assert!(optimizer.state().unwrap_err().to_string().contains("LaneStep::state gathers them"));
            Ok(optimizer.state_bytes())
        });
        let whole: usize = own.into_iter().map(Result::unwrap).sum();
        // Two states for AdamW and one for Muon, of 16 layers.
        assert_eq!(whole, (2 - usize::from(muon)) * 16 * (256 * 256 + 256) * 4);
    }
}

/// A small model that learns nothing in particular, to be disturbed.
fn disturbed(ranks: &Ranks, disturb: impl Fn(&Linear, u64) -> TensorResult<()>) -> TensorResult<u64> {
    let device = Device::cpu();
    let model = Linear::new(8, 8, true, &mut Rng::new(1), &device)?;
    let mut optimizer = Optimizer::new(AdamW::default(), model.named_parameters(), 1e-2)?;
    let (mut step, mut adaptive) = (LaneStep::new(ranks, 2)?, AdaptiveBatch::new());
    for n in 0..4 {
        let batch = |lane: usize| {
            let part = |k: u64| Tensor::from_vec(noise_f32(32, n * 10 + lane as u64 + k * 100, 1.0), &[4, 8], &device);
            Ok(vec![vec![part(0)?, part(1)?]])
        };
        let batches = step.own().map(batch).collect::<TensorResult<Vec<_>>>()?;
        let loss = |b: &[Tensor]| {
            disturb(&model, n)?;
            model.forward(&b[0])?.mse_loss(&b[1], Reduction::Mean)
        };
        step.step(&mut adaptive, &model, &mut optimizer, &batches, 2 * n, loss)?;
        step.check_parameters(&optimizer)?;
    }
    Ok(adaptive.parts() as u64)
}

#[test]
fn a_flipped_bit_is_told_with_its_rank_and_tensor() {
    let ends = run(4, |ranks| {
        let model = Linear::new(8, 8, true, &mut Rng::new(1), &Device::cpu()).unwrap();
        let mut optimizer = Optimizer::new(AdamW::default(), model.named_parameters(), 1e-2).unwrap();
        let step = LaneStep::new(&ranks, 4).unwrap();
        step.check_parameters(&optimizer).unwrap();
        if ranks.rank() == 2 {
            let (mut state, steps) = optimizer.state().unwrap();
            let mut values: Vec<f32> = state["param.bias"].to_vec().unwrap();
            values[3] = f32::from_bits(values[3].to_bits() ^ 1);
            state.insert("param.bias".into(), Tensor::from_vec(values, &[8], &Device::cpu()).unwrap());
            optimizer.load_state(&state, steps).unwrap();
        }
        (step.check_parameters(&optimizer).unwrap_err().to_string(), ranks.is_told_elsewhere())
    });
    assert!(ends.iter().all(|e| e.0.contains("the parameter bias of rank 2 differs from rank 0's")), "{ends:?}");
    assert_eq!(ends.iter().map(|e| e.1).collect::<Vec<_>>(), [false, true, true, true], "rank 0 tells it");
}

#[test]
fn what_one_rank_meets_all_answer() {
    let full = || TensorError::OutOfMemory { device: "a test".into(), asked: 1, in_use: 1, limit: None, help: "" };
    // No memory on one rank, once: both compute the step again in two parts.
    for shared in [false, cfg!(target_os = "linux")] {
        let seen = Mutex::new(false);
        let ends = run_by(shared, 2, |ranks| {
            disturbed(&ranks, |_, n| match n == 1 && ranks.rank() == 1 && !std::mem::replace(&mut *seen.lock().unwrap(), true) {
                true => Err(full()),
                false => Ok(()),
            })
        });
        assert!(ends.iter().all(|e| e.as_ref().is_ok_and(|parts| *parts == 2)), "{ends:?}");
        // An error of one rank: it says what, the other that there was one.
        let ends = run_by(shared, 2, |ranks| {
            let end = disturbed(&ranks, |_, n| if n == 2 && ranks.rank() == 0 { Err(TensorError::Value("no".into())) } else { Ok(()) });
            (end.unwrap_err().to_string(), ranks.is_told_elsewhere())
        });
        assert_eq!(ends, [("no".to_string(), false), ("rank 0 failed".to_string(), true)]);
    }
    // The most severe vote is everybody's.
    let votes = run(4, |ranks| ranks.agree([Vote::GoOn, Vote::Interrupt, Vote::Again, Vote::Stop][ranks.rank()]).unwrap());
    assert_eq!(votes, [Vote::Interrupt; 4]);
    let shared = run(2, |ranks| ranks.share(if ranks.is_first() { b"settings".to_vec() } else { Vec::new() }).unwrap());
    assert_eq!(shared, [b"settings", b"settings"]);
}

#[test]
fn two_ranks_on_one_gpu_are_an_error() {
    if !std::path::Path::new("/proc/sys/kernel/random/boot_id").exists() {
        return;
    }
    let check = |addresses: [&str; 3]| run(3, |ranks| check_devices(&ranks, addresses[ranks.rank()]).map_err(|e| e.to_string()));
    assert!(check(["0000:3b:00.0", "0000:af:00.0", ""]).iter().all(Result::is_ok));
    assert!(check(["", "", ""]).iter().all(Result::is_ok), "a processor may be shared");
    let ends = check(["0000:3b:00.0", "0000:af:00.0", "0000:3b:00.0"]);
    assert!(ends[0].as_ref().unwrap_err().contains("ranks 0 and 2 took the same GPU (0000:3b:00.0)"), "{ends:?}");
    assert!(ends[1].is_err());
}

#[test]
fn lanes_and_ranks_are_powers_of_two() {
    for (size, lanes, fits) in [(1, 1, true), (2, 8, true), (2, 3, false), (3, 4, false), (4, 2, false)] {
        let ends = run(size, |ranks| LaneStep::new(&ranks, lanes).map(|step| step.own()).map_err(|e| e.to_string()));
        assert_eq!(ends.iter().all(Result::is_ok), fits, "{size} ranks, {lanes} lanes: {ends:?}");
    }
}

#[test]
fn each_lane_needs_its_batches() {
    let device = Device::cpu();
    let step = |lists: &[usize]| {
        let model = Linear::new(8, 8, true, &mut Rng::new(1), &device)?;
        let mut optimizer = Optimizer::new(AdamW::default(), model.named_parameters(), 1e-2)?;
        let batch = || Ok(vec![Tensor::zeros(&[4, 8], DType::F32, &device)?]);
        let batches = lists.iter().map(|n| (0..*n).map(|_| batch()).collect()).collect::<TensorResult<Vec<_>>>()?;
        let mut lanes = LaneStep::new(&Ranks::alone(), 2)?;
        lanes.step(&mut AdaptiveBatch::new(), &model, &mut optimizer, &batches, 0, |b| model.forward(&b[0])?.sum(&[], false))
    };
    for (lists, text) in [(&[][..], "[]"), (&[1][..], "[1]"), (&[1, 2][..], "[1, 2]"), (&[1, 1, 1][..], "[1, 1, 1]")] {
        let e = step(lists).unwrap_err().to_string();
        assert!(e.contains(&format!("batches for each of this rank's 2 lanes, not {text}")), "{e}");
    }
    assert!(step(&[0, 0]).unwrap_err().to_string().contains("at least one row"));
    step(&[2, 2]).unwrap();
}

#[test]
fn draws_of_dropout_end_with_an_error() {
    let device = Device::cpu();
    let step = |position: u64, twice: bool| {
        let model = Gpt::new(
            GptConfig { vocab: 11, context: 4, layers: 1, heads: 1, width: 8, bias: true, dropout: 0.1 },
            &mut Rng::new(3),
            &device,
        )?;
        let mut optimizer = Optimizer::new(AdamW::default(), model.named_parameters(), 1e-2)?;
        let tokens = Tensor::zeros(&[2, 4], DType::I32, &device)?;
        let batches = vec![vec![vec![tokens.clone(), tokens]]; 2];
        let mut lanes = LaneStep::new(&Ranks::alone(), 2)?;
        let loss = |b: &[Tensor]| match twice {
            true => model.loss(&b[0], &b[1])?.add(&model.loss(&b[0], &b[1])?),
            false => model.loss(&b[0], &b[1]),
        };
        lanes.step(&mut AdaptiveBatch::new(), &model, &mut optimizer, &batches, position, loss)
    };
    let last = u64::from(u32::MAX) - 2;
    step(last, false).unwrap();
    let used_up = |position| step(position, false).unwrap_err().to_string();
    assert!(used_up(last + 1).contains("2³² draws are used up"), "{}", used_up(last + 1));
    assert!(used_up(u64::MAX - 3).contains("2³² draws are used up"));
    let e = step(0, true).unwrap_err().to_string();
    assert!(e.contains("draws more than once in a forward pass"), "{e}");
}

/// A model whose gradient is computed in several pieces, two steps of 4 lanes with clipping; exchanges of at most `most` values. Gives what the optimizer has.
fn large(ranks: &Ranks, device: &Device, sharded: bool, most: usize) -> TensorResult<Vec<(String, Vec<u32>)>> {
    let mut rng = Rng::new(9);
    let next = |all: Sequential, _| Ok::<_, TensorError>(all.push(Linear::new(1000, 1000, true, &mut rng, device)?));
    let layers = (0..5).try_fold(Sequential::new(), next)?;
    let mut optimizer = Optimizer::with_groups(AdamW::default(), decay_matrices(layers.named_parameters(), 0.1), 1e-3)?.max_grad_norm(0.1);
    let mut step = LaneStep::new(ranks, LANES)?.exchange_at_most(most);
    if sharded {
        step = step.shard_states(&mut optimizer)?;
    }
    for n in 0..2 {
        let part = |seed: u64| Tensor::from_vec(noise_f32(3 * 1000, seed, 1.0), &[3, 1000], device);
        let batches = step.own().map(|lane| Ok(vec![vec![part(n * 100 + lane as u64)?]])).collect::<TensorResult<Vec<_>>>()?;
        let loss = |b: &[Tensor]| layers.forward(&b[0])?.mse_loss(&b[0], Reduction::Mean);
        step.step(&mut AdaptiveBatch::new(), &layers, &mut optimizer, &batches, n * LANES as u64, loss)?;
    }
    step.check_parameters(&optimizer)?;
    let bits = |t: &Tensor| Ok(t.to_vec()?.iter().map(|v: &f32| v.to_bits()).collect());
    step.state(&optimizer)?.0.iter().map(|(name, t)| Ok((name.clone(), bits(t)?))).collect()
}

#[test]
fn pieces_of_gradients_and_exchanges_change_no_bit() {
    for device in devices() {
        let expected = large(&Ranks::alone(), &device, false, usize::MAX).unwrap();
        assert!(expected.iter().any(|(name, bits)| name.starts_with("state0.") && bits.iter().any(|b| *b != 0)), "nothing was learnt");
        let cases = [(2, false, usize::MAX), (2, true, 300_000), (4, false, 100_000), (4, true, usize::MAX)];
        for (n, ((size, sharded, most), shared)) in cases.into_iter().flat_map(|case| [(case, false), (case, true)]).enumerate() {
            // On a GPU each case by one way of exchange: (2, messages), (2, memory), (4, messages), (4, memory).
            if !device.is_cpu() && n / 2 % 2 != n % 2 {
                continue;
            }
            for end in run_by(shared, size, |ranks| large(&ranks, &device, sharded, most)) {
                let what = if shared { "shared memory" } else { "messages" };
                assert!(end.unwrap() == expected, "{size} ranks by {what}, sharded {sharded}, at most {most} on {}", device.name());
            }
        }
    }
}

/// Few and many values, by one round of messages or by slices.
#[test]
fn sums_of_all_ranks_follow_the_tree_however_they_are_exchanged() {
    for (size, len) in [(2, 3), (2, 100_000), (4, 5000), (4, 100_000), (8, 8192), (8, 8193)] {
        let values = |rank: usize| noise_f32(len, rank as u64 + 7, 1e3);
        let mut tree = sums::Tree::default();
        (0..size).for_each(|rank| tree.push(values(rank)));
        let expected = tree.finish().unwrap();
        let ends = run(size, |ranks| {
            let mut own = values(ranks.rank());
            sums::reduce_all(ranks.transport(), &mut own, &mut Vec::new()).map(|()| own)
        });
        assert!(ends.into_iter().all(|own| own.unwrap() == expected), "{size} ranks, {len} values");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn shared_memory_sums_as_messages_do_and_is_nowhere_named() {
    // More values than fit at a time, so often that each place is used again.
    for (size, len, rounds) in [(2, 3, 20), (4, 5000, 3), (4, 300_000, 3), (8, 8192, 20), (2, 9_000_000, 2)] {
        let values = |rank: usize, round: usize| noise_f32(len, (rank + round * 8) as u64, 1e3);
        let expected: Vec<_> = (0..rounds)
            .map(|round| {
                let mut tree = sums::Tree::default();
                (0..size).for_each(|rank| tree.push(values(rank, round)));
                tree.finish().unwrap()
            })
            .collect();
        let ends = run_by(true, size, |ranks| {
            let window = ranks.window().unwrap().expect("threads share memory");
            for (round, expected) in expected.iter().enumerate() {
                let mut own = values(ranks.rank(), round);
                window.reduce_all(&mut own);
                assert!(own == *expected, "rank {} of {size}, {len} values, round {round}", ranks.rank());
            }
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            maps.lines().filter(|l| l.contains("tl-ranks-")).map(String::from).collect::<Vec<_>>()
        });
        assert!(ends.iter().all(|maps| !maps.is_empty() && maps.iter().all(|l| l.ends_with("(deleted)"))), "{ends:?}");
    }
    // One that does not want it leaves it out for all.
    assert!(run_by(false, 2, |ranks| ranks.window().unwrap().is_none()).into_iter().all(|none| none));
}

/// What happened in a step, in order: the evaluations of the device before each exchange began and before its end was awaited.
#[derive(Default)]
struct Log {
    began: Vec<u64>,
    awaited: Vec<u64>,
    longest: usize,
}

/// One of two ranks, whose peer has the same values.
struct Mirror {
    device: Device,
    log: Arc<Mutex<Log>>,
}

/// An exchange of a mirror.
struct Mirrored(Exchanged, Device, Arc<Mutex<Log>>);

impl PendingExchange for Mirrored {
    fn wait(self: Box<Self>) -> TensorResult<Exchanged> {
        self.2.lock().unwrap().awaited.push(eval_stats(&self.1).evaluations);
        Ok(self.0)
    }
}

impl Transport for Mirror {
    fn rank(&self) -> usize {
        0
    }
    fn size(&self) -> usize {
        2
    }
    fn local_rank(&self) -> usize {
        0
    }
    fn name(&self) -> String {
        "a mirror".into()
    }
    fn exchange(&self, from: &[f32], bounds: &[usize], to: &mut [f32]) -> TensorResult<()> {
        to.chunks_mut(bounds[1].max(1)).for_each(|part| part.copy_from_slice(&from[..bounds[1]]));
        Ok(())
    }
    fn start_exchange(&self, from: Vec<f32>, bounds: &[usize], _: Vec<f32>) -> TensorResult<Box<dyn PendingExchange>> {
        let mut log = self.log.lock().unwrap();
        log.began.push(eval_stats(&self.device).evaluations);
        log.longest = log.longest.max(from.len());
        let received = from[..bounds[1]].repeat(2);
        Ok(Box::new(Mirrored(Exchanged { sent: from, received }, self.device.clone(), self.log.clone())))
    }
    fn start_gather_others(&self, own: Vec<f32>, _: Vec<f32>) -> TensorResult<Box<dyn PendingExchange>> {
        let len = own.len();
        self.start_exchange(own, &[0, len, len], Vec::new()).map(|pending| {
            let mut all = pending.wait().unwrap();
            all.received.truncate(len);
            Box::new(Mirrored(all, self.device.clone(), self.log.clone())) as Box<dyn PendingExchange>
        })
    }
    fn gather(&self, data: &mut [f32], bounds: &[usize]) -> TensorResult<()> {
        data[bounds[1]..].fill(0.0);
        Ok(())
    }
    fn max_words(&self, _: &mut [u64]) -> TensorResult<()> {
        Ok(())
    }
    fn broadcast(&self, _: &mut [u8]) -> TensorResult<()> {
        Ok(())
    }
    fn send(&self, _: usize, _: &[u8]) -> TensorResult<()> {
        Ok(())
    }
    fn receive(&self, _: usize, _: &mut [u8]) -> TensorResult<()> {
        Ok(())
    }
    fn abort(&self, _: i32) {}
    fn leave(&self, _: i32) {}
}

#[test]
fn exchanges_begin_before_the_last_piece_is_computed() {
    // A device of the test's own, whose evaluations no other test counts in.
    let device = Device::from_backend(CpuBackend::with_threads(1));
    let log = Arc::new(Mutex::new(Log::default()));
    let ranks = Ranks::over(Mirror { device: device.clone(), log: log.clone() });
    large(&ranks, &device, false, 1 << 20).unwrap();
    let log = log.lock().unwrap();
    assert!(log.began.len() >= 10 && log.began.len().is_multiple_of(2) && log.longest <= 1 << 20, "{:?}", log.began);
    // Of the two steps: evaluations of later pieces come between the first exchange and the last. Threads begin exchanges, so how many do is not certain.
    let apart = |step: &[u64]| step.last().zip(step.first()).is_some_and(|(last, first)| *last >= first + 2);
    assert!(log.began.chunks(log.began.len() / 2).any(apart), "{:?} {:?}", log.began, log.awaited);
}
