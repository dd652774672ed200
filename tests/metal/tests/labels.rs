//! With `TL_LABELS=1` captures show each dispatch in a group that has its step's label, and what queues, command buffers, heaps and buffers are called;
//! and what probes find. Alone in its program: it sets a variable.

use fake_metal::metal::COUNTS;
use fake_metal::tools::LABELS;
use std::sync::atomic::Ordering::SeqCst;
use tensorlogic::backends::metal::NativeMetal;
use tensorlogic::tuning::Tuning;
use tensorlogic::{DType, Device, Tensor};

#[test]
fn each_dispatch_is_labelled_and_features_are_found() {
    let info = NativeMetal::open().unwrap().info().clone();
    assert_eq!([info.subgroup, info.coop], [32, 8], "what the probes found");
    assert_eq!(COUNTS.debug_groups.load(SeqCst), 0, "nobody asked for labels");
    assert!(LABELS.lock().unwrap().is_empty(), "nobody asked for labels: {:?}", LABELS.lock().unwrap());

    // SAFETY: no other thread of this program reads the environment now.
    unsafe { std::env::set_var("TL_LABELS", "1") };
    let device = Device::open_with_tuning("metal", Tuning::apple()).unwrap();
    device.set_adaptive(false);
    let before = [&COUNTS.debug_groups, &COUNTS.dispatches].map(|c| c.load(SeqCst));
    let x = Tensor::zeros(&[8, 32], DType::F32, &device).unwrap();
    let y = x.softmax(-1).unwrap().matmul(&x.t().unwrap()).unwrap();
    assert!(y.explain().unwrap().ends_with("barrier\n") || y.explain().unwrap().ends_with("barriers\n"), "{}", y.explain().unwrap());
    y.eval().unwrap();
    let after = [&COUNTS.debug_groups, &COUNTS.dispatches].map(|c| c.load(SeqCst));
    assert!(after[0] > before[0], "no dispatch has a label");
    assert_eq!(after[0] - before[0], after[1] - before[1], "one group for each dispatch");

    let labels = LABELS.lock().unwrap();
    let of = |what: &str| labels.iter().filter(|l| l.0 == what).map(|l| &*l.1).collect::<Vec<_>>();
    assert_eq!(of("queue"), ["tensorlogic"]);
    let mut heaps = of("heap");
    heaps.sort();
    assert_eq!(heaps, ["private heap", "shared heap"]);
    let buffers = of("buffer");
    assert!(buffers.iter().any(|l| l.starts_with("shared buffer 1, ") && l.ends_with(" bytes")), "{buffers:?}");
    assert!(buffers.iter().any(|l| l.starts_with("private buffer ")), "{buffers:?}");
    let commands = of("commands");
    assert!(commands.last().is_some_and(|l| l.starts_with("submit ") && l.ends_with(", 2 steps from softmax to matmul")), "{commands:?}");
}
