//! SentencePiece BPE: join the neighbouring pair whose token has the highest score until none is left, then fall back to bytes.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashSet};

use super::vocabulary::{Kind, Vocabulary};
use crate::error::{TensorError, TensorResult};

/// The mark that SentencePiece writes for a space.
pub(crate) const SPACE_MARK: &str = "\u{2581}";

/// The encoder of `tokenizer.ggml.model` = `llama`.
pub(crate) struct Bigram {
    scores: Vec<f32>,
    /// Tokens cut out of the text first, by their first byte: the distinct lengths, longest first.
    cut_lengths: Vec<Vec<usize>>,
    bytes: [Option<u32>; 256],
    unknown: Option<u32>,
    add_space_prefix: bool,
    longest: usize,
    /// Letters that stand before a space mark inside some token. Behind any other letter, no token crosses the mark's start, so
    /// the text can be cut there: short heaps are much faster.
    before_mark: HashSet<char>,
}

/// A run of the text that is one token so far; `len` 0 means that its left neighbour took it.
struct Symbol {
    start: usize,
    len: usize,
    prev: usize,
    next: usize,
}

const NONE: usize = usize::MAX;

/// A pair that could be joined: best score first, then leftmost.
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    len: usize,
}

impl Ord for Pair {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then_with(|| other.left.cmp(&self.left))
    }
}
impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Pair {}

impl Bigram {
    pub(crate) fn new(vocabulary: &Vocabulary, scores: Vec<f32>, unknown: Option<u32>, add_space_prefix: bool) -> TensorResult<Self> {
        if scores.len() != vocabulary.len() {
            let message = format!("{} scores for {} tokens", scores.len(), vocabulary.len());
            return Err(TensorError::format("tokenizer", message));
        }
        if let Some(id) = scores.iter().position(|s| s.is_nan()) {
            return Err(TensorError::format("tokenizer", format!("the score of token {id} is not a number")));
        }
        let mut bytes = [None; 256];
        let mut cut_lengths = vec![Vec::new(); 256];
        let mut longest = 0;
        let mut before_mark = HashSet::new();
        for (id, entry) in vocabulary.iter() {
            match entry.kind {
                Kind::Byte(byte) => bytes[byte as usize] = Some(id),
                Kind::Control | Kind::Unknown | Kind::User => cut_lengths[entry.text.as_bytes()[0] as usize].push(entry.text.len()),
                _ => {}
            }
            longest = longest.max(entry.text.len());
            before_mark.extend(entry.text.match_indices(SPACE_MARK).filter_map(|(at, _)| entry.text[..at].chars().next_back()));
        }
        for lengths in &mut cut_lengths {
            lengths.sort_unstable_by(|a, b| b.cmp(a));
            lengths.dedup();
        }
        Ok(Bigram { scores, cut_lengths, bytes, unknown, add_space_prefix, longest, before_mark })
    }

    /// Encodes `text`. Control tokens written out in it are text unless `parse_special`.
    pub(crate) fn encode(&self, vocabulary: &Vocabulary, text: &str, parse_special: bool, out: &mut Vec<u32>) -> TensorResult<()> {
        let (mut start, mut at) = (0, 0);
        while at < text.len() {
            if let Some((id, len)) = self.cut(vocabulary, &text[at..], parse_special) {
                self.encode_plain(vocabulary, &text[start..at], out)?;
                out.push(id);
                at += len;
                start = at;
            } else {
                at += text[at..].chars().next().map_or(1, char::len_utf8);
            }
        }
        self.encode_plain(vocabulary, &text[start..], out)
    }

    /// The longest special or user-defined token at the start of `text`.
    fn cut(&self, vocabulary: &Vocabulary, text: &str, parse_special: bool) -> Option<(u32, usize)> {
        self.cut_lengths[text.as_bytes()[0] as usize].iter().find_map(|&len| {
            let id = vocabulary.id(text.get(..len)?)?;
            let cut = match vocabulary.get(id)?.kind {
                Kind::User => true,
                Kind::Control | Kind::Unknown => parse_special,
                _ => false,
            };
            cut.then_some((id, len))
        })
    }

