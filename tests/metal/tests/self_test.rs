//! The self-test of `tl doctor` on the Metal backend: every kind of kernel in its dtypes, and the work that shows missing barriers. A fault that is
//! planted is in its report. The report goes through a bundle's file, and is shown as `tl doctor` does.

use fake_metal::barriers::{self, Judged};
use fake_metal::compiler;
use fake_metal::metal::{COUNTS, FAULTS};
use serde_json::{Value, json};
use std::sync::atomic::Ordering::SeqCst;
use tensorlogic::Device;
use tensorlogic::measure::{SelfTestOptions, SelfTestProgress, SelfTestReference, SelfTestReport, self_test};
use tensorlogic::tuning::Tuning;

#[path = "../../../cli/src/bundle.rs"]
mod bundle;
#[path = "../../../cli/src/device_facts.rs"]
mod device_facts;
#[path = "../../../cli/src/self_test_text.rs"]
mod self_test_text;

fn device() -> Device {
    compiler::compile_unoptimized();
    Device::open_with_tuning("metal", Tuning::apple()).unwrap()
}

fn failed(report: &SelfTestReport) -> Vec<String> {
    report.rows.iter().filter_map(|r| Some(format!("{}: {}", r.name, r.failed.as_ref()?.chars().take(300).collect::<String>()))).collect()
}

/// What `tl doctor --read-bundle` shows of a report, and whether it passes.
fn shown(device: &Device, report: &SelfTestReport) -> (String, bool) {
    let facts = device_facts::device_facts(device);
    let all = json!({ "machine": {}, "devices": [{ "name": "metal", "facts": facts, "report": report.to_json() }] });
    let file = std::env::temp_dir().join(format!("tl-fake-bundle-{}.tar", std::process::id()));
    std::fs::write(&file, bundle::pack(&[("report.json", all.to_string())])).unwrap();
    let read: Value = serde_json::from_str(&bundle::read(&file, "report.json").unwrap()).unwrap();
    std::fs::remove_file(file).unwrap();
    self_test_text::whole(&read).unwrap()
}

/// Of each barrier, leaving out it alone would be found. Only where two steps write parts of one result that lie in turn, or meet within 16 bytes,
/// does the backend wait although it need not: it compares ranges from the first to the last byte.
fn check_barriers(judged: Judged) {
    let Judged { passed, different, mut parts, needless } = judged;
    println!("{passed} barriers, {different} different ones; {} of these between parts of one result", parts.len());
    assert_eq!(needless, Vec::<String>::new(), "barriers without which nothing would be found");
    assert!(different >= 350, "{different} different barriers");
    parts.iter_mut().for_each(|p| p.truncate(p.find(": ").unwrap()));
    parts.sort();
    let known = [
        "copy cat, flip bf16",
        "copy cat, flip f16",
        "copy cat, flip f32",
        "integers quantize [64,128], 4 bits",
        "litmus barriers of tiles",
    ];
    assert_eq!(parts, known, "barriers between parts of one result");
}

#[test]
fn the_self_test_passes_and_finds_a_wrong_text() {
    let mut reference = SelfTestReference::default();
    let metal = device();
    FAULTS.three_orders.store(true, SeqCst);
    let mut note = |p: SelfTestProgress<'_>| {
        if let SelfTestProgress::Begins(name, _) = p {
            barriers::during(name);
        }
    };
    let (report, judged) = barriers::judged(|| self_test(&metal, &SelfTestOptions::default(), &mut reference, &mut note));
    FAULTS.three_orders.store(false, SeqCst);
    check_barriers(judged);
    let (count, ordered) = (report.rows.len(), COUNTS.ordered_kernels.load(SeqCst));
    println!("{count} rows, {} kernels, {ordered} of them in three orders of threads, {:.0} s", report.kernels.0, report.seconds);
    assert!(ordered >= 100, "{ordered} kernels ran in three orders");
    assert_eq!(failed(&report), Vec::<String>::new());
    let recorded = report.rows.iter().filter(|r| r.name.starts_with("recorded ")).count();
    println!("{recorded} recorded dispatches ran again");
    assert!(recorded >= 200 && count >= 418 + recorded, "{count} rows, {recorded} of them recorded dispatches");
    let (text, passes) = shown(&metal, &report);
    println!("{text}");
    assert!(passes);
    for part in [
        &format!("metal = Fake M1 (metal): {count} of {count} right"),
        "  families Apple1, ",
        "  limits buffer_bytes 4294967296, ",
        "  longest to compile: ",
        "(wgpu 4500): right\n",
        // The fake loses the device by such a kernel, which is the last, so that nothing else fails.
        "(MoltenVK 2711): device lost: ",
    ] {
        assert!(text.contains(part), "no {part:?}");
    }

    let planted = device();
    // A few of the sources, so that not all are compiled again.
    let plant = |source: &str| if source.len().is_multiple_of(16) { source.replace("metal::max(", "metal::min(") } else { source.into() };
    compiler::change(Some(Box::new(plant)));
    let wrong = self_test(&planted, &SelfTestOptions::default(), &mut reference, &mut |_| {});
    compiler::change(None);
    assert!(!wrong.passes(), "wrong sources are not found");
    let (text, passes) = shown(&planted, &wrong);
    assert!(!passes && text.contains("  FAILED "), "{text}");
}
