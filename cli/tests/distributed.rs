//! `tl train` on several ranks: the same bits on any number of them, restarts on another number, and ends in which no rank waits for one that is gone.
#![cfg(target_os = "linux")]

#[path = "../../tests/common/mod.rs"]
mod common;
mod ranks;

use ranks::{
    Place, TINY, alone, check, connections, mpi, pids, ranks, settle, shared_launcher, shared_ranks, signal, stop_leaving, turn, two,
    until, wait,
};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

#[test]
fn the_number_of_ranks_changes_no_bit() {
    let Some(mpi) = mpi() else { return };
    let _turn = turn();
    let p = Place::new("bits");
    let common = format!("{TINY} --lanes 4 --steps 8 --eval-every 4 --accumulate 2");
    check(alone(&p.begin("alone", &common)), Some(0), "saved 4\nsaved 8\n", "held-out loss");
    for (n, (family, size, more)) in [
        ("openmpi", 1, ""),
        ("openmpi", 2, "--stats"),
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
            let times = "exchange: ms a step of rank 0, side by side: download wait ";
            assert_eq!(err.contains(times), more == "--stats", "{err}");
        }
        p.assert_same("alone", &run);
    }
}

/// Half precision, with a learning rate that makes gradients overflow: all ranks skip those steps.
fn half(optimizer: &str) -> String {
    let wild = TINY.replace("--warmup 2 --lr 1e-2", "--warmup 0 --lr 16");
    format!("{wild} --lanes 4 --accumulate 2 --steps 6 --dtype f16 --eval-every 3 --optimizer {optimizer}")
}

#[test]
fn the_number_of_ranks_changes_no_bit_where_steps_overflow() {
    let Some(mpi) = mpi() else { return };
    let _turn = turn();
    let p = Place::new("half");
    check(alone(&p.begin("half", &half("muon"))), Some(0), "saved 6\n", "");
    assert!(p.skipped("half", 6) > 0.0, "no step overflowed: the test shows less than it says");
    let runs = [("openmpi", 1, ""), ("openmpi", 2, ""), ("openmpi", 4, ""), ("mpich", 2, "--shard-states"), ("mpich", 4, "--shard-states")];
    for (n, (family, size, more)) in runs.into_iter().enumerate() {
        let run = format!("half{n}");
        check(ranks(&mpi, family, size, &p.begin(&run, &format!("{} {more}", half("muon")))), Some(0), "saved 6\n", "");
        p.assert_same("half", &run);
    }
}

/// The same on the GPU under test, if there is one; ranks share it.
#[test]
fn ranks_on_a_gpu_change_no_bit() {
    let (Some(mpi), Some(device)) = (mpi(), common::selector()) else { return };
    let _turn = turn();
    let p = Place::new("gpu");
    let tl = common::command(env!("CARGO_BIN_EXE_tl"));
    let full = format!("{TINY} --lanes 4 --accumulate 2 --steps 4 --eval-every 2");
    const SHARDED: &str = "--shard-states";
    for (name, settings, last, runs) in [
        ("f32", full, 4, &[("openmpi", 1, ""), ("openmpi", 2, ""), ("mpich", 2, SHARDED), ("openmpi", 4, "")][..]),
        ("f16", half("muon"), 6, &[("openmpi", 2, ""), ("mpich", 2, SHARDED), ("mpich", 4, SHARDED)]),
        ("f16-adamw", half("adamw"), 6, &[("mpich", 2, SHARDED), ("openmpi", 4, SHARDED)]),
    ] {
        let on = |mut c: Command, run: &str, more: &str| {
            c.arg(tl.get_program()).args(tl.get_args());
            settle(&mut c, &p.begin(run, &format!("{settings} --device {device} --share-device {more}")));
            check(c, Some(0), &format!("saved {last}\n"), "");
        };
        on(Command::new("env"), name, "");
        assert!(name == "f32" || p.skipped(name, last) > 0.0, "no step overflowed: the test shows less than it says");
        for (family, size, more) in runs {
            let mut c = shared_launcher(&mpi, family);
            c.args(["-n", &size.to_string()]);
            let run = format!("{name}-{family}{size}");
            on(c, &run, more);
            p.assert_same(name, &run);
        }
    }
}

/// Shared memory that two processes have in common, by the names of what is mapped.
fn shared(a: i32, b: i32) -> Vec<String> {
    let maps = |pid: i32| -> Vec<String> {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let shared = maps.lines().filter(|l| l.split_whitespace().nth(1).is_some_and(|mode| mode.starts_with("rw") && mode.ends_with('s')));
        shared
            .filter_map(|l| l.split_whitespace().nth(5))
            .filter(|name| *name != "/dev/zero" && !name.contains("pmix"))
            .map(String::from)
            .collect()
    };
    let other = maps(b);
    maps(a).into_iter().filter(|name| other.contains(name)).collect()
}