    fn encode_plain(&self, vocabulary: &Vocabulary, text: &str, out: &mut Vec<u32>) -> TensorResult<()> {
        if text.is_empty() {
            return Ok(());
        }
        let mut marked = String::with_capacity(text.len() + 16);
        if self.add_space_prefix {
            marked.push_str(SPACE_MARK);
        }
        for c in text.chars() {
            match c {
                ' ' => marked.push_str(SPACE_MARK),
                c => marked.push(c),
            }
        }
        let mut start = 0;
        for (at, _) in marked.match_indices(SPACE_MARK) {
            if marked[start..at].chars().next_back().is_some_and(|c| !self.before_mark.contains(&c)) {
                self.encode_run(vocabulary, &marked[start..at], out)?;
                start = at;
            }
        }
        self.encode_run(vocabulary, &marked[start..], out)
    }

    /// Encodes text that no cut goes through.
    fn encode_run(&self, vocabulary: &Vocabulary, marked: &str, out: &mut Vec<u32>) -> TensorResult<()> {
        let mut symbols: Vec<Symbol> = marked
            .char_indices()
            .enumerate()
            .map(|(i, (start, c))| Symbol { start, len: c.len_utf8(), prev: i.wrapping_sub(1), next: i + 1 })
            .collect();
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        let mut pairs = BinaryHeap::new();
        for right in 1..symbols.len() {
            self.consider(vocabulary, marked, &symbols, right - 1, right, &mut pairs);
        }
        while let Some(pair) = pairs.pop() {
            let (left, right) = (&symbols[pair.left], &symbols[pair.right]);
            // Stale: one of the two has been joined with something else meanwhile.
            if left.len == 0 || right.len == 0 || left.len + right.len != pair.len || left.next != pair.right {
                continue;
            }
            let after = right.next;
            symbols[pair.left].len = pair.len;
            symbols[pair.left].next = after;
            symbols[pair.right].len = 0;
            if after != NONE {
                symbols[after].prev = pair.left;
            }
            let before = symbols[pair.left].prev;
            if before != NONE {
                self.consider(vocabulary, marked, &symbols, before, pair.left, &mut pairs);
            }
            if after != NONE {
                self.consider(vocabulary, marked, &symbols, pair.left, after, &mut pairs);
            }
        }
        for symbol in symbols.iter().filter(|s| s.len > 0) {
            let piece = &marked[symbol.start..symbol.start + symbol.len];
            match self.plain_id(vocabulary, piece) {
                Some(id) => out.push(id),
                None => self.encode_bytes(piece, out)?,
            }
        }
        Ok(())
    }

    fn consider(&self, vocabulary: &Vocabulary, text: &str, symbols: &[Symbol], left: usize, right: usize, pairs: &mut BinaryHeap<Pair>) {
        let start = symbols[left].start;
        let len = symbols[left].len + symbols[right].len;
        if len <= self.longest
            && let Some(id) = self.plain_id(vocabulary, &text[start..start + len])
        {
            pairs.push(Pair { score: self.scores[id as usize], left, right, len });
        }
    }

    /// A token that plain text may become: text that spells a control token out must not turn into it.
    fn plain_id(&self, vocabulary: &Vocabulary, piece: &str) -> Option<u32> {
        let id = vocabulary.id(piece)?;
        matches!(vocabulary.get(id)?.kind, Kind::Normal | Kind::User | Kind::Unused).then_some(id)
    }

    fn encode_bytes(&self, piece: &str, out: &mut Vec<u32>) -> TensorResult<()> {
        if piece.bytes().all(|b| self.bytes[b as usize].is_some()) {
            out.extend(piece.bytes().filter_map(|b| self.bytes[b as usize]));
            return Ok(());
        }
        match self.unknown {
            Some(id) => out.push(id),
            None => return Err(TensorError::Value(format!("the vocabulary has no token for {piece:?}, and none for unknown text"))),
        }
        Ok(())
    }
}
