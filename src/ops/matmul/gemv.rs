//! A few rows times weights on the GPU: b is read once, a group of threads for each of its rows.

use super::weights::{Items, WEIGHTS_ITEMS, WEIGHTS_LOADS, WEIGHTS_QUADS, WIDE_HALVES, Weights};
use crate::dtype::DType;
use crate::plan::{AdapterInfo, KernelParam, Load, Normalization, Source, Wgsl};
use crate::shader::row_group::{RowGroup, SUM, SUMS, subgroup_threads};
use crate::shader::{F32, Template, TemplateValue, U32, grid, params, start};
use crate::tuning::MIN_WORKGROUP_BYTES;

/// Products of one left side `[batch, M, K]`, of which M is small.
pub(super) struct Gemv<'a> {
    pub a: &'a Load,
    /// The rows of each right side and its weights.
    pub products: &'a [(usize, &'a Weights)],
    /// Whether the two of them go row by row together, so that the second's store may read what the first's has written.
    pub gated: bool,
    /// Whether results must be written in groups of four.
    pub vec4_store: bool,
    /// What is done to the left side first.
    pub norm: Option<Normalization>,
    pub adapter: &'a AdapterInfo,
}

params! {
    /// What products of few rows read at run time. The second product and later ones have numbers only where there are that many.
    pub(super) struct GemvParams {
        /// Rows of a.
        m: u32,
        /// Rows of the first right side.
        n_0: u32,
        /// Columns of all.
        k: u32,
        /// Tiles of a batch, of the first product.
        tiles_0: u32,
        /// Workgroups in x.
        groups_x: u32,
        /// The first element of its right side, which is the sum of two.
        b_start_0: u32,
        /// The second of them.
        b_offset_0: u32,
        /// Added to the variance where a is normalised.
        eps: f32,
        /// The first element of a, which is the sum of two.
        a_start: u32,
        /// The second of them.
        a_offset: u32,
        /// As `n_0`, of product 1.
        n_1: u32,
        /// As `tiles_0`, of product 1.
        tiles_1: u32,
        /// As `b_start_0`, of product 1.
        b_start_1: u32,
        /// As `b_offset_0`, of product 1.
        b_offset_1: u32,
        /// As `n_0`, of product 2.
        n_2: u32,
        /// As `tiles_0`, of product 2.
        tiles_2: u32,
        /// As `b_start_0`, of product 2.
        b_start_2: u32,
        /// As `b_offset_0`, of product 2.
        b_offset_2: u32,
        /// As `n_0`, of product 3.
        n_3: u32,
        /// As `tiles_0`, of product 3.
        tiles_3: u32,
        /// As `b_start_0`, of product 3.
        b_start_3: u32,
        /// As `b_offset_0`, of product 3.
        b_offset_3: u32,
    }
}

/// The files that both kernels include.
pub(super) const FILES: &[(&str, &str)] = &[
    WIDE_HALVES,
    WEIGHTS_QUADS,
    WEIGHTS_ITEMS,
    WEIGHTS_LOADS,
    ("gemv_fetch.wgsl", include_str!("gemv_fetch.wgsl")),
    ("gemv_int8_fetch.wgsl", include_str!("gemv_int8_fetch.wgsl")),
    ("gemv_multiply.wgsl", include_str!("gemv_multiply.wgsl")),
    ("gemv_stage.wgsl", include_str!("gemv_stage.wgsl")),
    ("gemv_store.wgsl", include_str!("gemv_store.wgsl")),
    ("gemv_products.wgsl", include_str!("gemv_products.wgsl")),
    ("gemv_norm.wgsl", include_str!("gemv_norm.wgsl")),
];

static GEMV: Template = Template::new("gemv.wgsl", include_str!("gemv.wgsl")).params(GemvParams::FIELDS).files(FILES);

/// Threads of a weight row, the most first; rows that are shared by more are those of several subgroups.
const WIDTHS: [u32; 4] = [32, 16, 8, 4];
/// Groups of a workgroup at least: its results are written four at a time.
const GROUPS: u32 = 4;
/// Bytes of workgroup memory for what a kernel has besides activations.
const OTHER_BYTES: usize = 4096;
/// Quads that a thread asks for together while activations are staged.
const MAX_AT_ONCE: u32 = 8;

/// How a workgroup shares b's rows.
#[derive(Clone, Copy, Debug)]
struct GemvConfig {
    workgroup: u32,
    /// Threads of a row.
    lanes: u32,
    /// Rows of a group.
    rows: u32,
    /// Items on their way at once.
    prefetch: u32,
    /// Whether activations are staged in workgroup memory, as they are stored.
    staged: bool,
}

