//! `tl generate` and `tl train` on a device that is lost while they run: they go on with the next one of the list, unless that is forbidden.

#[path = "../../tests/common/mod.rs"]
mod common;

use std::path::PathBuf;
use std::process::{Command, Stdio};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tiny/tiny.gguf");

/// Runs `tl` on the GPU under test followed by the CPU, which is lost at this submit; gives the exit code and both streams. `None` without a GPU.
fn tl(args: &[&str], lost_after: u64, fallback: Option<&str>) -> Option<(Option<i32>, String, String)> {
    let device = format!("{},cpu", common::selector()?);
    let mut command: Command = common::command(env!("CARGO_BIN_EXE_tl"));
    command.args(args).args(["--device", &device]).env("TL_OFFLINE", "1").env_remove("TL_FALLBACK").env_remove("TL_MEM_LIMIT");
    command.env("TL_TEST_LOSE_DEVICE_AFTER", lost_after.to_string()).stdin(Stdio::null());
    command.envs(fallback.map(|v| ("TL_FALLBACK", v)));
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Some((output.status.code(), text(output.stdout), text(output.stderr)))
}

fn notes(stderr: &str) -> usize {
    stderr.lines().filter(|line| line.contains("; going on with cpu")).count()
}

#[test]
fn generate_writes_what_the_cpu_writes_and_says_so_once() {
    let args = ["generate", "-m", MODEL, "--raw", "--dtype", "f32", "-n", "40", "ROMEO:"];
    let cpu = Command::new(env!("CARGO_BIN_EXE_tl")).args(args).args(["--device", "cpu"]).env("TL_OFFLINE", "1").output().unwrap();
    let expected = String::from_utf8(cpu.stdout).unwrap();
    for lost_after in [2, 9, 20] {
        let Some((code, out, err)) = tl(&args, lost_after, None) else { return };
        assert_eq!((code, &out, notes(&err)), (Some(0), &expected, 1), "lost after {lost_after} submits: {err}");
        assert!(err.contains("the device was lost ("), "{err}");
    }
    let Some((code, _, err)) = tl(&args, 9, Some("error")) else { return };
    assert_eq!((code, notes(&err)), (Some(1), 0), "{err}");
    assert!(err.contains("tl: device lost: "), "{err}");
    let Some((code, _, err)) = tl(&args, 9, Some("maybe")) else { return };
    assert!(code == Some(2) && err.contains("TL_FALLBACK is \"maybe\""), "{err}");
}

#[test]
fn training_goes_on_from_its_newest_checkpoint() {
    let folder: PathBuf = std::env::temp_dir().join(format!("tl-fallback-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let text = folder.join("text.txt");
    std::fs::write(&text, "To be, or not to be, that is the question:\n".repeat(40)).unwrap();
    let settings = "--layers 1 --heads 2 --width 16 --context 16 --batch 4 --steps 24 --save-every 4 --eval-every 8 --log-every 2";
    // Before the first checkpoint, and behind it.
    for (name, lost_after, from) in [("early", 6, "from step 0"), ("late", 60, "from step ")] {
        let run = folder.join(name);
        let mut args = vec!["train", text.to_str().unwrap(), "-o", run.to_str().unwrap()];
        args.extend(settings.split(' '));
        let Some((code, out, err)) = tl(&args, lost_after, None) else { return };
        assert_eq!((code, notes(&err)), (Some(0), 1), "{name}: {out} {err}");
        assert!(out.contains("saved 24") && err.contains(&format!("training goes on {from}")), "{name}: {out} {err}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}
