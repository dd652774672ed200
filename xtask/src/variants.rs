//! More sample plans, so that between them they take every branch by which a kernel's shader source is chosen and assembled.

use crate::samples::{Bare, bare, leaf};
use tensorlogic::dtype::DType::{self, *};
use tensorlogic::ops::attention::grad::{AttentionGradKernel, Part};
use tensorlogic::ops::attention::{AttentionKernel, AttentionOptions};
use tensorlogic::ops::index_add::{Combine, IndexAddKernel};
use tensorlogic::ops::kernels::{
    CrossEntropyKernel, FusedGemvKernel, NormGradKernel, NormKernel, ReduceKernel, ReduceOp, SoftmaxKernel, Unpack,
};
use tensorlogic::plan::{FusedGemv, Kernel, Normalization};
use tensorlogic::{Device, Tensor, TensorResult};

/// Elements of a sample at most.
const LARGEST: usize = 1 << 21;

/// What is done with a sample. Samples are made one after the other, so that their memory is not needed all at once.
pub type Take<'a> = &'a mut dyn FnMut(String, Tensor) -> TensorResult<()>;

/// Where samples go.
struct Variants<'a> {
    take: Take<'a>,
    count: u64,
}

impl Variants<'_> {
    fn add(&mut self, name: String, t: Tensor) -> TensorResult<()> {
        self.count += 1;
        (self.take)(format!("variant_{name}"), t)
    }
    /// The first result of a kernel over stored operands.
    fn kernel(
        &mut self,
        name: String,
        op: &'static str,
        kernel: impl Kernel + 'static,
        inputs: &[&Tensor],
        params: &[f64],
        outputs: &[(DType, &[usize])],
    ) -> TensorResult<()> {
        // Plans are found by the operation's name and setting: each sample has a setting of its own.
        let t = bare(op, Bare::SETTINGS + self.count, kernel, inputs, params, outputs)?;
        self.add(name, t)
    }
}

/// Gives all of them, by name.
pub fn variants(take: Take<'_>) -> TensorResult<()> {
    let out = &mut Variants { take, count: 0 };
    rows(out)?;
    reductions(out)?;
    tables(out)?;
    products(out)?;
    fused_products(out)?;
    attention(out)?;
    attention_gradients(out)?;
    elementwise(out)
}

/// Shapes of kernels over rows, all of them for f32 and some for other types.
fn shapes(d: DType) -> impl Iterator<Item = (usize, usize)> {
    let cols = [1, 3, 8, 12, 33, 96, 100, 256, 257, 1000, 1024, 2048, 4095, 4096, 8192, 16_384, 32_768, 50_257];
    let some = if d == F32 { vec![1, 64, 1024, 4096] } else { vec![64, 4096] };
    let all = cols.into_iter().flat_map(move |c| some.clone().into_iter().map(move |r| (r, c)));
    all.filter(move |(r, c)| r * c <= LARGEST && (matches!(d, F32 | F16) || [3, 96, 1024, 4095, 16_384].contains(c)))
}

