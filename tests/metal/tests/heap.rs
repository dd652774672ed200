//! Heaps: small buffers share them, private and shared ones apart; they go back when they are empty; where they are refused, nothing changes but where
//! memory comes from. And faults of their use that are planted are found.

use fake_metal::metal::{COUNTS, FAULTS};
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_metal::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard};
use tensorlogic::backends::{Backend, Buffer, Bytes, metal::NativeMetal};
use tensorlogic::device::StorageMode;
use tensorlogic::tuning::Tuning;
use tensorlogic::{Device, Tensor, TensorResult};

const MIB: usize = 1 << 20;
/// The size of a heap.
const HEAP: usize = 8 * MIB;

/// Counts and faults are the process's: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    FAULTS.refuse_heaps.store(false, SeqCst);
    guard
}

fn device() -> Device {
    let device = Device::open_with_tuning("metal", Tuning::apple()).unwrap();
    device.set_adaptive(false);
    device
}

/// By how much each count grows meanwhile.
fn counted<T, const N: usize>(counts: [&AtomicU64; N], work: impl FnOnce() -> T) -> ([u64; N], T) {
    let before = counts.map(|c| c.load(SeqCst));
    let done = work();
    (std::array::from_fn(|n| counts[n].load(SeqCst) - before[n]), done)
}

fn blocks(m: &NativeMetal, count: usize, bytes: usize, mode: StorageMode) -> Vec<Buffer> {
    (0..count).map(|_| m.alloc_as(bytes, mode).unwrap()).collect()
}

#[test]
fn small_blocks_share_heaps_and_large_ones_are_the_devices_own() {
    let _alone = alone();
    let m = NativeMetal::open().unwrap();
    let counts = [&COUNTS.heap_buffers, &COUNTS.device_buffers, &COUNTS.heaps, &COUNTS.made_resident];
    let ([in_heaps, own, heaps, resident], small) = counted(counts, || blocks(&m, 200, 10_000, StorageMode::Private));
    assert_eq!([in_heaps, own, heaps, resident], [200, 0, 1, 1], "200 buffers of 10,000 bytes fit into one heap");
    let ([in_heaps, own, heaps, resident], large) = counted(counts, || blocks(&m, 2, MIB + 1, StorageMode::Private));
    assert_eq!([in_heaps, own, heaps, resident], [0, 2, 0, 2], "buffers of more than 1 MiB");
    // Heaps are filled before others are made: 2 MB of the one above, eight of each that follows.
    let ([in_heaps, own, heaps, _], mid) = counted(counts, || blocks(&m, 22, MIB, StorageMode::Private));
    assert_eq!([in_heaps, own, heaps], [22, 0, 2], "22 buffers of 1 MiB");
    drop((small, large, mid));
}

#[test]
fn private_and_shared_blocks_never_share_a_heap() {
    let _alone = alone();
    let m = NativeMetal::open().unwrap();
    let modes = [StorageMode::Private, StorageMode::Shared];
    // The fake Metal panics where a buffer and its heap are of different kinds.
    let ([in_heaps, heaps], held) = counted([&COUNTS.heap_buffers, &COUNTS.heaps], || {
        (0..60).map(|n| m.upload_as(Bytes::Owned(vec![n as u8; 100_000].into()), modes[n % 2]).unwrap()).collect::<Vec<_>>()
    });
    assert!(in_heaps >= 60 && heaps <= 3, "{in_heaps} buffers of {heaps} heaps");
    for (n, b) in held.iter().enumerate() {
        assert_eq!(m.mode(b), modes[n % 2]);
        let mut got = vec![0; 100_000];
        m.read(b, 0, &mut got).unwrap();
        assert!(got.iter().all(|v| *v == n as u8), "buffer {n}");
    }
}

/// Work in memory of both kinds, of which some is given up meanwhile.
fn work(device: &Device) -> TensorResult<Vec<f32>> {
    let mut x = Tensor::from_vec((0..64 * 300).map(|n| (n % 37) as f32 / 37.0).collect(), &[64, 300], device)?;
    for _ in 0..4 {
        x = x.softmax(-1)?.add(&x)?;
        x.eval()?;
    }
    x.matmul(&x.t()?)?.to_vec()
}

#[test]
fn where_heaps_are_refused_the_device_makes_the_buffers() {
    let _alone = alone();
    let want = work(&device()).unwrap();
    FAULTS.refuse_heaps.store(true, SeqCst);
    let d = device();
    let ([in_heaps, own], got) = counted([&COUNTS.heap_buffers, &COUNTS.device_buffers], || work(&d));
    assert_eq!(got.unwrap(), want);
    assert!(in_heaps == 0 && own > 0, "{in_heaps} buffers of heaps that are refused, {own} others");
    // Heaps come into use as soon as there are some again.
    FAULTS.refuse_heaps.store(false, SeqCst);
    d.empty_cache();
    let ([in_heaps], got) = counted([&COUNTS.heap_buffers], || work(&d));
    assert_eq!(got.unwrap(), want);
    assert!(in_heaps > 0);
}

