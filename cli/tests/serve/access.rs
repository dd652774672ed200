//! The access log: a line for each request, with what it took and never with what was asked.

use crate::server::Server;
use serde_json::{Value, json};
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

/// The lines of requests, as soon as there are so many.
#[track_caller]
fn requests(file: &Path, count: usize) -> Vec<Value> {
    let start = Instant::now();
    loop {
        let text = std::fs::read_to_string(file).unwrap();
        // The last line may still be on its way.
        let whole = text.split_inclusive('\n').filter(|l| l.ends_with('\n'));
        let lines = whole.map(|l| serde_json::from_str::<Value>(l).unwrap_or_else(|e| panic!("{e}: {l}")));
        let own: Vec<Value> = lines.filter(|l| l["name"] == "request").collect();
        if own.len() >= count {
            assert_eq!(own.len(), count, "{own:?}");
            return own;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{} of {count} lines", own.len());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn each_request_has_a_line() {
    let file = std::env::temp_dir().join(format!("tl-serve-access-{}.jsonl", std::process::id()));
    let server = Server::start(&["--log-json", file.to_str().unwrap(), "--api-key", "secret-key", "--rows", "2"]);
    let key = ("authorization", "Bearer secret-key");
    let ask = |id: &str, method: &str, path: &str, body: &str| server.ask(method, path, &[key, ("x-request-id", id)], body).status;
    let body = |stream: bool| json!({ "prompt": "SECRETWORD:", "max_tokens": 12, "temperature": 0, "stream": stream, "n": 2 }).to_string();
    assert_eq!(server.ask("GET", "/health", &[("x-request-id", "health")], "").status, 200);
    assert_eq!(ask("mine 7", "POST", "/v1/completions", &body(false)), 200);
    assert_eq!(server.ask("POST", "/v1/completions", &[key], &body(true)).status, 200);
    assert_eq!(server.ask("POST", "/v1/completions", &[("x-request-id", "nobody")], &body(false)).status, 401);
    assert_eq!(ask("magic", "POST", "/v1/completions", r#"{"prompt": "SECRETWORD", "stream": true, "stream_options": {"magic": 1}}"#), 400);
    assert_eq!(ask("nowhere", "GET", "/SECRETWORD", ""), 404);
    assert_eq!(ask("vector", "POST", "/v1/embeddings", r#"{"input": "SECRETWORD"}"#), 200);
    // Somebody goes away in the middle of 16 answers, two of which are written at a time.
    let long = json!({ "prompt": "SECRETWORD", "max_tokens": 200, "stream": true, "n": 16, "temperature": 1.0 }).to_string();
    let mut gone = server.send("POST", "/v1/completions", &[key, ("x-request-id", "gone")], &long);
    gone.read_exact(&mut [0; 64]).unwrap();
    drop(gone);

    // A line is written when the server is done with a request, which may be after the client has all of the answer.
    let lines = requests(&file, 8);
    let line = |id: &str| {
        lines.iter().find(|l| l["id"].as_str().is_some_and(|own| own.starts_with(id))).unwrap_or_else(|| panic!("{id}: {lines:?}"))
    };
    let of = |id: &str, fields: &[&str]| fields.iter().map(|f| line(id)[f].clone()).collect::<Value>();
    assert_eq!(of("health", &["route", "method", "status", "client"]), json!(["/health", "GET", 200, null]));
    let took = ["route", "status", "client", "answers", "tokens", "finish"];
    assert_eq!(of("mine 7", &took), json!(["/v1/completions", 200, "key 0", 2, 24, "length"]));
    assert_eq!(of("req-", &took), of("mine 7", &took));
    assert!(line("mine 7")["prompt_tokens"].as_u64() > Some(0));
    for line in [line("mine 7"), line("req-")] {
        let (all, first) = (line["seconds"].as_f64().unwrap(), line["first_token_ms"].as_f64().unwrap());
        assert!(first > 0.0 && first < all * 1e3, "{line}");
    }
    assert_eq!(of("nobody", &["status", "error", "tokens"]), json!([401, "invalid_api_key", null]));
    assert_eq!(of("magic", &["status", "error"]), json!([400, "unknown_parameter"]));
    assert_eq!(of("nowhere", &["route", "status", "error"]), json!(["none", 404, "not_found"]));
    assert_eq!(of("vector", &["route", "status"]), json!(["/v1/embeddings", 200]));
    assert_eq!(of("gone", &["status", "finish"]), json!([200, "abort"]));
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(!text.contains("SECRETWORD") && !text.contains("secret-key"), "the log tells what was asked");
    std::fs::remove_file(file).unwrap();
}
