//! Which GPU: the list of adapters, the choice among them, and what the chosen one can do.

use crate::backends::limits::MemoryQuery;
use crate::backends::tuning_file;
use crate::error::{TensorError, TensorResult};
use crate::plan::{AdapterInfo, RawLanguage, SubgroupSync};
use crate::tuning::{AdapterClass, Tuning, TuningSource};
use std::sync::{Arc, OnceLock};
use wgpu::{Backend, Backends, DeviceType, Features};

/// A GPU as `tl doctor` shows it.
#[derive(Clone, Debug)]
pub struct AdapterDescription {
    /// The adapter's name.
    pub name: String,
    /// The graphics interface: `vulkan`, `metal` or `dx12`.
    pub backend: &'static str,
    /// Its position among the adapters of that interface, as `TL_DEVICE` counts them.
    pub index: usize,
    /// `discrete`, `integrated`, `virtual`, `cpu` or `other`.
    pub kind: &'static str,
    /// The address on the PCI bus; empty where there is none.
    pub address: String,
    /// The driver and its version.
    pub driver: String,
    /// Bytes of the adapter's own memory, where the interface tells.
    pub memory: Option<u64>,
    /// Names of the optional features that kernels use where they exist.
    pub features: Vec<&'static str>,
    /// Whether it is a driver that computes on the CPU.
    pub software: bool,
    /// What one allocation and one dispatch may have, by name: bytes, threads, buffers.
    pub limits: Vec<(&'static str, u64)>,
}

/// Optional features, requested wherever they are offered.
const WANTED: [(Features, &str); 11] = [
    (Features::SHADER_F16, "f16"),
    (Features::SUBGROUP, "subgroup"),
    (Features::SUBGROUP_BARRIER, "subgroup barrier"),
    (Features::IMMEDIATES, "immediates"),
    (Features::TIMESTAMP_QUERY, "timestamps"),
    (Features::TIMESTAMP_QUERY_INSIDE_PASSES, "timestamps in passes"),
    (Features::MEMORY_DECORATION_COHERENT, "coherent"),
    (Features::EXPERIMENTAL_COOPERATIVE_MATRIX, "cooperative matrix"),
    (Features::MAPPABLE_PRIMARY_BUFFERS, "shared buffers"),
    (Features::PASSTHROUGH_SHADERS, "raw kernels"),
    (Features::PIPELINE_CACHE, "pipeline cache"),
];

const NATIVE: Backends = Backends::VULKAN.union(Backends::METAL).union(Backends::DX12);

/// Whether `TL_LABELS=1` asks for labels in captures.
pub(super) fn labels() -> bool {
    std::env::var("TL_LABELS").is_ok_and(|v| v == "1")
}

fn instance() -> &'static wgpu::Instance {
    static INSTANCE: OnceLock<wgpu::Instance> = OnceLock::new();
    INSTANCE.get_or_init(|| {
        let mut d = wgpu::InstanceDescriptor::new_without_display_handle();
        d.backends = NATIVE;
        // Vulkan drivers take labels only where the extension for debuggers was asked for.
        d.flags = if labels() { wgpu::InstanceFlags::DEBUG } else { wgpu::InstanceFlags::empty() };
        wgpu::Instance::new(d)
    })
}

fn backend_name(b: Backend) -> &'static str {
    match b {
        Backend::Vulkan => "vulkan",
        Backend::Metal => "metal",
        Backend::Dx12 => "dx12",
        Backend::Gl => "gl",
        Backend::BrowserWebGpu => "webgpu",
        Backend::Noop => "noop",
    }
}

pub(super) fn is_software(a: &wgpu::AdapterInfo) -> bool {
    a.device_type == DeviceType::Cpu
        || ["llvmpipe", "lavapipe", "swiftshader", "basic render"].iter().any(|n| a.name.to_lowercase().contains(n))
}

fn list(backends: Backends) -> Vec<wgpu::Adapter> {
    pollster::block_on(instance().enumerate_adapters(backends))
}

