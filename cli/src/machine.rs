//! What a report of the self-test says of the machine: no names of users, folders or hosts.

use serde_json::{Map, Value, json};
use std::process::Command;
use tensorlogic::backends::gpu;

/// The system, the processor and the GPUs' adapters.
pub fn machine() -> Value {
    let adapters = gpu::adapters().into_iter().map(|a| {
        let limits: Map<String, Value> = a.limits.iter().map(|(name, n)| ((*name).into(), json!(n))).collect();
        json!({ "name": a.name, "backend": a.backend, "kind": a.kind, "driver": a.driver, "features": a.features, "limits": limits })
    });
    json!({ "version": env!("CARGO_PKG_VERSION"), "os": std::env::consts::OS, "arch": std::env::consts::ARCH, "system": system(),
        "gpu_cores": gpu_cores(), "adapters": adapters.collect::<Vec<_>>() })
}

/// What a command of the system writes, if it is there and succeeds.
fn output(command: &[&str]) -> Option<String> {
    let out = Command::new(command[0]).args(&command[1..]).output().ok()?;
    Some(String::from_utf8_lossy(&out.stdout).trim().to_string()).filter(|s| out.status.success() && !s.is_empty())
}

/// The system's version and build, the processor's name, its threads and the bytes of memory, where the system is Apple's.
fn system() -> Vec<String> {
    let commands: [(&str, &[&str]); 5] = [
        ("macOS", &["sw_vers", "-productVersion"]),
        ("build", &["sw_vers", "-buildVersion"]),
        ("processor", &["sysctl", "-n", "machdep.cpu.brand_string"]),
        ("threads", &["sysctl", "-n", "hw.ncpu"]),
        ("bytes of memory", &["sysctl", "-n", "hw.memsize"]),
    ];
    let asked = commands.iter().filter(|_| cfg!(target_vendor = "apple"));
    asked.filter_map(|(what, command)| Some(format!("{what} {}", output(command)?))).collect()
}

/// The GPU's cores, where the system is Apple's: two versions of a chip may have one name.
fn gpu_cores() -> Option<u32> {
    if cfg!(target_vendor = "apple") {
        output(&["ioreg", "-r", "-d", "1", "-c", "AGXAccelerator"]).and_then(|list| cores_in(&list))
    } else {
        None
    }
}

/// The number of cores in what `ioreg` writes of a GPU.
fn cores_in(list: &str) -> Option<u32> {
    list.lines().find_map(|l| l.split_once("\"gpu-core-count\" = ")?.1.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_cores_is_read_from_the_list_of_a_gpu() {
        let list = "+-o AGXAcceleratorG13X  <class AGXAcceleratorG13X, registered>\n    {\n      \"model\" = \"Apple M1 Max\"\n      \
                    \"gpu-core-count\" = 32\n      \"IOClass\" = \"AGXAcceleratorG13X\"\n    }\n";
        assert_eq!(cores_in(list), Some(32));
        assert_eq!(cores_in("\"gpu-core-count\" = many"), None);
    }
}
