//! A step's shader put together: its code, its bindings and its parameters, with the helpers that the code calls.

use super::operand::{Operands, Ty, View};
use super::uniforms::{UniformWord, Uniforms};
use crate::plan::RawKernel;
use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::sync::LazyLock;

/// Workgroups per dimension that every adapter takes.
pub(super) const MAX_GROUPS: u64 = crate::shader::MAX_GROUPS as u64;

/// A step, ready to become a pipeline and a dispatch.
pub(in crate::backends) struct StepShader {
    pub source: String,
    /// Bindings 1, 2, …; binding 0 is the block of parameters.
    pub views: Vec<View>,
    pub words: Vec<UniformWord>,
    pub grid: [u32; 3],
    /// Whether the shader can report a bad index.
    pub fails: bool,
    /// The form in the driver's own language; then `source` only tells it from others.
    pub raw: Option<RawKernel>,
}

impl StepShader {
    /// How many 16-byte rows the block of parameters has; at least one, since a binding cannot be empty.
    pub fn rows(&self) -> usize {
        self.words.len().div_ceil(4).max(1)
    }
}

/// The helper functions by name: source and the helpers it calls.
static PRELUDE: LazyLock<HashMap<&'static str, (&'static str, Vec<&'static str>)>> = LazyLock::new(|| {
    let source = include_str!("prelude.wgsl");
    let mut out = HashMap::new();
    let mut rest = source;
    while let Some(start) = rest.find("\nfn ") {
        let body = &rest[start + 1..];
        let end = body.find("\n}").map_or(body.len(), |e| e + 2);
        let function = &body[..end];
        let name = &function[3..function.find('(').unwrap_or(3)];
        let calls = identifiers(&function[3..]).filter(|i| i.starts_with("tl_") && *i != name).collect();
        out.insert(name, (function, calls));
        rest = &body[end..];
    }
    out
});

/// The words of a source that may be names.
pub(super) fn identifiers(source: &str) -> impl Iterator<Item = &str> {
    source.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).filter(|s| s.starts_with(|c: char| c.is_ascii_alphabetic()))
}

/// Appends the helpers that a shader calls, and those that they call.
fn append_prelude(source: &mut String) {
    let mut todo: Vec<&'static str> = identifiers(source).filter_map(|i| PRELUDE.get_key_value(i).map(|(k, _)| *k)).collect();
    let mut done = HashSet::new();
    while let Some(name) = todo.pop() {
        if done.insert(name)
            && let Some((_, calls)) = PRELUDE.get(name)
        {
            todo.extend(calls);
        }
    }
    // In one order, so that equal kernels have equal sources.
    let mut names: Vec<_> = done.into_iter().collect();
    names.sort_unstable();
    for n in names {
        source.push_str(PRELUDE[n].0);
        source.push('\n');
    }
}

/// Workgroups folded from one dimension into two where there are too many for one.
pub(super) fn fold(groups: u64) -> [u32; 3] {
    let y = groups.div_ceil(MAX_GROUPS);
    [groups.div_ceil(y.max(1)) as u32, y as u32, 1]
}

/// Puts a shader together: its constants, its bindings, the operands' functions, its body and the helpers that it calls.
pub(super) fn assemble(head: String, mut o: Operands, meta: Uniforms, body: &str, grid: [u32; 3]) -> StepShader {
    if [&o.wgsl, body].iter().any(|part| part.contains("codebooks[")) {
        o.codebooks();
    }
    o.share_slots();
    let mut source = head;
    source += &meta.declaration();
    for (n, v) in o.views.iter().enumerate() {
        let access = if v.written { "read_write" } else { "read" };
        let coherent = if v.ty == Ty::Scratch { "@coherent " } else { "" };
        let _ = writeln!(source, "@group(0) @binding({}) {coherent}var<storage, {access}> {}: {};", n + 1, v.name, v.ty.wgsl());
    }
    source += &o.wgsl;
    source += body;
    append_prelude(&mut source);
    StepShader { source, views: o.views, words: meta.words, grid, fails: false, raw: None }
}
