//! Many requests at once on one model.

mod engine;
mod faults;
mod padding;
