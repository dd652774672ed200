//! The self-test of `tl doctor` on the Metal backend: every kind of kernel in its dtypes, and the work that shows missing barriers. A fault that is
//! planted is in its report.

use fake_metal::texts;
use tensorlogic::Device;
use tensorlogic::measure::{SelfTestOptions, SelfTestReport, self_test};
use tensorlogic::tuning::Tuning;

fn device() -> Device {
    Device::open_with_tuning("metal", Tuning::apple()).unwrap()
}

fn failed(report: &SelfTestReport) -> Vec<String> {
    report.rows.iter().filter_map(|r| Some(format!("{}: {}", r.name, r.failed.as_ref()?.chars().take(300).collect::<String>()))).collect()
}

#[test]
fn the_self_test_passes_and_finds_a_wrong_text() {
    let learning = device();
    let kernels = texts::learn(|| self_test(&learning, &SelfTestOptions::default(), &mut |_| {}));
    drop(learning);
    let report = self_test(&device(), &SelfTestOptions { bench_seconds: 0.01 }, &mut |_| {});
    let count = report.rows.len();
    println!("{count} rows, {} kernels, {kernels:?} learned and new; {:.0} s", report.kernels.0, report.seconds);
    report.bench.iter().for_each(|b| println!("{}: {} bytes, {} operations", b.name, b.bytes, b.operations));
    assert_eq!(failed(&report), Vec::<String>::new());
    assert!(count >= 200 && report.bench.len() == 4, "{count} rows, {} measurements", report.bench.len());

    let planted = device();
    texts::change(Some(Box::new(|text| text.replace("metal::tanh(", "metal::sinh(").replace("metal::max(", "metal::min("))));
    let wrong = self_test(&planted, &SelfTestOptions::default(), &mut |_| {});
    texts::change(None);
    assert!(!wrong.passes(), "wrong texts are not found");
}
