//! The blocks of the Metal GPU optimization guide.

use super::*;
use std::collections::HashMap;
use tensorlogic::device::{BufferPool, MetalDevice};
use tensorlogic::ops::Activation;
use tensorlogic::ops::custom::CustomOp;
use tensorlogic::{TensorError, TensorResult};

/// Section 1, "MatMul + Activation".
#[test]
fn matmul_activation() -> TensorResult<()> {
    let _turn = turn();
    for device in devices() {
        let (a, b) = (random(&[64, 32], 0.0, &device), random(&[32, 48], 0.1, &device));

        // Fused: 1 kernel launch
        let result = a.matmul_with_activation(&b, Activation::ReLU)?;
        let fused = result.explain()?;
        assert_eq!(dispatches(&result), 1);
        let want: Vec<f64> = product(&f64s(&a), &f64s(&b), [64, 32, 48]).into_iter().map(|v| v.max(0.0)).collect();
        check(&result, &want);

        // Unfused: 2 kernel launches + intermediate buffer. Here it is the same launch.
        let temp = a.matmul(&b)?;
        let result = temp.relu()?;
        assert_eq!(result.explain()?, fused);
        check(&result, &want);
    }
    Ok(())
}

/// Section 1, "Element-wise + ReLU".
#[test]
fn element_wise_relu() -> TensorResult<()> {
    let _turn = turn();
    for device in devices() {
        let (a, b) = (random(&[1000], 0.0, &device), random(&[1000], 0.1, &device));
        let both = |f: fn(f64, f64) -> f64| f64s(&a).iter().zip(f64s(&b)).map(|(a, b)| f(*a, b).max(0.0)).collect::<Vec<_>>();

        // Add + ReLU (fused)
        let result = a.fused_add_relu(&b)?;
        let fused = result.explain()?;
        check(&result, &both(|a, b| a + b));

        // Mul + ReLU (fused)
        let result = a.fused_mul_relu(&b)?;
        assert_eq!(dispatches(&result), 1);
        check(&result, &both(|a, b| a * b));

        // vs unfused
        let temp = a.add(&b)?;
        let result = temp.relu()?;
        assert_eq!(result.explain()?, fused);
        check(&result, &both(|a, b| a + b));
    }
    Ok(())
}

/// Section 1, "Affine Transformation".
#[test]
fn affine_transformation() -> TensorResult<()> {
    let _turn = turn();
    for device in devices() {
        let (x, scale, bias) = (random(&[20, 30], 0.0, &device), random(&[30], 0.1, &device), random(&[30], 0.2, &device));
        let (s, b) = (f64s(&scale), f64s(&bias));
        let want: Vec<f64> = f64s(&x).iter().enumerate().map(|(i, x)| x * s[i % 30] + b[i % 30]).collect();

        // x * scale + bias (fused)
        let result = x.fused_affine(&scale, &bias)?;
        let fused = result.explain()?;
        assert_eq!(dispatches(&result), 1);
        check(&result, &want);

        // vs unfused
        let temp = x.mul(&scale)?;
        let result = temp.add(&bias)?;
        assert_eq!(result.explain()?, fused);
        check(&result, &want);
    }
    Ok(())
}

/// Section 1, "Activation Types": the enum, and the formula of GELU.
#[test]
#[allow(deprecated)]
fn activation_types() -> TensorResult<()> {
    let _turn = turn();
    type Meaning = (Activation, u32, fn(f64) -> f64);
    let means: [Meaning; 3] = [
        (Activation::None, 0, |x| x),          // No activation (just matmul)
        (Activation::ReLU, 1, |x| x.max(0.0)), // ReLU: max(x, 0)
        (Activation::GELU, 2, gelu),           // GELU approximation
    ];
    for device in devices() {
        let x = random(&[500], 0.3, &device).mul(3.0)?;
        x.eval()?;
        for (activation, number, f) in means {
            assert_eq!(activation as u32, number);
            check(&activation.apply(&x)?, &f64s(&x).into_iter().map(f).collect::<Vec<_>>());
        }
    }
    Ok(())
}

