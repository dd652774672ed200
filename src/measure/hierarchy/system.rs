//! The caches that the system tells of: `/sys/devices/system/cpu/cpu0/cache` on Linux.

use std::path::Path;

/// A data cache as the system describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemCache {
    /// 1 for the nearest to the processor.
    pub level: u32,
    /// Bytes. What part of a shared cache a virtual machine may use is not told.
    pub size: u64,
    /// Bytes of a line, where told.
    pub line: Option<u64>,
}

/// Where Linux lists the caches of the first processor.
pub(super) const FOLDER: &str = "/sys/devices/system/cpu/cpu0/cache";

/// `48K`, `32M` or `64` in bytes.
fn bytes(text: &str) -> Option<u64> {
    let (digits, unit) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 1 << 10),
        b'M' => (&text[..text.len() - 1], 1 << 20),
        b'G' => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit).filter(|n| *n > 0)
}

/// The data and unified caches listed in a folder, the nearest first; none where the folder does not exist or is hidden.
pub(super) fn system_caches(folder: &Path) -> Vec<SystemCache> {
    let one = |at: &Path| {
        let read = |name: &str| Some(std::fs::read_to_string(at.join(name)).ok()?.trim().to_string());
        if read("type")? == "Instruction" {
            return None;
        }
        Some(SystemCache {
            level: read("level")?.parse().ok()?,
            size: bytes(&read("size")?)?,
            line: read("coherency_line_size").and_then(|l| bytes(&l)),
        })
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut all: Vec<SystemCache> = entries.filter_map(|e| one(&e.path())).collect();
    all.sort_by_key(|c| (c.level, c.size));
    all
}
