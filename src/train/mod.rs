//! What a training run needs besides model, optimizer and data: checkpoints to continue from.

mod checkpoints;

pub use checkpoints::{Checkpoints, load_training, save_training};
