//! Models of known shapes with random weights: what speed depends on is there, without a download.

use crate::output::Failure;
use tensorlogic::DType;
use tensorlogic::io::{Gguf, GgufWriter};
use tensorlogic::quant::{quantize, random_blocks};

/// Sizes of a model.
pub struct Shape {
    pub name: &'static str,
    architecture: &'static str,
    layers: usize,
    dim: usize,
    heads: usize,
    kv_heads: usize,
    feed_forward: usize,
    vocab: usize,
    context: usize,
}

/// The shapes that have a name.
pub const SHAPES: [Shape; 4] = [
    Shape {
        name: "gpt2-124m",
        architecture: "gpt2",
        layers: 12,
        dim: 768,
        heads: 12,
        kv_heads: 12,
        feed_forward: 3072,
        vocab: 50257,
        context: 1024,
    },
    Shape {
        name: "smollm2-135m",
        architecture: "llama",
        layers: 30,
        dim: 576,
        heads: 9,
        kv_heads: 3,
        feed_forward: 1536,
        vocab: 49152,
        context: 8192,
    },
    // Llama 3.2 1B.
    Shape {
        name: "llama-1b",
        architecture: "llama",
        layers: 16,
        dim: 2048,
        heads: 32,
        kv_heads: 8,
        feed_forward: 8192,
        vocab: 128256,
        context: 131072,
    },
    // Llama 3.1 8B.
    Shape {
        name: "llama-8b",
        architecture: "llama",
        layers: 32,
        dim: 4096,
        heads: 32,
        kv_heads: 8,
        feed_forward: 14336,
        vocab: 128256,
        context: 131072,
    },
];

/// A GGUF file in memory. Matrices are of `dtype`, norms and biases f32; the embedding is the output matrix as well.
pub fn random_model(shape: &Shape, dtype: DType) -> Result<Gguf, Failure> {
    let (d, f, a) = (shape.dim, shape.feed_forward, shape.architecture);
    let (llama, head) = (a == "llama", d / shape.heads);
    if [d, f].iter().any(|n| n % dtype.block() != 0) {
        return Err(Failure::Usage(format!(
            "{} cannot be {dtype}: rows of {d} are not a multiple of the block size {}",
            shape.name,
            dtype.block()
        )));
    }
    // Tensors share these bytes: every matrix begins as every other does.
    let largest = shape.vocab.max(f).max(3 * d) * d;
    let bytes = random_bytes(dtype, largest, d);
    let plain = random_bytes(DType::F32, shape.context.min(1024) * d, d);
    let ones: Vec<u8> = std::iter::repeat_n(1f32.to_le_bytes(), 4 * d).flatten().collect();
    let zeros = vec![0; 4 * 4 * d.max(f)];
    let mut w = GgufWriter::new();
    let set = |w: &mut GgufWriter, key: &str, v: usize| {
        w.set(&format!("{a}.{key}"), v as u32);
    };
    w.set("general.architecture", a);
    // Positions are stored by GPT-2 alone; for others the context bounds tables that a benchmark does not need in full.
    let context = shape.context.min(8192);
    let numbers = [("block_count", shape.layers), ("embedding_length", d), ("feed_forward_length", f), ("context_length", context)];
    numbers.iter().for_each(|&(k, v)| set(&mut w, k, v));
    set(&mut w, "attention.head_count", shape.heads);
    set(&mut w, "attention.head_count_kv", shape.kv_heads);
    w.set(&format!("{a}.attention.layer_norm{}_epsilon", if llama { "_rms" } else { "" }), 1e-5f32);
    // Tensors borrow their bytes: the file is the only copy of them.
    let part = |count: usize| &bytes[..dtype.bytes(count).unwrap_or(0)];
    let mut norms = vec!["output_norm".to_string()];
    let mut matrices = vec![("token_embd".to_string(), shape.vocab, d)];
    if !llama {
        w.tensor("position_embd.weight", DType::F32, &[context, d], &plain[..4 * context * d])?;
    }
    let kv = shape.kv_heads * head;
    let llama_parts = [
        ("attn_q", d, d),
        ("attn_k", kv, d),
        ("attn_v", kv, d),
        ("attn_output", d, d),
        ("ffn_gate", f, d),
        ("ffn_up", f, d),
        ("ffn_down", d, f),
    ];
    let gpt2_parts = [("attn_qkv", 3 * d, d), ("attn_output", d, d), ("ffn_up", f, d), ("ffn_down", d, f)];
    for i in 0..shape.layers {
        norms.extend(["attn_norm", "ffn_norm"].map(|part| format!("blk.{i}.{part}")));
        let parts = if llama { &llama_parts[..] } else { &gpt2_parts[..] };
        matrices.extend(parts.iter().map(|&(part, rows, columns)| (format!("blk.{i}.{part}"), rows, columns)));
    }
    for name in &norms {
        w.tensor(&format!("{name}.weight"), DType::F32, &[d], &ones[..4 * d])?;
        if !llama {
            w.tensor(&format!("{name}.bias"), DType::F32, &[d], &zeros[..4 * d])?;
        }
    }
    for (name, rows, columns) in &matrices {
        w.tensor(&format!("{name}.weight"), dtype, &[*rows, *columns], part(rows * columns))?;
        if !llama && name != "token_embd" {
            w.tensor(&format!("{name}.bias"), DType::F32, &[*rows], &zeros[..4 * rows])?;
        }
    }
    Ok(Gguf::from_bytes(w.to_bytes()?)?)
}

