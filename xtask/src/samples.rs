//! Plans that between them hold every kernel of the library in every element type, and what they are translated to.

#[allow(dead_code)] // Only the library, and the tests that execute sources, ask for numbered bindings.
#[path = "../../src/backends/codegen/msl_kernel.rs"]
pub mod msl_kernel;

use naga::back::{msl, spv};
use naga::valid::{Capabilities, ValidationFlags, Validator};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tensorlogic::backends::Bytes;
use tensorlogic::backends::gpu::{Shader, kernel_shaders};
use tensorlogic::eval::plan_of;
use tensorlogic::layout::Layout;
use tensorlogic::ops::attention::grad::{AttentionGradKernel, Part};
use tensorlogic::ops::attention::{AttentionDropout, AttentionKernel, AttentionOptions};
use tensorlogic::ops::custom::CustomOp;
use tensorlogic::ops::kernels::{Cutoff, NormGradKernel, affine_params};
use tensorlogic::ops::loss::NllOptions;
use tensorlogic::plan::{AdapterInfo, Kernel, MatrixElements, SubgroupSync};
use tensorlogic::quant::Affine;
use tensorlogic::tensor::{Inputs, Key, Lowered, Meta, Op};
use tensorlogic::tuning::Tuning;
use tensorlogic::{DType, Device, Rng, Shape, Tensor, TensorError, TensorResult};

/// What a kernel becomes.
pub struct Translated {
    /// Metal's shading language.
    pub msl: String,
    /// SPIR-V 1.3.
    #[allow(dead_code)] // The test only asks whether there is one.
    pub spirv: Vec<u32>,
}

/// Validates WGSL source and translates it.
pub fn translate(source: &str, name: &str) -> Result<Translated, String> {
    let module = naga::front::wgsl::parse_str(source).map_err(|e| e.emit_to_string_with_path(source, name))?;
    let info = Validator::new(ValidationFlags::all(), Capabilities::all())
        .validate(&module)
        .map_err(|e| e.emit_to_string_with_path(source, name))?;
    let spirv = spv::write_vec(&module, &info, &spv::Options { lang_version: (1, 3), ..Default::default() }, None)
        .map_err(|e| format!("{name}: SPIR-V: {e}"))?;
    let options =
        msl::Options { lang_version: (3, 0), fake_missing_bindings: true, zero_initialize_workgroup_memory: false, ..Default::default() };
    let (msl, _) =
        msl::write_string(&module, &info, &options, &msl::PipelineOptions::default()).map_err(|e| format!("{name}: MSL: {e}"))?;
    Ok(Translated { msl: msl_kernel::memory_by_pointer(&msl_kernel::declare_in_kernel(&msl)), spirv })
}

/// Whether a file is a kernel by itself. A template is not: the generator binds what it reads, and its variants are among the generated.
pub fn stands_alone(source: &str) -> bool {
    // So is a file without an entry point, for others to include, but for the generator's own helpers.
    let is_template = !source.contains("@binding") && !source.contains("fn tl_");
    !is_template && !source.lines().any(|l| l.trim_start().starts_with('#'))
}

/// Every `.wgsl` file under `folder`, sorted.
pub fn files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            out.extend(files(&path)?);
        } else if path.extension().is_some_and(|e| e == "wgsl") {
            out.push(path);
        }
    }
    out.sort();
    Ok(out)
}

