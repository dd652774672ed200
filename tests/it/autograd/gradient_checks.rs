//! The gradient of every differentiable operation, through every layout: f64 against finite differences, then f32 on every device against f64.

use super::gradient_checks_support::{check, indices};
use tensorlogic::nn::{AvgPool2d, Conv1d, Conv2d, MaxPool2d, Module};
use tensorlogic::ops::attention::AttentionOptions;
use tensorlogic::ops::convolution::{ConvOptions, Divisor, WindowOptions};
use tensorlogic::ops::custom::CustomOp;
use tensorlogic::ops::index_add::Combine;
use tensorlogic::ops::loss::{NllOptions, Reduction};
use tensorlogic::ops::pad::PadMode;
use tensorlogic::ops::rope::RopePairs;
use tensorlogic::ops::{Activation, Interpolation, Resize};
use tensorlogic::quant::Affine;
use tensorlogic::{DType, Rng, Tensor};

macro_rules! unary {
    ($($name:ident in $range:expr),* $(,)?) => { $(check(stringify!($name), &[&[3, 5]], $range, |x| x[0].$name());)* };
}

/// Either side of a kink at zero, but not near it.
fn sides(x: &Tensor) -> tensorlogic::TensorResult<Tensor> {
    let n = x.numel();
    let sign: Vec<f32> = (0..n).map(|i| if i % 3 == 1 { -1.0 } else { 1.0 }).collect();
    x.mul(&Tensor::from_vec(sign, x.dims(), x.device())?.cast(x.dtype())?)
}

#[test]
fn elementwise() {
    unary!(
        neg in (-2.0, 2.0), abs in (0.1, 2.0), sqrt in (0.2, 3.0), rsqrt in (0.3, 3.0), reciprocal in (0.3, 3.0), exp in (-2.0, 2.0),
        exp2 in (-2.0, 2.0), expm1 in (-2.0, 2.0), log in (0.2, 3.0), log2 in (0.2, 3.0), log10 in (0.2, 3.0), log1p in (-0.5, 3.0),
        sin in (-3.0, 3.0), cos in (-3.0, 3.0), tan in (-1.0, 1.0), asin in (-0.8, 0.8), acos in (-0.8, 0.8), atan in (-3.0, 3.0),
        sinh in (-2.0, 2.0), cosh in (-2.0, 2.0), tanh in (-2.0, 2.0), asinh in (-2.0, 2.0), acosh in (1.3, 3.0), atanh in (-0.7, 0.7),
        erf in (-2.0, 2.0), erfc in (-2.0, 2.0), square in (-2.0, 2.0), frac in (0.1, 0.9), contiguous in (-2.0, 2.0),
        sign in (0.1, 2.0), floor in (0.1, 0.9), ceil in (0.1, 0.9), round in (0.6, 1.4), trunc in (0.1, 0.9),
    );
    check("clamp", &[&[9]], (-2.0, 2.0), |x| x[0].clamp(Some(-5.0), Some(5.0))?.mul(&x[0].clamp(Some(2.5), None)?));
    check("clamp_tensors", &[&[9], &[9], &[9]], (0.5, 2.0), |x| x[0].mul(2.0)?.clamp_tensors(Some(&x[1]), Some(&x[1].add(&x[2])?)));
    check("cast", &[&[7]], (0.3, 2.0), |x| x[0].mul(&x[0].cast(DType::F64).unwrap_or_else(|_| x[0].clone()))?.cast(x[0].dtype()));
    check("nan_to_num", &[&[7]], (0.3, 2.0), |x| x[0].nan_to_num(1.0, None, None));
    check("to_device", &[&[7]], (0.3, 2.0), |x| x[0].to_device(x[0].device())?.exp());
}

