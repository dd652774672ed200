//! Encoders, embeddings and heads against transformers in f64.
//!
//! Folders lie in `tests/vectors/encoders`; `TL_VECTORS=FOLDER` takes a larger set of the same layout.

use crate::common::{assert_close, gpu};
use serde_json::Value as Json;
use std::path::{Path, PathBuf};
use tensorlogic::io::SafeTensors;
use tensorlogic::models::inference::{Inputs, Padding, Pooling};
use tensorlogic::models::{Embedder, Encoder, Weights};
use tensorlogic::{DType, Device, Tensor, TensorResult};

fn root() -> PathBuf {
    let given = std::env::var_os("TL_VECTORS").map(PathBuf::from);
    given.unwrap_or_else(|| Path::new(env!("TENSORLOGIC_ROOT")).join("tests/vectors/encoders")).join("models2")
}

/// A model of the manifest, with its folder and its expected results.
struct Case {
    json: Json,
    folder: PathBuf,
    expected: SafeTensors,
}

impl Case {
    /// Models of these kinds.
    fn all(kinds: &[&str]) -> Vec<Case> {
        let mut manifest: Json = serde_json::from_slice(&std::fs::read(root().join("manifest.json")).unwrap()).unwrap();
        let models = manifest["models"].as_array_mut().unwrap().drain(..);
        let of_kind = models.filter(|m| m["kind"].as_str().is_some_and(|kind| kinds.contains(&kind)));
        let case = |json: Json| {
            let folder = root().join(json["dir"].as_str().unwrap());
            let expected = SafeTensors::open(folder.join(json["expected"].as_str().unwrap())).unwrap();
            Case { json, folder, expected }
        };
        of_kind.map(case).collect()
    }

    fn id(&self) -> &str {
        self.json["id"].as_str().unwrap()
    }

    fn weights(&self, device: &Device) -> TensorResult<Weights> {
        Weights::open(&self.folder, device)
    }

    fn numbers(&self, name: &str) -> Vec<f64> {
        let bytes = self.expected.bytes_of(self.expected.tensor(name).unwrap());
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()) as f64).collect()
    }

    /// An input of integers.
    fn input(&self, name: &str) -> Option<Tensor> {
        let info = self.expected.tensor(&format!("in.{name}")).ok()?;
        let bytes = self.expected.bytes_of(info);
        let values = bytes.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as i32).collect();
        Some(Tensor::from_vec::<i32>(values, &info.shape, &Device::cpu()).unwrap())
    }

    fn inputs(&self) -> Inputs {
        let inputs = Inputs::tokens(&self.input("input_ids").unwrap()).attention_mask(&self.input("attention_mask").unwrap());
        self.input("token_type_ids").map_or(inputs.clone(), |types| inputs.token_type_ids(&types))
    }

    fn pooling(&self) -> Option<Pooling> {
        Some(match self.json["pooling"].as_str()? {
            "mean" => Pooling::Mean,
            "cls" => Pooling::Cls,
            "last" => Pooling::Last,
            other => panic!("{}: pooling {other}", self.id()),
        })
    }

    #[track_caller]
    fn close(&self, name: &str, got: &Tensor) {
        let tol = &self.json["tol"]["outputs"]["f32_compute"];
        let (rtol, atol) = (tol["rtol"].as_f64().unwrap(), tol["atol"].as_f64().unwrap());
        assert_close(&format!("{} {name}", self.id()), &got.to_vec().unwrap(), &self.numbers(name), rtol, atol);
    }

    /// Every result that the manifest has.
    fn check(&self, device: &Device) -> TensorResult<()> {
        let encoder = Encoder::load(&self.weights(device)?, Some(DType::F32))?;
        let outputs = encoder.run_keeping_layers(&self.inputs())?;
        for name in self.json["outputs"].as_array().unwrap().iter().filter_map(Json::as_str) {
            match (name, name.strip_prefix("hidden.")) {
                (_, Some(layer)) => {
                    let layers = outputs.layers.as_ref().unwrap();
                    self.close(name, &layers[layer.parse::<usize>().unwrap()].narrow(0, 0, 1)?);
                }
                ("last_hidden_state", _) => {
                    let mask = self.input("attention_mask").unwrap().cast(DType::F32)?.unsqueeze(-1)?;
                    self.close(name, &outputs.hidden_states.mul(&mask)?);
                }
                ("pooler_output", _) => self.close(name, outputs.pooler.as_ref().expect("a pooler")),
                ("logits", _) => {
                    let logits = outputs.logits.as_ref().expect("a head");
                    let (got, want) = (logits.to_vec()?, self.numbers(name));
                    // Logits of padding mean nothing.
                    let mask = self.input("attention_mask").unwrap().to_vec()?;
                    let per = if logits.rank() == 3 { logits.dims()[2] } else { logits.numel() };
                    let valid = |i: usize| logits.rank() != 3 || mask[i / per] == 1.0;
                    let kept = |(i, _): &(usize, f64)| valid(*i);
                    let want: Vec<f64> = want.into_iter().enumerate().filter(kept).map(|(_, v)| v).collect();
                    let got: Vec<f32> = got.into_iter().enumerate().filter(|(i, _)| valid(*i)).map(|(_, v)| v).collect();
                    assert_close(&format!("{} logits", self.id()), &got, &want, 1e-4, 2e-4);
                }
                ("pooled", _) => self.close(name, &outputs.pooled(self.pooling().unwrap())?),
                ("embedding", _) => {
                    let embedder = Embedder::open(&self.weights(device)?, Some(DType::F32))?;
                    let embedder = embedder.with_pooling(self.pooling().unwrap()).normalized(true);
                    self.close(name, &embedder.embed(&self.inputs())?);
                }
                (other, _) => panic!("{}: the result {other}", self.id()),
            }
        }
        Ok(())
    }
}

