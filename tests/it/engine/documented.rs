//! Every public function that can fail, methods of traits too, says when and has an example; every operation that is not elementwise says its shapes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Functions without an example: they exist on Apple's systems only, where no example has been compiled.
const WITHOUT_EXAMPLE: [&str; 5] =
    ["NativeMetal::open", "NativeMetal::open_with", "NativeMetal::prepare", "NativeMetal::alloc_as", "NativeMetal::write"];

/// Methods of traits without an example: they take a compiled plan, which only the engine makes.
const OF_PLANS: [&str; 1] = ["Backend::run_repeated"];

/// Files of operations whose results have the shape of their operands, or of tensors that the caller names.
const ELEMENTWISE: [&str; 8] =
    ["activation.rs", "arithmetic.rs", "create.rs", "elementwise.rs", "float_bits.rs", "loss.rs", "random.rs", "values.rs"];

/// The modules of the library: those that users reach by their path, and the names that such modules re-export from others.
#[derive(Default)]
struct Modules {
    all: Vec<PathBuf>,
    public: BTreeSet<PathBuf>,
    reexported: BTreeSet<String>,
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| !w.is_empty())
}

impl Modules {
    /// Adds a file and the modules that it declares, whose files are in `folder`.
    fn add(&mut self, file: PathBuf, folder: &Path, public: bool) {
        let text = std::fs::read_to_string(&file).unwrap();
        let mut attributes = String::new();
        for line in text.lines() {
            let visibilities = ["", "pub ", "pub(crate) ", "pub(super) "];
            let declaration = visibilities.iter().find_map(|v| line.strip_prefix(v)?.strip_prefix("mod "));
            let declared = declaration.and_then(|l| l.strip_suffix(';'));
            if let Some(name) = declared.filter(|_| !attributes.contains("cfg(test")) {
                let below = folder.join(name);
                let files = [folder.join(format!("{name}.rs")), below.join("mod.rs")];
                if let Some(found) = files.into_iter().find(|f| f.exists()) {
                    self.add(found, &below, public && line.starts_with("pub ") && !attributes.contains("doc(hidden)"));
                }
            }
            match line.starts_with("#[") {
                true => attributes += line,
                false => attributes.clear(),
            }
        }
        if public {
            let uses = text.split("\npub use ").skip(1).filter_map(|u| u.split(';').next());
            self.reexported.extend(uses.flat_map(words).map(String::from));
            self.public.insert(file.clone());
        }
        self.all.push(file);
    }
}

/// The type of `impl … Type … {`.
fn implemented(line: &str) -> Option<&str> {
    let mut depth = 0;
    let generics = line.strip_prefix("impl")?.char_indices().find(|&(_, c)| {
        depth += i32::from(c == '<') - i32::from(c == '>');
        depth == 0
    });
    let rest = &line[4 + generics?.0 + 1..];
    words(rest.split(" for ").last()?).next()
}

/// The documentation and the attributes above a line.
fn above(lines: &[&str], n: usize) -> String {
    let is_part = |k: &usize| lines[*k].trim_start().starts_with("///") || lines[*k].trim_start().starts_with("#[");
    let begins = (0..n).rev().take_while(is_part).last();
    lines[begins.unwrap_or(n)..n].join("\n")
}

/// The public functions of a file that can fail, each with its documentation; `reached` says whether users can call it. The example of a trait counts
/// for the methods that an implementation must have, and for those that it calls.
fn fallible(text: &str, reached: impl Fn(Option<&str>, &str) -> bool) -> Vec<(String, String)> {
    let lines: Vec<&str> = text.lines().collect();
    let (mut found, mut of, mut of_trait) = (Vec::new(), None, None);
    for (n, line) in lines.iter().enumerate() {
        if *line == "}" {
            (of, of_trait) = (None, None);
        } else if let Some(name) = line.strip_prefix("pub trait ").and_then(|rest| words(rest).next()) {
            (of, of_trait) = (Some(name), Some(above(&lines, n)));
        } else {
            of = implemented(line).or(of);
        }
        let visible = match of_trait {
            Some(_) => line.strip_prefix("    ").filter(|rest| !rest.starts_with(' ')),
            None => line.trim_start().strip_prefix("pub "),
        };
        let Some(rest) = visible else { continue };
        let rest = ["const ", "async ", "unsafe "].iter().fold(rest, |r, word| r.strip_prefix(word).unwrap_or(r));
        let Some(name) = rest.strip_prefix("fn ").and_then(|r| words(r).next()) else { continue };
        let ends = (n..lines.len()).find(|&end| lines[end].contains('{') || lines[end].ends_with(';')).unwrap_or(n);
        let signature = lines[n..=ends].concat();
        let mut doc = above(&lines, n);
        let of_all = of_trait.iter().filter(|all| signature.ends_with(';') || all.contains(&format!(".{name}(")));
        of_all.for_each(|all| doc += all);
        let fails = signature.split("->").last().is_some_and(|result| signature.contains("->") && result.contains("Result<"));
        if fails && reached(of, name) && !doc.contains("doc(hidden)") {
            found.push((of.map_or(name.to_string(), |of| format!("{of}::{name}")), doc));
        }
    }
    found
}