#[test]
fn activations() {
    unary!(
        sigmoid in (-3.0, 3.0), gelu in (-3.0, 3.0), gelu_tanh in (-3.0, 3.0), silu in (-3.0, 3.0), hardsigmoid in (-2.5, 2.5),
        hardswish in (-2.5, 2.5),
    );
    // With a kink at zero.
    macro_rules! kinked {
        ($($name:ident),*) => { $(check(stringify!($name), &[&[3, 5]], (0.1, 2.0), |x| sides(&x[0])?.$name());)* };
    }
    kinked!(relu, relu6, selu, softplus, mish, softsign, log_sigmoid);
    check("softplus_with", &[&[3, 5]], (0.1, 2.0), |x| sides(&x[0])?.softplus_with(3.0, 0.2));
    check("softplus_with of a small factor", &[&[3, 5]], (0.1, 2.0), |x| sides(&x[0])?.softplus_with(0.5, 20.0));
    let s: [&[usize]; 1] = [&[3, 5]];
    check("elu", &s, (0.1, 2.0), |x| sides(&x[0])?.elu(1.3));
    check("celu", &s, (0.1, 2.0), |x| sides(&x[0])?.celu(1.3));
    check("leaky_relu", &s, (0.1, 2.0), |x| sides(&x[0])?.leaky_relu(0.2));
    check("prelu", &[&[3, 5], &[5]], (0.1, 2.0), |x| sides(&x[0])?.prelu(&x[1]));
    check("hardtanh", &s, (0.1, 0.9), |x| sides(&x[0])?.mul(2.0)?.hardtanh(-3.0, 0.1));
    check("hardshrink", &s, (0.6, 2.0), |x| sides(&x[0])?.hardshrink(0.5));
    check("softshrink", &s, (0.6, 2.0), |x| sides(&x[0])?.softshrink(0.5));
    check("threshold", &s, (0.1, 2.0), |x| sides(&x[0])?.threshold(0.05, 7.0));
    check("glu", &[&[3, 6]], (-2.0, 2.0), |x| x[0].glu(-1));
    check("matmul_with_activation", &[&[3, 4], &[4, 5]], (-1.0, 1.0), |x| x[0].matmul_with_activation(&x[1], Activation::GeluTanh));
    check("fused_add_relu", &[&[3, 5], &[5]], (0.1, 1.0), |x| x[0].fused_add_relu(&x[1]));
    check("fused_mul_relu", &[&[3, 5], &[5]], (0.1, 1.0), |x| x[0].fused_mul_relu(&x[1]));
    check("fused_affine", &[&[3, 5], &[5], &[5]], (-1.0, 1.0), |x| x[0].fused_affine(&x[1], &x[2]));
    // A user's own operation: its definition is differentiated.
    static CUBE: CustomOp = CustomOp::elementwise("cube")
        .wgsl("fn cube(x: f32, y: f32) -> f32 { return x * x * x * y; }")
        .cpu(|x, _, out| out.iter_mut().zip(x[0]).zip(x[1]).for_each(|((o, x), y)| *o = x * x * x * y))
        .define(|x, _| x[0].mul(&x[0])?.mul(&x[0])?.mul(&x[1]));
    check("apply", &[&[3, 5], &[3, 5]], (-1.0, 1.0), |x| match x[0].dtype() {
        DType::F64 => x[0].mul(&x[0])?.mul(&x[0])?.mul(&x[1]),
        _ => CUBE.apply(&[&x[0], &x[1]], &[]),
    });
}

#[test]
fn two_operands_broadcast() {
    let shapes: [&[usize]; 2] = [&[3, 1, 4], &[2, 4]];
    let same: [&[usize]; 2] = [&[5], &[5]];
    check("add", &shapes, (-2.0, 2.0), |x| x[0].add(&x[1]));
    check("sub", &shapes, (-2.0, 2.0), |x| x[0].sub(&x[1]));
    check("mul", &shapes, (-2.0, 2.0), |x| x[0].mul(&x[1]));
    check("div", &shapes, (0.5, 2.0), |x| x[0].div(&x[1]));
    check("div_trunc", &same, (1.2, 1.9), |x| x[0].mul(4.0)?.div_trunc(&x[1].add(8.0)?));
    check("div_floor", &same, (1.2, 1.9), |x| x[0].div_floor(&x[1].add(2.0)?));
    check("pow", &shapes, (0.5, 2.0), |x| x[0].pow(&x[1]));
    check("pow with a number", &[&[7]], (0.3, 2.0), |x| x[0].pow(2.5)?.add(&x[0].pow(2)?)?.add(&x[0].pow(-1.0)?));
    check("fmod", &same, (1.2, 1.9), |x| x[0].mul(3.0)?.fmod(&x[1].add(1.6)?.mul(4.0)?));
    check("remainder", &same, (1.2, 1.9), |x| x[0].add(5.0)?.remainder(&x[1].mul(0.1)?.add(3.9)?));
    check("maximum", &shapes, (-2.0, 2.0), |x| x[0].maximum(&x[1]));
    check("minimum", &shapes, (-2.0, 2.0), |x| x[0].minimum(&x[1]));
    check("fmax", &shapes, (-2.0, 2.0), |x| x[0].fmax(&x[1]));
    check("fmin", &shapes, (-2.0, 2.0), |x| x[0].fmin(&x[1]));
    check("atan2", &shapes, (0.5, 2.0), |x| x[0].atan2(&x[1]));
    // No two elements of a row near each other.
    let apart = |x: &Tensor| x.add(&Tensor::new(&[0.0, 6.0, 2.0, 10.0, 4.0], x.device())?.cast(x.dtype())?);
    check("cummax", &[&[3, 5]], (0.1, 0.9), |x| Ok(apart(&x[0])?.cummax(1)?.0));
    check("cummin", &[&[3, 5]], (0.1, 0.9), |x| Ok(apart(&x[0])?.neg()?.cummin(-1)?.0));
    check("masked_select", &[&[3, 5]], (0.5, 2.0), |x| x[0].masked_select(&x[0].gt(1.0)?));
    check("interpolate, linear", &[&[1, 2, 5]], (-2.0, 2.0), |x| x[0].interpolate(Resize::To(&[7]), Interpolation::Linear, true));
    check("interpolate, cubic", &[&[1, 1, 3, 4]], (-2.0, 2.0), |x| x[0].interpolate(Resize::By(&[1.5, 2.0]), Interpolation::Cubic, false));
    check("interpolate, nearest", &[&[1, 2, 5]], (-2.0, 2.0), |x| x[0].interpolate(Resize::To(&[3]), Interpolation::Nearest, false));
    check("copysign", &shapes, (0.5, 2.0), |x| x[0].copysign(&x[1].neg()?));
    check("where_", &shapes, (-2.0, 2.0), |x| x[0].gt(&x[1])?.where_(&x[0].mul(2.0)?, &x[1].mul(2.0)?));
    check("masked_fill", &shapes, (-2.0, 2.0), |x| x[0].add(&x[1])?.masked_fill(&x[0].gt(0.0)?, 3.0));
    check("mul of the same tensor twice", &[&[4]], (0.5, 2.0), |x| x[0].mul(&x[0])?.div(&x[0].add(1.0)?)?.add(&x[0]));
    check("hypot", &shapes, (0.5, 2.0), |x| x[0].hypot(&x[1]));
    check("logaddexp", &shapes, (0.5, 2.0), |x| x[0].logaddexp(&x[1]));
    check("xlogy", &shapes, (0.5, 2.0), |x| x[0].xlogy(&x[1]));
    check("lerp", &shapes, (0.5, 2.0), |x| x[0].lerp(&x[1], 0.3));
    check("lerp by a tensor", &[&[5], &[5], &[5]], (0.6, 0.9), |x| x[0].lerp(&x[1], &x[2]));
    check("addcmul", &[&[3], &[3], &[3]], (0.5, 2.0), |x| x[0].addcmul(&x[1], &x[2], 0.7));
    check("addcdiv", &[&[3], &[3], &[3]], (0.5, 2.0), |x| x[0].addcdiv(&x[1], &x[2], 0.7));
}

