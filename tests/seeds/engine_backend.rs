//! The blocks of the engine backend's guide. Where there is no Metal they run through `RawGpuBackend`, whose calls are the same.

use super::turn;
use std::sync::Arc;
use tensorlogic::backends::RawBackend;
use tensorlogic::backends::metal::{self, MetalBackend, MetalOps, RawGpuBackend};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Runs a block on Metal, or on the GPU that there is after Metal has been asked for and has said that it is not here.
fn on_backend(metal_block: impl Fn(Arc<MetalBackend>) -> Outcome, gpu_block: impl Fn(Arc<RawGpuBackend>) -> Outcome) -> Outcome {
    let _turn = turn();
    if MetalBackend::is_available() {
        return metal_block(Arc::new(MetalBackend::initialize()?));
    }
    let text = MetalBackend::initialize().err().expect("there is no Metal").to_string();
    assert!(text.contains("RawGpuBackend"), "{text}");
    if !RawGpuBackend::is_available() {
        assert!(std::env::var("TL_REQUIRE_GPU").is_err(), "there is no GPU");
        return Ok(());
    }
    gpu_block(Arc::new(RawGpuBackend::initialize()?))
}

/// "Memory Model": handles of memory that the backend holds.
#[test]
fn memory_model() -> Outcome {
    fn block<B: RawBackend>(backend: Arc<B>) -> Outcome {
        let ops = MetalOps::new(backend.clone())?;
        let n = 1000;
        let size_bytes = n * size_of::<f32>();
        // Allocation uses shared memory mode for zero-copy access
        let a_ptr = backend.allocate(size_bytes)?;
        let b_ptr = backend.allocate(size_bytes)?;
        let result_ptr = backend.allocate(size_bytes)?;
        backend.copy_host_to_buffer(&vec![1.5f32; n], &backend.buffer(a_ptr)?)?;
        backend.copy_host_to_buffer(&vec![2.0f32; n], &backend.buffer(b_ptr)?)?;

        // Operations work directly with shared memory
        ops.add_ptr(a_ptr, b_ptr, result_ptr, n)?;
        let mut result = vec![0.0f32; n];
        backend.copy_buffer_to_host(&backend.buffer(result_ptr)?, &mut result)?;
        assert!(result.iter().all(|v| *v == 3.5));

        // Automatic cleanup with ARC
        for ptr in [a_ptr, b_ptr, result_ptr] {
            backend.deallocate(ptr, size_bytes)?;
        }
        assert!(backend.deallocate(a_ptr, size_bytes).is_err() && ops.add_ptr(a_ptr, b_ptr, result_ptr, n).is_err());
        Ok(())
    }
    on_backend(block, block)
}

/// "Basic Setup".
#[test]
fn basic_setup() -> Outcome {
    fn setup() -> Result<MetalOps<MetalBackend>, Box<dyn std::error::Error>> {
        // Check availability (macOS only)
        if !MetalBackend::is_available() {
            return Err("Metal not available".into());
        }

        // Initialize backend
        let backend = Arc::new(MetalBackend::initialize()?);
        let ops = MetalOps::new(backend.clone())?;
        Ok(ops)
    }
    let _turn = turn();
    match setup() {
        Ok(ops) => assert!(ops.backend().get_compute_pipeline("add_kernel").is_some()),
        Err(e) => assert_eq!(e.to_string(), "Metal not available"),
    }
    Ok(())
}

/// "Element-wise Operation".
#[test]
fn element_wise_operation() -> Outcome {
    fn block<B: RawBackend>(backend: Arc<B>) -> Outcome {
        let ops = MetalOps::new(backend.clone())?;
        // Create input data
        let a_data = vec![1.0f32, 2.0, 3.0, 4.0];
        let b_data = vec![5.0f32, 6.0, 7.0, 8.0];

        // Create Metal buffers with shared memory
        let a_buffer = backend.create_buffer_with_data(&a_data, metal::MTLResourceOptions::StorageModeShared)?;
        let b_buffer = backend.create_buffer_with_data(&b_data, metal::MTLResourceOptions::StorageModeShared)?;
        let c_buffer = backend.create_buffer(16, metal::MTLResourceOptions::StorageModeShared)?;

        // Execute addition
        ops.add(&a_buffer, &b_buffer, &c_buffer, 4)?;

        // Read result (zero-copy with shared memory)
        let mut result = vec![0.0f32; 4];
        backend.copy_buffer_to_host(&c_buffer, &mut result)?;
        assert_eq!(result, [6.0, 8.0, 10.0, 12.0]);
        Ok(())
    }
    on_backend(block, block)
}

