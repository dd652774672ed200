//! Reads a `tokenizer.json`: checks everything that the tokenizer's parts would panic on, then builds them.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use tokenizers::models::ModelWrapper;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::models::unigram::Unigram;
use tokenizers::models::wordlevel::WordLevel;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::{AddedToken, DecoderWrapper};

use super::bigram::SPACE_MARK;
use super::pipeline::Pipeline;
use super::vocabulary::{Kind, Vocabulary};
use crate::error::{TensorError, TensorResult};

/// How much a normalizer may lengthen a text, and by how much it may be prefixed.
const MAX_GROWTH: f64 = 64.0;
const MAX_PREFIX: usize = 1024;
const MAX_PATTERN: usize = 1 << 16;

/// The parsed content of a `tokenizer.json`.
pub(crate) struct Hub {
    pub(crate) vocabulary: Vocabulary,
    pub(crate) pipeline: Pipeline,
    pub(crate) decoding: Decoding,
    /// Added around the text when special tokens are asked for.
    pub(crate) prefix: Vec<u32>,
    pub(crate) suffix: Vec<u32>,
    /// Two texts as one input; none where the file does not say how.
    pub(crate) pair: Option<Vec<PairPiece>>,
    /// Added tokens whose decoded text differs from their own.
    pub(crate) renamed: Vec<(u32, String)>,
}

/// A part of two texts that are one input, with the kind of its tokens.
#[derive(Clone, Copy)]
pub(crate) enum PairPiece {
    First(u8),
    Second(u8),
    Token(u32, u8),
}

/// How tokens become text again.
pub(crate) enum Decoding {
    /// Letters stand for bytes. `raw_added`: special and user-defined tokens are plain text.
    ByteLevel { raw_added: bool },
    /// A mark stands for a space and `<0x0A>` for a byte; `strip` removes one space at the very start.
    Marked { strip: bool, raw_added: bool },
    /// A mark stands for a space, and for nothing in the first token if `strip`.
    Metaspace { mark: char, strip: bool },
    /// Anything else: the whole list at once.
    Whole(Box<Option<DecoderWrapper>>),
}

#[derive(Deserialize)]
struct Document {
    version: Option<String>,
    #[serde(default)]
    added_tokens: Option<Vec<Added>>,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    post_processor: Option<Value>,
    decoder: Option<Value>,
    model: ModelDocument,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

#[derive(Deserialize)]
struct ModelDocument {
    #[serde(rename = "type")]
    kind: Option<String>,
    vocab: VocabDocument,
    merges: Option<Vec<Merge>>,
    dropout: Option<f32>,
    unk_token: Option<String>,
    unk_id: Option<usize>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    fuse_unk: Option<bool>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
    max_input_chars_per_word: Option<usize>,
}

enum VocabDocument {
    Ids(Vocab),
    Scores(Vec<(String, f64)>),
}

impl<'de> Deserialize<'de> for VocabDocument {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = VocabDocument;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a map of tokens to ids or a list of tokens with scores")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<VocabDocument, A::Error> {
                let mut ids = Vocab::default();
                while let Some((token, id)) = map.next_entry::<String, u32>()? {
                    ids.insert(token, id);
                }
                Ok(VocabDocument::Ids(ids))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<VocabDocument, A::Error> {
                let mut scores = Vec::new();
                while let Some(pair) = seq.next_element::<(String, f64)>()? {
                    scores.push(pair);
                }
                Ok(VocabDocument::Scores(scores))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// A merge, written `"a b"` or `["a", "b"]`; `None` for the version line that old files carry.
struct Merge(Option<(String, String)>);

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Merge;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a merge of two tokens")
            }
            fn visit_str<E: serde::de::Error>(self, line: &str) -> Result<Merge, E> {
                if line.starts_with("#version") {
                    return Ok(Merge(None));
                }
                match line.split_once(' ') {
                    Some((a, b)) if !b.contains(' ') => Ok(Merge(Some((a.to_string(), b.to_string())))),
                    _ => Err(E::custom(format!("the merge {line:?} is not two tokens"))),
                }
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Merge, A::Error> {
                let (a, b) = (seq.next_element()?, seq.next_element()?);
                match (a, b, seq.next_element::<serde::de::IgnoredAny>()?) {
                    (Some(a), Some(b), None) => Ok(Merge(Some((a, b)))),
                    _ => Err(A::Error::custom("a merge is not two tokens")),
                }
            }
        }
        deserializer.deserialize_any(Either)
    }
}

