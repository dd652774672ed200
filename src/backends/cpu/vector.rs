//! Vector loops that kernels share, for f32 (compiled for every path) and f64.

use super::math;
use super::path::versions;
use crate::dtype::Element;
use crate::plan::Value;

/// Partial sums kept side by side: enough for the latency of four 512-bit additions.
const LANES: usize = 64;

/// Floats that kernels compute in.
pub trait Real: Value + Element + std::ops::Add<Output = Self> + std::ops::Mul<Output = Self> + std::ops::Sub<Output = Self> {
    /// 0
    const ZERO: Self;
    /// −∞
    const LOWEST: Self;
    /// The nearest value.
    fn of(x: f64) -> Self;
    /// The value in f64.
    fn wide(self) -> f64;
    /// Σ x
    fn sum(x: &[Self]) -> Self;
    /// The largest, NaN if one is NaN; −∞ of nothing.
    fn max(x: &[Self]) -> Self;
    /// Σ (x − mean)²
    fn deviation(x: &[Self], mean: Self) -> Self;
    /// Σ a·b
    fn dot(a: &[Self], b: &[Self]) -> Self;
    /// x ← e^(x − shift), where x is at most a little above `shift`; the sum.
    fn exp_sum(x: &mut [Self], shift: Self) -> Self;
    /// Σ e^(x − shift), where x is at most a little above `shift`
    fn sum_exp(x: &[Self], shift: Self) -> Self;
    /// y ← softmax of x, row by row of `cols`. What lies `ahead` elements behind either is fetched meanwhile.
    fn softmax_rows(y: &mut [Self], x: &[Self], cols: usize, _ahead: usize) {
        for (y, x) in y.chunks_mut(cols).zip(x.chunks(cols)) {
            y.copy_from_slice(x);
            let sum = Self::exp_sum(y, Self::max(x));
            Self::scale(y, Self::of(1.0 / sum.wide()));
        }
    }
    /// y ← x, row by row of `cols` centred (unless `rms`), divided by its deviation, times `weight` and plus `bias` where they are not empty.
    fn norm_rows(y: &mut [Self], x: &[Self], cols: usize, norm: (bool, f64), weight: &[Self], bias: &[Self], _ahead: usize) {
        for (y, x) in y.chunks_mut(cols).zip(x.chunks(cols)) {
            y.copy_from_slice(x);
            let (mean, factor) = Self::moments(x, norm);
            Self::normalize(y, mean, factor, weight, bias);
        }
    }
    /// What `normalize` takes: the mean (0 for `rms`) and the inverse deviation, `eps` added to the variance.
    fn moments(x: &[Self], (rms, eps): (bool, f64)) -> (Self, Self) {
        let n = x.len() as f64;
        let mean = if rms { Self::ZERO } else { Self::of(Self::sum(x).wide() / n) };
        (mean, Self::of(1.0 / (Self::deviation(x, mean).wide() / n + eps).sqrt()))
    }
    /// x ← x·s
    fn scale(x: &mut [Self], s: Self);
    /// x ← x − s
    fn shift(x: &mut [Self], s: Self);
    /// y ← y + a·x
    fn axpy(y: &mut [Self], a: Self, x: &[Self]);
    /// x ← (x − mean)·factor, times `weight` and plus `bias` where they are not empty.
    fn normalize(x: &mut [Self], mean: Self, factor: Self, weight: &[Self], bias: &[Self]);
    /// y ← a·b
    fn multiply(y: &mut [Self], a: &[Self], b: &[Self]);
    /// y ← y + a·b
    fn multiply_add(y: &mut [Self], a: &[Self], b: &[Self]);
    /// x ← (h − shift − along·x)·factor
    fn rest(x: &mut [Self], h: &[Self], along: Self, shift: Self, factor: Self);
    /// x ← e^(x·scale − shift)
    fn exp_of(x: &mut [Self], scale: Self, shift: Self);
    /// x ← c·tanh(x/c)
    fn softcap(x: &mut [Self], c: Self);
    /// x ← (x − shift)·p·factor
    fn slope(x: &mut [Self], p: &[Self], shift: Self, factor: Self);
}

/// Prefetches the lines that lie `ahead` elements behind `x`.
#[inline(always)]
fn prefetch(x: &[f32; LANES], ahead: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..LANES / 16 {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing, wherever the address is.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(x.as_ptr().wrapping_add(16 * line + ahead).cast()) }
    }
    let _ = (x, ahead);
}

