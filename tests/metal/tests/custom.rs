//! Operations of a user's own on the Metal backend: the tests of the program `it`, and sources in Metal's own language.

use fake_metal as _;
use tensorlogic::ops::custom::CustomOp;
use tensorlogic::{DType, Device, Tensor};

#[path = "../../common/mod.rs"]
mod common;
#[path = "../../it/ops/custom.rs"]
mod custom;

/// x · k + 1000: the last term tells it from the WGSL form.
const TIMES: &str = "#include <metal_stdlib>
struct Words {
    uint count;
    float k;
};
kernel void times(
    constant Words& words [[buffer(0)]],
    device const float* x [[buffer(1)]],
    device float* y [[buffer(2)]],
    metal::uint3 g [[threadgroup_position_in_grid]],
    metal::uint3 n [[threadgroups_per_grid]],
    uint t [[thread_index_in_threadgroup]]
) {
    uint i = (g.y * n.x + g.x) * 64u + t;
    if (i < words.count) {
        y[i] = x[i] * words.k + 1000.0;
    }
}
";

/// The largest element of each row, plus 1000.
const LARGEST: &str = "#include <metal_stdlib>
struct Words {
    uint rows;
    uint cols;
};
kernel void largest(
    constant Words& words [[buffer(0)]],
    device const float* x [[buffer(1)]],
    device float* y [[buffer(2)]],
    metal::uint3 g [[threadgroup_position_in_grid]],
    metal::uint3 n [[threadgroups_per_grid]],
    uint t [[thread_index_in_threadgroup]]
) {
    threadgroup float parts[2];
    uint row = g.y * n.x + g.x;
    float most = -INFINITY;
    if (row < words.rows) {
        for (uint c = t; c < words.cols; c += 64u) {
            most = metal::max(most, x[row * words.cols + c]);
        }
    }
    most = metal::simd_max(most);
    if (t % 32u == 0u) {
        parts[t / 32u] = most;
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (t == 0u && row < words.rows) {
        y[row] = metal::max(parts[0], parts[1]) + 1000.0;
    }
}
";

fn device() -> Device {
    let device = Device::open("metal").unwrap();
    device.set_adaptive(false);
    device
}

fn counted(n: usize, d: &Device) -> Tensor {
    Tensor::arange(0.0, n as f64, 1.0, DType::F32, d).unwrap().eval().unwrap().clone()
}

#[test]
fn a_text_in_metals_language_runs_on_stored_f32_and_wgsl_elsewhere() {
    let d = device();
    // SAFETY: the kernel has groups of 64 threads and guards its index.
    let op = unsafe { CustomOp::elementwise("times").wgsl("fn times(x: f32, k: f32) -> f32 { return x * k; }").msl("times", 64, TIMES) };
    for n in [1usize, 64, 1001, 65_536 * 2 + 3] {
        let x = counted(n, &d);
        let want = |mark: f32| (0..n).map(|i| i as f32 * 3.0 + mark).collect::<Vec<f32>>();
        assert_eq!(op.apply(&[&x], &[3.0]).unwrap().to_vec().unwrap(), want(1000.0), "{n} elements");
        // What is fused and what is of another type is the WGSL's.
        assert_eq!(op.apply(&[&x.add(0.0).unwrap().abs().unwrap()], &[3.0]).unwrap().to_vec().unwrap(), want(0.0), "{n} elements");
    }
    let half = counted(100, &d).cast(DType::F16).unwrap().eval().unwrap().clone();
    assert_eq!(op.apply(&[&half], &[0.5]).unwrap().to_vec().unwrap(), (0..100).map(|i| i as f32 * 0.5).collect::<Vec<f32>>());
    // On the CPU there is neither.
    assert!(op.apply(&[&counted(3, &Device::cpu())], &[1.0]).is_err());
}

#[test]
fn a_text_of_rows_uses_threadgroup_memory_and_keeps_infinity() {
    let d = device();
    // SAFETY: the kernel has groups of 64 threads, a row each, and guards its row.
    let op = unsafe {
        CustomOp::row_reduction("largest")
            .wgsl("fn largest(row: u32, cols: u32, lane: u32) { if (lane == 0u) { store_0(row, 0.0); } }")
            .msl("largest", 64, LARGEST)
    };
    for (rows, cols) in [(1usize, 1usize), (3, 64), (70, 129)] {
        let values: Vec<f32> = (0..rows * cols).map(|i| ((i * 7919) % 1009) as f32 - 500.0).collect();
        let x = Tensor::from_vec(values.clone(), &[rows, cols], &d).unwrap();
        let want: Vec<f32> = values.chunks(cols).map(|r| r.iter().copied().fold(f32::MIN, f32::max) + 1000.0).collect();
        assert_eq!(op.apply(&[&x], &[]).unwrap().to_vec().unwrap(), want, "{rows} rows of {cols}");
    }
    let x = Tensor::from_vec(vec![f32::NEG_INFINITY; 4], &[2, 2], &d).unwrap();
    assert_eq!(op.apply(&[&x], &[]).unwrap().to_vec().unwrap(), [f32::NEG_INFINITY; 2]);
}

#[test]
fn a_text_that_metal_refuses_is_an_error_that_names_the_operation() {
    // Sources are compiled when a library is made of them, as by the real Metal.
    fake_metal::compiler::EAGER.store(true, std::sync::atomic::Ordering::SeqCst);
    let d = device();
    // SAFETY: the source does not compile.
    let op = unsafe {
        CustomOp::elementwise("broken").wgsl("fn broken(x: f32) -> f32 { return x; }").msl("broken", 64, "kernel void broken() { x; }")
    };
    let e = op.apply(&[&counted(4, &d)], &[]).unwrap().to_vec().unwrap_err().to_string();
    assert!(e.contains("broken"), "{e}");
    assert_eq!(counted(4, &d).add(1.0).unwrap().to_vec().unwrap(), [1.0, 2.0, 3.0, 4.0]);
}
