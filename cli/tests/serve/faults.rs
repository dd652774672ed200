//! What must not bring a server down, nor mix or stall the answers of others: bursts, hostile bytes, slow and idle peers, too few descriptors, a lost device.

use crate::server::{Reply, Server, TINY, raise_limit, read_reply};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Bytes of memory that a process has.
#[cfg(target_os = "linux")]
fn memory(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.process.id())).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() << 10
}

/// A thread that takes little.
fn spawn<'s, T: Send + 's>(
    scope: &'s std::thread::Scope<'s, '_>,
    work: impl FnOnce() -> T + Send + 's,
) -> std::thread::ScopedJoinHandle<'s, T> {
    std::thread::Builder::new().stack_size(128 << 10).spawn_scoped(scope, work).unwrap()
}

#[test]
#[cfg(unix)]
fn a_thousand_canaries_in_bursts_sing_as_alone() {
    raise_limit();
    let server = Server::start(&["--deterministic", "--rows", "16", "--waiting", "200", "--ctx", "32", "--max-connections", "2000"]);
    let body = |i: usize| {
        let prompt: String = "if music be the food of love play on ".chars().cycle().skip(i * 5).take(4 + i * 7 % 20).collect();
        json!({ "prompt": prompt, "max_tokens": 4, "temperature": (i % 2) as f64, "seed": i, "stream": i % 3 == 0 })
    };
    let text = |reply: &Reply, i: usize| match i % 3 {
        0 => reply.events().iter().map(|e| e["choices"][0]["text"].as_str().unwrap().to_string()).collect::<String>(),
        _ => reply.json()["choices"][0]["text"].as_str().unwrap().to_string(),
    };
    let ask = |i: usize| server.post("/v1/completions", &body(i));
    let alone: Vec<String> = (0..50).map(|i| text(&ask(i), i)).collect();
    let (server, alone) = (&server, &alone);
    let one = |n: usize| {
        let i = n % 50;
        // Some go away before their answer.
        if n % 10 == 9 {
            drop(server.send("POST", "/v1/completions", &[], &body(i).to_string()));
        }
        let mut refused = 0;
        loop {
            let reply = ask(i);
            match reply.status {
                200 => {
                    assert_eq!(text(&reply, i), alone[i], "{}", body(i));
                    return refused;
                }
                429 | 503 => {
                    assert!(reply.header("retry-after").is_some());
                    refused += 1;
                    std::thread::sleep(Duration::from_millis(200 + (n % 7) as u64 * 100));
                }
                other => panic!("{other}: {}", reply.text()),
            }
        }
    };
    let refused: usize = std::thread::scope(|s| {
        let all: Vec<_> = (0..1000).map(|n| spawn(s, move || one(n))).collect();
        all.into_iter().map(|t| t.join().unwrap()).sum()
    });
    assert!(refused > 0, "the burst was none");
    server.wait_until_idle();
    assert_eq!(server.get("/health").status, 200);
}

#[test]
#[cfg(target_os = "linux")]
fn bytes_that_are_nearly_a_request_cost_nothing() {
    let server = Server::start(&["--ctx", "64"]);
    let body = json!({ "prompt": "ROMEO:", "max_tokens": 2, "temperature": 0 }).to_string();
    let head =
        format!("POST /v1/completions HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-type: application/json\r\n", server.address);
    let whole = format!("{head}content-length: {}\r\n\r\n{body}", body.len()).into_bytes();
    let mut random = 7u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random as usize
    };
    let mut round = |times: usize| {
        for _ in 0..times {
            let mut bytes = whole.clone();
            for _ in 0..1 + next() % 4 {
                let at = next() % bytes.len();
                match next() % 4 {
                    0 => bytes[at] = next() as u8,
                    1 => drop(bytes.remove(at)),
                    2 => bytes.insert(at, next() as u8),
                    _ => bytes.truncate(at + 1),
                }
            }
            let mut stream = server.connect();
            let _ = stream.write_all(&bytes);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            if let Ok(reply) = read_reply(&mut stream) {
                assert!(reply.status < 500, "{:?}: {}", String::from_utf8_lossy(&bytes), reply.head);
            }
        }
        server.wait_until_idle();
    };
    round(300);
    let before = memory(&server);
    round(700);
    let grown = memory(&server).saturating_sub(before);
    assert!(grown < 4 << 20, "{grown} bytes");
    assert_eq!(server.complete(&json!({ "prompt": "ROMEO:", "max_tokens": 4 })).chars().count(), 4);
}

