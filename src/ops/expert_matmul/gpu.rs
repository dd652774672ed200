//! The GPU forms of products with experts' weights: a group of threads for each row of the expert that a pair names, or, of many pairs, for each row
//! of each expert and all pairs that name it; these also by cooperative matrices, see `coop.rs`.

use super::ExpertMatMulKernel;
use super::coop::expert_matmul_coop;
use super::operands::{OPERANDS, consts, values};
use crate::dtype::DType;
use crate::ops::matmul::gemv::{by_sixteen_bytes, with_values};
use crate::ops::matmul::weights::Weights;
use crate::plan::{AdapterInfo, KernelParam, Source, Step, Wgsl};
use crate::shader::row_group::{RowGroup, SUM};
use crate::shader::{Template, U32, grid, indexable, params};

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
        /// As `w_start`, of x, where it is read directly.
        x_start: u32,
        /// As `w_offset`, of x.
        x_offset: u32,
    }
}

static EXPERT_MATMUL: Template =
    Template::new("expert_matmul.wgsl", include_str!("expert_matmul.wgsl")).params(ExpertMatMulParams::FIELDS).files(&OPERANDS);
static EXPERT_MATMUL_GROUPED: Template =
    Template::new("expert_matmul_many.wgsl", include_str!("expert_matmul_many.wgsl")).params(ExpertMatMulParams::FIELDS).files(&OPERANDS);

/// Threads of a row of weights at least, and at most where rows fill the GPU.
const ROW_THREADS: [u32; 2] = [4, 32];

/// The sizes of a step, and how its operands are read.
struct ExpertStep<'a> {
    of: &'a ExpertMatMulKernel,
    /// Of each product.
    weights: Vec<Weights>,
    /// Rows of x.
    rows: usize,
    pairs: usize,
    /// Pairs of a row of results.
    summed: usize,
    experts: usize,
    n: usize,
    k: usize,
    /// Where x is, of what type, if it is read 16 bytes at a time.
    direct: Option<([KernelParam; 2], DType)>,
}

/// How threads share the work.
struct Threads {
    workgroup: u32,
    /// Threads of a row.
    lanes: u32,
    /// Items of a product on their way at once.
    prefetch: u32,
}