#[test]
fn views() {
    let s: [&[usize]; 1] = [&[4, 6]];
    check("t", &s, (-2.0, 2.0), |x| x[0].t());
    check("transpose", &s, (-2.0, 2.0), |x| x[0].transpose(0, 1)?.exp());
    check("permute", &[&[2, 3, 4]], (-2.0, 2.0), |x| x[0].permute(&[2, 0, 1]));
    check("movedim", &[&[2, 3, 4]], (-2.0, 2.0), |x| x[0].movedim(0, -1)?.exp());
    check("unflatten", &[&[2, 6]], (-2.0, 2.0), |x| x[0].unflatten(1, (2, ()))?.exp());
    check("i", &s, (-2.0, 2.0), |x| x[0].i((.., 1..3))?.exp());
    check("meshgrid", &[&[2], &[3]], (-2.0, 2.0), |x| {
        let grid = Tensor::meshgrid(x)?;
        grid[0].mul(&grid[1])
    });
    check("reshape", &s, (-2.0, 2.0), |x| x[0].reshape(&[3, -1]));
    check("reshape of a transpose", &s, (-2.0, 2.0), |x| x[0].t()?.reshape(&[8, 3])?.exp());
    check("flatten", &[&[2, 3, 4]], (-2.0, 2.0), |x| x[0].flatten(1, -1));
    check("squeeze", &[&[2, 1, 4]], (-2.0, 2.0), |x| x[0].squeeze(1)?.exp());
    check("squeeze_all", &[&[1, 2, 1, 4]], (-2.0, 2.0), |x| x[0].squeeze_all());
    check("unsqueeze", &s, (-2.0, 2.0), |x| x[0].unsqueeze(1)?.exp());
    check("narrow", &s, (-2.0, 2.0), |x| x[0].narrow(1, 2, 3));
    check("slice", &s, (-2.0, 2.0), |x| x[0].slice(1, 1, 6, 2));
    check("select", &s, (-2.0, 2.0), |x| x[0].select(0, 2));
    check("flip", &s, (-2.0, 2.0), |x| x[0].flip(1)?.narrow(1, 1, 3));
    check("expand", &[&[1, 3]], (-2.0, 2.0), |x| x[0].expand(&[2, 4, 3]));
    check("broadcast_to", &[&[2, 1]], (-2.0, 2.0), |x| x[0].broadcast_to(&[3, 2, 4])?.exp());
    check("unfold", &[&[2, 9]], (-2.0, 2.0), |x| x[0].unfold(1, 4, 2));
    check("unfold with gaps", &[&[2, 9]], (-2.0, 2.0), |x| x[0].unfold(1, 2, 3)?.exp());
    check("split", &s, (-2.0, 2.0), |x| {
        let p = x[0].split(0)?;
        p[0].mul(&p[2])?.add(&p[1])
    });
    check("split_with_sizes", &s, (-2.0, 2.0), |x| {
        let p = x[0].split_with_sizes(&[1, 2, 3], 1)?;
        p[0].mul(&p[2])?.add(&p[1].sum(&[1], true)?)
    });
    check("chunk", &s, (-2.0, 2.0), |x| {
        let p = x[0].chunk(3, 1)?;
        p[0].mul(&p[2])
    });
    check("split_with_sizes into heads", &[&[2, 3, 12]], (-2.0, 2.0), |x| {
        let p = x[0].split_with_sizes(&[4, 4, 4], -1)?;
        let head = |t: &Tensor| t.reshape(&[2, 3, 2, 2])?.transpose(1, 2);
        head(&p[0])?.mul(&head(&p[1])?)?.add(&head(&p[2])?)
    });
    check("cat", &[&[2, 3], &[2, 2]], (-2.0, 2.0), |x| Tensor::cat(&[&x[0], &x[1], &x[0].exp()?], 1));
    check("stack", &[&[2, 3], &[2, 3]], (-2.0, 2.0), |x| Tensor::stack(&[&x[0], &x[1]], 1));
    check("unstack", &[&[3, 2]], (-2.0, 2.0), |x| {
        let p = x[0].unstack(0)?;
        p[0].mul(&p[2])
    });
    check("pad", &s, (-2.0, 2.0), |x| x[0].pad(&[(1, 0), (2, 1)], PadMode::Constant(1.0)));
    check("pad that cuts", &s, (-2.0, 2.0), |x| x[0].pad(&[(-1, 0), (2, -1)], PadMode::Constant(1.0)));
    check("pad by reflection", &s, (-2.0, 2.0), |x| x[0].pad(&[(1, 0), (2, 1)], PadMode::Reflect));
    check("pad by the edge", &s, (-2.0, 2.0), |x| x[0].pad(&[(1, 0), (2, 1)], PadMode::Replicate));
    check("pad around", &s, (-2.0, 2.0), |x| x[0].pad(&[(1, 0), (2, 1)], PadMode::Circular));
    check("roll", &s, (-2.0, 2.0), |x| x[0].roll(2, 1));
    check("tile", &s, (-2.0, 2.0), |x| x[0].tile(&[2, 1]));
    check("repeat_interleave", &s, (-2.0, 2.0), |x| x[0].repeat_interleave(3, 1)?.exp());
    check("write", &[&[4, 3], &[2, 3]], (-2.0, 2.0), |x| x[0].exp()?.write(&x[1].exp()?, 0, 1));
    check("write twice", &[&[4, 3], &[2, 3]], (-2.0, 2.0), |x| x[0].exp()?.write(&x[1], 0, 1)?.write(&x[1].exp()?, 0, 2));
    check("tril", &[&[2, 4, 3]], (-2.0, 2.0), |x| x[0].tril(0));
    check("triu", &[&[4, 5]], (-2.0, 2.0), |x| x[0].triu(1));
}

