//! Operations of a user's own, as a stranger's crate writes them, on the CPU and on a GPU against plain loops.

use crate::common::{devices, gpu};
use std::sync::Arc;
use tensorlogic::backends::cpu::share;
use tensorlogic::eval::eval_stats;
use tensorlogic::layout::Layout;
use tensorlogic::ops::custom::CustomOp;
use tensorlogic::plan::{AdapterInfo, Kernel, KernelParam, Step, Task, Value, Wgsl};
use tensorlogic::tensor::{Key, Lowered, Meta, Op};
use tensorlogic::{DType, Device, Rng, Shape, Tensor, TensorResult};

static BLEND: CustomOp = CustomOp::elementwise("blend")
    .wgsl("fn blend(a: f32, b: f32, t: f32, u: f32) -> f32 { return a * t + b * b * u; }")
    .cpu(|x, p, out| {
        for i in 0..out.len() {
            out[i] = x[0][i] * p[0] + x[1][i] * x[1][i] * p[1];
        }
    })
    .define(|x, p| x[0].mul(p[0])?.add(&x[1].square()?.mul(p[1])?));

/// max − Σ of each row, times the weight of its first column.
static SPREAD: CustomOp = CustomOp::row_reduction("spread")
    .wgsl(
        "fn spread(row: u32, cols: u32, lane: u32) {
           var sum = 0.0;
           var top = -3.0e38;
           for (var c = lane; c < cols; c += WORKGROUP) {
             let x = load_0(row * cols + c);
             sum += x;
             top = max(top, x);
           }
           sum = row_sum(sum);
           top = row_max(top);
           if (lane == 0u) { store_0(row, (top - sum) * load_1(0u)); }
         }",
    )
    .cpu(|x, _, out| out[0] = (x[0].iter().copied().fold(f32::MIN, f32::max) - x[0].iter().sum::<f32>()) * x[1][0]);

/// The elements of a tensor as they are stored, as f64.
fn values(t: &Tensor) -> Vec<f64> {
    t.to_vec().unwrap().into_iter().map(f64::from).collect()
}

#[track_caller]
fn close(got: &Tensor, want: &[f64]) {
    let tolerance = match got.dtype() {
        DType::F16 => 2e-3,
        DType::BF16 => 1e-2,
        _ => 1e-5,
    };
    let got = values(got);
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= tolerance * w.abs().max(1.0), "element {i}: {g}, not {w}");
    }
}

#[test]
fn elementwise_operations_take_any_views_and_dtypes() {
    for d in devices() {
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::I32] {
            for [rows, cols] in [[1, 1], [3, 5], [8, 16], [61, 67], [128, 130]] {
                let mut rng = Rng::new(5);
                let shape = [rows, cols];
                let a = rng.normal(&shape, DType::F32, &d).unwrap().mul(3.0).unwrap().cast(dtype).unwrap();
                let b = rng.normal(&[cols, rows], DType::F32, &d).unwrap().cast(dtype).unwrap().t().unwrap();
                let row = rng.normal(&[cols], DType::F32, &d).unwrap();
                // Stored, so that both sides start from the same bits.
                tensorlogic::eval::eval_all(&[&a, &b, &row]).unwrap();
                let float = if dtype == DType::I32 { DType::F32 } else { dtype };
                let want = |x: &[f64], y: &dyn Fn(usize) -> f64| -> Vec<f64> {
                    x.iter().enumerate().map(|(i, x)| x * 0.5 + y(i) * y(i) * 2.0).collect()
                };
                let (va, vb, vr) = (values(&a), values(&b), values(&row));
                let y = BLEND.apply(&[&a, &b], &[0.5, 2.0]).unwrap();
                assert_eq!((y.dims(), y.dtype()), (&shape[..], float));
                close(&y, &want(&va, &|i| vb[i]));
                let y = BLEND.apply(&[&a, &row], &[0.5, 2.0]).unwrap();
                assert_eq!(y.dtype(), DType::F32);
                close(&y, &want(&va, &|i| vr[i % cols]));
                // The first input broadcasts too.
                let y = BLEND.apply(&[&row, &a], &[0.5, 2.0]).unwrap();
                close(&y, &(0..rows * cols).map(|i| vr[i % cols] * 0.5 + va[i] * va[i] * 2.0).collect::<Vec<_>>());
            }
        }
        let empty = Tensor::zeros(&[0, 4], DType::F32, &d).unwrap();
        assert_eq!(BLEND.apply(&[&empty, &empty], &[1.0, 1.0]).unwrap().to_vec().unwrap(), [] as [f32; 0]);
    }
}

