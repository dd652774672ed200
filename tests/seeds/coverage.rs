//! docs/seed-coverage.md: every heading and code block of the five documents has a row there, in order; every test, file, page, method,
//! command, benchmark row and floor that it names exists; every test is described; how a row is shown follows from its tests; a claimed gain
//! has a floor.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

/// The headings of the five documents; scripts/seed-headings.sh makes this list of them.
const LIST: &str = include_str!("headings.txt");

/// The documents, in the order of their sections on the page, with the numbers of their headings, of their code blocks, and of the headings
/// that claim a gain in figures.
const COUNTS: [(&str, [usize; 3]); 5] = [
    ("tensorlogic-metal-guide.md", [43, 25, 7]),
    ("tensorlogic-benchmark-log.md", [37, 5, 6]),
    ("engine-metal-backend.md", [32, 7, 0]),
    ("shvayambhu-metal-guide.md", [35, 18, 1]),
    ("metal-gpu-module.md", [31, 2, 3]),
];

/// The documents' example programs, translated.
const EXAMPLES: [&str; 4] = ["gpt2_inference.rs", "transformer_block.rs", "byte_entropy.rs", "diagnose.rs"];

/// What has no meaning here; the page says of each why, and what serves its purpose.
const WITHOUT_MEANING: [&str; 5] =
    ["vertex and fragment stages", "Metal Performance Shaders", "Core ML", "the neural engine", "ray tracing"];

/// What rows quote that is not this project's: a command, an expression of a document, a crate.
const OF_OTHERS: [&str; 3] = ["diff", "id - 128", "objc2-metal"];

/// Heading, asked, where, shown by, proof.
const COLUMNS: usize = 5;

/// How a row can be shown. A gain is written with the floor that bounds it: `gain (chain8)`.
const WAYS: [&str; 5] = ["value", "count", "gain", "translated", "by hand"];

/// The files of which every test is a code block of a document.
const BLOCKS: [&str; 4] = ["metal_guide.rs", "engine_backend.rs", "shvayambhu.rs", "gpu_module.rs"];

/// A heading of a document.
#[derive(Debug, PartialEq)]
struct Heading {
    text: String,
    /// The code blocks under it.
    blocks: usize,
    /// The lines under it that claim a gain in figures.
    gains: usize,
}

/// A document's headings.
struct Document {
    /// Its file and the counts of [`COUNTS`], as the list has them.
    file: &'static str,
    counts: [usize; 3],
    headings: Vec<Heading>,
}

fn documents() -> Vec<Document> {
    let mut documents: Vec<Document> = Vec::new();
    let number = |text: &str| text.parse().unwrap();
    for line in LIST.lines() {
        if let Some(document) = line.strip_prefix("= ") {
            let [file, headings, blocks, gains] = document.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
            documents.push(Document { file, counts: [headings, blocks, gains].map(number), headings: Vec::new() });
        } else {
            let [blocks, gains, text] = line.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
            let heading = Heading { text: text.into(), blocks: number(blocks), gains: number(gains) };
            documents.last_mut().unwrap().headings.push(heading);
        }
    }
    documents
}

fn read(path: &str) -> String {
    let path = Path::new(env!("TENSORLOGIC_ROOT")).join(path);
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

/// The headings of a page in Markdown.
fn headings(page: &str) -> Vec<String> {
    let mut inside = false;
    let mut heading = |line: &str| {
        inside ^= line.trim_start().starts_with("```");
        (line.starts_with('#') && !inside).then(|| line.trim_start_matches('#').trim().to_string())
    };
    page.lines().filter_map(&mut heading).collect()
}

/// The anchor of a heading, as pages of GitHub have it.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect::<String>();
    kept.replace(' ', "-")
}

/// Every Rust source in these folders but their tests, joined by zeros.
fn sources_of(folders: &[&str]) -> String {
    fn add(folder: &Path, all: &mut String) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.file_stem().is_some_and(|name| name == "tests") {
                continue;
            } else if path.is_dir() {
                add(&path, all);
            } else if path.extension().is_some_and(|e| e == "rs") {
                all.push_str(&std::fs::read_to_string(path).unwrap());
                all.push('\0');
            }
        }
    }
    let mut all = String::new();
    for folder in folders {
        add(&Path::new(env!("TENSORLOGIC_ROOT")).join(folder), &mut all);
    }
    all
}

