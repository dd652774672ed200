//! A block format as data: its fields, where their bits lie and the value that they stand for; and the plain reader that follows from it.

use super::coded::Coded;
use half::f16;

/// Where the numbers of a field lie: `width` bits each, side by side in `lanes` neighbouring bytes, then in the next bits of the same bytes, then
/// in the next `lanes` bytes.
///
/// With `n = 8 / width` numbers to a byte, number `i` begins at bit `width · (i / lanes % n)` of byte `at + i / (lanes · n) · lanes + i % lanes`.
#[derive(Clone, Copy, Debug)]
pub struct BitField {
    /// The first byte in the block.
    pub at: usize,
    /// Bits of a number: 1, 2, 4 or 8.
    pub width: usize,
    /// Neighbouring bytes that hold successive numbers, a power of two; 1 for single bits in the order of the values.
    pub lanes: usize,
}

impl BitField {
    /// The byte and the first bit of number `i`.
    #[inline(always)]
    const fn place(&self, i: usize) -> (usize, usize) {
        let n = 8 / self.width;
        (self.at + i / (self.lanes * n) * self.lanes + i % self.lanes, self.width * (i / self.lanes % n))
    }

    /// The largest number.
    pub const fn max(&self) -> u8 {
        0xff >> (8 - self.width)
    }

    /// Number `i`.
    #[inline(always)]
    pub fn get(&self, block: &[u8], i: usize) -> u8 {
        let (byte, bit) = self.place(i);
        block[byte] >> bit & self.max()
    }

    /// Stores number `i` in bits that are zero; what `x` has above `width` bits is dropped.
    #[inline(always)]
    fn put(&self, block: &mut [u8], i: usize, x: u8) {
        let (byte, bit) = self.place(i);
        block[byte] |= (x & self.max()) << bit;
    }

    /// Stores numbers from 0 on, each from bit `from` of its byte on, in bits that are zero.
    #[inline(always)]
    fn put_all(&self, block: &mut [u8], numbers: &[u8], from: usize) {
        let per_byte = 8 / self.width;
        for (row, numbers) in numbers.chunks_exact(self.lanes * per_byte).enumerate() {
            let bytes = &mut block[self.at + row * self.lanes..][..self.lanes];
            for (lane, byte) in bytes.iter_mut().enumerate() {
                *byte |= (0..per_byte).fold(0, |b, n| b | (numbers[n * self.lanes + lane] >> from & self.max()) << (self.width * n));
            }
        }
    }

    /// The bytes of numbers `i .. i + RUN`, which lie side by side, and where the numbers are in them; `i` and `lanes` are multiples of `RUN`.
    #[inline(always)]
    fn run<'a, const RUN: usize>(&self, block: &'a [u8], i: usize) -> (&'a [u8], usize) {
        let (byte, bit) = self.place(i);
        (&block[byte..][..RUN], bit)
    }
}

/// Integers of up to eight bits: `low`, with `high` in the bits above, less `bias`.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    /// The low bits, or all of them.
    pub low: BitField,
    /// The bits above.
    pub high: Option<BitField>,
    /// What is stored for zero.
    pub bias: u8,
    /// Whether the eight bits are a signed byte.
    pub signed: bool,
}

impl Numbers {
    /// The smallest and the largest number.
    pub const fn range(&self) -> (i32, i32) {
        if self.signed {
            return (-128, 127);
        }
        let high = if let Some(high) = &self.high { high.width } else { 0 };
        (-(self.bias as i32), (1 << (self.low.width + high)) - 1 - self.bias as i32)
    }

    /// What bits mean.
    #[inline(always)]
    const fn of_bits(&self, bits: i32) -> i32 {
        if self.signed { bits as i8 as i32 } else { bits - self.bias as i32 }
    }

    /// Number `i`.
    #[inline(always)]
    pub fn get(&self, block: &[u8], i: usize) -> i32 {
        let high = self.high.map_or(0, |h| h.get(block, i) << self.low.width);
        self.of_bits((self.low.get(block, i) | high).into())
    }

