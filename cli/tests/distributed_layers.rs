//! Models whose layers ranks or devices share: the same text, speed figures and perplexity as in one place.
#![cfg(target_os = "linux")]

#[path = "../../tests/common/mod.rs"]
mod common;
mod ranks;

use ranks::{alone, check, launcher, mpi, ranks, settle, turn};
use std::process::Command;

fn tiny() -> String {
    format!("{}/../models/tiny/tiny.gguf", env!("CARGO_MANIFEST_DIR"))
}

/// What a command prints alone and on so many ranks, on the CPU.
fn same(mpi: &std::path::Path, args: &str, sizes: &[(&str, usize)]) {
    let (expected, _) = check(alone(args), Some(0), "", "");
    assert!(expected.len() > 10, "{expected:?}");
    for &(family, size) in sizes {
        let (out, err) = check(ranks(mpi, family, size, args), Some(0), "", "");
        assert_eq!(out, expected, "{size} ranks of {family}: {err}");
        assert!(err.contains(&format!("on {size} ranks")) && err.contains("layers 0-"), "{err}");
    }
}

#[test]
fn ranks_write_the_text_of_one_process() {
    let Some(mpi) = mpi() else { return };
    let _turn = turn();
    let generate = format!("generate -m {} --raw ROMEO: -n 40 --ctx 128", tiny());
    same(&mpi, &generate, &[("openmpi", 2), ("mpich", 2), ("openmpi", 4)]);
    // Sampled on rank 0 alone, in half precision.
    same(&mpi, &format!("{generate} --temp 0.8 --seed 3 --dtype f16"), &[("mpich", 4)]);
    let text = format!("{}/../models/tiny/README.md", env!("CARGO_MANIFEST_DIR"));
    same(&mpi, &format!("perplexity -m {} -f {text} --ctx 64 -n 300", tiny()), &[("openmpi", 2), ("mpich", 4)]);
}

#[test]
fn speed_is_measured_over_ranks() {
    let Some(mpi) = mpi() else { return };
    let _turn = turn();
    for args in ["--runs 1", "--runs 1 --sequences 2"] {
        let bench = format!("bench decode -m {} --prompt 8 --tokens 4 --json {args}", tiny());
        let read =
            |out: &str| out.split("\"weight_bytes_per_token\":").nth(1).unwrap().split([',', '}']).next().unwrap().parse::<u64>().unwrap();
        let (whole, _) = check(alone(&bench), Some(0), "tokens_per_s", "");
        let (parts, _) = check(ranks(&mpi, "openmpi", 2, &bench), Some(0), "tokens_per_s", "");
        let (whole, parts) = (read(&whole) as f64, read(&parts) as f64);
        assert!((parts / whole - 1.0).abs() < 0.02, "{parts} bytes of weights over two ranks, {whole} in one place");
    }
}

/// The same on the GPU under test, if there is one, which ranks share; and layers on it and on the CPU in one process.
#[test]
fn layers_on_a_gpu_write_the_same_text() {
    let (Some(mpi), Some(device)) = (mpi(), common::selector()) else { return };
    let _turn = turn();
    let tl = common::command(env!("CARGO_BIN_EXE_tl"));
    let run = |mut c: Command, device: &str| {
        c.arg(tl.get_program()).args(tl.get_args());
        settle(&mut c, &format!("generate -m {} --raw ROMEO: -n 24 --ctx 64 --dtype f32 --share-device --device {device}", tiny()));
        check(c, Some(0), "", "")
    };
    let (expected, _) = run(Command::new("env"), device);
    for family in ["openmpi", "mpich"] {
        let mut c = launcher(&mpi, family);
        c.args(["-n", "2"]);
        assert_eq!(run(c, device).0, expected, "{family}");
    }
    let (out, err) = run(Command::new("env"), &format!("{device}+cpu"));
    assert_eq!(out, expected);
    assert!(err.contains("on 2 devices"), "{err}");
}

