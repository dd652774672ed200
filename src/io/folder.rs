//! Writing a folder so that a crash leaves either the old one, the new one, or none: files and folder are made durable, then renamed.

use crate::error::{TensorError, TensorResult};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The list of a folder's files with their sizes and checksums, written last.
const MANIFEST: &str = "manifest.json";
/// How much is written and read at a time.
const CHUNK: usize = 1 << 20;

/// A 64-bit checksum of bytes, however they are cut into pieces. It finds damage, not malice.
#[derive(Clone, Copy)]
pub struct Checksum {
    state: u64,
    rest: [u8; 8],
    len: u64,
}

impl Default for Checksum {
    fn default() -> Checksum {
        Checksum { state: 0x9E37_79B9_7F4A_7C15, rest: [0; 8], len: 0 }
    }
}

impl Checksum {
    fn mix(state: u64, word: u64) -> u64 {
        let m = ((state ^ word) as u128).wrapping_mul(0xA076_1D64_78BD_642F_E703_7ED1_A0B4_28DB);
        (m as u64) ^ ((m >> 64) as u64).rotate_left(23)
    }

    /// Adds bytes.
    pub fn add(&mut self, mut bytes: &[u8]) {
        let have = (self.len % 8) as usize;
        self.len += bytes.len() as u64;
        if have > 0 {
            let take = bytes.len().min(8 - have);
            self.rest[have..have + take].copy_from_slice(&bytes[..take]);
            bytes = &bytes[take..];
            if have + take < 8 {
                return;
            }
            self.state = Checksum::mix(self.state, u64::from_le_bytes(self.rest));
        }
        let (words, tail) = bytes.as_chunks::<8>();
        for w in words {
            self.state = Checksum::mix(self.state, u64::from_le_bytes(*w));
        }
        self.rest[..tail.len()].copy_from_slice(tail);
    }

    /// The checksum of all bytes so far.
    pub fn value(&self) -> u64 {
        let mut last = [0; 8];
        let have = (self.len % 8) as usize;
        last[..have].copy_from_slice(&self.rest[..have]);
        Checksum::mix(Checksum::mix(self.state, u64::from_le_bytes(last)), self.len)
    }
}

#[derive(Serialize, Deserialize)]
struct Manifest {
    files: BTreeMap<String, FolderEntry>,
}

#[derive(Serialize, Deserialize)]
struct FolderEntry {
    bytes: u64,
    checksum: String,
}

/// A file of a folder that is being written.
pub struct FileWriter {
    file: File,
    path: PathBuf,
    buffer: Vec<u8>,
    checksum: Checksum,
}

impl FileWriter {
    /// Where the file is while it is being written.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds bytes to the file.
    ///
    /// # Errors
    /// The system's, with the file's path.
    ///
    /// ```
    /// use tensorlogic::io::save_folder;
    /// let path = std::env::temp_dir().join(format!("tl-doc-folder-put-{}", std::process::id()));
    /// save_folder(&path, |folder| {
    ///     folder.file("text", |out| {
    ///         out.put(b"one ")?;
    ///         out.put(b"two")
    ///     })
    /// })?;
    /// assert_eq!(std::fs::read(path.join("text"))?, b"one two");
    /// # std::fs::remove_dir_all(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn put(&mut self, bytes: &[u8]) -> TensorResult<()> {
        self.checksum.add(bytes);
        if self.buffer.len() + bytes.len() > CHUNK {
            self.flush()?;
        }
        if bytes.len() >= CHUNK {
            return self.file.write_all(bytes).map_err(|e| TensorError::io(&self.path, e));
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> TensorResult<()> {
        let written = self.file.write_all(&self.buffer);
        self.buffer.clear();
        written.map_err(|e| TensorError::io(&self.path, e))
    }

    fn finish(mut self) -> TensorResult<FolderEntry> {
        self.flush()?;
        self.file.sync_all().map_err(|e| TensorError::io(&self.path, e))?;
        Ok(FolderEntry { bytes: self.checksum.len, checksum: format!("{:016x}", self.checksum.value()) })
    }
}

/// A folder that is being written. See [`save_folder`].
pub struct FolderWriter {
    path: PathBuf,
    files: BTreeMap<String, FolderEntry>,
}

impl FolderWriter {
    /// Writes one file and makes it durable. `name` is a file name without folders.
    ///
    /// # Errors
    /// Those of `write`, I/O errors, and a name that is already used.
    ///
    /// ```
    /// use tensorlogic::io::save_folder;
    /// let path = std::env::temp_dir().join(format!("tl-doc-folder-file-{}", std::process::id()));
    /// save_folder(&path, |folder| {
    ///     folder.file("log", |out| out.put(b"step 1"))?;
    ///     assert!(folder.file("log", |out| out.put(b"step 2")).is_err()); // the name is taken
    ///     Ok(())
    /// })?;
    /// assert_eq!(std::fs::read(path.join("log"))?, b"step 1");
    /// # std::fs::remove_dir_all(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn file(&mut self, name: &str, write: impl FnOnce(&mut FileWriter) -> TensorResult<()>) -> TensorResult<()> {
        let path = self.path.join(name);
        let plain = !name.is_empty() && !name.contains(['/', '\\']) && name != MANIFEST && !name.starts_with('.');
        if !plain || self.files.contains_key(name) {
            return Err(TensorError::Io { path, message: "is not a new file name".into() });
        }
        let file = File::create(&path).map_err(|e| TensorError::io(&path, e))?;
        let mut out = FileWriter { file, path, buffer: Vec::new(), checksum: Checksum::default() };
        write(&mut out)?;
        self.files.insert(name.into(), out.finish()?);
        Ok(())
    }

