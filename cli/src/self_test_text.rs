//! The report of the self-test as text: what failed in full, of the rest how far it was from right.

use serde_json::Value;
use tensorlogic::measure::{SelfTestBench, SelfTestReport, SelfTestRow, published_bandwidth};
use tensorlogic::plan::CompiledKernel;

/// Failed rows that are shown with a reason of the same beginning; the bundle's JSON has all of them.
const ALIKE: usize = 3;
/// Rows that are shown as the slowest.
const SLOWEST: usize = 3;

/// A measurement with what it amounts to; a square product is not bound by the memory.
fn bench_line(b: &SelfTestBench, published: Option<[f64; 2]>) -> String {
    let rate = b.bytes / b.seconds;
    let mut line =
        format!("  {:<34} {:>10.1} µs  {:>7.1} GB/s  {:>9.1} GFLOP/s", b.name, b.seconds * 1e6, rate / 1e9, b.operations / b.seconds / 1e9);
    if let Some([slow, fast]) = published.filter(|_| !b.name.starts_with("product ")) {
        let part = |limit: f64| format!("{:.0} %", 100.0 * rate / limit);
        line += &match slow == fast {
            true => format!("  {} of the published bandwidth", part(slow)),
            false => format!("  {} or {} of the published bandwidth", part(fast), part(slow)),
        };
    }
    line
}

/// The beginning of a message, on one line.
fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().chars().take(200).collect()
}

/// What failed; of rows that failed alike the first ones and the number of the others.
fn failures(rows: &[SelfTestRow]) -> String {
    let failed: Vec<(&str, String)> = rows.iter().filter_map(|r| Some((&*r.name, first_line(r.failed.as_ref()?)))).collect();
    let mut out = String::new();
    for (n, (name, why)) in failed.iter().enumerate() {
        let before = failed[..n].iter().filter(|(_, w)| w == why).count();
        let all = failed.iter().filter(|(_, w)| w == why).count();
        match before {
            b if b < ALIKE => out += &format!("  FAILED {name}: {why}\n"),
            ALIKE => out += &format!("  FAILED {} more: {why}\n", all - ALIKE),
            _ => {}
        }
    }
    out
}

