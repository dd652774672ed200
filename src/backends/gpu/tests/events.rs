//! Provokes the events that a working device does not emit.

use super::super::compiled::CompiledCache;
use super::super::driver::Driver;
use super::*;
use std::path::Path;

/// Keeps a kernel in `folder`, has a command refused, and loses a device.
pub(crate) fn lost_and_kept(folder: &Path) -> TensorResult<()> {
    let Some(m) = lesser(8, false) else { return Ok(()) };
    let driver: &Driver = &m.core.driver;
    if let Some(mut kept) = CompiledCache::open(driver, Some(folder), "test") {
        kept.add("a kernel");
        kept.save(std::time::Duration::ZERO);
    }
    let _ = std::fs::remove_dir_all(folder);
    driver.refused("as asked".into());
    driver.lose("as asked".into());
    assert!(matches!(m.synchronize(), Err(TensorError::DeviceLost(_))));
    Ok(())
}
