//! A model as a GGUF file with weights of another type.

use crate::device::Device;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::io::GgufWriter;
use crate::models::Weights;
use crate::models::llama::frequencies;
use crate::quant;
use crate::tensor::Tensor;
use std::path::Path;

/// The types that weights can be stored in, with llama.cpp's number of such a file.
pub const TYPES: [(DType, u32); 13] = [
    (DType::F32, 0),
    (DType::F16, 1),
    (DType::BF16, 32),
    (DType::Q4_0, 2),
    (DType::Q4_1, 3),
    (DType::Q5_0, 8),
    (DType::Q5_1, 9),
    (DType::Q8_0, 7),
    (DType::Q2_K, 10),
    (DType::Q3_K, 12),
    (DType::Q4_K, 14),
    (DType::Q5_K, 16),
    (DType::Q6_K, 18),
];

/// Writes the model of `weights` (on the CPU) as a GGUF file whose matrices are of `dtype`. Vectors stay f32 and the table of positions f16; the
/// output matrix, or the embedding that serves as one, keeps 6 bits or more; rows that are no whole blocks get a type of the same size that fits
/// them. `text` adds the tokenizer's keys for a model from a folder; it is told the size of the vocabulary.
///
/// # Errors
/// When the model cannot be expressed in GGUF, a tensor is missing, or the system fails.
pub fn write_gguf(
    weights: &Weights,
    dtype: DType,
    text: impl FnOnce(&mut GgufWriter, usize) -> TensorResult<()>,
    out: &Path,
) -> TensorResult<()> {
    let Some((_, file_type)) = TYPES.iter().find(|t| t.0 == dtype) else {
        return Err(TensorError::Unsupported(format!("a GGUF file of {dtype}")));
    };
    let mut w = GgufWriter::new();
    let mut tensors: Vec<(String, Tensor)> = Vec::new();
    match weights.gguf() {
        Some(gguf) => {
            for (key, value) in gguf.metadata() {
                w.set(key, value);
            }
            for name in weights.stored_names() {
                tensors.push((name.clone(), weights.any(&name)?));
            }
        }
        None => {
            let architecture = weights.architecture()?.to_string();
            w.set("general.architecture", architecture.as_str());
            tensors = match architecture.as_str() {
                "llama" => llama(weights, &mut w)?,
                "gpt2" => gpt2(weights, &mut w)?,
                other => {
                    return Err(TensorError::Unsupported(format!("a folder of architecture `{other}` as GGUF; known are llama and gpt2")));
                }
            };
            let vocab = tensors.iter().find(|(n, _)| n == "token_embd.weight").map_or(0, |(_, t)| t.dims()[0]);
            text(&mut w, vocab)?;
        }
    }
    w.set("general.file_type", *file_type);
    if dtype.is_block() {
        w.set("general.quantization_version", 2u32);
    }
    let head = if tensors.iter().any(|(n, _)| n == "output.weight") { "output.weight" } else { "token_embd.weight" };
    for (name, t) in tensors {
        let wanted = type_of(&name, &t, dtype, name == head);
        if t.dtype() == wanted {
            w.tensor(&name, wanted, t.dims(), t.to_bytes()?)?;
        } else {
            w.tensor(&name, wanted, t.dims(), packed(&t, wanted)?)?;
        }
    }
    w.write(out)
}

/// The type that a tensor is stored in.
fn type_of(name: &str, t: &Tensor, dtype: DType, head: bool) -> DType {
    if t.rank() < 2 || name.ends_with("_norm.weight") || name.ends_with(".bias") || name.starts_with("rope_freqs") {
        return DType::F32;
    }
    if name.starts_with("position_embd") && dtype != DType::F32 {
        return DType::F16;
    }
    let rows = t.dims()[t.rank() - 1];
    let fits = |d: DType| rows % d.block() == 0;
    if head && dtype.is_block() && dtype != DType::Q8_0 {
        return [DType::Q6_K, DType::Q8_0].into_iter().find(|&d| fits(d)).unwrap_or(DType::F16);
    }
    // What llama.cpp takes where a row is no multiple of 256.
    let smaller = match dtype {
        DType::Q2_K | DType::Q3_K => DType::Q4_0,
        DType::Q4_K => DType::Q5_0,
        DType::Q5_K => DType::Q5_1,
        DType::Q6_K => DType::Q8_0,
        d => d,
    };
    [dtype, smaller].into_iter().find(|&d| fits(d)).unwrap_or(DType::F16)
}

/// A tensor's values in another type, packed by all threads.
fn packed(t: &Tensor, dtype: DType) -> TensorResult<Vec<u8>> {
    let values = t.to_vec()?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let piece = values.len().div_ceil(threads).next_multiple_of(dtype.block()).max(1);
    let parts: Vec<TensorResult<Vec<u8>>> = std::thread::scope(|s| {
        let running: Vec<_> = values.chunks(piece).map(|v| s.spawn(move || quant::quantize(dtype, v))).collect();
        let lost = || Err(TensorError::Invalid("a thread that packed weights ended early".into()));
        running.into_iter().map(|r| r.join().unwrap_or_else(|_| lost())).collect()
    });
    Ok(parts.into_iter().collect::<TensorResult<Vec<_>>>()?.concat())
}

/// Numbers by GGUF's key, without the architecture, and the Hub's.
fn sizes(weights: &Weights, w: &mut GgufWriter, keys: &[(&str, &str)]) -> TensorResult<()> {
    let architecture = weights.architecture()?;
    for (gguf, hub) in keys {
        if let Some(v) = weights.size(gguf, hub, u32::MAX as usize)? {
            w.set(&format!("{architecture}.{gguf}"), v as u32);
        }
    }
    Ok(())
}

