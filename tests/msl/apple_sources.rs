//! The Metal source of every kernel: what Apple's compiler is known to get wrong does not occur.

use super::apple_kernels::{AppleKernel, apple_kernels};
use super::kernels::{APPLE, APPLE4, write_apple};
use super::msl_kernel::{LANGUAGE_VERSION, TENSOR_LANGUAGE_VERSION, declare_in_kernel, memory_by_pointer};
use super::traps::{kernel, trap};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("TENSORLOGIC_ROOT"))
}

/// A parameter of a function of a source by which it gets threadgroup memory as a reference; a line of its body that names a pointer so is none.
fn reference(source: &str) -> Option<&str> {
    source.lines().find(|line| line.trim_start().starts_with("threadgroup ") && line.contains("& ") && !line.contains(" = *"))
}

#[test]
fn no_source_has_what_apples_compiler_gets_wrong() {
    let (mut all, mut with_memory, mut narrow) = (0, 0, 0);
    for AppleKernel { name, wgsl, msl } in apple_kernels(root()).unwrap() {
        let (parameters, body) = kernel(&msl.source, &msl.entry).unwrap();
        all += 1;
        if let Some(trap) = trap(&msl.source, &msl.entry) {
            panic!("{name}: {trap}");
        }
        if let Some(parameter) = reference(&msl.source) {
            panic!("{name}: a function gets threadgroup memory by reference (https://github.com/gfx-rs/wgpu/issues/4500): {parameter}");
        }
        let declared = body.lines().filter(|l| l.starts_with("    threadgroup ")).count();
        with_memory += usize::from(declared > 0);
        assert!(declared > 0 || !msl.source.contains("threadgroup "), "{name}: its threadgroup memory is gone");
        // What the library asks to choose the form.
        assert!(declared == 0 || wgsl.contains("var<workgroup>"), "{name}");
        assert!(!msl.source.contains("_buffer_sizes"), "{name}: it asks for the sizes of buffers");
        let threads: u32 = msl.workgroup.iter().product();
        narrow += usize::from(threads <= 32);
        assert!(parameters.contains("[[") && msl.source.contains(&format!("max_total_threads_per_threadgroup({threads})")), "{name}");
    }
    println!("{all} Metal sources, {with_memory} with threadgroup memory, {narrow} with at most 32 threads");
    assert!(all > 800 && with_memory > 250, "{all} sources, {with_memory} with threadgroup memory");
}

/// Files of a folder and of those in it.
fn files_of(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files_of(&path) } else { vec![path] }).collect()
}

/// The numbers of the buffers that a kernel's parameters name, in order.
fn buffers(parameters: &str) -> Vec<usize> {
    parameters.split("[[buffer(").skip(1).map(|p| p.split(')').next().unwrap().parse().unwrap()).collect()
}

/// What `cargo xtask kernels --msl` writes for Apple's compiler are the sources that the backend compiles: their buffers have the numbers that it binds,
/// and parts in Metal's language are in them.
#[test]
fn what_is_written_for_apples_compiler_is_what_the_backend_compiles() {
    let out = std::env::temp_dir().join(format!("tl-apple-sources-{}", std::process::id()));
    let count = write_apple(root(), &out).unwrap();
    let files = [APPLE, APPLE4].map(|folder| files_of(&out.join(folder))).concat();
    let (mut bodies, mut loads, mut tensors) = (0, 0, 0);
    for file in &files {
        let (name, source) = (file.display(), std::fs::read_to_string(file).unwrap());
        let head = source.lines().next().unwrap();
        let with_tensors = file.starts_with(out.join(APPLE4));
        let (major, minor) = if with_tensors { TENSOR_LANGUAGE_VERSION } else { LANGUAGE_VERSION };
        assert_eq!(head, format!("// language: metal{major}.{minor}"), "{name}");
        for word in ["mpp::", "#include <metal_tensor>", "#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>"] {
            assert_eq!(source.contains(word), with_tensors, "{name}: {word}");
        }
        tensors += usize::from(with_tensors);
        assert!(!source.contains("user(fake") && file.extension().is_some_and(|e| e == "metal"), "{name}");
        let from = source.find("kernel void ").unwrap();
        let numbers = buffers(source[from..].split_once("\n) {\n").unwrap().0);
        assert!(numbers.iter().enumerate().all(|(n, b)| n == *b) && !numbers.is_empty(), "{name}: buffers {numbers:?}");
        // Metal has no matrices of another size.
        assert!(!source.contains("16x16"), "{name}: matrices that Metal lacks");
        let relaxed = file.components().any(|c| c.as_os_str() == "relaxed");
        assert_eq!(relaxed, source.contains("tl_nan(") || source.contains("tl_inf("), "{name}: in which arithmetic");
        bodies += usize::from(source.contains("thread_elements()"));
        loads += usize::from(source.contains("(device const "));
    }
    std::fs::remove_dir_all(&out).unwrap();
    println!(
        "{count} sources for Apple's compiler, {bodies} name elements of matrices, {loads} multiply weights where they lie, {tensors} have tensor operations"
    );
    assert_eq!(files.len(), count, "two sources have one name");
    // Products, attention and its gradients; a row times weights in nine formats.
    assert!(bodies >= 8 && loads >= 9, "{bodies} and {loads} sources with parts in Metal's language");
    assert!(tensors >= 3, "{tensors} sources with tensor operations");
    // Each source with such parts is written in its WGSL form too, which has none.
    let both = apple_kernels(root()).unwrap();
    for AppleKernel { name, wgsl, msl } in both.iter().filter(|t| t.wgsl.contains("/* metal: ")) {
        let marks = ["thread_elements()", "(device const ", "mpp::tensor_ops::"];
        assert!(marks.iter().any(|mark| msl.source.contains(mark)), "{name}: its parts in Metal's language are not in the source");
        if let Some((kind, sample)) = name.split_once('/').filter(|(kind, _)| *kind != "probes") {
            let plain =
                both.iter().find(|t| t.name == format!("{kind}_wgsl/{sample}")).unwrap_or_else(|| panic!("{name} has no WGSL form"));
            assert!(!plain.wgsl.contains("/* metal: ") && !marks.iter().any(|mark| plain.msl.source.contains(mark)), "{name}");
        }
        assert!(wgsl.contains("fn main("), "{name}");
    }
    let probes: HashSet<String> = files
        .iter()
        .filter(|f| f.parent().is_some_and(|p| p.ends_with("probes")))
        .map(|f| f.file_stem().unwrap().display().to_string())
        .collect();
    assert_eq!(
        probes,
        ["probe_bodies", "probe_matrix", "probe_sound", "probe_subgroup", "probe_tensor"].map(String::from).into(),
        "probes"
    );
}