fn bad(message: impl fmt::Display) -> TensorError {
    TensorError::format("tokenizer.json", message.to_string())
}

/// Reads the bytes of a `tokenizer.json`. Its truncation and padding are not used: a language model wants the whole text.
pub(crate) fn read(bytes: &[u8]) -> TensorResult<Hub> {
    let document: Document = serde_json::from_slice(bytes).map_err(bad)?;
    if document.version.as_deref().is_some_and(|v| v != "1.0") {
        return Err(bad("its version is not 1.0"));
    }
    let added = document.added_tokens.unwrap_or_default();
    let (mut vocab, kind) = check_model(&document.model)?;
    let vocabulary = check_added(&mut vocab, &added)?;
    let model = build_model(document.model, vocab, kind)?;

    if let Some(normalizer) = &document.normalizer {
        check_steps(normalizer, "normalizers")?;
        let (growth, prefix) = growth(normalizer);
        if growth > MAX_GROWTH || prefix > MAX_PREFIX {
            return Err(bad(format!("its normalizer can make a text {growth:.0} times longer plus {prefix} bytes")));
        }
    }
    if let Some(pre_tokenizer) = &document.pre_tokenizer {
        check_steps(pre_tokenizer, "pretokenizers")?;
    }
    let (mut prefix, mut suffix) = (Vec::new(), Vec::new());
    let mut pair = None;
    if let Some(post) = &document.post_processor {
        read_template(post, &mut prefix, &mut suffix)?;
        pair = read_pair(post)?;
    }
    let added_to_pairs = pair.iter().flatten().filter_map(|piece| match piece {
        PairPiece::Token(id, _) => Some(id),
        _ => None,
    });
    if let Some(id) = prefix.iter().chain(&suffix).chain(added_to_pairs).find(|&&id| vocabulary.get(id).is_none()) {
        return Err(bad(format!("its post-processor adds token {id}, which is not in the vocabulary")));
    }
    if let Some(decoder) = &document.decoder {
        check_steps(decoder, "decoders")?;
    }
    let decoding = read_decoding(document.decoder)?;
    let normalizer = document.normalizer.map(serde_json::from_value).transpose().map_err(bad)?;
    let pre_tokenizer = document.pre_tokenizer.map(serde_json::from_value).transpose().map_err(bad)?;
    let added = added
        .into_iter()
        .map(|t| {
            AddedToken::from(t.content, t.special).single_word(t.single_word).lstrip(t.lstrip).rstrip(t.rstrip).normalized(t.normalized)
        })
        .collect();
    let pipeline = Pipeline::new(model, normalizer, pre_tokenizer, added)?;
    let renamed = pipeline.added().filter(|(_, token, seen)| token.content != *seen).map(|(id, _, seen)| (id, seen)).collect();
    Ok(Hub { vocabulary, pipeline, decoding, prefix, suffix, pair, renamed })
}

#[derive(Clone, Copy, PartialEq)]
enum ModelKind {
    Bpe,
    WordPiece,
    WordLevel,
    Unigram,
}

