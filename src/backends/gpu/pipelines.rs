//! Compiled kernels, found again by their source.

use super::compiled::CompiledCache;
use super::core::Core;
use crate::backends::codegen::{StepShader, spirv_elements};
use crate::backends::kernels_by_source::{KernelsBySource, Named};
use crate::error::{TensorError, TensorResult};
use crate::plan::{PipelineStats, RawLanguage, RawSource};
use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A compiled kernel.
pub(super) struct Pipeline {
    pub raw: wgpu::ComputePipeline,
    pub layout: wgpu::BindGroupLayout,
}

/// Every kernel compiled so far.
#[derive(Default)]
pub(super) struct Pipelines {
    kernels: KernelsBySource<Pipeline>,
    /// What is kept for the next process; looked for when the first kernel is compiled.
    kept: OnceCell<Option<CompiledCache>>,
}

impl Pipelines {
    /// The pipeline of a shader that [`Pipelines::compile`] got.
    pub fn get(&self, source: &str) -> Option<Arc<Pipeline>> {
        self.kernels.get(source)
    }

    /// Compiles those shaders that are new; gives how many there were.
    pub fn compile<'s>(&mut self, core: &Core, steps: impl Iterator<Item = Named<'s>>) -> TensorResult<usize> {
        let new = self.kernels.missing(steps);
        let (count, storage) = (new.len(), core.max_bindings);
        if count == 0 {
            return Ok(0);
        }
        if let Some((step, name)) = new.iter().find(|s| s.0.views.len() > storage) {
            return Err(TensorError::Unsupported(format!("{name} binds {} buffers; {} takes {storage}", step.views.len(), core.name())));
        }
        self.kept.get_or_init(|| CompiledCache::open(&core.driver, core.kept_in.as_deref(), &core.adapter.key));
        let mut kept = self.kept.get_mut().and_then(Option::as_mut);
        let cache = kept.as_ref().map(|k| k.raw.clone());
        let (took, done) = self.kernels.compile(
            core.name(),
            new,
            |step, name| core.driver.guarded(|| compile(core, cache.as_ref(), step, name)).and_then(|made| made),
            |source, _| kept.as_mut().is_some_and(|k| k.add(source)),
        );
        kept.iter_mut().for_each(|k| k.save(took));
        core.kernels.fetch_add(count as u64, Relaxed);
        done.map(|()| count).map_err(|e| match core.driver.refused(String::new()) {
            lost @ TensorError::DeviceLost(_) => lost,
            _ => e,
        })
    }

    /// How many there are, and where they are kept.
    pub fn stats(&self) -> PipelineStats {
        let kept = self.kept.get().and_then(|k| k.as_ref());
        self.kernels.stats(kept.map(|k| &*k.file))
    }
}

fn compile(core: &Core, cache: Option<&wgpu::PipelineCache>, step: &StepShader, name: &'static str) -> Result<Pipeline, String> {
    if let Some(raw) = &step.raw {
        let [x, y, z] = raw.workgroup;
        let entries = [wgpu::PassthroughShaderEntryPoint { name: raw.entry.into(), workgroup_size: (x, y, z) }];
        let mut module =
            wgpu::ShaderModuleDescriptorPassthrough { label: Some(name), entry_points: entries.as_slice().into(), ..Default::default() };
        match &raw.source {
            RawSource::Msl(source) => module.msl = Some(source.as_ref().into()),
            RawSource::SpirV(words) => module.spirv = Some(words.as_ref().into()),
        }
        // SAFETY: who made the `RawKernel` vouched for its source.
        let module = unsafe { core.driver.device.create_shader_module_passthrough(module) };
        return Ok(pipeline(core, cache, step, name, &module, raw.entry));
    }
    #[cfg(target_vendor = "apple")]
    if let Some((module, entry)) = metal_module(core, step, name) {
        return Ok(pipeline(core, cache, step, name, &module, &entry));
    }
    if let Some(module) = spirv_module(core, step, name)? {
        return Ok(pipeline(core, cache, step, name, &module, "main"));
    }
    let module = wgpu::ShaderModuleDescriptor { label: Some(name), source: wgpu::ShaderSource::Wgsl(step.source.as_str().into()) };
    let module = if core.checked {
        core.driver.device.create_shader_module(module)
    } else {
        // SAFETY: every index a kernel forms is within the layouts of its plan or clamped by the kernel; the tests run the same shaders with
        // checks on.
        unsafe { core.driver.device.create_shader_module_trusted(module, wgpu::ShaderRuntimeChecks::unchecked()) }
    };
    Ok(pipeline(core, cache, step, name, &module, "main"))
}