impl GemvConfig {
    /// For `rows` rows of b of `items` items of this shape each, and a product with `mt` rows of a, which threads can read where they lie or not.
    fn pick(rows: usize, items: usize, shape: Items, mt: usize, direct: bool, adapter: &AdapterInfo) -> GemvConfig {
        let (block, tuning) = (shape.quads == 8, &adapter.tuning.gemv);
        let most = adapter.workgroup_threads.max(1);
        let widest = subgroup_threads(adapter);
        let [direct_items, staged_items, shared_items] = tuning.in_flight;
        let [narrow, wide] = tuning.workgroup_threads;
        let rounds = |lanes: u32| items.div_ceil(lanes as usize) as u32;
        // At most `most` rounds at once, as many each time.
        let even = |most: u32| rounds(widest).div_ceil(rounds(widest).div_ceil(most).max(1)).clamp(1, most);
        // The widest group that leaves few lanes idle in its last round.
        let busy = |lanes: u32| items as f32 / (rounds(lanes) * lanes) as f32;
        let full = WIDTHS.into_iter().filter(|&l| l <= widest).find(|&l| busy(l) > tuning.busy_lanes as f32).unwrap_or(4.min(widest));
        if direct && mt == 1 {
            // Nothing is waited for but memory: each thread reads its activations by eights, as the weights are read. Where rows leave
            // the GPU idle, several subgroups share one, so that all of it is on its way at once.
            let mut lanes = if block && rows >= tuning.busy_rows { full } else { widest };
            while rounds(lanes) > direct_items && rows * lanes as usize * 2 <= tuning.full_threads && 2 * lanes * GROUPS <= most {
                lanes *= 2;
            }
            // Unpacking is work, and rows of a group share what they read of the activations.
            let (each, prefetch) = match rounds(lanes) {
                _ if block && rows * lanes as usize >= tuning.full_threads => {
                    (if items >= tuning.four_rows_items && shape.planes < 3 { 4 } else { 2 }, 1)
                }
                r if (1..=direct_items).contains(&r) => (1, r),
                _ => (1, if block { 1 } else { direct_items }),
            };
            let workgroup = if block && rows < tuning.busy_rows { narrow } else { wide };
            return GemvConfig { workgroup: workgroup.min(most).max(GROUPS * lanes).min(most), lanes, rows: each, prefetch, staged: false };
        }
        if rows < tuning.busy_rows {
            // The time is latency: as many threads as there are, and few rounds.
            let prefetch = even(if mt > 2 { shared_items } else { staged_items });
            let workgroup = if rows < tuning.wide_workgroup_rows { narrow } else { wide };
            return GemvConfig { workgroup: workgroup.min(most).max(widest), lanes: widest, rows: 1, prefetch, staged: true };
        }
        // The time is work: several rows a group, which share what they read of the activations, where that is most of the reading.
        let lanes = full;
        let (rows, prefetch) = match (block, mt) {
            (true, 1) => (2, 1),
            (false, 1) => (1, rounds(lanes).clamp(1, staged_items)),
            _ => (mt.min(4) as u32, 1),
        };
        GemvConfig { workgroup: wide.min(most).max(widest), lanes, rows, prefetch, staged: true }
    }
}

