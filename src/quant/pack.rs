//! Packers: which integers and scales stand for a block of values. Scales of the 256-wide formats are found by a search around the obvious
//! scale, each candidate refined by least squares; those of the 32-wide formats are the obvious ones, as in ggml's reference quantizers.

use super::block::Linear;
use half::f16;

/// One scale of either sign: the value of largest magnitude becomes the smallest integer.
#[inline(always)]
pub(super) fn symmetric_block(f: &Linear, values: &[f32], block: &mut [u8]) {
    let (lo, hi) = f.quants.range();
    let d = extreme(values) / lo as f32;
    let id = inverse(d);
    put_f16(block, f.d, d);
    // In f64, as the sum's rounding in f32 depends on whether a compiler fuses it.
    let q = |x: f32| (f64::from(x) * f64::from(id) + (0.5 - f64::from(lo))).min(f64::from(hi - lo)) as u8;
    f.quants.put_each(block, |i| q(values[i]));
}

/// One scale and minimum: the integers span the values.
#[inline(always)]
pub(super) fn affine_block(f: &Linear, values: &[f32], block: &mut [u8]) {
    let top = f.quants.range().1 as f32;
    let (lo, hi) = range(values);
    let d = (hi - lo) / top;
    let id = inverse(d);
    put_f16(block, f.d, d);
    if let Some(at) = f.dmin {
        put_f16(block, at, lo);
    }
    f.quants.put_each(block, |i| ((values[i] - lo) * id + 0.5).min(top) as u8);
}

/// One positive scale: the value of largest magnitude becomes ±127.
#[inline(always)]
pub(super) fn signed_bytes(f: &Linear, values: &[f32], block: &mut [u8]) {
    let d = extreme(values).abs() / 127.0;
    let id = inverse(d);
    put_f16(block, f.d, d);
    f.quants.put_each(block, |i| (values[i] * id).round() as i8 as u8);
}

/// A scale and a minimum for each group.
#[inline(always)]
pub(super) fn affine_groups(f: &Linear, values: &[f32], block: &mut [u8]) {
    let (top, most_scale, group) = (f.quants.range().1, f.max_scale() as f32, f.group());
    let mut fits = [(0.0f32, 0.0f32); 16];
    for (fit, values) in fits.iter_mut().zip(values.chunks_exact(group)) {
        *fit = affine(values, top as u8);
    }
    let most = |part: fn(&(f32, f32)) -> f32| fits.iter().map(part).fold(0.0, f32::max);
    let d = put_f16(block, f.d, most(|fit| fit.0) / most_scale);
    let dmin = f.dmin.map_or(0.0, |at| put_f16(block, at, most(|fit| fit.1) / most_scale));
    let mut q = [0u8; 256];
    for (g, values) in values.chunks_exact(group).enumerate() {
        let (s, m) = (level(fits[g].0, d, 0.0, most_scale), level(fits[g].1, dmin, 0.0, most_scale));
        f.put_scale_min(block, g, s as i32, m as i32);
        for (q, &x) in q[g * group..].iter_mut().zip(values) {
            *q = level(x + dmin * m, d * s, 0.0, top as f32) as u8;
        }
    }
    f.quants.put_bits(block, &q);
}

/// A scale of either sign for each group.
#[inline(always)]
pub(super) fn symmetric_groups(f: &Linear, values: &[f32], block: &mut [u8]) {
    let ((lo, hi), most_scale, group) = (f.quants.range(), f.max_scale() as f32, f.group());
    let mut scales = [0.0f32; 16];
    for (scale, values) in scales.iter_mut().zip(values.chunks_exact(group)) {
        *scale = symmetric(values, -lo as u8);
    }
    let least_scale = -most_scale - 1.0;
    let d = put_f16(block, f.d, extreme(&scales) / least_scale);
    let mut q = [0u8; 256];
    for (g, values) in values.chunks_exact(group).enumerate() {
        let s = level(scales[g], d, least_scale, most_scale);
        f.put_scale_min(block, g, s as i32, 0);
        for (q, &x) in q[g * group..].iter_mut().zip(values) {
            *q = (level(x, d * s, lo as f32, hi as f32) - lo as f32) as u8;
        }
    }
    f.quants.put_bits(block, &q);
}

