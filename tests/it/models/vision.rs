//! Towers for images, and pairs of towers, against transformers in f64.

use crate::common::assert_close;
use serde_json::Value as Json;
use std::path::{Path, PathBuf};
use tensorlogic::io::SafeTensors;
use tensorlogic::models::inference::Inputs;
use tensorlogic::models::{ImageTextModel, VisionTower, Weights};
use tensorlogic::{DType, Device, Tensor, TensorResult};

/// A folder of the larger set, or of the one that lies here.
fn root() -> PathBuf {
    let given = std::env::var_os("TL_VECTORS").map(PathBuf::from);
    given.unwrap_or_else(|| Path::new(env!("TENSORLOGIC_ROOT")).join("tests/vectors/encoders")).join("models2")
}

fn floats(file: &SafeTensors, name: &str) -> Tensor {
    let info = file.tensor(name).unwrap();
    let values = file.bytes_of(info).chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    Tensor::from_vec::<f32>(values, &info.shape, &Device::cpu()).unwrap()
}

fn close(what: &str, got: &Tensor, want: &Tensor) -> TensorResult<()> {
    assert_eq!(got.dims(), want.dims(), "{what}");
    let want: Vec<f64> = want.to_vec()?.into_iter().map(f64::from).collect();
    assert_close(what, &got.to_vec()?, &want, 1e-4, 2e-4);
    Ok(())
}

fn check(json: &Json) -> TensorResult<()> {
    let id = json["id"].as_str().unwrap();
    let folder = root().join(json["dir"].as_str().unwrap());
    let expected = SafeTensors::open(folder.join(json["expected"].as_str().unwrap()))?;
    let (weights, pixels) = (Weights::open(&folder, &Device::cpu())?, floats(&expected, "in.pixel_values"));
    let want = |name: &str| floats(&expected, name);
    if json["kind"] == "pair" {
        let info = expected.tensor("in.input_ids")?;
        let ids = expected.bytes_of(info).chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as i32).collect();
        let tokens = Tensor::from_vec::<i32>(ids, &info.shape, &Device::cpu())?;
        let model = ImageTextModel::load(&weights, Some(DType::F32))?;
        let got = model.compare(&pixels, &Inputs::tokens(&tokens))?;
        let (images, texts) = (want("image_embeds"), want("text_embeds"));
        close(&format!("{id}: images"), &got.images, &images)?;
        close(&format!("{id}: texts"), &got.texts, &texts)?;
        return close(&format!("{id}: logits"), &got.logits, &want("logits_per_image"));
    }
    let got = VisionTower::load(&weights, Some(DType::F32))?.run(&pixels)?;
    for name in json["outputs"].as_array().unwrap().iter().filter_map(Json::as_str) {
        let tensor = match name {
            "last_hidden_state" => Some(&got.hidden_states),
            "pooler_output" => got.pooled.as_ref(),
            "logits" => got.logits.as_ref(),
            other => panic!("{id}: the result {other}"),
        };
        close(&format!("{id}: {name}"), tensor.unwrap_or_else(|| panic!("{id}: no {name}")), &want(name))?;
    }
    Ok(())
}

#[test]
fn towers_equal_transformers() {
    let manifest: Json = serde_json::from_slice(&std::fs::read(root().join("manifest.json")).unwrap()).unwrap();
    let (mut wrong, mut count) = (Vec::new(), 0);
    for json in manifest["models"].as_array().unwrap() {
        if !json["kind"].as_str().is_some_and(|kind| ["vision", "imageclass", "pair"].contains(&kind)) {
            continue;
        }
        count += 1;
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(json))) {
            Ok(Ok(())) => {}
            Ok(Err(e)) => wrong.push(format!("{}: {e}", json["id"])),
            Err(panic) => wrong.push(panic.downcast_ref::<String>().cloned().unwrap_or_default().chars().take(300).collect()),
        }
    }
    assert!(wrong.is_empty() && count >= 4, "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
}
