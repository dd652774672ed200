//! Memory on the Metal backend: private and shared, written while the GPU works, files bound in place; times, and reads that nobody blocks for.

use fake_metal as _;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use tensorlogic::device::StorageMode;
use tensorlogic::tuning::Tuning;
use tensorlogic::{Device, Tensor};

fn device() -> Device {
    let device = Device::open_with_tuning("metal", Tuning::apple()).unwrap();
    device.set_adaptive(false);
    device
}

fn values(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 31 + seed * 17) % 103) as f32 - 51.0).collect()
}

#[test]
fn private_memory_gives_the_same_numbers() {
    let d = device();
    let sums = |mode: StorageMode| {
        d.set_storage_mode(mode);
        let x = Tensor::from_vec(values(200 * 300, 1), &[200, 300], &d).unwrap();
        let y = x.add(1.0).unwrap();
        y.eval().unwrap();
        (d.storage_mode(), x.to_vec().unwrap(), y.to_vec().unwrap(), y.sum(&[1], false).unwrap().to_vec().unwrap())
    };
    let (shared, private) = (sums(StorageMode::Shared), sums(StorageMode::Private));
    assert_eq!((shared.0, private.0), (StorageMode::Shared, StorageMode::Private));
    assert_eq!(shared.1, values(200 * 300, 1));
    assert!(shared.1 == private.1 && shared.2 == private.2 && shared.3 == private.3);
}

/// Each upload takes memory of the last one from the pool, which the GPU may still read.
#[test]
fn memory_that_the_gpu_still_reads_is_not_overwritten() {
    let d = device();
    let sums: Vec<Tensor> = (0..40)
        .map(|n| {
            let x = Tensor::from_vec(values(64 << 10, n), &[64, 1024], &d).unwrap();
            let sum = x.sum(&[1], false).unwrap();
            sum.eval().unwrap();
            sum
        })
        .collect();
    assert!(d.memory().reused > 10, "the pool gave nothing again");
    for (n, sum) in sums.iter().enumerate() {
        let want: Vec<f32> = values(64 << 10, n).chunks(1024).map(|row| row.iter().sum()).collect();
        assert_eq!(sum.to_vec().unwrap(), want, "upload {n}");
    }
}

#[test]
fn a_profile_has_the_times_of_each_step() {
    let d = device();
    let x = Tensor::from_vec(values(64 * 64, 3), &[64, 64], &d).unwrap();
    let (_, profile) = d.profile(|| x.matmul(&x)?.softmax(-1)?.to_vec()).unwrap();
    let ops: Vec<_> = profile.rows().iter().map(|r| r.op.to_string()).collect();
    assert!(ops.iter().any(|o| o.contains("matmul")) && ops.iter().any(|o| o.contains("softmax")), "{ops:?}");
}

struct Unpark(std::thread::Thread);
impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[test]
fn values_are_awaited() {
    let d = device();
    let x = Tensor::from_vec(values(32 * 32, 5), &[32, 32], &d).unwrap();
    let y = x.matmul(&x).unwrap();
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(y.to_vec_async::<f32>());
    let got = loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(got) => break got.unwrap(),
            // The completion handler wakes; polling without it would go on for ever.
            Poll::Pending => std::thread::park(),
        }
    };
    assert_eq!(got, x.matmul(&x).unwrap().to_vec().unwrap());
}

#[test]
fn parts_of_a_mapped_file_are_bound_in_place() {
    use tensorlogic::backends::{Backend, Bytes, metal::NativeMetal};
    let path = std::env::temp_dir().join(format!("tl-metal-{}.bin", std::process::id()));
    let all: Vec<f32> = values(64 << 10, 7);
    std::fs::write(&path, all.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
    // SAFETY: nobody changes the file while it is mapped.
    let map = Arc::new(unsafe { memmap2::Mmap::map(&std::fs::File::open(&path).unwrap()) }.unwrap());
    std::fs::remove_file(&path).unwrap();
    let m = NativeMetal::open().unwrap();
    let held = Arc::strong_count(&map);
    for (start, in_place) in [(0, true), (4096, true), (4112, true), (5008, true), (4100, false)] {
        let before = m.pool().stats().mapped;
        let buffer = m.upload(Bytes::Shared(map.clone(), start, 70_000)).unwrap();
        assert_eq!(m.pool().stats().mapped - before, if in_place { 70_000 } else { 0 }, "from byte {start}");
        let mut got = vec![0u8; 70_000];
        m.read(&buffer, 0, &mut got).unwrap();
        assert_eq!(got, map[start..start + 70_000]);
        assert!(!in_place || !buffer.is_unique(), "a file's memory may be written");
    }
    assert_eq!(Arc::strong_count(&map), held, "a map is held by a buffer that is gone");
}
