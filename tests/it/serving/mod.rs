//! Many requests at once on one model.

mod engine;