/// GPUs that differ in what kernels ask about: name and answers.
pub fn adapters() -> [(&'static str, AdapterInfo); 7] {
    let plain = AdapterInfo { workgroup_bytes: 16_384, workgroup_threads: 256, tuning: Arc::new(Tuning::nvidia()), ..Default::default() };
    let apple = AdapterInfo {
        subgroup: 32,
        f16: true,
        workgroup_bytes: 32_768,
        workgroup_threads: 1024,
        coop: 8,
        subgroup_sync: SubgroupSync::Barrier,
        ..plain.clone()
    };
    let subgroup8 = AdapterInfo { subgroup: 8, coop: 0, ..apple.clone() };
    let subgroup64 = AdapterInfo { subgroup: 64, coop: 0, ..apple.clone() };
    let nvidia = AdapterInfo { workgroup_bytes: 49_152, coop: 16, coop_vectors: true, coherent: true, ..apple.clone() };
    let metal = AdapterInfo { metal_bodies: true, tuning: Arc::new(Tuning::apple()), ..apple.clone() };
    // Lanes hold matrices as NVIDIA's GPUs were found to.
    let held: Vec<u32> =
        (0..32u32).flat_map(|l| (0..8u32).map(move |e| (l / 4 + e / 2 % 2 * 8) * 16 + l % 4 * 2 + e % 2 + e / 4 * 8)).collect();
    let elements = MatrixElements::find(16, &held, 8).map(Arc::new);
    let nvidia_elements = AdapterInfo { elements, tuning: Arc::new(Tuning::nvidia()), ..nvidia.clone() };
    [
        ("plain", plain),
        ("subgroup8", subgroup8),
        ("subgroup64", subgroup64),
        ("apple", apple),
        ("metal", metal),
        ("nvidia", nvidia),
        ("nvidia_elements", nvidia_elements),
    ]
}

/// The GPU `metal` of [`adapters`] with tensor operations, by which products alone differ.
#[allow(dead_code)] // Where no sources for Apple's compiler are made.
pub fn with_tensor_ops() -> AdapterInfo {
    let metal = adapters().into_iter().find(|(kind, _)| *kind == "metal");
    AdapterInfo { tensor_ops: true, ..metal.map(|m| m.1).unwrap_or_default() }
}

/// A stored tensor of zeros.
pub fn leaf(dtype: DType, shape: &[usize]) -> TensorResult<Tensor> {
    let bytes = vec![0u8; dtype.bytes(shape.iter().product()).unwrap_or(0)];
    Tensor::from_bytes(Bytes::Owned(Arc::new(bytes)), dtype, shape, &Device::cpu())
}

static CUSTOM: [CustomOp; 3] = [
    CustomOp::elementwise("custom_blend").cpu(|_, _, _| {}).wgsl("fn custom_blend(a: f32, b: f32, t: f32) -> f32 { return mix(a, b, t); }"),
    CustomOp::rows("custom_center").cpu(|_, _, _| {}).wgsl(
        "fn custom_center(row: u32, cols: u32, lane: u32) {
           var sum = 0.0;
           for (var c = lane; c < cols; c += WORKGROUP) { sum += load_0(row * cols + c); }
           let mean = row_sum(sum) / f32(cols);
           for (var c = lane; c < cols; c += WORKGROUP) { store_0(row * cols + c, load_0(row * cols + c) - mean * load_1(c)); }
         }",
    ),
    CustomOp::row_reduction("custom_top").cpu(|_, _, _| {}).wgsl(
        "fn custom_top(row: u32, cols: u32, lane: u32) {
           var top = -3.0e38;
           for (var c = lane; c < cols; c += WORKGROUP) { top = max(top, load_0(row * cols + c)); }
           top = row_max(top);
           if (lane == 0u) { store_0(row, top); }
         }",
    ),
];

/// An operation that is one kernel over contiguous operands, for kernels that only a GPU's gradients use.
pub struct Bare(&'static str, u64, Arc<dyn Kernel>);

impl Bare {
    /// The settings from here on are free for other lists of samples.
    #[allow(dead_code)] // The test of the kernels has no other list.
    pub const SETTINGS: u64 = 1 << 16;
}

impl Op for Bare {
    fn name(&self) -> &'static str {
        self.0
    }
    fn key(&self, key: &mut Key) {
        key.word(self.1);
    }
    fn define(&self, _: &[Tensor]) -> Option<TensorResult<Tensor>> {
        None
    }
    fn lower(&self, inputs: &[Meta], outputs: &[Meta]) -> Lowered {
        let flat = |list: &[Meta]| list.iter().enumerate().map(|(i, m)| (i, Layout::contiguous(m.shape), m.shape)).collect();
        Lowered::Kernel { kernel: self.2.clone(), loads: flat(inputs), stores: flat(outputs) }
    }
}

