//! Attention over many queries and its gradients against f64 arithmetic: shared heads, windows, masks, scores of every size, subgroups that wait alone.

use super::capped;
use crate::ops::attention::AttentionKernel;
use crate::ops::attention::flash_coop::attention_coop;
use crate::ops::attention::grad::Part;
use crate::ops::attention::{gpu::attention, grad_gpu::attention_grad};
use crate::ops::tests::*;

struct Heads {
    b: usize,
    h: usize,
    hkv: usize,
    t: usize,
    s: usize,
    d: usize,
    dv: usize,
    valid: usize,
    /// c of c·tanh(score/c), or 0.
    softcap: f64,
}

/// The scores of a row, the query at `row % T`, over the keys that it sees, each with its key.
fn scores(c: &Heads, q: &Operand, k: &Operand, row: usize, causal: bool, window: u32, scale: f32) -> Vec<(usize, f64)> {
    let (z, h, t) = (row / c.t / c.h, row / c.t % c.h, row % c.t);
    let kv = z * c.hkv + h / (c.h / c.hkv);
    let at = (c.valid + t) as isize - c.t as isize;
    let seen = (0..c.valid).filter(|&j| (!causal || j as isize <= at) && (window == 0 || j as isize + window as isize > at));
    let dot = |j: usize| (0..c.d).map(|x| q.values[row * c.d + x] * k.values[(kv * c.s + j) * c.d + x]).sum::<f64>() * scale as f64;
    seen.map(|j| (j, capped(dot(j), c.softcap))).collect()
}

/// The log-sum-exp of each query's scores in f64; minus infinity where it sees no key.
fn log_sums(c: &Heads, q: &Operand, k: &Operand, causal: bool, window: u32, scale: f32) -> Vec<f64> {
    let of_row = |row| {
        let score = scores(c, q, k, row, causal, window, scale);
        let top = score.iter().fold(0f64, |m, s| m.max(s.1));
        top + score.iter().map(|s| (s.1 - top).exp()).sum::<f64>().ln()
    };
    (0..c.b * c.h * c.t).map(of_row).collect()
}

/// The values of attention over `valid` keys in f64.
fn attended(c: &Heads, [q, k, v]: [&Operand; 3], causal: bool, window: u32, scale: f32) -> Vec<f64> {
    let mut out = vec![];
    for row in 0..c.b * c.h * c.t {
        let kv = row / c.t / c.h * c.hkv + row / c.t % c.h / (c.h / c.hkv);
        let score = scores(c, q, k, row, causal, window, scale);
        let top = score.iter().fold(f64::MIN, |m, s| m.max(s.1));
        let e: Vec<(usize, f64)> = score.iter().map(|s| (s.0, (s.1 - top).exp())).collect();
        // A query that sees no key has zeros.
        let sum = e.iter().map(|e| e.1).sum::<f64>().max(f64::MIN_POSITIVE);
        out.extend((0..c.dv).map(|x| e.iter().map(|&(j, e)| e * v.values[(kv * c.s + j) * c.dv + x]).sum::<f64>() / sum));
    }
    out
}

