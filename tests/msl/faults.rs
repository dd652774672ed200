//! Faults that are planted in Metal sources are found: what executes them would find them in the project's kernels too.

use super::common::open;
use super::kernel::{Memory, Orders};
use super::msl_kernel::MslKernel;
use super::toolchain::{Mode, Toolchain};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tensorlogic::{DType, Device, Rng, Tensor, TensorResult};

/// The source of a kernel `main_` of 64 threads over the buffers `a`, read, and `b`, written, whose body is this.
fn msl(body: &str) -> MslKernel {
    let source = format!(
        "#include <metal_stdlib>\nusing metal::uint;\n[[max_total_threads_per_threadgroup(64)]] kernel void main_(\n  \
         uint lid [[thread_index_in_threadgroup]]\n, device uint const* a [[buffer(0)]]\n, device uint* b [[buffer(1)]]\n) {{\n{body}\n}}\n"
    );
    MslKernel { source, entry: "main_".into(), workgroup: [64, 1, 1], special: false }
}

/// What such a kernel writes from the numbers 0 to 63 in one group, in three orders of threads; `None` where there is no compiler.
fn run(mode: Mode, body: &str) -> Option<Result<Vec<u32>, String>> {
    run_source(mode, msl(body).source)
}

/// The same of a whole source.
fn run_source(mode: Mode, source: String) -> Option<Result<Vec<u32>, String>> {
    let toolchain = Toolchain::get(mode)?;
    let mut a: Vec<u128> = bytemuck::pod_collect_to_vec(&(0..64u32).collect::<Vec<_>>());
    let mut b = vec![0u128; 16];
    let memory = |m: &mut Vec<u128>, written| {
        let (at, bytes) = (m.as_mut_ptr().cast(), 16 * m.len());
        Memory { at, bytes, written, ordered: true, restored: true }
    };
    let memory = [memory(&mut a, false), memory(&mut b, true)];
    let kernel = match toolchain.kernel(&MslKernel { source, ..msl("") }) {
        Ok(kernel) => kernel,
        Err(e) => return Some(Err(e)),
    };
    // SAFETY: both are alive, and nobody else uses them.
    let done = unsafe { kernel.run(&toolchain.runtime, [1, 1, 1], [64, 1, 1], &memory, Orders::Three) };
    Some(done.map(|()| bytemuck::cast_slice(&b).to_vec()))
}

/// Such a kernel is refused with a message that contains this.
#[track_caller]
fn refused(mode: Mode, body: &str, why: &str) {
    let Some(got) = run(mode, body) else { return };
    let error = got.expect_err("the fault is not found");
    assert!(error.contains(why), "{error}");
}

const BARRIER: &str = "metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);";

#[test]
fn a_kernel_without_faults_runs() {
    let body = format!("    threadgroup uint tile[64];\n    tile[lid] = a[lid];\n    {BARRIER}\n    b[lid] = tile[63u - lid];");
    let Some(got) = run(Mode::Plain, &body) else { return };
    assert_eq!(got.unwrap(), (0..64).rev().collect::<Vec<u32>>());
    assert!(run(Mode::Checked, &body).unwrap().is_ok());
}

#[test]
fn a_missing_barrier_is_found() {
    let body = format!("    threadgroup uint tile[64];\n    tile[lid] = a[lid];\n    b[lid] = tile[63u - lid];\n    {BARRIER}");
    refused(Mode::Plain, &body, "depends on the order of threads");
}

#[test]
fn an_uninitialised_read_is_found() {
    let body = format!(
        "    threadgroup uint tile[64];\n    if (lid > 0u) {{ tile[lid] = a[lid]; }}\n    {BARRIER}\n    b[lid] = tile[63u - lid];"
    );
    refused(Mode::Plain, &body, "threadgroup memory that nobody wrote");
}

#[test]
fn threads_at_different_barriers_are_found() {
    let apart = format!("    if (lid < 32u) {{\n        {BARRIER}\n    }} else {{\n        {BARRIER}\n    }}\n    b[lid] = 1u;");
    refused(Mode::Plain, &apart, "threads wait at different barriers");
    refused(
        Mode::Plain,
        &format!("    if (lid < 7u) {{ return; }}\n    {BARRIER}\n    b[lid] = 1u;"),
        "has left the kernel while another waits",
    );
    refused(
        Mode::Plain,
        "    if (lid < 16u) {\n        b[lid] = metal::simd_sum(lid);\n    } else {\n        b[lid] = metal::simd_max(lid);\n    }",
        "wait at different places",
    );
}

#[test]
fn an_access_behind_a_buffer_is_found() {
    refused(
        Mode::Plain,
        "    b[lid + 1u] = a[lid];",
        "an access 0 bytes behind the end of the memory of 256 bytes that was bound as number 1",
    );
    refused(Mode::Plain, "    b[lid] = a[lid + 3u];", "bound as number 0");
    refused(
        Mode::Plain,
        "    threadgroup uint tile[64];\n    tile[lid + 1u] = a[lid];\n    b[lid] = 1u;",
        "behind the end of threadgroup memory",
    );
}

