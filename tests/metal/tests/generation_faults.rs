//! Faults in the middle of a model's work: each barrier of a decode step and of a training step left out, and command buffers that fail while a text is
//! written.

#[path = "../../common/mod.rs"]
mod common;

use common::tiny_llama;
use fake_metal::barriers::{judged, take_judged};
use fake_metal::metal::{COUNTS, FAULTS};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tensorlogic::models::{Sampler, Session};
use tensorlogic::ops::loss::NllOptions;
use tensorlogic::tuning::Tuning;
use tensorlogic::{DType, Device, Rng, Tensor, TensorError, TensorResult};

/// The faults are the process's: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    FAULTS.fail_after.store(-1, SeqCst);
    FAULTS.skip_barrier.store(-1, SeqCst);
    guard
}

/// A device of its own.
fn device() -> Device {
    let device = Device::open_with_tuning("metal", Tuning::apple()).unwrap();
    device.set_adaptive(false);
    device
}

/// Does work on a device of its own once with each of its barriers left out; `run` calls its argument where the barriers begin that count, and gives
/// values. Gives how many barriers there are, and those without which nothing is found, as judging them says too.
fn barriers(run: impl Fn(&Device, &dyn Fn()) -> TensorResult<Vec<f32>>) -> (u64, Vec<u64>) {
    let before = std::cell::Cell::new(0);
    let begin = || {
        before.set(COUNTS.barriers.load(SeqCst));
        drop(take_judged());
    };
    let (right, judged) = judged(|| run(&device(), &begin).unwrap());
    let count = COUNTS.barriers.load(SeqCst) - before.get();
    let is_unnoticed = |n: &u64| {
        let got = run(&device(), &|| FAULTS.skip_barrier.store(*n as i64, SeqCst));
        FAULTS.skip_barrier.store(-1, SeqCst);
        match got {
            Ok(values) => values == right,
            Err(TensorError::DeviceLost(why)) => {
                assert!(why.contains("no barrier between"), "without barrier {n}: {why}");
                false
            }
            Err(e) => panic!("without barrier {n}: {e}"),
        }
    };
    let unnoticed: Vec<u64> = (0..count).filter(is_unnoticed).collect();
    let without_need = judged.needless.len() + judged.parts.len();
    assert!(judged.passed == count && without_need == unnoticed.len(), "{unnoticed:?} of {count} are not found: {judged:?}");
    (count, unnoticed)
}

#[test]
fn each_barrier_of_a_decode_step_is_needed() {
    let _alone = alone();
    let (count, unnoticed) = barriers(|device, begin| {
        let model = tiny_llama(device);
        let mut session = Session::new(&*model, 64, device)?;
        session.prompt(&[1, 2, 3], || false)?.expect("nobody interrupts").to_vec()?;
        begin();
        session.prompt(&[4], || false)?.expect("nobody interrupts").to_vec()
    });
    println!("{count} barriers of a decode step of two layers, {} without which nothing is found", unnoticed.len());
    assert!(count >= 10, "{count} barriers");
    assert_eq!(unnoticed, Vec::<u64>::new(), "barriers without which nothing is found");
}

#[test]
fn each_barrier_of_a_training_step_is_needed() {
    let _alone = alone();
    let (count, unnoticed) = barriers(|device, begin| {
        let make = |seed, shape: &[usize]| {
            let values = Rng::new(seed).normal(shape, DType::F32, &Device::cpu())?.to_vec()?;
            Tensor::from_vec(values, shape, device)?.requires_grad()
        };
        let (x, w, v) = (make(1, &[12, 20])?, make(2, &[20, 16])?, make(3, &[16, 8])?);
        let target = Tensor::from_vec((0..12).map(|n| n % 8).collect::<Vec<i32>>(), &[12], device)?;
        begin();
        let hidden = x.matmul(&w)?.layer_norm(None, None, 1e-5)?.gelu_tanh()?;
        hidden.matmul(&v)?.cross_entropy(&target, &NllOptions::default())?.backward()?;
        let step = |t: &Tensor| t.detach().sub(&t.grad().expect("a gradient").mul(0.1)?);
        Tensor::cat(&[step(&w)?.reshape(&[320])?, step(&v)?.reshape(&[128])?], 0)?.to_vec()
    });
    println!("{count} barriers of a training step, {} without which nothing is found", unnoticed.len());
    assert!(count >= 6, "{count} barriers");
    assert_eq!(unnoticed, Vec::<u64>::new(), "barriers without which nothing is found");
}

/// The tokens that follow a prompt, or the error that ends them; how many came before.
fn generate(device: &Device, begin: impl Fn()) -> (usize, TensorResult<Vec<u32>>) {
    const TOKENS: usize = 24;
    let model = tiny_llama(device);
    let mut session = Session::new(&*model, 64, device).unwrap();
    let logits = session.prompt(&[1, 2, 3], || false).unwrap().unwrap();
    logits.to_vec().unwrap();
    let mut sampler = Sampler::default();
    let mut tokens = vec![];
    begin();
    let mut generation = match session.generate(logits, &mut sampler) {
        Ok(generation) => generation.at_most(TOKENS),
        Err(e) => return (0, Err(e)),
    };
    loop {
        match generation.token() {
            Ok(Some(token)) => tokens.push(token),
            Ok(None) => return (tokens.len(), Ok(tokens)),
            Err(e) => return (tokens.len(), Err(e)),
        }
    }
}

/// Wherever in a text it fails, the text ends with an error, everything is released, and another device writes the whole text.
#[test]
fn a_command_buffer_that_fails_in_the_middle_of_a_text_ends_it() {
    let _alone = alone();
    let right = generate(&device(), || {}).1.unwrap();
    assert_eq!(right, generate(&Device::cpu(), || {}).1.unwrap());
    let settled = |most: i64| {
        // The thread of a queue lets go of a command buffer after its handlers.
        let start = Instant::now();
        while fake_metal::live() as i64 > most && start.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(10));
        }
        fake_metal::live() as i64
    };
    let before = settled(0);
    let mut came = vec![];
    for n in [0, 1, 3, 8] {
        let lost = device();
        let (tokens, failed) = generate(&lost, || FAULTS.fail_after.store(n, SeqCst));
        assert_eq!(FAULTS.fail_after.load(SeqCst), -1, "command buffer {n} did not fail");
        assert!(matches!(&failed, Err(TensorError::DeviceLost(why)) if why.contains("as asked")), "{n}: {failed:?}");
        assert!(lost.is_lost() && tokens < right.len());
        came.push(tokens);
        drop((lost, failed));
        assert_eq!(settled(before), before, "objects that nobody released after command buffer {n}");
    }
    println!("tokens before the failure: {came:?}");
    assert!(came.is_sorted() && came[3] > 0, "{came:?}");
    assert_eq!(generate(&device(), || {}).1.unwrap(), right);
}
