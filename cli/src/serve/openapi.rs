//! `/openapi.json`: what the server takes and gives, for programs that read such descriptions.

/// The description, of this version.
pub fn text() -> String {
    include_str!("openapi.json").replacen("VERSION", env!("CARGO_PKG_VERSION"), 1)
}

#[cfg(test)]
mod tests {
    use super::super::routes::ROUTES;
    use hyper::Method;
    use serde_json::Value;
    use std::collections::BTreeSet;

    const ASK: &str = include_str!("ask.rs");
    const CALLS: &str = include_str!("calls.rs");
    const FORMAT: &str = include_str!("format.rs");
    const ROUTING: &str = include_str!("routes.rs");
    const TEXTS: &str = include_str!("texts.rs");
    const TOOLS: &str = include_str!("tools.rs");

    fn description() -> Value {
        serde_json::from_str(&super::text()).unwrap()
    }

    #[test]
    fn every_route_is_described_and_no_other() {
        let all = description();
        assert_eq!(all["info"]["version"], env!("CARGO_PKG_VERSION"));
        let described: BTreeSet<(String, String)> = all["paths"]
            .as_object()
            .unwrap()
            .iter()
            .flat_map(|(path, m)| m.as_object().unwrap().keys().map(move |m| (path.clone(), m.clone())))
            .collect();
        let routes = ROUTES.iter().map(|(_, path, method)| (path.to_string(), method.as_str().to_lowercase())).collect();
        assert_eq!(described, routes);
    }

    /// Calls `see` with each reference.
    fn references(value: &Value, see: &mut impl FnMut(&str)) {
        match value {
            Value::Object(map) => {
                map.get("$ref").and_then(Value::as_str).into_iter().for_each(&mut *see);
                map.values().for_each(|v| references(v, see));
            }
            Value::Array(list) => list.iter().for_each(|v| references(v, see)),
            _ => {}
        }
    }

    #[test]
    fn references_lead_somewhere() {
        let (all, mut count) = (description(), 0);
        references(&all, &mut |to| {
            assert!(all.pointer(to.trim_start_matches('#')).is_some(), "{to}");
            count += 1;
        });
        assert!(count > 50, "{count} references");
    }

    /// The fields that a schema and what it consists of describe.
    fn described(all: &Value, schema: &Value) -> BTreeSet<String> {
        let mut names: BTreeSet<String> = schema["properties"].as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect();
        if let Some(to) = schema["$ref"].as_str() {
            names.extend(described(all, all.pointer(to.trim_start_matches('#')).unwrap()));
        }
        for part in schema["allOf"].as_array().into_iter().flatten() {
            names.extend(described(all, part));
        }
        names
    }

    /// The fields of a body that a function of a source file reads, but for those that it leaves out unread.
    fn read_by(source: &str, function: &str) -> BTreeSet<String> {
        let start = source.find(&format!("fn {function}(")).unwrap_or_else(|| panic!("there is no {function}"));
        // It ends with the brace under the first letter of its line.
        let line = source[..start].rfind('\n').map_or(0, |at| at + 1);
        let indent = source[line..].chars().take_while(|c| *c == ' ').count();
        let length = source[start..].find(&format!("\n{}}}", " ".repeat(indent))).unwrap();
        let body = &source[start..start + length];
        let mut names = BTreeSet::new();
        for read in ["take", "string", "flag", "array", "number", "integer", "count", "only"] {
            let call = format!("fields.{read}(\"");
            names.extend(body.split(&call).skip(1).filter_map(|rest| rest.split('"').next()).map(String::from));
        }
        names
    }

    #[test]
    fn the_fields_that_are_read_are_described_and_no_others() {
        let all = description();
        // What `Ask::of` and `Ask::one` read, and names that no call has as they are.
        let writing = [(ASK, "sampling"), (ASK, "of"), (ASK, "penalties"), (ASK, "refuse"), (FORMAT, "openai")];
        let guided = ["guided_json", "guided_regex", "guided_choice", "guided_grammar"];
        let one = [(ASK, "sampling"), (ASK, "one")];
        let none: &[&str] = &[];
        let kept = ["previous_response_id", "conversation", "prompt"];
        let (chat, completion) = (include_str!("openai/chat.rs"), include_str!("openai/completions.rs"));
        let (response, message) = (include_str!("openai/responses.rs"), include_str!("anthropic.rs"));
        let cases = [
            ("/v1/chat/completions", [&writing[..], &[(CALLS, "chat"), (TEXTS, "of"), (chat, "read")]].concat(), &guided[..]),
            ("/v1/completions", [&writing[..], &[(completion, "read")]].concat(), &guided[..]),
            ("/v1/responses", [&one[..], &[(CALLS, "responses"), (response, "read")]].concat(), &kept[..]),
            ("/v1/messages", [&one[..], &[(CALLS, "messages"), (message, "read")]].concat(), none),
            ("/v1/embeddings", vec![(include_str!("embeddings.rs"), "read")], none),
            ("/tokenize", vec![(TOOLS, "tokenize")], none),
            ("/detokenize", vec![(TOOLS, "detokenize")], none),
            ("/apply-template", vec![(TOOLS, "apply_template"), (TEXTS, "of"), (CALLS, "chat")], none),
        ];
        let posts: BTreeSet<&str> = ROUTES.iter().filter(|(_, _, method)| *method == Method::POST).map(|(_, path, _)| *path).collect();
        assert_eq!(cases.iter().map(|case| case.0).collect::<BTreeSet<_>>(), posts);
        for (path, functions, more) in cases {
            let operation = &all["paths"][path]["post"];
            let described = described(&all, &operation["requestBody"]["content"]["application/json"]["schema"]);
            let functions = functions.into_iter().chain([(ROUTING, "read")]);
            let read: BTreeSet<String> =
                functions.flat_map(|(source, name)| read_by(source, name)).chain(more.iter().map(|name| name.to_string())).collect();
            assert_eq!(described, read, "{path}");
            let streams = operation["responses"]["200"]["content"].get("text/event-stream").is_some();
            assert_eq!(streams, read.contains("stream"), "{path}");
        }
    }
}
