//! `embed`, `score` and `transcribe` with encoders and Whisper, as a user or a script sees them; models are those of the library's vectors, with a
//! tokenizer whose word `wN` is token N.

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tensorlogic::models::inference::{Inputs, Padding, Pooling};
use tensorlogic::models::{Embedder, Encoder, ImageProcessor, ImageTextModel, RgbImage, VisionTower, Weights};
use tensorlogic::{Device, Tensor};

/// A model's folder of this test's own, which goes with it.
struct Folder(PathBuf);

impl Folder {
    /// A copy of `model` with a tokenizer of the form of BERT.
    fn new(model: &str, name: &str) -> Folder {
        let folder = Folder(std::env::temp_dir().join(format!("tl-encoders-{}-{name}", std::process::id())));
        std::fs::create_dir_all(&folder.0).unwrap();
        for file in ["config.json", "model.safetensors"] {
            std::fs::copy(vectors().join("models2").join(model).join(file), folder.0.join(file)).unwrap();
        }
        let piece = |kind: u8, name: &str| json!({ "SpecialToken": { "id": name, "type_id": kind } });
        let text = |kind: u8, name: &str| json!({ "Sequence": { "id": name, "type_id": kind } });
        let special = |id: u32, name: &str| json!({ "id": name, "ids": [id], "tokens": [name] });
        let vocab: serde_json::Map<String, Value> = (0..320).map(|i| (format!("w{i}"), i.into())).collect();
        folder.write(
            "tokenizer.json",
            &json!({ "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": { "type": "WhitespaceSplit" }, "decoder": null,
                "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "w9" },
                "post_processor": { "type": "TemplateProcessing",
                    "single": [piece(0, "w2"), text(0, "A"), piece(0, "w3")],
                    "pair": [piece(0, "w2"), text(0, "A"), piece(0, "w3"), text(1, "B"), piece(1, "w3")],
                    "special_tokens": { "w2": special(2, "w2"), "w3": special(3, "w3") } } }),
        );
        folder
    }

    fn write(&self, name: &str, value: &Value) {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, value.to_string()).unwrap();
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    fn weights(&self) -> Weights {
        Weights::open(&self.0, &Device::cpu()).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn vectors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors/encoders")
}

/// Runs `tl` without a network; compares the exit code and words of stderr, and gives stdout.
#[track_caller]
fn check(args: &[&str], code: i32, err: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tl"));
    command.args(args).env("TL_DEVICE", "cpu").env("TL_OFFLINE", "1").stdin(Stdio::null());
    let output = command.output().unwrap();
    let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(code), "{args:?}: stdout {stdout:?}\nstderr {stderr}");
    assert!(stderr.contains(err) && !stderr.contains("panicked"), "{args:?}: stderr {stderr}");
    stdout
}

#[track_caller]
fn json_of(args: &[&str]) -> Value {
    serde_json::from_str(&check(&[args, &["--json"]].concat(), 0, "")).unwrap()
}

#[track_caller]
fn near(got: &Value, want: &[f32]) {
    let got: Vec<f32> = got.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect();
    assert!(got.len() == want.len() && got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-5), "{got:?} {want:?}");
}

