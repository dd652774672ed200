//! Operators, filters, tests and functions.

use std::rc::Rc;
use std::sync::Arc;

use super::args::Args;
use super::json::{self, Style};
use super::lookup::Lookup;
use super::meter::{Meter, Res};
use super::methods::{self, is_space};
use super::value::Value;

/// Sets a key of a dictionary that is being built.
pub(crate) fn put(items: &mut Vec<(Value, Value)>, key: Value, value: Value, meter: &Meter) -> Res<()> {
    if matches!(key, Value::List(_) | Value::Dict(_) | Value::Undefined(_)) {
        return Err(format!("unhashable type: '{}'", key.type_name()));
    }
    for (k, v) in items.iter_mut() {
        if k.equals(&key, meter)? {
            *v = value;
            return Ok(());
        }
    }
    items.push((key, value));
    Ok(())
}

/// Arithmetic, `~` and the operators of texts and lists.
pub(crate) fn binary(op: &str, a: &Value, b: &Value, meter: &Meter) -> Res<Value> {
    if op == "~" {
        let mut out = String::new();
        a.print(&mut out, meter)?;
        b.print(&mut out, meter)?;
        return Ok(Value::Str(out.into()));
    }
    if let Value::Undefined(message) = a {
        return Err(message.to_string());
    }
    match (op, a, b) {
        ("%", Value::Str(text) | Value::Markup(text), _) => return percent(text, b, meter),
        (_, _, Value::Undefined(message)) => return Err(message.to_string()),
        ("+", Value::Str(x), Value::Str(y)) => {
            meter.bytes(x.len() + y.len())?;
            return Ok(Value::Str([&**x, &**y].concat().into()));
        }
        ("+", Value::Str(_) | Value::Markup(_), Value::Str(_) | Value::Markup(_)) => {
            let mut out = String::new();
            for side in [a, b] {
                match side {
                    Value::Markup(text) => meter.push(&mut out, text)?,
                    other => meter.push(&mut out, &escaped(&other.to_text(meter)?, meter)?)?,
                }
            }
            return Ok(Value::Markup(out.into()));
        }
        ("+", Value::Str(_) | Value::Markup(_), other) => {
            return Err(format!("can only concatenate str (not \"{}\") to str", other.type_name()));
        }
        ("+", Value::List(x), Value::List(y)) => {
            meter.bytes((x.items.len() + y.items.len()) * size_of::<Value>())?;
            return meter.list(x.items.iter().chain(&y.items).cloned().collect());
        }
        ("+", Value::Tuple(x), Value::Tuple(y)) => {
            meter.bytes((x.items.len() + y.items.len()) * size_of::<Value>())?;
            return meter.tuple(x.items.iter().chain(&y.items).cloned().collect());
        }
        ("*", Value::Str(text), n) | ("*", n, Value::Str(text)) if n.as_int().is_some() => {
            let n = usize::try_from(n.as_int().unwrap_or(0)).unwrap_or(0);
            meter.bytes(text.len().saturating_mul(n))?;
            return Ok(Value::Str(text.repeat(n).into()));
        }
        ("*", Value::List(list), n) | ("*", n, Value::List(list)) if n.as_int().is_some() => {
            let n = usize::try_from(n.as_int().unwrap_or(0)).unwrap_or(0);
            meter.bytes(list.items.len().saturating_mul(n).saturating_mul(size_of::<Value>()))?;
            return meter.list(list.items.iter().cycle().take(list.items.len() * n).cloned().collect());
        }
        _ => {}
    }
    let large = || "a number is too large".to_string();
    if let (Some(x), Some(y)) = (a.as_int(), b.as_int()) {
        return Ok(match op {
            "+" => Value::Int(x.checked_add(y).ok_or_else(large)?),
            "-" => Value::Int(x.checked_sub(y).ok_or_else(large)?),
            "*" => Value::Int(x.checked_mul(y).ok_or_else(large)?),
            "/" | "//" | "%" if y == 0 => return Err("division by zero".into()),
            "/" => Value::Float(x as f64 / y as f64),
            "//" => {
                let quotient = x.checked_div(y).ok_or_else(large)?;
                Value::Int(quotient - (x % y != 0 && (x < 0) != (y < 0)) as i64)
            }
            "%" => {
                let rest = x.checked_rem(y).ok_or_else(large)?;
                Value::Int(if rest != 0 && (rest < 0) != (y < 0) { rest + y } else { rest })
            }
            _ if y < 0 => Value::Float((x as f64).powf(y as f64)),
            _ => Value::Int(u32::try_from(y).ok().and_then(|y| x.checked_pow(y)).ok_or_else(large)?),
        });
    }
    match (a.as_float(), b.as_float()) {
        (Some(x), Some(y)) => Ok(Value::Float(match op {
            "+" => x + y,
            "-" => x - y,
            "*" => x * y,
            "/" | "//" | "%" if y == 0.0 => return Err("division by zero".into()),
            "/" => x / y,
            "//" => (x / y).floor(),
            "%" => x - y * (x / y).floor(),
            _ => x.powf(y),
        })),
        _ => Err(format!("unsupported operand type(s) for {op}: '{}' and '{}'", a.type_name(), b.type_name())),
    }
}

