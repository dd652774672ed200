//! The engine backend's API on the machine's GPU against plain loops, with every misuse that can be thought of.

use crate::common::{noise_f32, selector};
use std::sync::Arc;
use tensorlogic::backends::RawBackend;
use tensorlogic::backends::metal::{MTLResourceOptions, MetalBackend, MetalOps, RawGpuBackend, StorageBuffer};
use tensorlogic::{TensorError, TensorResult};

const SHARED: MTLResourceOptions = MTLResourceOptions::StorageModeShared;

/// A backend of its own for each test; `None` skips it.
fn backend() -> Option<Arc<RawGpuBackend>> {
    Some(Arc::new(RawGpuBackend::open(selector()?).unwrap()))
}

/// Numbers between −4 and 4 that look random and are the same every time.
fn noise(n: usize, seed: u64) -> Vec<f32> {
    noise_f32(n, seed, 4.0)
}

#[track_caller]
fn close(got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((*g as f64 - w).abs() <= tolerance * w.abs().max(1.0), "element {i}: {g}, not {w}");
    }
}

type Dispatch = fn(&MetalOps<RawGpuBackend>, &[StorageBuffer], usize) -> TensorResult<()>;

/// Runs an elementwise operation over `n` elements, into a buffer of its own and over each operand, and looks that the elements
/// behind the n-th stay what they were.
#[track_caller]
fn check(ops: &MetalOps<RawGpuBackend>, n: usize, operands: usize, run: Dispatch, want: fn(f64, f64) -> f64) {
    let b = ops.backend();
    let data = [noise(n + 5, 1), noise(n + 5, 2), vec![-77.0; n + 5]];
    for place in [2, 0, 1] {
        let buffers: Vec<StorageBuffer> = data.iter().map(|d| b.create_buffer_with_data(d, SHARED).unwrap()).collect();
        let list = match operands {
            1 => vec![buffers[0].clone(), buffers[place].clone()],
            _ => vec![buffers[0].clone(), buffers[1].clone(), buffers[place].clone()],
        };
        run(ops, &list, n).unwrap();
        let mut got = vec![0.0; n + 5];
        b.copy_buffer_to_host(&buffers[place], &mut got).unwrap();
        let expected: Vec<f64> = data[0].iter().zip(&data[1]).map(|(x, y)| want(*x as f64, *y as f64)).collect();
        close(&got[..n], &expected[..n], 1e-6);
        assert_eq!(got[n..], data[place][n..]);
    }
}

#[test]
fn elementwise_kernels_match_plain_loops() {
    let Some(b) = backend() else { return };
    let ops = MetalOps::new(b).unwrap();
    for n in [0, 1, 3, 4, 255, 256, 257, 10_000] {
        check(&ops, n, 2, |o, b, n| o.add(&b[0], &b[1], &b[2], n), |x, y| x + y);
        check(&ops, n, 2, |o, b, n| o.mul(&b[0], &b[1], &b[2], n), |x, y| x * y);
        check(&ops, n, 1, |o, b, n| o.relu(&b[0], &b[1], n), |x, _| x.max(0.0));
        check(&ops, n, 1, |o, b, n| o.sigmoid(&b[0], &b[1], n), |x, _| 1.0 / (1.0 + (-x).exp()));
    }
}

#[test]
fn extreme_values_stay_what_they_are() {
    let Some(b) = backend() else { return };
    let ops = MetalOps::new(b.clone()).unwrap();
    let x = b.create_buffer_with_data(&[f32::INFINITY, f32::NEG_INFINITY, -200.0, 200.0, 1e-30, -0.0], SHARED).unwrap();
    let y = b.create_buffer(24, SHARED).unwrap();
    let mut got = [0.0f32; 6];
    ops.sigmoid(&x, &y, 6).unwrap();
    b.copy_buffer_to_host(&y, &mut got).unwrap();
    assert_eq!(got, [1.0, 0.0, 0.0, 1.0, 0.5, 0.5]);
    ops.relu(&x, &y, 6).unwrap();
    b.copy_buffer_to_host(&y, &mut got).unwrap();
    assert_eq!(got, [f32::INFINITY, 0.0, 0.0, 200.0, 1e-30, 0.0]);
}

