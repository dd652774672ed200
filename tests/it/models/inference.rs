//! Inference as one call: padded batches against transformers in f64, sizes, wrong inputs, and GPT-2's layouts on the Hub. Its times are
//! tested in `tests/profile.rs`.

use crate::common::{devices, gpu};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tensorlogic::io::SafeTensors;
use tensorlogic::io::safetensors::write_safetensors;
use tensorlogic::models::inference::{Inference, Inputs, Outputs, Padding, Pooling};
use tensorlogic::models::{self, Model, Weights};
use tensorlogic::{DType, Device, Tensor, TensorError};

#[allow(dead_code)]
#[path = "../../../examples/gpt2_inference.rs"]
mod example;

const MODELS: [&str; 3] = ["gpt2-odd", "llama3-rope", "gemma3_text-pattern"];

/// Of every how many entries of the vocabulary `some_logits` has one.
const EVERY: usize = 16;

fn vectors(folder: &str, file: &str) -> PathBuf {
    Path::new(env!("TENSORLOGIC_ROOT")).join("tests/vectors").join(folder).join(file)
}

fn model(name: &str, device: &Device, dtype: DType) -> Box<dyn Model> {
    models::load(&Weights::open(vectors("models", name), device).unwrap(), Some(dtype)).unwrap()
}

fn tiny(device: &Device) -> Box<dyn Model> {
    let file = concat!(env!("TENSORLOGIC_ROOT"), "/models/tiny/tiny.gguf");
    models::load(&Weights::open(file, device).unwrap(), Some(DType::F32)).unwrap()
}

/// What transformers was given and what it gave for one model.
struct Reference(SafeTensors);

impl Reference {
    fn of(name: &str) -> Reference {
        Reference(SafeTensors::open(vectors("inference", &format!("{name}.safetensors"))).unwrap())
    }
    fn get(&self, name: &str) -> Option<Tensor> {
        let info = self.0.tensor(name).ok()?;
        let bytes = tensorlogic::backends::Bytes::Owned(std::sync::Arc::new(self.0.bytes_of(info).to_vec()));
        Some(Tensor::from_bytes(bytes, info.dtype().unwrap(), &info.shape, &Device::cpu()).unwrap())
    }
    /// The case's inputs, with the positions only where asked for.
    fn inputs(&self, case: &str, positions: bool) -> Inputs {
        let inputs = match self.get(&format!("{case}.input_ids")) {
            Some(tokens) => Inputs::tokens(&tokens),
            None => Inputs::embeddings(&self.get(&format!("{case}.inputs_embeds")).unwrap()),
        };
        let inputs = inputs.attention_mask(&self.get(&format!("{case}.attention_mask")).unwrap());
        if positions { inputs.position_ids(&self.get(&format!("{case}.position_ids")).unwrap()) } else { inputs }
    }
}

/// Compares the rows `[…,n]` of valid tokens: within `tolerance` of the largest value or of 1.
#[track_caller]
fn near(what: &str, got: &Tensor, want: &Tensor, valid: &[f32], tolerance: f32) {
    assert_eq!(got.dims(), want.dims(), "{what}");
    let (got, want) = (got.to_vec().unwrap(), want.to_vec().unwrap());
    let (size, n) = (want.iter().fold(1f32, |m, v| m.max(v.abs())), want.len() / valid.len());
    for (row, _) in valid.iter().enumerate().filter(|(_, v)| **v == 1.0) {
        for i in row * n..(row + 1) * n {
            assert!((got[i] - want[i]).abs() <= tolerance * size, "{what}: row {row}, element {}: {}, not {}", i % n, got[i], want[i]);
        }
    }
}

