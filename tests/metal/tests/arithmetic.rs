//! The arithmetic that the backend asks for, kernel by kernel, is what its kernels are compiled with: fast, unless they make NaN or infinity, and by its
//! former name on systems before macOS 15, which have no residency sets either. Finite results stay right. Alone in its program: it changes the system.

use fake_metal::compiler;
use fake_metal::metal::{COUNTS, FAULTS};
use std::sync::atomic::Ordering::SeqCst;
use tensorlogic::Device;
use tensorlogic::tuning::Tuning;

#[allow(dead_code)] // Gradients, which have no special values.
#[path = "../../it/ops/vectors_support/mod.rs"]
mod vectors_support;

use vectors_support::{Suite, judge};

fn device() -> Device {
    let device = Device::open_with_tuning("metal", Tuning::apple()).unwrap();
    device.set_adaptive(false);
    device
}

/// Sources so far that were to be compiled as written, relaxed and fast.
fn asked() -> [usize; 3] {
    std::array::from_fn(|n| compiler::ASKED[n].load(SeqCst))
}

/// The vectors of special values on a device, where they are finite; gives how many of its sources were asked for in each arithmetic.
fn special_values() -> [usize; 3] {
    let suite = Suite::open("special");
    let learning = device();
    compiler::learn(|| judge(&suite, &learning, true));
    drop(learning);
    let before = asked();
    let tally = judge(&suite, &device(), true);
    assert_eq!(tally.failures, Vec::<String>::new());
    assert!(tally.pass >= 99, "only {} cases ran", tally.pass);
    let after = asked();
    let counts = std::array::from_fn(|n| after[n] - before[n]);
    println!("{} cases pass; {counts:?} sources as written, relaxed and fast", tally.pass);
    counts
}

#[test]
fn each_kernel_has_the_arithmetic_that_it_asks_for() {
    // What a source does not bear is refused; a user's own may have any.
    let (special, plain) = ("// language: metal2.3\nfloat f() { return tl_nan(); }", "// language: metal2.3\n");
    assert!(compiler::math(special, Some(2)).is_err() && compiler::math(plain, Some(1)).is_err() && compiler::math(plain, None).is_err());
    assert_eq!(compiler::math("kernel void f() {}", Some(1)), Ok(compiler::Math::Relaxed));

    compiler::ARITHMETIC.store(true, SeqCst);
    let [safe, relaxed, fast] = special_values();
    assert!(safe == 0 && relaxed > 10 && fast > 10, "{safe} sources as written, {relaxed} relaxed, {fast} fast");
    let sets = COUNTS.residency_sets.load(SeqCst);
    assert!(sets > 0);

    FAULTS.old_system.store(true, SeqCst);
    compiler::METAL_4.store(false, SeqCst);
    compiler::NEWEST_VERSION.store(2 << 16 | 3, SeqCst);
    // The probe of tensor operations is not compiled.
    assert_eq!(special_values(), [relaxed, 0, fast - 1], "arithmetic by its former name");
    assert_eq!(COUNTS.residency_sets.load(SeqCst), sets, "residency sets of a system that has none");
    assert!(device().lacks_tensor_ops().is_some_and(|why| why.contains("Metal 4")));
}
