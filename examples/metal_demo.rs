//! The engine backend's API, call by call: buffers, handles, the five kernels, and what the adapter tells about itself.
//!
//! On a machine without Metal the same calls run on whatever GPU there is (Vulkan or DX12), and it says so.

use std::sync::Arc;
use tensorlogic::TensorResult;
use tensorlogic::backends::RawBackend;
use tensorlogic::backends::metal::{self, MetalBackend, MetalOps, RawGpuBackend};

/// Public so that a test can run it.
pub fn main() -> TensorResult<()> {
    if MetalBackend::is_available() {
        return run(MetalBackend::initialize()?);
    }
    println!("There is no Metal here: the same calls run through RawGpuBackend.\n");
    run(RawGpuBackend::initialize()?)
}

fn run<B: RawBackend>(backend: B) -> TensorResult<()> {
    let backend = Arc::new(backend);
    let ops = MetalOps::new(backend.clone())?;
    let shared = metal::MTLResourceOptions::StorageModeShared;

    let device = backend.metal_device();
    println!("Device: {}{}", device.name(), if device.is_software() { ", a driver that computes on the CPU" } else { "" });
    println!("Max threads per threadgroup: {}", device.max_threads_per_threadgroup().width);
    for name in ["add_kernel", "mul_kernel", "matmul_kernel", "relu_kernel", "sigmoid_kernel"] {
        if let Some(pipeline) = backend.get_compute_pipeline(name) {
            let line = backend.optimal_thread_group_size(&pipeline);
            let rectangle = backend.optimal_thread_group_size_2d(&pipeline);
            println!(
                "{name}: execution width {}, at most {} threads; groups of {} or {} x {}",
                pipeline.thread_execution_width(),
                pipeline.max_total_threads_per_threadgroup(),
                line.width,
                rectangle.width,
                rectangle.height
            );
        }
    }

    let a = backend.create_buffer_with_data(&[1.0f32, 2.0, 3.0, 4.0], shared)?;
    let b = backend.create_buffer_with_data(&[5.0f32, -6.0, 7.0, -8.0], shared)?;
    let c = backend.create_buffer(16, shared)?;
    let show = |what: &str| -> TensorResult<()> {
        let mut result = vec![0.0f32; 4];
        backend.copy_buffer_to_host(&c, &mut result)?;
        println!("{what:<12} {result:?}");
        Ok(())
    };
    println!();
    ops.add(&a, &b, &c, 4)?;
    show("a + b")?;
    ops.mul(&a, &b, &c, 4)?;
    show("a * b")?;
    ops.relu(&b, &c, 4)?;
    show("relu(b)")?;
    ops.sigmoid(&b, &c, 4)?;
    show("sigmoid(b)")?;
    ops.matmul(&a, &b, &c, 2, 2, 2)?;
    show("a x b (2x2)")?;

    // Handles where a raw pointer would be: each use is checked.
    let size = 4 * size_of::<f32>();
    let (p, q) = (backend.allocate(size)?, backend.allocate(size)?);
    backend.copy_host_to_buffer(&[0.5f32; 4], &backend.buffer(p)?)?;
    ops.add_ptr(p, p, q, 4)?;
    let mut result = [0.0f32; 4];
    backend.copy_buffer_to_host(&backend.buffer(q)?, &mut result)?;
    println!("{:<12} {result:?}", "p + p");
    backend.deallocate(p, size)?;
    if let Err(e) = ops.add_ptr(p, p, q, 4) {
        println!("after deallocate(p): {e}");
    }
    backend.deallocate(q, size)?;

    let memory = backend.memory();
    println!("\n{} buffers were asked for, {} came from the pool; {} bytes are in use", memory.requests, memory.reused, memory.in_use);
    Ok(())
}