/// A buffer of this many ones, computed: what the host brings may stay in the host's memory.
fn buffer(bytes: usize, device: &Device) -> TensorResult<Tensor> {
    let t = Tensor::ones(&[bytes], tensorlogic::DType::U8, device)?;
    t.eval()?;
    Ok(t)
}

/// Section 2, "How Buffer Pooling Works": size classes, reuse, return.
#[test]
fn how_buffer_pooling_works() -> TensorResult<()> {
    let _turn = turn();
    for device in devices() {
        device.buffer_pool().clear();
        let before = device.buffer_pool_stats();
        // The pool as the guide draws it: HashMap<size, Vec<Buffer>>.
        let mut pool: HashMap<usize, Vec<Tensor>> = HashMap::new();
        for size in [1 << 20, 1 << 20, 3 << 20] {
            let buffer = buffer(size, &device)?;
            pool.entry(size).or_default().push(buffer);
        }
        let full = device.buffer_pool_stats();
        // Nothing waited: each was made anew (slow path).
        assert_eq!((full.allocation_count - before.allocation_count, full.reuse_count - before.reuse_count), (3, 0));
        drop(pool);
        // Dropped buffers are returned to the pool …
        let kept = device.buffer_pool_stats();
        assert_eq!((kept.total_pooled, kept.size_classes), (3, 2));
        assert!(kept.total_memory >= 5 << 20);
        // … and taken from it (fast path).
        let again = buffer(3 << 20, &device)?;
        let reused = device.buffer_pool_stats();
        assert_eq!((reused.reuse_count - kept.reuse_count, reused.total_pooled, reused.size_classes), (1, 2, 1));
        assert_eq!(again.sum_all()?.item()?, (3 << 20) as f64);
    }
    Ok(())
}

/// Section 2, "Monitoring Buffer Pool".
#[test]
fn monitoring_buffer_pool() -> TensorResult<()> {
    let _turn = turn();
    let Some(device) = metal_device() else { return Ok(()) };
    let (x, w) = (random(&[64, 64], 0.0, &device), random(&[64, 64], 0.1, &device));
    for _ in 0..100 {
        x.matmul(&w)?.softmax(-1)?.matmul(&w)?.eval()?;
    }

    // Get pool statistics
    let stats = device.buffer_pool_stats();

    println!("Buffer Pool Stats:");
    println!("  Total buffers: {}", stats.total_pooled);
    println!("  Size classes: {}", stats.size_classes);
    println!("  Total memory: {} bytes", stats.total_memory);
    println!("  Allocations: {}", stats.allocation_count);
    println!("  Reuses: {}", stats.reuse_count);

    // Calculate reuse rate
    let reuse_rate = 100.0 * stats.reuse_count as f64 / stats.allocation_count as f64;
    println!("  Reuse rate: {:.1}%", reuse_rate);

    assert!(stats.total_pooled >= stats.size_classes && stats.size_classes > 0 && stats.total_memory > 0);
    assert!(reuse_rate > 0.0 && reuse_rate <= 100.0 && stats.reuse_rate() == stats.reuse_count as f64 / stats.allocation_count as f64);
    Ok(())
}

/// Section 2, "Buffer Pool Configuration". The bound that holds by default is in bytes, not 10 buffers a size.
#[test]
fn buffer_pool_configuration() -> TensorResult<()> {
    let _turn = turn();
    let drop_many = |device: &Device, count: usize| -> TensorResult<usize> {
        device.buffer_pool().clear();
        let all = (0..count).map(|_| buffer(1 << 16, device)).collect::<TensorResult<Vec<_>>>()?;
        drop(all);
        Ok(device.buffer_pool_stats().total_pooled)
    };
    // let device = MetalDevice::new()?;
    let Some(device) = metal_device() else { return Ok(()) };
    assert_eq!(drop_many(&device, 30)?, 30);

    // Custom capacity
    let metal_device = &device; // metal::Device::system_default().unwrap()
    let pool = BufferPool::with_capacity(metal_device, 20);
    assert_eq!(drop_many(&device, 30)?, 20);
    assert_eq!(pool.stats().total_pooled, 20);

    BufferPool::with_capacity(metal_device, usize::MAX);
    assert_eq!(drop_many(&device, 30)?, 30);
    Ok(())
}

