//! `tl serve` over real sockets: what clients of OpenAI's and Anthropic's interfaces rely on, wrong input, many clients at once, going away and leaving.
#![cfg(feature = "serve")]

mod access;
#[cfg(feature = "grammar")]
mod calls;
#[path = "../../../tests/common/mod.rs"]
mod common;
mod faults;
mod models;
mod server;
mod vectors;

use serde_json::{Value, json};
use server::{Reply, Server, TINY, generated, read_reply};
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn greedy_answers_are_those_of_generate() {
    let server = Server::start(&[]);
    for prompt in ["ROMEO:", "First Citizen:\nBefore we proceed any further"] {
        let body = json!({ "prompt": prompt, "max_tokens": 48, "temperature": 0 });
        assert_eq!(server.complete(&body), generated(TINY, prompt, 48, true));
    }
    drop(server);
    let Some(model) = server::model() else { return };
    let server = Server::start_with(&model, &[]);
    let prompt = "Why is the sky blue?";
    let body = json!({ "messages": [{ "role": "user", "content": prompt }], "max_completion_tokens": 32, "temperature": 0 });
    let answer = server.post("/v1/chat/completions", &body).json();
    assert_eq!(answer["choices"][0]["message"]["content"].as_str().unwrap(), generated(&model, prompt, 32, false), "{answer}");
    // The emoji's bytes are several tokens; no chunk has a part of them.
    let body = json!({ "prompt": "Smile: 😀😀😀😀😀😀", "max_tokens": 24, "temperature": 0, "stream": true });
    let reply = server.post("/v1/completions", &body);
    let text: String = reply.events().iter().map(|e| e["choices"][0]["text"].as_str().unwrap().to_string()).collect();
    assert_eq!(text, server.complete(&json!({ "prompt": "Smile: 😀😀😀😀😀😀", "max_tokens": 24, "temperature": 0 })));
}

#[test]
fn streams_are_as_clients_expect() {
    let server = Server::start(&[]);
    let mut body = json!({ "messages": [{ "role": "user", "content": "ROMEO:" }], "max_tokens": 12, "temperature": 0 });
    let whole = server.post("/v1/chat/completions", &body).json();
    assert_eq!((&whole["object"], &whole["choices"][0]["finish_reason"]), (&json!("chat.completion"), &json!("length")));
    assert_eq!(whole["usage"]["completion_tokens"], 12);
    let used = whole["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(whole["usage"]["total_tokens"], used + 12);

    body["stream"] = true.into();
    body["stream_options"] = json!({ "include_usage": true });
    let reply = server.post("/v1/chat/completions", &body);
    assert_eq!((reply.header("cache-control"), reply.header("x-accel-buffering")), (Some("no-cache"), Some("no")));
    let mut events = reply.events();
    let last = events.pop().unwrap();
    assert_eq!((&last["choices"], &last["usage"]["completion_tokens"]), (&json!([]), &json!(12)));
    assert!(events.iter().all(|e| e["id"] == last["id"] && e["created"] == last["created"] && e["object"] == "chat.completion.chunk"));
    assert!(events.iter().all(|e| e["usage"].is_null()));
    let choices: Vec<&Value> = events.iter().map(|e| &e["choices"][0]).collect();
    assert_eq!(choices[0]["delta"]["role"], "assistant");
    assert!(choices[1..].iter().all(|c| c["delta"]["role"].is_null()));
    let (end, rest) = choices.split_last().unwrap();
    assert_eq!((&end["delta"], &end["finish_reason"]), (&json!({}), &json!("length")));
    assert!(rest.iter().all(|c| c["finish_reason"].is_null()));
    let text: String = rest.iter().filter_map(|c| c["delta"]["content"].as_str()).collect();
    assert_eq!(text, whole["choices"][0]["message"]["content"]);

    // Without the option there is no usage; several prompts and answers are told apart by their index.
    let body = json!({ "prompt": ["ROMEO:", [1, 2, 3]], "n": 2, "max_tokens": 8, "temperature": 0.9, "seed": 5, "stream": true });
    let events = server.post("/v1/completions", &body).events();
    let mut texts = vec![String::new(); 4];
    let mut ends = 0;
    for e in &events {
        assert!(e.get("usage").is_none());
        let choice = &e["choices"][0];
        texts[choice["index"].as_u64().unwrap() as usize] += choice["text"].as_str().unwrap();
        ends += usize::from(!choice["finish_reason"].is_null());
    }
    assert_eq!(ends, 4);
    let mut body = body;
    body["stream"] = false.into();
    let whole = server.post("/v1/completions", &body).json();
    let wholes: Vec<&str> = whole["choices"].as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap()).collect();
    assert_eq!(texts, wholes);
    assert_ne!(texts[0], texts[1]);
    assert_eq!(whole["usage"]["completion_tokens"], 32);
}