impl<'a> ExpertStep<'a> {
    fn of(of: &'a ExpertMatMulKernel, step: &Step) -> Option<ExpertStep<'a>> {
        let (x, w, pairs) = (step.loads[0].shape, step.loads[1].shape, step.loads[2].shape.count());
        let (experts, n, k) = (w[0], w[1], w[2]);
        if !indexable(&[x.count(), w.count(), pairs.checked_mul(n)?]) || x[0] == 0 || experts == 0 || k == 0 {
            return None;
        }
        let weights = (0..of.products()).map(|p| Weights::of(&step.loads[of.weights(p)], k)).collect();
        let summed = if of.summed { (pairs / step.stores[0].shape[0].max(1)).max(1) } else { 1 };
        let read = |s: &Source| by_sixteen_bytes(s, k).filter(|_| matches!(s.dtype, DType::F16 | DType::F32)).map(|at| (at, s.dtype));
        let direct = step.loads[0].plain().and_then(read);
        Some(ExpertStep { of, weights, rows: x[0], pairs, summed, experts, n, k, direct })
    }

    /// Whether each expert's weights are read once for all of its pairs.
    fn grouped(&self) -> bool {
        self.weights.len() == 1 && !self.of.summed && self.of.grouped(self.pairs, self.experts)
    }

    fn threads(&self, adapter: &AdapterInfo) -> Threads {
        let most = 1 << adapter.workgroup_threads.max(1).ilog2();
        let items = self.k.div_ceil(4 * self.weights[0].shape.quads as usize) * self.summed;
        let mut lanes = (items.next_power_of_two() as u32).clamp(ROW_THREADS[0], ROW_THREADS[1]).min(most);
        let rounds = |lanes: u32| items.div_ceil(lanes as usize) as u32;
        let narrow = adapter.tuning.gemv.workgroup_threads[0];
        let mut prefetch = 1;
        if !self.grouped() {
            // Where rows leave the GPU idle, more threads share one, so that more of it is on its way at once.
            let rows = self.pairs / self.summed * self.n;
            while rounds(lanes) > 2 && rows * lanes as usize * 2 <= adapter.tuning.gemv.full_threads && lanes * 2 <= most.min(narrow) {
                lanes *= 2;
            }
            // As many each time.
            let all = rounds(lanes).max(1);
            prefetch = all.div_ceil(all.div_ceil((adapter.tuning.experts.in_flight / self.weights.len() as u32).max(1)));
        }
        Threads { workgroup: narrow.min(most).max(lanes), lanes, prefetch }
    }

    fn params(&self, tiles: usize, groups_x: u32) -> Option<ExpertMatMulParams> {
        let start = |p: usize| self.weights.get(p).map_or([U32::ABSENT; 2], |w| w.start().0.map(U32::from));
        let ([w_start, w_offset], [w_start_1, w_offset_1]) = (start(0), start(1));
        let [x_start, x_offset] = self.direct.map_or([U32::ABSENT; 2], |(at, _)| at.map(U32::from));
        Some(ExpertMatMulParams {
            pairs: U32::size(self.pairs)?,
            per: U32::size(self.pairs / self.rows)?,
            summed: U32::size(self.summed)?,
            experts: U32::size(self.experts)?,
            n: U32::size(self.n)?,
            k: U32::size(self.k)?,
            tiles: U32::size(tiles)?,
            groups_x: groups_x.into(),
            w_start,
            w_offset,
            w_start_1,
            w_offset_1,
            x_start,
            x_offset,
        })
    }
}

/// Load 0 `[rows, K]` times load 1 `[E, N, K]` by load 2 `[pairs]`, and what else `of` has.
pub(super) fn expert_matmul(of: &ExpertMatMulKernel, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let sizes = ExpertStep::of(of, step)?;
    let (grouped, direct) = (sizes.grouped(), sizes.direct.filter(|_| !sizes.grouped()));
    if let Some(by_matrices) = grouped.then(|| expert_matmul_coop(of, step, adapter)).flatten() {
        return Some(by_matrices);
    }
    let Threads { workgroup, lanes, prefetch } = sizes.threads(adapter);
    let row_group = RowGroup { workgroup, size: lanes, col_major: false };
    let tiles = sizes.n.div_ceil(row_group.rows() as usize);
    let grid = grid(if grouped { sizes.experts } else { sizes.pairs / sizes.summed }.checked_mul(tiles)?)?;
    // A second product's weights are read directly.
    let mut raw = sizes.weights[0].start().1;
    if let Some(second) = sizes.weights.get(1) {
        second.raw?;
        raw.push(of.weights(1) as u8);
    }
    if direct.is_some() {
        raw.push(0);
    }
    let (weights, quads) = (&sizes.weights[0], sizes.weights[0].shape.quads);
    let x_quads = direct.map_or(1, |(_, dtype)| 16 / (4 * dtype.block_bytes() as u32));
    let tuning = &adapter.tuning.experts;
    let mut consts = consts(weights).to_vec();
    consts.push(("LANES", lanes));
    consts.extend(match grouped {
        true => [("PAIRS", tuning.pairs_per_read), ("SEGMENT", tuning.segment_pairs), ("PREFETCH", prefetch)],
        false => [("X_QUADS", x_quads), ("X_ROWS", quads / x_quads), ("PREFETCH", prefetch)],
    });
    let mut values = values(weights, sizes.k, direct.is_some(), row_group.function("row_sum", SUM, adapter));
    values.extend(with_values(&consts));
    values.extend([
        ("EIGHTS", (x_quads == 2).into()),
        ("SHIFTED", weights.shape.shifted.into()),
        ("PRODUCTS", (sizes.weights.len() as u32).into()),
        ("BIASED", of.bias.into()),
        ("SUMMED", of.summed.into()),
        // Load 3 is the first product's bias, or the factors where there is none; the second product's loads are behind.
        ("FACTORS", (3 + u32::from(of.bias)).into()),
        ("WEIGHTS_1", (of.weights(1) as u32).into()),
        ("BIAS_1", (of.weights(1) as u32 + 1).into()),
    ]);
    let template = if grouped { &EXPERT_MATMUL_GROUPED } else { &EXPERT_MATMUL };
    let params = sizes.params(tiles, grid[0])?.values();
    Some(Wgsl { source: template.source(&values), consts, workgroup, grid, params, raw, transposed: vec![] })
}
