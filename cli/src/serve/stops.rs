//! Texts that end an answer: found over the borders of tokens, and held back while one may still begin.

/// Finds the first of some texts in a text that comes in pieces.
pub struct Stops {
    texts: Vec<String>,
    /// What is not sent yet, since it may be the beginning of one of them.
    held: String,
}

/// What is certain after a piece.
#[derive(Debug, PartialEq)]
pub enum Found {
    /// This text; the answer goes on.
    Text(String),
    /// This text, and then the stop of this number.
    Stop(String, usize),
}

impl Stops {
    pub fn new(texts: Vec<String>) -> Stops {
        Stops { texts, held: String::new() }
    }

    /// The text of this number.
    pub fn text(&self, n: usize) -> &str {
        &self.texts[n]
    }

    /// Takes a piece.
    pub fn push(&mut self, piece: &str) -> Found {
        if self.texts.is_empty() {
            return Found::Text(piece.to_string());
        }
        self.held.push_str(piece);
        // The one that begins first; of those, the one that is complete first, which is the shortest.
        let first = self.texts.iter().enumerate().filter_map(|(n, s)| Some((self.held.find(s.as_str())?, s.len(), n))).min();
        if let Some((at, _, n)) = first {
            let text = self.held[..at].to_string();
            self.held.clear();
            return Found::Stop(text, n);
        }
        let begins = |at: &usize| self.texts.iter().any(|s| s.starts_with(&self.held[*at..]));
        let keep = self.held.char_indices().map(|(at, _)| at).find(begins).unwrap_or(self.held.len());
        let rest = self.held.split_off(keep);
        Found::Text(std::mem::replace(&mut self.held, rest))
    }

    /// What was held back, at the end of the answer.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text before a stop, and which it was, however the whole is cut.
    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let mut s = Stops::new(stops.iter().map(|s| s.to_string()).collect());
        let mut all = String::new();
        for piece in pieces {
            match s.push(piece) {
                Found::Text(t) => all += &t,
                Found::Stop(t, n) => return (all + &t, Some(n)),
            }
            // Nothing that a stop begins with has been given out.
            assert!(!stops.iter().any(|stop| all.contains(stop)));
        }
        (all + &s.finish(), None)
    }

    #[test]
    fn stops_are_found_over_borders() {
        assert_eq!(run(&["STOP"], &["ab", "cS", "T", "OPd"]), ("abc".into(), Some(0)));
        assert_eq!(run(&["STOP"], &["abST", "ART"]), ("abSTART".into(), None));
        assert_eq!(run(&["STOP"], &["abcST"]), ("abcST".into(), None));
        assert_eq!(run(&["\n\n", "ß"], &["a\n", "b", "\n", "\nc"]), ("a\nb".into(), Some(0)));
        assert_eq!(run(&["xyz", "y"], &["wx", "yz"]), ("w".into(), Some(0)));
        assert_eq!(run(&["aab"], &["a", "a", "a", "b"]), ("a".into(), Some(0)));
        assert_eq!(run(&[], &["a", "b"]), ("ab".into(), None));
        assert_eq!(run(&["é"], &["caf", "é", "!"]), ("caf".into(), Some(0)));
    }

    #[test]
    fn every_cut_gives_the_same() {
        let text: Vec<char> = "one two, thr thee three.".chars().collect();
        for cut in 0..1u32 << 10 {
            let mut pieces = vec![String::new()];
            for (i, c) in text.iter().enumerate() {
                if cut >> (i % 10) & 1 == 1 {
                    pieces.push(String::new());
                }
                pieces.last_mut().unwrap().push(*c);
            }
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            assert_eq!(run(&["three", "thr ee"], &pieces), ("one two, thr thee ".into(), Some(0)));
        }
    }
}