/// The first result of a kernel.
pub fn bare(
    name: &'static str,
    setting: u64,
    kernel: impl Kernel + 'static,
    inputs: &[&Tensor],
    params: &[f64],
    outputs: &[(DType, &[usize])],
) -> TensorResult<Tensor> {
    let inputs: Inputs = inputs.iter().map(|t| (*t).clone()).collect();
    let metas = outputs.iter().map(|(dtype, shape)| Meta { dtype: *dtype, shape: Shape::of(shape) }).collect();
    let op = Arc::new(Bare(name, setting, Arc::new(kernel)));
    Ok(Tensor::op(op, inputs, params.iter().copied().collect(), metas, std::panic::Location::caller())?.remove(0))
}

/// Kernels of gradients.
fn gradients(d: DType, add: &mut impl FnMut(&str, Tensor)) -> TensorResult<()> {
    for (name, cols) in [("even", 96), ("odd", 33), ("long", 1 << 13)] {
        let (x, target) = (leaf(d, &[48, cols])?.requires_grad()?, leaf(DType::I32, &[48])?);
        let loss = x.cross_entropy(&target, &NllOptions::default())?;
        add(&format!("cross_entropy_{name}"), loss.clone());
        loss.backward()?;
        if let Some(g) = x.grad() {
            add(&format!("cross_entropy_grad_{name}"), g);
        }
        let (x, row) = (leaf(d, &[48, cols])?, leaf(d, &[cols])?);
        for (setting, (rms, weight)) in [(false, false), (false, true), (true, true)].into_iter().enumerate() {
            let kernel = NormGradKernel { rms, eps: 1e-5, weight, columns: false };
            let inputs = if weight { vec![&x, &x, &row] } else { vec![&x, &x] };
            let g = bare("norm_grad", setting as u64, kernel, &inputs, &[], &[(d, &[48, cols]), (DType::F32, &[48]), (DType::F32, &[48])])?;
            add(&format!("norm_grad_{name}_{setting}"), g);
        }
    }
    for head in [64, 80, 256] {
        let (q, k) = (leaf(d, &[1, 4, 40, head])?, leaf(d, &[1, 2, 40, head])?);
        let (g, sums) = (leaf(d, &[1, 4, 40, head])?, leaf(DType::F32, &[1, 4, 40])?);
        let of =
            AttentionKernel { causal: true, scale: 0.125, window: 0, mask: false, sums: true, dropout: 0.0, softcap: 0.0, paged: false };
        let inputs = [&q, &k, &k, &g, &sums, &sums];
        let queries = AttentionGradKernel { of: of.clone(), part: Part::Queries };
        add(&format!("attention_grad_q_{head}"), bare("attention_grad_q", 0, queries, &inputs, &[40.0], &[(d, q.dims())])?);
        let keys = AttentionGradKernel { of: of.clone(), part: Part::Keys };
        add(&format!("attention_grad_kv_{head}"), bare("attention_grad_kv", 0, keys, &inputs, &[40.0], &[(d, k.dims()), (d, k.dims())])?);
        let of = AttentionKernel { dropout: 0.1, ..of };
        let (kv, drawn) = ([(d, k.dims()), (d, k.dims())], [40.0, 1.0, 2.0]);
        let queries = AttentionGradKernel { of: of.clone(), part: Part::Queries };
        add(&format!("attention_dropout_grad_q_{head}"), bare("attention_grad_q", 1, queries, &inputs, &drawn, &[(d, q.dims())])?);
        let keys = AttentionGradKernel { of, part: Part::Keys };
        add(&format!("attention_dropout_grad_kv_{head}"), bare("attention_grad_kv", 1, keys, &inputs, &drawn, &kv)?);
    }
    Ok(())
}

