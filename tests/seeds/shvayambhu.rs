//! The blocks of the Metal guide for a project in Python, as Rust. `torch.mps` is the device, `torch.float16` is `DType::F16`; Python's
//! modules, contexts and classes are functions, closures and structs.

use super::*;
use tensorlogic::nn::{Act, Linear, Module, ModuleExt, MultiHeadAttention, Sequential, align};
use tensorlogic::ops::AttentionOptions;
use tensorlogic::ops::affine::{DynamicQuantizer, block_wise_quantize};
use tensorlogic::ops::custom::CustomOp;
use tensorlogic::{DType, Rng, TensorError, TensorResult};

/// "Memory Allocation Strategy".
#[test]
fn memory_allocation_strategy() -> TensorResult<()> {
    let _turn = turn();
    for device in devices() {
        let shape = [256, 64];
        // Allocate tensors directly on the device. No tensor is uninitialized here: `empty` becomes `zeros`.
        let tensor = Tensor::zeros(&shape, DType::F16, &device)?;
        assert_eq!((tensor.device(), tensor.dtype()), (&device, DType::F16));
        check(&tensor, &[0.0; 256 * 64]);

        // BAD: Creates tensor on CPU then moves to GPU
        let before = device.transfers();
        let tensor_bad = Tensor::randn(&shape, DType::F16, &Device::cpu())?.to_device(&device)?;
        tensor_bad.neg()?.eval()?;
        device.synchronize()?;
        let moved = device.transfers().uploaded_bytes - before.uploaded_bytes;
        assert_eq!(moved, if device.is_cpu() { 0 } else { 2 * 256 * 64 }, "on {}", device.name());

        // GOOD: Creates tensor directly on GPU
        let before = device.transfers();
        let tensor_good = Tensor::randn(&shape, DType::F16, &device)?;
        tensor_good.eval()?;
        device.synchronize()?;
        assert_eq!(device.transfers().uploaded_bytes, before.uploaded_bytes, "on {}", device.name());

        for t in [tensor_bad, tensor_good] {
            let values = f64s(&t);
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / values.len() as f64;
            assert!(mean.abs() < 0.05 && (variance - 1.0).abs() < 0.1, "mean {mean}, variance {variance} on {}", device.name());
        }
    }
    Ok(())
}

/// "Memory Pool Management". `set_memory_pool_enabled` is no function of PyTorch; here it is one of the pool.
#[test]
fn memory_pool_management() -> TensorResult<()> {
    let _turn = turn();
    for device in devices() {
        // Set memory fraction (80% of available memory)
        match device.memory_info() {
            Some(room) => {
                device.set_memory_fraction(0.8)?;
                assert_eq!(device.buffer_pool_stats().limit, Some((room.total as f64 * 0.8) as usize), "on {}", device.name());
                device.set_memory_limit(None);
            }
            None => assert!(matches!(device.set_memory_fraction(0.8), Err(TensorError::Config(_)))),
        }
        assert!(device.set_memory_fraction(1.5).is_err());

        // Enable memory pool allocation
        device.buffer_pool().set_enabled(false);
        let x = random(&[1 << 18], 0.2, &device);
        x.add(1.0)?.eval()?;
        assert_eq!(device.buffer_pool_stats().total_pooled, 0, "on {}", device.name());
        device.buffer_pool().set_enabled(true);
        x.add(1.0)?.eval()?;
        assert!(device.buffer_pool_stats().total_memory >= 2 << 18, "on {}", device.name());

        // Clear cache when needed
        device.empty_cache();
        assert_eq!(device.buffer_pool_stats().total_pooled, 0);
        check(&x.add(1.0)?, &f64s(&x).iter().map(|v| v + 1.0).collect::<Vec<_>>());
    }
    Ok(())
}

/// The guide's "MPS-optimized matrix multiplication".
fn optimized_matmul(a: &Tensor, b: &Tensor, device: &Device) -> TensorResult<Tensor> {
    let (mut a, mut b) = (a.clone(), b.clone());
    // Ensure tensors are on the device
    if a.device() != device {
        a = a.to_device(device)?;
    }
    if b.device() != device {
        b = b.to_device(device)?;
    }

    // Use float16 for optimal performance
    if a.dtype() != DType::F16 {
        a = a.cast(DType::F16)?;
    }
    if b.dtype() != DType::F16 {
        b = b.cast(DType::F16)?;
    }

    // Perform multiplication
    a.matmul(&b)
}

