//! What the engine promises about itself: in-place writes, values that do not change, errors on the user's line, long chains, threads.

use crate::common::gpu;
use std::sync::Arc;
use tensorlogic::backends::Bytes;
use tensorlogic::eval::eval_all;
use tensorlogic::{DType, Device, Rng, Tensor, TensorError};

#[test]
fn writes_leave_other_handles_alone() {
    let d = Device::cpu();
    let old = Tensor::zeros(&[4, 2], DType::F32, &d).unwrap();
    old.eval().unwrap();
    let new = old.write(&Tensor::ones(&[1, 2], DType::F32, &d).unwrap(), 0, 2).unwrap();
    assert_eq!(new.to_vec().unwrap(), [0., 0., 0., 0., 1., 1., 0., 0.]);
    assert_eq!(old.to_vec().unwrap(), [0.; 8]);
    // With the last handle gone the write takes the memory.
    let buffer = new.write(&Tensor::full(5.0, &[1, 2], DType::F32, &d).unwrap(), 0, 0).unwrap();
    drop(new);
    assert!(buffer.explain().unwrap().contains("in0"), "{}", buffer.explain().unwrap());
    assert_eq!(buffer.to_vec().unwrap(), [5., 5., 0., 0., 1., 1., 0., 0.]);
}

#[test]
fn long_chains_are_built_and_dropped_without_recursion() {
    let d = Device::cpu();
    let mut x = Tensor::ones(&[1], DType::F32, &d).unwrap();
    for _ in 0..300_000 {
        x = x.add(1.0).unwrap();
    }
    drop(x);
    let mut x = Tensor::ones(&[1], DType::F32, &d).unwrap();
    for _ in 0..2_000 {
        x = x.add(1.0).unwrap();
    }
    assert_eq!(x.to_vec().unwrap(), [2001.0]);
    // Longer than one plan takes: evaluated in parts.
    let (mut x, mut y) = (Tensor::zeros(&[2], DType::F32, &d).unwrap(), Tensor::zeros(&[1], DType::F32, &d).unwrap());
    for i in 0..100_000 {
        x = x.add(1.0).unwrap();
        if i % 100 == 0 {
            y = y.add(&x.narrow(0, 1, 1).unwrap()).unwrap();
        }
    }
    assert_eq!(y.to_vec().unwrap(), [(0..1000).map(|i| (100 * i + 1) as f32).sum::<f32>()]);
    assert_eq!(x.to_vec().unwrap(), [100_000.0; 2]);
}

#[test]
fn tensors_go_between_threads() {
    fn both<T: Send + Sync>() {}
    both::<Tensor>();
    let d = Device::cpu();
    let x = Arc::new(Tensor::arange(0.0, 100.0, 1.0, DType::F32, &d).unwrap().mul(2.0).unwrap());
    let sums: Vec<f64> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..8)
            .map(|i| (i, x.clone()))
            .map(|(i, x)| s.spawn(move || x.add(i as f64).unwrap().sum_all().unwrap().item().unwrap()))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    for (i, s) in sums.iter().enumerate() {
        assert_eq!(*s, 9900.0 + 100.0 * i as f64);
    }
}

#[test]
fn random_bits_are_the_same_everywhere() {
    let d = Device::cpu();
    let draw = |d: &Device| Rng::new(42).bits(&[1000], d).unwrap().to_vec_of::<u32>().unwrap();
    let uniform = |d: &Device| Rng::new(42).uniform(&[1000], DType::F32, d).unwrap().to_vec().unwrap();
    // Philox4x32-10 of counter 0 and key 0, from the Random123 test vectors.
    assert_eq!(tensorlogic::scalar::philox(0, 0, 0), 0x6627_e8d5);
    let u = uniform(&d);
    assert!(u.iter().all(|v| (0.0..1.0).contains(v)));
    assert!((u.iter().sum::<f32>() / 1000.0 - 0.5).abs() < 0.03);
    if let Some(g) = gpu() {
        assert_eq!(draw(&d), draw(&g));
        assert_eq!(u, uniform(&g));
    }
}

/// An error of one line that names the op, what it got, and this file.
#[track_caller]
fn check_error(e: TensorError, parts: &[&str]) {
    let text = e.to_string();
    assert!(parts.iter().all(|p| text.contains(p)), "{text}");
    // What `unwrap` and a `main` that fails show.
    assert_eq!(format!("{e:?}"), text);
}

#[test]
fn errors_name_the_users_line() {
    let d = Device::cpu();
    let a = Tensor::zeros(&[4, 3], DType::F32, &d).unwrap();
    check_error(
        a.matmul(&a).unwrap_err(),
        &["matmul: [4,3]·[4,3]: inner sizes 3 and 4 differ", "tests/it/engine/promises.rs", "did you mean b.t()?"],
    );
    check_error(
        a.add(&Tensor::zeros(&[2], DType::F32, &d).unwrap()).unwrap_err(),
        &["add", "[4,3] and [2]", "tests/it/engine/promises.rs"],
    );
    check_error(a.narrow(0, 3, 2).unwrap_err(), &["narrow", "tests/it/engine/promises.rs"]);
    check_error(Tensor::from_vec(vec![1.0f32; 3], &[2], &d).unwrap_err(), &["3 values", "[2]"]);
    check_error(Tensor::from_bytes(Bytes::Owned(Arc::new(vec![0; 3])), DType::F32, &[1], &d).unwrap_err(), &["3 bytes"]);
    check_error(a.bitwise_not().unwrap_err(), &["bitwise_not", "expected integers"]);
    let index = Tensor::from_vec(vec![9i32], &[1], &d).unwrap();
    check_error(a.index_select(0, &index).unwrap().to_vec().unwrap_err(), &["index_select", "9"]);
    check_error(Tensor::zeros(&[usize::MAX, 2], DType::F32, &d).unwrap_err(), &["too many elements"]);
    check_error(Device::open("abacus").unwrap_err(), &["abacus"]);
    eval_all(&[&a]).unwrap();
}

#[test]
fn values_can_be_awaited() {
    use std::future::Future;
    use std::task::{Context, Poll, Waker};
    for d in [Some(Device::cpu()), gpu()].into_iter().flatten() {
        let n = 300_000;
        let x = Tensor::arange(0.0, n as f64, 1.0, DType::F32, &d).unwrap().mul(0.5).unwrap();
        let y = Tensor::ones(&[2], DType::I32, &d).unwrap();
        // Two at once on one thread, each polled in turn.
        let (mut a, mut b) = (Box::pin(x.to_vec_async::<f32>()), Box::pin(y.to_vec_async::<i32>()));
        let mut context = Context::from_waker(Waker::noop());
        let (mut left, mut right) = (None, None);
        for _ in 0..10_000_000 {
            if left.is_none()
                && let Poll::Ready(v) = a.as_mut().poll(&mut context)
            {
                left = Some(v.unwrap());
            }
            if right.is_none()
                && let Poll::Ready(v) = b.as_mut().poll(&mut context)
            {
                right = Some(v.unwrap());
            }
            if left.is_some() && right.is_some() {
                break;
            }
        }
        assert_eq!(right.unwrap(), [1, 1]);
        assert!(left.unwrap().iter().enumerate().all(|(i, v)| *v == i as f32 * 0.5));
        let e = {
            let mut f = Box::pin(x.to_vec_async::<i32>());
            loop {
                if let Poll::Ready(r) = f.as_mut().poll(&mut context) {
                    break r.unwrap_err().to_string();
                }
            }
        };
        assert!(e.contains("not i32"), "{e}");
    }
}
