//! Prompts that find no memory: an error after which the session is as it was, for caches of keys, of states and of both.

use crate::common::tiny_llama;
use std::path::Path;
use tensorlogic::backends::cpu::CpuBackend;
use tensorlogic::models::{self, Model, Session, Weights};
use tensorlogic::{DType, Device, TensorError};

fn vectors(name: &str, device: &Device) -> Box<dyn Model> {
    let folder = Path::new(env!("TENSORLOGIC_ROOT")).join("tests/vectors/models2").join(name);
    models::load(&Weights::open(folder, device).unwrap(), Some(DType::F32)).unwrap()
}

/// Wherever a longer prompt fails for lack of memory, the session has the tokens that it had, and reads the prompt once there is memory, as one that
/// never failed.
fn check(name: &str, load: impl Fn(&Device) -> Box<dyn Model>) {
    // A device whose limit concerns no other test, and which gives memory back at once.
    let device = Device::from_backend(CpuBackend::with_threads(2));
    device.buffer_pool().set_enabled(false);
    let model = load(&device);
    let first = [1, 2, 3];
    let longer: Vec<u32> = (0..40).map(|n| n * 7 % 60).collect();
    let begun = || {
        let mut session = Session::new(&*model, 64, &device).unwrap();
        session.prompt(&first, || false).unwrap().unwrap();
        session
    };
    let read = |session: &mut Session| session.prompt(&longer, || false).map(|logits| logits.expect("nobody stops it").to_vec().unwrap());
    let want = read(&mut begun()).unwrap();
    let mut session = begun();
    let (mut failed, mut room) = (0, 64);
    loop {
        device.empty_cache();
        let stats = device.buffer_pool_stats();
        device.set_memory_limit(stats.in_use - stats.mapped + room);
        let got = read(&mut session);
        device.set_memory_limit(usize::MAX);
        match got {
            Ok(got) => break assert_eq!(got, want, "{name}, after {failed} failures"),
            Err(TensorError::OutOfMemory { .. }) => failed += 1,
            Err(e) => panic!("{name}: {e}"),
        }
        assert_eq!(session.tokens(), first, "{name}: after an error the session has the tokens that it had");
        assert!(matches!(session.score(&longer), Ok(logits) if logits.dims()[0] == longer.len()), "{name}");
        session.truncate(first.len());
        room *= 2;
    }
    assert!(failed > 2, "{name}: {failed} prompts found no memory");
    assert_eq!(session.tokens()[first.len()..], longer);
}

#[test]
fn a_prompt_that_finds_no_memory_changes_nothing() {
    check("keys and values", tiny_llama);
    for name in ["mamba2-base", "falcon_h1-base", "qwen3_next-base", "gpt_oss-base"] {
        check(name, |device| vectors(name, device));
    }
}