#[test]
fn ranks_talk_by_tcp_and_by_shared_memory() {
    let Some(mpi) = mpi() else { return };
    let _turn = turn();
    let p = Place::new("wires");
    let common = format!("{TINY} --lanes 4 --steps 100000 --save-every 3 --eval-every 0");
    check(alone(&p.begin("alone", &format!("{common} --stop-after 3"))), Some(0), "saved 3\n", "");
    let over_tcp = [("MPIR_CVAR_NOLOCAL", "1"), ("TL_SHARED_WINDOW", "0")];
    let ucx = [("UCX_TLS", "tcp,self"), ("UCX_NET_DEVICES", "lo")];
    let libfabric = [("MPIR_CVAR_CH4_NETMOD", "ofi"), ("FI_PROVIDER", "tcp"), ("FI_TCP_IFACE", "lo")];
    let both = [true, false];
    for (family, size, wires) in [
        ("openmpi", 1, &both[..]),
        ("openmpi", 2, &both),
        ("openmpi", 4, &both),
        ("mpich", 2, &both),
        ("mpich5", 2, &[true]),
        ("mpich5", 4, &[true]),
    ] {
        for &tcp in wires {
            let run = format!("{family}{size}{tcp}");
            let start = |more: &str| {
                // MPICH 4.0 over UCX and TCP may not return from its end.
                let line = p.begin(&run, &format!("{common} {more} --rank-timeout 10"));
                let mut c = if tcp { ranks(&mpi, family, size, &line) } else { shared_ranks(&mpi, family, size, &line) };
                match family {
                    "mpich" if tcp => drop(c.envs(over_tcp).envs(ucx)),
                    "mpich5" => drop(c.envs(over_tcp).envs(libfabric)),
                    _ => {}
                }
                c
            };
            if size == 1 {
                check(start("--stop-after 3"), Some(0), "saved 3\n", "");
                p.assert_same("alone", &run);
                continue;
            }
            let mut child = start("").spawn().unwrap();
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            assert_eq!(lines.next().unwrap().unwrap(), "saved 3");
            let found = pids(&p.path(&run));
            assert_eq!(found.len(), size);
            let common = shared(found[0].1, found[1].1);
            let to_others: Vec<usize> = found.iter().map(|own| joined(own.1, &found)).collect();
            signal(found[0].1, "KILL");
            let (ended, took) = wait(&mut child, Duration::from_secs(10));
            assert!(ended, "{family}: no end after {took:?}");
            assert_eq!(common.is_empty(), tcp, "{family}, TCP alone {tcp}: {common:?}");
            assert_eq!(to_others.iter().all(|n| *n > 0), tcp, "{family}, connections by TCP to other ranks: {to_others:?}");
            std::fs::remove_dir_all(p.path(&run)).unwrap();
            check(start("--stop-after 3"), Some(0), "saved 3\n", "");
            p.assert_same("alone", &run);
        }
    }
}

/// With how many of these ranks this process has a connection by TCP.
fn joined(pid: i32, all: &[(usize, i32)]) -> usize {
    let own = connections(pid);
    let others = all.iter().filter(|other| other.1 != pid);
    others.filter(|other| connections(other.1).iter().any(|(here, there)| own.contains(&(there.clone(), here.clone())))).count()
}

/// Ranks of one machine share memory, unless one of them is told not to.
#[test]
fn shared_memory_and_messages_make_the_same_bits() {
    let Some(mpi) = mpi() else { return };
    let _turn = turn();
    let p = Place::new("window");
    let common = format!("{TINY} --lanes 4 --steps 6 --eval-every 3 --accumulate 2 --stats");
    check(alone(&p.begin("alone", &common)), Some(0), "saved 3\nsaved 6\n", "");
    for (family, size) in [("openmpi", 2), ("openmpi", 4), ("mpich", 2), ("mpich", 4)] {
        for (by, switch) in [("shared memory", "1"), ("messages", "0")] {
            let run = format!("{family}{size}{switch}");
            let mut c = shared_ranks(&mpi, family, size, &p.begin(&run, &common));
            c.env("TL_SHARED_WINDOW", switch);
            check(c, Some(0), "saved 3\nsaved 6\n", &format!("; by {by}\n"));
            p.assert_same("alone", &run);
        }
    }
    let line = format!("tl {}", p.begin("one", &common));
    check(two(&mpi, "mpich", &line, &format!("TL_SHARED_WINDOW=0 {line}")), Some(0), "saved 6\n", "; by messages\n");
    p.assert_same("alone", "one");
}

