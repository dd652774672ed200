//! Statistics, comparisons and plots of made-up samples whose answers are known by hand; wrong results are refused.

use super::compare::mann_whitney;
use super::*;
use crate::dtype::DType;

fn record(operation: &str, samples: &[f64]) -> Record {
    Record {
        suite: "metal".into(),
        category: "Element-wise Operations".into(),
        operation: operation.into(),
        size: "1K".into(),
        environment: Environment { device: "a device".into(), driver: None, host: None, commit: Some("abc".into()), version: "0".into() },
        bytes: 1000,
        operations: 500,
        dispatches: 1,
        batch: 1,
        wall: Stats::of(samples.to_vec()).unwrap(),
        gpu: None,
        limit: Some(1e-6),
    }
}

#[test]
fn statistics_by_hand() {
    let s = Stats::of(vec![3.0, 1.0, 2.0, 10.0]).unwrap();
    assert_eq!((s.median, s.mean, s.min, s.max, s.p95, s.mad), (2.5, 4.0, 1.0, 10.0, 10.0, 1.0));
    let twenty = Stats::of((1..=20).map(f64::from).collect()).unwrap();
    assert_eq!((twenty.p95, twenty.median, twenty.mad), (19.0, 10.5, 5.0));
    assert_eq!(Stats::of(vec![]), None);
    assert_eq!(Stats::of(vec![1.0, f64::NAN]), None);
}

#[test]
fn mann_whitney_by_hand() {
    // Of the 20 orders of 3 and 3 values, one each way is as uneven as complete separation: 2/20. For 5 and 5: 2/252.
    for (a, b, want) in [
        (&[1.0, 2.0, 3.0][..], &[4.0, 5.0, 6.0][..], 0.1),
        (&[4.0, 5.0, 6.0], &[1.0, 2.0, 3.0], 0.1),
        (&[1.0, 2.0, 3.0, 4.0, 5.0], &[6.0, 7.0, 8.0, 9.0, 10.0], 2.0 / 252.0),
        // U = 1: orders with U of 0 or 1 are 2 of 20.
        (&[1.0, 2.0, 4.0], &[3.0, 5.0, 6.0], 0.2),
        (&[1.0, 4.0], &[2.0, 3.0], 1.0),
        (&[], &[1.0], 1.0),
        (&[2.0, 2.0, 2.0], &[2.0, 2.0], 1.0),
    ] {
        assert!((mann_whitney(a, b) - want).abs() < 1e-12, "{a:?} {b:?}: {}", mann_whitney(a, b));
    }
    // With ties, the normal approximation: n = m = 4, U = 2 (one pair of ties of 2 and 2 values), as scipy.stats.mannwhitneyu gives it
    // with method="asymptotic": variance 16/12·(9 − 12/56).
    let p = mann_whitney(&[1.0, 2.0, 3.0, 5.0], &[3.0, 5.0, 6.0, 7.0]);
    let variance: f64 = 16.0 / 12.0 * (9.0 - 12.0 / 56.0);
    let u = 2.0; // pairs won by the first: (5,3) once, ties (3,3) and (5,5) a half each
    let want = libm::erfc((8.0 - u - 0.5) / variance.sqrt() / std::f64::consts::SQRT_2);
    assert!((p - want).abs() < 1e-12, "{p} {want}");
}

/// Compares one operation's runs before and after.
#[track_caller]
fn check(before: &[&[f64]], after: &[&[f64]], verdict: Verdict, noise: f64) {
    let side = |runs: &[&[f64]]| runs.iter().map(|s| record("Add", s)).collect::<Vec<_>>();
    let changes = compare(&side(before), &side(after));
    assert_eq!(changes.len(), 1);
    assert_eq!(changes[0].verdict, verdict, "{:?}", changes[0]);
    assert!((changes[0].noise - noise).abs() < 1e-9, "{:?}", changes[0]);
}

#[test]
fn changes_and_noise_are_told_apart() {
    let near = |x: f64| [0.99, 0.995, 1.0, 1.005, 1.01].map(|f| f * x);
    // Median deviation 0.005, three of them 1.5 %.
    check(&[&near(1.0)], &[&near(1.2)], Verdict::Slower, 0.015);
    check(&[&near(1.0)], &[&near(0.8)], Verdict::Faster, 0.015);
    check(&[&near(1.0)], &[&near(1.003)], Verdict::Same, 0.015);
    // The same change where repeated runs of one side differ by 30 % already is noise.
    check(&[&near(1.0), &near(1.3)], &[&near(1.2), &near(1.2)], Verdict::Same, 0.3 / 1.15);
    // Three samples a side cannot show anything at 1 %.
    check(&[&[1.0, 1.0001, 1.0002]], &[&[1.2, 1.2001, 1.2002]], Verdict::Same, 0.01);
    // A certain change below one percent is not told.
    let exact = |x: f64| [0.0, 1e-6, 2e-6, 3e-6, 4e-6, 5e-6].map(|d| x + d);
    check(&[&exact(1.0)], &[&exact(1.005)], Verdict::Same, 0.01);
    check(&[&exact(1.0)], &[&exact(1.02)], Verdict::Slower, 0.01);
    // What only one file has is left out; records of another device are another thing.
    let mut other = record("Add", &near(1.0));
    other.environment.device = "another".into();
    assert!(compare(&[record("Add", &near(1.0))], &[record("Mul", &near(1.0)), other]).is_empty());
}

