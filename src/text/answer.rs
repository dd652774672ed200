//! `AnswerReader`: the tokens of an answer as text, thoughts and tool calls, by the marks that a model's vocabulary or chat template has.

use super::chat::ChatTemplate;
use super::stream::StreamDecoder;
use super::tokenizer::Tokenizer;
use super::tool_call::{ToolCall, tool_calls};
use crate::error::TensorResult;
use std::ops::Deref;

/// A part of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum AnswerPart {
    /// Text of the answer, a few words at a time.
    Text(String),
    /// What the model thinks before or between, without its marks; a few words at a time.
    Thought(String),
    /// Calls of functions, whole.
    Calls {
        /// What the model wrote, without its marks.
        written: String,
        /// The calls that it means; empty where the notation is not known.
        calls: Vec<ToolCall>,
    },
}

/// What stands between two marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Thought,
    Calls,
    /// The header of a message in OpenAI's harmony format, which says what the message is.
    Header,
}

/// Where a block begins and ends, and what it is.
type Mark = (&'static str, &'static str, Block);

/// Marks that begin and end a block, as published models write them. A block without an end goes on to the end of the answer.
const MARKS: [Mark; 18] = [
    ("<think>", "</think>", Block::Thought),
    ("[THINK]", "[/THINK]", Block::Thought),
    ("<seed:think>", "</seed:think>", Block::Thought),
    ("<thought>", "</thought>", Block::Thought),
    ("<|START_THINKING|>", "<|END_THINKING|>", Block::Thought),
    ("<|inner_prefix|>", "<|inner_suffix|>", Block::Thought),
    ("<|channel>thought", "<channel|>", Block::Thought),
    ("<tool_call>", "</tool_call>", Block::Calls),
    ("<|tool_call_start|>", "<|tool_call_end|>", Block::Calls),
    ("<|tool_call>", "<tool_call|>", Block::Calls),
    ("<|START_ACTION|>", "<|END_ACTION|>", Block::Calls),
    ("<|tools_prefix|>", "<|tools_suffix|>", Block::Calls),
    ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", Block::Calls),
    ("<|tool_call|>", "<|/tool_call|>", Block::Calls),
    ("[TOOL_CALLS]", "", Block::Calls),
    ("<|python_tag|>", "", Block::Calls),
    ("<|channel|>", "<|message|>", Block::Header),
    ("<|start|>", "<|channel|>", Block::Header),
];

/// The token that ends a message of harmony's; another one of the same answer may follow.
const END_OF_MESSAGE: &str = "<|end|>";

/// Reads the tokens of one answer.
///
/// ```
/// use tensorlogic::text::{AnswerPart, AnswerReader, Tokenizer};
///
/// let json = r#"{"version": "1.0", "added_tokens": [{"id": 3, "content": "<think>", "single_word": false, "lstrip": false, "rstrip": false,
///     "normalized": false, "special": true}, {"id": 4, "content": "</think>", "single_word": false, "lstrip": false, "rstrip": false,
///     "normalized": false, "special": true}], "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": {"h": 0, "m": 1, "!": 2}, "merges": []}}"#;
/// let tokenizer = Tokenizer::from_json(json.as_bytes())?;
/// let mut reader = AnswerReader::new(&tokenizer, None);
/// let mut parts = Vec::new();
/// for token in [3, 0, 1, 4, 2] {
///     parts.extend(reader.push(token)?);
/// }
/// parts.extend(reader.finish()?);
/// assert_eq!(parts, [AnswerPart::Thought("h".into()), AnswerPart::Thought("m".into()), AnswerPart::Text("!".into())]);
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
pub struct AnswerReader<T: Deref<Target = Tokenizer>> {
    tokenizer: T,
    stream: StreamDecoder<T>,
    /// The marks that this model knows.
    marks: Vec<Mark>,
    state: State,
    /// Text that may be the beginning of a mark, or a block that is given out whole.
    pending: String,
    /// White space is left out until other text comes.
    trim: bool,
    /// Whether an answer that is a call in JSON without marks counts as one, and whether this may be one.
    bare: Bare,
}

#[derive(Clone, Copy, PartialEq)]
enum Bare {
    No,
    Possible,
    Begun,
}

