//! `tl inspect FILE`: what is in a GGUF or safetensors file.

use crate::fetch::{self, PullOptions};
use crate::model::{damaged, is_model};
use crate::output::{self, Failure};
use crate::{Global, table};
use clap::Args;
use serde_json::{Map, Value as Json, json};
use std::path::Path;
use tensorlogic::Device;
use tensorlogic::io::gguf::{Value, ValueType};
use tensorlogic::io::human_bytes;
use tensorlogic::io::{Gguf, SafeTensors, TensorInfo};
use tensorlogic::models::{Lacks, Weights, lacks};

/// Items of an array that `--json` gives; of a longer one it gives the length.
const ARRAY: usize = 64;

/// List the metadata and tensors of a model file, and what an unknown architecture lacks
#[derive(Args)]
#[command(after_help = "Examples:
  tl inspect model.gguf
  tl inspect smollm2-135m-instruct --tensors
  tl inspect folder/ --json | jq '.tensors[].name'")]
pub struct InspectArgs {
    /// GGUF or safetensors file, index of shards, folder with one of them, or a model's name
    file: String,
    /// Also list every tensor
    #[arg(short, long)]
    tensors: bool,
}

struct Contents {
    format: String,
    bytes: u64,
    metadata: Vec<(String, String, Json)>,
    tensors: Vec<TensorInfo>,
}

/// Runs the subcommand.
pub fn run(args: &InspectArgs, global: Global) -> Result<(), Failure> {
    let mut options = PullOptions::from_env()?;
    options.quiet = global.quiet;
    let path = fetch::resolve(&args.file, &options)?;
    let c = read(&path)?;
    // A file that is not a model, or names no architecture, lacks nothing.
    let lacking = Weights::open(&path, &Device::cpu()).and_then(lacks).ok().flatten();
    let elements: usize = c.tensors.iter().map(TensorInfo::count).sum();
    let stored: usize = c.tensors.iter().map(|t| t.range.len()).sum();
    if global.json {
        let metadata: Map<String, Json> = c.metadata.into_iter().map(|(k, _, v)| (k, v)).collect();
        let tensors: Vec<Json> = c
            .tensors
            .iter()
            .map(|t| json!({ "name": t.name, "dtype": t.type_name(), "shape": &t.shape[..], "bytes": t.range.len(), "offset": t.range.start }))
            .collect();
        let value = json!({ "file": path, "format": c.format, "bytes": c.bytes, "parameters": elements, "tensor_bytes": stored,
            "metadata": metadata, "tensors": tensors, "lacks": lacking.as_ref().map(lacks_json) });
        return output::result(&value.to_string());
    }
    output::result(&format!("{}: {}, {}", path.display(), c.format, human_bytes(c.bytes)))?;
    let metadata: Vec<Vec<String>> = c.metadata.iter().map(|(k, text, _)| vec![k.clone(), text.clone()]).collect();
    if !metadata.is_empty() {
        output::result("\nmetadata")?;
        lines(&metadata, &[])?;
    }
    if args.tensors {
        output::result("\ntensors")?;
        let rows: Vec<Vec<String>> = c
            .tensors
            .iter()
            .map(|t| vec![t.name.to_string(), t.type_name().into(), format!("{:?}", &t.shape[..]), human_bytes(t.range.len() as u64)])
            .collect();
        lines(&rows, &[3])?;
    }
    output::result("\ntypes")?;
    let mut types: Vec<(&str, usize, usize, usize)> = Vec::new();
    for t in &c.tensors {
        let at = types.iter().position(|(name, ..)| *name == t.type_name()).unwrap_or_else(|| {
            types.push((t.type_name(), 0, 0, 0));
            types.len() - 1
        });
        let (_, count, elements, bytes) = &mut types[at];
        (*count, *elements, *bytes) = (*count + 1, *elements + t.count(), *bytes + t.range.len());
    }
    types.sort_by_key(|&(_, _, _, bytes)| std::cmp::Reverse(bytes));
    types.push(("all", c.tensors.len(), elements, stored));
    let row = |&(name, count, elements, bytes): &(&str, usize, usize, usize)| {
        let bits = bytes as f64 * 8.0 / elements.max(1) as f64;
        vec![
            name.into(),
            format!("{count} tensors"),
            format!("{} parameters", table::thousands(elements as f64)),
            human_bytes(bytes as u64),
            format!("{bits:.2} bits each"),
        ]
    };
    lines(&types.iter().map(row).collect::<Vec<_>>(), &[1, 2, 3, 4])?;
    lacking.as_ref().map_or(Ok(()), show_lacks)
}

fn lacks_json(l: &Lacks) -> Json {
    let tensors: Vec<Json> = l.tensors.iter().map(|(name, count, shape)| json!({ "name": name, "count": count, "shape": shape })).collect();
    json!({ "architecture": l.architecture, "nearest": l.nearest, "refusal": l.refusal, "settings": l.settings, "tensors": tensors })
}