/// Section 2, "Memory Management".
#[test]
fn memory_management() -> TensorResult<()> {
    let _turn = turn();
    for device in devices() {
        let fill = || -> TensorResult<()> {
            device.buffer_pool().clear();
            let sizes = [1024usize, 1024, 1 << 20, 4 << 20];
            let all = sizes.iter().map(|&n| buffer(n, &device)).collect::<TensorResult<Vec<_>>>()?;
            drop(all);
            Ok(())
        };
        fill()?;
        assert_eq!(device.buffer_pool_stats().total_pooled, 4);

        // Shrink pool to fit memory constraints
        let max_memory_bytes = 2 << 20;
        device.buffer_pool().shrink_to_fit(max_memory_bytes);
        assert!(device.buffer_pool_stats().total_memory <= max_memory_bytes);

        // Clear entire pool
        device.buffer_pool().clear();
        let stats = device.buffer_pool_stats();
        assert_eq!((stats.total_pooled, stats.total_memory), (0, 0));

        // Clear specific size
        fill()?;
        device.buffer_pool().clear_size(1024);
        assert_eq!(device.buffer_pool_stats().total_pooled, 2);
    }
    Ok(())
}

/// A network of three layers, as in "Neural Network Forward Pass".
struct Model {
    w1: Tensor,
    w2: Tensor,
    w3: Tensor,
}

// Optimized forward pass
impl Model {
    fn forward(&self, x: &Tensor) -> TensorResult<Tensor> {
        // Use fused operations
        let h1 = x.matmul_with_activation(&self.w1, Activation::ReLU)?;
        let h2 = h1.matmul_with_activation(&self.w2, Activation::ReLU)?;
        let output = h2.matmul_with_activation(&self.w3, Activation::None)?;
        Ok(output)
    }

    fn new(device: &Device) -> TensorResult<Model> {
        let weight = |from: usize, to: usize, seed: f64| {
            let w = random(&[from, to], seed, device).mul(1.0 / (from as f64).sqrt())?;
            w.eval()?;
            Ok(w)
        };
        Ok(Model { w1: weight(12, 32, 0.1)?, w2: weight(32, 16, 0.2)?, w3: weight(16, 5, 0.3)? })
    }

    /// The same in f64, for rows of 12.
    fn define(&self, x: &[f64]) -> Vec<f64> {
        let rows = x.len() / 12;
        let relu = |v: Vec<f64>| v.into_iter().map(|v| v.max(0.0)).collect::<Vec<_>>();
        let h1 = relu(product(x, &f64s(&self.w1), [rows, 12, 32]));
        let h2 = relu(product(&h1, &f64s(&self.w2), [rows, 32, 16]));
        product(&h2, &f64s(&self.w3), [rows, 16, 5])
    }
}

/// Section 3, "1. Batch Model Inference".
#[test]
fn batch_model_inference() -> TensorResult<()> {
    let _turn = turn();
    for device in devices() {
        let model = Model::new(&device)?;
        let inputs: Vec<Tensor> = (0..7).map(|i| random(&[1, 12], i as f64, &device)).collect();

        // Bad: Process one at a time
        let mut one_by_one = Vec::new();
        for input in &inputs {
            let output = model.forward(input)?;
            one_by_one.push(output);
        }

        // Good: Batch all inputs
        let batch = Tensor::cat(&inputs, 0)?; // Concatenate along batch dim
        let batch_output = model.forward(&batch)?;
        let results = batch_output.split(0)?; // Split along batch dim

        assert_eq!(results.len(), inputs.len());
        for ((result, single), input) in results.iter().zip(&one_by_one).zip(&inputs) {
            assert_eq!(result.dims(), single.dims());
            let want = model.define(&f64s(input));
            check(result, &want);
            check(single, &want);
        }
    }
    Ok(())
}

