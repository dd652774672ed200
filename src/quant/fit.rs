//! Choosing scales for a group of values: a search around the obvious scale, each candidate refined by least squares.

/// Finds `scale ≥ 0` and `min ≥ 0` so that `scale·q − min` with q in `0..=levels` is near `values`, large values counting more.
pub(super) fn affine(values: &[f32], levels: u8) -> (f32, f32) {
    let (lo, hi) = super::range(values);
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
pub(super) fn symmetric(values: &[f32], half: u8) -> f32 {
    let most = super::extreme(values);
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
    (x * super::inverse(step)).round().clamp(lo, hi)
}
