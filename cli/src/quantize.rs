//! `tl quantize IN OUT`: a model as a GGUF file with weights of another type.

use crate::Global;
use crate::fetch::{self, PullOptions};
use crate::model;
use crate::output::{self, Failure};
use clap::Args;
use serde_json::json;
use std::collections::BTreeSet;
use std::path::PathBuf;
use tensorlogic::io::TensorInfo;
use tensorlogic::io::human_bytes;
use tensorlogic::models::convert;
use tensorlogic::quant::{MIXES, WeightTypes};
use tensorlogic::{DType, Device, TensorResult, text};

/// Convert a model to a GGUF file with another weight type
#[derive(Args)]
#[command(
    after_help = "Norms and biases stay f32. The output matrix keeps 6 bits or more. Rows that are not a multiple of the type's block size get a type of about its
size that fits them, or f16. q4_K_M and q5_K_M are llama.cpp's mixes: half of the value and down matrices have 6 bits. A GGUF file's weights are unpacked and packed again: start from the most precise file available.

Examples:
  tl quantize folder model.gguf --type q5_0
  tl quantize model-f16.gguf model-q4.gguf --type q4_K_M"
)]
pub struct QuantizeArgs {
    /// GGUF file, folder in Hub layout of an architecture that GGUF can say (docs/models.md), or a name as for `tl generate`
    model: String,
    /// Output GGUF file
    out: PathBuf,
    /// Weight type
    #[arg(short = 't', long = "type", default_value = "q8_0", help = format!("Weight type: {}", types()))]
    dtype: String,
    /// Download a missing model without asking
    #[arg(short, long)]
    yes: bool,
    /// Replace the file if it exists
    #[arg(long)]
    overwrite: bool,
}

/// The names of the types of weights.
fn types() -> String {
    written().map(DType::name).chain(MIXES.iter().map(|m| m.name)).collect::<Vec<_>>().join(", ")
}

/// Those that GGUF has and an encoder exists for.
fn written() -> impl Iterator<Item = DType> {
    DType::WEIGHTS.into_iter().filter(|&d| convert::file_type(d).is_some() && d.format().is_none_or(|f| f.is_encoded()))
}

/// Runs the subcommand.
pub fn run(args: &QuantizeArgs, global: Global) -> Result<(), Failure> {
    let wanted = args.dtype.parse::<WeightTypes>().ok().filter(|w| matches!(w, WeightTypes::Mix(_)) || written().any(|d| d == w.base()));
    let wanted = wanted.ok_or_else(|| Failure::Usage(format!("--type {}: expected one of {}", args.dtype, types())))?;
    let dtype = wanted.base();
    let mut options = PullOptions::from_env()?;
    (options.quiet, options.yes) = (global.quiet, args.yes);
    let path = fetch::resolve(&args.model, &options)?;
    if args.out.is_dir() || args.out.canonicalize().is_ok_and(|o| path.canonicalize().is_ok_and(|p| p == o)) {
        return Err(Failure::Usage(format!("{} is the model itself or a folder: choose another file", args.out.display())));
    }
    if args.out.exists() && !args.overwrite {
        return Err(Failure::Usage(format!("{} exists; --overwrite replaces it", args.out.display())));
    }
    let weights = model::open(&path, &Device::cpu())?;
    let folder = if path.is_dir() { path.clone() } else { path.parent().map(PathBuf::from).unwrap_or_default() };
    convert::write_gguf(&weights, wanted, |w, vocab| text::gguf::write(&folder, vocab, w), &args.out)?;
    let bytes = std::fs::metadata(&args.out).map(|m| m.len()).unwrap_or(0);
    let written = tensorlogic::io::Gguf::open(&args.out)?;
    let numbers: usize = written.tensors().iter().map(|t| t.count()).sum();
    let bits = 8.0 * bytes as f64 / numbers.max(1) as f64;
    if !global.quiet {
        let ragged = |t: &&TensorInfo| t.shape.len() > 1 && t.shape.last().is_some_and(|n| n % dtype.block() != 0);
        let others = written.tensors().iter().filter(ragged).map(|t| Ok(t.dtype()?.name())).collect::<TensorResult<Vec<_>>>()?;
        if !others.is_empty() {
            let (count, block) = (others.len(), dtype.block());
            let others = others.into_iter().collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(", ");
            output::note(&format!(
                "{count} matrices have rows that are not a multiple of {block}, as {wanted} requires: stored as {others}"
            ));
        }
        output::note(&format!("{numbers} weights in {}, {bits:.2} bits each", human_bytes(bytes)));
    }
    match global.json {
        true => {
            let value =
                json!({ "file": args.out, "type": wanted.to_string(), "bytes": bytes, "weights": numbers, "bits_per_weight": bits });
            output::result(&value.to_string())
        }
        false => output::result(&args.out.display().to_string()),
    }
}