/// Softmax, norms, their gradients and cross entropy.
fn rows(out: &mut Variants<'_>) -> TensorResult<()> {
    for d in [F32, F16, BF16] {
        for (r, c) in shapes(d) {
            let (x, row) = (leaf(d, &[r, c])?, leaf(d, &[c])?);
            let of = format!("{r}x{c}_{d}");
            for log in [false, true] {
                out.kernel(format!("softmax_{of}_log{}", log as u8), "softmax", SoftmaxKernel { log }, &[&x], &[], &[(d, &[r, c])])?;
            }
            for (n, (rms, weight, bias)) in
                [(true, true, false), (true, false, false), (false, true, true), (false, true, false), (false, false, false)]
                    .into_iter()
                    .enumerate()
            {
                let kernel = NormKernel { rms, eps: 1e-5, weight, bias };
                let inputs = [Some(&x), weight.then_some(&row), bias.then_some(&row)].into_iter().flatten().collect::<Vec<_>>();
                out.kernel(format!("norm_{of}_{n}"), "norm", kernel, &inputs, &[], &[(d, &[r, c])])?;
                if !bias {
                    let kernel = NormGradKernel { rms, eps: 1e-5, weight, columns: false };
                    let inputs = [Some(&x), Some(&x), weight.then_some(&row)].into_iter().flatten().collect::<Vec<_>>();
                    let outputs: [(DType, &[usize]); 3] = [(d, &[r, c]), (F32, &[r]), (F32, &[r])];
                    out.kernel(format!("norm_grad_{of}_{n}"), "norm_grad", kernel, &inputs, &[], &outputs)?;
                }
            }
            let (target, sums) = (leaf(I32, &[r])?, leaf(F32, &[r])?);
            for (n, (ignore, backward, hot)) in
                [(-100, false, true), (1 << 40, false, true), (-100, true, true), (-100, true, false), (1 << 40, true, true)]
                    .into_iter()
                    .enumerate()
            {
                let kernel = CrossEntropyKernel { ignore, backward, hot };
                let (all, each): (&[usize], &[usize]) = (&[r, c], &[r]);
                let (inputs, outputs) = match backward {
                    true => (vec![&x, &target, &sums, &sums], vec![(d, all)]),
                    false => (vec![&x, &target], vec![(F32, each), (F32, each)]),
                };
                out.kernel(format!("cross_entropy_{of}_{n}"), "cross_entropy", kernel, &inputs, &[], &outputs)?;
            }
        }
        // Rows that are not stored one behind the other, and what is fused into loads and stores.
        for (r, c) in [(48, 96), (64, 33), (4096, 128)] {
            let x = leaf(d, &[c, r])?.t()?;
            out.add(format!("softmax_view_{r}x{c}_{d}"), x.softmax(-1)?)?;
            out.add(format!("softmax_fused_{r}x{c}_{d}"), leaf(d, &[r, c])?.mul(0.5)?.softmax(-1)?.add(1.0)?)?;
            out.add(format!("norm_view_{r}x{c}_{d}"), x.layer_norm(None, None, 1e-5)?)?;
            out.add(format!("norm_fused_{r}x{c}_{d}"), leaf(d, &[r, c])?.add(1.0)?.rms_norm(Some(&leaf(d, &[c])?), 1e-5)?.relu()?)?;
        }
        out.add(format!("softmax_part_{d}"), leaf(d, &[64, 256])?.narrow(0, 3, 40)?.softmax(-1)?)?;
        out.add(format!("softmax_odd_part_{d}"), leaf(d, &[64 * 256 + 3])?.narrow(0, 3, 64 * 256)?.reshape(&[64, 256])?.softmax(-1)?)?;
    }
    Ok(())
}

/// Reductions in both directions.
fn reductions(out: &mut Variants<'_>) -> TensorResult<()> {
    use ReduceOp::*;
    for d in [F32, F16, BF16, I32, U32, U8] {
        for (r, c) in shapes(d).chain([(1, 1 << 21), (8, 1 << 18), (40_000, 40)]) {
            for op in [Sum, Mean, Max, Min, Prod, ArgMax, ArgMin, ArgMaxOrNone] {
                let to = match op {
                    ArgMax | ArgMin | ArgMaxOrNone => I32,
                    _ => d,
                };
                if op == Mean && !d.is_float() {
                    continue;
                }
                let x = leaf(d, &[r, c])?;
                out.kernel(format!("reduce_{op:?}_{r}x{c}_{d}"), "reduce", ReduceKernel { op }, &[&x], &[], &[(to, &[r])])?;
            }
            let x = leaf(d, &[c, r])?;
            out.add(format!("sum_across_{r}x{c}_{d}"), x.sum(&[0], false)?)?;
            out.add(format!("prod_across_{r}x{c}_{d}"), x.prod(&[0], false)?)?;
            out.add(format!("max_across_{r}x{c}_{d}"), x.max(&[0], false)?)?;
            out.add(format!("argmin_across_{r}x{c}_{d}"), x.argmin(0)?)?;
        }
    }
    Ok(())
}

/// Rows of tables, and weights in blocks.
fn tables(out: &mut Variants<'_>) -> TensorResult<()> {
    for d in [F32, F16, BF16, I32, U32, I8, U8, Bool] {
        for inner in [1, 3, 4, 96, 2048] {
            for (index, name) in [(I32, "i32"), (U32, "u32")] {
                out.add(format!("rows_{inner}_{name}_{d}"), leaf(d, &[9, inner])?.index_select(0, &leaf(index, &[5])?)?)?;
            }
            for how in [Combine::Add, Combine::Set, Combine::Mul, Combine::Min, Combine::Max].into_iter().filter(|_| d != Bool) {
                let inputs = [leaf(d, &[9, inner])?, leaf(I32, &[5])?, leaf(d, &[5, inner])?];
                let name = format!("index_{how:?}_{inner}_{d}");
                let inputs = [&inputs[0], &inputs[1], &inputs[2]];
                out.kernel(name, "index_add", IndexAddKernel(how), &inputs, &[], &[(d, &[9, inner])])?;
            }
        }
    }
    for d in DType::ALL.into_iter().filter(|d| d.is_block()) {
        for to in [F32, F16, BF16] {
            let shape: [usize; 2] = [64, 1024];
            out.kernel(format!("unpack_{d}_{to}"), "unpack", Unpack, &[&leaf(d, &shape)?], &[], &[(to, &shape)])?;
        }
        for to in [F32, BF16] {
            out.add(format!("convert_{d}_{to}"), leaf(d, &[64, 512])?.cast(to)?)?;
        }
    }
    Ok(())
}

