//! docs/seed-coverage.md: every heading and code block of the five documents has a row there, in order; every test, file, page and method that it
//! names exists; every test is described; how a row is shown follows from its tests.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

/// The headings of the five documents; scripts/seed-headings.sh makes this list of them.
const LIST: &str = include_str!("headings.txt");

/// The documents, in the order of their sections on the page, with the number of their headings and of their code blocks.
const COUNTS: [(&str, usize, usize); 5] = [
    ("tensorlogic-metal-guide.md", 43, 25),
    ("tensorlogic-benchmark-log.md", 37, 5),
    ("engine-metal-backend.md", 32, 7),
    ("shvayambhu-metal-guide.md", 35, 18),
    ("metal-gpu-module.md", 31, 2),
];

/// Heading, asked, where, shown by, proof.
const COLUMNS: usize = 5;

/// How a row can be shown. A gain is written with the floor that bounds it: `gain (chain8)`.
const WAYS: [&str; 5] = ["value", "count", "gain", "translated", "by hand"];

/// The files of which every test is a code block of a document.
const BLOCKS: [&str; 4] = ["metal_guide.rs", "engine_backend.rs", "shvayambhu.rs", "gpu_module.rs"];

/// A document's headings, each with the number of code blocks under it.
struct Document {
    /// Its file and the counts of its headings and blocks, as the list has them.
    file: &'static str,
    counts: [usize; 2],
    headings: Vec<(String, usize)>,
}

fn documents() -> Vec<Document> {
    let mut documents: Vec<Document> = Vec::new();
    for line in LIST.lines() {
        let (first, rest) = line.split_once(' ').unwrap();
        if first == "=" {
            let [file, headings, blocks] = rest.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
            let counts = [headings.parse().unwrap(), blocks.parse().unwrap()];
            documents.push(Document { file, counts, headings: Vec::new() });
        } else {
            documents.last_mut().unwrap().headings.push((rest.to_string(), first.parse().unwrap()));
        }
    }
    documents
}

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The links `[text](target)` of a line.
fn links(line: &str) -> Vec<(&str, &str)> {
    let parts = line.split("](").collect::<Vec<_>>();
    parts.windows(2).map(|w| (w[0].rsplit('[').next().unwrap(), w[1].split(')').next().unwrap())).collect()
}

/// What stands in backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The cells of a section's rows, but for those of its head.
fn rows(section: &str) -> Vec<Vec<&str>> {
    let rows = section.lines().filter(|l| l.starts_with("| "));
    rows.skip(1).map(|l| l.trim_matches('|').split(" | ").map(str::trim).collect()).collect()
}

/// The headings of a document in Markdown, each with the number of code blocks under it.
fn headings(document: &str) -> Vec<(String, usize)> {
    let mut found: Vec<(String, usize)> = Vec::new();
    let mut inside = false;
    for line in document.lines() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
            if let Some(last) = found.last_mut().filter(|_| inside) {
                last.1 += 1;
            }
        } else if line.starts_with('#') && !inside {
            found.push((line.trim_start_matches('#').trim().to_string(), 0));
        }
    }
    found
}

/// The anchor of a heading, as pages of GitHub have it.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect::<String>();
    kept.replace(' ', "-")
}

/// Every Rust source of the library and the command, joined.
fn sources() -> String {
    fn add(folder: &Path, all: &mut String) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                add(&path, all);
            } else if path.extension().is_some_and(|e| e == "rs") {
                all.push_str(&std::fs::read_to_string(path).unwrap());
            }
        }
    }
    let mut all = String::new();
    for folder in ["src", "cli/src", "benches"] {
        add(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut all);
    }
    all
}

/// Whether the sources have an item, a field, a variant, a variable or an option of this name.
fn is_in(sources: &str, name: &str) -> bool {
    if let Some(option) = name.strip_prefix("--") {
        let flag = format!(" {}:", option.replace('-', "_"));
        return sources.contains(&format!("\"{name}\"")) || sources.contains(&flag);
    }
    if name.starts_with("TL_") {
        return sources.contains(&format!("\"{name}\""));
    }
    let item = |kind: &str| [" ", "(", "<", ":", ";"].iter().any(|end| sources.contains(&format!("{kind} {name}{end}")));
    ["pub", "fn", "struct", "enum", "trait", "const", "mod", "type", "static"].into_iter().any(item)
        || [",", " =", "("].iter().any(|end| sources.contains(&format!("    {name}{end}")))
}

/// Whether a file of this repository exists, such as `src/metal/*.wgsl`; `None` where the text names none.
fn file_exists(name: &str) -> Option<bool> {
    let file = name.split(['*', ' ']).next().unwrap();
    let folders = ["src/", "tests/", "benches/", "examples/", "scripts/", "docs/", ".ci/"];
    folders.iter().any(|f| file.starts_with(f)).then(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(file).exists())
}

