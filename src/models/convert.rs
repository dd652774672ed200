//! A model as a GGUF file with weights of another type.

use crate::device::Device;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::io::GgufWriter;
use crate::models::activation::ActivationFn;
use crate::models::rope_settings::unscaled;
use crate::models::settings::{NONE, Settings};
use crate::models::{Weights, gpt2, llama};
use crate::quant;
use crate::tensor::Tensor;
use std::path::Path;

/// llama.cpp's number of a file whose matrices are of `dtype`; `None` if it is not one of [`DType::WEIGHTS`].
pub const fn file_type(dtype: DType) -> Option<u32> {
    match dtype {
        DType::F32 => Some(0),
        DType::F16 => Some(1),
        DType::BF16 => Some(32),
        _ => match dtype.format() {
            Some(format) => Some(format.gguf.file_type),
            None => None,
        },
    }
}

/// Writes the model of `weights` (on the CPU) as a GGUF file whose matrices are of `dtype`. Vectors stay f32 and the table of positions f16; the
/// output matrix, or the embedding that serves as one, keeps 6 bits or more; rows that are not whole blocks get a type of the same size that
/// fits them. `text` adds the tokenizer's keys for a model from a folder; it is told the size of the vocabulary.
///
/// # Errors
/// If the model cannot be expressed in GGUF, a tensor is missing, or the system fails.
pub fn write_gguf(
    weights: &Weights,
    dtype: DType,
    text: impl FnOnce(&mut GgufWriter, usize) -> TensorResult<()>,
    out: &Path,
) -> TensorResult<()> {
    let Some(file_type) = file_type(dtype) else {
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
                "llama" => from_llama(weights, &mut w)?,
                "gpt2" => from_gpt2(weights, &mut w)?,
                other => {
                    return Err(TensorError::Unsupported(format!(
                        "a folder of architecture `{other}` as GGUF; supported are llama and gpt2"
                    )));
                }
            };
            let vocab = tensors.iter().find(|(n, _)| n == "token_embd.weight").map_or(0, |(_, t)| t.dims()[0]);
            text(&mut w, vocab)?;
        }
    }
    w.set("general.file_type", file_type);
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
    // A row that is not a multiple of 256.
    let substitute = dtype.format().and_then(|f| f.substitute).and_then(|s| DType::BLOCKS.into_iter().find(|d| d.name() == s.name));
    [Some(dtype), substitute].into_iter().flatten().find(|&d| fits(d)).unwrap_or(DType::F16)
}

/// A tensor's values in another type, packed by all threads.
fn packed(t: &Tensor, dtype: DType) -> TensorResult<Vec<u8>> {
    let values = t.to_vec()?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let piece = values.len().div_ceil(threads).next_multiple_of(dtype.block()).max(1);
    let parts: Vec<TensorResult<Vec<u8>>> = std::thread::scope(|s| {
        let running: Vec<_> = values.chunks(piece).map(|v| s.spawn(move || quant::quantize(dtype, v))).collect();
        let lost = || Err(TensorError::Internal("a thread that packed weights ended early".into()));
        running.into_iter().map(|r| r.join().unwrap_or_else(|_| lost())).collect()
    });
    Ok(parts.into_iter().collect::<TensorResult<Vec<_>>>()?.concat())
}

/// Takes these tensors out of a folder; what the folder has besides is an error.
fn take(weights: &Weights, names: impl IntoIterator<Item = String>) -> TensorResult<Vec<(String, Tensor)>> {
    let mut rest = weights.stored_names();
    let mut out = Vec::new();
    for name in names {
        let stored = weights.stored_name(&name);
        rest.retain(|n| *n != stored);
        out.push((name.clone(), weights.any(&name)?));
    }
    // Masks and tables that old files carry, and an output matrix that is the embedding.
    let known = |n: &str| [".attn.bias", ".attn.masked_bias", "rotary_emb.inv_freq"].iter().any(|end| n.ends_with(end));
    match rest.iter().find(|n| !known(n)) {
        Some(n) => Err(TensorError::Unsupported(format!("the tensor `{n}`, which has no GGUF name"))),
        None => Ok(out),
    }
}

/// Weight and bias of a part.
fn both(part: String) -> [String; 2] {
    [format!("{part}.weight"), format!("{part}.bias")]
}

/// Refuses what is not as GGUF's readers take it to be, since no key says so.
fn fixed(s: &Settings<'_>, same: bool, key: &str) -> TensorResult<()> {
    if same { Ok(()) } else { Err(s.refuse(NONE, key, "GGUF has no key for it")) }
}

