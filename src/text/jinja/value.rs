//! The values of a template, with Python's notions of text, truth and equality.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::rc::Rc;
use std::sync::Arc;

use super::meter::{Meter, Res};
use super::syntax::Macro;

/// Values may nest this deep; dropping and printing them recurses.
const MAX_DEPTH: u8 = 60;

impl Meter {
    /// A new text.
    pub(crate) fn text(&self, text: impl AsRef<str> + Into<Arc<str>>) -> Res<Value> {
        self.bytes(text.as_ref().len())?;
        Ok(Value::Str(text.into()))
    }
    /// A new list.
    pub(crate) fn list(&self, items: Vec<Value>) -> Res<Value> {
        Ok(Value::List(Rc::new(self.seq(items)?)))
    }
    /// A new tuple.
    pub(crate) fn tuple(&self, items: Vec<Value>) -> Res<Value> {
        Ok(Value::Tuple(Rc::new(self.seq(items)?)))
    }
    fn seq(&self, items: Vec<Value>) -> Res<Seq> {
        self.bytes(items.len() * size_of::<Value>())?;
        let depth = nest(items.iter())?;
        Ok(Seq { items, depth })
    }
    /// A new dictionary.
    pub(crate) fn dict(&self, items: Vec<(Value, Value)>) -> Res<Value> {
        self.bytes(items.len() * 2 * size_of::<Value>())?;
        let depth = nest(items.iter().map(|(_, v)| v))?;
        Ok(Value::Dict(Rc::new(Dict { items, depth })))
    }
    /// A sequence that can be iterated once, as Python's lazy filters give.
    pub(crate) fn generator(&self, items: Vec<Value>) -> Res<Value> {
        let Seq { items, depth } = self.seq(items)?;
        Ok(Value::Generator(Rc::new((RefCell::new(items), depth))))
    }
}

fn nest<'a>(items: impl Iterator<Item = &'a Value>) -> Res<u8> {
    let depth = 1 + items.map(Value::depth).max().unwrap_or(0);
    if depth > MAX_DEPTH { Err("its values nest too deep".into()) } else { Ok(depth) }
}

pub(crate) struct Seq {
    pub(crate) items: Vec<Value>,
    depth: u8,
}

/// In the order of insertion. Chat dictionaries are small: look-up compares key by key.
pub(crate) struct Dict {
    pub(crate) items: Vec<(Value, Value)>,
    depth: u8,
}

/// Where a `for` stands.
pub(crate) struct LoopState {
    pub(crate) index0: usize,
    pub(crate) length: usize,
    pub(crate) depth0: usize,
    pub(crate) previous: Option<Value>,
    pub(crate) next: Option<Value>,
}

#[derive(Clone)]
pub(crate) enum Value {
    /// With the message that using it gives.
    Undefined(Arc<str>),
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(Arc<str>),
    /// Text that `safe` declared to be markup: what is added to it gets escaped.
    Markup(Arc<str>),
    List(Rc<Seq>),
    Tuple(Rc<Seq>),
    Generator(Rc<(RefCell<Vec<Value>>, u8)>),
    Dict(Rc<Dict>),
    /// By number, so that a namespace can hold itself without a cycle of owners.
    Namespace(usize),
    Loop(Rc<LoopState>),
    Macro(Arc<Macro>),
    /// A function of the language.
    Function(&'static str),
    /// A value's method that is not called yet.
    Method(Rc<(Value, Arc<str>)>),
}

impl Value {
    pub(crate) fn undefined(message: impl Into<Arc<str>>) -> Self {
        Value::Undefined(message.into())
    }

    fn depth(&self) -> u8 {
        match self {
            Value::List(s) | Value::Tuple(s) => s.depth,
            Value::Generator(g) => g.1,
            Value::Dict(d) => d.depth,
            Value::Loop(l) => 1 + l.previous.iter().chain(&l.next).map(Value::depth).max().unwrap_or(0),
            Value::Method(m) => m.0.depth(),
            _ => 0,
        }
    }

    /// From JSON, which serde_json has already limited in depth to 128.
    pub(crate) fn from_json(json: &serde_json::Value, meter: &Meter) -> Res<Value> {
        meter.step(1)?;
        Ok(match json {
            serde_json::Value::Null => Value::None,
            serde_json::Value::Bool(b) => Value::Bool(*b),
            serde_json::Value::Number(n) => n.as_i64().map(Value::Int).or(n.as_f64().map(Value::Float)).unwrap_or(Value::None),
            serde_json::Value::String(s) => meter.text(s.as_str())?,
            serde_json::Value::Array(a) => meter.list(a.iter().map(|v| Value::from_json(v, meter)).collect::<Res<_>>()?)?,
            serde_json::Value::Object(o) => {
                let pair = |(k, v): (&String, &serde_json::Value)| Ok((meter.text(k.as_str())?, Value::from_json(v, meter)?));
                meter.dict(o.iter().map(pair).collect::<Res<_>>()?)?
            }
        })
    }