/// What an unknown architecture lacks.
fn show_lacks(l: &Lacks) -> Result<(), Failure> {
    output::result(&format!("\nsupport\n  the architecture \"{}\" is not known; the nearest is {}", l.architecture, l.nearest))?;
    if let Some(refusal) = &l.refusal {
        output::result(&format!("  it does not read this file: {refusal}"))?;
    }
    if !l.settings.is_empty() {
        output::result("  settings that it lacks")?;
        l.settings.iter().try_for_each(|s| output::result(&format!("    {s}")))?;
    }
    if !l.tensors.is_empty() {
        output::result("  tensors that it does not know")?;
        let rows: Vec<Vec<String>> = l
            .tensors
            .iter()
            .map(|(name, count, shape)| vec![format!("  {}", clip(name)), format!("× {count}"), format!("{shape:?}")])
            .collect();
        lines(&rows, &[1])?;
    }
    if l.refusal.is_none() && l.settings.is_empty() && l.tensors.is_empty() {
        output::result(&format!(
            "  nothing in the file differs from {}; a description of the architecture must say what it computes",
            l.nearest
        ))?;
    }
    Ok(())
}

fn lines(rows: &[Vec<String>], right: &[usize]) -> Result<(), Failure> {
    table::lines(rows, right).iter().try_for_each(|line| output::result(&format!("  {line}")))
}

fn read(path: &Path) -> Result<Contents, Failure> {
    is_model(path)?;
    let mut start = [0; 4];
    let is_gguf = path.is_file() && std::io::Read::read(&mut std::fs::File::open(path)?, &mut start)? == 4 && &start == b"GGUF";
    if is_gguf || path.extension().is_some_and(|e| e == "gguf") {
        let file = Gguf::open(path).map_err(|e| damaged(path, e))?;
        let metadata = file.metadata().map(|(k, v)| (k.to_string(), shown(v), to_json(v))).collect();
        return Ok(Contents {
            format: format!("GGUF version {}", file.version()),
            bytes: file.data().len() as u64,
            metadata,
            tensors: file.tensors().to_vec(),
        });
    }
    let file = SafeTensors::open(path).map_err(|e| damaged(path, e))?;
    let mut metadata: Vec<_> = file.metadata().iter().map(|(k, v)| (k.clone(), clip(v), json!(v))).collect();
    // The settings of a model in Hub layout lie next to its weights.
    let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new(".")) };
    if let Some(Json::Object(config)) = std::fs::read(folder.join("config.json")).ok().and_then(|b| serde_json::from_slice(&b).ok()) {
        metadata.extend(config.into_iter().map(|(k, v)| (format!("config.{k}"), clip(&v.to_string()), v)));
    }
    let mut seen: Vec<*const u8> = Vec::new();
    let mut bytes = 0;
    for t in file.tensors() {
        if let Some(data) = file.data_of(t).filter(|d| !seen.contains(&d.as_ptr())) {
            seen.push(data.as_ptr());
            bytes += data.len() as u64;
        }
    }
    let format = if seen.len() > 1 { format!("safetensors in {} files", seen.len()) } else { "safetensors".into() };
    Ok(Contents { format, bytes, metadata, tensors: file.tensors().to_vec() })
}

/// A value on one line.
fn shown(v: Value) -> String {
    if let Ok(a) = v.array() {
        let first: Vec<String> = a.values().take(4).map(|v| clip(&v.to_string())).collect();
        let more = if a.len() > first.len() { format!(", … {} in all", a.len()) } else { String::new() };
        return format!("[{}{more}]", first.join(", "));
    }
    v.str().map_or_else(|_| v.to_string(), clip)
}

/// The beginning of a text on one line, without what could steer a terminal.
fn clip(text: &str) -> String {
    let escape = |c: char| if c.is_control() { c.escape_debug().collect() } else { c.to_string() };
    let mut out: String = text.chars().take(100).map(escape).collect();
    if text.chars().nth(100).is_some() {
        out.push('…');
    }
    out
}

fn to_json(v: Value) -> Json {
    match v.kind() {
        ValueType::Bool => v.bool().map_or(Json::Null, Json::from),
        ValueType::Str => v.str().map_or(Json::Null, Json::from),
        ValueType::F32 | ValueType::F64 => v.f64().map_or(Json::Null, Json::from),
        ValueType::Array => match v.array() {
            Ok(a) if a.len() <= ARRAY => a.values().map(to_json).collect(),
            Ok(a) => json!({ "length": a.len(), "type": a.kind().name() }),
            Err(_) => Json::Null,
        },
        _ => v.i64().map(Json::from).or_else(|_| v.u64().map(Json::from)).unwrap_or(Json::Null),
    }
}
