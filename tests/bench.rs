//! The benchmark itself, with few samples: every row of the log is there, on the CPU and on a GPU, and its numbers hang together.

mod common;

use common::{alone, devices};
use tensorlogic::measure::{CATEGORIES, Options, Verdict, floors, memory, read_records, suite, table};
use tensorlogic::plan::BufferOrder;

/// A size that some devices, among them software drivers, do not hold in one tensor.
const LARGEST: &str = "256 MiB";

/// The rows of a category: operations by sizes.
const ROWS: [(&str, &[&str], &[&str]); 16] = [
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
    (CATEGORIES[3], &["Device→Host, its own memory"], &["16 MiB", "128 MiB", LARGEST]),
    (CATEGORIES[5], &["MatMul+ReLU, fused", "MatMul+ReLU, TL_NO_FUSION"], &["64x64", "256x256", "1024x1024"]),
    (
        CATEGORIES[5],
        &[
            "Add+ReLU, fused",
            "Add+ReLU, TL_NO_FUSION",
            "Mul+ReLU, fused",
            "Mul+ReLU, TL_NO_FUSION",
            "Affine, fused",
            "Affine, TL_NO_FUSION",
        ],
        &["10K", "100K", "1M"],
    ),
    (CATEGORIES[10], &["Mul in f16", "Mul in f32"], &["1M", "16M"]),
    (CATEGORIES[10], &["MatMul in f16", "MatMul in f32"], &["1024x1024"]),
    (CATEGORIES[11], &["16 GEMVs, independent", "16 GEMVs, dependent"], &["512x512"]),
];

