//! Numbers of kernels: what is faster on some GPU stands in its tuning table; what a kernel's code or a limit fixes is a constant, and says why.

use super::architecture::without_tests;
use super::shader_sources::files_of;
use super::source::{files, without_text};
use std::collections::BTreeSet;
use std::path::Path;

/// Words with which a comment admits that a number was fitted to one GPU.
const FITTED: [&str; 8] = ["H100", "H200", "A100", "M4 ", "measured on", "processors", "compute units", "keep a GPU busy"];

/// Numbers of kernels that look fitted and are not, with the reason.
const NOT_FITTED: [(&str, &str); 0] = [];

/// The constants with a number in `source` whose comment, above or behind, admits that they were fitted to a GPU.
fn fitted(source: &str) -> Vec<String> {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let is_const = |l: &str| {
        let behind = l.split_once("const ").filter(|(before, _)| before.is_empty() || before.starts_with("pub")).map(|(_, behind)| behind);
        behind.is_some_and(|b| b.contains('=') && !b.contains("&str"))
    };
    let mut found = Vec::new();
    for (i, line) in lines.iter().enumerate().filter(|(_, l)| is_const(l)) {
        // Constants below each other share a comment.
        let first = (0..i).rev().take_while(|&j| is_const(lines[j]) || lines[j].starts_with("//")).last().unwrap_or(i);
        let comment = lines[first..=i].iter().filter_map(|l| l.find("//").map(|at| &l[at..])).collect::<Vec<_>>().join(" ");
        if FITTED.iter().any(|w| comment.contains(w)) {
            let name = line.split("const ").nth(1).unwrap_or("").split(':').next().unwrap_or("").trim();
            found.push(name.to_string());
        }
    }
    found
}

#[test]
fn numbers_fitted_to_a_gpu_stand_in_the_tuning_table() {
    assert_eq!(fitted("/// As many as an H100 runs.\npub(crate) const A: usize = 4;\n"), ["A"]);
    assert_eq!(fitted("/// Bits.\nconst A: usize = 4;\nfn x() {}\n/// Measured on one.\nconst B: usize = 4; // an A100\n"), ["B"]);
    assert_eq!(fitted("/// Elements of a piece.\nconst A: usize = 4;\n"), Vec::<String>::new());
    let src = Path::new(env!("TENSORLOGIC_ROOT")).join("src");
    let mut wrong = Vec::new();
    let mut excepted = 0;
    for folder in ["ops", "shader", "compile", "backends/codegen", "backends/gpu", "models"] {
        let mut all = Vec::new();
        files(&src.join(folder), &mut all);
        assert!(!all.is_empty(), "src/{folder} has no sources");
        for file in all {
            let name = file.strip_prefix(&src).unwrap().to_str().unwrap().replace('\\', "/");
            for constant in fitted(&std::fs::read_to_string(&file).unwrap()) {
                match NOT_FITTED.contains(&(name.as_str(), constant.as_str())) {
                    true => excepted += 1,
                    false => wrong.push(format!("src/{name}: {constant}")),
                }
            }
        }
    }
    assert!(wrong.is_empty(), "fitted to one GPU, and not in src/tuning.rs:\n{}", wrong.join("\n"));
    assert_eq!(excepted, NOT_FITTED.len(), "an exception is not needed any more");
}

/// Why a constant is none of the tuning table's numbers.
const GEOMETRY: &str = "the kernel's source, or what it declares, has the same size";
const LIMIT: &str = "no kernel can be generated beyond it, or some adapter lacks the memory";
const TRIED: &str = "sizes that are tried in this order: memory and the table decide which is taken";
const ACCESS: &str = "elements that are read side by side, and threads that do so";
const UNROLLED: &str = "a loop that is written out; the table's counts are below it";
const COMPILER: &str = "what the compiler does, the same for every device";

