//! A block format is named in few files: its descriptor, the list of formats, the dtypes, a reader in WGSL where it is coded, and at most two more.

use std::path::{Path, PathBuf};

/// Files of Rust and WGSL below `dir`.
fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs" || e == "wgsl") {
            out.push(path);
        }
    }
}

/// Whether the code, without comments, has `name` as a word or the beginning of one, in small letters or capitals.
fn names(text: &str, name: &str) -> bool {
    let code = text.lines().map(|l| l.split("//").next().unwrap_or(l)).collect::<Vec<_>>().join("\n").to_lowercase();
    code.match_indices(name).any(|(at, _)| !code[at + name.len()..].starts_with(|c: char| c.is_ascii_alphanumeric()))
}

/// Formats of both kinds that nothing takes by default and no kernel is written for by hand, so that what names them is what had to be written for them.
#[test]
fn adding_a_block_format_touches_at_most_five_files() {
    let root = Path::new(env!("TENSORLOGIC_ROOT"));
    let mut files = Vec::new();
    ["src", "cli/src", "tests"].iter().for_each(|dir| sources(&root.join(dir), &mut files));
    // This file names them too.
    files.retain(|f| !f.ends_with(Path::new(file!()).file_name().unwrap()));
    assert!(files.len() > 300, "the sources were not found");
    let integers = ["q2_k", "q3_k"].map(|format| (format, false));
    let coded = ["iq1_m", "iq2_s", "iq3_xxs", "tq1_0", "tq2_0"].map(|format| (format, true));
    for (format, has_wgsl) in integers.into_iter().chain(coded) {
        let all: Vec<String> = files
            .iter()
            .filter(|f| f.file_stem().is_some_and(|s| s == format) || names(&std::fs::read_to_string(f).unwrap(), format))
            .map(|f| f.strip_prefix(root).unwrap().display().to_string())
            .collect();
        for own in [format!("src/quant/{format}.rs"), "src/quant/mod.rs".into(), "src/dtype.rs".into()] {
            assert!(all.contains(&own), "{format}: {own} is not among {all:?}");
        }
        assert_eq!(all.contains(&format!("src/quant/{format}.wgsl")), has_wgsl, "{format}: {all:?}");
        println!("{format}: {}", all.join(", "));
        assert!(all.len() <= 5, "{format} is named in {} files:\n{}", all.len(), all.join("\n"));
    }
}
