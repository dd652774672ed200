//! Many requests at once on one model: an engine that reads prompts and writes answers in common steps, with keys and values in pages. It has no
//! network; programs use it directly, for batches too.
//!
//! What differs from row to row of a step is data (positions, pages, numbers of keys, settings of the choice), so that a few prepared steps serve every
//! mixture of requests (`steps`). A `scheduler` without device or clock decides which rows go on, and which pages they have (`pages`).

mod adjust;
mod choose;
mod engine;
mod listeners;
mod lookup;
mod pages;
mod request;
mod scheduler;
mod stats;
mod steps;

pub use engine::{Answer, Engine, EngineOptions, Ticket};
pub use request::{Constraint, Event, FinishReason, LogProbs, Refusal, Request, Sampling, Usage};
pub use stats::{Distribution, EngineStats};
