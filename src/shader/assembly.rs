//! Decides the switches of a source that is not a template: the operands that attention includes on matrix units.

use std::borrow::Cow;

/// A kernel's text with its switches decided: of each `if (NAME == 1u) {…} else {…}` only the branch that is taken stays, so that
/// functions which only the other one calls are not generated.
pub fn decide(mut text: String, switches: &[(&'static str, u32)]) -> Cow<'static, str> {
    for (name, value) in switches {
        let head = format!("if ({name} == 1u) {{");
        while let Some(start) = text.find(&head) {
            let open = start + head.len() - 1;
            let Some(close) = closing(&text, open) else { break };
            let other = text[close + 1..].strip_prefix(" else {").and_then(|_| closing(&text, close + 7).map(|end| (close + 7, end)));
            let (keep, end) = match (value, other) {
                (1, _) => (text[open..=close].to_string(), other.map_or(close, |o| o.1)),
                (_, Some((open, end))) => (text[open..=end].to_string(), end),
                (_, None) => (String::new(), close),
            };
            text.replace_range(start..=end, &keep);
        }
    }
    text.into()
}

/// The brace that closes the one at `open`.
fn closing(text: &str, open: usize) -> Option<usize> {
    let mut depth = 0usize;
    text.bytes().enumerate().skip(open).find_map(|(i, c)| {
        depth = match c {
            b'{' => depth + 1,
            b'}' => depth - 1,
            _ => depth,
        };
        (depth == 0).then_some(i)
    })
}
