//! Two replicas of `tl serve` behind a load balancer on loopback: they share nothing, answer alike, and one takes over when the other is gone.
#![cfg(all(feature = "serve", unix))]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tiny/tiny.gguf");
const TIMEOUT: Duration = Duration::from_secs(60);

/// A replica; it ends with the test.
struct Replica {
    process: Child,
    address: String,
}

impl Replica {
    fn start() -> Replica {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tl"));
        command.args(["serve", TINY, "--port", "0", "--quiet", "--deterministic"]).env("TL_DEVICE", "cpu").env("TL_OFFLINE", "1");
        let mut process = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Replica { process, address: line.trim().strip_prefix("http://").unwrap_or_else(|| panic!("{line:?}")).to_string() }
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What one connection is answered.
fn ask(address: &str, request: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(request)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer)
}

fn get(address: &str, path: &str) -> std::io::Result<String> {
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    Ok(String::from_utf8_lossy(&ask(address, request.as_bytes())?).into_owned())
}

/// A load balancer as ordinary ones are: the next replica in turn, of those that are ready.
fn balance(replicas: Vec<String>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (replicas, turn) = (Arc::new(replicas), Arc::new(AtomicUsize::new(0)));
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let (replicas, turn) = (replicas.clone(), turn.clone());
            std::thread::spawn(move || forward(client, &replicas, &turn));
        }
    });
    address
}

fn forward(mut client: TcpStream, replicas: &[String], turn: &AtomicUsize) {
    let mut request = Vec::new();
    let mut part = [0; 4096];
    // A whole request: the head, and as many bytes as it says.
    loop {
        let Ok(n) = client.read(&mut part) else { return };
        request.extend_from_slice(&part[..n]);
        let text = String::from_utf8_lossy(&request).to_lowercase();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|l| l.strip_prefix("content-length: ")?.parse::<usize>().ok()).unwrap_or(0);
        if n == 0 || body.len() >= length {
            break;
        }
    }
    for _ in 0..replicas.len() {
        let replica = &replicas[turn.fetch_add(1, Ordering::Relaxed) % replicas.len()];
        let ready = get(replica, "/health").is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"));
        if let (true, Ok(answer)) = (ready, ask(replica, &request)) {
            let _ = client.write_all(&answer);
            return;
        }
    }
    let _ = client.write_all(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n");
}

/// The text of a completion.
fn complete(address: &str, prompt: &str) -> String {
    let body = format!("{{\"prompt\": \"{prompt}\", \"max_tokens\": 16, \"temperature\": 0}}");
    let head = format!("POST /v1/completions HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json");
    let answer = ask(address, format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).as_bytes()).unwrap();
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let value: serde_json::Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    value["choices"][0]["text"].as_str().unwrap().to_string()
}

/// How many tokens a replica has written.
fn written(address: &str) -> f64 {
    let metrics = get(address, "/metrics").unwrap();
    let line = metrics.lines().find(|l| l.starts_with("tl_generation_tokens_total ")).unwrap_or_else(|| panic!("{metrics}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn two_replicas_answer_as_one() {
    let mut replicas = [Replica::start(), Replica::start()];
    let address = balance(replicas.iter().map(|r| r.address.clone()).collect());
    let expected = complete(&replicas[0].address, "ROMEO:");
    let before = [0, 1].map(|n| written(&replicas[n].address));
    // What gateways ask a replica: whether it is ready, and how much it has to do, by vLLM's names.
    let (ready, metrics) = (get(&replicas[0].address, "/ready").unwrap(), get(&replicas[0].address, "/metrics").unwrap());
    assert!(ready.starts_with("HTTP/1.1 200"), "{ready}");
    for name in ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"] {
        let value = |prefix: &str| metrics.lines().find_map(|l| l.strip_prefix(&format!("{prefix}{name} "))).map(String::from);
        assert!(value("vllm:").is_some() && value("vllm:") == value("tl_"), "{name}: {metrics}");
    }
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let address = address.clone();
            std::thread::spawn(move || complete(&address, "ROMEO:"))
        })
        .collect();
    threads.into_iter().for_each(|t| assert_eq!(t.join().unwrap(), expected, "an answer depends on the replica"));
    for n in [0, 1] {
        assert!(written(&replicas[n].address) > before[n], "replica {n} wrote nothing");
    }
    // One is asked to end: it is not ready at once, and the other answers all.
    let pid = replicas[0].process.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    (0..4).for_each(|_| assert_eq!(complete(&address, "ROMEO:"), expected));
    let began = Instant::now();
    while replicas[0].process.try_wait().unwrap().is_none() {
        assert!(began.elapsed() < TIMEOUT, "a replica without requests does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(replicas[0].process.wait().unwrap().success());
    (0..2).for_each(|_| assert_eq!(complete(&address, "ROMEO:"), expected));
}