impl Gemv<'_> {
    /// The parameters, raw loads and grid of products whose workgroups have `block` rows of each; `left` is the start of a, where it is read directly.
    pub fn dispatch(&self, block: usize, left: Option<[KernelParam; 2]>) -> Option<(Vec<KernelParam>, Vec<u8>, [u32; 3])> {
        let [batch, m, k] = *self.a.shape.dims() else { return None };
        let tiles: Vec<usize> = self.products.iter().map(|p| p.0.div_ceil(block)).collect();
        let groups = if self.gated { tiles[0] } else { tiles.iter().sum() };
        let grid = grid(batch.checked_mul(groups)?)?;
        // Of each product: rows, tiles, and where its right side begins.
        let mut of = [[U32::ABSENT; 4]; 4];
        for (p, (n, w)) in self.products.iter().enumerate() {
            let start = if p == 0 { w.start().0 } else { w.raw? };
            let [b_start, b_offset] = start.map(U32::from);
            *of.get_mut(p)? = [U32::size(*n)?, U32::size(tiles[p])?, b_start, b_offset];
        }
        let [a_start, a_offset] = left.unwrap_or([KernelParam::U32(0); 2]).map(U32::from);
        let [
            [n_0, tiles_0, b_start_0, b_offset_0],
            [n_1, tiles_1, b_start_1, b_offset_1],
            [n_2, tiles_2, b_start_2, b_offset_2],
            [n_3, tiles_3, b_start_3, b_offset_3],
        ] = of;
        let params = GemvParams {
            m: U32::size(m)?,
            n_0,
            k: U32::size(k)?,
            tiles_0,
            groups_x: grid[0].into(),
            b_start_0,
            b_offset_0,
            eps: F32::from(self.norm.map_or(0.0, |n| n.eps as f32)),
            a_start,
            a_offset,
            n_1,
            tiles_1,
            b_start_1,
            b_offset_1,
            n_2,
            tiles_2,
            b_start_2,
            b_offset_2,
            n_3,
            tiles_3,
            b_start_3,
            b_offset_3,
        };
        let (_, mut raw) = self.products.first()?.1.start();
        raw.extend((1..self.products.len()).map(|p| p as u8 + 1));
        if left.is_some() {
            raw.push(0);
        }
        Some((params.values(), raw, grid))
    }

    /// The switches of a left side that is normalised, or is not.
    pub fn norm_switches(&self) -> [(&'static str, u32); 4] {
        let is = |f: fn(Normalization) -> bool| self.norm.is_some_and(f) as u32;
        [("NORMED", is(|_| true)), ("CENTRED", is(|n| !n.rms)), ("GAIN", is(|n| n.weight)), ("SHIFT", is(|n| n.bias))]
    }

    /// What both kernels' templates ask for in addition to their own values, for workgroups of that many threads and results written as vec4 or not.
    pub fn values(&self, workgroup: u32, vec_out: bool) -> Vec<(&'static str, TemplateValue)> {
        let count = self.products.len() as u32;
        let sum = self.norm.map(|norm| {
            let (name, combine) = if norm.rms { ("all_sum", SUM) } else { ("both_sums", SUMS) };
            RowGroup { workgroup, size: workgroup, col_major: false }.function(name, combine, self.adapter)
        });
        let mut values = self.products[0].1.values();
        values.extend([
            ("PRODUCTS", count.into()),
            // Whose weights are asked for in branches of their own.
            ("SEPARATE", if self.gated { 1 } else { count }.into()),
            ("PAIRED", self.gated.into()),
            ("BY", if self.gated { "p" } else { "part" }.into()),
            ("VEC_OUT", vec_out.into()),
            ("NORM_SUM", sum.unwrap_or_default().into()),
            // The normalization's weight and bias are the last loads.
            ("GAIN_LOAD", (count + 1).into()),
            ("SHIFT_LOAD", (count + 1 + self.norm.is_some_and(|n| n.weight) as u32).into()),
        ]);
        values.extend(with_values(&self.norm_switches()));
        values
    }
}

