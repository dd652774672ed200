//! Faults that are planted are found: barriers and fences left out, command buffers that fail, memory that is refused, no device.

use fake_metal::metal::{COUNTS, FAULTS};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, MutexGuard};
use tensorlogic::tuning::Tuning;
use tensorlogic::{DType, Device, Rng, Tensor, TensorError, TensorResult};

/// The faults are the process's: one test at a time, each of which leaves none.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    FAULTS.fail_after.store(-1, SeqCst);
    FAULTS.skip_barrier.store(-1, SeqCst);
    FAULTS.refuse_memory.store(false, SeqCst);
    FAULTS.no_device.store(false, SeqCst);
    FAULTS.skip_fences.store(false, SeqCst);
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
    let right = chain(&operands(&d).unwrap()).unwrap();
    let barriers = COUNTS.barriers.load(SeqCst) - before;
    assert!(barriers >= 3, "{barriers} barriers between four dependent steps");
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
    let d = device();
    let operands = operands(&d).unwrap();
    FAULTS.fail_after.store(0, SeqCst);
    match chain(&operands) {
        Err(TensorError::DeviceLost(why)) => {
            assert!(why.contains("as asked") && why.contains("from matmul to softmax"), "{why}");
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(operands[0].to_vec(), Ok(_) | Err(TensorError::DeviceLost(_))));
    assert!(matches!(d.synchronize(), Err(TensorError::DeviceLost(_))), "a lost device stays lost");
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
fn where_metal_has_no_device_opening_says_so() {
    let _alone = alone();
    FAULTS.no_device.store(true, SeqCst);
    let failed = Device::open_with_tuning("metal", Tuning::apple());
    assert!(matches!(&failed, Err(TensorError::UnsupportedDevice(why)) if why.contains("Metal gives no device")), "{failed:?}");
}