    /// Stores number `i`, which is in [`range`](Self::range), in bits that are zero.
    #[inline(always)]
    pub(super) fn put(&self, block: &mut [u8], i: usize, x: i32) {
        let bits = if self.signed { x as i8 as u8 } else { (x + self.bias as i32) as u8 };
        self.low.put(block, i, bits);
        if let Some(high) = self.high {
            high.put(block, i, bits >> self.low.width);
        }
    }

    /// Stores the numbers of a block of 32, as they are in the bits (without bias), in bits that are zero.
    #[inline(always)]
    pub(super) fn put_each(&self, block: &mut [u8], number: impl Fn(usize) -> u8) {
        if let (16, Some(high)) = (self.low.lanes, self.high) {
            // Nibbles, and a word of fifth bits.
            let mut fifth = 0u32;
            for (j, byte) in block[self.low.at..][..16].iter_mut().enumerate() {
                let (a, b) = (number(j), number(j + 16));
                *byte = a & 15 | b << 4;
                fifth |= u32::from(a >> 4) << j | u32::from(b >> 4) << (j + 16);
            }
            block[high.at..][..4].copy_from_slice(&fifth.to_le_bytes());
        } else if self.low.lanes == 16 {
            for (j, byte) in block[self.low.at..][..16].iter_mut().enumerate() {
                *byte = number(j) | number(j + 16) << 4;
            }
        } else {
            self.put_bits(block, &std::array::from_fn::<_, 32, _>(number));
        }
    }

    /// Stores numbers from 0 on, as they are in the bits (without bias), in bits that are zero.
    #[inline(always)]
    pub(super) fn put_bits(&self, block: &mut [u8], numbers: &[u8]) {
        self.low.put_all(block, numbers, 0);
        if let Some(high) = self.high {
            high.put_all(block, numbers, self.low.width);
        }
    }
}

/// The integer scales `s` and minimums `m` of the groups of a block.
#[derive(Clone, Copy, Debug)]
pub enum Scales {
    /// One group, the block: `s = 1`, `m = −1`, so that a minimum is added.
    Whole,
    /// Groups of 16 values: `s` as given, no `m`.
    Each16(Numbers),
    /// Groups of 16 values: `s` of group g in the low half of byte `at + g`, `m` in its high half.
    Nibbles16 {
        /// The first of 16 bytes.
        at: usize,
    },
    /// Groups of 32 values, `s` and `m` of six bits in twelve bytes. Group g < 4: `s` in bits 0..6 of byte `at + g`, `m` in bits 0..6 of byte
    /// `at + 4 + g`. Group g ≥ 4: bits 0..4 of `s` and `m` in the low and high half of byte `at + 4 + g`, bits 4..6 of `s` in bits 6..8 of byte
    /// `at + g − 4`, those of `m` in bits 6..8 of byte `at + g`.
    SixBits32 {
        /// The first of twelve bytes.
        at: usize,
    },
}

/// A type of a tensor in a GGUF file.
#[derive(Clone, Copy, Debug)]
pub struct GgufType {
    /// Its number, `ggml_type` of ggml.h.
    pub number: u32,
    /// Its name.
    pub name: &'static str,
    /// The number of a file whose matrices are mostly of it, `llama_ftype` of llama.h.
    pub file_type: u32,
}

/// A format whose values are integers of a few bits under scales.
///
/// Value `i` of a block, in group `g`, is `d·s[g]·q[i] − dmin·m[g]`, where `d` and `dmin` are f16 and the others integers; a format without
/// `dmin` has the first term only.
#[derive(Clone, Copy, Debug)]
pub struct Linear {
    /// Values of a block: 32 or 256.
    pub len: usize,
    /// The byte of `d`, an even one.
    pub d: usize,
    /// The byte of `dmin`, if there are minimums.
    pub dmin: Option<usize>,
    /// `q`.
    pub quants: Numbers,
    /// `s` and `m`.
    pub scales: Scales,
}

/// What the bits of a block stand for.
#[derive(Clone, Copy, Debug)]
pub enum Values {
    /// Integers under scales.
    Linear(Linear),
    /// Anything else, such as indices of a table or a codebook.
    Coded(Coded),
}

/// Encodes the values of a block into its bytes.
type Pack = fn(&[f32], &mut [u8]);