/// `'…' % values` with `%s`, `%d`, `%r`, `%f`, `%.2f`, `%%`.
fn percent(text: &str, values: &Value, meter: &Meter) -> Res<Value> {
    let values = match values {
        Value::Tuple(s) => s.items.clone(),
        other => vec![other.clone()],
    };
    let mut values = values.into_iter();
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('%') {
        meter.push(&mut out, before)?;
        let end = after.find(|c: char| c.is_ascii_alphabetic() || c == '%').ok_or("incomplete format")?;
        let (flags, letter) = (&after[..end], &after[end..end + 1]);
        rest = &after[end + 1..];
        if letter == "%" && flags.is_empty() {
            meter.push(&mut out, "%")?;
            continue;
        }
        let value = values.next().ok_or("not enough arguments for format string")?;
        let digits = |s: &str| s.parse::<u16>().ok().filter(|n| *n <= 64).map(usize::from);
        let (width, precision) = flags.split_once('.').map_or((flags, None), |(w, p)| (w, Some(p)));
        let shown = match letter {
            "s" if precision.is_none() => value.to_text(meter)?.to_string(),
            "r" if precision.is_none() => {
                let mut shown = String::new();
                value.repr(&mut shown, meter)?;
                shown
            }
            "d" | "i" if precision.is_none() => {
                let number = value.as_int().or(value.as_float().map(|f| f as i64)).ok_or("%d format: a real number is required")?;
                number.to_string()
            }
            "f" | "F" => {
                let number = value.as_float().ok_or("must be real number")?;
                let precision = precision.map_or(Some(6), digits).ok_or("the format's precision is not supported")?;
                format!("{number:.precision$}")
            }
            _ => return Err(format!("the format '%{flags}{letter}' is not supported")),
        };
        let left = width.starts_with('-');
        let zero = width.starts_with('0') && letter != "s" && letter != "r";
        let width = match width.trim_start_matches(['-', '0']) {
            "" => 0,
            width => digits(width).ok_or("the format's width is not supported")?,
        };
        let missing = width.saturating_sub(shown.chars().count());
        let shown = match (left, zero, shown.strip_prefix('-')) {
            (true, ..) => shown + &" ".repeat(missing),
            (_, true, Some(number)) => format!("-{}{number}", "0".repeat(missing)),
            (_, true, None) => "0".repeat(missing) + &shown,
            _ => " ".repeat(missing) + &shown,
        };
        meter.push(&mut out, &shown)?;
    }
    meter.push(&mut out, rest)?;
    if values.next().is_some_and(|v| !matches!(v, Value::Dict(_))) {
        return Err("not all arguments converted during string formatting".into());
    }
    Ok(Value::Str(out.into()))
}

