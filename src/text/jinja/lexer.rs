//! Cuts a template into text and tags, and tags into tokens, with the white-space rules that chat templates are written for:
//! `trim_blocks` and `lstrip_blocks` on, the last line end dropped.

use std::sync::Arc;

use super::meter::Res;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token {
    Text(Arc<str>),
    /// `{{`, `}}`, `{%`, `%}`.
    OutputStart,
    OutputEnd,
    BlockStart,
    BlockEnd,
    Name(Arc<str>),
    Str(Arc<str>),
    Int(i64),
    Float(f64),
    /// An operator or bracket.
    Sign(&'static str),
    End,
}

/// Longest first.
const SIGNS: [&str; 29] = [
    "**", "//", "==", "!=", ">=", "<=", "+", "-", "*", "/", "%", "~", "<", ">", "=", "(", ")", "[", "]", "{", "}", ".", ",", ":", "|", ";",
    "!", "?", "@",
];

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    tokens: Vec<(Token, u32)>,
    line: u32,
    counted: usize,
}

/// The tokens of a template, each with its line.
pub(crate) fn tokens(source: &str) -> Res<Vec<(Token, u32)>> {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let source = source.strip_suffix('\n').unwrap_or(&source);
    let mut lexer = Lexer { source, at: 0, tokens: Vec::new(), line: 1, counted: 0 };
    lexer.run()?;
    let line = lexer.line;
    lexer.tokens.push((Token::End, line));
    Ok(lexer.tokens)
}

impl Lexer<'_> {
    fn push(&mut self, token: Token) {
        self.line += self.source[self.counted..self.at].matches('\n').count() as u32;
        self.counted = self.at;
        self.tokens.push((token, self.line));
    }

    fn rest(&self) -> &str {
        &self.source[self.at..]
    }

    fn text(&mut self, text: &str) {
        if !text.is_empty() {
            self.push(Token::Text(text.into()));
        }
    }

    fn run(&mut self) -> Res<()> {
        // Whether the text so far ends a line, so that a block may swallow the blanks before it.
        let mut line_start = true;
        loop {
            let from = self.at;
            let Some((open, kind)) = self.next_tag() else {
                let text = self.rest().to_string();
                self.text(&text);
                self.at = self.source.len();
                return Ok(());
            };
            let mut text = &self.source[from..open];
            let mark = self.source.as_bytes().get(open + 2).copied();
            match mark {
                Some(b'-') => text = text.trim_end(),
                Some(b'+') => {}
                _ if kind != '{' => {
                    let line = text.rfind('\n').map_or(0, |i| i + 1);
                    if (line > 0 || line_start) && text[line..].trim().is_empty() {
                        text = &text[..line];
                    }
                }
                _ => {}
            }
            let text = text.to_string();
            self.text(&text);
            self.at = open + 2 + matches!(mark, Some(b'-' | b'+')) as usize;
            match kind {
                '#' => {
                    let end = self.rest().find("#}").ok_or("a comment is not closed")?;
                    let strip = self.rest()[..end].ends_with('-');
                    let keep = self.rest()[..end].ends_with('+');
                    self.at += end + 2;
                    line_start = self.after_block(strip, keep);
                }
                '{' => {
                    self.push(Token::OutputStart);
                    let (strip, _) = self.tag("}}")?;
                    self.push(Token::OutputEnd);
                    if strip {
                        self.skip_space();
                    }
                    line_start = false;
                }
                _ => match self.raw()? {
                    Some(ends_line) => line_start = ends_line,
                    None => {
                        self.push(Token::BlockStart);
                        let (strip, keep) = self.tag("%}")?;
                        self.push(Token::BlockEnd);
                        line_start = self.after_block(strip, keep);
                    }
                },
            }
        }
    }

    /// The next `{{`, `{%` or `{#`: where, and its second letter.
    fn next_tag(&self) -> Option<(usize, char)> {
        let mut from = self.at;
        loop {
            let open = from + self.source[from..].find('{')?;
            match self.source.as_bytes().get(open + 1) {
                Some(b'{') => return Some((open, '{')),
                Some(b'%') => return Some((open, '%')),
                Some(b'#') => return Some((open, '#')),
                _ => from = open + 1,
            }
        }
    }

    fn skip_space(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start().len();
    }

    /// Behind a block or comment: all white space goes, or one line end. Says whether a line ended.
    fn after_block(&mut self, strip: bool, keep: bool) -> bool {
        let from = self.at;
        if strip {
            self.skip_space();
        } else if !keep && self.rest().starts_with('\n') {
            self.at += 1;
        }
        self.source[from..self.at].ends_with('\n')
    }

    /// `{% raw %} … {% endraw %}` at a block's start.
    fn raw(&mut self) -> Res<Option<bool>> {
        let Some(head) = self.rest().trim_start().strip_prefix("raw") else { return Ok(None) };
        let head = head.trim_start();
        let strip = head.starts_with('-');
        let Some(body) = head.strip_prefix('-').unwrap_or(head).strip_prefix("%}") else { return Ok(None) };
        let body_at = self.source.len() - body.len();
        let mut from = 0;
        while let Some(open) = body[from..].find("{%").map(|i| i + from) {
            let tag = &body[open + 2..];
            let strip_before = tag.starts_with('-');
            let tag = tag.trim_start_matches(['-', '+']).trim_start();
            if let Some(end) = tag.strip_prefix("endraw") {
                let end = end.trim_start();
                let (strip_after, keep) = (end.starts_with('-'), end.starts_with('+'));
                if let Some(after) = end.trim_start_matches(['-', '+']).strip_prefix("%}") {
                    let mut text = &body[..open];
                    if strip {
                        text = text.trim_start();
                    }
                    if strip_before {
                        text = text.trim_end();
                    }
                    let (text, after) = (text.to_string(), after.len());
                    self.at = body_at;
                    self.text(&text);
                    self.at = self.source.len() - after;
                    return Ok(Some(self.after_block(strip_after, keep)));
                }
            }
            from = open + 2;
        }
        Err("a raw block is not closed".into())
    }

    /// The tokens up to `end`; says whether the white space after it is removed.
    fn tag(&mut self, end: &'static str) -> Res<(bool, bool)> {
        let mut open = 0usize;
        loop {
            self.skip_space();
            let rest = self.rest();
            if open == 0 {
                if rest.starts_with(end) {
                    self.at += 2;
                    return Ok((false, false));
                }
                for mark in ['-', '+'] {
                    if rest.strip_prefix(mark).is_some_and(|r| r.starts_with(end)) {
                        self.at += 3;
                        return Ok((mark == '-', mark == '+'));
                    }
                }
            }
            let Some(c) = rest.chars().next() else {
                return Err(format!("the tag is not closed with {end}"));
            };
            if c == '"' || c == '\'' {
                let (text, len) = string(rest, c)?;
                self.at += len;
                self.push(Token::Str(text.into()));
            } else if c.is_ascii_digit() {
                let (token, len) = number(rest)?;
                self.at += len;
                self.push(token);
            } else if c == '_' || c.is_alphabetic() {
                let len = rest.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(rest.len());
                let name: Arc<str> = rest[..len].into();
                self.at += len;
                self.push(Token::Name(name));
            } else if let Some(sign) = SIGNS.iter().find(|s| rest.starts_with(**s)) {
                match *sign {
                    "(" | "[" | "{" => open += 1,
                    ")" | "]" | "}" => open = open.checked_sub(1).ok_or_else(|| format!("'{sign}' closes nothing"))?,
                    _ => {}
                }
                self.at += sign.len();
                self.push(Token::Sign(sign));
            } else {
                return Err(format!("the letter {c:?} is not part of the language"));
            }
        }
    }
}

