//! The tensors of a folder under the names that GGUF has for them, with rows and sizes as llama.cpp's converter leaves them.

use crate::error::TensorResult;
use crate::models::architectures::Named;
use crate::models::decoder::Description;
use crate::models::decoder::description::{DeltaInputs, DeltaSpec, FeedForm, MixerSpec, SsdSpec};
use crate::tensor::Tensor;

/// The tensors that were read by the description `hub`, as the reader whose description is `file` expects them.
pub(super) fn in_gguf(hub: &Description, file: &Description, tensors: Vec<Named>) -> TensorResult<Vec<Named>> {
    let rotated = hub.ropes.first().is_some_and(|r| r.reordered);
    let mut all = Vec::with_capacity(tensors.len());
    for (name, t) in tensors {
        let part = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
        let layer = part.and_then(|(n, part)| Some((n.parse::<usize>().ok()?, part)));
        let made = match layer.and_then(|(i, part)| Some((part, hub.layers.get(i)?, file.layers.get(i)?))) {
            Some((part, _, _)) if rotated && ["attn_q.", "attn_k."].iter().any(|q| part.starts_with(q)) => {
                vec![(name, neighbours(&t, hub.head_dim)?)]
            }
            Some((part, a, b)) if part.starts_with("ffn_up") && (a.feed.form, b.feed.form) == (FeedForm::GatedJoint, FeedForm::Gated) => {
                halves(&name, &t)?
            }
            Some((part, a, b)) => of_mixer(&name, part, t, [&a.mixer, &b.mixer])?,
            None if name.starts_with("output_norm.") => vec![(name.replace("output_norm", file.final_norm_name), t)],
            None => vec![(name, t)],
        };
        all.extend(made.into_iter().map(|(name, t)| (hub.names.gguf(&name), t)));
    }
    Ok(all)
}

/// A tensor of a layer of which folder and file have these mixers.
fn of_mixer(name: &str, part: &str, t: Tensor, mixers: [&MixerSpec; 2]) -> TensorResult<Vec<Named>> {
    let t = match mixers {
        [MixerSpec::Ssd(spec), _] => in_columns(part, &t, spec)?,
        [MixerSpec::Beside(both), _] => in_columns(part, &t, &both.ssd)?,
        [MixerSpec::DeltaByRow(spec), _] if part.starts_with("ssm_conv1d_") => t.reshape((1, (), 1, spec.taps))?,
        [MixerSpec::Delta(a), MixerSpec::Delta(b)] if a.inputs == DeltaInputs::Joint && b.inputs == DeltaInputs::JointScales => {
            return split(name, t, a);
        }
        [MixerSpec::Delta(a), MixerSpec::Delta(b)] if b.spread && !a.spread => spread(part, &t, a)?,
        _ => t,
    };
    Ok(vec![(name.to_string(), t)])
}

/// A joint matrix, or bias, of gates and ups as one each; experts' are separate when they are read.
fn halves(name: &str, t: &Tensor) -> TensorResult<Vec<Named>> {
    if name.contains("_exps") {
        return Ok(vec![(name.to_string(), t.clone())]);
    }
    let half = t.dims()[0] / 2;
    let part = |n: usize| t.narrow(0, n * half, half)?.contiguous();
    Ok(vec![(name.replace("ffn_up", "ffn_gate"), part(0)?), (name.to_string(), part(1)?)])
}

/// Rows of heads whose rotated pairs are halves, so that they are neighbours.
fn neighbours(t: &Tensor, head: usize) -> TensorResult<Tensor> {
    let shape = t.dims();
    let halves = t.reshape(&[shape[0] / head, 2, head / 2, shape[1..].iter().product()])?;
    halves.transpose(1, 2)?.contiguous()?.reshape(shape)
}

/// What heads and groups of a state space have one of stands in a column.
fn in_columns(part: &str, t: &Tensor, spec: &SsdSpec) -> TensorResult<Tensor> {
    match part {
        "ssm_a" | "ssm_d" => t.reshape([spec.heads, 1]),
        "ssm_norm.weight" => t.reshape([spec.groups, spec.inner() / spec.groups]),
        _ => Ok(t.clone()),
    }
}

/// The joint matrices of a delta rule, of which one is two in GGUF, and the other keeps the Hub's order.
fn split(name: &str, t: Tensor, spec: &DeltaSpec) -> TensorResult<Vec<Named>> {
    let [keys, values] = spec.widths();
    if let Some(layer) = name.strip_suffix("ssm_in.weight") {
        let qkv = t.narrow(0, 0, 2 * keys + values)?.contiguous()?;
        let z = t.narrow(0, 2 * keys + values, values)?.contiguous()?;
        return Ok(vec![(format!("{layer}attn_qkv.weight"), qkv), (format!("{layer}attn_gate.weight"), z)]);
    }
    if name.ends_with("ssm_ba.weight") {
        let (groups, each, width) = (spec.key_heads, spec.value_heads / spec.key_heads, t.dims()[1]);
        let by_key = t.reshape([2, groups, each, width])?.transpose(0, 1)?.contiguous()?;
        return Ok(vec![(name.to_string(), by_key.reshape([2 * groups * each, width])?)]);
    }
    Ok(vec![(name.to_string(), t)])
}

/// A tensor of a delta rule whose heads of values that share a key are as many apart as there are keys.
fn spread(part: &str, t: &Tensor, spec: &DeltaSpec) -> TensorResult<Tensor> {
    let [keys, values] = spec.widths();
    match part {
        "attn_gate.weight" => rows_apart(t, spec, spec.value_dim),
        "ssm_beta.weight" | "ssm_alpha.weight" | "ssm_a" | "ssm_dt.bias" => rows_apart(t, spec, 1),
        "attn_qkv.weight" | "ssm_conv1d.weight" => {
            let others = t.narrow(0, 0, 2 * keys)?.contiguous()?;
            let own = rows_apart(&t.narrow(0, 2 * keys, values)?.contiguous()?, spec, spec.value_dim)?;
            Tensor::cat(&[others, own], 0)
        }
        "ssm_out.weight" => rows_apart(&t.t()?.contiguous()?, spec, spec.value_dim)?.t()?.contiguous(),
        _ => Ok(t.clone()),
    }
}

/// Heads of `size` rows, next to each other where they share a key, in the order of the first of all keys, then the second, and so on.
fn rows_apart(t: &Tensor, spec: &DeltaSpec, size: usize) -> TensorResult<Tensor> {
    let shape = t.dims();
    let (keys, each) = (spec.key_heads, spec.value_heads / spec.key_heads);
    let heads = t.reshape(&[keys, each, size * shape[1..].iter().product::<usize>()])?;
    heads.transpose(0, 1)?.contiguous()?.reshape(shape)
}