/// Section 3, "2. Batch Element-wise Operations".
#[test]
fn batch_element_wise_operations() -> TensorResult<()> {
    let _turn = turn();
    for device in devices() {
        let tensors_a: Vec<Tensor> = (0..6).map(|i| random(&[10, 3], i as f64, &device)).collect();
        let tensors_b: Vec<Tensor> = (0..6).map(|i| random(&[10, 3], i as f64 + 0.5, &device)).collect();

        // Bad: Many small operations
        let mut many = Vec::new();
        for (a, b) in tensors_a.iter().zip(tensors_b.iter()) {
            many.push(a.add(b)?);
        }

        // Good: Single large operation
        let stacked_a = Tensor::stack(&tensors_a, 0)?;
        let stacked_b = Tensor::stack(&tensors_b, 0)?;
        let result = stacked_a.add(&stacked_b)?;
        let results = result.unstack(0)?;

        assert_eq!(results.len(), many.len());
        for (i, (result, single)) in results.iter().zip(&many).enumerate() {
            let want: Vec<f64> = f64s(&tensors_a[i]).iter().zip(f64s(&tensors_b[i])).map(|(a, b)| a + b).collect();
            assert_eq!(result.dims(), [10, 3]);
            check(result, &want);
            check(single, &want);
        }
    }
    Ok(())
}

/// Section 4, "When to Use Full Precision". f32 is there; the guide had it planned.
#[test]
fn when_to_use_full_precision() -> TensorResult<()> {
    let _turn = turn();
    for device in devices() {
        let shape = vec![10, 100];
        let data_f16 = numbers(1000, 0.4);
        let want: Vec<f64> = data_f16.iter().map(|v| v.to_f64()).collect();

        // f16 is default (recommended)
        let tensor = Tensor::from_vec_gpu(&device, data_f16, &shape)?;
        assert_eq!(tensor.dtype(), tensorlogic::DType::F16);
        check(&tensor, &want);

        // f32 for high-precision requirements: very large and small values, and many small ones in a sum
        let tensor = Tensor::from_vec_gpu(&device, vec![1e6f32, 1e-6, 1.0 + 1e-6], [3])?;
        assert_eq!(tensor.to_vec()?, [1e6, 1e-6, 1.0 + 1e-6]);
        let many = Tensor::full(1e-4, &[100_000], tensorlogic::DType::F32, &device)?;
        assert!((many.sum_all()?.item()? - 10.0).abs() < 1e-4);
    }
    Ok(())
}

/// Section 5, "Minimize Host↔Device Transfers".
#[test]
#[allow(clippy::map_flatten)] // as the guide writes it
fn minimize_host_device_transfers() -> TensorResult<()> {
    let _turn = turn();
    fn compute_on_cpu(i: usize) -> Vec<f16> {
        numbers(8, i as f64)
    }
    for device in devices() {
        let (shape, batch_shape) = ([8], [100, 8]);
        let mut small = Vec::new();

        // Bad: Many small transfers
        for i in 0..100 {
            let cpu_data = compute_on_cpu(i);
            let gpu_tensor = Tensor::from_vec_gpu(&device, cpu_data, shape)?;
            let result = gpu_tensor.relu()?;
            let cpu_result = result.to_vec()?;
            small.extend(cpu_result);
        }

        // Good: Batch transfers
        let before = device.submits();
        let all_cpu_data = (0..100).map(compute_on_cpu).flatten().collect();
        let gpu_tensor = Tensor::from_vec_gpu(&device, all_cpu_data, batch_shape)?;
        let result = gpu_tensor.relu()?;
        let cpu_results = result.to_vec()?;

        assert_eq!(cpu_results, small);
        let want: Vec<f64> = (0..100).flat_map(compute_on_cpu).map(|v| v.to_f64().max(0.0)).collect();
        check(&result, &want);
        // One upload, one run, one read-back at most, where the loop took a hundred of each.
        assert!(device.submits() - before <= 4, "{} submits", device.submits() - before);
    }
    Ok(())
}

