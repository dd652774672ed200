//! The layers: a file of the library imports only from its own row and the rows above it (see ARCHITECTURE.md); and no files import each other.

use super::source::{files, without_text};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The rows, top to bottom; a name is a file or folder of `src/`.
const ROWS: [&[&str]; 8] = [
    &["error", "events", "dtype", "shape", "layout", "scalar", "quant"],
    &["plan", "shader", "strategy", "tuning"],
    &["backends", "device"],
    &["tensor"],
    &["compile", "eval", "cpu_fallback", "crossover", "transfer", "diagnose", "metrics"],
    &["ops", "autograd", "display"],
    &["nn", "optim", "data", "io", "text", "models", "metal", "profile", "measure", "distributed", "train", "leaks", "serving"],
    &["lib", "prelude"],
];

/// What may be used against the rows, with the reason.
const EXCEPTIONS: [(&str, &str); 1] = [
    // A name of the engine backend's public API: `backends::metal` is `metal`.
    ("backends", "metal"),
];

/// A module by the names on its path from the crate's root; the root has none.
type Module = Vec<String>;

/// Source without its items for tests only, and the names of the modules among these.
pub(super) fn without_tests(source: &str) -> (String, Vec<String>) {
    let (mut out, mut rest, mut modules) = (String::new(), source, Vec::new());
    let next = |rest: &str| ["#[cfg(test)]", "#[cfg(all(test,"].iter().filter_map(|t| rest.find(t)).min();
    while let Some(at) = next(rest) {
        out += &rest[..at];
        // An item ends with its block, or with a semicolon outside of brackets.
        let mut depth = 0;
        let end = rest[at..].char_indices().find_map(|(i, c)| {
            depth += i32::from("([{".contains(c)) - i32::from(")]}".contains(c));
            (depth < 0 || depth == 0 && "};".contains(c)).then_some(at + i + 1)
        });
        let (item, behind) = rest.split_at(end.unwrap_or(rest.len()));
        let name = item[at..].split("mod ").nth(1).map(|n| n.trim().trim_end_matches(';'));
        modules.extend(name.filter(|n| n.chars().all(|c| c.is_alphanumeric() || c == '_')).map(String::from));
        rest = behind;
    }
    (out + rest, modules)
}

/// Paths that begin at the crate, or at this module or one above it; those in braces one by one.
fn paths(source: &str) -> Vec<Vec<String>> {
    let mut tokens = Vec::new();
    let mut rest = source;
    while let Some(c) = rest.chars().next() {
        let word = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').map(char::len_utf8).sum::<usize>();
        let len = if word > 0 { word } else { rest.starts_with("::") as usize + c.len_utf8() };
        if !c.is_whitespace() {
            tokens.push(&rest[..len]);
        }
        rest = &rest[len..];
    }
    let mut found = Vec::new();
    let mut i = 0;
    while i < tokens.len() {
        let begins = ["crate", "super", "self"].contains(&tokens[i]) && tokens.get(i + 1) == Some(&"::");
        // `a::super` is not the beginning of a path.
        i = if begins && (i == 0 || tokens[i - 1] != "::") { tree(&tokens, i, &[], &mut found) } else { i + 1 };
    }
    found
}

/// Reads one path, or in braces a list of them, from token `i` on; gives the token behind it.
fn tree(tokens: &[&str], mut i: usize, prefix: &[String], found: &mut Vec<Vec<String>>) -> usize {
    let mut path = prefix.to_vec();
    loop {
        if tokens.get(i) == Some(&"{") {
            i += 1;
            while tokens.get(i).is_some_and(|t| *t != "}") {
                i = tree(tokens, i, &path, found);
                // Behind a name: `as other`, and what separates it from the next.
                while tokens.get(i).is_some_and(|t| *t != "}" && *t != ",") {
                    i += 1;
                }
                i += tokens.get(i).is_some_and(|t| *t == ",") as usize;
            }
            return i + 1;
        }
        match tokens.get(i) {
            Some(t) if t.starts_with(|c: char| c.is_alphabetic() || c == '_') => path.push(t.to_string()),
            _ => break,
        }
        i += 1;
        if tokens.get(i) != Some(&"::") {
            break;
        }
        i += 1;
    }
    found.push(path);
    i
}