/// Combines partial results pairwise.
#[inline(always)]
fn tree<T: Copy>(mut a: [T; LANES], f: impl Fn(T, T) -> T) -> T {
    let mut n = LANES / 2;
    while n > 0 {
        for i in 0..n {
            a[i] = f(a[i], a[i + n]);
        }
        n /= 2;
    }
    a[0]
}

#[inline(always)]
fn sum_body<const F: bool>(x: &[f32]) -> f32 {
    let (chunks, rest) = x.as_chunks::<LANES>();
    let mut acc = [0f32; LANES];
    for c in chunks {
        for i in 0..LANES {
            acc[i] += c[i];
        }
    }
    for (a, &x) in acc.iter_mut().zip(rest) {
        *a += x;
    }
    tree(acc, |a, b| a + b)
}

#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if (a > b) | a.is_nan() { a } else { b }
}

#[inline(always)]
fn max_body<const F: bool>(x: &[f32]) -> f32 {
    let (chunks, rest) = x.as_chunks::<LANES>();
    let mut acc = [f32::NEG_INFINITY; LANES];
    for c in chunks {
        for i in 0..LANES {
            acc[i] = larger(acc[i], c[i]);
        }
    }
    for (a, &x) in acc.iter_mut().zip(rest) {
        *a = larger(*a, x);
    }
    tree(acc, larger)
}

#[inline(always)]
fn deviation_body<const F: bool>(x: &[f32], mean: f32) -> f32 {
    let (chunks, rest) = x.as_chunks::<LANES>();
    let mut acc = [0f32; LANES];
    for c in chunks {
        for i in 0..LANES {
            let d = c[i] - mean;
            acc[i] = math::fma::<F>(d, d, acc[i]);
        }
    }
    for (a, &x) in acc.iter_mut().zip(rest) {
        *a = math::fma::<F>(x - mean, x - mean, *a);
    }
    tree(acc, |a, b| a + b)
}

