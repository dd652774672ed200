//! What kernels' shader sources share: assembly from parts, reductions over threads, loaders, and the grid of a dispatch.

pub mod assembly;
pub mod launch;
pub mod row_group;
pub mod vec16;

pub use assembly::{decide, quads, repeat, unroll, with_parts, with_rows};
pub use launch::{MAX_GROUPS, col_major, grid, indexable, start, words};
