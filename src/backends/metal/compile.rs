//! Kernels for Metal's compiler: WGSL becomes Metal's language, and that a pipeline; each source once.

use super::archive::{self, Archive};
use super::device::Gpu;
use crate::backends::codegen::StepShader;
use crate::backends::codegen::msl_kernel::{MslKernel, TENSOR_LANGUAGE_VERSION, translate, without_bodies};
use crate::backends::kernels_by_source::{KernelsBySource, Named};
use crate::backends::refused_bodies::RefusedBodies;
use crate::error::TensorResult;
use crate::plan::{PipelineStats, RawSource};
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::{NSObjectProtocol, ProtocolObject};
use objc2::sel;
use objc2_foundation::NSString;
use objc2_metal::{MTLCompileOptions, MTLComputePipelineState, MTLDevice, MTLLanguageVersion, MTLLibrary, MTLMathMode, MTLSize};
use std::cell::OnceCell;
use std::sync::Arc;

/// A compiled kernel.
pub(super) struct Pipeline {
    pub state: Retained<ProtocolObject<dyn MTLComputePipelineState>>,
    /// Threads of a threadgroup.
    pub threads: MTLSize,
    /// Whether it came from the archive.
    pub found: bool,
}

/// Every kernel compiled so far.
#[derive(Default)]
pub(super) struct Pipelines {
    kernels: KernelsBySource<Pipeline>,
    /// What is kept for the next process; looked for when the first kernel is compiled.
    archive: OnceCell<Option<Archive>>,
    refused: RefusedBodies,
}

impl Pipelines {
    /// The pipeline of a shader that [`Pipelines::compile`] got.
    pub fn get(&self, source: &str) -> Option<Arc<Pipeline>> {
        self.kernels.get(source)
    }

    /// Compiles those shaders that are new; gives how many there were.
    pub fn compile<'s>(&mut self, gpu: &Gpu, steps: impl Iterator<Item = Named<'s>>) -> TensorResult<usize> {
        let new = self.kernels.missing(steps);
        if new.is_empty() {
            return Ok(0);
        }
        let (count, archive) = (new.len(), self.archive.get_or_init(|| Archive::open(gpu)).as_ref());
        let one = |shader: &StepShader, name| pipeline(gpu, archive, &self.refused, shader, name);
        let (took, done) = self.kernels.compile(&gpu.watch.device, new, one, |_, made| made.found);
        archive.iter().for_each(|a| a.save(took));
        done.map(|()| count)
    }

    /// How many there are, what they took, and where they are kept.
    pub fn stats(&self) -> PipelineStats {
        let archive = self.archive.get().and_then(Option::as_ref);
        let stats = self.kernels.stats(archive.map(|a| &*a.file.0));
        PipelineStats { refused_bodies: self.refused.list(), ..stats }
    }
}

/// The options that a kernel is compiled with. The version is stated, since the system's default follows the SDK of the program. Arithmetic is the
/// fast kind, which may assume that there is no NaN and no infinity, unless the source makes some itself; what it does to those of the data is found
/// by probes when the device is opened.
fn options(kernel: &MslKernel) -> Retained<MTLCompileOptions> {
    let (options, special, (major, minor)) = (MTLCompileOptions::new(), kernel.special, kernel.version());
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
fn pipeline(gpu: &Gpu, archive: Option<&Archive>, refused: &RefusedBodies, shader: &StepShader, name: &str) -> Result<Pipeline, String> {
    match &shader.raw {
        None => refused.or_plain([name, &shader.source], without_bodies, |wgsl| {
            compile(gpu, archive, &translate(wgsl, shader.views.len() + 1)?, name)
        }),
        Some(raw) => match &raw.source {
            RawSource::Msl(msl) => {
                let (source, entry) = (msl.to_string(), raw.entry.to_string());
                compile(gpu, archive, &MslKernel { source, entry, workgroup: raw.workgroup, special: raw.special }, name)
            }
            RawSource::SpirV(_) => Err("the kernel is not in Metal's language".into()),
        },
    }
}

/// The pipeline of a kernel.
///
/// # Errors
/// The message of Metal's compiler.
pub(super) fn compile(gpu: &Gpu, archive: Option<&Archive>, kernel: &MslKernel, name: &str) -> Result<Pipeline, String> {
    let MslKernel { source, entry, workgroup, .. } = kernel;
    // What came with Metal 4: a system without it is not asked for its language.
    if kernel.version() == TENSOR_LANGUAGE_VERSION && !gpu.device.respondsToSelector(sel!(newTensorWithDescriptor:error:)) {
        return Err("the system has no Metal 4".into());
    }
    autoreleasepool(|_| {
        let told = |e: Retained<objc2_foundation::NSError>| e.localizedDescription().to_string();
        let library = gpu.device.newLibraryWithSource_options_error(&NSString::from_str(source), Some(&options(kernel))).map_err(told)?;
        library.setLabel(Some(&NSString::from_str(name)));
        let function = library.newFunctionWithName(&NSString::from_str(entry)).ok_or_else(|| format!("there is no kernel {entry:?}"))?;
        let (state, found) = archive::pipeline(gpu, archive, &function, name)?;
        let (threads, most) = (workgroup.iter().product::<u32>() as usize, state.maxTotalThreadsPerThreadgroup());
        if threads > most {
            return Err(format!("the kernel needs {threads} threads a group; it can have {most} on this GPU"));
        }
        let [width, height, depth] = workgroup.map(|n| n as usize);
        Ok(Pipeline { state, threads: MTLSize { width, height, depth }, found })
    })
}