#[test]
fn reductions() {
    let s: [&[usize]; 1] = [&[3, 4, 2]];
    check("sum", &s, (-2.0, 2.0), |x| x[0].sum(&[1], false));
    check("mean", &s, (-2.0, 2.0), |x| x[0].mean(&[0, 2], true));
    check("max", &s, (-2.0, 2.0), |x| x[0].max(&[1], false));
    check("min", &s, (-2.0, 2.0), |x| x[0].min(&[-1], true));
    check("prod", &s, (0.5, 2.0), |x| x[0].prod(&[1], false));
    check("sum_all", &s, (-2.0, 2.0), |x| x[0].exp()?.sum_all());
    check("mean_all", &s, (-2.0, 2.0), |x| x[0].exp()?.mean_all());
    check("max_all", &s, (-2.0, 2.0), |x| x[0].exp()?.max_all());
    check("min_all", &s, (-2.0, 2.0), |x| x[0].exp()?.min_all());
    check("prod_all", &s, (0.7, 1.3), |x| x[0].prod_all());
    check("var", &s, (-2.0, 2.0), |x| x[0].var(&[1], 1, false));
    check("std", &s, (-2.0, 2.0), |x| x[0].std(&[1], 0, false));
    check("logsumexp", &s, (-2.0, 2.0), |x| x[0].logsumexp(&[1], false));
    for p in [1.0, 2.0, 3.0, f64::INFINITY, f64::NEG_INFINITY] {
        check("norm", &s, (0.5, 2.0), |x| x[0].norm(p, &[1], false));
    }
    check("normalize", &s, (0.5, 2.0), |x| x[0].normalize(2.0, 1, 1e-12));
    check("cosine_similarity", &[&[3, 4], &[3, 4]], (0.5, 2.0), |x| x[0].cosine_similarity(&x[1], 1, 1e-8));
    for d in [0, 1, -1] {
        check("softmax", &s, (-2.0, 2.0), |x| x[0].softmax(d));
        check("log_softmax", &s, (-2.0, 2.0), |x| x[0].log_softmax(d));
    }
    check("softmax of long rows", &[&[2, 70]], (-2.0, 2.0), |x| x[0].softmax(-1));
}

