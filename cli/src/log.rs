//! The log: what the library's events become on stderr and in a file of JSON lines.

use crate::output::{self, Failure};
use clap::{ArgAction, Args};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Options that select the log.
#[derive(Args, Clone)]
pub struct LogArgs {
    /// Log to stderr: -v what is opened, loaded and saved, -vv also plans, kernels and memory, -vvv everything
    #[arg(short, long, action = ArgAction::Count, global = true)]
    verbose: u8,
    /// Append the log to a file, one JSON object a line (level debug unless TL_LOG or -vvv says otherwise)
    #[arg(long, value_name = "FILE", global = true)]
    log_json: Option<PathBuf>,
}

/// Which events are logged: a level, and others for some targets.
#[derive(Clone, Debug, PartialEq)]
pub struct Filter {
    usual: LevelFilter,
    targets: Vec<(String, LevelFilter)>,
}

impl Filter {
    fn of(level: LevelFilter) -> Filter {
        Filter { usual: level, targets: Vec::new() }
    }

    /// Reads `TL_LOG`: `debug`, or `info,memory=trace,queue=off`.
    pub fn parse(text: &str) -> Result<Filter, String> {
        let level = |name: &str| {
            // An empty name would be read as `error`.
            let level = Some(name.trim()).filter(|n| !n.is_empty()).and_then(|n| LevelFilter::from_str(n).ok());
            level.ok_or_else(|| format!("{name:?} is not a level; expected off, error, warn, info, debug or trace"))
        };
        let mut filter = Filter::of(LevelFilter::OFF);
        for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            match part.split_once('=') {
                Some((target, name)) => filter.targets.push((target.trim().into(), level(name)?)),
                None => filter.usual = level(part)?,
            }
        }
        Ok(filter)
    }

    /// The level for what the library calls `tensorlogic::TARGET`.
    fn level(&self, target: &str) -> LevelFilter {
        self.targets.iter().rev().find(|t| t.0 == target).map_or(self.usual, |t| t.1)
    }

    /// The most detailed level.
    fn most(&self) -> LevelFilter {
        self.targets.iter().map(|t| t.1).fold(self.usual, LevelFilter::max)
    }
}

/// Starts the log that the options and `TL_LOG` ask for.
pub fn install(args: &LogArgs) -> Result<(), Failure> {
    let set = match std::env::var("TL_LOG") {
        Ok(v) => Some(Filter::parse(&v).map_err(|e| Failure::Usage(format!("TL_LOG: {e}")))?),
        Err(_) => None,
    };
    let asked = match args.verbose {
        0 => None,
        1 => Some(LevelFilter::INFO),
        2 => Some(LevelFilter::DEBUG),
        _ => Some(LevelFilter::TRACE),
    };
    // The flag is for this call, the variable for all.
    let text = asked.map(Filter::of).or(set.clone());
    let file = match &args.log_json {
        None => None,
        Some(path) => {
            let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
            let file = file.map_err(|e| Failure::Error(format!("--log-json {}: {e}", path.display())))?;
            let level = set.or(asked.filter(|l| *l > LevelFilter::DEBUG).map(Filter::of));
            Some((level.unwrap_or(Filter::of(LevelFilter::DEBUG)), file))
        }
    };
    if text.is_none() && file.is_none() {
        return Ok(());
    }
    let log = Log {
        began: Instant::now(),
        text: text.unwrap_or(Filter::of(LevelFilter::OFF)),
        json: file.as_ref().map_or(Filter::of(LevelFilter::OFF), |f| f.0.clone()),
        file: file.map(|f| Mutex::new(BufWriter::new(f.1))),
        next: AtomicU64::new(1),
        spans: Mutex::default(),
    };
    tracing::subscriber::set_global_default(log).map_err(|e| Failure::Error(e.to_string()))
}

/// A span that was entered.
struct OpenSpan {
    metadata: &'static Metadata<'static>,
    fields: Map<String, Value>,
    entered: Option<Instant>,
}

/// The subscriber of the command.
struct Log {
    began: Instant,
    text: Filter,
    json: Filter,
    file: Option<Mutex<BufWriter<std::fs::File>>>,
    next: AtomicU64,
    spans: Mutex<HashMap<u64, OpenSpan>>,
}

