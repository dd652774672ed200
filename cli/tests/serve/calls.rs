//! Calls of functions and forms of answers: by a real model where the letters of the small one do not suffice.

use crate::server::{Server, model};
use serde_json::{Value, json};

fn weather() -> Value {
    let parameters = json!({ "type": "object", "properties": { "city": { "type": "string", "maxLength": 12 }, "days": { "type": "integer" } },
        "required": ["city"], "additionalProperties": false });
    json!({ "name": "get_weather", "description": "The weather of a city", "parameters": parameters })
}

fn clock() -> Value {
    let parameters = json!({ "type": "object", "properties": { "zone": { "enum": ["UTC", "CET"] } }, "required": ["zone"], "additionalProperties": false });
    json!({ "name": "get_time", "description": "The time of a zone", "parameters": parameters })
}

fn tools() -> Value {
    json!([{ "type": "function", "function": weather() }, { "type": "function", "function": clock() }])
}

fn question() -> Value {
    json!([{ "role": "user", "content": "What is the weather in Oslo?" }])
}

/// A text that a model that was trained for it writes to call `get_weather`.
const CALL: &str = "Let me look\\.<tool_call>\\n\\{\"name\": \"get_weather\", \"arguments\": \\{\"city\": \"Oslo\"\\}\\}\\n</tool_call>";

/// The call's name and arguments.
#[track_caller]
fn call(function: &Value) -> (String, Value) {
    let arguments = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
    (function["name"].as_str().unwrap().into(), arguments)
}

#[test]
fn a_call_is_forced() {
    let Some(model) = model() else { return };
    let server = Server::start_with(&model, &[]);
    let mut body = json!({ "messages": question(), "tools": tools(), "temperature": 0, "max_tokens": 60,
        "tool_choice": { "type": "function", "function": { "name": "get_weather" } } });
    let choice = server.post("/v1/chat/completions", &body).json()["choices"][0].clone();
    let message = &choice["message"];
    assert_eq!(
        (&choice["finish_reason"], &message["content"], &message["tool_calls"][0]["type"]),
        (&json!("tool_calls"), &Value::Null, &json!("function")),
        "{choice}"
    );
    let (name, arguments) = call(&message["tool_calls"][0]["function"]);
    assert!(name == "get_weather" && arguments["city"].is_string(), "{choice}");
    assert_eq!(message["tool_calls"][0]["id"].as_str().unwrap().len(), 9);

    // As a stream: who is called, then the arguments in parts.
    body["stream"] = true.into();
    let events = server.post("/v1/chat/completions", &body).events();
    let choices: Vec<&Value> = events.iter().map(|e| &e["choices"][0]).collect();
    let parts: Vec<&Value> = choices.iter().filter_map(|c| c["delta"]["tool_calls"].get(0)).collect();
    assert!(parts.len() >= 2 && parts.iter().all(|p| p["index"] == 0), "{events:?}");
    assert_eq!(
        (&parts[0]["function"]["name"], parts[0]["id"].is_string(), &parts[0]["type"]),
        (&json!("get_weather"), true, &json!("function"))
    );
    assert!(parts[1..].iter().all(|p| p["id"].is_null() && p["function"]["name"].is_null()));
    let joined: String = parts.iter().filter_map(|p| p["function"]["arguments"].as_str()).collect();
    assert_eq!(serde_json::from_str::<Value>(&joined).unwrap(), arguments);
    assert_eq!(choices.last().unwrap()["finish_reason"], "tool_calls");
    body["stream"] = false.into();

    // Any of them, drawn hot.
    body["tool_choice"] = "required".into();
    for seed in 0..3 {
        body["temperature"] = 1.5.into();
        body["seed"] = seed.into();
        let choice = server.post("/v1/chat/completions", &body).json()["choices"][0].clone();
        if choice["finish_reason"] == "length" {
            continue;
        }
        let (name, arguments) = call(&choice["message"]["tool_calls"][0]["function"]);
        let right = (name == "get_weather" && arguments["city"].is_string())
            || (name == "get_time" && ["UTC", "CET"].contains(&arguments["zone"].as_str().unwrap()));
        assert!(right, "{choice}");
    }

    let mut one = clock();
    one["type"] = "function".into();
    let body = json!({ "input": "What time is it?", "tools": [one], "tool_choice": "required", "max_output_tokens": 60, "temperature": 0 });
    let whole = server.post("/v1/responses", &body).json();
    let item = &whole["output"][0];
    assert_eq!(
        (&item["type"], &item["name"], &whole["status"]),
        (&json!("function_call"), &json!("get_time"), &json!("completed")),
        "{whole}"
    );
    assert_eq!((whole["tools"][0]["name"].as_str(), item["call_id"].is_string()), (Some("get_time"), true));

    let one = json!({ "name": "get_time", "description": "d", "input_schema": clock()["parameters"] });
    let body = json!({ "messages": question(), "max_tokens": 60, "tools": [one], "tool_choice": { "type": "any" }, "temperature": 0 });
    let whole = server.post("/v1/messages", &body).json();
    let block = &whole["content"][0];
    assert_eq!(
        (&block["type"], &block["name"], &whole["stop_reason"]),
        (&json!("tool_use"), &json!("get_time"), &json!("tool_use")),
        "{whole}"
    );
    assert!(["UTC", "CET"].contains(&block["input"]["zone"].as_str().unwrap()));
}