#[test]
fn products() {
    check("matmul", &[&[3, 4], &[4, 5]], (-2.0, 2.0), |x| x[0].matmul(&x[1]));
    check("bmm", &[&[2, 3, 4], &[2, 4, 5]], (-2.0, 2.0), |x| x[0].bmm(&x[1]));
    check("matmul of a batch", &[&[2, 3, 4], &[4, 5]], (-2.0, 2.0), |x| x[0].matmul(&x[1]));
    check("matmul broadcast", &[&[2, 1, 3, 4], &[3, 4, 2]], (-2.0, 2.0), |x| x[0].matmul(&x[1]));
    check("matmul of vectors", &[&[4], &[4, 3]], (-2.0, 2.0), |x| x[0].matmul(&x[1]));
    check("linear", &[&[3, 4], &[5, 4], &[5]], (-2.0, 2.0), |x| x[0].linear(&x[1], Some(&x[2]))?.gelu());
    check("matmul_quantized", &[&[3, 8]], (-2.0, 2.0), |x| {
        let w = Rng::new(3).normal(&[5, 8], DType::F32, x[0].device())?.quantize(&Affine::int8().block(4))?;
        x[0].matmul_quantized(&w)
    });
    check("dot", &[&[5], &[5]], (-2.0, 2.0), |x| x[0].dot(&x[1]));
    check("outer", &[&[5], &[3]], (-2.0, 2.0), |x| x[0].outer(&x[1]));
    check("addmm", &[&[3, 2], &[3, 4], &[4, 2]], (-2.0, 2.0), |x| x[0].addmm(&x[1], &x[2], 0.5, 1.5));
}

#[test]
fn norms_and_rope() {
    check("layer_norm", &[&[3, 8], &[8], &[8]], (-2.0, 2.0), |x| x[0].layer_norm(Some(&x[1]), Some(&x[2]), 1e-5));
    check("layer_norm without a bias", &[&[5, 7], &[7]], (-2.0, 2.0), |x| x[0].layer_norm(Some(&x[1]), None, 1e-5));
    check("layer_norm with a bias only", &[&[5, 7], &[7]], (-2.0, 2.0), |x| x[0].layer_norm(None, Some(&x[1]), 1e-5));
    check("layer_norm without weight", &[&[2, 3, 8]], (-2.0, 2.0), |x| x[0].layer_norm(None, None, 1e-5));
    check("rms_norm", &[&[3, 8], &[8]], (-2.0, 2.0), |x| x[0].rms_norm(Some(&x[1]), 1e-6));
    check("rms_norm without weight", &[&[2, 3, 7]], (0.2, 2.0), |x| x[0].rms_norm(None, 1e-6));
    check("rms_norm of many rows", &[&[70, 9], &[9]], (-2.0, 2.0), |x| x[0].rms_norm(Some(&x[1]), 1e-5));
    check("layer_norm of many rows", &[&[70, 9], &[9], &[9]], (-2.0, 2.0), |x| x[0].layer_norm(Some(&x[1]), Some(&x[2]), 1e-5));
    check("batch_norm", &[&[4, 3, 2], &[3], &[3]], (0.5, 2.0), |x| x[0].batch_norm(None, Some(&x[1]), Some(&x[2]), 1e-5));
    check("batch_norm with statistics", &[&[4, 3], &[3], &[3]], (0.5, 2.0), |x| x[0].batch_norm(Some((&x[1], &x[2])), None, None, 1e-5));
    check("group_norm", &[&[2, 4, 3], &[4], &[4]], (-2.0, 2.0), |x| x[0].group_norm(2, Some(&x[1]), Some(&x[2]), 1e-5));
    for pairs in [RopePairs::Adjacent, RopePairs::Halves] {
        check("rope", &[&[3, 6], &[3, 6], &[3, 6]], (-1.0, 1.0), |x| x[0].rope(&x[1], &x[2], pairs));
    }
}

#[test]
fn attention() {
    let attend = |o: AttentionOptions| move |x: &[Tensor]| x[0].attention(&x[1], &x[2], x.get(3), &o);
    let qkv: [&[usize]; 3] = [&[2, 2, 3, 4], &[2, 2, 3, 4], &[2, 2, 3, 5]];
    check("attention", &qkv, (-1.0, 1.0), attend(AttentionOptions { causal: false, ..Default::default() }));
    check("attention, causal", &qkv, (-1.0, 1.0), attend(AttentionOptions::default()));
    let grouped: [&[usize]; 3] = [&[1, 4, 3, 4], &[1, 2, 6, 4], &[1, 2, 6, 4]];
    check("attention, grouped", &grouped, (-1.0, 1.0), attend(AttentionOptions { kv_len: Some(5), window: Some(3), ..Default::default() }));
    let masked: [&[usize]; 4] = [&[1, 2, 3, 4], &[1, 2, 4, 4], &[1, 2, 4, 4], &[2, 1, 4]];
    check("attention, masked", &masked, (-1.0, 1.0), attend(AttentionOptions { causal: false, scale: Some(0.7), ..Default::default() }));
    let softcap = Some(0.6);
    check("attention, capped", &grouped, (-1.0, 1.0), attend(AttentionOptions { kv_len: Some(5), softcap, ..Default::default() }));
    check("attention, capped and masked", &masked, (-1.0, 1.0), attend(AttentionOptions { causal: false, softcap, ..Default::default() }));
    // More queries than a block of either machine's kernels.
    let long: [&[usize]; 3] = [&[1, 2, 37, 8], &[1, 1, 37, 8], &[1, 1, 37, 8]];
    check("attention, causal, long", &long, (-1.0, 1.0), attend(AttentionOptions::default()));
    check("attention, long, in a window", &long, (-1.0, 1.0), attend(AttentionOptions { window: Some(5), ..Default::default() }));
    check("attention of parts of one tensor", &[&[2, 5, 24]], (-1.0, 1.0), |x| {
        let head = |n: usize| x[0].narrow(-1, 8 * n, 8)?.reshape(&[2, 5, 2, 4])?.transpose(1, 2);
        head(0)?.attention(&head(1)?, &head(2)?, None, &AttentionOptions::default())?.transpose(1, 2)?.reshape(&[2, 5, 8])
    });
}

