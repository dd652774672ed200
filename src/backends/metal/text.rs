//! Kernels for Metal's compiler: WGSL becomes Metal's language, and that a pipeline; each text once.

use super::device::Gpu;
use crate::backends::codegen::StepShader;
use crate::backends::codegen::metal_text::{LANGUAGE_VERSION, translate};
use crate::backends::threads::on_all_threads;
use crate::error::{TensorError, TensorResult};
use crate::events;
use crate::plan::{PipelineStats, RawSource};
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::{NSObjectProtocol, ProtocolObject};
use objc2::sel;
use objc2_foundation::NSString;
use objc2_metal::{MTLCompileOptions, MTLComputePipelineState, MTLDevice, MTLLanguageVersion, MTLLibrary, MTLMathMode, MTLSize};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

/// A compiled kernel.
pub(super) struct Pipeline {
    pub state: Retained<ProtocolObject<dyn MTLComputePipelineState>>,
    /// Threads of a threadgroup.
    pub threads: MTLSize,
}

/// Every kernel compiled so far.
#[derive(Default)]
pub(super) struct Pipelines {
    by_text: HashMap<String, Arc<Pipeline>>,
    seconds: f64,
}

impl Pipelines {
    /// The pipeline of a shader that [`Pipelines::compile`] got.
    pub fn get(&self, text: &str) -> Option<Arc<Pipeline>> {
        self.by_text.get(text).cloned()
    }

    /// Compiles those shaders that are new, on as many threads as the processor has; gives how many there were.
    pub fn compile<'s>(&mut self, gpu: &Gpu, steps: impl Iterator<Item = (&'s StepShader, &'static str)>) -> TensorResult<usize> {
        let mut seen = HashSet::new();
        let new: Vec<_> = steps.filter(|s| !self.by_text.contains_key(&s.0.text) && seen.insert(&s.0.text)).collect();
        if new.is_empty() {
            events::kernels_found(self.by_text.len());
            return Ok(0);
        }
        let (count, start) = (new.len(), Instant::now());
        let done = on_all_threads(&new, 2, |(shader, name)| pipeline(gpu, shader, name));
        let mut failed = None;
        for ((shader, name), made) in new.into_iter().zip(done) {
            match made {
                Some(Ok(p)) => {
                    events::kernel_compiled(name, shader.text.len());
                    self.by_text.insert(shader.text.clone(), Arc::new(p));
                }
                Some(Err(e)) if failed.is_none() => failed = Some((shader, name, e)),
                _ => {}
            }
        }
        self.seconds += start.elapsed().as_secs_f64();
        let Some((shader, name, e)) = failed else { return Ok(count) };
        events::kernel_failed(name, &e);
        // The source helps whoever wrote the kernel; numbered, since compilers name lines.
        let text: String = shader.text.lines().enumerate().map(|(n, l)| format!("{:4} {l}\n", n + 1)).collect();
        Err(TensorError::Unsupported(format!("{name} on {}: {e}\n{text}", gpu.name)))
    }

    /// How many there are, and what they took.
    pub fn stats(&self) -> PipelineStats {
        PipelineStats { pipelines: self.by_text.len(), seconds: self.seconds, ..PipelineStats::default() }
    }
}

/// The options that a kernel is compiled with. The version is stated, since the system's default follows the SDK of the program. Arithmetic is the
/// fast kind, which may assume that there is no NaN and no infinity, unless the text makes some itself; what it does to those of the data is found
/// by probes when the device is opened.
fn options(special: bool) -> Retained<MTLCompileOptions> {
    let options = MTLCompileOptions::new();
    let (major, minor) = LANGUAGE_VERSION;
    options.setLanguageVersion(MTLLanguageVersion((major as usize) << 16 | minor as usize));
    // From macOS 15 on; before, the same by another name.
    if options.respondsToSelector(sel!(setMathMode:)) {
        options.setMathMode(if special { MTLMathMode::Relaxed } else { MTLMathMode::Fast });
    } else {
        #[allow(deprecated)]
        options.setFastMathEnabled(!special);
    }
    options
}

/// The pipeline of a step's shader.
fn pipeline(gpu: &Gpu, shader: &StepShader, name: &str) -> Result<Pipeline, String> {
    match &shader.raw {
        None => of_wgsl(gpu, &shader.text, shader.views.len() + 1, name),
        Some(raw) => match &raw.source {
            RawSource::Msl(text) => compile(gpu, text, raw.entry, raw.workgroup, false, name),
            RawSource::SpirV(_) => Err("the kernel is not in Metal's language".into()),
        },
    }
}

/// The pipeline of a WGSL kernel whose entry point is `main` and whose `bindings` buffers are in group 0.
///
/// # Errors
/// What the translator or Metal's compiler says about the text.
pub(super) fn of_wgsl(gpu: &Gpu, wgsl: &str, bindings: usize, name: &str) -> Result<Pipeline, String> {
    let text = translate(wgsl, bindings)?;
    compile(gpu, &text.source, &text.entry, text.workgroup, text.special, name)
}

fn compile(gpu: &Gpu, source: &str, entry: &str, workgroup: [u32; 3], special: bool, name: &str) -> Result<Pipeline, String> {
    autoreleasepool(|_| {
        let told = |e: Retained<objc2_foundation::NSError>| e.localizedDescription().to_string();
        let options = options(special);
        let library = gpu.device.newLibraryWithSource_options_error(&NSString::from_str(source), Some(&options)).map_err(told)?;
        library.setLabel(Some(&NSString::from_str(name)));
        let function = library.newFunctionWithName(&NSString::from_str(entry)).ok_or_else(|| format!("there is no kernel {entry:?}"))?;
        let state = gpu.device.newComputePipelineStateWithFunction_error(&function).map_err(told)?;
        let (threads, most) = (workgroup.iter().product::<u32>() as usize, state.maxTotalThreadsPerThreadgroup());
        if threads > most {
            return Err(format!("the kernel needs {threads} threads a group; it can have {most} on this GPU"));
        }
        let [width, height, depth] = workgroup.map(|n| n as usize);
        Ok(Pipeline { state, threads: MTLSize { width, height, depth } })
    })
}
