//! `tl top`: memory, utilization and speed of running programs, from what they write with `TL_METRICS`.

use crate::output::{self, Failure, memory};
use crate::watch::{self, Process};
use crate::{Global, interrupt, table};
use clap::Args;
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

/// Show memory, utilization and tokens per second of running programs
#[derive(Args)]
#[command(after_help = "A program writes its metrics four times a second if TL_METRICS names a file, or a folder for several programs:
  TL_METRICS=run.json tl train book.txt -o book &
  tl top run.json

Utilization is the part of looks, 10 ms apart, that found the device computing. In a terminal the table is updated until the programs end or
Ctrl-C; elsewhere, or with --once, it is printed once.")]
pub struct TopArgs {
    /// The file or folder that TL_METRICS named
    #[arg(env = "TL_METRICS")]
    path: PathBuf,
    /// Print the table once
    #[arg(long)]
    once: bool,
}

/// Time between two updates.
const UPDATE: Duration = Duration::from_millis(500);

/// How much a total grew per second between two reads of one device; `None` where it was not there before.
fn rate(before: &[Process], now: &Process, device: &Value, name: &str) -> Option<f64> {
    let old = before.iter().find(|p| p.pid == now.pid)?;
    let same = old.devices.iter().find(|d| d["device"] == device["device"])?;
    let seconds = now.time - old.time;
    (seconds > 0.0).then(|| (Process::number(device, name) - Process::number(same, name)) / seconds)
}

fn shown(value: Option<f64>) -> String {
    value.map_or("-".into(), |v| format!("{v:.1}"))
}

/// A row for each device of each process.
fn rows(before: &[Process], now: &[Process]) -> Vec<Vec<String>> {
    let titles = ["pid", "device", "memory", "peak", "limit", "busy", "tok/s", "eval/s", "GFLOP/s", "problems"];
    let mut rows = vec![titles.map(String::from).to_vec()];
    for (p, d) in now.iter().flat_map(|p| p.devices.iter().map(move |d| (p, d))) {
        let bytes = |name| memory(Process::number(d, name) as usize);
        let limit = if d["pool_limit_bytes"].is_number() { bytes("pool_limit_bytes") } else { "-".into() };
        let busy = d["utilization"].as_f64().map_or("-".into(), |u| format!("{:.0} %", u * 100.0));
        let found = d["findings"].as_array().into_iter().flatten().filter_map(|f| f["name"].as_str()).collect::<Vec<_>>();
        rows.push(vec![
            if p.ended { format!("{} (ended)", p.pid) } else { p.pid.to_string() },
            d["device"].as_str().unwrap_or("?").into(),
            bytes("pool_in_use_bytes"),
            bytes("pool_peak_bytes"),
            limit,
            busy,
            shown(rate(before, p, d, "tokens_total")),
            shown(rate(before, p, d, "evaluations_total")),
            shown(rate(before, p, d, "operations_total").map(|r| r * 1e-9)),
            if found.is_empty() { "none".into() } else { found.join(", ") },
        ]);
    }
    rows
}

/// Runs the subcommand.
pub fn run(args: &TopArgs, global: Global) -> Result<(), Failure> {
    interrupt::install();
    let terminal = std::io::stdout().is_terminal() && !args.once && !global.json;
    let mut before = watch::read(&args.path)?;
    loop {
        std::thread::sleep(UPDATE);
        let now = watch::read(&args.path)?;
        if global.json {
            let devices = now.iter().flat_map(|p| p.devices.iter().map(move |d| (p, d)));
            let values = devices.map(|(p, d)| {
                json!({ "pid": p.pid, "ended": p.ended, "tokens_per_s": rate(&before, p, d, "tokens_total"),
                    "evaluations_per_s": rate(&before, p, d, "evaluations_total"), "metrics": d })
            });
            return output::result(&Value::Array(values.collect()).to_string());
        }
        if terminal {
            // Home, and clear what is below.
            print!("\x1b[H\x1b[J");
        }
        table::lines(&rows(&before, &now), &[2, 3, 4, 5, 6, 7, 8]).iter().try_for_each(|line| output::result(line))?;
        if !terminal || interrupt::requested() || now.iter().all(|p| p.ended) {
            return Ok(());
        }
        before = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_between_two_reads_of_one_process() {
        let process = |pid, time, tokens: f64| Process {
            pid,
            time,
            ended: false,
            devices: vec![
                json!({ "device": "cpu", "tokens_total": tokens, "pool_in_use_bytes": 3145728.0, "utilization": 0.5, "findings": [] }),
            ],
        };
        let now = [process(1, 12.0, 150.0), process(2, 12.0, 9.0)];
        let rows = rows(&[process(1, 10.0, 50.0)], &now);
        assert_eq!(rows[1][..7], ["1", "cpu", "3 MiB", "0 KiB", "-", "50 %", "50.0"]);
        assert_eq!((rows[2][6].as_str(), rows[2][9].as_str()), ("-", "none"));
    }
}
