//! `tl train` on several ranks: the same bits on any number of them, restarts on another number, and ends in which no rank waits for one that is gone.
#![cfg(target_os = "linux")]

#[path = "../../tests/common/mod.rs"]
mod common;
mod ranks;

use ranks::{Place, TINY, alone, check, launcher, mpi, pids, ranks, settle, signal, turn, two, until, wait};
use std::io::{BufRead, BufReader};
use std::process::Command;
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
        let mut child = ranks(&mpi, family, 2, &p.begin("run", &common)).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let number = |line: String| line.strip_prefix("saved ").and_then(|k| k.parse::<u64>().ok());
        let first = number(lines.next().expect("it saves").unwrap()).unwrap();
        std::thread::sleep(Duration::from_millis(draw(120)));
        let (found, victim) = (pids(&p.path("run")), draw(2) as usize);
        let Some((_, pid)) = found.iter().find(|(rank, _)| *rank == victim) else { panic!("{found:?}") };
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
    eprintln!("{kills} kills, {acknowledged} steps; the longest end took {longest:?}");
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

/// Signals to random ranks, errors and missing memory of one rank: all end alike, and in time.
fn answer_sweep(name: &str, runs: usize) {
    let Some(mpi) = mpi() else { return };
    let _turn = turn();
    let p = Place::new(name);
    let endless = format!("{TINY} --lanes 2 --steps 100000 --save-every 3 --eval-every 0");
    let short = format!("{TINY} --lanes 2 --steps 4 --eval-every 0");
    for n in 0..runs {
        let (family, victim, run) = (["openmpi", "mpich"][n % 2], n / 2 % 2, format!("run{n}"));
        let (begin, other) = (p.begin(&run, &short), p.begin("nowhere", &short));
        match n % 5 {
            // An error of one rank, and one that has no memory for anything.
            3 => drop(check(two(&mpi, family, &format!("tl {begin}"), &format!("tl {other}")), None, "", "rank 1 of 2: ")),
            4 => {
                let lines = [format!("TL_MEM_LIMIT=16K tl {begin}"), format!("tl {begin}")];
                check(two(&mpi, family, &lines[victim], &lines[1 - victim]), None, "", "out of memory");
            }
            kind => {
                let (signal_name, code) = [("USR1", 0), ("INT", 130), ("TERM", 130)][kind];
                let mut child = ranks(&mpi, family, 2, &p.begin(&run, &endless)).spawn().unwrap();
                let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
                lines.next().expect("it saves").unwrap();
                std::thread::sleep(Duration::from_millis(13 * n as u64 % 97));
                let (_, pid) = pids(&p.path(&run))[victim];
                signal(pid, signal_name);
                let last = lines.map_while(Result::ok).last().expect("it saves when it ends");
                let last: u64 = last.strip_prefix("saved ").unwrap().parse().unwrap();
                let (ended, took) = wait(&mut child, Duration::from_secs(10));
                assert!(ended, "{family} {signal_name}: no end after {took:?}");
                assert_eq!(child.wait().unwrap().code(), Some(code), "{family} {signal_name}");
                if n < 3 {
                    let alone_run = format!("alone{n}");
                    check(alone(&p.begin(&alone_run, &format!("{endless} --stop-after {last}"))), Some(0), &format!("saved {last}\n"), "");
                    p.assert_same(&alone_run, &run);
                }
            }
        }
        let (gone, _) = until(Duration::from_secs(10), || pids(&p.path(&run)).is_empty());
        assert!(gone, "{family}: a rank is left");
    }
}

#[test]
fn what_one_rank_meets_all_answer() {
    answer_sweep("answers", 5);
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
