//! Keeps a thread that waits by spinning off the cores that take the device's interrupts: the handler runs on them for some 30 µs just
//! when a run ends, and the thread sees the end only after that.

use crate::backends::lock::lock;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long it is believed which cores they are: balancing daemons move interrupts now and then.
const COUNTS_VALID_FOR: Duration = Duration::from_secs(10);
/// Cores that took less than this part of what the busiest took do not count.
const MIN_SHARE_OF_BUSIEST: u64 = 8;

/// The interrupts of one device.
pub(super) struct Interrupts {
    /// A file for each interrupt: how often each core took it.
    files: Vec<PathBuf>,
    irq_cores: Mutex<IrqCores>,
}

#[derive(Default)]
struct IrqCores {
    at: Option<Instant>,
    counts: Vec<u64>,
    cores: Vec<usize>,
}

impl Interrupts {
    /// Those of the device with this PCI address (`0000:3b:00.0`); none where the system does not tell.
    pub fn of(address: &str) -> Interrupts {
        Interrupts::under(Path::new("/sys"), address)
    }

    fn under(root: &Path, address: &str) -> Interrupts {
        let folder = root.join("bus/pci/devices").join(address).join("msi_irqs");
        let numbers = if address.is_empty() { None } else { std::fs::read_dir(folder).ok() };
        let counts = |number: std::fs::DirEntry| root.join("kernel/irq").join(number.file_name()).join("per_cpu_count");
        Interrupts { files: numbers.into_iter().flatten().flatten().map(counts).collect(), irq_cores: Mutex::default() }
    }

    /// Moves the calling thread to another core if it is on one that takes them. The cores that it may use stay what they were.
    pub fn leave_irq_cores(&self) {
        if self.files.is_empty() {
            return;
        }
        let mut known = lock(&self.irq_cores);
        if known.at.is_none_or(|at| at.elapsed() > COUNTS_VALID_FOR) {
            known.refresh(&self.files);
        }
        leave_cores(&known.cores);
    }
}

impl IrqCores {
    /// Reads which cores took them since the last time, or at all.
    fn refresh(&mut self, files: &[PathBuf]) {
        let mut counts: Vec<u64> = Vec::new();
        for list in files.iter().filter_map(|f| std::fs::read_to_string(f).ok()) {
            for (core, n) in list.trim().split(',').enumerate() {
                counts.resize(counts.len().max(core + 1), 0);
                counts[core] += n.parse().unwrap_or(0);
            }
        }
        let new: Vec<u64> =
            counts.iter().enumerate().map(|(core, n)| n.saturating_sub(self.counts.get(core).copied().unwrap_or(0))).collect();
        let most = new.iter().copied().max().unwrap_or(0);
        if most > 0 {
            self.cores = (0..new.len()).filter(|&core| new[core] * MIN_SHARE_OF_BUSIEST >= most).collect();
        }
        (self.at, self.counts) = (Some(Instant::now()), counts);
    }
}

/// The cores that a thread's set has room for.
const MAX_CORE: usize = libc::CPU_SETSIZE as usize - 1;

/// Moves the calling thread to a core that is not one of these, where it may use others. Gives whether it did.
fn leave_cores(cores: &[usize]) -> bool {
    // SAFETY: takes nothing.
    let here = unsafe { libc::sched_getcpu() };
    if !usize::try_from(here).is_ok_and(|c| cores.contains(&c)) {
        return false;
    }
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: a set is an array of integers, for which zeros are valid.
    let mut own: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is of the size that is said.
    if unsafe { libc::sched_getaffinity(0, size, &mut own) } != 0 {
        return false;
    }
    let mut others = own;
    // SAFETY: cores of these are below the size of the set.
    cores.iter().filter(|c| **c <= MAX_CORE).for_each(|c| unsafe { libc::CPU_CLR(*c, &mut others) });
    // SAFETY: both are sets.
    if unsafe { libc::CPU_COUNT(&others) } == 0 || unsafe { libc::sched_setaffinity(0, size, &others) } != 0 {
        return false;
    }
    // The thread is elsewhere now, and stays there although it might go back.
    // SAFETY: the set is of the size that is said.
    unsafe { libc::sched_setaffinity(0, size, &own) };
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> usize {
        // SAFETY: takes nothing.
        unsafe { libc::sched_getcpu() as usize }
    }

    fn allowed() -> Vec<usize> {
        // SAFETY: zeros are an empty set, whose size is said.
        unsafe {
            let mut own: libc::cpu_set_t = std::mem::zeroed();
            assert_eq!(libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut own), 0);
            (0..=MAX_CORE).filter(|c| libc::CPU_ISSET(*c, &own)).collect()
        }
    }

    #[test]
    fn a_thread_leaves_the_cores_and_may_use_them_as_before() {
        let all = allowed();
        // Those of the first half are left for the second, and the other way round.
        let (a, b) = all.split_at(all.len() / 2);
        for cores in [a, b, a] {
            let others = all.len() > cores.len();
            leave_cores(cores);
            assert!(!others || !cores.contains(&here()), "still on {} of {cores:?}", here());
            assert_eq!(allowed(), all);
        }
        assert!(!leave_cores(&all), "there is nowhere to go");
        assert!(!leave_cores(&[]));
    }

    #[test]
    fn the_cores_that_take_interrupts_are_read_from_the_systems_counts() {
        let root = std::env::temp_dir().join(format!("tl-interrupts-{}", std::process::id()));
        std::fs::create_dir_all(root.join("bus/pci/devices/0000:3b:00.0/msi_irqs")).unwrap();
        let write = |lists: [&str; 3]| {
            for (number, list) in ["31", "32", "40"].iter().zip(lists) {
                std::fs::write(root.join("bus/pci/devices/0000:3b:00.0/msi_irqs").join(number), "msix\n").unwrap();
                std::fs::create_dir_all(root.join("kernel/irq").join(number)).unwrap();
                std::fs::write(root.join("kernel/irq").join(number).join("per_cpu_count"), list).unwrap();
            }
        };
        let mut irq_cores = IrqCores::default();
        let mut check = |lists: [&str; 3], expect: &[usize], why: &str| {
            write(lists);
            irq_cores.refresh(&Interrupts::under(&root, "0000:3b:00.0").files);
            assert_eq!(irq_cores.cores, expect, "{why}");
        };
        check(["0,0,0,0\n", "0,0,0,0\n", ""], &[], "none yet");
        check(["0,0,800,0\n", "90,0,0,100\n", "nonsense\n"], &[2, 3], "those that count");
        check(["0,0,800,0\n", "90,0,0,100\n", ""], &[2, 3], "nothing new: as before");
        check(["0,0,801,0\n", "90,70,0,100\n", ""], &[1], "they moved");
        for (address, why) in [("", "no address"), ("0000:3c:00.0", "no such device")] {
            assert!(Interrupts::under(&root, address).files.is_empty(), "{why}");
        }
        std::fs::remove_dir_all(&root).unwrap();
    }
}