/// `==`, `<`, `in` and the others.
pub(crate) fn compare(op: &str, a: &Value, b: &Value, meter: &Meter) -> Res<bool> {
    Ok(match op {
        "==" => a.equals(b, meter)?,
        "!=" => !a.equals(b, meter)?,
        "in" => b.contains(a, meter)?,
        "not in" => !b.contains(a, meter)?,
        "<" => a.order(b, meter)?.is_lt(),
        "<=" => a.order(b, meter)?.is_le(),
        ">" => a.order(b, meter)?.is_gt(),
        _ => a.order(b, meter)?.is_ge(),
    })
}

/// `value is name(args)`.
pub(crate) fn test(name: &str, value: &Value, args: &Args, meter: &Meter) -> Res<bool> {
    let other = || args.need(0, "other");
    let whole = || value.as_int().ok_or_else(|| "a test of a number got something else".to_string());
    Ok(match name {
        "defined" => !matches!(value, Value::Undefined(_)),
        "undefined" => matches!(value, Value::Undefined(_)),
        "none" => matches!(value, Value::None),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "boolean" => matches!(value, Value::Bool(_)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => value.as_float().is_some(),
        "string" => value.as_str().is_some(),
        "mapping" => matches!(value, Value::Dict(_)),
        "sequence" => value.len().is_some(),
        "iterable" => value.len().is_some() || matches!(value, Value::Generator(_)),
        "callable" => matches!(value, Value::Function(_) | Value::Macro(_) | Value::Method(_)),
        "even" => whole()? % 2 == 0,
        "odd" => whole()? % 2 != 0,
        "divisibleby" => match other()?.as_int() {
            None | Some(0) => return Err("a test of divisibility needs a number".into()),
            Some(by) => whole()?.checked_rem(by) == Some(0),
        },
        "lower" => value.to_text(meter)?.chars().any(char::is_lowercase) && !value.to_text(meter)?.chars().any(char::is_uppercase),
        "upper" => value.to_text(meter)?.chars().any(char::is_uppercase) && !value.to_text(meter)?.chars().any(char::is_lowercase),
        "eq" | "equalto" => compare("==", value, other()?, meter)?,
        "ne" => compare("!=", value, other()?, meter)?,
        "lt" | "lessthan" => compare("<", value, other()?, meter)?,
        "le" => compare("<=", value, other()?, meter)?,
        "gt" | "greaterthan" => compare(">", value, other()?, meter)?,
        "ge" => compare(">=", value, other()?, meter)?,
        "in" => compare("in", value, other()?, meter)?,
        "sameas" => match (value, other()?) {
            (Value::Bool(a), Value::Bool(b)) => a == b,
            (Value::None, Value::None) => true,
            (Value::Str(a), Value::Str(b)) => Arc::ptr_eq(a, b),
            (Value::List(a), Value::List(b)) => Rc::ptr_eq(a, b),
            (Value::Dict(a), Value::Dict(b)) => Rc::ptr_eq(a, b),
            (Value::Int(a), Value::Int(b)) => a == b,
            _ => false,
        },
        other => return Err(format!("no test named '{other}'")),
    })
}

/// The functions every template can call.
pub(crate) fn function(name: &str) -> Option<&'static str> {
    ["range", "dict", "namespace", "raise_exception", "strftime_now"].into_iter().find(|f| *f == name)
}

