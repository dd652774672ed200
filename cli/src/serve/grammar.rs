//! Grammars of answers: JSON by a schema, regular expressions, choices, grammars in Lark's notation and forced calls, by the crate llguidance. A grammar comes from a client: its size, its
//! compilation and the work for each token have limits, and what exceeds them fails alone.

use super::error::ApiError;
use super::format::Format;
use llguidance::api::{GrammarWithLexer, ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};
use std::sync::Arc;
use tensorlogic::serving::Constraint;
use tensorlogic::text::Tokenizer;
use tensorlogic::{TensorError, TensorResult};

/// White space between the parts of JSON: enough to indent, and an end to it, since small models write it forever where they may.
const WHITE_SPACE: &str = "[ \\n\\t]{0,16}";

/// Compiles grammars for a vocabulary.
pub struct Grammars {
    factory: ParserFactory,
    /// A token that the model does not have, which stands for its ends.
    end: u32,
}

impl Grammars {
    pub fn new(tokenizer: &Tokenizer) -> Result<Grammars, ApiError> {
        let end = tokenizer.vocab_size() as u32;
        let word = |id: u32| match tokenizer.is_special(id) {
            // What begins like this is no text.
            true => Ok([&[TokTrie::SPECIAL_TOKEN_MARKER], tokenizer.token(id).unwrap_or_default().as_bytes()].concat()),
            false => tokenizer.token_bytes(id),
        };
        let mut words = (0..end).map(word).collect::<TensorResult<Vec<_>>>()?;
        words.push([&[TokTrie::SPECIAL_TOKEN_MARKER], "<|end of the answer|>".as_bytes()].concat());
        let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, end), &words);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = llguidance::earley::SlicedBiasComputer::json_slices();
        let factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices);
        let mut factory = factory.map_err(|e| ApiError::internal(format!("grammars of this vocabulary: {e}")))?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits {
            initial_lexer_fuel: 500_000,
            step_lexer_fuel: 100_000,
            step_max_items: 25_000,
            max_lexer_states: 20_000,
            max_grammar_size: 100_000,
            precompute_large_lexemes: false,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        Ok(Grammars { factory, end })
    }

    /// Compiles what the field of this name asks for.
    pub fn compile(&self, format: &Format, name: &str) -> Result<Box<dyn Constraint>, ApiError> {
        let grammar = match format {
            Format::Regex(regex) => TopLevelGrammar::from_grammar(GrammarWithLexer::from_regex(regex)),
            Format::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
            Format::Schema(schema) => {
                let mut schema = match schema {
                    Value::Object(own) => Value::Object(own.clone()),
                    other => json!({ "allOf": [other] }),
                };
                schema["x-guidance"] = json!({ "whitespace_pattern": WHITE_SPACE });
                TopLevelGrammar::from_json_schema(schema)
            }
        };
        let matcher = Matcher::new(self.factory.create_parser(grammar));
        match matcher.get_error() {
            Some(e) => {
                let line = e.lines().next().unwrap_or_default();
                Err(ApiError::field(name, format!("{name}: {line}")).code("unsupported_grammar"))
            }
            None => Ok(Box::new(Grammar { matcher, end: self.end })),
        }
    }
}

/// A grammar on its way through an answer.
struct Grammar {
    matcher: Matcher,
    end: u32,
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Grammar")
    }
}

fn failed(e: impl std::fmt::Display) -> TensorError {
    TensorError::Value(format!("the grammar: {e}"))
}

impl Constraint for Grammar {
    fn allow(&mut self, tokens: &mut [u32]) -> TensorResult<bool> {
        let mask = self.matcher.compute_mask_or_eos().map_err(failed)?;
        tokens.iter_mut().zip(mask.as_slice()).for_each(|(to, from)| *to = *from);
        if let Some(word) = tokens.get_mut(self.end as usize / 32) {
            *word &= !(1 << (self.end % 32));
        }
        Ok(mask.is_allowed(self.end))
    }