fn from_llama(weights: &Weights, w: &mut GgufWriter) -> TensorResult<Vec<(String, Tensor)>> {
    let s = Settings::new(weights)?;
    let c = llama::LlamaConfig::read(&s, true)?;
    fixed(&s, c.activation == ActivationFn::Silu, "hidden_act")?;
    let (vocab, tied) = (s.size(NONE, "vocab_size", 1 << 31)?, s.flag(NONE, "tie_word_embeddings")?.unwrap_or(false));
    s.finish()?;
    let head = c.head_dim;
    let sizes = [
        ("block_count", c.layers),
        ("context_length", c.context),
        ("embedding_length", c.d),
        ("feed_forward_length", c.ff),
        ("attention.head_count", c.heads),
        ("attention.head_count_kv", c.kv_heads),
        ("attention.key_length", head),
        ("attention.value_length", head),
        ("rope.dimension_count", head),
    ];
    for (key, v) in sizes.into_iter().chain(vocab.map(|v| ("vocab_size", v))) {
        w.set(&format!("llama.{key}"), v as u32);
    }
    w.set("llama.attention.layer_norm_rms_epsilon", c.eps as f32).set("llama.rope.freq_base", c.rope_base as f32);
    let attention = ["attn_q", "attn_k", "attn_v", "attn_output"].map(|p| (p, c.attention_bias));
    let mlp = ["ffn_gate", "ffn_up", "ffn_down"].map(|p| (p, c.mlp_bias));
    let mut names = vec!["token_embd.weight".to_string(), "output_norm.weight".into()];
    if !tied || weights.has("output.weight") {
        names.push("output.weight".into());
    }
    for i in 0..c.layers {
        names.extend(["attn_norm", "ffn_norm"].map(|p| format!("blk.{i}.{p}.weight")));
        for (part, bias) in attention.into_iter().chain(mlp) {
            names.extend(both(format!("blk.{i}.{part}")).into_iter().take(if bias == Some(true) { 2 } else { 1 }));
        }
    }
    let mut tensors = take(weights, names)?;
    for (name, t) in &mut tensors {
        if name.contains(".attn_q.") || name.contains(".attn_k.") {
            // Rotated pairs become neighbours.
            let shape: Vec<isize> = t.dims().iter().map(|&n| n as isize).collect();
            let halves = t.reshape(&[shape[0] / head as isize, 2, head as isize / 2, shape[1..].iter().product()])?;
            *t = halves.transpose(1, 2)?.contiguous()?.reshape(&shape)?;
        }
    }
    // A scaling of positions for long contexts is written as one divisor per pair.
    let factors: Vec<f32> = unscaled(c.rope_base, head).iter().zip(&c.rope).map(|(plain, f)| (plain / f) as f32).collect();
    if factors.iter().any(|f| (f - 1.0).abs() > 1e-6) {
        let n = factors.len();
        tensors.push(("rope_freqs.weight".into(), Tensor::from_vec(factors, &[n], &Device::cpu())?));
    }
    Ok(tensors)
}

fn from_gpt2(weights: &Weights, w: &mut GgufWriter) -> TensorResult<Vec<(String, Tensor)>> {
    let s = Settings::new(weights)?;
    let c = gpt2::Gpt2Config::read(&s)?;
    fixed(&s, c.activation == ActivationFn::GeluTanh, "activation_function")?;
    fixed(&s, c.scale_by_size, "scale_attn_weights")?;
    fixed(&s, !c.scale_by_layer, "scale_attn_by_inverse_layer_idx")?;
    let tied = s.flag(NONE, "tie_word_embeddings")?.unwrap_or(true);
    s.size(NONE, "vocab_size", 1 << 31)?;
    s.finish()?;
    let sizes = [
        ("block_count", c.layers),
        ("context_length", c.context),
        ("embedding_length", c.d),
        ("attention.head_count", c.heads),
        ("feed_forward_length", c.ff),
    ];
    for (key, v) in sizes {
        w.set(&format!("gpt2.{key}"), v as u32);
    }
    w.set("gpt2.attention.layer_norm_epsilon", c.eps as f32);
    let parts = ["attn_norm", "attn_qkv", "attn_output", "ffn_norm", "ffn_up", "ffn_down"];
    let mut names = vec!["token_embd.weight".to_string(), "position_embd.weight".into()];
    names.extend(both("output_norm".into()));
    if !tied || weights.has("output.weight") {
        names.push("output.weight".into());
    }
    names.extend((0..c.layers).flat_map(|i| parts.map(|p| format!("blk.{i}.{p}"))).flat_map(both));
    let mut tensors = take(weights, names)?;
    for (name, t) in &mut tensors {
        if name.starts_with("blk") && t.rank() == 2 {
            // The Hub keeps GPT-2's matrices [in, out].
            *t = t.t()?.contiguous()?;
        }
    }
    Ok(tensors)
}
