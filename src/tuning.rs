//! Numbers fitted to a class of GPU: tiles, splits and thresholds of kernels. Correctness never depends on them.
//!
//! A [`Tuning`] is chosen once, when a device is opened: the table that `tl tune` measured on this machine, else the one of the adapter's
//! class. `TL_TUNING` names another class (`generic`, `nvidia`, `apple`, `software`) or a file. Kernels read it through
//! [`AdapterInfo::tuning`](crate::plan::AdapterInfo::tuning); nothing is tuned while a program runs, since another split of a sum may round
//! differently.

mod check;

use crate::error::{TensorError, TensorResult};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;

/// One class of GPU. Counts are of elements unless said otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tuning {
    /// The class, or what the table was measured on.
    pub name: String,
    /// Cores that run workgroups independently: streaming multiprocessors, compute units, Apple's GPU cores.
    pub compute_units: u32,
    /// Products of many rows by cooperative matrices.
    pub gemm: GemmTuning,
    /// Products of few rows.
    pub gemv: GemvTuning,
    /// Products with experts' weights.
    pub experts: ExpertTuning,
    /// Attention.
    pub attention: AttentionTuning,
    /// Reductions over the last axis.
    pub reduce: ReduceTuning,
    /// Kernels over rows: softmax, norms, cross entropy.
    pub rows: RowTuning,
    /// Unpacking of block formats before a product.
    pub unpack: UnpackTuning,
    /// Elementwise kernels.
    pub map: MapTuning,
    /// The entropy of bytes.
    pub byte_entropy: ByteEntropyTuning,
    /// Submits of a plan.
    pub submit: SubmitTuning,
    /// Parts of kernels in Metal's language.
    #[serde(default)]
    pub metal: MetalTuning,
}

/// See [`Tuning::gemm`]. A product takes the tile whose estimated time is least.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GemmTuning {
    /// Tiles to choose from; those that do not fit an adapter's workgroup memory are passed over.
    pub tiles: Vec<GemmTile>,
    /// The least extent of K in a part of split-K, but for the last part.
    pub min_split_k: usize,
    /// Microseconds of writing one result of a tile.
    pub store_us: f64,
    /// Microseconds of joining split-K parts: fixed, per part, and per part and result of a thread.
    pub split_us: [f64; 3],
    /// The least subgroup for which loops over fragments are unrolled: software compiles unrolled loops for minutes.
    pub unroll_min_subgroup: u32,
    /// Results of a weight's gradient up to which its sum over rows is shared among several products, and the rows of each at least.
    pub split_rows: [usize; 2],
    /// Whether results leave from the elements of matrices where lanes can name them, not through workgroup memory.
    pub elements: bool,
    /// Workgroups that are wanted before smaller tiles are taken, of products without matrix units.
    pub tiled_groups: usize,
}

/// A tile of a product: `warps × fragments × edge` results per workgroup.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GemmTile {
    /// Subgroups of a workgroup along M and N.
    pub warps: [u32; 2],
    /// Cooperative matrices of a subgroup along M and N.
    pub fragments: [u32; 2],
    /// Extent of K in a tile.
    pub bk: u32,
    /// Whether a step's fragments are loaded while those of the step before are multiplied.
    pub prefetch: bool,
    /// Microseconds of a step over K per workgroup, where a compute unit has several of them: for both sides stored along K, the right side,
    /// the left side, and both transposed.
    pub busy_us: [f64; 4],
    /// Microseconds of a step at least.
    pub alone_us: f64,
}