/// What a block format is. Everything that reads or writes blocks follows from it, but for the SIMD kernels of the CPU.
#[derive(Clone, Copy, Debug)]
pub struct BlockFormat {
    /// The dtype's name.
    pub name: &'static str,
    /// What it is in GGUF files; `None` for formats that only other files have.
    pub gguf: Option<GgufType>,
    /// What its bits stand for.
    pub values: Values,
    /// The format of about the same size for rows that are multiples of 32 but not of 256.
    pub substitute: Option<&'static BlockFormat>,
    /// Encodes one block, whose bytes are zero; `None` where a format is only read.
    pub(super) pack: Option<Pack>,
}

impl BlockFormat {
    /// Bytes of a block.
    pub const fn bytes(&self) -> usize {
        match &self.values {
            Values::Linear(f) => f.bytes(),
            Values::Coded(f) => f.bytes,
        }
    }

    /// Values of a block.
    pub const fn block_len(&self) -> usize {
        match &self.values {
            Values::Linear(f) => f.len,
            Values::Coded(f) => f.len,
        }
    }

    /// The fields of a format of integers under scales.
    pub const fn linear(&self) -> Option<&Linear> {
        match &self.values {
            Values::Linear(f) => Some(f),
            Values::Coded(_) => None,
        }
    }

    /// The exact value `i` of a block, by the rule alone and in f64: what tests compare the readers with.
    ///
    /// ```
    /// use tensorlogic::DType;
    ///
    /// let mut block = [0u8; 18]; // q4_0: d, then 32 nibbles
    /// block[1] = 0x3c; // d = 1
    /// block[2] = 0xf0; // q[0] = 0, q[16] = 15, each less 8
    /// let q4_0 = DType::Q4_0.format().unwrap();
    /// assert_eq!((q4_0.exact(&block, 0), q4_0.exact(&block, 16)), (-8.0, 7.0));
    /// ```
    pub fn exact(&self, block: &[u8], i: usize) -> f64 {
        match &self.values {
            Values::Linear(f) => f.exact(block, i),
            Values::Coded(f) => f.value(block, i).into(),
        }
    }

    /// Stores the factor that all values of a block share: `x`, or what is nearest to it among the factors that the format has.
    pub fn set_factor(&self, block: &mut [u8], x: f32) {
        match &self.values {
            Values::Linear(f) => block[f.d..f.d + 2].copy_from_slice(&f16::from_f32(x).to_le_bytes()),
            Values::Coded(f) => f.factor.set(block, x),
        }
    }

    /// Whether [`quantize`](super::quantize) can write it.
    pub const fn is_encoded(&self) -> bool {
        self.pack.is_some()
    }

    /// Encodes one block, to the nearest values that a plain search finds; `false` where the format is only read.
    ///
    /// # Panics
    /// If `values` or `block` has another length than one block's; [`quantize`](super::quantize) checks and takes rows.
    pub fn pack(&self, values: &[f32], block: &mut [u8]) -> bool {
        assert!(values.len() == self.block_len() && block.len() == self.bytes(), "one block of {}", self.name);
        let Some(pack) = self.pack else { return false };
        block.fill(0);
        pack(values, block);
        true
    }

    /// Rows of four words in which kernels of a GPU keep 32 values as they are stored.
    pub(crate) const fn item_rows(&self) -> u32 {
        match &self.values {
            Values::Linear(f) => f.item_rows(),
            Values::Coded(f) => f.item_rows,
        }
    }

    /// How a format that is not of integers under scales is decoded.
    pub(crate) const fn coded(&self) -> Option<&Coded> {
        match &self.values {
            Values::Linear(_) => None,
            Values::Coded(f) => Some(f),
        }
    }
}

impl Linear {
    /// Bytes of a block.
    pub const fn bytes(&self) -> usize {
        const fn size(n: &Numbers, count: usize) -> usize {
            let high = if let Some(high) = &n.high { high.width } else { 0 };
            (n.low.width + high) * count / 8
        }
        let halves = if self.dmin.is_some() { 4 } else { 2 };
        let scales = match &self.scales {
            Scales::Whole => 0,
            Scales::Each16(n) => size(n, self.len / 16),
            Scales::Nibbles16 { .. } => self.len / 16,
            Scales::SixBits32 { .. } => 12,
        };
        halves + scales + size(&self.quants, self.len)
    }