/// Takes these tensors out of a folder; what the folder has besides is an error.
fn take(weights: &Weights, names: impl IntoIterator<Item = String>) -> TensorResult<Vec<(String, Tensor)>> {
    let mut rest = weights.stored_names();
    let mut out = Vec::new();
    for name in names {
        if weights.has(&name) {
            let stored = weights.stored_name(&name);
            rest.retain(|n| *n != stored);
            out.push((name.clone(), weights.any(&name)?));
        }
    }
    // Masks and tables that old files carry, and an output matrix that is the embedding.
    let known = |n: &str| [".attn.bias", ".attn.masked_bias", "rotary_emb.inv_freq"].iter().any(|end| n.ends_with(end));
    match rest.iter().find(|n| !known(n)) {
        Some(n) => Err(TensorError::Unsupported(format!("the tensor `{n}`, which GGUF has no place for"))),
        None => Ok(out),
    }
}

fn llama(weights: &Weights, w: &mut GgufWriter) -> TensorResult<Vec<(String, Tensor)>> {
    let keys = [
        ("block_count", "num_hidden_layers"),
        ("context_length", "max_position_embeddings"),
        ("embedding_length", "hidden_size"),
        ("feed_forward_length", "intermediate_size"),
        ("attention.head_count", "num_attention_heads"),
        ("vocab_size", "vocab_size"),
    ];
    sizes(weights, w, &keys)?;
    let layers = weights.need("block_count", "num_hidden_layers", 4096)?;
    let (d, heads) = (weights.need("-", "hidden_size", 1 << 20)?, weights.need("-", "num_attention_heads", 1 << 14)?);
    let kv_heads = weights.size("-", "num_key_value_heads", 1 << 14)?.unwrap_or(heads);
    let head = weights.size("-", "head_dim", 1 << 12)?.unwrap_or(d / heads);
    let context = weights.need("-", "max_position_embeddings", 1 << 24)?;
    let eps = weights.number("-", "rms_norm_eps")?.unwrap_or(1e-5);
    w.set("llama.attention.head_count_kv", kv_heads as u32).set("llama.attention.layer_norm_rms_epsilon", eps as f32);
    for key in ["attention.key_length", "attention.value_length", "rope.dimension_count"] {
        w.set(&format!("llama.{key}"), head as u32);
    }
    let base = weights.number("-", "rope_parameters.rope_theta")?.or(weights.number("-", "rope_theta")?).unwrap_or(10_000.0);
    w.set("llama.rope.freq_base", base as f32);
    let parts = ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"];
    let blocks = (0..layers).flat_map(|i| parts.map(|p| format!("blk.{i}.{p}.weight")));
    let names = ["token_embd.weight", "output_norm.weight", "output.weight"].map(String::from).into_iter().chain(blocks);
    let mut tensors = take(weights, names)?;
    for (name, t) in &mut tensors {
        if name.ends_with("attn_q.weight") || name.ends_with("attn_k.weight") {
            // Rotated pairs become neighbours.
            let [rows, columns] = [t.dims()[0] as isize, t.dims()[1] as isize];
            let halves = t.reshape(&[rows / head as isize, 2, head as isize / 2, columns])?;
            *t = halves.transpose(1, 2)?.contiguous()?.reshape(&[rows, columns])?;
        }
    }
    // A scaling of positions for long contexts is written as one divisor per pair.
    let own = frequencies(weights, head, context)?;
    let factors: Vec<f32> = own.iter().enumerate().map(|(i, f)| (base.powf(-2.0 * i as f64 / head as f64) / f) as f32).collect();
    if factors.iter().any(|f| (f - 1.0).abs() > 1e-6) {
        let n = factors.len();
        tensors.push(("rope_freqs.weight".into(), Tensor::from_vec(factors, &[n], &Device::cpu())?));
    }
    Ok(tensors)
}

fn gpt2(weights: &Weights, w: &mut GgufWriter) -> TensorResult<Vec<(String, Tensor)>> {
    if weights.flag("scale_attn_by_inverse_layer_idx") {
        return Err(TensorError::Unsupported("attention scaled by the layer's number, which GGUF has no key for".into()));
    }
    let keys =
        [("block_count", "n_layer"), ("context_length", "n_positions"), ("embedding_length", "n_embd"), ("attention.head_count", "n_head")];
    sizes(weights, w, &keys)?;
    let layers = weights.need("block_count", "n_layer", 4096)?;
    let d = weights.need("-", "n_embd", 1 << 20)?;
    let eps = weights.number("-", "layer_norm_epsilon")?.unwrap_or(1e-5);
    w.set("gpt2.feed_forward_length", weights.size("-", "n_inner", 1 << 22)?.unwrap_or(4 * d) as u32);
    w.set("gpt2.attention.layer_norm_epsilon", eps as f32);
    let parts = ["attn_norm", "attn_qkv", "attn_output", "ffn_norm", "ffn_up", "ffn_down"];
    let both = |p: String| [format!("{p}.weight"), format!("{p}.bias")];
    let blocks = (0..layers).flat_map(|i| parts.map(|p| format!("blk.{i}.{p}"))).flat_map(both);
    let top = ["token_embd.weight", "position_embd.weight", "output_norm.weight", "output_norm.bias", "output.weight"];
    let mut tensors = take(weights, top.map(String::from).into_iter().chain(blocks))?;
    for (name, t) in &mut tensors {
        if name.starts_with("blk") && t.rank() == 2 {
            // The Hub keeps GPT-2's matrices [in, out].
            *t = t.t()?.contiguous()?;
        }
    }
    Ok(tensors)
}
