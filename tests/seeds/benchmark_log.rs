//! The blocks of the benchmark log.

use super::*;
use tensorlogic::measure::{CATEGORIES, Options, Verdict, compare, read_records, suite, table};
use tensorlogic::{DType, TensorResult};

/// Section 1, "ベンチマークカテゴリ" and "出力フォーマット": the five categories under the log's names, and its table with its columns in its order.
#[test]
fn output_format() -> TensorResult<()> {
    let _turn = turn();
    let wanted =
        ["Matrix Multiplication", "Element-wise Operations", "Reduction Operations", "Memory Transfer Bandwidth", "Activation Functions"];
    assert_eq!(CATEGORIES[..5], wanted);
    for device in devices() {
        let text = table(&suite(&device, &Options::quick(), CATEGORIES[0], &mut |_| {})?);
        let lines: Vec<&str> = text.lines().filter(|l| !l.is_empty()).collect();
        assert_eq!(lines[0], "=== Matrix Multiplication Benchmark ===");
        let mut at = 0;
        for column in ["Operation", "Size", "Avg (ms)", "Min (ms)", "Max (ms)", "GFLOPS", "GB/s"] {
            at += lines[1][at..].find(column).unwrap_or_else(|| panic!("no {column} after column {at} of {}", lines[1]));
        }
        assert!(lines[2].chars().all(|c| c == '-'));
        for (line, size) in lines[3..].iter().zip(["64x64", "128x128", "256x256", "512x512", "1024x1024"]) {
            let words: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(words[..2], ["MatMul", size]);
            let [avg, min, max] = [2, 3, 4].map(|n: usize| words[n].parse::<f64>().unwrap());
            assert!(0.0 < min && min <= avg && avg <= max, "{line}");
        }
        assert!(text.contains("=== Performance Summary ==="));
        for (what, unit) in [("Peak Compute Performance:", "GFLOPS"), ("Peak Memory Bandwidth:", "GB/s")] {
            assert!(lines.iter().any(|l| l.starts_with(what) && l.contains(unit)), "{text}");
        }
    }
    Ok(())
}

/// The guide's section 10, "Profile-Guided Optimization": two runs kept in files and compared. What `diff` cannot tell from noise, this does.
#[test]
fn profile_guided_optimization() -> TensorResult<()> {
    let _turn = turn();
    let device = Device::cpu();
    let file = |name: &str| std::env::temp_dir().join(format!("tensorlogic-seeds-{}-{name}", std::process::id()));
    let options = Options { samples: 12, ..Options::quick() };
    let lines = |records: &[tensorlogic::measure::Record]| records.iter().map(|r| format!("{}\n", r.to_json())).collect::<String>();

    // Run comprehensive benchmarks
    let records = suite(&device, &options, CATEGORIES[4], &mut |_| {})?;
    std::fs::write(file("baseline.jsonl"), lines(&records)).unwrap();
    // Make optimization changes: here one that makes everything a hundred times slower.
    let mut slower = records.clone();
    for r in &mut slower {
        r.wall.samples.iter_mut().for_each(|s| *s *= 100.0);
    }
    // Re-run benchmarks
    std::fs::write(file("optimized.jsonl"), lines(&slower)).unwrap();

    // Compare results
    let read = |name: &str| {
        let text = std::fs::read_to_string(file(name)).unwrap();
        std::fs::remove_file(file(name)).unwrap();
        read_records(&text)
    };
    let (baseline, optimized) = (read("baseline.jsonl")?, read("optimized.jsonl")?);
    assert!(compare(&baseline, &baseline).iter().all(|c| c.verdict == Verdict::Same));
    let changes = compare(&baseline, &optimized);
    assert_eq!(changes.len(), records.len());
    for c in changes {
        assert!((c.relative() - 99.0).abs() < 1e-6, "{}: {}", c.name, c.relative());
        assert_eq!(c.verdict, Verdict::Slower, "{}: noise {}", c.name, c.noise);
    }
    Ok(())
}

/// What the two blocks of Rust share: the sum of each block of 256 elements, `[blocks]`.
fn stage1(x: &Tensor) -> TensorResult<Tensor> {
    let num_blocks = x.numel() / 256;
    x.reshape(&[num_blocks as isize, 256])?.sum(&[1], false)
}

