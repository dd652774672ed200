//! The cache folder: files appear in it whole and checked, or not at all.

use super::error::{Failed, PullError, Why};
use super::progress::Progress;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A folder for unfinished files, in the same file system as the finished ones. Dropping it removes it.
pub struct Staging {
    folder: PathBuf,
}

impl Staging {
    /// Makes the folder, and clears what a killed process may have left a day ago or earlier.
    pub fn new(cache: &Path) -> Result<Self, PullError> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let stored = |source| PullError::store(cache, source);
        fs::create_dir_all(cache).map_err(stored)?;
        for entry in fs::read_dir(cache).map_err(stored)?.flatten() {
            let ours = entry.file_name().to_string_lossy().starts_with(".partial-");
            let age = entry.metadata().and_then(|m| m.modified()).ok().and_then(|t| t.elapsed().ok());
            if ours && age.is_some_and(|age| age > Duration::from_secs(24 * 3600)) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let folder = cache.join(format!(".partial-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
        fs::create_dir_all(&folder).map_err(stored)?;
        Ok(Self { folder })
    }

    /// The path of the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The expected properties of a file.
#[derive(Debug, Clone, Default)]
pub struct Expected {
    /// Its size.
    pub bytes: Option<u64>,
    /// Its SHA-256 in lower-case hexadecimal.
    pub sha256: Option<String>,
}

/// An unfinished file: hashed while it is written, checked and renamed at the end.
pub struct Sink<'a> {
    file: File,
    path: PathBuf,
    hash: Sha256,
    written: u64,
    progress: Option<&'a Progress>,
}

impl<'a> Sink<'a> {
    /// Begins a file; `progress` counts its bytes.
    pub fn new(staging: &Staging, progress: Option<&'a Progress>) -> Result<Self, PullError> {
        let path = staging.folder().join("file");
        let file = File::create(&path).map_err(|e| PullError::store(&path, e))?;
        Ok(Self { file, path, hash: Sha256::new(), written: 0, progress })
    }

    /// Number of bytes so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Appends to the file.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), PullError> {
        self.file.write_all(bytes).map_err(|e| PullError::store(&self.path, e))?;
        self.hash.update(bytes);
        self.written += bytes.len() as u64;
        if let Some(progress) = self.progress {
            progress.set(self.written);
        }
        Ok(())
    }

    /// Discards the content so far.
    pub fn restart(&mut self) -> Result<(), PullError> {
        self.file.set_len(0).and_then(|()| self.file.rewind()).map_err(|e| PullError::store(&self.path, e))?;
        self.hash = Sha256::new();
        self.written = 0;
        Ok(())
    }

    /// Checks the file, makes it durable and gives it its name.
    pub fn finish(self, expected: &Expected, target: &Path) -> Result<(), Failed> {
        if let Some(bytes) = expected.bytes.filter(|&bytes| bytes != self.written) {
            return Err(Why(format!("it sent {} bytes of {bytes}", self.written)).into());
        }
        let found = hex(&self.hash.finalize());
        if let Some(sha256) = expected.sha256.as_ref().filter(|sha256| **sha256 != found) {
            return Err(Why(format!("its file has SHA-256 {found} and not {sha256}")).into());
        }
        let stored = |e| PullError::store(target, e);
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder).map_err(stored)?;
        }
        self.file.sync_all().map_err(stored)?;
        drop(self.file);
        fs::rename(&self.path, target).map_err(stored)?;
        // The name, too, should survive a power cut; not every system can open a folder.
        if let Some(folder) = target.parent().and_then(|folder| File::open(folder).ok()) {
            let _ = folder.sync_all();
        }
        Ok(())
    }
}

/// The SHA-256 of a file in lower-case hexadecimal.
pub fn sha256_of(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut block = vec![0; 1 << 18];
    loop {
        match file.read(&mut block)? {
            0 => return Ok(hex(&hash.finalize())),
            n => hash.update(&block[..n]),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The folder of models: `$TL_CACHE_DIR/models`, or `tensorlogic/models` in the system's cache folder.
pub fn models_folder(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    if let Some(folder) = variable("TL_CACHE_DIR") {
        return Some(folder.join("models"));
    }
    let caches = if cfg!(windows) {
        variable("LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        variable("HOME").map(|home| home.join("Library/Caches"))
    } else {
        variable("XDG_CACHE_HOME").filter(|folder| folder.is_absolute()).or_else(|| variable("HOME").map(|home| home.join(".cache")))
    };
    caches.map(|folder| folder.join("tensorlogic").join("models"))
}
