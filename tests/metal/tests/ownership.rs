//! Faults of ownership that are planted are found: a buffer that is given up while commands name it, an object that is released too often. And the
//! backend makes neither: what is given up while the GPU works is kept until it is done.

use fake_metal::metal::FAULTS;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_metal::*;
use std::process::Command;
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

#[test]
fn what_is_given_up_while_the_gpu_works_is_kept_until_it_is_done() {
    let d = Device::open_with_tuning("metal", Tuning::apple()).unwrap();
    d.set_adaptive(false);
    let x = Tensor::from_vec((0..64 << 10).map(|n| (n % 91) as f32).collect::<Vec<f32>>(), &[64, 1024], &d).unwrap();
    let want: Vec<f32> = x.add(1.0).unwrap().sum(&[1], false).unwrap().to_vec().unwrap();
    let held = FAULTS.hold.lock().unwrap();
    let sum = x.add(1.0).unwrap().sum(&[1], false).unwrap();
    sum.eval().unwrap();
    // The only handle, and nothing kept for reuse: without the backend's list of what submits still use, the memory would be freed here.
    drop(x);
    d.buffer_pool().clear();
    drop(held);
    assert_eq!(sum.to_vec().unwrap(), want);
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