/// Constants as values of a template.
pub(crate) fn with_values(consts: &[(&'static str, u32)]) -> impl Iterator<Item = (&'static str, TemplateValue)> {
    consts.iter().map(|&(name, n)| (name, TemplateValue::from(n)))
}

/// The parameters of the start of rows of `k` elements that can be read 16 bytes at a time, and no row ends within eight elements.
pub(crate) fn by_sixteen_bytes(s: &Source, k: usize) -> Option<[KernelParam; 2]> {
    let per = 16 / s.dtype.block_bytes();
    let whole = k.is_multiple_of(8) && s.layout.is_contiguous() && s.layout.offset.is_multiple_of(per) && (s.offset.is_none() || s.aligned);
    start(s).filter(|_| whole)
}

/// How a workgroup goes through K, and what it keeps.
struct GemvPlan {
    config: GemvConfig,
    /// Rows of a that the kernel has registers for.
    mt: usize,
    /// Products whose rows a group has.
    pairs: u32,
    /// Items of a chunk of K.
    chunk: usize,
    /// Items of a thread in K.
    items: usize,
    /// Where a is, read 16 bytes at a time: halves, or floats that each thread reads itself.
    start: Option<[KernelParam; 2]>,
    /// Whether activations are kept as halves.
    packed: bool,
}

impl GemvPlan {
    fn of(g: &Gemv) -> Option<GemvPlan> {
        let &Gemv { a, products, gated, vec4_store, norm, adapter } = g;
        let [batch, m, k] = *a.shape.dims() else { return None };
        let shape = products.first()?.1.shape;
        let quads = shape.quads as usize;
        let items = k.div_ceil(4 * quads);
        let mt = m.next_power_of_two();
        let all: usize = products.iter().map(|p| p.0).sum();
        // What is normalised is not f16 any more.
        let halves = a.plain().filter(|s| s.dtype == DType::F16 && norm.is_none());
        let direct = norm.is_none() && a.plain().is_some_and(|s| s.layout.is_contiguous());
        let mut config = GemvConfig::pick(all * batch, items, shape, mt, direct, adapter);
        config.staged |= norm.is_some();
        if vec4_store {
            let lanes = config.lanes;
            config.lanes = lanes.min(adapter.workgroup_threads / 4).max(1);
            config.workgroup = config.workgroup.max(4 * lanes).min(adapter.workgroup_threads);
        }
        if gated {
            config.rows = 2 * config.rows.div_ceil(2);
        }
        let packed = halves.is_some();
        let bytes = adapter.workgroup_bytes.min(adapter.tuning.gemv.workgroup_bytes[0]).max(MIN_WORKGROUP_BYTES) as usize;
        let room = (bytes - OTHER_BYTES) / (if packed { 8 } else { 16 } * quads * mt);
        // A chunk is whole rounds of the threads; a row that is normalised is one chunk.
        while norm.is_some() && config.prefetch > 1 && items.next_multiple_of((config.lanes * config.prefetch) as usize) > room {
            config.prefetch -= 1;
        }
        // Where the adapter has no room for a round of threads' items, groups are narrower.
        while norm.is_some() && config.lanes > 4 && items.next_multiple_of((config.lanes * config.prefetch) as usize) > room {
            config.lanes /= 2;
        }
        let unit = (config.lanes * config.prefetch) as usize;
        config.staged &= room >= unit;
        let rounds = items.div_ceil(unit).next_power_of_two().min(1 << (room / unit).max(1).ilog2());
        let chunk = match norm {
            Some(_) => items.next_multiple_of(unit),
            None if config.staged => unit * rounds,
            None => 1,
        };
        if norm.is_some() && (!config.staged || chunk > room) {
            return None;
        }
        let floats = a.plain().filter(|s| s.dtype == DType::F32 && norm.is_none() && !config.staged);
        let start = halves.or(floats).and_then(|s| by_sixteen_bytes(s, k));
        Some(GemvPlan { config, mt, pairs: if gated { 2 } else { 1 }, chunk, items, start, packed })
    }
}

/// Up to eight rows of a: b is read once, a group of threads for each of its rows.
pub(super) fn gemv(g: &Gemv) -> Option<Wgsl> {
    let [batch, _, k] = *g.a.shape.dims() else { return None };
    let plan = GemvPlan::of(g)?;
    let GemvPlan { config: GemvConfig { workgroup, lanes, rows, prefetch, staged }, mt, pairs, chunk, items, start, packed } = plan;
    let Items { planes, quads, quad_runs, span, parts, shifted, .. } = g.products.first()?.1.shape;
    let block = (workgroup / lanes * rows / pairs) as usize;
    let (params, raw, grid) = g.dispatch(block, start)?;
    // One quad a thread at most.
    let vec_out = g.products.iter().all(|p| p.0 % 4 == 0) && block % 4 == 0 && mt as u32 * rows / pairs <= 4 * lanes;
    let unit = (lanes * prefetch) as usize;
    let switches = [
        ("BATCHED", (batch > 1) as u32),
        ("DOUBLE_BUFFER", (quads == 8 && mt == 1 && items.min(if staged { chunk } else { items }) > unit) as u32),
        ("DIRECT", (start.is_some() && !staged) as u32),
        ("STAGED", staged as u32),
        ("VEC_A", (k % 4 == 0) as u32),
        ("VEC_OUT", vec_out as u32),
        ("SCALED", (parts > 0) as u32),
        ("SHIFTED", shifted as u32),
        ("EIGHTS", (start.is_some() && packed) as u32),
        ("SECOND", (planes > 1) as u32),
        ("THIRD", (planes > 2) as u32),
    ];
    let parts = parts.max(1);
    let resident_x = (quads as usize * chunk).div_ceil(workgroup as usize) as u32;
    // Quads of activations in 16 bytes.
    let x_quads = if packed { 2 } else { 1 };
    let mut consts = vec![
        ("LANES", lanes),
        ("ROWS", rows),
        ("PREFETCH", prefetch),
        ("MT", mt as u32),
        ("QUADS", quads),
        ("X_QUADS", x_quads),
        ("X_ROWS", quads / x_quads),
        ("RUNS", quad_runs),
        ("SPAN", span),
        ("PARTS", parts),
        ("CHUNK", chunk as u32),
        ("PAIR", pairs),
        ("RESIDENT_X", resident_x),
        ("AT_ONCE", if start.is_some() && packed { resident_x.div_ceil(2) } else { resident_x }.clamp(1, MAX_AT_ONCE)),
    ];
    consts.extend(switches);
    consts.extend(g.norm_switches());
    let mut values = g.values(workgroup, vec_out);
    values.extend(with_values(&consts));
    let group = RowGroup { workgroup, size: lanes, col_major: false };
    values.extend([
        ("PAIRS", (quads / parts / 2).into()),
        ("PACKED", packed.into()),
        ("ROW_SUM", group.function("row_sum", SUM, g.adapter).into()),
    ]);
    Some(Wgsl { source: GEMV.source(&values), consts, workgroup, grid, params, raw, transposed: vec![] })
}
