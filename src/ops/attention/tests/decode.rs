//! Attention of few queries against f64 arithmetic: numbers of valid keys, shared heads, masks, windows, element types.

use super::capped;
use crate::device::{Device, under_test};
use crate::ops::attention::AttentionKernel;
use crate::ops::attention::AttentionOptions;
use crate::ops::attention::gpu::attention;
use crate::ops::tests::*;
use crate::tensor::Tensor;

/// What is asked of one run.
#[derive(Clone, Copy)]
struct Case {
    b: usize,
    h: usize,
    hkv: usize,
    t: usize,
    s: usize,
    d: usize,
    dv: usize,
    causal: bool,
    window: usize,
    masked: bool,
    softcap: f64,
}

const CAUSAL: Case = Case { b: 1, h: 1, hkv: 1, t: 1, s: 1, d: 8, dv: 8, causal: true, window: 0, masked: false, softcap: 0.0 };

/// Values and logarithms of sums of weights, row by row; a query that sees no key gives zeros.
fn expected(c: &Case, valid: usize, [q, k, v, m]: [&Operand; 4], scale: f64) -> (Vec<f64>, Vec<f64>) {
    let (mut out, mut sums) = (vec![], vec![]);
    for row in 0..c.b * c.h * c.t {
        let (z, h, t) = (row / c.t / c.h, row / c.t % c.h, row % c.t);
        let kv = z * c.hkv + h / (c.h / c.hkv);
        let end = (valid + t + 1).saturating_sub(c.t); // one past the query's own position
        let last = if c.causal { end.min(valid) } else { valid };
        let first = if c.window > 0 { end.saturating_sub(c.window) } else { 0 };
        let score: Vec<(usize, f64)> = (first.min(last)..last)
            .map(|j| {
                let dot: f64 = (0..c.d).map(|x| q.values[row * c.d + x] * k.values[(kv * c.s + j) * c.d + x]).sum();
                (j, capped(dot * scale, c.softcap) + if c.masked { m.values[row * c.s + j] } else { 0.0 })
            })
            .collect();
        let top = score.iter().fold(-3e38f64, |m, s| m.max(s.1));
        let sum: f64 = score.iter().map(|s| (s.1 - top).exp()).sum();
        let mut value = vec![0.0; c.dv];
        for (j, s) in &score {
            value.iter_mut().enumerate().for_each(|(x, o)| *o += (s - top).exp() / sum * v.values[(kv * c.s + j) * c.dv + x]);
        }
        out.extend(value);
        sums.push(top + sum.ln());
    }
    (out, sums)
}

fn check_case(c: Case, valid: usize, kind: DType, out: DType) {
    let cache = |w: usize, seed| Operand::random(kind, &[c.b, c.hkv, c.s, w], seed);
    let (q, k, v) = (Operand::random(kind, &[c.b, c.h, c.t, c.d], 1), cache(c.d, 2), cache(c.dv, 3));
    let row = Layout::contiguous(Shape::of(&[c.t, c.s])).broadcast_to(Shape::of(&[c.b, c.h, c.t, c.s]));
    let numbers = noise(c.t * c.s, 4).into_iter().map(|v| if v > 0.7 { f64::NEG_INFINITY } else { v }).collect();
    let m = Operand::view(F32, &[c.b, c.h, c.t, c.s], row, numbers);
    let scale = 3.0 / (c.d as f64).sqrt();
    let want = expected(&c, valid, [&q, &k, &v, &m], scale as f32 as f64).0;
    let mut loads = vec![q, k, v];
    loads.extend(c.masked.then_some(m));
    let make = move |s: &Step, a: &AdapterInfo| {
        let of = AttentionKernel {
            causal: c.causal,
            scale,
            window: c.window as u32,
            mask: c.masked,
            sums: false,
            dropout: 0.0,
            softcap: c.softcap,
            paged: false,
        };
        attention(&of, s, a)
    };
    let name = format!(
        "{kind} B{} H{}/{} T{} S{} D{}/{} causal {} window {} mask {} softcap {} valid {valid}",
        c.b, c.h, c.hkv, c.t, c.s, c.d, c.dv, c.causal, c.window, c.masked, c.softcap
    );
    check(&name, make, &loads, (out, &[c.b, c.h, c.t, c.dv]), &[valid as f64], &want, if out == F16 { 1e-3 } else { 2e-5 });
}