/// Every Rust source of the library, the command and the benchmarks.
fn sources() -> String {
    sources_of(&["src", "cli/src", "benches"])
}

/// Whether the sources have an item, a field, a variant, a variable or an option of this name.
fn is_in(sources: &str, name: &str) -> bool {
    if let Some(option) = name.strip_prefix("--") {
        let flag = format!(" {}:", option.replace('-', "_"));
        return [format!("\"{name}\""), format!("long = \"{option}\""), flag].iter().any(|text| sources.contains(text));
    }
    if name.starts_with("TL_") {
        return sources.contains(&format!("\"{name}\""));
    }
    let kinds = ["pub ", "fn ", "struct ", "enum ", "trait ", "const ", "mod ", "type ", "static "];
    let is_item =
        |(before, behind): (&str, &str)| behind.starts_with([' ', '(', '<', ':', ';']) && kinds.iter().any(|k| before.ends_with(k));
    let is_field = |(before, behind): (&str, &str)| before.ends_with("    ") && [",", " =", "("].iter().any(|end| behind.starts_with(end));
    around(sources, name).any(|at| is_item(at) || is_field(at))
}

/// What stands before and behind each place where a text has this name.
fn around<'t>(text: &'t str, name: &'t str) -> impl Iterator<Item = (&'t str, &'t str)> {
    text.match_indices(name).map(move |(at, _)| (&text[..at], &text[at + name.len()..]))
}

/// Whether a file of this repository exists, such as `src/metal/*.wgsl`; `None` where the text names none.
fn file_exists(name: &str) -> Option<bool> {
    let file = name.split(['*', ' ']).next().unwrap();
    let folders = ["src/", "tests/", "benches/", "examples/", "scripts/", "docs/", ".ci/"];
    folders.iter().any(|f| file.starts_with(f)).then(|| Path::new(env!("TENSORLOGIC_ROOT")).join(file).exists())
}

/// The rows of the documents' sections.
fn document_rows(page: &str) -> Vec<Vec<&str>> {
    page.split("\n## ").skip(1).take(COUNTS.len()).flat_map(rows).collect()
}

