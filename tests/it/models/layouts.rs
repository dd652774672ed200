//! Models of which the settings and the tensors' sizes lie here, and not the numbers: `tests/vectors/config_keys/layouts.json.gz`, from the folders of
//! `models2` that are not in `tests/vectors`. Their numbers are random, so that they have no references.

use super::model_settings::vectors;
use serde::Deserialize;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use tensorlogic::io::write_safetensors;
use tensorlogic::{DType, Device, Rng};

#[derive(Deserialize)]
pub(super) struct Layout {
    config: Json,
    tensors: BTreeMap<String, Vec<usize>>,
}

/// All layouts, by the names of their folders.
pub(super) fn layouts() -> BTreeMap<String, Layout> {
    let (mut text, file) = (String::new(), std::fs::File::open(vectors("config_keys/layouts.json.gz")).unwrap());
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).unwrap();
    serde_json::from_str(&text).unwrap()
}

impl Layout {
    /// Writes a folder of random numbers.
    pub fn write(&self, folder: &Path) {
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(folder.join("config.json"), self.config.to_string()).unwrap();
        let (mut rng, mut tensors) = (Rng::new(15), BTreeMap::new());
        for (name, shape) in &self.tensors {
            let random = rng.normal(shape, DType::F32, &Device::cpu()).unwrap();
            // Norms are near 1.
            let own = if shape.len() == 1 && !name.ends_with("bias") { random.mul(0.2).unwrap().add(1.0) } else { random.mul(0.15) };
            tensors.insert(name.clone(), own.unwrap());
        }
        let mut bytes = Vec::new();
        write_safetensors(&tensors, &[("format", "pt")], |part: &[u8]| {
            bytes.extend_from_slice(part);
            Ok(())
        })
        .unwrap();
        std::fs::write(folder.join("model.safetensors"), bytes).unwrap();
    }
}
