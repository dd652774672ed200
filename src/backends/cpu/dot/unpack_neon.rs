//! Block formats with NEON: the integers of 32 consecutive weights, and their scales. By hand for each kind of field, not for each format: which
//! kinds a format has stands in its descriptor, so that what is compiled for format number Q of [`LINEAR`] has no branches left.

use crate::quant::{LINEAR, Scales};
use core::arch::aarch64::*;

/// Groups of weights with a scale of their own that a block has at most.
pub(super) const MAX_GROUPS: usize = 16;

/// What the kernels need to know of a block format.
pub(super) struct Shape {
    /// Bytes of a block.
    pub bytes: usize,
    /// Weights of a block, and of each group in it that has a scale.
    pub len: usize,
    pub group: usize,
    /// Whether the group is the block, whose scale is `d` alone.
    pub whole: bool,
    /// Whether there are minimums.
    pub min: bool,
}

/// The shape of a block format.
pub(super) const fn shape(q: usize) -> Shape {
    let f = LINEAR[q];
    Shape { bytes: f.bytes(), len: f.len, group: f.group(), whole: matches!(f.scales, Scales::Whole), min: f.dmin.is_some() }
}

/// The scales of a block: `weight = d·s[g]·quant − dmin·m[g]`.
pub(super) struct BlockScales {
    pub d: f32,
    pub dmin: f32,
    pub s: [i32; MAX_GROUPS],
    pub m: [f32; MAX_GROUPS],
}

/// An f16 at `p + at`.
#[inline(always)]
unsafe fn half(p: *const u8, at: usize) -> f32 {
    // SAFETY: the caller promises the bytes; NEON is part of the architecture.
    unsafe { vgetq_lane_f32::<0>(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(p.add(at).cast::<u16>().read_unaligned())))) }
}

/// The scales of the block at `p`.
///
/// # Safety
/// `p` is at a block.
#[inline(always)]
pub(super) unsafe fn scales<const Q: usize>(p: *const u8) -> BlockScales {
    let format = const { LINEAR[Q] };
    let mut all = BlockScales { d: 0.0, dmin: 0.0, s: [0; MAX_GROUPS], m: [0.0; MAX_GROUPS] };
    // SAFETY: the caller promises a block.
    unsafe {
        all.d = half(p, format.d);
        all.dmin = format.dmin.map_or(0.0, |at| half(p, at));
        let block = std::slice::from_raw_parts(p, format.bytes());
        for g in 0..format.len / format.group() {
            let (s, m) = format.scale_min(block, g);
            (all.s[g], all.m[g]) = (s, m as f32);
        }
    }
    all
}

/// The quants of run `g` of the block at `p`, their bias taken off.
///
/// # Safety
/// `p` is at a block, `g` is less than its runs of 32.
#[inline(always)]
pub(super) unsafe fn quants<const Q: usize>(p: *const u8, g: usize) -> [int8x16_t; 2] {
    // SAFETY: all offsets lie in the block; NEON is part of the architecture.
    unsafe {
        let load = |at: usize| [vld1q_u8(p.add(at)), vld1q_u8(p.add(at + 16))];
        let right = |v: [uint8x16_t; 2], by: usize| v.map(|v| vshlq_u8(v, vdupq_n_s8(-(by as i8))));
        let keep = |v: [uint8x16_t; 2], mask: u8| v.map(|v| vandq_u8(v, vdupq_n_u8(mask)));
        // `value` in the bytes that have a bit of `mask` set.
        let pick = |v: uint8x16_t, mask: uint8x16_t, value: u8| vandq_u8(vtstq_u8(v, mask), vdupq_n_u8(value));
        let numbers = const { LINEAR[Q].quants };
        let low = numbers.low;
        let mut bits = match (low.width, low.lanes) {
            (8, 32) => load(low.at + g * 32),
            // Low nibbles of 16 bytes, then the high ones.
            (4, 16) => {
                let both = vld1q_u8(p.add(low.at));
                [vandq_u8(both, vdupq_n_u8(15)), vshrq_n_u8::<4>(both)]
            }
            (4, 32) => keep(right(load(low.at + g / 2 * 32), g % 2 * 4), 15),
            (4, 64) => keep(right(load(low.at + g / 4 * 64 + g % 2 * 32), g % 4 / 2 * 4), 15),
            (2, 32) => keep(right(load(low.at + g / 4 * 32), g % 4 * 2), 3),
            _ => unreachable!("no reader of these quants"),
        };
        if let Some(high) = numbers.high {
            let above = match (low.width, high.width, high.lanes) {
                (4, 1, 1) => {
                    let each = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
                    [0, 2].map(|i| {
                        let eight = |i: usize| vdup_n_u8(*p.add(high.at + i));
                        pick(vcombine_u8(eight(i), eight(i + 1)), each, 16)
                    })
                }
                (_, 1, 32) => load(high.at).map(|v| pick(v, vdupq_n_u8(1 << g), 1 << low.width)),
                (4, 2, 32) => keep(right(load(high.at + g / 4 * 32), g % 4 * 2), 3).map(|v| vshlq_n_u8::<4>(v)),
                _ => unreachable!("no reader of these high bits"),
            };
            bits = [vorrq_u8(bits[0], above[0]), vorrq_u8(bits[1], above[1])];
        }
        bits.map(|bits| vsubq_s8(vreinterpretq_s8_u8(bits), vdupq_n_s8(numbers.bias as i8)))
    }
}