/// The libraries that `scripts/mpi.sh` takes from wheels: Open MPI 5, MPICH 5 and its library with the interface of the MPI 5 standard.
#[test]
fn newer_libraries_and_the_standards_interface_make_the_same_bits() {
    let Some(mpi) = mpi().filter(|mpi| mpi.join("mpirun-openmpi5").exists()) else {
        assert!(std::env::var("TL_REQUIRE_MPI").map_or(true, |v| v != "1"), "no Open MPI 5 and MPICH 5: run scripts/mpi.sh");
        return;
    };
    let _turn = turn();
    let p = Place::new("newer");
    let common = format!("{TINY} --lanes 4 --steps 4 --eval-every 0");
    check(alone(&p.begin("alone", &common)), Some(0), "saved 4\n", "");
    // The last one is named otherwise than its interface: which one it is must not be judged by a file's name.
    // It is beside its own libraries, which it looks for there.
    let odd = mpi.join("mpich5/lib/libmpi.so.77");
    let _ = std::os::unix::fs::symlink("libmpi_abi.so.1", &odd);
    let odd = odd.display().to_string();
    for (n, (family, library, name)) in [
        ("openmpi5", "", "Open MPI v5"),
        ("mpich5", "", "MPICH Version: 5"),
        ("mpich5", "libmpi.so.12", "MPICH Version: 5"),
        ("mpich5", &odd, "MPICH Version: 5"),
    ]
    .into_iter()
    .enumerate()
    {
        let run = format!("run{n}");
        let more = if n % 2 == 0 { "--shard-states" } else { "" };
        let mut c = ranks(&mpi, family, 2, &p.begin(&run, &format!("{common} {more}")));
        if !library.is_empty() {
            c.env("TL_MPI", library);
        }
        let (_, err) = check(c, Some(0), "saved 4\n", &format!("one of 2 ranks by {name}"));
        assert!(!err.contains("no MPI"), "{err}");
        p.assert_same("alone", &run);
    }
}

#[test]
fn one_lane_is_the_run_without_lanes() {
    let Some(mpi) = mpi() else { return };
    let _turn = turn();
    let p = Place::new("lane");
    let common = format!("{TINY} --steps 6 --eval-every 3 --accumulate 2 --stats");
    // Plans made and found, and the size of a step's: the launcher changes none.
    let plans = |(_, err): (String, String)| -> String {
        let line = err.lines().find(|l| l.starts_with("plans: ")).unwrap_or_else(|| panic!("{err}"));
        line.split(" dispatches").next().unwrap().to_string()
    };
    let expected = plans(check(alone(&p.begin("plain", &common)), Some(0), "saved 6\n", ""));
    let one = plans(check(alone(&p.begin("one", &format!("{common} --lanes 1"))), Some(0), "saved 6\n", ""));
    assert_eq!(one, expected);
    p.assert_same("plain", "one");
    for family in ["openmpi", "mpich"] {
        let launched = plans(check(ranks(&mpi, family, 1, &p.begin(family, &format!("{common} --lanes 1"))), Some(0), "saved 6\n", ""));
        assert_eq!(launched, expected, "{family}");
        p.assert_same("plain", family);
    }
    let two = plans(check(alone(&p.begin("two", &format!("{common} --lanes 2"))), Some(0), "saved 6\n", ""));
    assert_ne!(two, expected, "the counts show nothing");
    // Evaluations, by what one step more adds.
    let evaluations = |run: &str, lanes: usize, family: Option<&str>| {
        let after = |steps: u64| -> u64 {
            let run = format!("{run}{steps}");
            let settings = TINY.replace("--log-every 1", "--log-every 100");
            let line = p.begin(&run, &format!("{settings} --steps {steps} --eval-every 0 --stats --lanes {lanes}"));
            let c = family.map_or_else(|| alone(&line), |family| ranks(&mpi, family, 1, &line));
            let line = plans(check(c, Some(0), &format!("saved {steps}\n"), ""));
            let counts: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            counts[0] + counts[1]
        };
        after(6) - after(5)
    };
    assert_eq!(evaluations("evaluations", 1, None), 1, "one plan a step");
    assert_eq!(evaluations("launched", 1, Some("mpich")), 1, "one plan a step");
    assert!(evaluations("lanes", 2, None) > 1, "the counts show nothing");
}

