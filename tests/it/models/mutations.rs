//! Models with one thing changed: a key of their settings or a tensor. None panics; each is refused with the name of what was changed, or gives the
//! logits of the unchanged model, or others where the key is one of [`NUMBERS`].
//!
//! `TL_MUTATIONS=N` takes N changes by chance; otherwise they are the same 300 each time.

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use tensorlogic::io::gguf::Value;
use tensorlogic::io::{Gguf, GgufWriter, write_safetensors};
use tensorlogic::models::settings::without_effect;
use tensorlogic::models::{self, Session, Weights};
use tensorlogic::{DType, Device, Tensor};

/// Keys, by their last word, whose numbers other logits may follow from.
const NUMBERS: [&str; 77] = [
    "_sliding_window_pattern",
    "dim_model_base",
    "max_window_layers",
    "moe_k",
    "moe_norm_min",
    "n_head",
    "norm_epsilon",
    "num_expert_group",
    "num_experts_per_token",
    "rope_local_base_freq",
    "scale_depth",
    "scale_emb",
    "sliding_window_pattern",
    "swiglu_alpha",
    "window_size",
    "activation_function",
    "activation_sparsity_pattern",
    "alpha",
    "altup_active_idx",
    "attention_multiplier",
    "attn_logit_softcapping",
    "attn_scale",
    "attention_chunk_size",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "clip_qkv",
    "embedding_multiplier",
    "factor",
    "final_logit_softcapping",
    "first_k_dense_replace",
    "floor_scale",
    "freq_base",
    "freq_base_swa",
    "head_dim",
    "high_freq_factor",
    "interleave_moe_layer_step",
    "key_multiplier",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "layer_norm_rms_epsilon",
    "llama_4_scaling_beta",
    "logit_scale",
    "logits_scaling",
    "long_factor",
    "low_freq_factor",
    "max_position_embeddings",
    "moe_layer_start_index",
    "mscale",
    "mscale_all_dim",
    "n_group",
    "no_rope_layer_interval",
    "norm_eps",
    "num_attention_heads",
    "num_experts_per_tok",
    "num_key_value_heads",
    "num_kv_shared_layers",
    "original_context_length",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "query_pre_attn_scalar",
    "residual_multiplier",
    "rms_norm_eps",
    "rope_theta",
    "rotary_dim",
    "rotary_pct",
    "routed_scaling_factor",
    "router_jitter_noise",
    "scale",
    "short_factor",
    "sliding_window",
    "swiglu_limit",
    "time_step_limit",
    "topk_group",
    "expert_used_count",
    "head_count",
    "head_count_kv",
];

/// What changes, of folders and GGUF files; indices choose among what there is.
#[derive(Clone, Debug)]
enum Change {
    /// A whole number by the first of these: + 1, − 1, doubled, 0, 2^40; another value by the second.
    Number(Index, u8),
    Text(Index),
    List(Index),
    Null(Index),
    Removed(Index),
    Added,
    TensorRemoved(Index),
    TensorAdded,
    TensorTurned(Index),
    TensorLonger(Index, bool),
    TensorOfIntegers(Index),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => (any::<Index>(), 0u8..5).prop_map(|(i, n)| Change::Number(i, n)),
        1 => any::<Index>().prop_map(Change::Text),
        1 => any::<Index>().prop_map(Change::List),
        1 => any::<Index>().prop_map(Change::Null),
        2 => any::<Index>().prop_map(Change::Removed),
        1 => Just(Change::Added),
        2 => any::<Index>().prop_map(Change::TensorRemoved),
        1 => Just(Change::TensorAdded),
        1 => any::<Index>().prop_map(Change::TensorTurned),
        2 => (any::<Index>(), any::<bool>()).prop_map(|(i, up)| Change::TensorLonger(i, up)),
        1 => any::<Index>().prop_map(Change::TensorOfIntegers),
    ]
}

