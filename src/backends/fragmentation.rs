//! How much memory is held beyond what was asked for: in size classes, in the pool, and in the driver's blocks.

use std::fmt;

/// Memory of the driver, which takes blocks from the system and gives parts of them to buffers. With Metal these are its heaps, and the
/// buffers that are too large for one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverMemory {
    /// Bytes of all blocks.
    pub reserved: u64,
    /// Bytes of them that buffers have.
    pub allocated: u64,
    /// Number of blocks.
    pub blocks: usize,
    /// Bytes of the largest free range of a block: a larger buffer needs a new block.
    pub largest_free: u64,
}

/// A device's memory as it was asked for, given, and taken from the system. See [`Device::fragmentation`](crate::Device::fragmentation).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fragmentation {
    /// Bytes that the tensors in memory asked for, mapped files excluded.
    pub asked: usize,
    /// Bytes of the size classes that they were given.
    pub given: usize,
    /// Bytes of free buffers in the pool.
    pub waiting: usize,
    /// The part of `waiting` in size classes of which nothing was asked for lately, so that no such request can take them.
    pub stranded: usize,
    /// The driver's blocks; `None` where it does not report them (on the CPU and with Metal through wgpu).
    pub driver: Option<DriverMemory>,
}

impl Fragmentation {
    /// Internal fragmentation: the part of the given bytes that nobody asked for, 0 to 1.
    pub fn internal(&self) -> f64 {
        part(self.given.saturating_sub(self.asked) as f64, self.given as f64)
    }
    /// External fragmentation of the pool: the part of the waiting bytes that no recent request could take, 0 to 1.
    pub fn external(&self) -> f64 {
        part(self.stranded as f64, self.waiting as f64)
    }
    /// The part of the driver's blocks that no buffer has, 0 to 1; `None` where the driver does not report its blocks.
    pub fn driver_unused(&self) -> Option<f64> {
        self.driver.map(|d| part(d.reserved.saturating_sub(d.allocated) as f64, d.reserved as f64))
    }
}

fn part(of: f64, whole: f64) -> f64 {
    if whole > 0.0 { of / whole } else { 0.0 }
}

impl fmt::Display for Fragmentation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (internal, external) = (100.0 * self.internal(), 100.0 * self.external());
        write!(f, "{} bytes asked for, {} given (internal {internal:.1} %), ", self.asked, self.given)?;
        write!(f, "{} waiting (external {external:.1} %)", self.waiting)?;
        match (self.driver, self.driver_unused()) {
            (Some(d), Some(unused)) => {
                let (reserved, unused) = (d.reserved, 100.0 * unused);
                write!(f, ", {reserved} reserved in {} blocks ({unused:.1} % unused, largest free range {})", d.blocks, d.largest_free)
            }
            _ => f.write_str(", the driver does not report its blocks"),
        }
    }
}

/// What a defragmentation did. See [`Device::defragment`](crate::Device::defragment).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Defragmentation {
    /// Memory before.
    pub before: Fragmentation,
    /// Memory after.
    pub after: Fragmentation,
    /// Bytes of values that were copied to other places.
    pub moved_bytes: u64,
    /// Bytes given back to the system: by how much the driver's blocks shrank where it reports them, else the free buffers released.
    pub freed_bytes: u64,
    /// The time that it took, in seconds.
    pub seconds: f64,
}
