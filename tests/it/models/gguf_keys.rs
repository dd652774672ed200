//! No key of a GGUF file passes without a word: in files of every architecture that folders are written to, each key that does not belong to the
//! tokenizer is changed to other values of its type, and the file is refused by the key's name, computes something else, or the key is written down
//! as without effect.

use super::convert::{REFUSED, changed, config, convert, decoders, logits, place, vectors, with_experts, with_latents, written_as};
use super::layouts::layouts;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use tensorlogic::io::gguf::{ToValue, Value, ValueType};
use tensorlogic::io::{Gguf, GgufWriter};
use tensorlogic::models::{self, Weights};
use tensorlogic::{DType, Device};

/// Keys of which no other value changes a logit, by architecture (`*` for all), with the reason.
const WITHOUT: [(&str, &[&str], &str); 17] = [
    ("*", &["general.file_type"], "the tensors say their types"),
    ("cohere2moe", &["feed_forward_length"], EXPERTS),
    ("deepseek2", &["rope.scaling.yarn_beta_fast"], RAMP),
    ("falcon", &["tensor_data_layout"], "it says how the file was made"),
    ("gpt-oss", &["feed_forward_length"], EXPERTS),
    ("granitehybrid", &["rope.freq_base", "rope.scaling.factor"], "`rope.scaling.finetuned` is false: nothing is rotated"),
    ("jamba", &["rope.freq_base", "rope.scaling.factor"], "nothing is rotated"),
    ("mistral4", &["rope.scaling.yarn_beta_fast"], RAMP),
    ("qwen2moe", &["feed_forward_length"], EXPERTS),
    ("qwen35", &["full_attention_interval"], "`attention.recurrent_layers` says it by layers"),
    ("qwen35", &["rope.dimension_sections"], "a text has one position in all sections"),
    ("qwen35moe", &["feed_forward_length"], EXPERTS),
    ("qwen35moe", &["full_attention_interval"], "`attention.recurrent_layers` says it by layers"),
    ("qwen35moe", &["rope.dimension_sections"], "a text has one position in all sections"),
    ("qwen3moe", &["feed_forward_length"], EXPERTS),
    ("qwen3next", &["feed_forward_length"], EXPERTS),
    ("qwen3next", &["full_attention_interval"], "`attention.recurrent_layers` says it by layers"),
];

const EXPERTS: &str = "all layers have experts, whose size is `expert_feed_forward_length`";

const RAMP: &str = "the ramp begins before the first of the few pairs that rotate here";

/// Keys of sizes that have to fit another one, which the refusal names.
const FITTING: [(&str, &str); 2] = [("attention.key_length_mla", "attention.key_length"), ("expert_count", "expert_used_count")];

/// Whether a key is written down as without effect in files of this architecture, or in this file.
fn is_without(file: &Gguf, architecture: &str, own: &str) -> bool {
    // llama.cpp does not scale these either.
    let unscaled = file.get(&format!("{architecture}.rope.scaling.type")).is_some_and(|kind| kind.str().is_ok_and(|kind| kind == "none"));
    let experts = architecture == "llama" && file.get("llama.expert_count").is_some();
    unscaled && own == "rope.scaling.factor"
        || experts && own == "feed_forward_length"
        || WITHOUT.iter().any(|(name, keys, _)| ["*", architecture].contains(name) && keys.contains(&own))
}

/// Other values of the same type, each set by a function of the writer.
fn others(v: Value<'_>) -> Vec<Box<dyn ToValue>> {
    let whole = |n: u64| {
        let far = if n < 8 { [n; 2] } else { [n / 4, n * 64] };
        [n + 1, n * 2, n.saturating_sub(1)].into_iter().chain(far).filter(move |m| *m != n).collect::<BTreeSet<u64>>()
    };
    match v.kind() {
        ValueType::Bool => vec![Box::new(!v.bool().unwrap())],
        ValueType::F32 => {
            let x = v.f64().unwrap() as f32;
            let other = [x * 2.0, x + 1.0, x * 0.01].into_iter().filter(move |y| *y != x);
            other.map(|y| Box::new(y) as Box<dyn ToValue>).collect()
        }
        ValueType::Str => vec![Box::new("another".to_string())],
        ValueType::Array => lists(v),
        _ => whole(v.u64().unwrap()).into_iter().map(|n| Box::new(n as u32) as Box<dyn ToValue>).collect(),
    }
}

