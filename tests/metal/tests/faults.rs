//! Faults that are planted are found: barriers and fences left out, wrong sources, command buffers that fail, memory that is
//! refused, no device.

use fake_metal::barriers::judged;
use fake_metal::compiler;
use fake_metal::metal::{COUNTS, FAULTS};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use tensorlogic::tuning::Tuning;
use tensorlogic::{DType, Device, Rng, Tensor, TensorError, TensorResult};

/// The faults are the process's: one test at a time, each of which leaves none.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    FAULTS.fail_after.store(-1, SeqCst);
    FAULTS.late_handlers.store(0, SeqCst);
    FAULTS.skip_barrier.store(-1, SeqCst);
    FAULTS.extra_barriers.store(false, SeqCst);
    FAULTS.judge_barriers.store(false, SeqCst);
    FAULTS.refuse_memory.store(false, SeqCst);
    FAULTS.no_device.store(false, SeqCst);
    FAULTS.skip_fences.store(false, SeqCst);
    compiler::change(None);
    guard
}

/// A device of its own.
fn device() -> Device {
    let device = Device::open_with_tuning("metal", Tuning::apple()).unwrap();
    device.set_adaptive(false);
    device
}

/// Operands on the device.
fn operands(device: &Device) -> TensorResult<[Tensor; 3]> {
    let make = |n: u64, shape: &[usize]| {
        let t = Rng::new(n).normal(shape, DType::F32, &Device::cpu())?.to_vec()?;
        Tensor::from_vec(t, shape, device)
    };
    Ok([make(1, &[16, 32])?, make(2, &[32, 24])?, make(3, &[24, 8])?])
}

/// Two products with rows between, each of which reads what the last one wrote.
fn chain([a, b, c]: &[Tensor; 3]) -> TensorResult<Vec<f32>> {
    a.matmul(b)?.softmax(-1)?.matmul(c)?.softmax(-1)?.to_vec()
}

#[test]
fn each_barrier_that_is_left_out_is_found() {
    let _alone = alone();
    let (d, before) = (device(), COUNTS.barriers.load(SeqCst));
    let (right, judged) = judged(|| chain(&operands(&d).unwrap()).unwrap());
    let barriers = COUNTS.barriers.load(SeqCst) - before;
    assert!(barriers >= 3, "{barriers} barriers between four dependent steps");
    assert!(judged.passed == barriers && judged.needless.is_empty() && judged.parts.is_empty(), "{judged:?}");
    for n in 0..barriers {
        let d = device();
        let operands = operands(&d).unwrap();
        FAULTS.skip_barrier.store(n as i64, SeqCst);
        match chain(&operands) {
            Err(TensorError::DeviceLost(why)) => assert!(why.contains("no barrier between"), "{why}"),
            other => panic!("without barrier {n}: {other:?}"),
        }
    }
    let d = device();
    assert_eq!(chain(&operands(&d).unwrap()).unwrap(), right);
}

/// What is judged without need is so: left out, it changes nothing. Between products whose results stand behind each other no barrier is planned, and
/// between those whose rows stand in turn one is, since ranges are compared from the first to the last byte.
#[test]
fn barriers_without_need_are_told_from_others() {
    let _alone = alone();
    for (axis, planned) in [(0, 0), (1, 1)] {
        let both = || {
            let [a, b, _] = operands(&device()).unwrap();
            let before = COUNTS.barriers.load(SeqCst);
            let values = Tensor::cat(&[a.matmul(&b).unwrap(), a.matmul(&b.mul(2.0).unwrap()).unwrap()], axis).unwrap().to_vec().unwrap();
            (values, COUNTS.barriers.load(SeqCst) - before)
        };
        let (right, barriers) = both();
        assert_eq!(barriers, planned, "axis {axis}");
        FAULTS.extra_barriers.store(true, SeqCst);
        let (_, judged) = judged(both);
        FAULTS.extra_barriers.store(false, SeqCst);
        let found = [judged.passed, judged.parts.len() as u64, judged.needless.len() as u64];
        assert_eq!(found, [1, planned, 1 - planned], "axis {axis}: {judged:?}");
        FAULTS.skip_barrier.store(0, SeqCst);
        assert_eq!(both().0, right, "axis {axis}, without the barrier");
        FAULTS.skip_barrier.store(-1, SeqCst);
    }
}