#[test]
fn settings_do_what_they_say() {
    let server = Server::start(&[]);
    let ask = |extra: Value| {
        let mut body = json!({ "prompt": "ROMEO:\n", "max_tokens": 40, "temperature": 0 });
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        server.post("/v1/completions", &body).json()
    };
    let text = |v: &Value| v["choices"][0]["text"].as_str().unwrap().to_string();
    let plain = text(&ask(json!({})));
    // A stop ends the answer wherever its tokens end: every token is one letter here.
    let stop = &plain[10..14];
    let at = plain.find(stop).unwrap();
    let stopped = ask(json!({ "stop": ["§§§§", stop] }));
    assert_eq!((text(&stopped), &stopped["choices"][0]["finish_reason"]), (plain[..at].to_string(), &json!("stop")));
    assert_eq!(stopped["usage"]["completion_tokens"], at + 4);
    assert_eq!(text(&ask(json!({ "stop": "§" }))), plain);
    assert_eq!(text(&ask(json!({ "echo": true }))), format!("ROMEO:\n{plain}"));
    // A seed fixes what is drawn; without one every answer is another.
    let drawn = |extra: Value| text(&ask(extra));
    let seeded = drawn(json!({ "temperature": 1, "seed": 3 }));
    assert_eq!(seeded, drawn(json!({ "temperature": 1, "seed": 3 })));
    assert_ne!(seeded, drawn(json!({ "temperature": 1, "seed": 4 })));
    assert_ne!(drawn(json!({ "temperature": 1 })), drawn(json!({ "temperature": 1 })));
    // From one token there is nothing to draw.
    for one in [json!({ "top_k": 1 }), json!({ "top_p": 0 }), json!({ "min_p": 1 })] {
        let mut one = one;
        one["temperature"] = 1.5.into();
        assert_eq!(drawn(one.clone()), plain, "{one}");
    }
    let id = server.post("/tokenize", &json!({ "content": "z" })).json()["tokens"][0].clone();
    assert_eq!(text(&ask(json!({ "logit_bias": { id.to_string(): 100 }, "max_tokens": 5 }))), "zzzzz");
    let penalized = text(&ask(json!({ "frequency_penalty": 2, "presence_penalty": 2 })));
    let most = |text: &str| text.chars().map(|c| text.matches(c).count()).max();
    assert!(most(&penalized) < most(&plain), "{penalized:?} {plain:?}");

    let scored = ask(json!({ "logprobs": 2, "max_tokens": 6 }));
    let l = &scored["choices"][0]["logprobs"];
    assert_eq!(l["tokens"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect::<String>(), plain[..6]);
    assert_eq!(l["text_offset"], json!([0, 1, 2, 3, 4, 5]));
    for i in 0..6 {
        // Greedy: the chosen token is the most likely one.
        let top = l["top_logprobs"][i].as_object().unwrap();
        assert!(top.len() == 2 && top[l["tokens"][i].as_str().unwrap()] == l["token_logprobs"][i], "{l}");
    }
    let body =
        json!({ "messages": [{ "role": "user", "content": "a" }], "max_tokens": 3, "logprobs": true, "top_logprobs": 4, "temperature": 0 });
    let chat = server.post("/v1/chat/completions", &body).json();
    let content = chat["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert!(
        content.len() == 3 && content.iter().all(|c| c["top_logprobs"].as_array().unwrap().len() == 4 && c["bytes"][0].is_u64()),
        "{chat}"
    );
}

#[test]
fn wrong_requests_are_refused_by_name() {
    let server = Server::start(&["--ctx", "64"]);
    let chat = "/v1/chat/completions";
    let message = json!([{ "role": "user", "content": "a" }]);
    let long = "a".repeat(80);
    #[rustfmt::skip]
    let cases: Vec<(&str, Value, u16, &str, &str)> = vec![
        (chat, json!({}), 400, "messages", "missing"),
        (chat, json!({ "messages": [] }), 400, "messages", "empty"),
        (chat, json!({ "messages": [{ "role": "king", "content": "a" }] }), 400, "messages[0].role", "king"),
        (chat, json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url", "image_url": {} }] }] }), 400, "messages[0].content[0].type", "text only"),
        (chat, json!({ "messages": message, "temperature": "hot" }), 400, "temperature", "expected a number"),
        (chat, json!({ "messages": message, "temperature": 3 }), 400, "temperature", "expected 0 to 2"),
        (chat, json!({ "messages": message, "max_tokens": 0 }), 400, "max_tokens", "expected 1"),
        (chat, json!({ "messages": message, "n": 17 }), 400, "n", "expected 1 to 16"),
        (chat, json!({ "messages": message, "stream": true, "stream_options": { "magic": 1 } }), 400, "stream_options.magic", "does not know"),
        (chat, json!({ "messages": message, "response_format": { "type": "xml" } }), 400, "response_format.type", "expected text"),
        (chat, json!({ "messages": message, "tools": [{ "type": "function" }] }), 400, "tools[0].function", "is missing"),
        (chat, json!({ "messages": message, "top_logprobs": 2 }), 400, "top_logprobs", "needs logprobs"),
        (chat, json!({ "messages": message, "stream_options": {} }), 400, "stream_options", "needs stream"),
        (chat, json!({ "messages": message, "stop": [""] }), 400, "stop", "bytes"),
        (chat, json!({ "messages": message, "logit_bias": { "x": 1 } }), 400, "logit_bias", "expected a token"),
        (chat, json!({ "messages": message, "model": "gpt-9" }), 404, "model", "gpt-9"),
        ("/v1/completions", json!({ "prompt": 7 }), 400, "prompt", "expected a string"),
        ("/v1/completions", json!({ "prompt": [1, 100000] }), 400, "prompt", "prompt[1] is token 100000"),
        ("/v1/completions", json!({ "prompt": [1, -1] }), 400, "prompt[1]", "expected a token"),
        ("/v1/completions", json!({ "prompt": "a", "suffix": "b" }), 400, "suffix", "not supported"),
        ("/v1/completions", json!({ "prompt": "a", "best_of": 2 }), 400, "best_of", "only 1"),
        ("/v1/responses", json!({ "input": "a", "previous_response_id": "resp_1" }), 400, "previous_response_id", "stores nothing"),
        ("/v1/responses", json!({ "input": [] }), 400, "input", "at least one"),
        ("/v1/responses", json!({ "input": "a", "seed": 7 }), 400, "seed", "does not support it"),
        ("/v1/responses", json!({ "input": "a", "guided_regex": "a" }), 400, "guided_regex", "does not support it"),
        ("/detokenize", json!({ "tokens": ["a"] }), 400, "tokens[0]", "expected a token"),
    ];
    for (path, body, status, param, words) in cases {
        let reply = server.post(path, &body);
        let error = &reply.json()["error"];
        let told = (reply.status, error["param"].as_str(), error["message"].as_str().unwrap().contains(words));
        assert_eq!(told, (status, Some(param), true), "{body}: {error}");
    }
    let error = server.post("/v1/completions", &json!({ "prompt": long })).json()["error"].clone();
    assert_eq!(error["code"], "context_length_exceeded", "{error}");
    let reply = server.post("/v1/messages", &json!({ "messages": message }));
    assert_eq!((reply.status, &reply.json()["error"]["type"]), (400, &json!("invalid_request_error")));
    let refused = server.post("/v1/messages", &json!({ "messages": message, "max_tokens": 4, "frequency_penalty": 1 }));
    assert_eq!((refused.status, refused.text().contains("frequency_penalty")), (400, true), "{}", refused.text());
    // `null` is absent, and so is what other servers know.
    let body = json!({ "prompt": "a", "max_tokens": 1, "temperature": null, "tools": null, "stop": null, "seed": null, "num_ctx": 4096 });
    assert_eq!(server.post("/v1/completions", &body).status, 200);

    for (method, path, headers, status) in [
        ("GET", "/nowhere", vec![], 404),
        ("GET", chat, vec![], 405),
        ("POST", "/health", vec![], 405),
        ("GET", "/v1/models/other", vec![], 404),
        ("GET", "/health", vec![("origin", "https://example.com")], 403),
        ("POST", chat, vec![("content-type", "text/plain")], 415),
    ] {
        let reply = server.ask(method, path, &headers, "{}");
        assert_eq!(reply.status, status, "{method} {path}");
        assert!(reply.json()["error"]["message"].is_string());
    }
    assert_eq!(server.get(chat).header("allow"), Some("POST, OPTIONS"));
    assert_eq!(server.ask("OPTIONS", chat, &[], "").status, 204);
    let own = format!("http://{}", server.address);
    assert_eq!(server.ask("GET", "/health", &[("origin", &own)], "").status, 200);
    assert_eq!(server.ask("GET", "/health", &[("x-request-id", "abc")], "").header("x-request-id"), Some("abc"));
}

#[test]
fn bytes_that_are_no_request_end_nothing_but_themselves() {
    let server = Server::start(&[]);
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    let cases: Vec<(Vec<u8>, &[u16])> = vec![
        (b"\r\n\r\n\r\n\r\n".to_vec(), &[400]),
        ((0..=255).cycle().take(4096).collect(), &[400]),
        (b"GET / HTTP/9.9\r\n\r\n".to_vec(), &[400, 505]),
        (b"GET /health HTTP/1.1\r\nbad header\r\n\r\n".to_vec(), &[400]),
        (format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(100_000)).into_bytes(), &[414, 431]),
        (format!("GET /health HTTP/1.1\r\nx: {}\r\n\r\n", "a".repeat(100_000)).into_bytes(), &[431]),
        (format!("GET /health HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(200)).into_bytes(), &[431]),
        (format!("{head}content-length: 99999999999\r\n\r\n").into_bytes(), &[413]),
        (format!("{head}content-length: 5\r\ncontent-length: 6\r\n\r\n12345").into_bytes(), &[400]),
        (format!("{head}content-length: -1\r\n\r\n").into_bytes(), &[400]),
        (format!("{head}transfer-encoding: chunked\r\n\r\nzzzz\r\n").into_bytes(), &[400]),
        (format!("{head}transfer-encoding: gzip\r\n\r\n").into_bytes(), &[400]),
        (format!("{head}content-length: 9\r\n\r\n{{\"prompt\"").into_bytes(), &[400]),
        (format!("{head}content-length: 2\r\n\r\n\u{7f}\u{7f}").into_bytes(), &[400]),
        (format!("{head}content-length: {}\r\n\r\n{deep}", deep.len()).into_bytes(), &[400]),
    ];
    for (bytes, want) in cases {
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(120)]).into_owned();
        let mut stream = server.connect();
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(Shutdown::Write);
        // A connection that is closed while its request still comes may lose the answer.
        match read_reply(&mut stream) {
            Ok(reply) => assert!(want.contains(&reply.status), "{shown:?}: {}", reply.head),
            Err(e) => assert!(e.kind() != std::io::ErrorKind::WouldBlock, "{shown:?}: {e}"),
        }
    }
    // A body in pieces beyond the limit.
    let mut stream = server.connect();
    stream.write_all(format!("{head}transfer-encoding: chunked\r\n\r\n").as_bytes()).unwrap();
    let chunk = format!("100000\r\n{}\r\n", " ".repeat(1 << 20));
    while stream.write_all(chunk.as_bytes()).is_ok() {}
    assert_eq!(server.get("/health").status, 200);
    assert_eq!(server.complete(&json!({ "prompt": "ROMEO:", "max_tokens": 4 })).chars().count(), 4);
    server.wait_until_idle();
}

#[test]
fn many_clients_get_the_answers_that_they_get_alone() {
    let server = Server::start(&["--deterministic", "--rows", "8"]);
    let body = |i: usize| {
        let prompt: String = "to be or not to be that is the question ".chars().cycle().skip(i * 7).take(3 + i * 5 % 90).collect();
        json!({ "prompt": prompt, "max_tokens": 10 + i % 17, "temperature": (i % 3) as f64 * 0.5, "seed": i, "top_p": 0.9, "stream": i % 2 == 1 })
    };
    let text = |reply: Reply, stream: bool| match stream {
        true => reply.events().iter().map(|e| e["choices"][0]["text"].as_str().unwrap().to_string()).collect::<String>(),
        false => reply.json()["choices"][0]["text"].as_str().unwrap().to_string(),
    };
    let ask = |i: usize| text(server.post("/v1/completions", &body(i)), i % 2 == 1);
    let together: Vec<String> = std::thread::scope(|s| {
        let all: Vec<_> = (0..48).map(|i| s.spawn(move || ask(i))).collect();
        all.into_iter().map(|t| t.join().unwrap()).collect()
    });
    for (i, answer) in together.iter().enumerate() {
        assert_eq!(*answer, ask(i), "{}", body(i));
    }
    assert_eq!(server.metric("tl_num_preemptions_total"), 0.0);
}

#[test]
fn whoever_goes_away_is_forgotten() {
    let server = Server::start(&["--rows", "1", "--waiting", "32", "--ctx", "256"]);
    let long = |stream: bool| json!({ "prompt": "ROMEO:", "max_tokens": 200, "n": 16, "stream": stream, "ignore_eos": true }).to_string();
    for stream in [true, false] {
        for _ in 0..8 {
            let client = server.send("POST", "/v1/completions", &[], &long(stream));
            server.wait_until_busy();
            drop(client);
            let start = Instant::now();
            server.wait_until_idle();
            assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        }
    }
    let cancelled = server.metric("tl_cancelled_total");
    assert!(cancelled >= 16.0, "{cancelled}");
    // The row and all pages are there again.
    let body = json!({ "prompt": ["a", "b"], "max_tokens": 240, "temperature": 0, "ignore_eos": true });
    assert_eq!(server.post("/v1/completions", &body).json()["usage"]["completion_tokens"], 480);
    server.wait_until_idle();
    assert_eq!(server.metric("tl_kv_cache_usage_perc"), 0.0);
}

#[test]
fn answers_to_one_prompt_read_it_once() {
    let server = Server::start(&["--rows", "16", "--ctx", "256"]);
    let prompt: String = "to be or not to be that is the question ".chars().cycle().take(200).collect();
    let reply = server.post("/v1/completions", &json!({ "prompt": prompt, "n": 16, "max_tokens": 2, "ignore_eos": true })).json();
    let usage = &reply["usage"];
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(200), &json!(32)), "{usage}");
    assert!(usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0) <= 200, "{usage}");
    // Three whole pages of 64.
    assert!(server.metric("tl_prefix_cache_hits_total") >= 15.0 * 192.0, "{}", server.metric("tl_prefix_cache_hits_total"));
    // A second request finds them, and counts them once.
    let again = server.post("/v1/completions", &json!({ "prompt": prompt, "n": 3, "max_tokens": 2 })).json();
    assert_eq!(again["usage"]["prompt_tokens_details"]["cached_tokens"], 192, "{again}");
}