/// Lists as long as this one with other items: the last one, and all of them.
fn lists(v: Value<'_>) -> Vec<Box<dyn ToValue>> {
    fn changed<T: Clone>(items: &[T], f: impl Fn(&T) -> T) -> [Vec<T>; 2] {
        let mut last = items.to_vec();
        last.iter_mut().next_back().into_iter().for_each(|item| *item = f(item));
        [last, items.iter().map(f).collect()]
    }
    let items: Vec<Value<'_>> = v.array().unwrap().values().collect();
    let boxed: Vec<Box<dyn ToValue>> = match items.first().map(|i| i.kind()) {
        Some(ValueType::Bool) => {
            let flags: Vec<bool> = items.iter().map(|i| i.bool().unwrap()).collect();
            changed(&flags, |f| !f).map(|l| Box::new(l) as Box<dyn ToValue>).into()
        }
        Some(ValueType::F32) => {
            let numbers: Vec<f32> = items.iter().map(|i| i.f64().unwrap() as f32).collect();
            changed(&numbers, |x| x - 1.0).map(|l| Box::new(l) as Box<dyn ToValue>).into()
        }
        Some(kind) => {
            let numbers: Vec<i32> = items.iter().map(|i| i.f64().unwrap() as i32).collect();
            let lists = changed(&numbers, |n| n + 1);
            let unsigned = kind == ValueType::U32;
            lists
                .map(|l| if unsigned { Box::new(l.iter().map(|n| *n as u32).collect::<Vec<_>>()) as Box<dyn ToValue> } else { Box::new(l) })
                .into()
        }
        None => Vec::new(),
    };
    boxed
}

/// What a file computes: its context and the logits of some tokens.
fn outcome(weights: &Weights) -> Result<(usize, Vec<f32>), String> {
    let model = models::load(weights, Some(DType::F32)).map_err(|e| e.to_string())?;
    // There are 20 tokens in a row.
    let context = model.shape().context;
    Ok((context, if context < 20 { Vec::new() } else { logits(&*model) }))
}

/// The file with one key set to another value.
fn with_key(file: &Gguf, key: &str, value: &dyn ToValue) -> Weights {
    struct Any<'v>(&'v dyn ToValue);
    impl ToValue for Any<'_> {
        fn put(&self, out: &mut Vec<u8>) -> ValueType {
            self.0.put(out)
        }
    }
    let mut w = GgufWriter::new();
    for (k, v) in file.metadata().filter(|(k, _)| *k != key) {
        w.set(k, v);
    }
    w.set(key, Any(value));
    for t in file.tensors() {
        w.tensor(&t.name, t.dtype().unwrap(), &t.shape, file.bytes_of(t)).unwrap();
    }
    Weights::from_gguf(Gguf::from_bytes(w.to_bytes().unwrap()).unwrap(), &Device::cpu())
}

/// How a file's context and logits differ.
fn difference(got: &(usize, Vec<f32>), want: &(usize, Vec<f32>)) -> String {
    let apart = got.1.iter().zip(&want.1).filter(|(a, b)| a.to_bits() != b.to_bits());
    let most = apart.clone().map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let nan = got.1.iter().filter(|v| v.is_nan()).count();
    let (count, lengths) = (apart.count(), [got.1.len(), want.1.len()]);
    format!("contexts {} and {}, {lengths:?} logits, {count} of them up to {most} apart, {nan} NaN", got.0, want.0)
}

