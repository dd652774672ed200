//! SmolLM2-135M-Instruct Q4_1 on the GPU and on the CPU against transformers. Needs the model's file, which `scripts/test.sh` gets with
//! `tl pull`; in full: `cargo xtask verify`.

#[path = "../../../xtask/src/verify.rs"]
#[allow(dead_code)]
mod verify;

use std::path::Path;

/// 64 tokens of the text and 16 greedy tokens after one prompt.
fn check(device: &str) {
    let model = match std::env::var("TL_TEST_MODEL") {
        Ok(path) if !path.is_empty() => path,
        _ if std::env::var("TL_REQUIRE_MODEL").is_ok_and(|v| v == "1") => {
            panic!("no model: `tl pull smollm2-135m-instruct` has to work here, or TL_TEST_MODEL to name its file")
        }
        _ => return,
    };
    let options = verify::VerifyOptions { device: device.into(), tokens: 64, prompts: 1, greedy: 16, ..Default::default() };
    let reference = Path::new(env!("TENSORLOGIC_ROOT")).join("tests/reference/smollm2-135m-instruct-q4_1.safetensors");
    let report = verify::verify(Path::new(&model), &reference, &options).unwrap();
    println!("{report}");
    assert!(report.passes(), "\n{report}");
    assert_eq!((report.positions, report.greedy), (64, 16));
}

#[test]
fn on_the_cpu() {
    check("cpu");
}

#[test]
fn on_the_gpu() {
    if let Some(device) = crate::common::selector() {
        check(device);
    }
}
