//! The way from an idea to code: how many source files must name a new operation or model, counted for one real example of each kind.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Sources of the library and the command.
fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            // Tests do not count. Neither does the definition of a primitive, with which tests compare it; it is asked about below.
            if name != "tests" {
                sources(&path, out);
            }
        } else if (name.ends_with(".rs") || name.ends_with(".wgsl")) && name != "tests.rs" && name != "definition.rs" {
            out.push(path);
        }
    }
}

/// A file's text without comments and without its module of tests.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    text.lines().map(|l| l.split("//").next().unwrap_or(l)).collect::<Vec<_>>().join("\n")
}

/// Whether code names this word, as a whole (not `gemma3` in the download `gemma3-270m`), other than by calling a method of that name on something, which is a use.
fn names(code: &str, word: &str) -> bool {
    let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '-');
    code.match_indices(word).any(|(at, _)| {
        let (before, behind) = (code[..at].chars().next_back(), code[at + word.len()..].chars().next());
        !part(before) && !part(behind) && before != Some('.')
    })
}

/// The files that name one of these words: a folder of the operation's own counts once.
fn named(words: &[&str], folder: Option<&str>) -> BTreeSet<String> {
    let root = Path::new(env!("TENSORLOGIC_ROOT"));
    let mut all = Vec::new();
    ["src", "cli/src"].iter().for_each(|dir| sources(&root.join(dir), &mut all));
    assert!(all.len() > 200, "the sources were not found");
    let places = all.iter().filter_map(|file| {
        let text = code(&std::fs::read_to_string(file).unwrap());
        let name = file.strip_prefix(root).unwrap().to_str().unwrap().replace('\\', "/");
        let own = folder.filter(|f| name.starts_with(f)).map(String::from);
        (own.is_some() || words.iter().any(|w| names(&text, w))).then(|| own.unwrap_or(name))
    });
    places.collect()
}

#[track_caller]
fn check(words: &[&str], folder: Option<&str>, expected: &[&str]) {
    let found = named(words, folder);
    assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), expected, "files that name {words:?}");
}

#[test]
fn a_composite_is_one_function() {
    check(&["huber_loss"], None, &["src/ops/loss.rs"]);
    check(&["logsumexp"], None, &["src/ops/reduce/mod.rs"]);
    check(&["hypot"], None, &["src/ops/arithmetic.rs"]);
}

#[test]
fn a_scalar_primitive_is_a_row_and_at_most_a_helper_for_each_language() {
    // Rust has it, WGSL's own is not accurate enough.
    check(&["Asinh", "tl_asinh"], None, &["src/backends/codegen/prelude.wgsl", "src/scalar/unary.rs"]);
    // Neither has it.
    check(
        &["Erf", "erf", "erf64", "tl_erf"],
        None,
        &["src/backends/codegen/prelude.wgsl", "src/backends/cpu/math.rs", "src/scalar/unary.rs"],
    );
    // Of two arguments, where Rust has it.
    check(&["Copysign", "tl_copysign"], None, &["src/backends/codegen/prelude.wgsl", "src/scalar/binary.rs"]);
    // Its method has an error of its own.
    check(
        &["Nextafter", "nextafter", "tl_nextafter"],
        None,
        &["src/backends/codegen/prelude.wgsl", "src/ops/float_bits.rs", "src/scalar/binary.rs"],
    );
    // One file more states what each means in f64.
    let definitions = Path::new(env!("TENSORLOGIC_ROOT")).join("src/scalar/definition.rs");
    let definitions = code(&std::fs::read_to_string(definitions).unwrap());
    assert!(["Asinh", "Erf", "Copysign"].iter().all(|name| names(&definitions, name)), "scalar/definition.rs defines every primitive");
}

#[test]
fn a_reduction_is_two_files() {
    check(&["Prod"], None, &["src/ops/reduce/gpu.rs", "src/ops/reduce/mod.rs"]);
}

#[test]
fn a_kernel_op_is_its_folder_and_a_list() {
    check(&["index_add", "IndexAdd"], Some("src/ops/index_add"), &["src/ops/index_add", "src/ops/mod.rs"]);
    check(&["cross_entropy_kernel", "CrossEntropy"], Some("src/ops/cross_entropy"), &["src/ops/cross_entropy"]);
}

#[test]
fn a_model_is_its_file_and_a_list() {
    // Beside them: the models that have it as their text side, and the shape of a benchmark.
    let [text, shape] = ["src/models/text_part.rs", "cli/src/random_model.rs"];
    let own = ["src/models/architectures/gemma3.rs", "src/models/architectures/mod.rs"];
    check(&["gemma3", "Gemma3", "gemma3_text"], None, &[shape, own[0], own[1], text]);
}

#[test]
fn names_are_words_and_not_calls() {
    assert!(names("fn erf(x)", "erf") && names("math::erf::<F>", "erf") && names("erf", "erf"));
    assert!(!names("x.erf()", "erf") && !names("erfc tl_erf", "erf") && !names("", "erf"));
    assert_eq!(code("a // erf\nb\n#[cfg(test)]\nmod tests {\nerf"), "a \nb");
}