/// Calls a function that [`function`] knows.
pub(crate) fn call(lookup: &mut Lookup, name: &str, args: Args) -> Res<Value> {
    let meter = lookup.meter;
    match name {
        "range" => {
            let bound = |i: usize| args.plain.get(i).map(|v| v.as_int().ok_or("range() takes integers")).transpose();
            let (start, stop) = match (bound(0)?, bound(1)?) {
                (Some(stop), None) => (0, stop),
                (Some(start), Some(stop)) => (start, stop),
                _ => return Err("range() takes at least one argument".into()),
            };
            let step = bound(2)?.unwrap_or(1);
            if step == 0 {
                return Err("range() arg 3 must not be zero".into());
            }
            let span = if step > 0 { stop.saturating_sub(start) } else { start.saturating_sub(stop) };
            let count = if span <= 0 { 0 } else { (span as u64).div_ceil(step.unsigned_abs()) };
            // Jinja's sandbox has the same limit.
            if count > 100_000 {
                return Err("Range too big. The sandbox blocks ranges larger than MAX_RANGE (100000).".into());
            }
            meter.list((0..count as i64).map(|i| Value::Int(start + i * step)).collect())
        }
        "dict" => {
            let mut items = match args.plain.first() {
                Some(Value::Dict(d)) => d.items.clone(),
                None => Vec::new(),
                Some(_) => return Err("dict() takes a dictionary or named arguments".into()),
            };
            for (name, value) in args.named {
                meter.step(items.len())?;
                put(&mut items, Value::Str(name), value, meter)?;
            }
            meter.dict(items)
        }
        "namespace" => {
            let mut attributes = args.named;
            if let Some(Value::Dict(d)) = args.plain.first() {
                for (key, value) in &d.items {
                    attributes.push((key.to_text(meter)?, value.clone()));
                }
            }
            lookup.namespace(attributes)
        }
        "raise_exception" => Err(args.need(0, "message")?.to_text(meter)?.to_string()),
        _ => {
            let seconds = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs());
            meter.text(strftime(args.text(0, "format")?, seconds)?)
        }
    }
}

/// Python's `strftime` for a time in UTC.
pub(crate) fn strftime(format: &str, seconds: u64) -> Res<String> {
    const MONTHS: [&str; 12] =
        ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"];
    const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
    if format.len() > 1024 {
        return Err("the date's format is too long".into());
    }
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    let leap = |y: u64| y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400));
    let (mut year, mut day) = (1970u64, days);
    while day >= 365 + leap(year) as u64 {
        day -= 365 + leap(year) as u64;
        year += 1;
    }
    let day_of_year = day + 1;
    let lengths = [31, 28 + leap(year) as u64, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while month < 11 && day >= lengths[month] {
        day -= lengths[month];
        month += 1;
    }
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    let weekday = ((days + 4) % 7) as usize;
    let mut out = String::new();
    let mut letters = format.chars();
    while let Some(c) = letters.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match letters.next() {
            Some('Y') => out.push_str(&year.to_string()),
            Some('y') => out.push_str(&format!("{:02}", year % 100)),
            Some('m') => out.push_str(&format!("{:02}", month + 1)),
            Some('B') => out.push_str(MONTHS[month]),
            Some('b' | 'h') => out.push_str(&MONTHS[month][..3]),
            Some('d') => out.push_str(&format!("{:02}", day + 1)),
            Some('e') => out.push_str(&format!("{:2}", day + 1)),
            Some('j') => out.push_str(&format!("{day_of_year:03}")),
            Some('A') => out.push_str(DAYS[weekday]),
            Some('a') => out.push_str(&DAYS[weekday][..3]),
            Some('w') => out.push_str(&weekday.to_string()),
            Some('H') => out.push_str(&format!("{hour:02}")),
            Some('I') => out.push_str(&format!("{:02}", (hour + 11) % 12 + 1)),
            Some('p') => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            Some('M') => out.push_str(&format!("{minute:02}")),
            Some('S') => out.push_str(&format!("{second:02}")),
            Some('F') => out.push_str(&format!("{year}-{:02}-{:02}", month + 1, day + 1)),
            Some('T') => out.push_str(&format!("{hour:02}:{minute:02}:{second:02}")),
            Some('Z') => out.push_str("UTC"),
            Some('z') => out.push_str("+0000"),
            Some('%') => out.push('%'),
            Some(other) => return Err(format!("the date format '%{other}' is not supported")),
            None => out.push('%'),
        }
    }
    Ok(out)
}