#[test]
fn running() {
    check("cumsum", &[&[3, 5]], (-2.0, 2.0), |x| x[0].cumsum(1));
    check("cumsum of columns", &[&[5, 3]], (-2.0, 2.0), |x| x[0].cumsum(0));
    check("cumprod", &[&[3, 5]], (0.5, 2.0), |x| x[0].cumprod(-1));
    check("einsum", &[&[2, 3, 4], &[4, 5]], (-1.0, 1.0), |x| Tensor::einsum("bij,jk->bki", &[&x[0], &x[1]]));
    check("einsum of a diagonal", &[&[3, 3]], (-1.0, 1.0), |x| Tensor::einsum("ii->i", &[&x[0]]));
    check("einsum of three", &[&[2, 3], &[4, 3, 2], &[4, 2]], (-1.0, 1.0), |x| Tensor::einsum("bn,anb,ab->ba", &[&x[0], &x[1], &x[2]]));
    check("einsum with dots", &[&[2, 3, 4], &[4, 2]], (-1.0, 1.0), |x| Tensor::einsum("...ij,jk", &[&x[0], &x[1]]));
}

#[test]
fn experts() {
    // Rows for all of their experts, and rows of their own; an expert that none takes, and one that is taken twice.
    check("expert_matmul", &[&[3, 4], &[4, 5, 4]], (-2.0, 2.0), |x| {
        x[0].expert_matmul(&x[1], &indices(&[3, 0, 0, 1, 3, 0], &[3, 2], &x[0]))
    });
    check("expert_matmul of rows of their own", &[&[2, 3, 4], &[3, 2, 4]], (-2.0, 2.0), |x| {
        x[0].expert_matmul(&x[1], &indices(&[2, 0, 2, 0, 0, 2], &[2, 3], &x[0]))
    });
    // As a router has it: weights of the largest few.
    check("topk of scores", &[&[3, 6]], (-2.0, 2.0), |x| {
        let scores = x[0].softmax(-1)?;
        let (_, ids) = scores.detach().topk(2, -1, true)?;
        let chosen = scores.gather(-1, &ids)?;
        chosen.div(&chosen.sum(&[-1], true)?)
    });
}

#[test]
fn rows_by_index() {
    check("index_select", &[&[5, 3]], (-2.0, 2.0), |x| x[0].index_select(0, &indices(&[4, 1, 1, 0], &[4], &x[0])));
    check("index_select of columns", &[&[3, 5]], (-2.0, 2.0), |x| x[0].index_select(1, &indices(&[4, 1, 1, 0], &[4], &x[0])));
    check("gather", &[&[3, 5]], (-2.0, 2.0), |x| x[0].gather(1, &indices(&[4, 1, 0, 0, 2, 2], &[3, 2], &x[0])));
    check("embedding", &[&[7, 4]], (-2.0, 2.0), |x| x[0].embedding(&indices(&[6, 0, 6, 3, 3, 6], &[2, 3], &x[0])));
    check("embedding_with_padding", &[&[7, 4]], (-2.0, 2.0), |x| {
        // Finite differences see the row that the gradient leaves alone: no index names it.
        x[0].embedding_with_padding(&indices(&[6, 0, 6, 3, 3, 5], &[2, 3], &x[0]), -6)
    });
    check("index_copy", &[&[5, 3], &[3, 3]], (-2.0, 2.0), |x| x[0].index_copy(0, &indices(&[4, 1, 0], &[3], &x[0]), &x[1].exp()?));
    check("index_copy of columns", &[&[3, 5], &[3, 2]], (-2.0, 2.0), |x| x[0].index_copy(-1, &indices(&[4, 1], &[2], &x[0]), &x[1]));
    for how in [Combine::Set, Combine::Add, Combine::Mul, Combine::Min, Combine::Max] {
        // Where one replaces another, no two for one place: then only the last would have a gradient.
        let place: &[i32] = if how == Combine::Set { &[3, 1, 0, 2, 2, 4] } else { &[3, 1, 0, 3, 2, 0] };
        check("scatter", &[&[3, 5], &[3, 2]], (-2.0, 2.0), |x| x[0].scatter(1, &indices(place, &[3, 2], &x[0]), &x[1], how));
    }
    check("scatter_add", &[&[3, 5], &[3, 2]], (-2.0, 2.0), |x| {
        x[0].scatter_add(1, &indices(&[0, 4, 4, 2, 1, 1], &[3, 2], &x[0]), &x[1].exp()?)
    });
    check("scatter of products with zeros", &[&[4], &[6]], (0.5, 2.0), |x| {
        let zero = |t: &Tensor, at: &[i32]| {
            let n = t.numel() as i32;
            let holes: Vec<f32> = (0..n).map(|i| if at.contains(&i) { 0.0 } else { 1.0 }).collect();
            t.mul(&Tensor::from_vec(holes, t.dims(), t.device())?.cast(t.dtype())?)
        };
        zero(&x[0], &[1])?.scatter(0, &indices(&[0, 0, 1, 2, 2, 3], &[6], &x[0]), &zero(&x[1], &[0, 3, 4])?, Combine::Mul)
    });
    check("sort", &[&[3, 7]], (-2.0, 2.0), |x| Ok(x[0].sort(1, false)?.0));
    check("sort of columns", &[&[5, 2]], (-2.0, 2.0), |x| Ok(x[0].sort(0, true)?.0));
    check("topk", &[&[3, 7]], (-2.0, 2.0), |x| Ok(x[0].topk(2, -1, true)?.0));
    check("index_add", &[&[5, 3], &[4, 3]], (-2.0, 2.0), |x| x[0].index_add(0, &indices(&[4, 1, 1, 0], &[4], &x[0]), &x[1].exp()?));
}

