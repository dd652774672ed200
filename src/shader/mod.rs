//! The shader toolkit: WGSL templates, the parameters that a kernel reads at run time as a Rust struct, reductions over threads, loaders, grids.
//!
//! # From a template to what the driver gets
//!
//! A kernel's shader source is a `.wgsl` file next to its op. It is a [`Template`]: four directives and one form of substitution
//! ([`template`]). The op's GPU code chooses a variant, renders it and returns it as [`Wgsl`](crate::plan::Wgsl) with the tile sizes as
//! `consts`, the grid, and the parameters that are known only at run time. The code generator (`backends/codegen/wgsl.rs`) puts the bindings, the
//! `const` lines and the functions `load_K`, `store_K` … before it and appends what it calls of the prelude.
//!
//! # Parameters
//!
//! All run-time parameters of a step (the kernel's own, then strides and offsets of its operands, then parameters of fused programs) are the
//! members of one WGSL struct in a uniform buffer, `@binding(0) var<uniform> p: Params`, bound at a dynamic offset. Steps of a pass share the
//! buffer, never a block. The kernel's own come first, in the order of [`Wgsl::params`](crate::plan::Wgsl). Each member is a scalar of four
//! bytes, so member `n` lies at byte `4 · n`.
//!
//! The macro `params!` declares the kernel's own parameters once, as a Rust struct; a rendered template begins with the same struct in WGSL, and the
//! code generator appends its members. A template reads `p.rows`.
//!
//! Kernels of other crates may read their parameters by number, `word(n)`, also where `n` is computed. Elements of an array take 16 bytes in a uniform
//! buffer, so they are rows of four: the first member is `numbered: array<vec4<u32>, N>`, filled up with zeros.
//!
//! Structs that belong to several kernels nest: `x: StartParams` is read as `p.x_start` and `p.x_offset`, and `struct DecodeParams: AttentionParams`
//! begins with the fields of `AttentionParams`. In WGSL they are flat.
//!
//! A parameter that a plan is run with, not compiled with, is a field like any other: its value is [`U32::param`] or [`F32::param`] instead of
//! [`U32::size`].
//!
//! ```text
//! params! {
//!     /// What gather reads at run time.
//!     struct GatherParams {
//!         /// Rows of the table.
//!         rows: u32,
//!         /// Elements of a row.
//!         inner: u32,
//!     }
//! }
//! static GATHER: Template = Template::new("gather.wgsl", include_str!("gather.wgsl")).params(GatherParams::FIELDS);
//!
//! let source = GATHER.source(&[("VEC", TemplateValue::Int(1))]);
//! let params = GatherParams { rows: U32::size(rows)?, inner: U32::size(inner)? }.values();
//! ```

pub mod block_values;
pub mod launch;
pub mod params;
pub mod row_group;
pub mod template;
pub mod vec16;

pub use block_values::block_values;
pub use launch::{MAX_GROUPS, col_major, grid, indexable, sizes, start, subgroup_barrier};
pub(crate) use params::params;
pub use params::{F32, StartParams, U32};
pub use template::{Template, TemplateError, TemplateValue};

/// Shared WGSL that any template may include, by file name; besides, the readers of coded block formats ([`Coded::wgsl`](crate::quant::Coded)).
pub static LIBRARY: &[(&str, &str)] = &[
    ("coop_elements.wgsl", include_str!("lib/coop_elements.wgsl")),
    ("coop_elements_store.wgsl", include_str!("lib/coop_elements_store.wgsl")),
    ("coop_tile_scalars.wgsl", include_str!("lib/coop_tile_scalars.wgsl")),
    ("coop_tile_vectors.wgsl", include_str!("lib/coop_tile_vectors.wgsl")),
    ("last_to_arrive.wgsl", include_str!("lib/last_to_arrive.wgsl")),
    ("row_centre.wgsl", include_str!("lib/row_centre.wgsl")),
    ("row_max_sum.wgsl", include_str!("lib/row_max_sum.wgsl")),
    ("row_split.wgsl", include_str!("lib/row_split.wgsl")),
    ("row_sum4.wgsl", include_str!("lib/row_sum4.wgsl")),
    ("row_within.wgsl", include_str!("lib/row_within.wgsl")),
    ("rows_fetch.wgsl", include_str!("lib/rows_fetch.wgsl")),
    ("rows_put.wgsl", include_str!("lib/rows_put.wgsl")),
    ("rows_put8.wgsl", include_str!("lib/rows_put8.wgsl")),
    ("subgroup_barrier.wgsl", include_str!("lib/subgroup_barrier.wgsl")),
    ("tensor_tile.wgsl", include_str!("lib/tensor_tile.wgsl")),
    ("vec16.wgsl", include_str!("lib/vec16.wgsl")),
    ("quant/affine_groups.wgsl", include_str!("lib/quant/affine_groups.wgsl")),
    ("quant/common.wgsl", include_str!("lib/quant/common.wgsl")),
    ("quant/bytes.wgsl", include_str!("lib/quant/bytes.wgsl")),
    ("quant/coded.wgsl", include_str!("lib/quant/coded.wgsl")),
    ("quant/coded_bytes.wgsl", include_str!("lib/quant/coded_bytes.wgsl")),
    ("quant/scale_min.wgsl", include_str!("lib/quant/scale_min.wgsl")),
    ("quant/tiles.wgsl", include_str!("lib/quant/tiles.wgsl")),
    ("quant/items.wgsl", include_str!("lib/quant/items.wgsl")),
    ("quant/item.wgsl", include_str!("lib/quant/item.wgsl")),
    ("quant/item_order.wgsl", include_str!("lib/quant/item_order.wgsl")),
    ("quant/linear_field.wgsl", include_str!("lib/quant/linear_field.wgsl")),
    ("quant/linear_items.wgsl", include_str!("lib/quant/linear_items.wgsl")),
    ("quant/linear_loads.wgsl", include_str!("lib/quant/linear_loads.wgsl")),
    ("quant/linear_quads.wgsl", include_str!("lib/quant/linear_quads.wgsl")),
    ("quant/loads.wgsl", include_str!("lib/quant/loads.wgsl")),
];