#[test]
fn a_rank_without_time_or_without_an_answer_ends_all() {
    let Some(mpi) = mpi() else { return };
    let _turn = turn();
    let p = Place::new("time");
    let endless = format!("{TINY} --lanes 2 --steps 100000 --eval-every 0");
    for (family, victim) in [("openmpi", 1), ("mpich", 0)] {
        // The time of one rank is over: all save one step and end well.
        let run = format!("time-{family}");
        let mut lines = [p.begin(&run, &endless), p.begin(&run, &endless)].map(|l| format!("tl {l}"));
        lines[victim] += " --max-seconds 1";
        let (out, _) = check(two(&mpi, family, &lines[0], &lines[1]), Some(0), "saved ", "");
        assert_eq!(out.lines().count(), 1, "{out}");
        let step = out.trim().strip_prefix("saved ").unwrap().to_string();
        check(alone(&p.begin("alone", &format!("{endless} --stop-after {step}"))), Some(0), &format!("saved {step}\n"), "");
        p.assert_same("alone", &run);
        std::fs::remove_dir_all(p.path("alone")).unwrap();
        // A rank that hangs.
        let run = format!("hang-{family}");
        let line = p.begin(&run, &format!("{endless} --save-every 3 --rank-timeout 3"));
        let mut child = ranks(&mpi, family, 2, &line).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "saved 3");
        let (_, pid) = pids(&p.path(&run))[victim];
        signal(pid, "STOP");
        let (ended, took) = wait(&mut child, Duration::from_secs(15));
        if !ended {
            signal(pid, "KILL");
        }
        assert!(ended, "{family}: no end {took:?} after a rank was stopped");
        let mut err = String::new();
        std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut err).unwrap();
        assert!(err.contains(&format!("rank {}: no answer to ", 1 - victim)) && took > Duration::from_secs(2), "{took:?}: {err}");
        let (gone, _) = until(Duration::from_secs(10), || pids(&p.path(&run)).is_empty());
        assert!(gone, "{family}: a rank is left");
    }
}

/// Two ranks at the end of a run, of which rank 1 is stopped where it should leave MPI.
fn that_cannot_leave(mpi: &Path, family: &str, p: &Place, run: &str, settings: &str) -> (Child, i32) {
    for _ in 0..5 {
        let mut child = ranks(mpi, family, 2, &p.begin(run, settings)).spawn().unwrap();
        let (both, _) = until(Duration::from_secs(20), || pids(&p.path(run)).len() == 2 || child.try_wait().unwrap().is_some());
        let found = pids(&p.path(run));
        if both && found.len() == 2 && stop_leaving(found[1].1) {
            return (child, found[0].1);
        }
        check_end(child, Some(0));
        std::fs::remove_dir_all(p.path(run)).unwrap();
    }
    panic!("{family}: rank 1 was gone each time before it could be stopped");
}

/// The job ends in time, with this code (`None`: any but 0). Gives what it wrote to stderr, and how long that took.
#[track_caller]
fn check_end(mut child: Child, code: Option<i32>) -> (String, Duration) {
    let (ended, took) = wait(&mut child, Duration::from_secs(15));
    let mut err = Vec::new();
    child.stderr.take().unwrap().read_to_end(&mut err).unwrap();
    let (err, status) = (String::from_utf8_lossy(&err).into_owned(), child.wait().unwrap());
    assert!(ended, "no end after {took:?}: {err}");
    assert!(code.map_or(!status.success(), |c| status.code() == Some(c)), "{status}: {err}");
    (err, took)
}

/// What is saved is saved, whether or not the library returns from its end.
#[test]
fn a_rank_that_cannot_leave_ends_the_job() {
    let Some(mpi) = mpi() else { return };
    let _turn = turn();
    let p = Place::new("leave");
    let common = format!("{TINY} --lanes 4 --steps 4 --eval-every 0");
    check(alone(&p.begin("alone", &common)), Some(0), "saved 4\n", "");
    for family in ["openmpi", "mpich"] {
        let (child, _) = that_cannot_leave(&mpi, family, &p, &format!("time-{family}"), &format!("{common} --rank-timeout 3"));
        let (err, took) = check_end(child, Some(0));
        let text = "tl: rank 0: nothing is left to do, but MPI_Finalize has not returned for 3 s; the job ends without it\n";
        assert!(err.matches(text).count() == 1 && err.matches("MPI_Finalize").count() == 1, "{family}: {err}");
        assert!(took > Duration::from_secs(2), "{family}: {took:?}");
        p.assert_same("alone", &format!("time-{family}"));
        // A signal to a rank that waits there.
        let (child, first) = that_cannot_leave(&mpi, family, &p, &format!("term-{family}"), &common);
        std::thread::sleep(Duration::from_millis(300));
        signal(first, "TERM");
        let (_, took) = check_end(child, None);
        assert!(took < Duration::from_secs(10), "{family}: {took:?}");
        p.assert_same("alone", &format!("term-{family}"));
        for run in [format!("time-{family}"), format!("term-{family}")] {
            let (gone, _) = until(Duration::from_secs(10), || pids(&p.path(&run)).is_empty());
            assert!(gone, "{family}: a rank is left");
        }
    }
    // Four ranks of MPICH 4.0 over UCX and TCP often wait there for each other.
    for n in 0..2 {
        let run = format!("ucx{n}");
        let mut c = ranks(&mpi, "mpich", 4, &p.begin(&run, &format!("{common} --rank-timeout 4")));
        c.envs([("MPIR_CVAR_NOLOCAL", "1"), ("UCX_TLS", "tcp,self"), ("UCX_NET_DEVICES", "lo"), ("TL_SHARED_WINDOW", "0")]);
        check(c, Some(0), "saved 4\n", "");
        p.assert_same("alone", &run);
    }
}

