//! The ranks of a run: how they join, agree on errors, and begin with what rank 0 found.

use super::TrainArgs;
use super::corpus::Corpus;
use super::settings::{Recipe, Settings};
use crate::Global;
use crate::output::{self, Failure};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tensorlogic::Device;
use tensorlogic::backends::gpu::{AdapterDescription, adapters};
use tensorlogic::distributed::{self, Candidate, Ranks, Vote, check_devices, gpu_of_rank};

/// Joins the ranks that a launcher started, or none.
pub fn join(args: &TrainArgs) -> Result<Ranks, Failure> {
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
        ranks.leave();
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
    ranks.leave();
    result.map_err(|e| match e {
        Failure::Interrupted => e,
        Failure::Usage(_) => Failure::Told(2),
        _ => Failure::Told(1),
    })
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

/// Opens the device of this rank. Where none is named by number, each rank of a machine takes a GPU of its own.
pub fn open_device(args: &TrainArgs, ranks: &Ranks) -> Result<Device, Failure> {
    let any = matches!(args.device.as_str(), "auto" | "gpu") && ranks.size() > 1;
    let own = match any {
        true => gpu_of_rank(&candidates(), ranks.transport().local_rank(), args.share_device)?,
        false => None,
    };
    crate::model::open_device(own.as_deref().unwrap_or(&args.device))
}

/// Two ranks on one GPU would take turns: an error, unless it was asked for.
pub fn check_device(args: &TrainArgs, ranks: &Ranks, device: &Device) -> Result<(), Failure> {
    if ranks.size() == 1 || args.share_device {
        return Ok(());
    }
    let by_name = |c: &Candidate| c.selector == args.device || args.device == "vulkan" && c.selector == "vulkan:0";
    let named = || candidates().into_iter().find(by_name);
    let of_rank = || gpu_of_rank(&candidates(), ranks.transport().local_rank(), false).ok().flatten();
    let taken = || of_rank().and_then(|s| candidates().into_iter().find(|c| c.selector == s));
    let address = match args.device.as_str() {
        _ if device.is_cpu() => None,
        "auto" | "gpu" => taken(),
        _ => named(),
    };
    Ok(check_devices(ranks, &address.map_or(String::new(), |c| c.address))?)
}

/// What rank 0 found in the folder.
#[derive(Serialize, Deserialize)]
pub struct Beginning {
    /// The run's settings, as TOML.
    pub settings: String,
    /// The step of the checkpoint to go on from.
    pub step: Option<u64>,
}

/// Where the others begin: as rank 0 does.
pub fn share(ranks: &Ranks, beginning: Option<Beginning>) -> Result<Beginning, Failure> {
    let error = |e: serde_json::Error| Failure::Error(format!("the settings of rank 0: {e}"));
    let bytes = beginning.map(|b| serde_json::to_vec(&b)).transpose().map_err(error)?.unwrap_or_default();
    serde_json::from_slice(&ranks.share(bytes)?).map_err(error)
}

/// The settings that rank 0 sent.
pub fn parse(beginning: &Beginning) -> Result<(Settings, Recipe), Failure> {
    let settings = Settings::parse(&beginning.settings).map_err(Failure::Error)?;
    let recipe = settings.recipe()?;
    Ok((settings, recipe))
}

/// Compares the texts that the ranks read: their tokenizer, length, and samples of their tokens.
pub fn check_corpus(ranks: &Ranks, corpus: &Corpus) -> Result<(), Failure> {
    const SAMPLES: usize = 4096;
    let mix = |h: u64, v: u64| (h ^ v).wrapping_mul(0x100_0000_01b3).rotate_left(5);
    let mut words = vec![corpus.tokenizer_json.iter().fold(7, |h, b| mix(h, u64::from(*b)))];
    let mut read = Ok(());
    for (tokens, range) in corpus.val.iter().chain([&corpus.train]) {
        let (len, mut token) = (range.len(), [0; 1]);
        let mut sum = mix(mix(7, range.start as u64), len as u64);
        for n in 0..SAMPLES.min(len) {
            read = read.and(tokens.read(range.start + n * len / SAMPLES.min(len), &mut token));
            sum = mix(sum, token[0] as u64);
        }
        words.push(sum);
    }
    ranks.all_ok(read)?;
    // Held-out text has a word of its own where there is any.
    words.resize(3, 0);
    match ranks.differences(&words)?.first() {
        None => Ok(()),
        Some((rank, _)) => {
            Err(ranks.all_failed(format!("rank {rank} reads another text or tokenizer than rank 0; all need the same files")).into())
        }
    }
}
