//! Runs of `tl` under the launchers of `scripts/mpi.sh`, in `TL_TEST_MPI` or `target/mpi`. Where there are none, tests are skipped, unless
//! `TL_REQUIRE_MPI=1`.
#![allow(dead_code)]

use crate::common;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A folder of the test's own with a text in it.
pub struct Place(PathBuf);

impl Place {
    pub fn new(name: &str) -> Place {
        Place(common::folder_with_text(&format!("ranks-{name}")))
    }
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
    /// What begins a new run in this folder.
    pub fn begin(&self, run: &str, settings: &str) -> String {
        format!("train {} -o {} {settings}", self.path("text.txt").display(), self.path(run).display())
    }
    /// What goes on with one.
    pub fn go_on(&self, run: &str, settings: &str) -> String {
        format!("train -o {} --resume {settings}", self.path(run).display())
    }
    /// What a run is judged by: the model, the losses, the newest checkpoint's optimizer.
    pub fn results(&self, run: &str) -> [Vec<u8>; 3] {
        let mut steps: Vec<PathBuf> = std::fs::read_dir(self.path(run).join("checkpoints")).unwrap().map(|e| e.unwrap().path()).collect();
        steps.sort();
        let last = steps.last().expect("a checkpoint");
        [self.path(run).join("model.safetensors"), self.path(run).join("loss.csv"), last.join("optimizer.safetensors")].map(|f| bytes(&f))
    }
    /// How many steps of a run in half precision overflowed, by its checkpoint of this step.
    pub fn skipped(&self, run: &str, step: u64) -> f32 {
        let file = self.path(&format!("{run}/checkpoints/step-{step:08}/optimizer.safetensors"));
        let last = tensorlogic::io::SafeTensors::open(file).unwrap();
        let skipped = last.tensors().iter().find(|t| &*t.name == "scale.2").map(|t| last.bytes_of(t).to_vec()).unwrap();
        f32::from_le_bytes(skipped.try_into().unwrap())
    }
    /// Another copy of a run's folder, as on a machine that shares none.
    pub fn copy(&self, run: &str, name: &str) {
        assert!(Command::new("cp").arg("-r").args([self.path(run), self.path(name)]).status().unwrap().success());
    }
    /// Changes a file of this folder.
    pub fn change(&self, file: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut all = bytes(&self.path(file));
        change(&mut all);
        std::fs::write(self.path(file), all).unwrap();
    }
    #[track_caller]
    pub fn assert_same(&self, a: &str, b: &str) {
        let (x, y) = (self.results(a), self.results(b));
        for (n, file) in ["model.safetensors", "loss.csv", "optimizer.safetensors"].iter().enumerate() {
            assert!(x[n] == y[n], "{file} of {b} differs from that of {a}");
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

pub fn bytes(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

pub const TINY: &str = "--layers 1 --heads 2 --width 16 --context 16 --batch 2 --dropout 0.1 --warmup 2 --lr 1e-2 --log-every 1";

/// The folder of the launchers; `None` where there is none and none is required.
pub fn mpi() -> Option<PathBuf> {
    let own = || Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("target/mpi");
    let folder = std::env::var_os("TL_TEST_MPI").map_or_else(own, PathBuf::from);
    let there = folder.join("mpirun-openmpi").exists();
    assert!(there || std::env::var("TL_REQUIRE_MPI").map_or(true, |v| v != "1"), "no MPI in {}: run scripts/mpi.sh", folder.display());
    there.then_some(folder)
}

/// Ranks of one test at a time: there are fewer cores than ranks as it is.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn settle(c: &mut Command, args: &str) {
    c.args(args.split_whitespace());
    c.env("TL_DEVICE", "cpu").env("TL_OFFLINE", "1").env("TL_NUM_THREADS", "1").env_remove("TL_MEM_LIMIT").env_remove("TL_MPI");
    c.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
}

/// One process, without a launcher.
pub fn alone(args: &str) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_tl"));
    settle(&mut c, args);
    c
}

/// A launcher by its family: Open MPI's over TCP and without shared memory, as between machines; MPICH's by what it takes.
pub fn launcher(mpi: &Path, family: &str) -> Command {
    let mut c = shared_launcher(mpi, family);
    if family.starts_with("openmpi") {
        c.args(["--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo"]).env("TL_SHARED_WINDOW", "0");
    }
    c
}

/// A launcher by its family, whose ranks share memory where it likes.
pub fn shared_launcher(mpi: &Path, family: &str) -> Command {
    let mut c = Command::new(mpi.join(format!("mpirun-{family}")));
    if family == "openmpi" {
        // Launchers that begin at once fail where both would create the folder that all of a user's share.
        let own = std::env::temp_dir().join(format!("tl-mpi-{}", std::process::id()));
        std::fs::create_dir_all(&own).unwrap();
        c.env("OMPI_MCA_orte_tmpdir_base", own);
    }
    c
}

/// Ranks of such a launcher.
pub fn shared_ranks(mpi: &Path, family: &str, n: usize, args: &str) -> Command {
    let mut c = shared_launcher(mpi, family);
    c.args(["-n", &n.to_string(), env!("CARGO_BIN_EXE_tl")]);
    settle(&mut c, args);
    c
}

pub fn ranks(mpi: &Path, family: &str, n: usize, args: &str) -> Command {
    let mut c = launcher(mpi, family);
    c.args(["-n", &n.to_string(), env!("CARGO_BIN_EXE_tl")]);
    settle(&mut c, args);
    c
}

/// Runs a command that ends within a minute, and compares its exit code (`None`: any but 0) and words of both streams.
#[track_caller]
pub fn check(mut command: Command, code: Option<i32>, out: &str, err: &str) -> (String, String) {
    let shown = format!("{command:?}");
    let mut child = command.spawn().unwrap();
    let (end, took) = wait(&mut child, Duration::from_secs(60));
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout).into_owned(), String::from_utf8_lossy(&stderr).into_owned());
    assert!(end, "no end after {took:?}: {shown}\nstdout {stdout:?}\nstderr {stderr}");
    let right = code.map_or(!status.success(), |c| status.code() == Some(c));
    assert!(right, "{status}: {shown}\nstdout {stdout:?}\nstderr {stderr}");
    assert!(stdout.contains(out), "stdout {stdout:?} lacks {out:?}\nstderr {stderr}");
    assert!(stderr.contains(err) && !stderr.contains("panicked"), "stderr {stderr:?} lacks {err:?}");
    (stdout, stderr)
}

