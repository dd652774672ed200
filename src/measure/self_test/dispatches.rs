//! Dispatches that were recorded on Linux: a kernel's Metal source, its memory before and after. Metal runs them again, and must leave the same.
//!
//! `tests/msl/record.rs` makes the file, a safetensors file under zlib, of what the cases give an Apple GPU. Its tensors are the memory of bindings, by the
//! number of the dispatch, a point in time and the number of the binding; the sources and the rest are in its metadata.

use super::cases::rounding;
use super::error;
use crate::backends::Bytes;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::layout::Layout;
use crate::plan::{
    AdapterInfo, Buf, Input, Kernel, KernelParam, Load, Output, Plan, RawKernel, RawLanguage, RawSource, Source, Step, Store, Task, Wgsl,
    Work,
};
use crate::quant;
use crate::scalar::Program;
use crate::shape::Shape;
use crate::tensor::Tensor;
use safetensors::SafeTensors;
use serde::Deserialize;
use std::collections::HashMap;
use std::sync::Arc;

/// The file of recorded dispatches, compressed by zlib.
const RECORDED: &[u8] = include_bytes!("dispatches.safetensors.z");
/// The point before a dispatch, in the names of the file's tensors.
const BEFORE: &str = "before";
/// The point behind it.
const AFTER: &str = "after";

/// What a kernel does with the memory of a binding.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Role {
    /// It reads the recorded memory.
    Read,
    /// It reads the words of [`quant::codebooks`].
    Codebooks,
    /// It writes memory that is compared.
    Result,
    /// It writes memory that is not: counters, partial results, the record of a bad index.
    Scratch,
}

impl Role {
    fn is_read(self) -> bool {
        matches!(self, Role::Read | Role::Codebooks)
    }
}

#[derive(Clone, Debug, Deserialize)]
struct Binding {
    role: Role,
    /// Bytes.
    bytes: usize,
    /// What is stored there.
    dtype: String,
}

/// A recorded dispatch.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct RecordedDispatch {
    /// The op that wrote the kernel, and the case that dispatched it.
    pub name: String,
    source: String,
    /// Whether it makes NaN or infinity itself, see [`RawKernel::special`].
    special: bool,
    /// Threads of a threadgroup, and threadgroups.
    threads: [u32; 3],
    grid: [u32; 3],
    /// The words of binding 0.
    words: Vec<u32>,
    /// Bindings 1, 2, …: those that are only read come first.
    bindings: Vec<Binding>,
}

/// The recorded dispatches, and their memory by the names of the file's tensors.
pub(super) struct Recording {
    pub dispatches: Vec<RecordedDispatch>,
    memory: HashMap<String, Vec<u8>>,
}

fn damaged(why: impl ToString) -> TensorError {
    TensorError::format("recorded dispatches", why.to_string())
}

/// Whether the device takes them: its driver compiles Metal's language.
pub(super) fn runs_on(device: &Device) -> bool {
    device.backend().adapter().is_some_and(|a| a.info.raw == Some(RawLanguage::Msl))
}

/// The recorded kernel as a step's work.
struct RecordedKernel(RecordedDispatch);

impl Kernel for RecordedKernel {
    fn cpu(&self, _: &dyn Task) {}
    fn ops(&self, _: &Step) -> u64 {
        0
    }
    fn portable(&self) -> bool {
        false
    }
    fn wgsl(&self, _: &Step, _: &AdapterInfo) -> Option<Wgsl> {
        None
    }
    fn raw(&self, _: &Step, adapter: &AdapterInfo) -> Option<RawKernel> {
        let RecordedDispatch { source, special, threads, grid, words, .. } = &self.0;
        let words = words.iter().map(|w| KernelParam::U32(*w)).collect();
        let source = RawSource::Msl(source.clone().into());
        // SAFETY: the kernel ran over memory of these sizes, behind which there was none, when it was recorded.
        let kernel = unsafe { RawKernel::new(source, ENTRY, *threads, *grid, words) };
        (adapter.raw == Some(RawLanguage::Msl)).then_some(RawKernel { special: *special, ..kernel })
    }
}

/// The kernel's name in each source.
const ENTRY: &str = "main_";

/// Words of whole memory.
fn whole(buf: Buf, bytes: usize) -> Source {
    Source { buf, dtype: DType::U32, layout: Layout::contiguous(Shape::of(&[bytes / 4])), offset: None, aligned: true }
}