/// Every adapter, in the order in which `TL_DEVICE=<backend>:<index>` counts them.
pub fn adapters() -> Vec<AdapterDescription> {
    let mut counts: Vec<(Backend, usize)> = Vec::new();
    list(NATIVE)
        .iter()
        .map(|a| {
            let i = a.get_info();
            let index = match counts.iter_mut().find(|c| c.0 == i.backend) {
                Some(c) => {
                    c.1 += 1;
                    c.1
                }
                None => {
                    counts.push((i.backend, 0));
                    0
                }
            };
            AdapterDescription {
                backend: backend_name(i.backend),
                index,
                kind: match i.device_type {
                    DeviceType::DiscreteGpu => "discrete",
                    DeviceType::IntegratedGpu => "integrated",
                    DeviceType::VirtualGpu => "virtual",
                    DeviceType::Cpu => "cpu",
                    DeviceType::Other => "other",
                },
                driver: format!("{} {}", i.driver, i.driver_info).trim().to_string(),
                memory: total_memory(a),
                features: WANTED.iter().filter(|w| a.features().contains(w.0)).map(|w| w.1).collect(),
                software: is_software(&i),
                address: i.device_pci_bus_id.clone(),
                limits: limits(a),
                name: i.name,
            }
        })
        .collect()
}

/// The memory that the adapter can use, as an open device reports it.
fn total_memory(a: &wgpu::Adapter) -> Option<u64> {
    let m = memory(a);
    (m.room)().map(|r| r.total as u64).or(m.total)
}

fn limits(a: &wgpu::Adapter) -> Vec<(&'static str, u64)> {
    let (l, i) = (a.limits(), a.get_info());
    vec![
        ("buffer bytes", l.max_buffer_size),
        ("binding bytes", l.max_storage_buffer_binding_size),
        ("buffers a kernel", l.max_storage_buffers_per_shader_stage as u64),
        ("workgroup threads", l.max_compute_invocations_per_workgroup as u64),
        ("workgroup bytes", l.max_compute_workgroup_storage_size as u64),
        ("workgroups a dimension", l.max_compute_workgroups_per_dimension as u64),
        ("subgroup threads, least", i.subgroup_min_size as u64),
        ("subgroup threads, most", i.subgroup_max_size as u64),
    ]
}

/// What an adapter's memory is, and how to ask how much of it is free now.
struct ReportedMemory {
    total: Option<u64>,
    room: MemoryQuery,
}