/// Types that a product's right side is stored in.
fn weights() -> Vec<DType> {
    [F32, F16, BF16].into_iter().chain(DType::ALL.into_iter().filter(|d| d.is_block())).collect()
}

/// Products of two sides, by rows, columns and layout.
fn products(out: &mut Variants<'_>) -> TensorResult<()> {
    let rows = [1, 2, 3, 5, 8, 9, 16, 40, 64, 200, 512];
    let sizes = [(8, 256), (64, 512), (1024, 1024), (1022, 256), (9216, 256), (16_384, 512), (512, 8192), (256, 2048)];
    for a in [F32, F16, BF16] {
        for w in weights() {
            let blocks = w.is_block();
            for (m, (n, k)) in rows.into_iter().flat_map(|m| sizes.map(|s| (m, s))) {
                if m > 64 && n > 2000 || blocks && (a == BF16 || [2, 9, 40, 200].contains(&m) || n == 1022) {
                    continue;
                }
                let t = leaf(a, &[m, k])?.matmul(&leaf(w, &[n, k])?.t()?)?;
                out.add(format!("product_{m}x{n}x{k}_{a}_{w}"), t)?;
            }
        }
        let few = [1, 3, 8, 16, 64, 200];
        for (m, (n, k)) in few.into_iter().flat_map(|m| [(64, 512), (96, 33), (1024, 1024), (33, 7)].map(|s| (m, s))) {
            let (x, w) = (leaf(a, &[m, k])?, leaf(a, &[k, n])?);
            let of = format!("{m}x{n}x{k}_{a}");
            out.add(format!("product_columns_{of}"), x.matmul(&w)?)?;
            out.add(format!("product_biased_{of}"), x.matmul(&w)?.add(&leaf(a, &[n])?)?.relu()?)?;
            out.add(format!("product_turned_{of}"), leaf(a, &[k, m])?.t()?.matmul(&w)?)?;
            out.add(format!("product_fused_{of}"), x.mul(2.0)?.matmul(&w.t()?.contiguous()?.t()?)?)?;
            out.add(format!("product_batch_{of}"), leaf(a, &[3, m, k])?.matmul(&leaf(a, &[3, k, n])?)?)?;
            out.add(format!("product_batch_rows_{of}"), leaf(a, &[3, m, k])?.matmul(&leaf(a, &[3, n, k])?.transpose(1, 2)?)?)?;
            let unaligned = leaf(a, &[m * (k + 3) + 5])?.narrow(0, 5, m * (k + 3))?.reshape(&[m, k + 3])?;
            out.add(format!("product_loose_{of}"), unaligned.narrow(1, 1, k)?.matmul(&w)?)?;
            let heads = leaf(a, &[m, 4, k])?.transpose(0, 1)?;
            out.add(format!("product_heads_{of}"), heads.matmul(&leaf(a, &[4, n, k])?.transpose(1, 2)?)?)?;
            let folded = leaf(a, &[2, 4, m, 16])?.transpose(1, 2)?.reshape(&[2 * m, 64])?;
            out.add(format!("product_folded_{of}"), folded.matmul(&leaf(a, &[n, 64])?.t()?)?)?;
            out.add(format!("product_folded_turned_{of}"), folded.t()?.matmul(&leaf(a, &[2 * m, n])?)?)?;
        }
    }
    for d in [I32, U32] {
        out.add(format!("product_{d}"), leaf(d, &[9, 33])?.matmul(&leaf(d, &[33, 20])?)?)?;
    }
    Ok(())
}