#[test]
fn undefined_behaviour_is_found() {
    refused(Mode::Checked, "    b[lid] = a[0] + (1u << lid);", "shift_out_of_bounds");
    refused(Mode::Checked, "    uint local[4] = {};\n    b[lid] = local[lid / 8u];", "out_of_bounds");
    // Which of its halves finds this depends on the processor: a load of 16 bytes that are not aligned may fault before it is told.
    refused(Mode::Checked, "    b[lid] = (*(device metal::uint4 const*)(a + lid)).x;", "");
}

/// The results of `f` on a device whose sources are changed, or the reason why there are none.
fn changed(
    f: fn(&Device) -> TensorResult<Tensor>,
    change: impl Fn(&str) -> String + Send + Sync + 'static,
) -> Option<Result<Vec<f32>, String>> {
    let (_, device) = open(Mode::Plain, Some(Box::new(change)))?;
    Some(f(&device).and_then(|t| t.cast(DType::F32)?.to_vec()).map_err(|e| e.to_string()))
}

fn noise(shape: &[usize], dtype: DType, seed: u64, device: &Device) -> TensorResult<Tensor> {
    let values = Rng::new(seed).normal(shape, DType::F32, &Device::cpu())?.to_vec()?;
    Tensor::from_vec(values, shape, device)?.cast(dtype)
}

/// Work with one kernel, and the barriers of its source whose removal cannot show here.
type Work = (&'static str, fn(&Device) -> TensorResult<Tensor>, &'static [usize]);
/// A product by tiles in threadgroup memory, one on matrix units, a softmax of long rows, and an attention over a cache.
const WORK: [Work; 4] = [
    ("tiled product", |d| noise(&[40, 70], DType::F32, 1, d)?.matmul(&noise(&[70, 36], DType::F32, 2, d)?), &[]),
    ("matrix units", |d| noise(&[256, 96], DType::F16, 1, d)?.matmul(&noise(&[256, 96], DType::F16, 2, d)?.t()?), &[]),
    // Behind each reduction stands a barrier for the next row of a workgroup.
    ("softmax", |d| noise(&[3, 9000], DType::F32, 1, d)?.softmax(-1), &[1, 3]),
    // Two order device memory between threadgroups, which here run one after another; one keeps a value that is written once.
    (
        "attention",
        |d| {
            let (q, kv) = (noise(&[1, 4, 2, 64], DType::F16, 1, d)?, noise(&[1, 2, 700, 64], DType::F16, 2, d)?);
            q.attention(&kv, &kv, None, &Default::default())
        },
        &[1, 3, 4],
    ),
];

/// Whether results are those of the CPU.
fn right(got: &[f32], want: &[f32]) -> bool {
    got.len() == want.len() && got.iter().zip(want).all(|(a, b)| (a - b).abs() <= 2e-2 + 1e-2 * b.abs())
}

fn expected(f: fn(&Device) -> TensorResult<Tensor>) -> Vec<f32> {
    f(&Device::cpu()).and_then(|t| t.cast(DType::F32)?.to_vec()).unwrap()
}

/// The source without its `n`-th line that has this word.
fn without_line(source: &str, word: &str, n: usize) -> String {
    let mut seen = 0;
    let keep = |line: &&str| {
        let hit = line.contains(word);
        seen += usize::from(hit);
        !(hit && seen == n + 1)
    };
    source.lines().filter(keep).map(|l| format!("{l}\n")).collect()
}

#[test]
fn every_removed_barrier_is_found() {
    for (name, f, spare) in WORK {
        let want = expected(f);
        let count = Arc::new(AtomicUsize::new(0));
        let most = count.clone();
        let Some(plain) = changed(f, move |source| {
            most.fetch_max(source.matches("metal::threadgroup_barrier(").count(), Relaxed);
            source.to_string()
        }) else {
            return;
        };
        assert!(right(&plain.unwrap(), &want), "{name}");
        let barriers = count.load(Relaxed);
        assert!(barriers > 0, "{name} has no barrier");
        let mut unnoticed = vec![];
        for n in 0..barriers {
            let got = changed(f, move |source| without_line(source, "metal::threadgroup_barrier(", n)).unwrap();
            if got.is_ok_and(|got| right(&got, &want)) {
                unnoticed.push(n);
            }
        }
        println!("{name}: {} of {barriers} removed barriers are found, not {unnoticed:?}", barriers - unnoticed.len());
        assert_eq!(unnoticed, spare, "{name}: barriers of {barriers} that were removed unnoticed");
    }
}

