//! Methods of texts, dictionaries and lists, and slices. Methods that change a value in place are refused.

use std::sync::Arc;

use super::args::Args;
use super::meter::{Meter, Res};
use super::value::Value;

const TEXT: [&str; 37] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdigit",
    "islower",
    "isnumeric",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "title",
    "upper",
];
const DICT: [&str; 5] = ["copy", "get", "items", "keys", "values"];
const LIST: [&str; 3] = ["copy", "count", "index"];
const CHANGING: [&str; 12] =
    ["append", "clear", "extend", "insert", "pop", "popitem", "remove", "reverse", "setdefault", "sort", "update", "__setitem__"];

/// Whether a value has this method.
pub(crate) fn has(of: &Value, name: &str) -> bool {
    match of {
        Value::Str(_) | Value::Markup(_) => TEXT.contains(&name),
        Value::Dict(_) => DICT.contains(&name) || CHANGING.contains(&name),
        Value::List(_) => LIST.contains(&name) || CHANGING.contains(&name),
        Value::Tuple(_) => LIST.contains(&name),
        Value::Loop(_) => matches!(name, "cycle"),
        _ => false,
    }
}

/// Calls a method that [`has`] knows.
pub(crate) fn call(of: &Value, name: &str, args: Args, meter: &Meter) -> Res<Value> {
    match of {
        Value::Str(text) => text_method(text, name, &args, meter),
        Value::Markup(text) => Ok(match text_method(text, name, &args, meter)? {
            Value::Str(text) => Value::Markup(text),
            other => other,
        }),
        Value::Dict(_) | Value::List(_) if CHANGING.contains(&name) => {
            Err(format!("access to attribute '{name}' of '{}' object is unsafe", of.type_name()))
        }
        Value::Dict(dict) => match name {
            "get" => match of.get(args.need(0, "key")?, meter)? {
                Some(value) => Ok(value),
                None => Ok(args.get(1, "default").cloned().unwrap_or(Value::None)),
            },
            "items" => items(of, meter),
            "keys" => meter.list(dict.items.iter().map(|(k, _)| k.clone()).collect()),
            "values" => meter.list(dict.items.iter().map(|(_, v)| v.clone()).collect()),
            _ => Ok(of.clone()),
        },
        Value::Loop(state) => {
            let n = args.plain.len();
            args.plain.get(state.index0 % n.max(1)).cloned().ok_or_else(|| "no items for cycling given".into())
        }
        Value::List(s) | Value::Tuple(s) => {
            if name == "copy" {
                return Ok(of.clone());
            }
            let item = args.need(0, "value")?;
            let mut count = 0;
            for (i, candidate) in s.items.iter().enumerate() {
                if candidate.equals(item, meter)? {
                    if name == "index" {
                        return Ok(Value::Int(i as i64));
                    }
                    count += 1;
                }
            }
            if name == "index" { Err("the value is not in the list".into()) } else { Ok(Value::Int(count)) }
        }
        other => Err(format!("'{}' object has no method '{name}'", other.type_name())),
    }
}

/// A dictionary's pairs.
pub(crate) fn items(of: &Value, meter: &Meter) -> Res<Value> {
    match of {
        Value::Undefined(_) => meter.list(Vec::new()),
        Value::Dict(dict) => {
            let pair = |(k, v): &(Value, Value)| meter.tuple(vec![k.clone(), v.clone()]);
            meter.list(dict.items.iter().map(pair).collect::<Res<_>>()?)
        }
        other => Err(format!("can only get item pairs from a mapping, not a {}", other.type_name())),
    }
}

/// Python's `of[start:stop:step]`.
pub(crate) fn slice(of: &Value, [start, stop, step]: [Option<i64>; 3], meter: &Meter) -> Res<Value> {
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err("slice step cannot be zero".into());
    }
    let letters: Vec<char>;
    let length = match of {
        Value::List(s) | Value::Tuple(s) => s.items.len(),
        Value::Str(text) | Value::Markup(text) => {
            meter.bytes(text.len() * 4)?;
            letters = text.chars().collect();
            return meter.text(picks(start, stop, step, letters.len()).map(|i| letters[i]).collect::<String>());
        }
        Value::Undefined(message) => return Err(message.to_string()),
        other => return Err(format!("'{}' object is not subscriptable", other.type_name())),
    };
    meter.bytes(length * 8)?;
    let (Value::List(s) | Value::Tuple(s)) = of else { return Ok(Value::None) };
    let items = picks(start, stop, step, length).map(|i| s.items[i].clone()).collect();
    match of {
        Value::Tuple(_) => Ok(meter.tuple(items)?),
        _ => meter.list(items),
    }
}

