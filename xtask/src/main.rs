//! Developer commands: `cargo xtask NAME`.

mod apple_kernels;
mod kernels;
mod samples;
mod scale;
mod shader_hashes;
mod targets;
mod variants;
mod verify;

use std::path::Path;
use std::process::ExitCode;
use tensorlogic::DType;
use verify::VerifyOptions;

const USAGE: &str = "usage: cargo xtask kernels --msl [--spirv] OUT
       cargo xtask shader-hashes [--diff FILE] [--show NAME]
       cargo xtask check-targets [--library] [--allow-missing]
       cargo xtask scale [--lanes N --measured RANKS:MS,…] [OPTIONS]
       mpirun -n N target/debug/xtask scale --link BYTES
       cargo xtask verify MODEL.gguf REFERENCE.safetensors [--device D] [--dtype f32|f16|bf16] [--tokens N] [--prompts N] [--greedy N]

  kernels        writes every kernel into the folder OUT, both the files and those generated for sample plans, as Metal
                 source (--msl), SPIR-V (--spirv), or both. Below OUT/apple lie the sources that the Metal backend gives to Metal's
                 compiler, those for fast and those for relaxed arithmetic; below OUT/other the kernels of every kind of GPU, to read
  shader-hashes  prints one line for each kernel of the sample plans on each kind of adapter: its name, a hash of the shader source
                 given to the driver, and a hash of its grid and parameters. --diff compares with a saved listing and fails
                 if they differ; --show prints the source of one kernel
  check-targets  type-checks the library and the command for macOS (Arm and x86-64) and Windows, and the library for iOS and wasm32, with
                 the standard libraries that `rustup target add` installs; --library leaves out the command; with --allow-missing a target
                 whose standard library is not available is reported as \"not checked\" and does not fail
  scale          a model of training steps over ranks, whose assumptions stand in xtask/src/scale.rs. It prints predictions for --ranks N,… (8 to
                 1,024) with --lanes-a-rank lanes each (2), over networks of 1 GbE to 400 Gb/s; with --measured it compares the model with steps of
                 --lanes lanes that were measured, and fails beyond a tenth. Its values are those of GPT-2 124M on H200s, unless given:
                 --lane-ms, --update-ms: a lane, and what else a step takes, from steps of one rank with different --lanes
                 --bytes, --front, --pieces: bytes of the gradient, those in front of the layers, pieces of layers (up to six)
                 --copy-ms, --sum-ms, --upload-ms: as `tl train --stats` prints them on two ranks (host copy, sum, upload)
                 --by network|messages|memory: the ranks' way; --gb-per-s of a network, or of messages as --link measures them
                 --latency-us; --a-machine N ranks that share a link; --device-gb-per-s of the device's copies; --device cpu: it is the
                 processor; --cores of a machine; --jitter: how much longer a slow lane takes (0.05)
                 --link measures, under a launcher, what ranks exchange
  verify         compares logits and greedy tokens with the reference (see tests/reference/make_reference.py); fails if
                 the relative error exceeds 1e-3, or if a token with a margin of 0.02 or more differs";

fn main() -> ExitCode {
    if targets::stand_in() {
        return ExitCode::SUCCESS;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &[String]) -> Result<bool, String> {
    match args.first().map(String::as_str) {
        Some("check-targets") => {
            let mut options = targets::TargetOptions::default();
            for flag in &args[1..] {
                match flag.as_str() {
                    "--library" => options.library = true,
                    "--allow-missing" => options.allow_missing = true,
                    _ => return Err(format!("{flag} is unknown\n{USAGE}")),
                }
            }
            return targets::check(&options);
        }
        Some("scale") => return scale::run(&args[1..], USAGE),
        Some("shader-hashes") => return shader_hashes::run(&args[1..]),
        Some("kernels") => {
            let (flags, folders): (Vec<&String>, Vec<&String>) = args[1..].iter().partition(|a| a.starts_with("--"));
            let has = |name: &str| flags.iter().any(|f| *f == name);
            let ([folder], true) = (&folders[..], has("--msl") || has("--spirv")) else { return Err(USAGE.into()) };
            if let Some(unknown) = flags.iter().find(|f| !["--msl", "--spirv"].contains(&f.as_str())) {
                return Err(format!("{unknown} is unknown\n{USAGE}"));
            }
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
            let count = kernels::write(&root, Path::new(folder), has("--msl"), has("--spirv"))?;
            println!("{count} kernels are in {folder}");
            return Ok(true);
        }
        _ => {}
    }
    let [command, model, reference, options @ ..] = args else { return Err(USAGE.into()) };
    if command != "verify" {
        return Err(USAGE.into());
    }
    let mut o = VerifyOptions::default();
    for pair in options.chunks(2) {
        let [name, value] = pair else { return Err(USAGE.into()) };
        let number = || value.parse::<usize>().map_err(|_| format!("{name} {value}: not a number"));
        match name.as_str() {
            "--device" => o.device = value.clone(),
            "--dtype" => {
                let known = [DType::F32, DType::F16, DType::BF16].into_iter().find(|d| d.name() == value);
                o.dtype = known.ok_or_else(|| format!("--dtype {value}: expected f32, f16 or bf16"))?;
            }
            "--tokens" => o.tokens = number()?,
            "--prompts" => o.prompts = number()?,
            "--greedy" => o.greedy = number()?,
            _ => return Err(format!("{name} is unknown\n{USAGE}")),
        }
    }
    let report = verify::verify(Path::new(model), Path::new(reference), &o).map_err(|e| e.to_string())?;
    println!("{report}");
    Ok(report.passes())
}