#[inline(always)]
fn dot_body<const F: bool>(a: &[f32], b: &[f32]) -> f32 {
    let b = &b[..a.len()];
    let ((ca, ra), (cb, rb)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut acc = [0f32; LANES];
    for (x, y) in ca.iter().zip(cb) {
        for i in 0..LANES {
            acc[i] = math::fma::<F>(x[i], y[i], acc[i]);
        }
    }
    for ((s, &x), &y) in acc.iter_mut().zip(ra).zip(rb) {
        *s = math::fma::<F>(x, y, *s);
    }
    tree(acc, |a, b| a + b)
}

#[inline(always)]
fn exp_sum_body<const F: bool>(x: &mut [f32], shift: f32) -> f32 {
    let (chunks, rest) = x.as_chunks_mut::<LANES>();
    let mut acc = [0f32; LANES];
    for c in chunks {
        for i in 0..LANES {
            let e = math::exp_below::<F>(c[i] - shift);
            c[i] = e;
            acc[i] += e;
        }
    }
    for (a, x) in acc.iter_mut().zip(rest) {
        *x = math::exp_below::<F>(*x - shift);
        *a += *x;
    }
    tree(acc, |a, b| a + b)
}

#[inline(always)]
fn softmax_rows_body<const F: bool>(y: &mut [f32], x: &[f32], cols: usize, ahead: usize) {
    for (y, x) in y.chunks_exact_mut(cols).zip(x.chunks_exact(cols)) {
        let ((cx, rx), (cy, ry)) = (x.as_chunks::<LANES>(), y.as_chunks_mut::<LANES>());
        // A NaN that the maximum ignores makes the sum NaN.
        let larger = |a: f32, b: f32| if b > a { b } else { a };
        let mut most = [f32::NEG_INFINITY; LANES];
        for c in cx {
            for i in 0..LANES {
                most[i] = larger(most[i], c[i]);
            }
        }
        for (m, &x) in most.iter_mut().zip(rx) {
            *m = larger(*m, x);
        }
        let shift = tree(most, larger);
        let mut acc = [0f32; LANES];
        for (x, y) in cx.iter().zip(&mut *cy) {
            prefetch(x, ahead);
            prefetch(y, ahead);
            for i in 0..LANES {
                let e = math::exp_below::<F>(x[i] - shift);
                y[i] = e;
                acc[i] += e;
            }
        }
        for ((a, x), y) in acc.iter_mut().zip(rx).zip(&mut *ry) {
            *y = math::exp_below::<F>(*x - shift);
            *a += *y;
        }
        let factor = (1.0 / tree(acc, |a, b| a + b) as f64) as f32;
        for y in cy {
            y.iter_mut().for_each(|y| *y *= factor);
        }
        ry.iter_mut().for_each(|y| *y *= factor);
    }
}

#[inline(always)]
fn norm_rows_body<const F: bool>(y: &mut [f32], x: &[f32], cols: usize, norm: (bool, f64), weight: &[f32], bias: &[f32], ahead: usize) {
    match (weight.is_empty(), bias.is_empty()) {
        (true, true) => normalized::<F, false, false>(y, x, cols, norm, weight, bias, ahead),
        (false, true) => normalized::<F, true, false>(y, x, cols, norm, weight, bias, ahead),
        (true, false) => normalized::<F, false, true>(y, x, cols, norm, weight, bias, ahead),
        (false, false) => normalized::<F, true, true>(y, x, cols, norm, weight, bias, ahead),
    }
}

#[inline(always)]
fn normalized<const F: bool, const W: bool, const B: bool>(
    y: &mut [f32],
    x: &[f32],
    cols: usize,
    (rms, eps): (bool, f64),
    weight: &[f32],
    bias: &[f32],
    ahead: usize,
) {
    let n = cols as f64;
    for (y, x) in y.chunks_exact_mut(cols).zip(x.chunks_exact(cols)) {
        let mean = if rms { 0.0 } else { (sum_body::<F>(x) as f64 / n) as f32 };
        let factor = (1.0 / (deviation_body::<F>(x, mean) as f64 / n + eps).sqrt()) as f32;
        let one = |x: f32, w: f32, b: f32| match (W, B) {
            (false, false) => (x - mean) * factor,
            (true, false) => (x - mean) * factor * w,
            (false, true) => (x - mean) * factor + b,
            (true, true) => math::fma::<F>((x - mean) * factor, w, b),
        };
        // Lanes beyond the end are not read.
        let (w, b) = (if W { &weight[..cols] } else { x }, if B { &bias[..cols] } else { x });
        let ((cx, rx), (cy, ry)) = (x.as_chunks::<LANES>(), y.as_chunks_mut::<LANES>());
        let ((cw, rw), (cb, rb)) = (w.as_chunks::<LANES>(), b.as_chunks::<LANES>());
        for (((x, y), w), b) in cx.iter().zip(cy).zip(cw).zip(cb) {
            prefetch(x, ahead);
            prefetch(y, ahead);
            for i in 0..LANES {
                y[i] = one(x[i], w[i], b[i]);
            }
        }
        for (((&x, y), &w), &b) in rx.iter().zip(ry).zip(rw).zip(rb) {
            *y = one(x, w, b);
        }
    }
}

#[inline(always)]
fn sum_exp_body<const F: bool>(x: &[f32], shift: f32) -> f32 {
    let (chunks, rest) = x.as_chunks::<LANES>();
    let mut acc = [0f32; LANES];
    for c in chunks {
        for i in 0..LANES {
            acc[i] += math::exp_below::<F>(c[i] - shift);
        }
    }
    for (a, &x) in acc.iter_mut().zip(rest) {
        *a += math::exp_below::<F>(x - shift);
    }
    tree(acc, |a, b| a + b)
}

#[inline(always)]
fn scale_body<const F: bool>(x: &mut [f32], s: f32) {
    x.iter_mut().for_each(|x| *x *= s);
}

#[inline(always)]
fn shift_body<const F: bool>(x: &mut [f32], s: f32) {
    x.iter_mut().for_each(|x| *x -= s);
}

#[inline(always)]
fn axpy_body<const F: bool>(y: &mut [f32], a: f32, x: &[f32]) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y = math::fma::<F>(a, x, *y);
    }
}

#[inline(always)]
fn normalize_body<const F: bool>(x: &mut [f32], mean: f32, factor: f32, weight: &[f32], bias: &[f32]) {
    if weight.is_empty() {
        x.iter_mut().for_each(|x| *x = (*x - mean) * factor);
    } else if bias.is_empty() {
        for (x, &w) in x.iter_mut().zip(weight) {
            *x = (*x - mean) * factor * w;
        }
        return;
    } else {
        for ((x, &w), &b) in x.iter_mut().zip(weight).zip(bias) {
            *x = math::fma::<F>((*x - mean) * factor, w, b);
        }
        return;
    }
    for (x, &b) in x.iter_mut().zip(bias) {
        *x += b;
    }
}

#[inline(always)]
fn multiply_body<const F: bool>(y: &mut [f32], a: &[f32], b: &[f32]) {
    for ((y, &a), &b) in y.iter_mut().zip(a).zip(b) {
        *y = a * b;
    }
}

