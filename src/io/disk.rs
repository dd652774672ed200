//! Errors of failed writes, with one wording for a full disk.

use crate::error::TensorError;
use std::io;
use std::path::Path;

/// The error of a write that failed and left what was at `path` before as it was. `held` are bytes that the unfinished file still takes.
///
/// Where the disk is full (or a quota used up), it says so, how much room there is, and that what was there before is untouched.
pub fn write_error(path: &Path, error: io::Error, held: u64) -> TensorError {
    explained(TensorError::io(path, error), held)
}

/// Adds the hint about a full disk to an existing error; other errors are returned unchanged.
pub(super) fn explained(error: TensorError, held: u64) -> TensorError {
    match error {
        TensorError::Io { path, message } if TensorError::FULL.contains(&message.as_str()) => {
            let left = free_space(&path).map_or(String::new(), |bytes| format!(" ({} left)", human_bytes(bytes + held)));
            let message = format!("{message}{left}: it was not written; what was there before is untouched");
            TensorError::Io { path, message }
        }
        other => other,
    }
}

/// Bytes that this user can still write at `path`; `None` if the system does not report it.
pub fn free_space(path: &Path) -> Option<u64> {
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        let folder = path.ancestors().skip(1).find(|p| p.as_os_str().is_empty() || p.is_dir())?;
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let name = std::ffi::CString::new(folder.as_os_str().as_bytes()).ok()?;
        // SAFETY: a plain structure of integers, for which zeros are a value.
        let mut info: libc::statvfs = unsafe { std::mem::zeroed() };
        // SAFETY: a C string and a structure that live through the call.
        let failed = unsafe { libc::statvfs(name.as_ptr(), &mut info) };
        // Its fields have other widths on other systems.
        #[allow(clippy::unnecessary_cast)]
        (failed == 0).then(|| (info.f_bavail as u64).saturating_mul(info.f_frsize as u64))
    }
    #[cfg(not(unix))]
    {
        let _ = path;
        None
    }
}

/// Bytes as people write them: `512 B`, `3 KiB`, `97 MiB`, `1.5 GiB`.
pub fn human_bytes(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.0} KiB", bytes as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.0} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.1} GiB", bytes as f64 / 1_073_741_824.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::save::save;
    use crate::io::save_folder;

    #[test]
    fn a_full_disk_is_said_in_the_same_words_by_every_writer() {
        let folder = std::env::temp_dir().join(format!("tl-disk-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let check = |what: &str, name: &str, error: TensorError| {
            let text = error.to_string();
            let (begin, end) = (folder.join(name).display().to_string(), "left): it was not written; what was there before is untouched");
            assert!(text.starts_with(&format!("{begin}: {what} (")) || cfg!(not(unix)), "{text}");
            assert!(text.ends_with(end) || cfg!(not(unix)), "{text}");
        };
        use std::io::ErrorKind::{QuotaExceeded, StorageFull};
        std::fs::write(folder.join("x"), "old").unwrap();
        check("the disk is full", "x", save(folder.join("x"), |_| Err(StorageFull.into())).unwrap_err());
        check("the disk quota is used up", "x", save(folder.join("x"), |_| Err(QuotaExceeded.into())).unwrap_err());
        assert_eq!(std::fs::read(folder.join("x")).unwrap(), b"old");
        // The file that was being written is named by where it would have been.
        let full = |out: &mut crate::io::FolderWriter| {
            out.bytes("first", b"1")?;
            out.file("second", |w| Err(TensorError::io(w.path(), StorageFull.into())))
        };
        check("the disk is full", "new/second", save_folder(folder.join("new"), full).unwrap_err());
        assert!(!folder.join("new").exists());
        check("the disk is full", "y/z", write_error(&folder.join("y/z"), StorageFull.into(), 5));
        // Others stay what they are.
        let other = save(folder.join("x"), |_| Err(std::io::ErrorKind::PermissionDenied.into())).unwrap_err().to_string();
        assert!(other.ends_with("permission denied"), "{other}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
