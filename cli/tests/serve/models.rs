//! Several models in one server, a device that is lost, and the load that `tl bench serve` makes.

use crate::server::{Server, TINY};
use crate::vectors::Bert;
use serde_json::{Value, json};
use std::process::Command;

#[test]
fn several_models_are_loaded_when_they_are_asked_for() {
    let bert = Bert::new("models");
    let folder = std::env::temp_dir().join(format!("tl-serve-models-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let second = folder.join("second.gguf");
    std::fs::copy(TINY, &second).unwrap();
    let args = ["--model", second.to_str().unwrap(), "--model", bert.path(), "--kv-memory", "64", "--ctx", "64"];
    let server = Server::start_with(TINY, &args);
    let name = std::path::Path::new(bert.path()).file_name().unwrap().to_str().unwrap().to_string();
    let list = server.get("/v1/models").json();
    let ids: Vec<&str> = list["data"].as_array().unwrap().iter().map(|m| m["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["tiny", "second", &name]);
    assert_eq!((server.metric("tl_models_loaded"), &list["data"][0]["max_model_len"]), (1.0, &json!(64)));
    let body = |model: Option<&str>| json!({ "model": model, "prompt": "ROMEO:", "max_tokens": 12, "temperature": 0 });
    let text = server.complete(&body(None));
    assert_eq!((server.complete(&body(Some("tiny"))), server.complete(&body(Some("second")))), (text.clone(), text.clone()));
    assert_eq!(server.metric("tl_models_loaded"), 2.0);
    assert_eq!(server.post("/v1/embeddings", &json!({ "model": name, "input": "w5 w6" })).status, 200);
    assert_eq!((server.metric("tl_models_loaded"), server.metric("tl_model_loads_total")), (3.0, 3.0));
    let reply = server.post("/v1/completions", &body(Some("third")));
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (404, &json!("model_not_found")));
    drop(server);

    // Room for one: each that is asked for takes the place of the other, but never while that is at work.
    let server = Server::start_with(TINY, &[&args[..2], &["--kv-memory", "64", "--ctx", "256", "--memory", "100"]].concat());
    for model in ["second", "tiny", "second"] {
        assert_eq!(server.complete(&body(Some(model))), text);
        assert_eq!(server.metric("tl_models_loaded"), 1.0);
    }
    assert_eq!(server.metric("tl_model_loads_total"), 4.0);
    std::thread::scope(|s| {
        let long = s.spawn(|| server.complete(&json!({ "model": "second", "prompt": "ROMEO:", "max_tokens": 200, "temperature": 0 })));
        server.wait_until_busy();
        assert_eq!(server.complete(&body(Some("tiny"))), text);
        assert_eq!(long.join().unwrap().chars().count(), 200);
    });
    assert_eq!((server.metric("tl_models_loaded"), server.get("/health").status), (1.0, 200));
    drop(server);
    std::fs::remove_dir_all(folder).unwrap();

    let run = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_tl")).args(["serve", TINY, "--port", "0"]).args(args).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, said) = run(&["--model", TINY]);
    assert!(code == Some(2) && said.contains("given twice"), "{said}");
    let (code, said) = run(&["--memory", "1"]);
    assert!(code == Some(2) && said.contains("alone takes"), "{said}");
}

/// The built-in model with other settings in its file.
fn tiny_with(name: &str, settings: &[(&str, f32)]) -> std::path::PathBuf {
    use tensorlogic::io::{Gguf, GgufWriter};
    let of = Gguf::open(TINY).unwrap();
    let mut w = GgufWriter::new();
    for (key, value) in of.metadata() {
        w.set(key, value);
    }
    for (key, value) in settings {
        w.set(key, *value);
    }
    for t in of.tensors() {
        w.tensor(&t.name, t.dtype().unwrap(), &t.shape, of.bytes_of(t).to_vec()).unwrap();
    }
    let path = std::env::temp_dir().join(format!("tl-{name}-{}.gguf", std::process::id()));
    w.write(&path).unwrap();
    path
}

#[test]
fn requests_that_say_nothing_are_sampled_as_the_models_file_says() {
    let path = tiny_with("sampling", &[("general.sampling.temp", 0.7), ("general.sampling.min_p", 0.999)]);
    let server = Server::start_with(path.to_str().unwrap(), &["--ctx", "64"]);
    let params = &server.get("/props").json()["default_generation_settings"]["params"];
    assert!((params["temperature"].as_f64().unwrap() - 0.7).abs() < 1e-6 && params["top_k"] == 0, "{params}");
    let ask = |more: Value| {
        let mut body = json!({ "prompt": "ROMEO:", "max_tokens": 24 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.complete(&body)
    };
    // Of no other token is the probability 0.999 of the most likely one's: each seed gives the greedy text. What a request says comes first.
    let greedy = ask(json!({ "temperature": 0 }));
    for seed in 0..4 {
        assert_eq!(ask(json!({ "seed": seed })), greedy);
    }
    assert!((0..4).any(|seed| ask(json!({ "seed": seed, "min_p": 0 })) != greedy));
    drop(server);
    std::fs::remove_file(path).unwrap();
    // A file that says nothing leaves OpenAI's defaults.
    let params = Server::start(&["--ctx", "64"]).get("/props").json()["default_generation_settings"]["params"].clone();
    assert_eq!(params, json!({ "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0 }));
}

#[test]
fn fingerprints_are_those_of_files() {
    let folder = std::env::temp_dir().join(format!("tl-serve-fingerprints-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let fingerprint = |name: &str, bytes: &[u8]| {
        let file = folder.join(name);
        std::fs::write(&file, bytes).unwrap();
        let server = Server::start_with(file.to_str().unwrap(), &["--alias", "same", "--ctx", "64", "--kv-memory", "8"]);
        let answer = server.post("/v1/completions", &json!({ "prompt": "a", "max_tokens": 1 })).json();
        answer["system_fingerprint"].as_str().unwrap().to_string()
    };
    let mut bytes = std::fs::read(TINY).unwrap();
    let first = fingerprint("one.gguf", &bytes);
    assert_eq!(fingerprint("two.gguf", &bytes), first);
    // One bit of a weight.
    *bytes.last_mut().unwrap() ^= 1;
    assert_ne!(fingerprint("one.gguf", &bytes), first);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_load_is_measured_at_its_clients() {
    let server = Server::start(&["--rows", "8"]);
    let url = format!("http://{}", server.address);
    let bench = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tl"));
        command.args(["bench", "serve", &url, "--prompt", "16", "-n", "12", "--json"]).args(args);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let value = bench(&["--clients", "1,4", "--requests", "10", "--goodput", "ttft:60000"]);
    assert_eq!((&value["model"], value["loads"].as_array().unwrap().len()), (&json!("tiny"), 2));
    for (row, clients) in value["loads"].as_array().unwrap().iter().zip([1, 4]) {
        assert_eq!((&row["completed"], &row["failed"], &row["max_concurrency"]), (&json!(10), &json!(0), &json!(clients)));
        assert_eq!((&row["total_output_tokens"], &row["total_input_tokens"]), (&json!(120), &json!(160)));
        let n = |name: &str| row[name].as_f64().unwrap_or_else(|| panic!("{name}: {row}"));
        assert!((n("request_goodput") - n("request_throughput")).abs() < 1e-9);
        assert!(n("median_ttft_ms") > 0.0 && n("p99_ttft_ms") >= n("median_ttft_ms") && n("median_e2el_ms") > n("median_tpot_ms"), "{row}");
        assert!((n("output_throughput") * n("duration") - 120.0).abs() < 1e-6);
    }
    let row = bench(&["--rate", "50", "--requests", "10"])["loads"][0].clone();
    assert_eq!((&row["request_rate"], &row["completed"], &row["request_goodput"]), (&json!(50.0), &json!(10), &Value::Null));
    // Ten requests have nine gaps.
    assert!(row["duration"].as_f64().unwrap() > 0.02, "{row}");
    assert_eq!(bench(&["--rate", "inf", "--requests", "20"])["loads"][0]["completed"], 20);
    let output = Command::new(env!("CARGO_BIN_EXE_tl")).args(["bench", "serve", "http://127.0.0.1:1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
}