/// What is known of a device besides its results.
fn facts(device: &Value) -> String {
    let facts = &device["facts"];
    let mut out = String::new();
    if let Some(seconds) = facts["open_seconds"].as_f64() {
        out += &format!("  opened in {:.0} ms\n", seconds * 1e3);
    }
    let families: Vec<&str> = facts["families"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if !families.is_empty() {
        out += &format!("  families {}\n", families.join(", "));
    }
    let limits: Vec<String> = facts["limits"].as_object().into_iter().flatten().map(|(name, n)| format!("{name} {n}")).collect();
    if !limits.is_empty() {
        out += &format!("  limits {}\n", limits.join(", "));
    }
    if let Some(why) = facts["stands_in"].as_str() {
        out += &format!("  wgpu stands in for the native backend: {}\n", first_line(why));
    }
    for probe in facts["failed_probes"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        out += &format!("  probe of {}\n", first_line(probe));
    }
    if let Some(why) = facts["lacks_metal_bodies"].as_str() {
        out += &format!("  kernels without parts in Metal's language: {}\n", first_line(why));
    }
    if let Some(why) = facts["lacks_tensor_ops"].as_str() {
        out += &format!("  products without tensor operations: {}\n", first_line(why));
    }
    if let (Some(table), Some(source)) = (facts["tuning_name"].as_str(), facts["tuning_source"].as_str()) {
        out += &format!("  tuning table {table}: {source}\n");
    }
    out
}

/// A device's report as text.
fn text(r: &SelfTestReport, cores: Option<u32>) -> String {
    let right = r.rows.iter().filter(|row| row.failed.is_none()).count();
    let (count, compiled) = (r.rows.len(), r.kernels.0);
    let mut out =
        format!("{}: {right} of {count} right; {compiled} kernels compiled in {:.1} s; {:.1} s in all\n", r.device, r.kernels.1, r.seconds);
    out += &failures(&r.rows);
    if let Some(first) = r.not_done.first() {
        out += &format!("  {} not done, since the time was up, from {first} on: give more --seconds, or --cases\n", r.not_done.len());
    }
    for form in &r.known_forms {
        out += &format!("  a form that Apple's compiler is known to get wrong, of which the library has none: {}\n", first_line(form));
    }
    for kernel in &r.refused {
        out += &format!("  REFUSED by Metal's compiler, so that its WGSL ran: {}\n", first_line(kernel));
    }
    let near = r.rows.iter().filter(|row| row.failed.is_none() && row.tolerance > 0.0);
    let nearest = near.filter_map(|row| Some((row.error? / row.tolerance, row))).max_by(|a, b| a.0.total_cmp(&b.0));
    if let Some((part, row)) = nearest {
        out += &format!("  nearest to its limit: {}, {:.0} % of {:.0e}\n", row.name, 100.0 * part, row.tolerance);
    }
    let mut slowest: Vec<&SelfTestRow> = r.rows.iter().collect();
    slowest.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let slowest: Vec<String> = slowest.iter().take(SLOWEST).map(|row| format!("{} {:.2} s", row.name, row.seconds)).collect();
    if !slowest.is_empty() {
        out += &format!("  slowest, with the compiling: {}\n", slowest.join(", "));
    }
    let found = r.compiled.iter().filter(|k| k.found).count();
    let mut compiled: Vec<&CompiledKernel> = r.compiled.iter().filter(|k| !k.found).collect();
    compiled.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let longest: Vec<String> = compiled.iter().take(SLOWEST).map(|k| format!("{} {:.0} ms", k.name, k.seconds * 1e3)).collect();
    if found > 0 {
        out += &format!("  {found} of the kernels came from an earlier process\n");
    }
    if !longest.is_empty() {
        out += &format!("  longest to compile: {}\n", longest.join(", "));
    }
    let published = published_bandwidth(&r.device, cores);
    r.bench.iter().for_each(|b| out += &format!("{}\n", bench_line(b, published)));
    out
}

/// The whole report as text, and whether nothing failed and nothing is missing.
///
/// # Errors
/// Where the JSON is not a report.
pub fn whole(report: &Value) -> Result<(String, bool), String> {
    let machine = &report["machine"];
    let part = |name: &str| machine[name].as_str().unwrap_or("?");
    let system: Vec<&str> = machine["system"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let cores = machine["gpu_cores"].as_u64().map(|n| n as u32);
    let mut out = format!("tl {} on {} {} {}", part("version"), part("os"), part("arch"), system.join(", "));
    out += &cores.map_or("\n".into(), |n| format!(", {n} GPU cores\n"));
    for a in machine["adapters"].as_array().into_iter().flatten() {
        let part = |name: &str| a[name].as_str().unwrap_or("?");
        out += &format!("adapter {} ({}), driver {}\n", part("name"), part("backend"), part("driver"));
    }
    let mut passes = true;
    for device in report["devices"].as_array().ok_or("the report lists no devices")? {
        let name = device["name"].as_str().unwrap_or("?");
        match &device["report"] {
            Value::Null => out += &format!("{name}: not opened: {}\n", first_line(device["error"].as_str().unwrap_or("?"))),
            report => {
                let r = SelfTestReport::from_json(report).map_err(|e| e.to_string())?;
                passes &= r.passes();
                out += &format!("{name} = {}{}", text(&r, cores), facts(device));
            }
        }
        if let Some(doing) = device["doing"].as_str() {
            passes = false;
            out += &format!("  UNFINISHED: it ended, or was ended, while it did this: {doing}\n");
        }
    }
    Ok((out, passes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row(name: &str, failed: Option<&str>) -> SelfTestRow {
        SelfTestRow { name: name.into(), error: None, tolerance: 0.0, failed: failed.map(Into::into), seconds: 0.5 }
    }

    #[test]
    fn reasons_are_shown_and_failures_of_one_kind_are_counted() {
        let rows = (0..9).map(|n| row(&format!("map {n}"), Some("the device was lost\nlong"))).chain([row("copy", None)]).collect();
        let bench = SelfTestBench { name: "copy".into(), seconds: 1.0, bytes: 150e9, operations: 0.0 };
        let product = SelfTestBench { name: "product 8x8x8 f16".into(), seconds: 1.0, bytes: 99e9, operations: 0.0 };
        let refused = vec!["softmax: error: no such function".to_string()];
        let device = "Apple M4 Max (metal)".to_string();
        let not_done = vec!["scan 1".to_string(), "scan 2".to_string()];
        let known_forms = vec!["memory by reference: 3 of 9 values are wrong".to_string()];
        let kernel = |name: &str, seconds, found| CompiledKernel { name: name.into(), seconds, found };
        let compiled = vec![kernel("softmax", 0.25, true), kernel("sort", 0.001, false), kernel("matmul", 0.05, false)];
        let report = SelfTestReport {
            device,
            rows,
            not_done,
            bench: vec![bench, product],
            kernels: (3, 0.5),
            compiled,
            refused,
            known_forms,
            seconds: 2.0,
        };
        let facts = json!({ "open_seconds": 0.042, "families": ["Apple7", "Metal3"], "limits": { "buffer_bytes": 4096 }, "stands_in": "Metal computes sums wrong", "failed_probes": ["matrices of f16: it gives other results"],
            "lacks_metal_bodies": "TL_GPU_WITHOUT names them", "lacks_tensor_ops": "the system has no Metal 4", "tuning_name": "apple", "tuning_source": "of its class" });
        let all = json!({ "machine": { "version": "1", "os": "macos", "arch": "aarch64", "system": ["macOS 15"], "gpu_cores": 40 },
            "devices": [{ "name": "metal", "facts": facts, "report": report.to_json(), "doing": "gather" },
                { "name": "metal-wgpu", "error": "none here" }] });
        let (text, passes) = whole(&all).unwrap();
        assert!(!passes);
        for part in [
            "macOS 15, 40 GPU cores",
            "metal = Apple M4 Max (metal): 1 of 10 right; 3 kernels",
            "FAILED map 2: the device was lost\n",
            "FAILED 6 more: the device was lost\n",
            "2 not done, since the time was up, from scan 1 on",
            "REFUSED by Metal's compiler, so that its WGSL ran: softmax: error: no such function",
            "of which the library has none: memory by reference: 3 of 9 values are wrong\n",
            "1 of the kernels came from an earlier process",
            "longest to compile: matmul 50 ms, sort 1 ms\n",
            "opened in 42 ms",
            "families Apple7, Metal3",
            "limits buffer_bytes 4096",
            "wgpu stands in for the native backend: Metal computes sums wrong",
            "probe of matrices of f16: it gives other results",
            "without parts in Metal's language: TL_GPU_WITHOUT names them",
            "products without tensor operations: the system has no Metal 4",
            "tuning table apple: of its class",
            "27 % of the published bandwidth",
            "UNFINISHED: it ended, or was ended, while it did this: gather",
            "metal-wgpu: not opened: none here",
        ] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
        assert_eq!(text.matches("of the published bandwidth").count(), 1, "{text}");
        assert!(!text.contains("map 3") && text.matches("FAILED").count() == 4, "{text}");
    }
}
