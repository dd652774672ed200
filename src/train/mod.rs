//! Training support: steps that adapt to the available memory, and checkpoints to resume from.

mod adaptive;
mod checkpoints;

pub use adaptive::{AdaptiveBatch, AdaptiveRows};
pub use checkpoints::{Checkpoints, load_training, save_training};