/// "Matrix Multiplication".
#[test]
fn matrix_multiplication() -> TensorResult<()> {
    let _turn = turn();
    for device in devices() {
        let (a, b) = (random(&[40, 24], 0.0, &Device::cpu()), random(&[24, 56], 0.1, &device));
        let want = product(&f64s(&a), &f64s(&b), [40, 24, 56]);
        let result = optimized_matmul(&a.cast(DType::F32)?, &b, &device)?;
        assert_eq!((result.device(), result.dtype()), (&device, DType::F16));
        check(&result, &want);
    }
    Ok(())
}

/// The guide's "MPS-optimized scaled dot-product attention".
fn mps_scaled_dot_product_attention(
    [query, key, value]: [&Tensor; 3],
    attn_mask: Option<&Tensor>,
    device: &Device,
) -> TensorResult<Tensor> {
    // Ensure all tensors are on the device and half precision
    let half = |t: &Tensor| t.to_device(device)?.cast(DType::F16);
    let (query, key, value) = (half(query)?, half(key)?, half(value)?);

    // Use the fused implementation. PyTorch's is not causal unless asked to be.
    query.attention(&key, &value, attn_mask, &AttentionOptions { causal: false, ..Default::default() })
}

/// "Attention Mechanisms".
#[test]
fn attention_mechanisms() -> TensorResult<()> {
    let _turn = turn();
    let (heads, t, s, d) = (2, 5, 9, 8);
    for device in devices() {
        let (query, key) = (random(&[1, heads, t, d], 0.0, &device), random(&[1, heads, s, d], 0.1, &device));
        let value = random(&[1, heads, s, d], 0.2, &Device::cpu());
        let attn_mask = random(&[t, s], 0.3, &device);
        for mask in [None, Some(&attn_mask)] {
            let got = mps_scaled_dot_product_attention([&query, &key, &value], mask, &device)?;
            let (q, k, v) = (f64s(&query), f64s(&key), f64s(&value));
            let added = mask.map_or(vec![0.0; t * s], f64s);
            let mut want = Vec::new();
            for row in 0..heads * t {
                let head = row / t;
                let score = |j: usize| {
                    let dot: f64 = (0..d).map(|c| q[row * d + c] * k[(head * s + j) * d + c]).sum();
                    (dot / (d as f64).sqrt() + added[row % t * s + j]).exp()
                };
                let scores: Vec<f64> = (0..s).map(score).collect();
                let sum: f64 = scores.iter().sum();
                want.extend((0..d).map(|c| (0..s).map(|j| scores[j] / sum * v[(head * s + j) * d + c]).sum::<f64>()));
            }
            // The weights are f16 inside, where the device computes in it.
            let values = got.to_vec()?;
            assert!(values.iter().zip(&want).all(|(g, w)| (f64::from(*g) - w).abs() < 5e-3), "on {}", device.name());
        }
    }
    Ok(())
}

/// The guide's kernel in WGSL, one row to a workgroup, with the line that says where a window begins.
macro_rules! entropy_kernel {
    ($name:literal, $start:literal) => {
        CustomOp::rows($name).wgsl(concat!(
            "fn ",
            $name,
            "(row: u32, cols: u32, lane: u32) {
               for (var id = lane; id < cols; id += WORKGROUP) {
                 // Calculate local entropy for byte sequence
                 const window_size = 256u;
                 let start = ",
            $start,
            ";
                 let end = min(cols, id + window_size / 2u);
                 var histogram: array<u32, 256>;
                 for (var v = 0u; v < 256u; v++) { histogram[v] = 0u; }
                 var total = 0u;
                 // Build histogram
                 for (var i = start; i < end; i++) {
                   histogram[u32(load_0(row * cols + i))]++;
                   total++;
                 }
                 // Calculate entropy
                 var entropy = 0.0;
                 for (var i = 0u; i < 256u; i++) {
                   if (histogram[i] > 0u) {
                     let p = f32(histogram[i]) / f32(total);
                     entropy -= p * log2(p);
                   }
                 }
                 store_0(row * cols + id, entropy / 8.0); // Normalize to [0, 1]
               }
             }"
        ))
    };
}