/// See [`Tuning::gemv`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GemvTuning {
    /// The most rows of the left side that are multiplied one weight row at a time.
    pub max_rows: usize,
    /// The same for weights of f16 where there are matrix units.
    pub max_rows_f16: usize,
    /// Threads that fill the GPU: with fewer, several subgroups share a weight row, of experts too.
    pub full_threads: usize,
    /// Weight rows from which the time is work rather than latency.
    pub busy_rows: usize,
    /// Blocks of 32 weights from which activations become integers (`gemv_int8`), in all rows and in one.
    pub int8_min_blocks: [usize; 2],
    /// Threads of a workgroup of `gemv_int8` at most.
    pub int8_max_threads: usize,
    /// Threads that fill the GPU in `gemv_int8`.
    pub int8_full_threads: usize,
    /// Weight rows of a workgroup of `gemv_int8` at least, and at most.
    pub int8_rows: [usize; 2],
    /// As `max_rows`, of affinely quantized weights.
    pub max_rows_affine: usize,
    /// Threads of a workgroup: of small ones, which spread few rows over more of the GPU, and of others. Powers of two.
    pub workgroup_threads: [u32; 2],
    /// Weight rows from which workgroups are not small, where the time is latency.
    pub wide_workgroup_rows: usize,
    /// The share of lanes that must have work in a group's last round, from 0 to 1, for the group to be as wide; else narrower ones are tried.
    pub busy_lanes: f64,
    /// Items of a weight row from which a group has four rows, not two, where unpacking is work.
    pub four_rows_items: usize,
    /// Items that a thread has in flight at most: of one row that it reads itself, and of up to two rows, and of more, that are staged.
    pub in_flight: [u32; 3],
    /// Bytes of workgroup memory that a kernel takes at most, where the elements of a weight row are neighbours, and where rows are. Never less than
    /// 16 KiB, which every adapter has.
    pub workgroup_bytes: [u32; 2],
    /// Threads of a workgroup at most where weight rows are neighbours.
    pub column_threads: u32,
    /// Workgroups that are wanted there before one has more columns.
    pub column_groups: usize,
    /// Bytes of a left side, as f32, up to which it is normalised in the product that reads it: each workgroup does so. At most 8 KiB.
    pub max_norm_bytes: usize,
}

/// See [`Tuning::experts`]. A pair is a row and one of the experts that it names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertTuning {
    /// Pairs of an expert, on average, from which a workgroup has one expert's pairs instead of one pair: usually, and with matrix units, for which
    /// further pairs cost next to nothing, so that it pays as soon as weights would be read twice.
    pub grouped_min_pairs: [usize; 2],
    /// Pairs for which weights are read at once.
    pub pairs_per_read: u32,
    /// Pairs that are looked through before their products are made.
    pub segment_pairs: u32,
    /// Items of all products that a thread has in flight at most: with more it has too few registers to share a compute unit with others.
    pub in_flight: u32,
    /// Subgroups of a workgroup, with matrix units.
    pub subgroups: u32,
    /// Pairs that are multiplied at a time with matrix units, and the pairs of an expert, on average, from which they are so many. Each time an expert's
    /// weights are unpacked again, so that all of its pairs are multiplied at once where they fit: the others may wait for one expert's last workgroup.
    pub tile_pairs: [[u32; 2]; 2],
    /// Rows of weights of a workgroup, with matrix units: the first that fits.
    pub tile_rows: [u32; 2],
    /// Columns of a step at least, with matrix units; some formats have items across twice as many.
    pub min_step: u32,
    /// Fours of experts that a thread reads at once while pairs are looked for, with matrix units.
    pub vec4_reads: u32,
    /// Pairs in the list beyond which they are multiplied before others are looked for, with matrix units.
    pub full_list: u32,
}