#[test]
fn wrong_buffers_are_found() {
    let f: fn(&Device) -> TensorResult<Tensor> =
        |d| noise(&[24, 40], DType::F32, 1, d)?.sub(&noise(&[24, 40], DType::F32, 2, d)?.mul(3.0)?);
    let want = expected(f);
    let swap = |source: &str| source.replace("[[buffer(1)]]", "[[buffer(?)]]").replace("[[buffer(2)]]", "[[buffer(1)]]").replace('?', "2");
    let Some(got) = changed(f, swap) else { return };
    assert!(!got.is_ok_and(|got| right(&got, &want)), "swapped buffers are not found");
    let got = changed(f, |source| source.replace("[[buffer(1)]]", "[[buffer(9)]]")).unwrap();
    assert!(got.is_err_and(|e| e.contains("buffer 9 (") && e.contains("is not bound")));
    assert!(right(&changed(f, str::to_string).unwrap().unwrap(), &want));
}

/// The body of a kernel of 64 threads that multiplies a matrix of 16 rows and 8 columns, the halves in `a`, by its own transposed, and of whose 256
/// results each thread writes one. `run` stands for the operation.
fn product(tile: &str, scope: &str, run: &str) -> String {
    format!(
        "    typedef metal::tensor<device half, metal::dextents<int, 2>, metal::tensor_inline> Lines;\n    threadgroup float sums[256];\n    \
         constexpr auto tile = mpp::tensor_ops::matmul2d_descriptor({tile});\n    mpp::tensor_ops::matmul2d<tile, metal::{scope}> product;\n    \
         Lines left((device half*)a, metal::dextents<int, 2>(8, 16));\n    Lines right((device half*)a, metal::dextents<int, 2>(8, 16));\n    \
         auto results = product.get_destination_cooperative_tensor<Lines, Lines, float>();\n    {run}\n    \
         metal::tensor<threadgroup float, metal::dextents<int, 2>, metal::tensor_inline> out(sums, metal::dextents<int, 2>(16, 16));\n    \
         results.store(out);\n    {BARRIER}\n    b[lid] = metal::as_type<uint>(sums[lid]);"
    )
}

/// A kernel with tensor operations, with the headers that it needs.
fn with_headers(body: &str) -> String {
    let headers = "#include <metal_tensor>\n#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>\n";
    msl(body).source.replacen("using metal::uint;", &format!("{headers}using metal::uint;"), 1)
}

const ALL_OF_K: &str = "16, 16, int(metal::dynamic_extent), false, true";

#[test]
fn faults_of_tensor_operations_are_found() {
    let tried = |tile: &str, scope: &str, run: &str| run_source(Mode::Plain, with_headers(&product(tile, scope, run)));
    let plain = "product.run(left, right, results);";
    let right = tried(ALL_OF_K, "execution_simdgroups<2>", plain);
    let Some(right) = right else { return };
    assert!(right.is_ok(), "{right:?}");
    let fails = |tile: &str, scope: &str, run: &str, why: &str| {
        let error = tried(tile, scope, run).unwrap().expect_err("the fault is not found");
        assert!(error.contains(why), "{run}: {error}");
    };
    let two = "execution_simdgroups<2>";
    // A SIMD-group that comes from elsewhere, or not at all.
    let elsewhere =
        "if (lid < 32u) {\n        product.run(left, right, results);\n    } else {\n        product.run(left, right, results);\n    }";
    fails(ALL_OF_K, two, elsewhere, "threads wait at different barriers");
    fails(ALL_OF_K, two, "if (lid < 32u) { product.run(left, right, results); }", "threads wait at different barriers");
    fails(ALL_OF_K, two, "if (lid < 32u) { return; }\n    product.run(left, right, results);", "has left the kernel");
    // Lanes of a SIMD-group that is a scope of its own.
    fails(ALL_OF_K, "execution_simdgroup", "if (lid % 2u == 0u) { product.run(left, right, results); }", "wait at different places");
    // A scope that is not what was dispatched.
    fails(ALL_OF_K, "execution_simdgroups<4>", plain, "undefined behaviour, invalid_builtin");
    // More of k than there is; operands that do not agree about it; parts that lie outside.
    fails("16, 16, 16, false, true", two, plain, "undefined behaviour, out_of_bounds");
    fails("16, 16, int(metal::dynamic_extent), false, false", two, plain, "undefined behaviour, out_of_bounds");
    fails(ALL_OF_K, two, "auto part = left.slice<8, 16>(0, 8); product.run(part, right, results);", "undefined behaviour, out_of_bounds");
    fails(ALL_OF_K, two, "auto part = left.slice(0, 17); product.run(part, right, results);", "undefined behaviour, out_of_bounds");
    // What is behind a part without sizes of its own is not read.
    assert!(tried(ALL_OF_K, two, "auto part = left.slice(0, 8); product.run(part, right, results);").unwrap().is_ok());
    // Sums that nothing was put in before.
    let adds = format!("{ALL_OF_K}, false, mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate");
    let zero = "for (int i = 0; i < results.get_capacity(); i++) { results[i] = 0.0f; }";
    assert_eq!(tried(&adds, two, &format!("{zero} {plain}")).unwrap(), right);
    assert_ne!(tried(&adds, two, plain).unwrap(), right);
    // Without the headers there are no tensors.
    let body = product(ALL_OF_K, two, plain);
    assert!(run_source(Mode::Plain, msl(&body).source).unwrap().is_err());
}