/// The module that a path of module `own` names, or names something of.
fn resolve(path: &[String], own: &Module, modules: &BTreeSet<Module>) -> Module {
    let mut full = if path[0] == "crate" { Vec::new() } else { own.clone() };
    let mut rest = path;
    while let Some((first, behind)) = rest.split_first().filter(|(f, _)| ["crate", "super", "self"].contains(&f.as_str())) {
        if first == "super" {
            full.pop();
        }
        rest = behind;
    }
    full.extend(rest.iter().cloned());
    while !modules.contains(&full) {
        full.pop();
    }
    full
}

/// The modules of the library outside of tests, and of each those that it imports from.
fn imports() -> BTreeMap<Module, BTreeSet<Module>> {
    let src = Path::new(env!("TENSORLOGIC_ROOT")).join("src");
    let mut all = Vec::new();
    files(&src, &mut all);
    assert!(all.len() > 30, "the sources were not found");
    let mut sources = BTreeMap::new();
    let mut tests: Vec<Module> = Vec::new();
    for file in &all {
        let mut module: Module =
            file.strip_prefix(&src).unwrap().with_extension("").iter().map(|n| n.to_str().unwrap().to_string()).collect();
        if module == ["lib"] || module.last().is_some_and(|n| n == "mod") {
            module.pop();
        }
        let (source, of_tests) = without_tests(&without_text(&std::fs::read_to_string(file).unwrap()));
        tests.extend(of_tests.into_iter().map(|name| [&module[..], &[name]].concat()));
        sources.insert(module, source);
    }
    sources.retain(|module, _| !tests.iter().any(|t| module.starts_with(t)));
    let modules: BTreeSet<Module> = sources.keys().cloned().collect();
    let of = |own: &Module, source: &String| {
        let used = paths(source).iter().map(|p| resolve(p, own, &modules)).collect::<BTreeSet<_>>();
        used.into_iter().filter(|m| !m.starts_with(own)).collect()
    };
    sources.iter().map(|(own, source)| (own.clone(), of(own, source))).collect()
}

/// The name that stands in the rows.
fn top(module: &Module) -> &str {
    module.first().map_or("lib", String::as_str)
}

#[test]
fn imports_point_up_the_table() {
    let row = |name: &str| ROWS.iter().position(|r| r.contains(&name));
    let imports = imports();
    for name in ROWS.concat() {
        assert!(imports.keys().any(|m| top(m) == name), "the row names {name}, which is not in src/");
    }
    let mut wrong = Vec::new();
    let mut excepted = BTreeSet::new();
    for (own, used) in imports.iter().flat_map(|(own, used)| used.iter().map(move |u| (own, u))) {
        let pair = (top(own), top(used));
        let Some(own_row) = row(pair.0) else { panic!("src/{} has no row in tests/it/engine/architecture.rs and ARCHITECTURE.md", pair.0) };
        let Some(used_row) = row(pair.1) else {
            panic!("src/{} has no row in tests/it/engine/architecture.rs and ARCHITECTURE.md", pair.1)
        };
        if used_row > own_row {
            match EXCEPTIONS.contains(&pair) {
                true => drop(excepted.insert(pair)),
                false => {
                    wrong.push(format!("{} uses {}", own.join("::"), if used.is_empty() { "the root".into() } else { used.join("::") }))
                }
            }
        }
    }
    assert!(wrong.is_empty(), "against the rows:\n{}", wrong.join("\n"));
    assert_eq!(excepted.len(), EXCEPTIONS.len(), "an exception is not needed any more: {excepted:?} are");
}

/// What a module imports, directly or through others.
fn reached<'a>(imports: &'a BTreeMap<Module, BTreeSet<Module>>, from: &'a Module) -> BTreeSet<&'a Module> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(m) = next.pop() {
        next.extend(imports.get(m).into_iter().flatten().filter(|u| seen.insert(*u)));
    }
    seen
}

