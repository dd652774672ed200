//! Many requests at once on one model: an engine that reads prompts and writes answers in common steps, with keys and values in pages. It has no
//! network; programs use it directly, for batches too.
//!
//! What differs from row to row of a step is data (positions, pages, numbers of keys, settings of the choice), so that a few prepared steps serve every
//! mixture of requests (`steps`). A `scheduler` without device or clock decides which rows go on, and which pages they have (`pages`).

mod adjust;
mod answer;
mod choose;
mod door;
mod engine;
mod limited;
mod listeners;
mod lookup;
mod options;
mod pages;
mod queue;
mod request;
mod round;
mod scheduler;
mod stats;
mod steps;
mod thread;

pub use answer::{Answer, RequestHandle};
pub use engine::Engine;
pub use options::EngineOptions;
pub use request::{Constraint, Event, FinishReason, LogProbs, Refusal, Request, Sampling, Usage};
pub use stats::{Distribution, EngineStats};