    /// Writes one file of these bytes.
    ///
    /// # Errors
    /// See [`FolderWriter::file`].
    ///
    /// ```
    /// use tensorlogic::io::save_folder;
    /// let path = std::env::temp_dir().join(format!("tl-doc-folder-bytes-{}", std::process::id()));
    /// save_folder(&path, |folder| folder.bytes("config.json", b"{}"))?;
    /// assert_eq!(std::fs::read(path.join("config.json"))?, b"{}");
    /// # std::fs::remove_dir_all(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn bytes(&mut self, name: &str, bytes: &[u8]) -> TensorResult<()> {
        self.file(name, |out| out.put(bytes))
    }
}

/// Writes the folder `path` through `write`: into a new folder beside it, which is made durable and then renamed to `path`. A folder of that
/// name is replaced. The folder's parent must exist.
///
/// At every moment a reader finds the old folder or the new one, whole (where the system cannot exchange two folders, there is a moment with
/// neither; Linux and macOS can). [`check_folder`] verifies that a folder is unchanged.
///
/// # Errors
/// Those of `write`, and I/O errors. The new folder is then removed, and the old one is unaffected.
///
/// ```
/// use tensorlogic::io::save_folder;
/// let path = std::env::temp_dir().join(format!("tl-doc-save-folder-{}", std::process::id()));
/// save_folder(&path, |folder| folder.bytes("step", b"1"))?;
/// save_folder(&path, |folder| folder.bytes("last", b"2"))?; // replaces the first one
/// assert_eq!(std::fs::read(path.join("last"))?, b"2");
/// assert!(!path.join("step").exists());
/// # std::fs::remove_dir_all(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn save_folder(path: impl AsRef<Path>, write: impl FnOnce(&mut FolderWriter) -> TensorResult<()>) -> TensorResult<()> {
    let path = path.as_ref();
    let name = path.file_name().ok_or_else(|| TensorError::Io { path: path.into(), message: "is not a folder's name".into() })?;
    let temporary = path.with_file_name(temporary_name(name));
    let written = (|| {
        std::fs::create_dir(&temporary).map_err(|e| TensorError::io(&temporary, e))?;
        let mut folder = FolderWriter { path: temporary.clone(), files: BTreeMap::new() };
        write(&mut folder)?;
        let manifest = Manifest { files: std::mem::take(&mut folder.files) };
        let text = serde_json::to_vec_pretty(&manifest).map_err(|e| TensorError::format("manifest", e.to_string()))?;
        let manifest = folder.path.join(MANIFEST);
        let file = File::create(&manifest).map_err(|e| TensorError::io(&manifest, e))?;
        let mut out = FileWriter { file, path: manifest, buffer: Vec::new(), checksum: Checksum::default() };
        out.put(&text)?;
        out.finish()?;
        sync_folder(&temporary)?;
        put_in_place(&temporary, path)
    })();
    if let Err(e) = written {
        // The first error is the one to report.
        let _ = std::fs::remove_dir_all(&temporary);
        // The user knows the folder's own name, not the one that it had for a moment.
        return Err(match e {
            TensorError::Io { path: at, message } => {
                let at = at.strip_prefix(&temporary).map(|inner| path.join(inner)).unwrap_or(at);
                super::disk::explained(TensorError::Io { path: at, message }, 0)
            }
            e => e,
        });
    }
    sync_folder(parent(path))
}

