//! Every architecture that is supported against transformers in f64, and which of the known ones are not.
//!
//! A few folders lie in `tests/vectors/models2`; `TL_VECTORS=FOLDER` takes a larger set of the same layout, with GGUF files in `models2_gguf`.

use crate::common::{assert_close, gpu};
use serde_json::Value as Json;
use std::path::{Path, PathBuf};
use tensorlogic::io::SafeTensors;
use tensorlogic::models::{self, Model, Sampler, Session, Weights};
use tensorlogic::{DType, Device, TensorError, TensorResult};

/// Names of decoders, in folders and GGUF files, that others run and this library refuses by name.
const NOT_SUPPORTED: [&str; 2] = ["rwkv7", "zamba2"];

fn root() -> PathBuf {
    let given = std::env::var_os("TL_VECTORS").map(PathBuf::from);
    given.unwrap_or_else(|| Path::new(env!("TENSORLOGIC_ROOT")).join("tests/vectors"))
}

fn numbers(file: &SafeTensors, name: &str) -> Vec<f64> {
    let info = file.tensor(name).unwrap();
    let bytes = file.bytes_of(info);
    match info.type_name() {
        "F64" => bytes.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect(),
        "F32" => bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()) as f64).collect(),
        "I64" => bytes.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as f64).collect(),
        other => panic!("{name} is {other}"),
    }
}

fn ids(file: &SafeTensors, name: &str) -> Vec<u32> {
    numbers(file, name).into_iter().map(|v| v as u32).collect()
}

/// A model of the manifests, with its weights and its expected results.
struct Case {
    json: Json,
    weights: PathBuf,
    expected: SafeTensors,
}

impl Case {
    /// The decoders of both folders.
    fn all() -> Vec<Case> {
        let mut all = Vec::new();
        for folder in ["models2", "models2_gguf"].map(|f| root().join(f)) {
            let Ok(text) = std::fs::read(folder.join("manifest.json")) else { continue };
            let mut manifest: Json = serde_json::from_slice(&text).unwrap();
            for json in manifest["models"].as_array_mut().unwrap().drain(..).filter(|m| m["kind"].is_null()) {
                let weights = folder.join(json["dir"].as_str().or(json["file"].as_str()).unwrap());
                let place = if weights.is_dir() { &weights } else { &folder };
                let expected = SafeTensors::open(place.join(json["expected"].as_str().unwrap())).unwrap();
                all.push(Case { json, weights, expected });
            }
        }
        assert!(all.len() >= 6, "{} models", all.len());
        all
    }

    fn id(&self) -> &str {
        self.json["id"].as_str().unwrap()
    }

    /// Largest permitted error: relative, absolute.
    fn tolerance(&self) -> (f64, f64) {
        let tol = &self.json["tol"];
        let tol = if self.weights.is_dir() { &tol["logits"]["f32_compute"] } else { &tol["dequantised_f32"] };
        (tol["rtol"].as_f64().unwrap(), tol["atol"].as_f64().unwrap())
    }

    /// Largest permitted absolute difference between the same text in different parts, whose largest logit is `largest`. Where rounding grows
    /// from layer to layer, as by the delta rule, the reference itself allows more than the usual 2e-4, and so much is allowed here.
    fn split_tolerance(&self, largest: f64) -> f64 {
        let reference = self.tolerance().1;
        if self.weights.is_dir() && reference > 2e-4 { reference.max(3e-5 * largest) } else { 3e-5 * largest }
    }

    fn load(&self, device: &Device) -> TensorResult<Box<dyn Model>> {
        let model = models::load(&Weights::open(&self.weights, device)?, Some(DType::F32))?;
        // Heads need not fill a hidden state, so they are counted where the configuration names them.
        let said = std::fs::read(self.weights.join("config.json")).ok().and_then(|json| serde_json::from_slice::<Json>(&json).ok());
        let heads = said.and_then(|c| ["num_attention_heads", "n_head", "n_heads"].iter().find_map(|key| c[*key].as_u64()));
        if let (Some(heads), true) = (heads, model.shape().heads > 0) {
            assert_eq!(model.shape().heads as u64, heads, "{}", self.id());
        }
        Ok(model)
    }