#[test]
fn a_call_among_text_is_told_apart() {
    let Some(model) = model() else { return };
    let server = Server::start_with(&model, &[]);
    // The form makes sure of what a larger model would do by itself.
    let mut body = json!({ "messages": question(), "tools": tools(), "temperature": 0, "max_tokens": 80, "guided_regex": CALL });
    let choice = server.post("/v1/chat/completions", &body).json()["choices"][0].clone();
    assert_eq!((&choice["message"]["content"], &choice["finish_reason"]), (&json!("Let me look."), &json!("tool_calls")), "{choice}");
    assert_eq!(call(&choice["message"]["tool_calls"][0]["function"]), ("get_weather".into(), json!({ "city": "Oslo" })));
    body["stream"] = true.into();
    let events = server.post("/v1/chat/completions", &body).events();
    let deltas: Vec<&Value> = events.iter().map(|e| &e["choices"][0]["delta"]).collect();
    assert_eq!(deltas.iter().filter_map(|d| d["content"].as_str()).collect::<String>(), "Let me look.");
    let joined: String = deltas.iter().filter_map(|d| d["tool_calls"][0]["function"]["arguments"].as_str()).collect();
    assert_eq!(serde_json::from_str::<Value>(&joined).unwrap(), json!({ "city": "Oslo" }));
    body["stream"] = false.into();
    // A function that was not offered is not called, nor is any with none.
    for (name, value) in [("tools", json!([{ "type": "function", "function": clock() }])), ("tool_choice", "none".into())] {
        let mut body = body.clone();
        body[name] = value;
        let choice = server.post("/v1/chat/completions", &body).json()["choices"][0].clone();
        assert!(choice["message"]["tool_calls"].is_null() && choice["finish_reason"] == "stop", "{choice}");
        assert!(choice["message"]["content"].as_str().unwrap().contains("get_weather"), "{choice}");
    }

    // What the model reads of a conversation with calls, in all three forms.
    let told = server.post("/apply-template", &json!({ "messages": question(), "tools": tools() })).json();
    let text = told["prompt"].as_str().unwrap();
    assert!(text.contains("\"name\":\"get_weather\"") && text.contains("<tools>"), "{text}");
    let function = json!({ "name": "get_weather", "arguments": "{\"city\": \"Oslo\"}" });
    let chat = json!({ "max_tokens": 1, "temperature": 0, "tools": tools(), "messages": [question()[0],
        { "role": "assistant", "content": null, "tool_calls": [{ "id": "abc", "type": "function", "function": function }] },
        { "role": "tool", "tool_call_id": "abc", "content": "7 degrees" }] });
    let template = json!({ "tools": tools(), "messages": chat["messages"] });
    let text = server.post("/apply-template", &template).json()["prompt"].as_str().unwrap().to_string();
    assert!(
        text.contains("<tool_call>\n{\"name\": \"get_weather\"") && text.contains("<tool_response>\n7 degrees\n</tool_response>"),
        "{text}"
    );
    let mut tool = weather();
    tool["type"] = "function".into();
    let mut other = clock();
    other["type"] = "function".into();
    let responses = json!({ "max_output_tokens": 1, "temperature": 0, "tools": [tool, other], "input": [{ "role": "user", "content": question()[0]["content"] },
        { "type": "function_call", "call_id": "abc", "name": "get_weather", "arguments": "{\"city\": \"Oslo\"}" },
        { "type": "function_call_output", "call_id": "abc", "output": "7 degrees" }] });
    let schema = |f: Value| json!({ "name": f["name"], "description": f["description"], "input_schema": f["parameters"] });
    let messages = json!({ "max_tokens": 1, "temperature": 0, "tools": [schema(weather()), schema(clock())], "messages": [
        { "role": "user", "content": question()[0]["content"] },
        { "role": "assistant", "content": [{ "type": "tool_use", "id": "abc", "name": "get_weather", "input": { "city": "Oslo" } }] },
        { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "abc", "content": [{ "type": "text", "text": "7 degrees" }] }] }] });
    let tokens = |path: &str, body: &Value, name: &str| {
        let reply = server.post(path, body).json();
        let usage = &reply["usage"];
        let cached = usage["cache_read_input_tokens"].as_u64().unwrap_or(0);
        usage[name].as_u64().unwrap_or_else(|| panic!("{reply}")) + cached
    };
    let count = tokens("/v1/chat/completions", &chat, "prompt_tokens");
    assert_eq!(tokens("/v1/responses", &responses, "input_tokens"), count);
    assert_eq!(tokens("/v1/messages", &messages, "input_tokens"), count);
}

