//! Where GPU backends keep compiled kernels for the next process, and how much time saving them may take.

use super::files::cache_folder;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A file that grew beyond this is begun anew.
pub(super) const MAX_FILE_BYTES: u64 = 256 << 20;
/// Saving may cost this time, or this part of what compiling costs.
const SAVE_BUDGET: Duration = Duration::from_millis(50);
const SHARE: u32 = 8;

/// A number that stands for a value, the same in every process of this version.
pub(super) fn hash(value: impl Hash) -> u64 {
    let mut h = DefaultHasher::new();
    value.hash(&mut h);
    h.finish()
}

/// The folder where kernels are kept: none for software adapters, whose compilers are quick, unless the environment says so.
pub(super) fn folder(software: bool) -> Option<PathBuf> {
    let wanted = std::env::var("TL_PIPELINE_CACHE").map_or(!software, |v| v != "0");
    wanted.then(cache_folder).flatten()
}

/// The key of what is kept for an adapter and its driver by this version of the library, and its file, `NAME-….ENDING`.
pub(super) fn place(folder: &Path, adapter: &str, [name, ending]: [&str; 2]) -> (String, PathBuf) {
    let key = format!("{adapter} | {}", env!("CARGO_PKG_VERSION"));
    let file = folder.join(format!("{name}-{:016x}.{ending}", hash(&key)));
    (key, file)
}

/// The time that compiling and saving took.
#[derive(Default)]
pub(super) struct SaveBudget {
    compiling: Duration,
    saving: Duration,
}

impl SaveBudget {
    /// Counts the time that compiling took; whether there is time to save.
    pub fn allows(&mut self, compiling: Duration) -> bool {
        self.compiling += compiling;
        self.saving <= SAVE_BUDGET.max(self.compiling / SHARE)
    }

    /// Counts the time that saving takes.
    pub fn spend(&mut self, save: impl FnOnce()) {
        let start = Instant::now();
        save();
        self.saving += start.elapsed();
    }
}