/// Waits for the end, or kills: whether it came in time, and after how long.
pub fn wait(child: &mut Child, limit: Duration) -> (bool, Duration) {
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > limit {
            let _ = child.kill();
            return (false, began.elapsed());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    (true, began.elapsed())
}

/// Asks again and again until it is so, or the time is over: whether it was so, and after how long.
pub fn until(limit: Duration, mut is_so: impl FnMut() -> bool) -> (bool, Duration) {
    let began = Instant::now();
    while !is_so() {
        if began.elapsed() > limit {
            return (false, began.elapsed());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    (true, began.elapsed())
}

/// The processes of `tl` that write to this run's folder, by rank.
pub fn pids(run: &Path) -> Vec<(usize, i32)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else { continue };
        let read = |name: &str| std::fs::read(entry.path().join(name)).unwrap_or_default();
        let line = read("cmdline");
        let own = line.starts_with(env!("CARGO_BIN_EXE_tl").as_bytes())
            && line.split(|b| *b == 0).any(|a| a == run.as_os_str().as_encoded_bytes());
        if !own {
            continue;
        }
        let environment = read("environ");
        let rank = environment
            .split(|b| *b == 0)
            .filter_map(|v| std::str::from_utf8(v).ok())
            .find_map(|v| v.strip_prefix("OMPI_COMM_WORLD_RANK=").or_else(|| v.strip_prefix("PMI_RANK="))?.parse().ok());
        found.extend(rank.map(|r| (r, pid)));
    }
    found.sort_unstable();
    found
}

/// Stops a process, whose ranks have all come to the end, while it helps messages on their way: false where it was gone before.
pub fn stop_leaving(pid: i32) -> bool {
    let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).ok();
    while let Some(stat) = state() {
        if stat.contains(") Z") {
            return false;
        }
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        if threads.map(|t| std::fs::read_to_string(t.path().join("comm")).unwrap_or_default()).any(|name| name == "tl-leave\n") {
            return Command::new("kill").args(["-STOP", &pid.to_string()]).status().unwrap().success()
                && state().is_some_and(|s| !s.contains(") Z"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

/// Connections by TCP, as pairs of this process's address and the other's.
pub fn connections(pid: i32) -> Vec<(String, String)> {
    let links = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let links = links.filter_map(|e| std::fs::read_link(e.path()).ok()).map(|l| l.display().to_string());
    let sockets: Vec<String> = links.filter_map(|l| Some(l.strip_prefix("socket:[")?.trim_end_matches(']').to_string())).collect();
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap_or_default();
    let fields = table.lines().map(|l| l.split_whitespace().collect::<Vec<_>>());
    // The fourth column is the state, 01 of a connection; the tenth the socket.
    let own = fields.filter(|f| f.len() > 9 && f[3] == "01" && sockets.iter().any(|s| s == f[9]));
    own.map(|f| (f[1].to_string(), f[2].to_string())).collect()
}

pub fn signal(pid: i32, name: &str) {
    assert!(Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().unwrap().success());
}

/// A launcher's two ranks with different settings.
pub fn two(mpi: &Path, family: &str, first: &str, second: &str) -> Command {
    let mut c = launcher(mpi, family);
    let tl = env!("CARGO_BIN_EXE_tl");
    let line = format!("-n 1 env {first} : -n 1 env {second}").replace(" tl ", &format!(" {tl} "));
    settle(&mut c, &line);
    c
}
