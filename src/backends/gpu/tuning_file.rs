//! The tables that `tl tune` measured, in the user's cache folder, and the choice of one when a device is opened.

use crate::backends::files::{cache_folder, write_whole};
use crate::error::{TensorError, TensorResult};
use crate::tuning::{AdapterClass, Tuning};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// Where measured tables are kept.
fn file() -> Option<PathBuf> {
    cache_folder().map(|f| f.join("tuning.json"))
}

fn known(file: &Path) -> Map<String, Value> {
    std::fs::read(file).ok().and_then(|t| serde_json::from_slice(&t).ok()).unwrap_or_default()
}

/// A table is of an adapter, its driver and this version's kernels.
fn entry(adapter: &str) -> String {
    format!("{adapter} | {}", env!("CARGO_PKG_VERSION"))
}

/// The table for the adapter of this key: what `TL_TUNING` says, else what was measured here, else its class's.
///
/// # Errors
/// [`TensorError::Config`] where `TL_TUNING` is neither a class nor a readable table.
pub(super) fn choose(adapter: &str, class: AdapterClass) -> TensorResult<Tuning> {
    let Some(asked) = std::env::var("TL_TUNING").ok().filter(|v| !v.is_empty()) else {
        let measured = file().and_then(|f| known(&f).get(&entry(adapter)).cloned());
        return Ok(measured.and_then(|v| serde_json::from_value(v).ok()).unwrap_or_else(|| Tuning::of_class(class)));
    };
    if let Some(table) = Tuning::named(&asked) {
        return Ok(table);
    }
    let names = Tuning::NAMES.join(", ");
    let text = std::fs::read(&asked)
        .map_err(|e| TensorError::Config(format!("TL_TUNING is {asked:?}: neither one of {names} nor a readable file ({e})")))?;
    serde_json::from_slice(&text).map_err(|e| TensorError::Config(format!("TL_TUNING: {asked} is not a tuning table: {e}")))
}

/// Keeps a measured table for the adapter of this key; gives the file.
///
/// # Errors
/// [`TensorError::Config`] where the cache folder cannot be written, [`TensorError::UnsupportedDevice`] where there is none.
pub(crate) fn store(adapter: &str, table: &Tuning) -> TensorResult<PathBuf> {
    let file = file().ok_or_else(|| TensorError::UnsupportedDevice("this machine has no cache folder; set TL_CACHE_DIR".into()))?;
    let mut all = known(&file);
    all.insert(entry(adapter), serde_json::to_value(table).unwrap_or_default());
    write_whole(&file, &serde_json::to_vec_pretty(&all).unwrap_or_default())
        .map_err(|e| TensorError::Config(format!("{}: the tuning table cannot be kept: {e}", file.display())))?;
    Ok(file)
}