/// "Custom Metal Kernels": in WGSL, on a GPU. As the guide writes it, the first 128 windows are empty: `id - 128u` wraps around below 128.
#[test]
fn custom_metal_kernels() -> TensorResult<()> {
    static AS_WRITTEN: CustomOp = entropy_kernel!("entropy_as_written", "max(0u, id - window_size / 2u)");
    static CALCULATE_ENTROPY: CustomOp = entropy_kernel!("calculate_entropy", "id - min(id, window_size / 2u)");
    let _turn = turn();
    let bytes: Vec<u8> = (0..700u32).map(|i| (i.wrapping_mul(i) >> 7) as u8 ^ (i >> 5) as u8).collect();
    let defined: Vec<f64> = (0..bytes.len())
        .map(|id| {
            let window = &bytes[id.saturating_sub(128)..(id + 128).min(bytes.len())];
            let share = |v: u8| window.iter().filter(|b| **b == v).count() as f64 / window.len() as f64;
            -(0..=255u8).map(share).filter(|p| *p > 0.0).map(|p| p * p.log2()).sum::<f64>() / 8.0
        })
        .collect();
    let near = |got: &Tensor, want: &[f64]| {
        let values = got.to_vec()?;
        assert!(values.len() == want.len() && values.iter().zip(want).all(|(g, w)| (f64::from(*g) - w).abs() < 1e-5));
        TensorResult::Ok(())
    };
    for device in devices() {
        let input = Tensor::from_vec(bytes.clone(), &[1, 700], &device)?;
        near(&input.byte_entropy(256)?, &defined)?;
        if !device.is_cpu() {
            near(&CALCULATE_ENTROPY.apply(&[&input], &[])?, &defined)?;
            let wrapped: Vec<f64> = defined.iter().enumerate().map(|(i, h)| if i < 128 { 0.0 } else { *h }).collect();
            assert!(defined[..128].iter().all(|h| *h > 0.5));
            near(&AS_WRITTEN.apply(&[&input], &[])?, &wrapped)?;
        }
    }
    Ok(())
}

/// "Dynamic Quantization". Zero points are integers here, so that 0 is exact; the scale is the guide's where the range includes 0.
#[test]
fn dynamic_quantization() -> TensorResult<()> {
    let _turn = turn();
    for device in devices() {
        let weights = random(&[48, 80], 0.4, &device).cast(DType::F32)?;
        let values = wide::<f32>(&weights);
        let (min, max) = values.iter().fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(*v), high.max(*v)));
        for (bits, qmin, qmax) in [(8, -128.0, 127.0), (4, -8.0, 7.0)] {
            let quantizer = DynamicQuantizer::new(bits)?;

            // Calculate scale and zero point; quantize
            let quantized = quantizer.quantize_weights(&weights)?;
            let scale = (max - min) / (qmax - qmin);
            let zero_point = (qmin - min / scale).round();
            assert!((quantized.scale().item()? - scale).abs() < 1e-6 * scale, "{} for {scale}", quantized.scale().item()?);
            assert_eq!(quantized.zero_point().item()?, zero_point);
            let integers = quantized.values()?.to_vec_of::<i8>()?;
            for (q, v) in integers.iter().zip(&values) {
                let want = (v / scale + zero_point).round().clamp(qmin, qmax);
                // A value in the middle of two integers may go either way in f32.
                assert!((f64::from(*q) - want).abs() <= 1.0, "{v}: {q} for {want}");
            }

            // Dequantize weights
            let back = quantizer.dequantize_weights(&quantized)?.to_vec()?;
            let most = back.iter().zip(&values).map(|(b, v)| (f64::from(*b) - v).abs()).fold(0.0, f64::max);
            assert!(most <= 0.5001 * scale, "off by {most}, scale {scale} on {}", device.name());
        }
        assert!(DynamicQuantizer::new(16).is_err(), "Unsupported dtype");
    }
    Ok(())
}

