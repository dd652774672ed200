//! Models on the Metal backend: the library's own tests of small ones against transformers.

use fake_metal as _;

#[path = "../../common/mod.rs"]
mod common;
#[path = "../../it/models/parity.rs"]
mod parity;
