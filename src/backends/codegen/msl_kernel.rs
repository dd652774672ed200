//! A kernel in Metal's shading language, with its workgroup memory declared in the kernel's body.
//!
//! naga passes workgroup memory to the kernel and on to its functions as references. Apple's compiler is known to break barriers over memory that is
//! a kernel's parameter (<https://github.com/gfx-rs/wgpu/issues/4500>), and suspected to over other reference parameters; here the body declares it, and
//! passes it on as pointers. The tests translate and execute kernels
//! through this file on other systems too (`tests/msl`).

#[path = "msl_bodies.rs"]
mod msl_bodies;
#[path = "msl_pointers.rs"]
mod msl_pointers;

use self::msl_bodies::with_bodies;
#[allow(unused_imports)] // Programs that only translate need it not.
pub use self::msl_bodies::without_bodies;
pub use self::msl_pointers::memory_by_pointer;
use naga::back::msl;
use naga::valid::{Capabilities, ValidationFlags, Validator};

/// The version of the language that sources are written for; macOS 11 compiles it.
pub const LANGUAGE_VERSION: (u8, u8) = (2, 3);
/// That of sources with tensor operations; macOS 26 compiles it.
pub const TENSOR_LANGUAGE_VERSION: (u8, u8) = (4, 0);
/// The line by which a source says that it has some.
pub const TENSOR_HEADER: &str = "#include <metal_tensor>";

/// A kernel for Metal's own compiler.
pub struct MslKernel {
    /// The source. Binding `n` is buffer `n`; it reads no table of buffer sizes.
    pub source: String,
    /// The kernel's name in it.
    pub entry: String,
    /// Threads of a threadgroup.
    pub workgroup: [u32; 3],
    /// Whether it makes NaN or infinity itself. A compiler that may assume that there are none takes such places for unreachable, and drops the
    /// conditions that lead there: what they guard, such as a division, is then done without them.
    pub special: bool,
}

impl MslKernel {
    /// The version of the language that it is written in.
    pub fn version(&self) -> (u8, u8) {
        if self.source.contains(TENSOR_HEADER) { TENSOR_LANGUAGE_VERSION } else { LANGUAGE_VERSION }
    }
}

/// Translates a WGSL kernel whose entry point is `main` and whose `bindings` buffers are in group 0.
///
/// # Errors
/// The message of naga, where the source is not valid or cannot be translated; a message where the kernel reads the size of a buffer.
pub fn translate(wgsl: &str, bindings: usize) -> Result<MslKernel, String> {
    let module = naga::front::wgsl::parse_str(wgsl).map_err(|e| e.emit_to_string(wgsl))?;
    let info = Validator::new(ValidationFlags::all(), Capabilities::all()).validate(&module).map_err(|e| e.emit_to_string(wgsl))?;
    let resources = (0..bindings as u32).map(|n| {
        let target = msl::BindTarget { buffer: Some(n as u8), mutable: true, ..Default::default() };
        (naga::ResourceBinding { group: 0, binding: n }, target)
    });
    let entry = msl::EntryPointResources { resources: resources.collect(), immediates_buffer: None, sizes_buffer: Some(bindings as u8) };
    let options = msl::Options {
        lang_version: LANGUAGE_VERSION,
        per_entry_point_map: [("main".to_string(), entry)].into_iter().collect(),
        fake_missing_bindings: false,
        // As wgpu sets them for modules without runtime checks.
        bounds_check_policies: naga::proc::BoundsCheckPolicies {
            index: naga::proc::BoundsCheckPolicy::Unchecked,
            buffer: naga::proc::BoundsCheckPolicy::Unchecked,
            image_load: naga::proc::BoundsCheckPolicy::Unchecked,
            binding_array: naga::proc::BoundsCheckPolicy::Unchecked,
        },
        zero_initialize_workgroup_memory: false,
        force_loop_bounding: false,
        emit_int_div_checks: false,
        ..Default::default()
    };
    let (source, translation) = msl::write_string(&module, &info, &options, &msl::PipelineOptions::default()).map_err(|e| e.to_string())?;
    let entry = translation.entry_point_names.into_iter().next().ok_or("the source has no entry point")?.map_err(|e| e.to_string())?;
    if source.contains("_buffer_sizes.") {
        return Err("the kernel reads the size of a buffer".into());
    }
    let source = memory_by_pointer(&with_bodies(declare_in_kernel(&source), wgsl)?);
    let workgroup = module.entry_points.first().map_or([1; 3], |e| e.workgroup_size);
    let special = ["tl_nan(", "tl_inf("].iter().any(|f| source.contains(f));
    Ok(MslKernel { source, entry, workgroup, special })
}

/// Moves the workgroup memory of naga's source from the kernel's parameters into its body, and passes no table of buffer sizes where nothing
/// reads it.
pub fn declare_in_kernel(source: &str) -> String {
    const SIZES_PARAMETER: &str = "    constant _mslBufferSizes& _buffer_sizes";
    const SIZES_ARGUMENT: &str = ", _buffer_sizes";
    let sized = source.contains("_buffer_sizes.");
    let (mut out, mut moved, mut in_head, mut first) = (String::with_capacity(source.len()), String::new(), false, true);
    for line in source.lines() {
        let parameter = line.trim_start_matches([' ', ',']);
        if line.contains("kernel void ") {
            (in_head, first) = (true, true);
        } else if in_head && line == ") {" {
            in_head = false;
        } else if in_head {
            if let Some((kind, name)) = parameter.strip_prefix("threadgroup ").and_then(|p| p.split_once("& ")) {
                moved += &format!("    threadgroup {kind} {name};\n");
            } else if sized || !parameter.starts_with("constant _mslBufferSizes& ") {
                out += if first { "  " } else { ", " };
                out += parameter;
                out.push('\n');
                first = false;
            }
            continue;
        }
        // Functions hand the table on: as the last parameter, a line of its own after a comma, and as the last argument of a call.
        match line.strip_prefix(SIZES_PARAMETER) {
            Some(rest) if !sized && out.ends_with(",\n") => {
                out.truncate(out.len() - ",\n".len());
                out += rest;
            }
            _ if sized => out += line,
            _ => line.split(SIZES_ARGUMENT).for_each(|part| out += part),
        }
        out.push('\n');
        if !in_head {
            out += &std::mem::take(&mut moved);
        }
    }
    out
}
