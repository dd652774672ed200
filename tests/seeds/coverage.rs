//! docs/seed-coverage.md: every heading and code block of the three documents has a row there, in order, and every test that it names exists.

use std::collections::HashMap;
use std::path::Path;

/// The headings of the three documents, each with the number of code blocks under it.
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
    ("Metal RawBackend", 0),
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

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The links `[text](target)` of a line.
fn links(line: &str) -> Vec<(&str, &str)> {
    let parts = line.split("](").collect::<Vec<_>>();
    parts.windows(2).map(|w| (w[0].rsplit('[').next().unwrap(), w[1].split(')').next().unwrap())).collect()
}

#[test]
fn every_heading_and_block_has_a_row() {
    let page = read("docs/seed-coverage.md");
    let sections: Vec<&str> = page.split("\n## ").skip(1).collect();
    assert_eq!(sections.len(), 3);
    for (section, headings) in sections.iter().zip([GUIDE, LOG, BACKEND]) {
        let rows: Vec<Vec<&str>> = section
            .lines()
            .filter(|l| l.starts_with("| ") && !l.starts_with("| heading"))
            .map(|l| l.trim_matches('|').split(" | ").map(str::trim).collect())
            .collect();
        let mut wanted = Vec::new();
        for (heading, blocks) in headings {
            wanted.push((*heading).to_string());
            wanted.extend((1..=*blocks).map(|n| format!("↳ block {n}")));
        }
        assert_eq!(rows.iter().map(|r| r[0]).collect::<Vec<_>>(), wanted);
        for row in rows {
            assert!(row.len() == 4 && row.iter().all(|cell| !cell.is_empty()), "{row:?}");
            assert!(!links(row[3]).is_empty(), "no proof of {row:?}");
        }
    }
}

#[test]
fn every_named_test_exists() {
    let page = read("docs/seed-coverage.md");
    let mut texts: HashMap<String, String> = HashMap::new();
    let mut seen = 0;
    for (text, target) in page.lines().flat_map(links) {
        let file = match target.strip_prefix("../") {
            Some(file) => file.to_string(),
            None => format!("docs/{target}"),
        };
        let content = texts.entry(file.clone()).or_insert_with(|| read(&file));
        if let Some(name) = text.strip_prefix('`').and_then(|t| t.strip_suffix('`')) {
            assert!(content.contains(&format!("fn {name}(")), "{file} has no {name}");
            let before = content.split(&format!("fn {name}(")).next().unwrap();
            assert!(before.trim_end().rsplit("\n\n").next().unwrap().contains("#[test]"), "{name} of {file} is no test");
            seen += 1;
        }
    }
    assert!(seen > 150, "only {seen} tests are named");
}

#[test]
fn the_checklist_names_what_exists() {
    let page = read("docs/guide/8-checklist.md");
    assert!(page.lines().filter(|l| l.starts_with("- [ ] ")).count() >= 8);
    // Each name in backticks that is a method or a setting stands in the sources.
    let sources: String = ["src/eval.rs", "src/device.rs", "src/device/memory.rs", "src/backends/pool.rs", "src/backends/limits.rs"]
        .into_iter()
        .chain(["benches/metal_performance.rs"])
        .map(read)
        .collect();
    for name in ["explain", "to_vec", "item", "download", "default_float", "reuse_rate", "in_use", "synchronize", "TL_MEM_LIMIT", "--json"]
    {
        assert!(page.contains(name) && sources.contains(name), "{name}");
    }
}
