//! The tokens of a tokenizer: id to text, text to id, and what kind each one is.

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::{TensorError, TensorResult};

/// The kind of a token. Only control tokens are hidden when special tokens are skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Normal,
    Unknown,
    Control,
    /// Found in the text before anything else is split, and not hidden.
    User,
    Unused,
    Byte(u8),
    /// A hole between ids; never produced, cannot be decoded.
    Hole,
}

impl Kind {
    /// Hidden when special tokens are skipped.
    pub(crate) fn is_special(self) -> bool {
        matches!(self, Kind::Control | Kind::Unknown)
    }
}

pub(crate) struct TokenEntry {
    pub(crate) text: Arc<str>,
    pub(crate) kind: Kind,
}

/// Every token by id and by text.
pub(crate) struct Vocabulary {
    entries: Vec<TokenEntry>,
    index: HashMap<Arc<str>, u32>,
}

impl Vocabulary {
    /// From tokens in the order of their ids. An empty text is a hole.
    pub(crate) fn from_entries(tokens: impl IntoIterator<Item = (impl AsRef<str>, Kind)>) -> TensorResult<Self> {
        let tokens = tokens.into_iter();
        let mut entries = Vec::with_capacity(tokens.size_hint().0);
        let mut index = HashMap::with_capacity(tokens.size_hint().0);
        for (id, (text, kind)) in tokens.enumerate() {
            let id = u32::try_from(id).map_err(|_| bad("more than 2^32 tokens"))?;
            let text: Arc<str> = Arc::from(text.as_ref());
            let kind = if text.is_empty() { Kind::Hole } else { kind };
            if kind != Kind::Hole && index.insert(text.clone(), id).is_some() {
                return Err(bad(format!("token {text:?} is in the vocabulary twice, the second time as id {id}")));
            }
            entries.push(TokenEntry { text, kind });
        }
        Ok(Vocabulary { entries, index })
    }

    /// From texts with their ids, in any order and with holes, but not with more holes than tokens.
    pub(crate) fn from_ids<'a>(tokens: impl Iterator<Item = (&'a str, u32, Kind)> + Clone) -> TensorResult<Self> {
        let (mut count, mut top) = (0usize, 0usize);
        for (_, id, _) in tokens.clone() {
            count += 1;
            top = top.max(id as usize + 1);
        }
        if top > 2 * count + 65_536 {
            return Err(bad(format!("token id {} in a vocabulary of {count} tokens", top - 1)));
        }
        let hole: Arc<str> = Arc::from("");
        let mut entries: Vec<TokenEntry> = (0..top).map(|_| TokenEntry { text: hole.clone(), kind: Kind::Hole }).collect();
        let mut index = HashMap::with_capacity(count);
        for (text, id, kind) in tokens {
            let entry = &mut entries[id as usize];
            if entry.kind != Kind::Hole && &*entry.text != text {
                return Err(bad(format!("token id {id} is both {:?} and {text:?}", entry.text)));
            }
            let text: Arc<str> = Arc::from(text);
            index.insert(text.clone(), id);
            *entry = TokenEntry { text, kind };
        }
        Ok(Vocabulary { entries, index })
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn id(&self, text: &str) -> Option<u32> {
        self.index.get(text).copied()
    }

    pub(crate) fn get(&self, id: u32) -> Option<&TokenEntry> {
        self.entries.get(id as usize).filter(|e| e.kind != Kind::Hole)
    }

    /// Every token with its id, holes left out.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &TokenEntry)> {
        (0u32..).zip(&self.entries).filter(|(_, e)| e.kind != Kind::Hole)
    }
}

fn bad(message: impl Into<String>) -> TensorError {
    TensorError::format("tokenizer", message)
}
