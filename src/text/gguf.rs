//! A tokenizer of the Hub as the metadata of a GGUF file.

use super::chat::ChatTemplate;
use super::pipeline::pre_name;
use super::tokenizer::{Tokenizer, letter_of_byte};
use crate::error::{TensorError, TensorResult};
use crate::io::GgufWriter;
use serde_json::Value;
use std::path::Path;

/// GGUF's kinds of tokens.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER: i32 = 4;
const UNUSED: i32 = 5;

/// Writes the tokenizer and the chat template of a folder in Hub layout as `tokenizer.*` keys: byte-level BPE, and vocabularies of single
/// characters as `tl train` makes them. `vocab` is the number of rows of the model's embedding.
///
/// # Errors
/// If there is no `tokenizer.json`, or it is of a kind that GGUF has no name for.
///
/// ```
/// use tensorlogic::io::{Gguf, GgufWriter};
/// use tensorlogic::text::{Tokenizer, gguf, learn};
///
/// let folder = std::env::temp_dir().join(format!("tl-doc-gguf-tokenizer-{}", std::process::id()));
/// std::fs::create_dir_all(&folder)?;
/// std::fs::write(folder.join("tokenizer.json"), learn::characters(["hello"])?)?; // e, h, l and o
/// let mut file = GgufWriter::new();
/// gguf::write(&folder, 4, &mut file)?;
/// let tokenizer = Tokenizer::from_gguf(&Gguf::from_bytes(file.to_bytes()?)?)?;
/// assert_eq!(tokenizer.encode("hello", false)?, [1, 0, 2, 2, 3]);
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn write(folder: &Path, vocab: usize, w: &mut GgufWriter) -> TensorResult<()> {
    let path = folder.join("tokenizer.json");
    let bytes = std::fs::read(&path).map_err(|e| TensorError::io(&path, e))?;
    let json: Value = serde_json::from_slice(&bytes).map_err(|e| TensorError::format("tokenizer.json", e.to_string()))?;
    let tokenizer = Tokenizer::from_file(&path)?;
    let (model, pre) = (&json["model"], &json["pre_tokenizer"]);
    let unknown = |what: &str| TensorError::Unsupported(format!("{}: {what} in a GGUF file", path.display()));
    let merges = model["merges"].as_array().map(Vec::as_slice).unwrap_or_default();
    if model["type"].as_str().is_some_and(|t| t != "BPE") || merges.is_empty() && model["vocab"].is_array() {
        return Err(unknown(&format!("a tokenizer of type {}", model["type"])));
    }
    let mut kinds: Vec<i32> = (0..vocab).map(|id| if tokenizer.token(id as u32).is_some() { NORMAL } else { UNUSED }).collect();
    for t in json["added_tokens"].as_array().into_iter().flatten() {
        if let Some(k) = t["id"].as_u64().and_then(|id| kinds.get_mut(id as usize)) {
            *k = if t["special"] == true { CONTROL } else { USER };
        }
    }
    if tokenizer.vocab_size() > vocab {
        return Err(TensorError::Value(format!("{}: {} tokens for {vocab} rows of the embedding", path.display(), tokenizer.vocab_size())));
    }
    let text = |id: usize| tokenizer.token(id as u32).map_or_else(|| format!("[PAD{id}]"), String::from);
    let characters = pre.is_null() && merges.is_empty() && (0..vocab).all(|id| kinds[id] != NORMAL || text(id).chars().count() == 1);
    let plain = |id: usize| characters && kinds[id] == NORMAL;
    if characters && !(0..vocab).filter(|&id| plain(id)).all(|id| text(id).is_ascii()) {
        // Characters of several bytes: every token has the same score, so that none is ever joined.
        let tokens: Vec<String> = (0..vocab).map(|id| if plain(id) { text(id).replace(' ', "\u{2581}") } else { text(id) }).collect();
        w.set("tokenizer.ggml.model", "llama").set("tokenizer.ggml.tokens", tokens);
        w.set("tokenizer.ggml.scores", vec![0f32; vocab]).set("tokenizer.ggml.add_space_prefix", false);
    } else {
        let name = if characters { Some("gpt-2") } else { pre_name(pre, model["ignore_merges"] == true) };
        let name = name.ok_or_else(|| unknown(&format!("the pre-tokenizer {pre}")))?;
        let letters = |t: String| t.bytes().map(letter_of_byte).collect();
        let tokens: Vec<String> = (0..vocab).map(|id| if plain(id) { letters(text(id)) } else { text(id) }).collect();
        let merges = merges.iter().map(|m| match (m.as_str(), m.as_array().map(Vec::as_slice)) {
            (Some(line), _) => Ok(line.to_string()),
            (_, Some([Value::String(a), Value::String(b)])) => Ok(format!("{a} {b}")),
            _ => Err(TensorError::format("tokenizer.json", format!("the merge {m} is not two tokens"))),
        });
        w.set("tokenizer.ggml.model", "gpt2").set("tokenizer.ggml.pre", name).set("tokenizer.ggml.tokens", tokens);
        w.set("tokenizer.ggml.merges", merges.collect::<TensorResult<Vec<String>>>()?);
    }
    w.set("tokenizer.ggml.token_type", kinds);
    w.set("tokenizer.ggml.add_bos_token", tokenizer.adds_bos());
    if let Some(bos) = tokenizer.bos() {
        w.set("tokenizer.ggml.bos_token_id", bos);
    }
    let config: Value =
        std::fs::read(folder.join("tokenizer_config.json")).ok().and_then(|b| serde_json::from_slice(&b).ok()).unwrap_or_default();
    let named = config["eos_token"].as_str().or_else(|| config["eos_token"]["content"].as_str()).and_then(|t| tokenizer.id(t));
    if let Some(eos) = named.or_else(|| tokenizer.end_tokens().first().copied()) {
        w.set("tokenizer.ggml.eos_token_id", eos);
    }
    if let Some(template) = ChatTemplate::from_folder(folder)? {
        w.set("tokenizer.chat_template", template.source());
    }
    Ok(())
}
