//! Gradients.

mod attention_dropout;
mod gradient_checks;
mod gradient_checks_support;
mod gradients;