/// "Block-wise Quantization": integers are the guide's less 128, in i8.
#[test]
fn block_wise_quantization() -> TensorResult<()> {
    let _turn = turn();
    for device in devices() {
        let tensor = random(&[30, 50], 0.6, &device).cast(DType::F32)?;
        let values = wide::<f32>(&tensor);
        let result = block_wise_quantize(&tensor, 128)?;
        // Padded to the block boundary: 1500 elements in 12 blocks
        assert_eq!((result.q().dims(), result.scale().dims(), result.zero_point().dims()), (&[12, 128][..], &[12][..], &[12][..]));
        assert_eq!(result.shape().dims(), [30, 50]); // original_shape
        let back = result.dequantize()?.to_vec()?;
        for ((block, scale), back) in values.chunks(128).zip(result.scale().to_vec()?).zip(back.chunks(128)) {
            // Quantize each block independently
            let (min, max) = block.iter().fold((0f64, 0f64), |(low, high), v| (low.min(*v), high.max(*v)));
            let want = (max - min) / 255.0; // 8-bit quantization
            assert!((f64::from(scale) - want).abs() < 1e-6 * want, "{scale} for {want}");
            let most = back.iter().zip(block).map(|(b, v)| (f64::from(*b) - v).abs()).fold(0.0, f64::max);
            assert!(most <= 0.5001 * want, "off by {most}, scale {want} on {}", device.name());
        }
    }
    Ok(())
}

/// The guide's "optimized memory access patterns".
fn optimized_kernel_access(tensor: &Tensor) -> TensorResult<Tensor> {
    // Process contiguous chunks
    let [batch_size, seq_len, hidden_dim] = tensor.dims()[..] else { panic!("[batch, sequence, hidden] is expected") };

    // Reshape for optimal memory layout
    let tensor_reshaped = tensor.reshape([batch_size * seq_len, hidden_dim])?;

    // Process in chunks that fit in cache
    let chunk_size = 1024;
    let mut chunks = Vec::new();
    for i in (0..batch_size * seq_len).step_by(chunk_size) {
        let chunk = tensor_reshaped.narrow(0, i, chunk_size.min(batch_size * seq_len - i))?;
        // Process chunk. The guide leaves it open what is done.
        chunks.push(chunk.relu()?);
    }
    Tensor::cat(&chunks, 0)?.reshape([batch_size, seq_len, hidden_dim])
}

/// The guide's "example of poor memory access pattern": rows in an order of their own.
fn unoptimized_access(tensor: &Tensor, indices: &Tensor) -> TensorResult<Tensor> {
    tensor.index_select(0, indices)
}

/// "Memory Access Patterns": both give the right rows. Which is faster is not shown here.
#[test]
fn memory_access_patterns() -> TensorResult<()> {
    let _turn = turn();
    for device in devices() {
        let tensor = random(&[3, 700, 16], 0.5, &device);
        let values = f64s(&tensor);
        check(&optimized_kernel_access(&tensor)?, &values.iter().map(|v| v.max(0.0)).collect::<Vec<_>>());

        let rows = tensor.reshape([2100, 16])?;
        let order: Vec<i32> = (0..2100).map(|i| i * 1009 % 2100).collect();
        let want: Vec<f64> = order.iter().flat_map(|i| &values[*i as usize * 16..][..16]).copied().collect();
        check(&unoptimized_access(&rows, &Tensor::from_vec(order, &[2100], &device)?)?, &want);
    }
    Ok(())
}

/// The guide's fused product and activation. The library has no operation in place: the product is never stored.
fn optimize_compute_intensity(input_tensor: &Tensor, weight_matrix: &Tensor) -> TensorResult<Tensor> {
    let (rows, columns) = (input_tensor.dims()[0], weight_matrix.dims()[1]);
    // Use fused operation
    let output = Tensor::zeros(&[rows, columns], DType::F16, input_tensor.device())?.addmm(input_tensor, weight_matrix, 1.0, 1.0)?;
    output.gelu()
}

/// The error function by Simpson's rule.
fn erf(x: f64) -> f64 {
    let (n, f) = (400, |t: f64| (-t * t).exp());
    let h = x / n as f64;
    let inner: f64 = (1..n).map(|i| f(i as f64 * h) * if i % 2 == 1 { 4.0 } else { 2.0 }).sum();
    2.0 / std::f64::consts::PI.sqrt() * h / 3.0 * (f(0.0) + inner + f(x))
}

/// "Compute Intensity Optimization".
#[test]
fn compute_intensity_optimization() -> TensorResult<()> {
    let _turn = turn();
    for device in devices() {
        let (x, w) = (random(&[24, 16], 0.0, &device), random(&[16, 40], 0.1, &device));
        let output = optimize_compute_intensity(&x, &w)?;
        assert_eq!(dispatches(&output), 1, "on {}", device.name());
        let want = product(&f64s(&x), &f64s(&w), [24, 16, 40]).into_iter().map(|v| 0.5 * v * (1.0 + erf(v / 2f64.sqrt())));
        check(&output, &want.collect::<Vec<_>>());
    }
    Ok(())
}