/// A method of one argument.
type Unary = fn(&Tensor) -> TensorResult<Tensor>;
const UNARY: [(&str, Unary); 32] = [
    ("neg", Tensor::neg),
    ("abs", Tensor::abs),
    ("sign", Tensor::sign),
    ("sqrt", Tensor::sqrt),
    ("rsqrt", Tensor::rsqrt),
    ("reciprocal", Tensor::reciprocal),
    ("exp", Tensor::exp),
    ("exp2", Tensor::exp2),
    ("expm1", Tensor::expm1),
    ("log", Tensor::log),
    ("log2", Tensor::log2),
    ("log10", Tensor::log10),
    ("log1p", Tensor::log1p),
    ("sin", Tensor::sin),
    ("cos", Tensor::cos),
    ("tan", Tensor::tan),
    ("asin", Tensor::asin),
    ("acos", Tensor::acos),
    ("atan", Tensor::atan),
    ("sinh", Tensor::sinh),
    ("cosh", Tensor::cosh),
    ("tanh", Tensor::tanh),
    ("asinh", Tensor::asinh),
    ("acosh", Tensor::acosh),
    ("atanh", Tensor::atanh),
    ("erf", Tensor::erf),
    ("sigmoid", Tensor::sigmoid),
    ("round", Tensor::round),
    ("isnan", Tensor::isnan),
    ("gelu", Tensor::gelu),
    ("gelu_tanh", Tensor::gelu_tanh),
    ("silu", Tensor::silu),
];

/// Elementwise maps.
fn maps(d: DType, add: &mut impl FnMut(&str, Tensor)) -> TensorResult<()> {
    let (x, odd, row) = (leaf(d, &[48, 96])?, leaf(d, &[7, 33])?, leaf(d, &[96])?);
    for (name, f) in UNARY {
        add(name, f(&x)?);
    }
    add("chain", x.mul(2.0)?.add(&row)?.relu()?.square()?.tanh()?.clamp(Some(-1.0), Some(1.0))?);
    add("chain_odd", odd.add(1.0)?.exp()?);
    add("binary", x.pow(&x)?.add(&x.atan2(&row)?)?.add(&x.remainder(&row)?)?.maximum(&row)?);
    add("transposed", x.t()?.add(1.0)?);
    add("normal", tensorlogic::Rng::new(1).normal(&[100], d, &Device::cpu())?);
    Ok(())
}

/// Reductions, and what else works on rows.
fn rows(d: DType, add: &mut impl FnMut(&str, Tensor)) -> TensorResult<()> {
    let (x, odd, row) = (leaf(d, &[48, 96])?, leaf(d, &[7, 33])?, leaf(d, &[96])?);
    for (name, t) in [("even", &x), ("odd", &odd)] {
        add(&format!("sum_{name}"), t.sum(&[-1], false)?);
        add(&format!("sum_columns_{name}"), t.sum(&[0], false)?);
        add(&format!("mean_{name}"), t.mean(&[-1], false)?);
        add(&format!("prod_{name}"), t.prod(&[-1], false)?);
        add(&format!("max_{name}"), t.max(&[-1], false)?);
        add(&format!("argmin_{name}"), t.argmin(-1)?);
        add(&format!("softmax_{name}"), t.softmax(-1)?);
        add(&format!("log_softmax_{name}"), t.log_softmax(-1)?);
        add(&format!("layer_norm_{name}"), t.layer_norm(None, None, 1e-5)?);
    }
    add("sum_all", leaf(d, &[1 << 18])?.sum(&[], false)?);
    add("softmax_long", leaf(d, &[2, 1 << 14])?.softmax(-1)?);
    add("rms_norm", x.rms_norm(Some(&row), 1e-5)?);
    add("layer_norm_affine", x.layer_norm(Some(&row), Some(&row), 1e-5)?);
    Ok(())
}

/// Gathers and scattered sums.
fn gathers(d: DType, add: &mut impl FnMut(&str, Tensor)) -> TensorResult<()> {
    let (x, odd) = (leaf(d, &[48, 96])?, leaf(d, &[7, 33])?);
    let index = leaf(DType::I32, &[5])?;
    add("gather", x.index_select(0, &index)?);
    add("gather_odd", odd.index_select(0, &index)?);
    add("index_add", leaf(d, &[48, 96])?.index_add(0, &index, &leaf(d, &[5, 96])?)?);
    Ok(())
}