/// Checks a model's own fields; returns its vocabulary as ids.
fn check_model(model: &ModelDocument) -> TensorResult<(Vocab, ModelKind)> {
    let kind = match (model.kind.as_deref(), &model.vocab) {
        (Some("BPE"), VocabDocument::Ids(_)) => ModelKind::Bpe,
        (Some("WordPiece"), VocabDocument::Ids(_)) => ModelKind::WordPiece,
        (Some("WordLevel"), VocabDocument::Ids(_)) => ModelKind::WordLevel,
        (Some("Unigram"), VocabDocument::Scores(_)) => ModelKind::Unigram,
        (Some(other @ ("BPE" | "WordPiece" | "WordLevel" | "Unigram")), _) => {
            return Err(bad(format!("the vocabulary of its {other} model is of another kind")));
        }
        (Some(other), _) => return Err(bad(format!("its model type {other:?} is unknown"))),
        // Files from before the type was written.
        (None, VocabDocument::Ids(_)) if model.merges.is_some() => ModelKind::Bpe,
        (None, VocabDocument::Ids(_)) if model.continuing_subword_prefix.is_some() => ModelKind::WordPiece,
        (None, VocabDocument::Ids(_)) => ModelKind::WordLevel,
        (None, VocabDocument::Scores(_)) => ModelKind::Unigram,
    };
    let ids = match &model.vocab {
        VocabDocument::Ids(ids) => ids.clone(),
        VocabDocument::Scores(scores) => {
            let mut ids = Vocab::default();
            for (id, (token, score)) in (0u32..).zip(scores) {
                if !score.is_finite() {
                    return Err(bad(format!("the score of token {id} is not a number")));
                }
                // The first of two equal pieces keeps the text.
                ids.entry(token.clone()).or_insert(id);
            }
            if model.unk_id.is_some_and(|id| id >= scores.len()) {
                return Err(bad("its unknown token is outside the vocabulary"));
            }
            ids
        }
    };
    if kind == ModelKind::Bpe {
        check_bpe(model, &ids)?;
    }
    Ok((ids, kind))
}

fn check_bpe(model: &ModelDocument, ids: &Vocab) -> TensorResult<()> {
    let Some(merges) = &model.merges else {
        return Err(bad("its BPE model has no merges"));
    };
    if model.dropout.is_some_and(|p| p != 0.0) {
        return Err(bad("its BPE model drops merges at random, so that no two encodings would be the same"));
    }
    if let Some(unknown) = &model.unk_token
        && !ids.contains_key(unknown)
        && model.byte_fallback != Some(true)
    {
        return Err(bad(format!("its unknown token {unknown:?} is not in the vocabulary")));
    }
    let prefix = model.continuing_subword_prefix.as_deref().unwrap_or("");
    let mut joined = String::new();
    for (a, b) in merges.iter().filter_map(|m| m.0.as_ref()) {
        let Some(rest) = b.strip_prefix(prefix) else {
            return Err(bad(format!("the merge of {a:?} and {b:?} lacks the prefix {prefix:?}")));
        };
        joined.clear();
        joined.push_str(a);
        joined.push_str(rest);
        if let Some(missing) = [a, b, &joined].into_iter().find(|t| !ids.contains_key(*t)) {
            return Err(bad(format!("the merge of {a:?} and {b:?} needs {missing:?}, which is not in the vocabulary")));
        }
    }
    Ok(())
}

/// Checks the added tokens' ids. Tokens whose id would not follow by counting are put into the model's vocabulary, which is
/// where the encoder looks ids up first.
fn check_added(vocab: &mut Vocab, added: &[Added]) -> TensorResult<Vocabulary> {
    let mut next = vocab.len();
    let mut counted = true;
    let mut seen = std::collections::HashSet::new();
    for token in added.iter().filter(|t| !t.content.is_empty()) {
        // A token that the vocabulary has keeps the id it has there.
        if !vocab.contains_key(&token.content) && seen.insert(&token.content) {
            counted &= token.id as usize == next;
            next += 1;
        }
    }
    let kinds: std::collections::HashMap<&str, Kind> =
        added.iter().map(|t| (t.content.as_str(), if t.special { Kind::Control } else { Kind::User })).collect();
    let kind = |token: &str| kinds.get(token).copied().unwrap_or(Kind::Normal);
    let listed = vocab.iter().map(|(token, &id)| (token.as_str(), id, kind(token)));
    let unlisted = added.iter().filter(|t| !t.content.is_empty() && !vocab.contains_key(&t.content));
    let extra = unlisted.map(|t| (t.content.as_str(), t.id, kind(&t.content)));
    let vocabulary = Vocabulary::from_ids(listed.chain(extra))?;
    if !counted {
        for token in added.iter().filter(|t| !t.content.is_empty()) {
            vocab.entry(token.content.clone()).or_insert(token.id);
        }
    }
    Ok(vocabulary)
}