/// Section 5, "Keep Data on GPU".
#[test]
fn keep_data_on_gpu() -> TensorResult<()> {
    let _turn = turn();
    for device in devices() {
        let shape = [16, 16];
        let gpu_c = random(&shape, 0.7, &device);
        let data_a = numbers(256, 0.2);
        let want: Vec<f64> = data_a.iter().zip(f64s(&gpu_c)).map(|(a, c)| a.to_f64().max(0.0) + c).collect();

        // Bad: Unnecessary round-trips
        let gpu_a = Tensor::from_vec_gpu(&device, data_a.clone(), shape)?;
        let cpu_temp = gpu_a.relu()?.to_vec()?; // GPU → CPU
        let gpu_b = Tensor::from_vec_gpu(&device, cpu_temp, shape)?; // CPU → GPU
        let result = gpu_b.add(&gpu_c)?;
        check(&result, &want);

        // Good: Stay on GPU
        let gpu_a = Tensor::from_vec_gpu(&device, data_a, shape)?;
        let gpu_b = gpu_a.relu()?; // Stay on GPU
        let result = gpu_b.add(&gpu_c)?; // Stay on GPU
        assert_eq!(dispatches(&result), 1);
        check(&result, &want);
    }
    Ok(())
}

/// Section 6: what the three blocks share.
fn average_seconds(a: &Tensor, b: &Tensor, device: &Device) -> TensorResult<f64> {
    use std::time::Instant;

    let iterations = 100;
    let warmup = 10;

    // Warmup
    for _ in 0..warmup {
        let _ = a.matmul(b)?.eval()?;
    }
    device.synchronize()?;

    // Benchmark: a product that nobody asks for would not be computed, and a submit does not wait.
    let start = Instant::now();
    for _ in 0..iterations {
        let _ = a.matmul(b)?.eval()?;
    }
    device.synchronize()?;
    let duration = start.elapsed();

    let avg_ms = duration.as_secs_f64() * 1000.0 / iterations as f64;
    println!("Average: {:.4} ms", avg_ms);
    Ok(avg_ms / 1000.0)
}

/// Section 6, "Benchmarking Operations".
#[test]
fn benchmarking_operations() -> TensorResult<()> {
    let _turn = turn();
    for device in devices() {
        let (a, b) = (random(&[64, 64], 0.0, &device), random(&[64, 64], 0.1, &device));
        let before = tensorlogic::eval::eval_stats(&device).evaluations;
        assert!(average_seconds(&a, &b, &device)? > 0.0);
        // Every iteration ran.
        assert_eq!(tensorlogic::eval::eval_stats(&device).evaluations - before, 110);
    }
    Ok(())
}

/// Section 6, "Calculating GFLOPS".
#[test]
fn calculating_gflops() -> TensorResult<()> {
    let _turn = turn();
    for device in devices() {
        let (a, b) = (random(&[32, 48], 0.0, &device), random(&[48, 64], 0.1, &device));
        let avg_time_seconds = average_seconds(&a, &b, &device)?;

        // Matrix multiplication: 2*M*N*K FLOPs
        let m = a.dims()[0];
        let k = a.dims()[1];
        let n = b.dims()[1];
        let flops = 2.0 * m as f64 * n as f64 * k as f64;
        assert_eq!(flops, 2.0 * 32.0 * 48.0 * 64.0);

        let gflops = flops / (avg_time_seconds * 1e9);
        println!("Performance: {:.2} GFLOPS", gflops);
        assert!(gflops.is_finite() && gflops > 0.0);
    }
    Ok(())
}

/// Section 6, "Calculating Bandwidth".
#[test]
fn calculating_bandwidth() -> TensorResult<()> {
    let _turn = turn();
    for device in devices() {
        let tensor = random(&[10_000], 0.0, &device);
        let start = std::time::Instant::now();
        tensor.add(&random(&[10_000], 0.1, &device))?.eval()?;
        device.synchronize()?;
        let avg_time_seconds = start.elapsed().as_secs_f64();

        // Element-wise operation: read 2 inputs + write 1 output
        let elements = tensor.numel();
        let bytes = elements * std::mem::size_of::<half::f16>() * 3;
        assert_eq!(bytes, 60_000);

        let bandwidth_gbps = bytes as f64 / (avg_time_seconds * 1e9);
        println!("Bandwidth: {:.2} GB/s", bandwidth_gbps);
        assert!(bandwidth_gbps.is_finite() && bandwidth_gbps > 0.0);
    }
    Ok(())
}

