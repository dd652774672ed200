//! Transfers: batches of uploads, memory that host and device share, writes in place, downloads that are waited for later.
//! A process of its own: submits and waits of the device are counted, which other tests would add to.

mod common;

use std::sync::MutexGuard;
use std::time::{Duration, Instant};
use tensorlogic::device::StorageMode;
use tensorlogic::{DType, Device, Tensor, TensorError};

/// Waits for the turn (the counters are the device's); gives the GPU of the tests, or `None` where there is none and none is required.
fn gpu() -> (MutexGuard<'static, ()>, Option<Device>) {
    (common::alone(), common::gpu())
}

fn ramp(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i % 1000) as f32 * 0.25 - 17.0).collect()
}

#[test]
fn many_small_uploads_are_one_write_and_one_submit() {
    let (_turn, Some(d)) = gpu() else { return };
    for (count, len) in [(100usize, 16usize), (8, 3), (2, 5000), (1, 7)] {
        let (submits, before) = (d.submits(), d.transfers());
        let parts: Vec<Tensor> =
            (0..count).map(|i| Tensor::from_vec(ramp(len).iter().map(|v| v + i as f32).collect(), &[len], &d).unwrap()).collect();
        let all = Tensor::cat(&parts.iter().collect::<Vec<_>>(), 0).unwrap().mul(2.0).unwrap();
        all.eval().unwrap();
        let after = d.transfers();
        assert_eq!(d.submits() - submits, 1, "{count} of {len}");
        assert_eq!(after.uploads - before.uploads, count as u64);
        assert!(after.staging_writes - before.staging_writes <= 2, "{} staging writes", after.staging_writes - before.staging_writes);
        let expected: Vec<f32> = (0..count).flat_map(|i| ramp(len).into_iter().map(move |v| (v + i as f32) * 2.0)).collect();
        assert_eq!(all.to_vec().unwrap(), expected, "{count} of {len}");
        // What is there is not brought again.
        parts[0].add(1.0).unwrap().eval().unwrap();
        assert_eq!(d.transfers().uploads, after.uploads);
    }
}

#[test]
fn every_storage_mode_computes_the_same_and_says_what_it_is() {
    let (_turn, gpu) = gpu();
    let n = 50_000;
    let expected: Vec<f32> = ramp(n).iter().map(|v| v * 3.0).collect();
    let check = |d: &Device, mode: StorageMode, got: &[StorageMode]| {
        let x = Tensor::from_vec_in(ramp(n), &[n], d, mode).unwrap();
        let is = x.storage_mode().unwrap();
        assert!(got.contains(&is), "{}: asked for {mode:?}, got {is:?}", d.name());
        let before = d.transfers();
        assert_eq!(x.to_vec().unwrap(), ramp(n), "{mode:?}");
        let after = d.transfers();
        match is {
            // Every read came from the host's own copy, or from the buffer itself.
            StorageMode::Managed => assert_eq!(after.downloads, before.downloads),
            StorageMode::Shared => assert_eq!(after.in_place_reads - before.in_place_reads, after.downloads - before.downloads),
            StorageMode::Private => assert_eq!(after.in_place_reads, before.in_place_reads),
        }
        let y = x.mul(3.0).unwrap();
        assert_eq!(y.storage_mode(), None);
        assert_eq!(y.to_vec().unwrap(), expected, "{mode:?}");
        assert_eq!(y.storage_mode(), Some(d.storage_mode()));
        assert_eq!(
            x.with_slice(|v: &[f32]| v.iter().map(|v| *v as f64).sum::<f64>()).unwrap(),
            ramp(n).iter().map(|v| *v as f64).sum::<f64>()
        );
        assert_eq!(y.narrow(0, 1001, 5).unwrap().with_slice(|v: &[f32]| v.to_vec()).unwrap(), expected[1001..1006]);
        assert!(matches!(x.with_slice(|_: &[i32]| ()), Err(TensorError::DType { .. })));
    };
    use StorageMode::{Managed, Private, Shared};
    for mode in [Shared, Private, Managed] {
        check(&Device::cpu(), mode, &[Shared]);
    }
    if let Some(d) = gpu {
        let usual = d.storage_mode();
        assert!(usual == Shared || !d.name().contains("llvmpipe"), "a software driver's memory is the host's");
        // A GPU with memory of its own gives that where the host cannot see it.
        let shared: &[StorageMode] = if usual == Shared { &[Shared] } else { &[Shared, Private] };
        check(&d, Shared, shared);
        check(&d, Private, &[Private]);
        check(&d, Managed, &[Managed]);
        d.set_storage_mode(Private);
        check(&d, Shared, shared);
        assert_eq!(Tensor::from_vec(ramp(n), &[n], &d).unwrap().storage_mode(), Some(Private));
        d.set_storage_mode(usual);
    }
}