/// Whether the folder holds every file that was written into it by [`save_folder`], with the bytes that were written. Other files may be there.
///
/// # Errors
/// Says which file is missing or differs.
///
/// ```
/// use tensorlogic::io::{check_folder, save_folder};
/// let path = std::env::temp_dir().join(format!("tl-doc-check-folder-{}", std::process::id()));
/// save_folder(&path, |folder| folder.bytes("weights", &[1, 2, 3]))?;
/// check_folder(&path)?;
/// std::fs::write(path.join("weights"), [1u8, 2, 4])?; // damage
/// assert!(check_folder(&path).unwrap_err().to_string().contains("is not what was saved"));
/// # std::fs::remove_dir_all(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn check_folder(path: impl AsRef<Path>) -> TensorResult<()> {
    let path = path.as_ref();
    let manifest = path.join(MANIFEST);
    let text = std::fs::read(&manifest).map_err(|e| TensorError::io(&manifest, e))?;
    let wrong = |file: &Path, message: String| TensorError::Io { path: file.into(), message };
    let manifest: Manifest = serde_json::from_slice(&text).map_err(|e| wrong(&manifest, e.to_string()))?;
    let mut buffer = vec![0; CHUNK];
    for (name, entry) in &manifest.files {
        let file = path.join(name);
        let fail = |e| TensorError::io(&file, e);
        let mut input = File::open(&file).map_err(fail)?;
        let mut checksum = Checksum::default();
        loop {
            match input.read(&mut buffer).map_err(fail)? {
                0 => break,
                n => checksum.add(&buffer[..n]),
            }
        }
        if checksum.len != entry.bytes || format!("{:016x}", checksum.value()) != entry.checksum {
            return Err(wrong(&file, format!("is not what was saved: {} bytes, {} were written", checksum.len, entry.bytes)));
        }
    }
    Ok(())
}

/// Removes what [`save_folder`] of a process that was killed left in `parent`. Nobody else may be saving there.
///
/// # Errors
/// The system's.
///
/// ```
/// use tensorlogic::io::folder::remove_leftovers;
/// let parent = std::env::temp_dir().join(format!("tl-doc-leftovers-{}", std::process::id()));
/// std::fs::create_dir_all(parent.join(".checkpoint.1-0.tmp"))?; // what a killed process leaves
/// remove_leftovers(&parent)?;
/// assert_eq!(std::fs::read_dir(&parent)?.count(), 0);
/// # std::fs::remove_dir_all(parent)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn remove_leftovers(parent: impl AsRef<Path>) -> TensorResult<()> {
    let parent = parent.as_ref();
    let fail = |e| TensorError::io(parent, e);
    for entry in std::fs::read_dir(parent).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with('.') && name.ends_with(".tmp") {
            let gone = match entry.file_type().map_err(fail)?.is_dir() {
                true => std::fs::remove_dir_all(entry.path()),
                false => std::fs::remove_file(entry.path()),
            };
            gone.map_err(|e| TensorError::io(entry.path(), e))?;
        }
    }
    Ok(())
}

/// Removes a folder so that a crash leaves it whole or not at all under its name.
///
/// # Errors
/// The system's.
///
/// ```
/// use tensorlogic::io::{folder::remove_folder, save_folder};
/// let path = std::env::temp_dir().join(format!("tl-doc-remove-folder-{}", std::process::id()));
/// save_folder(&path, |folder| folder.bytes("step", b"1"))?;
/// remove_folder(&path)?;
/// assert!(!path.exists());
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
pub fn remove_folder(path: impl AsRef<Path>) -> TensorResult<()> {
    let path = path.as_ref();
    let name = path.file_name().ok_or_else(|| TensorError::Io { path: path.into(), message: "is not a folder's name".into() })?;
    let temporary = path.with_file_name(temporary_name(name));
    std::fs::rename(path, &temporary).map_err(|e| TensorError::io(path, e))?;
    std::fs::remove_dir_all(&temporary).map_err(|e| TensorError::io(&temporary, e))
}

/// Makes the names in a folder durable; where a system cannot open a folder as a file, it has no such call.
pub(crate) fn sync_folder(path: &Path) -> TensorResult<()> {
    #[cfg(unix)]
    File::open(path).and_then(|f| f.sync_all()).map_err(|e| TensorError::io(path, e))?;
    #[cfg(not(unix))]
    let _ = path;
    Ok(())
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    }
}

/// Two threads that save under one name must not write into one folder.
fn temporary_name(name: &std::ffi::OsStr) -> OsString {
    static SAVES: AtomicU64 = AtomicU64::new(0);
    let mut temporary = OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}-{}.tmp", std::process::id(), SAVES.fetch_add(1, Ordering::Relaxed)));
    temporary
}

