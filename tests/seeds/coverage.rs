//! docs/seed-coverage.md: every heading and code block of three documents has a row there, in order; every test, file, page and method that it
//! names exists; every test is described.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

/// The headings of the documents, each with the number of code blocks under it.
const GUIDE: &[(&str, usize)] = &[
    ("Metal GPU Optimization Guide", 0),
    ("Quick Reference", 0),
    ("1. Fused Operations", 0),
    ("What is Kernel Fusion?", 0),
    ("Available Fused Operations", 0),
    ("MatMul + Activation", 1),
    ("Element-wise + ReLU", 1),
    ("Affine Transformation", 1),
    ("Activation Types", 2),
    ("2. Buffer Pooling", 0),
    ("How Buffer Pooling Works", 1),
    ("Monitoring Buffer Pool", 1),
    ("Buffer Pool Configuration", 1),
    ("Memory Management", 1),
    ("3. Batch Processing", 0),
    ("Why Batching Matters", 0),
    ("Batching Strategies", 0),
    ("1. Batch Model Inference", 1),
    ("2. Batch Element-wise Operations", 1),
    ("3. Optimal Batch Sizes", 0),
    ("4. Precision and Data Types", 0),
    ("Half-Precision (f16) Benefits", 0),
    ("When to Use Full Precision", 1),
    ("5. Memory Transfer Optimization", 0),
    ("Minimize Host↔Device Transfers", 1),
    ("Keep Data on GPU", 1),
    ("6. Performance Profiling", 0),
    ("Benchmarking Operations", 1),
    ("Calculating GFLOPS", 1),
    ("Calculating Bandwidth", 1),
    ("7. Common Patterns", 0),
    ("Neural Network Forward Pass", 1),
    ("Training Loop", 1),
    ("Image Processing Pipeline", 1),
    ("8. Performance Checklist", 0),
    ("9. Troubleshooting", 0),
    ("Low Performance", 0),
    ("High Memory Usage", 1),
    ("Slow Transfers", 0),
    ("10. Advanced Topics", 0),
    ("Custom Fused Kernels", 3),
    ("Profile-Guided Optimization", 1),
    ("Conclusion", 0),
];
const LOG: &[(&str, usize)] = &[
    ("Session 2025-10-20: Metal GPU Performance Optimization", 0),
    ("セッション概要", 0),
    ("実装内容", 0),
    ("1. Metal GPU Performance Benchmark (benches/metal_performance.rs)", 0),
    ("ベンチマークカテゴリ", 0),
    ("出力フォーマット", 1),
    ("2. Baseline Performance Analysis (benchmarks/baseline_analysis.md)", 0),
    ("ピーク性能", 0),
    ("最適化機会の分類", 0),
    ("3. Optimization Experiment (benchmarks/optimization_comparison.md)", 0),
    ("最適化の仮説", 0),
    ("実装", 1),
    ("結果", 0),
    ("根本原因分析", 0),
    ("重要な学び", 0),
    ("4. Optimization Revert (src/ops/reduce.rs)", 1),
    ("テスト結果", 1),
    ("性能サマリー", 0),
    ("ベースライン性能（最終）", 0),
    ("最適化機会（優先度順）", 0),
    ("ファイル変更", 1),
    ("コミット", 0),
    ("進捗状況", 0),
    ("Phase 10.5 Metal GPU最適化", 0),
    ("残作業", 0),
    ("次のステップ", 0),
    ("フェーズ1: Quick Wins（2-3時間）", 0),
    ("フェーズ2: Core Optimizations（8-12時間）", 0),
    ("フェーズ3: Advanced Optimizations（12-16時間）", 0),
    ("フェーズ4: Validation（2-3時間）", 0),
    ("学んだこと", 0),
    ("1. CPU vs GPU Trade-off", 0),
    ("2. 測定駆動最適化", 0),
    ("3. 最適化の落とし穴", 0),
    ("4. ベンチマーク設計", 0),
    ("統計", 0),
    ("まとめ", 0),
];
const BACKEND: &[(&str, usize)] = &[
    ("Metal Backend", 0),
    ("Features", 0),
    ("Supported Operations", 0),
    ("Element-wise Operations", 0),
    ("Linear Algebra", 0),
    ("Activation Functions", 0),
    ("Architecture", 0),
    ("Core Components", 0),
    ("Memory Model", 1),
    ("Usage", 0),
    ("Basic Setup", 1),
    ("Element-wise Operation", 1),
    ("Matrix Operations", 1),
    ("Performance Optimizations", 0),
    ("Apple Silicon Advantages", 0),
    ("Thread Group Optimization", 1),
    ("Memory Strategies", 0),
    ("Requirements", 0),
    ("System Requirements", 0),
    ("Rust Dependencies", 0),
    ("Testing", 1),
    ("Apple Silicon Specific Features", 0),
    ("Unified Memory Architecture", 0),
    ("Performance Characteristics", 0),
    ("Optimization Tips", 0),
    ("Troubleshooting", 0),
    ("Common Issues", 0),
    ("Debug Information", 1),
    ("Instruments Integration", 0),
    ("Future Enhancements", 0),
    ("Contributing", 0),
    ("Comparison with Other Backends", 0),
];

const DOCUMENTS: [&[(&str, usize)]; 3] = [GUIDE, LOG, BACKEND];

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
    for (section, headings) in sections.iter().zip(DOCUMENTS) {
        let mut wanted = Vec::new();
        for (heading, blocks) in headings {
            wanted.push((*heading).to_string());
            wanted.extend((1..=*blocks).map(|n| format!("↳ block {n}")));
        }
        let rows = rows(section);
        assert_eq!(rows.iter().map(|r| r[0]).collect::<Vec<_>>(), wanted);
        for row in rows {
            assert!(row.len() == 4 && row.iter().all(|cell| !cell.is_empty()), "{row:?}");
            assert!(!links(row[3]).is_empty(), "no proof of {row:?}");
        }
    }
}

/// The documents are not part of this repository: `TL_SEEDS=FOLDER cargo test --test seeds -- --ignored`.
#[test]
#[ignore = "reads the documents from the folder TL_SEEDS"]
fn the_lists_are_those_of_the_documents() {
    let folder = std::env::var("TL_SEEDS").expect("TL_SEEDS names the folder of the documents");
    let found: Vec<Vec<(String, usize)>> =
        std::fs::read_dir(folder).unwrap().map(|e| headings(&std::fs::read_to_string(e.unwrap().path()).unwrap())).collect();
    for list in DOCUMENTS {
        let document = found.iter().find(|f| f.first().is_some_and(|h| h.0 == list[0].0));
        let document = document.unwrap_or_else(|| panic!("no document begins with {:?}", list[0].0));
        assert_eq!(document.iter().map(|(h, n)| (h.as_str(), *n)).collect::<Vec<_>>(), list);
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
    let sections = page.split("\n## ").skip(1).take(DOCUMENTS.len());
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
    let is_block = |file: &str| ["metal_guide.rs", "engine_backend.rs"].iter().any(|f| file.ends_with(f));
    let named: BTreeSet<(&str, &str)> =
        before.lines().flat_map(links).filter(|(text, file)| text.starts_with('`') && !is_block(file)).collect();
    let mut described: BTreeMap<(&str, &str), &str> = BTreeMap::new();
    for row in rows(list) {
        let [(text, file)] = links(row[0])[..] else { panic!("{row:?} is not about one test") };
        assert!(row.len() == 2 && !row[1].is_empty(), "{row:?}");
        assert!(described.insert((text, file), row[1]).is_none(), "{text} is described twice");
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
