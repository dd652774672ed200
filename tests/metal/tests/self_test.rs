//! The self-test of `tl doctor` on the Metal backend: every kind of kernel in its dtypes, and the work that shows missing barriers. A fault that is
//! planted is in its report.

use fake_metal::texts;
use tensorlogic::Device;
use tensorlogic::measure::{SelfTestOptions, SelfTestReference, SelfTestReport, self_test};
use tensorlogic::tuning::Tuning;

fn device() -> Device {
    texts::compile_unoptimized();
    Device::open_with_tuning("metal", Tuning::apple()).unwrap()
}

fn failed(report: &SelfTestReport) -> Vec<String> {
    report.rows.iter().filter_map(|r| Some(format!("{}: {}", r.name, r.failed.as_ref()?.chars().take(300).collect::<String>()))).collect()
}

#[test]
fn the_self_test_passes_and_finds_a_wrong_text() {
    let mut reference = SelfTestReference::default();
    let report = self_test(&device(), &SelfTestOptions::default(), &mut reference, &mut |_| {});
    let count = report.rows.len();
    println!("{count} rows, {} kernels, {:.0} s", report.kernels.0, report.seconds);
    assert_eq!(failed(&report), Vec::<String>::new());
    assert!(count >= 200, "{count} rows");

    let planted = device();
    // A few of the texts, so that not all are compiled again.
    let plant = |text: &str| if text.len().is_multiple_of(16) { text.replace("metal::max(", "metal::min(") } else { text.into() };
    texts::change(Some(Box::new(plant)));
    let wrong = self_test(&planted, &SelfTestOptions::default(), &mut reference, &mut |_| {});
    texts::change(None);
    assert!(!wrong.passes(), "wrong texts are not found");
}