    /// Logits of rows, of a full context, and greedy continuations, as far as they are known.
    fn check(&self, model: &dyn Model, device: &Device) -> TensorResult<()> {
        let session = |context: usize| Session::new(model, context.min(model.shape().context), device);
        let (rtol, atol) = self.tolerance();
        let rows = self.expected.tensor("input_ids")?.shape[0];
        let (tokens, logits) = (ids(&self.expected, "input_ids"), numbers(&self.expected, "logits"));
        for r in 0..rows {
            let part = |n: usize| r * n / rows..(r + 1) * n / rows;
            let got = session(64)?.score(&tokens[part(tokens.len())])?.to_vec()?;
            assert_close(&format!("{} row {r}", self.id()), &got, &logits[part(logits.len())], rtol, atol);
        }
        if self.expected.tensor("long_ids").is_ok() {
            let (tokens, want) = (ids(&self.expected, "long_ids"), numbers(&self.expected, "long_last_logits"));
            let got = session(tokens.len())?.prompt(&tokens, || false)?.map(|l| l.to_vec()).transpose()?.unwrap_or_default();
            assert_close(&format!("{} with {} tokens", self.id(), tokens.len()), &got, &want, rtol, atol);
        }
        let list = |v: &Json| v.as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32).collect::<Vec<_>>();
        let one = std::slice::from_ref(&self.json["greedy"]);
        for g in self.json["greedy"].as_array().map_or(one, |a| a) {
            let (prompt, tokens) = (list(&g["prompt"]), list(&g["tokens"]));
            let mut s = session(64)?;
            let logits = s.prompt(&prompt, || false)?.unwrap();
            let mut sampler = Sampler::default();
            let got = s.generate(logits, &mut sampler)?.take(tokens.len() - prompt.len()).collect::<TensorResult<Vec<u32>>>()?;
            assert_eq!(got, tokens[prompt.len()..], "{}: greedy tokens after {prompt:?}", self.id());
        }
        self.check_steps(model, device, &tokens[..tokens.len() / rows])?;
        self.check_turns(model, device, &tokens[..tokens.len() / rows])
    }

    /// Steps that are repeated without a graph give what a generation of its own for each token gives; the text goes on behind them, and behind a
    /// part that was taken back.
    fn check_turns(&self, model: &dyn Model, device: &Device, tokens: &[u32]) -> TensorResult<()> {
        let session = || Session::new(model, 64.min(model.shape().context), device);
        let logits = |tokens: &[u32]| session()?.prompt(tokens, || false)?.unwrap().to_vec();
        let same = |what: &str, got: &[f32], tokens: &[u32]| -> TensorResult<()> {
            let want: Vec<f64> = logits(tokens)?.iter().map(|v| *v as f64).collect();
            let largest = want.iter().fold(0f64, |m, v| m.max(v.abs()));
            assert_close(&format!("{} {what}", self.id()), got, &want, 0.0, self.split_tolerance(largest));
            Ok(())
        };
        let (prompt, others) = (&tokens[..7], &tokens[7..12]);
        let mut s = session()?;
        let first = s.prompt(prompt, || false)?.unwrap();
        let mut sampler = Sampler::default();
        let mut generation = s.generate(first, &mut sampler)?;
        let got: Vec<u32> = (0..12).map(|_| generation.token().unwrap().unwrap()).collect();
        generation.finish();
        let mut text = prompt.to_vec();
        for token in got {
            let next = logits(&text)?;
            let largest = next.iter().copied().fold(f32::MIN, f32::max);
            assert!(next[token as usize] >= largest - 1e-4 * largest.abs(), "{}: token {token} behind {text:?}", self.id());
            text.push(token);
        }
        text.extend(others);
        same("behind repeated steps", &s.prompt(others, || false)?.unwrap().to_vec()?, &text)?;
        // Back to the middle of the first answer.
        s.truncate(prompt.len() + 3);
        let text = [&text[..prompt.len() + 3], others].concat();
        same("behind what was taken back", &s.prompt(others, || false)?.unwrap().to_vec()?, &text)?;
        s.truncate(2);
        same("behind its start", &s.prompt(others, || false)?.unwrap().to_vec()?, &[&text[..2], others].concat())
    }

    /// Reading in steps of any size gives what reading at once gives.
    fn check_steps(&self, model: &dyn Model, device: &Device, tokens: &[u32]) -> TensorResult<()> {
        let session = || Session::new(model, 64.min(model.shape().context), device);
        let want: Vec<f64> = session()?.score(tokens)?.to_vec()?.iter().map(|v| *v as f64).collect();
        let largest = want.iter().fold(0f64, |m, v| m.max(v.abs()));
        for sizes in [&[1][..], &[7], &[3, 1, 8]] {
            let (mut s, mut got, mut rest) = (session()?, Vec::new(), tokens);
            for size in sizes.iter().cycle() {
                let (now, later) = rest.split_at(*size.min(&rest.len()));
                got.extend(s.score(now)?.to_vec()?);
                rest = later;
                if rest.is_empty() {
                    break;
                }
            }
            assert_close(&format!("{} in steps of {sizes:?}", self.id()), &got, &want, 0.0, self.split_tolerance(largest));
        }
        Ok(())
    }
}