    /// Rows of four words of 32 values, as `linear_loads.wgsl` loads them: integers, then scales, then what is left.
    const fn item_rows(&self) -> u32 {
        let third = match &self.scales {
            Scales::Whole => self.quants.low.width == 8,
            Scales::Each16(n) => n.signed,
            Scales::Nibbles16 { .. } => false,
            Scales::SixBits32 { .. } => self.quants.high.is_some(),
        };
        2 + third as u32
    }

    /// Values of a group.
    pub const fn group(&self) -> usize {
        match self.scales {
            Scales::Whole => self.len,
            Scales::Each16(_) | Scales::Nibbles16 { .. } => 16,
            Scales::SixBits32 { .. } => 32,
        }
    }

    /// `s` and `m` of group `g`; 0 for an `m` that does not exist.
    #[inline(always)]
    pub fn scale_min(&self, block: &[u8], g: usize) -> (i32, i32) {
        match self.scales {
            Scales::Whole => (1, -1),
            Scales::Each16(n) => (n.get(block, g), 0),
            Scales::Nibbles16 { at } => ((block[at + g] & 15) as i32, (block[at + g] >> 4) as i32),
            Scales::SixBits32 { at } => {
                let b = |i: usize| block[at + i] as i32;
                if g < 4 { (b(g) & 63, b(g + 4) & 63) } else { (b(g + 4) & 15 | b(g - 4) >> 6 << 4, b(g + 4) >> 4 | b(g) >> 6 << 4) }
            }
        }
    }

    /// Stores `s` and `m` of group `g` in bits that are zero.
    pub(super) fn put_scale_min(&self, block: &mut [u8], g: usize, s: i32, m: i32) {
        match self.scales {
            Scales::Whole => {}
            Scales::Each16(n) => n.put(block, g, s),
            Scales::Nibbles16 { at } => block[at + g] = (s | m << 4) as u8,
            Scales::SixBits32 { at } if g < 4 => {
                block[at + g] |= s as u8;
                block[at + g + 4] |= m as u8;
            }
            Scales::SixBits32 { at } => {
                block[at + g + 4] |= (s & 15 | m << 4) as u8;
                block[at + g - 4] |= (s >> 4 << 6) as u8;
                block[at + g] |= (m >> 4 << 6) as u8;
            }
        }
    }

    /// The largest `s` and `m`.
    pub(super) const fn max_scale(&self) -> i32 {
        match &self.scales {
            Scales::Whole => 1,
            Scales::Each16(n) => n.range().1,
            Scales::Nibbles16 { .. } => 15,
            Scales::SixBits32 { .. } => 63,
        }
    }

    /// The exact value `i` of a block, by the rule alone.
    fn exact(&self, block: &[u8], i: usize) -> f64 {
        let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f64();
        let (s, m) = self.scale_min(block, i / self.group());
        let x = half(self.d) * s as f64 * self.quants.get(block, i) as f64;
        self.dmin.map_or(x, |at| x - half(at) * m as f64)
    }