/// Section 7, "Neural Network Forward Pass".
#[test]
fn neural_network_forward_pass() -> TensorResult<()> {
    let _turn = turn();
    for device in devices() {
        let model = Model::new(&device)?;
        let inputs: Vec<Tensor> = (0..16).map(|i| random(&[12], i as f64, &device)).collect();

        // Batch inference
        let batch_input = Tensor::stack(&inputs, 0)?;
        let batch_output = model.forward(&batch_input)?;

        let all: Vec<f64> = inputs.iter().flat_map(f64s).collect();
        check(&batch_output, &model.define(&all));
        batch_input.eval()?;
        assert_eq!(dispatches(&model.forward(&batch_input)?), 3);
    }
    Ok(())
}

/// Section 7, "Training Loop".
#[test]
fn training_loop() -> TensorResult<()> {
    use tensorlogic::nn::{Linear, Module};
    use tensorlogic::ops::loss::mse_loss;
    use tensorlogic::optim::{Optimizer, Sgd};
    use tensorlogic::{DType, Rng};
    let _turn = turn();
    struct Batch {
        x: Tensor,
        y: Tensor,
    }
    for device in devices() {
        let truth = random(&[8, 2], 0.9, &device).cast(DType::F32)?;
        let mut rng = Rng::new(3);
        let dataloader: Vec<Batch> = (0..5)
            .map(|_| {
                let x = rng.normal(&[32, 8], DType::F32, &device)?;
                let y = x.matmul(&truth)?;
                tensorlogic::eval::eval_all(&[&x, &y])?;
                Ok(Batch { x, y })
            })
            .collect::<TensorResult<_>>()?;
        let model = Linear::new(8, 2, false, &mut rng, &device)?;
        let parameters = (&model as &dyn Module).named_parameters();
        let mut optimizer = Optimizer::new(Sgd::default(), parameters, 0.1)?;
        let loss_of = |batch: &Batch| mse_loss(&model.forward(&batch.x)?, &batch.y)?.item();
        let first = loss_of(&dataloader[0])?;
        let epochs = 60;
        let before = device.buffer_pool_stats();

        // Optimized training loop
        for _epoch in 0..epochs {
            for batch in &dataloader {
                // Forward pass with fused ops
                let predictions = model.forward(&batch.x)?;

                // Compute loss
                let loss = mse_loss(&predictions, &batch.y)?;

                // Backward pass (buffers automatically pooled)
                loss.backward()?;

                // Optimizer step (reuses buffers)
                optimizer.step()?;
                optimizer.zero_grad()?;
            }
        }

        // Check buffer pool efficiency
        let stats = device.buffer_pool_stats();
        println!("Reuse rate: {:.1}%", 100.0 * stats.reuse_count as f64 / stats.allocation_count as f64);
        let (reused, asked) = (stats.reuse_count - before.reuse_count, stats.allocation_count - before.allocation_count);
        assert!(asked > 0 && reused as f64 >= 0.95 * asked as f64, "{reused} of {asked} on {}", device.name());

        // It learned what the data was made with.
        let last = loss_of(&dataloader[0])?;
        assert!(last < 1e-4 * first, "{first} to {last} on {}", device.name());
        let identity: Vec<f32> = (0..64).map(|i| f32::from(i % 9 == 0)).collect();
        let rows = model.forward(&Tensor::from_vec(identity, &[8, 8], &device)?)?.to_vec()?;
        assert!(rows.iter().zip(truth.to_vec()?).all(|(l, t)| (l - t).abs() < 0.02), "{rows:?}");
    }
    Ok(())
}