#[test]
fn an_empty_heap_goes_back_when_the_pool_is_trimmed() {
    let _alone = alone();
    let d = device();
    let make = |n: usize| Tensor::from_vec(vec![n as f32; MIB / 4], &[MIB / 4], &d).unwrap();
    // More than the device's first heap has room for, and of the last one buffer is kept.
    let ([heaps], mut all) = counted([&COUNTS.heaps], || (0..40).map(make).collect::<Vec<_>>());
    assert_eq!(heaps, 5, "40 buffers of 1 MiB");
    let kept = all.pop().unwrap();
    let full = d.fragmentation().driver.unwrap();
    let ([released], ()) = counted([&COUNTS.heaps_released], || drop(all));
    assert_eq!(released, 0, "the pool keeps buffers for reuse");
    assert_eq!(d.fragmentation().driver.unwrap(), full);

    let ([released], done) = counted([&COUNTS.heaps_released], || d.defragment(1).unwrap());
    assert_eq!((released, done.freed_bytes), (4, 4 * HEAP as u64), "all heaps but that of the device's own and that of the last buffer");
    let left = d.fragmentation().driver.unwrap();
    assert_eq!((full.blocks - left.blocks, full.reserved - left.reserved), (4, 4 * HEAP as u64));
    assert!(left.allocated < left.reserved && left.largest_free >= (HEAP - MIB) as u64, "{left:?}");
    assert_eq!(kept.to_vec().unwrap(), vec![39.0; MIB / 4]);
    let ([released], ()) = counted([&COUNTS.heaps_released], || {
        drop(kept);
        d.empty_cache();
    });
    assert_eq!(released, 1, "the heap of the last buffer");
}

#[test]
fn buffers_given_up_while_the_gpu_works_keep_their_heap() {
    let _alone = alone();
    let d = device();
    let held = FAULTS.hold.lock().unwrap();
    let x = Tensor::from_vec(vec![2.0f32; MIB / 4], &[MIB / 4], &d).unwrap();
    let sums: Vec<Tensor> = (0..20).map(|n| x.add(n as f32).unwrap()).collect();
    for s in &sums {
        s.eval().unwrap();
    }
    let total = sums[19].sum_all().unwrap();
    total.eval().unwrap();
    drop((x, sums));
    d.empty_cache();
    drop(held);
    assert_eq!(total.item().unwrap(), 21.0 * (MIB / 4) as f64);
    let ([released], _) = counted([&COUNTS.heaps_released], || d.defragment(2).unwrap());
    assert!(released >= 2, "{released} heaps went back");
}

// ---- the fake Metal's own checks ----
fn heap(options: MTLResourceOptions, size: usize) -> Retained<ProtocolObject<dyn MTLHeap>> {
    let descriptor = MTLHeapDescriptor::new();
    descriptor.setSize(size);
    descriptor.setResourceOptions(options | MTLResourceOptions::HazardTrackingModeUntracked);
    MTLCreateSystemDefaultDevice().unwrap().newHeapWithDescriptor(&descriptor).unwrap()
}
const SHARED: MTLResourceOptions = MTLResourceOptions::StorageModeShared;
const PRIVATE: MTLResourceOptions = MTLResourceOptions::StorageModePrivate;
const UNTRACKED: MTLResourceOptions = MTLResourceOptions::HazardTrackingModeUntracked;

#[test]
fn a_heap_gives_no_more_than_it_has() {
    let _alone = alone();
    let heap = heap(SHARED, 64 << 10);
    let make = |bytes| heap.newBufferWithLength_options(bytes, SHARED | UNTRACKED);
    assert!(make((64 << 10) + 1).is_none(), "larger than the heap");
    let [a, b, c, d] = [(); 4].map(|()| make(16 << 10).unwrap());
    assert!(make(1).is_none() && heap.maxAvailableSizeWithAlignment(256) == 0, "the heap is full");
    drop((b, d));
    assert_eq!([heap.usedSize(), heap.maxAvailableSizeWithAlignment(256)], [32 << 10, 16 << 10], "two holes");
    assert!(make(17 << 10).is_none(), "larger than a hole");
    drop(c);
    assert_eq!(heap.maxAvailableSizeWithAlignment(256), 48 << 10, "holes become one");
    assert_eq!(make(48 << 10).unwrap().length(), 48 << 10);
    drop(a);
}

#[test]
fn a_buffer_of_another_kind_than_its_heap_is_found() {
    let _alone = alone();
    let private = heap(PRIVATE, 64 << 10);
    for options in [SHARED | UNTRACKED, PRIVATE] {
        let made = catch_unwind(AssertUnwindSafe(|| private.newBufferWithLength_options(256, options).is_some()));
        assert!(made.is_err(), "{options:?} in a private, untracked heap");
    }
    assert!(private.newBufferWithLength_options(256, PRIVATE | UNTRACKED).is_some());
}

/// Runs only as a process of its own, which it ends.
#[test]
#[ignore = "ends its process; the test below starts it"]
fn releases_a_heap_before_its_buffer() {
    let heap = heap(SHARED, 64 << 10);
    let buffer = heap.newBufferWithLength_options(4096, SHARED | UNTRACKED).unwrap();
    drop(heap);
    drop(buffer);
}

#[test]
fn a_heap_that_is_released_before_its_buffers_is_found() {
    let run = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "releases_a_heap_before_its_buffer", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(!run.status.success() && said.contains("a heap is released before 1 of its buffers"), "{said}");
}