#[test]
fn every_heading_and_block_has_a_row() {
    let page = read("docs/seed-coverage.md");
    let sections: Vec<&str> = page.split("\n## ").skip(1).collect();
    let documents = documents();
    assert_eq!(documents.len(), COUNTS.len());
    for ((section, document), (file, headings, blocks)) in sections.iter().zip(documents).zip(COUNTS) {
        assert_eq!((document.file, document.counts), (file, [headings, blocks]));
        let mut wanted = Vec::new();
        for (heading, blocks) in document.headings {
            wanted.push(heading);
            wanted.extend((1..=blocks).map(|n| format!("↳ block {n}")));
        }
        assert_eq!(wanted.len(), headings + blocks, "{file}");
        let rows = rows(section);
        assert_eq!(rows.iter().map(|r| r[0]).collect::<Vec<_>>(), wanted);
        for row in rows {
            assert!(row.len() == COLUMNS && row.iter().all(|cell| !cell.is_empty()), "{row:?}");
            assert!(!links(row[COLUMNS - 1]).is_empty(), "no proof of {row:?}");
        }
    }
}

/// The ways of a cell, each with the floor that it names.
fn ways(cell: &str) -> Vec<(&str, Option<&str>)> {
    let way = |text| match text {
        _ if WAYS.contains(&text) => (text, None),
        _ => {
            let (way, floor) = text.split_once(" (").unwrap_or_else(|| panic!("{text} is not one of {WAYS:?}"));
            (way, Some(floor.strip_suffix(')').unwrap()))
        }
    };
    cell.split(", ").map(way).collect()
}

/// The names of the floors that have a bound, of any device.
fn floors() -> BTreeSet<String> {
    let source = read("src/measure/floors.rs");
    let floors = source.split("add(Floor {").skip(1).map(|f| f.split("});").next().unwrap());
    let name = |f: &str| f.split("name: \"").nth(1).unwrap().split('"').next().unwrap().to_string();
    floors.filter(|f| !f.contains("bound: None")).map(name).collect()
}

/// A row is shown by what its tests do, as the last section says of each, and by hand.
#[test]
fn every_row_says_how_it_is_shown() {
    let page = read("docs/seed-coverage.md");
    let (before, list) = page.split_once("\n## What the tests assert\n").unwrap();
    let tests: BTreeMap<&str, &str> = rows(list).iter().map(|r| (links(r[0])[0].0, r[1])).collect();
    let floors = floors();
    assert!(floors.contains("chain8") && !floors.contains("chain8_unfused"), "{floors:?}");
    let mut seen = BTreeMap::new();
    for row in before.split("\n## ").skip(1).flat_map(rows) {
        let mut by = BTreeSet::from(["by hand"]);
        for (test, file) in links(row[4]).into_iter().filter(|(text, _)| text.starts_with('`')) {
            if BLOCKS.iter().any(|b| file.ends_with(b)) {
                by.extend(["value", "count", "translated"]);
            } else {
                by.extend(tests[test].split(", "));
            }
        }
        let ways = ways(row[3]);
        for (n, (way, floor)) in ways.iter().enumerate() {
            assert!(by.contains(way), "{}: no test of its row shows a {way}", row[0]);
            assert!(!ways[..n].contains(&(way, *floor)), "{}: {way} twice", row[0]);
            assert_eq!(*way == "gain", floor.is_some(), "{}: a gain, and nothing else, names a floor", row[0]);
            assert!(floor.is_none_or(|f| floors.contains(f)), "{}: {floor:?} is no floor with a bound: {floors:?}", row[0]);
            *seen.entry(*way).or_insert(0) += 1;
        }
    }
    assert_eq!(seen.len(), WAYS.len(), "{seen:?}");
}

/// The documents are not part of this repository: `TL_SEEDS=FOLDER cargo test --test seeds -- --ignored`.
#[test]
#[ignore = "reads the documents from the folder TL_SEEDS"]
fn the_lists_are_those_of_the_documents() {
    let folder = std::env::var("TL_SEEDS").expect("TL_SEEDS names the folder of the documents");
    let found: Vec<Vec<(String, usize)>> =
        std::fs::read_dir(folder).unwrap().map(|e| headings(&std::fs::read_to_string(e.unwrap().path()).unwrap())).collect();
    for list in documents() {
        let document = found.iter().find(|f| f.first().is_some_and(|h| h.0 == list.headings[0].0));
        let document = document.unwrap_or_else(|| panic!("no document begins with {:?}", list.headings[0].0));
        assert_eq!(*document, list.headings);
    }
}