/// "Matrix Operations".
#[test]
fn matrix_operations() -> Outcome {
    fn block<B: RawBackend>(backend: Arc<B>) -> Outcome {
        let ops = MetalOps::new(backend.clone())?;
        // 2x2 matrix multiplication
        let a = vec![1.0f32, 2.0, 3.0, 4.0]; // Matrix A
        let b = vec![5.0f32, 6.0, 7.0, 8.0]; // Matrix B

        let a_buffer = backend.create_buffer_with_data(&a, metal::MTLResourceOptions::StorageModeShared)?;
        let b_buffer = backend.create_buffer_with_data(&b, metal::MTLResourceOptions::StorageModeShared)?;
        let c_buffer = backend.create_buffer(16, metal::MTLResourceOptions::StorageModeShared)?;

        // Execute: C = A * B (2x2 * 2x2 = 2x2)
        ops.matmul(&a_buffer, &b_buffer, &c_buffer, 2, 2, 2)?;

        let mut result = [0.0f32; 4];
        backend.copy_buffer_to_host(&c_buffer, &mut result)?;
        assert_eq!(result, [19.0, 22.0, 43.0, 50.0]);
        Ok(())
    }
    on_backend(block, block)
}

/// "Thread Group Optimization".
#[test]
fn thread_group_optimization() -> Outcome {
    fn block<B: RawBackend>(backend: Arc<B>) -> Outcome {
        let _ops = MetalOps::new(backend.clone())?;
        for name in ["add_kernel", "mul_kernel", "matmul_kernel", "relu_kernel", "sigmoid_kernel"] {
            let pipeline = backend.get_compute_pipeline(name).ok_or("not compiled")?;
            // Automatic optimal sizing based on device capabilities
            let thread_group_size = backend.optimal_thread_group_size(&pipeline);
            let thread_group_size_2d = backend.optimal_thread_group_size_2d(&pipeline);

            let most = pipeline.max_total_threads_per_threadgroup();
            let width = pipeline.thread_execution_width();
            for size in [thread_group_size, thread_group_size_2d] {
                assert!((1..=most).contains(&size.count()), "{size:?} of {most}");
                assert!(size.count() % width == 0 || size.count() < width, "{size:?} in groups of {width}");
            }
            assert!(thread_group_size.height == 1 && thread_group_size_2d.width >= thread_group_size_2d.height);
        }
        Ok(())
    }
    on_backend(block, block)
}

#[path = "../../examples/metal_demo.rs"]
#[allow(dead_code)]
mod metal_demo;

/// "Testing": `cargo test --features metal test_metal_operations` finds this test, and `cargo run --example metal_demo --features metal` does what
/// it does: the feature and the example have these names.
#[test]
fn test_metal_operations() -> Outcome {
    let manifest = include_str!("../../Cargo.toml");
    assert!(manifest.contains("\nmetal = ["));
    on_backend(|_| Ok(metal_demo::main()?), |_| Ok(metal_demo::main()?))
}

/// "Debug Information".
#[test]
fn debug_information() -> Outcome {
    fn block<B: RawBackend>(backend: Arc<B>) -> Outcome {
        assert!(backend.get_compute_pipeline("add_kernel").is_none());
        let _ops = MetalOps::new(backend.clone())?;
        // Check device capabilities
        let metal_device = backend.metal_device();
        println!("Device: {}", metal_device.name());
        println!("Max threads per threadgroup: {}", metal_device.max_threads_per_threadgroup().width);

        // Check pipeline performance
        if let Some(pipeline) = backend.get_compute_pipeline("add_kernel") {
            println!("Thread execution width: {}", pipeline.thread_execution_width());
            println!("Max total threads: {}", pipeline.max_total_threads_per_threadgroup());
        }
        assert!(!metal_device.name().is_empty() && metal_device.max_threads_per_threadgroup().width >= 128);
        assert!(backend.get_compute_pipeline("add_kernel").is_some() && backend.get_compute_pipeline("no_kernel").is_none());
        Ok(())
    }
    on_backend(block, block)
}