/// Device-local memory: the largest heap, and with `VK_EXT_memory_budget` what of it this process may still take.
#[cfg(all(not(target_vendor = "apple"), not(target_arch = "wasm32")))]
fn memory(a: &wgpu::Adapter) -> ReportedMemory {
    /// `VkPhysicalDeviceMemoryBudgetPropertiesEXT`.
    #[repr(C)]
    struct Budget {
        kind: u32,
        next: *mut std::ffi::c_void,
        budget: [u64; 16],
        usage: [u64; 16],
    }
    const BUDGET: u32 = 1_000_237_000;
    let ask = |a: &wgpu::Adapter| -> Option<(u64, Option<u64>)> {
        // SAFETY: the raw handles are only asked for properties, while the adapter is alive; the chained structure is laid out as Vulkan says,
        // outlives the call, and is chained only where the driver knows it.
        unsafe {
            let a = a.as_hal::<wgpu::hal::api::Vulkan>()?;
            let (instance, physical) = (a.shared_instance().raw_instance(), a.raw_physical_device());
            let plain = instance.get_physical_device_memory_properties(physical);
            let heaps = &plain.memory_heaps[..plain.memory_heap_count as usize];
            // Bit 0 of a heap's flags is DEVICE_LOCAL.
            let (at, heap) = heaps.iter().enumerate().filter(|(_, h)| h.flags.as_raw() & 1 != 0).max_by_key(|(_, h)| h.size)?;
            let known = a.physical_device_capabilities().supports_extension(c"VK_EXT_memory_budget")
                && a.shared_instance().instance_api_version() >= 1 << 22 | 1 << 12;
            let free = known.then(|| {
                let mut b = Budget { kind: BUDGET, next: std::ptr::null_mut(), budget: [0; 16], usage: [0; 16] };
                let mut p = Default::default();
                instance.get_physical_device_memory_properties2(physical, &mut p);
                p.p_next = (&raw mut b).cast();
                instance.get_physical_device_memory_properties2(physical, &mut p);
                (b.budget[at] > 0).then(|| b.budget[at].saturating_sub(b.usage[at]))
            });
            Some((heap.size, free.flatten()))
        }
    };
    let total = ask(a).map(|m| m.0);
    if is_software(&a.get_info()) {
        // Its memory is the host's, and the driver's own budget knows nothing of other programs.
        return ReportedMemory { total, room: Box::new(crate::backends::limits::host_memory_info) };
    }
    let a = a.clone();
    let room = move || {
        let (total, free) = ask(&a)?;
        Some(crate::backends::limits::MemoryInfo { total: total as usize, free: free.map(|f| f as usize) })
    };
    ReportedMemory { total, room: Box::new(room) }
}
/// Memory is unified: the host's.
#[cfg(target_vendor = "apple")]
fn memory(_: &wgpu::Adapter) -> ReportedMemory {
    ReportedMemory { total: None, room: Box::new(crate::backends::limits::host_memory_info) }
}
#[cfg(target_arch = "wasm32")]
fn memory(_: &wgpu::Adapter) -> ReportedMemory {
    ReportedMemory { total: None, room: Box::new(|| None) }
}

/// The adapter that a selector `auto|gpu|vulkan|metal|dx12[:index]` means.
fn choose(selector: &str) -> TensorResult<wgpu::Adapter> {
    let (kind, index) = match selector.split_once(':') {
        Some((k, i)) => {
            (k, Some(i.parse::<usize>().map_err(|_| TensorError::UnsupportedDevice(format!("{selector:?}: {i:?} is not a number")))?))
        }
        None => (selector, None),
    };
    let (backends, any) = match kind {
        "auto" | "gpu" => (NATIVE, false),
        "vulkan" => (Backends::VULKAN, true),
        "metal" => (Backends::METAL, true),
        "dx12" => (Backends::DX12, true),
        _ => {
            return Err(TensorError::UnsupportedDevice(format!(
                "{selector:?} is unknown; allowed are auto, cpu, gpu, vulkan, metal, metal-wgpu, dx12, each with an optional :index"
            )));
        }
    };
    let allow = any || std::env::var("TL_ALLOW_SOFTWARE").is_ok_and(|v| v == "1");
    let mut found: Vec<wgpu::Adapter> = list(backends).into_iter().filter(|a| allow || !is_software(&a.get_info())).collect();
    let names: Vec<String> = found.iter().map(|a| a.get_info().name).collect();
    if index.is_none() {
        found.sort_by_key(|a| {
            let i = a.get_info();
            match i.device_type {
                _ if is_software(&i) => 4,
                DeviceType::DiscreteGpu => 0,
                DeviceType::IntegratedGpu => 1,
                DeviceType::VirtualGpu => 2,
                _ => 3,
            }
        });
    }
    found.into_iter().nth(index.unwrap_or(0)).ok_or_else(|| {
        let there = if names.is_empty() { "no adapters found".to_string() } else { format!("available: {}", names.join(", ")) };
        let help = if any { "" } else { "; software drivers count only with TL_ALLOW_SOFTWARE=1" };
        TensorError::UnsupportedDevice(format!("no GPU {selector:?}: {there}{help}; the cpu is always available"))
    })
}

/// The names in a list such as `f16,subgroup`.
fn names(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|n| !n.is_empty())
}

/// What takes a limit away.
type Lower = fn(&mut wgpu::Limits);