#[test]
fn the_budget_of_prompt_steps_bounds_their_size() {
    let steps = |budget: &str| {
        let server = Server::start(&["--ctx", "256", "--itl-budget", budget]);
        server.complete(&json!({ "prompt": "a".repeat(200), "max_tokens": 1 }));
        // A step is counted when its answer is on its way already.
        let mut seen = server.metric("tl_read_steps_total");
        loop {
            std::thread::sleep(std::time::Duration::from_millis(300));
            let now = server.metric("tl_read_steps_total");
            if now == seen {
                return now;
            }
            seen = now;
        }
    };
    // The smallest shape has 16 tokens, the largest 64.
    assert_eq!((steps("0"), steps("1000000")), (13.0, 4.0));
}

#[test]
fn too_many_requests_are_told_to_come_back() {
    let server = Server::start(&["--rows", "1", "--waiting", "1", "--ctx", "256"]);
    let body = json!({ "prompt": "a", "n": 3, "max_tokens": 200 });
    let reply = server.post("/v1/completions", &body);
    assert_eq!((reply.status, reply.header("retry-after")), (429, Some("2")), "{}", reply.text());
    assert_eq!(reply.json()["error"]["type"], "rate_limit_error");
    server.wait_until_idle();
    assert_eq!(server.post("/v1/completions", &json!({ "prompt": "a", "n": 2, "max_tokens": 2 })).status, 200);

    // So many tokens may wait, and for so long.
    let server = Server::start(&["--rows", "1", "--waiting-tokens", "10", "--ctx", "256"]);
    let different = ["abcdefghijkl", "bcdefghijklm", "cdefghijklmn"];
    assert_eq!(server.post("/v1/completions", &json!({ "prompt": different, "max_tokens": 200 })).status, 429);
    // Equal prompts are read once.
    server.wait_until_idle();
    assert_eq!(server.post("/v1/completions", &json!({ "prompt": different[0], "n": 3, "max_tokens": 2 })).status, 200);
    let server = Server::start(&["--rows", "1", "--max-wait", "0", "--ctx", "256"]);
    let reply = server.post("/v1/completions", &json!({ "prompt": "a", "n": 2, "max_tokens": 200 }));
    assert_eq!((reply.status, reply.header("retry-after")), (503, Some("5")), "{}", reply.text());
    assert!(reply.text().contains("has waited"), "{}", reply.text());
    server.wait_until_idle();
    assert_eq!(server.post("/v1/completions", &json!({ "prompt": "a", "max_tokens": 2 })).status, 200);
}

