//! Examples in documentation run in one process, as threads that share devices: those that observe a whole device need their own process.

use super::source::files;
use std::path::{Path, PathBuf};

/// Calls that observe or change the state of a device that others use too.
const OF_A_WHOLE_DEVICE: [&str; 9] = [
    ".profile(",
    ".profile_steps(",
    "LeakDetector::new(",
    ".scope(",
    ".memory_profile(",
    ".optimize_memory",
    ".set_memory_limit(",
    "PerformanceMonitor::new(",
    ".diagnose(",
];

/// The blocks of code in the documentation that run as tests: the line of the opening fence, its tags, and the code.
fn blocks(source: &str, comments: bool) -> Vec<(usize, String, String)> {
    let (mut blocks, mut open) = (Vec::new(), None::<(usize, String, String)>);
    for (n, line) in source.lines().enumerate() {
        let line = line.trim_start();
        let comment = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        let Some(text) = (if comments { comment } else { Some(line) }) else {
            open = None;
            continue;
        };
        let fence = text.trim_start().strip_prefix("```");
        match (fence, &mut open) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(tags), None) => open = Some((n + 1, tags.to_string(), String::new())),
            (None, Some((_, _, code))) => *code += &format!("{text}\n"),
            (None, None) => {}
        }
    }
    let runs = |tags: &str| {
        !tags.split(',').any(|t| ["text", "ignore", "no_run", "compile_fail", "sh", "toml", "json", "wgsl"].contains(&t.trim()))
    };
    blocks.retain(|(_, tags, _)| runs(tags));
    blocks
}

#[test]
fn examples_that_observe_a_device_run_alone() {
    let root = Path::new(env!("TENSORLOGIC_ROOT"));
    let mut sources: Vec<PathBuf> = Vec::new();
    files(&root.join("src"), &mut sources);
    let library = std::fs::read_to_string(root.join("src/lib.rs")).unwrap();
    sources.extend(library.split("include_str!(\"../").skip(1).map(|rest| root.join(rest.split('"').next().unwrap())));
    let (mut wrong, mut alone) = (Vec::new(), 0);
    for path in sources {
        let comments = path.extension().is_some_and(|e| e == "rs");
        for (line, tags, code) in blocks(&std::fs::read_to_string(&path).unwrap(), comments) {
            if comments || tags.contains("rust") {
                let observes = OF_A_WHOLE_DEVICE.iter().find(|call| code.contains(**call));
                alone += observes.is_some() as usize;
                if let Some(call) = observes.filter(|_| !tags.contains("standalone_crate")) {
                    wrong.push(format!("{}:{line} calls {call}…): mark the block standalone_crate", path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(alone > 10, "only {alone} such examples were found");
}
