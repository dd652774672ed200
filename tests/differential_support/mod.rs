//! Random graphs over every operation: how they are made, run, compared and made smaller.

pub mod check;
pub mod elementwise;
pub mod graph;
pub mod ops;
pub mod products;
pub mod quantized;
pub mod reference;
pub mod rows;
pub mod shrink;
pub mod transforms;
pub mod views;
pub mod windows;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::LazyLock;
use tensorlogic::Device;

/// The GPU under test.
pub fn gpu() -> Option<&'static Device> {
    static GPU: LazyLock<Option<Device>> = LazyLock::new(crate::common::gpu);
    GPU.as_ref()
}

/// A number from the environment.
pub fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |v| v.parse().unwrap_or_else(|_| panic!("{name} is {v}, not a number")))
}

/// Every public function that gives a tensor, several, or one as integers, as the sources name them: methods of `Tensor` by their names, in `src/ops` and
/// `src/quant` also functions of other types as `Type::name`, and free ones as `module::name`.
pub fn methods() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    scan(&Path::new(env!("TENSORLOGIC_ROOT")).join("src"), &mut found);
    found
}

fn scan(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            scan(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = std::fs::read_to_string(&path).expect("a source");
            in_blocks(&text, found);
            in_tables(&text, found);
            let parts: Vec<&str> = path.iter().filter_map(|p| p.to_str()).collect();
            let behind = parts.iter().rposition(|p| *p == "src").map_or(&[][..], |src| &parts[src + 1..]);
            if matches!(behind, ["ops" | "quant", ..] | ["autograd.rs"]) {
                let name = behind[behind.len() - 1].trim_end_matches(".rs");
                free(&text, if name == "mod" { behind[behind.len() - 2] } else { name }, found);
            }
        }
    }
}

/// Whether a function whose head this is gives a tensor, and its name.
fn giving(head: &str) -> Option<String> {
    let head = head.split('{').next().expect("a first part");
    let words = head.rsplit_once("->")?.1.split(|c: char| !c.is_alphanumeric());
    let gives = words.into_iter().any(|w| w == "Tensor" || w == "Quantized");
    gives.then(|| head.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect())
}

/// Methods that are written out.
fn in_blocks(text: &str, found: &mut BTreeSet<String>) {
    for block in text.split("\nimpl Tensor {\n").skip(1) {
        let block = block.split("\n}\n").next().expect("a first part");
        found.extend(block.split("\n    pub fn ").skip(1).filter_map(giving));
    }
}

/// Free functions of a module, and those of its types.
fn free(text: &str, module: &str, found: &mut BTreeSet<String>) {
    found.extend(text.split("\npub fn ").skip(1).filter_map(giving).map(|name| format!("{module}::{name}")));
    for block in text.split("\nimpl").skip(1) {
        let block = block.split("\n}\n").next().expect("a first part");
        let Some((head, body)) = block.split_once(" {\n") else { continue };
        // Generic parameters come first.
        let head = if head.starts_with('<') { head.split_once("> ").map_or(head, |h| h.1) } else { head.trim() };
        let name: String = head.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        if name == "Tensor" || head.contains(" for ") {
            continue;
        }
        found.extend(format!("\n{body}").split("\n    pub fn ").skip(1).filter_map(giving).map(|method| format!("{name}::{method}")));
    }
}

/// Methods by tables: `Kind = name {` in those of scalar primitives, `"doc" name name Kind, …;` in that of reductions, with an example behind the
/// comma.
fn in_tables(text: &str, found: &mut BTreeSet<String>) {
    if text.contains("_primitives {\n    ($with:ident) => {\n") {
        let rows = text.lines().filter_map(|l| l.strip_prefix("            ")?.strip_suffix(" {")?.split_once(" = "));
        found.extend(rows.map(|(_, name)| name.to_string()));
    }
    if let Some((_, body)) = text.split_once("\nreductions! {\n") {
        let lines = body.split("\n}").next().expect("a first part").lines().map(str::trim);
        for line in lines.filter(|l| l.ends_with(';') && !l.starts_with("///")) {
            let names = line.rsplit('"').next().expect("a last part").split([',', ';']).next().expect("a first part");
            let words: Vec<&str> = names.split_whitespace().filter(|w| *w != "=").collect();
            found.extend(words[..words.len() - 1].iter().map(|w| w.to_string()));
        }
    }
}