/// Neither directly nor through others. A file that names its own submodules does not import them.
#[test]
fn no_files_import_each_other() {
    let imports = imports();
    let reach: BTreeMap<&Module, BTreeSet<&Module>> = imports.keys().map(|m| (m, reached(&imports, m))).collect();
    let loops: BTreeSet<Vec<&Module>> = reach
        .iter()
        .filter(|(m, far)| far.contains(*m))
        .map(|(m, far)| far.iter().filter(|u| reach.get(*u).is_some_and(|back| back.contains(*m))).copied().collect())
        .collect();
    let told = loops.iter().map(|l| l.iter().map(|m| m.join("::")).collect::<Vec<_>>().join(" <-> ")).collect::<Vec<_>>();
    assert!(told.is_empty(), "files that import each other:\n{}", told.join("\n"));
}

/// Compares the imports of module `a::b` of this source with those expected.
#[track_caller]
fn check(source: &str, expected: &[&str]) {
    let module = |path: &str| path.split("::").map(String::from).collect::<Module>();
    let modules: BTreeSet<Module> = ["a", "a::b", "a::b::c", "a::d", "e", "e::f", "g"].map(module).into_iter().chain([vec![]]).collect();
    let (source, _) = without_tests(&without_text(source));
    let own = module("a::b");
    let found: BTreeSet<String> = paths(&source).iter().map(|p| resolve(p, &own, &modules).join("::")).collect();
    assert_eq!(found.into_iter().collect::<Vec<_>>(), expected, "{source}");
}

#[test]
fn imports_are_found_wherever_they_stand() {
    check("use crate::e::f::Name;\nuse std::mem;", &["e::f"]);
    check("use super::{d::{self, Name as Other}, Thing};\nuse self::c::X;", &["a", "a::b::c", "a::d"]);
    check("use crate::{e, g::Name};\nfn x() { crate::e::f::y::<crate::a::d::Z>() }", &["a::d", "e", "e::f", "g"]);
    check("pub(crate) fn x(&self) { self.y() } // crate::e\n/* crate::g /* nested */ */ const T: &str = \"crate::e\";", &[]);
    check("const C: char = '\"'; const Q: &str = r#\"\"crate::g\"#; fn l<'a>(x: &'a u8) { crate::e::x() }", &["e"]);
    // What stands behind tests counts, tests do not.
    check(
        "#[cfg(test)]\nmod tests;\nuse crate::e::X;\n#[cfg(test)]\nmod more { use crate::g::Y; fn f() { x(|| { 1 }) } }\nuse super::d::Z;",
        &["a::d", "e"],
    );
    check("#[cfg(all(test, feature = \"gpu\"))]\nmod tests;\n#[cfg(feature = \"gpu\")]\nuse crate::e::X;", &["e"]);
    check("#[cfg(test)]\n#[allow(unused)]\nfn only(x: [u8; 2]) -> u8 { crate::g::x() }\nfn real() { crate::e::x() }", &["e"]);
}

#[test]
fn every_file_says_its_job_first() {
    let root = Path::new(env!("TENSORLOGIC_ROOT"));
    let mut all = Vec::new();
    for dir in ["src", "cli/src", "xtask/src", "tests"] {
        files(&root.join(dir), &mut all);
    }
    for file in &all {
        let text = std::fs::read_to_string(file).unwrap();
        assert!(text.starts_with("//! "), "{} does not begin with a line `//! <its job>`", file.display());
    }
}

/// The most lines of the native Metal backend: it runs plans, and leaves kernels, pools and reports to what all backends share.
const MAX_METAL_LINES: usize = 2_000;

#[test]
fn the_metal_backend_stays_small() {
    let mut all = Vec::new();
    files(&Path::new(env!("TENSORLOGIC_ROOT")).join("src/backends/metal"), &mut all);
    assert!(all.len() > 8, "its files were not found: {all:?}");
    let lines: usize = all.iter().map(|f| std::fs::read_to_string(f).unwrap().lines().count()).sum();
    assert!(lines <= MAX_METAL_LINES, "src/backends/metal/ has {lines} lines; at most {MAX_METAL_LINES} are allowed");
}