/// The chain on a device whose sources are changed from now on; `None` where its results are right all the same.
fn with_sources(change: impl Fn(&str) -> String + Send + Sync + 'static) -> Option<String> {
    let right = chain(&operands(&Device::cpu()).unwrap()).unwrap();
    let d = device();
    let operands = operands(&d).unwrap();
    compiler::change(Some(Box::new(change)));
    let got = chain(&operands);
    compiler::change(None);
    match got {
        Ok(got) if got.iter().zip(&right).all(|(a, b)| (a - b).abs() <= 1e-5) => None,
        Ok(_) => Some("other results than the CPU's".into()),
        Err(e) => Some(e.to_string()),
    }
}

#[test]
fn a_wrong_index_of_a_buffer_is_found() {
    let _alone = alone();
    assert_eq!(with_sources(str::to_string), None);
    let unbound = with_sources(|source| source.replace("[[buffer(1)]]", "[[buffer(9)]]"));
    assert!(unbound.as_ref().is_some_and(|e| e.contains("nothing is bound at 9")), "{unbound:?}");
    let swap = |source: &str| source.replace("[[buffer(1)]]", "[[buffer(?)]]").replace("[[buffer(2)]]", "[[buffer(1)]]").replace('?', "2");
    assert!(with_sources(swap).is_some(), "swapped buffers are not found");
}

/// A Metal that computes wrong, or refuses plain sources, is not opened: another backend can stand in, with the reason.
#[test]
fn a_metal_that_computes_wrong_is_not_opened() {
    let _alone = alone();
    let opened_with = |change: fn(&str) -> String| {
        compiler::change(Some(Box::new(change)));
        let opened = Device::open_with_tuning("metal", Tuning::apple());
        compiler::change(None);
        match opened {
            Ok(device) => panic!("{} is opened", device.name()),
            Err(TensorError::UnsupportedDevice(why)) => why,
            Err(e) => panic!("{e}"),
        }
    };
    let without_barriers = opened_with(|source| source.replace("metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);", ""));
    assert!(without_barriers.contains("Metal computes sums through threadgroup memory wrong"), "{without_barriers}");
    let values = opened_with(|source| source.replace("(2.0 * ", "(2.5 * "));
    assert!(values.contains("Metal computes values one by one wrong"), "{values}");
    let products = opened_with(|source| source.replace("product = ", "product = 1.0f + "));
    assert!(products.contains("Metal computes products of tiles in threadgroup memory wrong"), "{products}");
    compiler::EAGER.store(true, SeqCst);
    let refused = opened_with(|source| source.replace("metal::uint", "metal::unsigned_of_nobody"));
    compiler::EAGER.store(false, SeqCst);
    assert!(refused.contains("Metal's compiler refuses a plain kernel: ") && refused.contains("unsigned_of_nobody"), "{refused}");
    device();
}

#[test]
fn what_is_wrong_with_a_text_is_told_with_its_op() {
    let _alone = alone();
    compiler::EAGER.store(true, SeqCst);
    let why = with_sources(|source| source.replace("metal::max(", "metal::largest("));
    compiler::EAGER.store(false, SeqCst);
    assert!(why.as_ref().is_some_and(|e| e.contains("softmax") && e.contains("largest")), "{why:?}");
}

/// The source without its first write to threadgroup memory.
fn without_first_write(source: &str) -> String {
    let memory: Vec<&str> =
        source.lines().filter_map(|l| l.trim().strip_prefix("threadgroup ")?.strip_suffix(';')?.split(' ').nth(1)).collect();
    let mut gone = false;
    let keep = |line: &&str| {
        let writes = |name: &&str| {
            line.trim_start().strip_prefix(*name).is_some_and(|l| l.starts_with('[') || l.starts_with(".inner[")) && line.contains(" = ")
        };
        let hit = !gone && memory.iter().any(writes);
        gone |= hit;
        !hit
    };
    source.lines().filter(keep).map(|l| format!("{l}\n")).collect()
}

