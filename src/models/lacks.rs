//! What a model of an unknown architecture has that the nearest known one lacks.

use crate::device::Device;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::models::architectures::{ARCHITECTURES, Architecture, encoders, find, seq2seq, towers};
use crate::models::decoder::{Decoder, Description};
use crate::models::settings::Settings;
use crate::models::weights::{Tensors, Weights};
use std::collections::BTreeMap;

/// What stands between a model file and this library, for an architecture that it does not describe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lacks {
    /// The architecture that the file names.
    pub architecture: String,
    /// The known architecture that explains most of the file.
    pub nearest: &'static str,
    /// Why the nearest one cannot read the file: a setting or tensor that is missing or has another value or shape; `None` where it can, so that what
    /// is left over is all that it lacks.
    pub refusal: Option<String>,
    /// Settings that the nearest one does not know, with their values, such as `` `mixing_rate` is 0.5 ``.
    pub settings: Vec<String>,
    /// Tensors that have no place in it, with `*` for numbers: name, how many there are, and the shape of the first.
    pub tensors: Vec<(String, usize, Vec<usize>)>,
}

/// How many known architectures are compared by tensors.
const MAX_COMPARED: usize = 6;
/// How much worse a missing part is than one that is left over.
const REFUSAL_COST: usize = 8;

/// What the model that `weights` hold lacks to be read, by the known architecture that is nearest to it; `None` for an architecture that is known.
/// Nothing is loaded.
///
/// # Errors
/// Where the file does not name its architecture, or has quantized layers of a kind that is not implemented.
///
/// ```
/// use tensorlogic::io::{Gguf, GgufWriter};
/// use tensorlogic::models::{Weights, lacks};
/// use tensorlogic::prelude::*;
///
/// let mut file = GgufWriter::new();
/// file.set("general.architecture", "swirl").set("swirl.block_count", 1u32).set("swirl.swirl_rate", 3u32);
/// let file = Gguf::from_bytes(file.to_bytes()?)?;
/// let lacks = lacks(Weights::from_gguf(file, &Device::cpu()))?.expect("no architecture has this name");
/// println!("{} is nearest to {}", lacks.architecture, lacks.nearest);
/// assert_eq!(lacks.settings, ["`swirl.swirl_rate` is 3"]);
/// # Ok::<(), TensorError>(())
/// ```
pub fn lacks(weights: Weights) -> TensorResult<Option<Lacks>> {
    let name = weights.architecture()?.to_string();
    let known = find(&name).is_some() || encoders::find(&name).is_some() || seq2seq::find(&name).is_some();
    if known || towers::find(&name).is_some() || towers::PAIRS.iter().any(|a| a.name == name) {
        return Ok(None);
    }
    let weights = weights.on(&Device::cpu().dry_run());
    let mut described = Vec::new();
    for known in ARCHITECTURES {
        let settings = Settings::new(&weights)?;
        let description = known.described(&settings);
        let cost = settings.left().len() + if description.is_err() { REFUSAL_COST } else { 0 };
        described.push((cost, known, description, settings));
    }
    described.sort_by_key(|(cost, ..)| *cost);
    let mut best: Option<(usize, Lacks)> = None;
    for (_, known, description, settings) in described.into_iter().take(MAX_COMPARED) {
        let (cost, found) = compared(&weights, known, description, &settings, &name);
        if best.as_ref().is_none_or(|(least, _)| cost < *least) {
            best = Some((cost, found));
        }
    }
    Ok(best.map(|(_, lacks)| lacks))
}

/// What the file of architecture `name` has that a known one lacks, and how much that is.
fn compared(
    weights: &Weights,
    known: &Architecture,
    description: TensorResult<Description>,
    asked: &Settings<'_>,
    name: &str,
) -> (usize, Lacks) {
    let text = |e: TensorError| {
        let text = e.to_string();
        text.split_once(&format!("{}: ", weights.file())).map_or(text.clone(), |(_, rest)| rest.to_string())
    };
    let (refusal, left) = match description {
        Err(e) => (Some(text(e)), weights.stored_names()),
        Ok(d) => {
            let (names, unused, left_out) = (d.names.clone(), d.unused, d.left_out.clone());
            let w = Tensors::new(weights, asked, &names, DType::F32);
            let refusal = Decoder::read(d, &w, DType::F32).err().map(text);
            (refusal, w.left(unused, &left_out))
        }
    };
    // Some settings are asked for while tensors are read.
    let settings = asked.left();
    let mut tensors: BTreeMap<String, (usize, String)> = BTreeMap::new();
    for stored in left {
        tensors.entry(pattern(&stored)).or_insert((0, stored)).0 += 1;
    }
    let shape = |name: &str| weights.any(name).map(|t| t.dims().to_vec()).unwrap_or_default();
    let tensors: Vec<_> = tensors.into_iter().map(|(p, (count, first))| (p, count, shape(&first))).collect();
    let cost = settings.len() + tensors.len() + if refusal.is_some() { REFUSAL_COST } else { 0 };
    (cost, Lacks { architecture: name.into(), nearest: known.names[0], refusal, settings, tensors })
}

