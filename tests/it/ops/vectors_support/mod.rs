//! Suites of inputs and expected outputs: reading them, and judging a device against them.

pub mod apply;

use flate2::read::GzDecoder;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use tensorlogic::backends::Bytes;
use tensorlogic::{DType, Device, Tensor, TensorError};

/// A tensor of a suite.
pub struct Raw<'a> {
    pub dtype: &'a str,
    pub shape: Vec<usize>,
    pub bytes: &'a [u8],
}

impl Raw<'_> {
    /// The values as f64.
    pub fn values(&self) -> Vec<f64> {
        macro_rules! read {
            ($t:ty) => {
                self.bytes.chunks_exact(size_of::<$t>()).map(|b| <$t>::from_le_bytes(b.try_into().unwrap()) as f64).collect()
            };
        }
        match self.dtype {
            "F64" => read!(f64),
            "F32" => read!(f32),
            "I64" => read!(i64),
            "I32" => read!(i32),
            "I16" => read!(i16),
            "I8" => read!(i8),
            "U64" => read!(u64),
            "U32" => read!(u32),
            "U16" => read!(u16),
            "U8" | "BOOL" => read!(u8),
            "F16" => self.bytes.chunks_exact(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f64()).collect(),
            "BF16" => self.bytes.chunks_exact(2).map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f64()).collect(),
            other => panic!("dtype {other}"),
        }
    }

    /// The library's dtype, where it has it.
    pub fn library_dtype(&self) -> Option<DType> {
        Some(match self.dtype {
            "F64" => DType::F64,
            "F32" => DType::F32,
            "F16" => DType::F16,
            "BF16" => DType::BF16,
            "I64" => DType::I64,
            "I32" => DType::I32,
            "U32" => DType::U32,
            "I16" => DType::I16,
            "U16" => DType::U16,
            "U64" => DType::U64,
            "I8" => DType::I8,
            "U8" => DType::U8,
            "BOOL" => DType::Bool,
            _ => return None,
        })
    }

    /// The tensor on a device; i64 becomes i32 where the device has only that.
    pub fn tensor(&self, device: &Device) -> Result<Tensor, Fail> {
        let dtype = self.library_dtype().ok_or(Fail::Unsupported)?;
        if dtype == DType::I64 && !device.supports(dtype) {
            let narrow: Option<Vec<i32>> = self.values().iter().map(|&v| (v.abs() < 2147483648.0).then_some(v as i32)).collect();
            return Ok(Tensor::from_vec(narrow.ok_or(Fail::Unsupported)?, &self.shape, device)?);
        }
        if !device.supports(dtype) {
            return Err(Fail::Unsupported);
        }
        Ok(Tensor::from_bytes(Bytes::Owned(std::sync::Arc::new(self.bytes.to_vec())), dtype, &self.shape, device)?)
    }
}

/// Why a case gave no result.
pub enum Fail {
    /// The library has no such operation, setting or dtype.
    Unsupported,
    /// It has, and failed.
    Error(String),
}
impl From<TensorError> for Fail {
    fn from(e: TensorError) -> Fail {
        match e {
            TensorError::UnsupportedDevice(_) => Fail::Unsupported,
            e => Fail::Error(e.to_string()),
        }
    }
}

/// One case.
pub struct Case<'a> {
    pub id: &'a str,
    pub op: &'a str,
    pub attrs: &'a Value,
    pub inputs: Vec<Option<Raw<'a>>>,
    pub expect: Vec<Raw<'a>>,
    pub tolerance: &'a Value,
    pub grad: Option<Grad<'a>>,
}

/// The gradients of the sum of results times `by`.
pub struct Grad<'a> {
    pub by: Vec<Option<Raw<'a>>>,
    pub expect: Vec<Option<Raw<'a>>>,
    pub tolerance: &'a Value,
}

/// A result.
pub struct Out {
    pub shape: Vec<usize>,
    pub data: Vec<f64>,
}

/// A suite from `tests/vectors/ops`.
pub struct Suite {
    cases: Vec<Value>,
    data: Vec<u8>,
    header: Value,
    start: usize,
}

fn unpack(name: &str) -> Vec<u8> {
    let path = Path::new(env!("TENSORLOGIC_ROOT")).join("tests/vectors/ops").join(name);
    let mut bytes = Vec::new();
    GzDecoder::new(std::fs::File::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))).read_to_end(&mut bytes).unwrap();
    bytes
}

