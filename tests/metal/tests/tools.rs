//! What developers look with: captures of what the GPU is given, and intervals that Instruments shows. Alone in its program: it sets a variable.

use fake_metal::metal::{COUNTS, FAULTS};
use fake_metal::tools::{RECORDING, SIGNPOSTS};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use tensorlogic::tuning::Tuning;
use tensorlogic::{Device, Tensor, TensorError};

#[test]
fn captures_and_intervals() {
    let device = Device::open_with_tuning("metal", Tuning::apple()).unwrap();
    device.set_adaptive(false);
    let x = Tensor::from_vec((0..40 * 40).map(|n| (n % 5) as f32).collect(), &[40, 40], &device).unwrap();
    let work = || -> tensorlogic::TensorResult<Vec<f32>> { x.softmax(-1)?.matmul(&x)?.to_vec() };

    let path = std::env::temp_dir().join(format!("tl-metal-{}.gputrace", std::process::id()));
    match device.capture(&path, work) {
        Err(TensorError::Unsupported(why)) => assert!(why.contains("MTL_CAPTURE_ENABLED=1"), "{why}"),
        other => panic!("captures are not enabled, yet {other:?}"),
    }
    // SAFETY: no other thread of this program reads the environment now.
    unsafe { std::env::set_var("MTL_CAPTURE_ENABLED", "1") };
    assert!(matches!(device.capture(path.with_extension("txt"), work), Err(TensorError::Config(_))));
    let within = device.capture(&path, || device.capture(path.with_extension("b.gputrace"), work));
    assert!(matches!(within, Err(TensorError::State(_))), "{within:?}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "0 dispatches", "a capture within another, which fails, ends with it");
    assert!(matches!(device.capture(&path, work), Err(TensorError::Config(_))), "the document of before is overwritten");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(device.capture(&path, work).unwrap(), work().unwrap());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "2 dispatches");
    std::fs::remove_file(&path).unwrap();

    assert_eq!(SIGNPOSTS.lock().unwrap().len(), 0, "nobody recorded");
    RECORDING.store(true, SeqCst);
    // The GPU is held up until the host waits for it.
    let (holding, is_held) = channel();
    let hold = std::thread::spawn(move || {
        let _hold = FAULTS.hold.lock().unwrap();
        holding.send(()).unwrap();
        let start = Instant::now();
        while !SIGNPOSTS.lock().unwrap().iter().any(|s| s.2 == "wait") && start.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    is_held.recv().unwrap();
    work().unwrap();
    hold.join().unwrap();
    device.synchronize().unwrap();
    RECORDING.store(false, SeqCst);
    work().unwrap();
    let all = std::mem::take(&mut *SIGNPOSTS.lock().unwrap());
    let mut open: BTreeMap<u64, &str> = BTreeMap::new();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (kind, id, name) in &all {
        match kind {
            1 => assert!(open.insert(*id, name).is_none(), "two intervals have one number"),
            _ => {
                assert_eq!(open.remove(id), Some(&**name), "an interval ends that did not begin");
                *counts.entry(name).or_default() += 1;
            }
        }
    }
    assert!(open.is_empty(), "intervals that do not end: {open:?}");
    assert_eq!(counts, BTreeMap::from([("plan", 1), ("submit", 1), ("wait", 1)]));

    // A process that was started to be captured has labels without being asked for them.
    assert_eq!(COUNTS.debug_groups.load(SeqCst), 0, "the device was opened before captures were enabled");
    let labelled = Device::open_with_tuning("metal", Tuning::apple()).unwrap();
    labelled.set_adaptive(false);
    let x = Tensor::from_vec(vec![0.5f32; 40 * 40], &[40, 40], &labelled).unwrap();
    x.softmax(-1).unwrap().matmul(&x).unwrap().to_vec().unwrap();
    assert!(COUNTS.debug_groups.load(SeqCst) >= 2, "no dispatch has a label");
}