#[test]
fn ranks_that_compute_otherwise_or_are_bound_are_noted() {
    let Some(mpi) = mpi() else { return };
    let _turn = turn();
    let p = Place::new("notes");
    let common = format!("{TINY} --lanes 2 --steps 1 --eval-every 0");
    let line = |run: &str| p.begin(run, &common);
    let (_, err) = check(ranks(&mpi, "openmpi", 2, &line("plain")), Some(0), "", "");
    assert!(!err.contains("computes with") && !err.contains("processors"), "{err}");
    let mut differ = two(&mpi, "openmpi", &format!("tl {}", line("plainly")), &format!("TL_CPU=plain tl {}", line("plainly")));
    // Whether their updates differ is another question, which the save answers.
    let err = String::from_utf8(differ.output().unwrap().stderr).unwrap();
    assert!(err.contains("rank 1 computes with another device or driver than rank 0: results depend on the number of ranks"), "{err}");
    let processors = std::thread::available_parallelism().unwrap().get();
    if processors > 1 {
        let bound = format!("TL_NUM_THREADS=2 taskset -c 0 tl {}", line("bound"));
        let bound = two(&mpi, "mpich", &format!("tl {}", line("bound")), &bound);
        check(bound, Some(0), "saved 1\n", "rank 1 may use 1 of its machine's ");
    }
}

#[test]
fn a_run_goes_on_with_another_number_of_ranks() {
    let Some(mpi) = mpi() else { return };
    let _turn = turn();
    let p = Place::new("restart");
    let common = format!("{TINY} --lanes 4 --steps 60 --eval-every 30 --save-every 20");
    check(alone(&p.begin("alone", &common)), Some(0), "saved 60\n", "");
    check(ranks(&mpi, "openmpi", 2, &p.begin("run", &format!("{common} --stop-after 20 --shard-states"))), Some(0), "saved 20\n", "");
    check(ranks(&mpi, "mpich", 4, &p.go_on("run", "--stop-after 20 --shard-states")), Some(0), "saved 40\n", "from step 20");
    check(alone(&p.go_on("run", "")), Some(0), "saved 60\n", "from step 40");
    p.assert_same("alone", "run");
    check(alone(&p.go_on("run", "--lanes 2 --steps 80")), Some(2), "", "lanes was 4 and is 2");
}

