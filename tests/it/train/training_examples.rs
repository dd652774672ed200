//! The examples of training, run small: what they print is what they learn.

#[path = "../../../examples/char_gpt.rs"]
#[allow(dead_code)]
mod char_gpt;
#[path = "../../../examples/gpt2_finetune.rs"]
#[allow(dead_code)]
mod gpt2_finetune;
#[path = "../../../examples/image_classifier.rs"]
#[allow(dead_code)]
mod image_classifier;
#[path = "../../../examples/xor.rs"]
#[allow(dead_code)]
mod xor;

use crate::common::devices;
use tensorlogic::autograd::no_grad;
use tensorlogic::io::SafeTensors;
use tensorlogic::nn::{Module, ModuleExt};
use tensorlogic::{Device, Tensor};

#[test]
fn xor_learns_all_four_answers() {
    for device in devices() {
        let (loss, answers) = xor::run(&device, 300, |_, _| {}).unwrap();
        let right = answers.iter().zip([0f32, 1.0, 1.0, 0.0]).all(|(a, want)| (a - want).abs() < 0.1);
        assert!(right && loss < 0.1, "{answers:?}, loss {loss}, on {}", device.name());
    }
}

#[test]
fn the_image_classifier_reads_most_digits() {
    // Ten classes, so that guessing is right in a tenth.
    let right = image_classifier::run(&Device::cpu(), 1280, 4, |_, _, _| {}).unwrap();
    assert!(right > 0.8, "{right}");
}

#[test]
fn the_character_gpt_learns_a_text() {
    let text = "the quick brown fox jumps over the lazy dog. ".repeat(60);
    for device in devices() {
        let recipe = char_gpt::Recipe { steps: 60, sample: 40, ..char_gpt::Recipe::tiny() };
        let (before, after, sample) = char_gpt::run(&text, recipe, &device, |_| {}).unwrap();
        // Before, every character is as likely as any other; the text has 28.
        assert!((before - 28f64.ln()).abs() < 0.3 && after < 0.6 * before, "{before} {after} on {}", device.name());
        assert_eq!(sample.chars().count(), 40);
        assert!(sample.chars().all(|c| text.contains(c)), "{sample}");
    }
    assert!(char_gpt::run("short", char_gpt::Recipe::tiny(), &Device::cpu(), |_| {}).is_err());
}

#[test]
fn gpt2_from_a_folder_is_the_same_model_and_learns() {
    let device = Device::cpu();
    let folder = std::path::Path::new(env!("TENSORLOGIC_ROOT")).join("tests/vectors/models/gpt2-odd");
    let model = gpt2_finetune::from_pretrained(&folder, &device).unwrap();
    // What transformers computed in f64 from the same files.
    let expected = SafeTensors::open(folder.join("expected.safetensors")).unwrap();
    let info = expected.tensor("input_ids").unwrap();
    let ids: Vec<i32> = expected.bytes_of(info).chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as i32).collect();
    let x = Tensor::from_vec(ids.clone(), &info.shape, &device).unwrap();
    model.eval();
    let logits = no_grad(|| model.forward(&x)).unwrap().to_vec().unwrap();
    let info = expected.tensor("logits").unwrap();
    let want: Vec<f64> = match info.type_name() {
        "F64" => expected.bytes_of(info).chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect(),
        _ => expected.bytes_of(info).chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()) as f64).collect(),
    };
    assert_eq!(logits.len(), want.len());
    let worst = logits.iter().zip(&want).map(|(g, w)| (*g as f64 - w).abs() / w.abs().max(1.0)).fold(0f64, f64::max);
    assert!(worst < 1e-4, "{worst}");

    let tokens: Vec<u32> = (0..400u32).map(|i| i * i % 17).collect();
    let settings = gpt2_finetune::Settings { steps: 30, batch: 2, context: 16, lr: 1e-2 };
    let losses = gpt2_finetune::run(&model, &tokens, &settings, &device, |_| {}).unwrap();
    assert!(losses[29] < 0.6 * losses[0], "{losses:?}");
    assert!(gpt2_finetune::run(&model, &tokens[..9], &settings, &device, |_| {}).unwrap_err().to_string().contains("there are 9"));
}
