//! Loops of one thread in plain Rust, each with and without what it does for the caches.

/// Edge of a square tile: three of f32 fit a first cache of 32 KiB.
const TILE: usize = 32;
/// How many rows ahead a gather prefetches.
const PREFETCH_ROWS: usize = 16;

/// Square matrices of `n` rows: each result by itself, so that every column of `b` is walked for every row of `a`.
pub(super) fn product(a: &[f32], b: &[f32], n: usize, out: &mut [f32]) {
    for i in 0..n {
        for j in 0..n {
            out[i * n + j] = (0..n).map(|k| a[i * n + k] * b[k * n + j]).sum();
        }
    }
}

/// The same by tiles, which stay in a cache while they are used; within a tile the results are summed as above.
pub(super) fn product_tiled(a: &[f32], b: &[f32], n: usize, out: &mut [f32]) {
    out.fill(0.0);
    for k0 in (0..n).step_by(TILE) {
        for j0 in (0..n).step_by(TILE) {
            let (k1, j1) = ((k0 + TILE).min(n), (j0 + TILE).min(n));
            for i in 0..n {
                for j in j0..j1 {
                    out[i * n + j] += (k0..k1).map(|k| a[i * n + k] * b[k * n + j]).sum::<f32>();
                }
            }
        }
    }
}

/// The same with `b` transposed first, so that both operands are read along rows.
pub(super) fn product_transposed(a: &[f32], b: &[f32], n: usize, transposed: &mut [f32], out: &mut [f32]) {
    transpose_tiled(b, n, transposed);
    for i in 0..n {
        for j in 0..n {
            out[i * n + j] = (0..n).map(|k| a[i * n + k] * transposed[j * n + k]).sum();
        }
    }
}

/// Row by row: each element that is written lies on another line than the one before.
pub(super) fn transpose(a: &[f32], n: usize, out: &mut [f32]) {
    for i in 0..n {
        for j in 0..n {
            out[j * n + i] = a[i * n + j];
        }
    }
}

/// Tile by tile: the lines of a tile are in a cache until they are full.
pub(super) fn transpose_tiled(a: &[f32], n: usize, out: &mut [f32]) {
    for i0 in (0..n).step_by(TILE) {
        for j0 in (0..n).step_by(TILE) {
            for i in i0..(i0 + TILE).min(n) {
                for j in j0..(j0 + TILE).min(n) {
                    out[j * n + i] = a[i * n + j];
                }
            }
        }
    }
}

/// Softmax of rows, `block` of them through all three passes at a time: with all rows in one block each pass goes through memory.
pub(super) fn softmax(x: &[f32], cols: usize, block: usize, out: &mut [f32]) {
    let mut most = vec![0f32; block];
    let mut sums = vec![0f32; block];
    for (x, out) in x.chunks(block * cols).zip(out.chunks_mut(block * cols)) {
        for (row, most) in x.chunks(cols).zip(&mut most) {
            *most = row.iter().fold(f32::NEG_INFINITY, |a, b| a.max(*b));
        }
        for (r, (row, out)) in x.chunks(cols).zip(out.chunks_mut(cols)).enumerate() {
            row.iter().zip(&mut *out).for_each(|(x, o)| *o = (x - most[r]).exp());
            sums[r] = out.iter().sum();
        }
        for (out, sum) in out.chunks_mut(cols).zip(&sums) {
            out.iter_mut().for_each(|o| *o /= sum);
        }
    }
}

/// Rows of `width` elements by index; with `AHEADS`, a row is asked for some rows before it is needed.
pub(super) fn gather<const AHEADS: bool>(table: &[f32], width: usize, index: &[i32], out: &mut [f32]) {
    for (n, (i, row)) in index.iter().zip(out.chunks_mut(width)).enumerate() {
        if AHEADS {
            let next = index[(n + PREFETCH_ROWS).min(index.len() - 1)] as usize * width;
            prefetch(&table[next]);
        }
        row.copy_from_slice(&table[*i as usize * width..][..width]);
    }
}

/// Whether there is an instruction for it.
pub(super) const PREFETCHES: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));

/// Asks for the line of `x`.
#[inline(always)]
fn prefetch(x: &f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; every x86-64 has it.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(x).cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a hint, which changes neither memory nor flags.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{0}]", in(reg) std::ptr::from_ref(x), options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = x;
}