#[test]
fn any_number_of_valid_keys() {
    // One key head's keys are shared out from some hundreds on.
    let wide = Case { h: 8, hkv: 2, s: 1900, d: 128, dv: 128, ..CAUSAL };
    for valid in [0, 1, 63, 799, 800, 801, 1024, 1899, 1900] {
        check_case(wide, valid, F16, F16);
    }
    // Too many for a cache: four queries share them.
    for valid in [700, 9000] {
        check_case(Case { h: 4, s: 66_000, d: 128, dv: 128, ..CAUSAL }, valid, F16, F16);
    }
    for valid in [1, 767, 1024] {
        check_case(Case { h: 3, hkv: 3, s: 1024, d: 64, dv: 64, ..CAUSAL }, valid, DType::BF16, F32);
    }
    check_case(Case { b: 2, s: 1500, d: 64, dv: 64, ..CAUSAL }, 1421, F32, F32);
}

/// Query heads, key heads and queries by sizes of heads, each with two of four masks; `nth` tells the cases of another such list apart.
fn check_heads(nth: usize, heads: &[(usize, usize, usize)]) {
    for (a, &(h, hkv, t)) in heads.iter().enumerate() {
        for (e, (d, dv)) in [(64, 64), (8, 24), (80, 80), (6, 10), (33, 7), (256, 64)].into_iter().enumerate() {
            let c = Case { b: 2, h, hkv, t, s: 150, d, dv, ..CAUSAL };
            for (n, (causal, window, masked)) in
                [(true, 0, false), (false, 0, true), (true, 20, false), (true, 0, true)].into_iter().enumerate()
            {
                if (n + nth + a + e) % 2 == 1 {
                    continue;
                }
                let kind = [F16, F32, DType::BF16][(n + h + d) % 3];
                let softcap = if (n + a + 2 * e) % 5 == 0 { 2.5 } else { 0.0 };
                check_case(Case { causal, window, masked, softcap, ..c }, [150, 131, 40][(n + t) % 3], kind, F32);
            }
        }
    }
}

#[test]
fn one_query_with_heads_windows_and_masks() {
    check_heads(0, &[(1, 1, 1), (9, 3, 1), (5, 1, 1), (16, 2, 1)]);
}

#[test]
fn few_queries_with_heads_windows_and_masks() {
    check_heads(4, &[(4, 2, 5), (2, 2, 31), (6, 1, 3)]);
}

#[test]
fn windows_and_masks_of_keys_that_are_shared_out() {
    let c = Case { h: 4, hkv: 2, t: 2, s: 4000, d: 64, dv: 64, ..CAUSAL };
    for (causal, window, masked, softcap) in [(true, 1800, false, 0.0), (false, 0, true, 2.5), (true, 100, true, 0.0)] {
        check_case(Case { causal, window, masked, softcap, ..c }, 3777, F16, F32);
    }
}

#[test]
fn gradients_of_few_queries_use_their_sums() {
    let Some(device) = under_test::gpu() else { return };
    let run = |device: &Device| -> Vec<Vec<f32>> {
        let part = |shape: &[usize], seed| {
            let values: Vec<f32> = noise(shape.iter().product(), seed).into_iter().map(|v| v as f32).collect();
            Tensor::from_vec(values, shape, device).unwrap().requires_grad().unwrap()
        };
        // Keys that are shared out among workgroups, which leave the logarithm of the weights' sum.
        let (q, k, v) = (part(&[2, 4, 3, 32], 1), part(&[2, 2, 1700, 32], 2), part(&[2, 2, 1700, 32], 3));
        let options = AttentionOptions { kv_len: Some(1650), ..Default::default() };
        q.attention(&k, &v, None, &options).unwrap().square().unwrap().sum_all().unwrap().backward().unwrap();
        [q, k, v].iter().map(|t| t.grad().unwrap().to_vec().unwrap()).collect()
    };
    for (want, got) in run(&Device::cpu()).iter().zip(run(&device)) {
        let size = want.iter().fold(0f32, |m, v| m.max(v.abs()));
        assert!(want.iter().zip(&got).all(|(a, b)| (a - b).abs() <= 1e-4 * size));
    }
}
