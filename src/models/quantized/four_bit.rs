//! The 4-bit layers of bitsandbytes: indices of a table of 16 numbers, in groups with a factor, which may be quantized in turn.

use super::keys::Keys;
use super::part::{Parts, blocks};
use super::{Blocks, bad};
use crate::dtype::DType;
use crate::error::TensorResult;
use half::{bf16, f16};
use serde_json::Value as Json;

/// What `quantization_config` of method bitsandbytes says: how layers are stored is said by each of them.
pub(super) fn check(keys: &Keys<'_>) -> TensorResult<()> {
    keys.only(&[
        "quant_method",
        "load_in_4bit",
        "load_in_8bit",
        "_load_in_4bit",
        "_load_in_8bit",
        "bnb_4bit_compute_dtype",
        "bnb_4bit_quant_storage",
        "bnb_4bit_quant_type",
        "bnb_4bit_use_double_quant",
        "llm_int8_enable_fp32_cpu_offload",
        "llm_int8_has_fp16_weight",
        "llm_int8_skip_modules",
        "llm_int8_threshold",
    ])?;
    match keys.flag("load_in_4bit")? {
        Some(true) => Ok(()),
        _ => Err(keys.refuse("layers of 4 bits (`load_in_4bit`) are implemented")),
    }
}

/// What a layer says of itself: `quant_state`, JSON in a tensor of bytes.
struct State {
    shape: Vec<usize>,
    group: usize,
    dtype: DType,
    /// Of factors that are quantized: how many have a factor of their own, and what is added to all.
    nested: Option<(usize, f32)>,
}

impl State {
    fn of(all: &Parts<'_>, layer: &str) -> TensorResult<State> {
        let part = all.any(layer, &[".weight.quant_state.bitsandbytes__nf4", ".weight.quant_state.bitsandbytes__fp4"])?;
        let json: Json = serde_json::from_slice(part.bytes).map_err(|e| bad(layer, format!("quant_state: {e}")))?;
        let lacks = |key: &str| bad(layer, format!("quant_state has `{key}` {}", json[key]));
        let count = |key: &str| json[key].as_u64().filter(|&n| n > 0).map(|n| n as usize).ok_or_else(|| lacks(key));
        let shape: Option<Vec<usize>> = json["shape"].as_array().and_then(|a| a.iter().map(|n| Some(n.as_u64()? as usize)).collect());
        let dtype = match json["dtype"].as_str() {
            Some("float16") => DType::F16,
            Some("bfloat16") => DType::BF16,
            Some("float32") => DType::F32,
            _ => return Err(lacks("dtype")),
        };
        let nested = match all.get(&format!("{layer}.weight.nested_absmax")) {
            Some(_) => Some((count("nested_blocksize")?, json["nested_offset"].as_f64().ok_or_else(|| lacks("nested_offset"))? as f32)),
            None => None,
        };
        Ok(State { shape: shape.filter(|s| s.len() == 2).ok_or_else(|| lacks("shape"))?, group: count("blocksize")?, dtype, nested })
    }
}

/// The weight of a layer, in the type that it was quantized from, which the library's layers decode it to before each product.
pub(super) fn weight(all: &Parts<'_>, layer: &str) -> TensorResult<Blocks> {
    let State { shape, group, dtype, nested } = State::of(all, layer)?;
    let (count, columns) = (shape.iter().product::<usize>(), shape[1]);
    let (numbers, table, absmax) = (all.of(layer, ".weight")?, all.of(layer, ".weight.quant_map")?, all.of(layer, ".weight.absmax")?);
    let factors = match nested {
        None => absmax.floats()?,
        Some((of, offset)) => {
            let (codes, above) = (all.of(layer, ".weight.nested_quant_map")?, all.of(layer, ".weight.nested_absmax")?);
            let (codes, above) = (codes.expect(&[256])?.floats()?, above.floats()?);
            if above.len() != absmax.bytes.len().div_ceil(of) {
                return Err(bad(layer, format!("{} factors of {} factors in groups of {of}", above.len(), absmax.bytes.len())));
            }
            absmax.bytes.iter().enumerate().map(|(i, &code)| codes[code as usize] * above[i / of] + offset).collect()
        }
    };
    if numbers.bytes.len() != count.div_ceil(2) || factors.len() != count.div_ceil(group) {
        let found = (numbers.bytes.len(), factors.len());
        return Err(bad(layer, format!("{} bytes and {} factors for {shape:?} in groups of {group}", found.0, found.1)));
    }
    let table = table.expect(&[16])?.floats()?;
    blocks(dtype, shape, layer, |row, column, bytes| {
        let i = row * columns + column;
        // The first of two numbers is in the high half of a byte.
        let value = table[(numbers.bytes[i / 2] >> (4 * (1 - i % 2)) & 15) as usize] * factors[i / group];
        match dtype {
            DType::F16 => bytes.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
            DType::BF16 => bytes.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
            _ => bytes.copy_from_slice(&value.to_le_bytes()),
        }
    })
}
