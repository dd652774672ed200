//! Requests that find no room in the driver's blocks before values were moved, and find it afterwards.

use super::*;
use crate::device::Device;
use crate::tensor::Tensor;
use std::sync::atomic::Ordering::Relaxed;

/// Fills blocks of the driver, drops two of three buffers, and lets the driver reserve no more than it has; gives what was kept with its bytes.
/// `None` where the driver does not report its blocks.
fn fragmented(m: &GpuBackend) -> Option<Vec<(Buffer, u8)>> {
    m.driver_memory()?;
    let mut all: Vec<(Buffer, u8)> = Vec::new();
    // Drivers reserve blocks of different sizes: until no block has room.
    while all.len() < 900 || all.len() < 4000 && m.driver_memory()?.largest_free >= LARGE as u64 {
        let n = all.len() as u8;
        all.push((m.upload(Bytes::Owned(Arc::new(vec![n; 300 << 10]))).unwrap(), n));
        m.synchronize().unwrap();
    }
    m.core.memory.reserve_at_most.store(m.driver_memory()?.reserved, Relaxed);
    Some(all.into_iter().enumerate().filter(|(n, _)| n % 3 == 0).map(|(_, b)| b).collect())
}

fn check(m: &GpuBackend, kept: &[(Buffer, u8)]) {
    for (b, value) in kept {
        let mut out = vec![0; 300 << 10];
        m.read(b, 0, &mut out).unwrap();
        assert!(out.iter().all(|v| v == value));
    }
}

/// More than is free between the buffers that are left, and less than a block.
const LARGE: usize = 60 << 20;

#[test]
fn a_request_that_was_refused_succeeds_after_a_defragmentation() {
    let Some(m) = under_test::open(GpuBackend::open) else { return };
    let Some(kept) = fragmented(&m) else { return };
    assert!(matches!(m.alloc(LARGE), Err(TensorError::OutOfMemory { .. })), "{:?}", m.driver_memory());
    let moved = m.defragment(3).unwrap();
    assert!(moved > 0);
    m.alloc(LARGE).unwrap_or_else(|e| panic!("{e} after {moved} bytes were moved: {:?}", m.driver_memory()));
    check(&m, &kept);
}

#[test]
fn an_evaluation_defragments_before_it_runs_out_of_memory() {
    let Some(m) = under_test::open(GpuBackend::open) else { return };
    let Some(kept) = fragmented(&m) else { return };
    let device = Device::from_backend(m.clone());
    device.set_adaptive(false);
    let x = Tensor::full(3.0, &[LARGE / 4], DType::F32, &device).unwrap();
    x.eval().unwrap();
    assert_eq!(x.narrow(0, LARGE / 4 - 2, 2).unwrap().to_vec().unwrap(), [3.0, 3.0]);
    check(&m, &kept);
    // What cannot be had at all still fails.
    let y = Tensor::full(3.0, &[60 * LARGE / 4], DType::F32, &device).unwrap();
    assert!(matches!(y.eval(), Err(TensorError::OutOfMemory { .. })));
}