/// "Using Metal System Trace": the two commands are for macOS. The page on Metal has the first one; a profile's trace is there on every
/// system.
#[test]
fn using_metal_system_trace() -> TensorResult<()> {
    let _turn = turn();
    assert!(include_str!("../../docs/metal.md").contains("xcrun xctrace record --template 'Metal System Trace' --launch"));
    for device in devices() {
        let x = random(&[1000], 0.2, &device);
        let (_, profile) = device.profile(|| x.exp()?.sum_all()?.item())?;
        let trace: serde_json::Value = serde_json::from_str(&profile.chrome_trace()).unwrap();
        let steps = trace["traceEvents"].as_array().unwrap().iter().filter(|e| e["args"]["line"].is_string()).count();
        assert_eq!(steps, profile.rows().len(), "on {}", device.name());
        assert!(steps > 0);
    }
    Ok(())
}

/// 60 examples of eight numbers: example i has i, i + 1, …
struct Examples;

impl tensorlogic::data::Dataset for Examples {
    fn len(&self) -> usize {
        60
    }
    fn fields(&self) -> Vec<tensorlogic::data::Field> {
        vec![tensorlogic::data::Field { dtype: DType::F16, shape: vec![8] }]
    }
    fn read(&self, index: usize, parts: &mut [tensorlogic::data::Part]) -> TensorResult<()> {
        let [tensorlogic::data::Part::F16(numbers)] = parts else { unreachable!("one field of f16") };
        numbers.iter_mut().enumerate().for_each(|(c, v)| *v = f16::from_f64((index + c) as f64));
        Ok(())
    }
}

/// "2. Data Pipeline Optimization". The loader chooses the indices, and a thread of its own reads ahead. The guide hands out the same tensor for
/// every batch: one that is still held changes. Here memory is used again only when a batch was dropped.
#[test]
fn data_pipeline_optimization() -> TensorResult<()> {
    use tensorlogic::data::{DataLoader, LoaderOptions, Order};
    let _turn = turn();
    for device in devices() {
        let options = LoaderOptions { batch: 12, order: Order::Sequential, ..Default::default() };
        let mut loader = DataLoader::new(Examples, options, &device)?;
        let want = |batch: usize| (0..96).map(|i| (batch * 12 + i / 8 + i % 8) as f64).collect::<Vec<_>>();
        let first = loader.next_batch()?.swap_remove(0);
        assert_eq!((first.dims(), first.dtype(), first.device()), (&[12, 8][..], DType::F16, &device));
        for batch in 1..5 {
            check(&loader.next_batch()?[0], &want(batch));
        }
        check(&first, &want(0));
        drop(first);
        let held = device.memory().in_use;
        for batch in 0..20 {
            check(&loader.next_batch()?[0], &want(batch % 5));
        }
        assert!(device.memory().in_use <= held + 4 * 96 * 2, "{held} bytes, later {} on {}", device.memory().in_use, device.name());
    }
    Ok(())
}

/// The guide's `AppleSiliconOptimizedTransformer`. Parameters stay in f32, in which optimizers update them.
struct AppleSiliconOptimizedTransformer {
    hidden_size: usize,
    attention: MultiHeadAttention,
    ffn: Sequential,
}

impl AppleSiliconOptimizedTransformer {
    fn new(hidden_size: usize, num_heads: usize, device: &Device) -> TensorResult<AppleSiliconOptimizedTransformer> {
        let mut rng = Rng::new(11);
        // Dimensions divisible by 64
        let hidden_size = align(hidden_size, 64);

        // Attention with dropout 0.1
        let attention = MultiHeadAttention::new(hidden_size, num_heads, false, true, [0.05, 0.05], &mut rng, device)?;
        attention.drop.set_probability(0.1);

        // Feed-forward network
        let ffn = Sequential::new()
            .push(Linear::new(hidden_size, hidden_size * 4, true, &mut rng, device)?)
            .push(Act(Tensor::gelu))
            .push(Linear::new(hidden_size * 4, hidden_size, true, &mut rng, device)?);
        Ok(AppleSiliconOptimizedTransformer { hidden_size, attention, ffn })
    }
}

