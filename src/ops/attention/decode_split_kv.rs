//! The GPU form of attention of few queries on an adapter with subgroups, which shares long caches out among workgroups.

use super::AttentionKernel;
use super::paged::PAGE;
use super::params::{FILES, HeadSizes, values};
use crate::plan::{AdapterInfo, KernelParam, Load, SCRATCH_COUNTERS, SCRATCH_WORDS, Step, Wgsl};
use crate::shader::vec16::{Beyond, Vec16Form};
use crate::shader::{MAX_GROUPS, StartParams, Template, TemplateValue, U32, params};

/// Threads that share a key at most.
const MAX_LANES: u32 = 32;
/// Parts that a thread reads together when they are joined, at most.
const MAX_JOINED: usize = 8;
/// Threads of a workgroup, the most first.
const WORKGROUPS: [u32; 9] = [1024, 512, 256, 128, 64, 32, 16, 8, 4];

params! {
    /// What the kernel reads at run time.
    struct SplitKvParams {
        /// Queries that share a key head.
        rows: u32,
        /// Blocks of them.
        head_blocks: u32,
        /// Queries of a head.
        queries: u32,
        /// Keys of a head.
        keys: u32,
        /// Elements of a query or key.
        size: u32,
        /// Elements of a value.
        size_v: u32,
        /// Keys that are there, the first of `keys`.
        valid: u32,
        /// Factor of the scores.
        scale: f32,
        /// Keys that a query sees at most, or 0.
        window: u32,
        /// So many keys are never shared out.
        unsplit_keys: u32,
        /// Keys of a part at least.
        part_keys: u32,
        /// The first query's element, where the operand's buffer is read.
        q: StartParams,
        /// The same of the keys.
        k: StartParams,
        /// The same of the values.
        v: StartParams,
        /// Key heads, where keys are in pages.
        heads_kv: u32,
        /// Pages of a text at most, then.
        pages: u32,
    }
}

static SPLIT_KV: Template =
    Template::new("decode_split_kv.wgsl", include_str!("decode_split_kv.wgsl")).params(SplitKvParams::FIELDS).files(FILES);

/// How a workgroup's queries, keys and threads are cut.
struct SplitConfig {
    /// Threads of a workgroup.
    workgroup: u32,
    /// Threads of a group, which takes a key at a time.
    lanes: u32,
    /// Vectors of eight elements of a key that a thread has.
    key_vectors: u32,
    /// The same of a value.
    value_vectors: u32,
    /// Queries that share a key head.
    all: usize,
    /// Blocks of them.
    head_blocks: usize,
    /// Queries of a block.
    rows: usize,
    /// Keys that a group has under way.
    slots: u32,
    /// So many keys are never shared out.
    unsplit_keys: usize,
    /// Keys of a part at least.
    part_keys: usize,
    /// Parts at most.
    parts: usize,
    /// Slices of the workgroup that merge parts.
    slices: usize,
}

impl SplitConfig {
    /// `None` where the adapter has no room for a workgroup.
    fn new(z: &HeadSizes, step: &Step, adapter: &AdapterInfo) -> Option<SplitConfig> {
        let (subgroup, tuning) = (adapter.subgroup, &adapter.tuning.attention);
        let vectors = [z.d, z.dv].map(|n| n.div_ceil(8).max(1));
        let lanes = (vectors[0].max(vectors[1]).next_power_of_two() as u32).min(subgroup).min(MAX_LANES);
        let [kp, vp] = vectors.map(|n| (n as u32).div_ceil(lanes));
        // Queries that share keys, in blocks of about the same size.
        let all = z.h / z.hkv * z.t;
        let size = |load: &Load| load.sources.first().map_or(4, |s| s.dtype.block_bytes());
        let key_bytes = (z.d * size(&step.loads[1]) + z.dv * size(&step.loads[2])).max(1);
        let (most_rows, fewer_rows) = (tuning.split_queries, (tuning.split_queries / 2).max(1));
        let most = match z.b * z.hkv * z.s * key_bytes {
            n if n <= tuning.shared_bytes[0] && all <= most_rows => 1,
            n if n <= tuning.shared_bytes[1] || kp + vp > 2 => fewer_rows,
            _ => most_rows,
        };
        let head_blocks = all.div_ceil(most);
        let rows = all.div_ceil(head_blocks);
        let full = tuning.split_groups[(rows > most_rows / 2) as usize];
        let blocks = z.b.checked_mul(z.hkv)?.checked_mul(head_blocks)?;
        let cells = rows * 2 * (lanes * vp) as usize;
        let bytes = |threads: u32| {
            let sets = ((threads / subgroup) as usize).max(threads as usize / cells).max(1);
            (sets * (cells * 16 + rows * 8) + 16) as u32
        };
        // More threads for few queries, unless there are enough of them to fill the GPU.
        let [usual, wide] = tuning.split_threads;
        let want = if rows * (kp + vp) as usize <= 2 && z.s > tuning.split_wide_keys && blocks <= full { wide } else { usual };
        let workgroup = WORKGROUPS
            .into_iter()
            .find(|&n| n <= want && n <= adapter.workgroup_threads && n % subgroup == 0 && bytes(n) <= adapter.workgroup_bytes)?;
        let (unsplit_keys, part_keys) = ((tuning.split_min_bytes / key_bytes).max(1), (tuning.split_bytes / key_bytes).max(1));
        let own = 4 * (cells + rows);
        let room = if blocks > SCRATCH_COUNTERS { 0 } else { (SCRATCH_WORDS - SCRATCH_COUNTERS) / (blocks * own).max(1) };
        let parts = if z.s > unsplit_keys { (full / blocks.max(1)).min(z.s.div_ceil(part_keys)).min(room).max(1) } else { 1 };
        Some(SplitConfig {
            workgroup,
            lanes,
            key_vectors: kp,
            value_vectors: vp,
            all,
            head_blocks,
            rows,
            slots: if kp + vp > 2 { 2 } else { 4 }.min(lanes),
            unsplit_keys,
            part_keys,
            parts,
            slices: (workgroup as usize / cells).max(1),
        })
    }