fn build_model(model: ModelDocument, vocab: Vocab, kind: ModelKind) -> TensorResult<ModelWrapper> {
    Ok(match kind {
        ModelKind::Bpe => {
            let merges = model.merges.unwrap_or_default().into_iter().filter_map(|m| m.0).collect();
            let mut builder = BPE::builder()
                .vocab_and_merges(vocab, merges)
                .fuse_unk(model.fuse_unk.unwrap_or(false))
                .byte_fallback(model.byte_fallback.unwrap_or(false))
                .ignore_merges(model.ignore_merges.unwrap_or(false));
            if let Some(unknown) = model.unk_token {
                builder = builder.unk_token(unknown);
            }
            if let Some(prefix) = model.continuing_subword_prefix {
                builder = builder.continuing_subword_prefix(prefix);
            }
            if let Some(suffix) = model.end_of_word_suffix {
                builder = builder.end_of_word_suffix(suffix);
            }
            builder.build().map_err(bad)?.into()
        }
        ModelKind::WordPiece => WordPiece::builder()
            .vocab(vocab)
            .unk_token(model.unk_token.unwrap_or_else(|| "[UNK]".to_string()))
            .continuing_subword_prefix(model.continuing_subword_prefix.unwrap_or_else(|| "##".to_string()))
            .max_input_chars_per_word(model.max_input_chars_per_word.unwrap_or(100).min(10_000))
            .build()
            .map_err(bad)?
            .into(),
        ModelKind::WordLevel => {
            WordLevel::builder().vocab(vocab).unk_token(model.unk_token.unwrap_or_else(|| "<unk>".to_string())).build().map_err(bad)?.into()
        }
        ModelKind::Unigram => {
            let VocabDocument::Scores(scores) = model.vocab else {
                return Err(bad("its Unigram vocabulary has no scores"));
            };
            Unigram::from(scores, model.unk_id, model.byte_fallback.unwrap_or(false)).map_err(bad)?.into()
        }
    })
}

fn type_of(step: &Value) -> &str {
    step.get("type").and_then(Value::as_str).unwrap_or("")
}

/// The steps of a `Sequence`, or the one step that this is.
fn steps<'a>(value: &'a Value, list: &str) -> Vec<&'a Value> {
    match value.get(list).and_then(Value::as_array) {
        Some(inner) if type_of(value) == "Sequence" => inner.iter().flat_map(|step| steps(step, list)).collect(),
        _ => vec![value],
    }
}

/// Patterns must not be empty, since an empty match makes no progress, nor huge.
fn check_steps(value: &Value, list: &str) -> TensorResult<()> {
    for step in steps(value, list) {
        if let Some(pattern) = step.get("pattern") {
            let text = pattern.get("String").or_else(|| pattern.get("Regex")).and_then(Value::as_str);
            match text {
                Some("") => return Err(bad(format!("a pattern of {} is empty", type_of(step)))),
                Some(p) if p.len() > MAX_PATTERN => return Err(bad(format!("a pattern of {} has {} bytes", type_of(step), p.len()))),
                _ => {}
            }
        }
    }
    Ok(())
}