#[test]
fn row_operations_match_plain_loops() {
    for d in devices() {
        for dtype in [DType::F32, DType::F16] {
            for shape in [&[1usize, 1][..], &[3, 5], &[2, 3, 40], &[70, 300], &[2, 1025], &[7]] {
                let cols = shape[shape.len() - 1];
                let mut rng = Rng::new(11);
                let x = rng.normal(shape, dtype, &d).unwrap();
                let w = rng.normal(&[cols], dtype, &d).unwrap();
                let (vx, vw) = (values(&x), values(&w));
                let want: Vec<f64> =
                    vx.chunks(cols).map(|r| (r.iter().copied().fold(f64::MIN, f64::max) - r.iter().sum::<f64>()) * vw[0]).collect();
                let y = SPREAD.apply(&[&x, &w], &[]).unwrap();
                assert_eq!(y.dims(), &shape[..shape.len() - 1]);
                let scale = want.iter().fold(1.0f64, |m, v| m.max(v.abs()));
                close(&y.div(scale).unwrap(), &want.iter().map(|v| v / scale).collect::<Vec<_>>());
            }
        }
    }
}

#[test]
fn neighbours_fuse_and_numbers_do_not_make_plans() {
    for d in devices() {
        let x = Rng::new(1).normal(&[40, 64], DType::F32, &d).unwrap();
        let x = x.eval().unwrap();
        let run = |t: f64| {
            let y = BLEND.apply(&[&x.add(1.0).unwrap().relu().unwrap(), x], &[t, 1.0]).unwrap().tanh().unwrap();
            assert!(y.explain().unwrap().contains("\n1 dispatch"), "{}", y.explain().unwrap());
            let want: Vec<f64> = values(x).iter().map(|v| ((v + 1.0).max(0.0) * t + v * v).tanh()).collect();
            close(&y, &want);
        };
        run(0.5);
        // Other tests share the device, so only its hits can be counted on: one for `explain`, one for the values.
        let before = eval_stats(&d).hits;
        run(0.25);
        assert!(eval_stats(&d).hits >= before + 2);
    }
}

#[test]
fn a_definition_serves_where_a_form_is_missing() {
    static ONLY_MEANING: CustomOp = CustomOp::elementwise("only_meaning").define(|x, p| x[0].mul(p[0]));
    static ONLY_GPU: CustomOp = CustomOp::elementwise("only_gpu").wgsl("fn only_gpu(x: f32) -> f32 { return x + 1.0; }");
    for d in devices() {
        let x = Tensor::from_vec(vec![1.0f32, 2.0], &[2], &d).unwrap();
        assert_eq!(ONLY_MEANING.apply(&[&x], &[3.0]).unwrap().to_vec().unwrap(), [3.0, 6.0]);
    }
    for d in [Some(Device::cpu()), gpu()].into_iter().flatten() {
        let x = Tensor::from_vec(vec![1.0f32, 2.0], &[2], &d).unwrap();
        match ONLY_GPU.apply(&[&x], &[]) {
            Ok(y) => assert!(!d.is_cpu() && y.to_vec().unwrap() == [2.0, 3.0]),
            Err(e) => assert!(d.is_cpu() && e.to_string().contains("only_gpu") && e.to_string().contains("custom.rs:"), "{e}"),
        }
    }
    let x = Tensor::from_vec(vec![1.0f64, 1e-12], &[2], &Device::cpu()).unwrap();
    let y = BLEND.apply(&[&x, &x], &[1.0, 1.0]).unwrap();
    assert_eq!(y.to_vec_of::<f64>().unwrap(), [2.0, 1e-12 + 1e-24]);
    assert!(SPREAD.apply(&[&x, &x], &[]).unwrap_err().to_string().contains("f64"));
}