#[test]
fn losses() {
    let s: [&[usize]; 2] = [&[4, 3], &[4, 3]];
    check("mse_loss", &s, (-2.0, 2.0), |x| x[0].mse_loss(&x[1], Reduction::Mean));
    check("l1_loss", &s, (0.1, 2.0), |x| x[0].l1_loss(&x[1].neg()?, Reduction::Sum));
    // Within the parabola and on the line, but not where they meet.
    check("huber_loss", &s, (0.1, 0.5), |x| {
        x[0].huber_loss(&x[1].mul(0.1)?, 0.7, Reduction::None)?.add(&x[0].add(2.0)?.huber_loss(&x[1], 0.7, Reduction::None)?)
    });
    check("smooth_l1_loss", &s, (0.1, 0.5), |x| {
        x[0].smooth_l1_loss(&x[1].mul(0.1)?, 0.7, Reduction::Mean)?.add(&x[0].add(2.0)?.smooth_l1_loss(&x[1], 0.7, Reduction::Sum)?)
    });
    check("binary_cross_entropy", &s, (0.1, 0.9), |x| x[0].binary_cross_entropy(&x[1], None, Reduction::Mean));
    check("binary_cross_entropy_with_logits", &s, (0.1, 0.9), |x| {
        x[0].binary_cross_entropy_with_logits(&x[1], None, None, Reduction::Mean)
    });
    check("kl_div", &s, (0.1, 0.9), |x| x[0].kl_div(&x[1], false, Reduction::Sum));
    for reduction in [Reduction::None, Reduction::Mean, Reduction::Sum] {
        let options = NllOptions { reduction, ..Default::default() };
        check("cross_entropy", &[&[4, 7]], (-2.0, 2.0), |x| x[0].cross_entropy(&indices(&[0, 6, -100, 3], &[4], &x[0]), &options));
        check("nll_loss", &[&[4, 7]], (-2.0, 2.0), |x| x[0].nll_loss(&indices(&[0, 6, -100, 3], &[4], &x[0]), &options));
    }
    check("cross_entropy of one row", &[&[9]], (-2.0, 2.0), |x| x[0].cross_entropy(&indices(&[4], &[], &x[0]), &NllOptions::default()));
    check("cross_entropy of positions", &[&[2, 5, 3]], (-2.0, 2.0), |x| {
        x[0].cross_entropy(&indices(&[0, 4, 2, 1, -100, 3], &[2, 3], &x[0]), &NllOptions::default())
    });
    check("cross_entropy_wide", &[&[4, 7]], (-2.0, 2.0), |x| {
        x[0].cross_entropy_wide(&indices(&[0, 6, 2, 3], &[4], &x[0]), &NllOptions::default())
    });
    check("cross_entropy of many classes", &[&[3, 75]], (-2.0, 2.0), |x| {
        x[0].cross_entropy(&indices(&[0, 74, 33], &[3], &x[0]), &NllOptions::default())
    });
    check("cross_entropy with weights", &[&[4, 3], &[3]], (0.5, 2.0), |x| {
        let options = NllOptions { weight: Some(&x[1]), ..Default::default() };
        x[0].cross_entropy(&indices(&[0, 2, -100, 1], &[4], &x[0]), &options)
    });
    for reduction in [Reduction::None, Reduction::Mean, Reduction::Sum, Reduction::BatchMean] {
        let smooth = NllOptions { reduction, label_smoothing: 0.3, ..Default::default() };
        check("cross_entropy with smoothing", &[&[4, 7]], (-2.0, 2.0), |x| {
            x[0].cross_entropy(&indices(&[0, 6, -100, 3], &[4], &x[0]), &smooth)
        });
        check("cross_entropy with smoothing and weights", &[&[4, 3], &[3]], (0.5, 2.0), |x| {
            x[0].cross_entropy(&indices(&[0, 2, -100, 1], &[4], &x[0]), &NllOptions { weight: Some(&x[1]), ..smooth })
        });
        check("cross_entropy of probabilities", &[&[2, 3, 4], &[2, 3, 4], &[3]], (0.1, 1.0), |x| {
            x[0].cross_entropy(&x[1], &NllOptions { weight: Some(&x[2]), ..smooth })
        });
        check("cross_entropy of probabilities of one row", &[&[5], &[5]], (0.1, 1.0), |x| x[0].cross_entropy(&x[1], &smooth));
        check("kl_div of logarithms", &s, (-2.0, -0.1), |x| x[0].kl_div(&x[1], true, reduction));
    }
}