/// Constants of the files that choose kernels, with the reason why they are not in the tuning table.
const CONSTANTS: [(&str, &str, &str); 66] = [
    ("compile/fuse.rs", "MAX_INSTS", COMPILER),
    ("compile/fuse.rs", "MAX_LOAD_INSTS", COMPILER),
    ("compile/fuse.rs", "CHEAP_INSTS", COMPILER),
    ("compile/fuse.rs", "MAX_USERS", COMPILER),
    ("compile/fuse_gemv.rs", "MAX_PRODUCTS", GEOMETRY),
    ("compile/fuse_gemv.rs", "MAX_STEPS_AHEAD", COMPILER),
    ("compile/memory.rs", "SLACK_BEFORE_WINDOWS", COMPILER),
    ("compile/memory.rs", "MIN_WINDOW_SAVING", COMPILER),
    ("compile/memory.rs", "SMALLEST_SLOT", COMPILER),
    ("compile/mod.rs", "MAX_NODES", LIMIT),
    ("compile/padding.rs", "ALIASING", COMPILER),
    ("compile/placement.rs", "ALIGNMENT", COMPILER),
    ("compile/placement.rs", "MAX_SEARCHED_VALUES", COMPILER),
    ("compile/placement.rs", "TRIED_PLACES", COMPILER),
    ("compile/placement.rs", "SEARCHES", COMPILER),
    ("compile/schedule.rs", "MAX_REORDERED_STEPS", COMPILER),
    ("ops/affine/gpu.rs", "TILE", GEOMETRY),
    ("ops/affine/gpu.rs", "TILE_THREADS", GEOMETRY),
    ("ops/affine/gpu.rs", "ROW_THREADS", ACCESS),
    ("ops/attention/decode_split_kv.rs", "MAX_LANES", GEOMETRY),
    ("ops/attention/decode_split_kv.rs", "MAX_JOINED", UNROLLED),
    ("ops/attention/decode_split_kv.rs", "WORKGROUPS", TRIED),
    ("ops/attention/flash_coop.rs", "COOP_MAX_HEAD", LIMIT),
    ("ops/attention/flash_coop.rs", "NARROW_HEAD", GEOMETRY),
    ("ops/attention/flash_coop.rs", "TILES", TRIED),
    ("ops/attention/flash_coop.rs", "GRAD_TILES", TRIED),
    ("ops/attention/flash_coop.rs", "GRAD_COLUMNS", GEOMETRY),
    ("ops/attention/flash_coop.rs", "SUBGROUP_ROWS", GEOMETRY),
    ("ops/attention/flash_coop.rs", "MIN_SCALE", LIMIT),
    ("ops/attention/gpu.rs", "MIN_THREADS", GEOMETRY),
    ("ops/attention/gpu.rs", "MAX_PREFETCHED", UNROLLED),
    ("ops/attention/grad_gpu.rs", "TILES", TRIED),
    ("ops/attention/grad_gpu.rs", "OTHER_BYTES", LIMIT),
    ("ops/byte_entropy/gpu.rs", "BYTES", GEOMETRY),
    ("ops/cutoff/gpu.rs", "LARGE", TRIED),
    ("ops/cutoff/gpu.rs", "LARGE_BYTES", LIMIT),
    ("ops/cutoff/gpu.rs", "SMALL", TRIED),
    ("ops/expert_matmul/gpu.rs", "ROW_THREADS", ACCESS),
    ("ops/linear_scan/gpu.rs", "SLICES", GEOMETRY),
    ("ops/linear_scan/gpu.rs", "COLUMNS", GEOMETRY),
    ("ops/linear_scan/gpu.rs", "MAX_ROWS", LIMIT),
    ("ops/matmul/gemm_tensor.rs", "TILE", GEOMETRY),
    ("ops/matmul/gemm_tensor.rs", "WORKGROUP", GEOMETRY),
    ("ops/matmul/gemv.rs", "WIDTHS", TRIED),
    ("ops/matmul/gemv.rs", "GROUPS", GEOMETRY),
    ("ops/matmul/gemv.rs", "OTHER_BYTES", LIMIT),
    ("ops/matmul/gemv.rs", "MAX_AT_ONCE", UNROLLED),
    ("ops/matmul/gemv_int8.rs", "ROWS_IN_FLIGHT", GEOMETRY),
    ("ops/matmul/gemv_int8.rs", "MIN_SUBGROUP", LIMIT),
    ("ops/matmul/gemv_simd.rs", "WORKGROUP", GEOMETRY),
    ("ops/matmul/gpu.rs", "COLS", ACCESS),
    ("ops/matmul/gpu.rs", "STAGED", GEOMETRY),
    ("ops/matmul/gpu.rs", "FEWER_THREADS", LIMIT),
    ("ops/matmul/gpu.rs", "VECTORS", ACCESS),
    ("ops/matmul/gpu.rs", "MIN_THREADS", ACCESS),
    ("ops/topk/gpu.rs", "ROW_THREADS", LIMIT),
    ("shader/launch.rs", "MAX_GROUPS", LIMIT),
    ("shader/row_group.rs", "UNGROUPED_THREADS", ACCESS),
    ("shader/row_group.rs", "ROWS_ACROSS", ACCESS),
    ("shader/row_group.rs", "MIN_ROWS_ACROSS", ACCESS),
    ("shader/row_group.rs", "MIN_COLUMN_THREADS", ACCESS),
    ("shader/row_group.rs", "COLUMN_ELEMENTS", ACCESS),
    ("shader/row_group.rs", "MAX_SLICES", ACCESS),
    ("shader/template.rs", "MAX_RENDERED", COMPILER),
    ("shader/template.rs", "MAX_INCLUDE_DEPTH", LIMIT),
    ("shader/template.rs", "MAX_ITERATIONS", LIMIT),
];

/// The largest number that may stand in a comparison without a name: elements of a vector.
const MAX_UNNAMED: u64 = 4;

/// Where kernels are chosen: the compiler's passes, shader source, and the ops' files about the GPU alone, which do not name the CPU's `Task`.
fn chooses(name: &str, source: &str) -> bool {
    let gpu_form = source.contains("Wgsl") && !source.contains("Task") && !name.ends_with("/mod.rs");
    let tests = name.ends_with("tests.rs") || name.contains("/tests/");
    !tests && (!name.starts_with("ops/") || name.matches('/').count() == 2 && gpu_form)
}