/// What the map names in backticks as a file or folder: words with a slash, or with the extension of a source. `a/{b,c}.rs` are two.
fn named_paths(map: &str) -> Vec<String> {
    let prose = map.split("```").step_by(2).collect::<String>();
    let words = prose.split('`').skip(1).step_by(2).filter(|w| {
        let is_file = w.contains('/') || [".rs", ".wgsl", ".md", ".sh"].iter().any(|e| w.ends_with(e));
        is_file && w.chars().all(|c| c.is_ascii_alphanumeric() || "_-./{},".contains(c))
    });
    let both = |w: &str| match w.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?))) {
        Some((before, (list, after))) => list.split(',').map(|part| format!("{before}{part}{after}")).collect(),
        None => vec![w.to_string()],
    };
    words.flat_map(both).collect()
}

#[test]
fn the_map_names_files_that_exist() {
    assert_eq!(named_paths("a `b/{c,d}.rs` ```\n`x.rs`\n``` `e` `f.wgsl` `<g>/h.rs`"), ["b/c.rs", "b/d.rs", "f.wgsl"]);
    let root = Path::new(env!("TENSORLOGIC_ROOT"));
    let mut all: Vec<PathBuf> = Vec::new();
    ["src", "cli/src", "tests", "benches"].iter().for_each(|dir| everything(&root.join(dir), &mut all));
    let named = named_paths(&std::fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap());
    assert!(named.len() > 100, "the paths were not found");
    for path in &named {
        // A path from `src/` or the root; or its end, where the sentence names the folder.
        let first = path.split('/').next().unwrap_or(path);
        let is_whole = path.contains('/') && (root.join("src").join(first).exists() || root.join(first).exists());
        let exists = match is_whole {
            true => root.join("src").join(path).exists() || root.join(path).exists(),
            false => all.iter().any(|p| p.ends_with(path)),
        };
        assert!(exists, "ARCHITECTURE.md names `{path}`, which does not exist");
    }
}

/// An op's folder has its tests, which `mod.rs` names: nobody has to look for them.
#[test]
fn every_op_has_its_tests_beside_it() {
    let ops = Path::new(env!("TENSORLOGIC_ROOT")).join("src/ops");
    let folders = std::fs::read_dir(ops).unwrap().map(|e| e.unwrap().path()).filter(|p| p.join("mod.rs").exists());
    let mut count = 0;
    for folder in folders.filter(|f| !f.ends_with("tests")) {
        count += 1;
        let exist = folder.join("tests.rs").exists() || folder.join("tests/mod.rs").exists();
        assert!(exist, "{}: add tests.rs", folder.display());
        let text = std::fs::read_to_string(folder.join("mod.rs")).unwrap();
        assert!(text.contains("\nmod tests;\n"), "{}/mod.rs does not name its tests", folder.display());
    }
    assert!(count > 15, "only {count} ops were found");
}

/// All files and folders below `dir`.
fn everything(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            everything(&path, out);
        }
        out.push(path);
    }
}

/// Where it may matter which device it is.
const KNOW_THE_DEVICE: [&str; 5] = ["backends", "device", "device.rs", "tuning.rs", "compile"];

/// How code asks which device it is on, and names of makers and drivers.
const DEVICE_QUESTIONS: [&str; 9] = ["is_cpu(", "is_gpu(", "is_metal(", "nvidia", "lavapipe", "llvmpipe", "intel", "radeon", "geforce"];