#[inline(always)]
fn multiply_add_body<const F: bool>(y: &mut [f32], a: &[f32], b: &[f32]) {
    for ((y, &a), &b) in y.iter_mut().zip(a).zip(b) {
        *y = math::fma::<F>(a, b, *y);
    }
}

#[inline(always)]
fn rest_body<const F: bool>(x: &mut [f32], h: &[f32], along: f32, shift: f32, factor: f32) {
    for (x, &h) in x.iter_mut().zip(h) {
        *x = math::fma::<F>(-along, *x, h - shift) * factor;
    }
}

#[inline(always)]
fn exp_of_body<const F: bool>(x: &mut [f32], scale: f32, shift: f32) {
    x.iter_mut().for_each(|x| *x = math::exp::<F>(*x * scale - shift));
}

#[inline(always)]
fn softcap_body<const F: bool>(x: &mut [f32], c: f32) {
    x.iter_mut().for_each(|x| *x = c * math::tanh::<F>(*x / c));
}

#[inline(always)]
fn slope_body<const F: bool>(x: &mut [f32], p: &[f32], shift: f32, factor: f32) {
    for (x, &p) in x.iter_mut().zip(p) {
        *x = (*x - shift) * p * factor;
    }
}

versions! {
    fn sum_f32(x: &[f32]) -> f32 = sum_body;
    fn max_f32(x: &[f32]) -> f32 = max_body;
    fn deviation_f32(x: &[f32], mean: f32) -> f32 = deviation_body;
    fn dot_f32(a: &[f32], b: &[f32]) -> f32 = dot_body;
    fn exp_sum_f32(x: &mut [f32], shift: f32) -> f32 = exp_sum_body;
    fn softmax_rows_f32(y: &mut [f32], x: &[f32], cols: usize, ahead: usize) = softmax_rows_body;
    fn norm_rows_f32(y: &mut [f32], x: &[f32], cols: usize, norm: (bool, f64), weight: &[f32], bias: &[f32], ahead: usize) = norm_rows_body;
    fn sum_exp_f32(x: &[f32], shift: f32) -> f32 = sum_exp_body;
    fn scale_f32(x: &mut [f32], s: f32) = scale_body;
    fn shift_f32(x: &mut [f32], s: f32) = shift_body;
    fn axpy_f32(y: &mut [f32], a: f32, x: &[f32]) = axpy_body;
    fn normalize_f32(x: &mut [f32], mean: f32, factor: f32, weight: &[f32], bias: &[f32]) = normalize_body;
    fn multiply_f32(y: &mut [f32], a: &[f32], b: &[f32]) = multiply_body;
    fn multiply_add_f32(y: &mut [f32], a: &[f32], b: &[f32]) = multiply_add_body;
    fn rest_f32(x: &mut [f32], h: &[f32], along: f32, shift: f32, factor: f32) = rest_body;
    fn exp_of_f32(x: &mut [f32], scale: f32, shift: f32) = exp_of_body;
    fn softcap_f32(x: &mut [f32], c: f32) = softcap_body;
    fn slope_f32(x: &mut [f32], p: &[f32], shift: f32, factor: f32) = slope_body;
}

