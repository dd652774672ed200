//! The least logit that may be drawn against its definition in f64: of one row by parameters, and of several by their own settings.

use super::{Cutoff, SETTINGS, gpu};
use crate::device::under_test::devices;
use crate::ops::tests::*;
use crate::tensor::Tensor;

/// The least logit that is left of `logits`: of the `top_k` largest, the fewest largest that together have `top_p` of their probability, and of
/// those the ones at least `min_p` times as probable as the largest. Logits that are equal to one that is left are left too.
fn defined(of: &Cutoff, logits: &[f64]) -> f64 {
    let mut sorted = logits.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let top = sorted[0];
    let weight = |l: f64| if l == top { 1.0 } else { ((l - top) / of.temperature).exp() };
    if of.top_k > 0 && of.top_k < sorted.len() {
        let least = sorted[of.top_k - 1];
        sorted.retain(|&l| l >= least);
    }
    if of.top_p < 1.0 {
        let all: f64 = sorted.iter().map(|&l| weight(l)).sum();
        let mut sum = 0.0;
        let enough = sorted.iter().position(|&l| {
            sum += weight(l);
            sum >= all * of.top_p
        });
        let least = enough.map_or(sorted[sorted.len() - 1], |n| sorted[n]);
        sorted.retain(|&l| l >= least);
    }
    sorted.retain(|&l| l == top || weight(l) >= of.min_p);
    sorted[sorted.len() - 1]
}

/// Temperature, top-k, top-p, min-p: each alone, some together, and those that leave one logit or all.
const SETTINGS_TRIED: [(f64, usize, f64, f64); 11] = [
    (1.0, 0, 1.0, 0.0),
    (1.0, 1, 1.0, 0.0),
    (0.7, 40, 1.0, 0.0),
    (0.9, 0, 0.5, 0.0),
    (1.0, 0, 0.9, 0.0),
    (0.8, 50, 0.95, 0.0),
    (1.3, 0, 0.5, 0.05),
    (1.0, 0, 1.0, 0.1),
    (0.9, 0, 0.99, 0.02),
    (1.0, 100_000, 1e-9, 0.0),
    (0.9, 7, 1.0, 1.0),
];

/// What is left of these logits by a cutoff is what is left by its definition.
#[track_caller]
fn assert_left(name: &str, cut: f64, of: &Cutoff, logits: &[f64]) {
    let least = defined(of, logits);
    let wrong = logits.iter().find(|&&l| (l >= cut) != (l >= least));
    assert_eq!(wrong, None, "{name}: the cutoff is {cut}, should be at {least}");
}

/// Logits, of which some are equal.
fn rounded(n: usize, spread: f64) -> Vec<f64> {
    (0..n).map(|i| (((i * 7919) % 1013) as f64 / 64.0).round() / 8.0 * spread - 2.0).collect()
}

#[test]
fn every_variant_of_the_kernel() {
    for (n, top_k, top_p, min_p) in
        [(1, 0, 0.5, 0.0), (300, 7, 1.0, 0.0), (5003, 0, 0.9, 0.0), (50_257, 50, 0.8, 0.0), (999, 0, 0.99, 0.02)]
    {
        let x = Operand::new(F32, &[n], noise(n, 5).into_iter().map(|v| v * 9.0).collect());
        let of = Cutoff { temperature: 0.9, top_k, top_p, min_p };
        // Min-p alone gives a number that need not be a logit.
        let want = if min_p > 0.0 { x.values.iter().fold(f64::MIN, |m, &v| m.max(v)) + 0.9 * min_p.ln() } else { f64::MIN };
        let want = want.max(defined(&Cutoff { min_p: 0.0, ..of }, &x.values));
        check(&format!("cutoff of {n} {of:?}"), move |s, a| gpu::cutoff(&of, s, a), &[x], (F32, &[1]), &[], &[want], 1e-6);
    }
}