/// The workflow compiles those folders, each with its arithmetic and in the version of the language that the backend names.
#[test]
fn the_workflow_compiles_them_as_the_backend_does() {
    let workflow = std::fs::read_to_string(root().join(".github/workflows/metal.yml")).unwrap();
    assert!(workflow.contains("xtask kernels --msl msl"));
    for (folder, (major, minor), system) in [(APPLE, LANGUAGE_VERSION, "macos-"), (APPLE4, TENSOR_LANGUAGE_VERSION, "")] {
        for (arithmetic, flag) in [("fast", "-ffast-math"), ("relaxed", "-fno-fast-math")] {
            let line = format!("compile msl/{folder}/{arithmetic} {system}metal{major}.{minor} {flag} || refused=1");
            assert!(workflow.lines().any(|l| l.trim() == line), "no line {line:?}");
        }
    }
}

#[test]
fn memory_moves_into_the_kernel_and_nothing_else_changes() {
    let source = "struct S {\n    int x;\n};\n\nvoid helper(\n    threadgroup S& tile\n) {\n    return;\n}\n\n\
                [[max_total_threads_per_threadgroup(64)]] kernel void main_(\n  threadgroup S& tile\n, uint lid [[thread_index_in_threadgroup]]\n\
                , device S& out [[buffer(0)]]\n, threadgroup metal::atomic_uint& count\n, constant _mslBufferSizes& _buffer_sizes [[buffer(1)]]\n\
                ) {\n    helper(tile);\n    return;\n}\n";
    let want = "struct S {\n    int x;\n};\n\nvoid helper(\n    threadgroup S& tile\n) {\n    return;\n}\n\n\
                [[max_total_threads_per_threadgroup(64)]] kernel void main_(\n  uint lid [[thread_index_in_threadgroup]]\n\
                , device S& out [[buffer(0)]]\n) {\n    threadgroup S tile;\n    threadgroup metal::atomic_uint count;\n    helper(tile);\n\
                \x20   return;\n}\n";
    assert_eq!(declare_in_kernel(source), want);
    let plain = "kernel void main_(\n  device S& out [[buffer(0)]]\n) {\n    return;\n}\n";
    assert_eq!(declare_in_kernel(plain), plain);
    assert_eq!(memory_by_pointer(plain), plain);
}

#[test]
fn functions_get_memory_by_pointer() {
    let source = "float sum(\n    uint lid,\n    threadgroup S& tile,\n    threadgroup metal::atomic_uint& count\n) {\n    tile.x = lid;\n    return 0.0;\n}\n\
                void twice(\n    threadgroup S& tile\n) {\n    float _e1 = sum((3u >> lid) + f(1u, 2u), tile, tile.count);\n}\n\
                kernel void main_(\n  uint lid [[thread_index_in_threadgroup]]\n) {\n    threadgroup S tile;\n    twice(tile);\n    put(sum(lid, tile, tile.count), tile);\n}\n";
    let expected = "float sum(\n    uint lid,\n    threadgroup S* tile_pointer,\n    threadgroup metal::atomic_uint* count_pointer\n) {\n\
                \x20   threadgroup S& tile = *tile_pointer;\n    threadgroup metal::atomic_uint& count = *count_pointer;\n    tile.x = lid;\n    return 0.0;\n}\n\
                void twice(\n    threadgroup S* tile_pointer\n) {\n    threadgroup S& tile = *tile_pointer;\n\
                \x20   float _e1 = sum((3u >> lid) + f(1u, 2u), &tile, &tile.count);\n}\n\
                kernel void main_(\n  uint lid [[thread_index_in_threadgroup]]\n) {\n    threadgroup S tile;\n    twice(&tile);\n    put(sum(lid, &tile, &tile.count), tile);\n}\n";
    assert_eq!(reference("void put(\n    uint x,\n    threadgroup type_1& tile\n) {\n}\n"), Some("    threadgroup type_1& tile"));
    assert_eq!((reference(source), reference(expected)), (Some("    threadgroup S& tile,"), None));
    assert_eq!(memory_by_pointer(source), expected);
}