/// Renames `new` to `path`; a folder that is there goes away.
fn put_in_place(new: &Path, path: &Path) -> TensorResult<()> {
    let fail = |e| TensorError::io(path, e);
    if !path.exists() {
        return std::fs::rename(new, path).map_err(fail);
    }
    match exchange(new, path) {
        Ok(()) => std::fs::remove_dir_all(new).map_err(|e| TensorError::io(new, e)),
        Err(e) if matches!(e.kind(), std::io::ErrorKind::Unsupported | std::io::ErrorKind::InvalidInput) => {
            remove_folder(path)?;
            std::fs::rename(new, path).map_err(fail)
        }
        Err(e) => Err(fail(e)),
    }
}

/// Exchanges the names of two folders in one step.
fn exchange(a: &Path, b: &Path) -> std::io::Result<()> {
    #[cfg(any(target_os = "linux", target_vendor = "apple"))]
    {
        use std::os::unix::ffi::OsStrExt;
        let c = |p: &Path| std::ffi::CString::new(p.as_os_str().as_bytes()).map_err(std::io::Error::other);
        let (a, b) = (c(a)?, c(b)?);
        #[cfg(target_os = "linux")]
        // SAFETY: both names are C strings that live through the call.
        let done = unsafe {
            libc::syscall(
                libc::SYS_renameat2,
                libc::AT_FDCWD,
                a.as_ptr(),
                libc::AT_FDCWD,
                b.as_ptr(),
                libc::RENAME_EXCHANGE as libc::c_uint,
            )
        } as i64;
        #[cfg(target_vendor = "apple")]
        // SAFETY: both names are C strings that live through the call.
        let done = unsafe { libc::renamex_np(a.as_ptr(), b.as_ptr(), libc::RENAME_SWAP) } as i64;
        if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }
    #[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
    {
        let _ = (a, b);
        Err(std::io::ErrorKind::Unsupported.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(name: &str) -> PathBuf {
        let p = std::env::temp_dir().join(format!("tl-folder-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&p);
        std::fs::create_dir_all(&p).unwrap();
        p
    }

    fn names(p: &Path) -> Vec<String> {
        let mut all: Vec<String> = std::fs::read_dir(p).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        all.sort();
        all
    }

    #[test]
    fn checksums_do_not_depend_on_the_cut_and_see_every_bit() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| (i * 7 + i / 13) as u8).collect();
        let mut whole = Checksum::default();
        whole.add(&bytes);
        for cut in [1, 3, 7, 8, 9, 64, 999] {
            let mut parts = Checksum::default();
            bytes.chunks(cut).for_each(|c| parts.add(c));
            assert_eq!(parts.value(), whole.value(), "pieces of {cut}");
        }
        for bit in 0..8000 {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            let mut c = Checksum::default();
            c.add(&other);
            assert_ne!(c.value(), whole.value(), "bit {bit}");
        }
        let mut longer = whole;
        longer.add(&[0]);
        assert_ne!(longer.value(), whole.value());
    }

    #[test]
    fn a_folder_is_replaced_whole_or_not_at_all() {
        let root = place("replace");
        let path = root.join("a");
        let write = |n: u8| save_folder(&path, |f| f.bytes("x", &vec![n; 3 << 20]).and_then(|_| f.bytes("y", &[n])));
        write(1).unwrap();
        check_folder(&path).unwrap();
        write(2).unwrap();
        check_folder(&path).unwrap();
        assert_eq!(std::fs::read(path.join("y")).unwrap(), [2]);
        assert_eq!(names(&root), ["a"]);
        // A writer that fails half way changes nothing.
        let failed = save_folder(&path, |f| {
            f.bytes("x", &[3])?;
            f.bytes("../y", &[3])
        });
        assert!(failed.is_err());
        check_folder(&path).unwrap();
        assert_eq!(std::fs::read(path.join("y")).unwrap(), [2]);
        assert_eq!(names(&root), ["a"]);
        // Damage is found, whatever it is.
        for (damage, word) in [(vec![9u8], "is not what was saved"), (vec![2, 2], "2 bytes, 1 were written")] {
            std::fs::write(path.join("y"), damage).unwrap();
            assert!(check_folder(&path).unwrap_err().to_string().contains(word));
        }
        std::fs::remove_file(path.join("y")).unwrap();
        assert!(check_folder(&path).is_err());
        std::fs::create_dir(root.join(".a.1-0.tmp")).unwrap();
        remove_leftovers(&root).unwrap();
        remove_folder(&path).unwrap();
        assert!(names(&root).is_empty());
        std::fs::remove_dir_all(root).unwrap();
    }
}