#[test]
fn one_row_by_parameters() {
    for device in devices() {
        for (n, spread) in [(1, 1.0), (2, 1.0), (7, 2.0), (1000, 1.0), (5003, 3.0), (40_000, 2.0)] {
            for (temperature, top_k, top_p, min_p) in SETTINGS_TRIED {
                for lies in [Lies::Whole, Lies::Within, Lies::Backwards] {
                    let of = Cutoff { temperature, top_k, top_p, min_p };
                    let (logits, values) = tensor(&rounded(n, spread), &[n], F32, lies, &device);
                    let cut = read(&logits.cutoff(of).unwrap())[0];
                    assert_left(&format!("{n} logits, {of:?}, {lies:?} on {}", device.name()), cut, &of, &values);
                }
            }
        }
    }
}

#[test]
fn rows_by_their_own_settings() {
    for device in devices() {
        for (n, dtype) in [(1, F32), (7, F16), (1000, F32), (5003, F16)] {
            let all = SETTINGS_TRIED.map(|(temperature, top_k, top_p, min_p)| Cutoff { temperature, top_k, top_p, min_p });
            let rows = all.len();
            let spreads = [1.0, 2.0, 3.0];
            let logits: Vec<f64> = (0..rows).flat_map(|r| rounded(n, spreads[r % 3])).collect();
            let settings: Vec<f32> = all.iter().flat_map(Cutoff::settings).collect();
            let settings = Tensor::from_vec(settings, &[rows, SETTINGS], &device).unwrap();
            for lies in LIES {
                let (x, values) = tensor(&logits, &[rows, n], dtype, lies, &device);
                let got = x.cutoff_rows(&settings).unwrap();
                assert_eq!(got.dims(), [rows, 1]);
                for ((cut, of), row) in read(&got).into_iter().zip(&all).zip(values.chunks(n)) {
                    assert_left(&format!("{n} logits of {dtype}, {of:?}, {lies:?} on {}", device.name()), cut, of, row);
                }
            }
        }
    }
}

#[test]
fn logits_that_are_infinite() {
    let inf = f64::INFINITY;
    for device in devices() {
        // Tokens that may not be drawn have the logit minus infinity.
        let logits = [-inf, 1.0, -inf, 3.0, 2.5, -inf, -1.0];
        for (temperature, top_k, top_p, min_p) in [(1.0, 2, 1.0, 0.0), (0.7, 0, 0.9, 0.0), (1.0, 0, 1.0, 0.1), (1.0, 3, 0.99, 0.01)] {
            let of = Cutoff { temperature, top_k, top_p, min_p };
            let x = tensor(&logits, &[7], F32, Lies::Whole, &device).0;
            let name = format!("{of:?} on {}", device.name());
            assert_left(&name, read(&x.cutoff(of).unwrap())[0], &of, &logits);
            let settings = Tensor::from_vec(of.settings().to_vec(), &[1, SETTINGS], &device).unwrap();
            let cut = read(&x.unsqueeze(0).unwrap().cutoff_rows(&settings).unwrap())[0];
            assert_left(&format!("{name}, as a row"), cut, &of, &logits);
        }
    }
}

#[test]
fn settings_of_another_shape_are_refused() {
    for device in devices() {
        let of = |shape: &[usize]| Tensor::ones(shape, F32, &device).unwrap();
        for (logits, settings) in [(&[2, 8][..], &[2, SETTINGS - 1][..]), (&[2, 8], &[3, SETTINGS]), (&[8], &[1, SETTINGS])] {
            assert_refused(of(logits).cutoff_rows(&of(settings)), "expected [B,V] by [B,5]", "cutoff/tests.rs");
        }
        let whole = of(&[2, SETTINGS]).cast(DType::I32).unwrap();
        assert_refused(of(&[2, 8]).cutoff_rows(&whole), "expected [B,V] by [B,5]", "cutoff/tests.rs");
    }
}