/// `value | name(args)`.
pub(crate) fn filter(lookup: &Lookup, name: &str, value: Value, args: Args) -> Res<Value> {
    let meter = lookup.meter;
    meter.step(1)?;
    match name {
        "safe" | "list" | "string" | "items" | "trim" | "lower" | "upper" | "capitalize" | "title" | "replace" | "indent" | "center"
        | "truncate" | "wordcount" | "escape" | "e" | "forceescape" | "join" | "urlencode" => {
            // Markup stays markup, but `join` makes plain text.
            let markup = matches!(value, Value::Markup(_)) && name != "join";
            if markup && matches!(name, "escape" | "e") {
                return Ok(value);
            }
            Ok(match text_filter(name, value, &args, meter)? {
                Value::Str(text) if markup => Value::Markup(text),
                other => other,
            })
        }
        "default" | "d" => {
            let missing = matches!(value, Value::Undefined(_)) || (args.flag(1, "boolean") && !value.is_true());
            Ok(if missing { args.get(0, "default_value").cloned().unwrap_or(Value::Str("".into())) } else { value })
        }
        "length" | "count" => match value.len() {
            Some(n) => Ok(Value::Int(n as i64)),
            None => Err(format!("object of type '{}' has no len()", value.type_name())),
        },
        "tojson" => {
            let indent = match args.get(1, "indent").or(args.named.iter().find(|(n, _)| &**n == "indent").map(|(_, v)| v)) {
                None | Some(Value::None) => None,
                Some(n) => Some(
                    n.as_int()
                        .and_then(|n| usize::try_from(n).ok())
                        .filter(|n| *n <= 64)
                        .ok_or("the indent of tojson must be a small number")?,
                ),
            };
            let mut between = if indent.is_some() { "," } else { ", " }.to_string();
            let mut after_key = ": ".to_string();
            if let Some(Value::Tuple(s) | Value::List(s)) = args.get(2, "separators") {
                match s.items.as_slice() {
                    [Value::Str(a), Value::Str(b)] => (between, after_key) = (a.to_string(), b.to_string()),
                    _ => return Err("the separators of tojson must be two texts".into()),
                }
            }
            let style = Style { indent, between, after_key, sort_keys: args.flag(3, "sort_keys"), ascii: args.flag(0, "ensure_ascii") };
            let mut out = String::new();
            json::write(&value, &style, 0, &mut out, meter)?;
            Ok(Value::Str(out.into()))
        }
        "first" => Ok(value.items(meter)?.into_iter().next().unwrap_or_else(|| Value::undefined("No first item, sequence was empty."))),
        "last" => Ok(value.items(meter)?.pop().unwrap_or_else(|| Value::undefined("No last item, sequence was empty."))),
        "reverse" => match &value {
            Value::Str(text) | Value::Markup(text) => meter.text(text.chars().rev().collect::<String>()),
            other => {
                let mut items = other.items(meter)?;
                items.reverse();
                meter.generator(items)
            }
        },
        "int" => Ok(match &value {
            Value::Str(text) | Value::Markup(text) => {
                let text = text.trim();
                Value::Int(text.parse().ok().or(text.parse::<f64>().ok().map(|f| f as i64)).unwrap_or(args.int(0, "default", 0)?))
            }
            other => Value::Int(other.as_int().or(other.as_float().map(|f| f as i64)).unwrap_or(args.int(0, "default", 0)?)),
        }),
        "float" => Ok(Value::Float(value.as_float().or(value.as_str().and_then(|s| s.trim().parse().ok())).unwrap_or(0.0))),
        "abs" => match value {
            Value::Float(f) => Ok(Value::Float(f.abs())),
            other => Ok(Value::Int(other.as_int().and_then(i64::checked_abs).ok_or("abs of something that is not a number")?)),
        },
        "round" => {
            let scale = 10f64.powi(args.int(0, "precision", 0)?.clamp(-300, 300) as i32);
            let scaled = value.as_float().ok_or("round of something that is not a number")? * scale;
            let rounded = match args.get(1, "method").and_then(Value::as_str) {
                Some("ceil") => scaled.ceil(),
                Some("floor") => scaled.floor(),
                _ => scaled.round_ties_even(),
            };
            Ok(Value::Float(rounded / scale))
        }
        _ => list_filter(lookup, name, value, args),
    }
}