#[test]
fn functions_and_their_documentation_are_found() {
    let text = "impl<T> A<T> {\n    /// Says.\n    /// ```\n    #[must_use]\n    pub fn a(\n        &self,\n    ) -> TensorResult<()> {\n    }\n    pub fn b(&self) {}\n}\n\
                #[doc(hidden)]\npub fn c() -> Result<(), E> {}\npub fn d(f: impl Fn() -> Result<(), E>) -> u8 {}\npub async fn e() -> Result<(), E> {}\n";
    let found = fallible(text, |_, _| true);
    assert_eq!(found.iter().map(|f| f.0.as_str()).collect::<Vec<_>>(), ["A::a", "e"]);
    assert!(found[0].1.contains("```") && found[1].1.is_empty());

    let text = "/// ```\n/// x.c(1);\npub trait B: Send {\n    fn a(&self) -> TensorResult<()>;\n    fn b(&self) -> TensorResult<()> {\n        f(|| {})\n    }\n    \
                fn c(&self) -> TensorResult<()> {\n    }\n    fn d(&self);\n}\ntrait C {\n    fn a(&self) -> TensorResult<()>;\n}\n";
    let found = fallible(text, |_, _| true);
    let found: Vec<_> = found.iter().map(|f| (f.0.as_str(), f.1.contains("```"))).collect();
    assert_eq!(found, [("B::a", true), ("B::b", false), ("B::c", true)]);
}

#[test]
fn every_function_that_can_fail_says_when_and_has_an_example() {
    let source = Path::new(env!("TENSORLOGIC_ROOT")).join("src");
    let mut modules = Modules::default();
    modules.add(source.join("lib.rs"), &source, true);
    let (mut count, mut without, mut silent) = (0, Vec::new(), Vec::new());
    for file in &modules.all {
        let text = std::fs::read_to_string(file).unwrap();
        let reached = |of: Option<&str>, name: &str| {
            // Types of a public module can be private all the same; `Tensor` and `Device` have methods everywhere.
            let hidden = of.is_some_and(|of| {
                ["struct", "enum", "trait"].iter().any(|kind| {
                    text.lines().any(|l| {
                        words(l.trim_start_matches("pub(crate) ").trim_start_matches("pub(super) ")).take(2).eq([*kind, of])
                            && !l.starts_with("pub ")
                    })
                })
            });
            let named =
                of.map_or(modules.reexported.contains(name), |of| modules.reexported.contains(of) || ["Tensor", "Device"].contains(&of));
            (modules.public.contains(file) && !hidden) || named
        };
        for (name, doc) in fallible(&text, reached) {
            count += 1;
            let (example, of) = (doc.contains("```"), format!("{} {name}", file.strip_prefix(&source).unwrap().display()));
            let listed = WITHOUT_EXAMPLE.iter().chain(&OF_PLANS).any(|other| *other == name);
            assert!(!example || !listed, "{name} has an example: take it off the list");
            if !doc.contains("# Errors") {
                silent.push(of.clone());
            }
            if !example && !listed {
                without.push(of);
            }
        }
    }
    assert!(count > 500, "{count} functions were found");
    assert!(without.is_empty(), "{} of {count} functions that can fail have no example:\n{}", without.len(), without.join("\n"));
    assert!(silent.is_empty(), "{} of {count} functions that can fail do not say when:\n{}", silent.len(), silent.join("\n"));
}

#[test]
fn every_operation_that_is_not_elementwise_says_its_shapes() {
    let ops = Path::new(env!("TENSORLOGIC_ROOT")).join("src/ops");
    let mut modules = Modules::default();
    modules.add(ops.join("mod.rs"), &ops, true);
    assert!(ELEMENTWISE.iter().all(|name| modules.all.contains(&ops.join(name))), "{ELEMENTWISE:?}");
    let (mut count, mut without) = (0, Vec::new());
    for file in modules.all.iter().filter(|file| !ELEMENTWISE.iter().any(|name| **file == ops.join(name))) {
        let text = std::fs::read_to_string(file).unwrap();
        for (name, doc) in fallible(&text, |of, _| of == Some("Tensor")) {
            count += 1;
            let says = doc.split("# Errors").next().unwrap().split("```").next().unwrap();
            if !says.contains("`[") {
                without.push(format!("{} {name}", file.strip_prefix(&ops).unwrap().display()));
            }
        }
    }
    assert!(count > 90, "{count} operations were found");
    assert!(without.is_empty(), "{} of {count} operations say no shape like `[…,M,N]`:\n{}", without.len(), without.join("\n"));
}