#[derive(Clone, Debug)]
enum State {
    Text,
    Thought { end: &'static str },
    Calls { end: &'static str, name: Option<String> },
    Header { end: &'static str, so_far: String },
}

impl<T: Deref<Target = Tokenizer> + Clone> AnswerReader<T> {
    /// A reader that knows the marks that are tokens of the vocabulary or stand in the template.
    pub fn new(tokenizer: T, template: Option<&ChatTemplate>) -> Self {
        let written = |mark: &str| template.is_some_and(|t| t.source().contains(mark));
        let known = |mark: &str| tokenizer.id(mark).is_some() || written(mark);
        let marks = MARKS.into_iter().filter(|(begin, end, _)| known(begin) && (end.is_empty() || known(end))).collect();
        Self::with_marks(tokenizer, marks)
    }

    /// A reader to which everything is text.
    pub fn plain(tokenizer: T) -> Self {
        Self::with_marks(tokenizer, Vec::new())
    }

    fn with_marks(tokenizer: T, marks: Vec<Mark>) -> Self {
        let stream = StreamDecoder::new(tokenizer.clone(), true);
        AnswerReader { tokenizer, stream, marks, state: State::Text, pending: String::new(), trim: false, bare: Bare::No }
    }

    /// Reads an answer to this prompt: one that a template ended with the beginning of a thought begins inside it. With `tools`, an answer that is
    /// nothing but a call in JSON counts as one, as Llama 3 writes it.
    ///
    /// # Errors
    /// [`crate::TensorError::Value`] where a token is not in the vocabulary.
    ///
    /// ```
    /// use tensorlogic::text::{AnswerPart, AnswerReader, ChatTemplate, Tokenizer, learn};
    ///
    /// let tokenizer = Tokenizer::from_json(&learn::characters(["<think> so what?"])?)?;
    /// let template = ChatTemplate::new("{# <think> </think> #}")?;
    /// let prompt = tokenizer.encode("what?<think>", false)?; // the thought has begun
    /// let mut reader = AnswerReader::new(&tokenizer, Some(&template)).answering(&prompt, false)?;
    /// let answer = tokenizer.encode("so", false)?;
    /// assert_eq!(reader.push(answer[0])?, [AnswerPart::Thought("s".into())]);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn answering(mut self, prompt: &[u32], tools: bool) -> TensorResult<Self> {
        const ENOUGH: usize = 16;
        let end = self.tokenizer.decode(&prompt[prompt.len().saturating_sub(ENOUGH)..], false)?;
        let open = self.marks.iter().find(|(begin, _, block)| *block == Block::Thought && end.trim_end().ends_with(begin));
        if let Some((_, end, _)) = open {
            (self.state, self.trim) = (State::Thought { end }, true);
        }
        if tools {
            self.bare = Bare::Possible;
        }
        Ok(self)
    }

    /// Takes one token and returns what is certain by now.
    ///
    /// # Errors
    /// [`crate::TensorError::Value`] where the id is not in the vocabulary.
    ///
    /// ```
    /// use tensorlogic::text::{AnswerPart, AnswerReader, ChatTemplate, Tokenizer};
    ///
    /// let json = r#"{"decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": {"a": 0, "<": 1}, "merges": []}}"#;
    /// let tokenizer = Tokenizer::from_json(json.as_bytes())?;
    /// let template = ChatTemplate::new("{# <think> </think> #}")?;
    /// let mut reader = AnswerReader::new(&tokenizer, Some(&template));
    /// assert_eq!(reader.push(0)?, [AnswerPart::Text("a".into())]);
    /// assert!(reader.push(1)?.is_empty()); // this may be the beginning of a mark
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn push(&mut self, id: u32) -> TensorResult<Vec<AnswerPart>> {
        let mut out = Vec::new();
        let piece = self.stream.push(id)?;
        match self.mark(id) {
            Some(END_OF_MESSAGE) => self.close(&mut out),
            Some(mark) => self.read(mark, &mut out),
            None => self.read(&piece, &mut out),
        }
        Ok(out)
    }

    /// The mark that a special token is, which its text does not show.
    fn mark(&self, id: u32) -> Option<&'static str> {
        let text = self.tokenizer.token(id).filter(|_| self.tokenizer.is_special(id) && self.tokenizer.decodes_by_token())?;
        let ends = |block: Block| if block == Block::Header { END_OF_MESSAGE } else { "" };
        self.marks.iter().flat_map(|&(begin, end, block)| [begin, end, ends(block)]).find(|mark| *mark == text)
    }

    /// The rest of the answer: what was held back, and a call that has no end.
    ///
    /// # Errors
    /// Those of [`StreamDecoder::finish`].
    ///
    /// ```
    /// use tensorlogic::text::{AnswerPart, AnswerReader, ChatTemplate, Tokenizer};
    ///
    /// let json = r#"{"decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": {"a": 0, "<": 1}, "merges": []}}"#;
    /// let tokenizer = Tokenizer::from_json(json.as_bytes())?;
    /// let template = ChatTemplate::new("{# <think> </think> #}")?;
    /// let mut reader = AnswerReader::new(&tokenizer, Some(&template));
    /// reader.push(1)?; // held back: it may be the beginning of a mark
    /// assert_eq!(reader.finish()?, [AnswerPart::Text("<".into())]);
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn finish(&mut self) -> TensorResult<Vec<AnswerPart>> {
        let mut out = Vec::new();
        let rest = self.stream.finish()?;
        self.read(&rest, &mut out);
        self.close(&mut out);
        Ok(out)
    }

    /// Ends the block that is open.
    fn close(&mut self, out: &mut Vec<AnswerPart>) {
        let rest = std::mem::take(&mut self.pending);
        match std::mem::replace(&mut self.state, State::Text) {
            State::Text if self.bare == Bare::Begun => match tool_calls(&rest) {
                calls if calls.is_empty() => out.push(AnswerPart::Text(rest)),
                calls => out.push(AnswerPart::Calls { written: rest, calls }),
            },
            State::Text => self.text(&rest, out),
            State::Thought { .. } => self.thought(&rest, out),
            State::Calls { name, .. } => out.push(calls_of(&rest, name)),
            State::Header { .. } => {}
        }
        self.bare = Bare::No;
    }

    /// Takes text, marks among it.
    fn read(&mut self, piece: &str, out: &mut Vec<AnswerPart>) {
        self.pending.push_str(piece);
        if self.bare == Bare::Possible && !self.pending.trim_start().is_empty() {
            let call = matches!(self.state, State::Text) && self.pending.trim_start().starts_with(['{', '[']);
            self.bare = if call && !self.begins_with_mark() { Bare::Begun } else { Bare::No };
        }
        while self.bare != Bare::Begun && self.step(out) {}
    }

    fn begins_with_mark(&self) -> bool {
        let text = self.pending.trim_start();
        self.marks.iter().any(|(begin, ..)| begin.starts_with(text) || text.starts_with(begin))
    }

    /// Reads up to the next mark; false where there is none.
    fn step(&mut self, out: &mut Vec<AnswerPart>) -> bool {
        match self.state.clone() {
            State::Text => match first(&self.pending, &self.marks) {
                Some((at, (begin, end, block))) => {
                    let before = self.take(at, begin.len());
                    self.text(&before, out);
                    self.trim = true;
                    self.state = match block {
                        Block::Thought => State::Thought { end },
                        Block::Calls => State::Calls { end, name: None },
                        Block::Header => State::Header { end, so_far: String::new() },
                    };
                    true
                }
                None => {
                    let kept = self.marks.iter().map(|m| held_back(&self.pending, m.0)).max().unwrap_or(0);
                    let ready = self.take(self.pending.len() - kept, 0);
                    self.text(&ready, out);
                    false
                }
            },
            State::Thought { end } => {
                let found = self.pending.find(end);
                let ready = match found {
                    Some(at) => self.take(at, end.len()),
                    None => self.take(self.pending.len() - held_back(&self.pending, end), 0),
                };
                self.thought(&ready, out);
                if found.is_some() {
                    (self.state, self.trim) = (State::Text, true);
                }
                found.is_some()
            }
            State::Calls { end, name } => match self.pending.find(end).filter(|_| !end.is_empty()) {
                Some(at) => {
                    let written = self.take(at, end.len());
                    out.push(calls_of(&written, name));
                    (self.state, self.trim) = (State::Text, true);
                    true
                }
                None => false,
            },
            State::Header { end, so_far } => match self.pending.find(end) {
                Some(at) => {
                    let header = so_far + &self.take(at, end.len());
                    (self.state, self.trim) = (after_header(end, header), true);
                    true
                }
                None => false,
            },
        }
    }

    /// Takes this many bytes of the pending text, and skips as many after them.
    fn take(&mut self, len: usize, skip: usize) -> String {
        let rest = self.pending.split_off(len + skip);
        let mut taken = std::mem::replace(&mut self.pending, rest);
        taken.truncate(len);
        taken
    }

    fn text(&mut self, piece: &str, out: &mut Vec<AnswerPart>) {
        if let Some(piece) = self.trimmed(piece) {
            out.push(AnswerPart::Text(piece));
        }
    }

    fn thought(&mut self, piece: &str, out: &mut Vec<AnswerPart>) {
        if let Some(piece) = self.trimmed(piece) {
            out.push(AnswerPart::Thought(piece));
        }
    }

    fn trimmed(&mut self, piece: &str) -> Option<String> {
        let piece = if self.trim { piece.trim_start() } else { piece };
        self.trim &= piece.is_empty();
        (!piece.is_empty()).then(|| piece.to_string())
    }
}

/// What follows a header of harmony's: `analysis` is thought, and a message to a function is a call of it.
fn after_header(end: &str, header: String) -> State {
    if end == "<|channel|>" {
        return State::Header { end: "<|message|>", so_far: header + " " };
    }
    let to = header.split("to=").nth(1).map(|to| to.split(['<', ' ']).next().unwrap_or(to).trim());
    match to {
        Some(to) => State::Calls { end: END_OF_MESSAGE, name: Some(to.strip_prefix("functions.").unwrap_or(to).to_string()) },
        None if header.contains("analysis") => State::Thought { end: END_OF_MESSAGE },
        None => State::Text,
    }
}

fn calls_of(written: &str, name: Option<String>) -> AnswerPart {
    let written = written.trim().to_string();
    let calls = match name {
        Some(name) => serde_json::from_str(&written).map(|arguments| ToolCall { name, arguments }).into_iter().collect(),
        None => tool_calls(&written),
    };
    AnswerPart::Calls { written, calls }
}

/// The marks of the block that begins first, with the longest mark of those that begin at its place.
fn first(text: &str, marks: &[Mark]) -> Option<(usize, Mark)> {
    marks.iter().filter_map(|m| Some((text.find(m.0)?, *m))).min_by_key(|(at, m)| (*at, std::cmp::Reverse(m.0.len())))
}

/// How many bytes at the end of a text may be the beginning of a mark.
fn held_back(text: &str, mark: &str) -> usize {
    let mut lengths: Vec<usize> = mark.char_indices().map(|(at, _)| at).skip(1).collect();
    lengths.reverse();
    lengths.into_iter().find(|&len| text.ends_with(&mark[..len])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A vocabulary of letters with these marks as special tokens from 128 on.
    fn tokenizer(marks: &[&str]) -> Tokenizer {
        let vocab: serde_json::Map<String, serde_json::Value> =
            (0..128u32).map(|b| (super::super::tokenizer::letter_of_byte(b as u8).to_string(), b.into())).collect();
        let added: Vec<_> = marks
            .iter()
            .enumerate()
            .map(|(i, m)| {
                serde_json::json!({ "id": 128 + i, "content": m, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
                    "special": true })
            })
            .collect();
        let json = serde_json::json!({ "version": "1.0", "added_tokens": added, "decoder": { "type": "ByteLevel" },
            "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false },
            "model": { "type": "BPE", "vocab": vocab, "merges": [] } });
        Tokenizer::from_json(json.to_string().as_bytes()).unwrap()
    }

    /// The parts of an answer, neighbours of one kind joined.
    fn parts(mut reader: AnswerReader<&Tokenizer>, t: &Tokenizer, answer: &str) -> Vec<AnswerPart> {
        let mut all: Vec<AnswerPart> = Vec::new();
        let mut add = |parts: Vec<AnswerPart>| {
            for part in parts {
                match (all.last_mut(), part) {
                    (Some(AnswerPart::Text(a)), AnswerPart::Text(b)) | (Some(AnswerPart::Thought(a)), AnswerPart::Thought(b)) => {
                        a.push_str(&b)
                    }
                    (_, part) => all.push(part),
                }
            }
        };
        for id in t.encode(answer, false).unwrap() {
            add(reader.push(id).unwrap());
        }
        add(reader.finish().unwrap());
        all
    }

    fn text(s: &str) -> AnswerPart {
        AnswerPart::Text(s.into())
    }
    fn thought(s: &str) -> AnswerPart {
        AnswerPart::Thought(s.into())
    }
    fn calls(written: &str, name: &str, arguments: serde_json::Value) -> AnswerPart {
        AnswerPart::Calls { written: written.into(), calls: vec![ToolCall { name: name.into(), arguments }] }
    }

    /// Marks as special tokens of the vocabulary, and as text that the template mentions.
    #[track_caller]
    fn check(marks: &[&str], answer: &str, want: &[AnswerPart]) {
        let t = tokenizer(marks);
        assert_eq!(parts(AnswerReader::new(&t, None), &t, answer), want, "{answer:?} with marks as tokens");
        let t = tokenizer(&[]);
        let template = ChatTemplate::new(&format!("{{# {} #}}", marks.join(" "))).unwrap();
        assert_eq!(parts(AnswerReader::new(&t, Some(&template)), &t, answer), want, "{answer:?} with marks as text");
    }

    #[test]
    fn thoughts_and_calls_are_apart_from_text() {
        let think = ["<think>", "</think>", "<tool_call>", "</tool_call>"];
        check(&think, "plain < text <thin", &[text("plain < text <thin")]);
        check(&think, "<think>\nso\n</think>\n\nYes.", &[thought("so\n"), text("Yes.")]);
        check(&think, "a<think>b</think>c<think>d", &[text("a"), thought("b"), text("c"), thought("d")]);
        check(&think, "<think></think>x", &[text("x")]);
        let call = r#"{"name": "f", "arguments": {"a": 1}}"#;
        let f = calls(call, "f", serde_json::json!({ "a": 1 }));
        check(&think, &format!("Hm. <tool_call>\n{call}\n</tool_call>\n<tool_call>{call}"), &[text("Hm. "), f.clone(), f]);
        let unknown = AnswerPart::Calls { written: "f(a=1)".into(), calls: Vec::new() };
        check(&["<|tool_call_start|>", "<|tool_call_end|>"], "<|tool_call_start|>f(a=1)<|tool_call_end|>", &[unknown]);
        check(&["[TOOL_CALLS]"], r#"[TOOL_CALLS]f[ARGS]{"a": 1}"#, &[calls(r#"f[ARGS]{"a": 1}"#, "f", serde_json::json!({ "a": 1 }))]);
    }

    #[test]
    fn marks_that_the_model_does_not_know_are_text() {
        let t = tokenizer(&["<think>"]);
        let got = parts(AnswerReader::new(&t, None), &t, "x [THINK]y[/THINK] <tool_call>z");
        assert_eq!(got, [text("x [THINK]y[/THINK] <tool_call>z")]);
    }

    #[test]
    fn a_template_may_begin_the_thought() {
        let t = tokenizer(&["<think>", "</think>"]);
        let prompt = t.encode("question<think>\n", false).unwrap();
        let reader = AnswerReader::new(&t, None).answering(&prompt, false).unwrap();
        assert_eq!(parts(reader, &t, "hm</think>\nYes"), [thought("hm"), text("Yes")]);
        let prompt = t.encode("question<think>\n\n</think>\n\n", false).unwrap();
        let reader = AnswerReader::new(&t, None).answering(&prompt, false).unwrap();
        assert_eq!(parts(reader, &t, "Yes"), [text("Yes")]);
    }

    #[test]
    fn messages_of_harmony() {
        let t = tokenizer(&["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>", "<|return|>", "<|call|>"]);
        assert!(!t.end_tokens().contains(&t.id("<|end|>").unwrap()), "a message's end is not the answer's");
        let answer = "<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>final<|message|>Yes.";
        assert_eq!(parts(AnswerReader::new(&t, None), &t, answer), [thought("so"), text("Yes.")]);
        let answer = r#"<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}"#;
        assert_eq!(parts(AnswerReader::new(&t, None), &t, answer), [calls(r#"{"a": 1}"#, "f", serde_json::json!({ "a": 1 }))]);
        let answer = r#"<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"a": 1}"#;
        assert_eq!(parts(AnswerReader::new(&t, None), &t, answer), [calls(r#"{"a": 1}"#, "f", serde_json::json!({ "a": 1 }))]);
    }

    #[test]
    fn json_alone_is_a_call_where_there_are_tools() {
        let t = tokenizer(&[]);
        let call = r#"{"name": "f", "parameters": {"a": 1}}"#;
        let with = || AnswerReader::new(&t, None).answering(&[], true).unwrap();
        assert_eq!(parts(with(), &t, call), [calls(call, "f", serde_json::json!({ "a": 1 }))]);
        assert_eq!(parts(with(), &t, "{1, 2} is a set"), [text("{1, 2} is a set")]);
        assert_eq!(parts(with(), &t, "No call."), [text("No call.")]);
        assert_eq!(parts(AnswerReader::new(&t, None), &t, call), [text(call)]);
    }
}
