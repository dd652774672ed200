//! `tl devices`: what this machine can compute on.

use crate::output::{self, Failure};
use crate::{Global, model, table};
use clap::Args;
use serde_json::json;
use tensorlogic::Device;
use tensorlogic::backends::{cpu, gpu};
use tensorlogic::io::human_bytes;

/// Show the processors and graphics adapters of this machine
#[derive(Args)]
#[command(after_help = "The first column lists the names that --device and TL_DEVICE accept; a star marks the choice of `auto`.

Environment:
  TL_DEVICE        default device of every command
  TL_NUM_THREADS   threads on the CPU
  TL_CPU           instruction set on the CPU: plain; avx2, avx512; neon, dotprod, i8mm, bf16
  TL_NO_FUSION     1 disables fusion: every operation is its own dispatch")]
pub struct DevicesArgs {}

/// Runs the subcommand.
pub fn run(_: &DevicesArgs, global: Global) -> Result<(), Failure> {
    let auto = Device::open("auto")?.name();
    if let Some(Err(e)) = std::env::var("TL_DEVICE").ok().map(|name| model::open_device(&name)) {
        output::note(&e.to_string());
    }
    let cpu = Device::cpu();
    let instructions = cpu::instructions()?;
    let adapters = gpu::adapters();
    if global.json {
        let gpus: Vec<_> = adapters
            .iter()
            .map(|a| {
                json!({ "device": format!("{}:{}", a.backend, a.index), "name": a.name, "kind": a.kind, "driver": a.driver,
                    "memory_bytes": a.memory, "features": a.features, "software": a.software })
            })
            .collect();
        let cpu = json!({ "device": "cpu", "name": cpu.name(), "threads": cpu::threads(), "instructions": instructions });
        return output::result(&json!({ "auto": auto, "cpu": cpu, "gpus": gpus }).to_string());
    }
    let star = |name: &str| if name == auto { "*" } else { " " }.to_string();
    let mut rows = vec![vec![star(&cpu.name()), "cpu".into(), format!("{} threads, {instructions} instructions", cpu::threads())]];
    let mut seen = false;
    for a in &adapters {
        // Two adapters of one name: `auto` takes the first.
        let chosen = !seen && !a.software && format!("{} ({})", a.name, a.backend) == auto;
        seen |= chosen;
        let memory = a.memory.map(|m| format!(", {}", human_bytes(m))).unwrap_or_default();
        let software = if a.software { "; software, used only when named" } else { "" };
        rows.push(vec![
            if chosen { "*".into() } else { " ".into() },
            format!("{}:{}", a.backend, a.index),
            format!("{}, {}{memory}; {}; {}{software}", a.name, a.kind, a.driver, a.features.join(", ")),
        ]);
    }
    table::lines(&rows, &[]).iter().try_for_each(|line| output::result(line))?;
    if adapters.is_empty() && !global.quiet {
        output::note("no graphics adapter found (Vulkan, Metal, DX12)");
    }
    Ok(())
}
