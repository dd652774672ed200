//! `Tokenizer`: text to token ids and back, from a `tokenizer.json` or from a GGUF file's metadata.

use std::borrow::Cow;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::OnceLock;

use tokenizers::models::bpe::BPE;
use tokenizers::{AddedToken, Decoder};

use super::bigram::{Bigram, SPACE_MARK};
use super::hub::{self, Decoding, PairPiece};
use super::pipeline::{Pipeline, pre_names, pre_rules};
use super::vocabulary::{Kind, Vocabulary};
use crate::error::{TensorError, TensorResult};

/// What a tokenizer reads of a GGUF file's metadata. A value of another type counts as absent.
pub trait TokenizerMetadata {
    /// A string.
    fn str(&self, key: &str) -> Option<&str>;
    /// An unsigned integer of any width.
    fn u64(&self, key: &str) -> Option<u64>;
    /// A boolean.
    fn bool(&self, key: &str) -> Option<bool>;
    /// An array of strings.
    fn strings(&self, key: &str) -> Option<Vec<Cow<'_, str>>>;
    /// An array of 32-bit integers.
    fn i32s(&self, key: &str) -> Option<Cow<'_, [i32]>>;
    /// An array of 32-bit floats.
    fn f32s(&self, key: &str) -> Option<Cow<'_, [f32]>>;
}

/// Text to token ids and back.
pub struct Tokenizer {
    vocabulary: Vocabulary,
    encoder: Encoder,
    decoding: Decoding,
    /// Added tokens that decode to something else than their text.
    renamed: HashMap<u32, String>,
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    /// How two texts are one input.
    pair: Option<Vec<PairPiece>>,
    bos: Option<u32>,
    /// The end token that the files name first.
    eos: Option<u32>,
    end_tokens: Vec<u32>,
}

enum Encoder {
    Pipeline(Box<Pipeline>),
    Bigram(Box<Bigram>),
}

/// Texts of tokens that end an answer in published models, whatever the metadata says.
const END_TEXTS: [&str; 20] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<turn|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
    "<|END_OF_TURN_TOKEN|>",
    "<|EOT|>",
];

impl Tokenizer {
    /// Reads a `tokenizer.json`. The begin and end tokens come from a `tokenizer_config.json` in the same folder, if there is one.
    ///
    /// # Errors
    /// [`TensorError::Io`] where the file cannot be read; those of [`Tokenizer::from_json`].
    ///
    /// ```
    /// use tensorlogic::text::{Tokenizer, learn};
    ///
    /// let folder = std::env::temp_dir().join(format!("tl-doc-tokenizer-{}", std::process::id()));
    /// std::fs::create_dir_all(&folder)?;
    /// std::fs::write(folder.join("tokenizer.json"), learn::characters(["ab."])?)?;
    /// std::fs::write(folder.join("tokenizer_config.json"), r#"{"eos_token": "."}"#)?;
    /// let tokenizer = Tokenizer::from_file(folder.join("tokenizer.json"))?;
    /// assert_eq!((tokenizer.encode("ab.", false)?, tokenizer.eos()), (vec![1, 2, 0], Some(0)));
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_file(path: impl AsRef<Path>) -> TensorResult<Self> {
        let path = path.as_ref();
        let bytes = std::fs::read(path).map_err(|e| TensorError::io(path, e))?;
        let mut tokenizer = Self::from_json(&bytes)?;
        let config = path.with_file_name("tokenizer_config.json");
        if let Some(config) = std::fs::read(config).ok().and_then(|b| serde_json::from_slice::<serde_json::Value>(&b).ok()) {
            let token = |key: &str| {
                let value = config.get(key)?;
                tokenizer.id(value.as_str().or_else(|| value.get("content")?.as_str())?)
            };
            let (bos, eos) = (token("bos_token"), token("eos_token"));
            tokenizer.bos = bos.or(tokenizer.bos);
            tokenizer.eos = eos;
            eos.into_iter().for_each(|id| tokenizer.add_end_token(id));
        }
        Ok(tokenizer)
    }