#[test]
fn keys_and_addresses_keep_others_out() {
    let run = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_tl")).args(["serve", TINY]).args(args).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, said) = run(&["--port", "0", "--host", "0.0.0.0"]);
    assert!(code == Some(2) && said.contains("--no-auth"), "{said}");
    let (code, said) = run(&["--port", "0", "--host", "example.com"]);
    assert!(code == Some(2) && said.contains("expected an IP address"), "{said}");

    let keys = std::env::temp_dir().join(format!("tl-serve-keys-{}", std::process::id()));
    std::fs::write(&keys, "second\n\n").unwrap();
    let server =
        Server::start(&["--api-key", "first", "--api-key-file", keys.to_str().unwrap(), "--cors-origin", "https://chat.example.com"]);
    std::fs::remove_file(keys).unwrap();
    let status = |headers: &[(&str, &str)]| server.ask("GET", "/v1/models", headers, "").status;
    assert_eq!(status(&[]), 401);
    assert_eq!(status(&[("authorization", "Bearer wrong")]), 401);
    assert_eq!(status(&[("authorization", "Basic first")]), 401);
    assert_eq!(status(&[("authorization", "Bearer first")]), 200);
    assert_eq!(status(&[("x-api-key", "second")]), 200);
    assert_eq!((server.get("/health").status, server.get("/").status, server.get("/metrics").status), (200, 200, 401));
    let reply = server.ask("GET", "/v1/models", &[("authorization", "Bearer first"), ("origin", "https://chat.example.com")], "");
    assert_eq!((reply.status, reply.header("access-control-allow-origin")), (200, Some("https://chat.example.com")));
    let asked = [
        ("origin", "https://chat.example.com"),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization, x-stainless-os,X-Stainless-Retry-Count, x-other"),
    ];
    let reply = server.ask("OPTIONS", "/v1/chat/completions", &asked, "");
    assert_eq!((reply.status, reply.header("access-control-allow-origin")), (204, Some("https://chat.example.com")));
    let allowed = reply.header("access-control-allow-headers").unwrap();
    assert!(allowed.contains("x-stainless-os") && allowed.contains("x-stainless-retry-count") && !allowed.contains("x-other"), "{allowed}");
    let (code, said) = run(&["--port", server.address.rsplit(':').next().unwrap()]);
    assert!(code == Some(2) && said.contains(&server.address), "{said}");
}

