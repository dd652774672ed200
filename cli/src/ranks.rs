//! The ranks that a launcher started: how a command joins them, which device each opens, and how all end together.

use crate::output::{self, Failure};
use crate::{Global, interrupt};
use clap::Args;
use std::time::Duration;
use tensorlogic::Device;
use tensorlogic::backends::gpu::{AdapterDescription, adapters};
use tensorlogic::distributed::{self, Candidate, Ranks, Vote, check_devices, gpu_of_rank};

/// Options of commands that run on several ranks.
#[derive(Args, Clone, Debug, Default)]
pub struct RankArgs {
    /// Under mpirun or srun: ranks of a machine may share a GPU, which slows them down
    #[arg(long)]
    pub share_device: bool,
    /// Under mpirun or srun: seconds that a rank waits for the others before it ends the job; longer than an evaluation and a save take [default: 600]
    #[arg(long, value_name = "SECONDS")]
    pub rank_timeout: Option<f64>,
}

/// Joins the ranks that a launcher started, or none.
pub fn join(args: &RankArgs) -> Result<Ranks, Failure> {
    let timeout = args.rank_timeout.unwrap_or(distributed::RANK_TIMEOUT.as_secs_f64());
    if !(timeout.is_finite() && timeout > 0.0) {
        return Err(Failure::Usage(format!("--rank-timeout: {timeout} is not a positive number of seconds")));
    }
    Ok(distributed::join(Duration::from_secs_f64(timeout.min(1e9)), |words| output::note(&format!("tl: {words}")))?)
}

/// What a rank prints: only rank 0 speaks.
pub fn global_of(ranks: &Ranks, global: Global) -> Global {
    if ranks.is_first() { global } else { Global { quiet: true, json: false } }
}

/// Ends a rank: an error of one is the end of all, and the rank that had it says why.
pub fn end(ranks: &Ranks, result: Result<(), Failure>) -> Result<(), Failure> {
    if ranks.size() == 1 {
        leave(ranks, &result);
        return result;
    }
    let failed = !matches!(result, Ok(()) | Err(Failure::Interrupted));
    if failed {
        ranks.fail();
        // Before the rank leaves: the launcher ends those that are left when the first has gone.
        if let (Err(e), false) = (&result, ranks.is_told_elsewhere()) {
            output::note(&format!("tl: rank {} of {}: {e}", ranks.rank(), ranks.size()));
        }
    }
    let result = result.map_err(|e| match e {
        Failure::Interrupted => e,
        Failure::Usage(_) => Failure::Told(2),
        _ => Failure::Told(1),
    });
    leave(ranks, &result);
    result
}

/// Leaves the other ranks. The library may wait for them without end: Ctrl-C and SIGTERM end the process there, and so does time.
fn leave(ranks: &Ranks, result: &Result<(), Failure>) {
    interrupt::leave();
    ranks.leave_with(result.as_ref().map_or_else(|e| i32::from(e.number()), |()| 0));
}

/// How many processors a list such as `0-3,8` names.
fn processors(list: &str) -> usize {
    let number = |t: &str| t.trim().parse::<usize>().ok();
    list.split(',')
        .filter_map(|part| part.split_once('-').map_or(number(part).map(|_| 1), |(a, b)| Some(number(b)? + 1 - number(a)?)))
        .sum()
}

/// Notes where a rank may use fewer processors than its machine has, and than its threads want: launchers bind ranks to cores, some of them to one each.
pub fn note_binding(ranks: &Ranks, global: Global) -> Result<(), Failure> {
    if ranks.size() == 1 {
        return Ok(());
    }
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let status = read("/proc/self/status");
    let own = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).map_or(0, processors);
    let all = processors(&read("/sys/devices/system/cpu/online"));
    let wanted = std::env::var("TL_NUM_THREADS").ok().and_then(|n| n.parse().ok()).unwrap_or(all).min(all);
    let words = ranks.gather_words(if own < wanted { (own as u64) << 32 | all as u64 } else { 0 })?;
    let bound = words.iter().enumerate().filter(|(_, w)| **w != 0).min_by_key(|(_, w)| **w >> 32);
    if let (Some((rank, w)), false) = (bound, global.quiet) {
        let (own, all) = (w >> 32, w & u64::from(u32::MAX));
        let m =
            format!("rank {rank} may use {own} of its machine's {all} processors: with Open MPI, mpirun --bind-to none lets it use all");
        output::note(&format!("tl: {m}"));
    }
    Ok(())
}

/// Passes a result on where all ranks have one. Where one has an error, it is the end of all.
pub fn together<T>(ranks: &Ranks, result: Result<T, Failure>) -> Result<T, Failure> {
    if result.is_err() {
        ranks.fail();
    } else {
        ranks.agree(Vote::GoOn)?;
    }
    result
}

/// The GPUs that ranks of this machine may take.
fn candidates() -> Vec<Candidate> {
    let of = |a: AdapterDescription| Candidate { selector: format!("{}:{}", a.backend, a.index), kind: a.kind, address: a.address };
    adapters().into_iter().filter(|a| !a.software).map(of).collect()
}

/// Opens the device of this rank by its name. Where none is named by number, each rank of a machine takes a GPU of its own.
pub fn open_device(name: &str, args: &RankArgs, ranks: &Ranks) -> Result<Device, Failure> {
    let any = matches!(name, "auto" | "gpu") && ranks.size() > 1;
    let own = match any {
        true => gpu_of_rank(&candidates(), ranks.transport().local_rank(), args.share_device)?,
        false => None,
    };
    crate::model::open_device(own.as_deref().unwrap_or(name))
}

/// Two ranks on one GPU would take turns: an error, unless it was asked for.
pub fn check_device(name: &str, args: &RankArgs, ranks: &Ranks, device: &Device) -> Result<(), Failure> {
    if ranks.size() == 1 || args.share_device {
        return Ok(());
    }
    let by_name = |c: &Candidate| c.selector == name || name == "vulkan" && c.selector == "vulkan:0";
    let named = || candidates().into_iter().find(by_name);
    let of_rank = || gpu_of_rank(&candidates(), ranks.transport().local_rank(), false).ok().flatten();
    let taken = || of_rank().and_then(|s| candidates().into_iter().find(|c| c.selector == s));
    let address = match name {
        _ if device.is_cpu() => None,
        "auto" | "gpu" => taken(),
        _ => named(),
    };
    Ok(check_devices(ranks, &address.map_or(String::new(), |c| c.address))?)
}

#[cfg(test)]
mod tests {
    #[test]
    fn lists_of_processors_are_counted() {
        for (list, n) in [("0-3,8", 5), ("\t0-1\n", 2), ("7", 1), ("", 0)] {
            assert_eq!(super::processors(list), n, "{list:?}");
        }
    }
}