/// What is wrong with a key of a file that computes `want`.
fn check(file: &Gguf, architecture: &str, (key, value): (&str, Value<'_>), want: &(usize, Vec<f32>)) -> Option<String> {
    let own = key.strip_prefix(architecture).and_then(|k| k.strip_prefix('.')).unwrap_or(key);
    let mut effect = None;
    for other in others(value) {
        match outcome(&with_key(file, key, &*other)) {
            Err(e) if e.contains(key) || e.contains(&format!("`{own}`")) => effect = Some("it is refused".to_string()),
            Err(e) if FITTING.iter().any(|(a, b)| *a == own && e.contains(&format!("`{architecture}.{b}`"))) => {
                effect = Some("another key is refused".to_string())
            }
            Err(e) => return Some(format!("{key}, which is {value}, is refused without its name: {e}")),
            Ok(got) if got != *want => effect = Some(difference(&got, want)),
            Ok(_) => {}
        }
    }
    match (is_without(file, architecture, own), effect) {
        (true, Some(effect)) => Some(format!("{key} has an effect after all: {effect}")),
        (false, None) => Some(format!("{key} is {value}, and no other value is refused or changes a logit")),
        _ => None,
    }
}

/// Writes a model's folder.
type Make = fn(&Path);

/// A GGUF file of each folder that can be written as one.
fn files(folder: &Path) -> Vec<(String, PathBuf)> {
    let mut folders: Vec<(String, PathBuf)> =
        decoders().into_iter().map(|name| (name.clone(), vectors().join("models2").join(name))).collect();
    // These have no references: their numbers are random.
    for (name, layout) in layouts() {
        layout.write(&folder.join(&name));
        folders.push((name.clone(), folder.join(name)));
    }
    let make: [(&str, Make); 3] = [
        ("random-mistral4", with_latents),
        ("random-qwen3_moe", |folder| with_experts(folder, "qwen3_moe")),
        ("random-qwen2_moe", |folder| with_experts(folder, "qwen2_moe")),
    ];
    for (name, make) in make {
        std::fs::create_dir_all(folder.join(name)).unwrap();
        make(&folder.join(name));
        folders.push((name.into(), folder.join(name)));
    }
    let written = |(name, from): (String, PathBuf)| {
        written_as(config(&from)["model_type"].as_str().unwrap())?;
        let changes = REFUSED.iter().find(|(refused, ..)| *refused == name).map_or("{}", |(.., changes)| changes);
        let (to, file) = (folder.join(format!("{name}-changed")), folder.join(format!("{name}.gguf")));
        changed(&from, &to, &serde_json::from_str(if changes.is_empty() { return None } else { changes }).unwrap());
        convert(&to, DType::F32, &file);
        Some((name, file))
    };
    folders.into_iter().filter_map(written).collect()
}

/// What is wrong with the keys of a file, which is of the architecture.
fn walk(path: &Path) -> (String, Vec<String>) {
    let file = Gguf::open(path).unwrap();
    let architecture = file.str("general.architecture").unwrap().to_string();
    let want = outcome(&Weights::open(path, &Device::cpu()).unwrap()).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let keys = file.metadata().filter(|(key, _)| !key.starts_with("tokenizer."));
    let wrong = keys.filter_map(|key| check(&file, &architecture, key, &want)).collect();
    (architecture, wrong)
}

#[test]
fn every_key_of_every_gguf_file_is_read() {
    let folder = place("keys");
    let (files, next) = (files(&folder), AtomicUsize::new(0));
    let (architectures, wrong) = (Mutex::new(BTreeSet::new()), Mutex::new(BTreeMap::new()));
    let work = || {
        while let Some((name, path)) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (architecture, found) = walk(path);
            architectures.lock().unwrap().insert(architecture);
            wrong.lock().unwrap().insert(name, found);
        }
    };
    std::thread::scope(|s| (0..2).for_each(|_| drop(s.spawn(work))));
    let (architectures, wrong) = (architectures.into_inner().unwrap(), wrong.into_inner().unwrap());
    let lines: Vec<String> = wrong.iter().flat_map(|(name, all)| all.iter().map(move |what| format!("{name}: {what}"))).collect();
    assert!(lines.is_empty(), "{} keys:\n{}", lines.len(), lines.join("\n"));
    let missing = models::supported().filter(|a| a.gguf.is_some_and(|name| !architectures.contains(name))).map(|a| a.names[0]);
    // What lies here of this one has no corrections of the choice of experts, which its GGUF files have.
    assert_eq!(missing.collect::<Vec<_>>(), ["lfm2_moe"], "these are not walked; those that are: {architectures:?}");
    std::fs::remove_dir_all(folder).unwrap();
}