#[test]
#[cfg(unix)]
fn a_signal_lets_running_answers_end() {
    let terminate = |server: &Server, client: &TcpStream| {
        // The answer has begun.
        assert_eq!(client.peek(&mut [0]).unwrap(), 1);
        assert!(Command::new("kill").arg(server.process.id().to_string()).status().unwrap().success());
    };
    let mut server = Server::start(&["--ctx", "256", "--drain", "100"]);
    let body = json!({ "prompt": "ROMEO:", "max_tokens": 120, "n": 4, "stream": true, "ignore_eos": true }).to_string();
    let mut client = server.send("POST", "/v1/completions", &[], &body);
    terminate(&server, &client);
    let reply = read_reply(&mut client).unwrap();
    let texts = reply.events().iter().map(|e| e["choices"][0]["text"].as_str().unwrap().chars().count()).sum::<usize>();
    assert_eq!(texts, 4 * 120);
    assert_eq!(server.process.wait().unwrap().code(), Some(0));
    assert!(TcpStream::connect(&server.address).is_err());

    // What does not end in time is told so.
    let mut server = Server::start(&["--drain", "0", "--rows", "1", "--ctx", "256"]);
    let body = json!({ "prompt": vec!["a"; 64], "max_tokens": 200, "stream": true, "ignore_eos": true }).to_string();
    let mut client = server.send("POST", "/v1/completions", &[], &body);
    terminate(&server, &client);
    let reply = read_reply(&mut client).unwrap();
    assert!(reply.events().last().unwrap()["error"]["message"].as_str().unwrap().contains("stopped"));
    assert_eq!(server.process.wait().unwrap().code(), Some(0));
}