/// See [`Tuning::attention`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionTuning {
    /// Queries from which a workgroup has several of them (the flash kernels).
    pub flash_min_queries: usize,
    /// Workgroups of large tiles that are wanted before small ones are taken.
    pub large_groups: usize,
    /// Workgroups from which subgroups synchronize alone.
    pub subgroup_sync_groups: usize,
    /// Workgroups among which the keys of few queries are split: usually, and where each needs most of its registers.
    pub split_groups: [usize; 2],
    /// Bytes of keys and values that one workgroup reads alone.
    pub split_min_bytes: usize,
    /// Bytes of a split at least.
    pub split_bytes: usize,
    /// Bytes of all keys and values up to which one query, or two, of those that share them have a workgroup.
    pub shared_bytes: [usize; 2],
    /// Tiles where lanes can name the elements of matrices, so that scores stay in them: of heads of up to 64 and of wider ones.
    pub elements: [ElementTile; 2],
    /// The same for the gradient of queries.
    pub elements_queries: [ElementTile; 2],
    /// The same for the gradients of keys and values.
    pub elements_keys: [ElementTile; 2],
    /// Elements of a key and its value together up to which a subgroup has registers for rows of its own.
    pub own_rows_elements: u32,
    /// Elements of a key and its value together, as far as a subgroup has them, up to which the next columns are fetched while others are used.
    pub prefetch_elements: u32,
    /// Queries of a workgroup at most that share the keys which are split; half as many where heads are wide.
    pub split_queries: usize,
    /// Threads of a workgroup of a split, and where it has few queries and many keys.
    pub split_threads: [u32; 2],
    /// Keys above which they are many.
    pub split_wide_keys: usize,
    /// Threads of a workgroup that has one query, without subgroups: over few keys, where queries fill the GPU, and where they do not. Powers of two.
    pub decode_threads: [u32; 3],
    /// Keys up to which they are few.
    pub decode_few_keys: usize,
    /// Workgroups that fill the GPU there.
    pub decode_full_groups: usize,
    /// Threads of a workgroup that has a block of queries, or of keys, without matrix units. A power of two.
    pub tiled_threads: u32,
    /// Quads of a key and its value, for each of the four threads of a query, up to which these have registers for two queries.
    pub tiled_quads: u32,
    /// Bytes of workgroup memory that such a workgroup takes at most. Never less than 16 KiB, which every adapter has.
    pub tiled_bytes: u32,
}

/// A tile of attention whose scores stay in the elements of matrices: `subgroups × fragments × edge` rows per workgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ElementTile {
    /// Subgroups of a workgroup; 0: scores go through workgroup memory.
    pub subgroups: u32,
    /// Cooperative matrices of a subgroup along its rows.
    pub fragments: u32,
    /// Columns at most; half as many where they have no room.
    pub columns: u32,
}

impl std::fmt::Display for ElementTile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} × {} × {}", self.subgroups, self.fragments, self.columns)
    }
}

impl ElementTile {
    /// A tile.
    pub const fn new(subgroups: u32, fragments: u32, columns: u32) -> ElementTile {
        ElementTile { subgroups, fragments, columns }
    }
}

/// See [`Tuning::metal`]. What is not set is done in WGSL, and so is everything where a GPU has no such parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetalTuning {
    /// Rows of weights that a SIMD-group multiplies with one row of activations: of f16, of blocks of 32 weights, of blocks of 256. At most 4.
    pub gemv_rows: [u32; 3],
    /// Whether products of f16 go by Metal 4's tensor operations where their probe finds these right.
    #[serde(default)]
    pub tensor_ops: bool,
}

/// See [`Tuning::reduce`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReduceTuning {
    /// Workgroups that fill the GPU: with fewer, rows are split.
    pub full_groups: usize,
    /// Elements that are worth a workgroup.
    pub split_elements: usize,
    /// The same for positions of extremes.
    pub arg_split_elements: usize,
    /// Workgroups that keep the GPU busy while rows are added up by index: with fewer rows, each has a workgroup of its own.
    pub index_add_groups: usize,
    /// Results from which workgroups are not enlarged for columns whose rows are neighbours in memory.
    pub column_full_rows: usize,
}

/// See [`Tuning::rows`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowTuning {
    /// Rows from which a group of threads has several at once.
    pub multi_row_min_rows: usize,
    /// Rows from which a subgroup per row fills the GPU.
    pub subgroup_min_rows: usize,
    /// Rows from which a thread has a whole row, where that is one load.
    pub thread_min_rows: usize,
    /// Threads of a workgroup: of small ones, which spread few rows over more of the GPU, and of others. Powers of two.
    pub workgroup_threads: [u32; 2],
    /// Vectors of eight elements that a thread has of a row before more threads share it.
    pub thread_vectors: usize,
    /// Loads of a row from which, and rows up to which, a row is reduced by a workgroup of as many threads as there may be.
    pub long_row: [usize; 2],
    /// Registers for what a thread keeps of its rows: usually, and where nothing as long is stored, or a workgroup has 1024 threads.
    pub registers: [usize; 2],
    /// Vectors of eight elements that a thread has in flight of a row that it does not keep.
    pub in_flight: u32,
    /// Vectors of eight elements up to which their exponentials are kept too.
    pub exp_vectors: u32,
    /// Quads of a row and of its gradient up to which a thread keeps them.
    pub grad_quads: usize,
    /// Elements of a row up to which a thread keeps them while the largest are looked for.
    pub topk_elements: usize,
    /// Threads of a workgroup that looks for the largest. A power of two.
    pub topk_threads: u32,
}