/// Every output of every case of a model.
fn check_padded(name: &str, device: &Device, dtype: DType, tolerance: f32) {
    let (model, reference) = (model(name, device, dtype), Reference::of(name));
    for (case, positions) in [("left", false), ("left", true), ("right", false), ("right", true), ("holes", true), ("embeddings", false)] {
        let what = |part: &str| format!("{name} {case} {part}, positions given: {positions}, {dtype} on {}", device.name());
        let inputs = reference.inputs(case, positions);
        let valid = inputs.attention_mask.as_ref().unwrap().to_vec().unwrap();
        let outputs = Inference::new(&*model).layers(true).run(&inputs).unwrap_or_else(|e| panic!("{}: {e}", what("")));
        let rows = vec![1.0; outputs.logits.dims()[0]];
        near(&what("logits"), &outputs.logits, &reference.get(&format!("{case}.logits")).unwrap(), &rows, tolerance);
        let layers = outputs.layers.as_ref().unwrap();
        assert_eq!(layers.len(), model.shape().layers + 1);
        let mut compared = 0;
        for (n, layer) in layers.iter().enumerate() {
            if let Some(want) = reference.get(&format!("{case}.hidden.{n}")) {
                near(&what(&format!("hidden.{n}")), layer, &want, &valid, tolerance);
                compared += 1;
            }
        }
        assert_eq!(compared, if case == "left" { layers.len() } else { 1 }, "{}", what("layers"));
        near(&what("hidden_states"), &outputs.hidden_states, layers.last().unwrap(), &valid, 0.0);
        let all = Inference::new(&*model).all_logits(true).run(&inputs).unwrap().logits;
        let vocab = *all.dims().last().unwrap();
        let some: Vec<f32> = all.to_vec().unwrap().chunks(vocab).flat_map(|row| row.iter().step_by(EVERY).copied()).collect();
        let want = reference.get(&format!("{case}.some_logits")).unwrap();
        near(&what("all_logits"), &Tensor::from_vec(some, want.dims(), &Device::cpu()).unwrap(), &want, &valid, tolerance);
    }
}

#[test]
fn padded_batches_equal_transformers() {
    for device in devices() {
        for name in MODELS {
            check_padded(name, &device, DType::F32, 1e-4);
        }
    }
}

/// Masks and positions go with activations of two bytes as well; the tolerance is that of their rounding.
#[test]
fn padded_batches_in_halves_are_near() {
    check_padded("llama3-rope", &Device::cpu(), DType::BF16, 0.06);
    if let Some(gpu) = gpu().filter(|d| d.supports(DType::F16)) {
        check_padded("llama3-rope", &gpu, DType::F16, 0.01);
    }
}

/// The document's sizes: 512 tokens of GPT-2 give logits [1,50257] and states [1,512,768], 1.8 MB.
#[test]
fn gpt2_has_the_documents_sizes() {
    for device in devices() {
        let model = models::load(&example::random_weights(1, &device).unwrap(), Some(DType::F32)).unwrap();
        let tokens: Vec<i32> = (0..512).map(|i| i * 97).collect();
        let outputs = example::run(&*model, &tokens).unwrap();
        assert_eq!((outputs.logits.dims(), outputs.hidden_states.dims()), (&[1, 50257][..], &[1, 512, 768][..]));
        // Tokens, and the column of the last one: a mask of ones and positions 0, 1, … are not needed.
        assert_eq!((outputs.bytes_in, outputs.bytes_out), (4 * 512 + 4, 4 * (50257 + 512 * 768)));
        assert!(outputs.logits.to_vec().unwrap().iter().chain(&outputs.hidden_states.to_vec().unwrap()).all(|v| v.is_finite()));
    }
}

#[test]
fn log_probs_are_those_of_the_logits() {
    for device in devices() {
        let model = model("llama3-rope", &device, DType::F32);
        for padding in [Padding::Left, Padding::Right] {
            let rows = [vec![5u32, 9, 200, 31, 8], vec![7, 7], vec![300]];
            let inputs = Inputs::padded(&rows, padding).unwrap();
            let outputs = Inference::new(&*model).log_probs(true).all_logits(true).run(&inputs).unwrap();
            let got = outputs.log_probs.unwrap().to_vec().unwrap();
            let (logits, vocab) = (outputs.logits.to_vec().unwrap(), model.shape().vocab);
            for (n, row) in rows.iter().enumerate() {
                let start = n * 5 + if padding == Padding::Left { 5 - row.len() } else { 0 };
                let mut sum = 0.0;
                for i in 1..row.len() {
                    let scores = &logits[(start + i - 1) * vocab..][..vocab];
                    let all: f64 = scores.iter().map(|&s| f64::from(s).exp()).sum();
                    let want = f64::from(scores[row[i] as usize]) - all.ln();
                    assert!((f64::from(got[start + i]) - want).abs() < 1e-4, "{} is not {want}", got[start + i]);
                    sum += want;
                }
                let row: f64 = got[n * 5..][..5].iter().map(|&p| f64::from(p)).sum();
                assert!((row - sum).abs() < 1e-3, "padding counts: {row}, not {sum}");
            }
        }
    }
}

