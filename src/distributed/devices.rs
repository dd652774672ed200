//! Which GPU of a machine a rank takes, and whether two ranks took the same.

use super::Ranks;
use crate::error::{TensorError, TensorResult};

/// A GPU of this machine that a rank may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its name for [`Device::open`](crate::Device::open), such as `vulkan:1`.
    pub selector: String,
    /// `discrete`, `integrated`, `virtual` or `other`.
    pub kind: &'static str,
    /// The address on the PCI bus, such as `0000:3b:00.0`; empty where there is none.
    pub address: String,
}

/// The GPU of the rank with this number among those of its machine: the best kind first, then by PCI address, each GPU once even if two drivers show
/// it. Where one GPU is visible it is taken, since schedulers hide the others. `None` where there is no GPU. With `share`, ranks behind the last GPU begin
/// with the first again.
///
/// # Errors
/// [`TensorError::Rank`] where there are fewer GPUs than ranks, but more than one.
///
/// ```
/// use tensorlogic::distributed::{Candidate, gpu_of_rank};
/// let gpu = |selector: &str, address: &str| Candidate { selector: selector.into(), kind: "discrete", address: address.into() };
/// let gpus = [gpu("vulkan:0", "0000:af:00.0"), gpu("vulkan:1", "0000:3b:00.0")];
/// assert_eq!(gpu_of_rank(&gpus, 0, false)?.as_deref(), Some("vulkan:1"));
/// assert_eq!(gpu_of_rank(&gpus, 1, false)?.as_deref(), Some("vulkan:0"));
/// assert!(gpu_of_rank(&gpus, 2, false).is_err());
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
pub fn gpu_of_rank(gpus: &[Candidate], local_rank: usize, share: bool) -> TensorResult<Option<String>> {
    let quality = |g: &Candidate| ["discrete", "integrated", "virtual"].iter().position(|k| *k == g.kind).unwrap_or(3);
    let mut sorted: Vec<&Candidate> = gpus.iter().collect();
    sorted.sort_by_key(|g| (quality(g), &g.address));
    sorted.dedup_by(|b, a| !a.address.is_empty() && a.address == b.address);
    // A processor's own graphics beside cards is not for a rank.
    let best = sorted.first().map(|g| quality(g));
    sorted.retain(|g| Some(quality(g)) == best);
    let (n, chosen) = (sorted.len(), if sorted.len() == 1 { sorted.first() } else { sorted.get(local_rank) });
    match chosen {
        Some(g) => Ok(Some(g.selector.clone())),
        None if n == 0 => Ok(None),
        None if share => Ok(Some(sorted[local_rank % n].selector.clone())),
        None => Err(TensorError::Rank(format!(
            "this machine has {n} GPUs and at least {} ranks: start one rank for each GPU, or let ranks share (--share-device)",
            local_rank + 1
        ))),
    }
}

/// Compares the GPUs that the ranks took: `address` is this rank's, empty for a device that may be shared, such as the CPU. All ranks call it together.
///
/// # Errors
/// [`TensorError::Rank`] on every rank where two of one machine took the same GPU; those of the transport.
///
/// ```
/// use tensorlogic::distributed::{Ranks, check_devices};
/// let ranks = Ranks::alone();
/// assert!(check_devices(&ranks, "0000:3b:00.0").is_ok()); // one rank shares its GPU with nobody
/// ```
pub fn check_devices(ranks: &Ranks, address: &str) -> TensorResult<()> {
    // The same in all containers of a machine, and another after each start of it.
    let machine = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let words = ranks.gather_words(match address.is_empty() || machine.is_empty() {
        true => 0,
        false => machine.iter().chain(address.as_bytes()).fold(1, |h: u64, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3)).max(1),
    })?;
    let same = (0..words.len()).find_map(|b| (0..b).find(|&a| words[a] != 0 && words[a] == words[b]).map(|a| (a, b)));
    match same {
        None => Ok(()),
        Some((a, b)) => Err(ranks.all_failed(format!(
            "ranks {a} and {b} took the same GPU{}: give each its own (--device gpu does), or let them share (--share-device)",
            if words[ranks.rank()] == words[a] { format!(" ({address})") } else { String::new() }
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_takes_its_own_gpu() {
        let gpu = |selector: &str, kind, address: &str| Candidate { selector: selector.into(), kind, address: address.into() };
        let taken = |gpus: &[Candidate], rank, share| gpu_of_rank(gpus, rank, share).map(|g| g.unwrap_or_default());
        let four = [
            gpu("vulkan:0", "integrated", "0000:00:02.0"),
            gpu("vulkan:1", "discrete", "0000:af:00.0"),
            gpu("vulkan:2", "discrete", "0000:3b:00.0"),
            // The same card by another driver.
            gpu("dx12:0", "discrete", "0000:3b:00.0"),
        ];
        assert_eq!(taken(&four, 0, false).unwrap(), "vulkan:2");
        assert_eq!(taken(&four, 1, false).unwrap(), "vulkan:1");
        assert!(taken(&four, 2, false).unwrap_err().to_string().contains("2 GPUs and at least 3 ranks"));
        assert_eq!(taken(&four, 2, true).unwrap(), "vulkan:2");
        // The others are hidden from this rank, whatever its number.
        assert_eq!(taken(&four[1..2], 5, false).unwrap(), "vulkan:1");
        assert_eq!(taken(&[], 0, false).unwrap(), "");
        // GPUs without an address are told apart by their names.
        let two = [gpu("metal:0", "integrated", ""), gpu("metal:1", "integrated", "")];
        assert_eq!(taken(&two, 1, false).unwrap(), "metal:1");
    }
}
