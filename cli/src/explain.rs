//! `tl explain`: the plan of one decode step, with bytes and operations of each dispatch.

use crate::generate::{CONTEXT, SamplingArgs, context_of};
use crate::model::ModelArgs;
use crate::output::{self, Failure};
use crate::{Global, table};
use clap::Args;
use serde_json::json;
use tensorlogic::io::human_bytes;
use tensorlogic::models::{GenerationDefaults, Session};
use tensorlogic::plan::{Buf, Plan, Source, Step, Work};
use tensorlogic::scalar::{Prim, Program};

/// Show the dispatches of one decode step, with bytes and operations
#[derive(Args)]
#[command(
    after_help = "Dispatches of the same kind and size share a line. Bytes are the minimum that a dispatch has to move: each element of each operand
once, only the looked-up rows of a table, and only the valid part of the KV cache.

Examples:
  tl explain
  tl explain -m model.gguf --device vulkan --position 1000
  tl explain --plan | less                     every dispatch with the programs fused into it"
)]
pub struct ExplainArgs {
    /// Number of tokens before the generated one
    #[arg(long, default_value_t = 100)]
    position: usize,
    /// Print every dispatch of the plan
    #[arg(long)]
    plan: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    model: ModelArgs,
}

/// What one dispatch moves and computes.
struct Cost {
    read: u64,
    written: u64,
    ops: u64,
}

/// Runs the subcommand.
pub fn run(args: &ExplainArgs, global: Global) -> Result<(), Failure> {
    args.sampling.check()?;
    let dtype = args.model.dtype()?;
    let path = args.model.path(global)?;
    let device = args.model.device()?;
    let file = args.model.open(&path, &device)?;
    let mut sampler = args.sampling.sampler(&GenerationDefaults::of(&file)?)?;
    let model = args.model.build(&file, &path, dtype)?;
    let ctx = context_of(args.sampling.ctx, CONTEXT, &model.shape(), global)?;
    let plan = Session::new(&*model, ctx, &device)?.plan_of_step(args.position, &mut sampler)?;
    let Some(plan) = plan else { return Err(Failure::Error("the decode step contains no operations".into())) };
    if args.plan {
        return output::result(plan.to_string().trim_end());
    }
    let costs: Vec<Cost> = plan.steps.iter().map(|s| cost(s, args.position + 1)).collect();
    let total = costs.iter().fold(Cost { read: 0, written: 0, ops: 0 }, |t, c| Cost {
        read: t.read + c.read,
        written: t.written + c.written,
        ops: t.ops + c.ops,
    });
    let per_layer = per_layer(&plan);
    let slots: usize = plan.slots.iter().sum();
    if global.json {
        let steps: Vec<_> = plan
            .steps
            .iter()
            .zip(&costs)
            .map(|(s, c)| {
                json!({ "name": s.name, "at": format!("{}:{}", s.at.file(), s.at.line()), "shape": result_shape(s), "read_bytes": c.read,
                    "written_bytes": c.written, "operations": c.ops })
            })
            .collect();
        let value = json!({ "device": device.name(), "position": args.position, "layers": model.shape().layers, "dispatches": plan.steps.len(),
            "dispatches_per_layer": per_layer, "read_bytes": total.read, "written_bytes": total.written, "operations": total.ops,
            "slot_bytes": slots, "order": plan.memory.order.name(), "live_bytes": plan.memory.most_live, "steps": steps });
        return output::result(&value.to_string());
    }
    let mut rows: Vec<(usize, [String; 4], Cost)> = Vec::new();
    for (s, c) in plan.steps.iter().zip(costs) {
        let name = [s.name.to_string(), result_shape(s), weights(s), format!("{}:{}", s.at.file(), s.at.line())];
        match rows.iter_mut().find(|(_, n, k)| *n == name && (k.read, k.written, k.ops) == (c.read, c.written, c.ops)) {
            Some((count, ..)) => *count += 1,
            None => rows.push((1, name, c)),
        }
    }
    let bytes = |n: u64| human_bytes(n);
    let mut table = vec![["", "dispatch", "result", "weights", "reads", "writes", "operations", "written at"].map(String::from).to_vec()];
    for (count, [name, shape, weights, at], c) in rows {
        let of = |n: u64| n * count as u64;
        let cells =
            [format!("{count} ×"), name, shape, weights, bytes(of(c.read)), bytes(of(c.written)), table::thousands(of(c.ops) as f64), at];
        table.push(cells.to_vec());
    }
    table::lines(&table, &[0, 4, 5, 6]).iter().try_for_each(|l| output::result(l))?;
    let layers = per_layer.map(|n| format!(", {n} in each of {} layers", model.shape().layers)).unwrap_or_default();
    output::result(&format!(
        "\n{} dispatches{layers}: {} read, {} written, {} operations; {} of scratch (order {}, {} live at most, slack {:.1} %), on {}",
        plan.steps.len(),
        bytes(total.read),
        bytes(total.written),
        table::thousands(total.ops as f64),
        bytes(slots as u64),
        plan.memory.order,
        bytes(plan.memory.most_live as u64),
        100.0 * plan.slack(),
        device.name()
    ))
}

