//! Every public function that can fail has an example in its documentation.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Functions without an example: they exist on Apple's systems only, where no example has been compiled.
const WITHOUT_EXAMPLE: [&str; 5] =
    ["NativeMetal::open", "NativeMetal::open_with", "NativeMetal::prepare", "NativeMetal::alloc_as", "NativeMetal::write"];

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

/// The public functions of a file that can fail, each with its documentation; `reached` says whether users can call it.
fn fallible(text: &str, reached: impl Fn(Option<&str>, &str) -> bool) -> Vec<(String, String)> {
    let lines: Vec<&str> = text.lines().collect();
    let (mut found, mut of) = (Vec::new(), None);
    for (n, line) in lines.iter().enumerate() {
        of = if *line == "}" { None } else { implemented(line).or(of) };
        let Some(rest) = line.trim_start().strip_prefix("pub ") else { continue };
        let rest = ["const ", "async ", "unsafe "].iter().fold(rest, |r, word| r.strip_prefix(word).unwrap_or(r));
        let Some(name) = rest.strip_prefix("fn ").and_then(|r| words(r).next()) else { continue };
        let ends = (n..lines.len()).find(|&end| lines[end].contains('{') || lines[end].ends_with(';')).unwrap_or(n);
        let signature = lines[n..=ends].concat();
        let begins =
            (0..n).rev().take_while(|&k| lines[k].trim_start().starts_with("///") || lines[k].trim_start().starts_with("#[")).last();
        let doc = lines[begins.unwrap_or(n)..n].join("\n");
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
}

#[test]
fn every_function_that_can_fail_has_an_example() {
    let source = Path::new(env!("TENSORLOGIC_ROOT")).join("src");
    let mut modules = Modules::default();
    modules.add(source.join("lib.rs"), &source, true);
    let (mut count, mut without) = (0, Vec::new());
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
            let example = doc.contains("```");
            assert!(!example || !WITHOUT_EXAMPLE.contains(&name.as_str()), "{name} has an example: take it off the list");
            if !example && !WITHOUT_EXAMPLE.contains(&name.as_str()) {
                without.push(format!("{} {name}", file.strip_prefix(&source).unwrap().display()));
            }
        }
    }
    assert!(count > 500, "{count} functions were found");
    assert!(without.is_empty(), "{} of {count} functions that can fail have no example:\n{}", without.len(), without.join("\n"));
}
