//! Faults in the middle of a model's work: each barrier of a decode step and of a training step left out, command buffers that fail or are not given while
//! a text is written, memory that is refused.

#[path = "../../common/mod.rs"]
mod common;

use common::tiny_llama;
use fake_metal::barriers::{judged, take_judged};
use fake_metal::metal::{COUNTS, FAULTS};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tensorlogic::models::{Sampler, Session};
use tensorlogic::nn::{Gpt, GptConfig, ModuleExt};
use tensorlogic::ops::loss::NllOptions;
use tensorlogic::optim::{AdamW, Optimizer};
use tensorlogic::tuning::Tuning;
use tensorlogic::{DType, Device, Rng, Tensor, TensorError, TensorResult};

const CONFIG: GptConfig = GptConfig { vocab: 29, context: 16, layers: 2, heads: 2, width: 24, bias: false, dropout: 0.0 };

/// The faults are the process's: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    for counter in [&FAULTS.fail_after, &FAULTS.no_commands, &FAULTS.no_encoder, &FAULTS.skip_barrier] {
        counter.store(-1, SeqCst);
    }
    FAULTS.refuse_memory.store(false, SeqCst);
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

/// How many objects there are, once there are at most `most` or five seconds have passed: the thread of a queue lets go of a command buffer after its
/// handlers.
fn settled(most: i64) -> i64 {
    let start = Instant::now();
    while fake_metal::live() as i64 > most && start.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(10));
    }
    fake_metal::live() as i64
}

/// Wherever in a text a command buffer fails, or is not given, or has no encoder, the text ends with an error, everything is released, and another
/// device writes the whole text.
#[test]
fn a_fault_in_the_middle_of_a_text_ends_it() {
    let _alone = alone();
    let right = generate(&device(), || {}).1.unwrap();
    assert_eq!(right, generate(&Device::cpu(), || {}).1.unwrap());
    let before = settled(0);
    let faults =
        [(&FAULTS.fail_after, "as asked"), (&FAULTS.no_commands, "gives no command buffer"), (&FAULTS.no_encoder, "gives no encoder")];
    for (fault, says) in faults {
        let mut came = vec![];
        for n in [0, 1, 3, 8] {
            let lost = device();
            let (tokens, failed) = generate(&lost, || fault.store(n, SeqCst));
            assert_eq!(fault.load(SeqCst), -1, "{says}: number {n} did not fail");
            assert!(matches!(&failed, Err(TensorError::DeviceLost(why)) if why.contains(says)), "{n}: {failed:?}");
            assert!(tokens < right.len());
            came.push(tokens);
            drop((lost, failed));
            assert_eq!(settled(before), before, "{says}: objects that nobody released after number {n}");
        }
        println!("{says}: tokens before the failure: {came:?}");
        assert!(came.is_sorted() && came[3] > 0, "{came:?}");
    }
    assert_eq!(generate(&device(), || {}).1.unwrap(), right);
}

/// Memory that is refused while a longer prompt is read: an error, and once there is memory the same session reads it as the CPU does.
#[test]
fn memory_refused_in_the_middle_of_a_text_loses_nothing() {
    let _alone = alone();
    let longer: Vec<u32> = (0..40).map(|n| n * 7 % 60).collect();
    let before = settled(0);
    let read = |device: &Device, refuse: bool| {
        let model = tiny_llama(device);
        let mut session = Session::new(&*model, 64, device).unwrap();
        session.prompt(&[1, 2, 3], || false).unwrap().unwrap().to_vec().unwrap();
        let mut prompt = || session.prompt(&longer, || false)?.expect("nobody interrupts").to_vec();
        if refuse {
            device.empty_cache();
            FAULTS.refuse_memory.store(true, SeqCst);
            let failed = prompt();
            FAULTS.refuse_memory.store(false, SeqCst);
            assert!(matches!(failed, Err(TensorError::OutOfMemory { .. })), "{failed:?}");
        }
        prompt().unwrap()
    };
    let want = read(&Device::cpu(), false);
    let (plain, refused) = (read(&device(), false), read(&device(), true));
    assert_eq!(refused, plain);
    assert!(plain.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-3), "{plain:?} {want:?}");
    assert_eq!(settled(before), before, "objects that nobody released");
}

/// The same of a training step: the loss and weights are those of a step that found its memory.
#[test]
fn memory_refused_in_the_middle_of_training_loses_nothing() {
    let _alone = alone();
    let before = settled(0);
    let train = |refuse: bool| {
        let device = device();
        let model = Gpt::new(CONFIG, &mut Rng::new(3), &device).unwrap();
        let mut optimizer = Optimizer::new(AdamW::default(), model.named_parameters(), 1e-2).unwrap().max_grad_norm(1.0);
        let tokens =
            |seed: i32| Tensor::from_vec((0..32).map(|n| (n * seed + n / 7) % 29).collect::<Vec<i32>>(), &[2, 16], &device).unwrap();
        let mut losses = vec![];
        let mut run = |step: i32| {
            optimizer.zero_grad()?;
            let loss = model.loss(&tokens(step + 3), &tokens(step + 4))?;
            loss.backward()?;
            optimizer.step_with(&[&loss.detach()])?;
            loss.item()
        };
        for step in 0..3 {
            if refuse && step == 1 {
                device.empty_cache();
                FAULTS.refuse_memory.store(true, SeqCst);
                let failed = run(step);
                FAULTS.refuse_memory.store(false, SeqCst);
                assert!(matches!(failed, Err(TensorError::OutOfMemory { .. })), "{failed:?}");
            }
            losses.push(run(step).unwrap());
        }
        let weights = model.named_parameters().into_iter().map(|(_, t)| t.get().to_vec().unwrap());
        (losses, weights.collect::<Vec<_>>())
    };
    assert!(train(true) == train(false), "a step that found no memory changed something");
    assert_eq!(settled(before), before, "objects that nobody released");
}