/// The positions that a slice takes.
fn picks(start: Option<i64>, stop: Option<i64>, step: i64, length: usize) -> impl Iterator<Item = usize> {
    let length = length as i64;
    // Where a negative step stops is one before the first.
    let (low, high) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let bound = |at: Option<i64>, otherwise: i64| match at {
        None => otherwise,
        Some(at) if at < 0 => at.saturating_add(length).clamp(low, high),
        Some(at) => at.clamp(low, high),
    };
    let (from, to) = if step > 0 { (bound(start, 0), bound(stop, length)) } else { (bound(start, length - 1), bound(stop, -1)) };
    let mut at = from;
    std::iter::from_fn(move || {
        let inside = if step > 0 { at < to } else { at > to };
        let here = at;
        at = at.saturating_add(step);
        (inside && here >= 0 && here < length).then_some(here as usize)
    })
}

/// A call of a text's method.
struct TextCall<'a> {
    text: &'a Arc<str>,
    args: &'a Args,
    meter: &'a Meter,
}

impl TextCall<'_> {
    /// An argument that must be a text.
    fn need(&self, place: usize, name: &str) -> Res<&str> {
        match self.args.need(place, name)? {
            Value::Undefined(message) => Err(message.to_string()),
            value => value.as_str().ok_or_else(|| format!("must be str, not {}", value.type_name())),
        }
    }

    /// An argument that is a text where it is given.
    fn optional(&self, place: usize, name: &str) -> Res<Option<Arc<str>>> {
        match self.args.get(place, name) {
            None | Some(Value::None) => Ok(None),
            Some(value) => value.as_str().map(|s| Some(s.into())).ok_or_else(|| format!("must be str, not {}", value.type_name())),
        }
    }

    /// An argument that is a count where it is given.
    fn count(&self, place: usize, name: &str) -> Option<usize> {
        self.args.get(place, name).and_then(Value::as_int).and_then(|n| usize::try_from(n).ok())
    }

    /// `strip`, `lstrip` and `rstrip`.
    fn strip(&self, left: bool, right: bool) -> Res<Value> {
        let set = self.optional(0, "chars")?;
        self.meter.step(set.as_ref().map_or(0, |s| s.len() / 16 * (1 + self.text.len() / 64)))?;
        let drop = |c: char| set.as_ref().map_or(is_space(c), |set| set.contains(c));
        let mut rest: &str = self.text;
        if left {
            rest = rest.trim_start_matches(drop);
        }
        if right {
            rest = rest.trim_end_matches(drop);
        }
        self.meter.text(rest)
    }

    /// `startswith` and `endswith`, which also take a tuple of texts.
    fn with_any(&self, matches: &dyn Fn(&str) -> bool) -> Res<Value> {
        match self.args.need(0, "prefix")? {
            Value::Tuple(options) => {
                self.meter.step(options.items.len())?;
                Ok(Value::Bool(options.items.iter().any(|o| o.as_str().is_some_and(matches))))
            }
            Value::Undefined(message) => Err(message.to_string()),
            other => Ok(Value::Bool(matches(
                other.as_str().ok_or_else(|| format!("first arg must be str or a tuple of str, not {}", other.type_name()))?,
            ))),
        }
    }

    /// Methods that look for a text inside.
    fn search(&self, name: &str) -> Res<Value> {
        let text = self.text;
        let position = |at: Option<usize>| Value::Int(at.map_or(-1, |at| text[..at].chars().count() as i64));
        let part = self.need(0, "sub")?;
        match name {
            "find" => Ok(position(text.find(part))),
            "rfind" => Ok(position(text.rfind(part))),
            "index" => text.find(part).map(|at| position(Some(at))).ok_or_else(|| "substring not found".into()),
            // `count`
            _ if part.is_empty() => Ok(Value::Int(text.chars().count() as i64 + 1)),
            _ => Ok(Value::Int(text.matches(part).count() as i64)),
        }
    }

    /// Methods that give parts of the text.
    fn divide(&self, name: &str) -> Res<Value> {
        let (text, meter) = (self.text, self.meter);
        let three = |parts: [&str; 3]| -> Res<Value> { meter.tuple(parts.iter().map(|p| meter.text(*p)).collect::<Res<_>>()?) };
        match name {
            "split" | "rsplit" => split(text, self.optional(0, "sep")?.as_deref(), self.count(1, "maxsplit"), name == "rsplit", meter),
            "splitlines" => {
                let keep = self.args.get(0, "keepends").is_some_and(Value::is_true);
                let line = |l: &str| meter.text(if keep { l } else { l.trim_end_matches(['\n', '\r']) });
                meter.list(text.split_inclusive('\n').map(line).collect::<Res<_>>()?)
            }
            "partition" => {
                let separator = self.need(0, "sep")?;
                three(text.split_once(separator).map_or([text, "", ""], |(before, after)| [before, separator, after]))
            }
            // `rpartition`
            _ => {
                let separator = self.need(0, "sep")?;
                three(text.rsplit_once(separator).map_or(["", "", text], |(before, after)| [before, separator, after]))
            }
        }
    }
}