/// See [`Tuning::unpack`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnpackTuning {
    /// Rows of activations from which a weight is unpacked before the product.
    pub min_rows: usize,
    /// The same for large weights where there are matrix units.
    pub min_rows_large: usize,
    /// Elements of a large weight.
    pub large_elements: usize,
    /// Elements of a weight at most: what is unpacked takes two bytes each.
    pub max_elements: usize,
    /// Threads of a workgroup, also where affine parameters are found.
    pub workgroup_threads: u32,
}

/// See [`Tuning::map`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MapTuning {
    /// Elements from which a thread handles several quads of narrow elements, and twice as many.
    pub multi_quad_elements: [usize; 2],
    /// Elements from which a transposed source is read in tiles.
    pub tile_min_elements: usize,
    /// Its extent across from which it is.
    pub tile_min_run: usize,
}

/// See [`Tuning::byte_entropy`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ByteEntropyTuning {
    /// Entries of a table up to which each workgroup has a copy. At most 2048.
    pub table_entries: usize,
    /// Threads whose histograms a compute unit holds.
    pub unit_threads: usize,
    /// Positions of a thread at least.
    pub min_positions: usize,
    /// Threads of a workgroup at most.
    pub workgroup_threads: usize,
}

/// See [`Tuning::submit`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubmitTuning {
    /// Floating-point operations after which a submit ends, so that no display waits.
    pub max_ops: u64,
    /// Dispatches of a submit in plans of more than twice as many: the GPU begins while the host encodes.
    pub max_steps: usize,
}

/// What an adapter says of itself.
#[derive(Clone, Copy, Debug)]
pub struct AdapterClass {
    /// PCI vendor.
    pub vendor: u32,
    /// Whether the API is Metal.
    pub metal: bool,
    /// Whether a CPU does the work.
    pub software: bool,
}

/// Rows of the left side that the kernels for few rows can keep in registers; a table may ask for fewer.
pub(crate) const GEMV_ROW_LIMIT: usize = 8;
/// Bytes of workgroup memory that every adapter has.
pub(crate) const MIN_WORKGROUP_BYTES: u32 = 16 << 10;
/// Threads of a workgroup in any kernel.
pub(crate) const MAX_WORKGROUP_THREADS: u32 = 1024;
/// Bytes of a normalised left side for which a product has room in every adapter's workgroup memory.
const MAX_NORM_BYTES: usize = 8192;

const PCI_NVIDIA: u32 = 0x10de;

/// Warps, fragments, BK and prefetch of the tiles that every class chooses from, the largest first.
const TILES: [([u32; 2], [u32; 2], u32, bool); 11] = [
    ([2, 4], [4, 4], 32, true),
    ([2, 2], [4, 4], 64, false),
    ([2, 4], [2, 2], 64, true),
    ([2, 2], [2, 2], 128, false),
    ([2, 2], [2, 1], 192, false),
    ([2, 2], [1, 1], 128, false),
    ([2, 2], [1, 1], 192, false),
    ([2, 2], [1, 1], 256, false),
    ([1, 4], [1, 1], 256, false),
    ([2, 2], [4, 2], 64, true),
    ([2, 2], [2, 2], 64, false),
];

/// Measured on an H100: microseconds of a step per workgroup, with others on the same processor and at least.
const H100_STEP_US: [([f64; 4], f64); 11] = [
    ([0.81, 0.75, 0.81, 0.75], 0.74),
    ([0.96, 1.11, 0.96, 0.96], 0.84),
    ([0.73; 4], 0.53),
    ([0.94; 4], 0.94),
    ([1.18; 4], 0.83),
    ([0.43; 4], 0.75),
    ([1.01; 4], 0.77),
    ([1.07; 4], 0.77),
    ([1.22; 4], 0.83),
    ([0.83; 4], 0.73),
    ([0.71; 4], 0.64),
];