/// At most how many times longer a normalizer makes a text, and how many bytes it puts in front.
fn growth(normalizer: &Value) -> (f64, usize) {
    let (mut times, mut prefix) = (1.0f64, 0usize);
    for step in steps(normalizer, "normalizers") {
        let content = |key: &str| step.get(key).and_then(Value::as_str).map_or(0, str::len);
        match type_of(step) {
            "Replace" => {
                let pattern = step.get("pattern");
                let shortest = match pattern.and_then(|p| p.get("String")).and_then(Value::as_str) {
                    Some(text) => text.len().max(1) as f64,
                    None => 1.0,
                };
                // A longer prefix grows with the text.
                let by = (content("content") as f64 / shortest).max(1.0);
                times *= by;
                prefix = (prefix as f64 * by) as usize;
            }
            "Prepend" => prefix = prefix.saturating_add(content("prepend")),
            "ByteLevel" => times *= 2.0,
            _ => {}
        }
    }
    (times, prefix)
}

/// Which tokens a post-processor puts before and after the text.
fn read_template(post: &Value, prefix: &mut Vec<u32>, suffix: &mut Vec<u32>) -> TensorResult<()> {
    let id_of = |value: &Value| {
        value.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| bad("a token id of its post-processor is not one"))
    };
    match type_of(post) {
        "ByteLevel" => {}
        "Sequence" => {
            for step in post.get("processors").and_then(Value::as_array).into_iter().flatten() {
                read_template(step, prefix, suffix)?;
            }
        }
        "BertProcessing" | "RobertaProcessing" => {
            let id = |key: &str| id_of(post.get(key).and_then(|pair| pair.get(1)).unwrap_or(&Value::Null));
            prefix.insert(0, id("cls")?);
            suffix.push(id("sep")?);
        }
        "TemplateProcessing" => {
            let specials = post.get("special_tokens");
            let (mut before, mut after, mut texts) = (Vec::new(), Vec::new(), 0);
            for piece in post.get("single").and_then(Value::as_array).ok_or_else(|| bad("its template has no single form"))? {
                if let Some(sequence) = piece.get("Sequence") {
                    if sequence.get("id").and_then(Value::as_str) != Some("A") {
                        return Err(bad("its single template names a second text"));
                    }
                    texts += 1;
                } else if let Some(special) = piece.get("SpecialToken") {
                    let name = special.get("id").and_then(Value::as_str).unwrap_or("");
                    let ids = specials.and_then(|s| s.get(name)).and_then(|t| t.get("ids")).and_then(Value::as_array);
                    let ids = ids.ok_or_else(|| bad(format!("its template adds {name:?}, which it does not define")))?;
                    for id in ids {
                        if texts == 0 { before.push(id_of(id)?) } else { after.push(id_of(id)?) }
                    }
                } else {
                    return Err(bad("its template has a piece that is neither text nor token"));
                }
            }
            if texts != 1 {
                return Err(bad(format!("its template has the text {texts} times")));
            }
            before.append(prefix);
            *prefix = before;
            suffix.append(&mut after);
        }
        other => return Err(bad(format!("its post-processor {other:?} is unknown"))),
    }
    Ok(())
}

