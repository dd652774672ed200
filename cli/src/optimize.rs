//! `tl optimize`: a model's memory plan in every order of buffers, defragmentation, and the check that results keep their bits.

use crate::Global;
use crate::model::{self, ModelArgs};
use crate::output::{self, Failure};
use clap::Args;
use serde_json::{Value, json};
use tensorlogic::Tensor;
use tensorlogic::device::Fragmentation;
use tensorlogic::measure::MemoryPlanReport;
use tensorlogic::models::KvCache;

/// Plan a model's memory in every order, defragment, and check that results keep their bits
#[derive(Args)]
#[command(
    after_help = "A decode step and a prompt are planned in every order of buffers. Each runs in the program's order, memory is given back to the
system, and it runs again in order auto; the results must be the same bits. The bound is the bytes of intermediates that are live at the
same step: no placement needs fewer. Times and peaks are of the runs of this process. TL_ORDER selects an order for other commands.

Examples:
  tl optimize smollm2-135m-instruct
  tl optimize model.gguf --device vulkan --prompt 512
  tl optimize tiny --json"
)]
pub struct OptimizeArgs {
    /// Model, as for -m
    name: Option<String>,
    /// Tokens in the cache before the decode step
    #[arg(long, default_value_t = 100)]
    position: usize,
    /// Tokens of the prompt
    #[arg(long, default_value_t = 128)]
    prompt: usize,
    #[command(flatten)]
    model: ModelArgs,
}

fn fragmentation(f: &Fragmentation) -> Value {
    json!({ "asked_bytes": f.asked, "given_bytes": f.given, "waiting_bytes": f.waiting, "stranded_bytes": f.stranded, "internal": f.internal(),
        "external": f.external(), "driver": f.driver.map(|d| json!({ "reserved_bytes": d.reserved, "allocated_bytes": d.allocated,
            "blocks": d.blocks, "largest_free_bytes": d.largest_free })) })
}

fn report_json(work: &str, device: &str, r: &MemoryPlanReport) -> Value {
    let orders: Vec<Value> =
        r.orders.iter().map(|(o, planned, live)| json!({ "order": o.name(), "planned_bytes": planned, "live_bytes": live })).collect();
    let d = &r.defragmentation;
    json!({ "work": work, "device": device, "orders": orders, "program_bytes": r.program_bytes, "planned_bytes": r.planned_bytes,
        "bound_bytes": r.most_live, "slack": r.slack(), "peak_bytes": r.peaks, "seconds": r.seconds, "same_bits": r.same_bits,
        "defragmentation": { "before": fragmentation(&d.before), "after": fragmentation(&d.after), "moved_bytes": d.moved_bytes,
            "freed_bytes": d.freed_bytes, "seconds": d.seconds } })
}

/// Runs the subcommand.
pub fn run(args: &OptimizeArgs, global: Global) -> Result<(), Failure> {
    if args.name.is_some() && args.model.model.is_some() {
        return Err(Failure::Usage("name the model once: `tl optimize MODEL`, or -m MODEL".into()));
    }
    let options = ModelArgs { model: args.name.clone().or(args.model.model.clone()), ..args.model.clone() };
    let dtype = options.dtype()?;
    let path = options.path(global)?;
    let device = options.device()?;
    let model = options.build(&model::open(&path, &device)?, &path, dtype)?;
    let shape = model.shape();
    let room = shape.context.min((args.position + 1).max(args.prompt));
    for (flag, tokens, most) in [("--position", args.position + 1, shape.context), ("--prompt", args.prompt, shape.context)] {
        if tokens == 0 || tokens > most {
            return Err(Failure::Usage(format!("{flag}: the model's context has {most} tokens")));
        }
    }
    let works = [("decode step", args.position, 1), ("prompt", 0, args.prompt)];
    for (name, position, count) in works {
        let mut cache = KvCache::new(&shape, room, &device)?;
        let tokens = Tensor::from_vec((0..count).map(|i| (i % shape.vocab) as i32).collect(), &[count], &device)?;
        let report = device.optimize_memory_of(|| {
            cache.truncate(0);
            cache.advance(position);
            model.logits(&model.hidden(&tokens, &mut cache)?)
        })?;
        match global.json {
            true => output::result(&report_json(name, &device.name(), &report).to_string())?,
            false => output::result(&format!("{name}, {count} token{} on {}\n{report}", if count == 1 { "" } else { "s" }, device.name()))?,
        }
    }
    Ok(())
}
