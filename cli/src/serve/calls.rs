//! Functions that the model may call: what requests say of them, how a template without support for them gets them, and calls in answers.

use super::ask::random;
use super::error::ApiError;
use super::fields::{Fields, wrong};
use serde_json::{Map, Value, json};
use tensorlogic::text::ToolCall;

const MAX_TOOLS: usize = 128;
const MAX_NAME: usize = 64;

/// Which of the functions an answer calls.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolChoice {
    None,
    Auto,
    /// One of them in any case.
    Required,
    /// This one.
    Named(String),
}

/// The functions of a request.
#[derive(Clone, Debug)]
pub struct Tools {
    /// In OpenAI's form, as templates read them.
    list: Vec<Value>,
    choice: ToolChoice,
    /// Whether an answer may have several calls.
    pub parallel: bool,
}

/// A call in an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    pub id: String,
    pub name: String,
    /// JSON, as text.
    pub arguments: String,
}

impl Call {
    pub fn new(call: ToolCall) -> Call {
        Call { id: call_id(), name: call.name, arguments: call.arguments.to_string() }
    }

    /// In OpenAI's form.
    pub fn openai(&self) -> Value {
        json!({ "id": self.id, "type": "function", "function": { "name": self.name, "arguments": self.arguments } })
    }

    /// The arguments as an object.
    pub fn input(&self) -> Value {
        serde_json::from_str(&self.arguments).unwrap_or_else(|_| json!({}))
    }
}

/// A call's name: nine letters and digits, since Mistral's templates refuse others.
fn call_id() -> String {
    const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let mut bits = random();
    let letter = |_| {
        let letter = LETTERS[(bits % 36) as usize];
        bits /= 36;
        letter as char
    };
    (0..9).map(letter).collect()
}

impl Tools {
    /// No functions.
    pub fn none() -> Tools {
        Tools { list: Vec::new(), choice: ToolChoice::None, parallel: true }
    }

    /// As `/v1/chat/completions` has them.
    pub fn chat(fields: &mut Fields) -> Result<Tools, ApiError> {
        let mut list = Vec::new();
        for (i, tool) in fields.array("tools")?.unwrap_or_default().into_iter().enumerate() {
            let mut tool = kind_of(format!("tools[{i}]"), tool, "function")?;
            let name = tool.name("function");
            let own = tool.take("function").ok_or_else(|| ApiError::field(&name, format!("{name} is missing")))?;
            list.push(function(Fields::of(name, own)?, "parameters")?);
            tool.finish()?;
        }
        let choice = match fields.take("tool_choice") {
            Some(Value::Object(named)) => {
                let mut named = kind_of("tool_choice".into(), named.into(), "function")?;
                let name = named.name("function");
                let own = named.take("function").ok_or_else(|| ApiError::field(&name, format!("{name} is missing")))?;
                Some(ToolChoice::Named(name_of(&mut Fields::of(name, own)?)?))
            }
            other => word(other)?,
        };
        let parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
        Tools::new(list, choice, parallel)
    }

    /// As `/v1/responses` has them.
    pub fn responses(fields: &mut Fields) -> Result<Tools, ApiError> {
        let mut list = Vec::new();
        for (i, tool) in fields.array("tools")?.unwrap_or_default().into_iter().enumerate() {
            list.push(function(kind_of(format!("tools[{i}]"), tool, "function")?, "parameters")?);
        }
        let choice = match fields.take("tool_choice") {
            Some(Value::Object(named)) => Some(ToolChoice::Named(name_of(&mut kind_of("tool_choice".into(), named.into(), "function")?)?)),
            other => word(other)?,
        };
        let parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
        Tools::new(list, choice, parallel)
    }

    /// As `/v1/messages` has them.
    pub fn messages(fields: &mut Fields) -> Result<Tools, ApiError> {
        let mut list = Vec::new();
        for (i, tool) in fields.array("tools")?.unwrap_or_default().into_iter().enumerate() {
            let mut tool = Fields::of(format!("tools[{i}]"), tool)?;
            tool.only("type", |t| t == "custom", "only functions of the client are supported")?;
            tool.ignore(&["cache_control", "input_examples", "eager_input_streaming"]);
            list.push(function(tool, "input_schema")?);
        }
        let mut parallel = true;
        let mut choice = None;
        if let Some(given) = fields.take("tool_choice") {
            let mut given = Fields::of("tool_choice".into(), given)?;
            parallel = !given.flag("disable_parallel_tool_use")?.unwrap_or(false);
            choice = Some(match given.string("type")?.as_deref() {
                Some("none") => ToolChoice::None,
                Some("auto") => ToolChoice::Auto,
                Some("any") => ToolChoice::Required,
                Some("tool") => ToolChoice::Named(name_of(&mut given)?),
                _ => return Err(ApiError::field("tool_choice.type", "tool_choice.type: expected none, auto, any or tool")),
            });
            given.finish()?;
        }
        Tools::new(list, choice, parallel)
    }