/// What may come of a change.
#[derive(Clone, Copy, PartialEq, Debug)]
enum May {
    /// An error that contains the name.
    BeRefused,
    /// Or the same logits.
    BeTheSame,
    /// Or others.
    Differ,
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("TENSORLOGIC_ROOT")).join("tests/vectors").join(name)
}

/// The logits of some tokens, all of the vocabulary of every model here.
fn logits(weights: &Weights) -> Result<Vec<f32>, String> {
    let model = models::load(weights, Some(DType::F32)).map_err(|e| e.to_string())?;
    let tokens: Vec<u32> = [3, 1, 4, 1, 5, 9, 2, 6].iter().map(|t| t % model.shape().vocab as u32).collect();
    let session = Session::new(&*model, model.shape().context.min(64), &Device::cpu()).map_err(|e| e.to_string());
    session?.score(&tokens).and_then(|l| l.to_vec()).map_err(|e| e.to_string())
}

/// What is wrong with what came of a change of what has this name.
fn wrong(name: &str, may: May, want: &[f32], run: impl FnOnce() -> Result<Vec<f32>, String>) -> Option<String> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Err(_) => Some("panics".into()),
        // What a missing or another number is taken for may not fit something else, which the error names.
        Ok(Err(e)) if name.is_empty() => {
            (!e.contains('`') && !e.contains("config.json")).then(|| format!("is refused without a name: {e}"))
        }
        Ok(Err(e)) => (!e.contains(name)).then(|| format!("is refused without the name `{name}`: {e}")),
        Ok(Ok(_)) if may == May::BeRefused => Some(format!("loads, in spite of `{name}`")),
        Ok(Ok(got)) if got == want => None,
        Ok(Ok(_)) if may == May::BeTheSame => Some(format!("gives other logits, and nothing says that `{name}` does")),
        Ok(Ok(got)) => (!got.iter().all(|v| v.is_finite())).then(|| format!("gives logits that are not finite, for `{name}`")),
    }
}

/// The paths of all values of a configuration but objects.
fn leaves(config: &Map<String, Json>, before: &str) -> Vec<String> {
    let of = |(k, v): (&String, &Json)| match v {
        Json::Object(inner) => leaves(inner, &format!("{before}{k}.")),
        _ => vec![format!("{before}{k}")],
    };
    config.iter().flat_map(of).collect()
}

fn at<'c>(config: &'c mut Json, key: &str) -> (&'c mut Map<String, Json>, String) {
    let (place, last) = key.rsplit_once('.').map_or((vec![], key), |(place, last)| (place.split('.').collect(), last));
    let object = place.into_iter().fold(config, |c, k| c.get_mut(k).unwrap());
    (object.as_object_mut().unwrap(), last.to_string())
}

/// What a value that is changed may do.
fn of_value(key: &str, other_kind: bool) -> May {
    let last = key.rsplit('.').next().unwrap_or(key);
    match (NUMBERS.contains(&last) || last.ends_with("_multiplier")) && !other_kind {
        true => May::Differ,
        false => May::BeTheSame,
    }
}

/// A folder, with its logits.
struct Folder {
    name: String,
    config: Json,
    tensors: BTreeMap<String, Tensor>,
    want: Vec<f32>,
}

impl Folder {
    fn all() -> Vec<Folder> {
        let mut all: Vec<PathBuf> =
            ["models", "models2"].into_iter().flat_map(|f| std::fs::read_dir(path(f)).unwrap()).map(|e| e.unwrap().path()).collect();
        all.retain(|p| p.join("config.json").exists() && p.join("model.safetensors").exists());
        all.sort();
        let open = |p: PathBuf| {
            let weights = Weights::open(&p, &Device::cpu()).unwrap();
            Folder {
                name: p.file_name().unwrap().to_string_lossy().into(),
                config: serde_json::from_slice(&std::fs::read(p.join("config.json")).unwrap()).unwrap(),
                tensors: weights.stored_names().into_iter().map(|n| (n.clone(), weights.any(&n).unwrap())).collect(),
                want: logits(&weights).unwrap(),
            }
        };
        all.into_iter().map(open).collect()
    }

