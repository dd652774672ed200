//! What fuses into what: dispatch counts written by hand from the rules of `compile/fuse.rs`, and plans of two spellings compared.

use tensorlogic::ops::attention::AttentionOptions;
use tensorlogic::ops::rope::RopePairs;
use tensorlogic::{DType, Device, Tensor, TensorResult};

fn leaf(shape: &[usize]) -> Tensor {
    Tensor::from_vec(vec![0.5f32; shape.iter().product()], shape, &Device::cpu()).unwrap()
}

/// Compares the number of dispatches of `f` with `expect`.
#[track_caller]
fn check(expect: usize, f: impl Fn() -> TensorResult<Tensor>) {
    let plan = f().unwrap().explain().unwrap();
    let got: usize = plan.lines().last().unwrap().split(' ').next().unwrap().parse().unwrap();
    assert_eq!(got, expect, "\n{plan}");
}

#[test]
fn elementwise_chains_are_one_dispatch() {
    let (a, b) = (leaf(&[4, 6]), leaf(&[6]));
    check(1, || a.add(&b)?.mul(2.0)?.relu()?.exp()?.sub(&a));
    check(1, || a.gelu_tanh());
    check(1, || a.t()?.add(&leaf(&[6, 4]))?.neg());
    check(1, || a.reshape(&[2, 12])?.add(1.0)?.reshape(&[24])?.mul(3.0));
}

#[test]
fn chains_go_into_kernels() {
    let (a, w, c) = (leaf(&[4, 6]), leaf(&[5, 6]), leaf(&[5]));
    check(1, || a.matmul(&w.t()?)?.add(&c)?.relu());
    check(1, || a.mul(2.0)?.sum(&[1], false)?.sqrt());
    check(1, || a.add(1.0)?.softmax(-1)?.mul(3.0));
    check(1, || a.rms_norm(Some(&leaf(&[6])), 1e-5)?.mul(&leaf(&[4, 6])));
    check(2, || a.matmul(&w.t()?)?.silu()?.mul(&a.matmul(&leaf(&[5, 6]).t()?)?));
    // A residual goes into the store of the product.
    check(2, || a.add(&a.matmul(&w.t()?)?.matmul(&leaf(&[5, 6]))?));
}

#[test]
fn common_subexpressions_run_once() {
    let (a, w) = (leaf(&[4, 6]), leaf(&[5, 6]));
    check(2, || a.matmul(&w.t()?)?.add(&a.matmul(&w.t()?)?.softmax(-1)?));
}

#[test]
fn windows_are_filled_by_whoever_computes() {
    let (a, w) = (leaf(&[4, 6]), leaf(&[6, 6]));
    // Both pieces are stored in place by the kernels.
    check(2, || Tensor::cat(&[&a.matmul(&w)?, &a.softmax(-1)?], 0));
    // A leaf has to be copied in.
    check(2, || Tensor::cat(&[&a.matmul(&w)?, &a], 1));
}

#[test]
fn spellings_give_one_plan() {
    let (a, w, c) = (leaf(&[4, 6]), leaf(&[5, 6]), leaf(&[5]));
    let x = a.matmul(&w.t().unwrap()).unwrap().add(&c).unwrap().relu().unwrap();
    let y =
        a.matmul(&w.permute(&[1, 0]).unwrap()).unwrap().add(&c.unsqueeze(0).unwrap()).unwrap().maximum(tensorlogic::ops::Lit(0.0)).unwrap();
    assert_eq!(x.explain().unwrap(), y.explain().unwrap());
}

#[test]
fn a_decoder_layer_takes_eleven_dispatches() {
    let (d, heads, kv, hd, ff, cap) = (16, 4, 2, 4, 20, 8);
    let x = leaf(&[1, 1, d]);
    let (cos, sin) = (leaf(&[1, hd]), leaf(&[1, hd]));
    let linear = |x: &Tensor, n: usize| x.matmul(&leaf(&[n, x.dims()[2]]).t()?);
    check(11, || {
        let h = x.rms_norm(Some(&leaf(&[d])), 1e-5)?;
        let split = |t: Tensor, n: usize| t.reshape(&[1, 1, n as isize, hd as isize])?.transpose(1, 2);
        let q = split(linear(&h, heads * hd)?, heads)?.rope(&cos, &sin, RopePairs::Adjacent)?;
        let k = split(linear(&h, kv * hd)?, kv)?.rope(&cos, &sin, RopePairs::Adjacent)?;
        let v = split(linear(&h, kv * hd)?, kv)?;
        let k = leaf(&[1, kv, cap, hd]).write(&k, 2, 5)?;
        let v = leaf(&[1, kv, cap, hd]).write(&v, 2, 5)?;
        let a = q.attention(&k, &v, None, &AttentionOptions { kv_len: Some(6), ..Default::default() })?;
        let x = x.add(&linear(&a.transpose(1, 2)?.reshape(&[1, 1, d as isize])?, d)?)?;
        let h = x.rms_norm(Some(&leaf(&[d])), 1e-5)?;
        x.add(&linear(&linear(&h, ff)?.silu()?.mul(&linear(&h, ff)?)?, d)?)
    });
    let _ = DType::F32;
}
