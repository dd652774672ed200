//! Where GPU backends keep compiled kernels for the next process, and how much time saving them may take.

use super::files::{cache_folder, write_whole};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A file that grew beyond this is begun anew.
pub(super) const MAX_FILE_BYTES: u64 = 256 << 20;
/// Saving may take this time, or compiling's time divided by this.
const SAVE_BUDGET: Duration = Duration::from_millis(50);
const SAVE_TIME_DIVISOR: u32 = 8;

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

/// What describes the system: its kernel's version, which changes with every build of the system.
#[cfg(any(target_vendor = "apple", tensorlogic_fake_metal))]
pub(super) fn system() -> String {
    // SAFETY: `uname` fills the structure with texts that end with a zero.
    unsafe {
        let mut told: libc::utsname = std::mem::zeroed();
        libc::uname(&mut told);
        std::ffi::CStr::from_ptr(told.version.as_ptr()).to_string_lossy().into_owned()
    }
}

/// What an earlier process of this version found out about an adapter on this system, or what `find` finds now, which is kept for the next process. What
/// cannot be read is found anew; errors are not kept.
///
/// # Errors
/// Those of `find`.
#[cfg(any(target_vendor = "apple", tensorlogic_fake_metal))]
pub(super) fn remembered<T: serde::Serialize + serde::de::DeserializeOwned>(
    adapter: &str,
    name: &str,
    find: impl FnOnce() -> crate::error::TensorResult<T>,
) -> crate::error::TensorResult<T> {
    let file = folder(false).map(|f| Summed(place(&f, &format!("{adapter} | {}", system()), [name, "json"]).1));
    let read = |f: &Summed| serde_json::from_slice(&std::fs::read(&f.0).ok()?).ok();
    if let Some(found) = file.as_ref().filter(|f| f.is_whole()).and_then(read) {
        return Ok(found);
    }
    let found = find()?;
    file.and_then(|f| f.replace(|part| std::fs::write(part, serde_json::to_vec(&found).ok()?).ok()));
    Ok(found)
}

/// A file that is read by others, with the sum of its bytes in a file beside it: a damaged one is not read.
#[cfg_attr(not(any(target_vendor = "apple", tensorlogic_fake_metal)), allow(dead_code))]
pub(super) struct Summed(pub PathBuf);

#[cfg_attr(not(any(target_vendor = "apple", tensorlogic_fake_metal)), allow(dead_code))]
impl Summed {
    fn sum(&self) -> PathBuf {
        self.0.with_extension("sum")
    }

    /// Whether the file is there as it was written.
    pub fn is_whole(&self) -> bool {
        let sum =
            std::fs::metadata(&self.0).ok().filter(|m| m.len() <= MAX_FILE_BYTES).and_then(|_| std::fs::read_to_string(self.sum()).ok());
        sum.is_some_and(|sum| std::fs::read(&self.0).is_ok_and(|bytes| sum == format!("{:016x}", hash(&bytes))))
    }

    /// Deletes both; what cannot be deleted is not read either, once one of them is gone.
    pub fn delete(&self) {
        let _ = (std::fs::remove_file(self.sum()), std::fs::remove_file(&self.0));
    }

    /// Has `write` write a file and puts it in this one's place; gives its bytes. `None` where that cannot be: nothing is left behind then.
    pub fn replace(&self, write: impl FnOnce(&Path) -> Option<()>) -> Option<usize> {
        let part = self.0.with_extension(format!("{}.part", std::process::id()));
        let replaced = (|| {
            std::fs::create_dir_all(self.0.parent()?).ok()?;
            write(&part)?;
            let bytes = std::fs::read(&part).ok()?;
            std::fs::rename(&part, &self.0).ok()?;
            write_whole(&self.sum(), format!("{:016x}", hash(&bytes)).as_bytes()).ok()?;
            Some(bytes.len())
        })();
        if replaced.is_none() {
            let _ = std::fs::remove_file(&part);
        }
        replaced
    }
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
        self.saving <= SAVE_BUDGET.max(self.compiling / SAVE_TIME_DIVISOR)
    }

    /// Counts the time that saving takes.
    pub fn spend(&mut self, save: impl FnOnce()) {
        let start = Instant::now();
        save();
        self.saving += start.elapsed();
    }
}