/// Says where two long rows of numbers differ first, instead of printing them.
#[track_caller]
fn same(d: &Device, got: &[f32], expected: &[f32]) {
    let differs = got.iter().zip(expected).position(|(a, b)| a != b);
    assert!(got.len() == expected.len(), "{}: {} values, not {}", d.name(), got.len(), expected.len());
    if let Some(i) = differs {
        let wrong = got.iter().zip(expected).filter(|(a, b)| a != b).count();
        panic!("{}: value {i} of {} is {}, not {}; {wrong} are wrong", d.name(), got.len(), got[i], expected[i]);
    }
}

/// Writes into a tensor while others hold its value or not.
fn check_writes(d: &Device, n: usize) {
    let values = |k: f32| ramp(n).iter().map(|v| v + k).collect::<Vec<f32>>();
    let mut x = Tensor::from_vec(values(0.0), &[n], d).unwrap().add(0.0).unwrap();
    x.eval().unwrap();
    // Alone: no memory is asked for.
    let asked = d.buffer_pool_stats().allocation_count;
    for k in 1..5 {
        x.copy_from_slice(&values(k as f32)).unwrap();
    }
    assert_eq!(d.buffer_pool_stats().allocation_count, asked, "{} {n}", d.name());
    same(d, &x.to_vec().unwrap(), &values(4.0));
    // Another handle, a view and a pending operation keep the old value.
    let (handle, view, pending) = (x.clone(), x.narrow(0, 1, n - 1).unwrap(), x.mul(2.0).unwrap());
    x.copy_from_slice(&values(9.0)).unwrap();
    same(d, &x.to_vec().unwrap(), &values(9.0));
    same(d, &handle.to_vec().unwrap(), &values(4.0));
    same(d, &view.to_vec().unwrap(), &values(4.0)[1..]);
    same(d, &pending.to_vec().unwrap(), &values(4.0).iter().map(|v| v * 2.0).collect::<Vec<_>>());
    // What was submitted before the write reads the old value, also when it is still running.
    drop((handle, view, pending));
    let mut y = x.add(1.0).unwrap();
    y.eval().unwrap();
    let sum = y.add(0.5).unwrap();
    sum.eval().unwrap();
    y.copy_from_slice(&values(0.0)).unwrap();
    same(d, &sum.to_vec().unwrap(), &values(10.5));
    same(d, &y.to_vec().unwrap(), &values(0.0));
    assert!(matches!(y.copy_from_slice(&[1.0f32]), Err(TensorError::Shape { .. })));
    assert!(matches!(y.copy_from_slice(&vec![1i32; n]), Err(TensorError::DType { .. })));
    // A view becomes a tensor of its own.
    let mut part = y.narrow(0, 0, 3).unwrap();
    part.copy_from_slice(&[7.0f32, 8.0, 9.0]).unwrap();
    assert_eq!((part.to_vec().unwrap(), y.to_vec().unwrap()), (vec![7.0, 8.0, 9.0], values(0.0)));
}

