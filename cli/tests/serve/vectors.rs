//! `/v1/embeddings`, beside `tl embed`.

use crate::server::{Server, TINY, generated};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What `tl embed` gives, of unit length.
fn embedded(model: &str, texts: &[&str], more: &[&str]) -> Vec<Vec<f32>> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tl"));
    command.args(["embed", "-m", model, "--json", "--quiet", "--normalize"]).args(more).args(texts);
    let output = command.env("TL_DEVICE", "cpu").env("TL_OFFLINE", "1").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    value["texts"].as_array().unwrap().iter().map(|t| numbers(&t["embedding"])).collect()
}

fn numbers(v: &Value) -> Vec<f32> {
    v.as_array().unwrap_or_else(|| panic!("{v}")).iter().map(|v| v.as_f64().unwrap() as f32).collect()
}

#[track_caller]
fn close(got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len());
    let worst = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-5, "{worst}");
}

/// The numbers of a base64 text.
fn decoded(text: &str) -> Vec<f32> {
    let letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits: Vec<bool> =
        text.trim_end_matches('=').chars().flat_map(|c| (0..6).rev().map(move |b| letters.find(c).unwrap() >> b & 1 == 1)).collect();
    let bytes: Vec<u8> = bits.chunks_exact(8).map(|b| b.iter().fold(0, |n, &bit| n << 1 | u8::from(bit))).collect();
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

#[test]
fn vectors_of_a_decoder_are_those_of_embed() {
    let server = Server::start(&[]);
    let texts = ["ROMEO:", "to be or not to be", "a"];
    let want = embedded(TINY, &texts, &[]);
    let reply = server.post("/v1/embeddings", &json!({ "input": texts, "model": "tiny" })).json();
    assert_eq!((&reply["object"], &reply["model"]), (&json!("list"), &json!("tiny")), "{reply}");
    for (i, want) in want.iter().enumerate() {
        assert_eq!(reply["data"][i]["index"], i);
        close(&numbers(&reply["data"][i]["embedding"]), want);
    }
    let used = &reply["usage"];
    assert!(used["prompt_tokens"].as_u64().unwrap() > 6 && used["prompt_tokens"] == used["total_tokens"], "{used}");

    // A text alone, its tokens, and several of these are the same.
    let one = |body: Value| server.post("/v1/embeddings", &body).json()["data"][0]["embedding"].clone();
    close(&numbers(&one(json!({ "input": texts[0] }))), &want[0]);
    let tokens = server.post("/tokenize", &json!({ "content": texts[0], "add_special": true })).json()["tokens"].clone();
    close(&numbers(&one(json!({ "input": tokens }))), &want[0]);
    close(&numbers(&one(json!({ "input": [tokens, [1, 2]] }))), &want[0]);
    let packed = one(json!({ "input": texts[1], "encoding_format": "base64" }));
    close(&decoded(packed.as_str().unwrap()), &want[1]);
    // The first components, of unit length again.
    let short = numbers(&one(json!({ "input": texts[1], "dimensions": 8 })));
    let length = want[1][..8].iter().map(|v| v * v).sum::<f32>().sqrt();
    close(&short, &want[1][..8].iter().map(|v| v / length).collect::<Vec<_>>());

    // Answers are written meanwhile, and stay what they are.
    let plain = generated(TINY, "ROMEO:", 40, true);
    std::thread::scope(|s| {
        let many = s.spawn(|| server.post("/v1/embeddings", &json!({ "input": vec!["to be or not to be"; 300] })).json());
        for _ in 0..3 {
            assert_eq!(server.complete(&json!({ "prompt": "ROMEO:", "max_tokens": 40, "temperature": 0 })), plain);
        }
        let many = many.join().unwrap();
        close(&numbers(&many["data"][299]["embedding"]), &want[1]);
    });
    // As many wait as may wait.
    let narrow = Server::start(&["--waiting", "1"]);
    let statuses: Vec<u16> = std::thread::scope(|s| {
        let one = || narrow.post("/v1/embeddings", &json!({ "input": vec!["to be or not to be"; 200] })).status;
        let all: Vec<_> = (0..24).map(|_| s.spawn(one)).collect();
        all.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert!(statuses.iter().all(|s| [200, 429].contains(s)) && statuses.contains(&200) && statuses.contains(&429), "{statuses:?}");
    assert_eq!(narrow.post("/v1/embeddings", &json!({ "input": "a" })).status, 200);
    let pooled = Server::start(&["--pooling", "last"]);
    let last = pooled.post("/v1/embeddings", &json!({ "input": texts[1] })).json();
    close(&numbers(&last["data"][0]["embedding"]), &embedded(TINY, &texts[1..2], &["--pooling", "last"])[0]);

    let long = "a".repeat(10_000);
    let cases = [
        (json!({}), "input", "missing"),
        (json!({ "input": "" }), "input", "empty"),
        (json!({ "input": [] }), "input", "empty"),
        (json!({ "input": ["a", ""] }), "input[1]", "empty"),
        (json!({ "input": ["a", 1.5] }), "input[1]", "expected a string"),
        (json!({ "input": [1, 100000] }), "input", "token 100000"),
        (json!({ "input": { "a": 1 } }), "input", "expected a string"),
        (json!({ "input": vec!["a"; 2049] }), "input", "at most 2048"),
        (json!({ "input": long }), "input", "tokens; the model reads"),
        (json!({ "input": "a", "dimensions": 0 }), "dimensions", "expected 1"),
        (json!({ "input": "a", "dimensions": 1_000_000 }), "dimensions", "expected 1"),
        (json!({ "input": "a", "encoding_format": "int8" }), "encoding_format", "base64"),
    ];
    for (body, param, words) in cases {
        let reply = server.post("/v1/embeddings", &body);
        let error = &reply.json()["error"];
        let told = (reply.status, error["param"].as_str(), error["message"].as_str().unwrap().contains(words));
        assert_eq!(told, (400, Some(param), true), "{error}");
    }
}

/// A BERT of the library's vectors with a tokenizer whose word `wN` is token N; the folder goes with it.
pub struct Bert(PathBuf);

impl Bert {
    pub fn new(name: &str) -> Bert {
        let folder = Bert(std::env::temp_dir().join(format!("tl-serve-bert-{}-{name}", std::process::id())));
        std::fs::create_dir_all(&folder.0).unwrap();
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors/encoders/models2/distilbert-base");
        for file in ["config.json", "model.safetensors"] {
            std::fs::copy(model.join(file), folder.0.join(file)).unwrap();
        }
        let special = |id: u32, name: &str| json!({ "id": name, "ids": [id], "tokens": [name] });
        let vocab: serde_json::Map<String, Value> = (0..320).map(|i| (format!("w{i}"), i.into())).collect();
        let tokenizer = json!({ "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": { "type": "WhitespaceSplit" },
            "decoder": null, "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "w9" },
            "post_processor": { "type": "TemplateProcessing",
                "single": [{ "SpecialToken": { "id": "w2", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } },
                    { "SpecialToken": { "id": "w3", "type_id": 0 } }],
                "pair": [], "special_tokens": { "w2": special(2, "w2"), "w3": special(3, "w3") } } });
        std::fs::write(folder.0.join("tokenizer.json"), tokenizer.to_string()).unwrap();
        folder
    }

    pub fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Bert {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn vectors_of_an_encoder_are_those_of_embed() {
    let bert = Bert::new("vectors");
    let server = Server::start_with(bert.path(), &["--alias", "bert"]);
    let texts = ["w5 w6 w7", "w8", "w10 w11 w12 w13"];
    let want = embedded(bert.path(), &texts, &[]);
    let reply = server.post("/v1/embeddings", &json!({ "input": texts, "model": "bert" })).json();
    for (i, want) in want.iter().enumerate() {
        close(&numbers(&reply["data"][i]["embedding"]), want);
    }
    assert_eq!(reply["usage"]["prompt_tokens"], 8 + 6);
    let tokens = server.post("/v1/embeddings", &json!({ "input": [[2, 5, 6, 7, 3]] })).json();
    close(&numbers(&tokens["data"][0]["embedding"]), &want[0]);
    let reply = server.post("/v1/chat/completions", &json!({ "messages": [{ "role": "user", "content": "w5" }] }));
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (400, &json!("model_not_supported")));
    assert_eq!((server.get("/health").status, server.get("/props").status, server.get("/v1/models/bert").status), (200, 200, 200));
}