/// `count` random weights of about the size that keeps activations of `inputs` values in range; none if they are not whole blocks.
fn random_bytes(dtype: DType, count: usize, inputs: usize) -> Vec<u8> {
    let Some(total) = dtype.bytes(count) else { return Vec::new() };
    let scale = 1.0 / (inputs as f32).sqrt();
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 24) as f32 * 2.0 * scale - scale
    };
    // A period that no row length divides is long enough to be random for a processor.
    let period = if dtype.is_block() { 1021 * dtype.block() } else { 1_000_003 };
    let values: Vec<f32> = (0..count.min(period)).map(|_| next()).collect();
    let mut out = match dtype.format() {
        Some(format) if !format.is_encoded() => random_blocks(dtype, values.len(), scale, 1),
        _ => quantize(dtype, &values),
    }
    .unwrap_or_default();
    let period = out.len();
    while out.len() < total && period > 0 {
        out.extend_from_within(..period.min(total - out.len()));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorlogic::models::{self, Session, Weights};
    use tensorlogic::{Device, Tensor};

    #[test]
    fn every_type_gives_sane_weights() {
        let device = Device::cpu();
        for dtype in DType::WEIGHTS {
            let bytes = random_bytes(dtype, 64 * 256, 256);
            let bytes = tensorlogic::backends::Bytes::Owned(std::sync::Arc::new(bytes));
            let t = Tensor::from_bytes(bytes, dtype, &[64, 256], &device).unwrap().cast(DType::F32).unwrap();
            let rms = t.square().unwrap().mean_all().unwrap().sqrt().unwrap().item().unwrap() * 16.0;
            let mean = t.mean_all().unwrap().item().unwrap() * 16.0;
            assert!((0.2..1.0).contains(&rms) && mean.abs() < 0.1, "{dtype}: weights are {rms} of the wanted size, {mean} on average");
        }
    }

    #[test]
    fn a_random_model_runs() {
        let tiny = Shape {
            name: "tiny",
            architecture: "gpt2",
            layers: 1,
            dim: 32,
            heads: 2,
            kv_heads: 2,
            feed_forward: 64,
            vocab: 50,
            context: 32,
        };
        let llama = Shape { name: "tiny", architecture: "llama", kv_heads: 1, ..tiny };
        for shape in [&tiny, &llama] {
            let gguf = random_model(shape, DType::Q8_0).unwrap();
            let model = models::load(&Weights::from_gguf(gguf, &Device::cpu()), None).unwrap();
            let logits = Session::new(&*model, 16, &Device::cpu()).unwrap().score(&[1, 2, 3]).unwrap().to_vec().unwrap();
            assert!(logits.len() == 150 && logits.iter().all(|v| v.is_finite()), "{}", shape.architecture);
        }
        assert!(random_model(&tiny, DType::Q4_K).is_err());
    }
}
