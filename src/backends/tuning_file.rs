//! The tables that `tl tune` measured, in the user's cache folder, and the choice of one when a device is opened.

use crate::backends::files::{cache_folder, write_whole};
use crate::error::{TensorError, TensorResult};
use crate::tuning::{AdapterClass, Tuning, TuningSource};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// Where measured tables are kept.
fn file() -> Option<PathBuf> {
    cache_folder().map(|f| f.join("tuning.json"))
}

/// The tables of a file by adapter. A file that does not exist has none.
///
/// # Errors
/// What is wrong with a file that is there.
fn tables(file: &Path) -> Result<Map<String, Value>, String> {
    match std::fs::read(file) {
        Ok(text) => serde_json::from_slice(&text).map_err(|e| format!("{} is damaged ({e})", file.display())),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Map::new()),
        Err(e) => Err(format!("{} cannot be read ({e})", file.display())),
    }
}

/// The key of a table: the adapter, its driver and this version of the kernels.
fn entry(adapter: &str) -> String {
    format!("{adapter} | {}", env!("CARGO_PKG_VERSION"))
}

/// What was measured for this adapter, if anything was.
fn measured(file: &Path, adapter: &str) -> Result<Option<Tuning>, String> {
    let Some(value) = tables(file)?.remove(&entry(adapter)) else { return Ok(None) };
    let table: Tuning = serde_json::from_value(value)
        .map_err(|e| format!("{} has no table that can be read ({e}); `tl tune` measures one", file.display()))?;
    table.check().map_err(|e| format!("{}: {e}", file.display()))?;
    Ok(Some(table))
}

/// The key of an adapter's table for one kind of model.
pub(super) fn with_model(adapter: &str, model: &str) -> String {
    format!("{adapter} | {model}")
}

/// What was measured here for such a model; `None` where nothing was, or what is kept cannot be read.
pub(super) fn of_model(adapter: &str, model: &str) -> Option<Tuning> {
    measured(&file()?, &with_model(adapter, model)).ok().flatten()
}

/// The table for the adapter of this key: what `TL_TUNING` says, else what was measured here, else its class's. A measured table that cannot be
/// used does not stop a program: the class's is taken, and the source says why.
///
/// # Errors
/// [`TensorError::Config`] where `TL_TUNING` is neither a class nor a table that can be used.
pub(super) fn choose(adapter: &str, class: AdapterClass) -> TensorResult<(Tuning, TuningSource)> {
    let asked = std::env::var("TL_TUNING").ok().filter(|v| !v.is_empty());
    choose_among(asked.as_deref(), file().as_deref(), adapter, class)
}

fn choose_among(asked: Option<&str>, file: Option<&Path>, adapter: &str, class: AdapterClass) -> TensorResult<(Tuning, TuningSource)> {
    let Some(asked) = asked else {
        let found = file.map_or(Ok(None), |f| Ok(measured(f, adapter)?.map(|t| (t, TuningSource::Measured(f.into())))));
        return Ok(match found {
            Ok(Some(found)) => found,
            Ok(None) => (Tuning::of_class(class), TuningSource::Class { ignored: None }),
            Err(why) => (Tuning::of_class(class), TuningSource::Class { ignored: Some(why) }),
        });
    };
    Ok((Tuning::from_setting(asked)?, TuningSource::Environment(asked.into())))
}

/// Keeps a measured table for the adapter of this key; gives the file. Tables of other adapters stay, unless the file is damaged.
///
/// # Errors
/// [`TensorError::Config`] where the cache folder cannot be written, [`TensorError::UnsupportedDevice`] where there is none.
pub(super) fn store(adapter: &str, table: &Tuning) -> TensorResult<PathBuf> {
    let file = file().ok_or_else(|| TensorError::UnsupportedDevice("this machine has no cache folder; set TL_CACHE_DIR".into()))?;
    store_in(&file, adapter, table)?;
    Ok(file)
}

fn store_in(file: &Path, adapter: &str, table: &Tuning) -> TensorResult<()> {
    let failed = |e: String| TensorError::Config(format!("{}: the tuning table cannot be kept: {e}", file.display()));
    let mut all = tables(file).unwrap_or_default();
    all.insert(entry(adapter), serde_json::to_value(table).map_err(|e| failed(e.to_string()))?);
    let text = serde_json::to_vec_pretty(&all).map_err(|e| failed(e.to_string()))?;
    write_whole(file, &text).map_err(|e| failed(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASS: AdapterClass = AdapterClass { vendor: 0, metal: false, software: false };

    /// Chooses a table where `TL_TUNING` is `asked` and the cache folder's file is `file`; compares its name, and what its source or the error says.
    #[track_caller]
    fn check(asked: Option<&str>, file: &Path, table: Result<&str, ()>, says: &str) {
        match choose_among(asked, Some(file), "an adapter", CLASS) {
            Ok((found, source)) => {
                assert_eq!(Ok(found.name.as_str()), table);
                assert!(format!("{source:?}").contains(says), "{source:?} lacks {says:?}");
            }
            Err(e) => assert!(table.is_err() && e.to_string().contains(says), "{e} lacks {says:?}"),
        }
    }

    #[test]
    fn the_table_in_force_is_the_asked_then_the_measured_then_the_class() {
        let folder = std::env::temp_dir().join(format!("tl-tuning-{}", std::process::id()));
        let file = folder.join("tuning.json");
        check(None, &file, Ok("generic"), "Class { ignored: None }");
        let table = Tuning { name: "measured here".into(), ..Tuning::nvidia() };
        store_in(&file, "an adapter", &table).unwrap();
        store_in(&file, "another", &Tuning::apple()).unwrap();
        check(None, &file, Ok("measured here"), "Measured(");
        assert_eq!(measured(&file, "an adapter").unwrap(), Some(table.clone()), "every number comes back as it was");
        check(Some("apple"), &file, Ok("apple"), "Environment(\"apple\")");
        check(
            Some("toaster"),
            &file,
            Err(()),
            "TL_TUNING is \"toaster\": neither one of generic, nvidia, apple, software nor a readable file",
        );

        let own = folder.join("own.json");
        let asked = own.to_str().unwrap();
        let mut value = serde_json::to_value(&table).unwrap();
        std::fs::write(&own, value.to_string()).unwrap();
        check(Some(asked), &file, Ok("measured here"), "Environment(");
        value["gemv"]["wings"] = 2.into();
        std::fs::write(&own, value.to_string()).unwrap();
        check(Some(asked), &file, Err(()), "unknown field `wings`");
        std::fs::write(&own, serde_json::to_vec(&Tuning { compute_units: 0, ..table.clone() }).unwrap()).unwrap();
        check(Some(asked), &file, Err(()), "compute_units is 0; expected 1 or more");

        // A bad file does not stop a program.
        store_in(&file, "an adapter", &Tuning { compute_units: 0, ..table.clone() }).unwrap();
        check(None, &file, Ok("generic"), "compute_units is 0");
        std::fs::write(&file, &std::fs::read(&file).unwrap()[..100]).unwrap();
        check(None, &file, Ok("generic"), "is damaged");
        store_in(&file, "an adapter", &table).unwrap();
        check(None, &file, Ok("measured here"), "Measured(");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
