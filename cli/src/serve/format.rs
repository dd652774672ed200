//! Forms that answers may be asked for: JSON by a schema, a regular expression, a choice of texts, a grammar; in OpenAI's, Anthropic's and vLLM's fields.

use super::error::ApiError;
use super::fields::{Fields, wrong};
use serde_json::{Value, json};

/// Bytes of a grammar at most, and levels of a schema.
const MAX_BYTES: usize = 256 << 10;
const MAX_DEPTH: usize = 64;

/// What an answer must be.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(not(feature = "grammar"), allow(dead_code))]
pub enum Format {
    /// JSON that a schema allows.
    Schema(Value),
    /// All of it by a regular expression.
    Regex(String),
    /// By a grammar in llguidance's form of Lark.
    Lark(String),
}

/// A form with the name of the field that asks for it.
pub type Wanted = (Format, String);

impl Format {
    /// One of these texts.
    pub fn choice(texts: &[String]) -> Format {
        let special = |c: char| "\\.+*?()|[]{}^$#&-~/".contains(c);
        let escaped = |text: &String| text.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect::<String>();
        Format::Regex(texts.iter().map(escaped).collect::<Vec<_>>().join("|"))
    }

    fn any_object() -> Format {
        Format::Schema(json!({ "type": "object" }))
    }

    /// The form itself, where it is not too large.
    fn checked(self, name: &str) -> Result<Wanted, ApiError> {
        let (bytes, depth) = match &self {
            Format::Regex(text) | Format::Lark(text) => (text.len(), 0),
            Format::Schema(schema) if schema.is_object() || schema.is_boolean() => (schema.to_string().len(), depth(schema)),
            Format::Schema(other) => return Err(wrong(name, other, "a schema")),
        };
        if bytes > MAX_BYTES || depth > MAX_DEPTH {
            let message = format!("{name} has {bytes} bytes and {depth} levels; at most {MAX_BYTES} and {MAX_DEPTH} are supported");
            return Err(ApiError::field(name, message));
        }
        Ok((self, name.to_string()))
    }
}

