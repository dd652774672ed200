//! A server under test, and its clients.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

pub const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tiny/tiny.gguf");
const TEMPLATE: &str =
    "{% for m in messages %}{{ m.role }}:\n{{ m.content }}\n\n{% endfor %}{% if add_generation_prompt %}assistant:\n{% endif %}";
/// How long anything may take here.
const READ_TIMEOUT: Duration = Duration::from_secs(120);

/// A running server; it ends with the test.
pub struct Server {
    pub process: Child,
    pub address: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An answer.
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {:?}", self.text()))
    }
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().filter_map(|l| l.split_once(": ")).find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v)
    }
    /// The objects of a stream of events; the last line, `[DONE]`, must be there.
    #[track_caller]
    pub fn events(&self) -> Vec<Value> {
        assert_eq!((self.status, self.header("content-type")), (200, Some("text/event-stream")), "{}", self.text());
        let mut lines: Vec<&str> = self.text().split("\n\n").filter(|l| !l.is_empty() && !l.starts_with(':')).collect();
        assert_eq!(lines.pop(), Some("data: [DONE]"));
        lines.into_iter().map(|l| serde_json::from_str(l.strip_prefix("data: ").unwrap()).unwrap()).collect()
    }
}

/// Reads an answer up to the end of the connection.
pub fn read_reply(stream: &mut TcpStream) -> std::io::Result<Reply> {
    let mut all = Vec::new();
    stream.read_to_end(&mut all)?;
    // Interim responses come before the answer.
    while all.starts_with(b"HTTP/1.1 1") {
        let end = all.windows(4).position(|w| w == b"\r\n\r\n").map_or(all.len(), |at| at + 4);
        all.drain(..end);
    }
    let at =
        all.windows(4).position(|w| w == b"\r\n\r\n").ok_or_else(|| std::io::Error::other(format!("no head in {} bytes", all.len())))?;
    let head = String::from_utf8(all[..at].to_vec()).unwrap();
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or_else(|| panic!("{head}"));
    let mut body = all.split_off(at + 4);
    if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        let (mut rest, mut whole) = (&body[..], Vec::new());
        loop {
            let line = rest.windows(2).position(|w| w == b"\r\n").expect("a chunk's size");
            let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
            if size == 0 {
                break;
            }
            whole.extend_from_slice(&rest[line + 2..line + 2 + size]);
            rest = &rest[line + 4 + size..];
        }
        body = whole;
    }
    Ok(Reply { status, head, body })
}

impl Server {
    pub fn start_with(model: &str, args: &[&str]) -> Server {
        Server::start_with_env(model, args, &[])
    }

    /// On this device, which is lost behind so many submits.
    pub fn start_on(device: &str, args: &[&str], lost_after: &str) -> Server {
        let env = [("TL_DEVICE", device), ("TL_TEST_LOSE_DEVICE_AFTER", lost_after)];
        Server::launch(crate::common::command(env!("CARGO_BIN_EXE_tl")), TINY, args, &env)
    }

    /// With variables of the environment.
    pub fn start_env(args: &[&str], env: &[(&str, &str)]) -> Server {
        Server::start_with_env(TINY, args, env)
    }

    /// With another model, and with variables of the environment.
    pub fn start_with_env(model: &str, args: &[&str], env: &[(&str, &str)]) -> Server {
        Server::launch(Command::new(env!("CARGO_BIN_EXE_tl")), model, args, env)
    }

    /// Behind a command of the shell, such as one that sets a limit.
    #[cfg(target_os = "linux")]
    pub fn start_under(shell: &str, model: &str, args: &[&str]) -> Server {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{shell}; exec \"$@\""), "sh", env!("CARGO_BIN_EXE_tl")]);
        Server::launch(command, model, args, &[])
    }

    fn launch(mut command: Command, model: &str, args: &[&str], env: &[(&str, &str)]) -> Server {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("tl-serve-{}-{}.jinja", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let template = std::env::temp_dir().join(name);
        std::fs::write(&template, TEMPLATE).unwrap();
        command.args(["serve", model, "--port", "0", "--quiet"]).args(args);
        if model == TINY && !args.contains(&"--model") {
            command.args(["--chat-template", template.to_str().unwrap()]);
        }
        command.env("TL_DEVICE", "cpu").env("TL_OFFLINE", "1").envs(env.iter().copied()).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        std::fs::remove_file(template).unwrap();
        let address = line.trim().strip_prefix("http://").unwrap_or_else(|| panic!("{line:?}")).to_string();
        Server { process, address }
    }

    pub fn start(args: &[&str]) -> Server {
        Server::start_with(TINY, args)
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(READ_TIMEOUT)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> TcpStream {
        let mut stream = self.connect();
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n", self.address);
        headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
        if method == "POST" {
            head += &format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
        }
        stream.write_all(format!("{head}\r\n{body}").as_bytes()).unwrap();
        stream
    }

    #[track_caller]
    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        read_reply(&mut self.send(method, path, headers, body)).unwrap()
    }

    #[track_caller]
    pub fn get(&self, path: &str) -> Reply {
        self.ask("GET", path, &[], "")
    }

    #[track_caller]
    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.ask("POST", path, &[], &body.to_string())
    }

    /// The text that continues a prompt.
    #[track_caller]
    pub fn complete(&self, body: &Value) -> String {
        let reply = self.post("/v1/completions", body);
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json()["choices"][0]["text"].as_str().unwrap().to_string()
    }

    /// A number of `/metrics`.
    pub fn metric(&self, name: &str) -> f64 {
        let reply = self.get("/metrics");
        let line = reply.text().lines().find(|l| l.starts_with(name) && l[name.len()..].starts_with(' ')).map(String::from);
        line.unwrap_or_else(|| panic!("no {name}")).rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Waits until nothing is read or written.
    #[track_caller]
    pub fn wait_until_idle(&self) {
        let start = Instant::now();
        while self.metric("tl_num_requests_running") + self.metric("tl_num_requests_waiting") > 0.0 {
            assert!(start.elapsed() < Duration::from_secs(20), "still busy");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until something is read or written.
    #[track_caller]
    pub fn wait_until_busy(&self) {
        let start = Instant::now();
        while self.metric("tl_num_requests_running") == 0.0 {
            assert!(start.elapsed() < Duration::from_secs(20), "nothing runs");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// What `tl generate` writes.
pub fn generated(model: &str, prompt: &str, tokens: usize, raw: bool) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tl"));
    command.args(["generate", "-m", model, prompt, "-n", &tokens.to_string(), "--quiet"]).args(raw.then_some("--raw"));
    let output = command.env("TL_DEVICE", "cpu").env("TL_OFFLINE", "1").stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().strip_suffix('\n').unwrap().to_string()
}

/// The file of SmolLM2, where it was fetched; a machine that must have it fails without.
pub fn model() -> Option<String> {
    let model = std::env::var("TL_TEST_MODEL").ok().filter(|path| !path.is_empty());
    assert!(model.is_some() || std::env::var_os("TL_REQUIRE_MODEL").is_none(), "TL_TEST_MODEL names no model");
    model
}

/// Lets this process have as many open files as the system allows; says how many.
#[cfg(unix)]
pub fn raise_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the calls read and write the structure that they are given, and change nothing but this process's own limit.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
    }
    limit.rlim_cur
}