/// Limits by name, and what is left of an adapter's without them: what every adapter has.
const LIMITS_BY_NAME: [(&str, Lower); 3] = [
    ("limits", |l| *l = wgpu::Limits::default().or_worse_values_from(l)),
    ("large bindings", |l| l.max_storage_buffer_binding_size = l.max_storage_buffer_binding_size.min(128 << 20)),
    ("large workgroup memory", |l| l.max_compute_workgroup_storage_size = l.max_compute_workgroup_storage_size.min(16 << 10)),
];

/// Instructions that no feature stands for.
const BYTE_DOTS: &str = "byte dots";
/// What only the native Metal backend has.
const METAL_BODIES: &str = "metal bodies";
const TENSOR_OPS: &str = "tensor operations";
/// What no feature stands for.
const BY_NAME: [&str; 4] = [BYTE_DOTS, METAL_BODIES, TENSOR_OPS, super::matrix_elements::MATRIX_ELEMENTS];

/// Whether `TL_GPU_WITHOUT` names this.
pub(super) fn lacks(name: &str) -> bool {
    std::env::var("TL_GPU_WITHOUT").is_ok_and(|list| names(&list).any(|n| n == name))
}

/// The features that a list such as `f16,subgroup` names; limits that it names are lowered.
fn without(list: &str, limits: &mut wgpu::Limits) -> TensorResult<Features> {
    let mut features = Features::empty();
    for name in names(list).filter(|n| !BY_NAME.contains(n)) {
        match WANTED.iter().find(|w| w.1 == name) {
            Some(w) => features |= w.0,
            None => match LIMITS_BY_NAME.iter().find(|l| l.0 == name) {
                Some(l) => (l.1)(limits),
                None => {
                    let all: Vec<&str> = WANTED.iter().map(|w| w.1).chain(LIMITS_BY_NAME.iter().map(|l| l.0)).chain(BY_NAME).collect();
                    let message = format!("TL_GPU_WITHOUT={list:?}: {name:?} is unknown; allowed are {}", all.join(", "));
                    return Err(TensorError::UnsupportedDevice(message));
                }
            },
        }
    }
    Ok(features)
}

/// An opened device with what the rest of the backend needs to know about it.
pub(super) struct Opened {
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
    pub info: AdapterInfo,
    pub tuning_source: TuningSource,
    pub class: AdapterClass,
    pub name: String,
    pub software: bool,
    pub memory: Option<u64>,
    /// Adapter and driver, for what is kept between processes.
    pub key: String,
    /// The address on the PCI bus; empty where there is none.
    pub address: String,
    /// Whether the memory is the host's, and the host reads it through its caches.
    pub unified: bool,
    /// What makes a buffer visible to the host; empty where the adapter cannot share buffers that kernels use.
    pub shared_usage: wgpu::BufferUsages,
    /// What of the memory is free now, where the system tells.
    pub room: MemoryQuery,
}