fn text_filter(name: &str, value: Value, args: &Args, meter: &Meter) -> Res<Value> {
    match name {
        "list" => return meter.list(value.items(meter)?),
        "items" => return methods::items(&value, meter),
        "join" => {
            let mut items = value.items(meter)?;
            let between = args.get(0, "d").map(|v| v.to_text(meter)).transpose()?.unwrap_or_else(|| "".into());
            if let Some(name) = args.get(1, "attribute").and_then(Value::as_str) {
                for item in &mut items {
                    *item = item.entry(name).cloned().unwrap_or_else(|| Value::undefined(format!("no attribute '{name}'")));
                }
            }
            return methods::join(&items, &between, true, meter);
        }
        _ => {}
    }
    let text = value.to_text(meter)?;
    meter.step(text.len() / 64)?;
    match name {
        "trim" => match args.get(0, "chars").and_then(Value::as_str) {
            Some(set) => {
                meter.step(set.len() / 16 * (1 + text.len() / 64))?;
                meter.text(text.trim_matches(|c| set.contains(c)))
            }
            None => meter.text(text.trim_matches(is_space)),
        },
        "lower" => meter.text(text.to_lowercase()),
        "upper" => meter.text(text.to_uppercase()),
        "capitalize" => meter.text(methods::capitalize(&text)),
        "title" => meter.text(methods::title(&text)),
        "replace" => {
            let count = args.get(2, "count").and_then(Value::as_int).and_then(|n| usize::try_from(n).ok());
            methods::replace(&text, args.text(0, "old")?, args.text(1, "new")?, count, meter)
        }
        "indent" => {
            let by = match args.get(0, "width") {
                Some(Value::Str(by)) => by.to_string(),
                _ => {
                    let width = usize::try_from(args.int(0, "width", 4)?).unwrap_or(0);
                    meter.bytes(width)?;
                    " ".repeat(width)
                }
            };
            let (first, blank) = (args.flag(1, "first"), args.flag(2, "blank"));
            let mut out = String::new();
            for (i, line) in text.split('\n').enumerate() {
                if i > 0 {
                    meter.push(&mut out, "\n")?;
                }
                let indented = if i == 0 { first } else { blank || !line.is_empty() };
                if indented {
                    meter.push(&mut out, &by)?;
                }
                meter.push(&mut out, line)?;
            }
            Ok(Value::Str(out.into()))
        }
        "center" => methods::padded(&text, args.int(0, "width", 80)?, ' ', 1, 1, meter),
        "truncate" => {
            let length = usize::try_from(args.int(0, "length", 255)?).unwrap_or(0);
            let end = args.get(2, "end").and_then(Value::as_str).unwrap_or("...");
            let leeway = usize::try_from(args.int(3, "leeway", 5)?).unwrap_or(0);
            if text.chars().count() <= length.saturating_add(leeway) {
                return Ok(Value::Str(text));
            }
            let mut cut: String = text.chars().take(length.saturating_sub(end.chars().count())).collect();
            if !args.flag(1, "killwords")
                && let Some(space) = cut.rfind(' ')
            {
                cut.truncate(space);
            }
            meter.text(cut + end)
        }
        "wordcount" => Ok(Value::Int(text.split(is_space).filter(|w| !w.is_empty()).count() as i64)),
        "escape" | "e" | "forceescape" => Ok(Value::Markup(escaped(&text, meter)?.into())),
        "urlencode" => {
            let mut out = String::new();
            for byte in text.bytes() {
                match byte {
                    b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => out.push(byte as char),
                    byte => out.push_str(&format!("%{byte:02X}")),
                }
            }
            meter.text(out)
        }
        "safe" => Ok(Value::Markup(text)),
        // `string`.
        _ => Ok(Value::Str(text)),
    }
}

/// A text with HTML's signs replaced.
fn escaped(text: &str, meter: &Meter) -> Res<String> {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    meter.bytes(out.len())?;
    Ok(out)
}

