//! Tokenizers against ids and texts that Hugging Face's `tokenizers`, tiktoken and SentencePiece agree on.

use crate::text_support::{Metadata, Value, vector};
use proptest::prelude::*;
use std::sync::OnceLock;
use tensorlogic::text::Tokenizer;

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

#[test]
fn special_tokens_in_a_text_are_text_unless_asked_for() {
    for (tokenizer, text, special) in [(gpt2(), "a<|endoftext|>b", 50256), (llama(), "a</s>b", 2), (llama(), "<s>", 1)] {
        let parsed = tokenizer.encode_with(text, false, true).unwrap();
        assert!(parsed.contains(&special), "{text}: {parsed:?}");
        let plain = tokenizer.encode_with(text, false, false).unwrap();
        assert!(plain.iter().all(|&id| !tokenizer.is_special(id)), "{text}: {plain:?}");
        assert_eq!(tokenizer.decode(&plain, false).unwrap(), text);
        assert!(!tokenizer.decode(&parsed, true).unwrap().contains("s>"), "{text}");
    }
}

#[test]
fn the_metadata_names_begin_and_end() {
    for (tokenizer, size, bos, ends, added) in [(gpt2(), 50257, 50256, vec![50256], false), (llama(), 32000, 1, vec![2], true)] {
        assert_eq!((tokenizer.vocab_size(), tokenizer.bos()), (size, Some(bos)));
        assert_eq!(tokenizer.end_tokens(), ends);
        assert_eq!(tokenizer.adds_bos(), added);
        assert_eq!(tokenizer.id(tokenizer.token(bos).unwrap()), Some(bos));
        assert_eq!(tokenizer.token(size as u32), None);
        assert!(tokenizer.decode(&[size as u32], false).is_err());
    }
    let named =
        gpt2_metadata().with("tokenizer.ggml.eot_token_id", Value::Unsigned(7)).with("tokenizer.ggml.add_eos_token", Value::Bool(true));
    let tokenizer = Tokenizer::from_gguf(&named).unwrap();
    assert_eq!(tokenizer.end_tokens(), [7, 50256]);
    assert_eq!(tokenizer.encode("", true).unwrap(), [50256]);
}

#[test]
fn metadata_that_contradicts_itself_is_refused() {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    for (name, value) in [
        ("model", Value::Str("wordpiece".into())),
        ("model", Value::Other),
        ("model", Value::Str("llama".into())),
        ("tokens", Value::Other),
        ("tokens", Value::Strings(vec!["a".into(), "a".into()])),
        ("token_type", Value::I32s(vec![1; 3])),
        ("merges", Value::Other),
        ("merges", Value::Strings(vec!["ab".into()])),
        ("merges", Value::Strings(vec!["Ġ nowhere-to-be-found".into()])),
        ("eos_token_id", Value::Unsigned(50_257)),
        ("bos_token_id", Value::Unsigned(u64::MAX)),
    ] {
        let metadata = gpt2_metadata().with(&key(name), value.clone());
        assert!(Tokenizer::from_gguf(&metadata).is_err(), "{name} = {value:?}");
    }
}

