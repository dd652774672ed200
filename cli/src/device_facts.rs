//! What a report of the self-test says of an open device: no names of users, folders or hosts.

use serde_json::{Map, Value, json};
use tensorlogic::Device;
use tensorlogic::tuning::{Tuning, TuningSource};

/// What a report says of the table of a device's class.
pub fn of_class(table: Option<&Tuning>) -> String {
    table.and_then(Tuning::basis).map_or("of its class".into(), |basis| format!("of its class ({basis})"))
}

/// What is known of a device once it is open, and what it cannot do.
pub fn device_facts(d: &Device) -> Value {
    let source = |s: &TuningSource| match s {
        TuningSource::Class { .. } => of_class(d.tuning()),
        TuningSource::Environment(_) => "TL_TUNING".into(),
        TuningSource::Measured(_) => "measured here".into(),
        TuningSource::Given => "given by the program".into(),
    };
    let native = d.native_facts();
    let limits: Map<String, Value> = native.limits.iter().map(|(name, n)| ((*name).into(), json!(n))).collect();
    let held = d.matrix_elements().map(|e| json!({ "lane_rows": e.lane_rows(), "row_elements": e.row_elements() }));
    json!({ "name": d.name(), "stands_in": d.stands_in(), "lacks_metal_bodies": d.lacks_metal_bodies(),
        "lacks_tensor_ops": d.lacks_tensor_ops(), "failed_probes": d.failed_probes(), "families": native.families, "limits": limits,
        "tuning": d.tuning().map(|t| json!(t)), "tuning_name": d.tuning().map(|t| &t.name), "tuning_source": d.tuning_source().map(source),
        "matrix_elements": held, "default_float": d.default_float().name(), "storage": format!("{:?}", d.storage_mode()),
        "memory_bytes": d.memory_info().map(|m| m.total), "limit_bytes": d.buffer_pool_stats().limit })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_described() {
        assert_eq!(of_class(Some(&Tuning::apple())), "of its class (from published facts, not measured)");
        assert_eq!(of_class(None), "of its class");
        let facts = device_facts(&Device::cpu());
        assert_eq!(facts["name"], json!(Device::cpu().name()));
        assert!(facts["stands_in"].is_null() && facts["failed_probes"] == json!([]) && facts["default_float"] == "f32", "{facts}");
    }
}