fn depth(v: &Value) -> usize {
    match v {
        Value::Array(all) => 1 + all.iter().map(depth).max().unwrap_or(0),
        Value::Object(all) => 1 + all.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// OpenAI's object: of `response_format`, or as `text.format` and `output_config.format`, where the schema is not nested.
pub fn object(name: &str, value: Value, nested: bool) -> Result<Option<Wanted>, ApiError> {
    let mut fields = Fields::of(name.into(), value)?;
    let kind = fields.string("type")?.unwrap_or_default();
    let wanted = match kind.as_str() {
        "text" => None,
        "json_object" => Some(Format::any_object().checked(name)?),
        "json_schema" => {
            let mut own = match nested {
                true => {
                    let own = fields.name("json_schema");
                    Fields::of(own.clone(), fields.take("json_schema").ok_or_else(|| ApiError::field(&own, format!("{own} is missing")))?)?
                }
                false => std::mem::replace(&mut fields, Fields::of(name.into(), json!({}))?),
            };
            let schema = own.name("schema");
            let given = own.take("schema").ok_or_else(|| ApiError::field(&schema, format!("{schema} is missing")))?;
            own.ignore(&["name", "description", "strict"]);
            own.finish()?;
            Some(Format::Schema(given).checked(name)?)
        }
        other => {
            let name = fields.name("type");
            return Err(ApiError::field(&name, format!("{name} is {other:?}; expected text, json_object or json_schema")));
        }
    };
    fields.finish()?;
    Ok(wanted)
}

/// `response_format`, and vLLM's `guided_json`, `guided_regex`, `guided_choice`, `guided_grammar` and `structured_outputs`.
pub fn openai(fields: &mut Fields) -> Result<Option<Wanted>, ApiError> {
    let mut all = Vec::new();
    if let Some(v) = fields.take("response_format") {
        all.extend(object("response_format", v, true)?);
    }
    all.extend(guided(fields, "guided_")?);
    if let Some(v) = fields.take("structured_outputs") {
        let mut own = Fields::of("structured_outputs".into(), v)?;
        all.extend(guided(&mut own, "")?);
        if own.flag("json_object")?.unwrap_or(false) {
            all.push(Format::any_object().checked("structured_outputs")?);
        }
        own.finish()?;
    }
    match all.len() {
        0 | 1 => Ok(all.pop()),
        _ => Err(ApiError::field(&all[1].1, format!("{} and {} are both given; one form is possible", all[0].1, all[1].1))),
    }
}

fn guided(fields: &mut Fields, prefix: &str) -> Result<Vec<Wanted>, ApiError> {
    let mut all = Vec::new();
    let [json, regex, choice, grammar] = ["json", "regex", "choice", "grammar"].map(|kind| format!("{prefix}{kind}"));
    if let Some(v) = fields.take(&json) {
        let name = fields.name(&json);
        let schema = match v {
            Value::String(text) => serde_json::from_str(&text).map_err(|e| ApiError::field(&name, format!("{name} is not JSON: {e}")))?,
            schema => schema,
        };
        all.push(Format::Schema(schema).checked(&name)?);
    }
    if let Some(text) = fields.string(&regex)? {
        all.push(Format::Regex(text).checked(&fields.name(&regex))?);
    }
    if let Some(list) = fields.array(&choice)? {
        let name = fields.name(&choice);
        let texts = super::ask::texts(&name, &list)?;
        if texts.is_empty() || texts.iter().any(String::is_empty) {
            return Err(ApiError::field(&name, format!("{name}: expected texts that are not empty")));
        }
        all.push(Format::choice(&texts).checked(&name)?);
    }
    if let Some(text) = fields.string(&grammar)?.filter(|text| !text.is_empty()) {
        all.push(Format::Lark(text).checked(&fields.name(&grammar))?);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(v: Value) -> Result<Option<Wanted>, ApiError> {
        let mut fields = Fields::of_body(v.to_string().as_bytes()).unwrap();
        openai(&mut fields).and_then(|wanted| fields.finish().map(|()| wanted))
    }

    #[test]
    fn forms_are_read() {
        let schema = json!({ "type": "object" });
        let wanted = Some(Format::Schema(schema.clone()));
        let format = |v: Value| read(v).unwrap().map(|w| w.0);
        assert_eq!(format(json!({ "response_format": { "type": "text" } })), None);
        assert_eq!(format(json!({ "response_format": { "type": "json_object" } })), wanted);
        let named = json!({ "name": "x", "schema": schema, "strict": true });
        assert_eq!(format(json!({ "response_format": { "type": "json_schema", "json_schema": named } })), wanted);
        assert_eq!(format(json!({ "guided_json": schema })), wanted);
        assert_eq!(format(json!({ "structured_outputs": { "json": schema.to_string() } })), wanted);
        assert_eq!(format(json!({ "guided_choice": ["a.b", "c"] })), Some(Format::Regex("a\\.b|c".into())));
        assert_eq!(format(json!({ "structured_outputs": { "regex": "a+" } })), Some(Format::Regex("a+".into())));
        assert_eq!(format(json!({ "structured_outputs": { "grammar": "start: /a/" } })), Some(Format::Lark("start: /a/".into())));
        assert_eq!(format(json!({ "guided_grammar": "" })), None);
        assert_eq!(object("f", json!({ "type": "json_schema", "name": "x", "schema": schema }), false).unwrap().map(|w| w.0), wanted);
    }

    #[test]
    fn wrong_forms_are_named() {
        let deep = (0..70).fold(json!(1), |inner, _| json!({ "a": inner }));
        let cases = [
            (json!({ "response_format": "json" }), "response_format"),
            (json!({ "response_format": { "type": "xml" } }), "response_format.type"),
            (json!({ "response_format": { "type": "json_schema" } }), "response_format.json_schema"),
            (json!({ "response_format": { "type": "json_schema", "json_schema": {} } }), "response_format.json_schema.schema"),
            (json!({ "response_format": { "type": "json_object" }, "guided_regex": "a" }), "guided_regex"),
            (json!({ "guided_json": deep }), "guided_json"),
            (json!({ "guided_json": 7 }), "guided_json"),
            (json!({ "guided_regex": "a".repeat(300_000) }), "guided_regex"),
            (json!({ "guided_choice": [] }), "guided_choice"),
            (json!({ "guided_grammar": 7 }), "guided_grammar"),
            (json!({ "guided_grammar": "start: \"a\"", "guided_regex": "a" }), "guided_grammar"),
        ];
        for (body, param) in cases {
            assert_eq!(read(body.clone()).unwrap_err().param.as_deref(), Some(param));
        }
    }
}