#[test]
fn large_vectors_take_more_groups_than_one_dimension_has() {
    let Some(b) = backend() else { return };
    // 65,535 groups of 256 and some more.
    let n = 65_535 * 256 + 1_000;
    let ops = MetalOps::new(b.clone()).unwrap();
    let x = b.create_buffer_with_data(&vec![1.5f32; n], SHARED).unwrap();
    ops.add(&x, &x, &x, n).unwrap();
    let mut got = vec![0.0f32; n];
    b.copy_buffer_to_host(&x, &mut got).unwrap();
    assert!(got.iter().all(|v| *v == 3.0));
}

#[test]
fn matmul_matches_plain_loops() {
    let Some(b) = backend() else { return };
    let ops = MetalOps::new(b.clone()).unwrap();
    for (m, n, k) in
        [(2, 2, 2), (1, 1, 1), (1, 17, 5), (16, 16, 16), (33, 20, 47), (100, 3, 64), (5, 70, 0), (0, 4, 3), (4, 0, 3), (65, 130, 40)]
    {
        let (x, y) = (noise(m * k, 3), noise(k * n, 4));
        let a = b.create_buffer_with_data(&x, SHARED).unwrap();
        let w = b.create_buffer_with_data(&y, SHARED).unwrap();
        let c = b.create_buffer_with_data(&vec![-7.0f32; m * n + 3], SHARED).unwrap();
        ops.matmul(&a, &w, &c, m, n, k).unwrap();
        let mut got = vec![0.0f32; m * n + 3];
        b.copy_buffer_to_host(&c, &mut got).unwrap();
        let mut want = vec![0.0f64; m * n];
        for i in 0..m {
            for j in 0..n {
                want[i * n + j] = (0..k).map(|l| x[i * k + l] as f64 * y[l * n + j] as f64).sum();
            }
        }
        close(&got[..m * n], &want, 1e-4);
        assert_eq!(got[m * n..], [-7.0; 3], "{m} x {n} x {k} wrote behind its end");
    }
}

#[test]
fn typed_handles_replace_pointers() {
    let Some(b) = backend() else { return };
    let ops = MetalOps::new(b.clone()).unwrap();
    let [x, y, z] = [0; 3].map(|_| b.allocate(16).unwrap());
    b.copy_host_to_buffer(&[1.0f32, 2.0, 3.0, 4.0], &b.buffer(x).unwrap()).unwrap();
    b.copy_host_to_buffer(&[5.0f32, 6.0, 7.0, 8.0], &b.buffer(y).unwrap()).unwrap();
    ops.add_ptr(x, y, z, 4).unwrap();
    let mut got = [0.0f32; 4];
    b.copy_buffer_to_host(&b.buffer(z).unwrap(), &mut got).unwrap();
    assert_eq!(got, [6.0, 8.0, 10.0, 12.0]);

    let error = ops.add_ptr(x, y, z, 5).unwrap_err().to_string();
    assert!(error.starts_with("add_ptr: a has 16 bytes, so 4 f32, not 5 (") && error.contains("metal.rs:"), "{error}");
    assert_eq!(b.deallocate(x, 12).unwrap_err().to_string(), "deallocate: the allocation has 16 bytes, not 12");
    ops.add_ptr(x, y, z, 4).unwrap();
    b.deallocate(x, 16).unwrap();
    assert_eq!(b.deallocate(x, 16).unwrap_err().to_string(), "the handle was already freed");
    let error = ops.add_ptr(x, y, z, 4).unwrap_err().to_string();
    assert!(error.starts_with("add_ptr: a: the handle was already freed"), "{error}");
    // A new allocation may take the memory, never the handle.
    let again = b.allocate(16).unwrap();
    assert_ne!(again, x);
    assert!(b.buffer(x).is_err());
    // A buffer that is held outlives its handle.
    let held = b.buffer(y).unwrap();
    b.deallocate(y, 16).unwrap();
    b.copy_buffer_to_host(&held, &mut got).unwrap();
    assert_eq!(got, [5.0, 6.0, 7.0, 8.0]);
}