/// Python's `str.isdigit` and the like.
fn is(text: &str, test: &str) -> bool {
    let all = |test: fn(char) -> bool| !text.is_empty() && text.chars().all(test);
    let any = |test: fn(char) -> bool| text.chars().any(test);
    match test {
        "isdigit" | "isnumeric" => all(char::is_numeric),
        "isalpha" => all(char::is_alphabetic),
        "isalnum" => all(char::is_alphanumeric),
        "isspace" => all(is_space),
        "isascii" => text.is_ascii(),
        "islower" => any(char::is_lowercase) && !any(char::is_uppercase),
        "isupper" => any(char::is_uppercase) && !any(char::is_lowercase),
        // `istitle`
        _ => any(char::is_alphabetic) && *text == *title(text),
    }
}

fn text_method(text: &Arc<str>, name: &str, args: &Args, meter: &Meter) -> Res<Value> {
    meter.step(1 + text.len() / 64)?;
    let call = TextCall { text, args, meter };
    match name {
        "strip" => call.strip(true, true),
        "lstrip" => call.strip(true, false),
        "rstrip" => call.strip(false, true),
        "upper" => meter.text(text.to_uppercase()),
        "lower" | "casefold" => meter.text(text.to_lowercase()),
        "capitalize" => meter.text(capitalize(text)),
        "title" => meter.text(title(text)),
        "startswith" => call.with_any(&|p| text.starts_with(p)),
        "endswith" => call.with_any(&|p| text.ends_with(p)),
        "removeprefix" => meter.text(text.strip_prefix(call.need(0, "prefix")?).unwrap_or(text)),
        "removesuffix" => meter.text(text.strip_suffix(call.need(0, "suffix")?).unwrap_or(text)),
        "replace" => replace(text, call.need(0, "old")?, call.need(1, "new")?, call.count(2, "count"), meter),
        "split" | "rsplit" | "splitlines" | "partition" | "rpartition" => call.divide(name),
        "join" => join(&args.need(0, "iterable")?.items(meter)?, text, false, meter),
        "find" | "rfind" | "index" | "count" => call.search(name),
        "isdigit" | "isnumeric" | "isalpha" | "isalnum" | "isspace" | "isascii" | "islower" | "isupper" | "istitle" => {
            Ok(Value::Bool(is(text, name)))
        }
        "ljust" => pad(text, args, 0, 1, meter),
        "rjust" => pad(text, args, 1, 0, meter),
        "center" => pad(text, args, 1, 1, meter),
        "expandtabs" => replace(text, "\t", "        ", None, meter),
        "format" => format(text, args, meter),
        other => Err(format!("the method '{other}' of texts is not supported")),
    }
}

/// What Python counts as white space.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// Python's `str.capitalize`.
pub(crate) fn capitalize(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().collect::<String>() + &letters.as_str().to_lowercase())
}

/// Python's `str.title`.
pub(crate) fn title(text: &str) -> String {
    let mut inside = false;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if inside {
            out.extend(c.to_lowercase())
        } else {
            out.extend(c.to_uppercase())
        }
        inside = c.is_alphabetic();
    }
    out
}

/// Python's `str.replace`; the size is counted before it is built.
pub(crate) fn replace(text: &str, old: &str, new: &str, count: Option<usize>, meter: &Meter) -> Res<Value> {
    let found = text.matches(old).count().min(count.unwrap_or(usize::MAX));
    meter.step(found / 2)?;
    meter.bytes(text.len() + found.saturating_mul(new.len()))?;
    let replaced = text.replacen(old, new, found);
    Ok(Value::Str(replaced.into()))
}

