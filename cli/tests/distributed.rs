//! `tl train` on several ranks: the same bits on any number of them, restarts on another number, and ends in which no rank waits for one that is gone.
//!
//! The launchers are those of `scripts/mpi.sh`, in `TL_TEST_MPI` or `target/mpi`. Where there are none, these tests are skipped, unless `TL_REQUIRE_MPI=1`.
#![cfg(target_os = "linux")]

#[path = "../../tests/common/mod.rs"]
mod common;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A folder of the test's own with a text in it.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        Place(common::folder_with_text(&format!("ranks-{name}")))
    }
    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
    /// What begins a new run in this folder.
    fn begin(&self, run: &str, settings: &str) -> String {
        format!("train {} -o {} {settings}", self.path("text.txt").display(), self.path(run).display())
    }
    /// What goes on with one.
    fn go_on(&self, run: &str, settings: &str) -> String {
        format!("train -o {} --resume {settings}", self.path(run).display())
    }
    /// What a run is judged by: the model, the losses, the newest checkpoint's optimizer.
    fn results(&self, run: &str) -> [Vec<u8>; 3] {
        let mut steps: Vec<PathBuf> = std::fs::read_dir(self.path(run).join("checkpoints")).unwrap().map(|e| e.unwrap().path()).collect();
        steps.sort();
        let last = steps.last().expect("a checkpoint");
        [self.path(run).join("model.safetensors"), self.path(run).join("loss.csv"), last.join("optimizer.safetensors")].map(|f| bytes(&f))
    }
    #[track_caller]
    fn assert_same(&self, a: &str, b: &str) {
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

fn bytes(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

const TINY: &str = "--layers 1 --heads 2 --width 16 --context 16 --batch 2 --dropout 0.1 --warmup 2 --lr 1e-2 --log-every 1";

/// The folder of the launchers; `None` where there is none and none is required.
fn mpi() -> Option<PathBuf> {
    let own = || Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("target/mpi");
    let folder = std::env::var_os("TL_TEST_MPI").map_or_else(own, PathBuf::from);
    let there = folder.join("mpirun-openmpi").exists();
    assert!(there || std::env::var("TL_REQUIRE_MPI").map_or(true, |v| v != "1"), "no MPI in {}: run scripts/mpi.sh", folder.display());
    there.then_some(folder)
}

/// Ranks of one test at a time: there are fewer cores than ranks as it is.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn settle(c: &mut Command, args: &str) {
    c.args(args.split_whitespace());
    c.env("TL_DEVICE", "cpu").env("TL_OFFLINE", "1").env("TL_NUM_THREADS", "1").env_remove("TL_MEM_LIMIT").env_remove("TL_MPI");
    c.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
}

/// One process, without a launcher.
fn alone(args: &str) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_tl"));
    settle(&mut c, args);
    c
}

/// A launcher by its family, over TCP: where Open MPI may take shared memory, nothing is shown about machines.
fn launcher(mpi: &Path, family: &str) -> Command {
    let mut c = Command::new(mpi.join(format!("mpirun-{family}")));
    if family == "openmpi" {
        c.args(["--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo"]);
    }
    c
}

fn ranks(mpi: &Path, family: &str, n: usize, args: &str) -> Command {
    let mut c = launcher(mpi, family);
    c.args(["-n", &n.to_string(), env!("CARGO_BIN_EXE_tl")]);
    settle(&mut c, args);
    c
}