/// A kernel some of whose functions have a form in SPIR-V; `None` where wgpu translates the source: without such functions, with bounds checks, and where
/// the driver takes no SPIR-V. While the device is opened, what cannot be translated is tried as wgpu does it; after that it is an error, since its WGSL is not
/// written for this adapter.
fn spirv_module(core: &Core, step: &StepShader, name: &'static str) -> Result<Option<wgpu::ShaderModule>, String> {
    if core.checked || core.adapter.info.raw != Some(RawLanguage::SpirV) || !step.source.contains(spirv_elements::MARK) {
        return Ok(None);
    }
    let kernel = match spirv_elements::translate(&step.source) {
        Ok(kernel) => kernel,
        Err(_) if core.adapter.info.elements.is_none() => return Ok(None),
        Err(why) => return Err(format!("{name} in SPIR-V: {why}")),
    };
    let entries = [wgpu::PassthroughShaderEntryPoint { name: "main".into(), workgroup_size: kernel.workgroup }];
    let module = wgpu::ShaderModuleDescriptorPassthrough {
        label: Some(name),
        entry_points: entries.as_slice().into(),
        spirv: Some(kernel.words.into()),
        ..Default::default()
    };
    // SAFETY: as for the source that it was translated from, see `compile`.
    Ok(Some(unsafe { core.driver.device.create_shader_module_passthrough(module) }))
}

/// A kernel with workgroup memory as Metal source that declares it in its body, and the kernel's name there; `None` where wgpu translates the
/// source: without such memory, with bounds checks, and where the driver takes no source.
#[cfg(target_vendor = "apple")]
fn metal_module(core: &Core, step: &StepShader, name: &'static str) -> Option<(wgpu::ShaderModule, String)> {
    if core.checked || core.adapter.info.raw != Some(crate::plan::RawLanguage::Msl) || !step.source.contains("var<workgroup>") {
        return None;
    }
    // A source that is not valid gets its error from wgpu.
    let kernel = crate::backends::codegen::msl_kernel::translate(&step.source, step.views.len() + 1).ok()?;
    let [x, y, z] = kernel.workgroup;
    let entries = [wgpu::PassthroughShaderEntryPoint { name: kernel.entry.as_str().into(), workgroup_size: (x, y, z) }];
    let module = wgpu::ShaderModuleDescriptorPassthrough {
        label: Some(name),
        entry_points: entries.as_slice().into(),
        msl: Some(kernel.source.as_str().into()),
        ..Default::default()
    };
    // SAFETY: as for the source that it was translated from, see `compile`.
    Some((unsafe { core.driver.device.create_shader_module_passthrough(module) }, kernel.entry))
}

fn pipeline(
    core: &Core,
    cache: Option<&wgpu::PipelineCache>,
    step: &StepShader,
    name: &'static str,
    module: &wgpu::ShaderModule,
    main: &str,
) -> Pipeline {
    let entry = |binding, ty| wgpu::BindGroupLayoutEntry {
        binding,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
        count: None,
    };
    let entries: Vec<_> = [entry(0, wgpu::BufferBindingType::Uniform)]
        .into_iter()
        .chain(step.views.iter().enumerate().map(|(n, v)| entry(n as u32 + 1, wgpu::BufferBindingType::Storage { read_only: !v.written })))
        .collect();
    let layout = core.driver.device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries });
    let pipeline_layout = core.driver.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
        label: None,
        bind_group_layouts: &[Some(&layout)],
        immediate_size: 0,
    });
    let raw = core.driver.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: Some(name),
        layout: Some(&pipeline_layout),
        module,
        entry_point: Some(main),
        compilation_options: wgpu::PipelineCompilationOptions { constants: &[], zero_initialize_workgroup_memory: false },
        cache,
    });
    Pipeline { raw, layout }
}