impl Suite {
    pub fn open(name: &str) -> Suite {
        let text = String::from_utf8(unpack(&format!("{name}.jsonl.gz"))).unwrap();
        let data = unpack(&format!("{name}.safetensors.gz"));
        let n = u64::from_le_bytes(data[..8].try_into().unwrap()) as usize;
        let header = serde_json::from_slice(&data[8..8 + n]).unwrap();
        Suite { cases: text.lines().map(|l| serde_json::from_str(l).unwrap()).collect(), data, header, start: 8 + n }
    }

    fn raw<'a>(&'a self, r: &'a Value) -> Option<Raw<'a>> {
        let place = &self.header[r["k"].as_str()?]["data_offsets"];
        let at = |i: usize| self.start + place[i].as_u64().unwrap() as usize;
        let shape = r["shape"].as_array().unwrap().iter().map(|d| d.as_u64().unwrap() as usize).collect();
        Some(Raw { dtype: r["dtype"].as_str().unwrap(), shape, bytes: &self.data[at(0)..at(1)] })
    }

    fn raws<'a>(&'a self, list: &'a Value) -> Vec<Option<Raw<'a>>> {
        list.as_array().unwrap().iter().map(|r| self.raw(r)).collect()
    }

    pub fn cases(&self) -> impl Iterator<Item = Case<'_>> {
        self.cases.iter().map(|j| Case {
            id: j["id"].as_str().unwrap(),
            op: j["op"].as_str().unwrap(),
            attrs: &j["attrs"],
            inputs: self.raws(&j["in"]),
            expect: j["out"].as_array().unwrap().iter().filter_map(|r| self.raw(r)).collect(),
            tolerance: &j["tol"],
            grad: j.get("grad").filter(|g| g.is_object()).map(|g| Grad {
                by: self.raws(&g["cot"]),
                expect: self.raws(&g["in"]),
                tolerance: &g["tol"],
            }),
        })
    }
}

/// Whether an f32 is what every GPU computes with: neither NaN nor infinite nor subnormal.
fn tame(v: f64) -> bool {
    v.is_finite() && (v == 0.0 || (f64::from(f32::MIN_POSITIVE)..=f64::from(f32::MAX)).contains(&v.abs()))
}

impl Case<'_> {
    /// Whether a block's factor may be subnormal, which a GPU takes for zero, where its numbers are not: those of MXFP4 below 6·2⁻¹²⁶.
    fn has_subnormal_factors(&self) -> bool {
        self.op == "ggml_dequantize" && self.attrs["type"] == "MXFP4"
    }

    /// The elements of the result that bind a GPU, which may treat NaN, infinities and subnormals freely.
    fn binding(&self) -> Vec<bool> {
        let expect = &self.expect[0];
        let mut binding: Vec<bool> = expect.values().into_iter().map(tame).collect();
        if self.has_subnormal_factors() {
            binding.iter_mut().zip(expect.values()).for_each(|(b, v)| *b &= v == 0.0 || v.abs() >= 7.1e-38);
        }
        for r in self.inputs.iter().flatten() {
            if r.shape == expect.shape {
                binding.iter_mut().zip(r.values()).for_each(|(b, v)| *b &= tame(v));
            } else if !r.values().into_iter().all(tame) {
                binding.fill(false);
            }
        }
        binding
    }
}