    /// Reads the bytes of a `tokenizer.json`.
    ///
    /// # Errors
    /// [`TensorError::Format`] where the file is not valid JSON, has parts that do not fit together, or names a model or a step that is
    /// unknown.
    ///
    /// ```
    /// use tensorlogic::text::Tokenizer;
    ///
    /// let json = r#"{"pre_tokenizer": {"type": "WhitespaceSplit"},
    ///     "model": {"type": "WordLevel", "vocab": {"hello": 0, "world": 1, "<unk>": 2}}}"#;
    /// let tokenizer = Tokenizer::from_json(json.as_bytes())?;
    /// assert_eq!(tokenizer.encode("hello new world", false)?, [0, 2, 1]);
    /// assert!(Tokenizer::from_json(b"{}").is_err());
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn from_json(bytes: &[u8]) -> TensorResult<Self> {
        let hub = guarded(|| hub::read(bytes))?;
        let bos = hub.prefix.first().copied();
        let mut tokenizer = Tokenizer {
            vocabulary: hub.vocabulary,
            encoder: Encoder::Pipeline(Box::new(hub.pipeline)),
            decoding: hub.decoding,
            renamed: hub.renamed.into_iter().collect(),
            prefix: hub.prefix,
            suffix: hub.suffix,
            pair: hub.pair,
            bos,
            eos: None,
            end_tokens: Vec::new(),
        };
        tokenizer.add_known_end_tokens();
        Ok(tokenizer)
    }

