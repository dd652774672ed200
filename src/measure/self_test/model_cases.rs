//! What models and training need besides products and rows: gradients, experts, pages of keys, scans, integers under scales, cutoffs, custom kernels.

use super::cases::{FLOATS, List, integers, noise, rounding, weight};
use crate::autograd::{GradOptions, grad};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::ops::attention::AttentionOptions;
use crate::ops::custom::CustomOp;
use crate::ops::cutoff::Cutoff;
use crate::ops::linear_scan::LinearScan;
use crate::ops::loss::NllOptions;
use crate::quant::Affine;
use crate::tensor::Tensor;

/// What gradients are asked of.
type Function = fn(&[Tensor]) -> TensorResult<Tensor>;

/// The tensor with its values in memory, as those of layers are: some kernels read nothing else.
fn stored(t: Tensor) -> TensorResult<Tensor> {
    t.eval()?;
    Ok(t)
}

/// The gradients of the sum of a function's values with respect to each of these, one behind the other. The values are weighted, so that no gradient
/// is the same for all of them.
fn gradients(inputs: Vec<Tensor>, f: Function) -> TensorResult<Tensor> {
    let inputs = inputs.iter().map(Tensor::requires_grad).collect::<TensorResult<Vec<_>>>()?;
    let y = f(&inputs)?;
    y.backward_with(&stored(noise(y.dims(), y.dtype(), 40, y.device())?)?, false)?;
    let found = inputs.iter().filter_map(|x| x.grad()?.reshape(&[-1]).into());
    Tensor::cat(&found.collect::<TensorResult<Vec<_>>>()?.iter().collect::<Vec<_>>(), 0)
}