/// A plan of one step, which reads its inputs and writes its outputs.
fn plan(dispatch: &RecordedDispatch) -> Plan {
    let (read, written): (Vec<&Binding>, Vec<&Binding>) = dispatch.bindings.iter().partition(|b| b.role.is_read());
    let load = |(n, b): (usize, &&Binding)| {
        let source = whole(Buf::Input(n as u16), b.bytes);
        Load { shape: source.layout.shape, program: Program::identity(DType::U32), sources: vec![source] }
    };
    let store = |(n, b): (usize, &&Binding)| {
        let target = whole(Buf::Output(n as u16), b.bytes);
        Store { shape: target.layout.shape, program: Program::value(DType::U32), sources: vec![], target }
    };
    let step = Step {
        name: "recorded",
        at: std::panic::Location::caller(),
        work: Work::Kernel(Arc::new(RecordedKernel(dispatch.clone()))),
        loads: read.iter().enumerate().map(load).collect(),
        stores: written.iter().enumerate().map(store).collect(),
        params: vec![],
    };
    Plan {
        steps: vec![step],
        inputs: read.iter().map(|_| Input { dtype: DType::U32, written: false }).collect(),
        outputs: written.iter().map(|b| Output { dtype: DType::U32, bytes: b.bytes }).collect(),
        slots: vec![],
        params: 0,
        memory: Default::default(),
    }
}

/// Values of memory as f32.
fn values(bytes: &[u8], dtype: DType) -> TensorResult<Vec<f32>> {
    let cpu = Device::cpu();
    let owned = Bytes::Owned(Arc::new(bytes.to_vec()));
    let count = bytes.len() / dtype.bytes(1).unwrap_or(1);
    Tensor::from_bytes(owned, dtype, &[count], &cpu)?.cast(DType::F32)?.to_vec()
}

/// How far each dtype's results may be from those recorded, as a part of the largest: arithmetic is that of another compiler.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => 1e-4,
        DType::F16 | DType::BF16 => rounding(dtype),
        _ => 0.0,
    }
}

impl Recording {
    /// What was recorded.
    ///
    /// # Errors
    /// [`TensorError::Format`] for a damaged file.
    pub fn read() -> TensorResult<Recording> {
        let file = miniz_oxide::inflate::decompress_to_vec_zlib(RECORDED).map_err(damaged)?;
        let (_, metadata) = SafeTensors::read_metadata(&file).map_err(damaged)?;
        let list = metadata.metadata().as_ref().and_then(|m| m.get("dispatches")).ok_or_else(|| damaged("no list"))?;
        let tensors = SafeTensors::deserialize(&file).map_err(damaged)?.tensors();
        let memory = tensors.into_iter().map(|(name, tensor)| (name, tensor.data().to_vec())).collect();
        Ok(Recording { dispatches: serde_json::from_str(list).map_err(damaged)?, memory })
    }

    /// The dispatches' names, and the dtypes that they bind.
    #[cfg(test)]
    pub fn contents(&self) -> (Vec<&str>, std::collections::BTreeSet<&str>) {
        let dtypes = self.dispatches.iter().flat_map(|d| d.bindings.iter().map(|b| b.dtype.as_str()));
        (self.dispatches.iter().map(|d| d.name.as_str()).collect(), dtypes.collect())
    }

    /// Runs dispatch `n` on a device again; gives the largest difference from what was recorded, as a part of the largest value, and the largest that is
    /// right.
    ///
    /// # Errors
    /// The device's.
    pub fn replay(&self, n: usize, device: &Device) -> TensorResult<(f64, f64)> {
        let dispatch = &self.dispatches[n];
        let memory = |point: &str, binding: usize| self.memory.get(&format!("{n}.{point}.{binding}"));
        let (backend, mut inputs, mut outputs) = (device.backend(), vec![], vec![]);
        for (k, b) in dispatch.bindings.iter().enumerate() {
            let before = match b.role {
                Role::Codebooks => bytemuck::cast_slice(quant::codebooks()).to_vec(),
                Role::Scratch => vec![0; b.bytes],
                // NaN in every float: what is not written shows.
                _ => memory(BEFORE, k).cloned().unwrap_or_else(|| vec![0xFF; b.bytes]),
            };
            let buffer = backend.alloc(b.bytes)?;
            backend.overwrite(&buffer, &before)?;
            if b.role.is_read() { inputs.push(buffer) } else { outputs.push(buffer) }
        }
        backend.run(&Arc::new(plan(dispatch)), &inputs, &outputs, &[])?;
        let (mut off, mut right) = (0.0f64, 0.0f64);
        for (k, b) in dispatch.bindings.iter().enumerate().filter(|(_, b)| b.role == Role::Result) {
            let want = memory(AFTER, k).ok_or_else(|| damaged(format!("dispatch {n} has no result {k}")))?;
            let mut got = vec![0; b.bytes];
            backend.read(&outputs[k - inputs.len()], 0, &mut got)?;
            let dtype = DType::ALL.into_iter().find(|d| d.name() == b.dtype).ok_or_else(|| damaged(format!("no dtype {}", b.dtype)))?;
            let here = if got == *want { 0.0 } else { error(&values(&got, dtype)?, &values(want, dtype)?) };
            (off, right) = (off.max(here), right.max(tolerance(dtype)));
        }
        Ok((off, right))
    }
}
