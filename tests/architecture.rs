//! The layers: a file of the library imports only from its own row and the rows above it (see ARCHITECTURE.md).

use std::path::{Path, PathBuf};

/// The rows, top to bottom; a name is a file or folder of `src/`.
const ROWS: [&[&str]; 7] = [
    &["error", "dtype", "shape", "layout", "scalar"],
    &["plan", "shader"],
    &["backends", "device"],
    &["tensor"],
    &["compile", "eval", "cpu_fallback", "transfer", "autograd"],
    &["ops"],
    &["nn", "optim", "data", "io", "text", "models", "metal", "profile", "measure", "train"],
];

/// What may be used from below or beside against the rows, with the reason.
const EXCEPTIONS: [(&str, &str); 7] = [
    // The plain decoders of block formats are words: they know bytes and nothing else.
    ("backends", "quant"),
    // A name of the engine backend's API: `backends::metal` is `metal`.
    ("backends", "metal"),
    // Methods of one type may call each other across files of the crate.
    ("eval", "ops"),
    ("autograd", "ops"),
    ("device", "backends"),
    ("tensor", "eval"),
    ("tensor", "ops"),
];

fn row(name: &str) -> Option<usize> {
    ROWS.iter().position(|r| r.contains(&name))
}

fn files(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

#[test]
fn imports_point_up_the_table() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut all = Vec::new();
    files(&src, &mut all);
    assert!(all.len() > 30, "the sources were not found");
    let mut wrong = Vec::new();
    for file in &all {
        let own =
            file.strip_prefix(&src).unwrap().components().next().unwrap().as_os_str().to_str().unwrap().trim_end_matches(".rs").to_string();
        let Some(own_row) = row(&own) else { continue };
        let text = std::fs::read_to_string(file).unwrap();
        // Tests may use anything.
        let text = text.split("#[cfg(test)]").next().unwrap();
        if file.ends_with("tests.rs") {
            continue;
        }
        for part in text.split("crate::").skip(1) {
            let used: String = part.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            let Some(used_row) = row(&used) else { continue };
            if used_row > own_row && !EXCEPTIONS.contains(&(own.as_str(), used.as_str())) {
                wrong.push(format!("{} uses crate::{used}", file.strip_prefix(&src).unwrap().display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_file_says_its_job_first() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut all = Vec::new();
    for dir in ["src", "cli/src", "xtask/src", "tests"] {
        files(&root.join(dir), &mut all);
    }
    for file in &all {
        let text = std::fs::read_to_string(file).unwrap();
        assert!(text.starts_with("//! "), "{} does not begin with a line `//! <its job>`", file.display());
    }
}