/// Matrix products.
fn products(d: DType, add: &mut impl FnMut(&str, Tensor)) -> TensorResult<()> {
    for [m, n, k] in [[1, 96, 64], [3, 64, 96], [48, 40, 33], [64, 67, 96], [16, 64, 4096], [256, 256, 256], [1, 1, 7]] {
        let (a, b) = (leaf(d, &[m, k])?, leaf(d, &[n, k])?);
        add(&format!("matmul_{m}x{n}x{k}"), a.matmul(&b.t()?)?.relu()?);
        add(&format!("matmul_turned_{m}x{n}x{k}"), a.matmul(&leaf(d, &[k, n])?)?);
    }
    let heads = leaf(d, &[2, 4, 40, 16])?.transpose(1, 2)?.reshape(&[80, 64])?;
    add("matmul_heads", heads.matmul(&leaf(d, &[67, 64])?.t()?)?.add(&leaf(d, &[67])?)?);
    let ids = leaf(DType::I32, &[40, 2])?;
    for [n, k] in [[64, 128], [33, 96], [7, 31]] {
        add(&format!("experts_{n}x{k}"), leaf(d, &[40, k])?.expert_matmul(&leaf(d, &[3, n, k])?, &ids)?);
    }
    add("matmul_heads_turned", heads.t()?.matmul(&leaf(d, &[80, 64])?)?.add(&leaf(d, &[64])?)?.gelu_tanh()?);
    Ok(())
}

/// Attention.
fn attention(d: DType, add: &mut impl FnMut(&str, Tensor)) -> TensorResult<()> {
    for head in [64, 80, 256] {
        let kv = leaf(d, &[1, 2, 40, head])?;
        let causal = AttentionOptions { causal: true, ..Default::default() };
        add(&format!("attention_{head}"), leaf(d, &[1, 4, 40, head])?.attention(&kv, &kv, None, &causal)?);
        let dropout = Some(AttentionDropout { p: 0.1, rng: Rng::new(1) });
        add(
            &format!("attention_dropout_{head}"),
            leaf(d, &[1, 4, 40, head])?.attention(&kv, &kv, None, &AttentionOptions { dropout, ..causal.clone() })?,
        );
        add(&format!("attention_decode_{head}"), leaf(d, &[1, 4, 1, head])?.attention(&kv, &kv, None, &causal)?);
        let kv = leaf(d, &[1, 2, 4096, head])?;
        add(&format!("attention_decode_long_{head}"), leaf(d, &[1, 4, 2, head])?.attention(&kv, &kv, None, &causal)?);
    }
    // So many heads that subgroups wait alone.
    let many = leaf(d, &[48, 8, 64, 8])?;
    for window in [0, 21] {
        let causal = AttentionOptions { causal: true, window: Some(window).filter(|w| *w > 0), ..Default::default() };
        add(&format!("attention_of_many_{window}"), many.attention(&many, &many, None, &causal)?);
    }
    Ok(())
}

/// Custom operations.
fn custom(d: DType, add: &mut impl FnMut(&str, Tensor)) -> TensorResult<()> {
    let (x, odd, row) = (leaf(d, &[48, 96])?, leaf(d, &[7, 33])?, leaf(d, &[96])?);
    for op in &CUSTOM {
        let (inputs, numbers): (&[&Tensor], &[f64]) = match op.name() {
            "custom_blend" => (&[&x, &row], &[0.5]),
            "custom_center" => (&[&x, &row], &[]),
            _ => (&[&x], &[]),
        };
        add(op.name(), op.apply(inputs, numbers)?);
    }
    add("custom_odd", CUSTOM[0].apply(&[&odd, &odd], &[0.5])?);
    Ok(())
}

/// Products with weights in affine quantization.
fn quantized(d: DType, add: &mut impl FnMut(&str, Tensor)) -> TensorResult<()> {
    let kinds = [("rows", Affine::int8().per_channel(0)), ("columns", Affine::int8().per_channel(1)), ("blocks", Affine::int4().block(32))];
    for (name, affine) in kinds {
        for (m, k) in [(1, 200), (5, 33), (40, 200)] {
            let w = leaf(DType::F32, &[67, k])?.quantize(&affine)?;
            add(&format!("matmul_quantized_{name}_{m}x{k}"), leaf(d, &[m, k])?.matmul_quantized(&w)?);
        }
    }
    Ok(())
}

