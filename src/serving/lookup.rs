//! Drafts of a row's next tokens: what came last time behind the tokens that the row ends with (prompt lookup decoding, A. Saxena 2023). A step that checks a
//! draft reads all of it at once; what the model would have chosen itself is kept, so that answers are those without drafts.
//!
//! A lookup predicts each token whether a draft is checked or not, and counts how often it was right. So a row whose text does not repeat itself costs a step
//! that writes one token, and nothing else.

use std::collections::HashMap;

/// Tokens that have to agree before what came behind them is expected again.
const MATCHED_TOKENS: usize = 3;
/// The weight of the newest prediction in the rate of right ones.
const NEWEST_WEIGHT: f64 = 0.2;
/// How much faster checking a draft must be, as expected, where nobody says otherwise.
pub(super) const MIN_GAIN: f64 = 1.05;

/// What a row's text makes one expect.
#[derive(Default)]
pub(super) struct Lookup {
    /// The place behind each group of tokens, the last one.
    behind: HashMap<[u32; MATCHED_TOKENS], usize>,
    /// Where the next token is expected to stand already.
    expected: Option<usize>,
    /// The rate of right predictions, of late.
    rate: f64,
}

impl Lookup {
    /// Of a prompt.
    pub fn new(prompt: &[u32]) -> Lookup {
        let mut lookup = Lookup::default();
        (0..prompt.len()).for_each(|at| lookup.index(&prompt[..=at]));
        lookup.expect(prompt);
        lookup
    }

    /// The last of these tokens was written.
    pub fn wrote(&mut self, tokens: &[u32]) {
        let Some((&token, before)) = tokens.split_last() else { return };
        if let Some(at) = self.expected {
            // Where nothing stands yet behind the end, the text repeats itself from the place expected on.
            let right = before.get(at) == Some(&token);
            self.rate += NEWEST_WEIGHT * (f64::from(u8::from(right)) - self.rate);
            self.expected = right.then_some(at + 1);
        }
        self.index(tokens);
        if self.expected.is_none() {
            self.expect(tokens);
        }
    }

    /// Remembers what came behind the group before the last token.
    fn index(&mut self, tokens: &[u32]) {
        let Some((_, before)) = tokens.split_last() else { return };
        if let Some(group) = before.last_chunk::<MATCHED_TOKENS>() {
            self.behind.insert(*group, before.len());
        }
    }

    fn expect(&mut self, tokens: &[u32]) {
        self.expected = tokens.last_chunk::<MATCHED_TOKENS>().and_then(|group| self.behind.get(group)).copied();
    }

    /// Up to `count` tokens that are expected next.
    pub fn draft(&self, tokens: &[u32], count: usize) -> Vec<u32> {
        let Some(at) = self.expected.filter(|&at| at < tokens.len()) else { return Vec::new() };
        let known = &tokens[at..];
        (0..count).map(|n| known[n % known.len()]).collect()
    }

    /// Whether there is a draft.
    pub fn expects(&self) -> bool {
        self.expected.is_some()
    }

    /// Tokens of a draft of this length that are right, on the average.
    pub fn expected_hits(&self, count: usize) -> f64 {
        if self.expected.is_none() {
            return 0.0;
        }
        (1..=count).map(|n| self.rate.powi(n as i32)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lookup of a text that is written from its `prompt`-th token on.
    fn of(text: &[u32], prompt: usize) -> Lookup {
        let mut lookup = Lookup::new(&text[..prompt]);
        (prompt..text.len()).for_each(|at| lookup.wrote(&text[..=at]));
        lookup
    }

    #[test]
    fn what_came_before_is_expected_again() {
        let text = [1, 2, 3, 4, 5, 6, 9, 1, 2, 3];
        assert_eq!(of(&text, 4).draft(&text, 3), [4, 5, 6]);
        assert_eq!(of(&text, text.len()).draft(&text, 9), [4, 5, 6, 9, 1, 2, 3, 4, 5], "behind its end, the draft goes on with itself");
        let loops = [7, 8, 7, 8, 7, 8];
        assert_eq!(of(&loops, 1).draft(&loops, 5), [7, 8, 7, 8, 7]);
        let same = [5; 6];
        assert_eq!(of(&same, 2).draft(&same, 3), [5, 5, 5]);
    }

    #[test]
    fn the_last_place_counts() {
        let text = [1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3];
        assert_eq!(of(&text, 0).draft(&text, 2), [5, 1]);
    }

    #[test]
    fn text_without_repetition_has_no_draft() {
        let text: Vec<u32> = (0..50).collect();
        let lookup = of(&text, 20);
        assert!(lookup.draft(&text, 4).is_empty());
        assert_eq!(lookup.expected_hits(4), 0.0);
    }

    #[test]
    fn the_rate_follows_what_was_right() {
        let text: Vec<u32> = (0..40).map(|n| n % 5).collect();
        let lookup = of(&text, 10);
        assert!(lookup.expected_hits(4) > 3.0, "{}", lookup.expected_hits(4));
        // Groups that come again, each time with another token behind them.
        let text: Vec<u32> = (0..40).flat_map(|n| [1, 2, 3, 100 + n]).collect();
        let lookup = of(&text, 8);
        assert!(lookup.expected_hits(4) < 1.0, "{}", lookup.expected_hits(4));
    }
}
