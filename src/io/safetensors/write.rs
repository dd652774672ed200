//! Writing safetensors: the header, then the tensors' bytes one by one, so that no copy of all of them is made.

use super::bad;
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::tensor::Tensor;
use std::collections::BTreeMap;

/// Writes a safetensors file of these tensors through `put`. The order is that of the names: equal tensors give equal bytes.
///
/// # Errors
/// If a dtype has no place in the format (block formats), an evaluation fails, or `put` does.
///
/// ```
/// use tensorlogic::io::{SafeTensors, write_safetensors};
/// use tensorlogic::prelude::*;
/// let tensors = std::collections::BTreeMap::from([("bias".to_string(), Tensor::new(&[1.0, 2.0], &Device::cpu())?)]);
/// let mut file = Vec::new();
/// write_safetensors(&tensors, &[("format", "pt")], |bytes| {
///     file.extend_from_slice(bytes);
///     Ok(())
/// })?;
/// assert_eq!(SafeTensors::from_bytes(file)?.load("bias", &Device::cpu())?.to_vec()?, [1.0, 2.0]);
/// # Ok::<(), TensorError>(())
/// ```
pub fn write_safetensors(
    tensors: &BTreeMap<String, Tensor>,
    metadata: &[(&str, &str)],
    mut put: impl FnMut(&[u8]) -> TensorResult<()>,
) -> TensorResult<()> {
    let mut header = serde_json::Map::new();
    if !metadata.is_empty() {
        header.insert(
            "__metadata__".into(),
            metadata.iter().map(|&(k, v)| (k.to_string(), v.into())).collect::<serde_json::Map<_, _>>().into(),
        );
    }
    let mut end = 0;
    for (name, t) in tensors {
        let dtype = name_of(t.dtype()).ok_or_else(|| bad(format!("{name} is {}, which the format cannot store", t.dtype())))?;
        let bytes = t.dtype().bytes(t.numel()).unwrap_or(0);
        header.insert(name.clone(), serde_json::json!({ "dtype": dtype, "shape": t.dims(), "data_offsets": [end, end + bytes] }));
        end += bytes;
    }
    let mut text = serde_json::to_vec(&header).map_err(|e| bad(e.to_string()))?;
    // The data begins at a multiple of 8.
    text.resize(text.len().next_multiple_of(8), b' ');
    put(&(text.len() as u64).to_le_bytes())?;
    put(&text)?;
    tensors.values().try_for_each(|t| put(&t.to_bytes()?))
}

fn name_of(dtype: DType) -> Option<&'static str> {
    super::TYPES.iter().find(|t| t.dtype == Some(dtype)).map(|t| t.name)
}
