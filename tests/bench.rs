//! The benchmark itself, with few samples: every row of the log is there, on the CPU and on a GPU, and its numbers hang together.

mod common;

use common::{alone, devices};
use tensorlogic::measure::{CATEGORIES, Options, floors, read_records, suite, table};

/// The rows of a category: operations by sizes.
const ROWS: [(&str, &[&str], &[&str]); 10] = [
    (CATEGORIES[0], &["MatMul"], &["64x64", "128x128", "256x256", "512x512", "1024x1024"]),
    (CATEGORIES[1], &["Add", "Mul"], &["1K", "10K", "100K", "1M"]),
    (CATEGORIES[2], &["Sum"], &["1K", "10K", "100K", "1M"]),
    (CATEGORIES[3], &["Host→Device", "Device→Host"], &["1K", "10K", "100K", "1M"]),
    (CATEGORIES[4], &["ReLU", "GELU"], &["1K", "10K", "100K", "1M"]),
    (CATEGORIES[5], &["Chain of 8, fused", "Chain of 8, TL_NO_FUSION"], &["1K", "1M"]),
    (CATEGORIES[6], &["Add, memory from the pool", "Add, new memory each time"], &["10K", "1M"]),
    (CATEGORIES[7], &["MLP 256-1024-256"], &["batch 1", "batch 4", "batch 16", "batch 64"]),
    (CATEGORIES[8], &["Logits"], &["50257", "50304"]),
    (CATEGORIES[9], &["Batch", "Copy of its bytes"], &["64x12288 u8", "64x12288 f32"]),
];

#[test]
fn every_row_of_the_log_is_measured() {
    let _alone = alone();
    for d in devices() {
        let mut seen = 0;
        let records = suite(&d, &Options::quick(), "", &mut |_| seen += 1).unwrap();
        let rows: usize = ROWS.iter().map(|r| r.1.len() * r.2.len()).sum();
        assert_eq!((records.len(), seen), (rows, rows));
        for (category, operations, sizes) in ROWS {
            for (o, s) in operations.iter().flat_map(|o| sizes.iter().map(move |s| (o, s))) {
                let r = records.iter().find(|r| r.category == category && r.operation == *o && r.size == *s);
                let r = r.unwrap_or_else(|| panic!("{}: no row {category} {o} {s}", d.name()));
                assert_eq!(r.wall.samples.len(), 3);
                assert!(r.wall.min > 0.0 && r.wall.min <= r.wall.median && r.wall.median <= r.wall.p95 && r.wall.p95 <= r.wall.max);
                assert!(r.bytes > 0 && r.environment.device == d.name());
                let transfer = [CATEGORIES[3], CATEGORIES[9]].contains(&category);
                // The GPU's clock is shown where something was dispatched on a GPU, and nowhere else.
                assert_eq!(r.gpu.is_some(), !d.is_cpu() && !transfer, "{o} {s}");
                assert_eq!(r.limit.is_some(), d.is_cpu() || !transfer, "{o} {s}");
            }
        }
        let dispatches = |o: &str| records.iter().find(|r| r.operation == o).unwrap().dispatches;
        assert_eq!((dispatches("Chain of 8, fused"), dispatches("Chain of 8, TL_NO_FUSION")), (1, 9));
        let text = table(&records);
        for needle in ["Avg (ms)", "Min (ms)", "Max (ms)", "GFLOPS", "GB/s", "Peak Compute Performance", "Peak Memory Bandwidth"] {
            assert!(text.contains(needle), "{needle}");
        }
        let lines: String = records.iter().map(|r| r.to_json().to_string() + "\n").collect();
        assert_eq!(read_records(&lines).unwrap().len(), rows);
    }
}

#[test]
fn every_floor_is_measured() {
    let _alone = alone();
    for d in devices() {
        let (all, records) = floors(&d, &Options::quick(), &mut |_| {}).unwrap();
        let names: Vec<&str> = all.iter().map(|f| f.name).collect();
        let mut want = vec!["chain8", "chain8_unfused", "sum", "dispatch_gpu", "dispatch_wall", "dispatch_fused", "sum_item"];
        if d.is_cpu() {
            want.retain(|n| *n != "dispatch_gpu");
        }
        assert_eq!(names, want);
        assert_eq!(records.len(), 3);
        for f in &all {
            assert!(f.seconds > 0.0 && f.value > 0.0, "{f}");
            let met = f.met().map(|m| if m { " met" } else { "MISSED" });
            assert!(met.is_none_or(|m| f.to_string().contains(m)), "{f}");
        }
        // Twenty additions of a parameter: each takes two instructions beside the read, so one dispatch holds them all.
        assert_eq!(all.iter().find(|f| f.name == "dispatch_fused").unwrap().value, 1.0);
    }
}
