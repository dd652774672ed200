//! Training support: steps that adapt to the available memory, steps of lanes for several ranks, and checkpoints to resume from.

mod adaptive;
mod buckets;
mod checkpoints;
mod lane_sums;
mod lanes;
mod stages;

pub use adaptive::{AdaptiveBatch, AdaptiveRows};
pub use checkpoints::{Checkpoints, load_training, save_training, save_training_state};
pub use lanes::LaneStep;
pub use stages::{Stage, Stages};