    /// The changed folder, the name that an error has to contain, and what may come of it; `None` where the change is none.
    fn changed(&self, change: &Change) -> Option<(Json, BTreeMap<String, Tensor>, String, May)> {
        let (mut config, mut tensors) = (self.config.clone(), self.tensors.clone());
        let keys: Vec<String> = leaves(config.as_object().unwrap(), "").into_iter().filter(|k| k != "model_type").collect();
        let names: Vec<String> = tensors.keys().cloned().collect();
        let (key, may) = match change {
            Change::Number(i, n) => {
                let numbers: Vec<&String> = keys
                    .iter()
                    .filter(|k| {
                        let (o, last) = at(&mut config, k);
                        o[&last].is_number()
                    })
                    .collect();
                let key = numbers[i.index(numbers.len())].clone();
                let (object, last) = at(&mut config, &key);
                let v = object[&last].as_f64().unwrap();
                let new = [v + 1.0, v - 1.0, v * 2.0, 0.0, (1u64 << 40) as f64][usize::from(*n)];
                object.insert(last, if new.fract() == 0.0 { json!(new as i64) } else { json!(new) });
                let may = of_value(&key, false);
                (key, may)
            }
            Change::Text(i) | Change::List(i) | Change::Null(i) | Change::Removed(i) => {
                let key = keys[i.index(keys.len())].clone();
                let (object, last) = at(&mut config, &key);
                let old = object.remove(&last).unwrap();
                match change {
                    Change::Text(_) if old.is_string() => return None,
                    Change::List(_) if old.is_array() => return None,
                    Change::Text(_) => drop(object.insert(last, json!("nonsense"))),
                    Change::List(_) => drop(object.insert(last, json!([1, "x"]))),
                    Change::Null(_) => drop(object.insert(last, Json::Null)),
                    _ => {}
                }
                let may = if matches!(change, Change::Removed(_) | Change::Null(_)) { May::Differ } else { of_value(&key, true) };
                (key, may)
            }
            Change::Added => {
                config["a_key_of_tomorrow"] = json!(1);
                ("a_key_of_tomorrow".into(), May::BeRefused)
            }
            Change::TensorAdded => {
                let name = "model.layers.0.self_attn.of_tomorrow.weight";
                tensors.insert(name.into(), Tensor::from_vec(vec![0f32; 4], &[2, 2], &Device::cpu()).unwrap());
                (name.into(), May::BeRefused)
            }
            Change::TensorRemoved(i) | Change::TensorTurned(i) | Change::TensorLonger(i, _) | Change::TensorOfIntegers(i) => {
                let name = names[i.index(names.len())].clone();
                let old = tensors.remove(&name).unwrap();
                if let Some(new) = other(&old, change)? {
                    tensors.insert(name.clone(), new);
                }
                (name, May::BeRefused)
            }
        };
        Some((config, tensors, key, may))
    }

    fn wrong(&self, change: &Change) -> Option<String> {
        let (config, tensors, name, may) = self.changed(change)?;
        let to = std::env::temp_dir().join(format!("tl-mutations-{}", std::process::id()));
        std::fs::create_dir_all(&to).unwrap();
        std::fs::write(to.join("config.json"), config.to_string()).unwrap();
        let mut bytes = Vec::new();
        write_safetensors(&tensors, &[("format", "pt")], |part: &[u8]| {
            bytes.extend_from_slice(part);
            Ok(())
        })
        .unwrap();
        std::fs::write(to.join("model.safetensors"), bytes).unwrap();
        let last = name.rsplit('.').next().unwrap_or(&name).to_string();
        let optional = name == "lm_head.weight" && matches!(change, Change::TensorRemoved(_));
        // A head that is missing is asked for by another name; what a missing key is taken for may not fit a tensor, which the error names.
        let (shown, may) = match change {
            _ if optional => ("tie_word_embeddings".to_string(), May::Differ),
            Change::Removed(_) | Change::Null(_) | Change::Number(..) => (String::new(), may),
            Change::Text(_) | Change::List(_) => (last.clone(), may),
            _ => (name.clone(), may),
        };
        let may = if without_effect(&name).is_some() { May::BeTheSame } else { may };
        let found = wrong(&shown, may, &self.want, || logits(&Weights::open(&to, &Device::cpu()).map_err(|e| e.to_string())?));
        std::fs::remove_dir_all(&to).unwrap();
        found.map(|found| format!("{}: {change:?} of {name} {found}", self.name))
    }
}