impl Real for f32 {
    const ZERO: f32 = 0.0;
    const LOWEST: f32 = f32::NEG_INFINITY;
    fn of(x: f64) -> f32 {
        x as f32
    }
    fn wide(self) -> f64 {
        self as f64
    }
    fn sum(x: &[f32]) -> f32 {
        sum_f32(x)
    }
    fn max(x: &[f32]) -> f32 {
        max_f32(x)
    }
    fn deviation(x: &[f32], mean: f32) -> f32 {
        deviation_f32(x, mean)
    }
    fn dot(a: &[f32], b: &[f32]) -> f32 {
        dot_f32(a, b)
    }
    fn exp_sum(x: &mut [f32], shift: f32) -> f32 {
        exp_sum_f32(x, shift)
    }
    fn sum_exp(x: &[f32], shift: f32) -> f32 {
        sum_exp_f32(x, shift)
    }
    fn softmax_rows(y: &mut [f32], x: &[f32], cols: usize, ahead: usize) {
        #[cfg(target_arch = "x86_64")]
        if super::path::current() == super::path::Path::Avx512 {
            // SAFETY: the path includes the instructions.
            return unsafe { super::math512::softmax_rows(y, x, cols, ahead) };
        }
        softmax_rows_f32(y, x, cols, ahead);
    }
    fn norm_rows(y: &mut [f32], x: &[f32], cols: usize, norm: (bool, f64), weight: &[f32], bias: &[f32], ahead: usize) {
        norm_rows_f32(y, x, cols, norm, weight, bias, ahead);
    }
    fn scale(x: &mut [f32], s: f32) {
        scale_f32(x, s);
    }
    fn shift(x: &mut [f32], s: f32) {
        shift_f32(x, s);
    }
    fn axpy(y: &mut [f32], a: f32, x: &[f32]) {
        axpy_f32(y, a, x);
    }
    fn normalize(x: &mut [f32], mean: f32, factor: f32, weight: &[f32], bias: &[f32]) {
        normalize_f32(x, mean, factor, weight, bias);
    }
    fn multiply(y: &mut [f32], a: &[f32], b: &[f32]) {
        multiply_f32(y, a, b);
    }
    fn multiply_add(y: &mut [f32], a: &[f32], b: &[f32]) {
        multiply_add_f32(y, a, b);
    }
    fn rest(x: &mut [f32], h: &[f32], along: f32, shift: f32, factor: f32) {
        rest_f32(x, h, along, shift, factor);
    }
    fn exp_of(x: &mut [f32], scale: f32, shift: f32) {
        exp_of_f32(x, scale, shift);
    }
    fn softcap(x: &mut [f32], c: f32) {
        softcap_f32(x, c);
    }
    fn slope(x: &mut [f32], p: &[f32], shift: f32, factor: f32) {
        slope_f32(x, p, shift, factor);
    }
}

impl Real for f64 {
    const ZERO: f64 = 0.0;
    const LOWEST: f64 = f64::NEG_INFINITY;
    fn of(x: f64) -> f64 {
        x
    }
    fn wide(self) -> f64 {
        self
    }
    fn sum(x: &[f64]) -> f64 {
        x.iter().sum()
    }
    fn max(x: &[f64]) -> f64 {
        x.iter().fold(f64::NEG_INFINITY, |a, &b| if (a > b) | a.is_nan() { a } else { b })
    }
    fn deviation(x: &[f64], mean: f64) -> f64 {
        x.iter().map(|x| (x - mean) * (x - mean)).sum()
    }
    fn dot(a: &[f64], b: &[f64]) -> f64 {
        a.iter().zip(b).map(|(a, b)| a * b).sum()
    }
    fn exp_sum(x: &mut [f64], shift: f64) -> f64 {
        x.iter_mut().for_each(|x| *x = (*x - shift).exp());
        x.iter().sum()
    }
    fn sum_exp(x: &[f64], shift: f64) -> f64 {
        x.iter().map(|x| (x - shift).exp()).sum()
    }
    fn scale(x: &mut [f64], s: f64) {
        x.iter_mut().for_each(|x| *x *= s);
    }
    fn shift(x: &mut [f64], s: f64) {
        x.iter_mut().for_each(|x| *x -= s);
    }
    fn axpy(y: &mut [f64], a: f64, x: &[f64]) {
        y.iter_mut().zip(x).for_each(|(y, x)| *y += a * x);
    }
    fn normalize(x: &mut [f64], mean: f64, factor: f64, weight: &[f64], bias: &[f64]) {
        for (i, x) in x.iter_mut().enumerate() {
            *x = (*x - mean) * factor * weight.get(i).copied().unwrap_or(1.0) + bias.get(i).copied().unwrap_or(0.0);
        }
    }
    fn multiply(y: &mut [f64], a: &[f64], b: &[f64]) {
        y.iter_mut().zip(a).zip(b).for_each(|((y, a), b)| *y = a * b);
    }
    fn multiply_add(y: &mut [f64], a: &[f64], b: &[f64]) {
        y.iter_mut().zip(a).zip(b).for_each(|((y, a), b)| *y += a * b);
    }
    fn rest(x: &mut [f64], h: &[f64], along: f64, shift: f64, factor: f64) {
        x.iter_mut().zip(h).for_each(|(x, h)| *x = (h - shift - along * *x) * factor);
    }
    fn exp_of(x: &mut [f64], scale: f64, shift: f64) {
        x.iter_mut().for_each(|x| *x = (*x * scale - shift).exp());
    }
    fn softcap(x: &mut [f64], c: f64) {
        x.iter_mut().for_each(|x| *x = c * (*x / c).tanh());
    }
    fn slope(x: &mut [f64], p: &[f64], shift: f64, factor: f64) {
        x.iter_mut().zip(p).for_each(|(x, p)| *x = (*x - shift) * p * factor);
    }
}
