//! What a training run needs besides model, optimizer and data: steps that fit the memory, and checkpoints to continue from.

mod adaptive;
mod checkpoints;

pub use adaptive::AdaptiveBatch;
pub use checkpoints::{Checkpoints, load_training, save_training};