/// Section 3, "実装": a reduction in two stages on the GPU. The log found it slower than its own; here `sum_all` needs one stage, and the two are
/// the same value.
#[test]
fn optimization_experiment() -> TensorResult<()> {
    let _turn = turn();
    for device in devices() {
        let x = random(&[65_536], 0.3, &device).cast(DType::F32)?;
        x.eval()?;
        // Stage 1: GPU削減（ブロックごと）
        let stage1_buf = stage1(&x)?;
        // Stage 2: GPUで最終削減（元はCPU）
        let final_buf = stage1_buf.sum_all()?;

        let want: f64 = wide::<f32>(&x).iter().sum();
        check(&final_buf, &[want]);
        let one = x.sum_all()?;
        assert_eq!(dispatches(&one), 1, "{}", one.explain()?);
        check(&one, &[want]);
    }
    Ok(())
}

/// Section 4, "変更": the last stage on the CPU. Added up in f16 it loses what f32 keeps.
#[test]
fn optimization_revert() -> TensorResult<()> {
    let _turn = turn();
    for device in devices() {
        let x = Tensor::full(0.51, &[65_536], DType::F16, &device)?;
        x.eval()?;
        let stage1_buf = stage1(&x)?;
        stage1_buf.eval()?;
        // Stage 2: Reduce blocks to final result (CPU for simplicity)
        let stage1_data = stage1_buf.to_vec_of::<f16>()?;
        let mut final_sum = f16::ZERO;
        for &val in &stage1_data {
            final_sum += val;
        }

        let want = f16::from_f64(0.51).to_f64() * 65_536.0;
        let lost = (final_sum.to_f64() - want).abs() / want;
        let kept = (x.sum_all()?.item()? - want).abs() / want;
        assert!(lost > 1e-3 && kept < 1e-6, "{lost:e} {kept:e} on {}", device.name());
    }
    Ok(())
}

/// "テスト結果": the line that `cargo test` ends with, and what `scripts/test.sh` adds up from such lines.
#[test]
fn test_results() {
    let script = include_str!("../../scripts/test.sh");
    let program = script.split("awk '").nth(1).unwrap().rsplit_once('\'').unwrap().0;
    let block = "test result: ok. 259 passed; 0 failed; 0 ignored; 0 measured\n";
    let run = |input: String| {
        use std::io::Write;
        use std::process::{Command, Stdio};
        let mut awk = Command::new("awk").arg(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
        awk.stdin.take()?.write_all(input.as_bytes()).ok()?;
        String::from_utf8(awk.wait_with_output().ok()?.stdout).ok()
    };
    if cfg!(unix) {
        assert_eq!(run(block.into()).unwrap(), "259 passed, 0 failed, 0 skipped\n");
        let two = run(format!("{block}test result: FAILED. 3 passed; 2 failed; 1 ignored; 0 measured\n")).unwrap();
        assert_eq!(two, "262 passed, 2 failed, 1 skipped\n");
        // The slowest tests come before the sum, with their programs.
        let timed = "     Running tests/it/main.rs (target/it-1)\ntest a::b ... ok <1.5s>\ntest c ... \u{1b}[31mFAILED\u{1b}[m <12.26s>\n";
        let slowest = run(format!("{timed}{block}")).unwrap();
        let want = "     12.3 s  tests/it/main.rs: c\n      1.5 s  tests/it/main.rs: a::b\n259 passed, 0 failed, 0 skipped\n";
        assert_eq!(slowest, want);
    }
}

/// "ファイル変更", "コミット", "進捗状況", "学んだこと": the benchmark and its entries in the manifest and the change log; the sections that the page names.
/// The results of runs are files of yours.
#[test]
fn file_changes() {
    let root = std::path::Path::new(env!("TENSORLOGIC_ROOT"));
    for file in ["benches/metal_performance.rs", "src/ops/reduce/mod.rs", "CHANGELOG.md", "README.md"] {
        assert!(root.join(file).is_file(), "{file}");
    }
    let manifest = include_str!("../../Cargo.toml");
    assert!(manifest.contains("[[bench]]\nname = \"metal_performance\"\nharness = false\n"));
    assert!(include_str!("../../CHANGELOG.md").contains("`cargo bench --bench metal_performance`"));
    assert!(include_str!("../../README.md").contains("\n## What works\n"));
    assert!(include_str!("../../docs/guide/README.md").contains("\n## Differences from the source documents\n"));
}