#[test]
fn pooled_states_leave_padding_out() {
    let model = tiny(&Device::cpu());
    let rows = [vec![5u32, 9, 20, 31], vec![7, 8]];
    let run = |rows: &[Vec<u32>], padding| -> Outputs { Inference::new(&*model).run(&Inputs::padded(rows, padding).unwrap()).unwrap() };
    let alone: Vec<Outputs> = rows.iter().map(|r| run(std::slice::from_ref(r), Padding::Right)).collect();
    for padding in [Padding::Left, Padding::Right] {
        let together = run(&rows, padding);
        use Pooling::*;
        for pooling in [Mean, Last, Cls, Max, MeanSqrtLength, WeightedMean] {
            let got = together.pooled(pooling).unwrap();
            for (n, alone) in alone.iter().enumerate() {
                let states = alone.hidden_states.squeeze(0).unwrap();
                let count = rows[n].len();
                let numbers = Tensor::arange(1.0, count as f64 + 1.0, 1.0, DType::F32, &Device::cpu()).unwrap().unsqueeze(1).unwrap();
                let want = match pooling {
                    Mean => states.mean(&[0], false),
                    Last => states.i((count - 1) as isize),
                    Cls => states.i(0),
                    Max => states.max(&[0], false),
                    MeanSqrtLength => states.mean(&[0], false).unwrap().mul((count as f64).sqrt()),
                    WeightedMean => states.mul(&numbers).unwrap().sum(&[0], false).unwrap().div((count * (count + 1) / 2) as f64),
                }
                .unwrap();
                near(&format!("{pooling:?} {padding:?}"), &got.i(n as isize).unwrap(), &want, &[1.0], 1e-5);
                assert_eq!(together.token_states(n).unwrap().len(), rows[n].len());
            }
        }
    }
}