/// Runs a command that ends within a minute, and compares its exit code (`None`: any but 0) and words of both streams.
#[track_caller]
fn check(mut command: Command, code: Option<i32>, out: &str, err: &str) -> (String, String) {
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
fn wait(child: &mut Child, limit: Duration) -> (bool, Duration) {
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

/// The processes of `tl` that write to this run's folder, by rank.
fn pids(run: &Path) -> Vec<(usize, i32)> {
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

fn signal(pid: i32, name: &str) {
    assert!(Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().unwrap().success());
}

#[test]
fn the_number_of_ranks_changes_no_bit() {
    let Some(mpi) = mpi() else { return };
    let _turn = turn();
    let p = Place::new("bits");
    let common = format!("{TINY} --lanes 4 --steps 8 --eval-every 4 --accumulate 2");
    check(alone(&p.begin("alone", &common)), Some(0), "saved 4\nsaved 8\n", "held-out loss");
    for (n, (family, size, more)) in [
        ("openmpi", 1, ""),
        ("openmpi", 2, ""),
        ("openmpi", 4, ""),
        ("mpich", 2, ""),
        ("mpich", 4, "--shard-states"),
        ("openmpi", 2, "--shard-states"),
    ]
    .into_iter()
    .enumerate()
    {
        let run = format!("run{n}");
        let (out, err) = check(ranks(&mpi, family, size, &p.begin(&run, &format!("{common} {more}"))), Some(0), "", "held-out loss");
        assert_eq!(out, "saved 4\nsaved 8\n", "{family} {size}: rank 0 alone prints");
        if size > 1 {
            let name = if family == "openmpi" { "Open MPI v4" } else { "MPICH Version" };
            assert!(err.contains(&format!("one of {size} ranks by {name}")), "{err}");
        }
        p.assert_same("alone", &run);
    }
    // Half precision, with a learning rate that makes gradients overflow: all ranks skip those steps.
    let wild = TINY.replace("--warmup 2 --lr 1e-2", "--warmup 0 --lr 1");
    let half = format!("{wild} --lanes 2 --steps 6 --dtype f16 --eval-every 3 --optimizer muon");
    check(alone(&p.begin("half", &half)), Some(0), "saved 6\n", "");
    let last = tensorlogic::io::SafeTensors::open(p.path("half/checkpoints/step-00000006/optimizer.safetensors")).unwrap();
    let skipped = last.tensors().iter().find(|t| &*t.name == "scale.2").map(|t| last.bytes_of(t).to_vec()).unwrap();
    assert!(f32::from_le_bytes(skipped.try_into().unwrap()) > 0.0, "no step overflowed: the test shows less than it says");
    check(ranks(&mpi, "openmpi", 2, &p.begin("half2", &half)), Some(0), "saved 6\n", "");
    p.assert_same("half", "half2");
    check(ranks(&mpi, "mpich", 2, &p.begin("half3", &format!("{half} --shard-states"))), Some(0), "saved 6\n", "");
    p.assert_same("half", "half3");
}

/// The same on the GPU under test, if there is one; ranks share it.
#[test]
fn ranks_on_a_gpu_change_no_bit() {
    let (Some(mpi), Some(device)) = (mpi(), common::selector()) else { return };
    let _turn = turn();
    let p = Place::new("gpu");
    let common = format!("{TINY} --lanes 2 --steps 4 --eval-every 2 --device {device} --share-device");
    let tl = common::command(env!("CARGO_BIN_EXE_tl"));
    let on = |mut c: Command, run: &str| {
        c.arg(tl.get_program()).args(tl.get_args());
        settle(&mut c, &p.begin(run, &common));
        check(c, Some(0), "saved 4\n", "");
    };
    on(Command::new("env"), "alone");
    for (run, family) in [("two", "openmpi"), ("too", "mpich")] {
        let mut c = launcher(&mpi, family);
        c.args(["-n", "2"]);
        on(c, run);
        p.assert_same("alone", run);
    }
}

#[test]
fn a_run_goes_on_with_another_number_of_ranks() {
    let Some(mpi) = mpi() else { return };
    let _turn = turn();
    let p = Place::new("restart");
    let common = format!("{TINY} --lanes 4 --steps 18 --eval-every 9 --save-every 6");
    check(alone(&p.begin("alone", &common)), Some(0), "saved 18\n", "");
    check(ranks(&mpi, "openmpi", 2, &p.begin("run", &format!("{common} --stop-after 6 --shard-states"))), Some(0), "saved 6\n", "");
    check(ranks(&mpi, "mpich", 4, &p.go_on("run", "--stop-after 6 --shard-states")), Some(0), "saved 12\n", "from step 6");
    check(alone(&p.go_on("run", "")), Some(0), "saved 18\n", "from step 12");
    p.assert_same("alone", "run");
    check(alone(&p.go_on("run", "--lanes 2 --steps 20")), Some(2), "", "lanes was 4 and is 2");
}

#[test]
fn a_killed_rank_ends_the_job_and_loses_nothing() {
    let Some(mpi) = mpi() else { return };
    let _turn = turn();
    let p = Place::new("kill");
    let common = format!("{TINY} --lanes 2 --steps 40 --save-every 2 --eval-every 20");
    check(alone(&p.begin("alone", &common)), Some(0), "saved 40\n", "");
    std::fs::create_dir(p.path("run")).unwrap();
    let mut acknowledged = 0u64;
    // Rank 0 and the other one; what is hit, a step or a save, is left to the moment.
    for (n, (family, victim)) in [("openmpi", 1), ("mpich", 0), ("openmpi", 0), ("mpich", 1)].into_iter().enumerate() {
        let mut child = ranks(&mpi, family, 2, &p.begin("run", &format!("{common} --resume"))).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first: u64 = lines.next().expect("it saves").unwrap().strip_prefix("saved ").unwrap().parse().unwrap();
        std::thread::sleep(Duration::from_millis(7 * n as u64));
        let found = pids(&p.path("run"));
        let Some((_, pid)) = found.iter().find(|(rank, _)| *rank == victim) else { panic!("{found:?}") };
        signal(*pid, "KILL");
        let last = lines.map_while(Result::ok).filter_map(|l| l.strip_prefix("saved ")?.parse().ok()).last();
        let (ended, took) = wait(&mut child, Duration::from_secs(10));
        assert!(ended && !child.wait().unwrap().success(), "{family}: no end after {took:?}");
        assert!(pids(&p.path("run")).is_empty(), "{family}: a rank is left");
        acknowledged = acknowledged.max(last.unwrap_or(first));
        let (step, _) = check(alone(&format!("ckpt verify {}", p.path("run").display())), Some(0), "", "");
        let step: u64 = step.trim().parse().unwrap();
        assert!((acknowledged..=acknowledged + 2).contains(&step), "{step} can be resumed, {acknowledged} was acknowledged");
        acknowledged = step;
        if step >= 40 {
            break;
        }
    }
    check(ranks(&mpi, "openmpi", 2, &p.go_on("run", "")), Some(0), "", "");
    p.assert_same("alone", "run");
}

#[test]
fn what_one_rank_is_told_all_do() {
    let Some(mpi) = mpi() else { return };
    let _turn = turn();
    let p = Place::new("told");
    let endless = format!("{TINY} --lanes 2 --steps 100000 --save-every 3 --eval-every 0");
    for (n, (family, victim, name, code)) in
        [("openmpi", 1, "USR1", 0), ("mpich", 1, "INT", 130), ("mpich", 0, "USR1", 0)].into_iter().enumerate()
    {
        let run = format!("run{n}");
        let mut child = ranks(&mpi, family, 2, &p.begin(&run, &endless)).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        lines.next().expect("it saves").unwrap();
        let (_, pid) = pids(&p.path(&run))[victim];
        signal(pid, name);
        let last: u64 = lines.map_while(Result::ok).last().expect("it saves when it ends").strip_prefix("saved ").unwrap().parse().unwrap();
        let (ended, took) = wait(&mut child, Duration::from_secs(10));
        assert!(ended, "{family} {name}: no end after {took:?}");
        assert_eq!(child.wait().unwrap().code(), Some(code), "{family} {name}");
        check(alone(&p.begin(&format!("alone{n}"), &format!("{endless} --stop-after {last}"))), Some(0), &format!("saved {last}\n"), "");
        p.assert_same(&format!("alone{n}"), &run);
    }
}

/// A launcher's two ranks with different settings.
fn two(mpi: &Path, family: &str, first: &str, second: &str) -> Command {
    let mut c = launcher(mpi, family);
    let tl = env!("CARGO_BIN_EXE_tl");
    let line = format!("-n 1 env {first} : -n 1 env {second}").replace(" tl ", &format!(" {tl} "));
    settle(&mut c, &line);
    c
}

#[test]
fn an_error_of_one_rank_is_the_end_of_all() {
    let Some(mpi) = mpi() else { return };
    let _turn = turn();
    let p = Place::new("errors");
    let common = format!("{TINY} --lanes 2 --steps 4 --eval-every 0");
    // More ranks than lanes; both say the same, rank 0 is enough.
    check(ranks(&mpi, "openmpi", 2, &p.begin("run", TINY)), None, "", "1 lanes on 2 rank(s)");
    assert!(!p.path("run").exists(), "a folder of a run that never began");
    // Another folder than rank 0's, and the other way round.
    let (here, there) = (p.begin("run", &common), p.begin("nowhere", &common));
    for family in ["openmpi", "mpich"] {
        check(two(&mpi, family, &format!("tl {here}"), &format!("tl {there}")), None, "", "rank 1 of 2: ");
        check(two(&mpi, family, &format!("tl {here} --keep 0"), &format!("tl {here}")), None, "", "--keep: 0 is not a size");
    }
    // Too little memory for anything on one rank.
    let (_, err) =
        check(two(&mpi, "openmpi", &format!("tl {here}"), &format!("TL_MEM_LIMIT=16K tl {here}")), None, "", "rank 1 of 2: out of memory");
    assert!(!err.contains("rank 0 of 2: "), "the rank that failed says why: {err}");
}

#[test]
fn out_of_memory_on_one_rank_means_smaller_parts_on_all() {
    let Some(mpi) = mpi() else { return };
    let _turn = turn();
    let p = Place::new("memory");
    let common = "--layers 2 --heads 2 --width 32 --context 64 --batch 32 --steps 4 --warmup 2 --log-every 1 --eval-every 0 --lanes 2";
    let (out, _) = check(alone(&p.begin("whole", &format!("{common} --json"))), Some(0), "", "");
    let peak: u64 = out.split("\"peak_memory_bytes\":").nth(1).unwrap().split([',', '}']).next().unwrap().parse().unwrap();
    let less = format!("TL_MEM_LIMIT={}", peak * 2 / 3);
    let mut small = alone(&p.begin("small", common));
    small.env("TL_MEM_LIMIT", (peak * 2 / 3).to_string());
    check(small, Some(0), "saved 4\n", "out of memory: a batch is now computed in 2 parts");
    let run = p.begin("run", common);
    check(two(&mpi, "openmpi", &format!("tl {run}"), &format!("{less} tl {run}")), Some(0), "saved 4\n", "now computed in 2 parts");
    p.assert_same("small", "run");
}

#[test]
fn a_library_that_is_not_the_launchers_is_named() {
    let Some(mpi) = mpi() else { return };
    let _turn = turn();
    let p = Place::new("family");
    let run = p.begin("run", &format!("{TINY} --lanes 2 --steps 2"));
    let with = |library: &str| {
        let mut c = ranks(&mpi, "openmpi", 2, &run);
        c.env("TL_MPI", library);
        c
    };
    check(with("libmpich.so.12"), None, "", "sees 1 rank(s), the launcher started 2: it is not the launcher's library");
    check(with("libnowhere.so"), None, "", "one of 2 ranks by Open MPI's launcher, but its MPI library is not found");
    check(with("libc.so.6"), None, "", "libc.so.6 is no MPI library that this program knows");
}

#[test]
fn without_a_launcher_nothing_is_loaded() {
    let p = Place::new("maps");
    let mut child = alone(&p.begin("run", &format!("{TINY} --lanes 2 --steps 100000 --save-every 2 --eval-every 0"))).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "saved 2");
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap();
    let _ = child.kill();
    let _ = child.wait();
    assert!(maps.contains("libc.so"), "{maps}");
    assert!(!maps.lines().any(|l| l.contains("mpi") && l.contains(".so")), "{maps}");
}