#[test]
fn records_pass_through_json() {
    let mut r = record("Add", &[1e-3, 2e-3, 4e-3]);
    let text = format!("{}\n\n{}\n", r.to_json(), r.to_json());
    assert_eq!(read_records(&text).unwrap(), [r.clone(), r.clone()]);
    r.gpu = Stats::of(vec![1e-6]);
    r.limit = None;
    let v = r.to_json();
    assert!(v["limit"].is_null() && v["fraction"].is_null() && v["commit"] == "abc");
    assert_eq!(Record::from_json(&v).unwrap(), r);
    assert!(read_records("{\"suite\":\"x\"}").unwrap_err().to_string().contains("line 1"));
    assert!(read_records("\nnonsense").unwrap_err().to_string().contains("line 2"));
}

#[test]
fn tables_and_plots_show_what_was_measured_and_nothing_else() {
    let mut moved = record("Device→Host <&>", &[2e-6]);
    (moved.operations, moved.limit) = (0, None);
    let all = [record("Add", &[1e-6, 2e-6, 3e-6]), moved];
    let text = table(&all);
    let row = text.lines().find(|l| l.starts_with("Add")).unwrap();
    // 500 operations and 1000 bytes in the median of 2 µs: 0.25 GFLOP/s, 0.5 GB/s, half of the limit of 1 µs.
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells.join(" "), "Add 1K 0.00200 0.00100 0.00300 0.00200 0.00300 50.0 % 3 - 0.2500 0.5000 0.00100 50 %");
    let row = text.lines().find(|l| l.starts_with("Device→Host")).unwrap();
    assert!(row.trim_end().ends_with("-         -") && row.contains(" - "), "{row:?}");
    assert!(
        text.contains("Peak Compute Performance: 0.25 GFLOPS (Add 1K)") && text.contains("Peak Memory Bandwidth:    0.50 GB/s"),
        "{text}"
    );
    assert!(!text.contains('*'));
    // Three times its limit: marked and explained, not cut.
    let mut past = record("Add", &[1e-6]);
    past.limit = Some(3e-6);
    let marked = table(&[past]);
    assert!(marked.contains("300 % *\n") && marked.contains("\n* past its limit"), "{marked}");
    let plot = svg(&all, 10.0, 100.0);
    assert_eq!((plot.matches("<title>").count(), plot.matches("class=\"roof\"").count()), (2, 1));
    assert!(plot.contains("Device→Host &lt;&amp;&gt; 1K") && !plot.contains("<&>"));
    assert!(!plot.contains("NaN") && !plot.contains("inf"), "{plot}");
    assert!(html(&all, 10.0, 100.0).contains("</svg>"));
}

#[test]
fn a_wrong_result_is_not_reported() {
    let d = Device::cpu();
    let x = Tensor::full(2.0, &[8], DType::F32, &d).unwrap();
    let run = |want: f64| {
        let work = Work { variants: 1, run: Box::new(|_| Ok(x.mul(3.0)?.into())), expect: vec![want], tolerance: 1e-6 };
        measure(&d, &work, &Options::quick())
    };
    assert!(run(7.0).unwrap_err().to_string().contains("nothing is reported"));
    let t = run(6.0).unwrap();
    assert!(t.gpu.is_none() && t.wall.samples.len() == 3 && t.wall.min > 0.0);
}

/// The CPU, and a GPU where there is one.
fn devices() -> Vec<Device> {
    [Device::cpu()].into_iter().chain(crate::device::under_test::gpu()).collect()
}

#[test]
fn limits_are_measured_on_every_device() {
    for d in devices() {
        let mut l = Limits::new(&d, Options::quick());
        let (copy, read, ops) = (l.copy_bandwidth().unwrap(), l.read_bandwidth().unwrap(), l.operations().unwrap());
        let launch = l.launch().unwrap();
        // No machine of this decade leaves these ranges.
        for v in [copy, read, ops] {
            assert!(v > 1e6 && v < 1e15, "{}: {copy} {read} {ops}", d.name());
        }
        assert!(launch.iter().all(|s| *s > 1e-9 && *s < 0.1), "{launch:?}");
    }
}
