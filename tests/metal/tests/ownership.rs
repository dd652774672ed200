//! Faults of ownership that are planted are found: a buffer that is given up while commands name it, an object that is released too often. And the
//! backend makes neither: what is given up while the GPU works is kept until it is done.

use fake_metal::faults::UNTOLD;
use fake_metal::metal::FAULTS;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_metal::*;
use std::process::Command;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tensorlogic::device::StorageMode;
use tensorlogic::io::SafeTensors;
use tensorlogic::tuning::Tuning;
use tensorlogic::{Device, Tensor};

fn buffer(device: &ProtocolObject<dyn MTLDevice>) -> Retained<ProtocolObject<dyn MTLBuffer>> {
    let options = MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeUntracked;
    device.newBufferWithLength_options(4096, options).unwrap()
}

/// A copy whose source is given up before the commands are done; gives how the command buffer ended.
fn copy(commands: &ProtocolObject<dyn MTLCommandBuffer>, device: &ProtocolObject<dyn MTLDevice>) -> Result<(), String> {
    let (from, to) = (buffer(device), buffer(device));
    let encoder = commands.blitCommandEncoder().unwrap();
    // SAFETY: both ranges are inside of their buffers.
    unsafe { encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(&from, 0, &to, 0, 4096) };
    encoder.endEncoding();
    drop(from);
    commands.commit();
    commands.waitUntilCompleted();
    commands.error().map_or(Ok(()), |e| Err(e.localizedDescription().to_string()))
}

#[test]
fn a_buffer_that_is_given_up_early_is_found() {
    autoreleasepool(|_| {
        let device = MTLCreateSystemDefaultDevice().unwrap();
        let queue = device.newCommandQueue().unwrap();
        let failed = copy(&queue.commandBufferWithUnretainedReferences().unwrap(), &device);
        assert!(failed.as_ref().is_err_and(|e| e.contains("was freed before its commands were done")), "{failed:?}");
    });
}

/// The faults are the process's: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|e| e.into_inner())
}

/// A device of its own.
fn device() -> Device {
    let device = Device::open_with_tuning("metal", Tuning::apple()).unwrap();
    device.set_adaptive(false);
    device
}

fn values() -> Vec<f32> {
    (0..64 << 10).map(|n| (n % 91) as f32).collect()
}

/// Sums of rows, which no kernel has begun to compute: what else is `done` meanwhile is done while the GPU has them still to do.
fn sums_meanwhile(x: Tensor, done: impl FnOnce(Tensor)) -> Tensor {
    let held = FAULTS.hold.lock().unwrap();
    let sums = x.add(1.0).unwrap().sum(&[1], false).unwrap();
    sums.eval().unwrap();
    done(x);
    drop(held);
    sums
}

/// Values in the backend's own memory, which is done with: those of a vector that fills pages would be bound where they lie.
fn own(d: &Device) -> Tensor {
    let less: Vec<f32> = values().iter().map(|v| v - 1.0).collect();
    let x = Tensor::from_vec(less, &[64, 1024], d).unwrap().add(1.0).unwrap();
    x.eval().unwrap();
    d.synchronize().unwrap();
    x
}

fn right_sums() -> Vec<f32> {
    values().chunks(1024).map(|row| row.iter().map(|v| v + 1.0).sum()).collect()
}

#[test]
fn what_is_given_up_while_the_gpu_works_is_kept_until_it_is_done() {
    let _alone = alone();
    let d = device();
    let sums = sums_meanwhile(own(&d), |x| {
        // The only handle, and nothing kept for reuse: without the backend's list of what submits still use, the memory would be freed here.
        drop(x);
        d.buffer_pool().clear();
    });
    assert_eq!(sums.to_vec().unwrap(), right_sums());
}

/// The same work where the device tells too early that it is done: the backend gives the memory back, and that is found.
#[test]
fn memory_that_the_backend_gives_back_early_is_found() {
    let _alone = alone();
    let d = device();
    let x = own(&d);
    FAULTS.early_handlers.store(true, SeqCst);
    let _sums = sums_meanwhile(x, |x| {
        d.synchronize().unwrap();
        drop(x);
        d.buffer_pool().clear();
    });
    let (start, untold) = (Instant::now(), || std::mem::take(&mut *UNTOLD.lock().unwrap()));
    let mut found = untold();
    while found.is_empty() && start.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(10));
        found = untold();
    }
    FAULTS.early_handlers.store(false, SeqCst);
    assert!(matches!(&found[..], [why] if why.contains("was freed before its commands were done")), "{found:?}");
}

#[test]
fn a_file_that_is_bound_in_place_is_kept_until_the_gpu_is_done() {
    let _alone = alone();
    let d = device();
    let path = std::env::temp_dir().join(format!("tl-metal-kept-{}.safetensors", std::process::id()));
    let mut header = format!(r#"{{"x":{{"dtype":"F32","shape":[64,1024],"data_offsets":[0,{}]}}}}"#, 4 * values().len()).into_bytes();
    // Behind its length of eight bytes, it ends where rows of four words may begin.
    header.resize((header.len() + 8).next_multiple_of(16) - 8, b' ');
    let data = values().iter().flat_map(|v| v.to_le_bytes()).collect();
    std::fs::write(&path, [(header.len() as u64).to_le_bytes().to_vec(), header, data].concat()).unwrap();
    let x = SafeTensors::open(&path).unwrap().load("x", &d).unwrap();
    x.eval().unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(d.buffer_pool_stats().mapped, 4 * values().len(), "the file is not bound in place");
    let sums = sums_meanwhile(x, drop);
    assert_eq!(sums.to_vec().unwrap(), right_sums());
}

/// Plans that were not used for long are forgotten, and with them the memory that their numbers are in.
#[test]
fn the_numbers_of_a_plan_that_is_forgotten_are_kept_until_the_gpu_is_done() {
    let _alone = alone();
    let d = device();
    let sums = sums_meanwhile(own(&d), |x| {
        // Of each shape a plan of its own, twice as many as are kept.
        for n in 1..=600 {
            x.narrow(1, 0, n).unwrap().mul(3.0).unwrap().eval().unwrap();
        }
    });
    assert_eq!(sums.to_vec().unwrap(), right_sums());
}

/// Memory that values go through to a buffer that the GPU uses; more of it than is kept for the next ones.
#[test]
fn staging_memory_is_kept_until_the_gpu_is_done() {
    let _alone = alone();
    let d = device();
    d.set_storage_mode(StorageMode::Private);
    let held = FAULTS.hold.lock().unwrap();
    let sums: Vec<Tensor> = (0..8)
        .map(|_| {
            let x = Tensor::from_vec(values(), &[64, 1024], &d).unwrap();
            let sums = x.add(1.0).unwrap().sum(&[1], false).unwrap();
            sums.eval().unwrap();
            sums
        })
        .collect();
    drop(held);
    sums.iter().for_each(|s| assert_eq!(s.to_vec().unwrap(), right_sums()));
}

/// Runs only as a process of its own, which it ends.
#[test]
#[ignore = "ends its process; the test below starts it"]
fn releases_too_often() {
    let device = MTLCreateSystemDefaultDevice().unwrap();
    let buffer = buffer(&device);
    let copy = Retained::as_ptr(&buffer);
    // SAFETY: none: this is the fault. The pointer is of an object that is alive.
    drop(unsafe { Retained::from_raw(copy.cast_mut()) });
    drop(buffer);
}

#[test]
fn an_object_that_is_released_too_often_is_found() {
    let run = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "releases_too_often", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(!run.status.success() && said.contains("of a freed FakeBuffer"), "{said}");
}