/// Kernels of integers.
fn integers(d: DType, add: &mut impl FnMut(&str, Tensor)) -> TensorResult<()> {
    use DType::*;
    let x = leaf(d, &[12, 20])?;
    add("cast_f32", x.cast(F32)?);
    add("copy_odd", leaf(d, &[7, 33])?.t()?.contiguous()?);
    add("eq", x.eq(&x)?);
    add("where", x.cast(Bool)?.where_(&x, &x)?);
    add("gather", x.index_select(0, &leaf(I32, &[5])?)?);
    if d == I8 {
        for affine in [Affine::int8(), Affine::int4().symmetric()] {
            let [scale, zero_point, inverse] = affine_params(affine, leaf(F32, &[20])?, leaf(F32, &[20])?, std::panic::Location::caller())?;
            add(&format!("affine_params_{:?}", affine.mapping), scale.add(&zero_point)?.add(&inverse)?);
        }
    }
    if d == U8 {
        for (cols, window) in [(4096, 256), (333, 7), (4096, 4096)] {
            add(&format!("byte_entropy_{cols}_{window}"), leaf(d, &[2, cols])?.byte_entropy(window)?);
        }
    }
    if d.is_int() {
        add("arithmetic", x.add(&x)?.mul(&x)?.div(&x)?.maximum(&x)?);
        add("bits", x.bitwise_and(&x)?.bitwise_xor(&x)?);
        add("argmax", x.argmax(-1)?);
    }
    Ok(())
}

/// Kernels of block formats.
fn block_formats(d: DType, add: &mut impl FnMut(&str, Tensor)) -> TensorResult<()> {
    let w = leaf(d, &[64, 512])?;
    for rows in [1, 3, 40] {
        add(&format!("matmul_{d}_{rows}"), leaf(DType::F32, &[rows, 512])?.matmul(&w.t()?)?);
    }
    for t in [1, 40] {
        let (x, ids) = (leaf(DType::F16, &[t, 512])?, leaf(DType::I32, &[t, 2])?);
        add(&format!("experts_{d}_{t}"), x.expert_matmul(&leaf(d, &[3, 33, 512])?, &ids)?);
    }
    add(&format!("gather_{d}"), w.index_select(0, &leaf(DType::I32, &[5])?)?);
    add(&format!("cast_{d}"), w.cast(DType::F16)?);
    Ok(())
}

/// Named results whose plans hold the kernels.
pub fn results() -> TensorResult<Vec<(String, Tensor)>> {
    use DType::*;
    let mut out: Vec<(String, Tensor)> = Vec::new();
    for d in [F32, F16, BF16] {
        let mut add = |name: &str, t: Tensor| out.push((format!("{name}_{d}"), t));
        maps(d, &mut add)?;
        rows(d, &mut add)?;
        gathers(d, &mut add)?;
        products(d, &mut add)?;
        attention(d, &mut add)?;
        let drawn = Cutoff { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05 };
        add("cutoff", bare("cutoff", 0, drawn, &[&leaf(d, &[5003])?], &[], &[(F32, &[1])])?);
        quantized(d, &mut add)?;
        gradients(d, &mut add)?;
        let x = leaf(d, &[48, 96])?;
        add("cat", Tensor::cat(&[&x, &x], 0)?);
        custom(d, &mut add)?;
    }
    for d in [I32, U32, I8, U8, Bool] {
        integers(d, &mut |name, t| out.push((format!("{name}_{d}"), t)))?;
    }
    for d in DType::ALL.into_iter().filter(|d| d.is_block()) {
        block_formats(d, &mut |name, t| out.push((name.into(), t)))?;
    }
    Ok(out)
}

/// The generated kernels of the sample plans on one kind of GPU, each source once, with the name of the first sample that has it.
pub fn generated(adapter: &AdapterInfo) -> TensorResult<Vec<(String, Shader)>> {
    let mut seen = std::collections::HashSet::new();
    let mut out = Vec::new();
    for (name, t) in results()? {
        let Some(plan) = plan_of(&[&t])? else { continue };
        let shaders = kernel_shaders(&plan, adapter).map_err(|e| TensorError::Internal(format!("{name}: {e}")))?;
        for (n, k) in shaders.into_iter().enumerate() {
            if seen.insert(k.wgsl.clone()) {
                out.push((if n == 0 { name.clone() } else { format!("{name}_{n}") }, k));
            }
        }
    }
    Ok(out)
}