/// The tensor after a change; `None` in it where it is gone, `None` around it where the change is none.
fn other(t: &Tensor, change: &Change) -> Option<Option<Tensor>> {
    let dims = t.dims().to_vec();
    match change {
        Change::TensorRemoved(_) => Some(None),
        Change::TensorTurned(_) => match dims[..] {
            [a, b] if a != b => Some(Some(t.t().unwrap().contiguous().unwrap())),
            _ => None,
        },
        Change::TensorLonger(_, true) => {
            let first = t.narrow(0, 0, 1).ok()?;
            Some(Some(Tensor::cat(&[t.clone(), first], 0).unwrap()))
        }
        Change::TensorLonger(_, false) if dims.first().is_some_and(|n| *n > 1) => {
            Some(Some(t.narrow(0, 0, dims[0] - 1).unwrap().contiguous().unwrap()))
        }
        Change::TensorOfIntegers(_) => Some(Some(t.cast(DType::I32).unwrap())),
        _ => None,
    }
}

/// Whole numbers by chance, or the same ones each time.
fn runner() -> TestRunner {
    let given = std::env::var("TL_MUTATIONS").ok().and_then(|n| n.parse().ok());
    let config = Config { cases: given.unwrap_or(300), failure_persistence: None, max_shrink_iters: 0, ..Config::default() };
    match given {
        Some(_) => TestRunner::new(config),
        None => TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha)),
    }
}