    /// Decodes whole blocks. Where `self` is a constant ([`with_format`](super::with_format)), of `BYTES` bytes and `LEN` values, this compiles to
    /// loops over its fields.
    #[inline(always)]
    pub(crate) fn decode<const BYTES: usize, const LEN: usize>(&self, bytes: &[u8], out: &mut [f32]) {
        for (block, out) in bytes.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<LEN>().0) {
            match (self.quants.low.lanes, self.group()) {
                (16, _) => self.decode_nibbles(block, out),
                (_, 16) => self.decode_runs::<16>(block, out),
                _ => self.decode_runs::<32>(block, out),
            }
        }
    }

    /// The f16 at byte `at`.
    #[inline(always)]
    fn half(block: &[u8], at: usize) -> f32 {
        f16_to_f32(u16::from_le_bytes([block[at], block[at + 1]]))
    }

    /// What bits stand for under a scale and a minimum.
    #[inline(always)]
    fn value(&self, bits: i32, scale: f32, min: f32) -> f32 {
        let term = scale * self.quants.of_bits(bits) as f32;
        if self.dmin.is_some() { term - min } else { term }
    }

    /// Decodes a block of 32 values with one scale: 16 bytes of nibbles, and where numbers have five bits a word of the fifth.
    #[inline(always)]
    fn decode_nibbles(&self, block: &[u8], out: &mut [f32]) {
        let (scale, min) = (Self::half(block, self.d), self.dmin.map_or(0.0, |at| -Self::half(block, at)));
        let word = self.quants.high.map_or(0, |h| u32::from_le_bytes([block[h.at], block[h.at + 1], block[h.at + 2], block[h.at + 3]]));
        let (bytes, _) = self.quants.low.run::<16>(block, 0);
        for (j, &b) in bytes.iter().enumerate() {
            let fifth = |i: usize| ((word >> i & 1) << 4) as i32;
            out[j] = self.value((b & 15) as i32 | fifth(j), scale, min);
            out[j + 16] = self.value((b >> 4) as i32 | fifth(j + 16), scale, min);
        }
    }

    /// Decodes a block in runs of one scale each, whose numbers of a field lie side by side.
    #[inline(always)]
    fn decode_runs<const RUN: usize>(&self, block: &[u8], out: &mut [f32]) {
        let (d, dmin) = (Self::half(block, self.d), self.dmin.map_or(0.0, |at| Self::half(block, at)));
        let scale_min = |g: usize| {
            let (s, m) = self.scale_min(block, g);
            (d * s as f32, dmin * m as f32)
        };
        // Scales of six bits are decoded together; those of whole fields are quicker one by one.
        let six_bits = match self.scales {
            Scales::SixBits32 { .. } => true,
            Scales::Each16(n) => n.high.is_some(),
            _ => false,
        };
        let mut together = [(0.0, 0.0); 16];
        if six_bits {
            for (g, scale) in together[..self.len / RUN].iter_mut().enumerate() {
                *scale = scale_min(g);
            }
        }
        let Numbers { low, high, .. } = self.quants;
        for (r, out) in out.as_chunks_mut::<RUN>().0.iter_mut().enumerate() {
            let (scale, min) = if six_bits { together[r] } else { scale_min(r) };
            let (bytes, bit) = low.run::<RUN>(block, r * RUN);
            match high.map(|high| (high, high.run::<RUN>(block, r * RUN))) {
                Some((high, (above, shift))) if RUN == 16 => {
                    // Eight numbers at a time: vector instructions shift words, not bytes.
                    let word = |bytes: &[u8], i: usize| u64::from_le_bytes(std::array::from_fn(|j| bytes[8 * i + j]));
                    let each = |number: u8| u64::from(number) * 0x0101_0101_0101_0101;
                    for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                        let numbers = word(bytes, i) >> bit & each(low.max()) | (word(above, i) >> shift & each(high.max())) << low.width;
                        for (x, q) in out.iter_mut().zip(numbers.to_le_bytes()) {
                            *x = self.value(q.into(), scale, min);
                        }
                    }
                }
                Some((high, (above, shift))) => {
                    for ((x, &b), &h) in out.iter_mut().zip(bytes).zip(above) {
                        *x = self.value((b >> bit & low.max() | (h >> shift & high.max()) << low.width).into(), scale, min);
                    }
                }
                None => {
                    for (x, &b) in out.iter_mut().zip(bytes) {
                        *x = self.value((b >> bit & low.max()).into(), scale, min);
                    }
                }
            }
        }
    }
}

/// An IEEE half as f32, without branches so that loops over it vectorize.
#[inline(always)]
pub(crate) fn f16_to_f32(h: u16) -> f32 {
    let magnitude = (h & 0x7fff) as u32;
    // Moves the exponent from bias 15 to bias 127 by multiplying with 2^112; that also normalizes subnormals.
    let finite = (f32::from_bits(magnitude << 13) * f32::from_bits(0x7780_0000)).to_bits();
    let special = 0x7f80_0000 | (magnitude << 13);
    let bits = if magnitude >= 0x7c00 { special } else { finite };
    f32::from_bits(bits | ((h & 0x8000) as u32) << 16)
}