/// "3. Model Architecture Optimizations"; `examples/transformer_block.rs` trains such a block.
#[test]
fn model_architecture_optimizations() -> TensorResult<()> {
    let _turn = turn();
    for device in devices() {
        let model = AppleSiliconOptimizedTransformer::new(50, 4, &device)?;
        let n = model.hidden_size;
        assert_eq!(n, 64);
        let x = random(&[2, 6, n], 0.3, &device).cast(DType::F32)?;
        x.eval()?;

        // Dropped weights differ from draw to draw, and nothing is dropped outside of training.
        let attended = || model.attention.attend(&x, None, None)?.to_vec();
        assert_ne!(attended()?, attended()?);
        model.attention.eval();
        assert_eq!(attended()?, attended()?);
        assert_eq!(attended()?.len(), 2 * 6 * n);

        let parameters: Vec<Vec<f64>> = model.ffn.named_parameters().iter().map(|(_, p)| wide::<f32>(&p.get())).collect();
        let [w1, b1, w2, b2] = &parameters[..] else { panic!("two layers with biases") };
        // The feed-forward network: two products, each one dispatch with its bias and GELU. For gradients more would be stored.
        let y = tensorlogic::autograd::no_grad(|| model.ffn.forward(&x))?;
        assert_eq!(dispatches(&y), 2, "on {}", device.name());
        let layer = |x: &[f64], w: &[f64], b: &[f64]| {
            let sum = |o: usize| b[o] + x.iter().zip(&w[o * x.len()..]).map(|(x, w)| x * w).sum::<f64>();
            (0..b.len()).map(sum).collect::<Vec<_>>()
        };
        for (row, got) in wide::<f32>(&x).chunks(n).zip(y.to_vec()?.chunks(n)) {
            let hidden: Vec<f64> = layer(row, w1, b1).into_iter().map(|v| 0.5 * v * (1.0 + erf(v / 2f64.sqrt()))).collect();
            let want = layer(&hidden, w2, b2);
            assert!(got.iter().zip(&want).all(|(g, w)| (f64::from(*g) - w).abs() < 1e-4), "on {}", device.name());
        }
    }
    Ok(())
}

/// "1. Out of Memory Errors": the guide's manager is told of success and failure; here it makes the batches, and a failure loses nothing.
#[test]
fn out_of_memory_errors() -> TensorResult<()> {
    use tensorlogic::train::AdaptiveRows;
    let _turn = turn();
    for device in devices() {
        let (x, w) = (random(&[512, 32], 0.1, &device).cast(DType::F32)?, random(&[32, 4096], 0.2, &device).cast(DType::F32)?);
        tensorlogic::eval::eval_all(&[&x, &w])?;
        let work = |part: &[Tensor]| part[0].matmul(&w)?.softmax(-1)?.square()?.sum(&[-1], false);
        let (a, b) = (wide::<f32>(&x), wide::<f32>(&w));
        let want: Vec<f64> = product(&a, &b, [512, 32, 4096])
            .chunks(4096)
            .map(|row| {
                let most = row.iter().copied().fold(f64::MIN, f64::max);
                let sum: f64 = row.iter().map(|v| (v - most).exp()).sum();
                row.iter().map(|v| ((v - most).exp() / sum).powi(2)).sum()
            })
            .collect();

        let mut batches = AdaptiveRows::new(32, 1, 128)?.grow_after(1);
        check(&batches.run(std::slice::from_ref(&x), work)?, &want);
        assert_eq!((batches.rows(), batches.failures()), (128, 0), "doubled up to the bound on {}", device.name());

        // Ten rows take 160 KiB.
        device.empty_cache();
        device.set_memory_limit(device.memory().in_use + (200 << 10));
        let got = batches.run(std::slice::from_ref(&x), work);
        device.set_memory_limit(None);
        check(&got?, &want);
        assert!((1..64).contains(&batches.rows()) && batches.failures() > 0, "{} rows on {}", batches.rows(), device.name());
    }
    Ok(())
}

