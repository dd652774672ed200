//! Normalize, split, encode: the `tokenizers` crate's parts run in order, and the splits that GGUF files name.

use tokenizers::models::ModelWrapper;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, AddedVocabulary, Model, OffsetType, PreTokenizer, SplitDelimiterBehavior};

use crate::error::{TensorError, TensorResult};

/// The encoder of byte-level BPE and of every `tokenizer.json`.
pub(crate) struct Pipeline {
    /// Finds special tokens in the text; the second takes special ones as plain text.
    added: AddedVocabulary,
    added_plain: AddedVocabulary,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    model: ModelWrapper,
}

impl Pipeline {
    pub(crate) fn new(
        model: ModelWrapper,
        normalizer: Option<NormalizerWrapper>,
        pre_tokenizer: Option<PreTokenizerWrapper>,
        added_tokens: Vec<AddedToken>,
    ) -> TensorResult<Self> {
        let mut added = AddedVocabulary::new();
        added.add_tokens(added_tokens, &model, normalizer.as_ref()).map_err(failed)?;
        let mut added_plain = added.clone();
        added_plain.set_encode_special_tokens(true);
        Ok(Pipeline { added, added_plain, normalizer, pre_tokenizer, model })
    }

    pub(crate) fn encode(&self, text: &str, parse_special: bool, out: &mut Vec<u32>) -> TensorResult<()> {
        let added = if parse_special { &self.added } else { &self.added_plain };
        let mut pieces = added.extract_and_normalize(self.normalizer.as_ref(), text);
        if let Some(split) = &self.pre_tokenizer {
            split.pre_tokenize(&mut pieces).map_err(failed)?;
        }
        pieces.tokenize(|piece| self.model.tokenize(piece.get())).map_err(failed)?;
        out.extend_from_slice(pieces.into_encoding(None, 0, OffsetType::None).map_err(failed)?.get_ids());
        Ok(())
    }

    /// Added tokens with their ids, and the text that a decoder sees for them.
    pub(crate) fn added(&self) -> impl Iterator<Item = (u32, &AddedToken, String)> {
        self.added.get_added_tokens_decoder().iter().map(|(&id, token)| {
            let seen = self.added.simple_id_to_token(id).unwrap_or_else(|| token.content.clone());
            (id, token, seen)
        })
    }
}

fn failed(error: tokenizers::Error) -> TensorError {
    TensorError::format("tokenizer", error.to_string())
}

// The regular expressions below are the ones published with each model family.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

/// What `tokenizer.ggml.pre` stands for: regular expressions applied one after the other, and two habits of its family.
pub(crate) struct PreRules {
    pub(crate) splits: &'static [&'static str],
    /// A word that is a token is taken whole, whatever the merges say.
    pub(crate) ignore_merges: bool,
    /// Whether a file that does not say wants the begin token.
    pub(crate) add_bos: bool,
}

/// Names of `tokenizer.ggml.pre`, the texts that are split off one after the other, whether a word that is a token is taken whole, and whether files
/// that do not say want the begin token.
type PreRow = (&'static [&'static str], &'static [&'static str], bool, bool);

const PUNCTUATION: &str = r"[\p{P}\$\+<=>\^~\|]+";
const FALCON_PUNCTUATION: &str = r"[\p{P}\$\+<=>\^~\|`]+";

/// The pre-tokenizers that are known.
const PRE: [PreRow; 10] = [
    (&["default"], &[PUNCTUATION, GPT2, r"\p{N}+", "[0-9][0-9][0-9]"], false, false),
    (
        &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
            "gigachat",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
            "jina-v2-code",
            "roberta-bpe",
            "modern-bert",
        ],
        &[GPT2],
        false,
        false,
    ),
    (&["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"], &[r"\p{N}", GPT2], false, false),
    (&["llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "lfm2", "midm-2.0"], &[LLAMA3], true, true),
    (&["dbrx", "smaug-bpe", "chatglm-bpe", "glm4"], &[LLAMA3], false, false),
    (&["qwen2", "stablelm2", "deepseek-r1-qwen", "megrez", "hunyuan"], &[QWEN2], false, false),
    (&["falcon"], &[FALCON_PUNCTUATION, GPT2, "[0-9][0-9][0-9]"], false, false),
    (&["deepseek-v3", "hunyuan-dense"], &[r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3], false, false),
    (&["gpt-4o", "llama4", "kanana2"], &[GPT4O], false, false),
    (&["tekken"], &[TEKKEN], true, true),
];

/// The names that [`pre_rules`] knows, for error messages.
pub(crate) fn pre_names() -> String {
    PRE.iter().flat_map(|(names, ..)| *names).copied().collect::<Vec<_>>().join(", ")
}

/// The rules of a `tokenizer.ggml.pre` name.
pub(crate) fn pre_rules(name: &str) -> Option<PreRules> {
    let (_, splits, ignore_merges, add_bos) = PRE.iter().find(|(names, ..)| names.contains(&name))?;
    Some(PreRules { splits, ignore_merges: *ignore_merges, add_bos: *add_bos })
}

/// The `tokenizer.ggml.pre` name of a `tokenizer.json`'s pre-tokenizer.
pub(crate) fn pre_name(pre: &serde_json::Value, ignore_merges: bool) -> Option<&'static str> {
    const NAMES: [&str; 9] = ["gpt-2", "smollm", "llama-bpe", "dbrx", "qwen2", "gpt-4o", "tekken", "deepseek-v3", "falcon"];
    let steps = match pre["pretokenizers"].as_array() {
        Some(list) => list.as_slice(),
        None => std::slice::from_ref(pre),
    };
    let mut splits = Vec::new();
    for s in steps {
        match s["type"].as_str()? {
            "Split" => splits.push(s["pattern"]["Regex"].as_str()?),
            "Digits" if s["individual_digits"] == true => splits.push(r"\p{N}"),
            "ByteLevel" if s["add_prefix_space"] == true => return None,
            "ByteLevel" if s["use_regex"] != false => splits.push(GPT2),
            "ByteLevel" => {}
            _ => return None,
        }
    }
    NAMES.into_iter().find(|name| pre_rules(name).is_some_and(|r| r.splits == splits && r.ignore_merges == ignore_merges))
}

impl PreRules {
    /// The splits, then the mapping of bytes to letters.
    pub(crate) fn pre_tokenizer(&self) -> TensorResult<PreTokenizerWrapper> {
        let mut steps: Vec<PreTokenizerWrapper> = Vec::new();
        for regex in self.splits {
            let split = Split::new(SplitPattern::Regex(regex.to_string()), SplitDelimiterBehavior::Isolated, false).map_err(failed)?;
            steps.push(split.into());
        }
        steps.push(ByteLevel::new(false, false, false).into());
        Ok(Sequence::new(steps).into())
    }
}