/// Dispatches from one attention to the next.
fn per_layer(plan: &Plan) -> Option<usize> {
    let at: Vec<usize> = plan.steps.iter().enumerate().filter(|(_, s)| s.name == "attention").map(|(n, _)| n).collect();
    // The first layer may have more before it than is between others.
    at.windows(2).last().map(|w| w[1] - w[0])
}

fn result_shape(s: &Step) -> String {
    s.stores.iter().map(|st| format!("{}{}", st.target.dtype, st.shape)).collect::<Vec<_>>().join(" ")
}

/// The type of the packed operand of a product or look-up.
fn weights(s: &Step) -> String {
    let sources = s.loads.iter().flat_map(|l| &l.sources);
    let packed = sources.filter(|s| s.dtype.is_block()).map(|s| s.dtype.name()).next();
    packed.unwrap_or_default().to_string()
}

fn cost(s: &Step, valid: usize) -> Cost {
    let mut c = Cost { read: 0, written: 0, ops: 0 };
    for (n, load) in s.loads.iter().enumerate() {
        let bytes: u64 = load.sources.iter().map(bytes_of).sum();
        let whole = load.shape.count().max(1) as u64;
        let used = match s.name {
            // Only the rows that are looked up.
            "index_select" | "embedding" if n == 0 => s.stores.iter().map(|st| st.shape.count() as u64).sum::<u64>().min(whole),
            "attention" if (n == 1 || n == 2) && load.shape.rank() >= 2 => {
                let keys = load.shape[load.shape.rank() - 2].max(1);
                whole / keys as u64 * valid.min(keys) as u64
            }
            _ => whole,
        };
        c.read += (bytes as f64 * used as f64 / whole as f64) as u64;
        c.ops += instructions(&load.program) * used;
    }
    for store in &s.stores {
        c.read += store.sources.iter().map(bytes_of).sum::<u64>();
        c.written += bytes_of(&store.target);
        c.ops += instructions(&store.program) * store.shape.count() as u64;
    }
    if let Work::Kernel(kernel) = &s.work {
        let ops = kernel.ops(s);
        // The kernel counts the whole cache.
        c.ops += match s.loads.get(1).map(|k| k.shape) {
            Some(k) if s.name == "attention" && k.rank() >= 2 => {
                let keys = k[k.rank() - 2].max(1) as u64;
                ops / keys * keys.min(valid as u64)
            }
            _ => ops,
        };
    }
    c
}

/// Bytes of the distinct elements that a source reaches.
fn bytes_of(s: &Source) -> u64 {
    if s.buf == Buf::Iota {
        return 0;
    }
    let dims = s.layout.shape.iter().zip(s.layout.strides());
    let elements: usize = dims.filter(|(_, stride)| **stride != 0).map(|(d, _)| *d).product();
    (elements * s.dtype.block_bytes()).div_ceil(s.dtype.block()) as u64
}

fn instructions(p: &Program) -> u64 {
    let computes = |op: &Prim| !matches!(op, Prim::Source(_) | Prim::Lit(_) | Prim::Param(_) | Prim::Value);
    p.insts.iter().filter(|i| computes(&i.op)).count() as u64
}
