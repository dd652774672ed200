//! Numbers of settings that GGUF has no keys for, as its converter multiplies tensors with them.

use super::Named;
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::tensor::Tensor;

/// What a tensor is called within its layer, or in the model.
fn part(name: &str) -> &str {
    name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).map_or(name, |(_, part)| part)
}

/// The tensor times a number.
fn times(t: &Tensor, by: f64) -> TensorResult<Tensor> {
    if by == 1.0 { Ok(t.clone()) } else { t.cast(DType::F32)?.mul(by as f32) }
}

/// Multiplies every tensor with what `by` says of its name within its layer.
pub(super) fn multiply(tensors: &mut [Named], by: impl Fn(&str) -> f64) -> TensorResult<()> {
    tensors.iter_mut().try_for_each(|(name, t)| {
        *t = times(t, by(part(name)))?;
        Ok(())
    })
}

/// Multiplies the rows of tensors of this name within their layers, each with its number.
pub(super) fn multiply_rows(tensors: &mut [Named], of: &str, by: &[f32]) -> TensorResult<()> {
    tensors.iter_mut().filter(|(name, _)| part(name) == of).try_for_each(|(_, t)| {
        let rows = Tensor::from_vec(by.to_vec(), &[by.len()], t.device())?;
        let rows = if t.rank() == 2 { rows.unsqueeze(1)? } else { rows };
        *t = t.cast(DType::F32)?.mul(&rows)?;
        Ok(())
    })
}

/// Multiplies the embedding and the output matrix, which become two tensors where they were one and the numbers differ.
pub(super) fn multiply_ends(tensors: &mut Vec<Named>, embedding: f64, output: f64) -> TensorResult<()> {
    let tied = !tensors.iter().any(|(name, _)| name == "output.weight");
    let table = tensors.iter().find(|(name, _)| name == "token_embd.weight").map(|(_, t)| t.clone());
    if let Some(table) = table.filter(|_| tied && embedding != output) {
        tensors.push(("output.weight".into(), table));
    }
    multiply(tensors, |part| match part {
        "token_embd.weight" => embedding,
        "output.weight" => output,
        _ => 1.0,
    })
}

/// Puts tensors in the place of those whose names `of` gives a new name and an order among those of that name.
pub(super) fn joined(
    tensors: &mut Vec<Named>,
    of: impl Fn(&str) -> Option<(String, usize)>,
    join: impl Fn(&[Tensor]) -> TensorResult<Tensor>,
) -> TensorResult<()> {
    let mut joint: Vec<(String, Vec<(usize, Tensor)>)> = Vec::new();
    let mut left = Vec::with_capacity(tensors.len());
    for (name, t) in tensors.drain(..) {
        match of(&name) {
            None => left.push((name, t)),
            Some((whole, n)) => match joint.iter_mut().find(|(name, _)| *name == whole) {
                Some((_, parts)) => parts.push((n, t)),
                None => joint.push((whole, vec![(n, t)])),
            },
        }
    }
    *tensors = left;
    for (name, mut parts) in joint {
        parts.sort_by_key(|(n, _)| *n);
        let parts: Vec<Tensor> = parts.into_iter().map(|(_, t)| t).collect();
        tensors.push((name, join(&parts)?.contiguous()?));
    }
    Ok(())
}