    fn wrote(&mut self, token: u32) -> TensorResult<()> {
        self.matcher.consume_token(token).map_err(failed)
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(Grammar { matcher: self.matcher.deep_clone(), end: self.end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A vocabulary of letters, and one special token.
    fn grammars() -> (Grammars, Tokenizer) {
        let letters: serde_json::Map<String, Value> = (32..127u8)
            .filter(|&b| b != b' ')
            .map(|b| ((b as char).to_string(), Value::from(b - 33)))
            .chain([("Ġ".into(), 94.into())])
            .collect();
        let json = json!({ "version": "1.0", "added_tokens": [{ "id": 95, "content": "<|end|>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true }], "decoder": { "type": "ByteLevel" },
            "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false },
            "model": { "type": "BPE", "vocab": letters, "merges": [] } });
        let tokenizer = Tokenizer::from_json(json.to_string().as_bytes()).unwrap();
        (Grammars::new(&tokenizer).unwrap(), tokenizer)
    }

    /// Whether a text is of the format, and whole.
    fn takes(format: Format, text: &str) -> bool {
        let (grammars, tokenizer) = grammars();
        let mut grammar = grammars.compile(&format, "f").unwrap();
        for id in tokenizer.encode(text, false).unwrap() {
            let mut allowed = vec![0u32; 3];
            grammar.allow(&mut allowed).unwrap();
            assert_eq!(allowed[2] >> 31, 0, "the special token");
            if allowed[id as usize / 32] >> (id % 32) & 1 == 0 {
                return false;
            }
            grammar.wrote(id).unwrap();
        }
        grammar.allow(&mut [0; 3]).unwrap()
    }

    #[test]
    fn texts_are_of_their_grammar() {
        let object = || Format::Schema(json!({ "type": "object", "properties": { "a": { "type": "integer" } }, "required": ["a"] }));
        assert!(takes(object(), r#"{"a": 17, "b": [true]}"#));
        for text in ["{}", "[1]", r#"{"a": "x"}"#, r#"{"a": 1"#] {
            assert!(!takes(object(), text), "{text}");
        }
        let regex = || Format::Regex("[0-9]{3}-[a-z]+".into());
        assert!(takes(regex(), "123-ab") && !takes(regex(), "12-ab") && !takes(regex(), "123-"));
        assert!(takes(Format::choice(&["yes".into(), "n.".into()]), "n.") && !takes(Format::choice(&["yes".into()]), "no"));
        let sums = || Format::Lark("start: term (\"+\" term)*\nterm: NUMBER | \"(\" start \")\"\nNUMBER: /[0-9]+/\n".into());
        assert!(takes(sums(), "1+(2+34)+5") && !takes(sums(), "1+") && !takes(sums(), "(1") && !takes(sums(), "a"));
        // White space has an end.
        assert!(
            takes(object(), &format!("{{{}\"a\": 1}}", " ".repeat(16))) && !takes(object(), &format!("{{{}\"a\": 1}}", " ".repeat(17)))
        );
    }

    #[test]
    fn a_fork_goes_its_own_way() {
        let (grammars, tokenizer) = grammars();
        let mut one = grammars.compile(&Format::choice(&["ab".into(), "cd".into()]), "f").unwrap();
        let mut other = one.fork();
        let id = |s: &str| tokenizer.encode(s, false).unwrap()[0];
        one.wrote(id("a")).unwrap();
        other.wrote(id("c")).unwrap();
        one.wrote(id("b")).unwrap();
        other.wrote(id("d")).unwrap();
        assert!(one.allow(&mut [0; 3]).unwrap() && other.allow(&mut [0; 3]).unwrap());
    }

    #[test]
    fn hostile_grammars_fail() {
        let (grammars, _) = grammars();
        let wide: Vec<Value> = (0..20_000).map(|i| json!({ "const": format!("x{i}") })).collect();
        let all = [
            Format::Regex("(".into()),
            Format::Lark("start: a\na: a".into()),
            Format::Lark("start: start start | \"a\"".into()),
            Format::Lark(format!("start: {}\"a\"{}", "(".repeat(5_000), ")".repeat(5_000))),
            Format::Lark("start: %json { \"$ref\": \"file:///etc/passwd\" }".into()),
            Format::Regex("(a{1000}){1000}".into()),
            Format::Regex("((((a{0,99}){0,99}){0,99}){0,99}){0,99}b".into()),
            Format::Schema(json!({ "type": "string", "pattern": "(x+x+)+y{100000}" })),
            Format::Schema(json!({ "$ref": "http://127.0.0.1:1/a.json" })),
            Format::Schema(json!({ "type": "nothing" })),
            Format::Schema(json!({ "type": "array", "items": { "anyOf": wide }, "minItems": 100_000 })),
            Format::Schema(json!({ "type": "object", "unevaluatedProperties": { "not": { "type": "string" } } })),
        ];
        for format in all {
            let start = std::time::Instant::now();
            let shown: String = format!("{format:?}").chars().take(100).collect();
            // Either it is refused, or each step has its limit.
            if let Ok(mut grammar) = grammars.compile(&format, "response_format") {
                let _ = grammar.allow(&mut [0; 3]);
            }
            assert!(start.elapsed().as_secs() < 10, "{shown}: {:?}", start.elapsed());
        }
        let refused = |format: Format| grammars.compile(&format, "response_format").err().map(|e| (e.status.as_u16(), e.param));
        assert_eq!(refused(Format::Regex("(".into())), Some((400, Some("response_format".into()))));
        assert_eq!(refused(Format::Lark("root ::= \"a\"".into())), Some((400, Some("response_format".into()))));
        assert_eq!(refused(Format::Schema(json!({ "type": "nothing" }))), Some((400, Some("response_format".into()))));
    }
}
