//! The access log: a line for each request, with what it took and never with what was asked.

use crate::server::Server;
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

/// The lines of requests, as soon as there are so many.
#[track_caller]
fn requests(file: &Path, count: usize) -> Vec<Value> {
    let start = Instant::now();
    loop {
        let text = std::fs::read_to_string(file).unwrap();
        let lines = text.lines().map(|l| serde_json::from_str::<Value>(l).unwrap_or_else(|e| panic!("{e}: {l}")));
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
    let key = [("authorization", "Bearer secret-key"), ("x-request-id", "mine 7")];
    let body = |stream: bool| json!({ "prompt": "SECRETWORD:", "max_tokens": 12, "temperature": 0, "stream": stream, "n": 2 }).to_string();
    assert_eq!(server.ask("GET", "/health", &[], "").status, 200);
    assert_eq!(server.ask("POST", "/v1/completions", &key, &body(false)).status, 200);
    assert_eq!(server.ask("POST", "/v1/completions", &key[..1], &body(true)).status, 200);
    assert_eq!(server.ask("POST", "/v1/completions", &[], &body(false)).status, 401);
    assert_eq!(server.ask("POST", "/v1/completions", &key, r#"{"prompt": "SECRETWORD", "magic": 1}"#).status, 400);
    assert_eq!(server.ask("GET", "/SECRETWORD", &key, "").status, 404);
    assert_eq!(server.ask("POST", "/v1/embeddings", &key, r#"{"input": "SECRETWORD"}"#).status, 200);
    // Somebody goes away.
    let long = json!({ "prompt": "SECRETWORD", "max_tokens": 4000, "stream": true }).to_string();
    let gone = server.send("POST", "/v1/completions", &key, &long);
    std::thread::sleep(Duration::from_millis(300));
    drop(gone);

    let lines = requests(&file, 8);
    let of = |n: usize, fields: &[&str]| fields.iter().map(|f| lines[n][f].clone()).collect::<Value>();
    assert_eq!(of(0, &["route", "method", "status", "client"]), json!(["/health", "GET", 200, null]));
    let took = ["route", "status", "client", "answers", "tokens", "finish"];
    assert_eq!(of(1, &took), json!(["/v1/completions", 200, "key 0", 2, 24, "length"]));
    assert_eq!(of(2, &took), of(1, &took));
    assert_eq!(lines[1]["id"], "mine 7");
    assert!(lines[2]["id"].as_str().unwrap().starts_with("req-"));
    assert!(lines[1]["prompt_tokens"].as_u64() > Some(0));
    for line in &lines[1..3] {
        let (all, first) = (line["seconds"].as_f64().unwrap(), line["first_token_ms"].as_f64().unwrap());
        assert!(first > 0.0 && first < all * 1e3, "{line}");
    }
    assert_eq!(of(3, &["status", "error", "tokens"]), json!([401, "invalid_api_key", null]));
    assert_eq!(of(4, &["status", "error"]), json!([400, "invalid_request_error"]));
    assert_eq!(of(5, &["route", "status", "error"]), json!(["none", 404, "not_found"]));
    assert_eq!(of(6, &["route", "status"]), json!(["/v1/embeddings", 200]));
    assert_eq!(of(7, &["status", "finish"]), json!([200, "abort"]));
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(!text.contains("SECRETWORD") && !text.contains("secret-key"), "the log tells what was asked");
    std::fs::remove_file(file).unwrap();
}
