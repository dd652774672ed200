//! Memory limits: parsing of amounts, the system's memory, and the resulting limits.

use crate::error::{TensorError, TensorResult};

/// Memory of a device as the system reports it, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Total memory.
    pub total: usize,
    /// Available memory, if the system reports it; it excludes what this process uses.
    pub free: Option<usize>,
}

/// Asks the system for a device's memory.
pub(crate) type MemoryQuery = Box<dyn Fn() -> Option<MemoryInfo> + Send + Sync>;

/// Limits of a device's memory, in bytes unless stated otherwise.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Limit of memory allocated for tensors and running plans, without mapped files; `None` follows the free memory that the device reports.
    pub in_use: Option<usize>,
    /// Limit for memory kept for reuse; `None` is a quarter of the free memory, queried again as the cache grows.
    pub cache: Option<usize>,
    /// Maximum number of free buffers per size.
    pub per_class: usize,
    /// Whether memory is kept for reuse.
    pub enabled: bool,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { in_use: None, cache: None, per_class: usize::MAX, enabled: true }
    }
}

impl Limits {
    /// The limits set by `TL_MEM_LIMIT` (allocated memory; files mapped into memory do not count) and `TL_CACHE_LIMIT`.
    ///
    /// # Errors
    /// [`TensorError::Config`] for an amount that cannot be parsed.
    ///
    /// ```
    /// use tensorlogic::backends::limits::{Limits, host_memory_info};
    /// let limits = Limits::from_environment(host_memory_info())?;
    /// if std::env::var_os("TL_MEM_LIMIT").is_none() {
    ///     assert_eq!(limits.in_use, None); // the limit follows the free memory
    /// }
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn from_environment(memory: Option<MemoryInfo>) -> TensorResult<Limits> {
        let total = memory.map(|r| r.total);
        let read = |name| match std::env::var(name) {
            Ok(v) => amount(&v, total).map_err(|e| TensorError::Config(format!("{name}: {e}"))),
            Err(_) => Ok(None),
        };
        Ok(Limits { in_use: read("TL_MEM_LIMIT")?, cache: read("TL_CACHE_LIMIT")?, ..Limits::default() })
    }
}

/// Parses an amount of memory: `512M`, `1.5GiB`, `75%` of `total`, plain bytes; `auto` or an empty string is `None`.
///
/// # Errors
/// [`TensorError::Config`] for anything else, and for a percentage if the total is unknown.
///
/// ```
/// use tensorlogic::backends::limits::amount;
/// assert_eq!(amount("1.5GiB", None)?, Some(1536 << 20));
/// assert_eq!(amount("75%", Some(1000))?, Some(750));
/// assert_eq!(amount("auto", None)?, None);
/// assert!(amount("75%", None).is_err()); // of what?
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
pub fn amount(text: &str, total: Option<usize>) -> TensorResult<Option<usize>> {
    let t = text.trim();
    if t.is_empty() || t.eq_ignore_ascii_case("auto") {
        return Ok(None);
    }
    let wrong = || TensorError::Config(format!("{text:?} is not an amount of memory; expected bytes, 512M, 2G, 75% or auto"));
    let end = t.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(t.len());
    let number: f64 = t[..end].parse().map_err(|_| wrong())?;
    let unit = t[end..].trim().to_ascii_lowercase();
    let unit = unit.strip_suffix("ib").or(unit.strip_suffix('b')).unwrap_or(&unit);
    let bytes = match unit {
        "" => number,
        "k" => number * 1024.0,
        "m" => number * 1024f64.powi(2),
        "g" => number * 1024f64.powi(3),
        "t" => number * 1024f64.powi(4),
        "%" if number <= 100.0 => {
            let total =
                total.ok_or_else(|| TensorError::Config(format!("{text:?}: this device does not report its memory; give bytes")))?;
            total as f64 * number / 100.0
        }
        _ => return Err(wrong()),
    };
    Ok(Some(bytes as usize))
}

/// The host's memory: the minimum of what the system and, in a container, the control group allow.
pub fn host_memory_info() -> Option<MemoryInfo> {
    #[cfg(target_os = "linux")]
    {
        let text = std::fs::read_to_string("/proc/meminfo").ok()?;
        let field = |name: &str| {
            let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
            line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok().map(|k| k * 1024)
        };
        let mut memory = MemoryInfo { total: field("MemTotal")?, free: field("MemAvailable") };
        let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<usize>().ok();
        let groups = [
            ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
        ];
        for (max, used) in groups {
            if let (Some(max), Some(used)) = (number(max), number(used)) {
                memory.total = memory.total.min(max);
                memory.free = memory.free.map(|f| f.min(max.saturating_sub(used)));
            }
        }
        Some(memory)
    }
    #[cfg(target_vendor = "apple")]
    {
        let mut total = 0u64;
        let mut len = size_of::<u64>();
        // SAFETY: the name is a C string, and the system writes at most `len` bytes to `total`.
        let failed = unsafe { libc::sysctlbyname(c"hw.memsize".as_ptr(), (&raw mut total).cast(), &mut len, std::ptr::null_mut(), 0) };
        (failed == 0).then_some(MemoryInfo { total: total as usize, free: None })
    }
    #[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<Option<usize>>) {
        assert_eq!(amount(text, Some(1000)).ok(), expected, "{text}");
    }

    #[test]
    fn amounts_are_read_as_people_write_them() {
        check("4096", Some(Some(4096)));
        check(" 512M ", Some(Some(512 << 20)));
        check("1.5GiB", Some(Some(3 << 29)));
        check("2 gb", Some(Some(2 << 30)));
        check("8k", Some(Some(8192)));
        check("75%", Some(Some(750)));
        check("0", Some(Some(0)));
        check("auto", Some(None));
        check("", Some(None));
        for wrong in ["much", "-1", "101%", "5 apples", "1..2G", "%"] {
            check(wrong, None);
        }
        assert!(amount("50%", None).is_err());
    }
}
