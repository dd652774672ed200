//! What is measured for one model: products of its weights with one row and with a prompt's, its attention and its norms.

use super::cases::{TuneCase, TuningGroup, attention, in_turns, product_of, unary};
use crate::dtype::DType;
use crate::models::Model;
use std::collections::BTreeSet;

/// Rows of a prompt: a chunk of the usual length.
const PROMPT: usize = 128;
/// Keys of a decode step.
const KEYS: usize = 512;
/// Weights of one shape that take turns.
const SEVERAL: usize = 4;

/// The cases of a model. `small` is for adapters that compute on a CPU.
pub(super) fn model_cases(model: &dyn Model, small: bool) -> Vec<TuneCase> {
    let shape = model.shape();
    let sizes: BTreeSet<(usize, usize, &str)> =
        model.weights().iter().filter_map(|w| if let [n, k] = *w.dims() { Some((n, k, w.dtype().name())) } else { None }).collect();
    let prompt = if small { PROMPT / 4 } else { PROMPT };
    let mut all = Vec::new();
    for (n, k, name) in sizes {
        let Some(dtype) = DType::WEIGHTS.into_iter().find(|d| d.name() == name) else { continue };
        let prompt_group = if dtype.is_block() { TuningGroup::Unpack } else { TuningGroup::Gemm };
        for (group, rows) in [(TuningGroup::Gemv, 1), (prompt_group, prompt)] {
            all.push(product_of(group, [rows, n, k], [shape.dtype, dtype], [false, false], SEVERAL));
        }
    }
    // A model need not have attention whose queries share whole heads of keys.
    for queries in [1, prompt].into_iter().filter(|_| shape.kv_heads > 0 && shape.heads > 0 && shape.heads % shape.kv_heads == 0) {
        all.push(attention([1, shape.heads, shape.kv_heads, queries, KEYS.min(shape.context).max(queries), shape.head_dim], shape.dtype));
    }
    for rows in [1, prompt] {
        all.push(unary(TuningGroup::Rows, "rms_norm", [rows, shape.width], shape.dtype, |x| x.rms_norm(None, 1e-5)));
    }
    all.push(unary(TuningGroup::Reduce, "argmax", [1, shape.vocab], DType::F32, |x| x.argmax(-1)));
    in_turns(all)
}
