//! The GPU form of a row times long weights in blocks, where instructions count: threads keep their activations and walk the rows.

use super::gpu::{Items, Weights, by_eights, first_words, norm_switches, norm_text, several};
use crate::dtype::DType;
use crate::plan::{AdapterInfo, Load, Normalization, Wgsl};
use crate::shader::{decide, repeat, unroll};

/// Rows on their way at once.
const ROWS: u32 = 2;

/// `a [1, K]`, normalised or not, times each of `products`, of which each has its rows and weights. `gated` and `vec4_store`: see `gemv`.
pub fn gemv_int8(
    a: &Load,
    products: &[(usize, &Weights)],
    gated: bool,
    vec4_store: bool,
    norm: Option<Normalization>,
    adapter: &AdapterInfo,
) -> Option<Wgsl> {
    let [1, 1, k] = *a.shape.dims() else { return None };
    let (_, weights) = *products.first()?;
    let Items { planes, quads, strips, span, parts, shifted, less } = weights.shape;
    let (subgroup, tuning) = (adapter.subgroup, &adapter.tuning.gemv);
    let [min_blocks, min_row_blocks] = tuning.int8_min_blocks;
    let (items, all) = (k / 32, products.iter().map(|p| p.0).sum::<usize>());
    if !adapter.byte_dots || subgroup < 8 || quads != 8 || items < min_row_blocks || all * items < min_blocks {
        return None;
    }
    let halves = a.plain().filter(|s| s.dtype == DType::F16).and_then(|s| by_eights(s, k))?;
    let most = tuning.int8_max_threads.min(adapter.workgroup_threads as usize);
    // A row that is normalised is in the threads as a whole.
    let rounds = if norm.is_some() { 1 } else { items.div_ceil(most) };
    let workgroup = items.div_ceil(rounds).next_multiple_of(subgroup as usize) as u32;
    if workgroup > adapter.workgroup_threads {
        return None;
    }
    let pairs = if gated { 2 } else { 1 };
    // Rows in groups of four, of each product.
    let rows = (all * workgroup as usize / tuning.int8_full_threads.max(1)).clamp(8, 32).next_multiple_of(4 * pairs as usize) as u32;
    let steps = rows / ROWS;
    let block = (ROWS / pairs * steps) as usize;
    let vec_out = block % 4 == 0 && products.iter().all(|p| p.0 % 4 == 0);
    if vec4_store && !vec_out {
        return None;
    }
    let (list, mut raw, grid) = first_words([1, 1, k], products, gated, block, norm, halves)?;
    raw.push(0);
    let switches =
        [("SHIFTED", shifted as u32), ("SECOND", (planes > 1) as u32), ("THIRD", (planes > 2) as u32), ("VEC_OUT", vec_out as u32)];
    let switches = [&switches[..], &norm_switches(norm)].concat();
    let apart: Vec<u32> = (0..if gated { 1 } else { products.len() as u32 }).collect();
    let counts = [("ROWS", ROWS), ("PARTS", parts), ("PART", quads / parts), ("EIGHTS", quads / 2), ("QUADS", quads), ("PAIR", pairs)];
    let walk = unroll(repeat(include_str!("gemv_int8.wgsl").replace("LESS", &less.to_string()), "PRODUCT", &apart), &counts);
    let mut text = [walk.as_str(), &several(products, gated, vec_out), &rows_sum(subgroup)].concat();
    if let Some(norm) = norm {
        text += &norm_text(norm, products.len() + 1, workgroup, adapter);
    }
    let mut consts = vec![
        ("SUBGROUP", subgroup),
        ("STEPS", steps),
        ("STRIPS", strips),
        ("SPAN", span),
        ("ROWS", ROWS),
        ("PARTS", parts),
        ("QUADS", quads),
        ("PAIR", pairs),
    ];
    consts.extend(&switches);
    Some(Wgsl { source: decide(text, &switches), consts, workgroup, grid, words: list, raw, transposed: vec![] })
}

/// WGSL of `rows_sum(lid)`, which adds up a subgroup's `acc` of each row: halves of the threads hand each other what the other half adds up, until
/// a thread has one row, `lid % ROWS`, and then all threads of a row add up theirs.
fn rows_sum(subgroup: u32) -> String {
    let mut text = String::from("fn rows_sum(lid: u32) -> f32 {\n");
    let mut names: Vec<String> = (0..ROWS).map(|r| format!("acc[{r}]")).collect();
    for bit in 0..ROWS.ilog2() {
        text += &format!("  let odd{bit} = (lid & {}u) != 0u;\n", 1 << bit);
        let halved = names.chunks(2).enumerate().map(|(n, pair)| {
            let (name, a, b) = (format!("r{bit}_{n}"), &pair[0], &pair[1]);
            text +=
                &format!("  let {name} = select({a}, {b}, odd{bit}) + subgroupShuffleXor(select({b}, {a}, odd{bit}), {}u);\n", 1 << bit);
            name
        });
        names = halved.collect();
    }
    text += &format!("  var r = {};\n", names[0]);
    for bit in ROWS.ilog2()..subgroup.ilog2() {
        text += &format!("  r += subgroupShuffleXor(r, {}u);\n", 1 << bit);
    }
    text + "  return r;\n}\n"
}