impl GemmTile {
    /// A tile whose cost follows from its work: fragments multiplied, and rows of them loaded, for each 16 of K.
    fn estimated((warps, fragments, bk, prefetch): ([u32; 2], [u32; 2], u32, bool)) -> GemmTile {
        let [wm, wn, fm, fn_] = [warps[0], warps[1], fragments[0], fragments[1]].map(f64::from);
        let multiplied = wm * wn * fm * fn_;
        let loaded = wm * fm + wn * fn_;
        // Four digits, which a file gives back as they are.
        let busy = (f64::from(bk) / 16.0 * (0.008 * multiplied + 0.01 * loaded) * 1e4).round() / 1e4;
        GemmTile { warps, fragments, bk, prefetch, busy_us: [busy; 4], alone_us: busy.max(0.6) }
    }
}

impl GemmTuning {
    /// Among how many products the sum over `rows` rows of a weight's gradient of `results` elements is shared.
    pub fn gradient_parts(&self, rows: usize, results: usize) -> usize {
        let [max_results, min_rows] = self.split_rows;
        let mut parts = 1;
        while rows > 0 && rows.is_multiple_of(2 * parts) && 2 * parts * results <= max_results && rows / (2 * parts) >= min_rows {
            parts *= 2;
        }
        parts
    }
}

impl UnpackTuning {
    /// Whether a product of `rows` rows with a weight of `elements` elements is faster when that is unpacked first, with matrix units or without.
    pub fn pays(&self, rows: usize, elements: usize, matrices: bool) -> bool {
        let large = elements >= self.large_elements && matrices;
        rows >= if large { self.min_rows_large } else { self.min_rows } && elements <= self.max_elements
    }
}

impl GemvTuning {
    /// The numbers of a GPU of so many compute units.
    fn by_formula(units: usize) -> GemvTuning {
        GemvTuning {
            max_rows: 8,
            max_rows_f16: 4,
            full_threads: (1024 * units).next_power_of_two() / 2,
            busy_rows: (64 * units).next_power_of_two(),
            int8_min_blocks: [(2048 * units).next_power_of_two(), 64],
            int8_max_threads: 256,
            int8_full_threads: (512 * units).next_power_of_two(),
            int8_rows: [8, 32],
            max_rows_affine: 8,
            workgroup_threads: [128, 256],
            wide_workgroup_rows: 1024,
            busy_lanes: 0.85,
            four_rows_items: 256,
            in_flight: [4, 3, 2],
            workgroup_bytes: [48 << 10, 32 << 10],
            column_threads: 512,
            column_groups: 128,
            max_norm_bytes: MAX_NORM_BYTES,
        }
    }
}

impl AttentionTuning {
    /// The numbers of a GPU of so many compute units, and bytes of the last-level cache.
    fn by_formula(units: usize, cache_bytes: usize) -> AttentionTuning {
        AttentionTuning {
            flash_min_queries: 32,
            large_groups: units,
            subgroup_sync_groups: 3 * units,
            split_groups: [2 * units, units],
            split_min_bytes: 256 << 10,
            split_bytes: 32 << 10,
            shared_bytes: [cache_bytes / 16, cache_bytes / 2],
            elements: [ElementTile::new(4, 1, 32); 2],
            elements_queries: [ElementTile::new(4, 1, 32); 2],
            elements_keys: [ElementTile::new(4, 1, 32); 2],
            own_rows_elements: 128,
            prefetch_elements: 192,
            split_queries: 4,
            split_threads: [256, 512],
            split_wide_keys: 256,
            decode_threads: [128, 256, 512],
            decode_few_keys: 128,
            decode_full_groups: 512,
            tiled_threads: 128,
            tiled_quads: 8,
            tiled_bytes: 32 << 10,
        }
    }
}