#[test]
fn windows() {
    check("Conv1d", &[&[2, 3, 7]], (-1.0, 1.0), |x| Conv1d::new([3, 4], 3, 2, 1, true, &mut Rng::new(1), x[0].device())?.forward(&x[0]));
    check("Conv2d", &[&[2, 2, 5, 4]], (-1.0, 1.0), |x| Conv2d::new([2, 3], 3, 1, 1, true, &mut Rng::new(1), x[0].device())?.forward(&x[0]));
    check("MaxPool2d", &[&[2, 2, 5, 4]], (-1.0, 1.0), |x| MaxPool2d { kernel: 2, stride: 1 }.forward(&x[0]));
    let windows = |stride: &[usize], padding: &[(usize, usize)], dilation: &[usize]| WindowOptions {
        stride: stride.into(),
        padding: padding.into(),
        dilation: dilation.into(),
        ceil: false,
    };
    let conv = |w: WindowOptions, groups: usize| ConvOptions { windows: w, groups, output_padding: vec![] };
    check("conv", &[&[2, 4, 7], &[6, 2, 3], &[6]], (-1.0, 1.0), |x| {
        x[0].conv(&x[1], Some(&x[2]), &conv(windows(&[2], &[(1, 2)], &[2]), 2))
    });
    check("conv of planes", &[&[2, 2, 5, 4], &[3, 2, 3, 2]], (-1.0, 1.0), |x| {
        x[0].conv(&x[1], None, &conv(windows(&[2, 1], &[(1, 1), (0, 1)], &[1, 2]), 1))
    });
    check("conv_transpose", &[&[2, 4, 3], &[4, 3, 3], &[6]], (-1.0, 1.0), |x| {
        let options = ConvOptions { output_padding: vec![1], ..conv(windows(&[2], &[(1, 0)], &[1]), 2) };
        x[0].conv_transpose(&x[1], Some(&x[2]), &options)
    });
    check("max_pool", &[&[2, 2, 5, 4]], (-1.0, 1.0), |x| x[0].max_pool(&[2, 3], &windows(&[2, 1], &[(1, 0), (1, 1)], &[])));
    for divisor in [Divisor::WithMargins, Divisor::Elements, Divisor::Fixed(3.0)] {
        let ceil = WindowOptions { ceil: true, ..windows(&[2], &[(1, 1)], &[]) };
        check("avg_pool", &[&[2, 3, 6]], (-1.0, 1.0), |x| x[0].avg_pool(&[3], divisor, &ceil));
    }
    check("AvgPool2d", &[&[2, 2, 6, 4]], (-1.0, 1.0), |x| AvgPool2d { kernel: 2, stride: 2 }.forward(&x[0]));
}

/// What has no gradient: results that are not floats, or no tensor comes in. Those of Fourier transforms are checked in src/ops/fft/tests.rs.
const WITHOUT: [&str; 54] = [
    "all",
    "any",
    "arange",
    "argmax",
    "argmin",
    "argsort",
    "bits",
    "bitwise_and",
    "bitwise_left_shift",
    "bitwise_not",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "byte_entropy",
    "dequantize",
    "dequantize_weights",
    "eq",
    "eye",
    "fft",
    "full",
    "full_like",
    "ge",
    "gt",
    "ifft",
    "integers",
    "irfft",
    "isfinite",
    "isinf",
    "isnan",
    "le",
    "linspace",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "lt",
    "ne",
    "new",
    "nextafter",
    "nonzero",
    "normal",
    "one_hot",
    "ones",
    "ones_like",
    "rand",
    "randn",
    "rfft",
    "searchsorted",
    "signbit",
    "uniform",
    "values",
    "wrap_negative",
    "zeros",
    "zeros_like",
];

#[test]
fn every_operation_has_a_case() {
    let checked = super::gradient_checks_support::names(|| {
        [
            elementwise,
            activations,
            two_operands_broadcast,
            views,
            reductions,
            products,
            norms_and_rope,
            attention,
            running,
            experts,
            rows_by_index,
            losses,
            windows,
        ]
        .iter()
        .for_each(|f| f());
    });
    let mut missing: Vec<String> = super::gradient_checks_support::operations();
    assert!(missing.len() > 150, "only {} operations were found in src/ops", missing.len());
    missing.retain(|op| !checked.contains(op) && !WITHOUT.contains(&op.as_str()));
    assert!(missing.is_empty(), "no gradient case for {missing:?}");
}