/// Finds `scale ≥ 0` and `min ≥ 0` so that `scale·q − min` with q in `0..=levels` is near `values`, large values counting more.
fn affine(values: &[f32], levels: u8) -> (f32, f32) {
    let (lo, hi) = range(values);
    // The minimum is stored as a magnitude below zero, so the range always includes zero.
    let lo = lo.min(0.0);
    if !(hi - lo).is_normal() || !lo.is_finite() {
        return (0.0, if lo.is_finite() { -lo } else { 0.0 });
    }
    let rms = (values.iter().map(|x| x * x).sum::<f32>() / values.len() as f32).sqrt();
    let weight = |x: f32| rms + x.abs();
    let top = f32::from(levels);

    let mut best = (f32::INFINITY, (hi - lo) / top, -lo);
    for step in -5..=20 {
        let inverse = (top + 0.1 * step as f32 - 0.5) / (hi - lo);
        let q = |x: f32| ((x - lo) * inverse).round().clamp(0.0, top);
        // Weighted sums for the line through (q, x).
        let (mut w, mut wq, mut wqq, mut wx, mut wqx) = (0.0f32, 0.0f32, 0.0f32, 0.0f32, 0.0f32);
        for &x in values {
            let (k, n) = (weight(x), q(x));
            w += k;
            wq += k * n;
            wqq += k * n * n;
            wx += k * x;
            wqx += k * n * x;
        }
        let determinant = w * wqq - wq * wq;
        let (mut scale, mut offset) = ((w * wqx - wq * wx) / determinant, (wqq * wx - wq * wqx) / determinant);
        if offset > 0.0 {
            (scale, offset) = (wqx / wqq, 0.0);
        }
        let error: f32 = values.iter().map(|&x| weight(x) * (scale * q(x) + offset - x).powi(2)).sum();
        if error < best.0 && scale > 0.0 {
            best = (error, scale, -offset);
        }
    }
    (best.1, best.2)
}

/// Finds a scale of either sign so that `scale·q` with q in `−half..half` is near `values`, large values counting more.
fn symmetric(values: &[f32], half: u8) -> f32 {
    let most = extreme(values);
    if !most.is_normal() {
        return 0.0;
    }
    let half = f32::from(half);
    let mut best = (f32::NEG_INFINITY, most / -half);
    for step in -9..=9 {
        // The value of largest magnitude falls near q = −half, the end with one more level.
        let inverse = -(half + 0.1 * step as f32) / most;
        let (mut wqx, mut wqq) = (0.0f32, 0.0f32);
        for &x in values {
            let n = (x * inverse).round().clamp(-half, half - 1.0);
            let w = x * x;
            wqx += w * n * x;
            wqq += w * n * n;
        }
        // What the best scale for these q takes off the error.
        let gain = wqx * (wqx / wqq);
        if gain > best.0 {
            best = (gain, wqx / wqq);
        }
    }
    best.1
}

/// The nearest level of `x / step` in `lo..=hi`; 0, or the level nearest to it, where the step is 0.
pub(super) fn level(x: f32, step: f32, lo: f32, hi: f32) -> f32 {
    (x * inverse(step)).round().clamp(lo, hi)
}

/// Stores `x` as f16 at byte `at`; returns the rounded value.
pub(super) fn put_f16(block: &mut [u8], at: usize, x: f32) -> f32 {
    let x = f16::from_f32(x);
    block[at..at + 2].copy_from_slice(&x.to_le_bytes());
    x.to_f32()
}

/// `1 / x`, and 0 for 0.
pub(super) fn inverse(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

/// The value of largest magnitude, with its sign; the first of equals.
pub(super) fn extreme(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most, &x| if x.abs() > most.abs() { x } else { most })
}

/// The smallest and the largest value.
pub(super) fn range(values: &[f32]) -> (f32, f32) {
    values.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(lo, hi), &x| (lo.min(x), hi.max(x)))
}