/// "Python Profiling": the schedule, its trace files, and the table of ten rows. Of the stack the line is kept that called the operation.
#[test]
fn python_profiling() -> TensorResult<()> {
    use tensorlogic::profile::{Profile, ProfileOptions, Schedule, SortBy, trace_files};
    let _turn = turn();
    for device in devices() {
        let folder = std::env::temp_dir().join(format!("tl-profiler-logs-{}", std::process::id()));
        let (input_data, weights) = (random(&[32, 64], 0.1, &device), random(&[64, 48], 0.2, &device));
        let model = |x: &Tensor| x.matmul(&weights)?.relu()?.sum(&[-1], false);

        let mut trace_handler = trace_files(&folder)?;
        let mut cycles = Vec::new();
        let on_trace_ready = |cycle: usize, profile: &Profile| {
            cycles.push(profile.runs());
            trace_handler(cycle, profile)
        };
        let schedule = Schedule { wait: 1, warmup: 1, active: 3, repeat: 2 };
        let options = ProfileOptions { shapes: true, memory: true, host: true };
        let mut prof = device.profile_steps(schedule, options, on_trace_ready)?;
        for _ in 0..10 {
            let output = model(&input_data)?;
            output.eval()?;
            prof.step()?;
        }
        let last = prof.finish()?.expect("ten steps are two cycles");
        assert_eq!(cycles, [3, 3], "on {}", device.name());

        // Print profiling results
        let table = last.table(SortBy::Time, 10);
        assert!(table.contains("[32,64]·[64,48]") && table.contains("shvayambhu.rs") && table.contains("memory:"), "{table}");
        for cycle in 0..2 {
            let text = std::fs::read_to_string(folder.join(format!("trace-{cycle}.json"))).unwrap();
            let trace: serde_json::Value = serde_json::from_str(&text).unwrap();
            let events = trace["traceEvents"].as_array().unwrap();
            let count = |name: &str| events.iter().filter(|e| e["name"] == name).count();
            // The runs, the host's spans, and the memory over time.
            assert!(count("run") == 3 && count("evaluation") == 3 && count("memory in use") > 0, "on {}", device.name());
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
    Ok(())
}

/// "Custom Performance Metrics": the guide's class over the library's monitor, in its units. The guide counts the bytes of a copy once; read and
/// written they are twice as many. Whether a rate is good depends on the machine: what is asserted is what one implies about the other.
#[test]
fn custom_performance_metrics() -> TensorResult<()> {
    use tensorlogic::measure::{Options, PerformanceMonitor};
    let _turn = turn();
    for device in devices() {
        let mut monitor = PerformanceMonitor::new(&device, Options::quick());
        assert!(monitor.average_bandwidth().is_none() && monitor.average_throughput(DType::F16).is_none());

        // Measure memory bandwidth utilization
        let [first, second] = [monitor.bandwidth(1 << 20, 3)?, monitor.bandwidth(1 << 20, 3)?];
        let bandwidth_gb_s = second.value / 1024f64.powi(3);
        assert!(bandwidth_gb_s > 0.0 && second.limit > 0.0 && (second.fraction() - second.value / second.limit).abs() < 1e-12);
        assert_eq!((first.count, second.count), (1, 2));
        let mean = 0.5 * (first.value + second.value);
        assert!((second.average - mean).abs() < 1e-9 * mean && monitor.average_bandwidth() == Some(second.average));

        // Measure compute throughput (GFLOPS): 2 · size³ operations, whose product takes at least that time.
        let matrix_size = 64;
        let start = std::time::Instant::now();
        let product = monitor.throughput(matrix_size, DType::F16, 3)?;
        let gflops = product.value / 1e9;
        let all = start.elapsed().as_secs_f64();
        assert!(gflops > 2.0 * 64f64.powi(3) / 1e9 / all, "{gflops} GFLOPS, {all} s for all samples on {}", device.name());
        assert_eq!(monitor.average_throughput(DType::F16), Some(product.value));
        assert!(monitor.bandwidth(1 << 20, 0).is_err() && monitor.throughput(0, DType::F16, 3).is_err());
    }
    Ok(())
}

/// "1. Memory Management": the guide's context deletes names of tensors, which frees nothing that others hold. Here a scope frees by itself, and
/// says what others hold.
#[test]
fn memory_management() -> TensorResult<()> {
    let _turn = turn();
    for device in devices() {
        let before = device.memory().in_use;
        let ((), outlived) = device.scope(|_| {
            let mut tensors = Vec::new();
            for n in 0..8 {
                tensors.push(Tensor::full(f64::from(n), &[1 << 14], DType::F32, &device)?.add(1.0)?);
                tensors[n as usize].eval()?;
            }
            assert!(device.memory().in_use >= before + (8 << 16), "on {}", device.name());
            Ok(())
        })?;
        assert!(outlived.is_empty(), "{outlived:?} on {}", device.name());
        device.empty_cache();
        // Less than one of the tensors is left.
        let left = device.memory().in_use.saturating_sub(before);
        assert!(left < 1 << 16 && device.buffer_pool_stats().total_pooled == 0, "{left} bytes on {}", device.name());

        let mut held = None;
        let (line, outlived) = device.scope(|_| {
            let tensor = Tensor::ones(&[1 << 14], DType::F32, &device)?.exp()?;
            let line = line!() - 1;
            tensor.eval()?;
            held = Some(tensor);
            Ok(line)
        })?;
        let places: Vec<_> = outlived.iter().map(|h| (h.op, h.at.map(|at| at.line()))).collect();
        assert_eq!(places, [("exp", Some(line))], "on {}", device.name());
        check(&held.unwrap(), &vec![std::f64::consts::E; 1 << 14]);
    }
    Ok(())
}

/// "2. Poor Performance": three of the guide's four checks, each with a program that has the problem; the fourth has no code there. That nothing
/// else is found, tests/diagnosis.rs shows in processes of their own.
#[test]
fn poor_performance() -> TensorResult<()> {
    use tensorlogic::diagnose::Problem;
    let _turn = turn();
    let issues = |device: &Device| {
        let findings = device.diagnose()?;
        assert!(findings.iter().all(|f| !f.evidence.is_empty() && f.cure == f.what.cure()), "{findings:?}");
        TensorResult::Ok(findings.into_iter().map(|f| f.what).collect::<Vec<_>>())
    };

    // Check device utilization: `auto` without a GPU is the CPU. A device named by the user is meant.
    if std::env::var_os("TL_DEVICE").is_none() {
        let auto = Device::auto()?;
        assert_eq!(issues(&auto)?.contains(&Problem::NoGpu), auto.is_cpu(), "{}", auto.name());
    }
    for device in devices() {
        // Check memory utilization
        device.empty_cache();
        device.synchronize()?;
        device.reset_peak_memory();
        device.set_memory_limit(device.buffer_pool_stats().peak_allocated + (10 << 20));
        let with_room = issues(&device)?;
        let most = Tensor::ones(&[19 << 17], DType::F32, &device)?.eval().cloned();
        let almost_full = issues(&device);
        device.set_memory_limit(None);
        drop(most?);
        device.reset_peak_memory();
        assert!(!with_room.contains(&Problem::MemoryAlmostFull), "on {}", device.name());
        assert!(almost_full?.contains(&Problem::MemoryAlmostFull), "on {}", device.name());

        // Check data types: f32 weights where f16 is the device's own type
        let (x, w) = (Tensor::ones(&[64, 512], DType::F32, &device)?, Tensor::ones(&[512, 512], DType::F32, &device)?);
        tensorlogic::eval::eval_all(&[&x, &w])?;
        x.matmul(&w)?.eval()?;
        let wide = device.default_float() == DType::F16;
        assert_eq!(issues(&device)?.contains(&Problem::F32Weights), wide, "on {}", device.name());
    }
    Ok(())
}

/// "3. Memory Leaks": the guide's detector, whose tolerance of 0.1 GB is 1 MB here, so that a small list is a leak.
#[test]
fn memory_leaks() -> TensorResult<()> {
    use tensorlogic::leaks::LeakDetector;
    let _turn = turn();
    for device in devices() {
        let step = |n: usize| {
            let loss = Tensor::full(n as f64, &[256, 512], DType::F32, &device)?.exp()?;
            loss.eval()?;
            device.synchronize()?;
            TensorResult::Ok(loss)
        };
        step(0)?;
        let mut detector = LeakDetector::new(&device).tolerance(1 << 20);

        // Set memory baseline
        device.empty_cache();
        detector.baseline();
        for n in 0..10 {
            step(n)?;
            assert!(detector.check().is_none(), "step {n} on {}", device.name());
        }

        // Check for memory leaks: each tensor has half a megabyte
        let mut losses = Vec::new();
        for n in 0..4 {
            losses.push(step(n)?);
            let leak = detector.check();
            assert_eq!(leak.is_some(), n >= 2, "{n} on {}: {leak:?}", device.name());
        }
        let leak = detector.check().expect("two megabytes are held");
        assert!(leak.grew >= 2 << 20 && leak.by_line[0].op == "exp" && leak.by_line[0].buffers == 4, "{leak}");
        assert!(leak.to_string().contains("shvayambhu.rs"), "{leak}");
        losses.clear();
        device.synchronize()?;
        assert!(detector.check().is_none(), "on {}", device.name());
    }
    Ok(())
}
