//! Transposed copies of matrices.

use super::path::{Path, current};

/// Edge of the tiles that are moved through registers.
const TILE_EDGE: usize = 8;

/// `to[c * to_row + r] = from[r * from_row + c]` for `rows` rows of `cols` elements of 1, 2, 4 or 8 bytes each.
///
/// # Safety
/// Both matrices must lie in memory, apart from each other, and nothing else may use `to` meanwhile.
pub unsafe fn transpose(size: usize, from: *const u8, from_row: isize, to: *mut u8, to_row: isize, rows: usize, cols: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match size {
            4 => tiles::<u32>(from.cast(), from_row, to.cast(), to_row, rows, cols),
            8 => tiles::<u64>(from.cast(), from_row, to.cast(), to_row, rows, cols),
            2 => tiles::<u16>(from.cast(), from_row, to.cast(), to_row, rows, cols),
            _ => tiles::<u8>(from, from_row, to, to_row, rows, cols),
        }
    }
}

/// # Safety
/// See `transpose`.
unsafe fn tiles<T: Copy>(from: *const T, from_row: isize, to: *mut T, to_row: isize, rows: usize, cols: usize) {
    let vectors = size_of::<T>() == 4 && current() != Path::Plain;
    // Tiles of 16 by 16, so that lines of both matrices are used up while they are in the cache, also where they share its sets.
    let starts = |n: usize| (0..n).step_by(2 * TILE_EDGE);
    for (c0, r0) in starts(cols).flat_map(|c| starts(rows).map(move |r| (c, r))) {
        #[cfg(target_arch = "x86_64")]
        if size_of::<T>() == 4 && current() == Path::Avx512 && rows - r0 >= 2 * TILE_EDGE && cols - c0 >= 2 * TILE_EDGE {
            let a = from.wrapping_offset(r0 as isize * from_row + c0 as isize);
            let b = to.wrapping_offset(c0 as isize * to_row + r0 as isize);
            // SAFETY: the tile lies within both matrices, and the processor has the instructions.
            unsafe { tile_avx512(a.cast(), from_row, b.cast(), to_row) };
            continue;
        }
        for r0 in (r0..rows.min(r0 + 2 * TILE_EDGE)).step_by(TILE_EDGE) {
            for c1 in (c0..cols.min(c0 + 2 * TILE_EDGE)).step_by(TILE_EDGE) {
                let (h, w) = (TILE_EDGE.min(rows - r0), TILE_EDGE.min(cols - c1));
                let a = from.wrapping_offset(r0 as isize * from_row + c1 as isize);
                let b = to.wrapping_offset(c1 as isize * to_row + r0 as isize);
                // SAFETY: the tile lies within both matrices; the vector form is used for whole tiles where the processor has it.
                unsafe {
                    #[cfg(target_arch = "x86_64")]
                    if vectors && h == TILE_EDGE && w == TILE_EDGE {
                        tile_avx2(a.cast(), from_row, b.cast(), to_row);
                        continue;
                    }
                    #[cfg(target_arch = "aarch64")]
                    if vectors && h == TILE_EDGE && w == TILE_EDGE {
                        for (r, c) in [(0, 0), (0, 4), (4, 0), (4, 4)] {
                            tile_neon(a.cast::<f32>().offset(r * from_row + c), from_row, b.cast::<f32>().offset(c * to_row + r), to_row);
                        }
                        continue;
                    }
                    let _ = vectors;
                    for c in 0..w {
                        for r in 0..h {
                            *b.offset(c as isize * to_row + r as isize) = *a.offset(r as isize * from_row + c as isize);
                        }
                    }
                }
            }
        }
    }
}