/// Opens the adapter that a selector means, with this tuning table or the one in force for it.
pub(super) fn open(selector: &str, table: Option<Tuning>) -> TensorResult<Opened> {
    let adapter = choose(selector)?;
    let i = adapter.get_info();
    let mut limits = adapter.limits();
    let lacking = std::env::var("TL_GPU_WITHOUT").unwrap_or_default();
    let without = without(&lacking, &mut limits)?;
    let features = WANTED.iter().fold(Features::empty(), |f, w| f | w.0) & (adapter.features() - without);
    let descriptor = wgpu::DeviceDescriptor {
        label: Some("tensorlogic"),
        required_features: features,
        required_limits: limits.clone(),
        // SAFETY: the experimental features used are the cooperative matrix, in kernels that are tested with runtime checks on, and
        // kernels in the driver's language, whose authors vouch for them (`RawKernel::new`).
        experimental_features: unsafe { wgpu::ExperimentalFeatures::enabled() },
        ..Default::default()
    };
    let (device, queue) =
        pollster::block_on(adapter.request_device(&descriptor)).map_err(|e| TensorError::UnsupportedDevice(format!("{}: {e}", i.name)))?;
    let has = |f| features.contains(f);
    let subgroup = match i.backend {
        _ if !has(Features::SUBGROUP) => 0,
        // Metal reports a range; every Apple GPU runs 32.
        Backend::Metal => 32,
        _ if i.subgroup_min_size == i.subgroup_max_size => i.subgroup_min_size,
        _ => 0,
    };
    let coop = if has(Features::EXPERIMENTAL_COOPERATIVE_MATRIX) && has(Features::SHADER_F16) && subgroup > 0 {
        use wgpu::CooperativeScalarType::{F16, F32};
        let edges: Vec<u32> = adapter
            .cooperative_matrix_properties()
            .iter()
            .filter(|p| p.ab_type == F16 && p.cr_type == F32 && p.m_size == p.n_size && p.n_size == p.k_size)
            .map(|p| p.m_size)
            .collect();
        [16, 8].into_iter().find(|e| edges.contains(e)).unwrap_or(0)
    } else {
        0
    };
    let memory = memory(&adapter);
    let key = format!("{} {:x}:{:x} {} {} {}", backend_name(i.backend), i.vendor, i.device, i.name, i.driver, i.driver_info);
    let class = AdapterClass { vendor: i.vendor, metal: i.backend == Backend::Metal, software: is_software(&i) };
    let (tuning, tuning_source) = match table {
        Some(table) => (table, TuningSource::Given),
        None => tuning_file::choose(&key, class)?,
    };
    let shared_usage = match i.backend {
        _ if !has(Features::MAPPABLE_PRIMARY_BUFFERS) => wgpu::BufferUsages::empty(),
        // On Metal, memory that the host may write is write-combined there, and slow to read.
        Backend::Metal => wgpu::BufferUsages::MAP_READ,
        _ => wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::MAP_WRITE,
    };
    let unified = is_software(&i) || i.backend == Backend::Metal && i.device_type == DeviceType::IntegratedGpu;
    let info = AdapterInfo {
        subgroup,
        f16: has(Features::SHADER_F16),
        workgroup_bytes: limits.max_compute_workgroup_storage_size,
        workgroup_threads: limits.max_compute_invocations_per_workgroup,
        coop,
        coop_vectors: i.backend == Backend::Vulkan,
        subgroup_sync: match i.backend {
            _ if subgroup == 0 || !has(Features::SUBGROUP_BARRIER) => SubgroupSync::None,
            Backend::Metal => SubgroupSync::Barrier,
            // The barrier that naga writes for Vulkan names no memory: it counts where the driver is known to keep accesses in order.
            Backend::Vulkan if i.driver == "NVIDIA" => SubgroupSync::Barrier,
            // Mesa's software stops the whole workgroup at it, and needs none.
            Backend::Vulkan if i.driver == "llvmpipe" => SubgroupSync::Lockstep,
            _ => SubgroupSync::None,
        },
        coherent: has(Features::MEMORY_DECORATION_COHERENT),
        byte_dots: i.backend != Backend::Metal && names(&lacking).all(|n| n != BYTE_DOTS),
        elements: None,
        metal_bodies: false,
        tensor_ops: false,
        raw: match i.backend {
            _ if !has(Features::PASSTHROUGH_SHADERS) => None,
            Backend::Metal => Some(RawLanguage::Msl),
            Backend::Vulkan => Some(RawLanguage::SpirV),
            _ => None,
        },
        tuning: Arc::new(tuning),
    };
    Ok(Opened {
        device,
        queue,
        info,
        tuning_source,
        class,
        name: format!("{} ({})", i.name, backend_name(i.backend)),
        software: is_software(&i),
        key,
        address: i.device_pci_bus_id,
        memory: memory.total,
        room: memory.room,
        unified,
        shared_usage,
    })
}