/// Kills random ranks at random times, during steps and saves; after each kill the job ends, and the last `saved K` can be resumed.
fn kill_sweep(name: &str, kills: usize) {
    let Some(mpi) = mpi() else { return };
    let _turn = turn();
    let p = Place::new(name);
    // A save with every step: about half of the kills hit one.
    let common = format!("{TINY} --lanes 2 --steps 100000 --save-every 1 --eval-every 0 --resume");
    std::fs::create_dir(p.path("run")).unwrap();
    let (mut acknowledged, mut random, mut longest) = (0u64, 0x9E37_79B9u64, Duration::ZERO);
    let mut draw = |n: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % n
    };
    for n in 0..kills {
        let family = ["openmpi", "mpich"][n % 2];
        // MPICH's ranks share memory each time, Open MPI's in every other.
        let start = if n % 4 < 2 { shared_ranks } else { ranks };
        let mut child = start(&mpi, family, 2, &p.begin("run", &common)).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let number = |line: String| line.strip_prefix("saved ").and_then(|k| k.parse::<u64>().ok());
        let first = number(lines.next().expect("it saves").unwrap()).unwrap();
        std::thread::sleep(Duration::from_millis(draw(120)));
        let (found, victim) = (pids(&p.path("run")), draw(2) as usize);
        let Some((_, pid)) = found.iter().find(|(rank, _)| *rank == victim) else { panic!("{found:?}") };
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        assert_eq!(maps.contains("/memfd:tl-ranks-"), family == "mpich" || n % 4 < 2, "{family}: {maps}");
        let killed = Instant::now();
        signal(*pid, "KILL");
        let last = lines.map_while(Result::ok).filter_map(number).last();
        let (ended, _) = wait(&mut child, Duration::from_secs(10));
        let took = killed.elapsed();
        longest = longest.max(took);
        assert!(ended && took < Duration::from_secs(10) && !child.wait().unwrap().success(), "{family}: no end after {took:?}");
        let (gone, _) = until(Duration::from_secs(10), || pids(&p.path("run")).is_empty());
        assert!(gone, "{family}: a rank is left");
        acknowledged = acknowledged.max(last.unwrap_or(first));
        let (step, _) = check(alone(&format!("ckpt verify {}", p.path("run").display())), Some(0), "", "");
        let step: u64 = step.trim().parse().unwrap();
        assert!((acknowledged..=acknowledged + 1).contains(&step), "{step} can be resumed, {acknowledged} was acknowledged");
        acknowledged = step;
    }
    eprintln!("{kills} kills, {acknowledged} steps: the longest end took {:.2} s", longest.as_secs_f64());
    check(ranks(&mpi, "openmpi", 2, &p.go_on("run", "--stop-after 2")), Some(0), &format!("saved {}\n", acknowledged + 2), "");
    let whole = common.replace("--save-every 1 ", "").replace(" --resume", "");
    check(alone(&p.begin("alone", &format!("{whole} --stop-after {}", acknowledged + 2))), Some(0), "", "");
    p.assert_same("alone", "run");
}

#[test]
fn a_killed_rank_ends_the_job_and_loses_nothing() {
    kill_sweep("kill", 4);
}

#[test]
#[ignore = "takes minutes"]
fn fifty_killed_ranks_lose_nothing() {
    kill_sweep("kills", 50);
}

/// Signals to random ranks, errors, time that is over and missing memory of one rank: all end or go on alike, and in time.
fn answer_sweep(name: &str, runs: usize) {
    let Some(mpi) = mpi() else { return };
    let _turn = turn();
    let p = Place::new(name);
    let endless = format!("{TINY} --lanes 2 --steps 100000 --save-every 3 --eval-every 0");
    let short = format!("{TINY} --lanes 2 --steps 4 --eval-every 0");
    let (in_parts, limit) = run_for_two_parts(&p);
    let (mut signals, mut after_signal, mut whole) = (0, Duration::ZERO, Duration::ZERO);
    for n in 0..runs {
        let (family, victim, run) = (["openmpi", "mpich"][n % 2], n / 2 % 2, format!("run{n}"));
        let (begin, other) = (p.begin(&run, &short), p.begin("nowhere", &short));
        // The victim's line, and the other's.
        let both = |own: String, other: String| if victim == 0 { two(&mpi, family, &own, &other) } else { two(&mpi, family, &other, &own) };
        let began = Instant::now();
        match n % 7 {
            // An error of one rank, and one that has no memory for anything.
            3 => drop(check(two(&mpi, family, &format!("tl {begin}"), &format!("tl {other}")), None, "", "rank 1 of 2: ")),
            4 => drop(check(both(format!("TL_MEM_LIMIT=16K tl {begin}"), format!("tl {begin}")), None, "", "out of memory")),
            // One whose time is over.
            5 => {
                let line = format!("tl {}", p.begin(&run, &endless.replace("--save-every 3", "--save-every 0")));
                let (out, _) = check(both(format!("{line} --max-seconds 0.5"), line), Some(0), "saved ", "");
                assert_eq!(out.lines().count(), 1, "{family}: {out}");
            }
            // One that has too little memory for a whole batch.
            6 => {
                let line = format!("tl {}", p.begin(&run, in_parts));
                check(both(format!("TL_MEM_LIMIT={limit} {line}"), line), Some(0), "saved 4\n", "now computed in 2 parts");
                p.assert_same("small", &run);
            }
            kind => {
                let (signal_name, code) = [("USR1", 0), ("INT", 130), ("TERM", 130)][kind];
                let mut child = ranks(&mpi, family, 2, &p.begin(&run, &endless)).spawn().unwrap();
                let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
                lines.next().expect("it saves").unwrap();
                std::thread::sleep(Duration::from_millis(13 * n as u64 % 97));
                let (_, pid) = pids(&p.path(&run))[victim];
                let sent = Instant::now();
                signal(pid, signal_name);
                let last = lines.map_while(Result::ok).last().expect("it saves when it ends");
                let last: u64 = last.strip_prefix("saved ").unwrap().parse().unwrap();
                let (ended, took) = wait(&mut child, Duration::from_secs(10));
                assert!(ended, "{family} {signal_name}: no end after {took:?}");
                assert_eq!(child.wait().unwrap().code(), Some(code), "{family} {signal_name}");
                (signals, after_signal) = (signals + 1, after_signal.max(sent.elapsed()));
                if n < 3 {
                    let alone_run = format!("alone{n}");
                    check(alone(&p.begin(&alone_run, &format!("{endless} --stop-after {last}"))), Some(0), &format!("saved {last}\n"), "");
                    p.assert_same(&alone_run, &run);
                }
            }
        }
        if n % 7 > 2 {
            whole = whole.max(began.elapsed());
        }
        let (gone, _) = until(Duration::from_secs(10), || pids(&p.path(&run)).is_empty());
        assert!(gone, "{family}: a rank is left");
    }
    let [after_signal, whole] = [after_signal, whole].map(|d| d.as_secs_f64());
    eprintln!(
        "{runs} runs: the longest end took {after_signal:.2} s after one of {signals} signals; the longest of the others {whole:.2} s, start included"
    );
}

