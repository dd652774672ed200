//! Kernels over rows against evaluation in f64: reductions, softmax, norms, attention, gather.

use super::*;

#[test]
fn reductions_match_f64() {
    use ReduceOp::*;
    let mut noise = Noise(6);
    for op in [Sum, Mean, Max, Min, Prod, ArgMax, ArgMin, ArgMaxOrNone] {
        for dtype in [F32, F16, F64, I32] {
            for (rows, cols) in [(1, 1), (5, 3), (130, 77), (3, 40_000), (1, 100_003), (700, 64)] {
                for layout in ["contiguous", "transposed", "reversed"] {
                    let (low, high) = if op == Prod { (1.0, 1.0 + 1.0 / cols as f64) } else { (-9.0, 9.0) };
                    let x = operand(dtype, &[rows, cols], layout, &mut noise, low, high);
                    let out = if matches!(op, ArgMax | ArgMin | ArgMaxOrNone) { I32 } else { dtype };
                    let got = kernel(ReduceKernel { op }, &[&x], 1, plain_store(&[rows], out), &[]);
                    let pick = |row: &[f64], better: &dyn Fn(f64, f64) -> bool| {
                        (1..row.len()).fold(0, |best, i| if better(row[i], row[best]) { i } else { best })
                    };
                    let size = |row: &[f64]| row.iter().map(|x| x.abs()).sum::<f64>();
                    let want: Vec<f64> = x
                        .values
                        .chunks(cols)
                        .map(|r| match op {
                            Sum => r.iter().sum(),
                            Mean if dtype == I32 => (r.iter().sum::<f64>() / cols as f64).trunc(),
                            Mean => r.iter().sum::<f64>() / cols as f64,
                            Max => r.iter().copied().fold(f64::MIN, f64::max),
                            Min => r.iter().copied().fold(f64::MAX, f64::min),
                            Prod => r.iter().product(),
                            ArgMax | ArgMaxOrNone => pick(r, &|a, b| a > b) as f64,
                            ArgMin => pick(r, &|a, b| a < b) as f64,
                        })
                        .collect();
                    let atol = match op {
                        Sum if dtype != I32 => x.values.chunks(cols).map(size).fold(0.0, f64::max) * 2e-7,
                        Mean if dtype != I32 => 2e-6,
                        _ => 0.0,
                    };
                    let steps = if op == Prod { cols as f64 } else { 60.0 };
                    let rtol = if dtype == I32 { 0.0 } else { 6e-8 * steps + epsilon(dtype) };
                    let want: Vec<f64> = want.into_iter().map(|w| if dtype == I32 { round(I32, w) } else { w }).collect();
                    check(&format!("{op:?} {dtype} [{rows},{cols}] {layout}"), &got, &want, rtol, atol);
                }
            }
        }
    }
    let with_nan = |mut x: Operand| {
        x.values[7] = f64::NAN;
        x.bytes = encode(F32, &x.values);
        x
    };
    let x = with_nan(operand(F32, &[1, 20_000], "contiguous", &mut noise, -1.0, 1.0));
    for (op, want) in [(Max, f64::NAN), (Min, f64::NAN), (ArgMax, 7.0), (ArgMin, 7.0), (ArgMaxOrNone, -1.0)] {
        let out = if matches!(op, ArgMax | ArgMin | ArgMaxOrNone) { I32 } else { F32 };
        check("nan", &kernel(ReduceKernel { op }, &[&x], 1, plain_store(&[1], out), &[]), &[want], 0.0, 0.0);
    }
    let empty = Operand { shape: Shape::of(&[2, 0]), layout: Layout::contiguous(Shape::of(&[2, 0])), values: vec![], ..x };
    for (op, want) in [(Sum, 0.0), (Mean, f64::NAN), (Prod, 1.0)] {
        check("empty", &kernel(ReduceKernel { op }, &[&empty], 1, plain_store(&[2], F32), &[]), &[want; 2], 0.0, 0.0);
    }
}

#[test]
fn softmax_and_norms_match_f64() {
    let mut noise = Noise(7);
    for dtype in [F32, BF16, F64] {
        let tolerance = epsilon(dtype) * 2.0 + if dtype == F64 { 1e-12 } else { 3e-6 };
        for (rows, cols) in [(1, 1), (3, 7), (65, 129), (2, 5000)] {
            for layout in ["contiguous", "transposed"] {
                let x = operand(dtype, &[rows, cols], layout, &mut noise, -8.0, 8.0);
                let w = operand(dtype, &[1, cols], "contiguous", &mut noise, 0.5, 2.0);
                let b = operand(dtype, &[1, cols], "contiguous", &mut noise, -1.0, 1.0);
                let case = format!("{dtype} [{rows},{cols}] {layout}");
                for log in [false, true] {
                    let got = kernel(SoftmaxKernel { log }, &[&x], 1, plain_store(&[rows, cols], dtype), &[]);
                    let want: Vec<f64> = x
                        .values
                        .chunks(cols)
                        .flat_map(|r| {
                            let max = r.iter().copied().fold(f64::MIN, f64::max);
                            let sum: f64 = r.iter().map(|x| (x - max).exp()).sum();
                            r.iter().map(move |x| if log { x - max - sum.ln() } else { (x - max).exp() / sum }).collect::<Vec<_>>()
                        })
                        .collect();
                    check(&format!("softmax {log} {case}"), &got, &want, tolerance, if log { 4e-6 } else { 1e-30 });
                }
                for (rms, weight, bias) in [(false, true, true), (true, true, false), (false, false, false), (false, false, true)] {
                    let k = NormKernel { rms, eps: 1e-5, weight, bias };
                    let mut inputs = vec![&x];
                    let mut flat = [w.clone(), b.clone()];
                    flat.iter_mut().for_each(|o| o.shape = Shape::of(&[cols]));
                    inputs.extend(weight.then_some(&flat[0]));
                    inputs.extend(bias.then_some(&flat[1]));
                    let got = kernel(k, &inputs, inputs.len(), plain_store(&[rows, cols], dtype), &[]);
                    let want: Vec<f64> = x
                        .values
                        .chunks(cols)
                        .flat_map(|r| {
                            let mean = if rms { 0.0 } else { r.iter().sum::<f64>() / cols as f64 };
                            let var = r.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / cols as f64;
                            let one = |(i, x): (usize, &f64)| {
                                (x - mean) / (var + 1e-5f32 as f64).sqrt() * if weight { w.values[i] } else { 1.0 }
                                    + if bias { b.values[i] } else { 0.0 }
                            };
                            r.iter().enumerate().map(one).collect::<Vec<_>>()
                        })
                        .collect();
                    check(&format!("norm rms {rms} {case}"), &got, &want, tolerance, if dtype == F64 { 1e-12 } else { 4e-6 });
                }
            }
        }
    }
}

