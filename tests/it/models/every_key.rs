//! No setting passes without a word: each key of the configuration classes of the decoders that lie here (`tests/vectors/config_keys/keys_of_types.json`) is refused
//! by name with some value, or changes what the model computes, or is written down as without effect.

use super::model_settings::{Folder, load, logits, others, read_json, vectors};
use serde_json::{Map, Value as Json};
use std::collections::BTreeSet;
use std::path::Path;
use tensorlogic::models::settings::without_effect;

/// What is wrong with a key of a model, of whose settings these are the values.
fn check(folder: &Folder, base: &Path, config: &Map<String, Json>, key: &str, (tokens, want): (&[u32], &[f32])) -> Option<String> {
    if without_effect(key).is_some() {
        return None;
    }
    let own = config.get(key).unwrap_or(&Json::Null);
    for value in others(own) {
        let mut changed = config.clone();
        changed.insert(key.into(), value.clone());
        match load(&folder.model_like(base, &Json::Object(changed))) {
            Err(e) if e.contains(key) => return None,
            Err(e) => return Some(format!("{key} = {value} is refused without its name: {e}")),
            Ok(model) if logits(&*model, tokens) != want => return None,
            Ok(_) => {}
        }
    }
    Some(format!("{key} = {own}: no other value is refused or changes a logit"))
}

#[test]
fn every_key_of_every_decoder_is_read() {
    let classes = read_json(&vectors("config_keys/keys_of_types.json"));
    let (mut wrong, mut types) = (Vec::new(), BTreeSet::new());
    let mut folders: Vec<_> = std::fs::read_dir(vectors("models2")).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    for base in folders.iter().filter(|path| path.join("config.json").exists()) {
        let Json::Object(config) = read_json(&base.join("config.json")) else { panic!("{}", base.display()) };
        let kind = config["model_type"].as_str().unwrap().to_string();
        let Some(keys) = classes[&kind].as_array() else { continue };
        let folder = Folder::new();
        let Ok(model) = load(&folder.model_like(base, &Json::Object(config.clone()))) else { continue };
        if !types.insert(kind.clone()) {
            continue;
        }
        let tokens: Vec<u32> = (1..12).collect();
        let want = logits(&*model, &tokens);
        for key in keys.iter().filter_map(Json::as_str) {
            wrong.extend(check(&folder, base, &config, key, (&tokens, &want)).map(|what| format!("{kind}: {what}")));
        }
    }
    assert!(types.len() >= 40, "only {types:?}");
    assert!(wrong.is_empty(), "{} keys:\n{}", wrong.len(), wrong.join("\n"));
}
