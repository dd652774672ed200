//! `tojson`: JSON as Python's `json.dumps` writes it.

use super::meter::{Meter, Res};
use super::value::{Value, float_text};

/// How to write it.
pub(crate) struct Style {
    pub(crate) indent: Option<usize>,
    pub(crate) between: String,
    pub(crate) after_key: String,
    pub(crate) sort_keys: bool,
    pub(crate) ascii: bool,
}

/// Appends `value` as JSON.
pub(crate) fn write(value: &Value, style: &Style, level: usize, out: &mut String, meter: &Meter) -> Res<()> {
    meter.step(1)?;
    match value {
        Value::None => meter.push(out, "null"),
        Value::Bool(b) => meter.push(out, if *b { "true" } else { "false" }),
        Value::Int(n) => meter.push(out, &n.to_string()),
        Value::Float(f) if f.is_nan() => meter.push(out, "NaN"),
        Value::Float(f) if f.is_infinite() => meter.push(out, if *f > 0.0 { "Infinity" } else { "-Infinity" }),
        Value::Float(f) => meter.push(out, &float_text(*f)),
        Value::Str(text) | Value::Markup(text) => text_to(text, style.ascii, out, meter),
        Value::List(s) | Value::Tuple(s) => {
            let write_item = |item: &Value, out: &mut String| write(item, style, level + 1, out, meter);
            series(s.items.iter(), ('[', ']'), style, level, out, meter, write_item)
        }
        Value::Dict(d) => {
            let mut pairs: Vec<(String, &Value)> = Vec::with_capacity(d.items.len());
            for (key, value) in &d.items {
                let key = match key {
                    Value::Str(text) | Value::Markup(text) => text.to_string(),
                    Value::None => "null".into(),
                    Value::Bool(b) => b.to_string(),
                    Value::Int(_) | Value::Float(_) => key.to_text(meter)?.to_string(),
                    other => return Err(format!("keys must be str, int, float, bool or None, not {}", other.type_name())),
                };
                meter.bytes(key.len())?;
                pairs.push((key, value));
            }
            if style.sort_keys {
                pairs.sort_by(|a, b| a.0.cmp(&b.0));
            }
            series(pairs.iter(), ('{', '}'), style, level, out, meter, |(key, value), out| {
                text_to(key, style.ascii, out, meter)?;
                meter.push(out, &style.after_key)?;
                write(value, style, level + 1, out, meter)
            })
        }
        other => Err(format!("Object of type {} is not JSON serializable", other.type_name())),
    }
}

fn series<T>(
    items: impl ExactSizeIterator<Item = T>,
    brackets: (char, char),
    style: &Style,
    level: usize,
    out: &mut String,
    meter: &Meter,
    mut write_item: impl FnMut(T, &mut String) -> Res<()>,
) -> Res<()> {
    let empty = items.len() == 0;
    let line = |level: usize, out: &mut String| match style.indent {
        Some(indent) if !empty => {
            let spaces = indent.saturating_mul(level);
            meter.bytes(spaces)?;
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', spaces));
            Ok(())
        }
        _ => Ok::<(), String>(()),
    };
    out.push(brackets.0);
    for (i, item) in items.enumerate() {
        if i > 0 {
            meter.push(out, &style.between)?;
        }
        line(level + 1, out)?;
        write_item(item, out)?;
    }
    line(level, out)?;
    out.push(brackets.1);
    meter.bytes(2)
}

fn text_to(text: &str, ascii: bool, out: &mut String, meter: &Meter) -> Res<()> {
    let start = out.len();
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c if ascii && !c.is_ascii() => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}"))),
            c => out.push(c),
        }
    }
    out.push('"');
    meter.bytes(out.len() - start)
}
