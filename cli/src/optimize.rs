//! `tl optimize`: a model's memory plan in every order of buffers, defragmentation, and the check that results keep their bits.

use crate::model::ModelArgs;
use crate::output::{self, Failure};
use crate::{Global, interrupt};
use clap::Args;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tensorlogic::device::Fragmentation;
use tensorlogic::eval::with_order;
use tensorlogic::measure::{EnergyMeter, MemoryPlanReport};
use tensorlogic::models::KvCache;
use tensorlogic::plan::BufferOrder;
use tensorlogic::{Device, Tensor, TensorResult};

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
    /// Measure the energy of a run in both orders, where the system tells
    #[arg(long)]
    energy: bool,
    #[command(flatten)]
    model: ModelArgs,
}

fn fragmentation(f: &Fragmentation) -> Value {
    json!({ "asked_bytes": f.asked, "given_bytes": f.given, "waiting_bytes": f.waiting, "stranded_bytes": f.stranded, "internal": f.internal(),
        "external": f.external(), "driver": f.driver.map(|d| json!({ "reserved_bytes": d.reserved, "allocated_bytes": d.allocated,
            "blocks": d.blocks, "largest_free_bytes": d.largest_free })) })
}

/// How long the device is left alone first, and how long each order runs: a board's counter moves every 100 ms.
const WINDOW: Duration = Duration::from_secs(2);

/// Joules of a run beyond those at rest, in the program's order and in order auto; `None` where the system does not tell.
fn energy(device: &Device, mut work: impl FnMut() -> TensorResult<Tensor>) -> Result<Option<[f64; 2]>, Failure> {
    let Some(mut meter) = EnergyMeter::of(device) else { return Ok(None) };
    device.synchronize()?;
    let Some(idle) = meter.idle_power(WINDOW) else { return Ok(None) };
    let mut found = [0.0; 2];
    for (order, joules) in [BufferOrder::Program, BufferOrder::Auto].into_iter().zip(&mut found) {
        let (runs, energy) = meter.measure(|| {
            let (start, mut runs) = (Instant::now(), 0);
            while start.elapsed() < WINDOW && !interrupt::requested() {
                with_order(order, || work()?.eval().map(drop))?;
                device.synchronize()?;
                runs += 1;
            }
            Ok::<usize, tensorlogic::TensorError>(runs)
        });
        let (runs, Some(energy)) = (runs?, energy) else { return Ok(None) };
        *joules = energy.above(idle) / runs.max(1) as f64;
    }
    if interrupt::requested() { Err(Failure::Interrupted) } else { Ok(Some(found)) }
}

fn report_json(work: &str, device: &str, r: &MemoryPlanReport) -> Value {
    let orders: Vec<Value> =
        r.orders.iter().map(|(o, planned, live)| json!({ "order": o.name(), "planned_bytes": planned, "live_bytes": live })).collect();
    let d = &r.defragmentation;
    json!({ "work": work, "device": device, "orders": orders, "program_bytes": r.program_bytes, "planned_bytes": r.planned_bytes,
        "bound_bytes": r.most_live, "slack": r.slack(), "reuse_histogram": r.reuse.to_json(), "peak_bytes": r.peaks, "seconds": r.seconds, "same_bits": r.same_bits,
        "defragmentation": { "before": fragmentation(&d.before), "after": fragmentation(&d.after), "moved_bytes": d.moved_bytes,
            "freed_bytes": d.freed_bytes, "seconds": d.seconds } })
}

/// Runs the subcommand.
pub fn run(args: &OptimizeArgs, global: Global) -> Result<(), Failure> {
    let options = args.model.named(args.name.as_ref(), "optimize")?;
    let dtype = options.dtype()?;
    let path = options.path(global)?;
    let device = options.device()?;
    let model = options.build(&options.open(&path, &device)?, &path, dtype)?;
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
        let mut work = || {
            cache.truncate(0);
            cache.advance(position);
            model.logits(&model.hidden(&tokens, &mut cache)?)
        };
        let report = device.optimize_memory_of(&mut work)?;
        let joules = if args.energy { energy(&device, &mut work)? } else { None };
        if global.json {
            let mut value = report_json(name, &device.name(), &report);
            value["joules"] = json!(joules);
            output::result(&value.to_string())?;
            continue;
        }
        let told = match joules {
            Some([before, after]) => format!("energy of a run: {:.3} -> {:.3} mJ above rest\n", before * 1e3, after * 1e3),
            None if args.energy => "energy: not reported by this system\n".into(),
            None => String::new(),
        };
        output::result(&format!("{name}, {count} token{} on {}\n{report}{told}", if count == 1 { "" } else { "s" }, device.name()))?;
    }
    Ok(())
}