impl Tuning {
    /// A table by formula from the number of compute units and the bytes of the last-level cache.
    pub fn by_formula(name: &str, compute_units: u32, cache_bytes: usize) -> Tuning {
        let units = compute_units.max(1) as usize;
        Tuning {
            name: name.into(),
            compute_units,
            gemm: GemmTuning {
                tiles: TILES.map(GemmTile::estimated).to_vec(),
                min_split_k: 256,
                store_us: 3.2e-4,
                split_us: [2.0, 0.5, 0.015],
                unroll_min_subgroup: 16,
                split_rows: [1 << 21, 512],
                elements: false,
                tiled_groups: 128,
            },
            gemv: GemvTuning::by_formula(units),
            experts: ExpertTuning {
                grouped_min_pairs: [4, 2],
                pairs_per_read: 8,
                segment_pairs: 1024,
                in_flight: 3,
                subgroups: 4,
                tile_pairs: [[64, 16], [32, 0]],
                tile_rows: [128, 64],
                min_step: 64,
                vec4_reads: 2,
                full_list: 512,
            },
            attention: AttentionTuning::by_formula(units, cache_bytes),
            reduce: ReduceTuning {
                full_groups: 8 * units,
                split_elements: 4096,
                arg_split_elements: 1024,
                index_add_groups: 4 * units,
                column_full_rows: 1 << 16,
            },
            rows: RowTuning {
                multi_row_min_rows: 32 * units,
                subgroup_min_rows: 8 * units,
                thread_min_rows: 64,
                workgroup_threads: [128, 256],
                thread_vectors: 4,
                long_row: [8192, 64],
                registers: [64, 32],
                in_flight: 4,
                exp_vectors: 4,
                grad_quads: 4,
                topk_elements: 8,
                topk_threads: 64,
            },
            unpack: UnpackTuning {
                min_rows: 64,
                min_rows_large: 64,
                large_elements: 1 << 20,
                max_elements: 1 << 27,
                workgroup_threads: 64,
            },
            map: MapTuning { multi_quad_elements: [8192 * units, 32_768 * units], tile_min_elements: 4096, tile_min_run: 8 },
            byte_entropy: ByteEntropyTuning { table_entries: 1024, unit_threads: 512, min_positions: 64, workgroup_threads: 64 },
            submit: SubmitTuning { max_ops: 500_000_000_000, max_steps: 256 },
            metal: MetalTuning::default(),
        }
    }

    /// An adapter of no known class.
    pub fn generic() -> Tuning {
        Tuning::by_formula("generic", 32, 4 << 20)
    }

    /// NVIDIA's GPUs, measured on an H100 (132 processors, 50 MB of cache; docs/notes/2026-11-22-h100-figures.md).
    pub fn nvidia() -> Tuning {
        let mut t = Tuning::by_formula("nvidia", 132, 50 << 20);
        for (tile, (busy_us, alone_us)) in t.gemm.tiles.iter_mut().zip(H100_STEP_US) {
            (tile.busy_us, tile.alone_us) = (busy_us, alone_us);
        }
        t.gemm.store_us = 3.17e-4;
        t.gemm.split_us = [1.84, 0.49, 0.0147];
        t.gemv = GemvTuning {
            max_rows: 8,
            max_rows_f16: 2,
            full_threads: 1 << 17,
            busy_rows: 8192,
            int8_min_blocks: [1 << 18, 64],
            int8_max_threads: 256,
            int8_full_threads: 1 << 16,
            ..t.gemv
        };
        t.attention = AttentionTuning {
            flash_min_queries: 32,
            large_groups: 128,
            subgroup_sync_groups: 384,
            split_groups: [264, 132],
            split_min_bytes: 400 << 10,
            split_bytes: 32 << 10,
            shared_bytes: [2 << 20, 32 << 20],
            elements: [ElementTile::new(4, 2, 32), ElementTile::new(8, 1, 64)],
            elements_queries: [ElementTile::new(4, 2, 32), ElementTile::new(8, 1, 64)],
            elements_keys: [ElementTile::new(4, 1, 64), ElementTile::new(8, 1, 64)],
            ..t.attention
        };
        t.reduce.index_add_groups = 512;
        t.rows = RowTuning { multi_row_min_rows: 4096, subgroup_min_rows: 1024, ..t.rows };
        t.unpack.min_rows_large = 9;
        t.map.multi_quad_elements = [1 << 20, 1 << 22];
        t
    }