#[test]
fn answers_have_the_form_that_is_asked_for() {
    let server = Server::start(&["--rows", "8"]);
    let ask = |extra: Value| {
        let mut body = json!({ "prompt": "ROMEO:\n", "max_tokens": 60, "temperature": 0 });
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        server.post("/v1/completions", &body)
    };
    let text = |extra: Value| {
        let reply = ask(extra).json();
        (
            reply["choices"][0]["text"].as_str().unwrap_or_else(|| panic!("{reply}")).to_string(),
            reply["choices"][0]["finish_reason"].clone(),
        )
    };
    let is_form = |text: &str| {
        let (name, rest) = text.split_once(": ").unwrap_or_else(|| panic!("{text:?}"));
        name.len() == 5 && name.chars().all(|c| c.is_ascii_uppercase()) && ["yes", "no"].contains(&rest)
    };
    let plain = text(json!({}));
    let form = json!({ "guided_regex": "[A-Z]{5}: (yes|no)" });
    // The grammar's end is the answer's, though this model has no token for it.
    let (first, end) = text(form.clone());
    assert!(is_form(&first) && end == "stop", "{first:?} {end}");
    for settings in [
        json!({ "temperature": 1.3, "seed": 1 }),
        json!({ "temperature": 1, "top_p": 0.5 }),
        json!({ "temperature": 1, "top_k": 2 }),
        json!({ "frequency_penalty": 2 }),
    ] {
        let mut form = form.clone();
        form.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
        let (got, _) = text(form.clone());
        assert!(is_form(&got), "{form}: {got:?}");
    }
    assert_eq!(text(json!({ "structured_outputs": { "choice": ["Montague", "Capulet"] } })).1, "stop");
    let (by_grammar, end) = text(json!({ "guided_grammar": "start: NAME \": \" (\"yes\" | \"no\")\nNAME: /[A-Z]{5}/" }));
    assert!(is_form(&by_grammar) && end == "stop", "{by_grammar:?} {end}");
    // Several answers, each on its own way, among others without a form.
    std::thread::scope(|s| {
        let free = s.spawn(|| (0..3).map(|_| text(json!({}))).collect::<Vec<_>>());
        let reply = ask(json!({ "n": 4, "temperature": 1, "seed": 3, "guided_regex": "[A-Z]{5}: (yes|no)" })).json();
        let all: Vec<&str> = reply["choices"].as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap()).collect();
        assert!(all.iter().all(|t| is_form(t)) && all.iter().any(|t| *t != all[0]), "{all:?}");
        assert!(free.join().unwrap().iter().all(|t| *t == plain));
    });
    // A form that this model has no letters for ends that request alone, and so does one that cannot be read.
    let reply = ask(json!({ "guided_json": { "type": "object" } }));
    assert_eq!((reply.status, reply.json()["error"]["type"].as_str()), (400, Some("invalid_request_error")), "{}", reply.text());
    for (field, value) in [
        ("guided_regex", json!("(")),
        ("guided_grammar", json!("start: missing")),
        ("guided_json", json!({ "type": "nothing" })),
        ("guided_json", json!({ "$ref": "http://127.0.0.1/" })),
    ] {
        let reply = ask(json!({ field: value }));
        assert_eq!((reply.status, reply.json()["error"]["param"].as_str()), (400, Some(field)), "{}", reply.text());
    }
    assert_eq!(text(json!({})), plain);
    server.wait_until_idle();
    assert_eq!(server.metric("tl_kv_cache_usage_perc"), 0.0);
}