    /// Python's name of the type.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Value::Undefined(_) => "Undefined",
            Value::None => "NoneType",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Float(_) => "float",
            Value::Str(_) => "str",
            Value::Markup(_) => "Markup",
            Value::List(_) => "list",
            Value::Tuple(_) => "tuple",
            Value::Generator(_) => "generator",
            Value::Dict(_) => "dict",
            Value::Namespace(_) => "Namespace",
            Value::Loop(_) => "LoopContext",
            Value::Macro(_) => "Macro",
            Value::Function(_) => "function",
            Value::Method(_) => "builtin_function_or_method",
        }
    }

    pub(crate) fn is_true(&self) -> bool {
        match self {
            Value::Undefined(_) | Value::None => false,
            Value::Bool(b) => *b,
            Value::Int(n) => *n != 0,
            Value::Float(f) => *f != 0.0,
            Value::Str(s) | Value::Markup(s) => !s.is_empty(),
            Value::List(s) | Value::Tuple(s) => !s.items.is_empty(),
            Value::Dict(d) => !d.items.is_empty(),
            _ => true,
        }
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        match self {
            Value::Str(s) | Value::Markup(s) => Some(s),
            _ => None,
        }
    }

    /// A number's value as Python's `int` and `bool` are numbers.
    pub(crate) fn as_int(&self) -> Option<i64> {
        match self {
            Value::Int(n) => Some(*n),
            Value::Bool(b) => Some(*b as i64),
            _ => None,
        }
    }

    pub(crate) fn as_float(&self) -> Option<f64> {
        match self {
            Value::Float(f) => Some(*f),
            other => other.as_int().map(|n| n as f64),
        }
    }

    /// The entry of a dictionary under a text.
    pub(crate) fn entry(&self, key: &str) -> Option<&Value> {
        match self {
            Value::Dict(d) => d.items.iter().find(|(k, _)| k.as_str() == Some(key)).map(|(_, v)| v),
            _ => None,
        }
    }

    /// `len()`, if there is one.
    pub(crate) fn len(&self) -> Option<usize> {
        match self {
            Value::Undefined(_) => Some(0),
            Value::Str(s) | Value::Markup(s) => Some(s.chars().count()),
            Value::List(s) | Value::Tuple(s) => Some(s.items.len()),
            Value::Dict(d) => Some(d.items.len()),
            _ => None,
        }
    }

    /// The items that an iteration over this value gives.
    pub(crate) fn items(&self, meter: &Meter) -> Res<Vec<Value>> {
        let items: Vec<Value> = match self {
            Value::Undefined(_) => Vec::new(),
            Value::List(s) | Value::Tuple(s) => s.items.clone(),
            Value::Generator(g) => g.0.take(),
            Value::Dict(d) => d.items.iter().map(|(k, _)| k.clone()).collect(),
            Value::Str(s) | Value::Markup(s) => {
                meter.bytes(s.len() * 16)?;
                s.chars().map(|c| Value::Str(c.to_string().into())).collect()
            }
            other => return Err(format!("'{}' object is not iterable", other.type_name())),
        };
        meter.step(items.len() / 4)?;
        meter.bytes(items.len() * size_of::<Value>())?;
        Ok(items)
    }

    /// Python's `==`.
    pub(crate) fn equals(&self, other: &Value, meter: &Meter) -> Res<bool> {
        meter.step(1)?;
        let all = |a: &[Value], b: &[Value]| -> Res<bool> {
            if a.len() != b.len() {
                return Ok(false);
            }
            for (a, b) in a.iter().zip(b) {
                if !a.equals(b, meter)? {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        Ok(match (self, other) {
            (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
            (Value::Str(a) | Value::Markup(a), Value::Str(b) | Value::Markup(b)) => {
                meter.step(a.len().min(b.len()) / 256)?;
                a == b
            }
            (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => all(&a.items, &b.items)?,
            (Value::Dict(a), Value::Dict(b)) => {
                if a.items.len() != b.items.len() {
                    return Ok(false);
                }
                for (key, value) in &a.items {
                    match other.get(key, meter)? {
                        Some(found) if value.equals(&found, meter)? => {}
                        _ => return Ok(false),
                    }
                }
                true
            }
            (Value::Namespace(a), Value::Namespace(b)) => a == b,
            (Value::Function(a), Value::Function(b)) => a == b,
            (Value::Macro(a), Value::Macro(b)) => Arc::ptr_eq(a, b),
            (a, b) => match (a.as_int(), b.as_int()) {
                (Some(a), Some(b)) => a == b,
                _ => matches!((a.as_float(), b.as_float()), (Some(a), Some(b)) if a == b),
            },
        })
    }

    /// A dictionary's value under any key.
    pub(crate) fn get(&self, key: &Value, meter: &Meter) -> Res<Option<Value>> {
        let Value::Dict(d) = self else { return Ok(None) };
        meter.step(d.items.len() / 16)?;
        if let Some(key) = key.as_str() {
            return Ok(self.entry(key).cloned());
        }
        for (k, v) in &d.items {
            if k.equals(key, meter)? {
                return Ok(Some(v.clone()));
            }
        }
        Ok(None)
    }

    /// Python's `<`, `>` and their like.
    pub(crate) fn order(&self, other: &Value, meter: &Meter) -> Res<Ordering> {
        meter.step(1)?;
        match (self, other) {
            (Value::Str(a) | Value::Markup(a), Value::Str(b) | Value::Markup(b)) => return Ok(a.cmp(b)),
            (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
                for (a, b) in a.items.iter().zip(&b.items) {
                    if !a.equals(b, meter)? {
                        return a.order(b, meter);
                    }
                }
                return Ok(a.items.len().cmp(&b.items.len()));
            }
            (Value::Undefined(message), _) | (_, Value::Undefined(message)) => return Err(message.to_string()),
            _ => {}
        }
        if let (Some(a), Some(b)) = (self.as_int(), other.as_int()) {
            return Ok(a.cmp(&b));
        }
        match (self.as_float(), other.as_float()) {
            (Some(a), Some(b)) => a.partial_cmp(&b).ok_or("a number is not a number".into()),
            _ => Err(format!("'<' not supported between instances of '{}' and '{}'", self.type_name(), other.type_name())),
        }
    }

    /// Python's `in`.
    pub(crate) fn contains(&self, item: &Value, meter: &Meter) -> Res<bool> {
        match self {
            Value::Str(text) | Value::Markup(text) => match item {
                Value::Str(part) | Value::Markup(part) => {
                    meter.step(text.len() / 64)?;
                    Ok(text.contains(&**part))
                }
                Value::Undefined(message) => Err(message.to_string()),
                other => Err(format!("'in <string>' requires string as left operand, not {}", other.type_name())),
            },
            Value::Dict(_) => Ok(self.get(item, meter)?.is_some()),
            Value::List(s) | Value::Tuple(s) => {
                for value in &s.items {
                    if value.equals(item, meter)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            other => {
                for value in other.items(meter).map_err(|_| format!("argument of type '{}' is not iterable", other.type_name()))? {
                    if value.equals(item, meter)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
        }
    }

    /// Appends Python's `str()`.
    pub(crate) fn print(&self, out: &mut String, meter: &Meter) -> Res<()> {
        match self {
            Value::Undefined(_) => Ok(()),
            Value::Str(s) | Value::Markup(s) => meter.push(out, s),
            other => other.repr(out, meter),
        }
    }

    /// Python's `str()`.
    pub(crate) fn to_text(&self, meter: &Meter) -> Res<Arc<str>> {
        if let Value::Str(s) | Value::Markup(s) = self {
            return Ok(s.clone());
        }
        let mut out = String::new();
        self.print(&mut out, meter)?;
        Ok(out.into())
    }

    /// Appends Python's `repr()`.
    pub(crate) fn repr(&self, out: &mut String, meter: &Meter) -> Res<()> {
        meter.step(1)?;
        let mut series = |items: &[Value], open: &str, close: &str| -> Res<()> {
            meter.push(out, open)?;
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    meter.push(out, ", ")?;
                }
                item.repr(out, meter)?;
            }
            meter.push(out, close)
        };
        match self {
            Value::Undefined(_) => meter.push(out, "Undefined"),
            Value::None => meter.push(out, "None"),
            Value::Bool(b) => meter.push(out, if *b { "True" } else { "False" }),
            Value::Int(n) => meter.push(out, &n.to_string()),
            Value::Float(f) => meter.push(out, &float_text(*f)),
            Value::Str(s) => meter.push(out, &quoted(s)),
            Value::Markup(s) => meter.push(out, &format!("Markup({})", quoted(s))),
            Value::List(s) => series(&s.items, "[", "]"),
            Value::Tuple(s) => series(&s.items, "(", if s.items.len() == 1 { ",)" } else { ")" }),
            Value::Dict(d) => {
                meter.push(out, "{")?;
                for (i, (key, value)) in d.items.iter().enumerate() {
                    if i > 0 {
                        meter.push(out, ", ")?;
                    }
                    key.repr(out, meter)?;
                    meter.push(out, ": ")?;
                    value.repr(out, meter)?;
                }
                meter.push(out, "}")
            }
            other => meter.push(out, &format!("<{}>", other.type_name())),
        }
    }
}

/// Python's shortest text of a float.
pub(crate) fn float_text(f: f64) -> String {
    if !f.is_finite() {
        return if f.is_nan() {
            "nan"
        } else if f > 0.0 {
            "inf"
        } else {
            "-inf"
        }
        .to_string();
    }
    let scientific = format!("{f:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if f != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    format!("{f:?}")
}

/// A text as Python's `repr()` quotes it.
fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::with_capacity(text.len() + 2);
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if (c as u32) < 0x20 || c as u32 == 0x7f => out.push_str(&format!("\\x{:02x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}
