//! Metal 4's tensor operations: used where their probe computes right, and left out with a reason where it does not, where Metal's compiler does not know
//! them, and where `TL_GPU_WITHOUT` or the tuning table leaves them out. One test, since it changes variables and sources of the process.

use fake_metal::compiler;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use tensorlogic::tuning::Tuning;
use tensorlogic::{DType, Device, Rng, Tensor, TensorResult};

fn device(tuning: Tuning) -> Device {
    let device = Device::open_with_tuning("metal", tuning).unwrap();
    device.set_adaptive(false);
    device
}

fn noise(shape: &[usize], seed: u64, device: &Device) -> TensorResult<Tensor> {
    let values = Rng::new(seed).normal(shape, DType::F32, &Device::cpu())?.to_vec()?;
    let x = Tensor::from_vec(values, shape, device)?.cast(DType::F16)?;
    // Stored, so that a product reads it where it lies.
    x.eval()?;
    Ok(x)
}

/// A product with weights in rows, of which no tile is whole, with what follows it; and one whose right side is stored as it is multiplied.
fn work(device: &Device) -> TensorResult<Vec<f32>> {
    let rows = noise(&[70, 72], 1, device)?.matmul(&noise(&[36, 72], 2, device)?.t()?)?.add(&noise(&[36], 3, device)?)?.relu()?;
    let columns = noise(&[33, 40], 4, device)?.matmul(&noise(&[40, 72], 5, device)?)?;
    Ok([rows.cast(DType::F32)?.to_vec()?, columns.cast(DType::F32)?.to_vec()?].concat())
}

#[test]
fn tensor_operations_are_used_or_left_out_with_a_reason() {
    let want = work(&Device::cpu()).unwrap();
    // How many sources have tensor operations, and what is made of sources besides.
    let count = Arc::new(AtomicUsize::new(0));
    let counting = |change: fn(&str) -> String| -> Option<compiler::Change> {
        let count = count.clone();
        Some(Box::new(move |source: &str| {
            count.fetch_add(usize::from(source.contains("mpp::tensor_ops::matmul2d<")), SeqCst);
            change(source)
        }))
    };
    let used = |device: &Device| {
        count.store(0, SeqCst);
        let got = work(device).unwrap();
        let near = got.iter().zip(&want).all(|(a, b)| (a - b).abs() <= 5e-3 * (1.0 + b.abs()));
        assert!(near && got.len() == want.len(), "other results than the CPU's");
        count.load(SeqCst)
    };

    compiler::change(counting(str::to_string));
    let plain = device(Tuning::apple());
    assert_eq!(count.load(SeqCst), 1, "one source of the probe");
    assert_eq!(plain.lacks_tensor_ops(), None);
    assert_eq!(used(&plain), 2);
    // Parts in Metal's language that need no tensor operations stay as they are.
    let mut tuning = Tuning::apple();
    tuning.metal.tensor_ops = false;
    assert_eq!(used(&device(tuning)), 0);

    // A system that is older than Metal 4, whose compiler is not asked.
    compiler::METAL_4.store(false, SeqCst);
    count.store(0, SeqCst);
    let older = device(Tuning::apple());
    assert_eq!(count.load(SeqCst), 0, "the compiler was asked");
    assert_eq!(older.lacks_tensor_ops().as_deref(), Some("their probe cannot be compiled: the system has no Metal 4"));
    assert_eq!(used(&older), 0);
    compiler::METAL_4.store(true, SeqCst);

    // A compiler that is older.
    compiler::NEWEST_VERSION.store(3 << 16, SeqCst);
    let older = device(Tuning::apple());
    let why = older.lacks_tensor_ops().unwrap();
    assert!(why.starts_with("their probe cannot be compiled: ") && why.contains("version 4.0 of the language is not supported"), "{why}");
    assert_eq!(used(&older), 0);
    assert_eq!([older.lacks_metal_bodies(), older.stands_in()], [None, None]);
    compiler::NEWEST_VERSION.store(4 << 16, SeqCst);

    // One that knows the language, but not this operation.
    compiler::EAGER.store(true, SeqCst);
    compiler::change(counting(|source| source.replace("tensor_ops::matmul2d<", "tensor_ops::matmul2d_of_nobody<")));
    let lacking = device(Tuning::apple());
    let why = lacking.lacks_tensor_ops().unwrap();
    assert!(why.starts_with("their probe cannot be compiled: ") && why.contains("matmul2d_of_nobody"), "{why}");
    compiler::change(counting(str::to_string));
    assert_eq!(used(&lacking), 0);

    // Products that are wrong: by one of whole numbers, and by the bits that an f16 sum loses.
    for (wrong, told) in [("sum + 1.0f", "multiplies whole numbers wrong"), ("float(half(sum))", "beyond what sums in f32 round, wrong")] {
        let change = move |source: &str| match source.contains("mpp::tensor_ops::") {
            true => {
                // Each result on its way to memory.
                let store = "results.store(out);";
                assert!(source.contains(store));
                let each =
                    format!("for (int i = 0; i < results.get_capacity(); i++) {{ const float sum = results[i]; results[i] = {wrong}; }}");
                source.replace(store, &format!("{each} {store}"))
            }
            false => source.into(),
        };
        compiler::change(Some(Box::new(change)));
        let wrong = device(Tuning::apple());
        let why = wrong.lacks_tensor_ops().unwrap();
        assert!(why.contains(told), "{why}");
        compiler::change(counting(str::to_string));
        assert_eq!(used(&wrong), 0);
        assert_eq!([wrong.lacks_metal_bodies(), wrong.stands_in()], [None, None]);
    }

    // A compiler that refuses them when the device is open: the WGSL form of that kernel runs, and the refusal is kept.
    let refusing = device(Tuning::apple());
    compiler::change(counting(|source| source.replace("tensor_ops::matmul2d<", "tensor_ops::matmul2d_of_nobody<")));
    assert_eq!(used(&refusing), 2);
    let refused = refusing.pipeline_stats().refused_bodies;
    assert!(refused.len() == 2 && refused.iter().all(|r| r.starts_with("matmul: ") && r.contains("matmul2d_of_nobody")), "{refused:?}");
    compiler::EAGER.store(false, SeqCst);

    compiler::change(counting(str::to_string));
    // SAFETY: no other thread of this program reads the environment now.
    unsafe { std::env::set_var("TL_GPU_WITHOUT", "tensor operations") };
    let without = device(Tuning::apple());
    assert_eq!(without.lacks_tensor_ops().as_deref(), Some("TL_GPU_WITHOUT names them"));
    assert_eq!(used(&without), 0);
    // SAFETY: as before.
    unsafe { std::env::set_var("TL_GPU_WITHOUT", "metal bodies") };
    let without = device(Tuning::apple());
    assert_eq!(without.lacks_tensor_ops().as_deref(), Some("kernels have no parts in Metal's language"));
    compiler::change(None);
}