    fn new(list: Vec<Value>, choice: Option<ToolChoice>, parallel: bool) -> Result<Tools, ApiError> {
        if list.len() > MAX_TOOLS {
            return Err(ApiError::field("tools", format!("tools has {} functions; at most {MAX_TOOLS} are supported", list.len())));
        }
        let tools = Tools { choice: choice.unwrap_or(if list.is_empty() { ToolChoice::None } else { ToolChoice::Auto }), list, parallel };
        match &tools.choice {
            ToolChoice::Required if tools.list.is_empty() => Err(ApiError::field("tool_choice", "tool_choice needs tools")),
            ToolChoice::Named(name) if !tools.has(name) => {
                Err(ApiError::field("tool_choice", format!("tool_choice names {name:?}, which is not one of tools")))
            }
            _ => Ok(tools),
        }
    }

    /// The functions that the model gets.
    pub fn offered(&self) -> &[Value] {
        if self.choice == ToolChoice::None { &[] } else { &self.list }
    }

    /// Whether one of the functions has this name.
    pub fn has(&self, name: &str) -> bool {
        self.offered().iter().any(|tool| tool["function"]["name"] == name)
    }

    /// Whether the answer is a call in any case.
    pub fn forced(&self) -> bool {
        matches!(self.choice, ToolChoice::Required | ToolChoice::Named(_))
    }

    /// What a forced call has to be, as a JSON schema.
    pub fn schema(&self) -> Value {
        let called = |tool: &&Value| !matches!(&self.choice, ToolChoice::Named(name) if tool["function"]["name"] != **name);
        let tools: Vec<&Value> = self.list.iter().filter(called).collect();
        let call = |(i, tool): (usize, &&Value)| {
            let mut arguments = tool["function"].get("parameters").cloned().unwrap_or(json!({ "type": "object" }));
            let place = if tools.len() == 1 { String::new() } else { format!("/anyOf/{i}") };
            move_references(&mut arguments, &format!("{place}/properties/arguments"));
            json!({ "type": "object", "properties": { "name": { "const": tool["function"]["name"] }, "arguments": arguments },
                "required": ["name", "arguments"], "additionalProperties": false })
        };
        let mut calls: Vec<Value> = tools.iter().enumerate().map(call).collect();
        if calls.len() == 1 { calls.remove(0) } else { json!({ "anyOf": calls }) }
    }
}

/// Has the references of a schema point into it where it is at this place (a JSON pointer) of another one.
fn move_references(schema: &mut Value, place: &str) {
    match schema {
        Value::Array(parts) => parts.iter_mut().for_each(|part| move_references(part, place)),
        Value::Object(keys) => {
            for (key, value) in keys {
                match (key.as_str(), value) {
                    ("$ref", Value::String(to)) if to == "#" || to.starts_with("#/") => to.insert_str(1, place),
                    // Values, not schemas.
                    ("const" | "enum" | "default" | "examples", _) => {}
                    // Names, which may be those of keywords.
                    ("properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas", Value::Object(named)) => {
                        named.values_mut().for_each(|part| move_references(part, place));
                    }
                    (_, value) => move_references(value, place),
                }
            }
        }
        _ => {}
    }
}

/// An object whose `type` must be this.
fn kind_of(name: String, value: Value, want: &str) -> Result<Fields, ApiError> {
    let mut fields = Fields::of(name, value)?;
    let name = fields.name("type");
    match fields.string("type")? {
        Some(kind) if kind == want => Ok(fields),
        Some(kind) => Err(ApiError::field(&name, format!("{name} is {kind:?}; only {want:?} is supported"))),
        None => Err(ApiError::field(&name, format!("{name} is missing"))),
    }
}

/// A choice that is a word.
fn word(value: Option<Value>) -> Result<Option<ToolChoice>, ApiError> {
    match value.as_ref().map(|v| (v, v.as_str())) {
        None => Ok(None),
        Some((_, Some("none"))) => Ok(Some(ToolChoice::None)),
        Some((_, Some("auto"))) => Ok(Some(ToolChoice::Auto)),
        Some((_, Some("required"))) => Ok(Some(ToolChoice::Required)),
        Some((_, Some(other))) => {
            Err(ApiError::field("tool_choice", format!("tool_choice is {other:?}; expected none, auto, required or a function")))
        }
        Some((v, None)) => Err(wrong("tool_choice", v, "a string or an object")),
    }
}

