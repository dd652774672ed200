//! What a compiled kernel and its adapter tell about threads, and the thread-group sizes that follow.

use crate::backends::open::Served;

/// A size in up to three dimensions, by the name of Apple's `metal` crate.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MTLSize {
    /// Along x.
    pub width: usize,
    /// Along y.
    pub height: usize,
    /// Along z.
    pub depth: usize,
}

impl MTLSize {
    /// The number of threads.
    pub fn count(&self) -> usize {
        self.width * self.height * self.depth
    }
}

/// The adapter behind a backend, as its driver describes it.
#[derive(Clone, Debug)]
pub struct AdapterDevice {
    name: String,
    execution_width: usize,
    threads: usize,
    sizes: MTLSize,
    memory: usize,
    software: bool,
}

impl AdapterDevice {
    pub(super) fn of(served: &Served) -> AdapterDevice {
        let (name, info, [width, height, depth]) = match *served {
            #[cfg(feature = "gpu")]
            Served::Wgpu(ref b) => (served.backend().name(), b.info(), b.max_workgroup_size().map(|s| s as usize)),
            #[cfg(all(feature = "metal", any(target_vendor = "apple", tensorlogic_fake_metal)))]
            Served::Native(ref b) => (served.backend().name(), b.info(), b.max_workgroup_size()),
        };
        AdapterDevice {
            name,
            execution_width: info.subgroup as usize,
            threads: info.workgroup_threads as usize,
            sizes: MTLSize { width, height, depth },
            memory: info.workgroup_bytes as usize,
            software: served.is_software(),
        }
    }
    /// The adapter's name with its interface, such as `Apple M2 (metal)`.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// The most threads that a thread group may have along each dimension.
    pub fn max_threads_per_threadgroup(&self) -> MTLSize {
        self.sizes
    }
    /// The most threads that a thread group may have in all.
    pub fn max_total_threads_per_threadgroup(&self) -> usize {
        self.threads
    }
    /// Bytes of memory that the threads of a group may share.
    pub fn max_threadgroup_memory_length(&self) -> usize {
        self.memory
    }
    /// Whether it is a driver that computes on the CPU.
    pub fn is_software(&self) -> bool {
        self.software
    }
}

/// A kernel that the driver has compiled.
#[derive(Clone, Debug)]
pub struct ComputePipeline {
    pub(super) name: &'static str,
    pub(super) execution_width: usize,
    pub(super) max_threads: usize,
}

impl ComputePipeline {
    pub(super) fn of(name: &'static str, device: &AdapterDevice) -> ComputePipeline {
        ComputePipeline { name, execution_width: device.execution_width.max(1), max_threads: device.threads }
    }
    /// The kernel's name.
    pub fn name(&self) -> &'static str {
        self.name
    }
    /// Threads that run in lockstep (SIMD width): 32 on Apple GPUs. 1 where the driver does not fix it.
    pub fn thread_execution_width(&self) -> usize {
        self.execution_width
    }
    /// The most threads that a group of this kernel may have. On Metal the compiled kernel tells; elsewhere
    /// WebGPU promises the adapter's limit to every kernel.
    pub fn max_total_threads_per_threadgroup(&self) -> usize {
        self.max_threads
    }
}

/// Threads of a group that keep a compute unit busy and still leave room for several groups on it.
const BUSY: usize = 256;

/// As many threads as keep a compute unit busy, in whole SIMD groups where that is possible.
pub(super) fn one_dimension(device: &AdapterDevice, pipeline: &ComputePipeline) -> MTLSize {
    let most = pipeline.max_threads.min(device.sizes.width).clamp(1, BUSY);
    let width = (most / pipeline.execution_width * pipeline.execution_width).max(most.min(pipeline.execution_width));
    MTLSize { width, height: 1, depth: 1 }
}

/// The same number of threads as a rectangle: at least a SIMD group wide, so that lockstep threads read neighbours, and never
/// higher than wide. Both sides are powers of two.
pub(super) fn two_dimensions(device: &AdapterDevice, pipeline: &ComputePipeline) -> MTLSize {
    let below = |n: usize| 1usize << n.max(1).ilog2();
    let total = below(pipeline.max_threads.min(BUSY));
    let square = 1usize << total.ilog2().div_ceil(2);
    let width = below(square.max(pipeline.execution_width).min(total).min(device.sizes.width));
    let height = below((total / width).min(width).min(device.sizes.height));
    MTLSize { width, height, depth: 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(width: usize, threads: usize, sides: [usize; 2], line: usize, rectangle: [usize; 2]) {
        let device = AdapterDevice {
            name: String::new(),
            execution_width: width,
            threads,
            sizes: MTLSize { width: sides[0], height: sides[1], depth: 64 },
            memory: 16384,
            software: false,
        };
        let p = ComputePipeline::of("add_kernel", &device);
        assert_eq!(one_dimension(&device, &p), MTLSize { width: line, height: 1, depth: 1 });
        let s = two_dimensions(&device, &p);
        assert_eq!([s.width, s.height, s.depth], [rectangle[0], rectangle[1], 1]);
        assert!(s.count() <= threads && s.width <= sides[0] && s.height <= sides[1]);
    }

    #[test]
    fn sizes_follow_the_adapter() {
        // Apple and NVIDIA.
        check(32, 1024, [1024, 1024], 256, [32, 8]);
        // AMD with waves of 64, lavapipe, and an adapter that does not tell.
        check(64, 1024, [1024, 1024], 256, [64, 4]);
        check(8, 1024, [1024, 1024], 256, [16, 16]);
        check(0, 1024, [1024, 1024], 256, [16, 16]);
        // WebGPU's least limits, and less.
        check(32, 128, [128, 128], 128, [32, 4]);
        check(32, 100, [100, 100], 96, [32, 2]);
        check(64, 32, [32, 32], 32, [32, 1]);
        check(1, 1, [1, 1], 1, [1, 1]);
        check(32, 256, [16, 4], 16, [16, 4]);
    }
}
