//! Tokenizers against ids and texts that Hugging Face's `tokenizers`, tiktoken and SentencePiece agree on.
#![cfg(feature = "text")]

mod text_support;

use std::sync::OnceLock;
use tensorlogic::text::Tokenizer;
use text_support::{Metadata, Value, vector};

struct Case {
    tokenizer: String,
    text: String,
    ids: Vec<u32>,
    ids_raw: Vec<u32>,
    decoded: String,
}

fn cases() -> &'static [Case] {
    static CASES: OnceLock<Vec<Case>> = OnceLock::new();
    CASES.get_or_init(|| {
        let lines = String::from_utf8(vector("tokenizer/vectors.jsonl")).unwrap();
        let ids = |v: &serde_json::Value| v.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        let read = |line: &str| {
            let row: serde_json::Value = serde_json::from_str(line).unwrap();
            let text = |key: &str| row[key].as_str().unwrap().to_string();
            Case {
                tokenizer: text("tok"),
                text: text("text"),
                ids: ids(&row["ids"]),
                ids_raw: ids(&row["ids_raw"]),
                decoded: text("decoded"),
            }
        };
        lines.lines().skip(1).map(read).collect()
    })
}

fn gpt2() -> &'static Tokenizer {
    static GPT2: OnceLock<Tokenizer> = OnceLock::new();
    GPT2.get_or_init(|| Tokenizer::from_gguf(&gpt2_metadata()).unwrap())
}

fn gpt2_metadata() -> Metadata {
    Metadata::read(&vector("tokenizer/ggml-vocab-gpt-2.gguf"))
}

fn llama() -> &'static Tokenizer {
    static LLAMA: OnceLock<Tokenizer> = OnceLock::new();
    LLAMA.get_or_init(|| Tokenizer::from_gguf(&Metadata::read(&vector("tokenizer/ggml-vocab-llama-spm.gguf"))).unwrap())
}

/// Every case of `name`: ids with and without special tokens, the decoded text, and the same text in a stream.
fn check(name: &str, tokenizer: &Tokenizer) {
    let cases: Vec<&Case> = cases().iter().filter(|c| c.tokenizer == name).collect();
    assert!(cases.len() > 300, "{} cases of {name}", cases.len());
    let mut wrong = Vec::new();
    for case in &cases {
        let ids = tokenizer.encode(&case.text, true).unwrap();
        let raw = tokenizer.encode(&case.text, false).unwrap();
        let decoded = tokenizer.decode(&case.ids_raw, false).unwrap();
        if ids != case.ids || raw != case.ids_raw || decoded != case.decoded {
            wrong.push(format!("{:?}\n  got  {raw:?} {decoded:?}\n  want {:?} {:?}", case.text, case.ids_raw, case.decoded));
        }
    }
    assert!(wrong.is_empty(), "{name}: {} of {} wrong\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn gpt2_from_gguf() {
    check("gpt2", gpt2());
}

#[test]
fn gpt2_from_tokenizer_json() {
    check("gpt2", &Tokenizer::from_json(&vector("tokenizer/gpt2.tokenizer.json")).unwrap());
}

#[test]
fn llama_from_gguf() {
    check("llama-spm", llama());
}

#[test]
fn llama_from_tokenizer_json() {
    check("llama-spm", &Tokenizer::from_json(&vector("tokenizer/llama-spm.tokenizer.json")).unwrap());
}

#[test]
fn an_unknown_pre_tokenizer_is_named_and_can_be_overridden() {
    let metadata = gpt2_metadata().with("tokenizer.ggml.pre", Value::Str("martian".into()));
    let error = Tokenizer::from_gguf(&metadata).unwrap_err().to_string();
    assert!(error.contains("martian") && error.contains("from_gguf_as"), "{error}");
    let tokenizer = Tokenizer::from_gguf_as(&metadata, "default").unwrap();
    assert_eq!(tokenizer.decode(&tokenizer.encode("1234 apples", false).unwrap(), false).unwrap(), "1234 apples");
}
