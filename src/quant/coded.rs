//! Block formats whose values are not integers of a few bits under scales: indices of tables and codebooks, small floats, digits of base 3.

use super::f16_to_f32;
use half::f16;

/// What such a format is. Value `i` of an item, 32 successive values, is the factor of the item's part times a number of the format's, plus the
/// part's shift where there is one.
#[derive(Clone, Copy, Debug)]
pub struct Coded {
    /// Values of a block, a multiple of 32.
    pub len: usize,
    /// Bytes of a block.
    pub bytes: usize,
    /// The factor that all values of a block share.
    pub factor: Factor,
    /// The values `32·g .. 32·g + 32` of a block.
    pub item: fn(block: &[u8], g: usize, out: &mut [f32; 32]),
    /// How SIMD kernels decode items, where they can.
    pub table: Option<Table>,
    /// The words of the codebook that numbers are looked up in: entries of 16 bits, two to a word. In WGSL: `entry_FORMAT(i)`.
    pub book: Option<&'static [u32]>,
    /// Parts of an item that have a factor of their own: 1, 2 or 4.
    pub parts: usize,
    /// Whether parts have a shift.
    pub shifted: bool,
    /// What the WGSL's `packed` gives: the numbers as integers of a byte each, or nothing, where they are none.
    pub packed: Packed,
    /// The readers of a GPU: the name to include and the source, which loads an item and unpacks it.
    pub wgsl: (&'static str, &'static str),
    /// Rows of four words in which those keep an item as it is stored.
    pub item_rows: u32,
}

/// Items that are 16 bytes of nibbles, indices of a table: value `i` of the low half of byte `i`, value `i + 16` of its high half.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// The values, under the item's factor.
    pub values: &'static [i8; 16],
    /// The byte of item 0; the others follow.
    pub at: usize,
    /// The factor of an item.
    pub factor: fn(block: &[u8], g: usize) -> f32,
}

impl Table {
    /// The values of an item.
    #[inline(always)]
    pub(super) fn item(&self, block: &[u8], g: usize, out: &mut [f32; 32]) {
        nibbles(&block[self.at + 16 * g..][..16], self.values, (self.factor)(block, g), out);
    }
}

/// Numbers as integers of a byte each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Packed {
    /// Bytes with a sign.
    Signed,
    /// Bytes below 128, which are this much too large.
    Above(u32),
    /// The numbers are no integers: WGSL has `quad` instead.
    Floats,
}

/// How the factor of a block is stored.
#[derive(Clone, Copy, Debug)]
pub enum Factor {
    /// An f16 at this byte.
    Half(usize),
    /// A byte `e` at this byte: `2^(e − 128)`.
    PowerOfTwo(usize),
    /// Four bytes from 0 on, one each 16 values: four bits of exponent, three of mantissa.
    SmallFloats,
    /// The bits of an f16 in bits 12 to 16 of four words of two bytes, from this byte on, the lowest first.
    Scattered(usize),
    /// An f32 at this byte.
    Float(usize),
}

impl Factor {
    /// Stores what is nearest to `x`.
    pub(super) fn set(self, block: &mut [u8], x: f32) {
        match self {
            Factor::Half(at) => block[at..at + 2].copy_from_slice(&f16::from_f32(x).to_le_bytes()),
            Factor::PowerOfTwo(at) => block[at] = (x.abs().log2().round() + 128.0).clamp(0.0, 254.0) as u8,
            Factor::SmallFloats => block[..4].fill(nearest_small_float(x.abs())),
            Factor::Scattered(at) => {
                let bits = f16::from_f32(x).to_bits();
                for i in 0..4 {
                    let byte = &mut block[at + 2 * i + 1];
                    *byte = *byte & 15 | ((bits >> (4 * i) & 15) << 4) as u8;
                }
            }
            Factor::Float(at) => block[at..at + 4].copy_from_slice(&x.to_le_bytes()),
        }
    }
}

impl Coded {
    /// Whether the numbers are integers of a byte, and how much too large the WGSL's `packed` gives them.
    pub(crate) const fn integers(&self) -> (bool, u32) {
        match self.packed {
            Packed::Signed => (true, 0),
            Packed::Above(n) => (true, n),
            Packed::Floats => (false, 0),
        }
    }

    /// Value `i` of a block.
    pub(super) fn value(&self, block: &[u8], i: usize) -> f32 {
        let mut out = [0.0; 32];
        (self.item)(block, i / 32, &mut out);
        out[i % 32]
    }

