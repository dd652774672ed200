//! Parts of values: attributes, methods, items, and what namespaces hold.

use std::rc::Rc;
use std::sync::Arc;

use super::meter::{Meter, Res};
use super::methods;
use super::value::{LoopState, Value};

/// Names with their values.
pub(crate) type Scope = Vec<(Arc<str>, Value)>;

/// Sets a name.
pub(crate) fn put(scope: &mut Scope, name: Arc<str>, value: Value) {
    match scope.iter_mut().find(|(n, _)| *n == name) {
        Some(slot) => slot.1 = value,
        None => scope.push((name, value)),
    }
}

/// Finds parts of values.
pub(crate) struct Lookup<'a> {
    pub(crate) meter: &'a Meter,
    namespaces: Vec<Scope>,
}

impl<'a> Lookup<'a> {
    pub(crate) fn new(meter: &'a Meter) -> Self {
        Lookup { meter, namespaces: Vec::new() }
    }

    /// A new namespace with the given attributes.
    pub(crate) fn namespace(&mut self, attributes: Scope) -> Res<Value> {
        self.meter.bytes(64 + attributes.len() * 48)?;
        self.namespaces.push(attributes);
        Ok(Value::Namespace(self.namespaces.len() - 1))
    }

    /// Sets an attribute of a namespace.
    pub(crate) fn set(&mut self, namespace: usize, attribute: Arc<str>, value: Value) {
        put(&mut self.namespaces[namespace], attribute, value);
    }

    /// `of.name`: a method or field first, then an entry.
    pub(crate) fn attribute(&self, of: &Value, name: &Arc<str>) -> Res<Value> {
        self.meter.step(1)?;
        match of {
            Value::Undefined(message) => return Err(message.to_string()),
            Value::Namespace(id) => {
                if let Some((_, value)) = self.namespaces[*id].iter().find(|(n, _)| n == name) {
                    return Ok(value.clone());
                }
            }
            Value::Loop(state) => {
                if let Some(value) = loop_field(state, name) {
                    return Ok(value);
                }
            }
            Value::Macro(definition) if &**name == "name" => return Ok(Value::Str(definition.name.clone())),
            _ => {}
        }
        if methods::has(of, name) {
            return Ok(Value::Method(Rc::new((of.clone(), name.clone()))));
        }
        Ok(of.entry(name).cloned().unwrap_or_else(|| missing(of, name)))
    }

    /// `of[index]`: an entry first, then a method or field.
    pub(crate) fn item(&self, of: &Value, index: &Value) -> Res<Value> {
        self.meter.step(1)?;
        if let Value::Undefined(message) = of {
            return Err(message.to_string());
        }
        if let Some(value) = of.get(index, self.meter)? {
            return Ok(value);
        }
        if let (Some(at), Value::List(_) | Value::Tuple(_) | Value::Str(_) | Value::Markup(_)) = (index.as_int(), of) {
            let length = of.len().unwrap_or(0) as i64;
            let at = if at < 0 { at.saturating_add(length) } else { at };
            return Ok(match of {
                _ if !(0..length).contains(&at) => Value::undefined(format!("{} object has no element {at}", of.type_name())),
                Value::List(s) | Value::Tuple(s) => s.items[at as usize].clone(),
                _ => {
                    let text = of.as_str().unwrap_or("");
                    self.meter.step(text.len() / 64)?;
                    let letter: String = text.chars().skip(at as usize).take(1).collect();
                    self.meter.text(letter)?
                }
            });
        }
        match index {
            Value::Str(name) | Value::Markup(name) => self.attribute(of, name),
            _ => Ok(missing(of, "that key")),
        }
    }
}

fn missing(of: &Value, name: &str) -> Value {
    let name: String = name.chars().take(60).collect();
    let of = if matches!(of, Value::None) { "'None'".to_string() } else { format!("'{} object'", of.type_name()) };
    Value::undefined(format!("{of} has no attribute '{name}'"))
}

fn loop_field(state: &LoopState, name: &str) -> Option<Value> {
    let int = |n: usize| Value::Int(n as i64);
    Some(match name {
        "index" => int(state.index0 + 1),
        "index0" => int(state.index0),
        "revindex" => int(state.length - state.index0),
        "revindex0" => int(state.length - state.index0 - 1),
        "first" => Value::Bool(state.index0 == 0),
        "last" => Value::Bool(state.index0 + 1 == state.length),
        "length" => int(state.length),
        "depth" => int(state.depth0 + 1),
        "depth0" => int(state.depth0),
        "previtem" => state.previous.clone().unwrap_or_else(|| Value::undefined("there is no previous item")),
        "nextitem" => state.next.clone().unwrap_or_else(|| Value::undefined("there is no next item")),
        _ => return None,
    })
}