#[test]
fn every_named_test_and_page_exists() {
    let page = read("docs/seed-coverage.md");
    let mut texts: HashMap<String, String> = HashMap::new();
    let mut seen = 0;
    for (text, target) in page.lines().flat_map(links) {
        let (target, fragment) = target.split_once('#').unwrap_or((target, ""));
        let file = match (target, target.strip_prefix("../")) {
            ("", _) => "docs/seed-coverage.md".to_string(),
            (_, Some(file)) => file.to_string(),
            _ => format!("docs/{target}"),
        };
        let content = texts.entry(file.clone()).or_insert_with(|| read(&file));
        if let Some(name) = text.strip_prefix('`').and_then(|t| t.strip_suffix('`')) {
            assert!(content.contains(&format!("fn {name}(")), "{file} has no {name}");
            let before = content.split(&format!("fn {name}(")).next().unwrap();
            assert!(before.trim_end().rsplit("\n\n").next().unwrap().contains("#[test]"), "{name} of {file} is no test");
            seen += 1;
        }
        assert!(fragment.is_empty() || headings(content).iter().any(|h| anchor(&h.0) == fragment), "{file} has no #{fragment}");
    }
    assert!(seen > 150, "only {seen} tests are named");
}

#[test]
fn every_named_file_method_and_variable_exists() {
    let page = read("docs/seed-coverage.md");
    let sources = sources();
    let mut seen = BTreeSet::new();
    let sections = page.split("\n## ").skip(1).take(COUNTS.len());
    for row in sections.flat_map(rows) {
        for name in quoted(row[2]) {
            if let Some(exists) = file_exists(name) {
                assert!(exists, "{}: there is no {name}", row[0]);
            } else if name.starts_with("TL_") {
                let variable = name.split('=').next().unwrap();
                assert!(is_in(&sources, variable), "{}: nothing reads {variable}", row[0]);
            } else if name.contains("::") {
                // `Tensor::{a, b}` is two names.
                let last = name.rsplit("::").next().unwrap();
                for part in last.trim_matches(['{', '}']).split(", ") {
                    assert!(is_in(&sources, part), "{}: there is no {name}", row[0]);
                }
            } else if name.starts_with(|c: char| c.is_ascii_uppercase()) && name.chars().all(|c| c.is_ascii_alphanumeric()) {
                assert!(is_in(&sources, name), "{}: there is no {name}", row[0]);
            } else {
                continue;
            }
            seen.insert(name);
        }
    }
    assert!(seen.len() > 40, "only {seen:?}");
}

#[test]
fn every_file_that_the_guide_names_exists() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guide");
    let mut pages: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|e| format!("docs/guide/{}", e.unwrap().file_name().to_str().unwrap())).collect();
    pages.push("docs/metal.md".into());
    let mut seen = 0;
    for page in pages {
        let content = read(&page);
        // Blocks of code lie between fences.
        for text in content.split("```").step_by(2) {
            for name in quoted(text) {
                let exists = file_exists(name);
                assert!(exists != Some(false), "{page}: there is no {name}");
                seen += usize::from(exists.is_some());
            }
        }
    }
    assert!(seen >= 10, "only {seen} files are named");
}

/// Tests of the blocks are described by their page as a whole.
#[test]
fn every_named_test_is_described_once() {
    let page = read("docs/seed-coverage.md");
    let (before, list) = page.split_once("\n## What the tests assert\n").unwrap();
    let is_block = |file: &str| BLOCKS.iter().any(|f| file.ends_with(f));
    let named: BTreeSet<(&str, &str)> =
        before.lines().flat_map(links).filter(|(text, file)| text.starts_with('`') && !is_block(file)).collect();
    let mut described: BTreeMap<(&str, &str), &str> = BTreeMap::new();
    for row in rows(list) {
        let [(text, file)] = links(row[0])[..] else { panic!("{row:?} is not about one test") };
        assert!(row.len() == 3 && !row[2].is_empty(), "{row:?}");
        assert!(ways(row[1]).iter().all(|(_, floor)| floor.is_none()), "{row:?}");
        assert!(described.insert((text, file), row[2]).is_none(), "{text} is described twice");
    }
    assert_eq!(described.into_keys().collect::<BTreeSet<_>>(), named);
}

#[test]
fn the_checklist_names_what_exists() {
    let page = read("docs/guide/8-checklist.md");
    let sources = sources();
    let items: Vec<&str> = page.lines().filter(|l| l.starts_with("- [ ] ")).collect();
    assert!(items.len() >= 8);
    let mut seen = 0;
    for quote in items.into_iter().flat_map(quoted) {
        // Of a call the methods; of a command its options.
        let words = quote.split(|c: char| !(c.is_ascii_alphanumeric() || "_-".contains(c))).filter(|w| !w.is_empty());
        let is_name = |w: &&str| quote.starts_with("tl ") == w.starts_with("--") && !["device", "tl"].contains(w);
        for word in words.filter(is_name) {
            assert!(is_in(&sources, word), "{quote}: there is no {word}");
            seen += 1;
        }
    }
    assert!(seen >= 10, "only {seen} names");
}
