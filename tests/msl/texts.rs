//! The Metal text of every kernel: what Apple's compiler is known to get wrong does not occur.

use super::backend::apple;
use super::metal_text::{MetalText, declare_in_kernel, translate};
use super::samples::{adapters, files, generated, stands_alone};
use std::path::Path;

/// Every kernel for Apple's GPUs, by its tuning table and by another one, as Metal text; with its name and its WGSL.
fn texts() -> Vec<(String, String, MetalText)> {
    let mut sources = vec![];
    let other = adapters().into_iter().find(|a| a.0 == "apple").unwrap().1;
    for (table, adapter) in [("apple", apple()), ("other", other)] {
        let kernels = generated(&adapter).unwrap();
        sources.extend(kernels.into_iter().map(|(name, k)| (format!("{table}/{name}"), k.wgsl)));
    }
    for path in files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/metal")).unwrap() {
        let text = std::fs::read_to_string(&path).unwrap();
        if stands_alone(&text) {
            sources.push((path.display().to_string(), text));
        }
    }
    let metal = |(name, wgsl): (String, String)| {
        let bindings = wgsl.matches("@binding(").count();
        let text = translate(&wgsl, bindings).unwrap_or_else(|e| panic!("{name}: {e}"));
        (name, wgsl, text)
    };
    sources.into_iter().map(metal).collect()
}

/// The parameters of the kernel, and its body.
fn kernel(text: &MetalText) -> (&str, &str) {
    let from = text.source.find(&format!("kernel void {}(", text.entry)).unwrap();
    text.source[from..].split_once("\n) {\n").unwrap()
}

/// The part of a text that a bracket at its beginning encloses.
fn block(text: &str) -> &str {
    let mut depth = 0;
    let end = text.char_indices().find_map(|(i, c)| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        (depth == 0 && c == '}').then_some(i)
    });
    &text[..end.unwrap_or(text.len())]
}

#[test]
fn no_text_has_what_apples_compiler_gets_wrong() {
    let (mut all, mut with_memory, mut narrow) = (0, 0, 0);
    for (name, wgsl, text) in texts() {
        let (parameters, body) = kernel(&text);
        all += 1;
        // Threadgroup memory that is a parameter of the kernel: https://github.com/gfx-rs/wgpu/issues/4500.
        assert!(!parameters.contains("threadgroup "), "{name}: threadgroup memory is passed to the kernel\n{parameters}");
        let declared = body.lines().filter(|l| l.starts_with("    threadgroup ")).count();
        with_memory += usize::from(declared > 0);
        assert!(declared > 0 || !text.source.contains("threadgroup "), "{name}: its threadgroup memory is gone");
        // What the library asks to choose the form.
        assert!(declared == 0 || wgsl.contains("var<workgroup>"), "{name}");
        assert!(!text.source.contains("_buffer_sizes"), "{name}: it asks for the sizes of buffers");
        // Pipelines of at most 32 threads some of which return early: https://github.com/KhronosGroup/MoltenVK/issues/2711.
        let threads: u32 = text.workgroup.iter().product();
        let early = body.trim_end().trim_end_matches('}').trim_end().trim_end_matches("return;").contains("return;");
        narrow += usize::from(threads <= 32);
        assert!(threads > 32 || !early, "{name}: threads of a group of {threads} return early");
        assert!(parameters.contains("[[") && text.source.contains(&format!("max_total_threads_per_threadgroup({threads})")), "{name}");
        // Operations of a SIMD-group inside of `switch`: https://github.com/gfx-rs/wgpu/issues/10135.
        for (at, _) in text.source.match_indices("switch(") {
            let inside = text.source[at..].find('{').map_or("", |open| block(&text.source[at + open..]));
            assert!(!inside.contains("simd"), "{name}: a SIMD-group operation inside of switch");
        }
    }
    println!("{all} Metal texts, {with_memory} with threadgroup memory, {narrow} with at most 32 threads");
    assert!(all > 800 && with_memory > 250, "{all} texts, {with_memory} with threadgroup memory");
}

#[test]
fn memory_moves_into_the_kernel_and_nothing_else_changes() {
    let text = "struct S {\n    int x;\n};\n\nvoid helper(\n    threadgroup S& tile\n) {\n    return;\n}\n\n\
                [[max_total_threads_per_threadgroup(64)]] kernel void main_(\n  threadgroup S& tile\n, uint lid [[thread_index_in_threadgroup]]\n\
                , device S& out [[buffer(0)]]\n, threadgroup metal::atomic_uint& count\n, constant _mslBufferSizes& _buffer_sizes [[buffer(1)]]\n\
                ) {\n    helper(tile);\n    return;\n}\n";
    let want = "struct S {\n    int x;\n};\n\nvoid helper(\n    threadgroup S& tile\n) {\n    return;\n}\n\n\
                [[max_total_threads_per_threadgroup(64)]] kernel void main_(\n  uint lid [[thread_index_in_threadgroup]]\n\
                , device S& out [[buffer(0)]]\n) {\n    threadgroup S tile;\n    threadgroup metal::atomic_uint count;\n    helper(tile);\n\
                \x20   return;\n}\n";
    assert_eq!(declare_in_kernel(text), want);
    let plain = "kernel void main_(\n  device S& out [[buffer(0)]]\n) {\n    return;\n}\n";
    assert_eq!(declare_in_kernel(plain), plain);
}