#[test]
fn every_heading_and_block_has_a_row() {
    let page = read("docs/seed-coverage.md");
    let sections: Vec<&str> = page.split("\n## ").skip(1).collect();
    let documents = documents();
    assert_eq!(documents.len(), COUNTS.len());
    for ((section, document), (file, counts)) in sections.iter().zip(documents).zip(COUNTS) {
        assert_eq!((document.file, document.counts), (file, counts));
        let mut wanted = Vec::new();
        for heading in &document.headings {
            wanted.push(heading.text.clone());
            wanted.extend((1..=heading.blocks).map(|n| format!("↳ block {n}")));
        }
        let claiming = document.headings.iter().filter(|h| h.gains > 0).count();
        assert_eq!([document.headings.len(), wanted.len() - document.headings.len(), claiming], counts, "{file}");
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

/// The names of the floors that have a bound on some device, and that tests/bench.rs waits for.
fn floors() -> BTreeSet<String> {
    let (source, test) = (sources_of(&["src/measure"]), read("tests/bench.rs"));
    // What stands between the braces of each.
    let body = |rest: &str| {
        let mut depth = 1;
        let end = rest.find(|c| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            depth == 0
        });
        rest[..end.unwrap()].to_string()
    };
    let bodies = ["Floor {", " Gain {", " Fused {"]
        .iter()
        .flat_map(|start| source.split(start).skip(1))
        .map(body)
        .filter(|b| !b.contains("bound: None"));
    let name = |b: String| Some(b.split("name: \"").nth(1)?.split('"').next()?.to_string());
    bodies.filter_map(name).filter(|n| test.contains(&format!("\"{n}\""))).collect()
}

/// A row is shown by what its tests do, as the last section says of each, and by hand.
#[test]
fn every_row_says_how_it_is_shown() {
    let page = read("docs/seed-coverage.md");
    let (before, list) = page.split_once("\n## What the tests assert\n").unwrap();
    let tests: BTreeMap<&str, &str> = rows(list).iter().map(|r| (links(r[0])[0].0, r[1])).collect();
    let floors = floors();
    assert!(["chain8", "matmul_relu_64"].iter().all(|f| floors.contains(*f)) && !floors.contains("chain8_unfused"), "{floors:?}");
    let mut seen = BTreeMap::new();
    for row in document_rows(before) {
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

/// The rows of the benchmark that a text names: `*Fusion*` is a category, `*Fusion: Chain of 8, fused*` a row of it.
fn measured(text: &str) -> Vec<(String, Option<String>)> {
    let text = text.split('`').step_by(2).collect::<String>().replace("**", "");
    let row = |name: &str| match name.split_once(": ") {
        Some((category, row)) => (category.to_string(), Some(row.to_string())),
        None => (name.to_string(), None),
    };
    text.split('*').skip(1).step_by(2).map(row).collect()
}

/// The row of a heading that claims a gain in figures names a floor.
#[test]
fn every_claimed_gain_has_a_floor() {
    let page = read("docs/seed-coverage.md");
    let sections = page.split("\n## ").skip(1);
    let mut seen = 0;
    for (section, document) in sections.zip(documents()) {
        for heading in document.headings.iter().filter(|h| h.gains > 0) {
            let row = rows(section).into_iter().find(|r| r[0] == heading.text).unwrap();
            assert!(ways(row[3]).iter().any(|(way, _)| *way == "gain"), "{}: a gain is claimed, and no floor is named", row[0]);
            seen += 1;
        }
    }
    assert_eq!(seen, COUNTS.iter().map(|c| c.1[2]).sum::<usize>());
}

/// The names of categories stand in the sources, those of rows in the test that looks for each of them.
#[test]
fn every_named_row_of_the_benchmark_exists() {
    let page = read("docs/seed-coverage.md");
    let (source, test) = (sources_of(&["src/measure"]), read("tests/bench.rs"));
    let categories = source.split("pub const CATEGORIES").nth(1).unwrap().split("];").next().unwrap();
    let mut seen = BTreeSet::new();
    for row in document_rows(&page) {
        for (category, operation) in measured(row[2]) {
            assert!(categories.contains(&format!("\"{category}\"")), "{}: there is no category {category}", row[0]);
            let known = operation.as_ref().is_none_or(|o| test.contains(&format!("\"{o}\"")));
            assert!(known, "{}: {operation:?} is no row of {category}", row[0]);
            seen.insert((category, operation));
        }
    }
    assert!(seen.len() >= 8, "{seen:?}");
}

/// The page says of each why it has no meaning, and names something that serves its purpose.
#[test]
fn what_has_no_meaning_here_has_a_reason_and_something_in_its_place() {
    let page = read("docs/seed-coverage.md");
    let intro = page.split("\n## ").next().unwrap();
    let table = intro.split("\n\n").find(|t| t.starts_with("| has no meaning here ")).unwrap();
    let rows = rows(table);
    assert_eq!(rows.iter().map(|r| r[0]).collect::<Vec<_>>(), WITHOUT_MEANING);
    let sources = sources();
    for row in rows {
        assert!(row.len() == 3 && row[1].len() > 40, "{row:?}");
        let names: Vec<&str> = quoted(row[2]).collect();
        assert!(!names.is_empty(), "{}: nothing is named that serves its purpose", row[0]);
        names.into_iter().for_each(|n| check_name(&sources, row[0], n));
    }
}

#[test]
fn the_documents_examples_are_there_and_named() {
    let page = read("docs/seed-coverage.md");
    let named: BTreeSet<&str> = document_rows(&page).iter().flat_map(|row| quoted(row[2])).collect();
    // What runs them as programs.
    let ci = read(".ci/run");
    let run: Vec<&str> = ci.lines().find_map(|l| l.strip_prefix("for example in ")?.strip_suffix("; do")).unwrap().split(' ').collect();
    assert_eq!(run.iter().map(|name| format!("{name}.rs")).collect::<Vec<_>>(), EXAMPLES);
    for example in EXAMPLES {
        let path = format!("examples/{example}");
        assert!(named.contains(&*path), "no row names {path}");
        assert!(read(&path).contains("\nfn main() "), "{path} is no program");
    }
}

/// The documents are not part of this repository: `TL_SEEDS=FOLDER cargo test --test seeds -- --ignored`.
#[test]
#[ignore = "reads the documents from the folder TL_SEEDS"]
fn the_list_is_that_of_the_documents() {
    let folder = std::env::var("TL_SEEDS").expect("TL_SEEDS names the folder of the documents");
    let files = COUNTS.map(|(file, _)| Path::new(&folder).join(file));
    let script = Path::new(env!("TENSORLOGIC_ROOT")).join("scripts/seed-headings.sh");
    let output = std::process::Command::new("sh").arg(script).args(files).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), LIST);
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
        assert!(fragment.is_empty() || headings(content).iter().any(|h| anchor(h) == fragment), "{file} has no #{fragment}");
    }
    assert!(seen > 150, "only {seen} tests are named");
}

