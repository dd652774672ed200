//! With `TL_LABELS=1` captures show each dispatch in a group that has its step's label; and what probes find. Alone in its program: it sets a variable.

use fake_metal::metal::COUNTS;
use std::sync::atomic::Ordering::SeqCst;
use tensorlogic::backends::metal::NativeMetal;
use tensorlogic::tuning::Tuning;
use tensorlogic::{DType, Device, Tensor};

#[test]
fn each_dispatch_is_labelled_and_features_are_found() {
    let info = NativeMetal::open().unwrap().info().clone();
    assert_eq!([info.subgroup, info.coop], [32, 8], "what the probes found");
    assert_eq!(COUNTS.debug_groups.load(SeqCst), 0, "nobody asked for labels");

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
}