/// The number with which `text` begins, such as `1 << 16` or `64u32`, unless it is a fraction or goes on as a name.
fn number(text: &str) -> Option<u64> {
    let digits = |t: &str| t.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(t.len());
    let (first, rest) = text.split_at(digits(text));
    let value: u64 = first.replace('_', "").parse().ok()?;
    let rest = ["u32", "usize", "u64"].iter().find_map(|t| rest.strip_prefix(t)).unwrap_or(rest);
    let is_fraction = rest.strip_prefix('.').is_some_and(|r| r.starts_with(|c: char| c.is_ascii_digit()));
    let shift = rest.strip_prefix(" << ").and_then(|r| r[..digits(r)].parse::<u32>().ok());
    (!is_fraction).then(|| value << shift.unwrap_or(0))
}

/// The number with which `text` ends.
fn number_before(text: &str) -> Option<u64> {
    let start = text.rfind(|c: char| !c.is_ascii_alphanumeric() && c != '_').map_or(0, |at| at + 1);
    // The index of a tuple's field does not count.
    number(&text[start..]).filter(|_| !text[..start].ends_with('.'))
}

/// The numbers above [`MAX_UNNAMED`] that something is compared with or bounded by in `code`, by line.
fn bare_numbers(code: &str) -> Vec<(usize, u64)> {
    let mut found = Vec::new();
    for (n, line) in code.lines().enumerate() {
        for comparison in [" < ", " > ", " <= ", " >= "] {
            for (at, _) in line.match_indices(comparison) {
                found
                    .extend([number_before(&line[..at]), number(&line[at + comparison.len()..])].into_iter().flatten().map(|v| (n + 1, v)));
            }
        }
        for call in [".min(", ".max(", ".clamp("] {
            for (at, _) in line.match_indices(call) {
                let behind = &line[at + call.len()..];
                let arguments = behind[..behind.find([')', '(']).unwrap_or(behind.len())].split(", ");
                found.extend(number_before(&line[..at]).into_iter().chain(arguments.filter_map(number)).map(|v| (n + 1, v)));
            }
        }
    }
    found.retain(|(_, v)| *v > MAX_UNNAMED);
    found
}

/// The constants of numbers, alone or in arrays and tuples, outside of functions.
fn constants(code: &str) -> Vec<&str> {
    const NUMBERS: [&str; 10] = ["u8", "u16", "u32", "u64", "usize", "i32", "i64", "isize", "f32", "f64"];
    let declared = code.lines().filter_map(|l| {
        let behind = if l.starts_with("pub") { l.split_once("const ")?.1 } else { l.strip_prefix("const ")? };
        let (name, ty) = behind.split_once(" =")?.0.split_once(": ")?;
        let parts: Vec<&str> = ty.split(|c: char| !c.is_ascii_alphanumeric()).filter(|p| !p.is_empty()).collect();
        let plain = |p: &&str| NUMBERS.contains(p) || p.bytes().all(|b| b.is_ascii_digit());
        (!parts.is_empty() && parts.iter().all(plain) && !name.starts_with("fn ")).then_some(name)
    });
    declared.collect()
}

#[test]
fn what_is_compared_with_sizes_has_a_name() {
    let code = "if rows >= 64 || 1 << 16 < n && x.0 > 4 {}\nlet a = 256.min(most).max(edge);\nlet b = k.clamp(8, 32);\nv << 8; f::<8>(x > 0.85, n.min(MAX))";
    assert_eq!(bare_numbers(code), [(1, 16), (1, 64), (2, 256), (3, 8), (3, 32)]);
    assert_eq!(
        constants("const A: usize = 4;\npub(super) const B: [(u32, u32); 2] = [];\nconst C: &str = x;\n    const D: u8 = 1;"),
        ["A", "B"]
    );
    let mut used = BTreeSet::new();
    let mut wrong = Vec::new();
    let mut count = 0;
    for (name, source) in files_of("src", &["ops", "compile", "shader"], "rs") {
        let code = without_tests(&without_text(&source)).0;
        if !chooses(&name, &code) {
            continue;
        }
        count += 1;
        wrong.extend(bare_numbers(&code).into_iter().map(|(line, n)| format!("src/{name}: {n}, about line {line}")));
        for constant in constants(&code) {
            match CONSTANTS.iter().find(|(file, named, _)| *file == name && *named == constant) {
                Some(found) => drop(used.insert(found)),
                None => wrong.push(format!("src/{name}: {constant}")),
            }
        }
    }
    assert!(count > 30, "only {count} files were found");
    assert!(wrong.is_empty(), "in src/tuning.rs if another GPU wants another number, else a constant of CONSTANTS:\n{}", wrong.join("\n"));
    let outlived: Vec<_> = CONSTANTS.iter().filter(|c| !used.contains(c)).collect();
    assert!(outlived.is_empty(), "constants that are gone: {outlived:?}");
}