/// Compares a result with what is expected, by the suite's own rule for the case, where `binding` says so.
pub fn compare(got: &Out, expect: &Raw, tolerance: &Value, binding: Option<&[bool]>) -> Result<(), String> {
    if got.shape != expect.shape {
        return Err(format!("shape {:?} instead of {:?}", got.shape, expect.shape));
    }
    let want = expect.values();
    assert_eq!(got.data.len(), want.len());
    let number = |name: &str| tolerance[name].as_f64().unwrap_or(0.0);
    let kind = tolerance["kind"].as_str().unwrap_or("allclose");
    if kind == "nmse" {
        let noise: f64 = got.data.iter().zip(&want).map(|(a, b)| (a - b).powi(2)).sum();
        let nmse = noise / want.iter().map(|b| b * b).sum::<f64>().max(1e-30);
        return if nmse <= tolerance["max"].as_f64().unwrap() { Ok(()) } else { Err(format!("a normalized squared error of {nmse:.3e}")) };
    }
    // A GPU's arithmetic is WGSL's: zeros may lose their sign, functions are less exact.
    let (loose, ulps) = (binding.is_some(), tolerance["ulp"].as_u64().unwrap_or(0));
    let ulps = if loose { 4 * ulps } else { ulps };
    let signed_zero = !loose && tolerance["signed_zero"].as_bool().unwrap_or(false);
    let close = |a: f64, b: f64| {
        if a.is_nan() || b.is_nan() {
            return a.is_nan() && b.is_nan();
        }
        if a.is_infinite() || b.is_infinite() {
            return a == b;
        }
        if kind == "ulp" {
            let steps = ((a as f32).abs().to_bits() as i64).abs_diff((b as f32).abs().to_bits() as i64);
            let flushed = a == 0.0 && b.abs() < 1.2e-38;
            return flushed || (steps <= ulps && a.signum() == b.signum());
        }
        let sign = !signed_zero || a != 0.0 || b != 0.0 || a.is_sign_negative() == b.is_sign_negative();
        (a - b).abs() <= number("atol") + number("rtol") * b.abs() && sign
    };
    let wrong = (0..want.len()).filter(|&i| binding.is_none_or(|b| b[i]) && !close(got.data[i], want[i]));
    let worst = wrong.max_by(|&i, &j| {
        let gap = |i: usize| (got.data[i] - want[i]).abs();
        gap(i).total_cmp(&gap(j))
    });
    match worst {
        None => Ok(()),
        Some(i) => Err(format!("element {i} is {} instead of {}", got.data[i], want[i])),
    }
}

/// Whether the result's dtype is of the kind that is expected.
fn kind_fits(got: DType, expect: &Raw) -> bool {
    match expect.dtype {
        "BOOL" => got == DType::Bool,
        "F64" | "F32" | "F16" | "BF16" => got.is_float(),
        _ => got.is_int(),
    }
}

fn run(case: &Case, device: &Device) -> Result<Vec<Out>, Fail> {
    if case.op == "ggml_quantize" {
        return apply::quantize(case);
    }
    let outs = apply::apply(case, &apply::inputs(case, device)?, device)?;
    outs.iter()
        .zip(&case.expect)
        .map(|(t, expect)| {
            if !kind_fits(t.dtype(), expect) {
                return Err(Fail::Error(format!("the result is {} instead of {}", t.dtype(), expect.dtype)));
            }
            read(t)
        })
        .collect()
}

fn read(t: &Tensor) -> Result<Out, Fail> {
    let data = match t.dtype() {
        DType::F64 => t.to_vec_of::<f64>()?,
        DType::I64 => t.to_vec_of::<i64>()?.into_iter().map(|v| v as f64).collect(),
        DType::U64 => t.to_vec_of::<u64>()?.into_iter().map(|v| v as f64).collect(),
        DType::I32 => t.to_vec_of::<i32>()?.into_iter().map(f64::from).collect(),
        DType::U32 => t.to_vec_of::<u32>()?.into_iter().map(f64::from).collect(),
        DType::F16 => t.to_vec_of::<half::f16>()?.into_iter().map(f64::from).collect(),
        DType::BF16 => t.to_vec_of::<half::bf16>()?.into_iter().map(f64::from).collect(),
        _ => t.to_vec()?.into_iter().map(f64::from).collect(),
    };
    Ok(Out { shape: t.dims().to_vec(), data })
}

/// The gradients of the case's inputs; `None` where nothing flows.
fn gradients(case: &Case, grad: &Grad, device: &Device) -> Result<Vec<Option<Out>>, Fail> {
    let plain = apply::inputs(case, device)?;
    let leaves: Vec<Option<Tensor>> = plain
        .iter()
        .map(|t| t.as_ref().map(|t| if t.dtype().is_float() { t.requires_grad() } else { Ok(t.clone()) }).transpose())
        .collect::<Result<_, _>>()?;
    let outs = apply::apply(case, &leaves, device)?;
    let mut sum: Option<Tensor> = None;
    for (y, by) in outs.iter().zip(&grad.by) {
        let Some(by) = by else { continue };
        let part = y.mul(&by.tensor(device)?)?.sum_all()?;
        sum = Some(match sum {
            Some(s) => s.add(&part)?,
            None => part,
        });
    }
    let Some(sum) = sum.filter(Tensor::is_tracked) else { return Ok(leaves.iter().map(|_| None).collect()) };
    sum.backward()?;
    leaves.iter().map(|t| t.as_ref().and_then(Tensor::grad).map(|g| read(&g)).transpose()).collect()
}

