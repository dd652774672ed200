//! A measured operation as a row of a table and as a line of JSON.

use super::{Environment, Stats};
use crate::error::{TensorError, TensorResult};
use serde_json::{Value, json};
use std::fmt::Write;

/// One operation at one size, measured once.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The suite: `metal` or `floors`.
    pub suite: String,
    /// The category.
    pub category: String,
    /// The operation.
    pub operation: String,
    /// To how much.
    pub size: String,
    /// Where.
    pub environment: Environment,
    /// Bytes moved at least, per evaluation.
    pub bytes: u64,
    /// Floating-point operations, per evaluation.
    pub operations: u64,
    /// Dispatches of an evaluation; 0 for transfers.
    pub dispatches: usize,
    /// Evaluations of a sample.
    pub batch: usize,
    /// Seconds of an evaluation by the wall's clock.
    pub wall: Stats,
    /// Times by the GPU's clock, if it was used.
    pub gpu: Option<Stats>,
    /// The minimum time in seconds that the machine's limits allow, if measured.
    pub limit: Option<f64>,
}

impl Record {
    /// Time by the GPU's clock if there is one, else wall-clock time.
    pub fn time(&self) -> &Stats {
        self.gpu.as_ref().unwrap_or(&self.wall)
    }
    /// GFLOP/s; `None` if the operation has no floating-point operations.
    pub fn gflops(&self) -> Option<f64> {
        (self.operations > 0 && self.time().median > 0.0).then(|| self.operations as f64 / self.time().median * 1e-9)
    }
    /// Bytes per second in units of 10⁹.
    pub fn gigabytes(&self) -> Option<f64> {
        (self.bytes > 0 && self.time().median > 0.0).then(|| self.bytes as f64 / self.time().median * 1e-9)
    }
    /// The part of the limit that was reached.
    pub fn fraction(&self) -> Option<f64> {
        self.limit.filter(|_| self.time().median > 0.0).map(|l| l / self.time().median)
    }
    /// The key by which records are compared.
    pub fn key(&self) -> [&str; 5] {
        [&self.suite, &self.category, &self.operation, &self.size, &self.environment.device]
    }

    /// The key without the device.
    pub fn key_without_device(&self) -> [&str; 4] {
        [&self.suite, &self.category, &self.operation, &self.size]
    }

    /// Converts to a JSON object. Times are in seconds.
    pub fn to_json(&self) -> Value {
        let stats = |s: &Stats| json!({ "median": s.median, "mean": s.mean, "min": s.min, "max": s.max, "p95": s.p95, "mad": s.mad, "samples": s.samples });
        let mut v = json!({ "suite": self.suite, "category": self.category, "operation": self.operation, "size": self.size,
            "bytes": self.bytes, "operations": self.operations, "dispatches": self.dispatches, "batch": self.batch,
            "wall": stats(&self.wall), "gpu": self.gpu.as_ref().map(stats), "limit": self.limit, "fraction": self.fraction() });
        if let (Some(v), Some(e)) = (v.as_object_mut(), self.environment.to_json().as_object()) {
            v.extend(e.clone());
        }
        v
    }

    /// Parses a JSON object. Statistics are recomputed from the samples.
    ///
    /// # Errors
    /// If it is not a record.
    ///
    /// ```
    /// use serde_json::json;
    /// use tensorlogic::measure::Record;
    /// let wall = json!({ "samples": [1.0, 4.0, 2.0] });
    /// let line = json!({ "suite": "metal", "category": "Fusion", "operation": "Add", "size": "1K", "wall": wall });
    /// let record = Record::from_json(&line)?;
    /// assert_eq!((record.wall.median, record.wall.max, record.batch), (2.0, 4.0, 1));
    /// assert!(Record::from_json(&json!({ "suite": "metal" })).is_err());
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn from_json(v: &Value) -> TensorResult<Record> {
        let bad = |what: &str| TensorError::Value(format!("a line of measurements has no {what}"));
        let text = |k: &str| v[k].as_str().map(str::to_string).ok_or_else(|| bad(k));
        let stats = |s: &Value| {
            let samples = s["samples"].as_array()?.iter().map(Value::as_f64).collect::<Option<Vec<_>>>()?;
            Stats::of(samples)
        };
        Ok(Record {
            suite: text("suite")?,
            category: text("category")?,
            operation: text("operation")?,
            size: text("size")?,
            environment: Environment::from_json(v),
            bytes: v["bytes"].as_u64().unwrap_or(0),
            operations: v["operations"].as_u64().unwrap_or(0),
            dispatches: v["dispatches"].as_u64().unwrap_or(0) as usize,
            batch: v["batch"].as_u64().unwrap_or(1) as usize,
            wall: stats(&v["wall"]).ok_or_else(|| bad("times by the wall's clock"))?,
            gpu: stats(&v["gpu"]),
            limit: v["limit"].as_f64(),
        })
    }
}

