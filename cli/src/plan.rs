//! `tl plan`: the memory that a model will take, before its weights are loaded.

use crate::Global;
use crate::generate::context_of;
use crate::model::{self, ModelArgs};
use crate::output::{self, Failure};
use crate::table;
use clap::Args;
use serde_json::json;
use std::ops::Range;
use tensorlogic::io::human_bytes;
use tensorlogic::models::{self, CachePart, LayerCache, LayerStages, MemoryPlan, Workload};

/// Say what memory a model will take on a device, without loading it
#[derive(Args)]
#[command(
    after_help = "The plans of a prompt and of decode steps are made as the device would make them, and their buffers are counted as its pool would count them; no
weight is loaded and nothing is computed. The driver's own memory comes on top, and staging memory while weights are loaded. Prompts of one sequence are read in chunks;
several sequences read theirs at once, so that --prompt counts.

Examples:
  tl plan model.gguf --ctx 8192
  tl plan model.gguf --ctx 4096 --sequences 16 --device vulkan
  tl plan model.gguf --parts 2                         which layers go where on two ranks or devices"
)]
pub struct PlanArgs {
    /// Model, as for -m
    name: Option<String>,
    /// Context length in tokens per sequence [default: 4096, or the model's maximum if lower]
    #[arg(short, long)]
    ctx: Option<usize>,
    /// Number of sequences at once
    #[arg(short, long, default_value_t = 1)]
    sequences: usize,
    /// Length of the prompts in tokens [default: 512, or what the context has room for]
    #[arg(short, long)]
    prompt: Option<usize>,
    /// Instead show how layers, weights and cache are split over this many ranks or devices
    #[arg(long, value_name = "COUNT", conflicts_with = "prompt")]
    parts: Option<usize>,
    #[command(flatten)]
    model: ModelArgs,
}

/// Which layers go where, and what each place keeps.
fn parts(args: &PlanArgs, options: &ModelArgs, count: usize, global: Global) -> Result<(), Failure> {
    let (device, dtype) = (options.device()?, options.dtype()?);
    let path = options.path(global)?;
    let unreadable = |e| model::unreadable(&path, e);
    let weights = options.open(&path, &device.dry_run())?;
    let stages = LayerStages::of(&weights, count).map_err(unreadable)?;
    let shape = models::load(&weights, dtype).map_err(unreadable)?.shape();
    let context = context_of(args.ctx, 4096, &shape, global)?;
    let cache = |part: &Range<usize>| -> usize {
        let of = |kept: &CachePart| match kept {
            CachePart::Rows { heads, size } => context * heads * size * shape.dtype.block_bytes(),
            CachePart::State { dims, dtype } => dims.iter().product::<usize>() * dtype.block_bytes(),
        };
        let layers = shape.cache[part.clone()].iter().filter_map(|l| if let LayerCache::Own(own) = l { Some(own) } else { None });
        layers.flatten().map(of).sum::<usize>() * args.sequences
    };
    let free = device.memory_info().and_then(|r| r.free);
    let places: Vec<_> = stages.layers().iter().zip(stages.bytes()).map(|(part, bytes)| (part, *bytes as usize, cache(part))).collect();
    if global.json {
        let part = |(part, weights, cache): &(&Range<usize>, usize, usize)| json!({ "layers": [part.start, part.end], "weights": weights, "cache": cache, "fits": free.map(|free| weights + cache <= free) });
        let value = json!({ "device": device.name(), "context": context, "sequences": args.sequences, "parts": places.iter().map(part).collect::<Vec<_>>(), "free": free });
        return output::result(&value.to_string());
    }
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    output::result(&format!("{name}, {} × {context} tokens, in {count} parts", args.sequences))?;
    let row = |(n, (part, weights, cache)): (usize, &(&Range<usize>, usize, usize))| {
        let fits = free
            .filter(|free| weights + cache > *free)
            .map_or(String::new(), |free| format!("more than {} that are free", human_bytes(free as u64)));
        let layers = format!("layers {}-{}{}", part.start, part.end - 1, if n == 0 { ", embeddings, head" } else { "" });
        [format!("part {n}"), layers, human_bytes(*weights as u64), format!("+ {} of cache", human_bytes(*cache as u64)), fits].to_vec()
    };
    table::lines(&places.iter().enumerate().map(row).collect::<Vec<_>>(), &[2]).iter().try_for_each(|line| output::result(line))
}

/// Runs the subcommand.
pub fn run(args: &PlanArgs, global: Global) -> Result<(), Failure> {
    let options = args.model.named(args.name.as_ref(), "plan")?;
    if let Some(count) = args.parts {
        return parts(args, &options, count, global);
    }
    let (device, dtype) = (options.device()?, options.dtype()?);
    let path = options.path(global)?;
    let weights = || options.open(&path, &device);
    let shape = models::load(&weights()?.on(&device.dry_run()), dtype).map_err(|e| model::unreadable(&path, e))?.shape();
    let context = context_of(args.ctx, 4096, &shape, global)?;
    let prompt = args.prompt.unwrap_or(512.min(context.saturating_sub(1)).max(1));
    let work = Workload { context, sequences: args.sequences, prompt };
    let plan = MemoryPlan::of(weights()?, dtype, &device, &work)?;
    let room = device.memory_info();
    let free = room.and_then(|r| r.free);
    let fits = free.map(|free| plan.peak_allocated <= free);
    if global.json {
        let value = json!({ "device": device.name(), "context": context, "sequences": args.sequences, "prompt": prompt, "weights": plan.weights,
            "mapped_weights": plan.mapped, "cache": plan.cache, "prompt_values": plan.prompt, "step_values": plan.step,
            "peak_allocated": plan.peak_allocated, "staging_at_most": plan.staging, "free": free, "fits": fits });
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
        row("staging, at most", plan.staging, "the driver's, while weights are loaded; not in the peak".into()),
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
        (None, _) => output::result("this device does not report its free memory"),
    }
}