#[test]
fn every_row_of_the_log_is_measured() {
    let _alone = alone();
    for d in devices() {
        let mut seen = 0;
        let records = suite(&d, &Options::quick(), "", &mut |_| seen += 1).unwrap();
        let left_out = !d.is_cpu() && records.iter().all(|r| r.size != LARGEST);
        let rows = ROWS.iter().map(|r| r.1.len() * r.2.len()).sum::<usize>() - usize::from(left_out);
        assert_eq!((records.len(), seen), (rows, rows));
        for (category, operations, sizes) in ROWS {
            for (o, s) in operations.iter().flat_map(|o| sizes.iter().map(move |s| (o, s))) {
                let r = records.iter().find(|r| r.category == category && r.operation == *o && r.size == *s);
                if r.is_none() && left_out && *s == LARGEST {
                    continue;
                }
                let r = r.unwrap_or_else(|| panic!("{}: no row {category} {o} {s}", d.name()));
                assert_eq!(r.wall.samples.len(), 3);
                assert!(r.wall.min > 0.0 && r.wall.min <= r.wall.median && r.wall.median <= r.wall.p95 && r.wall.p95 <= r.wall.max);
                assert!(r.bytes > 0 && r.environment.device == d.name());
                let transfer = [CATEGORIES[3], CATEGORIES[9]].contains(&category);
                // The GPU's clock is shown where something was dispatched on a GPU, and nowhere else.
                assert_eq!(r.gpu.is_some(), !d.is_cpu() && !transfer, "{o} {s}");
                // The native Metal backend, whose memory is the host's too, has no raw copies to compare transfers with.
                assert!(r.limit.is_some_and(|l| l > 0.0) || transfer && d.name().starts_with("metal"), "{o} {s}");
            }
        }
        let dispatches = |o: &str| records.iter().find(|r| r.operation == o).unwrap().dispatches;
        assert_eq!((dispatches("Chain of 8, fused"), dispatches("Chain of 8, TL_NO_FUSION")), (1, 9));
        for op in ["MatMul+ReLU", "Add+ReLU", "Mul+ReLU", "Affine"] {
            assert_eq!([", fused", ", TL_NO_FUSION"].map(|way| dispatches(&format!("{op}{way}"))), [1, 2], "{op}");
        }
        assert_eq!(["16 GEMVs, independent", "16 GEMVs, dependent"].map(dispatches), [16, 16]);
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
        let mut want = vec![
            "chain8",
            "chain8_unfused",
            "sum",
            "dispatch_gpu",
            "dispatch_wall",
            "dispatch_fused",
            "sum_item",
            "reuse_batches",
            "reuse_one_off",
            "fused_product",
            "fused_pair",
            "batch",
            "half",
            "packed",
            "pool",
            "matmul_relu_64",
            "matmul_relu_256",
            "matmul_relu_1024",
            "add_relu_10k",
            "add_relu_100k",
            "add_relu_1m",
            "mul_relu_10k",
            "mul_relu_100k",
            "mul_relu_1m",
            "affine_10k",
            "affine_100k",
            "affine_1m",
            "download",
            "planned",
            "defragmented",
        ];
        if d.is_cpu() {
            want.retain(|n| *n != "dispatch_gpu");
        }
        assert_eq!(names, want);
        assert_eq!(records.len(), 3);
        for f in &all {
            // Work that is done once may find nothing to reuse.
            assert!(f.seconds > 0.0 && (f.value > 0.0 || f.name == "reuse_one_off"), "{f}");
            // A comparison judges the gains of the fused operations, in which a lower one may be noise.
            let judged = f.name.contains("_relu_") || f.name.starts_with("affine_");
            assert_eq!(f.verdict.is_some(), judged, "{f}");
            assert!(!judged || f.met() == Some(f.verdict != Some(Verdict::Slower)), "{f}");
            let met = f.met().map(|m| if m { " met" } else { "MISSED" });
            assert!(met.is_none_or(|m| f.to_string().contains(m)), "{f}");
        }
        // Counts, not times: they hold on every device.
        let reused = |name: &str| all.iter().find(|f| f.name == name).unwrap().value;
        assert!((60.0..=100.0).contains(&reused("reuse_batches")), "{}: {} %", d.name(), reused("reuse_batches"));
        assert!((0.0..=20.0).contains(&reused("reuse_one_off")), "{}: {} %", d.name(), reused("reuse_one_off"));
        // What a driver holds depends on what the process made before: there a defragmentation may find nothing to give back.
        for f in all.iter().filter(|f| f.name == "planned" || f.name == "defragmented" && d.is_cpu()) {
            assert_eq!(f.met(), Some(true), "{}: {f}", d.name());
        }
        assert!(all.iter().find(|f| f.name == "defragmented").unwrap().value <= 1.0, "a defragmentation took memory");
        // Twenty additions of a parameter: each takes two instructions beside the read, so one dispatch holds them all.
        assert_eq!(all.iter().find(|f| f.name == "dispatch_fused").unwrap().value, 1.0);
    }
}

/// Every order of each workload, with what it reads again by distance and the GPU's own time where it has a clock.
#[test]
fn the_memory_suite_measures_every_order() {
    let _alone = alone();
    for device in devices() {
        let mut seen = 0;
        let rows = memory(&device, &Options::quick(), &mut |_| seen += 1).unwrap();
        assert_eq!((rows.len(), seen), (4 * BufferOrder::ALL.len(), rows.len()));
        for row in &rows {
            let timed = row.workload != "random graphs";
            assert_eq!(row.wall.is_some(), timed, "{row}");
            let clock = timed && device.profile(|| Ok(())).unwrap().1.gpu_clock;
            assert_eq!(row.gpu.as_ref().map(|s| s.median > 0.0), clock.then_some(true), "{row}");
            assert!(row.planned >= row.live && row.reuse.total() > 0 && row.same_bits, "{row}");
            let classes = row.to_json()["reuse_histogram"].as_array().unwrap().iter().map(|c| c["bytes"].as_u64().unwrap()).sum::<u64>();
            assert_eq!(classes, row.reuse.total(), "{row}");
        }
    }
}
