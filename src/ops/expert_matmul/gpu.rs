//! The GPU forms of products with experts' weights: a group of threads for each row of the expert that a pair names, or, of many pairs, for each row
//! of each expert and all pairs that name it.

use super::ExpertMatMulKernel;
use crate::ops::matmul::weights::{FILES, Items, Weights};
use crate::plan::{AdapterInfo, Step, Wgsl};
use crate::shader::row_group::{RowGroup, SUM};
use crate::shader::{Template, TemplateValue, U32, grid, indexable, params};

params! {
    /// What the kernel reads at run time.
    struct ExpertMatMulParams {
        /// Rows of x and an expert each.
        pairs: u32,
        /// Pairs of a row of x.
        per: u32,
        /// Pairs of a row of results.
        summed: u32,
        /// Experts.
        experts: u32,
        /// Rows of an expert's weights.
        n: u32,
        /// Columns of both.
        k: u32,
        /// Workgroups of a pair, or of an expert.
        tiles: u32,
        /// Workgroups in x.
        groups_x: u32,
        /// The first element of the weights, which is the sum of two.
        w_start: u32,
        /// The second of them.
        w_offset: u32,
        /// As `w_start`, of the second product's weights.
        w_start_1: u32,
        /// As `w_offset`, of the second product's weights.
        w_offset_1: u32,
    }
}

/// What both forms include.
const OPERANDS: &[(&str, &str)] = &[("expert_operands.wgsl", include_str!("expert_operands.wgsl")), FILES[0], FILES[1], FILES[2], FILES[3]];

static EXPERT_MATMUL: Template =
    Template::new("expert_matmul.wgsl", include_str!("expert_matmul.wgsl")).params(ExpertMatMulParams::FIELDS).files(OPERANDS);
static EXPERT_MATMUL_MANY: Template =
    Template::new("expert_matmul_many.wgsl", include_str!("expert_matmul_many.wgsl")).params(ExpertMatMulParams::FIELDS).files(OPERANDS);

/// Pairs for each expert, on average, from which on a workgroup has one expert's pairs instead of one pair.
const GROUPED_MIN_PAIRS: usize = 4;
/// Of how many pairs weights are read at once.
const PAIRS_PER_READ: u32 = 8;
/// How many pairs are looked through before their products are made.
const SEGMENT_PAIRS: u32 = 1024;

/// Whether `pairs` pairs are so many that each expert's weights are read once for all of its own.
pub(super) fn many(pairs: usize, experts: usize) -> bool {
    pairs >= GROUPED_MIN_PAIRS * experts
}

/// Load 0 `[rows, K]` times load 1 `[E, N, K]` by load 2 `[pairs]`, and what else `of` has.
pub(super) fn expert_matmul(of: &ExpertMatMulKernel, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let (x, w, pairs) = (step.loads[0].shape, step.loads[1].shape, step.loads[2].shape.count());
    let (experts, n, k) = (w[0], w[1], w[2]);
    if !indexable(&[x.count(), w.count(), pairs.checked_mul(n)?]) || x[0] == 0 || experts == 0 || k == 0 {
        return None;
    }
    let products = of.products();
    let weights: Vec<Weights> = (0..products).map(|p| Weights::of(&step.loads[of.weights(p)], k)).collect();
    let Items { quads, strips, span, parts, .. } = weights[0].shape;
    let items = k.div_ceil(4 * quads as usize);
    let most = 1 << adapter.workgroup_threads.max(1).ilog2();
    let lanes = (items.next_power_of_two() as u32).clamp(4, 32).min(most);
    let workgroup = 128.min(most).max(lanes);
    let row_group = RowGroup { workgroup, size: lanes, col_major: false };
    let tiles = n.div_ceil(row_group.rows() as usize);
    let summed = if of.summed { pairs / step.stores[0].shape[0].max(1) } else { 1 };
    let many = products == 1 && !of.summed && many(pairs, experts);
    let grid = grid(if many { experts } else { pairs / summed.max(1) }.checked_mul(tiles)?)?;
    let (start, mut raw) = weights[0].start();
    let [w_start, w_offset] = start.map(U32::from);
    let [w_start_1, w_offset_1] = match weights.get(1) {
        Some(second) => {
            raw.push(of.weights(1) as u8);
            second.raw?.map(U32::from)
        }
        None => [U32::ABSENT; 2],
    };
    let params = ExpertMatMulParams {
        pairs: U32::size(pairs)?,
        per: U32::size(pairs / x[0])?,
        summed: U32::size(summed)?,
        experts: U32::size(experts)?,
        n: U32::size(n)?,
        k: U32::size(k)?,
        tiles: U32::size(tiles)?,
        groups_x: grid[0].into(),
        w_start,
        w_offset,
        w_start_1,
        w_offset_1,
    };
    let mut consts = vec![("LANES", lanes), ("QUADS", quads), ("STRIPS", strips), ("SPAN", span), ("PARTS", parts.max(1))];
    if many {
        consts.extend([("PAIRS", PAIRS_PER_READ), ("SEGMENT", SEGMENT_PAIRS)]);
    }
    let mut values = weights[0].values();
    values.extend(consts.iter().map(|&(name, n)| (name, TemplateValue::from(n))));
    values.extend([
        ("PART", (quads / parts.max(1)).into()),
        ("VEC_X", (k % 4 == 0).into()),
        ("PRODUCTS", (products as u32).into()),
        ("BIASED", of.bias.into()),
        ("SUMMED", of.summed.into()),
        // Load 3 is the first product's bias, or the factors where there is none; the second product's loads are behind.
        ("FACTORS", (3 + u32::from(of.bias)).into()),
        ("WEIGHTS_1", (of.weights(1) as u32).into()),
        ("BIAS_1", (of.weights(1) as u32 + 1).into()),
        ("SUM", row_group.function("row_sum", SUM, adapter).into()),
    ]);
    let template = if many { &EXPERT_MATMUL_MANY } else { &EXPERT_MATMUL };
    Some(Wgsl { source: template.source(&values), consts, workgroup, grid, words: params.words(), raw, transposed: vec![] })
}
