//! The ranks of a run: how they begin with what rank 0 found, and whether they read the same text.

use super::corpus::Corpus;
use super::settings::{Recipe, Settings};
use crate::output::Failure;
use serde::{Deserialize, Serialize};
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
