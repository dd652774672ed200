//! Writing a file so that a crash leaves either the old one or the new one.

use crate::error::{TensorError, TensorResult};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Writes `path` through `write`: into a new file beside it, which is made durable and then renamed over `path`.
///
/// Readers that have the old file mapped keep it. On any error the new file is removed and the old one is untouched.
pub fn save(path: impl AsRef<Path>, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> TensorResult<()> {
    let path = path.as_ref();
    let fail = |e| TensorError::io(path, e);
    let name = path.file_name().ok_or_else(|| TensorError::Io { path: path.into(), message: "is not a file name".into() })?;
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
        return Err(fail(e));
    }
    // The rename itself is durable once the folder is; a system that cannot open a folder as a file has no such call.
    #[cfg(unix)]
    File::open(folder).and_then(|f| f.sync_all()).map_err(fail)?;
    Ok(())
}
