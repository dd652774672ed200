//! Puts kernels' shader sources together: switches, unrolled loops, shared sections.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

/// A kernel's text with its switches decided: of each `if (NAME == 1u) {…} else {…}` only the branch that is taken stays, so that
/// functions which only the other one calls are not generated.
pub fn decide(mut text: String, switches: &[(&'static str, u32)]) -> Cow<'static, str> {
    for (name, value) in switches {
        let head = format!("if ({name} == 1u) {{");
        while let Some(start) = text.find(&head) {
            let open = start + head.len() - 1;
            let Some(close) = closing(&text, open) else { break };
            let other = text[close + 1..].strip_prefix(" else {").and_then(|_| closing(&text, close + 7).map(|end| (close + 7, end)));
            let (keep, end) = match (value, other) {
                (1, _) => (text[open..=close].to_string(), other.map_or(close, |o| o.1)),
                (_, Some((open, end))) => (text[open..=end].to_string(), end),
                (_, None) => (String::new(), close),
            };
            text.replace_range(start..=end, &keep);
        }
    }
    text.into()
}

/// Texts that are remembered.
const TEXTS: usize = 1024;
/// A text and the counts of its loops.
type Loops = (String, Vec<(&'static str, u32)>);

/// A text with each `for (var NAME = 0u; NAME < COUNT; NAME++) {…}` over one of these counts written out, so that no compiler keeps
/// what its body indexes in memory. The layers of a model ask for the same texts again and again.
pub fn unroll(text: String, counts: &[(&'static str, u32)]) -> String {
    static DONE: LazyLock<Mutex<HashMap<Loops, String>>> = LazyLock::new(Mutex::default);
    let key = (text, counts.to_vec());
    if let Some(done) = DONE.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
        return done.clone();
    }
    let written = write_out(key.0.clone(), counts);
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    if done.len() >= TEXTS {
        done.clear();
    }
    done.insert(key, written.clone());
    written
}

fn write_out(mut text: String, counts: &[(&'static str, u32)]) -> String {
    for (count, value) in counts {
        let tail = format!(" < {count}; ");
        // The innermost first: a body must not be copied before its own loops are written out.
        while let Some(at) = text.rfind(&tail) {
            let Some(start) = text[..at].rfind("for (var ") else { break };
            let name = text[start + 9..at].split(' ').next().unwrap_or_default().to_string();
            let Some(open) = text[at..].find('{').map(|o| at + o) else { break };
            let Some(close) = closing(&text, open) else { break };
            let body = &text[open + 1..close];
            let copies: String = (0..*value).map(|n| format!("{{ const {name} = {n}u;{body}}}\n")).collect();
            text.replace_range(start..=close, &copies);
        }
    }
    text
}

/// A text with the blocks that begin with `{ // NAME` written once for each of these values of the name.
pub fn repeat(mut text: String, name: &str, values: &[u32]) -> String {
    while let Some((open, close)) = text.find(&format!("{{ // {name}\n")).and_then(|open| Some((open, closing(&text, open)?))) {
        let body = &text[open..=close];
        let copies: String = values.iter().map(|v| body.replace(name, &format!("{v}u"))).collect();
        text.replace_range(open..=close, &copies);
    }
    text
}

/// A section of what several kernels share.
fn section<'a>(shared: &'a str, name: &str) -> &'a str {
    shared.split("// section ").find_map(|s| s.strip_prefix(name)?.strip_prefix('\n')).unwrap_or_default()
}

/// A kernel's text whose lines `// part NAME: x = …, y = …` are replaced by those sections of `parts`.
pub fn with_parts(kernel: &str, parts: &str) -> String {
    let part = |line: &str| {
        let (name, values) = line.trim().strip_prefix("// part ")?.split_once(": ")?;
        let values = values.split(", ").filter_map(|v| v.split_once(" = "));
        Some(values.fold(section(parts, name).to_string(), |text, (name, value)| text.replace(&format!("${name}"), value)))
    };
    kernel.lines().map(|line| part(line).unwrap_or_else(|| format!("{line}\n"))).collect()
}

/// Quads of rows as attention reads and writes them.
const ROWS: &str = include_str!("lib/rows.wgsl");

/// A section of theirs that fetches or stores quads, for one of several operands: under this name, over load or store `number`, whose rows
/// are whole quads where `vec` says so. Zeros stand beyond a row's end.
pub fn quads(of: &str, name: &str, number: usize, vec: &str) -> String {
    let text = section(ROWS, of).replace(&format!("fn {of}("), &format!("fn {name}("));
    text.replace("_0(", &format!("_{number}(")).replace("VEC", vec).replace("REST", "0.0")
}

/// The brace that closes the one at `open`.
fn closing(text: &str, open: usize) -> Option<usize> {
    let mut depth = 0usize;
    text.bytes().enumerate().skip(open).find_map(|(i, c)| {
        depth = match c {
            b'{' => depth + 1,
            b'}' => depth - 1,
            _ => depth,
        };
        (depth == 0).then_some(i)
    })
}
