//! The ranks of a run: how they begin with what rank 0 found, and whether they read the same text.

use super::corpus::Corpus;
use super::settings::{Recipe, Settings};
use crate::Global;
use crate::output::{self, Failure};
use serde::{Deserialize, Serialize};
use tensorlogic::Device;
use tensorlogic::backends::gpu::adapters;
use tensorlogic::distributed::Ranks;

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

/// Notes where ranks compute by different means: another version of this program, other instructions, another driver or tuning table. All take the same
/// sums even so; but another number of them makes other bits, and where updates come out differently a save finds it.
pub fn compare_means(ranks: &Ranks, device: &Device, global: Global) -> Result<(), Failure> {
    if ranks.size() == 1 {
        return Ok(());
    }
    // A processor's name ends with its instructions; the number of threads before changes no bit.
    let name = device.name();
    let processor = name.rsplit_once(", ").map_or(&name[..], |(_, instructions)| instructions);
    let driver = match device.is_cpu() {
        true => processor.to_string(),
        false => adapters().iter().filter(|a| name.contains(&a.name)).map(|a| format!("{} {}", a.name, a.driver)).collect(),
    };
    let hash = |text: &str| text.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    let words = [hash(env!("CARGO_PKG_VERSION")), hash(&driver), device.tuning().map_or(0, |t| t.id())];
    let differ = ranks.differences(&words)?;
    if let (Some(&(rank, at)), false) = (differ.first(), global.quiet) {
        let what = ["another version of tl", "another device or driver", "another tuning table"][at];
        let m = format!("rank {rank} computes with {what} than rank 0");
        output::note(&format!("tl: {m}: results depend on the number of ranks, and saving fails if the parameters of ranks differ"));
    }
    Ok(())
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