#[test]
fn preallocated_tensors_are_written_in_place_unless_somebody_reads_the_old_value() {
    let (_turn, gpu) = gpu();
    for d in [Some(Device::cpu()), gpu].into_iter().flatten() {
        for n in [5, 1000, 300_001] {
            check_writes(&d, n);
        }
    }
}

#[test]
fn large_values_become_tensors_without_a_copy_on_the_cpu() {
    let _turn = common::alone();
    let data = ramp(1 << 20);
    let at = data.as_ptr();
    let x = Tensor::from_vec(data, &[1 << 20], &Device::cpu()).unwrap();
    x.with_slice(|v: &[f32]| assert!(std::ptr::eq(v.as_ptr(), at))).unwrap();
    // The vector is read-only as a tensor's memory: a write makes a copy, a later one does not.
    let x = x.write(&Tensor::zeros(&[4], DType::F32, &Device::cpu()).unwrap(), 0, 0).unwrap();
    assert_eq!(x.narrow(0, 0, 5).unwrap().to_vec().unwrap(), [0.0, 0.0, 0.0, 0.0, ramp(5)[4]]);
}

#[test]
fn an_evaluation_returns_before_the_gpu_is_done_and_other_work_overlaps_with_a_download() {
    let (_turn, Some(d)) = gpu() else { return };
    let entries = |n: usize| -> Vec<f32> { (0..n * n).map(|i| ((i * 7919) % 13) as f32 - 6.0).collect() };
    let products = |x: &Tensor, n: usize| {
        let mut y = x.clone();
        for _ in 0..12 {
            // Scaled, so that numbers stay small; each product waits for the one before.
            y = y.matmul(x).unwrap().mul(1.0 / n as f64).unwrap();
        }
        y
    };
    // As much work as keeps this GPU busy for a while.
    let (n, a, x) = [512, 1024, 2048, 4096, 8192]
        .into_iter()
        .find_map(|n| {
            let a = entries(n);
            let x = Tensor::from_vec(a.clone(), &[n, n], &d).unwrap();
            products(&x, n).eval().unwrap();
            d.synchronize().unwrap();
            let start = Instant::now();
            products(&x, n).eval().unwrap();
            d.synchronize().unwrap();
            (start.elapsed() > Duration::from_millis(20) || n == 8192).then_some((n, a, x))
        })
        .expect("one of the sizes");
    let run = || products(&x, n);
    run().to_vec().unwrap();
    let start = Instant::now();
    let y = run();
    y.eval().unwrap();
    let evaluated = start.elapsed();
    let download = y.download().unwrap();
    let asked = start.elapsed();
    let early = download.is_ready();
    // Independent work: on the CPU, and the host's side of the next evaluation on the GPU.
    let cpu = Device::cpu();
    // The same small work whatever the GPU: on a fast one the matrices are large, and squaring all of one would outlast the products.
    let part = &a[..1 << 16];
    let other = Tensor::from_vec(part.to_vec(), &[part.len()], &cpu).unwrap().square().unwrap().sum_all().unwrap().item().unwrap();
    let worked = start.elapsed();
    let between = download.is_ready();
    let next = x.add(1.0).unwrap();
    next.eval().unwrap();
    let got = download.wait::<f32>().unwrap();
    let done = start.elapsed();
    println!("{}: evaluated after {evaluated:?}, asked for after {asked:?}, other work after {worked:?}, here after {done:?}", d.name());
    assert!(!early && evaluated * 4 < done, "evaluation took {evaluated:?} of {done:?}");
    assert!(!between && worked < done, "the other work did not overlap: {worked:?} of {done:?}");
    assert_eq!(other, part.iter().map(|v| (*v as f64).powi(2)).sum::<f64>());
    assert_eq!(next.to_vec().unwrap(), a.iter().map(|v| v + 1.0).collect::<Vec<_>>());
    // One row of the product against plain loops in f64.
    let mut row: Vec<f64> = a[..n].iter().map(|v| *v as f64).collect();
    for _ in 0..12 {
        row = (0..n).map(|j| (0..n).map(|k| row[k] * a[k * n + j] as f64).sum::<f64>() / n as f64).collect();
    }
    let size = row.iter().map(|v| v * v).sum::<f64>().sqrt();
    let off = row.iter().zip(&got[..n]).map(|(a, b)| (a - *b as f64).powi(2)).sum::<f64>().sqrt();
    assert!(off <= 1e-4 * size, "{off} of {size}");
    // Small ones and large ones together, waited for in another order.
    let pending: Vec<_> = [3usize, 5000, 1 << 20, 1]
        .iter()
        .map(|&n| (n, Tensor::arange(0.0, n as f64, 1.0, DType::I32, &d).unwrap().add(1).unwrap().download().unwrap()))
        .collect();
    for (n, p) in pending.into_iter().rev() {
        assert_eq!(p.wait::<i32>().unwrap(), (1..=n as i32).collect::<Vec<_>>());
    }
}

