//! What a running program writes with `TL_METRICS`: read for `tl top` and `tl doctor --while`.

use crate::output::Failure;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A process' metrics.
#[derive(Clone, Debug, PartialEq)]
pub struct Process {
    pub pid: u64,
    /// Seconds since 1970.
    pub time: f64,
    /// Whether it wrote them as it ended.
    pub ended: bool,
    /// Each device's numbers by name, its utilization and its findings.
    pub devices: Vec<Value>,
}

impl Process {
    fn parse(text: &str) -> Option<Process> {
        let value: Value = serde_json::from_str(text).ok()?;
        Some(Process {
            pid: value["pid"].as_u64()?,
            time: value["time"].as_f64()?,
            ended: value["ended"].as_bool()?,
            devices: value["devices"].as_array()?.clone(),
        })
    }

    /// A number of a device.
    pub fn number(device: &Value, name: &str) -> f64 {
        device[name].as_f64().unwrap_or(0.0)
    }
}

/// The processes of a file, or of the files of a folder.
pub fn read(path: &Path) -> Result<Vec<Process>, Failure> {
    let failed = |e: std::io::Error| Failure::Error(format!("{}: {e}", path.display()));
    let files: Vec<PathBuf> = match path.is_dir() {
        true => {
            let all = std::fs::read_dir(path).map_err(failed)?.filter_map(|e| Some(e.ok()?.path()));
            all.filter(|p| p.extension().is_some_and(|e| e == "json")).collect()
        }
        false => vec![path.to_path_buf()],
    };
    let mut found = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).map_err(|e| Failure::Error(format!("{}: {e}", file.display())))?;
        let process = Process::parse(&text);
        found.push(
            process
                .ok_or_else(|| Failure::Error(format!("{} was not written with TL_METRICS (or is Prometheus' text)", file.display())))?,
        );
    }
    found.sort_by_key(|p| p.pid);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_metrics_are_read_and_others_refused() {
        let p = Process::parse(r#"{"pid":7,"time":1.5,"ended":false,"devices":[{"device":"cpu","tokens_total":3.0}]}"#).unwrap();
        assert_eq!((p.pid, p.time, p.ended), (7, 1.5, false));
        assert_eq!((Process::number(&p.devices[0], "tokens_total"), Process::number(&p.devices[0], "missing")), (3.0, 0.0));
        assert!(Process::parse("{}").is_none() && Process::parse("# HELP").is_none());
    }
}