/// Weights 1.8 times as large as one rank may have, on the GPU under test (a CPU reads them in place).
#[test]
fn two_ranks_hold_a_model_that_one_cannot() {
    let (Some(mpi), Some(device)) = (mpi(), common::selector()) else { return };
    let _turn = turn();
    let tl = common::command(env!("CARGO_BIN_EXE_tl"));
    let run = |mut c: Command, args: &str, limit: Option<u64>, code: Option<i32>, err: &str| {
        c.arg(tl.get_program()).args(tl.get_args());
        settle(&mut c, &format!("{args} -m {} --ctx 64 --dtype f32 --device {device}", tiny()));
        limit.map(|n| c.env("TL_MEM_LIMIT", n.to_string()));
        check(c, code, "", err).0
    };
    let one = || Command::new("env");
    let two = || {
        let mut c = launcher(&mpi, "openmpi");
        c.args(["-n", "2"]);
        c
    };
    let plan = run(one(), "plan --prompt 8 --json", None, Some(0), "");
    let field = |name: &str| plan.split(&format!("\"{name}\":")).nth(1).unwrap().split([',', '}']).next().unwrap().parse::<u64>().unwrap();
    let (weights, peak) = (field("weights"), field("peak_allocated"));
    let limit = weights * 10 / 18 + (peak - weights);
    let generate = "generate --raw ROMEO: -n 24";
    let expected = run(one(), generate, None, Some(0), "");
    run(one(), generate, Some(limit), None, "out of memory");
    let generate = format!("{generate} --share-device");
    assert_eq!(run(two(), &generate, Some(limit), Some(0), "on 2 ranks"), expected);
    // Less than a part needs is noticed before one is loaded, and named.
    run(two(), &generate, Some(weights / 4), None, "out of memory: layers 0-");
}

#[test]
fn devices_of_a_list_share_the_layers() {
    let _turn = turn();
    let line = |device: &str| format!("generate -m {} --raw ROMEO: -n 24 --ctx 64 --device {device}", tiny());
    let (expected, _) = check(alone(&line("cpu")), Some(0), "", "");
    let (out, _) = check(alone(&line("cpu+cpu+cpu")), Some(0), "", "layers 0-");
    assert_eq!(out, expected);
    check(alone(&line("cpu+nothing")), Some(2), "", "unknown device");
    check(alone(&format!("plan -m {} --device cpu+cpu", tiny())), Some(2), "", "supports one device, got 2");
    check(alone(&line("cpu+cpu+cpu+cpu+cpu+cpu+cpu")), Some(1), "", "6 layers in 7 parts");
}

#[test]
fn the_plan_says_which_layers_go_where() {
    let plan = format!("plan -m {} --device cpu --ctx 64 --parts", tiny());
    let (out, _) = check(alone(&format!("{plan} 2")), Some(0), "in 2 parts", "");
    assert!(out.contains("part 0  layers 0-") && out.contains("part 1  layers") && out.contains("-5"), "{out}");
    let (out, _) = check(alone(&format!("{plan} 2 --json")), Some(0), "\"parts\":", "");
    assert!(out.contains("\"layers\":[0,") && out.contains(",6]"), "{out}");
    check(alone(&format!("{plan} 9")), Some(1), "", "6 layers in 9 parts");
}

#[test]
fn an_error_of_one_rank_ends_the_others() {
    let Some(mpi) = mpi() else { return };
    let _turn = turn();
    for family in ["openmpi", "mpich"] {
        let missing = "generate -m /nowhere.gguf --raw a -n 1";
        check(ranks(&mpi, family, 2, missing), None, "", "/nowhere.gguf");
        let lines = ["tl", "TL_MEM_LIMIT=16K tl"].map(|tl| format!("{tl} generate -m {} --raw ROMEO: -n 4", tiny()));
        check(ranks::two(&mpi, family, &lines[0], &lines[1]), None, "", "rank 1 of 2: out of memory");
    }
}