#[test]
fn embed_follows_the_files_of_sentence_transformers() {
    let folder = Folder::new("bert-odd", "embed");
    let module = |n: u8, path: &str, kind: &str| json!({ "idx": n, "name": n.to_string(), "path": path, "type": format!("sentence_transformers.models.{kind}") });
    folder.write(
        "modules.json",
        &json!([module(0, "", "Transformer"), module(1, "1_Pooling", "Pooling"), module(2, "2_Normalize", "Normalize")]),
    );
    folder.write(
        "1_Pooling/config.json",
        &json!({ "word_embedding_dimension": 48, "pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false }),
    );
    folder.write("config_sentence_transformers.json", &json!({ "prompts": { "query": "w50 w51 ", "passage": "" } }));
    folder.write("sentence_bert_config.json", &json!({ "max_seq_length": 8, "do_lower_case": false }));

    let embedder = Embedder::open(&folder.weights(), None).unwrap();
    assert_eq!((embedder.pooling(), embedder.normalizes(), embedder.max_tokens()), (&[Pooling::Cls][..], true, 8));
    let vector = |ids: &[u32]| embedder.embed(&Inputs::padded(&[ids], Padding::Right).unwrap()).unwrap().to_vec().unwrap();
    let out = json_of(&["embed", "-m", folder.path(), "w5 w6 w7", "w8"]);
    assert_eq!((&out["pooling"], &out["normalized"], &out["width"]), (&"cls".into(), &true.into(), &48.into()));
    near(&out["texts"][0]["embedding"], &vector(&[2, 5, 6, 7, 3]));
    near(&out["texts"][1]["embedding"], &vector(&[2, 8, 3]));
    let query = json_of(&["embed", "-m", folder.path(), "--prompt-name", "query", "w5"]);
    near(&query["texts"][0]["embedding"], &vector(&[2, 50, 51, 5, 3]));
    near(&json_of(&["embed", "-m", folder.path(), "--prompt", "w50 w51 ", "w5"])["texts"][0]["embedding"], &vector(&[2, 50, 51, 5, 3]));
    // What a longer text has behind the eighth token is left out.
    check(&["embed", "-m", folder.path(), "w5 w6 w7 w8 w10 w11 w12 w13"], 0, "1 of 1 texts are longer than the 8 tokens");
    let cut = json_of(&["embed", "-m", folder.path(), "w5 w6 w7 w8 w10 w11 w12 w13"]);
    near(&cut["texts"][0]["embedding"], &vector(&[2, 5, 6, 7, 8, 10, 11, 3]));
    // Flags go before files.
    let mean = json_of(&["embed", "-m", folder.path(), "--pooling", "mean", "w5"]);
    near(&mean["texts"][0]["embedding"], &{
        let embedder = Embedder::open(&folder.weights(), None).unwrap().with_pooling(Pooling::Mean);
        embedder.embed(&Inputs::padded(&[vec![2, 5, 3]], Padding::Right).unwrap()).unwrap().to_vec().unwrap()
    });
    assert_eq!(json_of(&["embed", "-m", folder.path(), "--tokens", "w5"])["texts"][0]["tokens"].as_array().unwrap().len(), 3);
    check(&["embed", "-m", folder.path(), "--prompt-name", "other", "w5"], 2, "this model has query, passage");
    check(&["score", "-m", folder.path(), "w5"], 1, "it gives vectors (`tl embed`)");

    folder.write("1_Pooling/config.json", &json!({ "pooling_mode_cls_token": true, "include_prompt": false }));
    check(&["embed", "-m", folder.path(), "w5"], 1, "`include_prompt` is false");
    folder.write("modules.json", &json!([module(0, "", "Transformer"), module(1, "1_CNN", "CNN")]));
    check(&["embed", "-m", folder.path(), "w5"], 1, "CNN");
}

#[test]
fn score_ranks_texts_for_a_question() {
    let folder = Folder::new("xlm-roberta-rank", "score");
    let encoder = Encoder::load(&folder.weights(), None).unwrap();
    let logit = |ids: &[u32]| encoder.run(&Inputs::padded(&[ids], Padding::Right).unwrap()).unwrap().logits.unwrap().to_vec().unwrap()[0];
    let out = json_of(&["score", "-m", folder.path(), "-p", "w5 w6", "w7 w8 w10", "w11"]);
    for (text, ids) in [(0, &[2, 5, 6, 3, 7, 8, 10, 3][..]), (1, &[2, 5, 6, 3, 11, 3])] {
        let want = logit(ids);
        near(&out["texts"][text]["logits"], &[want]);
        near(&out["texts"][text]["scores"], &[1.0 / (1.0 + (-want).exp())]);
    }
    let line = check(&["score", "-m", folder.path(), "w5 w6"], 0, "1 texts, 4 tokens");
    let want = 1.0 / (1.0 + (-logit(&[2, 5, 6, 3])).exp());
    assert!((line.split(' ').next().unwrap().parse::<f32>().unwrap() - want).abs() < 1e-5, "{line}");
    // What sentence-transformers says of the function.
    let mut config: Value = serde_json::from_slice(&std::fs::read(folder.0.join("config.json")).unwrap()).unwrap();
    config["sentence_transformers"] = json!({ "activation_fn": "torch.nn.modules.linear.Identity", "version": "4.1.0" });
    folder.write("config.json", &config);
    near(&json_of(&["score", "-m", folder.path(), "w5 w6"])["texts"][0]["scores"], &[logit(&[2, 5, 6, 3])]);
}

#[test]
fn second_texts_are_of_the_second_kind() {
    let folder = Folder::new("bert-odd", "kinds");
    let mut config: Value = serde_json::from_slice(&std::fs::read(folder.0.join("config.json")).unwrap()).unwrap();
    config["architectures"] = json!(["BertForSequenceClassification"]);
    config["id2label"] = json!({ "0": "no", "1": "yes" });
    folder.write("config.json", &config);
    // A classifier of two of the pooler's components.
    let weights = folder.weights();
    let mut tensors: std::collections::BTreeMap<String, Tensor> =
        weights.stored_names().into_iter().map(|n| (n.clone(), weights.any(&n).unwrap())).collect();
    let rows: Vec<f32> = (0..96).map(|i| if i == 3 || i == 48 + 5 { 1.0 } else { 0.0 }).collect();
    tensors.insert("classifier.weight".into(), Tensor::from_vec(rows, &[2, 48], &Device::cpu()).unwrap());
    tensors.insert("classifier.bias".into(), Tensor::from_vec(vec![0.5f32, -0.5], &[2], &Device::cpu()).unwrap());
    let mut bytes = Vec::new();
    tensorlogic::io::write_safetensors(&tensors, &[], |part: &[u8]| {
        bytes.extend_from_slice(part);
        Ok(())
    })
    .unwrap();
    drop((tensors, weights));
    std::fs::write(folder.0.join("model.safetensors"), bytes).unwrap();

    let encoder = Encoder::load(&folder.weights(), None).unwrap();
    let kinds = Tensor::from_vec(vec![0i32, 0, 0, 1, 1], &[1, 5], &Device::cpu()).unwrap();
    let outputs = encoder.run(&Inputs::padded(&[vec![2, 5, 3, 7, 3]], Padding::Right).unwrap().token_type_ids(&kinds)).unwrap();
    let pooler = outputs.pooler.unwrap().to_vec().unwrap();
    let out = json_of(&["score", "-m", folder.path(), "-p", "w5", "w7"]);
    near(&out["texts"][0]["logits"], &[pooler[3] + 0.5, pooler[5] - 0.5]);
    assert_eq!(out["labels"], json!(["no", "yes"]));
    assert!(check(&["score", "-m", folder.path(), "w7"], 0, "").starts_with("no "));
}

#[test]
fn transcribe_writes_what_transformers_writes() {
    let folder = Folder::new("whisper-base", "speech");
    let expected: Value = serde_json::from_slice(&std::fs::read(vectors().join("transcript.json")).unwrap()).unwrap();
    folder.write("generation_config.json", &expected["config"]);
    let sound = vectors().join("sound.wav");
    let args = ["transcribe", "-m", folder.path(), sound.to_str().unwrap()];
    let out = json_of(&args);
    let tokens: Vec<&Value> = out["parts"].as_array().unwrap().iter().map(|p| &p["tokens"]).collect();
    assert_eq!(tokens, expected["tokens"].as_array().unwrap().iter().collect::<Vec<_>>());
    assert_eq!((&out["language"], &out["seconds"]), (&expected["language"], &1.0.into()));
    assert!(check(&args, 0, "1.0 s of sound").lines().next().unwrap().starts_with("w295 w295"));
    check(&[&args[..], &["--language", "it"]].concat(), 1, "supported: en, de, fr");
    check(&["transcribe", "-m", folder.path(), folder.0.join("config.json").to_str().unwrap()], 1, "not a WAV file");
}

/// The folder of a tower's model with these settings of its images.
fn tower(model: &str, name: &str, settings: Value) -> Folder {
    let folder = Folder::new(model, name);
    folder.write("preprocessor_config.json", &settings);
    folder
}

fn picture(name: &str) -> String {
    vectors().join("../images").join(name).to_str().unwrap().into()
}

#[test]
fn embed_gives_the_vectors_of_images() {
    let settings =
        json!({ "image_processor_type": "BitImageProcessor", "size": { "shortest_edge": 36 }, "crop_size": { "height": 32, "width": 32 } });
    let folder = tower("dinov2-base", "dinov2", settings);
    let files = ["wide.png", "grey.png", "photo-420.jpg"].map(picture);
    let images = files.each_ref().map(|f| RgbImage::open(f).unwrap());
    let pixels = ImageProcessor::open(&folder.0).unwrap().pixels(&images, &Device::cpu()).unwrap();
    let want = VisionTower::load(&folder.weights(), None).unwrap().run(&pixels).unwrap();
    let pooled = want.pooled.unwrap().to_vec2::<f32>().unwrap();
    let run = |more: &[&str]| json_of(&[&["embed", "-m", folder.path(), "--image", &files[0], &files[1], &files[2]], more].concat());
    let out = run(&["--batch", "2"]);
    assert_eq!((&out["width"], &out["images"][1]["image"], &out["pooling"]), (&48.into(), &files[1].as_str().into(), &Value::Null));
    (0..3).for_each(|n| near(&out["images"][n]["embedding"], &pooled[n]));
    // One number after the other without --json, of length 1, and the mean of the states.
    let lines = check(&["embed", "-m", folder.path(), "--normalize", "--image", &files[0], &files[1]], 0, "2 images");
    let lengths = lines.lines().map(|l| l.split(' ').map(|n| n.parse::<f32>().unwrap().powi(2)).sum::<f32>());
    assert_eq!(lengths.filter(|l| (l - 1.0).abs() < 1e-5).count(), 2, "{lines}");
    let mean = want.hidden_states.mean(&[1], false).unwrap().to_vec2::<f32>().unwrap();
    let out = run(&["--pooling", "mean"]);
    (0..3).for_each(|n| near(&out["images"][n]["embedding"], &mean[n]));
    assert_eq!(out["pooling"], "mean");

    let clip = tower("clip-base", "clip", json!({ "image_processor_type": "CLIPImageProcessor", "size": 32, "crop_size": 32 }));
    let pixels = ImageProcessor::open(&clip.0).unwrap().pixels(&images[..1], &Device::cpu()).unwrap();
    let want = ImageTextModel::load(&clip.weights(), None).unwrap().embed_images(&pixels).unwrap().to_vec().unwrap();
    near(&json_of(&["embed", "-m", clip.path(), "--image", &files[0]])["images"][0]["embedding"], &want);
}

#[test]
fn images_that_cannot_be_read_are_named() {
    let size = json!({ "image_processor_type": "ViTImageProcessor", "size": 24 });
    let folder = tower("vit-class", "bad-images", size);
    let run = |files: &[&str], code: i32, err: &str| {
        check(&[&["embed", "-m", folder.path(), "--pooling", "cls", "--image"], files].concat(), code, err);
    };
    let (good, cut) = (picture("grey.png"), folder.0.join("cut.jpg"));
    let whole = std::fs::read(picture("photo-420.jpg")).unwrap();
    std::fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    run(&[&good], 0, "1 images");
    run(&[&good, cut.to_str().unwrap()], 1, "cut.jpg: truncated file");
    run(&[folder.0.join("config.json").to_str().unwrap()], 1, "config.json: neither PNG nor JPEG");
    run(&["missing.png"], 1, "missing.png");
    run(&[&picture("four-inks.jpg")], 1, "four-inks.jpg: a JPEG file of four inks");
    // This tower has no pooled vector, and reads no texts.
    check(&["embed", "-m", folder.path(), "--image", &good], 2, "--pooling cls or mean");
    check(&["embed", "-m", folder.path(), "w5"], 2, "give image files with --image");
    check(&["embed", "-m", folder.path(), "--image", &good, "--prompt", "w5"], 2, "--prompt");
    let texts = Folder::new("bert-odd", "no-tower");
    check(&["embed", "-m", texts.path(), "--image", &good], 1, "it is not an image tower");
    folder.write("preprocessor_config.json", &json!({ "image_processor_type": "ViTImageProcessor", "do_sharpen": true }));
    run(&[&good], 1, "preprocessor_config.json: `do_sharpen` is true");
    std::fs::remove_file(folder.0.join("preprocessor_config.json")).unwrap();
    run(&[&good], 1, "preprocessor_config.json");
    // Images of several sizes, as these settings leave them.
    let any =
        tower("dinov2-base", "sizes", json!({ "image_processor_type": "BitImageProcessor", "do_resize": false, "do_center_crop": false }));
    check(&["embed", "-m", any.path(), "--image", &good, &picture("wide.png")], 1, "image 1 becomes 47 × 71 pixels");
    check(&["embed", "-m", any.path(), "--batch", "1", "--image", &good, &picture("wide.png")], 0, "2 images");
}
