//! The model that is part of `tl` itself: written into the cache folder when it is first asked for.

use super::PullOptions;
use super::error::PullError;
use std::io::Write;
use std::path::PathBuf;
use tensorlogic::io::save::save;

/// Its name.
pub const TINY: &str = "tiny";
/// A short description.
pub const ABOUT: &str = "character-level, trained on Shakespeare, bundled with tl";
/// The file; its source, recipe and licence are in the same folder.
pub static BYTES: &[u8] = include_bytes!("../../../models/tiny/tiny.gguf");

/// The file in the cache folder, with the bytes that this `tl` was built with.
pub fn tiny(options: &PullOptions) -> Result<PathBuf, PullError> {
    let path = options.folder.join("tiny.gguf");
    if std::fs::read(&path).is_ok_and(|b| b == BYTES) {
        return Ok(path);
    }
    std::fs::create_dir_all(&options.folder).map_err(|e| PullError::store(&options.folder, e))?;
    save(&path, |out| out.write_all(BYTES)).map_err(PullError::Store)?;
    Ok(path)
}
