//! A model as a GGUF file with weights of another type.

mod folder;
mod keys;
mod layouts;
mod same;

use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::io::GgufWriter;
use crate::models::Weights;
use crate::quant::{self, BlockFormat, WeightTypes};
use crate::tensor::Tensor;
use std::path::Path;

/// llama.cpp's number of a file whose matrices are of these types; `None` if GGUF has none.
///
/// ```
/// use tensorlogic::{DType, models::convert::file_type};
/// assert_eq!((file_type(DType::F16), file_type("q4_K_M".parse::<tensorlogic::quant::WeightTypes>()?)), (Some(1), Some(15)));
/// # Ok::<(), String>(())
/// ```
pub fn file_type(types: impl Into<WeightTypes>) -> Option<u32> {
    let dtype = match types.into() {
        WeightTypes::Mix(mix) => return Some(mix.file_type),
        WeightTypes::One(dtype) => dtype,
    };
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

/// Writes the model of `weights` (on the CPU) as a GGUF file whose matrices are of these types. Vectors stay f32 and the table of positions f16; the
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
    types: impl Into<WeightTypes>,
    text: impl FnOnce(&mut GgufWriter, usize) -> TensorResult<()>,
    out: &Path,
) -> TensorResult<()> {
    let types = types.into();
    let Some(file_type) = file_type(types) else {
        return Err(TensorError::Unsupported(format!("a GGUF file of {types}")));
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
            tensors = folder::from_folder(weights, &mut w)?;
            let vocab = tensors.iter().find(|(n, _)| n == "token_embd.weight").map_or(0, |(_, t)| t.dims()[0]);
            text(&mut w, vocab)?;
        }
    }
    w.set("general.file_type", file_type);
    if types.base().is_block() {
        w.set("general.quantization_version", 2u32);
    }
    let head = if tensors.iter().any(|(n, _)| n == "output.weight") { "output.weight" } else { "token_embd.weight" };
    let names: Vec<&str> = tensors.iter().map(|(n, _)| &**n).collect();
    let experts = tensors.iter().find(|(n, _)| n.contains(".ffn_down_exps.")).map_or(0, |(_, t)| t.dims()[0]);
    let dtypes = types.of(&names, experts);
    for ((name, t), dtype) in tensors.iter().zip(dtypes) {
        let wanted = type_of(name, t, dtype, name == head);
        if t.dtype() == wanted {
            w.tensor(name, wanted, t.dims(), t.to_bytes()?)?;
        } else {
            w.tensor(name, wanted, t.dims(), packed(t, wanted)?)?;
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
        || [".ffn_gate_inp", ".ssm_a", ".ssm_d", ".ssm_conv1d", ".shortconv.conv"].iter().any(|part| name.contains(part))
    {
        return DType::F32;
    }
    // llama.cpp leaves these as they are.
    let unpacked = ["altup_", "laurel_", "per_layer_model_proj"].iter().any(|part| name.contains(part)) && dtype.is_block();
    if unpacked || name.starts_with("position_embd") && dtype != DType::F32 {
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