    /// Reads the `tokenizer.ggml.*` keys of a GGUF file: byte-level BPE (`gpt2`) and SentencePiece BPE (`llama`).
    /// An unknown pre-tokenizer is an error, see [`Tokenizer::from_gguf_as`].
    ///
    /// # Errors
    /// Those of [`Tokenizer::from_gguf_as`].
    ///
    /// ```
    /// use tensorlogic::{io::Gguf, text::Tokenizer};
    ///
    /// let tokenizer = Tokenizer::from_gguf(&Gguf::open("models/tiny/tiny.gguf")?)?; // 65 characters
    /// assert_eq!(tokenizer.encode("ROMEO:", false)?, [30, 27, 25, 17, 27, 10]);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn from_gguf(metadata: &dyn TokenizerMetadata) -> TensorResult<Self> {
        Self::from_gguf_as(metadata, metadata.str("tokenizer.ggml.pre").unwrap_or("default"))
    }

    /// Like [`Tokenizer::from_gguf`] with another `tokenizer.ggml.pre`. `default` splits words well enough for any byte-level
    /// vocabulary, but some texts then become other tokens than the model was trained with.
    ///
    /// # Errors
    /// [`TensorError::Format`] where a key is missing or keys do not fit together; [`TensorError::Unsupported`] for a model other than
    /// `gpt2` and `llama`, or an unknown pre-tokenizer.
    ///
    /// ```
    /// use tensorlogic::{TensorError, io::Gguf, text::Tokenizer};
    ///
    /// let file = Gguf::open("models/tiny/tiny.gguf")?;
    /// assert!(matches!(Tokenizer::from_gguf_as(&file, "unheard-of"), Err(TensorError::Unsupported(_))));
    /// assert_eq!(Tokenizer::from_gguf_as(&file, "default")?.encode("ROMEO:", false)?, [30, 27, 25, 17, 27, 10]);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn from_gguf_as(metadata: &dyn TokenizerMetadata, pre: &str) -> TensorResult<Self> {
        let model = metadata.str("tokenizer.ggml.model").ok_or_else(|| bad("the file has no tokenizer.ggml.model"))?;
        let tokens = metadata.strings("tokenizer.ggml.tokens").ok_or_else(|| bad("the file has no tokenizer.ggml.tokens"))?;
        let types = metadata.i32s("tokenizer.ggml.token_type").unwrap_or_default();
        if !types.is_empty() && types.len() != tokens.len() {
            return Err(bad(format!("{} token types for {} tokens", types.len(), tokens.len())));
        }
        let kind = |(id, text): (usize, &Cow<'_, str>)| match types.get(id) {
            Some(2) => Kind::Unknown,
            Some(3) => Kind::Control,
            // Files exist that forgot to mark the end of a turn as control token. Gemma's `</s>` is really an HTML tag.
            Some(4) if (text.starts_with("<|") || **text == *"<end_of_turn>") && END_TEXTS.contains(&&**text) => Kind::Control,
            Some(4) => Kind::User,
            Some(5) => Kind::Unused,
            Some(6) => byte_of(text).map_or(Kind::Normal, Kind::Byte),
            _ => Kind::Normal,
        };
        let vocabulary = Vocabulary::from_entries(tokens.iter().enumerate().map(|t| (t.1, kind(t))))?;
        let special = |name: &str| -> TensorResult<Option<u32>> {
            let key = format!("tokenizer.ggml.{name}_token_id");
            let Some(id) = metadata.u64(&key) else { return Ok(None) };
            match u32::try_from(id).ok().filter(|&id| vocabulary.get(id).is_some()) {
                Some(id) => Ok(Some(id)),
                None => Err(bad(format!("{key} is {id}, but there are {} tokens", vocabulary.len()))),
            }
        };
        let flag = |name: &str, otherwise: bool| metadata.bool(&format!("tokenizer.ggml.{name}")).unwrap_or(otherwise);

        let (encoder, decoding, default_bos, add_bos) = match model {
            "gpt2" => {
                let rules = pre_rules(pre).ok_or_else(|| {
                    TensorError::Unsupported(format!(
                        "the pre-tokenizer {pre:?} of tokenizer.ggml.pre; supported: {}. `from_gguf_as(…, \"default\")` comes close",
                        pre_names()
                    ))
                })?;
                let merges = metadata.strings("tokenizer.ggml.merges").ok_or_else(|| bad("the file has no tokenizer.ggml.merges"))?;
                let pipeline = byte_level_bpe(&vocabulary, &merges, rules.ignore_merges, rules.pre_tokenizer()?)?;
                (Encoder::Pipeline(Box::new(pipeline)), Decoding::ByteLevel { raw_added: true }, None, rules.add_bos)
            }
            "llama" => {
                let scores = metadata.f32s("tokenizer.ggml.scores").ok_or_else(|| bad("the file has no tokenizer.ggml.scores"))?;
                let space = flag("add_space_prefix", true);
                let bigram = Bigram::new(&vocabulary, scores.into_owned(), special("unknown")?, space)?;
                (Encoder::Bigram(Box::new(bigram)), Decoding::Marked { strip: space, raw_added: true }, vocabulary.id("<s>"), true)
            }
            other => return Err(TensorError::Unsupported(format!("the tokenizer model {other:?}; supported: gpt2 and llama"))),
        };
        let bos = special("bos")?.or(default_bos);
        let eos = special("eos")?;
        let prefix = bos.filter(|_| flag("add_bos_token", add_bos)).into_iter().collect();
        let suffix = eos.filter(|_| flag("add_eos_token", false)).into_iter().collect();
        let end_tokens = [eos, special("eot")?, special("eom")?].into_iter().flatten().collect();
        let renamed = HashMap::new();
        let mut tokenizer = Tokenizer { vocabulary, encoder, decoding, renamed, prefix, suffix, pair: None, bos, eos, end_tokens };
        tokenizer.end_tokens.sort_unstable();
        tokenizer.end_tokens.dedup();
        tokenizer.add_known_end_tokens();
        Ok(tokenizer)
    }

    /// The ids of `text`. `add_special` adds the begin and end tokens that the tokenizer requires.
    /// Special tokens written out in the text count as special; see [`Tokenizer::encode_with`] for text of strangers.
    ///
    /// # Errors
    /// Those of [`Tokenizer::encode_with`].
    ///
    /// ```
    /// use tensorlogic::text::Tokenizer;
    ///
    /// let json = r#"{"pre_tokenizer": {"type": "WhitespaceSplit"}, "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "<unk>": 2,
    ///     "[CLS]": 3, "[SEP]": 4}}, "post_processor": {"type": "BertProcessing", "cls": ["[CLS]", 3], "sep": ["[SEP]", 4]}}"#;
    /// let tokenizer = Tokenizer::from_json(json.as_bytes())?;
    /// assert_eq!(tokenizer.encode("a b", false)?, [0, 1]);
    /// assert_eq!(tokenizer.encode("a b", true)?, [3, 0, 1, 4]);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn encode(&self, text: &str, add_special: bool) -> TensorResult<Vec<u32>> {
        self.encode_with(text, add_special, true)
    }

    /// Like [`Tokenizer::encode`]. Without `parse_special`, `<|im_end|>` in the text is letters, not the end of a turn.
    ///
    /// # Errors
    /// [`TensorError::Value`] where a SentencePiece vocabulary has no token for a part of the text and none for unknown text;
    /// [`TensorError::Format`] where a step of another tokenizer refuses the text.
    ///
    /// ```
    /// use tensorlogic::text::{Tokenizer, learn};
    ///
    /// let tokenizer = Tokenizer::from_json(&learn::byte_pairs(["text"], 257)?)?; // every byte is a token
    /// assert_eq!(tokenizer.encode_with("<|endoftext|>", false, true)?, [0]);
    /// assert_eq!(tokenizer.encode_with("<|endoftext|>", false, false)?.len(), 13); // letters
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn encode_with(&self, text: &str, add_special: bool, parse_special: bool) -> TensorResult<Vec<u32>> {
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        if add_special {
            ids.extend_from_slice(&self.prefix);
        }
        match &self.encoder {
            Encoder::Pipeline(pipeline) => guarded(|| pipeline.encode(text, parse_special, &mut ids))?,
            Encoder::Bigram(bigram) => bigram.encode(&self.vocabulary, text, parse_special, &mut ids)?,
        }
        if add_special {
            ids.extend_from_slice(&self.suffix);
        }
        Ok(ids)
    }

    /// The ids of a text with the begin and end tokens that the tokenizer requires, at most `max` of them: the end of a longer text is left out, as
    /// sentence-transformers does. The second value says whether all of it is there.
    ///
    /// # Errors
    /// Those of [`Tokenizer::encode_with`]; [`TensorError::Value`] where the special tokens alone exceed `max`.
    ///
    /// ```
    /// # use tensorlogic::text::Tokenizer;
    /// let json = r#"{"version": "1.0", "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "<unk>": 2,
    ///     "[CLS]": 3, "[SEP]": 4}}, "post_processor": {"type": "BertProcessing", "cls": ["[CLS]", 3], "sep": ["[SEP]", 4]}}"#;
    /// let tokenizer = Tokenizer::from_json(json.as_bytes())?;
    /// assert_eq!(tokenizer.encode_up_to("a b a b", 4)?, (vec![3, 0, 1, 4], false));
    /// assert_eq!(tokenizer.encode_pair("a", "b", None)?.1, [0, 0, 0, 1, 1]); // [CLS] a [SEP] b [SEP]
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn encode_up_to(&self, text: &str, max: usize) -> TensorResult<(Vec<u32>, bool)> {
        let ids = self.encode_with(text, false, true)?;
        let room = text_tokens_left(max, self.prefix.len() + self.suffix.len())?;
        let kept = &ids[..ids.len().min(room)];
        Ok(([&self.prefix, kept, &self.suffix].concat(), kept.len() == ids.len()))
    }

    /// The ids of two texts as one input, as models that compare texts read them, and of each whether it counts as of the first text (0) or of the second
    /// one (1). With `max`, tokens are taken from the end of the longer text until the rest has no more, special tokens included. The last value says
    /// whether both texts are whole.
    ///
    /// # Errors
    /// Those of [`Tokenizer::encode_with`]; [`TensorError::Unsupported`] where the tokenizer's file does not say how two texts are joined;
    /// [`TensorError::Value`] where `max` has no room for text.
    ///
    /// ```
    /// use tensorlogic::text::Tokenizer;
    ///
    /// let json = r#"{"pre_tokenizer": {"type": "WhitespaceSplit"}, "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "<unk>": 2,
    ///     "[CLS]": 3, "[SEP]": 4}}, "post_processor": {"type": "BertProcessing", "cls": ["[CLS]", 3], "sep": ["[SEP]", 4]}}"#;
    /// let tokenizer = Tokenizer::from_json(json.as_bytes())?;
    /// let (ids, kinds, whole) = tokenizer.encode_pair("a", "b b", Some(5))?; // room for one b
    /// assert_eq!((ids, kinds, whole), (vec![3, 0, 4, 1, 4], vec![0, 0, 0, 1, 1], false));
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn encode_pair(&self, first: &str, second: &str, max: Option<usize>) -> TensorResult<(Vec<u32>, Vec<u8>, bool)> {
        let unknown = || TensorError::Unsupported("the tokenizer's file does not define how a pair of texts is joined".into());
        let pieces = self.pair.as_ref().ok_or_else(unknown)?;
        let [mut a, mut b] = [self.encode_with(first, false, true)?, self.encode_with(second, false, true)?];
        let whole = (a.len(), b.len());
        if let Some(max) = max {
            let room = text_tokens_left(max, pieces.iter().filter(|p| matches!(p, PairPiece::Token(..))).count())?;
            // As the `tokenizers` crate does: the longer one is cut first, then both to a half each.
            let (short, long) = (whole.0.min(whole.1), whole.0.max(whole.1));
            let long = if short > room { short } else { long.min(short.max(room - short)) };
            let (short, long) = if short + long > room { (room / 2, room / 2 + room % 2) } else { (short, long) };
            let (n, m) = if whole.0 > whole.1 { (long, short) } else { (short, long) };
            a.truncate(n);
            b.truncate(m);
        }
        let (mut ids, mut kinds) = (Vec::new(), Vec::new());
        for piece in pieces {
            let (part, kind) = match piece {
                PairPiece::First(kind) => (&a[..], kind),
                PairPiece::Second(kind) => (&b[..], kind),
                PairPiece::Token(id, kind) => (std::slice::from_ref(id), kind),
            };
            ids.extend_from_slice(part);
            kinds.resize(ids.len(), *kind);
        }
        Ok((ids, kinds, (a.len(), b.len()) == whole))
    }

    /// The characters of a text that the vocabulary cannot write, in the order in which they first come: encoding leaves them out, or puts its
    /// token for unknown text there. White space that a tokenizer of words leaves out does not count.
    ///
    /// # Errors
    /// Those of [`Tokenizer::encode`].
    ///
    /// ```
    /// use tensorlogic::text::{Tokenizer, learn};
    ///
    /// let tokenizer = Tokenizer::from_json(&learn::characters(["hello"])?)?;
    /// assert_eq!(tokenizer.unknown_characters("höhle!")?, ['ö', '!']);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn unknown_characters(&self, text: &str) -> TensorResult<Vec<char>> {
        let mut seen = std::collections::HashSet::new();
        let mut unknown = Vec::new();
        for c in text.chars().filter(|&c| seen.insert(c)) {
            let ids = self.encode_with(c.encode_utf8(&mut [0; 4]), false, false)?;
            let stands_in = |t: &str| matches!(t, "<unk>" | "[UNK]" | "<|unk|>" | "<UNK>");
            let known = match ids[..] {
                [] => {
                    c.is_whitespace() && (0..self.vocab_size() as u32).any(|id| self.token(id).is_some_and(|t| t.chars().nth(1).is_some()))
                }
                [id] => !self.token(id).is_some_and(stands_in),
                _ => true,
            };
            if !known {
                unknown.push(c);
            }
        }
        Ok(unknown)
    }

    /// One more than the highest id.
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.len()
    }

    /// The begin token, whether or not encoding adds it.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// Whether `encode(…, true)` starts with the begin token.
    pub fn adds_bos(&self) -> bool {
        self.bos.is_some() && self.prefix.first() == self.bos.as_ref()
    }

    /// The end token that templates write: the one that the files name, else the first of [`Tokenizer::end_tokens`].
    pub fn eos(&self) -> Option<u32> {
        self.eos.or(self.end_tokens.first().copied())
    }

    /// Every token that ends an answer, in ascending order.
    pub fn end_tokens(&self) -> &[u32] {
        &self.end_tokens
    }

    /// Adds an end token that only another file names, such as `generation_config.json`. Ids outside the vocabulary are left out.
    pub fn add_end_token(&mut self, id: u32) {
        if let Err(place) = self.end_tokens.binary_search(&id)
            && self.vocabulary.get(id).is_some()
        {
            self.end_tokens.insert(place, id);
        }
    }

    /// The id of a token by its text as the vocabulary writes it.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.vocabulary.id(token)
    }

    /// A token's text as the vocabulary writes it.
    pub fn token(&self, id: u32) -> Option<&str> {
        Some(&self.vocabulary.get(id)?.text)
    }

    /// The bytes that a token stands for within a text, which may be a part of a character; those of a special token are its name.
    ///
    /// # Errors
    /// [`TensorError::Value`] where the id is not in the vocabulary.
    ///
    /// ```
    /// # use tensorlogic::{Device, models::Weights, text::Tokenizer};
    /// let file = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny/tiny.gguf");
    /// let tokenizer = Tokenizer::from_gguf(Weights::open(file, &Device::cpu())?.gguf().unwrap())?;
    /// let ids = tokenizer.encode("ROMEO", false)?;
    /// let bytes: Vec<u8> = ids.iter().map(|&id| tokenizer.token_bytes(id)).collect::<Result<Vec<_>, _>>()?.concat();
    /// assert_eq!(bytes, b"ROMEO");
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn token_bytes(&self, id: u32) -> TensorResult<Vec<u8>> {
        let mut bytes = Vec::new();
        self.piece(id, false, false, &mut bytes)?;
        Ok(bytes)
    }

    /// Whether a token is hidden when special tokens are skipped.
    pub fn is_special(&self, id: u32) -> bool {
        self.vocabulary.get(id).is_some_and(|e| e.kind.is_special())
    }

    fn add_known_end_tokens(&mut self) {
        // In OpenAI's harmony format a message ends where the answer may go on with another one.
        let harmony = ["<|return|>", "<|call|>", "<|channel|>"].iter().all(|t| self.vocabulary.id(t).is_some());
        for text in END_TEXTS.into_iter().filter(|t| !(harmony && *t == "<|end|>")) {
            if let Some(id) = self.vocabulary.id(text).filter(|&id| self.is_special(id)) {
                self.add_end_token(id);
            }
        }
    }

    /// Whether decoding goes token by token.
    pub(crate) fn decodes_by_token(&self) -> bool {
        !matches!(self.decoding, Decoding::Whole(_))
    }

    /// Appends the bytes of one token to `out`. `start`: nothing has been decoded before it.
    pub(crate) fn piece(&self, id: u32, skip_special: bool, start: bool, out: &mut Vec<u8>) -> TensorResult<()> {
        let entry = self
            .vocabulary
            .get(id)
            .ok_or_else(|| TensorError::Value(format!("token id {id} is not in the vocabulary of {} tokens", self.vocab_size())))?;
        if skip_special && entry.kind.is_special() {
            return Ok(());
        }
        let text = self.renamed.get(&id).map_or(&*entry.text, String::as_str);
        let added = matches!(entry.kind, Kind::Control | Kind::Unknown | Kind::User);
        match &self.decoding {
            Decoding::ByteLevel { raw_added: true } | Decoding::Marked { raw_added: true, .. } if added => {
                out.extend_from_slice(text.as_bytes());
            }
            Decoding::ByteLevel { .. } => {
                let before = out.len();
                for c in text.chars() {
                    match byte_of_letter(c) {
                        Some(byte) => out.push(byte),
                        None => {
                            out.truncate(before);
                            out.extend_from_slice(text.as_bytes());
                            break;
                        }
                    }
                }
            }
            Decoding::Marked { strip, .. } => match byte_of(text) {
                Some(b' ') if *strip && start => {}
                Some(byte) => out.push(byte),
                None => {
                    let mut rest = text;
                    if *strip && start {
                        rest = rest.strip_prefix(SPACE_MARK).or_else(|| rest.strip_prefix(' ')).unwrap_or(rest);
                    }
                    for (i, part) in rest.split(SPACE_MARK).enumerate() {
                        if i > 0 {
                            out.push(b' ');
                        }
                        out.extend_from_slice(part.as_bytes());
                    }
                }
            },
            Decoding::Metaspace { mark, strip } => {
                for c in text.chars() {
                    if c != *mark {
                        out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                    } else if !(*strip && start) {
                        out.push(b' ');
                    }
                }
            }
            Decoding::Whole(_) => out.extend_from_slice(text.as_bytes()),
        }
        Ok(())
    }

    /// Decodes a whole list where tokens cannot be decoded one by one.
    pub(crate) fn decode_whole(&self, ids: &[u32], skip_special: bool) -> TensorResult<String> {
        let mut tokens = Vec::with_capacity(ids.len());
        for &id in ids {
            let mut bytes = Vec::new();
            self.piece(id, skip_special, false, &mut bytes)?;
            if !(skip_special && self.is_special(id)) {
                tokens.push(String::from_utf8_lossy(&bytes).into_owned());
            }
        }
        match &self.decoding {
            Decoding::Whole(decoder) => match &**decoder {
                Some(decoder) => guarded(|| decoder.decode(tokens).map_err(|e| TensorError::format("tokenizer", e.to_string()))),
                None => Ok(tokens.join(" ")),
            },
            _ => Ok(tokens.concat()),
        }
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("bos", &self.bos)
            .field("end_tokens", &self.end_tokens)
            .finish()
    }
}