    /// Apple's GPUs, from published facts only and **not measured**: 10 to 40 cores (20 is an M4 Pro), SIMD-groups of 32, fragments of 8×8,
    /// 32 KiB of threadgroup memory; products in tiles of 64×64×32 as MLX has them. MLX's products and attention keep results and scores in the elements
    /// of matrices; llama.cpp's products of one row give a SIMD-group four rows of blocks of 32 weights, and two of 256.
    pub fn apple() -> Tuning {
        let mut t = Tuning::by_formula("apple", 20, 24 << 20);
        t.gemm.tiles.insert(0, GemmTile::estimated(([2, 2], [4, 4], 32, false)));
        t.gemm.elements = true;
        t.metal = MetalTuning { gemv_rows: [4, 4, 2], tensor_ops: true };
        t
    }

    /// Software Vulkan (lavapipe). It has the splits and tiles of the NVIDIA table, so that tests without a GPU execute them.
    pub fn software() -> Tuning {
        Tuning { name: "software".into(), ..Tuning::nvidia() }
    }

    /// The table of a class, by name.
    pub fn named(name: &str) -> Option<Tuning> {
        match name {
            "generic" => Some(Tuning::generic()),
            "nvidia" => Some(Tuning::nvidia()),
            "apple" => Some(Tuning::apple()),
            "software" => Some(Tuning::software()),
            _ => None,
        }
    }

    /// The names that [`Tuning::named`] knows.
    pub const NAMES: [&str; 4] = ["generic", "nvidia", "apple", "software"];

    /// The table that a value of `TL_TUNING` means: a class by name, or a file with a table.
    ///
    /// # Errors
    /// [`TensorError::Config`] where it is neither, or the table does not pass [`Tuning::check`]; it names the field.
    ///
    /// ```
    /// use tensorlogic::tuning::Tuning;
    ///
    /// assert_eq!(Tuning::from_setting("nvidia")?, Tuning::nvidia());
    /// let error = Tuning::from_setting("no-such-table").unwrap_err().to_string();
    /// assert!(error.contains("generic, nvidia, apple, software"), "{error}");
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn from_setting(value: &str) -> TensorResult<Tuning> {
        if let Some(table) = Tuning::named(value) {
            return Ok(table);
        }
        let names = Tuning::NAMES.join(", ");
        let invalid = |what: String| TensorError::Config(what);
        let text = std::fs::read(value)
            .map_err(|e| invalid(format!("TL_TUNING is {value:?}: neither one of {names} nor a readable file ({e})")))?;
        let table: Tuning = serde_json::from_slice(&text).map_err(|e| invalid(format!("TL_TUNING: {value} is not a tuning table: {e}")))?;
        table.check().map_err(|e| invalid(format!("TL_TUNING: {value}: {e}")))?;
        Ok(table)
    }

    /// What the numbers of a class's table rest on, in a few words, by the table's name; `None` for other names.
    pub fn basis(&self) -> Option<&'static str> {
        match self.name.as_str() {
            "nvidia" => Some("measured on an NVIDIA H100"),
            "apple" => Some("from published facts, not measured"),
            "software" => Some("that of NVIDIA GPUs, so that tests execute its kernels"),
            "generic" => Some("by formula, not measured"),
            _ => None,
        }
    }

    /// The table for an adapter that was never measured. The only place that asks whose GPU it is.
    pub fn of_class(class: AdapterClass) -> Tuning {
        match class {
            AdapterClass { software: true, .. } => Tuning::software(),
            AdapterClass { metal: true, .. } => Tuning::apple(),
            AdapterClass { vendor: PCI_NVIDIA, .. } => Tuning::nvidia(),
            _ => Tuning::generic(),
        }
    }

    /// A number that differs where tables differ: part of what plans are found by.
    pub fn id(&self) -> u64 {
        // A table is plain numbers and a name; its JSON is the same in every process.
        let text = serde_json::to_string(self).unwrap_or_default();
        text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
    }
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning::generic()
    }
}

/// A shared table.
pub type SharedTuning = Arc<Tuning>;

/// Where the table of an open GPU comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TuningSource {
    /// It is the one of the adapter's class.
    Class {
        /// Why a table that `tl tune` kept here was not taken, where there is one.
        ignored: Option<String>,
    },
    /// `TL_TUNING` names this class or file.
    Environment(String),
    /// `tl tune` measured it on this machine and keeps it in this file.
    Measured(PathBuf),
    /// The program gave it when it opened the device.
    Given,
}
