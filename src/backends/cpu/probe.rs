//! Loops that do one thing as fast as the processor can, to measure its limits: copying, reading, multiplying and adding.

use super::path::{Path, current, versions};
use super::span::{finish_streaming, stream_copy};

/// Bytes moved from which on a copy goes past the caches.
const STREAM_MIN_BYTES: usize = 48 << 20;

versions! {
    /// The sum, in as many chains as keep memory busy.
    pub fn sum(x: &[f32]) -> f64 = sum_body;
    fn few_chains(x: f32, turns: usize) -> f64 = few_chains_body;
    fn many_chains(x: f32, turns: usize) -> f64 = many_chains_body;
}

/// Numbers that `chains` works on: as many as hide the time that an instruction takes, in registers.
pub fn width() -> usize {
    if current() == Path::Avx512 { 192 } else { 96 }
}

/// `turns` multiplications and additions of each of `width()` numbers that begin as `x`; their sum.
pub fn chains(x: f32, turns: usize) -> f64 {
    if current() == Path::Avx512 { many_chains(x, turns) } else { few_chains(x, turns) }
}

#[inline(always)]
fn few_chains_body<const F: bool>(x: f32, turns: usize) -> f64 {
    chains_body::<F, 96>(x, turns)
}

#[inline(always)]
fn many_chains_body<const F: bool>(x: f32, turns: usize) -> f64 {
    chains_body::<F, 192>(x, turns)
}

#[inline(always)]
fn sum_body<const F: bool>(x: &[f32]) -> f64 {
    let (chunks, rest) = x.as_chunks::<128>();
    let mut acc = [0f32; 128];
    for c in chunks {
        for i in 0..128 {
            acc[i] += c[i];
        }
    }
    acc.iter().chain(rest).map(|v| *v as f64).sum()
}

#[inline(always)]
fn chains_body<const F: bool, const N: usize>(x: f32, turns: usize) -> f64 {
    let m = std::hint::black_box(x * 0.999_999_94);
    let c = std::hint::black_box(0f32);
    let mut acc = [x; N];
    for _ in 0..turns {
        for a in &mut acc {
            *a = if F { a.mul_add(m, c) } else { *a * m + c };
        }
    }
    acc.iter().map(|v| *v as f64).sum()
}

/// Copies to `to`; past the caches where the whole copy moves `bytes` that do not fit into them.
///
/// # Safety
/// `to` must have room for as many elements, apart from `x`.
pub unsafe fn copy(x: &[f32], to: *mut f32, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        if bytes >= STREAM_MIN_BYTES {
            stream_copy(x.as_ptr().cast(), to.cast(), size_of_val(x));
            finish_streaming();
        } else {
            std::ptr::copy_nonoverlapping(x.as_ptr(), to, x.len());
        }
    }
}
