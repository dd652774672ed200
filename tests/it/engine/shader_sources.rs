//! Where shader source comes from: templates whose parameters have names, never source that Rust code puts together or changes.

use super::architecture::without_tests;
use super::source::without_text;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The folders of `src/` whose Rust code makes kernels.
const FOLDERS: [&str; 5] = ["ops", "shader", "backends", "measure", "metal"];

/// The folders of `src/` whose kernels are templates.
const TEMPLATES: [&str; 3] = ["metal", "ops", "shader"];

/// Files that may call `replace`: on something other than a kernel's source, or as the template engine. With the reason.
const REPLACING: [(&str, &str); 9] = [
    ("backends/codegen/msl_bodies.rs", "a body in Metal's language takes the place of the translated one"),
    ("shader/template.rs", "the template engine writes a loop out"),
    ("backends/gpu/driver.rs", "a cell gets another value"),
    ("backends/metal/archive.rs", "a file takes the place of another"),
    ("backends/stages.rs", "a cell gets another value"),
    ("backends/kept.rs", "a file takes the place of another"),
    ("backends/waits.rs", "a cell gets another value"),
    ("measure/plot.rs", "characters of labels in SVG"),
    ("backends/gpu/defragment.rs", "a value gets another buffer"),
];

/// Files with WGSL in their strings, with the reason.
const WRITING: [(&str, &str); 1] = [("ops/custom.rs", "a user's kernel is a source, which gets an entry point")];

/// The files of these folders of `src/` with this extension: the path in `src/`, and the source.
fn files(folders: &[&str], extension: &str) -> Vec<(String, String)> {
    files_of("src", folders, extension)
}

/// The same for folders of another part of the repository.
pub(super) fn files_of(part: &str, folders: &[&str], extension: &str) -> Vec<(String, String)> {
    fn collect(dir: &Path, extension: &str, out: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, extension, out);
            } else if path.extension().is_some_and(|e| e == extension) {
                out.push(path);
            }
        }
    }
    let (root, mut paths) = (Path::new(env!("TENSORLOGIC_ROOT")).join(part), Vec::new());
    folders.iter().for_each(|f| collect(&root.join(f), extension, &mut paths));
    paths.sort();
    let name = |p: &Path| p.strip_prefix(&root).unwrap().to_str().unwrap().replace('\\', "/");
    paths.iter().map(|p| (name(p), std::fs::read_to_string(p).unwrap())).collect()
}

/// Rust files of these folders outside of tests.
fn rust(folders: &[&str]) -> Vec<(String, String)> {
    let mut all = files(folders, "rs");
    all.retain(|(name, _)| !name.ends_with("/tests.rs") && !name.contains("/tests/"));
    all
}

/// Whether Rust code puts other source in the place of some, or another value in that of one.
fn replaces(rust: &str) -> bool {
    let code = without_tests(&without_text(rust)).0;
    [".replace(", ".replacen(", ".replace_range("].iter().any(|call| code.contains(call))
}

/// Whether a string of Rust code holds WGSL: a function, a variable of a workgroup or thread, a barrier, an attribute, a read of a numbered word.
fn writes(rust: &str) -> bool {
    let code = without_tests(rust).0;
    let lines = code.lines().map(str::trim).filter(|l| !l.starts_with("//"));
    let signs = ["@compute", "var<workgroup>", "var<private>", "Barrier()", "word({", "word(0", "\"fn ", "\\nfn "];
    lines.into_iter().any(|line| line.contains('"') && signs.iter().any(|s| line.contains(s)))
}

/// Lines of a template without comments.
fn code(wgsl: &str) -> String {
    wgsl.lines().map(|l| l.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

#[test]
fn no_code_replaces_source_of_a_kernel() {
    let found: Vec<String> = rust(&FOLDERS).into_iter().filter(|(_, source)| replaces(source)).map(|(name, _)| name).collect();
    let found: BTreeSet<&str> = found.iter().map(String::as_str).collect();
    assert_eq!(found, REPLACING.map(|(name, _)| name).into(), "a kernel's source is a template's: a value of it, not a replacement");
}

#[test]
fn no_code_writes_wgsl() {
    let found: Vec<String> = rust(&TEMPLATES).into_iter().filter(|(_, source)| writes(source)).map(|(name, _)| name).collect();
    assert_eq!(found, WRITING.map(|(name, _)| name), "WGSL belongs into a .wgsl file");
}

#[test]
fn kernels_read_parameters_by_name() {
    let all = files(&TEMPLATES, "wgsl");
    assert!(all.len() > 60, "the kernels were not found");
    for (name, source) in all.iter().chain(&files_of("benches", &["kernels"], "wgsl")) {
        assert!(!code(source).contains("word("), "{name} reads a numbered word; a field of its params! has a name");
    }
}

/// A section that stands in for what the generator provides: two sources of one function, of which one is never compiled.
#[test]
fn no_source_has_stand_ins() {
    let all = files_of("", &["src", "benches", "tests", "cli"], "wgsl");
    assert!(all.len() > 100, "the kernels were not found");
    for (name, source) in &all {
        assert!(!source.lines().any(|l| l.trim() == "// default"), "{name} has a section that stands in for generated functions");
    }
}

#[test]
fn every_template_says_what_it_is() {
    for (name, source) in files(&TEMPLATES, "wgsl") {
        let first = source.lines().next().unwrap_or_default();
        assert!(first.starts_with("// ") && first.len() > 20, "{name}: its first line says nothing: {first}");
    }
}

#[test]
fn what_is_forbidden_is_found() {
    assert!(replaces("fn f(s: &str) -> String { s.replace(\"A\", \"B\") }"));
    assert!(!replaces("// s.replace(\nfn f() { let s = \".replace(\"; }\n#[cfg(test)]\nmod tests { fn f() { s.replace(1, 2); } }"));
    assert!(writes("let s = \"fn f() { workgroupBarrier(); }\";") && writes("let s = format!(\"word({at}u)\");"));
    assert!(!writes("/// \"fn f()\"\nfn f() { g(\"name\"); }"));
    assert!(code("a = word(0u); // b").contains("word(") && !code("a; // word(0u)").contains("word("));
}