/// Several products of one left side in a dispatch, with the normalization before them.
fn fused_products(out: &mut Variants<'_>) -> TensorResult<()> {
    let norm = |rms, weight, bias| Some(Normalization { rms, eps: 1e-5, weight, bias });
    let norms = [None, norm(true, true, false), norm(false, true, true), norm(true, false, false), norm(false, false, false)];
    for a in [F32, F16] {
        for w in weights() {
            for (m, n, k) in [(1, 256, 512), (4, 1024, 1024), (1, 8192, 2048), (1, 65, 512)] {
                let x = leaf(a, &[1, m, k])?;
                let rows = [leaf(F32, &[k])?, leaf(F32, &[k])?];
                let right = (0..4).map(|_| leaf(w, &[1, n, k])).collect::<TensorResult<Vec<_>>>()?;
                for (i, norm) in norms.into_iter().enumerate() {
                    // Weights in blocks differ from each other in how they are read, whatever the normalization.
                    if w.is_block() && (i > 2 || n == 65) {
                        continue;
                    }
                    for (count, gated, vec4_store) in
                        [(1, false, false), (2, false, false), (2, true, false), (2, true, true), (3, false, false), (4, false, true)]
                    {
                        let mut inputs = vec![&x];
                        inputs.extend(&right[..count]);
                        inputs.extend(&rows[..norm.map_or(0, |n| n.weight as usize + n.bias as usize)]);
                        let shape: &[usize] = &[1, m, n];
                        let outputs = vec![(a, shape); count];
                        let kernel = FusedGemvKernel(FusedGemv { products: count, gated, vec4_store, norm, kind: w, experts: false });
                        let name = format!(
                            "joined_{count}{}{}_{m}x{n}x{k}_{a}_{w}_{i}",
                            if gated { "p" } else { "" },
                            if vec4_store { "f" } else { "" }
                        );
                        out.kernel(name, "products", kernel, &inputs, &[], &outputs)?;
                    }
                }
            }
        }
    }
    Ok(())
}

/// Attention of few and of many queries.
fn attention(out: &mut Variants<'_>) -> TensorResult<()> {
    for d in [F32, F16, BF16] {
        for (t, s) in [(1, 40), (1, 4096), (2, 300), (4, 4096), (8, 128), (31, 31), (32, 32), (64, 200), (300, 300)] {
            for head in [8, 16, 33, 64, 80, 96, 128, 256] {
                for (h, kv) in [(4, 2), (8, 8), (8, 1)] {
                    for (n, (causal, window, mask)) in [(true, 0, false), (true, 21, false), (false, 0, true)].into_iter().enumerate() {
                        if n > 0 && (h != 4 || ![33, 64, 128].contains(&head)) {
                            continue;
                        }
                        let (q, k) = (leaf(d, &[1, h, t, head])?, leaf(d, &[1, kv, s, head])?);
                        let m = leaf(d, &[t, s])?;
                        let options = AttentionOptions {
                            causal,
                            window: Some(window).filter(|w| *w > 0),
                            kv_len: Some((s - 1).max(t)),
                            ..Default::default()
                        };
                        let y = q.attention(&k, &k, mask.then_some(&m), &options)?;
                        out.add(format!("attention_{h}:{kv}x{t}x{s}x{head}_{d}_{n}"), y)?;
                        let of = AttentionKernel {
                            causal,
                            scale: 0.125,
                            window: window as u32,
                            mask,
                            sums: true,
                            dropout: 0.0,
                            softcap: 0.0,
                            paged: false,
                        };
                        let m = leaf(d, &[1, h, t, s])?;
                        let inputs = [Some(&q), Some(&k), Some(&k), mask.then_some(&m)].into_iter().flatten().collect::<Vec<_>>();
                        let outputs: [(DType, &[usize]); 2] = [(d, &[1, h, t, head]), (F32, &[1, h, t])];
                        let name = format!("attention_sums_{h}:{kv}x{t}x{s}x{head}_{d}_{n}");
                        out.kernel(name, "attention", of, &inputs, &[s as f64], &outputs)?;
                    }
                }
            }
        }
        // Many small workgroups, and values that are not as wide as keys.
        let many = leaf(d, &[64, 8, 64, 32])?;
        out.add(format!("attention_many_{d}"), many.attention(&many, &many, None, &AttentionOptions::default())?)?;
        for (t, k, v) in [(1, 64, 32), (64, 32, 64), (64, 192, 128)] {
            let (q, k, v) = (leaf(d, &[1, 4, t, k])?, leaf(d, &[1, 4, 100, k])?, leaf(d, &[1, 4, 100, v])?);
            let y = q.attention(&k, &v, None, &AttentionOptions::default())?;
            out.add(format!("attention_uneven_{t}x{}x{}_{d}", q.dims()[3], v.dims()[3]), y)?;
        }
    }
    Ok(())
}