#[test]
fn json_is_that_of_the_schema() {
    let Some(model) = model() else { return };
    let server = Server::start_with(&model, &[]);
    let schema = json!({ "type": "object", "properties": { "name": { "type": "string", "maxLength": 10 }, "age": { "type": "integer", "minimum": 1, "maximum": 99 },
        "kind": { "enum": ["cat", "dog"] } }, "required": ["name", "age", "kind"], "additionalProperties": false });
    let right = |text: &str| {
        let v: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text:?}"));
        v["name"].is_string()
            && (1..100).contains(&v["age"].as_i64().unwrap())
            && ["cat", "dog"].contains(&v["kind"].as_str().unwrap())
            && v.as_object().unwrap().len() == 3
    };
    let messages = json!([{ "role": "user", "content": "Describe a pet." }]);
    for temperature in [0.0, 1.0] {
        let format = json!({ "type": "json_schema", "json_schema": { "name": "pet", "schema": schema, "strict": true } });
        let body = json!({ "messages": messages, "response_format": format, "temperature": temperature, "seed": 5, "max_tokens": 120 });
        let reply = server.post("/v1/chat/completions", &body).json();
        let choice = &reply["choices"][0];
        assert!(choice["finish_reason"] == "stop" && right(choice["message"]["content"].as_str().unwrap()), "{reply}");
    }
    let body = json!({ "input": "Describe a pet.", "text": { "format": { "type": "json_schema", "name": "pet", "schema": schema } }, "max_output_tokens": 120, "temperature": 0 });
    let reply = server.post("/v1/responses", &body).json();
    assert!(right(reply["output"][0]["content"][0]["text"].as_str().unwrap()), "{reply}");
    let body = json!({ "messages": messages, "output_config": { "format": { "type": "json_schema", "schema": schema } }, "max_tokens": 120, "temperature": 0 });
    let reply = server.post("/v1/messages", &body).json();
    assert!(right(reply["content"][0]["text"].as_str().unwrap()), "{reply}");
    let body =
        json!({ "messages": messages, "response_format": { "type": "json_object" }, "max_tokens": 200, "temperature": 0, "stream": true });
    let events = server.post("/v1/chat/completions", &body).events();
    let text: String = events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str()).collect();
    assert!(text.trim_start().starts_with('{'), "{text}");
    if events.last().unwrap()["choices"][0]["finish_reason"] == "stop" {
        assert!(serde_json::from_str::<Value>(&text).unwrap().is_object(), "{text}");
    }
}
