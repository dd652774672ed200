//! Dropout inside attention: results and gradients against loops in f64 that apply the same draw, and what its mask looks like over many seeds.

use crate::common::{assert_close, devices, noise};
use tensorlogic::prelude::*;

struct Case {
    /// B, H, Hkv, T, S, D, Dv.
    sizes: [usize; 7],
    causal: bool,
    window: usize,
    valid: usize,
    p: f64,
}

impl Case {
    fn new(sizes: [usize; 7], causal: bool, window: usize, valid: usize, p: f64) -> Case {
        Case { sizes, causal, window, valid, p }
    }
    fn shapes(&self) -> [[usize; 4]; 4] {
        let [b, h, kv, t, s, d, dv] = self.sizes;
        [[b, h, t, d], [b, kv, s, d], [b, kv, s, dv], [b, h, t, dv]]
    }
    /// The result and the gradients of q, k and v of `sum(y · g)`, in f64; weight i of `kept` is multiplied with a factor.
    fn reference(&self, [q, k, v, g]: [&[f64]; 4], kept: &[f32]) -> [Vec<f64>; 4] {
        let [b, h, kv, t, s, d, dv] = self.sizes;
        let [mut y, mut dq, mut dk, mut dval] = [b * h * t * dv, q.len(), k.len(), v.len()].map(|n| vec![0.0; n]);
        let scale = 1.0 / (d as f64).sqrt();
        let factor = 1.0 / (1.0 - self.p);
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        for row in 0..b * h * t {
            let (head, at) = (row / t / h * kv + row / t % h / (h / kv), (self.valid + row % t) as isize - t as isize);
            let seen = |j: &usize| {
                let j = *j as isize;
                (!self.causal || j <= at) && (self.window == 0 || j > at - self.window as isize)
            };
            let keys: Vec<usize> = (0..self.valid).filter(seen).collect();
            let part = |x: &[f64], j: usize, n: usize| x[(head * s + j) * n..][..n].to_vec();
            let (query, slope) = (&q[row * d..][..d], &g[row * dv..][..dv]);
            let scores: Vec<f64> = keys.iter().map(|&j| dot(query, &part(k, j, d)) * scale).collect();
            let top = scores.iter().copied().fold(f64::MIN, f64::max);
            let sum: f64 = scores.iter().map(|s| (s - top).exp()).sum();
            let p: Vec<f64> = scores.iter().map(|s| (s - top).exp() / sum).collect();
            let f: Vec<f64> =
                keys.iter().map(|&j| if f64::from(kept[row * s + j]) >= f64::from(self.p as f32) { factor } else { 0.0 }).collect();
            // Gradients of the weights before dropout, then of the scores.
            let dp: Vec<f64> = keys.iter().zip(&f).map(|(&j, f)| f * dot(slope, &part(v, j, dv))).collect();
            let mean = dot(&p, &dp);
            for (n, &j) in keys.iter().enumerate() {
                let ds = p[n] * (dp[n] - mean) * scale;
                for x in 0..d {
                    dq[row * d + x] += ds * k[(head * s + j) * d + x];
                    dk[(head * s + j) * d + x] += ds * query[x];
                }
                for x in 0..dv {
                    y[row * dv + x] += p[n] * f[n] * v[(head * s + j) * dv + x];
                    dval[(head * s + j) * dv + x] += p[n] * f[n] * slope[x];
                }
            }
        }
        [y, dq, dk, dval]
    }
}