/// How a post-processor joins two texts; none where it does not say.
fn read_pair(post: &Value) -> TensorResult<Option<Vec<PairPiece>>> {
    use PairPiece::{First, Second, Token};
    let id = |value: &Value| {
        value.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| bad("a token id of its post-processor is not one"))
    };
    let named = |key: &str| id(post.get(key).and_then(|pair| pair.get(1)).unwrap_or(&Value::Null));
    match type_of(post) {
        "Sequence" => {
            let steps = post.get("processors").and_then(Value::as_array).into_iter().flatten();
            let mut pairs = steps.map(read_pair).collect::<TensorResult<Vec<_>>>()?.into_iter().flatten();
            // Of two that add tokens, each would wrap the other's result.
            Ok(pairs.next().filter(|_| pairs.next().is_none()))
        }
        "BertProcessing" => {
            let (cls, sep) = (named("cls")?, named("sep")?);
            Ok(Some(vec![Token(cls, 0), First(0), Token(sep, 0), Second(1), Token(sep, 1)]))
        }
        "RobertaProcessing" => {
            let (cls, sep) = (named("cls")?, named("sep")?);
            Ok(Some(vec![Token(cls, 0), First(0), Token(sep, 0), Token(sep, 0), Second(0), Token(sep, 0)]))
        }
        "TemplateProcessing" => {
            let Some(template) = post.get("pair").and_then(Value::as_array) else { return Ok(None) };
            let mut pieces = Vec::new();
            for piece in template {
                let part = piece.get("Sequence").or_else(|| piece.get("SpecialToken")).unwrap_or(&Value::Null);
                let kind = part.get("type_id").and_then(Value::as_u64).and_then(|kind| u8::try_from(kind).ok()).unwrap_or(0);
                let name = part.get("id").and_then(Value::as_str).unwrap_or("");
                match (piece.get("Sequence").is_some(), name) {
                    (true, "A") => pieces.push(First(kind)),
                    (true, "B") => pieces.push(Second(kind)),
                    (true, _) => return Err(bad("its template for pairs names a third text")),
                    (false, name) => {
                        let ids = post.get("special_tokens").and_then(|s| s.get(name)).and_then(|t| t.get("ids")).and_then(Value::as_array);
                        for token in ids.ok_or_else(|| bad(format!("its template adds {name:?}, which it does not define")))? {
                            pieces.push(Token(id(token)?, kind));
                        }
                    }
                }
            }
            let each = [matches_count(&pieces, |p| matches!(p, First(_))), matches_count(&pieces, |p| matches!(p, Second(_)))];
            Ok(Some(pieces).filter(|_| each == [1, 1]))
        }
        _ => Ok(None),
    }
}

fn matches_count(pieces: &[PairPiece], is: impl Fn(&PairPiece) -> bool) -> usize {
    pieces.iter().filter(|p| is(p)).count()
}

/// Recognises the decoders that work token by token, so that they can stream.
fn read_decoding(decoder: Option<Value>) -> TensorResult<Decoding> {
    let Some(decoder) = decoder else {
        return Ok(Decoding::Whole(Box::new(None)));
    };
    let steps = steps(&decoder, "decoders");
    let types: Vec<&str> = steps.iter().map(|s| type_of(s)).collect();
    let text = |step: &Value, key: &str| step.get(key).and_then(Value::as_str).unwrap_or("").to_string();
    let is_mark = |step: &Value| {
        step.get("pattern").and_then(|p| p.get("String")).and_then(Value::as_str) == Some(SPACE_MARK) && text(step, "content") == " "
    };
    let number = |step: &Value, key: &str| step.get(key).and_then(Value::as_u64);
    Ok(match types.as_slice() {
        ["ByteLevel"] => Decoding::ByteLevel { raw_added: false },
        ["Replace", "ByteFallback", "Fuse"] if is_mark(steps[0]) => Decoding::Marked { strip: false, raw_added: false },
        ["Replace", "ByteFallback", "Fuse", "Strip"]
            if is_mark(steps[0])
                && text(steps[3], "content") == " "
                && number(steps[3], "start") == Some(1)
                && number(steps[3], "stop") == Some(0) =>
        {
            Decoding::Marked { strip: true, raw_added: false }
        }
        ["Metaspace"] => {
            let mark = text(steps[0], "replacement");
            let never = text(steps[0], "prepend_scheme") == "never" || steps[0].get("add_prefix_space") == Some(&Value::Bool(false));
            match mark.chars().next() {
                Some(c) if mark.len() == c.len_utf8() => Decoding::Metaspace { mark: c, strip: !never },
                _ => return Err(bad("the mark of its Metaspace is not one letter")),
            }
        }
        _ => Decoding::Whole(Box::new(Some(serde_json::from_value(decoder).map_err(bad)?))),
    })
}
