//! A small Jinja: the language of chat templates with Python's semantics, and a bound on steps, memory and output.
//!
//! Written here because a template comes with a download: an engine that counts instructions does not see that one of them may
//! double a text, and one without Python's printing, errors and order of keys gives a model another prompt than it was trained on.
//!
//! Not a general template engine: no includes, inheritance, imports or recursive loops. Values cannot be changed in place, as
//! in the sandbox that templates are written for. Nothing outside the given variables can be reached.

mod args;
mod builtins;
mod json;
mod lexer;
mod lookup;
mod meter;
mod methods;
mod run;
mod syntax;
mod value;

pub(crate) use run::{RenderLimits, render};
pub(crate) use syntax::{Body, parse};