/// The name with `*` for its numbers.
fn pattern(name: &str) -> String {
    let part = |p: &str| if !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()) { "*".to_string() } else { p.to_string() };
    name.split('.').map(part).collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// A copy of a folder of the tests with another `config.json` and one tensor more.
    fn changed(change: impl FnOnce(&mut serde_json::Value)) -> std::path::PathBuf {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/models2/qwen3-window");
        let to = std::env::temp_dir().join(format!("tl-lacks-{}-{:?}", std::process::id(), std::thread::current().id()));
        std::fs::create_dir_all(&to).unwrap();
        let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(from.join("config.json")).unwrap()).unwrap();
        change(&mut config);
        std::fs::write(to.join("config.json"), config.to_string()).unwrap();
        std::fs::copy(from.join("model.safetensors"), to.join("model.safetensors")).unwrap();
        to
    }

    #[test]
    fn an_unknown_architecture_is_explained_by_the_nearest() {
        let folder = changed(|c| {
            c["model_type"] = "qwen9".into();
            c["mixing_rate"] = 0.5.into();
        });
        let found = lacks(Weights::open(&folder, &Device::cpu()).unwrap()).unwrap().unwrap();
        assert_eq!((found.architecture.as_str(), found.refusal), ("qwen9", None), "{:?}", found.nearest);
        assert_eq!(found.settings, ["`mixing_rate` is 0.5"]);
        assert_eq!(found.tensors, []);
        std::fs::remove_dir_all(&folder).unwrap();
        let folder = changed(|c| c["model_type"] = "qwen3".into());
        assert_eq!(lacks(Weights::open(&folder, &Device::cpu()).unwrap()).unwrap(), None);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn tensors_without_a_place_are_named() {
        let mut w = crate::io::GgufWriter::new();
        w.set("general.architecture", "swirl").set("swirl.block_count", 1u32).set("swirl.embedding_length", 32u32);
        w.set("swirl.feed_forward_length", 64u32).set("swirl.context_length", 64u32).set("swirl.attention.head_count", 4u32);
        w.set("swirl.attention.layer_norm_rms_epsilon", 1e-5f32).set("swirl.swirl_rate", 3u32);
        let mut tensor = |name: &str, shape: &[usize]| {
            w.tensor(name, DType::F32, shape, vec![0u8; 4 * shape.iter().product::<usize>()]).unwrap();
        };
        tensor("token_embd.weight", &[8, 32]);
        tensor("output.weight", &[8, 32]);
        tensor("output_norm.weight", &[32]);
        for (name, shape) in [("attn_q", [32, 32]), ("attn_k", [32, 32]), ("attn_v", [32, 32]), ("attn_output", [32, 32])] {
            tensor(&format!("blk.0.{name}.weight"), &shape);
        }
        for (name, shape) in [("ffn_gate", [64, 32]), ("ffn_up", [64, 32]), ("ffn_down", [32, 64])] {
            tensor(&format!("blk.0.{name}.weight"), &shape);
        }
        tensor("blk.0.attn_norm.weight", &[32]);
        tensor("blk.0.ffn_norm.weight", &[32]);
        tensor("blk.0.swirl.weight", &[3, 32]);
        let gguf = crate::io::Gguf::from_bytes(w.to_bytes().unwrap()).unwrap();
        let found = lacks(Weights::from_gguf(gguf, &Device::cpu())).unwrap().unwrap();
        assert_eq!((found.nearest, found.refusal), ("llama", None));
        assert_eq!(found.settings, ["`swirl.swirl_rate` is 3"]);
        assert_eq!(found.tensors, [("blk.*.swirl.weight".to_string(), 1, vec![3, 32])]);
    }
}
