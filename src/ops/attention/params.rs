//! What the GPU forms of attention and its gradients share: the sizes of a step, parameters and included files.

use super::paged::PAGE;
use super::{AttentionKernel, dropout};
use crate::ops::matmul::gemm_coop::{OPERAND, OPERAND_PLACE};
use crate::plan::Step;
use crate::shader::{F32, TemplateValue, U32, params};

/// Which gradients a kernel makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// All three: one after the other for each key head.
    All,
    /// The queries'.
    Queries,
    /// The keys' and the values'.
    Keys,
}

/// The widest head.
pub(super) const MAX_HEAD: usize = 256;

/// WGSL that the kernels include.
pub(super) static FILES: &[(&str, &str)] = &[
    ("decode_split_kv_merge.wgsl", include_str!("decode_split_kv_merge.wgsl")),
    ("flash_begin.wgsl", include_str!("flash_begin.wgsl")),
    ("flash_coop_add.wgsl", include_str!("flash_coop_add.wgsl")),
    ("flash_coop_fetch.wgsl", include_str!("flash_coop_fetch.wgsl")),
    ("flash_coop_grad_operands.wgsl", include_str!("flash_coop_grad_operands.wgsl")),
    ("flash_coop_grad_rows.wgsl", include_str!("flash_coop_grad_rows.wgsl")),
    ("flash_coop_hold.wgsl", include_str!("flash_coop_hold.wgsl")),
    ("flash_coop_memory.wgsl", include_str!("flash_coop_memory.wgsl")),
    ("flash_coop_operand.wgsl", include_str!("flash_coop_operand.wgsl")),
    ("flash_coop_queries.wgsl", include_str!("flash_coop_queries.wgsl")),
    ("flash_coop_scores.wgsl", include_str!("flash_coop_scores.wgsl")),
    ("flash_coop_stage.wgsl", include_str!("flash_coop_stage.wgsl")),
    ("flash_coop_store.wgsl", include_str!("flash_coop_store.wgsl")),
    ("flash_coop_top.wgsl", include_str!("flash_coop_top.wgsl")),
    ("flash_elements_fetch.wgsl", include_str!("flash_elements_fetch.wgsl")),
    ("flash_keep.wgsl", include_str!("flash_keep.wgsl")),
    ("flash_tiled_store.wgsl", include_str!("flash_tiled_store.wgsl")),
    ("flash_grad_kv_store.wgsl", include_str!("flash_grad_kv_store.wgsl")),
    ("flash_queries.wgsl", include_str!("flash_queries.wgsl")),
    ("flash_stage.wgsl", include_str!("flash_stage.wgsl")),
    ("flash_tiles.wgsl", include_str!("flash_tiles.wgsl")),
    OPERAND,
    OPERAND_PLACE,
    ("merge_sets.wgsl", include_str!("merge_sets.wgsl")),
    ("keys.wgsl", include_str!("keys.wgsl")),
    ("paged_row.wgsl", include_str!("paged_row.wgsl")),
    ("rows_fetch_inside.wgsl", include_str!("rows_fetch_inside.wgsl")),
    ("softcap.wgsl", include_str!("softcap.wgsl")),
    ("subgroup_butterfly.wgsl", include_str!("subgroup_butterfly.wgsl")),
];

/// The sizes of attention: queries `[b, h, t, d]`, keys `[b, hkv, s, d]`, values `[b, hkv, s, dv]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadSizes {
    pub b: usize,
    pub h: usize,
    pub hkv: usize,
    pub t: usize,
    pub s: usize,
    pub d: usize,
    pub dv: usize,
}

impl HeadSizes {
    /// Those of a step; `None` where a head is wider than `max_head` or heads of keys are not shared evenly.
    pub fn of(step: &Step, max_head: usize) -> Option<HeadSizes> {
        let [b, h, t, d] = *step.loads[0].shape.dims() else { return None };
        let (k, v) = (&step.loads[1].shape, &step.loads[2].shape);
        let (hkv, s, dv) = (k[1], k[2], v[3]);
        let fits = d <= max_head && dv <= max_head && hkv != 0 && h % hkv == 0;
        fits.then_some(HeadSizes { b, h, hkv, t, s, d, dv })
    }
    /// With as many keys as a text's pages have, where `of` reads pages.
    pub fn of_pages(self, of: &AttentionKernel, step: &Step) -> HeadSizes {
        if of.paged { HeadSizes { s: step.loads[3].shape[1] * PAGE, ..self } } else { self }
    }
    /// The number of valid keys: the step's first parameter, or all.
    pub fn valid(&self, step: &Step) -> Option<U32> {
        step.params.first().map_or(U32::size(self.s), |&p| Some(U32::param(p)))
    }
}

