//! No function is longer than 100 lines.

use super::source::{files, without_text};
use std::path::Path;

/// The most lines of a function, from its `fn` to its last brace.
const MAX_LINES: usize = 100;

/// The end of the block, or of the list in brackets, that begins at `start`.
fn end_of_group(source: &str, start: usize) -> usize {
    let mut depth = 0;
    let end = source[start..].char_indices().find_map(|(i, c)| {
        depth += i32::from("([{".contains(c)) - i32::from(")]}".contains(c));
        (depth == 0).then_some(start + i + 1)
    });
    end.expect("brackets that match")
}

/// The end of a function whose name ends at `start`; `None` where it has no body.
fn end_of_function(source: &str, start: usize) -> Option<usize> {
    let mut at = start;
    loop {
        at += source[at..].find(['(', '[', '{', ';'])?;
        if source[at..].starts_with(';') {
            return None;
        }
        let (is_block, end) = (source[at..].starts_with('{'), end_of_group(source, at));
        // A block in a type, as in `[u8; { N }]` or `Vector<{ N }>`, is followed by more of the type.
        if is_block && !source[end..].trim_start().starts_with(['>', ',']) {
            return Some(end);
        }
        at = end;
    }
}

/// Each function with a body: its name, its line, its number of lines.
fn functions(source: &str) -> Vec<(String, usize, usize)> {
    let source = without_text(source);
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (at, _) in source.match_indices("fn ").filter(|(at, _)| !source[..*at].ends_with(is_word)) {
        let name: String = source[at + 3..].chars().take_while(|c| is_word(*c)).collect();
        if !name.is_empty()
            && let Some(end) = end_of_function(&source, at + 3 + name.len())
        {
            found.push((name, source[..at].matches('\n').count() + 1, source[at..end].lines().count()));
        }
    }
    found
}

/// Compares the functions of a source with those expected, as (name, lines).
#[track_caller]
fn check(source: &str, expected: &[(&str, usize)]) {
    let found: Vec<_> = functions(source).into_iter().map(|(name, _, lines)| (name, lines)).collect();
    assert_eq!(found.iter().map(|(name, lines)| (name.as_str(), *lines)).collect::<Vec<_>>(), expected, "{source}");
}

#[test]
fn functions_are_measured_from_fn_to_their_last_brace() {
    check("/// fn of(a) {}\npub fn a() {}\n\nfn b(\n    x: u8,\n) -> u8 {\n    x\n}\n", &[("a", 1), ("b", 5)]);
    check("trait T {\n    fn no_body(&self);\n    fn body(&self) -> [u8; 2] {\n        [1, 2]\n    }\n}", &[("body", 3)]);
    // What is inside of another function counts for both, and text counts as lines only.
    check("fn a() {\n    fn b() {\n    }\n}", &[("a", 4), ("b", 2)]);
    check("fn a() -> &str {\n    \"}\n}\"; /* {\n */ r#\"\n\"}\"#\n}", &[("a", 6)]);
    check("fn a(f: impl Fn(u8) -> u8, g: fn(u8) -> u8) -> Vector<{ N }>\nwhere\n    F: X,\n{\n}", &[("a", 5)]);
    check("macro_rules! m { ($name:ident) => { fn $name() {} } } // fn c() {}", &[]);
}

#[test]
fn no_function_is_longer_than_100_lines() {
    let root = Path::new(env!("TENSORLOGIC_ROOT"));
    let (mut long, mut seen) = (Vec::new(), 0);
    for folder in ["src", "cli/src", "xtask/src", "benches", "examples"] {
        let mut all = Vec::new();
        files(&root.join(folder), &mut all);
        for file in all {
            for (name, line, lines) in functions(&std::fs::read_to_string(&file).unwrap()) {
                seen += 1;
                if lines > MAX_LINES {
                    long.push(format!("{}:{line}: {name} has {lines} lines", file.strip_prefix(root).unwrap().display()));
                }
            }
        }
    }
    assert!(seen > 1000, "only {seen} functions were found");
    assert!(long.is_empty(), "break these up by the jobs they do:\n{}", long.join("\n"));
}