#[test]
fn misuse_is_an_error_on_the_callers_line() {
    let Some(b) = backend() else { return };
    let ops = MetalOps::new(b.clone()).unwrap();
    let four = b.create_buffer(16, SHARED).unwrap();
    let three = b.create_buffer(15, SHARED).unwrap();
    let halves = b.create_buffer_with_data(&[half::f16::ONE; 8], SHARED).unwrap();
    let none = b.create_buffer(0, SHARED).unwrap();
    #[track_caller]
    fn says(r: TensorResult<()>, what: &str) {
        let error = r.unwrap_err().to_string();
        assert!(error.contains(what) && error.contains("metal.rs:"), "{error}");
    }
    says(ops.add(&four, &three, &four, 4), "add: b has 15 bytes, so 3 f32, not 4");
    says(ops.add(&four, &four, &none, 1), "add: c has 0 bytes, so 0 f32, not 1");
    says(ops.mul(&four, &halves, &four, 4), "mul: b is f16");
    says(ops.relu(&four, &four, usize::MAX), "relu: x has 16 bytes");
    says(ops.matmul(&four, &four, &none, 2, 2, 2), "matmul: c has 0 bytes");
    says(ops.matmul(&four, &four, &four, 2, 2, 2), "must not share memory");
    says(ops.matmul(&four, &four, &four, usize::MAX, 2, 2), "matmul");
    ops.add(&none, &none, &none, 0).unwrap();
    ops.matmul(&none, &none, &four, 2, 2, 0).unwrap();
    let mut got = [1.0f32; 4];
    b.copy_buffer_to_host(&four, &mut got).unwrap();
    assert_eq!(got, [0.0; 4]);

    let error = b.copy_buffer_to_host(&four, &mut [0.0f32; 5]).unwrap_err().to_string();
    assert_eq!(error, "copy_buffer_to_host: 20 bytes of a buffer of 16");
    let error = b.copy_host_to_buffer(&[0u8; 17], &four).unwrap_err().to_string();
    assert_eq!(error, "copy_host_to_buffer: 17 bytes of a buffer of 16");
    b.copy_buffer_to_host::<f32>(&none, &mut []).unwrap();
    for bytes in [usize::MAX, isize::MAX as usize, 1 << 60] {
        assert!(b.create_buffer(bytes, SHARED).is_err());
        assert!(b.allocate(bytes).is_err());
    }

    let other = RawGpuBackend::initialize().unwrap();
    let foreign = other.create_buffer(16, SHARED).unwrap();
    says(ops.add(&four, &foreign, &four, 4), "add: b: add: the buffer belongs to another backend");
    assert!(b.copy_buffer_to_host(&foreign, &mut [0.0f32; 4]).is_err());
    let handle = other.allocate(16).unwrap();
    assert_eq!(b.deallocate(handle, 16).unwrap_err().to_string(), "the handle belongs to another backend");
}

#[test]
fn pipelines_are_compiled_once_and_described() {
    let Some(b) = backend() else { return };
    assert!(b.get_compute_pipeline("add_kernel").is_none());
    let ops = MetalOps::new(b.clone()).unwrap();
    let compiled = b.pipeline_count();
    let buffer = b.create_buffer(4096, SHARED).unwrap();
    let result = b.create_buffer(4096, SHARED).unwrap();
    let second = b.create_buffer(4096, SHARED).unwrap();
    for n in 2..500 {
        ops.add(&buffer, &second, &result, n).unwrap();
        ops.matmul(&buffer, &second, &result, 2, n, 2).unwrap();
    }
    b.synchronize().unwrap();
    assert_eq!(b.pipeline_count(), compiled, "sizes must not be part of a kernel's source");
    let device = b.metal_device();
    assert!(!device.name().is_empty() && device.max_threads_per_threadgroup().width >= 1);
    for name in ["add_kernel", "mul_kernel", "matmul_kernel", "relu_kernel", "sigmoid_kernel"] {
        let p = b.get_compute_pipeline(name).unwrap();
        assert_eq!(p.name(), name);
        let [line, rectangle] = [b.optimal_thread_group_size(&p), b.optimal_thread_group_size_2d(&p)];
        for size in [line, rectangle] {
            assert!(size.count() >= 1 && size.count() <= p.max_total_threads_per_threadgroup());
            assert!(size.width <= device.max_threads_per_threadgroup().width && size.height <= device.max_threads_per_threadgroup().height);
        }
        assert!(line.width % p.thread_execution_width() == 0 && line.height == 1);
    }
    assert!(b.get_compute_pipeline("no_kernel").is_none());
}