    /// Constants of the kernel's code.
    fn consts(&self, of: &AttentionKernel, subgroup: u32) -> Vec<(&'static str, u32)> {
        vec![
            ("SUBGROUP", subgroup),
            ("LANES", self.lanes),
            ("PARTS", self.parts as u32),
            ("COUNTERS", SCRATCH_COUNTERS as u32),
            ("CAUSAL", of.causal as u32),
            ("KP", self.key_vectors),
            ("VP", self.value_vectors),
            ("ROWS", self.rows as u32),
            ("SLOTS", self.slots),
            ("JOINED", self.parts.div_ceil(self.slices).min(MAX_JOINED) as u32),
        ]
    }

    /// What else its templates ask about.
    fn switches(&self, of: &AttentionKernel, z: &HeadSizes, adapter: &AdapterInfo) -> [(&'static str, TemplateValue); 14] {
        let subgroup = adapter.subgroup;
        [
            ("MASKED", of.mask.into()),
            ("MIXED", (z.t > 1).into()),
            ("SPLIT", (self.parts > 1).into()),
            ("COHERENT", adapter.coherent.into()),
            ("SUMS", of.sums.into()),
            ("RAGGED", (z.d != 8 * (self.lanes * self.key_vectors) as usize).into()),
            ("VEC_V", (z.dv % 4 == 0).into()),
            ("SLOT_BITS", self.slots.ilog2().into()),
            ("LANE_BITS", self.lanes.ilog2().into()),
            ("SUBGROUP_BITS", subgroup.ilog2().into()),
            ("SUBGROUPS", (self.workgroup / subgroup).into()),
            ("SLICES", (self.slices as u32).into()),
            ("PAGED", of.paged.into()),
            ("PAGE", (PAGE as u32).into()),
        ]
    }
}

/// Few queries, on an adapter with subgroups.
pub(super) fn decode_split_kv(of: &AttentionKernel, z: &HeadSizes, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
    let config = SplitConfig::new(z, step, adapter)?;
    let forms = [(0, z.d), (1, z.d), (2, z.dv)].map(|(load, size)| Vec16Form::of(&step.loads[load], size, Beyond::Any));
    let consts = config.consts(of, adapter.subgroup);
    let mut values = values(&consts);
    values.extend(config.switches(of, z, adapter));
    values.extend(of.softcap_values());
    for (names, form) in [["RAW_Q", "F16_Q", "QUADS_Q"], ["RAW_K", "F16_K", "QUADS_K"], ["RAW_V", "F16_V", "QUADS_V"]].iter().zip(&forms) {
        values.extend(names.iter().zip(form.values()).map(|(&name, (_, value))| (name, value)));
    }
    let grid = [config.head_blocks, z.b.checked_mul(z.hkv)?, config.parts].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
    if grid.iter().any(|&n| n > MAX_GROUPS) {
        return None;
    }
    let [q, k, v] = forms.map(|f| f.raw.unwrap_or([KernelParam::U32(0); 2].into()));
    let params = SplitKvParams {
        rows: U32::size(config.all)?,
        head_blocks: U32::size(config.head_blocks)?,
        queries: U32::size(z.t)?,
        keys: U32::size(z.s)?,
        size: U32::size(z.d)?,
        size_v: U32::size(z.dv)?,
        valid: z.valid(step)?,
        scale: (of.scale as f32).into(),
        window: of.window.into(),
        unsplit_keys: U32::size(config.unsplit_keys)?,
        part_keys: U32::size(config.part_keys)?,
        q,
        k,
        v,
        heads_kv: if of.paged { U32::size(z.hkv)? } else { U32::ABSENT },
        pages: of.table_width(step)?,
    };
    let raw = (0u8..).zip(&forms).filter(|(_, f)| f.raw.is_some()).map(|(n, _)| n).collect();
    let source = SPLIT_KV.source(&values);
    Some(Wgsl { source, consts, workgroup: config.workgroup, grid, params: params.values(), raw, transposed: vec![] })
}
