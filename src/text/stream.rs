//! Token ids to text: one by one (`StreamDecoder`), never half a character, or all at once.

use std::ops::Deref;

use super::tokenizer::Tokenizer;
use crate::error::TensorResult;

/// Decodes ids one by one. The concatenated pieces equal [`Tokenizer::decode`] of all ids.
/// Holds the tokenizer as `&Tokenizer`, `Arc<Tokenizer>` or the like.
pub struct StreamDecoder<T: Deref<Target = Tokenizer>> {
    tokenizer: T,
    skip_special: bool,
    /// Nothing has been decoded yet.
    start: bool,
    /// The beginning of a character whose other bytes are still to come.
    pending: Vec<u8>,
    /// Every id so far, where the decoder needs the whole list.
    ids: Vec<u32>,
}

impl<T: Deref<Target = Tokenizer>> StreamDecoder<T> {
    /// A decoder at the start of a text.
    pub fn new(tokenizer: T, skip_special: bool) -> Self {
        StreamDecoder { tokenizer, skip_special, start: true, pending: Vec::new(), ids: Vec::new() }
    }

    /// Takes one id and returns the text that is certain by now, often one word, sometimes nothing.
    ///
    /// # Errors
    /// `TensorError::Value` where the id is not in the vocabulary.
    ///
    /// ```
    /// use tensorlogic::text::{Tokenizer, learn};
    ///
    /// let tokenizer = Tokenizer::from_json(&learn::byte_pairs(["é"], 257)?)?; // every byte is a token
    /// let ids = tokenizer.encode("é", false)?;
    /// let mut stream = tokenizer.stream(true);
    /// assert_eq!(stream.push(ids[0])?, ""); // half a character
    /// assert_eq!(stream.push(ids[1])?, "é");
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn push(&mut self, id: u32) -> TensorResult<String> {
        if !self.tokenizer.decodes_by_token() {
            // Checks the id now rather than at the end.
            self.tokenizer.piece(id, self.skip_special, false, &mut Vec::new())?;
            self.ids.push(id);
            return Ok(String::new());
        }
        self.tokenizer.piece(id, self.skip_special, self.start, &mut self.pending)?;
        if !(self.skip_special && self.tokenizer.is_special(id)) {
            self.start = false;
        }
        Ok(self.take(false))
    }

    /// The rest of the text: an incomplete character becomes U+FFFD. Afterwards the decoder is ready for a new text.
    ///
    /// # Errors
    /// `TensorError::Format` where a decoder that needs the whole list refuses it.
    ///
    /// ```
    /// use tensorlogic::text::{Tokenizer, learn};
    ///
    /// let tokenizer = Tokenizer::from_json(&learn::byte_pairs(["é"], 257)?)?; // every byte is a token
    /// let ids = tokenizer.encode("é", false)?;
    /// let mut stream = tokenizer.stream(true);
    /// stream.push(ids[0])?; // half a character, and no more
    /// assert_eq!(stream.finish()?, "\u{fffd}");
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn finish(&mut self) -> TensorResult<String> {
        self.start = true;
        if self.ids.is_empty() {
            return Ok(self.take(true));
        }
        let ids = std::mem::take(&mut self.ids);
        self.tokenizer.decode_whole(&ids, self.skip_special)
    }

    /// Takes every complete character out of `pending`.
    fn take(&mut self, all: bool) -> String {
        let mut text = String::new();
        let mut rest = self.pending.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(std::str::from_utf8(valid).unwrap_or_default());
                    rest = after;
                    match error.error_len() {
                        Some(len) => {
                            text.push(char::REPLACEMENT_CHARACTER);
                            rest = &rest[len..];
                        }
                        None if all => {
                            text.push(char::REPLACEMENT_CHARACTER);
                            rest = &[];
                            break;
                        }
                        None => break,
                    }
                }
            }
        }
        self.pending = rest.to_vec();
        text
    }
}

impl Tokenizer {
    /// The text of `ids`. Bytes that are not UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// Those of [`StreamDecoder::push`] and [`StreamDecoder::finish`].
    ///
    /// ```
    /// use tensorlogic::text::{Tokenizer, learn};
    ///
    /// let tokenizer = Tokenizer::from_json(&learn::byte_pairs(["Grüße"], 257)?)?;
    /// let mut ids = tokenizer.encode("Grüße", false)?;
    /// ids.push(0); // <|endoftext|>
    /// assert_eq!(tokenizer.decode(&ids, true)?, "Grüße");
    /// assert_eq!(tokenizer.decode(&ids, false)?, "Grüße<|endoftext|>");
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> TensorResult<String> {
        let mut stream = self.stream(skip_special);
        let mut text = String::with_capacity(ids.len() * 4);
        for &id in ids {
            text.push_str(&stream.push(id)?);
        }
        text.push_str(&stream.finish()?);
        Ok(text)
    }

    /// A decoder for ids that come one by one.
    pub fn stream(&self, skip_special: bool) -> StreamDecoder<&Tokenizer> {
        StreamDecoder::new(self, skip_special)
    }
}
