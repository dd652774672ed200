//! The option of benches that measure all or some of their rows.

use tensorlogic::{TensorError, TensorResult};

/// What `--only TEXT,…` names: rows that contain one of these, separated by commas; empty, which all contain, where it is not given.
///
/// # Errors
/// [`TensorError::Value`] for any other argument.
pub fn only() -> TensorResult<String> {
    let mut only = String::new();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--only" => only = args.next().unwrap_or_default(),
            // What cargo adds.
            "--bench" => {}
            _ => return Err(TensorError::Value(format!("{arg}: expected --only TEXT,…"))),
        }
    }
    Ok(only)
}
