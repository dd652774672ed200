//! Calls of functions as models write them: JSON, and the notations of Mistral, Qwen 3 Coder and GLM.

use serde_json::{Map, Value};

/// A call of a function.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    /// The function's name.
    pub name: String,
    /// Its arguments by name.
    pub arguments: Value,
}

/// The calls that a text between the marks of a tool call means: JSON objects with `name` and `arguments` (or `parameters`), alone, in a list or one
/// after the other; `name[ARGS]{…}`; `<function=name><parameter=key>value</parameter></function>`; `name<arg_key>key</arg_key><arg_value>value</arg_value>`.
/// None where it is something else.
///
/// ```
/// use tensorlogic::text::tool_calls;
/// let calls = tool_calls(r#"{"name": "weather", "arguments": {"city": "Oslo"}}"#);
/// assert_eq!((calls[0].name.as_str(), &calls[0].arguments["city"]), ("weather", &"Oslo".into()));
/// assert!(tool_calls("I would call the weather service").is_empty());
/// ```
pub fn tool_calls(text: &str) -> Vec<ToolCall> {
    let text = text.trim();
    json(text).or_else(|| named(text)).or_else(|| tagged(text)).or_else(|| keyed(text)).unwrap_or_default()
}

fn json(text: &str) -> Option<Vec<ToolCall>> {
    let mut calls = Vec::new();
    // Llama separates several calls by semicolons.
    let mut rest = text;
    while !rest.is_empty() {
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        match values.next()?.ok()? {
            Value::Array(all) => {
                for v in &all {
                    calls.push(call(v)?);
                }
            }
            v => calls.push(call(&v)?),
        }
        rest = rest[values.byte_offset()..].trim_start_matches([';', ',', ' ', '\n', '\r', '\t']);
    }
    (!calls.is_empty()).then_some(calls)
}

fn call(value: &Value) -> Option<ToolCall> {
    let value = value.get("function").filter(|f| f.is_object()).unwrap_or(value);
    let name = ["name", "tool_name", "function"].into_iter().find_map(|key| value.get(key)?.as_str())?.to_string();
    let arguments = ["arguments", "parameters"].into_iter().find_map(|key| value.get(key));
    let arguments = match arguments {
        // Arguments that are themselves JSON in a string, as in OpenAI's format.
        Some(Value::String(s)) => serde_json::from_str(s).unwrap_or_else(|_| Value::String(s.clone())),
        Some(v) => v.clone(),
        None => Value::Object(Map::new()),
    };
    Some(ToolCall { name, arguments })
}

/// `name[ARGS]{…}`, several with `[TOOL_CALLS]` between them.
fn named(text: &str) -> Option<Vec<ToolCall>> {
    let one = |part: &str| {
        let (name, arguments) = part.split_once("[ARGS]")?;
        Some(ToolCall { name: name.trim().to_string(), arguments: serde_json::from_str(arguments.trim()).ok()? })
    };
    text.split("[TOOL_CALLS]").filter(|part| !part.trim().is_empty()).map(one).collect()
}

/// `<function=name><parameter=key>value</parameter></function>`.
fn tagged(text: &str) -> Option<Vec<ToolCall>> {
    let one = |part: &str| {
        let (name, body) = part.split_once('>')?;
        let pairs = body.split("<parameter=").skip(1).filter_map(|p| {
            let (key, value) = p.split_once('>')?;
            Some((key.to_string(), plain(value.split("</parameter>").next().unwrap_or(value))))
        });
        Some(ToolCall { name: name.trim().to_string(), arguments: Value::Object(pairs.collect()) })
    };
    let calls: Option<Vec<ToolCall>> = text.split("<function=").skip(1).map(one).collect();
    calls.filter(|calls| !calls.is_empty())
}

/// `name<arg_key>key</arg_key><arg_value>value</arg_value>`.
fn keyed(text: &str) -> Option<Vec<ToolCall>> {
    let (name, rest) = text.split_once("<arg_key>")?;
    let pairs = rest.split("<arg_key>").map(|p| {
        let (key, value) = p.split_once("</arg_key>")?;
        let value = value.split_once("<arg_value>")?.1;
        Some((key.trim().to_string(), plain(value.split("</arg_value>").next().unwrap_or(value))))
    });
    let arguments: Option<Map<String, Value>> = pairs.collect();
    Some(vec![ToolCall { name: name.trim().to_string(), arguments: Value::Object(arguments?) }])
}

/// A value without quotes: JSON where it is, else a text.
fn plain(text: &str) -> Value {
    let text = text.trim_matches('\n');
    serde_json::from_str(text.trim()).unwrap_or_else(|_| Value::String(text.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn notations_of_published_models() {
        let want = [("f", json!({ "a": 1, "b": "x y" }))];
        for text in [
            r#"{"name": "f", "arguments": {"a": 1, "b": "x y"}}"#,
            r#"{"name": "f", "parameters": {"a": 1, "b": "x y"}}"#,
            r#"[{"name": "f", "arguments": {"a": 1, "b": "x y"}}]"#,
            r#"{"type": "function", "function": {"name": "f", "arguments": "{\"a\": 1, \"b\": \"x y\"}"}}"#,
            r#"f[ARGS]{"a": 1, "b": "x y"}"#,
            "<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\nx y\n</parameter>\n</function>",
            "f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>b</arg_key>\n<arg_value>x y</arg_value>",
        ] {
            let got = tool_calls(text);
            let got: Vec<_> = got.iter().map(|c| (c.name.as_str(), c.arguments.clone())).collect();
            assert_eq!(got, want, "{text}");
        }
    }

    #[test]
    fn several_calls_and_none() {
        let two = tool_calls(r#"{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}"#);
        assert_eq!(two.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["f", "g"]);
        let two = tool_calls(r#"f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}"#);
        assert_eq!(two.len(), 2);
        for text in ["", "{", "{}", "[]", "{\"name\": 1}", "text", "[1, 2]", "<function=", "f[ARGS]{", "<arg_key>"] {
            assert_eq!(tool_calls(text), [], "{text}");
        }
    }
}
