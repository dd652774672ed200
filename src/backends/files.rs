//! The user's cache folder: where it is, and files in it that are there whole or not at all.

use std::path::{Path, PathBuf};

/// The user's cache folder for this library: `TL_CACHE_DIR`, or `tensorlogic` in the system's.
pub fn cache_folder() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(folder) = variable("TL_CACHE_DIR") {
        return Some(folder);
    }
    let caches = if cfg!(windows) {
        variable("LOCALAPPDATA")
    } else if cfg!(target_vendor = "apple") {
        variable("HOME").map(|home| home.join("Library/Caches"))
    } else {
        variable("XDG_CACHE_HOME").filter(|f| f.is_absolute()).or_else(|| variable("HOME").map(|home| home.join(".cache")))
    };
    Some(caches?.join("tensorlogic"))
}

/// Writes a file beside its place and moves it there: whoever reads sees the old content or the new.
///
/// # Errors
/// If the folder cannot be made or written; the file is then as it was.
pub(crate) fn write_whole(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let part = file.with_extension(format!("{}.part", std::process::id()));
    let written = std::fs::write(&part, bytes).and_then(|()| std::fs::rename(&part, file));
    if written.is_err() {
        let _ = std::fs::remove_file(&part);
    }
    written
}
