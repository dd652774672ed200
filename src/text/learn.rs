//! Tokenizers made from a text: its characters, or byte pairs; as the bytes of a `tokenizer.json`.

use crate::error::{TensorError, TensorResult};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, Trainer};

/// Ends a document.
pub const END_OF_TEXT: &str = "<|endoftext|>";

/// The characters of all texts in the order of their code points, each a token: nanoGPT's tokenizer. Characters that none of the texts has are
/// left out when encoding.
///
/// # Errors
/// When the texts are empty.
///
/// ```
/// use tensorlogic::text::{Tokenizer, learn};
///
/// let tokenizer = Tokenizer::from_json(&learn::characters(["hello"])?)?; // e, h, l and o
/// assert_eq!(tokenizer.encode("hello", false)?, [1, 0, 2, 2, 3]);
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
pub fn characters<'a>(texts: impl IntoIterator<Item = &'a str>) -> TensorResult<Vec<u8>> {
    let mut all = BTreeSet::new();
    texts.into_iter().for_each(|t| all.extend(t.chars()));
    if all.is_empty() {
        return Err(TensorError::Value("cannot train a character tokenizer on an empty text".into()));
    }
    let vocab: serde_json::Map<String, Value> = all.iter().enumerate().map(|(id, c)| (c.to_string(), id.into())).collect();
    // Nothing is merged, so every character stays a token of its own.
    let model = json!({ "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
        "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": [] });
    // This decoder leaves characters alone, and works token by token.
    let decoder = json!({ "type": "Sequence", "decoders": [
        { "type": "Replace", "pattern": { "String": "\u{2581}" }, "content": " " }, { "type": "ByteFallback" }, { "type": "Fuse" }] });
    document(model, json!([]), Value::Null, decoder)
}

/// Byte-level BPE (Sennrich et al., 2016; Radford et al., 2019) of at most `vocab` tokens, trained on these texts: the 256 bytes, merges, and
/// `<|endoftext|>` as token 0.
///
/// # Errors
/// If `vocab` is less than 257, or training fails.
///
/// ```
/// use tensorlogic::text::{Tokenizer, learn};
///
/// // Room for one token besides the bytes and <|endoftext|>: the most frequent pair.
/// let tokenizer = Tokenizer::from_json(&learn::byte_pairs(["abababab"], 258)?)?;
/// assert_eq!(tokenizer.encode("abab", false)?.len(), 2);
/// assert_eq!(tokenizer.id(learn::END_OF_TEXT), Some(0));
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
pub fn byte_pairs<'a>(texts: impl IntoIterator<Item = &'a str>, vocab: usize) -> TensorResult<Vec<u8>> {
    if vocab < 257 {
        return Err(TensorError::Value(format!(
            "a byte-level vocabulary of {vocab} tokens; it needs at least 257: 256 bytes and {END_OF_TEXT}"
        )));
    }
    let failed = |e: tokenizers::Error| TensorError::format("tokenizer", e.to_string());
    let split = ByteLevel::new(false, true, true);
    // Pieces small enough that the machine's cores share them.
    let texts: Vec<&str> = texts.into_iter().flat_map(|t| pieces(t, 1 << 20)).collect();
    let mut trainer = BpeTrainer::builder()
        .vocab_size(vocab)
        .show_progress(false)
        .special_tokens(vec![AddedToken::from(END_OF_TEXT, true)])
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();
    let words = |text: &str| -> tokenizers::Result<Vec<String>> {
        let mut p = PreTokenizedString::from(text);
        split.pre_tokenize(&mut p)?;
        Ok(p.get_splits(OffsetReferential::Original, OffsetType::Byte).into_iter().map(|s| s.0.to_string()).collect())
    };
    trainer.feed(texts.into_iter(), words).map_err(failed)?;
    let mut model = BPE::default();
    trainer.train(&mut model).map_err(failed)?;
    let model = serde_json::to_value(&model).map_err(|e| TensorError::format("tokenizer", e.to_string()))?;
    let added = json!([{ "id": 0, "content": END_OF_TEXT, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true }]);
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    document(model, added, bytes.clone(), bytes)
}

fn document(model: Value, added: Value, pre_tokenizer: Value, decoder: Value) -> TensorResult<Vec<u8>> {
    let value = json!({ "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": pre_tokenizer, "post_processor": null, "decoder": decoder, "model": model });
    serde_json::to_vec_pretty(&value).map_err(|e| TensorError::format("tokenizer", e.to_string()))
}

/// The text in pieces of about `size` bytes that end with a line where there is one.
pub fn pieces(text: &str, size: usize) -> Vec<&str> {
    let mut out = Vec::new();
    let mut rest = text;
    while rest.len() > size {
        let limit = rest.floor_char_boundary(size);
        let cut = rest[..limit].rfind('\n').map_or(limit, |at| at + 1).max(1);
        let cut = rest.ceil_char_boundary(cut);
        out.push(&rest[..cut]);
        rest = &rest[cut..];
    }
    if !rest.is_empty() {
        out.push(rest);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Tokenizer;

    #[test]
    fn characters_are_tokens_in_order() {
        let text = "First Citizen:\nWhat's é, 日本, ▁ or 🙂?\n";
        let t = Tokenizer::from_json(&characters([text]).unwrap()).unwrap();
        let sorted: BTreeSet<char> = text.chars().collect();
        assert_eq!(t.vocab_size(), sorted.len());
        let want: Vec<u32> = text.chars().map(|c| sorted.iter().position(|&s| s == c).unwrap() as u32).collect();
        assert_eq!(t.encode(text, true).unwrap(), want);
        // The mark that other tokenizers write for a space is the one character that does not come back.
        assert_eq!(t.decode(&want, true).unwrap(), text.replace('\u{2581}', " "));
        assert_eq!(t.encode("Fx", true).unwrap(), t.encode("F", true).unwrap());
        let mut stream = t.stream(true);
        let streamed: String = want.iter().map(|&id| stream.push(id).unwrap()).collect();
        assert_eq!(streamed + &stream.finish().unwrap(), text.replace('\u{2581}', " "));
        assert!(characters([""]).is_err());
    }

    #[test]
    fn byte_pairs_shorten_and_come_back() {
        let text = "the cat sat on the mat; the rat sat on the cat. ".repeat(40) + "Ünï 日本 🙂\n\n\tend";
        let json = byte_pairs([text.as_str()], 300).unwrap();
        assert_eq!(json, byte_pairs([text.as_str()], 300).unwrap(), "the same text gives the same tokenizer");
        let t = Tokenizer::from_json(&json).unwrap();
        assert!(t.vocab_size() <= 300 && t.vocab_size() > 260, "{}", t.vocab_size());
        let ids = t.encode(&text, false).unwrap();
        assert!(ids.len() < text.len() / 3, "{} tokens for {} bytes", ids.len(), text.len());
        assert_eq!(t.decode(&ids, true).unwrap(), text);
        assert_eq!(t.id(END_OF_TEXT), Some(0));
        assert_eq!(t.end_tokens(), [0]);
        // Bytes that the text lacks are tokens as well.
        let other = "Zz#\u{7f} 中";
        assert_eq!(t.decode(&t.encode(other, false).unwrap(), true).unwrap(), other);
        assert!(byte_pairs([text.as_str()], 256).is_err());
    }

    #[test]
    fn pieces_join_to_the_text() {
        for text in ["", "abc", "日本語日本語", "ab\ncd\nef\n", &"x".repeat(100), &"é\n".repeat(50)] {
            for size in [1, 2, 3, 7, 64] {
                assert_eq!(pieces(text, size).concat(), *text, "{size}");
            }
        }
    }
}