fn split(text: &str, separator: Option<&str>, limit: Option<usize>, from_right: bool, meter: &Meter) -> Res<Value> {
    if separator == Some("") {
        return Err("empty separator".into());
    }
    let mut parts: Vec<&str> = Vec::new();
    let mut rest = text;
    if separator.is_none() {
        rest = rest.trim_matches(is_space);
    }
    while !(separator.is_none() && rest.is_empty()) {
        let cut = if limit.is_some_and(|limit| parts.len() >= limit) {
            None
        } else {
            match (separator, from_right) {
                (Some(s), false) => rest.split_once(s),
                (Some(s), true) => rest.rsplit_once(s),
                (None, false) => rest.split_once(is_space).map(|(a, b)| (a, b.trim_start_matches(is_space))),
                (None, true) => rest.rsplit_once(is_space).map(|(a, b)| (a.trim_end_matches(is_space), b)),
            }
        };
        let Some((left, right)) = cut else { break };
        if parts.len().is_multiple_of(64) {
            meter.bytes(64 * size_of::<&str>())?;
        }
        parts.push(if from_right { right } else { left });
        rest = if from_right { left } else { right };
    }
    if separator.is_some() || !rest.is_empty() {
        parts.push(rest);
    }
    if from_right {
        parts.reverse();
    }
    let parts = parts.into_iter().map(|p| meter.text(p)).collect::<Res<_>>()?;
    meter.list(parts)
}

/// Items joined by a text. Python's own `join` wants texts, the filter takes anything.
pub(crate) fn join(items: &[Value], between: &str, anything: bool, meter: &Meter) -> Res<Value> {
    let mut out = String::new();
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            meter.push(&mut out, between)?;
        }
        if !anything && item.as_str().is_none() {
            return Err(format!("sequence item {i}: expected str instance, {} found", item.type_name()));
        }
        item.print(&mut out, meter)?;
    }
    Ok(Value::Str(out.into()))
}

/// `ljust`, `rjust` and `center`: shares of the padding that go left and right.
fn pad(text: &str, args: &Args, left: usize, right: usize, meter: &Meter) -> Res<Value> {
    let width = args.need(0, "width")?.as_int().ok_or("a width must be an integer")?;
    let fill = args.get(1, "fillchar").and_then(Value::as_str).and_then(|s| s.chars().next()).unwrap_or(' ');
    padded(text, width, fill, left, right, meter)
}

/// A text widened to `width` letters.
pub(crate) fn padded(text: &str, width: i64, fill: char, left: usize, right: usize, meter: &Meter) -> Res<Value> {
    let missing = usize::try_from(width).unwrap_or(0).saturating_sub(text.chars().count());
    meter.bytes(missing.saturating_mul(fill.len_utf8()).saturating_add(text.len()))?;
    let before = missing * left / (left + right).max(1);
    let mut out: String = std::iter::repeat_n(fill, before).collect();
    out.push_str(text);
    out.extend(std::iter::repeat_n(fill, missing - before));
    Ok(Value::Str(out.into()))
}

/// `str.format` with `{}`, `{0}` and `{name}`; no format specifications.
fn format(text: &str, args: &Args, meter: &Meter) -> Res<Value> {
    let mut out = String::new();
    let mut rest = text;
    let mut next = 0;
    while let Some(at) = rest.find(['{', '}']) {
        meter.push(&mut out, &rest[..at])?;
        let brace = &rest[at..at + 1];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            meter.push(&mut out, brace)?;
            rest = after;
            continue;
        }
        let (field, after) = rest.split_once('}').filter(|_| brace == "{").ok_or("a brace of the format stands alone")?;
        rest = after;
        let value = if field.is_empty() {
            next += 1;
            args.plain.get(next - 1)
        } else if let Ok(index) = field.parse::<usize>() {
            args.plain.get(index)
        } else {
            args.named.iter().find(|(n, _)| &**n == field).map(|(_, v)| v)
        };
        value.ok_or_else(|| format!("the format's field '{{{field}}}' has no value here"))?.print(&mut out, meter)?;
    }
    meter.push(&mut out, rest)?;
    Ok(Value::Str(out.into()))
}