/// Whether the command has these words: subcommands, options and their values; words in capitals stand for what the user gives.
fn check_command(sources: &str, row: &str, words: &str) {
    for word in words.split(' ').skip(1) {
        let variant = word.chars().next().map(|c| c.to_ascii_uppercase().to_string() + &word[c.len_utf8()..]).unwrap();
        let known = match word {
            _ if word.chars().all(|c| c.is_ascii_uppercase()) => true,
            _ if word.starts_with("--") => is_in(sources, word),
            "-v" => is_in(sources, "--verbose"),
            _ => sources.contains(&format!("    {variant}(")) || sources.contains(&format!("\"{word}\"")),
        };
        assert!(known, "{row}: `{words}`: there is no {word}");
    }
}

/// Whether what a row has in backticks exists: a file, a variable, an option, a command, or an item of the sources.
#[track_caller]
fn check_name(sources: &str, row: &str, name: &str) {
    let item = |name: &str| {
        let feature = || read("Cargo.toml").contains(&format!("\n{name} = ["));
        assert!(is_in(sources, name) || sources.contains(&format!("\"{name}\"")) || feature(), "{row}: there is no {name}");
    };
    if OF_OTHERS.contains(&name) || name.starts_with("cargo ") {
        return;
    }
    if let Some(exists) = file_exists(name) {
        assert!(exists, "{row}: there is no {name}");
    } else if name.starts_with("tl ") {
        check_command(sources, row, name);
    } else if name.starts_with("TL_") || name.starts_with("--") {
        let name = name.split('=').next().unwrap();
        assert!(is_in(sources, name), "{row}: nothing reads {name}");
    } else if let Some((of, last)) = name.rsplit_once("::") {
        // `Tensor::{a, b}` is two names, each in a file that is about tensors.
        let of = of.rsplit("::").next().unwrap();
        let is_about = |file: &&str| {
            let begins = |line: &str| ["impl", "pub struct", "pub enum", "pub trait"].iter().any(|k| line.starts_with(k));
            let begin = |before: &'_ str| before.rsplit('\n').next().is_some_and(begins);
            around(file, of).any(|(before, behind)| before.ends_with(' ') && behind.starts_with([' ', '<']) && begin(before))
        };
        let of_type = of.starts_with(|c: char| c.is_ascii_uppercase());
        for name in last.trim_matches(['{', '}']).split(", ") {
            let known = sources.split('\0').filter(is_about).any(|file| is_in(file, name));
            assert!(known || !of_type && is_in(sources, name), "{row}: there is no {of}::{name}");
        }
    } else {
        let name = name.split('(').next().unwrap();
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'), "{row}: what is {name}?");
        item(name);
    }
}

#[test]
fn every_named_file_item_command_and_variable_exists() {
    let page = read("docs/seed-coverage.md");
    let sources = sources();
    let mut seen = BTreeSet::new();
    for row in document_rows(&page) {
        for name in quoted(row[2]) {
            check_name(&sources, row[0], name);
            seen.insert(name);
        }
    }
    assert!(seen.len() > 150, "only {seen:?}");
}

#[test]
fn every_file_that_the_guide_names_exists() {
    let folder = Path::new(env!("TENSORLOGIC_ROOT")).join("docs/guide");
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
