//! The logits of every model have the same bits whatever the number of threads: on a busy machine plans are given to fewer of them.

use super::convert::{decoders, vectors};
use crate::common::command;
use std::hash::{DefaultHasher, Hash, Hasher};
use tensorlogic::models::{self, Session, Weights};
use tensorlogic::{DType, Device};

/// Set in the processes that the test starts.
const CHILD: &str = "TL_TEST_THREAD_COUNTS";
/// Lengths of texts: few rows of a product are streamed, more of them are packed.
const LENGTHS: [usize; 6] = [1, 3, 9, 12, 20, 32];

/// A line for each model and length, with the hash of the logits' bits.
fn hashes() -> String {
    let cpu = Device::cpu();
    let mut lines = String::new();
    for name in decoders() {
        let model = models::load(&Weights::open(vectors().join("models2").join(&name), &cpu).unwrap(), Some(DType::F32)).unwrap();
        for length in LENGTHS.into_iter().filter(|n| *n <= model.shape().context) {
            let tokens: Vec<u32> = (0..length as u32).map(|i| 5 + 7 * i % 60).collect();
            let logits = Session::new(&*model, model.shape().context, &cpu).unwrap().score(&tokens).unwrap().to_vec().unwrap();
            let mut hasher = DefaultHasher::new();
            logits.iter().for_each(|v| v.to_bits().hash(&mut hasher));
            lines += &format!("{name} {length} {:x}\n", hasher.finish());
        }
    }
    lines
}

#[test]
fn logits_do_not_depend_on_the_number_of_threads() {
    if std::env::var_os(CHILD).is_some() {
        println!("{}", hashes());
        return;
    }
    let program = std::env::args().next().expect("a program has a name");
    let of = |threads: usize| {
        let mut child = command(&program);
        child.args(["--exact", "models::thread_counts::logits_do_not_depend_on_the_number_of_threads", "--nocapture"]);
        let output = child.env(CHILD, "1").env("TL_NUM_THREADS", threads.to_string()).env("TL_TEST_DEVICE", "cpu").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        text.lines().filter(|l| l.split(' ').count() == 3).map(String::from).collect::<Vec<_>>()
    };
    let one = of(1);
    assert!(one.len() > 6 * 20, "only {} lines", one.len());
    for threads in [2, 3] {
        let wrong: Vec<String> = one.iter().zip(of(threads)).filter(|(a, b)| *a != b).map(|(a, b)| format!("{a} and {b}")).collect();
        assert!(wrong.is_empty(), "{threads} threads:\n{}", wrong.join("\n"));
    }
}