/// Section 7, "Image Processing Pipeline".
#[test]
fn image_processing_pipeline() -> TensorResult<()> {
    let _turn = turn();
    for device in devices() {
        let (scale, bias) = (random(&[3], 0.1, &device), random(&[3], 0.2, &device));
        let filters = random(&[4 * 4 * 3, 5], 0.5, &device);
        struct Features(Tensor);
        impl Features {
            fn forward(&self, x: &Tensor) -> TensorResult<Tensor> {
                x.flatten(1, -1)?.matmul_with_activation(&self.0, Activation::ReLU)
            }
        }
        let model = Features(filters);
        let images: Vec<Tensor> = (0..6).map(|i| random(&[4, 4, 3], i as f64, &device)).collect();
        let pixels: Vec<Vec<f64>> = images.iter().map(f64s).collect();

        // Efficient image batch processing
        let process_images = |images: Vec<Tensor>| -> TensorResult<Vec<Tensor>> {
            // Stack images into batch
            let batch = Tensor::stack(&images, 0)?; // [N, H, W, C]

            // Fused operations for preprocessing
            let normalized = batch.fused_affine(&scale, &bias)?;

            // Model inference on entire batch
            let features = model.forward(&normalized)?;

            // Split back to individual results
            features.unstack(0)
        };

        let results = process_images(images)?;
        let (s, b) = (f64s(&scale), f64s(&bias));
        assert_eq!(results.len(), 6);
        for (result, pixels) in results.iter().zip(&pixels) {
            let normalized: Vec<f64> = pixels.iter().enumerate().map(|(i, p)| p * s[i % 3] + b[i % 3]).collect();
            let want: Vec<f64> = product(&normalized, &f64s(&model.0), [1, 48, 5]).into_iter().map(|v| v.max(0.0)).collect();
            let got = result.to_vec()?;
            assert_eq!(result.dims(), [5]);
            // The normalized picture is stored in f16 on the way, so that its rounding is in the sums.
            for (g, w) in got.iter().zip(&want) {
                assert!((f64::from(*g) - w).abs() < 0.05, "{g} for {w}");
            }
        }
    }
    Ok(())
}

/// Section 9, "High Memory Usage".
#[test]
fn high_memory_usage() -> TensorResult<()> {
    let _turn = turn();
    for device in devices() {
        let current_size = 64;
        drop(buffer(1 << 20, &device)?);

        // Shrink buffer pool
        let max_bytes = 1 << 16;
        device.buffer_pool().shrink_to_fit(max_bytes);
        assert!(device.buffer_pool_stats().total_memory <= max_bytes);

        // Reduce batch size
        let smaller_batch_size = current_size / 2;
        let model = Model::new(&device)?;
        let x = random(&[smaller_batch_size, 12], 0.0, &device);
        check(&model.forward(&x)?, &model.define(&f64s(&x)));

        // Clear pool between epochs
        device.buffer_pool().clear();
        assert_eq!(device.buffer_pool_stats().total_memory, 0);

        // Out of memory is an error that says what is in use, and the tensors that exist stay.
        device.set_memory_limit(device.buffer_pool_stats().in_use + (1 << 20));
        let e = buffer(64 << 20, &device).err();
        device.set_memory_limit(None);
        assert!(matches!(e, Some(TensorError::OutOfMemory { .. })), "{e:?}");
        check(&model.forward(&x)?, &model.define(&f64s(&x)));
    }
    Ok(())
}

/// Section 10, "Custom Fused Kernels", 1: the Metal shader's counterpart in WGSL. It has the shader's name, arguments and types once it is Metal again.
#[test]
fn custom_fused_kernels_1_shader() {
    use naga::back::msl;
    use naga::valid::{Capabilities, ValidationFlags, Validator};
    let text = "
        enable f16;
        @group(0) @binding(0) var<storage, read> input: array<f16>;
        @group(0) @binding(1) var<storage, read_write> output: array<f16>;
        @compute @workgroup_size(64)
        fn fused_my_op_f16(@builtin(global_invocation_id) id: vec3<u32>) {
            // The fused operation: max(2 x, 0) + 1.
            let x = input[id.x];
            output[id.x] = max(2.0h * x, 0.0h) + 1.0h;
        }";
    let module = naga::front::wgsl::parse_str(text).unwrap();
    let info = Validator::new(ValidationFlags::all(), Capabilities::all()).validate(&module).unwrap();
    let options = msl::Options { lang_version: (3, 0), fake_missing_bindings: true, ..Default::default() };
    let (metal, _) = msl::write_string(&module, &info, &options, &msl::PipelineOptions::default()).unwrap();
    for part in ["kernel void fused_my_op_f16", "[[thread_position_in_grid]]", "half", "device", "input", "output"] {
        assert!(metal.contains(part), "no `{part}` in\n{metal}");
    }
}