#[test]
fn what_one_rank_meets_all_answer() {
    answer_sweep("answers", 7);
}

#[test]
#[ignore = "takes minutes"]
fn a_hundred_runs_end_alike() {
    answer_sweep("hundred", 100);
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

/// Two ranks whose folders are copies of each other, but for rank 1's text or checkpoint.
#[test]
fn a_rank_with_other_data_or_a_flipped_bit_is_named() {
    let Some(mpi) = mpi() else { return };
    let _turn = turn();
    let p = Place::new("data");
    let common = format!("{TINY} --lanes 2 --steps 100000 --save-every 3 --eval-every 0");
    check(alone(&p.begin("first", &format!("{common} --stop-after 4"))), Some(0), "saved 4\n", "");
    for name in ["bit0", "bit1", "bit2", "bit3", "token", "held-out", "short", "cut"] {
        p.copy("first", name);
    }
    // One bit of one value, among those that a step computes with. Words of 64 bits say what differs, and MPICH 4.0 misjudges those whose first bit is set.
    for n in 0..4 {
        p.change(&format!("bit{n}/checkpoints/step-00000004/optimizer.safetensors"), |all| {
            let header = u64::from_le_bytes(all[..8].try_into().unwrap()) as usize;
            let names: serde_json::Value = serde_json::from_slice(&all[8..8 + header]).unwrap();
            let start = names["param.h.0.mlp.c_fc.bias"]["data_offsets"][0].as_u64().unwrap() as usize;
            all[8 + header + start + 4 * n + 2] ^= 1;
        });
    }
    // A header of 1,024 bytes, then tokens of two. The last tenth of the text is held out.
    const HEADER: usize = 1024;
    let other = |token: &mut u8| *token = *token % 20 + 1;
    p.change("token/tokens.bin", |all| other(&mut all[HEADER + 2 * 100]));
    p.change("held-out/tokens.bin", |all| {
        let last = all.len() - 2;
        other(&mut all[last]);
    });
    p.change("short/tokens.bin", |all| all.truncate(HEADER + 7));
    let folders = |family: &str, other: &str, run: &str| {
        p.copy("first", run);
        let [own, other] = [run, other].map(|run| format!("tl {}", p.go_on(run, "")));
        two(&mpi, family, &own, &other)
    };
    for family in ["openmpi", "mpich"] {
        for bit in if family == "mpich" { 0..4 } else { 0..1 } {
            let both = folders(family, &format!("bit{bit}"), &format!("bit{bit}-{family}"));
            let (out, _) = check(both, None, "", "rank 0 of 2: the parameter h.0.mlp.c_fc.bias of rank 1 differs from rank 0's");
            assert_eq!(out, "", "{family}: saved in spite of it");
        }
        for wrong in ["token", "held-out"] {
            let (out, err) =
                check(folders(family, wrong, &format!("{wrong}-{family}")), None, "", "rank 1 reads another text or tokenizer than rank 0");
            assert!(out.is_empty() && !err.contains("rank 1 of 2: "), "{family}: told once: {err}");
        }
        check(folders(family, "short", &format!("short-{family}")), None, "", "rank 1 of 2: tokens: ");
        // A file that is cut short while it is read.
        let run = format!("cut-{family}");
        let mut child = folders(family, "cut", &run).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "saved 6");
        std::fs::File::options().write(true).open(p.path("cut/tokens.bin")).unwrap().set_len(0).unwrap();
        let (_, took) = check_end(child, None);
        assert!(took < Duration::from_secs(10), "{family}: {took:?}");
        std::fs::remove_dir_all(p.path("cut")).unwrap();
        p.copy("first", "cut");
        check(alone(&format!("ckpt verify {}", p.path(&run).display())), Some(0), "", "");
    }
}