#[test]
fn gradients_are_the_definitions() {
    for d in devices() {
        let mut rng = Rng::new(2);
        let [a, b] = [0; 2].map(|_| rng.normal(&[6, 10], DType::F32, &d).unwrap());
        let (x, y) = (a.requires_grad().unwrap(), b.requires_grad().unwrap());
        let out = BLEND.apply(&[&x, &y], &[0.5, 2.0]).unwrap().tanh().unwrap().sum_all().unwrap();
        let got = tensorlogic::autograd::grad(&[&out], &[&x, &y], &Default::default()).unwrap();
        let slope: Vec<f64> = values(&a).iter().zip(values(&b)).map(|(a, b)| 1.0 - (a * 0.5 + b * b * 2.0).tanh().powi(2)).collect();
        close(&got[0], &slope.iter().map(|s| s * 0.5).collect::<Vec<_>>());
        close(&got[1], &slope.iter().zip(values(&b)).map(|(s, b)| s * 4.0 * b).collect::<Vec<_>>());
        // Without a definition there is no gradient, and it says so.
        let out = SPREAD.apply(&[&x, &b.narrow(0, 0, 1).unwrap().reshape(&[10]).unwrap()], &[]).unwrap().sum_all().unwrap();
        let e = tensorlogic::autograd::grad(&[&out], &[&x], &Default::default()).unwrap_err().to_string();
        assert!(e.contains("spread"), "{e}");
    }
}

#[test]
fn mistakes_are_errors_that_name_the_operation() {
    #[track_caller]
    fn says(r: TensorResult<Tensor>, what: &str) {
        let Err(e) = r else { panic!("no error, but {what} was expected") };
        let e = e.to_string();
        assert!(e.contains(what) && e.contains("custom.rs:"), "{e}");
    }
    for d in devices() {
        let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &d).unwrap();
        says(BLEND.apply(&[], &[]), "blend: an operation needs an input");
        says(BLEND.apply(&[&zeros(&[3]), &zeros(&[4])], &[1.0, 1.0]), "blend: [3] and [4] do not broadcast");
        says(SPREAD.apply(&[&zeros(&[2, 3]), &zeros(&[2])], &[]), "spread: an input of [2] next to [2,3]");
        says(SPREAD.apply(&[&zeros(&[])], &[]), "spread: a scalar has no rows");
    }
    static WRONG: CustomOp = CustomOp::elementwise("wrong").wgsl("fn wrong(x: f32) -> f32 { return y; }");
    static TAKEN: CustomOp =
        CustomOp::elementwise("taken").wgsl("fn x7(x: f32) -> f32 { return 2.0 * x; }\nfn taken(x: f32) -> f32 { return x7(x); }");
    static FREE: CustomOp =
        CustomOp::elementwise("free").wgsl("fn xv(x: f32) -> f32 { return 2.0 * x; }\nfn free(x: f32) -> f32 { return xv(x); }");
    if let Some(d) = gpu() {
        let x = Tensor::ones(&[4], DType::F32, &d).unwrap();
        let e = WRONG.apply(&[&x], &[]).unwrap().to_vec().unwrap_err().to_string();
        assert!(e.starts_with("not supported: wrong on ") && e.contains("return y;"), "{e}");
        // A name of generated code is refused wherever it stands, not only beside as many operands.
        let e = TAKEN.apply(&[&x], &[]).unwrap().to_vec().unwrap_err().to_string();
        assert!(e.contains("taken: the kernel declares `x7` (") && e.contains("custom.rs:"), "{e}");
        assert_eq!(FREE.apply(&[&x.add(&x).unwrap()], &[]).unwrap().to_vec().unwrap(), [4.0; 4]);
        // The device goes on.
        assert_eq!(x.add(1.0).unwrap().to_vec().unwrap(), [2.0; 4]);
        says(BLEND.apply(&[&x, &Tensor::ones(&[4], DType::F32, &Device::cpu()).unwrap()], &[1.0, 1.0]), "operands are on");
    }
}