#[test]
fn attention_matches_f64() {
    let mut noise = Noise(10);
    for dtype in [F32, F16, F64] {
        for ([b, h, hkv, t, s, d, dv], valid) in
            [([1, 4, 2, 1, 40, 16, 16], 33), ([2, 3, 3, 7, 7, 8, 12], 7), ([1, 2, 1, 70, 600, 32, 32], 530), ([1, 1, 1, 5, 9, 4, 4], 3)]
        {
            for (causal, window, mask, layout) in [
                (false, 0, false, "contiguous"),
                (true, 0, false, "transposed"),
                (true, 20, false, "contiguous"),
                (true, 0, true, "sliced"),
                (false, 6, true, "contiguous"),
            ] {
                let q = operand(dtype, &[b, h, t, d], layout, &mut noise, -1.0, 1.0);
                let k = operand(dtype, &[b, hkv, s, d], layout, &mut noise, -1.0, 1.0);
                let v = operand(dtype, &[b, hkv, s, dv], layout, &mut noise, -1.0, 1.0);
                let m = operand(dtype, &[b, h, t, s], "rows repeated", &mut noise, -3.0, 1.0);
                let kernel_of = AttentionKernel { causal, scale: 0.7, window, mask, sums: false, dropout: 0.0, softcap: 0.0, paged: false };
                let mut inputs = vec![&q, &k, &v];
                inputs.extend(mask.then_some(&m));
                let got = kernel(kernel_of, &inputs, inputs.len(), plain_store(&[b, h, t, dv], dtype), &[valid as f64]);
                let mut want = vec![0.0; b * h * t * dv];
                for (row, out) in want.chunks_mut(dv).enumerate() {
                    let (bt, head, at) = (row / (h * t), row / t % h, row % t);
                    let kv = bt * hkv + head / (h / hkv);
                    let position = valid as i64 - t as i64 + at as i64;
                    let sees = |j: usize| {
                        let j = j as i64;
                        (!causal || j <= position) && (window == 0 || j > position - window as i64)
                    };
                    let seen: Vec<usize> = (0..valid).filter(|&j| sees(j)).collect();
                    let score = |j: usize| {
                        let dot: f64 = (0..d).map(|x| q.values[row * d + x] * k.values[(kv * s + j) * d + x]).sum();
                        dot * 0.7 + if mask { m.values[row * s + j] } else { 0.0 }
                    };
                    let weights: Vec<f64> = seen.iter().map(|&j| score(j).exp()).collect();
                    let sum: f64 = weights.iter().sum();
                    for (x, o) in out.iter_mut().enumerate() {
                        *o = seen.iter().zip(&weights).map(|(&j, w)| w * v.values[(kv * s + j) * dv + x]).sum::<f64>()
                            / if sum > 0.0 { sum } else { 1.0 };
                    }
                }
                let tolerance = if dtype == F64 { 1e-12 } else { 3e-6 + epsilon(dtype) };
                check(
                    &format!("{dtype} {:?} {valid} causal {causal} window {window} mask {mask} {layout}", [b, h, hkv, t, s, d, dv]),
                    &got,
                    &want,
                    tolerance,
                    tolerance,
                );
            }
        }
    }
}

#[test]
fn gather_copies_rows() {
    let mut noise = Noise(11);
    for dtype in [F32, F16, I32, U8, F64] {
        for index in [I32, U32, I64] {
            for (n, inner, count) in [(1, 1, 1), (50, 7, 300), (9, 5001, 13)] {
                for layout in ["contiguous", "transposed"] {
                    let table = operand(dtype, &[n, inner], layout, &mut noise, 0.0, 200.0);
                    let idx = operand(index, &[1, count], "contiguous", &mut noise, 0.0, n as f64);
                    let idx = Operand { shape: Shape::of(&[count]), ..idx };
                    let want: Vec<f64> = idx.values.iter().flat_map(|&i| table.values[i as usize * inner..][..inner].to_vec()).collect();
                    let got = kernel(GatherKernel, &[&table, &idx], 2, plain_store(&[count, inner], dtype), &[]);
                    check(&format!("{dtype} {index} [{n},{inner}] {count} {layout}"), &got, &want, 0.0, 0.0);
                }
            }
        }
    }
}
