//! A model as a GGUF file with weights of another type.

use crate::device::Device;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::io::GgufWriter;
use crate::models::decoder::Decoder;
use crate::models::rope_settings::{FACTORS, unscaled};
use crate::models::settings::Settings;
use crate::models::weights::Tensors;
use crate::models::{Weights, architectures};
use crate::quant::{self, BlockFormat};
use crate::tensor::Tensor;
use std::path::Path;

/// llama.cpp's number of a file whose matrices are of `dtype`; `None` if it is not one of [`DType::WEIGHTS`].
pub const fn file_type(dtype: DType) -> Option<u32> {
    match dtype {
        DType::F32 => Some(0),
        DType::F16 => Some(1),
        DType::BF16 => Some(32),
        _ => match dtype.format() {
            Some(BlockFormat { gguf: Some(gguf), .. }) => Some(gguf.file_type),
            _ => None,
        },
    }
}

/// Writes the model of `weights` (on the CPU) as a GGUF file whose matrices are of `dtype`. Vectors stay f32 and the table of positions f16; the
/// output matrix, or the embedding that serves as one, keeps 6 bits or more; rows that are not whole blocks get a type of the same size that
/// fits them. `text` adds the tokenizer's keys for a model from a folder; it is told the size of the vocabulary.
///
/// # Errors
/// If the model cannot be expressed in GGUF, a tensor is missing, or the system fails.
///
/// ```
/// use tensorlogic::models::{Weights, convert::write_gguf};
/// use tensorlogic::prelude::*;
/// let weights = Weights::open("tests/vectors/models/llama-gqa-bf16", &Device::cpu())?;
/// let out = std::env::temp_dir().join(format!("tl-doc-write-gguf-{}.gguf", std::process::id()));
/// write_gguf(&weights, DType::Q8_0, |_, _| Ok(()), &out)?;
/// let written = Weights::open(&out, &Device::cpu())?;
/// assert_eq!(written.any("blk.0.ffn_down.weight")?.dtype(), DType::Q8_0);
/// assert_eq!(written.any("output_norm.weight")?.dtype(), DType::F32); // a vector
/// # std::fs::remove_file(&out).ok();
/// # Ok::<(), TensorError>(())
/// ```
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
            for (key, value) in gguf.metadata().filter(|(key, _)| !key.starts_with("split.")) {
                w.set(key, value);
            }
            for name in weights.stored_names() {
                tensors.push((name.clone(), weights.any(&name)?));
            }
        }
        None => {
            tensors = from_folder(weights, &mut w)?;
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
    if t.rank() < 2
        || name.ends_with("_norm.weight")
        || name.ends_with(".bias")
        || name.starts_with("rope_f")
        || name.contains(".ffn_gate_inp")
    {
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

/// Settings and tensors of a folder, in GGUF's names and layouts.
fn from_folder(weights: &Weights, w: &mut GgufWriter) -> TensorResult<Vec<(String, Tensor)>> {
    let name = weights.architecture()?;
    let Some((known, to_gguf)) = architectures::find(name).and_then(|a| Some((a, a.to_gguf?))) else {
        let all = architectures::ARCHITECTURES.iter().filter(|a| a.to_gguf.is_some());
        let names: Vec<&str> = all.map(|a| a.names[0]).collect();
        let message = format!("a folder of architecture `{name}` as GGUF; supported are {}", names.join(" and "));
        return Err(TensorError::Unsupported(message));
    };
    let s = Settings::new(weights)?;
    let d = known.described(&s)?;
    w.set("general.architecture", known.names[0]);
    to_gguf(&s, &d, w)?;
    let (names, unused, left_out) = (d.names.clone(), d.unused, d.left_out.clone());
    let (rope, size, architecture) = (d.ropes.first().cloned(), d.head_dim, d.architecture);
    let read = Tensors::new(weights, &s, &names, DType::F32);
    Decoder::read(d, &read, DType::F32)?;
    s.finish()?;
    read.finish(unused, &left_out)?;
    let mut tensors = read.into_read();
    let Some(rope) = rope else { return Ok(tensors) };
    if rope.reordered {
        let rotated = |n: &str| n.contains(".attn_q.") || n.contains(".attn_k.");
        for (_, t) in tensors.iter_mut().filter(|(n, _)| rotated(n)) {
            // Rotated pairs become neighbours.
            let shape: Vec<isize> = t.dims().iter().map(|&n| n as isize).collect();
            let halves = t.reshape(&[shape[0] / size as isize, 2, size as isize / 2, shape[1..].iter().product()])?;
            *t = halves.transpose(1, 2)?.contiguous()?.reshape(&shape)?;
        }
    }
    // A scaling of positions for long contexts that no key says is written as divisors, one per pair.
    let plain = unscaled(rope.base, 2 * rope.freqs.len());
    let factors = |freqs: &[f64]| plain.iter().zip(freqs).map(|(plain, f)| (plain / f) as f32).collect::<Vec<f32>>();
    let mut push = |name: &str, factors: Vec<f32>| -> TensorResult<()> {
        let n = factors.len();
        tensors.push((name.into(), Tensor::from_vec(factors, &[n], &Device::cpu())?));
        Ok(())
    };
    match &rope.long {
        Some(long) => FACTORS.into_iter().zip([&rope.freqs, &long.freqs]).try_for_each(|(name, freqs)| push(name, factors(freqs)))?,
        None if w.has(&format!("{architecture}.rope.scaling.type")) => {}
        None => {
            let factors = factors(&rope.freqs);
            if factors.iter().any(|f| (f - 1.0).abs() > 1e-6) {
                push("rope_freqs.weight", factors)?;
            }
        }
    }
    Ok(tensors)
}