/// What has no builder: an operation of two results of other shapes than its input's, from the traits alone.
struct MinMax;
struct MinMaxKernel;

impl Op for MinMax {
    fn name(&self) -> &'static str {
        "min_max"
    }
    fn key(&self, _: &mut Key) {}
    fn define(&self, _: &[Tensor]) -> Option<TensorResult<Tensor>> {
        None
    }
    fn lower(&self, inputs: &[Meta], outputs: &[Meta]) -> Lowered {
        let all = |m: &Meta| (Layout::contiguous(m.shape), m.shape);
        let (input, shape) = all(&inputs[0]);
        Lowered::Kernel {
            kernel: Arc::new(MinMaxKernel),
            loads: vec![(0, input, shape)],
            stores: outputs.iter().enumerate().map(|(k, m)| (k, all(m).0, all(m).1)).collect(),
        }
    }
}

impl Kernel for MinMaxKernel {
    fn cpu(&self, task: &dyn Task) {
        let [rows, cols] = task.step().loads[0].shape.dims() else { return };
        let mut x = vec![0.0f32; *cols];
        for row in share(*rows, 1, task.thread(), task.threads()) {
            task.load(0, row * cols, f32::slice_mut(&mut x));
            let mut least = [x.iter().copied().fold(f32::MAX, f32::min)];
            let mut most = [x.iter().copied().fold(f32::MIN, f32::max)];
            task.store(0, row, f32::slice_mut(&mut least));
            task.store(1, row, f32::slice_mut(&mut most));
        }
    }
    fn ops(&self, step: &Step) -> u64 {
        2 * step.loads[0].shape.count() as u64
    }
    fn wgsl(&self, step: &Step, _: &AdapterInfo) -> Option<Wgsl> {
        let [rows, cols] = step.loads[0].shape.dims() else { return None };
        let source = "
            struct Params {
              rows: u32,
              cols: u32, // of a row
            }
            @compute @workgroup_size(WORKGROUP)
            fn main(@builtin(global_invocation_id) id: vec3<u32>) {
              let row = id.x;
              if (row >= p.rows) { return; }
              var least = load_0(row * p.cols);
              var most = least;
              for (var c = 1u; c < p.cols; c++) {
                let x = load_0(row * p.cols + c);
                least = min(least, x);
                most = max(most, x);
              }
              store_0(row, least);
              store_1(row, most);
            }";
        let params = vec![KernelParam::U32(*rows as u32), KernelParam::U32(*cols as u32)];
        Some(Wgsl {
            source: source.into(),
            consts: vec![],
            workgroup: 64,
            grid: [rows.div_ceil(64) as u32, 1, 1],
            params,
            raw: vec![],
            transposed: vec![],
        })
    }
}

#[test]
fn the_traits_are_enough_for_everything_else() {
    for d in devices() {
        let x = Rng::new(9).normal(&[100, 37], DType::F32, &d).unwrap();
        let meta = Meta { dtype: DType::F32, shape: Shape::of(&[100]) };
        let at = std::panic::Location::caller();
        let inputs = [x.clone()].into_iter().collect();
        let out = Tensor::op(Arc::new(MinMax), inputs, Default::default(), [meta, meta].into_iter().collect(), at).unwrap();
        let rows = values(&x);
        let fold = |f: fn(f64, f64) -> f64| rows.chunks(37).map(|r| r.iter().copied().reduce(f).unwrap()).collect::<Vec<_>>();
        close(&out[0], &fold(f64::min));
        close(&out[1].mul(2.0).unwrap(), &fold(f64::max).iter().map(|v| 2.0 * v).collect::<Vec<_>>());
    }
}