/// Other decoders than the two large vocabularies have, told apart by their text for the same tokens.
#[test]
fn every_decoder_streams_what_it_decodes() {
    let file = |decoder: &str| {
        format!(
            r#"{{"version":"1.0","added_tokens":[{{"id":4,"content":"[E]","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}}],
            "normalizer":null,"pre_tokenizer":null,"post_processor":null,"decoder":{decoder},
            "model":{{"type":"WordLevel","unk_token":"a","vocab":{{"a":0,"▁b":1,"@@c":2,"<0xC3>":3,"<0xA9>":5,"▁":6}}}}}}"#
        )
    };
    let fallback = r#"{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"}]}"#;
    for (decoder, ids, want) in [
        ("null", vec![0, 1, 4], "a ▁b"),
        (r#"{"type":"WordPiece","prefix":"@@","cleanup":true}"#, vec![0, 2, 0], "ac a"),
        (r#"{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true}"#, vec![4, 1, 1, 0], "b ba"),
        (r#"{"type":"Metaspace","replacement":"▁","prepend_scheme":"never","split":true}"#, vec![1, 1, 0], " b ba"),
        (fallback, vec![1, 3, 5, 6, 3, 0], " bé \u{fffd}a"),
    ] {
        let tokenizer = Tokenizer::from_json(file(decoder).as_bytes()).unwrap();
        assert_eq!(tokenizer.decode(&ids, true).unwrap(), want, "{decoder}");
        let mut stream = tokenizer.stream(true);
        let mut text: String = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
        text.push_str(&stream.finish().unwrap());
        assert_eq!(text, want, "{decoder}");
    }
}

#[test]
fn a_character_of_several_tokens_comes_out_whole() {
    let ids = gpt2().encode("x🦙y", false).unwrap();
    let mut stream = gpt2().stream(false);
    let pieces: Vec<String> = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
    assert!(ids.len() > 3 && pieces.contains(&"🦙".to_string()), "{pieces:?}");
    assert!(pieces.iter().all(|p| !p.contains('\u{fffd}')), "{pieces:?}");
    // Broken off in the middle: the rest is one replacement character, and the decoder starts anew.
    let mut stream = gpt2().stream(false);
    assert_eq!(stream.push(ids[0]).unwrap() + &stream.push(ids[1]).unwrap(), "x");
    assert_eq!(stream.finish().unwrap(), "\u{fffd}");
    assert_eq!(stream.push(ids[0]).unwrap(), "x");
}

proptest! {
    /// Ids of text and ids of nothing in particular: the stream's pieces are the whole decode, which is lossy UTF-8 of its bytes.
    #[test]
    fn a_stream_is_the_whole_decode(ids in proptest::collection::vec(0u32..32_000, 0..60), skip in any::<bool>()) {
        for tokenizer in [gpt2(), llama()] {
            let mut stream = tokenizer.stream(skip);
            let mut text = String::new();
            for &id in &ids {
                let piece = stream.push(id).unwrap();
                text.push_str(&piece);
            }
            text.push_str(&stream.finish().unwrap());
            prop_assert_eq!(&text, &tokenizer.decode(&ids, skip).unwrap());
        }
    }

    /// Any text comes back from its ids, and ids do not depend on what was encoded before.
    #[test]
    fn any_text_comes_back(text in "\\PC{0,40}|[ -~\\s\u{2581}é日🦙]{0,60}") {
        prop_assert_eq!(gpt2().decode(&gpt2().encode_with(&text, false, false).unwrap(), false).unwrap(), text.clone());
        let ids = llama().encode_with(&text, false, false).unwrap();
        // SentencePiece writes a space and its mark alike.
        prop_assert_eq!(llama().decode(&ids, false).unwrap(), text.replace('\u{2581}', " "));
    }
}

#[test]
fn added_tokens_keep_the_ids_of_the_file() {
    let mut file: serde_json::Value = serde_json::from_slice(&vector("tokenizer/gpt2.tokenizer.json")).unwrap();
    let token = |id: u32, content: &str, lstrip: bool, special: bool| serde_json::json!({ "id": id, "content": content, "single_word": false, "lstrip": lstrip, "rstrip": false, "normalized": false, "special": special });
    let added = file["added_tokens"].as_array_mut().unwrap();
    added.extend([token(50300, "<mask>", true, true), token(50290, "<tool>", false, false)]);
    let tokenizer = Tokenizer::from_json(&serde_json::to_vec(&file).unwrap()).unwrap();
    assert_eq!((tokenizer.id("<mask>"), tokenizer.token(50290), tokenizer.token(50295)), (Some(50300), Some("<tool>"), None));
    // Ids around the added ones are GPT-2's for "x" and " y"; `lstrip` takes the blanks before the token with it.
    let ids = tokenizer.encode("x  <mask> y<tool>", true).unwrap();
    assert_eq!(ids, [87, 50300, 331, 50290]);
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), "x<mask> y<tool>");
    assert_eq!(tokenizer.decode(&ids, true).unwrap(), "x y<tool>");
}