/// Every wrong input is an error that names the argument and the line of the call.
#[test]
fn wrong_inputs_are_errors_of_the_users_line() {
    let cpu = Device::cpu();
    let model = model("gpt2-odd", &cpu, DType::F32);
    let tokens = |values: &[i32], sizes: &[usize]| Tensor::from_vec(values.to_vec(), sizes, &cpu).unwrap();
    let floats = |values: Vec<f32>, sizes: &[usize]| Tensor::from_vec(values, sizes, &cpu).unwrap();
    let good = tokens(&[1, 2, 3, 4, 5, 6], &[2, 3]);
    let ints = |values: &[i32]| tokens(values, &[2, 3]);
    let states = |bad: f32| floats((0..360).map(|i| if i == 185 { bad } else { 0.5 }).collect(), &[2, 3, 60]);
    let ok = || Inputs::tokens(&good);
    let long = tokens(&[1; 129], &[1, 129]);
    let cases: Vec<(Inputs, &str)> = vec![
        (Inputs::default(), "neither tokens nor embeddings are given"),
        (Inputs { embeddings: Some(states(0.5)), ..ok() }, "tokens and embeddings are both given"),
        (Inputs::tokens(&tokens(&[1, 2], &[2])), "tokens: the shape is [2]; expected [B,T]"),
        (Inputs::tokens(&tokens(&[1, 2], &[1, 1, 2])), "tokens: the shape is [1,1,2]"),
        (Inputs::tokens(&floats(vec![1.0; 6], &[2, 3])), "tokens: the dtype is f32; expected integers"),
        (Inputs::tokens(&tokens(&[], &[0, 3])), "tokens: the shape [0,3] has no elements"),
        (Inputs::tokens(&tokens(&[], &[2, 0])), "tokens: the shape [2,0] has no elements"),
        (Inputs::tokens(&long), "tokens: row 0 has 129; the model's context is 128"),
        (Inputs::tokens(&ints(&[0, 1, 2, 3, 317, 5])), "tokens: row 1, column 1: token 317 is not in the vocabulary of 317"),
        (Inputs::tokens(&ints(&[0, 1, -1, 3, 4, 5])), "tokens: row 0, column 2: token -1 is not in the vocabulary"),
        (Inputs::tokens(&Tensor::from_vec(vec![1i64 << 40], &[1, 1], &cpu).unwrap()), "token 1099511627776 is not in the vocabulary"),
        (Inputs::embeddings(&floats(vec![0.0; 120], &[2, 60])), "embeddings: the shape is [2,60]; expected [B,T,60]"),
        (Inputs::embeddings(&floats(vec![0.0; 64], &[1, 1, 64])), "embeddings: the shape is [1,1,64]; expected [B,T,60]"),
        (Inputs::embeddings(&tokens(&[1; 60], &[1, 1, 60])), "embeddings: the dtype is i32; expected a plain float dtype"),
        (Inputs::embeddings(&states(f32::NAN)), "embeddings: row 1, column 0: element 5 is NaN; expected finite numbers"),
        (Inputs::embeddings(&states(f32::INFINITY)), "embeddings: row 1, column 0: element 5 is inf"),
        (Inputs::embeddings(&floats(vec![], &[0, 3, 60])), "embeddings: the shape [0,3,60] has no elements"),
        (ok().attention_mask(&tokens(&[1; 4], &[2, 2])), "attention_mask: the shape is [2,2]; expected [2,3], as the tokens'"),
        (ok().attention_mask(&ints(&[1, 1, 1, 0, 2, 1])), "attention_mask: row 1, column 1 is 2; expected 0 or 1"),
        (ok().attention_mask(&floats(vec![1.0, 1.0, 0.5, 1.0, 1.0, 1.0], &[2, 3])), "attention_mask: row 0, column 2 is 0.5"),
        (ok().attention_mask(&floats(vec![1.0, 1.0, f32::NAN, 1.0, 1.0, 1.0], &[2, 3])), "attention_mask: row 0, column 2 is NaN"),
        (ok().attention_mask(&ints(&[1, 1, 1, 0, 0, 0])), "attention_mask: row 1 masks every token"),
        (ok().position_ids(&tokens(&[0, 1, 2], &[1, 3])), "position_ids: the shape is [1,3]; expected [2,3], as the tokens'"),
        (ok().position_ids(&ints(&[0, 1, 2, 0, 1, 128])), "position_ids: row 1, column 2: position 128 is outside the context of 128"),
        (ok().position_ids(&ints(&[0, 1, -2, 0, 1, 2])), "position_ids: row 0, column 2: position -2 is outside the context"),
        (ok().position_ids(&floats(vec![0.0; 6], &[2, 3])), "position_ids: the dtype is f32; expected integers"),
    ];
    assert!(cases.len() >= 20);
    for (inputs, part) in cases {
        let (line, result) = (line!(), Inference::new(&*model).run(&inputs));
        let error = result.map(drop).unwrap_err();
        assert!(matches!(error, TensorError::Argument { .. }), "{error}");
        let text = error.to_string();
        assert!(text.starts_with("inference: ") && text.contains(part), "`{text}` does not contain `{part}`");
        assert!(text.ends_with(&format!("({}:{line})", file!())), "`{text}` is not of line {line}");
    }
    let log_probs = Inference::new(&*model).log_probs(true);
    let text = log_probs.run(&Inputs::embeddings(&states(0.5))).map(drop).unwrap_err().to_string();
    assert!(text.contains("log_probs: they are those of tokens"), "{text}");
    for (rows, part) in
        [(vec![], "rows: there are none"), (vec![vec![1], vec![]], "rows: row 1 is empty"), (vec![vec![u32::MAX]], "does not fit i32")]
    {
        let (line, error) = (line!(), Inputs::padded(&rows, Padding::Left).map(drop).unwrap_err().to_string());
        assert!(error.contains(part) && error.ends_with(&format!("({}:{line})", file!())), "{error}");
    }
    // What is right is not an error: other integer dtypes, bool and float masks, and the last position of the context.
    let wide = good.cast(DType::I64).unwrap();
    let mask = ints(&[1, 1, 1, 0, 1, 1]);
    let want = Inference::new(&*model).run(&ok().attention_mask(&mask)).unwrap().logits;
    for mask in [mask.cast(DType::Bool).unwrap(), mask.cast(DType::F32).unwrap()] {
        let got = Inference::new(&*model).run(&Inputs::tokens(&wide).attention_mask(&mask)).unwrap().logits;
        near("dtypes", &got, &want, &[1.0; 2], 0.0);
    }
    Inference::new(&*model).run(&ok().position_ids(&ints(&[125, 126, 127, 0, 5, 127]))).unwrap();
    Inference::new(&*model).run(&Inputs::tokens(&tokens(&[1; 128], &[1, 128]))).unwrap();
}

