//! A report as one file that can be sent: a tar of small text files, written and read here.

use std::path::Path;

/// The size of a tar's blocks.
const BLOCK: usize = 512;
/// A larger file is refused: it cannot be a bundle.
const MAX_BUNDLE_BYTES: u64 = 64 << 20;

/// The header of a file of so many bytes (POSIX.1-1988, ustar). It holds no user, no machine and no time.
fn header(name: &str, bytes: usize) -> [u8; BLOCK] {
    let mut h = [0u8; BLOCK];
    let mut put = |at: usize, text: &str| h[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000644");
    put(108, "0000000");
    put(116, "0000000");
    put(124, &format!("{bytes:011o}"));
    put(136, "00000000000");
    put(148, "        ");
    put(156, "0");
    put(257, "ustar");
    put(263, "00");
    let sum: u32 = h.iter().map(|b| u32::from(*b)).sum();
    h[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    h
}

/// The tar of these files; names are of at most 99 bytes.
pub fn pack(files: &[(&str, String)]) -> Vec<u8> {
    let mut out = vec![];
    for (name, text) in files {
        out.extend(header(name, text.len()));
        out.extend(text.as_bytes());
        out.resize(out.len().next_multiple_of(BLOCK), 0);
    }
    out.resize(out.len() + 2 * BLOCK, 0);
    out
}

/// The file of this name in a tar.
///
/// # Errors
/// Where the tar is not one, or has no such file.
pub fn unpack(tar: &[u8], name: &str) -> Result<String, String> {
    let mut rest = tar;
    while let Some((head, data)) = rest.split_at_checked(BLOCK).filter(|(head, _)| head.iter().any(|b| *b != 0)) {
        let text = |from: usize, len: usize| String::from_utf8_lossy(&head[from..from + len]).trim_matches(['\0', ' ']).to_string();
        let sum: u32 = head.iter().enumerate().map(|(n, b)| if (148..156).contains(&n) { 32 } else { u32::from(*b) }).sum();
        let (told, bytes) = (u32::from_str_radix(&text(148, 8), 8), usize::from_str_radix(&text(124, 12), 8));
        let (Ok(told), Ok(bytes)) = (told, bytes) else { return Err("it is not a tar".into()) };
        if told != sum || bytes > data.len() {
            return Err("it is damaged, or not a tar".into());
        }
        if text(0, 100) == name {
            return Ok(String::from_utf8_lossy(&data[..bytes]).into_owned());
        }
        rest = data.get(bytes.next_multiple_of(BLOCK)..).unwrap_or_default();
    }
    Err(format!("it has no {name}"))
}

/// The file of this name in a bundle.
///
/// # Errors
/// Where the bundle cannot be read, or lacks it.
pub fn read(path: &Path, name: &str) -> Result<String, String> {
    let told = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    if std::fs::metadata(path).map_err(|e| told(&e))?.len() > MAX_BUNDLE_BYTES {
        return Err(told(&"it is too large for a bundle"));
    }
    unpack(&std::fs::read(path).map_err(|e| told(&e))?, name).map_err(|e| told(&e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_come_out_as_they_went_in() {
        let files = [("a.txt", "one\n".to_string()), ("empty", String::new()), ("b.json", "x".repeat(1500))];
        let tar = pack(&files);
        assert_eq!(tar.len() % BLOCK, 0);
        for (name, text) in &files {
            assert_eq!(&unpack(&tar, name).unwrap(), text);
        }
        assert!(unpack(&tar, "c").unwrap_err().contains("no c"));
        let mut damaged = tar.clone();
        damaged[3] ^= 1;
        assert!(unpack(&damaged, "b.json").unwrap_err().contains("damaged"));
        assert!(unpack(&tar[..BLOCK + 100], "b.json").is_err() && unpack(b"hello", "a").is_err());
    }

    /// As other programs read it.
    #[test]
    fn tar_lists_it() {
        let path = std::env::temp_dir().join(format!("tl-bundle-{}.tar", std::process::id()));
        std::fs::write(&path, pack(&[("report.json", "{}".into()), ("report.txt", "text".into())])).unwrap();
        let listed = std::process::Command::new("tar").arg("-tf").arg(&path).output();
        std::fs::remove_file(&path).unwrap();
        // A system without tar has nothing to compare with.
        if let Ok(listed) = listed {
            assert_eq!(String::from_utf8_lossy(&listed.stdout).lines().collect::<Vec<_>>(), ["report.json", "report.txt"]);
        }
    }
}
