//! The other programs: PyTorch in a process that waits for its turn, llama.cpp started for each turn.

use super::Result;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

fn json(text: &str) -> Result<serde_json::Value> {
    serde_json::from_str(text).map_err(|e| format!("a peer answered `{}`: {e}", text.trim()).into())
}

/// PyTorch, started once.
pub struct Python {
    pub name: String,
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Python {
    pub fn start(python: &str, threads: usize) -> Result<Python> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/peers/pytorch_cpu.py");
        let mut child = Command::new(python).args([script, &threads.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let to = child.stdin.take().ok_or("the peer has no input")?;
        let from = BufReader::new(child.stdout.take().ok_or("the peer has no output")?);
        let mut peer = Python { name: String::new(), child, to, from };
        peer.name = peer.answer()?["peer"].as_str().ok_or("the peer has no name")?.to_string();
        Ok(peer)
    }

    fn answer(&mut self) -> Result<serde_json::Value> {
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        json(&line)
    }

    /// Seconds of one evaluation of a row; `None` where the peer has no such row.
    pub fn seconds(&mut self, row: &str) -> Result<Option<f64>> {
        writeln!(self.to, "{row}")?;
        self.to.flush()?;
        Ok(self.answer()?["seconds"].as_f64())
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// llama.cpp.
pub struct Llama {
    pub name: String,
    bench: PathBuf,
    threads: usize,
}

impl Llama {
    pub fn new(bench: &Path, threads: usize) -> Result<Llama> {
        if !bench.is_file() {
            return Err(format!("{} is not llama-bench", bench.display()).into());
        }
        Ok(Llama { name: format!("llama.cpp, {}", bench.display()), bench: bench.into(), threads })
    }

    /// Seconds of a token, reading or writing.
    pub fn seconds(&self, model: &Path, prompt: usize, written: usize) -> Result<f64> {
        let [prompt, written, threads] = [prompt, written, self.threads].map(|n| n.to_string());
        let mut command = Command::new(&self.bench);
        command.arg("-m").arg(model).args(["-t", &threads, "-p", &prompt, "-n", &written, "-r", "1", "-o", "json"]);
        let out = command.output()?;
        if !out.status.success() {
            return Err(format!("{}: {}", self.bench.display(), String::from_utf8_lossy(&out.stderr).trim()).into());
        }
        let rate = json(&String::from_utf8(out.stdout)?)?[0]["avg_ts"].as_f64();
        rate.map(|r| 1.0 / r).ok_or_else(|| "llama-bench printed no rate".into())
    }

    /// Seconds from the start of llama-completion, where it lies beside llama-bench, to its end after one token.
    pub fn first_token(&self, model: &Path) -> Result<Option<f64>> {
        let program = self.bench.with_file_name("llama-completion");
        if !program.is_file() {
            return Ok(None);
        }
        let start = Instant::now();
        let mut command = Command::new(&program);
        command.arg("-m").arg(model).args(["-t", &self.threads.to_string(), "-n", "1", "-c", "64", "-no-cnv", "-p", "a"]);
        let out = command.stdin(Stdio::null()).output()?;
        if !out.status.success() {
            return Err(format!("{}: {}", program.display(), String::from_utf8_lossy(&out.stderr).trim()).into());
        }
        Ok(Some(start.elapsed().as_secs_f64()))
    }
}
