//! `tl tune` on the Metal backend: tables are measured by the GPU's own clock, kept, and in force for whoever opens the device next. Alone in its
//! program: it sets variables.

use fake_metal as _;
use tensorlogic::Device;
use tensorlogic::measure::{TuneOptions, tune};
use tensorlogic::tuning::TuningSource;

#[test]
fn a_measured_table_is_in_force_for_the_next_device() {
    let folder = std::env::temp_dir().join(format!("tl-metal-tune-{}", std::process::id()));
    // SAFETY: no other thread of this program reads the environment now.
    unsafe { std::env::set_var("TL_CACHE_DIR", &folder) };
    let options = TuneOptions { seconds: 30.0, stop: &|| false, progress: &|what| println!("{what}") };
    let report = tune("metal", &options).unwrap().expect("nobody stopped it");
    assert!(report.device.contains("Fake M1 (metal)") && !report.software, "{}", report.device);
    assert!(report.gpu_clock && report.cases[0] > 0, "{:?} cases, by the GPU's clock: {}", report.cases, report.gpu_clock);
    assert_eq!(report.class.name, "apple");
    let file = report.store().unwrap();
    let device = Device::open("metal").unwrap();
    assert!(matches!(device.tuning_source(), Some(TuningSource::Measured(from)) if *from == file), "{:?}", device.tuning_source());
    assert_eq!(device.tuning(), Some(&report.table));
    std::fs::remove_dir_all(&folder).unwrap();
}