#[test]
fn everything_is_given_back() {
    let Some(b) = backend() else { return };
    let ops = MetalOps::new(b.clone()).unwrap();
    let before = b.memory();
    for round in 0..1000 {
        let x = b.create_buffer_with_data(&[1.0f32; 300], SHARED).unwrap();
        let y = b.create_buffer(1200, SHARED).unwrap();
        let handle = b.allocate(1200).unwrap();
        ops.add(&x, &x, &y, 300).unwrap();
        b.deallocate(handle, 1200).unwrap();
        if round == 9 {
            assert_eq!(b.memory().in_use, before.in_use + 2 * 1280);
        }
    }
    let after = b.memory();
    assert_eq!(after.in_use, before.in_use);
    assert!(after.peak <= before.peak.max(before.in_use + 3 * 1280));
    // After the first round all came from the pool.
    assert!(after.requests - after.reused <= before.requests - before.reused + 3);

    // What is still held goes with the backend, which nothing else keeps alive.
    b.allocate(1 << 20).unwrap();
    assert_eq!(b.memory().in_use, before.in_use + (1 << 20));
    drop(ops);
    let last = Arc::into_inner(b).expect("nothing else holds the backend");
    drop(last);
}

#[test]
fn storage_modes_are_what_was_asked_for_and_change_no_result() {
    use MTLResourceOptions::*;
    use tensorlogic::device::StorageMode;
    let Some(b) = backend() else { return };
    let ops = MetalOps::new(b.clone()).unwrap();
    let data = noise(50_000, 7);
    let want: Vec<f64> = data.iter().map(|x| x.max(0.0) as f64).collect();
    for from in [StorageModeShared, StorageModePrivate, StorageModeManaged] {
        for to in [StorageModeShared, StorageModePrivate, StorageModeManaged] {
            let x = b.create_buffer_with_data(&data, from).unwrap();
            let y = b.create_buffer(4 * data.len(), to).unwrap();
            assert_eq!((x.resource_options(), y.resource_options()), (from, to));
            // Shared memory is there or not; the other modes are the GPU's own.
            assert!(from == StorageModeShared || x.storage_mode() == StorageMode::Private);
            ops.relu(&x, &y, data.len()).unwrap();
            let mut got = vec![0.0f32; data.len()];
            b.copy_buffer_to_host(&y, &mut got).unwrap();
            close(&got, &want, 0.0);
            // Written again while a kernel may still read the old content: it must have seen that.
            ops.relu(&x, &y, data.len()).unwrap();
            b.copy_host_to_buffer(&vec![5.0f32; data.len()], &x).unwrap();
            b.copy_buffer_to_host(&y, &mut got).unwrap();
            close(&got, &want, 0.0);
        }
    }
}

#[test]
fn a_write_ends_where_its_data_does() {
    let Some(b) = backend() else { return };
    let buffer = b.create_buffer_with_data(&[7u8; 12], SHARED).unwrap();
    for n in [0usize, 1, 2, 3, 4, 5, 7, 11] {
        b.copy_host_to_buffer(&[7u8; 12], &buffer).unwrap();
        b.copy_host_to_buffer(&vec![1u8; n], &buffer).unwrap();
        let mut got = [0u8; 12];
        b.copy_buffer_to_host(&buffer, &mut got).unwrap();
        assert_eq!(got, std::array::from_fn(|i| if i < n { 1 } else { 7 }), "{n} bytes");
    }
}

#[test]
fn threads_share_a_backend() {
    let Some(b) = backend() else { return };
    let ops = MetalOps::new(b.clone()).unwrap();
    std::thread::scope(|s| {
        for t in 0..4 {
            let (b, ops) = (&b, &ops);
            s.spawn(move || {
                for round in 0..20 {
                    let x = b.create_buffer_with_data(&[t as f32, round as f32], SHARED).unwrap();
                    let y = b.create_buffer(8, MTLResourceOptions::StorageModePrivate).unwrap();
                    ops.add(&x, &x, &y, 2).unwrap();
                    let mut got = [0.0f32; 2];
                    b.copy_buffer_to_host(&y, &mut got).unwrap();
                    assert_eq!(got, [2.0 * t as f32, 2.0 * round as f32]);
                }
            });
        }
    });
}

#[test]
fn metal_is_metal_only() {
    let there = MetalBackend::is_available();
    assert!(!there || cfg!(any(target_vendor = "apple", tensorlogic_fake_metal)));
    match MetalBackend::initialize() {
        Ok(b) => assert!(there && b.metal_device().name().contains("metal")),
        Err(e) => {
            assert!(!there && matches!(e, TensorError::UnsupportedDevice(_)));
            assert!(e.to_string().contains("RawGpuBackend"), "{e}");
        }
    }
    let error = RawGpuBackend::open("abacus").err().unwrap().to_string();
    assert!(error.contains("abacus"), "{error}");
}