fn name_of(fields: &mut Fields) -> Result<String, ApiError> {
    let name = fields.name("name");
    let own = fields.string("name")?.ok_or_else(|| ApiError::field(&name, format!("{name} is missing")))?;
    let letter = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if own.is_empty() || own.len() > MAX_NAME || !own.chars().all(letter) {
        return Err(ApiError::field(&name, format!("{name} is {own:?}; expected 1 to {MAX_NAME} letters, digits, _ and -")));
    }
    Ok(own)
}

/// A function as templates read it, whose arguments this field describes.
fn function(mut fields: Fields, schema: &str) -> Result<Value, ApiError> {
    let mut own = Map::new();
    own.insert("name".into(), name_of(&mut fields)?.into());
    // Templates write it without asking whether it is there.
    own.insert("description".into(), fields.string("description")?.unwrap_or_default().into());
    let name = fields.name(schema);
    let arguments = fields.take(schema).unwrap_or(json!({ "type": "object", "properties": {} }));
    if !arguments.is_object() {
        return Err(wrong(&name, &arguments, "an object"));
    }
    own.insert("parameters".into(), arguments);
    fields.flag("strict")?;
    fields.finish()?;
    Ok(json!({ "type": "function", "function": own }))
}

/// Messages as a template reads them that knows no functions: they stand in the system's message, calls in the assistant's text, and results in the user's.
pub fn as_text(messages: Vec<Value>, tools: &[Value]) -> Vec<Value> {
    let mut all: Vec<Value> = Vec::new();
    if !tools.is_empty() {
        let list: Vec<String> = tools.iter().map(Value::to_string).collect();
        let told = format!(
            "You may call functions to help with the user's request. They are described here within <tools></tools>:\n<tools>\n{}\n</tools>\n\
             To call one, answer with a JSON object of its name and its arguments within <tool_call></tool_call>:\n\
             <tool_call>\n{{\"name\": \"...\", \"arguments\": {{...}}}}\n</tool_call>",
            list.join("\n")
        );
        all.push(json!({ "role": "system", "content": told }));
    }
    for mut m in messages {
        let content = m["content"].as_str().unwrap_or_default().to_string();
        let (role, content) = match m["role"].as_str() {
            Some("tool") => ("user", format!("<tool_response>\n{content}\n</tool_response>")),
            Some("assistant") if m["tool_calls"].is_array() => {
                let call = |c: &Value| {
                    let [name, arguments] = ["name", "arguments"].map(|key| &c["function"][key]);
                    format!("<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>")
                };
                let calls: Vec<String> = m["tool_calls"].as_array().into_iter().flatten().map(call).collect();
                ("assistant", [content, calls.join("\n")].into_iter().filter(|s| !s.is_empty()).collect::<Vec<_>>().join("\n"))
            }
            _ => {
                // A template may know one message of the system's, at the beginning.
                if let Some(first) = all.first_mut().filter(|first| first["role"] == "system" && m["role"] == "system") {
                    first["content"] = format!("{content}\n\n{}", first["content"].as_str().unwrap_or_default()).into();
                } else {
                    all.push(m.take());
                }
                continue;
            }
        };
        match all.last_mut().filter(|last| last["role"] == role && role == "user") {
            // Templates want roles to alternate.
            Some(last) => last["content"] = format!("{}\n{content}", last["content"].as_str().unwrap_or_default()).into(),
            None => all.push(json!({ "role": role, "content": content })),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(v: Value) -> Fields {
        Fields::of_body(v.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn three_forms_say_the_same() {
        let schema = json!({ "type": "object", "properties": { "city": { "type": "string" } } });
        let chat = json!({ "tools": [{ "type": "function", "function": { "name": "weather", "description": "d", "parameters": schema, "strict": true } }],
            "tool_choice": { "type": "function", "function": { "name": "weather" } }, "parallel_tool_calls": false });
        let responses = json!({ "tools": [{ "type": "function", "name": "weather", "description": "d", "parameters": schema }],
            "tool_choice": { "type": "function", "name": "weather" }, "parallel_tool_calls": false });
        let messages = json!({ "tools": [{ "name": "weather", "description": "d", "input_schema": schema }],
            "tool_choice": { "type": "tool", "name": "weather", "disable_parallel_tool_use": true } });
        let all = [
            Tools::chat(&mut fields(chat)).unwrap(),
            Tools::responses(&mut fields(responses)).unwrap(),
            Tools::messages(&mut fields(messages)).unwrap(),
        ];
        for tools in all {
            assert!(!tools.parallel && tools.forced() && tools.choice == ToolChoice::Named("weather".into()));
            assert_eq!(
                tools.offered(),
                [json!({ "type": "function", "function": { "name": "weather", "description": "d", "parameters": schema } })]
            );
        }
        assert!(Tools::chat(&mut fields(json!({}))).unwrap().offered().is_empty());
    }

    #[test]
    fn references_of_parameters_stay_theirs() {
        let city = json!({ "type": "object", "properties": { "$ref": { "$ref": "#/$defs/city" }, "here": { "const": { "$ref": "#/x" } }, "tree": { "$ref": "#" } },
            "$defs": { "city": { "type": "string" } } });
        let tool = |name: &str| json!({ "type": "function", "function": { "name": name, "parameters": city } });
        let of = |tools: Value, choice: Value| Tools::chat(&mut fields(json!({ "tools": tools, "tool_choice": choice }))).unwrap().schema();
        let check = |schema: &Value, place: &str| {
            let arguments = schema.pointer(place).unwrap();
            for (name, to) in [("$ref", "/$defs/city"), ("tree", "")] {
                let to = format!("#{place}{to}");
                assert_eq!(arguments["properties"][name]["$ref"], to);
                assert!(schema.pointer(&to[1..]).is_some(), "{to}");
            }
            assert_eq!(arguments["properties"]["here"]["const"]["$ref"], "#/x");
        };
        check(&of(json!([tool("f")]), json!("required")), "/properties/arguments");
        let named = json!({ "type": "function", "function": { "name": "g" } });
        check(&of(json!([tool("f"), tool("g")]), named), "/properties/arguments");
        let any = of(json!([tool("f"), tool("g")]), json!("required"));
        check(&any, "/anyOf/0/properties/arguments");
        check(&any, "/anyOf/1/properties/arguments");
    }

    #[test]
    fn wrong_tools_are_named() {
        let tool = json!({ "type": "function", "function": { "name": "f" } });
        let cases = [
            (json!({ "tools": [{ "type": "web_search" }] }), "tools[0].type"),
            (json!({ "tools": [{ "type": "function" }] }), "tools[0].function"),
            (json!({ "tools": [{ "type": "function", "function": { "name": "a b" } }] }), "tools[0].function.name"),
            (json!({ "tools": [{ "type": "function", "function": { "name": "a", "parameters": 7 } }] }), "tools[0].function.parameters"),
            (json!({ "tools": vec![tool.clone(); 129] }), "tools"),
            (json!({ "tool_choice": "required" }), "tool_choice"),
            (json!({ "tools": [tool], "tool_choice": { "type": "function", "function": { "name": "g" } } }), "tool_choice"),
            (json!({ "tools": [tool], "tool_choice": "any" }), "tool_choice"),
            (json!({ "tools": [tool], "tool_choice": 1 }), "tool_choice"),
        ];
        for (body, param) in cases {
            assert_eq!(Tools::chat(&mut fields(body.clone())).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
    }

    #[test]
    fn templates_without_functions_read_text() {
        let call = json!({ "id": "a", "type": "function", "function": { "name": "f", "arguments": { "x": 1 } } });
        let talk = vec![
            json!({ "role": "system", "content": "Be kind." }),
            json!({ "role": "user", "content": "q" }),
            json!({ "role": "assistant", "content": "", "tool_calls": [call] }),
            json!({ "role": "tool", "tool_call_id": "a", "content": "7" }),
            json!({ "role": "tool", "tool_call_id": "b", "content": "8" }),
        ];
        let all = as_text(talk, &[json!({ "type": "function", "function": { "name": "f" } })]);
        let roles: Vec<&str> = all.iter().map(|m| m["role"].as_str().unwrap()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "user"]);
        let system = all[0]["content"].as_str().unwrap();
        assert!(system.starts_with("Be kind.\n\nYou may call") && system.contains("\"name\":\"f\""), "{system}");
        assert_eq!(all[2]["content"], "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\":1}}\n</tool_call>");
        assert_eq!(all[3]["content"], "<tool_response>\n7\n</tool_response>\n<tool_response>\n8\n</tool_response>");
    }
}
