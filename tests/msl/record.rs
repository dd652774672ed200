//! Records dispatches of an Apple GPU for `tl doctor --self-test`: the Metal source, and the memory before and after, of every kind of kernel in its dtypes.
//!
//! `cargo test --test msl record -- --ignored` writes src/measure/self_test/dispatches.safetensors.z anew; tests/metal runs that file again.

use super::backend::MslBackend;
use super::common::open;
use super::toolchain::Mode;
use flate2::{Compression, write::ZlibEncoder};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::sync::{Arc, Mutex};
use tensorlogic::measure::{SelfTestOptions, SelfTestProgress, SelfTestReference, self_test};

/// The memory of a binding.
pub struct Bound {
    pub role: &'static str,
    /// What is stored there, by the dtype's name.
    pub dtype: &'static str,
    pub bytes: usize,
    /// Its content, where the kernel reads it.
    pub before: Option<Vec<u8>>,
    /// What the kernel leaves there.
    pub after: Option<Vec<u8>>,
}

/// A dispatch that ran.
pub struct Dispatched {
    pub op: &'static str,
    pub source: String,
    /// Whether it makes NaN or infinity itself.
    pub special: bool,
    pub threads: [u32; 3],
    pub grid: [u32; 3],
    pub words: Vec<u32>,
    pub bindings: Vec<Bound>,
}

/// Bytes of a dispatch's memory at most, where it multiplies on matrix units.
pub const MAX_BYTES: usize = 100_000;
/// The same of others.
const MAX_PLAIN_BYTES: usize = 64 << 10;
/// What a source has that not every form of its op has.
const FORMS: [&str; 5] = ["simdgroup_multiply_accumulate", "thread_elements", "simd_sum(", "half4", "threadgroup_barrier"];

impl Dispatched {
    fn bytes(&self) -> usize {
        self.bindings.iter().flat_map(|b| [&b.before, &b.after]).flatten().map(Vec::len).sum()
    }

    /// The op, the dtypes of its memory, and what of Metal's language tells forms of one op apart.
    fn kind(&self) -> String {
        let dtypes = self.bindings.iter().filter(|b| b.role != "scratch").map(|b| b.dtype);
        let forms = FORMS.into_iter().filter(|form| self.source.contains(form));
        [self.op].into_iter().chain(dtypes).chain(forms).collect::<Vec<&str>>().join(" ")
    }

    /// Puts the bindings that are only read first, as a plan's loads come before its stores.
    fn reads_first(mut self) -> Dispatched {
        let is_read = |b: &Bound| matches!(b.role, "read" | "codebooks");
        let (read, written): (Vec<usize>, Vec<usize>) = (0..self.bindings.len()).partition(|n| is_read(&self.bindings[*n]));
        let order: Vec<usize> = read.into_iter().chain(written).collect();
        let mut parts = self.source.split("[[buffer(");
        let mut source = parts.next().unwrap_or_default().to_string();
        for part in parts {
            let (number, rest) = part.split_once(')').unwrap();
            let number: usize = number.parse().unwrap();
            let at = if number == 0 { 0 } else { 1 + order.iter().position(|n| *n + 1 == number).unwrap() };
            source += &format!("[[buffer({at}){rest}");
        }
        self.source = source;
        let mut bindings: Vec<Option<Bound>> = self.bindings.into_iter().map(Some).collect();
        self.bindings = order.iter().filter_map(|n| bindings[*n].take()).collect();
        self
    }
}

/// What the cases dispatch, each with the case's name.
fn dispatched(backend: &Arc<MslBackend>, device: &tensorlogic::Device) -> Vec<(String, Dispatched)> {
    let (case, all) = (Arc::new(Mutex::new(String::new())), Arc::new(Mutex::new(vec![])));
    let mut reference = SelfTestReference::default();
    let options = SelfTestOptions::default();
    backend.with_kernels_of(|learning| {
        if !learning {
            let (case, all) = (case.clone(), all.clone());
            backend.record(Some(Box::new(move |d| all.lock().unwrap().push((case.lock().unwrap().clone(), d)))));
        }
        let report = self_test(device, &options, &mut reference, &mut |progress| {
            if let SelfTestProgress::Begins(name, _) = progress {
                *case.lock().unwrap() = name.into();
            }
        });
        // What the CPU gives is not in question here.
        let failed = report.rows.iter().filter_map(|r| r.failed.as_ref()).find(|why| !why.contains("the CPU's values"));
        assert!(learning || failed.is_none(), "{failed:?}");
    });
    backend.record(None);
    let mut all = all.lock().unwrap();
    all.drain(..).filter(|(case, _)| !case.starts_with("litmus")).collect()
}

#[test]
#[ignore = "writes the file of recorded dispatches"]
fn record() {
    let (backend, device) = open(Mode::Unoptimized, None).unwrap();
    let mut all = dispatched(&backend, &device);
    println!("{} dispatches", all.len());
    // The smallest of each kind.
    all.retain(|(_, d)| d.bytes() <= MAX_PLAIN_BYTES || d.source.contains(FORMS[0]));
    all.sort_by_key(|(_, d)| d.bytes() + d.source.len());
    let mut kinds = BTreeMap::<String, usize>::new();
    let mut is_first = |d: &Dispatched| {
        let count = kinds.entry(d.kind()).or_default();
        *count += 1;
        *count == 1
    };
    let chosen: Vec<(String, Dispatched)> = all.into_iter().filter_map(|(case, d)| is_first(&d).then(|| (case, d.reads_first()))).collect();
    for (kind, count) in &kinds {
        println!("{count:5}  {kind}");
    }
    let (mut list, mut memory) = (vec![], vec![]);
    for (n, (case, d)) in chosen.iter().enumerate() {
        let bindings: Vec<Value> = d.bindings.iter().map(|b| json!({ "role": b.role, "dtype": b.dtype, "bytes": b.bytes })).collect();
        list.push(
            json!({ "name": format!("{} of {case}", d.op), "source": d.source, "special": d.special, "threads": d.threads, "grid": d.grid, "words": d.words,
            "bindings": bindings }),
        );
        for (k, b) in d.bindings.iter().enumerate() {
            let points = [("before", &b.before), ("after", &b.after)];
            memory.extend(points.into_iter().filter_map(|(point, bytes)| Some((format!("{n}.{point}.{k}"), bytes.as_ref()?))));
        }
    }
    let tensors: Vec<(String, TensorView<'_>)> =
        memory.iter().map(|(name, bytes)| (name.clone(), TensorView::new(Dtype::U8, vec![bytes.len()], bytes).unwrap())).collect();
    let metadata = HashMap::from([("dispatches".to_string(), Value::from(list).to_string())]);
    let file = safetensors::serialize(tensors, Some(metadata)).unwrap();
    let mut packed = ZlibEncoder::new(vec![], Compression::best());
    packed.write_all(&file).unwrap();
    let packed = packed.finish().unwrap();
    println!("{} dispatches of {} kinds, {} bytes, {} packed", chosen.len(), kinds.len(), file.len(), packed.len());
    std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/../src/measure/self_test/dispatches.safetensors.z"), packed).unwrap();
}
