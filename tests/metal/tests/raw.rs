//! The engine backend's API on the Metal backend, by the tests of the program `it`: storage modes, handles, thread-group sizes, the five operations.

use fake_metal as _;

#[path = "../../common/mod.rs"]
mod common;
#[path = "../../it/engine/metal.rs"]
mod metal;