#[test]
fn nothing_above_the_compiler_asks_which_device_it_is() {
    let src = Path::new(env!("TENSORLOGIC_ROOT")).join("src");
    let mut all = Vec::new();
    files(&src, &mut all);
    let mut asked = Vec::new();
    for file in &all {
        let name = file.strip_prefix(&src).unwrap().to_str().unwrap().replace('\\', "/");
        let tests = name.ends_with("tests.rs") || name.contains("/tests/");
        if tests || KNOW_THE_DEVICE.contains(&name.split('/').next().unwrap_or(&name)) {
            continue;
        }
        let (source, _) = without_tests(&without_text(&std::fs::read_to_string(file).unwrap()));
        let source = source.to_lowercase();
        asked.extend(DEVICE_QUESTIONS.iter().filter(|q| source.contains(*q)).map(|q| format!("src/{name}: {q}")));
    }
    assert!(asked.is_empty(), "ask the backend's capabilities instead:\n{}", asked.join("\n"));
    // The question is found where it may be asked.
    let device = without_text(&std::fs::read_to_string(src.join("device.rs")).unwrap());
    assert!(DEVICE_QUESTIONS.iter().any(|q| device.contains(q)), "device.rs has no question any more: is it asked by another name?");
}

/// Files above the compiler that ask what their device can do, and what they decide with it. An op asks where it has several ways.
const ASK_CAPABILITIES: [(&str, &str); 15] = [
    ("data/host.rs", "whether batches are read where they were loaded"),
    ("leaks.rs", "whether tensors of the host are another device's"),
    ("models/generate.rs", "whether steps are submitted ahead, and how many rows a step has"),
    ("models/inference/mod.rs", "whether stages have a clock, and whether inputs are copied"),
    ("models/memory_plan.rs", "whether weights pass through staging memory"),
    ("models/sampler.rs", "where the least logit is found"),
    ("models/weights.rs", "matrices become f16, and stacks of experts parts, when they are loaded, before there is a plan"),
    ("ops/attention/grad.rs", "one kernel for both directions of the gradient, or two"),
    ("ops/custom.rs", "which form of a user's operation there is"),
    ("ops/fft/mod.rs", "transforms exist where memory is the host's"),
    ("ops/matmul/mod.rs", "products of integers, or of their floats"),
    ("ops/norm/grad.rs", "one kernel for both directions of the gradient, or two"),
    ("profile.rs", "whether times are the device's"),
    ("serving/thread.rs", "whether steps are submitted ahead"),
    ("tensor.rs", "bytes that no buffer holds become parts"),
];

/// Those that ask which form of an operation its tuning table has, before there is a plan.
const ASK_FORMS: [(&str, &str); 5] = [
    ("models/cache.rs", "whether a thread stays awake between the parts of a step"),
    ("ops/attention/mod.rs", "whether dropped weights are stored for the gradient"),
    ("ops/expert_matmul/mod.rs", "whether matrix units multiply, so that fewer pairs are many"),
    ("ops/matmul/mod.rs", "whether a product of few rows is one with each part of its weights"),
    ("ops/unpack/mod.rs", "whether blocks are unpacked before a product of many rows"),
];
/// The questions that such forms are asked by.
const QUESTIONS_OF_FORMS: [&str; 5] =
    ["backend().matrices()", "backend().fused_gemv_limits()", "backend().unpacks(", "backend().adapter()", "backend().gradient_parts("];

/// Files above the compiler that contain one of these, but for those where the answers come from, where they decide plans, and what measures a device.
fn files_that_ask(questions: &[&str]) -> BTreeSet<String> {
    let src = Path::new(env!("TENSORLOGIC_ROOT")).join("src");
    let mut all = Vec::new();
    files(&src, &mut all);
    let mut asked = BTreeSet::new();
    for file in &all {
        let name = file.strip_prefix(&src).unwrap().to_str().unwrap().replace('\\', "/");
        let is_exempt =
            ["backends/", "device", "compile/", "eval/", "diagnose.rs", "measure/", "tuning"].iter().any(|f| name.starts_with(f));
        if is_exempt || name.ends_with("tests.rs") || name.contains("/tests/") {
            continue;
        }
        let (source, _) = without_tests(&without_text(&std::fs::read_to_string(file).unwrap()));
        if questions.iter().any(|q| source.contains(q)) {
            asked.insert(name);
        }
    }
    asked
}