#[test]
fn attention_by_cooperative_matrices() {
    let Some(m) = backend() else { return };
    if m.info().coop == 0 {
        // A real GPU may lack them; Mesa's lavapipe, on which every change is tested, has them.
        assert!(!m.is_software() || std::env::var("TL_REQUIRE_GPU").is_err(), "{} has no cooperative matrices", m.name());
        return;
    }
    let heads = |b, h, hkv, t, s, d, dv, valid| Heads { b, h, hkv, t, s, d, dv, valid, softcap: 0.0 };
    // What is added to a key's scores, about.
    type Slope = fn(usize) -> f64;
    let flat: Slope = |_| 0.0;
    let waves: Slope = |j| 60.0 * (j as f64 / 17.0 + 3.0).sin();
    let low_at_first: Slope = |j| if j < 64 { -1e4 } else { 0.0 };
    let steep: Slope = |j| j as f64 / 2.0 - 100.0;
    // One key takes nearly all, and what the others are left still counts.
    let sink: Slope = |j| if j == 0 { 0.0 } else { -13.0 };
    let lost: Slope = |j| if j == 100 { f64::NAN } else { j as f64 };
    let cases = [
        (heads(1, 1, 1, 150, 150, 16, 16, 150), true, 0, true, lost),
        (heads(1, 2, 1, 34, 70, 24, 16, 60), true, 0, false, flat),
        (heads(2, 2, 2, 40, 150, 16, 16, 133), true, 21, true, flat),
        (heads(1, 1, 1, 33, 64, 128, 8, 64), false, 0, true, flat),
        (heads(1, 2, 1, 40, 200, 16, 24, 190), false, 0, true, waves),
        (heads(1, 2, 1, 40, 200, 24, 16, 199), true, 33, false, waves),
        (heads(1, 1, 1, 72, 140, 16, 16, 140), true, 0, true, low_at_first),
        (heads(1, 1, 1, 150, 150, 16, 8, 150), true, 0, true, steep),
        (heads(1, 1, 1, 90, 70, 16, 8, 70), true, 0, true, steep),
        (Heads { softcap: 20.0, ..heads(1, 2, 1, 40, 200, 16, 24, 190) }, true, 0, true, waves),
        (Heads { softcap: 3.0, ..heads(1, 2, 2, 40, 100, 24, 16, 100) }, false, 21, false, steep),
        (heads(1, 1, 1, 40, 150, 16, 16, 150), false, 0, true, sink),
    ];
    for (case, (c, causal, window, vectors, slope)) in cases.iter().enumerate() {
        let (causal, window, vectors, softcap) = (*causal, *window, *vectors, c.softcap);
        let cache = |heads: usize, rows: usize, w: usize, seed| {
            let layout = Layout::contiguous(Shape::of(&[c.b, rows, heads, w])).permute(&[0, 2, 1, 3]);
            Operand::view(F16, &[c.b, heads, rows, w], layout, noise(c.b * rows * heads * w, seed))
        };
        let (mut q, mut k, mut v) = (cache(c.h, c.t, c.d, 1), cache(c.hkv, c.s, c.d, 2), cache(c.hkv, c.s, c.dv, 3));
        let scale = 1.7 / (c.d as f64).sqrt();
        q.set(|at| (at % c.d == 0).then_some(1.0));
        k.set(|at| (at % c.d == 0).then(|| slope(at / c.d % c.s) / scale));
        if case + 1 == cases.len() {
            // What counts most is nothing.
            v.set(|at| Some(if at / c.dv % c.s == 0 { 0.0 } else { 1.0 }));
        }
        let want = attended(c, [&q, &k, &v], causal, window, scale as f32);
        let sums = log_sums(c, &q, &k, causal, window, scale as f32);
        let loads = [q, k, v];
        // Small tiles where memory is little.
        let workgroup_bytes = if c.d < 128 { m.info().workgroup_bytes } else { 16 << 10 };
        // Through workgroup memory, by subgroups that wait alone, and in the elements of matrices where lanes can name them.
        let ways = [(false, false), (true, false), (false, true)];
        for (alone, elements) in ways.into_iter().filter(|w| !w.1 || m.info().matrix_elements().is_some()) {
            let narrow = c.d.next_multiple_of(m.info().coop as usize) + c.dv.next_multiple_of(m.info().coop as usize) <= 128;
            let waits = alone && narrow && m.info().subgroup_sync != SubgroupSync::None;
            let make = move |s: &Step, a: &AdapterInfo| {
                let of = AttentionKernel { causal, scale, window, mask: false, sums: true, dropout: 0.0, softcap, paged: false };
                let held = a.elements.clone().filter(|_| elements);
                let a = AdapterInfo { coop_vectors: vectors, workgroup_bytes, elements: held, metal_bodies: elements, ..a.clone() };
                let w = attention_coop(&of, None, s, if alone { 1 } else { usize::MAX }, &a);
                let right = |s: &str| s.contains("coopMultiplyAdd") && s.contains("matrix_of_halves") == elements;
                w.filter(|w| right(&w.source) && (elements || w.source.contains("if (subgroup_any(base") == waits))
            };
            let name = format!(
                "T{} S{}/{} D{}/{} causal {causal} window {window} softcap {} vectors {vectors} alone {alone} elements {elements}",
                c.t, c.valid, c.s, c.d, c.dv, c.softcap
            );
            let outs: [(DType, &[usize], &[f64]); 2] = [(F32, &[c.b, c.h, c.t, c.dv], &want), (F32, &[c.b, c.h, c.t], &sums)];
            check_all(&name, make, &loads, &outs, &[c.valid as f64], if case + 1 == cases.len() { 1e-2 } else { 1e-3 });
        }
    }
}