/// A path such as `a.b.0` into a value.
fn follow_path(lookup: &Lookup, value: &Value, path: &Value) -> Res<Value> {
    let Some(path) = path.as_str() else { return lookup.item(value, path) };
    let mut value = value.clone();
    for part in path.split('.') {
        value = match part.parse::<i64>() {
            Ok(index) => lookup.item(&value, &Value::Int(index))?,
            Err(_) => lookup.item(&value, &Value::Str(part.into()))?,
        };
    }
    Ok(value)
}

fn list_filter(lookup: &Lookup, name: &str, value: Value, args: Args) -> Res<Value> {
    let meter = lookup.meter;
    match name {
        // Jinja looks at the truth of the value before it iterates over it.
        "select" | "reject" | "selectattr" | "rejectattr" | "map" if !value.is_true() => meter.generator(Vec::new()),
        "select" | "reject" | "selectattr" | "rejectattr" => {
            let by_attribute = name.ends_with("attr");
            let wanted = name.starts_with("select");
            let mut rest = args.plain.into_iter();
            let path = if by_attribute { Some(rest.next().ok_or("the attribute's name is missing")?) } else { None };
            let test_name = rest.next().map(|t| t.to_text(meter)).transpose()?;
            let test_args = Args { plain: rest.collect(), named: args.named };
            let mut kept = Vec::new();
            for item in value.items(meter)? {
                let subject = match &path {
                    Some(path) => follow_path(lookup, &item, path)?,
                    None => item.clone(),
                };
                let passes = match &test_name {
                    Some(test_name) => test(test_name, &subject, &test_args, meter)?,
                    None => subject.is_true(),
                };
                if passes == wanted {
                    kept.push(item);
                }
            }
            meter.generator(kept)
        }
        "map" => {
            let attribute = args.named.iter().find(|(n, _)| &**n == "attribute").map(|(_, v)| v.clone());
            let default = args.named.iter().find(|(n, _)| &**n == "default").map(|(_, v)| v.clone());
            let mut mapped = Vec::new();
            for item in value.items(meter)? {
                mapped.push(match &attribute {
                    Some(path) => match (follow_path(lookup, &item, path)?, &default) {
                        (Value::Undefined(_), Some(default)) => default.clone(),
                        (value, _) => value,
                    },
                    None => {
                        let name = args.text(0, "name")?.to_string();
                        let rest = Args { plain: args.plain[1..].to_vec(), named: args.named.clone() };
                        filter(lookup, &name, item, rest)?
                    }
                });
            }
            meter.generator(mapped)
        }
        "unique" | "sort" | "min" | "max" | "sum" | "groupby" => keyed_filter(lookup, name, value, &args),
        "dictsort" => {
            let Value::Dict(d) = &value else { return Err("dictsort of something that is not a dictionary".into()) };
            let by = if args.get(1, "by").and_then(Value::as_str) == Some("value") { 1 } else { 0 };
            let pairs = d.items.iter().map(|(k, v)| meter.tuple(vec![k.clone(), v.clone()])).collect::<Res<Vec<_>>>()?;
            let keys = d.items.iter().map(|(k, v)| if by == 0 { folded(k, args.flag(0, "case_sensitive"), meter) } else { Ok(v.clone()) });
            let sorted = sort_by(pairs, keys.collect::<Res<_>>()?, args.flag(2, "reverse"), meter)?;
            meter.list(sorted)
        }
        "batch" | "slice" => {
            let items = value.items(meter)?;
            let n = usize::try_from(args.int(0, "linecount", 0)?)
                .ok()
                .filter(|n| *n > 0)
                .ok_or_else(|| format!("{name} needs a positive number"))?;
            let mut groups = Vec::new();
            if name == "batch" {
                for chunk in items.chunks(n) {
                    let mut group = chunk.to_vec();
                    if let Some(fill) = args.get(1, "fill_with") {
                        meter.bytes((n - group.len()).saturating_mul(size_of::<Value>()))?;
                        group.resize(n, fill.clone());
                    }
                    groups.push(meter.list(group)?);
                }
            } else {
                meter.bytes(n.saturating_mul(size_of::<Value>() * 2))?;
                meter.step(n)?;
                let (each, extra) = (items.len() / n, items.len() % n);
                let mut rest = items.as_slice();
                for i in 0..n {
                    let (group, after) = rest.split_at(each + (i < extra) as usize);
                    groups.push(meter.list(group.to_vec())?);
                    rest = after;
                }
            }
            meter.generator(groups)
        }
        other => Err(format!("no filter named '{other}'")),
    }
}

