//! Rust source as the tests about it read it.

use std::path::{Path, PathBuf};

/// The Rust files of a folder and of those in it.
pub fn files(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

/// Rust source without comments and with empty strings, and with as many lines as before.
pub fn without_text(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let starts = |i: usize, what: &str| what.chars().enumerate().all(|(k, c)| chars.get(i + k) == Some(&c));
    let word = |c: char| c.is_alphanumeric() || c == '_';
    let (mut out, mut i) = (String::new(), 0);
    while i < chars.len() {
        let hashes = (i + 1..).take_while(|&k| chars.get(k) == Some(&'#')).count();
        let raw = chars[i] == 'r' && chars.get(i + 1 + hashes) == Some(&'"') && (i == 0 || !word(chars[i - 1]) || chars[i - 1] == 'b');
        if starts(i, "//") {
            i += chars[i..].iter().take_while(|&&c| c != '\n').count();
        } else if starts(i, "/*") {
            let (mut depth, start) = (0, i);
            loop {
                let step = if starts(i, "/*") { 1 } else { -(starts(i, "*/") as i32) };
                depth += step;
                i += if step == 0 { 1 } else { 2 };
                if depth == 0 {
                    break;
                }
            }
            out.extend(chars[start..i].iter().filter(|c| **c == '\n'));
        } else if raw {
            let (end, start) = (format!("\"{}", "#".repeat(hashes)), i);
            i += hashes + 2;
            i += (0..).find(|k| starts(i + k, &end)).expect("a raw string ends") + end.len();
            out += "\"\"";
            out.extend(chars[start..i].iter().filter(|c| **c == '\n'));
        } else if chars[i] == '"' {
            let start = i;
            i += 1;
            while chars[i] != '"' {
                i += 1 + (chars[i] == '\\') as usize;
            }
            i += 1;
            out += "\"\"";
            out.extend(chars[start..i].iter().filter(|c| **c == '\n'));
        } else if chars[i] == '\'' && (chars.get(i + 1) == Some(&'\\') || chars.get(i + 2) == Some(&'\'')) {
            // A character, not a lifetime.
            i += 2 + (chars[i + 1] == '\\') as usize;
            i += chars[i..].iter().take_while(|&&c| c != '\'').count() + 1;
            out += "' '";
        } else {
            out.push(chars[i]);
            i += 1;
        }
    }
    out
}