#[test]
fn capabilities_are_asked_in_few_files() {
    for (list, questions) in [(&ASK_CAPABILITIES[..], &["capabilities()"][..]), (&ASK_FORMS, &QUESTIONS_OF_FORMS)] {
        assert!(list.is_sorted());
        let allowed: BTreeSet<String> = list.iter().map(|(name, _)| name.to_string()).collect();
        assert_eq!(files_that_ask(questions), allowed, "files that ask {questions:?}, and those that may: could the compiler decide it?");
    }
}

/// Types of one name in one layer: one for each architecture of processors, of which a program has one.
const NAMED_TWICE: [(&str, &str); 1] = [("backends/cpu", "Shape")];

/// The layer of a file of `src/`: a row of the table, of which the backends and the parts of the library, which do not import each other's types,
/// count one by one. Names are as the table has them.
fn layer(path: &str) -> Option<String> {
    const NAMES: [&str; 8] = ["data types", "IR", "backends", "graph", "compiler", "ops", "library", "root"];
    let mut parts = path.split('/').map(|part| part.trim_end_matches(".rs"));
    let (first, second) = (parts.next()?, parts.next());
    let row = NAMES[ROWS.iter().position(|row| row.contains(&first))?];
    Some(match row {
        "backends" => format!("{row}/{}", second.filter(|s| ["cpu", "codegen", "gpu", "metal"].contains(s)).unwrap_or("shared")),
        "library" => format!("{row}/{first}"),
        _ => row.into(),
    })
}

/// The types that a source declares outside of functions and tests.
fn declared(source: &str) -> Vec<String> {
    let (code, _) = without_tests(&without_text(source));
    let name = |line: &str| {
        let line = match line.strip_prefix("pub") {
            Some(rest) if rest.starts_with('(') => rest.split_once(") ").map_or("", |(_, rest)| rest),
            Some(rest) => rest.trim_start(),
            None => line,
        };
        let line = line.strip_prefix("unsafe ").unwrap_or(line);
        let rest = ["struct ", "enum ", "trait ", "union ", "type "].iter().find_map(|kind| line.strip_prefix(kind))?;
        Some(rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect())
    };
    code.lines().filter_map(name).collect()
}

#[test]
fn no_type_name_stands_twice_in_one_layer() {
    assert_eq!(
        declared(
            "pub(in crate::a) struct A;\nenum B {}\nfn f() {\n    struct C;\n}\n#[cfg(test)]\nmod tests {\nstruct D;\n}\ntype E<'a> = &'a A;"
        ),
        ["A", "B", "E"]
    );
    assert_eq!(layer("backends/gpu/mod.rs").as_deref(), Some("backends/gpu"));
    assert_eq!((layer("device.rs").as_deref(), layer("io/gguf.rs").as_deref()), (Some("backends/shared"), Some("library/io")));
    let mut found: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    // The command is one layer, and so are the tools of the project.
    for (folder, whole) in [("src", None), ("cli/src", Some("command")), ("xtask/src", Some("tools"))] {
        let src = Path::new(env!("TENSORLOGIC_ROOT")).join(folder);
        let mut all = Vec::new();
        files(&src, &mut all);
        for file in &all {
            let name = file.strip_prefix(&src).unwrap().to_str().unwrap().replace('\\', "/");
            if name.ends_with("tests.rs") || name.contains("/tests/") {
                continue;
            }
            let Some(layer) = whole.map_or_else(|| layer(&name), |layer| Some(layer.to_string())) else { continue };
            for ty in declared(&std::fs::read_to_string(file).unwrap()) {
                found.entry((layer.clone(), ty)).or_default().insert(name.clone());
            }
        }
    }
    assert!(found.len() > 850, "only {} types were found", found.len());
    found.retain(|_, files| files.len() > 1);
    let twice: Vec<(&str, &str)> = found.keys().map(|(layer, ty)| (layer.as_str(), ty.as_str())).collect();
    let in_files: Vec<String> = found.iter().map(|((layer, ty), files)| format!("{layer}: {ty} in {files:?}")).collect();
    assert_eq!(twice, NAMED_TWICE, "types of one name in one layer:\n{}", in_files.join("\n"));
}