#[test]
fn slow_peers_are_left() {
    let server = Server::start(&[]);
    // How long a connection lasts on which nothing more is sent, and what came.
    let end = |sent: &str| {
        let mut stream = server.connect();
        stream.write_all(sent.as_bytes()).unwrap();
        let (start, mut got) = (Instant::now(), Vec::new());
        let _ = stream.read_to_end(&mut got);
        (start.elapsed().as_secs(), String::from_utf8_lossy(&got).lines().next().unwrap_or_default().to_string())
    };
    let post = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{\"prompt\"";
    std::thread::scope(|s| {
        let all = ["", "GET /health HT", "GET /health HTTP/1.1\r\nhost: x\r\n", "GET /health HTTP/1.1\r\nhost: x\r\n\r\n", post];
        let all: Vec<_> = all.map(|sent| (sent, s.spawn(move || end(sent)))).into();
        // Whoever sends a byte now and then is not waited for either.
        let drip = s.spawn(|| {
            let mut stream = server.connect();
            let start = Instant::now();
            while stream.write_all(b"a").is_ok() && start.elapsed() < Duration::from_secs(60) {
                std::thread::sleep(Duration::from_millis(500));
            }
            start.elapsed().as_secs()
        });
        assert_eq!(server.complete(&json!({ "prompt": "ROMEO:", "max_tokens": 4 })).chars().count(), 4);
        for (sent, end) in all {
            let (seconds, line) = end.join().unwrap();
            assert!((9..40).contains(&seconds), "{sent:?}: {seconds} s, {line:?}");
            assert_eq!(line.contains("408"), sent == post, "{sent:?}: {line:?}");
        }
        assert!(drip.join().unwrap() < 40);
    });
}

#[test]
#[cfg(target_os = "linux")]
fn idle_connections_cost_little() {
    let limit = raise_limit();
    let count = 10_000.min(limit.saturating_sub(500) / 2) as usize;
    assert!(count >= 500, "{limit} descriptors");
    let server = Server::start(&["--max-connections", "12000"]);
    assert_eq!(server.get("/health").status, 200);
    let before = memory(&server);
    let idle: Vec<TcpStream> = (0..count).map(|_| server.connect()).collect();
    let start = Instant::now();
    while server.metric("tl_connections") < count as f64 {
        assert!(start.elapsed() < Duration::from_secs(15), "{} of {count}", server.metric("tl_connections"));
        std::thread::sleep(Duration::from_millis(20));
    }
    let each = memory(&server).saturating_sub(before) / count as u64;
    assert!(each < 20 << 10, "{each} bytes a connection");
    let health = || {
        let start = Instant::now();
        assert_eq!(server.get("/health").status, 200);
        start.elapsed()
    };
    // The slowest of nine, in the best of some rounds: this machine runs other tests.
    let slowest: Vec<Duration> = (0..5).map(|_| (0..9).map(|_| health()).max().unwrap()).collect();
    assert!(slowest.iter().min().unwrap() < &Duration::from_millis(100), "{slowest:?} with {count} connections");
    drop(idle);
    assert_eq!(server.complete(&json!({ "prompt": "ROMEO:", "max_tokens": 4 })).chars().count(), 4);
}

#[test]
#[cfg(target_os = "linux")]
fn descriptors_that_run_out_come_back() {
    let server = Server::start_under("ulimit -n 64", TINY, &[]);
    let open = || std::fs::read_dir(format!("/proc/{}/fd", server.process.id())).unwrap().count();
    let many: Vec<TcpStream> = (0..200).map(|_| server.connect()).collect();
    // Most of them wait to be accepted, since there is no descriptor left.
    let start = Instant::now();
    while open() < 64 {
        assert!(start.elapsed() < Duration::from_secs(20), "{} descriptors are open", open());
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(300));
    assert!(open() < 80, "{} descriptors are open", open());
    drop(many);
    let reply = server.get("/health");
    assert_eq!(reply.status, 200);
    assert_eq!(server.complete(&json!({ "prompt": "ROMEO:", "max_tokens": 4 })).chars().count(), 4);
}

#[test]
fn a_wrong_request_among_others_fails_alone() {
    let server = Server::start(&["--rows", "4"]);
    let plain = json!({ "prompt": "ROMEO:", "max_tokens": 60, "temperature": 0 });
    let want = server.complete(&plain);
    let poison = [
        r#"{"prompt": "a", "logit_bias": {"3": 1e999}}"#.to_string(),
        json!({ "prompt": "a", "guided_json": { "type": "object" } }).to_string(),
        json!({ "prompt": "a", "guided_regex": "(a{9999}){9999}b", "max_tokens": 4 }).to_string(),
        json!({ "prompt": [4_000_000_000u32], "max_tokens": 4 }).to_string(),
        json!({ "prompt": "a", "guided_json": { "allOf": vec![json!({ "pattern": "(a|aa)+$", "type": "string" }); 200] } }).to_string(),
    ];
    std::thread::scope(|s| {
        let all: Vec<_> = (0..6).map(|_| s.spawn(|| server.complete(&plain))).collect();
        for body in &poison {
            let reply = server.ask("POST", "/v1/completions", &[], body);
            assert!([200, 400].contains(&reply.status), "{body}: {} {}", reply.status, reply.text());
        }
        all.into_iter().for_each(|t| assert_eq!(t.join().unwrap(), want));
    });
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn a_device_that_is_lost_is_opened_again() {
    let Some(device) = crate::common::selector() else { return };
    // The first device of the process is lost when it has so many submits, which are more than it takes to start.
    let server = Server::start_on(device, &["--rows", "1", "--ctx", "64", "--kv-memory", "8", "--dtype", "f32"], "400");
    let body = json!({ "prompt": "ROMEO:", "max_tokens": 50, "temperature": 0, "ignore_eos": true });
    let start = Instant::now();
    let mut lost = false;
    while !lost {
        assert!(start.elapsed() < Duration::from_secs(100), "the device was not lost");
        let reply = server.post("/v1/completions", &body);
        lost = reply.status != 200;
        assert!([200, 503].contains(&reply.status), "{}", reply.text());
    }
    // A probe is enough to have the model loaded again.
    while server.get("/health").status != 200 {
        assert!(start.elapsed() < Duration::from_secs(300), "the device stayed lost");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(server.post("/v1/completions", &body).json()["usage"]["completion_tokens"], 50);
    assert_eq!(server.metric("tl_model_loads_total"), 2.0);
}

#[test]
fn a_model_that_cannot_be_loaded_anew_is_tried_again() {
    let folder = std::env::temp_dir().join(format!("tl-serve-again-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let [here, away] = ["model.gguf", "away.gguf"].map(|name| folder.join(name));
    std::fs::copy(TINY, &here).unwrap();
    let env = [("TL_TEST_STALL_AFTER", "6:1"), ("TL_TEST_STEP_TIME_MS", "300")];
    let server = Server::start_with_env(here.to_str().unwrap(), &["--rows", "1", "--ctx", "64", "--kv-memory", "8"], &env);
    std::fs::rename(&here, &away).unwrap();
    let body = json!({ "prompt": "ROMEO:", "max_tokens": 40, "temperature": 0, "ignore_eos": true });
    assert_eq!(server.post("/v1/completions", &body).status, 503);
    let start = Instant::now();
    let health = |status: u16, said: &str| {
        loop {
            let reply = server.get("/health");
            if reply.status == status && reply.text().contains(said) {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(100), "/health says {} {}", reply.status, reply.text());
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    health(503, "could not be loaded");
    // It stays so, asked or not, until the file is back.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(server.get("/health").status, 503);
    std::fs::rename(&away, &here).unwrap();
    health(200, "ok");
    assert_eq!(server.post("/v1/completions", &body).json()["usage"]["completion_tokens"], 40);
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn a_step_that_does_not_end_is_left() {
    // The first engine hangs behind so many steps; half a minute is too long for a test.
    let env = [("TL_TEST_STALL_AFTER", "6:1"), ("TL_TEST_STEP_TIME_MS", "300")];
    let server = Server::start_env(&["--rows", "1", "--ctx", "64", "--kv-memory", "8"], &env);
    let body = |stream: bool| json!({ "prompt": "ROMEO:", "max_tokens": 40, "temperature": 0, "stream": stream, "ignore_eos": true });
    std::thread::scope(|s| {
        let stream = s.spawn(|| server.post("/v1/completions", &body(true)));
        server.wait_until_busy();
        // It waits for a place.
        let whole = s.spawn(|| server.post("/v1/completions", &body(false)));
        let events = stream.join().unwrap().events();
        let message = events.last().unwrap()["error"]["message"].as_str().unwrap();
        assert!(events.len() > 1 && message.contains("does not end"), "{message}");
        let reply = whole.join().unwrap();
        assert_eq!(reply.status, 503, "{}", reply.text());
        assert!(reply.header("retry-after").is_some());
    });
    let start = Instant::now();
    while server.get("/health").status != 200 {
        assert!(start.elapsed() < Duration::from_secs(60), "the model is not there again");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(server.post("/v1/completions", &body(false)).json()["usage"]["completion_tokens"], 40);
    assert_eq!(server.metric("tl_model_loads_total"), 2.0);
}

#[test]
fn a_server_whose_devices_hang_again_and_again_ends() {
    let env = [("TL_TEST_STALL_AFTER", "0"), ("TL_TEST_STEP_TIME_MS", "100")];
    let mut server = Server::start_env(&["--rows", "1", "--ctx", "64", "--kv-memory", "8"], &env);
    let start = Instant::now();
    let code = loop {
        if let Some(status) = server.process.try_wait().unwrap() {
            break status.code();
        }
        assert!(start.elapsed() < Duration::from_secs(60), "it goes on");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(code, Some(1));
}

#[test]
fn connections_beyond_the_limit_are_told_so() {
    let server = Server::start(&["--max-connections", "3"]);
    // Each has a request whose body does not come.
    let begin = || {
        let mut client = server.connect();
        client
            .write_all(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 90\r\n\r\n{")
            .unwrap();
        client
    };
    let busy: Vec<TcpStream> = (0..3).map(|_| begin()).collect();
    std::thread::sleep(Duration::from_millis(500));
    // A request is under way when the connection is refused; so much that it is read in several parts.
    let body = json!({ "prompt": "a".repeat(40_000), "max_tokens": 4 });
    for n in 0..40 {
        let reply = server.post("/v1/completions", &body);
        assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1")), "{n}: {}", reply.text());
        assert_eq!(reply.json()["error"]["message"], "too many connections");
        assert_eq!(reply.json()["type"], "error");
    }
    drop(busy);
    let start = Instant::now();
    while server.get("/health").status != 200 {
        assert!(start.elapsed() < Duration::from_secs(20), "still full");
    }
    assert!(server.metric("tl_connections_refused_total") >= 40.0);
}

#[test]
fn the_connection_that_is_idle_longest_makes_room() {
    let server = Server::start(&["--max-connections", "3", "--rows", "1", "--ctx", "256"]);
    // Idle, at work for a while, idle after an answer.
    let mut first = server.connect();
    let long = json!({ "prompt": "ROMEO:", "max_tokens": 200, "n": 16, "ignore_eos": true, "stream": true });
    let mut second = server.send("POST", "/v1/completions", &[], &long.to_string());
    let ask = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n";
    let health = |client: &mut TcpStream| {
        client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        client.write_all(ask).unwrap();
        let (mut room, mut text) = ([0; 4096], String::new());
        while !text.contains("\r\n\r\n") || !text.ends_with('}') {
            match client.read(&mut room) {
                Ok(0) | Err(_) => return None,
                Ok(n) => text += std::str::from_utf8(&room[..n]).unwrap(),
            }
        }
        text.starts_with("HTTP/1.1 200").then_some(text)
    };
    let mut third = server.connect();
    health(&mut third).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    // The idle one that waits longest goes, not the one that is at work, and the one that was served goes next.
    assert_eq!(server.get("/health").status, 200);
    assert_eq!(health(&mut first), None);
    health(&mut third).unwrap();
    let reply = read_reply(&mut second).unwrap();
    assert_eq!(reply.events().iter().map(|e| e["choices"][0]["text"].as_str().unwrap().chars().count()).sum::<usize>(), 16 * 200);
    // However many are idle, newcomers are served.
    let idle: Vec<TcpStream> = (0..200).map(|_| server.connect()).collect();
    std::thread::sleep(Duration::from_millis(300));
    for _ in 0..20 {
        assert_eq!(server.get("/health").status, 200);
    }
    drop(idle);
}

#[test]
#[cfg(unix)]
fn a_client_that_closes_its_sending_side_gets_its_answer() {
    let server = Server::start(&["--rows", "1", "--ctx", "256"]);
    for stream in [false, true] {
        // It takes so long that the server looks whether the client is there.
        let body = json!({ "prompt": "ROMEO:", "max_tokens": 100, "n": 2, "stream": stream, "ignore_eos": true });
        let mut client = server.send("POST", "/v1/completions", &[], &body.to_string());
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let reply = read_reply(&mut client).unwrap();
        assert_eq!(reply.status, 200);
        let texts: usize = match stream {
            true => reply.events().iter().map(|e| e["choices"][0]["text"].as_str().unwrap().chars().count()).sum(),
            false => reply.json()["choices"].as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap().chars().count()).sum(),
        };
        assert_eq!(texts, 200);
    }
    assert_eq!(server.metric("tl_cancelled_total"), 0.0);
}

/// Requests of many kinds; the memory that the server has must not grow by more than a MiB in 10,000 of them, and 2 MiB.
#[cfg(target_os = "linux")]
fn soak(requests: usize) {
    let server = Server::start(&["--rows", "16", "--ctx", "32", "--kv-memory", "8", "--waiting", "64"]);
    let one = |n: usize| match n % 12 {
        0 => server.post("/v1/completions", &json!({ "prompt": "a", "max_tokens": 1 + n % 2, "seed": n, "stream": n % 24 == 0 })).status,
        1 => server.post("/v1/completions", &json!({ "prompt": "a", "max_tokens": "many" })).status,
        2 => server.post("/tokenize", &json!({ "content": format!("ROMEO: {n}") })).status,
        3 => server.ask("POST", "/v1/chat/completions", &[], "{\"messages\": [").status,
        4 => server.get("/v1/models").status,
        5 => server.post("/v1/completions", &json!({ "prompt": "a".repeat(60), "max_tokens": 1 })).status,
        6 => server.get(&format!("/nowhere/{n}")).status,
        7 => server.post("/detokenize", &json!({ "tokens": [n % 60, 3] })).status,
        8 => server.get("/metrics").status,
        9 => server.post("/v1/completions", &json!({ "prompt": "a", "max_tokens": 1, "model": format!("none-{n}") })).status,
        10 => server.get("/props").status,
        _ => server.get("/health").status,
    };
    let round = |from: usize, count: usize| {
        let next = std::sync::atomic::AtomicUsize::new(from);
        std::thread::scope(|s| {
            for _ in 0..8 {
                s.spawn(|| {
                    loop {
                        let n = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        if n >= from + count {
                            return;
                        }
                        let status = one(n);
                        let want: &[u16] = match n % 12 {
                            0 => &[200, 429],
                            1 | 3 | 5 => &[400],
                            6 | 9 => &[404],
                            _ => &[200],
                        };
                        assert!(want.contains(&status), "request {n}: {status}");
                    }
                });
            }
        });
        server.wait_until_idle();
    };
    round(0, requests / 3);
    let before = memory(&server);
    round(requests / 3, requests - requests / 3);
    let grown = memory(&server).saturating_sub(before);
    println!("{requests} requests: {before} bytes, and {grown} more");
    assert!(grown < (2 << 20) + ((requests as u64 / 10_000) << 20), "{grown} bytes");
}

#[test]
#[cfg(target_os = "linux")]
fn memory_does_not_grow_with_requests() {
    soak(3_000);
}

#[test]
#[ignore = "minutes: cargo test --release --test serve -- --ignored soak"]
#[cfg(target_os = "linux")]
fn memory_does_not_grow_in_a_soak_of_100_000_requests() {
    soak(100_000);
}

#[test]
fn the_dashboard_shows_what_there_is() {
    let server = Server::start(&[]);
    let metrics = server.get("/metrics").text().to_string();
    let board: Value = serde_json::from_str(include_str!("../../../docs/deploy/grafana.json")).unwrap();
    let mut names = 0;
    for panel in board["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let words = target["expr"].as_str().unwrap().split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            for name in words.filter(|w| w.starts_with("tl_")) {
                let name = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
                assert!(metrics.contains(&format!("# TYPE {name} ")), "{name}");
                names += 1;
            }
        }
    }
    assert!(names > 15, "{names}");
}