/// Section 10, "Custom Fused Kernels", 2: the operation as a method. Rust lets a crate of yours add methods to `Tensor` through a trait.
trait MyOps {
    fn fused_my_op(&self) -> TensorResult<Tensor>;
    fn op1(&self) -> TensorResult<Tensor>;
    fn op2(&self) -> TensorResult<Tensor>;
}

impl MyOps for Tensor {
    fn fused_my_op(&self) -> TensorResult<Tensor> {
        // Which form runs follows from the device: what the guide matches on by hand.
        static FUSED_MY_OP: CustomOp = CustomOp::elementwise("fused_my_op")
            .wgsl("fn fused_my_op(x: f32) -> f32 { return max(2.0 * x, 0.0) + 1.0; }")
            .cpu(|x, _, out| out.iter_mut().zip(x[0]).for_each(|(y, x)| *y = (2.0 * x).max(0.0) + 1.0));
        FUSED_MY_OP.apply(&[self], &[])
    }
    fn op1(&self) -> TensorResult<Tensor> {
        self.mul(2.0)?.relu()
    }
    fn op2(&self) -> TensorResult<Tensor> {
        self.add(1.0)
    }
}

/// Section 10, "Custom Fused Kernels", 2: a device without a form is an error, as in the guide.
#[test]
fn custom_fused_kernels_2_api() -> TensorResult<()> {
    let _turn = turn();
    static CPU_ONLY: CustomOp = CustomOp::elementwise("cpu_only").cpu(|x, _, out| out.copy_from_slice(x[0]));
    for device in devices() {
        let tensor = random(&[100], 0.3, &device);
        check(&tensor.fused_my_op()?, &f64s(&tensor).into_iter().map(|x| (2.0 * x).max(0.0) + 1.0).collect::<Vec<_>>());
        assert_eq!(dispatches(&tensor.fused_my_op()?), 1);
        match CPU_ONLY.apply(&[&tensor], &[]) {
            Ok(same) => assert!(device.is_cpu() && same.to_vec()? == tensor.to_vec()?),
            Err(e) => assert!(!device.is_cpu() && matches!(e, TensorError::Unsupported(_) | TensorError::UnsupportedDevice(_)), "{e}"),
        }
    }
    Ok(())
}

#[track_caller]
fn assert_tensors_close(a: &Tensor, b: &Tensor, tolerance: f64) {
    let b: Vec<f64> = b.to_vec().unwrap().into_iter().map(f64::from).collect();
    let a = a.to_vec().unwrap();
    assert_eq!(a.len(), b.len());
    assert!(a.iter().zip(&b).all(|(a, b)| (f64::from(*a) - b).abs() <= tolerance * (1.0 + b.abs())));
}

/// Section 10, "Custom Fused Kernels", 3: "Test correctness".
#[test]
fn test_fused_vs_unfused() -> TensorResult<()> {
    let _turn = turn();
    for device in devices() {
        let tensor = random(&[1000], 0.6, &device);
        let fused = tensor.fused_my_op()?;
        let unfused = tensor.op1()?.op2()?;
        assert_tensors_close(&fused, &unfused, 1e-3);
    }
    Ok(())
}

/// The types that the guide opens devices with are devices.
#[test]
fn metal_device_is_a_device() {
    fn takes(_: &Device) {}
    if let Ok(device) = MetalDevice::new() {
        takes(&device);
    }
    let device: Option<Device> = metal_device();
    assert!(device.is_none_or(|d| !d.is_cpu()));
}
