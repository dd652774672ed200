//! The fields of a request: each is read by name, type and range. What is left over at the end is unknown: ignored in the body, where clients send other
//! servers' parameters too, and refused in the objects in it.

use super::error::ApiError;
use serde_json::{Map, Value};
use std::ops::RangeInclusive;

/// A JSON object that is taken apart.
pub struct Fields {
    map: Map<String, Value>,
    /// What its fields are called in errors, in front of their names: empty, or `messages[2].`.
    path: String,
}

/// The type of a JSON value in words.
fn kind(v: &Value) -> &'static str {
    match v {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(n) if n.is_f64() => "a number",
        Value::Number(_) => "an integer",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

impl Fields {
    /// The fields of a body.
    pub fn of_body(body: &[u8]) -> Result<Fields, ApiError> {
        let value = serde_json::from_slice(body).map_err(|e| ApiError::bad(format!("the body is not valid JSON: {e}")))?;
        match value {
            Value::Object(map) => Ok(Fields { map, path: String::new() }),
            other => Err(ApiError::bad(format!("the body is {}; expected an object", kind(&other)))),
        }
    }

    /// The fields of an object that is called `name` in errors.
    pub fn of(name: String, value: Value) -> Result<Fields, ApiError> {
        match value {
            Value::Object(map) => Ok(Fields { map, path: format!("{name}.") }),
            other => Err(wrong(&name, &other, "an object")),
        }
    }

    /// What a field is called in errors.
    pub fn name(&self, field: &str) -> String {
        format!("{}{field}", self.path)
    }

    /// A field's value as it is, which stays; `null` where it is absent.
    pub fn look(&self, name: &str) -> &Value {
        self.map.get(name).unwrap_or(&Value::Null)
    }

    /// A field's value; `null` counts as absent.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.map.remove(name).filter(|v| !v.is_null())
    }

    fn typed<T>(&mut self, name: &str, want: &str, read: impl Fn(&Value) -> Option<T>) -> Result<Option<T>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        read(&value).map(Some).ok_or_else(|| wrong(&self.name(name), &value, want))
    }

    pub fn string(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        self.typed(name, "a string", |v| v.as_str().map(String::from))
    }

    pub fn flag(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        self.typed(name, "a boolean", Value::as_bool)
    }

    pub fn array(&mut self, name: &str) -> Result<Option<Vec<Value>>, ApiError> {
        self.typed(name, "an array", |v| v.as_array().cloned())
    }

    pub fn number(&mut self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, ApiError> {
        let value = self.typed(name, "a number", Value::as_f64)?;
        match value {
            Some(v) if !range.contains(&v) => Err(self.outside(name, v, *range.start(), *range.end())),
            v => Ok(v),
        }
    }

    pub fn integer(&mut self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        let value = self.typed(name, "an integer", Value::as_i64)?;
        match value {
            Some(v) if !range.contains(&v) => Err(self.outside(name, v, *range.start(), *range.end())),
            v => Ok(v),
        }
    }

    /// A count, one at least.
    pub fn count(&mut self, name: &str, most: usize) -> Result<Option<usize>, ApiError> {
        Ok(self.integer(name, 1..=most as i64)?.map(|n| n as usize))
    }

    fn outside<T: std::fmt::Display>(&self, name: &str, v: T, from: T, to: T) -> ApiError {
        let name = self.name(name);
        ApiError::field(&name, format!("{name} is {v}; expected {from} to {to}"))
    }

    /// Fields that change nothing about an answer.
    pub fn ignore(&mut self, names: &[&str]) {
        for name in names {
            self.map.remove(*name);
        }
    }

    /// A field that is not supported: it may be absent or say what would happen anyway.
    pub fn only(&mut self, name: &str, neutral: impl Fn(&Value) -> bool, why: &str) -> Result<(), ApiError> {
        match self.take(name) {
            Some(v) if !neutral(&v) => {
                let name = self.name(name);
                Err(ApiError::field(&name, format!("{name}: {why}")).code("unsupported_parameter"))
            }
            _ => Ok(()),
        }
    }

    /// Refuses what is left, but for the body itself.
    pub fn finish(self) -> Result<(), ApiError> {
        if self.path.is_empty() {
            return Ok(());
        }
        match self.map.iter().find(|(_, v)| !v.is_null()) {
            Some((name, _)) => {
                let name = self.name(name);
                Err(ApiError::field(&name, format!("{name}: the server does not know this parameter")).code("unknown_parameter"))
            }
            None => Ok(()),
        }
    }
}

/// The error for a value of another type.
pub fn wrong(name: &str, got: &Value, want: &str) -> ApiError {
    ApiError::field(name, format!("{name} is {}; expected {want}", kind(got)))
}

/// Whether a list or object has nothing in it.
pub fn is_empty(v: &Value) -> bool {
    v.as_array().is_some_and(Vec::is_empty) || v.as_object().is_some_and(Map::is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fields(v: Value) -> Fields {
        Fields::of_body(v.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn fields_are_read_by_type_and_range() {
        let mut f = fields(json!({ "a": 1, "b": 1.5, "c": "x", "d": true, "e": null, "f": [], "g": 3 }));
        assert_eq!(f.integer("a", 0..=4).unwrap(), Some(1));
        assert_eq!(f.number("b", 0.0..=2.0).unwrap(), Some(1.5));
        assert_eq!(f.string("c").unwrap().as_deref(), Some("x"));
        assert_eq!(f.flag("d").unwrap(), Some(true));
        assert_eq!(f.string("e").unwrap(), None);
        assert_eq!(f.only("f", is_empty, "is not supported"), Ok(()));
        assert_eq!(f.finish(), Ok(()), "a parameter of another server");
        let left = Fields::of("a[0]".into(), json!({ "g": 3 })).unwrap().finish().unwrap_err();
        assert_eq!((left.param.as_deref(), left.code), (Some("a[0].g"), Some("unknown_parameter")));
    }

    #[test]
    fn errors_name_the_field() {
        let error = |v: Value, read: &dyn Fn(&mut Fields) -> Option<ApiError>| read(&mut fields(v)).unwrap().message;
        assert_eq!(error(json!({ "n": "4" }), &|f| f.integer("n", 0..=9).err()), "n is a string; expected an integer");
        assert_eq!(error(json!({ "n": 1.5 }), &|f| f.integer("n", 0..=9).err()), "n is a number; expected an integer");
        assert_eq!(error(json!({ "n": 17 }), &|f| f.count("n", 16).err()), "n is 17; expected 1 to 16");
        assert_eq!(error(json!({ "t": -0.5 }), &|f| f.number("t", 0.0..=2.0).err()), "t is -0.5; expected 0 to 2");
        assert!(Fields::of_body(b"[1]").err().unwrap().message.contains("an array; expected an object"));
        assert!(Fields::of_body(b"{").err().unwrap().message.starts_with("the body is not valid JSON"));
        let deep = [b"{\"a\":".repeat(200), b"1".to_vec(), b"}".repeat(200)].concat();
        assert!(Fields::of_body(&deep).err().unwrap().message.contains("recursion limit"));
    }
}
