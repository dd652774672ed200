//! The GPU form of a row times long weights in blocks, where instructions count: threads keep their activations and iterate over the rows.

use super::gemv::{FILES, Gemv, GemvParams, by_sixteen_bytes, with_values};
use super::weights::Items;
use crate::dtype::DType;
use crate::plan::Wgsl;
use crate::shader::Template;

/// Rows in flight at once, as many as `rows_sum` adds up.
const ROWS_IN_FLIGHT: u32 = 2;

/// Threads of a subgroup at least: each leaves a sum of every row in workgroup memory, where the subgroups' sums are added up.
const MIN_SUBGROUP: u32 = 8;

static GEMV_INT8: Template = Template::new("gemv_int8.wgsl", include_str!("gemv_int8.wgsl")).params(GemvParams::FIELDS).files(FILES);

/// One row, normalised or not, times each of the products' weights.
pub(super) fn gemv_int8(g: &Gemv) -> Option<Wgsl> {
    let &Gemv { a, products, gated, vec4_store, norm, adapter } = g;
    let [1, 1, k] = *a.shape.dims() else { return None };
    let Items { planes, quads, quad_runs, span, parts, shifted, integers, .. } = products.first()?.1.shape;
    let (subgroup, tuning) = (adapter.subgroup, &adapter.tuning.gemv);
    let [min_blocks, min_row_blocks] = tuning.int8_min_blocks;
    let (items, all) = (k / 32, products.iter().map(|p| p.0).sum::<usize>());
    if !integers || !adapter.byte_dots || subgroup < MIN_SUBGROUP || quads != 8 || items < min_row_blocks || all * items < min_blocks {
        return None;
    }
    let halves = a.plain().filter(|s| s.dtype == DType::F16).and_then(|s| by_sixteen_bytes(s, k))?;
    let most = tuning.int8_max_threads.min(adapter.workgroup_threads as usize);
    // A row that is normalised is in the threads as a whole.
    let rounds = if norm.is_some() { 1 } else { items.div_ceil(most) };
    let workgroup = items.div_ceil(rounds).next_multiple_of(subgroup as usize) as u32;
    if workgroup > adapter.workgroup_threads {
        return None;
    }
    let pairs = if gated { 2 } else { 1 };
    // Rows in groups of four, of each product.
    let [least, most] = tuning.int8_rows;
    let rows = (all * workgroup as usize / tuning.int8_full_threads.max(1)).clamp(least, most).next_multiple_of(4 * pairs as usize) as u32;
    let steps = rows / ROWS_IN_FLIGHT;
    let block = (ROWS_IN_FLIGHT / pairs * steps) as usize;
    let vec_out = block % 4 == 0 && products.iter().all(|p| p.0 % 4 == 0);
    if vec4_store && !vec_out {
        return None;
    }
    let (params, raw, grid) = g.dispatch(block, Some(halves))?;
    let mut consts = vec![
        ("SUBGROUP", subgroup),
        ("STEPS", steps),
        ("RUNS", quad_runs),
        ("SPAN", span),
        ("ROWS", ROWS_IN_FLIGHT),
        ("PARTS", parts),
        ("QUADS", quads),
        ("PAIR", pairs),
        ("SHIFTED", shifted as u32),
        ("SECOND", (planes > 1) as u32),
        ("THIRD", (planes > 2) as u32),
        ("VEC_OUT", vec_out as u32),
    ];
    consts.extend(g.norm_switches());
    let mut values = g.values(workgroup, vec_out);
    values.extend(with_values(&consts));
    values.extend([("PART", (quads / parts).into()), ("EIGHTS", (quads / 2).into()), ("SUBGROUP_BITS", subgroup.ilog2().into())]);
    Some(Wgsl { source: GEMV_INT8.source(&values), consts, workgroup, grid, params, raw, transposed: vec![] })
}