/// Records from lines of JSON; empty lines are passed over.
///
/// # Errors
/// With the line's number, where a line is not a record.
///
/// ```
/// use tensorlogic::measure::read_records;
/// let line = r#"{"suite": "metal", "category": "Fusion", "operation": "Add", "size": "1K", "wall": {"samples": [0.5, 1.5]}}"#;
/// let records = read_records(&format!("{line}\n\n{line}\n"))?;
/// assert_eq!((records.len(), records[1].wall.mean), (2, 1.0));
/// assert!(read_records(&format!("{line}\nnonsense")).unwrap_err().to_string().starts_with("line 2: "));
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
pub fn read_records(text: &str) -> TensorResult<Vec<Record>> {
    let lines = text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty());
    lines
        .map(|(n, l)| {
            let v: Value = serde_json::from_str(l).map_err(|e| TensorError::Value(format!("line {}: {e}", n + 1)))?;
            Record::from_json(&v).map_err(|e| TensorError::Value(format!("line {}: {e}", n + 1)))
        })
        .collect()
}

/// A number with four significant digits, or a dash for `None`.
fn number(v: Option<f64>) -> String {
    match v {
        None => "-".into(),
        Some(v) if v == 0.0 || v.abs() >= 1000.0 => format!("{v:.0}"),
        Some(v) if v.abs() >= 100.0 => format!("{v:.1}"),
        Some(v) if v.abs() >= 1.0 => format!("{v:.2}"),
        Some(v) => format!("{v:.4}"),
    }
}

/// Times in ms.
fn ms(v: f64) -> String {
    if v < 1e-4 { format!("{:.5}", v * 1e3) } else { format!("{:.4}", v * 1e3) }
}

/// The part of a limit from which on a row is marked: two measurements of one thing differ by a little.
const PAST: f64 = 1.05;

/// Tables, one for each category, and the summary. Avg, Min, Max and Median are the wall's; GFLOPS, GB/s and the limit go by the GPU's clock
/// where it was used.
pub fn table(records: &[Record]) -> String {
    let mut out = String::new();
    let mut categories: Vec<&str> = Vec::new();
    for r in records {
        if !categories.contains(&r.category.as_str()) {
            categories.push(&r.category);
        }
    }
    let columns =
        ["Avg (ms)", "Min (ms)", "Max (ms)", "Median", "p95", "Spread", "Samples", "GPU (ms)", "GFLOPS", "GB/s", "Limit", "Reached"];
    for c in categories {
        let _ = writeln!(out, "\n=== {c} Benchmark ===");
        let mut head = format!("{:<34} {:<14}", "Operation", "Size");
        columns.iter().for_each(|c| {
            let _ = write!(head, " {c:>9}");
        });
        let _ = writeln!(out, "{head}\n{}", "-".repeat(head.len()));
        for r in records.iter().filter(|r| r.category == c) {
            let _ = write!(out, "{:<34} {:<14}", r.operation, r.size);
            let percent = |v: f64, digits: usize| format!("{:.digits$} %", v * 100.0);
            let cells = [
                ms(r.wall.mean),
                ms(r.wall.min),
                ms(r.wall.max),
                ms(r.wall.median),
                ms(r.wall.p95),
                percent(r.wall.spread(), 1),
                r.wall.samples.len().to_string(),
                r.gpu.as_ref().map_or("-".into(), |g| ms(g.median)),
                number(r.gflops()),
                number(r.gigabytes()),
                r.limit.map_or("-".into(), ms),
                r.fraction().map_or("-".into(), |f| format!("{}{}", percent(f, 0), if f > PAST { " *" } else { "" })),
            ];
            cells.iter().for_each(|c| {
                let _ = write!(out, " {c:>9}");
            });
            out.push('\n');
        }
    }
    let peak = |f: fn(&Record) -> Option<f64>| {
        let best = records.iter().filter_map(|r| Some((f(r)?, r))).max_by(|a, b| a.0.total_cmp(&b.0));
        best.map(|(v, r)| (v, format!("{} {}", r.operation, r.size)))
    };
    if records.iter().any(|r| r.fraction().is_some_and(|f| f > PAST)) {
        out.push_str(
            "\n* past its limit, which was measured again right after it: the simplest kernel of that size is slower. \
             Caches can do that, transfers,\n  which start no kernel, and products of other types than f16 on matrix units.\n",
        );
    }
    out.push_str("\n=== Performance Summary ===\n");
    for (what, unit, best) in
        [("Peak Compute Performance:", "GFLOPS", peak(Record::gflops)), ("Peak Memory Bandwidth:   ", "GB/s", peak(Record::gigabytes))]
    {
        if let Some((v, at)) = best {
            let _ = writeln!(out, "{what} {v:.2} {unit} ({at})");
        }
    }
    out
}
