//! Packers of the formats whose values are codes. Scales of tables are found by a search, as in `pack.rs`; the others are ggml's.

use super::coded::{nearest_small_float, power_of_two, small_float};
use super::pack::{extreme, inverse, level, put_f16};

/// One scale and indices of a table.
pub(super) fn levels_block(table: &[i8; 16], values: &[f32], block: &mut [u8]) {
    let d = put_f16(block, 0, table_scale(values, table));
    put_nibbles(&mut block[2..], values, |x| nearest(table, x * inverse(d)));
}

/// A scale of six bits for each 32 values, and indices of a table.
pub(super) fn levels_groups(table: &[i8; 16], values: &[f32], block: &mut [u8]) {
    let mut scales = [0.0f32; 8];
    for (scale, values) in scales.iter_mut().zip(values.chunks_exact(32)) {
        *scale = table_scale(values, table);
    }
    let d = put_f16(block, 0, extreme(&scales) / -32.0);
    for (g, values) in values.chunks_exact(32).enumerate() {
        let s = level(scales[g], d, -32.0, 31.0);
        let bits = (s as i32 + 32) as u32;
        block[4 + g / 2] |= ((bits & 15) << (4 * (g & 1))) as u8;
        block[2 + g / 4] |= ((bits >> 4) << (2 * (g & 3))) as u8;
        put_nibbles(&mut block[8 + 16 * g..][..16], values, |x| nearest(table, x * inverse(d * s)));
    }
}

/// A power of two that keeps the value of largest magnitude within the table or one step above it, and indices of the table.
pub(super) fn powers_of_two(table: &[i8; 16], values: &[f32], block: &mut [u8]) {
    let most = extreme(values).abs();
    // The exponent of a normal number; what is smaller, and what is none, has the smallest power or the largest.
    let exponent = (most.to_bits() >> 23) as i32;
    block[0] = if most > 0.0 { (exponent - 2).clamp(0, 254) as u8 } else { 0 };
    let id = 1.0 / power_of_two(block[0]);
    put_nibbles(&mut block[1..], values, |x| nearest(table, x * id));
}

/// A small float for each 16 values, which takes the value of largest magnitude to the largest of the table, and indices of the table.
pub(super) fn small_floats(table: &[i8; 16], values: &[f32], block: &mut [u8]) {
    for (g, values) in values.chunks_exact(16).enumerate() {
        let most = extreme(values).abs();
        block[g] = nearest_small_float(if most.is_finite() { most / 6.0 } else { 0.0 });
        let id = inverse(0.5 * small_float(block[g]));
        put_nibbles(&mut block[4 + 8 * g..][..8], values, |x| nearest(table, x * id));
    }
}

/// The mean magnitude, and signs.
pub(super) fn signs(values: &[f32], block: &mut [u8]) {
    put_f16(block, 0, values.iter().map(|x| x.abs()).sum::<f32>() / values.len() as f32);
    for (i, &x) in values.iter().enumerate() {
        block[2 + i / 8] |= u8::from(x >= 0.0) << (i % 8);
    }
}

/// The largest magnitude, and −1, 0 or 1 as numbers of two bits.
pub(super) fn crumbs(values: &[f32], block: &mut [u8]) {
    let id = inverse(extreme(values).abs());
    put_f16(block, 64, extreme(values).abs());
    for (i, &x) in values.iter().enumerate() {
        block[i / 128 * 32 + i % 32] |= ternary(x * id) << (i % 128 / 32 * 2);
    }
}

/// The largest magnitude, and −1, 0 or 1 as digits of base 3, where `place` says the byte and the digit of a value.
pub(super) fn digits(place: fn(usize) -> (usize, usize), values: &[f32], block: &mut [u8]) {
    let id = inverse(extreme(values).abs());
    put_f16(block, 52, extreme(values).abs());
    let mut numbers = [0u32; 52];
    for (i, &x) in values.iter().enumerate() {
        let (byte, k) = place(i);
        numbers[byte] += ternary(x * id) as u32 * [81, 27, 9, 3, 1][k];
    }
    for (byte, n) in block.iter_mut().zip(numbers) {
        *byte = (n * 256).div_ceil(243) as u8;
    }
}

/// 0, 1 or 2 for what is nearest to −1, 0 or 1.
fn ternary(x: f32) -> u8 {
    (x.round() + 1.0).clamp(0.0, 2.0) as u8
}

/// The index of what is nearest to `x` in a table; of two equally near the first.
fn nearest(table: &[i8; 16], x: f32) -> u8 {
    let mut best = 0;
    for (i, &level) in table.iter().enumerate() {
        if (f32::from(level) - x).abs() < (f32::from(table[best]) - x).abs() {
            best = i;
        }
    }
    best as u8
}

/// Stores numbers as nibbles: number `i` in the low half of byte `i`, number `bytes.len() + i` in its high half.
fn put_nibbles(bytes: &mut [u8], values: &[f32], code: impl Fn(f32) -> u8) {
    let (low, high) = values.split_at(bytes.len());
    for ((byte, &low), &high) in bytes.iter_mut().zip(low).zip(high) {
        *byte = code(low) | code(high) << 4;
    }
}

/// Finds a scale of either sign so that its products with a table's levels are near `values`, large values counting more.
fn table_scale(values: &[f32], table: &[i8; 16]) -> f32 {
    let most = extreme(values);
    if !most.is_normal() {
        return 0.0;
    }
    let mut best = (f32::NEG_INFINITY, most / f32::from(table[0]));
    for step in -7..=7 {
        let inverse = (f32::from(table[0]) + step as f32) / most;
        let (mut wqx, mut wqq) = (0.0f32, 0.0f32);
        for &x in values {
            let n = f32::from(table[nearest(table, x * inverse) as usize]);
            let w = x * x;
            wqx += w * n * x;
            wqq += w * n * n;
        }
        let gain = wqx * (wqx / wqq);
        if gain > best.0 {
            best = (gain, wqx / wqq);
        }
    }
    best.1
}
