//! A file's bytes, mapped or owned, that buffers may point into without copying.

use crate::error::{TensorError, TensorResult};
use std::fmt;
use std::fs::{File, Metadata};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The bytes of a file: a memory map, or a vector that was read or made elsewhere. Derefs to `[u8]`.
///
/// Share it as `Arc<MappedFile>`: whoever points into the bytes keeps the map alive.
pub struct MappedFile {
    bytes: Bytes,
    origin: Option<Origin>,
}

enum Bytes {
    Map(memmap2::Mmap),
    Owned(Vec<u8>),
}

/// What the file looked like when it was mapped.
struct Origin {
    path: PathBuf,
    file: File,
    modified: Option<SystemTime>,
}

impl MappedFile {
    /// Maps a regular file read-only. Directories, pipes and devices are refused.
    ///
    /// # Errors
    /// [`TensorError::Io`] where the path does not name a regular file, or it cannot be opened or mapped.
    ///
    /// ```
    /// use tensorlogic::io::MappedFile;
    /// let file = MappedFile::open("models/tiny/tiny.gguf")?;
    /// assert_eq!(&file[..4], b"GGUF");
    /// assert!(MappedFile::open("models/tiny").is_err()); // a directory
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn open(path: impl AsRef<Path>) -> TensorResult<MappedFile> {
        let path = path.as_ref();
        let fail = |e| TensorError::io(path, e);
        // Asked before opening, because opening a pipe waits for its writer.
        regular(path, &std::fs::metadata(path).map_err(fail)?)?;
        let file = File::open(path).map_err(fail)?;
        let meta = file.metadata().map_err(fail)?;
        regular(path, &meta)?;
        let format = path.extension().and_then(|e| e.to_str()).unwrap_or("");
        crate::events::file_opened(format, &path.to_string_lossy(), meta.len() as usize);
        let bytes = if meta.len() == 0 {
            Bytes::Owned(Vec::new())
        } else {
            // SAFETY: the map is read-only and private to this value, and only read as plain bytes. Another process may still
            // change or cut the file; `check` reports that, and no value read from the bytes is trusted without a check.
            Bytes::Map(unsafe { memmap2::Mmap::map(&file) }.map_err(fail)?)
        };
        Ok(MappedFile { bytes, origin: Some(Origin { path: path.into(), file, modified: meta.modified().ok() }) })
    }

    /// Whether the file is still what was mapped: an error when it became shorter or was written to since.
    ///
    /// Reading a part of a map that the file no longer has kills the process, so ask before long reads of a file that others
    /// may write. Owned bytes are always fine; so is a file that was replaced by renaming another one over it.
    ///
    /// # Errors
    /// [`TensorError::Io`] where the file became shorter, was written to, or cannot be asked for its length.
    ///
    /// ```
    /// use tensorlogic::io::MappedFile;
    /// let path = std::env::temp_dir().join(format!("tl-doc-mapped-check-{}", std::process::id()));
    /// std::fs::write(&path, "1234")?;
    /// let file = MappedFile::open(&path)?;
    /// file.check()?;
    /// std::fs::write(&path, "12")?;
    /// assert!(file.check().unwrap_err().to_string().contains("was 4 bytes when it was opened and is 2 now"));
    /// # std::fs::remove_file(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check(&self) -> TensorResult<()> {
        let Some(origin) = &self.origin else { return Ok(()) };
        let now = origin.file.metadata().map_err(|e| TensorError::io(&origin.path, e))?;
        let message = if now.len() < self.len() as u64 {
            format!("was {} bytes when it was opened and is {} now; load it again", self.len(), now.len())
        } else if now.modified().ok() != origin.modified {
            "was written to since it was opened; load it again".into()
        } else {
            return Ok(());
        };
        Err(TensorError::Io { path: origin.path.clone(), message })
    }

    /// The file's path; none for bytes that came from elsewhere.
    pub fn path(&self) -> Option<&Path> {
        self.origin.as_ref().map(|o| o.path.as_path())
    }
}

fn regular(path: &Path, meta: &Metadata) -> TensorResult<()> {
    if meta.is_file() {
        return Ok(());
    }
    let what = if meta.is_dir() { "is a directory" } else { "is not a regular file" };
    Err(TensorError::Io { path: path.into(), message: what.into() })
}

impl From<Vec<u8>> for MappedFile {
    fn from(bytes: Vec<u8>) -> Self {
        MappedFile { bytes: Bytes::Owned(bytes), origin: None }
    }
}

impl Deref for MappedFile {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Map(map) => map,
            Bytes::Owned(bytes) => bytes,
        }
    }
}

impl fmt::Debug for MappedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedFile({:?}, {} bytes)", self.path(), self.len())
    }
}