/// The layouts in which GPT-2 is on the Hub: names with and without `transformer.`, masks as buffers, the head tied or repeated.
#[test]
fn gpt2_checkpoints_of_every_layout_give_the_same() {
    let cpu = Device::cpu();
    let source = vectors("models", "gpt2-odd");
    let files = SafeTensors::open(source.join("model.safetensors")).unwrap();
    let read = |name: &str| {
        let info = files.tensor(name).unwrap();
        let bytes = tensorlogic::backends::Bytes::Owned(std::sync::Arc::new(files.bytes_of(info).to_vec()));
        Tensor::from_bytes(bytes, info.dtype().unwrap(), &info.shape, &cpu).unwrap()
    };
    let own: BTreeMap<String, Tensor> = files.tensors().iter().map(|t| (t.name.to_string(), read(&t.name))).collect();
    assert!(own.keys().all(|n| n.starts_with("transformer.")), "{:?}", own.keys());
    let reference = Reference::of("gpt2-odd");
    let folder = std::env::temp_dir().join(format!("tl-gpt2-layouts-{}", std::process::id()));
    for (prefix, buffers, head) in
        [(true, false, false), (false, false, false), (false, true, false), (true, true, true), (false, true, true)]
    {
        let what = format!("prefix {prefix}, buffers {buffers}, lm_head {head}");
        let name = |n: &str| if prefix { n.to_string() } else { n.trim_start_matches("transformer.").to_string() };
        let mut tensors: BTreeMap<String, Tensor> = own.iter().map(|(n, t)| (name(n), t.clone())).collect();
        for i in 0..if buffers { 2 } else { 0 } {
            let mask = Tensor::ones(&[1, 1, 128, 128], DType::U8, &cpu).unwrap();
            tensors.insert(name(&format!("transformer.h.{i}.attn.bias")), mask);
            tensors.insert(name(&format!("transformer.h.{i}.attn.masked_bias")), Tensor::full(-1e4, &[], DType::F32, &cpu).unwrap());
        }
        if head {
            tensors.insert("lm_head.weight".into(), own["transformer.wte.weight"].clone());
        }
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::copy(source.join("config.json"), folder.join("config.json")).unwrap();
        let mut file = Vec::new();
        write_safetensors(&tensors, &[("format", "pt")], |bytes| {
            file.extend_from_slice(bytes);
            Ok(())
        })
        .unwrap();
        std::fs::write(folder.join("model.safetensors"), file).unwrap();
        let loaded = Weights::open(&folder, &cpu).and_then(|w| models::load(&w, Some(DType::F32)));
        let model = loaded.unwrap_or_else(|e| panic!("{what}: {e}"));
        let outputs = Inference::new(&*model).run(&reference.inputs("left", false)).unwrap();
        near(&what, &outputs.logits, &reference.get("left.logits").unwrap(), &[1.0; 3], 1e-4);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