/// Runs the changes, all of them, and says what is wrong.
fn run(count: usize, check: impl Fn(usize, &Change) -> Option<String>) {
    let mut runner = runner();
    let wrong = std::cell::RefCell::new(Vec::new());
    let result = runner.run(&(any::<Index>(), change()), |(i, change)| {
        wrong.borrow_mut().extend(check(i.index(count), &change));
        Ok(())
    });
    result.unwrap();
    let wrong = wrong.into_inner();
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn changed_folders_are_refused_or_right() {
    let all = Folder::all();
    assert!(all.len() > 20);
    run(all.len(), |i, change| all[i].wrong(change));
}

/// A GGUF file, with its logits.
struct File {
    name: String,
    gguf: Gguf,
    want: Vec<f32>,
}

fn weights(w: &GgufWriter) -> Result<Weights, String> {
    let bytes = w.to_bytes().map_err(|e| e.to_string())?;
    Ok(Weights::from_gguf(Gguf::from_bytes(bytes).map_err(|e| e.to_string())?, &Device::cpu()))
}

impl File {
    fn all() -> Vec<File> {
        let mut all: Vec<PathBuf> = std::fs::read_dir(path("models_gguf")).unwrap().map(|e| e.unwrap().path()).collect();
        all.retain(|p| p.extension().is_some_and(|e| e == "gguf"));
        all.sort();
        let open = |p: PathBuf| File {
            name: p.file_name().unwrap().to_string_lossy().into(),
            gguf: Gguf::open(&p).unwrap(),
            want: logits(&Weights::open(&p, &Device::cpu()).unwrap()).unwrap(),
        };
        all.into_iter().map(open).collect()
    }

    fn wrong(&self, change: &Change) -> Option<String> {
        let architecture = self.gguf.str("general.architecture").unwrap();
        let start = format!("{architecture}.");
        let keys: Vec<(&str, Value<'_>)> = self.gguf.metadata().filter(|(k, _)| k.starts_with(&start)).collect();
        let key = |i: &Index| keys[i.index(keys.len())];
        let gone = match change {
            Change::Number(i, _) | Change::Text(i) | Change::List(i) | Change::Removed(i) => key(i).0,
            _ => "",
        };
        let mut w = GgufWriter::new();
        for (k, v) in self.gguf.metadata().filter(|(k, _)| *k != gone) {
            w.set(k, v);
        }
        let tensors = self.gguf.tensors();
        let chosen = match change {
            Change::TensorRemoved(i) | Change::TensorLonger(i, _) => Some(tensors[i.index(tensors.len())].name.to_string()),
            _ => None,
        };
        let (name, may) = match change {
            Change::Number(i, n) => {
                let (k, v) = key(i);
                let v = v.f64().ok()?;
                let new = [v + 1.0, v - 1.0, v * 2.0, 0.0, (1u64 << 31) as f64][usize::from(*n)];
                if keys[i.index(keys.len())].1.u64().is_ok() && new >= 0.0 {
                    w.set(k, new as u32)
                } else {
                    w.set(k, new as f32)
                };
                (String::new(), of_value(k, false))
            }
            Change::Text(i) => {
                w.set(key(i).0, "nonsense");
                (key(i).0.to_string(), May::BeTheSame)
            }
            Change::List(i) => {
                w.set(key(i).0, vec![1i32, 2]);
                (key(i).0.to_string(), May::BeTheSame)
            }
            Change::Removed(_) => (String::new(), May::Differ),
            Change::Added => {
                w.set(&format!("{start}of_tomorrow"), 1u32);
                (format!("{start}of_tomorrow"), May::BeRefused)
            }
            Change::TensorAdded => {
                w.tensor("blk.0.of_tomorrow.weight", DType::F32, &[4], vec![0; 16]).unwrap();
                ("blk.0.of_tomorrow.weight".into(), May::BeRefused)
            }
            // A file without its own head has the embedding for one.
            Change::TensorRemoved(_) if chosen.as_deref() == Some("output.weight") => (String::new(), May::Differ),
            // GGUF has no key that says where biases are.
            Change::TensorRemoved(_) if chosen.as_deref().is_some_and(|n| n.ends_with(".bias")) => (String::new(), May::Differ),
            Change::TensorRemoved(_) => (chosen.clone()?, May::BeRefused),
            Change::TensorLonger(..) => (chosen.clone()?, May::BeRefused),
            _ => return None,
        };
        for t in tensors.iter() {
            let bytes = self.gguf.bytes_of(t);
            match change {
                Change::TensorRemoved(_) if chosen.as_deref() == Some(&*t.name) => {}
                Change::TensorLonger(_, up) if chosen.as_deref() == Some(&*t.name) => {
                    let rows = t.shape[0];
                    let each = bytes.len() / rows;
                    let (rows, bytes) =
                        if *up { (rows + 1, [bytes, &bytes[..each]].concat()) } else { (rows - 1, bytes[..bytes.len() - each].to_vec()) };
                    w.tensor(&t.name, t.dtype().unwrap(), &[&[rows], &t.shape[1..]].concat(), bytes).ok()?;
                }
                _ => drop(w.tensor(&t.name, t.dtype().unwrap(), &t.shape, bytes.to_vec()).unwrap()),
            }
        }
        let found = wrong(&name, may, &self.want, || logits(&weights(&w)?));
        found.map(|found| format!("{}: {change:?} of {gone}{} {found}", self.name, chosen.unwrap_or_default()))
    }
}

#[test]
fn changed_gguf_files_are_refused_or_right() {
    let all = File::all();
    assert!(all.len() >= 5);
    run(all.len(), |i, change| all[i].wrong(change));
}
