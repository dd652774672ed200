//! Compiled kernels kept on disk for the next process: one file for each adapter, driver and version of this library.

use super::driver::Driver;
use crate::backends::files::write_whole;
use crate::backends::kept::{self, MAX_FILE_BYTES, SaveBudget, hash};
use crate::events;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

const MAGIC: [u8; 8] = *b"TLPIPES1";
/// The driver's compiled kernels, and which shaders they are of.
pub(super) struct CompiledCache {
    /// What pipelines are made with.
    pub raw: wgpu::PipelineCache,
    pub file: PathBuf,
    key: String,
    sources: HashSet<u64>,
    /// Whether the file lacks some.
    dirty: bool,
    budget: SaveBudget,
}

impl CompiledCache {
    /// What earlier processes compiled; `None` where nothing can be kept. A file that is damaged or another adapter's counts as empty.
    pub fn open(driver: &Driver, folder: Option<&Path>, adapter: &str) -> Option<CompiledCache> {
        let folder = folder.filter(|_| driver.device.features().contains(wgpu::Features::PIPELINE_CACHE))?;
        let (key, file) = kept::place(folder, adapter, ["pipelines", "bin"]);
        let (sources, data) = load(&file, &key).unwrap_or_default();
        events::kernel_cache_opened(sources.len(), data.len());
        let descriptor = wgpu::PipelineCacheDescriptor { label: None, data: Some(&data[..]).filter(|d| !d.is_empty()), fallback: true };
        // SAFETY: the data came from `PipelineCache::get_data` for this adapter, driver and version, which `load` has checked with its sum.
        let raw = driver.guarded(|| unsafe { driver.device.create_pipeline_cache(&descriptor) }).ok()?;
        Some(CompiledCache { raw, file, key, sources, dirty: false, budget: SaveBudget::default() })
    }

    /// Notes a shader that was compiled; tells whether the file had it.
    pub fn add(&mut self, source: &str) -> bool {
        let new = self.sources.insert(hash(source));
        self.dirty |= new;
        !new
    }

    /// Counts the time that compiling took, and writes the file where it lacks something, unless that was done often enough for the time
    /// that it takes. A folder that cannot be written is not an error: the next process compiles again.
    pub fn save(&mut self, compiling: Duration) {
        if self.budget.allows(compiling) {
            self.write();
        }
    }

    /// Writes the file where it lacks something.
    fn write(&mut self) {
        if !self.dirty {
            return;
        }
        self.dirty = false;
        let CompiledCache { raw, file, key, sources, budget, .. } = self;
        budget.spend(|| {
            if let Some(data) = raw.get_data().filter(|data| store(file, key, sources, data).is_ok()) {
                events::kernel_cache_saved(data.len());
            }
        });
    }
}

impl Drop for CompiledCache {
    /// What was compiled after the budget was spent.
    fn drop(&mut self) {
        self.write();
    }
}

/// The file: a magic word, the sum of what follows, the key, the shaders, the driver's data.
fn store(file: &Path, key: &str, sources: &HashSet<u64>, data: &[u8]) -> std::io::Result<()> {
    let mut all = Vec::with_capacity(32 + key.len() + 8 * sources.len() + data.len());
    all.extend(MAGIC);
    all.extend([0; 8]);
    all.extend((key.len() as u32).to_le_bytes());
    all.extend(key.as_bytes());
    all.extend((sources.len() as u32).to_le_bytes());
    let mut sorted: Vec<u64> = sources.iter().copied().collect();
    sorted.sort_unstable();
    sorted.iter().for_each(|t| all.extend(t.to_le_bytes()));
    all.extend(data);
    let sum = hash(&all[16..]);
    all[8..16].copy_from_slice(&sum.to_le_bytes());
    write_whole(file, &all)
}

/// The shaders and the driver's data of a file, when it is whole and has this key.
fn load(file: &Path, key: &str) -> Option<(HashSet<u64>, Vec<u8>)> {
    if std::fs::metadata(file).ok()?.len() > MAX_FILE_BYTES {
        return None;
    }
    let all = std::fs::read(file).ok()?;
    let (magic, rest) = all.split_first_chunk::<8>()?;
    let (sum, rest) = rest.split_first_chunk::<8>()?;
    if *magic != MAGIC || u64::from_le_bytes(*sum) != hash(rest) {
        return None;
    }
    let (len, rest) = rest.split_first_chunk::<4>()?;
    let (own, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    let (count, rest) = rest.split_first_chunk::<4>()?;
    let (sources, data) = rest.split_at_checked((u32::from_le_bytes(*count) as usize).checked_mul(8)?)?;
    let sources = sources.as_chunks::<8>().0.iter().map(|t| u64::from_le_bytes(*t)).collect();
    (own == key.as_bytes()).then(|| (sources, data.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::{HashSet, load, store};

    #[test]
    fn only_a_whole_file_of_the_same_key_is_taken() {
        let folder = std::env::temp_dir().join(format!("tl-pipelines-{}", std::process::id()));
        let file = folder.join("deep/pipelines.bin");
        let (key, sources, data) = ("adapter | 1", HashSet::from([7, 9, u64::MAX]), [3u8; 1000]);
        store(&file, key, &sources, &data).unwrap();
        let whole = std::fs::read(&file).unwrap();
        let check = |what: &str, bytes: &[u8], key: &str, expect: bool| {
            std::fs::write(&file, bytes).unwrap();
            let got = load(&file, key);
            assert_eq!(got.is_some(), expect, "{what}");
            if let Some((t, d)) = got {
                assert_eq!((t, &d[..]), (sources.clone(), &data[..]), "{what}");
            }
        };
        check("as written", &whole, key, true);
        check("another adapter, driver or version", &whole, "adapter | 2", false);
        for len in [0, 1, 8, 15, 16, 20, 40, whole.len() - 1] {
            check(&format!("cut to {len} bytes"), &whole[..len], key, false);
        }
        check("with more behind it", &[&whole[..], &[0]].concat(), key, false);
        for at in [0, 9, 17, 30, 60, whole.len() - 1] {
            let mut bad = whole.clone();
            bad[at] ^= 0x10;
            check(&format!("byte {at} changed"), &bad, key, false);
        }
        // Nothing but the file itself is left behind.
        assert_eq!(std::fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
        // A place that cannot be written, and one that cannot be read.
        let inside = file.join("x.bin");
        assert!(store(&inside, key, &sources, &data).is_err() && load(&inside, key).is_none());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
