//! Block formats.

mod block_scales;
mod formats;
mod one_descriptor;
