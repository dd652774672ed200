//! The recorded values are complete, wrong values are told, and a report survives its file.

use super::*;

/// What the CPU gives now, in the file's form.
fn lines() -> String {
    let line = |case: &Case| {
        let words: Vec<String> =
            samples(&values(&(case.run)(&Device::cpu()).unwrap()).unwrap()).iter().map(|v| format!("{:08x}", v.to_bits())).collect();
        format!("{}\t{}\n", case.name, words.join(" "))
    };
    cases().iter().map(line).collect()
}

/// Records the cases anew, after one was added or changed: `cargo test --lib self_test -- --ignored`.
#[test]
#[ignore = "writes the file of recorded values"]
fn record() {
    std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/src/measure/self_test/recorded.txt"), lines()).unwrap();
}

#[test]
fn every_case_is_recorded_once() {
    let names: Vec<String> = cases().into_iter().map(|c| c.name).collect();
    let recorded: Vec<&str> = RECORDED.lines().filter_map(|l| l.split('\t').next()).collect();
    assert_eq!(recorded, names);
    let distinct: std::collections::BTreeSet<&String> = names.iter().collect();
    assert_eq!(distinct.len(), names.len(), "two cases have one name");
    assert!(names.len() >= 200, "{} cases", names.len());
}

#[test]
fn wrong_values_are_told() {
    assert_eq!(error(&[1.0, f32::NAN], &[1.0, f32::NAN]), 0.0);
    assert_eq!(error(&[1.0, 3.0], &[1.0, 4.0]), 0.25);
    assert_eq!(error(&[1.0, f32::NAN], &[1.0, 2.0]), f64::INFINITY);
    assert_eq!(error(&[1.0], &[1.0, 2.0]), f64::INFINITY);
    let mut wrong = cases().swap_remove(0);
    let run = wrong.run;
    wrong.run = Box::new(move |d| run(d)?.add(1e-2));
    let row = run_case(&wrong, &Device::cpu(), &Device::cpu());
    assert!(row.failed.as_ref().is_some_and(|f| f.contains("from those recorded")), "{row:?}");
    wrong.run = Box::new(|_| panic!("on purpose"));
    let row = run_case(&wrong, &Device::cpu(), &Device::cpu());
    assert!(row.failed.as_ref().is_some_and(|f| f.contains("panicked: on purpose")), "{row:?}");
}

#[test]
fn a_report_survives_its_file() {
    let row = |error, failed: Option<&str>| SelfTestRow {
        name: "a".into(),
        error,
        tolerance: 1e-3,
        failed: failed.map(Into::into),
        seconds: 0.5,
    };
    let bench = vec![SelfTestBench { name: "copy".into(), seconds: 0.25, bytes: 1e6, operations: 3.0 }];
    let rows = vec![row(Some(1e-4), None), row(None, Some("no"))];
    let report = SelfTestReport { device: "d".into(), rows, bench, kernels: (3, 0.125), seconds: 2.0 };
    assert!(!report.passes());
    assert_eq!(SelfTestReport::from_json(&report.to_json()).unwrap(), report);
    assert!(SelfTestReport::from_json(&json!({ "device": "d" })).is_err());
}

#[test]
fn chips_are_known_by_their_names() {
    assert_eq!(published_bandwidth("Apple M1 (metal)"), Some([68e9; 2]));
    assert_eq!(published_bandwidth("Apple M3 Max (metal)"), Some([300e9, 400e9]));
    assert_eq!(published_bandwidth("Apple M12 (metal)"), None);
    assert_eq!(published_bandwidth("NVIDIA H100"), None);
}