impl AttentionKernel {
    /// Whether scores are capped, and by what, for `softcap.wgsl`.
    pub(super) fn softcap_values(&self) -> [(&'static str, TemplateValue); 2] {
        let bound = format!("{:?}", self.softcap as f32);
        [("CAPPED", (self.softcap > 0.0).into()), ("SOFTCAP", TemplateValue::Text(bound.into()))]
    }

    /// Pages of a text at most, as kernels over pages read it.
    pub(super) fn table_width(&self, step: &Step) -> Option<U32> {
        if self.paged { U32::size(step.loads[3].shape[1]) } else { Some(U32::ABSENT) }
    }
}

/// Constants of a kernel as values of its template.
pub(super) fn values(consts: &[(&'static str, u32)]) -> Vec<(&'static str, TemplateValue)> {
    consts.iter().map(|&(name, n)| (name, n.into())).collect()
}

params! {
    /// What all kernels of attention by one workgroup a block read at run time.
    pub(super) struct AttentionParams {
        /// Heads of queries.
        heads: u32,
        /// Heads of keys and values.
        heads_kv: u32,
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
        /// Workgroups in x.
        groups_x: u32,
    }
}

impl AttentionParams {
    /// For a grid of `groups_x` workgroups in x.
    pub fn new(of: &AttentionKernel, z: &HeadSizes, step: &Step, groups_x: u32) -> Option<AttentionParams> {
        Some(AttentionParams {
            heads: U32::size(z.h)?,
            heads_kv: U32::size(z.hkv)?,
            queries: U32::size(z.t)?,
            keys: U32::size(z.s)?,
            size: U32::size(z.d)?,
            size_v: U32::size(z.dv)?,
            valid: z.valid(step)?,
            scale: (of.scale as f32).into(),
            window: of.window.into(),
            groups_x: groups_x.into(),
        })
    }
}

params! {
    /// What kernels over blocks of queries or keys read at run time.
    pub(super) struct FlashParams: AttentionParams {
        /// Blocks of a head.
        head_blocks: u32,
        /// Workgroups.
        groups: u32,
    }
}

impl FlashParams {
    /// For `groups` workgroups, `groups_x` in x, one for each of the `head_blocks` blocks of a head.
    pub fn new(of: &AttentionKernel, z: &HeadSizes, step: &Step, groups_x: u32, [head_blocks, groups]: [usize; 2]) -> Option<FlashParams> {
        let base = AttentionParams::new(of, z, step, groups_x)?;
        Some(FlashParams { base, head_blocks: U32::size(head_blocks)?, groups: U32::size(groups)? })
    }
}

params! {
    /// What kernels that stage tiles read at run time.
    pub(super) struct TiledParams: FlashParams {
        /// Which draw of the stream decides what dropout keeps.
        drop_draw: u32,
        /// The stream's key.
        drop_key: u32,
        /// A weight is kept where its 24 random bits are not below this.
        drop_below: u32,
        /// Factor of the weights that are kept.
        drop_factor: f32,
        /// Pages of a text at most, where keys are in pages.
        pages: u32,
    }
}

impl TiledParams {
    /// With the dropout of `of`, if it has one, whose draw and key are the step's second and third parameter.
    pub fn new(base: FlashParams, of: &AttentionKernel, step: &Step) -> Option<TiledParams> {
        let pages = of.table_width(step)?;
        if of.dropout == 0.0 {
            return Some(TiledParams {
                base,
                drop_draw: U32::ABSENT,
                drop_key: U32::ABSENT,
                drop_below: U32::ABSENT,
                drop_factor: F32::ABSENT,
                pages,
            });
        }
        let [draw, key] = [1, 2].map(|n| step.params.get(n).map(|&p| U32::param(p)));
        let (below, factor) = (dropout::threshold(of.dropout), dropout::factor(of.dropout) as f32);
        Some(TiledParams { base, drop_draw: draw?, drop_key: key?, drop_below: below.into(), drop_factor: factor.into(), pages })
    }
}