/// The gradients of queries, keys and values in f64, the log-sum-exp of each query and the sum of its result times its gradient.
fn attended_grads(c: &Heads, [q, k, v, g]: [&Operand; 4], causal: bool, window: u32, scale: f32) -> [Vec<f64>; 5] {
    let [mut dq, mut dk, mut dv] = [q, k, v].map(|o| vec![0.0; o.values.len()]);
    let (mut lse, mut delta) = (vec![], vec![]);
    for row in 0..c.b * c.h * c.t {
        let kv = row / c.t / c.h * c.hkv + row / c.t % c.h / (c.h / c.hkv);
        let key = |j: usize| &k.values[(kv * c.s + j) * c.d..][..c.d];
        let value = |j: usize| &v.values[(kv * c.s + j) * c.dv..][..c.dv];
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let (query, slope) = (&q.values[row * c.d..][..c.d], &g.values[row * c.dv..][..c.dv]);
        let score = scores(c, q, k, row, causal, window, scale);
        let top = score.iter().fold(f64::MIN, |m, s| m.max(s.1));
        let known = top + score.iter().map(|s| (s.1 - top).exp()).sum::<f64>().ln();
        let result: f64 = score.iter().map(|s| (s.1 - known).exp() * dot(slope, value(s.0))).sum();
        for &(j, s) in &score {
            let p = (s - known).exp();
            let ds = p * (dot(slope, value(j)) - result) * scale as f64;
            for x in 0..c.d {
                dq[row * c.d + x] += ds * key(j)[x];
                dk[(kv * c.s + j) * c.d + x] += ds * query[x];
            }
            for x in 0..c.dv {
                dv[(kv * c.s + j) * c.dv + x] += p * slope[x];
            }
        }
        lse.push(known);
        delta.push(result);
    }
    [dq, dk, dv, lse, delta]
}

#[test]
fn attention_gradients_by_cooperative_matrices() {
    let Some(m) = backend() else { return };
    if m.info().coop == 0 {
        return;
    }
    let heads = |b, h, hkv, t, s, d, dv, valid| Heads { b, h, hkv, t, s, d, dv, valid, softcap: 0.0 };
    let cases = [
        (heads(1, 4, 2, 70, 90, 16, 32, 80), true, 0, true),
        (heads(2, 2, 2, 66, 66, 32, 16, 66), true, 0, false),
        (heads(1, 2, 1, 40, 70, 80, 64, 70), true, 0, true),
        (heads(1, 2, 1, 40, 90, 16, 16, 75), false, 0, true),
        (heads(1, 1, 1, 70, 70, 16, 16, 70), true, 19, true),
    ];
    for (c, causal, window, vectors) in &cases {
        let (causal, window, vectors) = (*causal, *window, *vectors);
        let part = |heads: usize, rows: usize, w: usize, seed| Operand::random(F16, &[c.b, heads, rows, w], seed);
        let (q, k, v, g) = (part(c.h, c.t, c.d, 1), part(c.hkv, c.s, c.d, 2), part(c.hkv, c.s, c.dv, 3), part(c.h, c.t, c.dv, 4));
        let scale = 1.7 / (c.d as f64).sqrt();
        let [dq, dk, dv, lse, delta] = attended_grads(c, [&q, &k, &v, &g], causal, window, scale as f32);
        let known = |values| Operand::new(F32, &[c.b, c.h, c.t], values);
        let loads = [q, k, v, g, known(lse), known(delta)];
        let held = m.info().matrix_elements().is_some();
        let ways = [(Part::Queries, false), (Part::Keys, false), (Part::Queries, true), (Part::Keys, true)];
        for (part, elements) in ways.into_iter().filter(|w| !w.1 || held) {
            let make = move |s: &Step, a: &AdapterInfo| {
                let of = AttentionKernel { causal, scale, window, mask: false, sums: false, dropout: 0.0, softcap: 0.0, paged: false };
                let held = a.elements.clone().filter(|_| elements);
                let a = AdapterInfo { coop_vectors: vectors, elements: held, metal_bodies: elements, ..a.clone() };
                let right = |s: &str| s.contains("coopMultiplyAdd") && s.contains("matrix_of_halves") == elements;
                attention_grad(&of, part, s, &a).filter(|w| right(&w.source))
            };
            let name = format!(
                "{part:?} T{} S{}/{} D{}/{} causal {causal} window {window} vectors {vectors} elements {elements}",
                c.t, c.valid, c.s, c.d, c.dv
            );
            let of_queries: [(DType, &[usize], &[f64]); 1] = [(F32, &[c.b, c.h, c.t, c.d], &dq)];
            let of_keys: [(DType, &[usize], &[f64]); 2] = [(F32, &[c.b, c.hkv, c.s, c.d], &dk), (F32, &[c.b, c.hkv, c.s, c.dv], &dv)];
            let outs = if part == Part::Queries { &of_queries[..] } else { &of_keys[..] };
            check_all(&name, make, &loads, outs, &[c.valid as f64], 2e-3);
        }
    }
}

