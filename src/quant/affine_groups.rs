//! Groups of 32 integers under a scale and an offset or zero point: what weights of MLX, AWQ, GPTQ and compressed-tensors are stored as here.
//! A value of A2 to A8 is `s·q + o`, one of Z4 and Z8 `s·(q − z)`, q of 2 to 8 bits.
//!
//! ```text
//! byte 0..2    s, f16
//! byte 2..4    o, f16, or z, u16
//! byte 4..     q: value i in the bits from BITS·i on, the lowest of a byte first
//! ```

use super::block::{BlockFormat, Values};
use super::coded::{Coded, Factor, Packed, half, short, word};
use super::pack::{inverse, put_f16, range};

/// The descriptor of integers of so many bits, with a zero point instead of an offset or not.
const fn format<const BITS: usize, const POINT: bool>(name: &'static str, wgsl: (&'static str, &'static str)) -> BlockFormat {
    let coded = Coded {
        len: 32,
        bytes: 4 + 4 * BITS,
        factor: Factor::Half(0),
        item: item::<BITS, POINT>,
        table: None,
        book: None,
        parts: 1,
        shifted: true,
        packed: Packed::Signed,
        wgsl,
        item_rows: (BITS / 4 + 1) as u32,
    };
    BlockFormat { name, gguf: None, values: Values::Coded(coded), substitute: None, pack: Some(pack::<BITS, POINT>) }
}

pub(super) const A2: BlockFormat = format::<2, false>("a2", ("quant/a2.wgsl", include_str!("groups/a2.wgsl")));
pub(super) const A3: BlockFormat = format::<3, false>("a3", ("quant/a3.wgsl", include_str!("groups/a3.wgsl")));
pub(super) const A4: BlockFormat = format::<4, false>("a4", ("quant/a4.wgsl", include_str!("groups/a4.wgsl")));
pub(super) const A5: BlockFormat = format::<5, false>("a5", ("quant/a5.wgsl", include_str!("groups/a5.wgsl")));
pub(super) const A6: BlockFormat = format::<6, false>("a6", ("quant/a6.wgsl", include_str!("groups/a6.wgsl")));
pub(super) const A8: BlockFormat = format::<8, false>("a8", ("quant/a8.wgsl", include_str!("groups/a8.wgsl")));
pub(super) const Z4: BlockFormat = format::<4, true>("z4", ("quant/z4.wgsl", include_str!("groups/z4.wgsl")));
pub(super) const Z8: BlockFormat = format::<8, true>("z8", ("quant/z8.wgsl", include_str!("groups/z8.wgsl")));

fn item<const BITS: usize, const POINT: bool>(block: &[u8], _: usize, out: &mut [f32; 32]) {
    let (s, o, z) = (half(block, 0), half(block, 2), short(block, 2) as f32);
    for (run, out) in out.chunks_exact_mut(8).enumerate() {
        // Eight integers are BITS bytes.
        let at = 4 + run * BITS;
        let low = word(block, at.min(block.len() - 4)) as u64 >> (8 * (at - at.min(block.len() - 4)));
        let bits = if BITS > 4 { low | (word(block, at + BITS - 4) as u64) << (8 * (BITS - 4)) } else { low };
        for (i, x) in out.iter_mut().enumerate() {
            let q = (bits >> (BITS * i) & ((1 << BITS) - 1)) as f32;
            *x = if POINT { s * (q - z) } else { s * q + o };
        }
    }
}

/// Integers that span the values, and with a zero point zero too.
fn pack<const BITS: usize, const POINT: bool>(values: &[f32], block: &mut [u8]) {
    let (top, (lo, hi)) = (((1 << BITS) - 1) as f32, range(values));
    let (lo, hi) = if POINT { (lo.min(0.0), hi.max(0.0)) } else { (lo, hi) };
    let s = put_f16(block, 0, (hi - lo) / top);
    let o = if POINT {
        let z = (-lo * inverse(s)).round().clamp(0.0, top);
        block[2..4].copy_from_slice(&(z as u16).to_le_bytes());
        -z * s
    } else {
        put_f16(block, 2, lo)
    };
    for (i, x) in values.iter().enumerate() {
        let q = ((x - o) * inverse(s)).round().clamp(0.0, top) as u64;
        for bit in (0..BITS).filter(|bit| q >> bit & 1 == 1) {
            block[4 + (BITS * i + bit) / 8] |= 1 << ((BITS * i + bit) % 8);
        }
    }
}