/// On every device, through the kernels; and through the definition that gradients of gradients use, which a mask of zeros selects.
#[test]
fn dropped_weights_are_those_of_the_draw_forwards_and_backwards() {
    let cases = [
        Case::new([1, 1, 1, 1, 1, 4, 4], true, 0, 1, 0.3),
        Case::new([2, 4, 2, 5, 9, 8, 6], false, 0, 7, 0.5),
        Case::new([2, 4, 2, 70, 70, 16, 16], true, 0, 70, 0.1),
        Case::new([1, 2, 1, 90, 140, 24, 40], true, 30, 131, 0.25),
        Case::new([1, 2, 2, 33, 300, 64, 64], false, 0, 300, 0.1),
        Case::new([1, 1, 1, 40, 61, 128, 128], true, 0, 55, 0.9),
    ];
    for device in devices() {
        for (n, c) in cases.iter().enumerate() {
            for dtype in [DType::F32, DType::F16] {
                let rounded = |v: Vec<f64>| -> Vec<f64> {
                    if dtype == DType::F32 {
                        v.iter().map(|&v| f64::from(v as f32)).collect()
                    } else {
                        v.iter().map(|&v| half::f16::from_f64(v).to_f64()).collect()
                    }
                };
                let values = c.shapes().map(|s| rounded(noise(s.iter().product(), 7 + s[3] as u64)));
                let tensor = |i: usize| {
                    let v = values[i].iter().map(|&v| v as f32).collect::<Vec<_>>();
                    Tensor::from_vec(v, &c.shapes()[i], &device).unwrap().cast(dtype).unwrap()
                };
                let mut rng = Rng { seed: 91 + n as u64, draws: 5 };
                let dropout = AttentionDropout::new(c.p, &mut rng.clone()).unwrap();
                let [b, h, _, t, s, ..] = c.sizes;
                let draw = rng.uniform(&[b, h, t, s], DType::F32, &device).unwrap().to_vec().unwrap();
                let want = c.reference([0, 1, 2, 3].map(|i| &values[i][..]), &draw);
                for masked in [false, true] {
                    if masked && dtype != DType::F32 {
                        continue;
                    }
                    let mask = masked.then(|| Tensor::zeros(&[t, s], DType::F32, &device).unwrap());
                    let x = [0, 1, 2].map(|i| tensor(i).requires_grad().unwrap());
                    let window = Some(c.window).filter(|w| *w > 0);
                    let dropout = Some(dropout.clone());
                    let options = AttentionOptions { causal: c.causal, window, kv_len: Some(c.valid), dropout, ..Default::default() };
                    let y = x[0].attention(&x[1], &x[2], mask.as_ref(), &options).unwrap();
                    y.mul(&tensor(3)).unwrap().cast(DType::F32).unwrap().sum_all().unwrap().backward().unwrap();
                    let got = [y.detach(), x[0].grad().unwrap(), x[1].grad().unwrap(), x[2].grad().unwrap()];
                    for ((got, want), what) in got.iter().zip(&want).zip(["y", "dq", "dk", "dv"]) {
                        let size = want.iter().fold(0.0f64, |m, v| m.max(v.abs()));
                        let tolerance = if dtype == DType::F32 { 2e-5 } else { 4e-3 };
                        let name = format!("{what} of case {n}, {dtype}, masked {masked}, on {}", device.name());
                        assert_close(&name, &got.cast(DType::F32).unwrap().to_vec().unwrap(), want, tolerance, tolerance * size.max(0.1));
                    }
                }
            }
        }
    }
}

/// Over many draws a result's mean is the result without dropout, and no two draws are alike.
#[test]
fn the_mean_over_seeds_is_attention_without_dropout() {
    for device in devices() {
        let mut rng = Rng::new(3);
        let [q, k, v] = [0; 3].map(|_| rng.normal(&[2, 2, 40, 16], DType::F32, &device).unwrap());
        let plain = AttentionOptions { causal: false, ..Default::default() };
        let want = q.attention(&k, &v, None, &plain).unwrap().to_vec().unwrap();
        const DRAWS: usize = 400;
        let mut results = Vec::new();
        for seed in 0..DRAWS as u64 {
            let dropout = Some(AttentionDropout::new(0.2, &mut Rng::new(seed)).unwrap());
            results.push(q.attention(&k, &v, None, &AttentionOptions { dropout, ..plain.clone() }).unwrap().to_vec().unwrap());
        }
        assert_ne!(results[0], results[1]);
        // Each element's deviation over draws gives the error that its mean may have.
        let (mut far, mut bias) = (0, 0.0);
        for (i, &want) in want.iter().enumerate() {
            let mean = results.iter().map(|r| f64::from(r[i])).sum::<f64>() / DRAWS as f64;
            let variance = results.iter().map(|r| (f64::from(r[i]) - mean).powi(2)).sum::<f64>() / DRAWS as f64;
            let error = (variance / DRAWS as f64).sqrt().max(1e-6);
            far += usize::from((mean - f64::from(want)).abs() > 4.0 * error);
            bias += (mean - f64::from(want)) / error;
        }
        // Of 2,560 elements, 0.2 are that far by chance; the elements of a row share their weights.
        assert!(far <= 4, "{far} of {} means are off on {}", want.len(), device.name());
        assert!((bias / want.len() as f64).abs() < 0.3, "{}", bias / want.len() as f64);
    }
}

#[test]
fn settings_outside_their_range_are_errors() {
    let device = Device::cpu();
    let x = Tensor::zeros(&[1, 1, 2, 4], DType::F32, &device).unwrap();
    let dropout = Some(AttentionDropout { p: -0.5, rng: Rng::new(1) });
    let e = x.attention(&x, &x, None, &AttentionOptions { dropout, ..Default::default() }).unwrap_err().to_string();
    assert!(e.contains("probability -0.5 is not between 0 and 1"), "{e}");
    for c in [0.0, -2.0, f64::NAN, f64::INFINITY, 1e-60, 1e-40, 1e60] {
        let softcap = Some(c);
        let e = x.attention(&x, &x, None, &AttentionOptions { softcap, ..Default::default() }).unwrap_err().to_string();
        assert!(e.contains(&format!("softcap {c} must be a positive f32")), "{e}");
    }
    // At 1 nothing is left.
    let ones = Tensor::ones(&[1, 1, 2, 4], DType::F32, &device).unwrap();
    let dropout = Some(AttentionDropout { p: 1.0, rng: Rng::new(1) });
    let y = ones.attention(&ones, &ones, None, &AttentionOptions { dropout, ..Default::default() }).unwrap();
    assert_eq!(y.to_vec().unwrap(), [0.0; 8]);
}
