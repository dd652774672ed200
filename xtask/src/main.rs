//! Developer commands: `cargo xtask NAME`.

mod verify;

use std::path::Path;
use std::process::ExitCode;
use tensorlogic::DType;
use verify::Options;

const USAGE: &str =
    "usage: cargo xtask verify MODEL.gguf REFERENCE.safetensors [--device D] [--dtype f32|f16|bf16] [--tokens N] [--prompts N] [--greedy N]

  verify   compares logits and greedy tokens with the reference (see tests/reference/make_reference.py); fails above
           a relative error of 1e-3, or where a token differs whose margin is 0.02 or more";

fn main() -> ExitCode {
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
    let [command, model, reference, options @ ..] = args else { return Err(USAGE.into()) };
    if command != "verify" {
        return Err(USAGE.into());
    }
    let mut o = Options::default();
    for pair in options.chunks(2) {
        let [name, value] = pair else { return Err(USAGE.into()) };
        let number = || value.parse::<usize>().map_err(|_| format!("{name} {value}: not a number"));
        match name.as_str() {
            "--device" => o.device = value.clone(),
            "--dtype" => {
                let known = [DType::F32, DType::F16, DType::BF16].into_iter().find(|d| d.name() == value);
                o.dtype = known.ok_or_else(|| format!("--dtype {value}: want f32, f16 or bf16"))?;
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
