//! `tl plan`: the memory that a model will take, before its weights are loaded.

use crate::Global;
use crate::generate::context_of;
use crate::model::{self, ModelArgs};
use crate::output::{self, Failure};
use crate::table;
use clap::Args;
use serde_json::json;
use tensorlogic::io::human_bytes;
use tensorlogic::models::{self, MemoryPlan, Workload};

/// Say what memory a model will take on a device, without loading it
#[derive(Args)]
#[command(
    after_help = "The plans of a prompt and of decode steps are made as the device would make them, and their buffers are counted as its pool would count them; no
weight is loaded and nothing is computed. The driver's own memory and staging memory come on top. Prompts of one sequence are read in chunks;
several sequences read theirs at once, so that --prompt counts.

Examples:
  tl plan -m model.gguf --ctx 8192
  tl plan -m model.gguf --ctx 4096 --sequences 16 --device vulkan"
)]
pub struct PlanArgs {
    /// Room for so many tokens per sequence [default: 4096, or the model's maximum if lower]
    #[arg(short, long)]
    ctx: Option<usize>,
    /// Number of sequences at once
    #[arg(short, long, default_value_t = 1)]
    sequences: usize,
    /// Length of the prompts in tokens [default: 512, or what the context has room for]
    #[arg(short, long)]
    prompt: Option<usize>,
    #[command(flatten)]
    model: ModelArgs,
}

/// Runs the subcommand.
pub fn run(args: &PlanArgs, global: Global) -> Result<(), Failure> {
    let (device, dtype) = (args.model.device()?, args.model.dtype()?);
    let path = args.model.path(global)?;
    let weights = || model::open(&path, &device);
    let shape = models::load(&weights()?.on(&device.dry_run()), dtype).map_err(|e| model::unreadable(&path, e))?.shape();
    let context = context_of(args.ctx, 4096, &shape, global)?;
    let prompt = args.prompt.unwrap_or(512.min(context.saturating_sub(1)).max(1));
    let work = Workload { context, sequences: args.sequences, prompt };
    let plan = MemoryPlan::of(weights()?, dtype, &device, &work)?;
    let room = device.memory_room();
    let free = room.and_then(|r| r.free);
    let fits = free.map(|free| plan.peak_allocated <= free);
    if global.json {
        let value = json!({ "device": device.name(), "context": context, "sequences": args.sequences, "prompt": prompt, "weights": plan.weights,
            "mapped_weights": plan.mapped, "cache": plan.cache, "prompt_values": plan.prompt, "step_values": plan.step,
            "peak_allocated": plan.peak_allocated, "free": free, "fits": fits });
        return output::result(&value.to_string());
    }
    let per_token = plan.cache / (context * args.sequences).max(1);
    let row = |what: &str, bytes: usize, note: String| [what.to_string(), human_bytes(bytes as u64), note].to_vec();
    let rows = [
        row("weights, mapped", plan.mapped, "read from the file in place".into()),
        row("weights, allocated", plan.weights, String::new()),
        row("keys and values", plan.cache, format!("{} a token", human_bytes(per_token as u64))),
        row("values of a prompt", plan.prompt, format!("{prompt} tokens")),
        row("values of a decode step", plan.step, String::new()),
        row("peak, allocated", plan.peak_allocated, String::new()),
    ];
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    output::result(&format!("{name}, {} × {context} tokens, on {}", args.sequences, device.name()))?;
    table::lines(&rows, &[1]).iter().try_for_each(|line| output::result(line))?;
    match (free, fits) {
        (Some(free), Some(true)) => output::result(&format!("fits: {} are free", human_bytes(free as u64))),
        (Some(free), _) => output::result(&format!(
            "does not fit: {} are free; use a shorter --ctx, fewer --sequences or a smaller weight type",
            human_bytes(free as u64)
        )),
        (None, _) => output::result("this device does not tell how much memory is free"),
    }
}