/// A run, and the bytes within which it needs two parts: those of a peak and two thirds of them.
fn run_for_two_parts(p: &Place) -> (&'static str, u64) {
    let common = "--layers 2 --heads 2 --width 32 --context 64 --batch 32 --steps 4 --warmup 2 --log-every 1 --eval-every 0 --lanes 2";
    let (out, _) = check(alone(&p.begin("whole", &format!("{common} --json"))), Some(0), "", "");
    let peak: u64 = out.split("\"peak_memory_bytes\":").nth(1).unwrap().split([',', '}']).next().unwrap().parse().unwrap();
    let mut small = alone(&p.begin("small", common));
    small.env("TL_MEM_LIMIT", (peak * 2 / 3).to_string());
    check(small, Some(0), "saved 4\n", "out of memory: a batch is now computed in 2 parts");
    (common, peak * 2 / 3)
}

#[test]
fn out_of_memory_on_one_rank_means_smaller_parts_on_all() {
    let Some(mpi) = mpi() else { return };
    let _turn = turn();
    let p = Place::new("memory");
    let (common, limit) = run_for_two_parts(&p);
    let less = format!("TL_MEM_LIMIT={limit}");
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
    check(with("libc.so.6"), None, "", "libc.so.6 is not a supported MPI library");
    // The other way round. Open MPI looks for its parts where its launcher tells, which this one does not.
    let mut c = ranks(&mpi, "mpich", 2, &run);
    let prefix = mpi.join("usr");
    c.env("TL_MPI", "libmpi.so.40").env("OPAL_PREFIX", &prefix).env("PMIX_INSTALL_PREFIX", prefix);
    let (_, err) = check(c, None, "", "sees 1 rank(s), the launcher started 2: it is not the launcher's library");
    assert!(err.contains("libmpi.so.40 (Open MPI v4"), "{err}");
}

#[test]
fn commands_of_one_process_refuse_a_launcher() {
    let under = |command: &str, ranks: &str| {
        let mut c = alone(command);
        c.env("PMI_RANK", "0").env("PMI_SIZE", ranks);
        c
    };
    let tiny = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tiny/tiny.gguf");
    let text = "a launcher started 2 ranks, and this command runs as one process";
    check(under(&format!("finetune -m {tiny} nowhere.txt -o nowhere"), "2"), Some(2), "", text);
    check(under(&format!("score -m {tiny} text"), "2"), Some(2), "", text);
    check(under("bench run", "2"), Some(2), "", text);
    // What only looks may run anywhere, and so may one rank.
    check(under(&format!("inspect {tiny}"), "2"), Some(0), "", "");
    check(under(&format!("finetune -m {tiny} nowhere.txt -o nowhere"), "1"), Some(1), "", "nowhere.txt");
}

/// The job of `recipes/train.slurm`, with commands that say what Slurm and `tl` would be asked.
#[test]
fn the_slurm_job_is_queued_again_until_it_is_done() {
    let p = Place::new("slurm");
    let command = |name: &str, body: &str| {
        let path = p.path(name);
        std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        assert!(Command::new("chmod").arg("+x").arg(path).status().unwrap().success());
    };
    command("srun", "echo \"train $*\"; exit $ENDS");
    command("tl", "[ -n \"$SAVED\" ] && echo $SAVED");
    command("scontrol", "echo \"asked $*\"");
    let job = |ends: &str, saved: &str, restarts: &str| {
        let mut c = Command::new("bash");
        c.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../recipes/train.slurm"));
        let path = format!("{}:{}", p.path("").display(), std::env::var("PATH").unwrap());
        c.env("PATH", path).env("SCRATCH", p.path("")).env("SLURM_JOB_ID", "7").env("ENDS", ends).env("SAVED", saved);
        let out = c.env("SLURM_RESTART_COUNT", restarts).output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(text.contains("--steps 20000") && text.contains("--resume"), "the run ends where the job looks for its end: {text}");
        (out.status.code().unwrap(), text.contains("asked requeue 7"))
    };
    assert_eq!(job("0", "20000", "0"), (0, false), "done");
    assert_eq!(job("0", "700", "3"), (0, true), "the time is over");
    assert_eq!(job("137", "700", "3"), (0, true), "a rank was killed");
    assert_eq!(job("137", "", "0"), (0, true), "a rank was killed before the first save");
    assert_eq!(job("137", "700", "50"), (1, false), "killed again and again");
    assert_eq!(job("2", "700", "0"), (2, false), "a wrong command line");
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