/// # Safety
/// Eight rows of eight f32 must lie at both addresses, their rows so far apart.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn tile_avx2(from: *const f32, from_row: isize, to: *mut f32, to_row: isize) {
    use std::arch::x86_64::*;
    // SAFETY: the caller's promise; unaligned loads and stores.
    unsafe {
        let row = |i: isize| _mm256_loadu_ps(from.offset(i * from_row));
        // Pairs of rows, then quads, then halves.
        let pair = |a, b| (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
        let (a0, a1) = pair(row(0), row(1));
        let (a2, a3) = pair(row(2), row(3));
        let (a4, a5) = pair(row(4), row(5));
        let (a6, a7) = pair(row(6), row(7));
        let quad = |a, b| (_mm256_shuffle_ps::<0x44>(a, b), _mm256_shuffle_ps::<0xEE>(a, b));
        let (b0, b1) = quad(a0, a2);
        let (b2, b3) = quad(a1, a3);
        let (b4, b5) = quad(a4, a6);
        let (b6, b7) = quad(a5, a7);
        let put = |i: isize, v| _mm256_storeu_ps(to.offset(i * to_row), v);
        put(0, _mm256_permute2f128_ps::<0x20>(b0, b4));
        put(1, _mm256_permute2f128_ps::<0x20>(b1, b5));
        put(2, _mm256_permute2f128_ps::<0x20>(b2, b6));
        put(3, _mm256_permute2f128_ps::<0x20>(b3, b7));
        put(4, _mm256_permute2f128_ps::<0x31>(b0, b4));
        put(5, _mm256_permute2f128_ps::<0x31>(b1, b5));
        put(6, _mm256_permute2f128_ps::<0x31>(b2, b6));
        put(7, _mm256_permute2f128_ps::<0x31>(b3, b7));
    }
}

/// # Safety
/// Four rows of four f32 must lie at both addresses, their rows so far apart.
#[cfg(target_arch = "aarch64")]
unsafe fn tile_neon(from: *const f32, from_row: isize, to: *mut f32, to_row: isize) {
    use std::arch::aarch64::*;
    // SAFETY: the caller's promise; NEON is part of the architecture.
    unsafe {
        let row = |i: isize| vld1q_f32(from.offset(i * from_row));
        // Pairs of rows, then quads.
        let (a, b) = (vtrnq_f32(row(0), row(1)), vtrnq_f32(row(2), row(3)));
        let low = |a, b| vcombine_f32(vget_low_f32(a), vget_low_f32(b));
        let high = |a, b| vcombine_f32(vget_high_f32(a), vget_high_f32(b));
        vst1q_f32(to, low(a.0, b.0));
        vst1q_f32(to.offset(to_row), low(a.1, b.1));
        vst1q_f32(to.offset(2 * to_row), high(a.0, b.0));
        vst1q_f32(to.offset(3 * to_row), high(a.1, b.1));
    }
}

/// # Safety
/// Sixteen rows of sixteen f32 must lie at both addresses, their rows so far apart.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn tile_avx512(from: *const f32, from_row: isize, to: *mut f32, to_row: isize) {
    use std::arch::x86_64::*;
    // SAFETY: the caller's promise; unaligned loads and stores.
    unsafe {
        let mut r = [_mm512_setzero_ps(); 16];
        for (i, r) in r.iter_mut().enumerate() {
            *r = _mm512_loadu_ps(from.offset(i as isize * from_row));
        }
        // Pairs of rows, then quads, in each quarter of a vector; then the quarters change places.
        let mut q = [_mm512_setzero_ps(); 16];
        for i in (0..16).step_by(4) {
            let pair = |a, b| (_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            let ((a0, a1), (b0, b1)) = (pair(r[i], r[i + 1]), pair(r[i + 2], r[i + 3]));
            q[i] = _mm512_shuffle_ps::<0x44>(a0, b0);
            q[i + 1] = _mm512_shuffle_ps::<0xEE>(a0, b0);
            q[i + 2] = _mm512_shuffle_ps::<0x44>(a1, b1);
            q[i + 3] = _mm512_shuffle_ps::<0xEE>(a1, b1);
        }
        for i in 0..4 {
            let (low, high) = (|a, b| _mm512_shuffle_f32x4::<0x88>(a, b), |a, b| _mm512_shuffle_f32x4::<0xDD>(a, b));
            // Quarters 0 and 2, and 1 and 3, of rows 0 to 7 and of rows 8 to 15.
            let (a, b) = (low(q[i], q[i + 4]), low(q[i + 8], q[i + 12]));
            let (c, d) = (high(q[i], q[i + 4]), high(q[i + 8], q[i + 12]));
            let put = |n: usize, v| _mm512_storeu_ps(to.offset((n * 4 + i) as isize * to_row), v);
            put(0, low(a, b));
            put(1, low(c, d));
            put(2, high(a, b));
            put(3, high(c, d));
        }
    }
}