/// A text in lower case, unless case counts; anything else as it is.
fn folded(value: &Value, case_sensitive: bool, meter: &Meter) -> Res<Value> {
    match value {
        Value::Str(text) if !case_sensitive => meter.text(text.to_lowercase()),
        other => Ok(other.clone()),
    }
}

/// Sorts `items` by `keys`, stably.
fn sort_by(items: Vec<Value>, keys: Vec<Value>, reverse: bool, meter: &Meter) -> Res<Vec<Value>> {
    let mut failure = None;
    let mut pairs: Vec<(Value, Value)> = keys.into_iter().zip(items).collect();
    pairs.sort_by(|(a, _), (b, _)| {
        if failure.is_some() {
            return std::cmp::Ordering::Equal;
        }
        let order = a.order(b, meter).unwrap_or_else(|message| {
            failure = Some(message);
            std::cmp::Ordering::Equal
        });
        if reverse { order.reverse() } else { order }
    });
    match failure {
        Some(message) => Err(message),
        None => Ok(pairs.into_iter().map(|(_, item)| item).collect()),
    }
}

/// Filters that look at a key of each item.
fn keyed_filter(lookup: &Lookup, name: &str, value: Value, args: &Args) -> Res<Value> {
    let meter = lookup.meter;
    // Where each filter has its arguments.
    let (reverse, case, attribute) = match name {
        "sort" => (args.flag(0, "reverse"), args.flag(1, "case_sensitive"), args.get(2, "attribute")),
        "sum" | "groupby" => (false, true, args.get(0, "attribute")),
        _ => (false, args.flag(0, "case_sensitive"), args.get(1, "attribute")),
    };
    let items = value.items(meter)?;
    let mut keys = Vec::with_capacity(items.len());
    for item in &items {
        let key = match attribute {
            Some(path) if !matches!(path, Value::None) => follow_path(lookup, item, path)?,
            _ => item.clone(),
        };
        keys.push(folded(&key, case, meter)?);
    }
    match name {
        "sort" => {
            let sorted = sort_by(items, keys, reverse, meter)?;
            meter.list(sorted)
        }
        "min" | "max" => {
            let sorted = sort_by(items, keys, name == "max", meter)?;
            Ok(sorted.into_iter().next().unwrap_or_else(|| Value::undefined("No aggregated item, sequence was empty.")))
        }
        "sum" => {
            let mut total = args.get(1, "start").cloned().unwrap_or(Value::Int(0));
            for key in &keys {
                total = binary("+", &total, key, meter)?;
            }
            Ok(total)
        }
        "groupby" => {
            let sorted = sort_by((0..items.len() as i64).map(Value::Int).collect(), keys.clone(), false, meter)?;
            let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
            for at in sorted.iter().filter_map(Value::as_int).map(|i| i as usize) {
                match groups.last_mut() {
                    Some((key, group)) if key.equals(&keys[at], meter)? => group.push(items[at].clone()),
                    _ => groups.push((keys[at].clone(), vec![items[at].clone()])),
                }
            }
            let pair = |(key, group): (Value, Vec<Value>)| meter.tuple(vec![key, meter.list(group)?]);
            let groups = groups.into_iter().map(pair).collect::<Res<_>>()?;
            meter.list(groups)
        }
        _ => {
            let mut seen: Vec<Value> = Vec::new();
            let mut kept = Vec::new();
            for (item, key) in items.into_iter().zip(keys) {
                let mut known = false;
                for earlier in &seen {
                    if earlier.equals(&key, meter)? {
                        known = true;
                        break;
                    }
                }
                if !known {
                    seen.push(key);
                    kept.push(item);
                }
            }
            meter.generator(kept)
        }
    }
}
