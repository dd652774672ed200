//! Block formats.

mod block_scales;
mod formats;