#[test]
fn attention_of_heads() {
    let heads = |b, h, hkv, t, s, d, dv, valid| Heads { b, h, hkv, t, s, d, dv, valid, softcap: 0.0 };
    let cases = [
        heads(1, 1, 1, 1, 1, 4, 4, 1),
        heads(2, 4, 2, 1, 40, 64, 64, 33),
        heads(1, 9, 3, 1, 700, 64, 64, 611),
        heads(1, 3, 3, 7, 7, 16, 16, 7),
        heads(2, 4, 1, 5, 30, 6, 10, 21),
        heads(1, 2, 2, 20, 50, 33, 7, 50),
        heads(1, 2, 1, 3, 600, 128, 128, 555),
        heads(1, 1, 1, 2, 70, 256, 256, 70),
        heads(1, 2, 1, 70, 90, 64, 64, 80),
        heads(2, 4, 2, 33, 200, 32, 40, 190),
    ];
    for (nth, c) in cases.iter().enumerate() {
        let variants = [(true, 0, false), (false, 0, false), (true, 5, false), (false, 0, true), (true, 0, true)];
        for (variant, (causal, window, mask)) in variants.into_iter().enumerate() {
            let softcap = if (nth + variant) % 4 == 3 { 1.5 } else { 0.0 };
            for dtype in [F32, F16] {
                // Keys as [B, S, Hkv, D] in memory, as caches often are.
                let cache = |w: usize, seed| {
                    Operand::view(
                        dtype,
                        &[c.b, c.hkv, c.s, w],
                        Layout::contiguous(Shape::of(&[c.b, c.s, c.hkv, w])).permute(&[0, 2, 1, 3]),
                        noise(c.b * c.s * c.hkv * w, seed),
                    )
                };
                let (q, k, v) = (Operand::random(F32, &[c.b, c.h, c.t, c.d], 1), cache(c.d, 2), cache(c.dv, 3));
                let m = Operand::view(
                    F32,
                    &[c.b, c.h, c.t, c.s],
                    Layout::contiguous(Shape::of(&[c.t, c.s])).broadcast_to(Shape::of(&[c.b, c.h, c.t, c.s])),
                    noise(c.t * c.s, 4).into_iter().map(|v| if v > 0.7 { -3e38 } else { v }).collect(),
                );
                let scale = 1.7 / (c.d as f64).sqrt();
                let mut want = vec![];
                for z in 0..c.b {
                    for h in 0..c.h {
                        let kv = z * c.hkv + h / (c.h / c.hkv);
                        for t in 0..c.t {
                            let row = (z * c.h + h) * c.t + t;
                            let at = c.valid - c.t + t;
                            let seen: Vec<usize> =
                                (0..c.valid).filter(|&j| (!causal || j <= at) && (window == 0 || j + window as usize > at)).collect();
                            let score: Vec<f64> = seen
                                .iter()
                                .map(|&j| {
                                    let s: f64 = (0..c.d).map(|x| q.values[row * c.d + x] * k.values[(kv * c.s + j) * c.d + x]).sum();
                                    (capped(s * scale as f32 as f64, softcap) + if mask { m.values[row * c.s + j] } else { 0.0 }).max(-3e38)
                                })
                                .collect();
                            let top = score.iter().copied().fold(f64::MIN, f64::max);
                            let e: Vec<f64> = score.iter().map(|s| (s - top).exp()).collect();
                            let sum: f64 = e.iter().sum();
                            for x in 0..c.dv {
                                want.push(seen.iter().zip(&e).map(|(&j, e)| e * v.values[(kv * c.s + j) * c.dv + x]).sum::<f64>() / sum);
                            }
                        }
                    }
                }
                let mut loads = vec![q, k, v];
                if mask {
                    loads.push(m);
                }
                let name = format!(
                    "attention {dtype} B{} H{}/{} T{} S{}/{} D{}/{} causal {causal} window {window} mask {mask} softcap {softcap}",
                    c.b, c.h, c.hkv, c.t, c.valid, c.s, c.d, c.dv
                );
                let make = move |s: &Step, a: &AdapterInfo| {
                    attention(&AttentionKernel { causal, scale, window, mask, sums: false, dropout: 0.0, softcap, paged: false }, s, a)
                };
                check(&name, make, &loads, (F32, &[c.b, c.h, c.t, c.dv]), &[c.valid as f64], &want, 5e-6);
            }
        }
    }
}
