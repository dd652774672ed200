//! Where a measurement was taken: machine, driver, commit.

use crate::device::Device;
use serde_json::{Value, json};

/// The environment recorded with every measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Environment {
    /// The device's name.
    pub device: String,
    /// The GPU's driver, if there is one.
    pub driver: Option<String>,
    /// The processor's name, if the system reports it.
    pub host: Option<String>,
    /// The built commit, if the sources are a git repository; with `-dirty` if they differ from it.
    pub commit: Option<String>,
    /// The library's version.
    pub version: String,
}

impl Environment {
    /// Looks around. Asks `git` for the commit.
    pub fn of(device: &Device) -> Environment {
        Environment {
            device: device.name(),
            driver: driver(device),
            host: host(),
            commit: commit(),
            version: env!("CARGO_PKG_VERSION").into(),
        }
    }
    /// The members of a JSON object; unknown values are `null`.
    pub fn to_json(&self) -> Value {
        json!({ "device": self.device, "driver": self.driver, "host": self.host, "commit": self.commit, "version": self.version })
    }
    /// From the members of a JSON object.
    pub(super) fn from_json(v: &Value) -> Environment {
        let text = |k: &str| v[k].as_str().map(str::to_string);
        Environment {
            device: text("device").unwrap_or_default(),
            driver: text("driver"),
            host: text("host"),
            commit: text("commit"),
            version: text("version").unwrap_or_default(),
        }
    }
    /// One line for the top of a report.
    pub fn line(&self) -> String {
        let mut line = self.device.clone();
        for (what, v) in [("driver", &self.driver), ("host", &self.host), ("commit", &self.commit)] {
            if let Some(v) = v {
                line += &format!(", {what} {v}");
            }
        }
        line
    }
}

#[cfg(feature = "gpu")]
fn driver(device: &Device) -> Option<String> {
    let name = device.name();
    if !device.capabilities().shaders {
        return None;
    }
    crate::backends::gpu::adapters().into_iter().find(|a| format!("{} ({})", a.name, a.backend) == name).map(|a| a.driver)
}
#[cfg(not(feature = "gpu"))]
fn driver(_: &Device) -> Option<String> {
    None
}

fn host() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let name = text.lines().find(|l| l.starts_with("model name"))?.split_once(':')?.1.trim();
    Some(format!("{name}, {} threads", crate::backends::cpu::threads()))
}

fn commit() -> Option<String> {
    let out = std::process::Command::new("git").args(["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]).output().ok()?;
    let text = String::from_utf8(out.stdout).ok()?;
    Some(text.trim().to_string()).filter(|t| out.status.success() && !t.is_empty())
}