/// What is wrong with these models on a device; those that are refused must be.
fn wrong<'c>(cases: impl Iterator<Item = &'c Case>, device: &Device) -> Vec<String> {
    let mut wrong = Vec::new();
    for case in cases {
        let architecture = case.json["arch"].as_str().unwrap();
        let family = case.id().split('.').next().unwrap_or_default();
        let refused = NOT_SUPPORTED.iter().any(|n| *n == architecture || *n == family);
        match case.load(device) {
            Err(TensorError::Unsupported(_)) if refused => {}
            Err(e) => wrong.push(format!("{}: {e}", case.id())),
            Ok(_) if refused => wrong.push(format!("{}: {architecture} is supported, and the list says it is not", case.id())),
            Ok(model) => {
                let run = std::panic::AssertUnwindSafe(|| case.check(&*model, device));
                match std::panic::catch_unwind(run) {
                    Ok(Ok(())) => {}
                    Ok(Err(e)) => wrong.push(format!("{}: {e}", case.id())),
                    Err(panic) => {
                        let message = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                        wrong.push(message.chars().take(300).collect());
                    }
                }
            }
        }
    }
    wrong
}

#[test]
fn supported_architectures_equal_transformers() {
    let all = Case::all();
    let wrong = wrong(all.iter(), &Device::cpu());
    assert!(wrong.is_empty(), "{} of {} models:\n{}", wrong.len(), all.len(), wrong.join("\n"));
}

/// Compares models on the GPU: these, which are part `n` of three. TL_MODELS=all takes a third of all there are instead, TL_MODELS=NAME,NAME those
/// of the named that are in this third besides.
fn check_on_gpu(n: usize, few: &[&str]) {
    let Some(gpu) = gpu() else { return };
    let named = std::env::var("TL_MODELS").unwrap_or_default();
    let named: Vec<&str> = named.split(',').filter(|n| !n.is_empty()).collect();
    let all = Case::all();
    let every = named == ["all"];
    let unknown: Vec<&str> = named.iter().copied().filter(|n| !every && !all.iter().any(|c| c.id() == *n)).collect();
    assert!(unknown.is_empty(), "TL_MODELS: no model {unknown:?}");
    let is_chosen =
        |(at, case): &(usize, &Case)| (at % 3 == n && (every || named.contains(&case.id()))) || (!every && few.contains(&case.id()));
    let cases: Vec<&Case> = all.iter().enumerate().filter(is_chosen).map(|(_, case)| case).collect();
    assert!(every || cases.len() >= few.len(), "{} of {few:?} are there", cases.len());
    let wrong = wrong(cases.iter().copied(), &gpu);
    println!("{} of {} models are right on {}", cases.len() - wrong.len(), cases.len(), gpu.name());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// ALiBi; capped scores and logits; partial rotary embeddings with query and key norms; sliding windows with layers without rotary embeddings.
#[test]
fn the_gpu_agrees_on_dense_models() {
    check_on_gpu(0, &["falcon-alibi", "gemma2.F32", "gemma2-nocap", "stablelm-parallel", "cohere2-two"]);
}

/// Short convolutions, the gated delta rule, also with a decay for each channel, Mamba-2.
#[test]
fn the_gpu_agrees_on_models_with_states() {
    check_on_gpu(1, &["lfm3-base", "qwen3_5_text-two", "kimi_linear-base", "falcon_h1-base"]);
}

/// Mixtures of experts: attention sinks and biases; a shared expert and dense layers; grouped routing with latent attention; SparseMixer; weighted
/// inputs and chunked attention; a dense branch beside the experts.
#[test]
fn the_gpu_agrees_on_models_with_experts() {
    check_on_gpu(2, &["gpt_oss-base", "qwen2_moe-mixed", "deepseek_v3-yarn", "phimoe-window", "llama4_text-moe", "gemma4_text-moe"]);
}

#[test]
fn other_architectures_are_refused_by_name() {
    let case = Case::all().into_iter().find(|c| c.weights.is_dir()).unwrap();
    let folder = std::env::temp_dir().join(format!("tl-architectures-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::copy(case.weights.join("model.safetensors"), folder.join("model.safetensors")).unwrap();
    let mut config: Json = serde_json::from_slice(&std::fs::read(case.weights.join("config.json")).unwrap()).unwrap();
    for name in NOT_SUPPORTED {
        config["model_type"] = name.into();
        std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
        let e = models::load(&Weights::open(&folder, &Device::cpu()).unwrap(), None)
            .err()
            .unwrap_or_else(|| panic!("{name} loads"))
            .to_string();
        assert!(e.contains(&format!("`model_type` is \"{name}\"")) && e.contains("supported are llama"), "{name}: {e}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}