fn byte_level_bpe(
    vocabulary: &Vocabulary,
    merges: &[Cow<'_, str>],
    ignore_merges: bool,
    pre_tokenizer: tokenizers::PreTokenizerWrapper,
) -> TensorResult<Pipeline> {
    let mut pairs = Vec::with_capacity(merges.len());
    let mut joined = String::new();
    for merge in merges {
        // A token may itself contain spaces, so try every place to cut.
        let cut = merge.char_indices().filter(|&(i, c)| c == ' ' && i > 0).map(|(i, _)| (&merge[..i], &merge[i + 1..])).find(|(a, b)| {
            joined.clear();
            joined.push_str(a);
            joined.push_str(b);
            [a, *b, joined.as_str()].iter().all(|t| vocabulary.id(t).is_some())
        });
        match cut {
            Some((a, b)) => pairs.push((a.to_string(), b.to_string())),
            None => return Err(bad(format!("the merge {merge:?} is not two tokens of the vocabulary that make a third"))),
        }
    }
    let added = vocabulary
        .iter()
        .filter(|(_, e)| matches!(e.kind, Kind::Control | Kind::User | Kind::Unknown))
        .map(|(_, e)| AddedToken::from(&*e.text, e.kind.is_special()).normalized(false))
        .collect();
    let ids = vocabulary.iter().map(|(id, e)| (e.text.to_string(), id)).collect::<tokenizers::models::bpe::Vocab>();
    let bpe = BPE::builder().vocab_and_merges(ids, pairs).ignore_merges(ignore_merges).build().map_err(|e| bad(e.to_string()))?;
    Pipeline::new(bpe.into(), None, Some(pre_tokenizer), added)
}

/// The byte that a token such as `<0x0A>` stands for.
fn byte_of(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (hex.len() == 2).then(|| u8::from_str_radix(hex, 16).ok())?
}

/// The byte behind a letter of GPT-2's alphabet: printable Latin-1 stands for itself, the other 68 bytes follow from U+0100 on.
fn byte_of_letter(letter: char) -> Option<u8> {
    static HIDDEN: OnceLock<Vec<u8>> = OnceLock::new();
    let shown = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    match u8::try_from(letter) {
        Ok(byte) => shown(byte).then_some(byte),
        Err(_) => {
            let hidden = HIDDEN.get_or_init(|| (0..=255).filter(|&b| !shown(b)).collect());
            hidden.get((letter as usize).checked_sub(256)?).copied()
        }
    }
}

/// The letter that stands for a byte: the reverse of [`byte_of_letter`].
pub(crate) fn letter_of_byte(byte: u8) -> char {
    let shown = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if shown(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&b| !shown(b)).count() as u32;
    char::from_u32(256 + before).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// Tokens of text that fit in addition to `special` ones.
fn text_tokens_left(max: usize, special: usize) -> TensorResult<usize> {
    let none = || TensorError::Value(format!("{max} tokens have no room for text next to {special} special ones"));
    max.checked_sub(special).filter(|&n| n > 0).ok_or_else(none)
}

fn bad(message: impl Into<String>) -> TensorError {
    TensorError::format("tokenizer", message)
}

/// Turns a panic of the crate behind into an error: input is checked beforehand, this is the second line.
fn guarded<T>(work: impl FnOnce() -> TensorResult<T>) -> TensorResult<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(TensorError::Internal("tokenizer: an internal error, caught".to_string())))
}

impl TokenizerMetadata for crate::io::Gguf {
    fn str(&self, key: &str) -> Option<&str> {
        crate::io::Gguf::str(self, key).ok()
    }
    fn u64(&self, key: &str) -> Option<u64> {
        crate::io::Gguf::u64(self, key).ok()
    }
    fn bool(&self, key: &str) -> Option<bool> {
        crate::io::Gguf::bool(self, key).ok()
    }
    fn strings(&self, key: &str) -> Option<Vec<Cow<'_, str>>> {
        Some(self.strs(key).ok()?.into_iter().map(Cow::Borrowed).collect())
    }
    fn i32s(&self, key: &str) -> Option<Cow<'_, [i32]>> {
        crate::io::Gguf::i32s(self, key).ok().map(Cow::Owned)
    }
    fn f32s(&self, key: &str) -> Option<Cow<'_, [f32]>> {
        crate::io::Gguf::f32s(self, key).ok().map(Cow::Owned)
    }
}