#[test]
fn threadgroup_memory_that_nobody_wrote_is_found() {
    let _alone = alone();
    let changed = Arc::new(AtomicUsize::new(0));
    let count = changed.clone();
    let found = with_sources(move |source| {
        let out = without_first_write(source);
        count.fetch_add(usize::from(out.lines().count() < source.lines().count()), SeqCst);
        out
    });
    assert!(changed.load(SeqCst) > 0, "no kernel writes threadgroup memory");
    assert!(found.is_some(), "an uninitialised read is not found");
}

#[test]
fn encoders_without_a_fence_are_found() {
    let _alone = alone();
    let d = device();
    let [a, b, _] = operands(&d).unwrap();
    let c = a.matmul(&b).unwrap();
    c.eval().unwrap();
    FAULTS.skip_fences.store(true, SeqCst);
    let e = c.softmax(-1).unwrap();
    e.eval().unwrap();
    match e.sum(&[0], false).unwrap().to_vec() {
        Err(TensorError::DeviceLost(why)) => assert!(why.contains("no fence between"), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_failed_command_buffer_loses_the_device_and_names_its_steps() {
    let _alone = alone();
    // Also where the event says that it ended before the handler says how.
    for late in [0, 30] {
        let d = device();
        let operands = operands(&d).unwrap();
        FAULTS.late_handlers.store(late, SeqCst);
        FAULTS.fail_after.store(0, SeqCst);
        match chain(&operands) {
            Err(TensorError::DeviceLost(why)) => {
                assert!(why.contains("as asked") && why.contains("from matmul to softmax"), "{why}");
            }
            other => panic!("handlers {late} ms late: {other:?}"),
        }
        assert!(matches!(chain(&operands), Err(TensorError::DeviceLost(_))), "work after a loss");
        assert!(matches!(d.synchronize(), Err(TensorError::DeviceLost(_))), "a lost device stays lost");
    }
    FAULTS.late_handlers.store(0, SeqCst);
}

#[test]
fn a_command_buffer_without_room_is_an_error_that_the_device_survives() {
    let _alone = alone();
    let d = device();
    let operands = operands(&d).unwrap();
    let right = chain(&operands).unwrap();
    FAULTS.fail_code.store(8, SeqCst);
    FAULTS.fail_after.store(0, SeqCst);
    let failed = chain(&operands);
    FAULTS.fail_code.store(2, SeqCst);
    assert_eq!(FAULTS.fail_after.load(SeqCst), -1, "no command buffer failed");
    // Where the failure is known before the evaluation ends, that is tried once more.
    match failed {
        Ok(values) => assert_eq!(values, right),
        Err(e) => assert!(matches!(e, TensorError::OutOfMemory { .. }), "{e}"),
    }
    d.synchronize().unwrap();
    assert_eq!(chain(&operands).unwrap(), right);
}

#[test]
fn refused_memory_is_an_error_that_names_the_device() {
    let _alone = alone();
    let d = device();
    FAULTS.refuse_memory.store(true, SeqCst);
    let failed = Tensor::zeros(&[1 << 20], DType::F32, &d).and_then(|t| t.eval().map(drop));
    FAULTS.refuse_memory.store(false, SeqCst);
    match failed {
        Err(TensorError::OutOfMemory { device, asked, .. }) => assert!(device.contains("Fake M1") && asked >= 4 << 20, "{device} {asked}"),
        other => panic!("{other:?}"),
    }
    Tensor::zeros(&[1 << 20], DType::F32, &d).unwrap().eval().unwrap();
}

#[test]
fn what_metal_does_not_give_is_named_when_it_is_opened() {
    let _alone = alone();
    for (method, what) in [("newCommandQueue", "command queue"), ("newSharedEvent", "shared event"), ("newFence", "fence")] {
        *FAULTS.without.lock().unwrap() = method;
        let failed = Device::open_with_tuning("metal", Tuning::apple());
        *FAULTS.without.lock().unwrap() = "";
        let says = format!("Metal gives no {what}");
        assert!(matches!(&failed, Err(TensorError::UnsupportedDevice(why)) if why.contains(&says)), "{failed:?}");
    }
}

#[test]
fn where_metal_has_no_device_opening_says_so() {
    let _alone = alone();
    FAULTS.no_device.store(true, SeqCst);
    let failed = Device::open_with_tuning("metal", Tuning::apple());
    assert!(matches!(&failed, Err(TensorError::UnsupportedDevice(why)) if why.contains("Metal gives no device")), "{failed:?}");
}
