//! Compiled kernels, found again by their text.

use super::core::Core;
use super::wgsl::StepText;
use crate::error::{TensorError, TensorResult};
use crate::plan::RawSource;
use std::collections::HashMap;
use std::sync::Arc;

/// A compiled kernel.
pub(super) struct Pipeline {
    pub raw: wgpu::ComputePipeline,
    pub layout: wgpu::BindGroupLayout,
}

/// Every kernel compiled so far.
#[derive(Default)]
pub(super) struct Pipelines {
    by_text: HashMap<String, Arc<Pipeline>>,
}

impl Pipelines {
    /// The pipeline of a text, compiled on first sight.
    pub fn get(&mut self, core: &Core, step: &StepText, name: &'static str) -> TensorResult<Arc<Pipeline>> {
        if let Some(p) = self.by_text.get(&step.text) {
            return Ok(p.clone());
        }
        let storage = core.max_bindings;
        if step.views.len() > storage {
            return Err(TensorError::Unsupported(format!("{name} binds {} buffers; {} takes {storage}", step.views.len(), core.name)));
        }
        let p = core.guarded(|| compile(core, step, name)).map_err(|e| {
            if let lost @ TensorError::DeviceLost(_) = core.refused(String::new()) {
                return lost;
            }
            // The text helps whoever wrote the kernel; numbered, since compilers name lines.
            let text: String = step.text.lines().enumerate().map(|(n, l)| format!("{:4} {l}\n", n + 1)).collect();
            TensorError::Unsupported(format!("{name} on {}: {e}\n{text}", core.name))
        })?;
        let p = Arc::new(p);
        self.by_text.insert(step.text.clone(), p.clone());
        Ok(p)
    }
    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_text.len()
    }
}

fn compile(core: &Core, step: &StepText, name: &'static str) -> Pipeline {
    if let Some(raw) = &step.raw {
        let [x, y, z] = raw.workgroup;
        let entries = [wgpu::PassthroughShaderEntryPoint { name: raw.entry.into(), workgroup_size: (x, y, z) }];
        let mut module =
            wgpu::ShaderModuleDescriptorPassthrough { label: Some(name), entry_points: entries.as_slice().into(), ..Default::default() };
        match &raw.source {
            RawSource::Msl(text) => module.msl = Some(text.as_ref().into()),
            RawSource::SpirV(words) => module.spirv = Some(words.as_ref().into()),
        }
        // SAFETY: who made the `RawKernel` vouched for its text.
        let module = unsafe { core.device.create_shader_module_passthrough(module) };
        return pipeline(core, step, name, &module, raw.entry);
    }
    let module = wgpu::ShaderModuleDescriptor { label: Some(name), source: wgpu::ShaderSource::Wgsl(step.text.as_str().into()) };
    let module = if core.checked {
        core.device.create_shader_module(module)
    } else {
        // SAFETY: every index a kernel forms is within the layouts of its plan or clamped by the kernel; the tests run the same texts with checks on.
        unsafe { core.device.create_shader_module_trusted(module, wgpu::ShaderRuntimeChecks::unchecked()) }
    };
    pipeline(core, step, name, &module, "main")
}

fn pipeline(core: &Core, step: &StepText, name: &'static str, module: &wgpu::ShaderModule, main: &str) -> Pipeline {
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
    let layout = core.device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries });
    let pipeline_layout = core.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
        label: None,
        bind_group_layouts: &[Some(&layout)],
        immediate_size: 0,
    });
    let raw = core.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: Some(name),
        layout: Some(&pipeline_layout),
        module,
        entry_point: Some(main),
        compilation_options: wgpu::PipelineCompilationOptions { constants: &[], zero_initialize_workgroup_memory: false },
        cache: None,
    });
    Pipeline { raw, layout }
}