/// Fields of an event by name.
#[derive(Default)]
struct EventFields {
    message: String,
    others: Map<String, Value>,
}

impl Visit for EventFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            name => drop(self.others.insert(name.into(), format!("{value:?}").into())),
        }
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.others.insert(field.name().into(), value.into());
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.others.insert(field.name().into(), value.into());
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.others.insert(field.name().into(), value.into());
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.others.insert(field.name().into(), value.into());
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.others.insert(field.name().into(), value.into());
    }
}

impl Log {
    fn write(&self, metadata: &Metadata<'_>, message: &str, fields: &Map<String, Value>, seconds: Option<f64>) {
        let target = metadata.target().trim_start_matches("tensorlogic::");
        let level = metadata.level();
        if *level <= self.text.level(target) {
            let mut line = format!("{:9.3} ms {level:>5} {:<20}", self.began.elapsed().as_secs_f64() * 1e3, metadata.name());
            let _ = write!(line, " {message}");
            for (name, value) in fields {
                let _ = write!(line, " {name}={value}");
            }
            if let Some(s) = seconds {
                let _ = write!(line, " took={:.1}µs", s * 1e6);
            }
            output::note(line.trim_end());
        }
        let Some(file) = self.file.as_ref().filter(|_| *level <= self.json.level(target)) else { return };
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |t| t.as_secs_f64());
        let mut value = json!({ "time": time, "level": level.as_str().to_ascii_lowercase(), "target": target, "name": metadata.name() });
        if let Value::Object(object) = &mut value {
            if !message.is_empty() {
                object.insert("message".into(), message.into());
            }
            object.extend(seconds.map(|s| ("seconds".to_string(), s.into())));
            object.extend(fields.iter().map(|(name, value)| (name.clone(), value.clone())));
        }
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        // A full disk must not end the program; what is there is whole lines.
        let _ = writeln!(file, "{value}").and_then(|()| file.flush());
    }

    fn spans(&self) -> std::sync::MutexGuard<'_, HashMap<u64, OpenSpan>> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let Some(target) = metadata.target().strip_prefix("tensorlogic::") else { return false };
        *metadata.level() <= self.text.level(target).max(self.json.level(target))
    }
    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.text.most().max(self.json.most()))
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = EventFields::default();
        span.record(&mut fields);
        let id = self.next.fetch_add(1, Relaxed);
        self.spans().insert(id, OpenSpan { metadata: span.metadata(), fields: fields.others, entered: None });
        Id::from_u64(id)
    }
    fn record(&self, span: &Id, values: &Record<'_>) {
        let mut fields = EventFields::default();
        values.record(&mut fields);
        if let Some(open) = self.spans().get_mut(&span.into_u64()) {
            open.fields.extend(fields.others);
        }
    }
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut fields = EventFields::default();
        event.record(&mut fields);
        self.write(event.metadata(), &fields.message, &fields.others, None);
    }
    fn enter(&self, span: &Id) {
        if let Some(open) = self.spans().get_mut(&span.into_u64()) {
            open.entered = Some(Instant::now());
        }
    }
    fn exit(&self, _: &Id) {}
    fn try_close(&self, span: Id) -> bool {
        let closed = self.spans().remove(&span.into_u64());
        if let Some(OpenSpan { metadata, fields, entered }) = closed {
            self.write(metadata, "", &fields, entered.map(|e| e.elapsed().as_secs_f64()));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_a_level_and_levels_of_targets() {
        let filter = Filter::parse("info, memory=trace,queue=off").unwrap();
        let levels = ["eval", "memory", "queue"].map(|t| filter.level(t));
        assert_eq!(levels, [LevelFilter::INFO, LevelFilter::TRACE, LevelFilter::OFF]);
        assert_eq!(filter.most(), LevelFilter::TRACE);
        assert_eq!(Filter::parse("").unwrap().most(), LevelFilter::OFF);
        assert!(Filter::parse("loud").unwrap_err().contains("not a level"));
        assert!(Filter::parse("memory=").is_err());
    }
}