const TEXTS: [&str; 3] = ["text", "mlm", "rank"];

#[test]
fn encoders_equal_transformers() {
    let (all, mut wrong) = (Case::all(&TEXTS), Vec::new());
    assert!(all.len() >= 5, "{} encoders", all.len());
    for case in &all {
        let run = std::panic::AssertUnwindSafe(|| case.check(&Device::cpu()));
        match std::panic::catch_unwind(run) {
            Ok(Ok(())) => {}
            Ok(Err(e)) => wrong.push(format!("{}: {e}", case.id())),
            Err(panic) => wrong.push(panic.downcast_ref::<String>().cloned().unwrap_or_default().chars().take(300).collect()),
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), all.len(), wrong.join("\n"));
}

#[test]
fn encoders_on_the_gpu_agree() {
    let Some(gpu) = gpu() else { return };
    // Windows to either side; biases by distance; rotations behind norms of the sums; a head; norms of heads.
    let few = ["modernbert-base", "mpnet-base", "jina_embeddings_v3-odd", "xlm-roberta-rank", "embeddinggemma-odd"];
    for case in Case::all(&TEXTS).iter().filter(|case| few.contains(&case.id())) {
        case.check(&gpu).unwrap_or_else(|e| panic!("{}: {e}", case.id()));
    }
}

/// What `f32` sums in another order may differ by: relative to the largest number.
fn same(what: &str, got: &[f32], want: &[f32]) {
    let largest = want.iter().fold(0f32, |m, v| m.max(v.abs()));
    let off = got.iter().zip(want).fold(0f32, |m, (g, w)| m.max((g - w).abs()));
    assert!(got.len() == want.len() && off <= 1e-4 * largest, "{what}: off by {off} of {largest}");
}

#[test]
fn padding_changes_no_vector() -> TensorResult<()> {
    for case in Case::all(&TEXTS) {
        let embedder = Embedder::open(&case.weights(&Device::cpu())?, Some(DType::F32))?;
        let vocab = embedder.encoder().shape().vocab as u32;
        // No token that a model counts as padding.
        let row = |n: u32, seed: u32| (0..n).map(|i| 3 + (i * 37 + seed * 11) % (vocab - 3)).collect::<Vec<u32>>();
        let rows = [row(5, 1), row(17, 2), row(1, 3), row(11, 4)];
        let encoder = embedder.encoder();
        let alone = rows.iter().map(|row| encoder.run(&Inputs::padded(&[row], Padding::Right)?)).collect::<TensorResult<Vec<_>>>()?;
        for padding in [Padding::Right, Padding::Left] {
            let together = encoder.run(&Inputs::padded(&rows, padding)?)?;
            for pooling in [Pooling::Mean, Pooling::Cls, Pooling::Last, Pooling::Max, Pooling::MeanSqrtLength, Pooling::WeightedMean] {
                let alone = alone.iter().map(|outputs| outputs.pooled(pooling)?.to_vec()).collect::<TensorResult<Vec<_>>>()?.concat();
                let together = together.pooled(pooling)?.to_vec()?;
                same(&format!("{} {pooling:?} {padding:?}", case.id()), &together, &alone);
            }
        }
    }
    Ok(())
}

/// all-MiniLM-L6-v2 in the folder `TL_TEST_MINILM`, against sentence-transformers (`tests/vectors/encoders/minilm/make.py`).
#[test]
fn minilm_equals_sentence_transformers() -> TensorResult<()> {
    let folder = match std::env::var_os("TL_TEST_MINILM") {
        Some(folder) if !folder.is_empty() => PathBuf::from(folder),
        _ if std::env::var("TL_REQUIRE_MODEL").is_ok_and(|v| v == "1") => {
            panic!("no all-MiniLM-L6-v2: `scripts/minilm.sh` has to work here, or TL_TEST_MINILM to name its folder")
        }
        _ => return Ok(()),
    };
    let file: Json = serde_json::from_str(include_str!("../../vectors/encoders/minilm/expected.json")).unwrap();
    let rows = file["rows"].as_array().unwrap();
    let tokenizer = tensorlogic::text::Tokenizer::from_file(folder.join("tokenizer.json"))?;
    for device in [Some(Device::cpu()), gpu()].into_iter().flatten() {
        let embedder = Embedder::open(&Weights::open(&folder, &device)?, Some(DType::F32))?;
        assert_eq!((embedder.pooling(), embedder.normalizes(), embedder.max_tokens()), (&[Pooling::Mean][..], true, 256));
        let texts = rows.iter().map(|row| tokenizer.encode_up_to(row["text"].as_str().unwrap(), embedder.max_tokens()));
        let ids: Vec<Vec<u32>> = texts.map(|t| Ok(t?.0)).collect::<TensorResult<_>>()?;
        for (row, ids) in rows.iter().zip(&ids) {
            let want: Vec<u32> = row["ids"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect();
            assert_eq!(*ids, want, "{}", row["text"]);
        }
        let got = embedder.embed(&Inputs::padded(&ids, Padding::Right)?)?.to_vec()?;
        let want: Vec<f32> = rows.iter().flat_map(|r| r["embedding"].as_array().unwrap()).map(|v| v.as_f64().unwrap() as f32).collect();
        let off = got.iter().zip(&want).fold(0f32, |m, (g, w)| m.max((g - w).abs()));
        println!("{}: off by at most {off:.2e}", device.name());
        assert!(got.len() == want.len() && off < 1e-4, "{}: off by {off}", device.name());
    }
    Ok(())
}