/// A function whose gradients are a case: the shapes of its arguments.
type Differentiated = (&'static str, &'static [&'static [usize]], Function);
const GRADIENTS: [Differentiated; 9] = [
    ("softmax [9,70]", &[&[9, 70]], |x| x[0].softmax(-1)),
    ("layer_norm [9,96]", &[&[9, 96], &[96], &[96]], |x| x[0].layer_norm(Some(&x[1]), Some(&x[2]), 1e-5)),
    ("rms_norm [9,96]", &[&[9, 96], &[96]], |x| x[0].rms_norm(Some(&x[1]), 1e-6)),
    ("gelu, bias [9,70]", &[&[9, 70], &[70]], |x| x[0].add(&x[1])?.gelu_tanh()),
    ("product [40,64]·[64,48]", &[&[40, 64], &[64, 48]], |x| x[0].matmul(&x[1])),
    ("product [2,300]·[300,72]", &[&[2, 300], &[300, 72]], |x| x[0].matmul(&x[1])),
    ("attention 40 queries, 40 keys of 64", &[&[1, 4, 40, 64], &[1, 2, 40, 64], &[1, 2, 40, 64]], |x| {
        x[0].attention(&x[1], &x[2], None, &AttentionOptions::default())
    }),
    ("attention 20 queries, 20 keys of 24", &[&[1, 2, 20, 24], &[1, 2, 20, 24], &[1, 2, 20, 24]], |x| {
        x[0].attention(&x[1], &x[2], None, &AttentionOptions { causal: true, ..Default::default() })
    }),
    ("convolution [1,4,12,12]·[6,4,3,3]", &[&[1, 4, 12, 12], &[6, 4, 3, 3]], |x| x[0].conv(&x[1], None, &Default::default())),
];

/// Kernels of the caller's own: x · x + k, and x without its row's mean.
static SQUARE_PLUS: CustomOp = CustomOp::elementwise("square_plus")
    .wgsl("fn square_plus(x: f32, k: f32) -> f32 { return x * x + k; }")
    .cpu(|x, p, out| out.iter_mut().zip(x[0]).for_each(|(y, &x)| *y = x * x + p[0]));
static CENTRED: CustomOp = CustomOp::rows("centred")
    .wgsl(
        "fn centred(row: u32, cols: u32, lane: u32) {
           var sum = 0.0;
           for (var c = lane; c < cols; c += WORKGROUP) { sum += load_0(row * cols + c); }
           let mean = row_sum(sum) / f32(cols);
           for (var c = lane; c < cols; c += WORKGROUP) { store_0(row * cols + c, load_0(row * cols + c) - mean); }
         }",
    )
    .cpu(|x, _, out| {
        let mean = x[0].iter().sum::<f32>() / x[0].len() as f32;
        out.iter_mut().zip(x[0]).for_each(|(y, &x)| *y = x - mean);
    });

impl List {
    pub(super) fn training(&mut self) {
        for dtype in FLOATS {
            for (name, shapes, f) in GRADIENTS {
                // Gradients are sums of many products of rounded numbers.
                let tolerance = 4.0 * rounding(dtype);
                self.add(format!("gradients {name} {dtype}"), tolerance, move |d| {
                    let inputs = shapes.iter().enumerate().map(|(n, s)| stored(noise(s, dtype, 30 + n as u64, d)?));
                    gradients(inputs.collect::<TensorResult<_>>()?, f)
                });
            }
            let classes = |d: &Device| Tensor::from_vec(vec![3i32, 0, 49, 7, -100, 12], &[6], d);
            self.add(format!("cross_entropy [6,50] {dtype}"), rounding(dtype), move |d| {
                noise(&[6, 50], dtype, 33, d)?.cross_entropy(&classes(d)?, &NllOptions::default())
            });
            self.add(format!("gradients cross_entropy [6,50] {dtype}"), rounding(dtype), move |d| {
                let x = noise(&[6, 50], dtype, 33, d)?.requires_grad()?;
                let loss = x.cross_entropy(&classes(d)?, &NllOptions::default())?;
                Ok(grad(&[&loss], &[&x], &GradOptions::default())?.swap_remove(0))
            });
        }
    }

    pub(super) fn models(&mut self) {
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::Q4_0, DType::Q4_K, DType::Q8_0] {
            let activations = if dtype.is_block() { DType::F32 } else { dtype };
            let tolerance = if dtype.is_block() { 1e-2 } else { rounding(dtype) };
            for tokens in [2, 40] {
                self.add(format!("experts, {tokens} tokens of 256, 2 of 4 experts with 48 rows {dtype}"), tolerance, move |d| {
                    let ids = Tensor::from_vec((0..2 * tokens as i32).map(|n| n * n % 4).collect(), &[tokens, 2], d)?;
                    let all = weight(4 * 48, 256, dtype, 35, d)?.reshape(&[4, 48, 256])?;
                    noise(&[tokens, 256], activations, 34, d)?.expert_matmul(&all, &ids)
                });
            }
        }
        for (bits, affine) in
            [("8 bits", Affine::int8()), ("4 bits", Affine::int4().block(32)), ("8 bits a row", Affine::int8().per_channel(0))]
        {
            for rows in [1, 5, 40] {
                self.add(format!("integers [{rows},128]·[64,128]ᵀ, {bits}"), 1e-2, move |d| {
                    noise(&[rows, 128], DType::F32, 36, d)?.matmul_quantized(&noise(&[64, 128], DType::F32, 37, d)?.quantize(&affine)?)
                });
            }
            self.add(format!("integers quantize [64,128], {bits}"), 0.0, move |d| {
                noise(&[64, 128], DType::F32, 37, d)?.quantize(&affine)?.values()
            });
        }
        for dtype in FLOATS {
            self.pages(dtype);
            for (name, beta) in [("", false), (", delta rule", true)] {
                self.add(format!("scan, 9 tokens, 4 heads{name} {dtype}"), 4.0 * rounding(dtype), move |d| {
                    let (q, k) = (noise(&[1, 9, 2, 16], dtype, 41, d)?, noise(&[1, 9, 2, 16], dtype, 42, d)?);
                    let (v, state) = (noise(&[1, 9, 4, 24], dtype, 43, d)?, noise(&[1, 4, 16, 24], DType::F32, 44, d)?);
                    let [decay, rate] = [45, 46].map(|seed| noise(&[1, 9, 4], dtype, seed, d).and_then(|t| t.mul(0.25)?.add(0.5)));
                    let (decay, rate) = (decay?, rate?);
                    let scan = LinearScan { q: &q, k: &k, v: &v, decay: &decay, beta: beta.then_some(&rate), state: &state };
                    Ok(scan.run()?.0)
                });
            }
        }
        self.add("bytes, entropy of windows of 16".into(), rounding(DType::F32), |d| {
            let bytes = (0..200u32).map(|n| (n * n % 251) as u8 / 16).collect::<Vec<u8>>();
            Tensor::from_vec(bytes, &[200], d)?.byte_entropy(16)
        });
        for (name, top_k, top_p, min_p) in [("top-k", 7, 1.0, 0.0), ("top-p", 0, 0.7, 0.0), ("min-p", 0, 1.0, 0.3)] {
            self.add(format!("cutoff {name} of 500"), 0.0, move |d| {
                noise(&[500], DType::F32, 47, d)?.mul(6.0)?.cutoff(Cutoff { top_k, temperature: 0.8, top_p, min_p })
            });
        }
        self.add("topk 5 of [7,300] f32".into(), 0.0, |d| Ok(noise(&[7, 300], DType::F32, 48, d)?.topk(5, -1, true)?.0));
        self.add("custom elements [33,70] f32".into(), rounding(DType::F32), |d| {
            SQUARE_PLUS.apply(&[&noise(&[33, 70], DType::F32, 49, d)?], &[0.5])
        });
        self.add("custom rows [5,700] f32".into(), rounding(DType::F32), |d| CENTRED.apply(&[&noise(&[5, 700], DType::F32, 49, d)?], &[]));
    }

    fn pages(&mut self, dtype: DType) {
        // Two texts of 70 and 3 keys in pages of 64 positions; page 0 is nobody's.
        for queries in [1, 3] {
            self.add(format!("pages, {queries} queries of 64, 70 and 3 keys {dtype}"), rounding(dtype), move |d| {
                let pool = Tensor::zeros(&[2, 4, 2, 64, 64], dtype, d)?;
                let (k, v) = (noise(&[2, 2, 70, 64], dtype, 50, d)?, noise(&[2, 2, 70, 64], dtype, 51, d)?);
                let slots = |text: i32, n: i32| {
                    if text == 0 {
                        64 + n
                    } else if n < 3 {
                        192 + n
                    } else {
                        0
                    }
                };
                let slots = (0..2).flat_map(|text| (0..70).map(move |n| slots(text, n))).collect::<Vec<i32>>();
                let pool = pool.paged_write(&k, &v, &Tensor::from_vec(slots, &[2, 70], d)?)?;
                let table = Tensor::from_vec(vec![1i32, 2, 3, 0], &[2, 2], d)?;
                let lens = Tensor::from_vec(vec![70i32, 3], &[2], d)?;
                let q = noise(&[2, 4, queries, 64], dtype, 52, d)?;
                q.paged_attention(&pool, &table, &lens, &AttentionOptions { causal: true, ..Default::default() })
            });
        }
    }

    /// Formats whose values are entries of a codebook.
    pub(super) fn codebooks(&mut self) {
        for dtype in DType::BLOCKS.into_iter().filter(|d| d.format().is_some_and(|f| f.linear().is_none())) {
            self.add(format!("unpack [4,512] {dtype}"), rounding(DType::F16), move |d| weight(4, 512, dtype, 24, d)?.cast(DType::F32));
            for rows in [1, 40] {
                self.add(format!("product [{rows},512]·[96,512]ᵀ {dtype}"), 1e-2, move |d| {
                    noise(&[rows, 512], DType::F32, 4, d)?.matmul(&weight(96, 512, dtype, 5, d)?.t()?)
                });
            }
        }
        // Weights that many rows read are unpacked first, and long rows of f16 become integers where a GPU adds products of bytes.
        for dtype in [DType::Q4_0, DType::Q4_K, DType::Q8_0] {
            self.add(format!("product [70,512]·[96,512]ᵀ, activations f16, {dtype}"), 1e-2, move |d| {
                let (x, w) = (noise(&[70, 512], DType::F16, 4, d)?, weight(96, 512, dtype, 5, d)?);
                x.matmul(&w.unpacked_for(&x)?.t()?)
            });
        }
        self.add("product [1,2048]·[4096,2048]ᵀ, activations f16, q4_0".into(), 1e-2, |d| {
            stored(noise(&[1, 2048], DType::F16, 4, d)?)?.matmul(&weight(4096, 2048, DType::Q4_0, 5, d)?.t()?)
        });
        self.add("gather embedding of [50,256] q4_0".into(), rounding(DType::F16), |d| {
            weight(50, 256, DType::Q4_0, 53, d)?.embedding(&Tensor::from_vec(vec![7i32, 0, 49, 7, 12], &[5], d)?)
        });
        self.add("map whole numbers as bytes".into(), 0.0, |d| {
            Tensor::from_vec(integers(&[40], 100, 54), &[40], d)?.cast(DType::I8)?.cast(DType::F32)
        });
    }
}