/// Gradients of attention.
fn attention_gradients(out: &mut Variants<'_>) -> TensorResult<()> {
    for d in [F32, F16, BF16] {
        for (t, head) in [(40, 16), (40, 33), (64, 64), (300, 80), (64, 96), (64, 128), (40, 256)] {
            for (b, h, kv) in [(1, 4, 2), (48, 8, 8)] {
                for (n, (causal, window)) in [(true, 0), (true, 21), (false, 0)].into_iter().enumerate() {
                    if b > 1 && head > 64 {
                        continue;
                    }
                    let (q, k) = (leaf(d, &[b, h, t, head])?, leaf(d, &[b, kv, t, head])?);
                    let (g, sums) = (leaf(d, &[b, h, t, head])?, leaf(F32, &[b, h, t])?);
                    let of =
                        AttentionKernel { causal, scale: 0.125, window, mask: false, sums: true, dropout: 0.0, softcap: 0.0, paged: false };
                    let inputs = [&q, &k, &k, &g, &sums, &sums];
                    let name = |part: &str| format!("attention_grad_{part}_{b}x{h}:{kv}x{t}x{head}_{d}_{n}");
                    let queries = AttentionGradKernel { of: of.clone(), part: Part::Queries };
                    out.kernel(name("q"), "attention_grad_q", queries, &inputs, &[t as f64], &[(d, q.dims())])?;
                    let keys = AttentionGradKernel { of, part: Part::Keys };
                    out.kernel(name("kv"), "attention_grad_kv", keys, &inputs, &[t as f64], &[(d, k.dims()), (d, k.dims())])?;
                }
            }
        }
    }
    Ok(())
}

/// Programs without a kernel: casts between all types, large ones, views.
fn elementwise(out: &mut Variants<'_>) -> TensorResult<()> {
    let types = [F32, F16, BF16, I32, U32, I8, U8, Bool];
    for from in types {
        for to in types.into_iter().filter(|to| *to != from) {
            out.add(format!("convert_{from}_{to}"), leaf(from, &[7, 36])?.cast(to)?)?;
        }
        for n in [1, 5, 1 << 20, 1 << 22] {
            let x = leaf(from, &[n])?;
            out.add(format!("chosen_{n}_{from}"), x.eq(&x)?.where_(&x, &leaf(from, &[1])?)?)?;
            out.add(format!("cat_{n}_{from}"), Tensor::cat(&[&x, &x], 0)?)?;
        }
        let x = leaf(from, &[6, 33, 70])?;
        out.add(format!("transposed_{from}"), x.transpose(1, 2)?.contiguous()?)?;
        out.add(format!("transposed_first_{from}"), x.transpose(0, 2)?.contiguous()?)?;
        out.add(format!("stepped_{from}"), x.slice(2, 1, 69, 3)?.contiguous()?)?;
        out.add(format!("broadcast_{from}"), leaf(from, &[33, 1])?.eq(&x)?)?;
        out.add(format!("wide_{from}"), leaf(from, &[128, 256])?.t()?.contiguous()?)?;
    }
    for d in [F32, F16, BF16] {
        let (x, y) = (leaf(d, &[40, 36])?, leaf(d, &[40, 36])?);
        for (name, t) in
            [("add", x.add(&y)), ("sub", x.sub(&y)), ("mul", x.mul(&y)), ("div", x.div(&y)), ("pow", x.pow(&y)), ("min", x.minimum(&y))]
        {
            out.add(format!("binary_{name}_{d}"), t?)?;
        }
        for (name, t) in [("lt", x.lt(&y)), ("le", x.le(&y)), ("gt", x.gt(&y)), ("ge", x.ge(&y)), ("ne", x.ne(&y)), ("eq", x.eq(&y))] {
            out.add(format!("binary_{name}_{d}"), t?)?;
        }
        for (name, t) in [("floor", x.floor()), ("ceil", x.ceil()), ("trunc", x.trunc()), ("relu", x.relu()), ("softplus", x.softplus())] {
            out.add(format!("unary_{name}_{d}"), t?)?;
        }
        out.add(format!("uniform_{d}"), tensorlogic::Rng::new(1).uniform(&[100], d, &Device::cpu())?)?;
    }
    Ok(())
}
