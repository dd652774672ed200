//! Block formats and affine quantization.

mod affine;
mod block_scales;
mod formats;
mod one_descriptor;
mod stored_layers;