    /// Decodes whole blocks.
    pub(crate) fn decode(&self, bytes: &[u8], out: &mut [f32]) {
        for (block, out) in bytes.chunks_exact(self.bytes).zip(out.chunks_exact_mut(self.len)) {
            for (g, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
                (self.item)(block, g, out);
            }
        }
    }
}

/// The f16 at byte `at`.
#[inline(always)]
pub(super) fn half(block: &[u8], at: usize) -> f32 {
    f16_to_f32(short(block, at) as u16)
}

/// Two bytes at `at`.
#[inline(always)]
pub(super) fn short(block: &[u8], at: usize) -> u32 {
    u16::from_le_bytes([block[at], block[at + 1]]).into()
}

/// Four bytes at `at`.
#[inline(always)]
pub(super) fn word(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// `2^(e − 128)`: a scale of the microscaling formats, E8M0, halved, as the tables of their values are doubled.
#[inline(always)]
pub(crate) fn power_of_two(e: u8) -> f32 {
    // The two smallest are subnormal.
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (e as u32 - 1) << 23 })
}

/// The positive float of four bits of exponent (bias 7) and three of mantissa in the low seven bits; 0x7f is zero.
#[inline(always)]
pub(super) fn small_float(x: u8) -> f32 {
    let (exponent, mantissa) = ((x >> 3 & 15) as u32, (x & 7) as u32);
    match (exponent, x) {
        (_, 0x7f) => 0.0,
        (0, _) => mantissa as f32 / 512.0,
        _ => f32::from_bits((exponent + 120) << 23 | mantissa << 20),
    }
}

/// The byte whose [`small_float`] is nearest to `x ≥ 0`; of two equally near the larger, as ggml rounds.
pub(super) fn nearest_small_float(x: f32) -> u8 {
    let mut best = 0;
    for byte in 1..0x7f {
        if (small_float(byte) - x).abs() <= (small_float(best) - x).abs() {
            best = byte;
        }
    }
    best
}

/// Values by nibbles: number `i` is the low half of byte `i`, and number `bytes.len() + i` its high half.
#[inline(always)]
pub(super) fn nibbles(bytes: &[u8], table: &[i8; 16], scale: f32, out: &mut [f32]) {
    let (low, high) = out.split_at_mut(bytes.len());
    for ((&b, low), high) in bytes.iter().zip(low).zip(high) {
        (*low, *high) = (scale * f32::from(table[(b & 15) as usize]), scale * f32::from(table[(b >> 4) as usize]));
    }
}

/// Twice the values of E2M1, a float of a sign, two bits of exponent and one of mantissa.
pub(super) const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The 16 levels of IQ4_NL and IQ4_XS, nearer to each other where weights are frequent.
pub(super) const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// `-1` where bit `i` is set, else `1`.
#[inline(always)]
pub(super) fn sign(bits: u32, i: usize) -> f32 {
    f32::from_bits(0x3f80_0000 | (bits >> i & 1) << 31)
}

/// Seven signs and an eighth, set where the number of the others that are set is odd.
#[inline(always)]
pub(super) fn even_signs(seven: u32) -> u32 {
    seven | (seven.count_ones() & 1) << 7
}

/// Entry `i` of a codebook: 16 bits.
#[inline(always)]
pub(super) fn entry<const N: usize>(book: &[u32; N], i: u32) -> u32 {
    book[i as usize / 2] >> (16 * (i & 1)) & 0xffff
}

/// Value `i` of a codebook's entry of IQ2: 8, 25 or 43.
#[inline(always)]
pub(super) fn of_three(entry: u32, i: usize) -> f32 {
    let code = entry >> (2 * i) & 3;
    (8 + 17 * code + (code >> 1)) as f32
}

/// The words of a codebook from its text, `0x` and eight digits each.
pub(super) const fn words<const N: usize>(text: &str) -> [u32; N] {
    let (text, mut out, mut at, mut n) = (text.as_bytes(), [0; N], 0, 0);
    while n < N {
        while text[at] != b'x' {
            at += 1;
        }
        let mut digit = 1;
        while digit <= 8 {
            let c = text[at + digit];
            out[n] = out[n] << 4 | (if c > b'9' { c - b'a' + 10 } else { c - b'0' }) as u32;
            digit += 1;
        }
        at += 9;
        n += 1;
    }
    out
}
