//! Writing a file so that a crash leaves either the old one or the new one.

use crate::error::{TensorError, TensorResult};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Writes `path` through `write`: into a new file beside it, which is made durable and then renamed over `path`.
///
/// Readers that have the old file mapped keep it. On an error before the renaming the new file is removed and the old one is untouched; after it, only
/// the folder is made durable, and the new one stands.
///
/// # Errors
/// [`TensorError::Io`] where `path` is not a file name, is there and is not a regular file, or `write` or the system fails.
///
/// ```
/// use std::io::Write;
/// use tensorlogic::io::save::save;
/// let path = std::env::temp_dir().join(format!("tl-doc-save-{}", std::process::id()));
/// save(&path, |out| out.write_all(b"first"))?;
/// assert!(save(&path, |_| Err(std::io::Error::other("no more data"))).is_err());
/// assert_eq!(std::fs::read(&path)?, b"first"); // still the old file
/// # std::fs::remove_file(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn save(path: impl AsRef<Path>, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> TensorResult<()> {
    let path = path.as_ref();
    let name = path.file_name().ok_or_else(|| TensorError::Io { path: path.into(), message: "is not a file name".into() })?;
    if path.exists() && !path.is_file() {
        // A device would be replaced by a file.
        return Err(TensorError::Io { path: path.into(), message: "exists and is not a regular file".into() });
    }
    let folder = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    let mut temporary_name = std::ffi::OsString::from(".");
    temporary_name.push(name);
    // Two threads that save under one name must not write into one file.
    static SAVES: AtomicU64 = AtomicU64::new(0);
    temporary_name.push(format!(".{}-{}.tmp", std::process::id(), SAVES.fetch_add(1, Ordering::Relaxed)));
    let temporary = folder.join(temporary_name);

    let written = (|| {
        let mut out = BufWriter::with_capacity(1 << 20, File::create(&temporary)?);
        write(&mut out)?;
        out.flush()?;
        out.get_ref().sync_all()?;
        drop(out);
        std::fs::rename(&temporary, path)
    })();
    if let Err(e) = written {
        // The first error is the one to report.
        let _ = std::fs::remove_file(&temporary);
        return Err(super::disk::write_error(path, e, 0));
    }
    // The rename itself is durable once the folder is; a system that cannot open a folder as a file has no such call.
    #[cfg(unix)]
    File::open(folder).and_then(|f| f.sync_all()).map_err(|e| TensorError::io(path, e))?;
    crate::events::file_saved(&path.to_string_lossy());
    Ok(())
}

/// Lets `path` have the bytes of the file `from` as well, without a copy where the file system can; made durable, and whole or not at all.
///
/// # Errors
/// The system's; what was at `path` is untouched then.
///
/// ```
/// use tensorlogic::io::save::link;
/// let from = std::env::temp_dir().join(format!("tl-doc-link-from-{}", std::process::id()));
/// let path = from.with_file_name(format!("tl-doc-link-{}", std::process::id()));
/// std::fs::write(&from, "weights")?;
/// link(&from, &path)?;
/// std::fs::remove_file(from)?; // the other name keeps the bytes
/// assert_eq!(std::fs::read(&path)?, b"weights");
/// # std::fs::remove_file(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn link(from: impl AsRef<Path>, path: impl AsRef<Path>) -> TensorResult<()> {
    let (from, path) = (from.as_ref(), path.as_ref());
    let name = path.file_name().ok_or_else(|| TensorError::Io { path: path.into(), message: "is not a file name".into() })?;
    let mut temporary_name = std::ffi::OsString::from(".");
    temporary_name.push(name);
    temporary_name.push(format!(".{}-link.tmp", std::process::id()));
    let temporary = path.with_file_name(temporary_name);
    let _ = std::fs::remove_file(&temporary);
    if std::fs::hard_link(from, &temporary).is_err() {
        let mut source = File::open(from).map_err(|e| TensorError::io(from, e))?;
        return save(path, |out| io::copy(&mut source, out).map(|_| ()));
    }
    if let Err(e) = std::fs::rename(&temporary, path) {
        let _ = std::fs::remove_file(&temporary);
        return Err(TensorError::io(path, e));
    }
    // Renaming one name of a file over another of the same file does nothing, and leaves both.
    let _ = std::fs::remove_file(&temporary);
    super::folder::sync_folder(path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")))
}
