//! `/openapi.json`: what the server takes and gives, for programs that read such descriptions.

/// The description, of this version.
pub fn text() -> String {
    include_str!("openapi.json").replacen("VERSION", env!("CARGO_PKG_VERSION"), 1)
}

#[cfg(test)]
mod tests {
    use super::super::routes::ROUTES;
    use serde_json::Value;
    use std::collections::BTreeSet;

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

    /// The fields of a body that a source file reads, but for those that it refuses or ignores.
    fn fields_of(source: &str) -> BTreeSet<&str> {
        let reads = ["take", "string", "flag", "array", "number", "integer", "count"];
        let source = source.split("mod tests").next().unwrap_or_default();
        let field = |call: &'static str| {
            let call = format!("fields.{call}(\"");
            source
                .match_indices(&call)
                .map(|(at, call)| &source[at + call.len()..])
                .filter_map(|rest| rest.split('"').next())
                .collect::<Vec<_>>()
        };
        reads.into_iter().flat_map(field).collect()
    }

    #[test]
    fn every_field_that_is_read_is_described() {
        let all = description();
        let ask = include_str!("ask.rs");
        // What `Ask::one` reads is what comes before the penalties in these two functions.
        let sampling = ["temperature", "top_p", "min_p", "top_k", "stream"];
        let own = [
            (
                "Chat",
                vec![ask, include_str!("texts.rs"), include_str!("openai/chat.rs")],
                vec!["tools", "tool_choice", "parallel_tool_calls", "guided_json"],
            ),
            ("Completion", vec![ask, include_str!("openai/completions.rs")], vec!["response_format", "structured_outputs", "guided_regex"]),
            ("Response", vec![include_str!("openai/responses.rs")], [&sampling[..], &["tools", "tool_choice"]].concat()),
            ("Message", vec![include_str!("anthropic.rs")], [&sampling[..], &["tools", "tool_choice"]].concat()),
            ("Embedding", vec![include_str!("embeddings.rs")], vec![]),
        ];
        for (schema, files, more) in own {
            let described = all["components"]["schemas"][schema]["properties"].as_object().unwrap();
            let read: BTreeSet<&str> = files.into_iter().flat_map(fields_of).chain(more).chain(["model"]).collect();
            assert!(read.len() >= 4, "{schema}: {read:?}");
            for field in read {
                assert!(described.contains_key(field), "{schema}: {field} is read and not described");
            }
        }
    }
}