/// A tolerance that lets a gradient be rounded to the type of its input.
fn rounded(tolerance: &Value, input: Option<&Raw>) -> Value {
    let least = match input.map(|r| r.dtype) {
        Some("BF16") => 1f64 / 128.0,
        Some("F16") => 1f64 / 1024.0,
        _ => return tolerance.clone(),
    };
    let mut t = tolerance.clone();
    t["rtol"] = least.max(t["rtol"].as_f64().unwrap_or(0.0)).into();
    t
}

/// Runs the gradient of every case that has one.
pub fn judge_gradients(suite: &Suite, device: &Device) -> Tally {
    let mut tally = Tally::default();
    for case in suite.cases() {
        let Some(grad) = &case.grad else { continue };
        // Every GPU computes with finite numbers alone.
        let finite = |r: &Raw| r.values().into_iter().all(tame);
        if !device.is_cpu() && !case.inputs.iter().chain(&grad.expect).flatten().all(finite) {
            tally.skipped += 1;
            continue;
        }
        let verdict = match catch_unwind(AssertUnwindSafe(|| gradients(&case, grad, device))) {
            Err(_) => Err("panic".to_string()),
            Ok(Err(Fail::Unsupported)) => {
                tally.unsupported += 1;
                *tally.unsupported_ops.entry(case.op.to_string()).or_default() += 1;
                continue;
            }
            Ok(Err(Fail::Error(e))) => Err(format!("error: {e}")),
            Ok(Ok(got)) => grad.expect.iter().zip(&got).enumerate().try_for_each(|(i, (expect, got))| match (expect, got) {
                (Some(expect), Some(got)) => {
                    let tolerance = rounded(grad.tolerance, case.inputs[i].as_ref());
                    compare(got, expect, &tolerance, None).map_err(|e| format!("input {i}: {e}"))
                }
                (Some(expect), None) if expect.values().iter().any(|&v| v != 0.0) => Err(format!("input {i} has no gradient")),
                _ => Ok(()),
            }),
        };
        match verdict {
            Ok(()) => tally.pass += 1,
            Err(e) => {
                let shapes: Vec<String> = case.inputs.iter().flatten().map(|r| format!("{}{:?}", r.dtype, r.shape)).collect();
                tally.failures.push(format!("gradient of {} {} {}: {e}", case.id, shapes.join(" "), case.attrs));
            }
        }
    }
    tally
}

/// What became of a suite's cases.
#[derive(Default)]
pub struct Tally {
    pub pass: usize,
    pub unsupported: usize,
    pub skipped: usize,
    pub failures: Vec<String>,
    pub unsupported_ops: BTreeMap<String, usize>,
}

/// Runs every case of a suite. With `finite`, elements that come from or should be NaN, infinities or subnormals do not count.
pub fn judge(suite: &Suite, device: &Device, finite: bool) -> Tally {
    let mut tally = Tally::default();
    for case in suite.cases() {
        let binding = (finite || !device.is_cpu() && case.has_subnormal_factors()).then(|| case.binding());
        if binding.as_ref().is_some_and(|b| !b.is_empty() && !b.contains(&true)) {
            tally.skipped += 1;
            continue;
        }
        let verdict = match catch_unwind(AssertUnwindSafe(|| run(&case, device))) {
            Err(_) => Err("panic".to_string()),
            Ok(Err(Fail::Unsupported)) => {
                tally.unsupported += 1;
                *tally.unsupported_ops.entry(case.op.to_string()).or_default() += 1;
                continue;
            }
            Ok(Err(Fail::Error(e))) => Err(format!("error: {e}")),
            Ok(Ok(outs)) if outs.len() < case.expect.len() => Err(format!("{} results", outs.len())),
            Ok(Ok(outs)) => {
                outs.iter().zip(&case.expect).try_for_each(|(got, expect)| compare(got, expect, case.tolerance, binding.as_deref()))
            }
        };
        match verdict {
            Ok(()) => tally.pass += 1,
            Err(e) => {
                let shapes: Vec<String> = case.inputs.iter().flatten().map(|r| format!("{}{:?}", r.dtype, r.shape)).collect();
                tally.failures.push(format!("{} {} {}: {e}", case.id, shapes.join(" "), case.attrs));
            }
        }
    }
    tally
}
