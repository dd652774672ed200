//! What commands name is in a committed residency set of their queue, and leaves it when it is given up. Alone in its program: it counts.

use fake_metal::metal::COUNTS;
use std::sync::atomic::Ordering::SeqCst;
use tensorlogic::backends::{Backend, metal::NativeMetal};
use tensorlogic::tuning::Tuning;
use tensorlogic::{Device, Tensor};

#[test]
fn what_commands_name_is_resident() {
    let device = Device::open_with_tuning("metal", Tuning::apple()).unwrap();
    device.set_adaptive(false);
    for round in 1..4 {
        let x = Tensor::from_vec(vec![1.0f32; round * 4096], &[round, 4096], &device).unwrap();
        assert_eq!(x.add(1.0).unwrap().sum(&[1], false).unwrap().to_vec().unwrap(), vec![8192.0; round]);
    }
    let counts = [&COUNTS.dispatches, &COUNTS.residency_sets, &COUNTS.not_resident].map(|c| c.load(SeqCst));
    assert!(counts[0] >= 3 && counts[1] == 1, "{} dispatches, {} sets: these buffers fit into one", counts[0], counts[1]);
    assert_eq!(counts[2], 0, "buffers that are in no set");

    // A heap is in its set as a whole; what commands name of it is resident with it.
    let (heaps, added) = (COUNTS.heaps.load(SeqCst), COUNTS.made_resident.load(SeqCst));
    let small: Vec<Tensor> = (0..40).map(|n| Tensor::from_vec(vec![n as f32; 30 << 10], &[30 << 10], &device).unwrap()).collect();
    for t in &small {
        t.add(1.0).unwrap().eval().unwrap();
    }
    let (heaps, added) = (COUNTS.heaps.load(SeqCst) - heaps, COUNTS.made_resident.load(SeqCst) - added);
    assert!(heaps == added && added <= 2, "{added} entries of sets for {heaps} heaps that 40 buffers share");
    device.synchronize().unwrap();
    assert_eq!(COUNTS.not_resident.load(SeqCst), 0, "buffers of heaps that are in no set");

    // A set holds a twentieth of the working set, which is 8 GiB here.
    let backend = NativeMetal::open().unwrap();
    let before = COUNTS.residency_sets.load(SeqCst);
    let both = [300 << 20, 150 << 20].map(|bytes| backend.alloc(bytes).unwrap());
    assert_eq!(COUNTS.residency_sets.load(SeqCst) - before, 1, "a second one, for what the first has no room for");
    drop(both);
}