/// A number at the start of `rest`, and its length.
fn number(rest: &str) -> Res<(Token, usize)> {
    let digits = |s: &str| s.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(s.len());
    let mut len = digits(rest);
    let mut float = false;
    if let Some(after) = rest[len..].strip_prefix('.')
        && after.starts_with(|c: char| c.is_ascii_digit())
    {
        len += 1 + digits(after);
        float = true;
    }
    if let Some(after) = rest[len..].strip_prefix(['e', 'E']) {
        let signed = after.strip_prefix(['+', '-']).unwrap_or(after);
        if signed.starts_with(|c: char| c.is_ascii_digit()) {
            len += 1 + (after.len() - signed.len()) + digits(signed);
            float = true;
        }
    }
    let text = rest[..len].replace('_', "");
    let token = if float { text.parse().ok().map(Token::Float) } else { text.parse().ok().map(Token::Int) };
    Ok((token.ok_or_else(|| format!("the number {} is too large", text.chars().take(40).collect::<String>()))?, len))
}

/// A quoted text at the start of `rest`, with Python's escapes, and its length.
fn string(rest: &str, quote: char) -> Res<(String, usize)> {
    let mut text = String::new();
    let mut letters = rest.char_indices().skip(1);
    while let Some((at, c)) = letters.next() {
        if c == quote {
            return Ok((text, at + 1));
        }
        if c != '\\' {
            text.push(c);
            continue;
        }
        let Some((at, escaped)) = letters.next() else { break };
        let hex = match escaped {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => 0,
        };
        match escaped {
            'n' => text.push('\n'),
            't' => text.push('\t'),
            'r' => text.push('\r'),
            'a' => text.push('\x07'),
            'b' => text.push('\x08'),
            'f' => text.push('\x0c'),
            'v' => text.push('\x0b'),
            '0' => text.push('\0'),
            '\n' => {}
            '\\' | '\'' | '"' => text.push(escaped),
            _ if hex > 0 => {
                let code = rest.get(at + 1..at + 1 + hex).and_then(|h| u32::from_str_radix(h, 16).ok()).and_then(char::from_u32);
                text.push(code.ok_or("a text has a malformed escape")?);
                letters.nth(hex - 1);
            }
            other => {
                text.push('\\');
                text.push(other);
            }
        }
    }
    Err("a quoted text is not closed".into())
}
