//! Models on the Metal backend: the library's own tests of small ones against transformers, by the files of the program `it`. Each barrier is needed.

fake_metal::judge_until_exit!();

#[path = "../../it/models/architectures.rs"]
mod architectures;
#[path = "../../common/mod.rs"]
mod common;
#[path = "../../it/models/parity.rs"]
mod parity;