#[cfg(feature = "gpu")]
mod raw {
    use super::*;
    use naga::back::spv;
    use naga::valid::{Capabilities, ValidationFlags, Validator};

    /// What naga makes of WGSL source: SPIR-V as another compiler would give it.
    fn spirv(source: &str) -> &'static [u32] {
        let module = naga::front::wgsl::parse_str(source).unwrap();
        let info = Validator::new(ValidationFlags::all(), Capabilities::all()).validate(&module).unwrap();
        let options = spv::Options { lang_version: (1, 3), ..Default::default() };
        Box::leak(spv::write_vec(&module, &info, &options, None).unwrap().into_boxed_slice())
    }

    /// The source of a kernel `x * k` as a raw form binds it, adding `mark`, which tells it from the WGSL form.
    fn times(mark: f32) -> &'static [u32] {
        spirv(&format!(
            "@group(0) @binding(0) var<uniform> words: array<vec4<u32>, 1>;
             @group(0) @binding(1) var<storage, read> x: array<f32>;
             @group(0) @binding(2) var<storage, read_write> y: array<f32>;
             @compute @workgroup_size(64)
             fn times(@builtin(workgroup_id) g: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) t: u32) {{
               let i = (g.y * n.x + g.x) * 64u + t;
               if (i < words[0].x) {{ y[i] = x[i] * bitcast<f32>(words[0].y) + {mark:.1}; }}
             }}"
        ))
    }

    #[test]
    fn spirv_runs_where_the_driver_takes_it_and_wgsl_elsewhere() {
        let Some(d) = gpu() else { return };
        let adapters = tensorlogic::backends::gpu::adapters();
        // The device under test may be another than the machine's Vulkan adapter.
        let tested =
            |a: &tensorlogic::backends::gpu::AdapterDescription| a.backend == "vulkan" && d.name() == format!("{} (vulkan)", a.name);
        let offered = adapters.iter().any(|a| tested(a) && a.features.contains(&"raw kernels"));
        // SAFETY: the words are a valid module whose only entry point works in groups of 64 and guards its index.
        let op = unsafe {
            CustomOp::elementwise("times").wgsl("fn times(x: f32, k: f32) -> f32 { return x * k; }").spirv("times", 64, times(1000.0))
        };
        for n in [1usize, 64, 1001] {
            let x = Tensor::arange(0.0, n as f64, 1.0, DType::F32, &d).unwrap();
            x.eval().unwrap();
            let mark = if offered { 1000.0 } else { 0.0 };
            close(&op.apply(&[&x], &[3.0]).unwrap(), &(0..n).map(|i| 3.0 * i as f64 + mark).collect::<Vec<_>>());
            // Fused work, views and other dtypes are the WGSL's.
            close(&op.apply(&[&x.add(1.0).unwrap()], &[3.0]).unwrap(), &(0..n).map(|i| 3.0 * (i + 1) as f64).collect::<Vec<_>>());
            close(&op.apply(&[&x], &[3.0]).unwrap().neg().unwrap(), &(0..n).map(|i| -3.0 * i as f64).collect::<Vec<_>>());
            let half = x.narrow(0, 0, n.min(100)).unwrap().cast(DType::F16).unwrap();
            half.eval().unwrap();
            close(&op.apply(&[&half], &[3.0]).unwrap(), &(0..n.min(100)).map(|i| 3.0 * i as f64).collect::<Vec<_>>());
        }
        // More workgroups than one dimension has.
        if offered {
            let n = 65_536 * 64;
            let x = Tensor::ones(&[n], DType::F32, &d).unwrap();
            x.eval().unwrap();
            let y = op.apply(&[&x], &[2.0]).unwrap();
            assert!(y.to_vec().unwrap().iter().all(|v| *v == 1002.0));
        }
    }
}
