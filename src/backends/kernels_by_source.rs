//! The compiled kernels of a GPU backend, found again by their source.

use super::codegen::StepShader;
use super::threads::on_all_threads;
use crate::error::{TensorError, TensorResult};
use crate::events;
use crate::plan::{CompiledKernel, PipelineStats};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A step's shader, and the op that wrote it.
pub(super) type Named<'s> = (&'s StepShader, &'static str);

/// Every kernel compiled so far; `K` is what the driver makes of a shader.
pub(super) struct KernelsBySource<K> {
    by_source: HashMap<String, Arc<K>>,
    /// What compiling took.
    seconds: f64,
    compiled: Vec<CompiledKernel>,
}

impl<K> Default for KernelsBySource<K> {
    fn default() -> KernelsBySource<K> {
        KernelsBySource { by_source: HashMap::new(), seconds: 0.0, compiled: vec![] }
    }
}

impl<K: Send + Sync> KernelsBySource<K> {
    /// How many there are, and how many of them were found in the file where they are kept.
    pub fn stats(&self, file: Option<&Path>) -> PipelineStats {
        let bytes = file.and_then(|f| std::fs::metadata(f).ok()).map_or(0, |m| m.len());
        let (pipelines, seconds, file) = (self.by_source.len(), self.seconds, file.map(Path::to_path_buf));
        let found = self.compiled.iter().filter(|k| k.found).count();
        PipelineStats { pipelines, seconds, found, file, bytes, kernels: self.compiled.clone(), ..Default::default() }
    }

    /// The kernel of a shader that [`KernelsBySource::compile`] got.
    pub fn get(&self, source: &str) -> Option<Arc<K>> {
        self.by_source.get(source).cloned()
    }

    /// Those of these shaders that have no kernel yet, each once.
    pub fn missing<'s>(&self, steps: impl Iterator<Item = Named<'s>>) -> Vec<Named<'s>> {
        let mut seen = HashSet::new();
        let missing: Vec<_> = steps.filter(|s| !self.by_source.contains_key(&s.0.source) && seen.insert(&s.0.source)).collect();
        if missing.is_empty() {
            events::kernels_found(self.by_source.len());
        }
        missing
    }

    /// Compiles shaders on as many threads as the processor has; `made` is told each kernel with its source, and tells whether it was found in
    /// the file where kernels are kept. Gives how long it took, and the error of the first shader that could not be compiled, with its source.
    pub fn compile(
        &mut self,
        device: &str,
        missing: Vec<Named<'_>>,
        compile: impl Fn(&StepShader, &'static str) -> Result<K, String> + Sync,
        mut made: impl FnMut(&str, &K) -> bool,
    ) -> (Duration, TensorResult<()>) {
        let start = Instant::now();
        let done = on_all_threads(&missing, 2, |(shader, name)| {
            let start = Instant::now();
            compile(shader, name).map(|kernel| (kernel, start.elapsed()))
        });
        let mut failed = None;
        for ((shader, name), kernel) in missing.into_iter().zip(done) {
            match kernel {
                Some(Ok((kernel, took))) => {
                    events::kernel_compiled(name, shader.source.len());
                    let found = made(&shader.source, &kernel);
                    self.compiled.push(CompiledKernel { name: name.into(), seconds: took.as_secs_f64(), found });
                    self.by_source.insert(shader.source.clone(), Arc::new(kernel));
                }
                Some(Err(e)) if failed.is_none() => failed = Some((shader, name, e)),
                _ => {}
            }
        }
        let took = start.elapsed();
        self.seconds += took.as_secs_f64();
        let Some((shader, name, e)) = failed else { return (took, Ok(())) };
        events::kernel_failed(name, &e);
        // The source helps whoever wrote the kernel; numbered, since compilers name lines.
        let source: String = shader.source.lines().enumerate().map(|(n, l)| format!("{:4} {l}\n", n + 1)).collect();
        (took, Err(TensorError::Unsupported(format!("{name} on {device}: {e}\n{source}"))))
    }
}