#[test]
fn looking_at_memory_and_using_the_device_at_once_is_an_error_and_no_deadlock() {
    let (_turn, Some(d)) = gpu() else { return };
    for mode in [StorageMode::Shared, StorageMode::Private] {
        let x = Tensor::from_vec_in(ramp(70_000), &[70_000], &d, mode).unwrap();
        let inner = x.with_slice(|v: &[f32]| (v[3], x.add(1.0).unwrap().to_vec().expect_err("the device is being looked at"))).unwrap();
        assert_eq!(inner.0, ramp(4)[3]);
        assert!(inner.1.to_string().contains("with_slice"), "{}", inner.1);
        assert_eq!(x.add(1.0).unwrap().to_vec().unwrap()[3], ramp(4)[3] + 1.0);
    }
}

#[test]
fn threads_may_read_in_place_while_others_run() {
    let (_turn, Some(d)) = gpu() else { return };
    let x = Tensor::from_vec(ramp(100_000), &[100_000], &d).unwrap();
    std::thread::scope(|s| {
        for k in 0..4 {
            let x = &x;
            s.spawn(move || {
                for i in 0..25 {
                    if k % 2 == 0 {
                        assert_eq!(x.to_vec().unwrap()[k * 1000 + i], ramp(100_000)[k * 1000 + i]);
                    } else {
                        let y = x.add(i as f64).unwrap().narrow(0, 0, 10).unwrap().to_vec().unwrap();
                        assert_eq!(y, ramp(10).iter().map(|v| v + i as f32).collect::<Vec<_>>());
                    }
                }
            });
        }
    });
}

#[test]
fn a_gradient_flows_through_a_transfer() {
    let (_turn, Some(d)) = gpu() else { return };
    let cpu = Device::cpu();
    for (from, to) in [(&cpu, &d), (&d, &cpu)] {
        let x = Tensor::from_vec(ramp(6), &[2, 3], from).unwrap().requires_grad().unwrap();
        let w = Tensor::from_vec(ramp(6), &[3, 2], to).unwrap();
        // Transposed on the way, and used on both sides.
        let y = x.mul(3.0).unwrap().t().unwrap().to_device(to).unwrap().mul(&w).unwrap().sum_all().unwrap();
        let z = y.to_device(from).unwrap().add(&x.sum_all().unwrap()).unwrap();
        z.backward().unwrap();
        let want: Vec<f32> = (0..2).flat_map(|r| (0..3).map(move |c| 3.0 * ramp(6)[c * 2 + r] + 1.0)).collect();
        assert_eq!(x.grad().unwrap().to_vec().unwrap(), want, "from {} to {}", from.name(), to.name());
        assert_eq!(x.grad().unwrap().device(), from);
        let plain = tensorlogic::autograd::no_grad(|| x.to_device(to)).unwrap();
        assert!(!plain.is_tracked() && !x.detach().to_device(to).unwrap().is_tracked());
    }
}