#[test]
fn other_forms_say_the_same() {
    let server = Server::start(&[]);
    let messages = json!([{ "role": "user", "content": "ROMEO:" }]);
    let chat = server.post("/v1/chat/completions", &json!({ "messages": messages, "max_tokens": 9, "temperature": 0 })).json();
    let text = chat["choices"][0]["message"]["content"].as_str().unwrap();

    let mut body = json!({ "model": "tiny", "messages": messages, "max_tokens": 9, "temperature": 0 });
    let whole = server.post("/v1/messages", &body).json();
    assert_eq!(
        (&whole["content"][0]["text"], &whole["stop_reason"], &whole["type"]),
        (&json!(text), &json!("max_tokens"), &json!("message"))
    );
    assert_eq!(whole["usage"]["output_tokens"], 9);
    body["stream"] = true.into();
    let named = |reply: &Reply| -> Vec<(String, Value)> {
        let event = |e: &str| {
            let (name, data) = e.split_once('\n').unwrap();
            (name.strip_prefix("event: ").unwrap().to_string(), serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap())
        };
        reply.text().split("\n\n").filter(|e| !e.is_empty()).map(event).collect()
    };
    let events = named(&server.post("/v1/messages", &body));
    assert!(events.iter().all(|(name, v)| v["type"] == **name));
    let order: Vec<&str> = events.iter().map(|e| &*e.0).filter(|n| *n != "content_block_delta").collect();
    assert_eq!(order, ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"]);
    let parts: String = events.iter().filter_map(|e| e.1["delta"]["text"].as_str()).collect();
    assert_eq!(parts, text);

    let mut body = json!({ "input": "ROMEO:", "max_output_tokens": 9, "temperature": 0 });
    let whole = server.post("/v1/responses", &body).json();
    assert_eq!((&whole["output"][0]["content"][0]["text"], &whole["status"]), (&json!(text), &json!("incomplete")), "{whole}");
    assert_eq!((&whole["tool_choice"], &whole["text"]), (&json!("auto"), &json!({ "format": { "type": "text" } })));
    let format = json!({ "type": "text" });
    let asked =
        json!({ "input": "ROMEO:", "max_output_tokens": 4, "tool_choice": "none", "text": { "format": format }, "seed": null, "n": 1 });
    let said = server.post("/v1/responses", &asked).json();
    assert_eq!((&said["tool_choice"], &said["text"]["format"]), (&json!("none"), &format), "{said}");
    body["stream"] = true.into();
    let events = named(&server.post("/v1/responses", &body));
    assert!(events.iter().enumerate().all(|(i, (name, v))| v["type"] == **name && v["sequence_number"] == i));
    assert_eq!((&*events[0].0, &*events.last().unwrap().0), ("response.created", "response.incomplete"));
    let parts: String = events.iter().filter(|e| e.0 == "response.output_text.delta").filter_map(|e| e.1["delta"].as_str()).collect();
    assert_eq!(parts, text);

    let prompt = server.post("/apply-template", &json!({ "messages": messages })).json();
    assert_eq!(prompt["prompt"], "user:\nROMEO:\n\nassistant:\n");
    assert_eq!(server.complete(&json!({ "prompt": prompt["prompt"], "max_tokens": 9, "temperature": 0 })), text);
    let tokens = server.post("/tokenize", &json!({ "content": "ROMEO" })).json()["tokens"].clone();
    assert_eq!(server.post("/detokenize", &json!({ "tokens": tokens })).json()["content"], "ROMEO");
    let model = &server.get("/v1/models").json()["data"][0];
    assert_eq!((&model["id"], server.get("/v1/models/tiny").status), (&json!("tiny"), 200));
    assert_eq!(server.get("/v1/models/t%69ny").json()["id"], "tiny");
    let page = server.get("/");
    assert!(page.header("content-security-policy").unwrap().contains("default-src 'none'") && page.text().contains("<script nonce="));
    // No request compiles or plans anything.
    let before = server.metric("tl_pipelines_compiled_total");
    server.complete(&json!({ "prompt": "a", "top_k": 3, "presence_penalty": 1, "logprobs": 1 }));
    assert_eq!(server.metric("tl_pipelines_compiled_total"), before);
    assert!(server.metric("tl_time_to_first_token_seconds_count") >= 6.0);
}
