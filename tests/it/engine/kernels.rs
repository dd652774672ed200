//! Every kernel, written by hand or generated, in every element type, validates and translates to SPIR-V and to Metal's language.

use super::samples::{adapters, files, generated, leaf, stands_alone, translate};
use std::path::Path;
use tensorlogic::backends::gpu::kernel_shaders;
use tensorlogic::eval::plan_of;
use tensorlogic::plan::AdapterInfo;
use tensorlogic::{DType, Tensor, TensorResult};

#[track_caller]
fn check(source: &str, name: &str) {
    let t = translate(source, name).unwrap_or_else(|e| panic!("{e}"));
    assert!(t.msl.contains("#include <metal_stdlib>"), "{name}");
    // The magic number of SPIR-V, and more than a header.
    assert!(t.spirv[0] == 0x0723_0203 && t.spirv.len() > 20, "{name}");
}

#[test]
fn every_file_translates() {
    let source = Path::new(env!("TENSORLOGIC_ROOT")).join("src");
    let all = files(&source).unwrap();
    for path in &all {
        let source = std::fs::read_to_string(path).unwrap();
        if stands_alone(&source) {
            check(&source, &path.display().to_string());
        }
    }
    let has = |name: &str| all.iter().any(|p| p.ends_with(name));
    assert!(["matmul/gemm_tiled.wgsl", "backends/probe_subgroup.wgsl", "backends/codegen/prelude.wgsl"].iter().all(|n| has(n)), "{all:?}");
}

#[test]
fn every_generated_kernel_translates() {
    for (kind, adapter) in adapters() {
        let kernels = generated(&adapter).unwrap();
        for (name, k) in &kernels {
            check(&k.wgsl, &format!("{kind}/{name} ({})", k.name));
            assert!(k.wgsl.contains("fn main(") && (kind != "plain" || !k.wgsl.contains("subgroup")), "{kind}/{name}");
        }
        let gradients = ["cross_entropy", "cross_entropy_grad", "norm_grad", "attention_grad_q", "attention_grad_kv"];
        let plain =
            ["matmul", "softmax", "log_softmax", "rms_norm", "layer_norm", "attention", "index_select", "index_add", "sum", "argmin"];
        for op in plain.into_iter().chain(gradients) {
            assert!(kernels.iter().any(|(_, k)| k.name == op), "no {op} among the samples");
        }
        let matrices = kernels.iter().any(|(_, k)| k.wgsl.contains("coopMultiplyAdd"));
        assert_eq!(matrices, adapter.coop > 0, "{kind}: products by cooperative matrices");
        assert!(kernels.len() > 200, "{kind}: only {} kernels", kernels.len());
    }
}

/// The types of the buffers that a kernel binds.
fn buffer_types(wgsl: &str) -> Vec<&str> {
    wgsl.lines().filter(|l| l.contains("var<storage")).map(|l| l.rsplit(": ").next().unwrap().trim_end_matches(';')).collect()
}

#[test]
fn halves_are_read_four_at_a_time_and_products_are_tiled() {
    for (kind, adapter) in adapters() {
        let kernels = generated(&adapter).unwrap();
        let kernel = |sample: &str| match kernels.iter().find(|(name, _)| name == sample) {
            Some((_, k)) => k.wgsl.as_str(),
            None => panic!("{kind}: no sample {sample}"),
        };
        // Two words are four halves, four words four f32; a step's operands are a matrix, a row and the result.
        for (sample, quad) in [("chain_f16", "array<vec2<u32>>"), ("chain_bf16", "array<vec2<u32>>"), ("chain_f32", "array<vec4<u32>>")] {
            assert_eq!(buffer_types(kernel(sample)), [quad; 3], "{kind}: {sample}");
        }
        for sample in ["matmul_48x40x33_f32", "matmul_48x40x33_f16", "matmul_48x40x33_bf16"] {
            let tiles = kernel(sample).matches("var<workgroup>").count();
            assert!(tiles > 0, "{kind}: {sample} keeps no tile in workgroup memory");
        }
    }
}

/// The types of the buffers that each kernel of a result binds.
fn bound(t: &Tensor, adapter: &AdapterInfo) -> Vec<Vec<String>> {
    let plan = plan_of(&[t]).unwrap().expect("pending work");
    let types = |wgsl: &str| buffer_types(wgsl).into_iter().map(String::from).collect();
    kernel_shaders(&plan, adapter).unwrap().iter().map(|k| types(&k.wgsl)).collect()
}

/// Scale, relu, bias.
fn chain(x: TensorResult<Tensor>) -> Tensor {
    x.and_then(|x| x.mul(1.5)?.relu()?.add(0.25)).unwrap()
}

#[test]
fn chains_are_as_wide_as_their_shapes_allow() {
    for (kind, adapter) in adapters() {
        for (dtype, quad) in [(DType::F16, "array<vec2<u32>>"), (DType::BF16, "array<vec2<u32>>"), (DType::F32, "array<vec4<u32>>")] {
            let x = |shape: &[usize]| leaf(dtype, shape).unwrap();
            let (one, sums) = ("array<u32>", |a: Tensor, b: Tensor| a.add(&b).unwrap().relu().unwrap());
            let cases: [(&str, Tensor, &[&str]); 8] = [
                ("rows of 96", chain(Ok(x(&[48, 96]))), &[quad, quad]),
                ("1001 elements", chain(Ok(x(&[1001]))), &[quad, quad]),
                ("from the ninth element on", chain(x(&[1001]).narrow(0, 8, 992)), &[quad, quad]),
                ("a row for each row", sums(x(&[48, 96]), x(&[96])), &[quad, quad, quad]),
                // Not four neighbours that lie together and begin at a multiple of four.
                ("from the second element on", chain(x(&[1001]).narrow(0, 1, 1000)), &[one, quad]),
                ("across rows", chain(x(&[48, 96]).t()), &[one, quad]),
                ("a part of rows of 97", chain(x(&[48, 97]).narrow(1, 0, 96)), &[one, quad]),
                ("a row of 97 for each row", sums(x(&[48, 97]), x(&[97])), &[quad, one, quad]),
            ];
            for (what, t, types) in cases {
                assert_eq!(bound(&t, &adapter), [types], "{kind}: {dtype}, {what}");
            }
            // Rows are read and written 16 bytes at a time: eight halves, four f32.
            let wide = "array<vec4<u32>>";
            let rows = |n: usize| bound(&x(&[64, n]).softmax(-1).unwrap(), &adapter);
            assert_eq!(rows(1024), [[wide, wide]], "{kind}: {dtype}");
            assert!(!rows(1001).concat().contains(&wide.to_string()), "{kind}: {dtype}: {:?}", rows(1001));
        }
    }
}
