//! Functions of a Metal source get workgroup memory as pointers, not as references.
//!
//! A reference parameter tells a compiler that it may read the memory at any time, so also ahead of a barrier; a pointer does not. Apple's compiler is
//! suspected to break barriers over reference parameters (<https://github.com/gfx-rs/wgpu/pull/9380>).

use super::msl_bodies::{arguments, first_word, in_name, is_qualified};
use std::collections::BTreeMap;

/// The places of a function's parameters that are workgroup memory.
type Places = Vec<usize>;

/// A parameter that is a reference to workgroup memory, as its type and its name.
fn reference(parameter: &str) -> Option<(&str, &str)> {
    parameter.trim().trim_end_matches(',').strip_prefix("threadgroup ")?.split_once("& ")
}

/// The name of the function whose parameters follow this line, if naga's source begins one: the kernel has its memory in its body.
fn begins(line: &str) -> Option<&str> {
    let head = line.strip_suffix('(').filter(|h| !h.starts_with(' ') && !h.contains("kernel void "))?;
    head.rsplit(|c| !in_name(c)).next().filter(|name| !name.is_empty())
}

/// Makes references to workgroup memory pointers, which the bodies of functions name as before.
pub fn memory_by_pointer(source: &str) -> String {
    let (mut out, mut functions) = (String::with_capacity(source.len()), BTreeMap::<&str, Places>::new());
    let (mut head, mut count, mut named): (Option<&str>, usize, String) = (None, 0, String::new());
    for line in source.lines() {
        match head {
            None => head = begins(line).inspect(|_| count = 0),
            Some(_) if line == ") {" => {
                head = None;
                out += line;
                out.push('\n');
                out += &std::mem::take(&mut named);
                continue;
            }
            Some(name) => {
                if let Some((kind, memory)) = reference(line) {
                    functions.entry(name).or_default().push(count);
                    named += &format!("    threadgroup {kind}& {memory} = *{memory}_pointer;\n");
                    let comma = if line.ends_with(',') { "," } else { "" };
                    out += &format!("    threadgroup {kind}* {memory}_pointer{comma}\n");
                    count += 1;
                    continue;
                }
                count += 1;
            }
        }
        out += line;
        out.push('\n');
    }
    if functions.is_empty() { out } else { with_addresses(&out, &functions) }
}

/// Passes the address of workgroup memory to functions that get it.
fn with_addresses(source: &str, functions: &BTreeMap<&str, Places>) -> String {
    let (mut out, mut rest) = (String::with_capacity(source.len()), source);
    while let Some([before, word, after]) = first_word(rest) {
        out += before;
        out += word;
        rest = after;
        // A definition has its parameters on lines of their own; other namespaces and objects have functions of their own.
        let called = after.strip_prefix('(').filter(|a| !is_qualified(before) && !a.starts_with('\n'));
        let (Some(places), Some((passed, behind))) = (functions.get(word), called.and_then(arguments)) else { continue };
        let passed = passed.iter().enumerate().map(|(place, argument)| {
            let (argument, address) = (with_addresses(argument, functions), if places.contains(&place) { "&" } else { "" });
            let name = argument.trim_start();
            format!("{}{address}{name}", &argument[..argument.len() - name.len()])
        });
        out.push('(');
        out += &passed.collect::<Vec<_>>().join(",");
        rest = behind;
    }
    out + rest
}
