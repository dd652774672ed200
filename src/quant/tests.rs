//! Descriptors against themselves: fields that fill a block, packers that write what the readers read, and readers against the exact rule.

use super::*;
use crate::dtype::DType;

/// Bytes that repeat only after a long time.
fn random_bytes(count: usize, mut state: u64) -> Vec<u8> {
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as u8
    };
    (0..count).map(|_| next()).collect()
}

#[test]
fn dtypes_and_descriptors_are_in_one_order() {
    for (d, f) in DType::BLOCKS.into_iter().zip(FORMATS) {
        assert!(f.gguf.is_none_or(|gguf| gguf.name == format!("{d:?}")));
        assert!(
            f.name.eq_ignore_ascii_case(&format!("{d:?}")) && f.coded().is_none_or(|c| c.wgsl.0 == format!("quant/{}.wgsl", f.name)),
            "{d}"
        );
        assert_eq!((d.name(), d.block(), d.block_bytes()), (f.name, f.block_len(), f.bytes()));
        assert!(f.substitute.is_none_or(|s| s.block_len() == 32), "{d}");
        let Some(f) = f.linear() else { continue };
        // The kernels with AVX2 and AVX-512 load both halves as one word, and the first of a block of 32 from its start.
        assert!(f.d % 2 == 0 && f.dmin.is_none_or(|at| at == f.d + 2) && (f.d == 0 || f.len == 256), "{d}");
    }
}

/// Every bit of a block belongs to one number: after all numbers are stored as ones, a block is full, and no sooner.
#[test]
fn fields_fill_a_block_without_overlap() {
    for (d, f) in DType::BLOCKS.into_iter().zip(LINEAR) {
        let mut block = vec![0u8; f.bytes()];
        let mut bits = 0;
        let mut counted = |block: &[u8], added: u32, what: &str| {
            bits += added;
            let set: u32 = block.iter().map(|b| b.count_ones()).sum();
            assert_eq!(set, bits, "{}: {what} shares bits with another field", d);
        };
        for at in [Some(f.d), f.dmin].into_iter().flatten() {
            block[at..at + 2].fill(0xff);
            counted(&block, 16, "a half");
        }
        // What is stored as ones only: the largest unsigned number, or −1.
        let ones = |n: &Numbers| if n.signed { -1 } else { n.range().1 };
        let width = |n: &Numbers| (n.low.width + n.high.map_or(0, |h| h.width)) as u32;
        for i in 0..f.len {
            f.quants.put(&mut block, i, ones(&f.quants));
            counted(&block, width(&f.quants), "q");
        }
        for g in 0..f.len / f.group() {
            let (s, m, bits) = match f.scales {
                Scales::Whole => (0, 0, 0),
                Scales::Each16(n) => (ones(&n), 0, width(&n)),
                Scales::Nibbles16 { .. } => (15, 15, 8),
                Scales::SixBits32 { .. } => (63, 63, 12),
            };
            f.put_scale_min(&mut block, g, s, m);
            counted(&block, bits, "s or m");
        }
        assert_eq!(bits as usize, 8 * f.bytes(), "{}: some bits belong to no field", d);
    }
}

#[test]
fn what_is_stored_is_read() {
    for (d, f) in DType::BLOCKS.into_iter().zip(LINEAR) {
        let random = random_bytes(f.len + 32, 3);
        let number = |n: &Numbers, r: u8| if n.signed { r as i8 as i32 } else { r as i32 % (n.range().1 - n.range().0 + 1) + n.range().0 };
        let mut block = vec![0u8; f.bytes()];
        let q: Vec<i32> = (0..f.len).map(|i| number(&f.quants, random[i])).collect();
        let scales: Vec<(i32, i32)> = (0..f.len / f.group())
            .map(|g| match (&f.scales, random[f.len + g] as i32, random[f.len + 16 + g] as i32) {
                (Scales::Whole, ..) => (1, -1),
                (Scales::Each16(n), s, _) => (number(n, s as u8), 0),
                (Scales::Nibbles16 { .. }, s, m) => (s & 15, m & 15),
                (Scales::SixBits32 { .. }, s, m) => (s & 63, m & 63),
            })
            .collect();
        q.iter().enumerate().for_each(|(i, &q)| f.quants.put(&mut block, i, q));
        scales.iter().enumerate().for_each(|(g, &(s, m))| f.put_scale_min(&mut block, g, s, m));
        assert_eq!((0..f.len).map(|i| f.quants.get(&block, i)).collect::<Vec<_>>(), q, "{}", d);
        assert_eq!((0..scales.len()).map(|g| f.scale_min(&block, g)).collect::<Vec<_>>(), scales, "{}", d);
    }
}

/// Random bytes in all fields, with halves of every kind: zeros, infinities and NaN among them.
#[test]
fn the_plain_reader_follows_the_rule() {
    for (d, f) in DType::BLOCKS.into_iter().zip(LINEAR) {
        let halves = [0x0000u16, 0x8000, 0x0001, 0x83ff, 0x3c00, 0xbc00, 0x2e66, 0x7bff, 0x7c00, 0xfc00, 0x7e00];
        for (n, (&scale, &min)) in halves.iter().flat_map(|a| halves.iter().map(move |b| (a, b))).enumerate() {
            let mut block = random_bytes(f.bytes(), n as u64 + 1);
            block[f.d..f.d + 2].copy_from_slice(&scale.to_le_bytes());
            if let Some(at) = f.dmin {
                block[at..at + 2].copy_from_slice(&min.to_le_bytes());
            }
            let mut got = vec![0.0; f.len];
            dequantize(d, &block, &mut got).unwrap();
            let size = |h: u16| half::f16::from_bits(h).to_f64().abs();
            // Products of up to 14 bits with a half are rounded once more, and their difference once.
            let terms = 8192.0 * (size(scale) + if f.dmin.is_some() { size(min) } else { 0.0 });
            for (i, &got) in got.iter().enumerate() {
                let want = d.format().unwrap().exact(&block, i);
                let right = if want.is_finite() {
                    (f64::from(got) - want).abs() <= terms * 2f64.powi(-23)
                } else {
                    f64::from(got) == want || got.is_nan() && want.is_nan()
                };
                assert!(right, "{d}, d = {scale:#x}, dmin = {min:#x}: value {i} is {got}, not {want}");
            }
        }
    }
}

/// Codes of every kind under factors of every size: what a format says a block is decodes to the same values one by one and as rows, and its factor
/// is a factor of all of them.
#[test]
fn coded_formats_have_a_factor() {
    for d in DType::BLOCKS.into_iter().filter(|d| d.coded().is_some_and(|f| !f.shifted)) {
        let f = d.format().unwrap();
        for seed in 1..20 {
            let mut block = random_bytes(f.bytes(), seed);
            // Floats of eight bits that are NaN.
            block.iter_mut().filter(|b| d == DType::F8_E4M3 && **b & 0x7f == 0x7f).for_each(|b| *b = 0);
            let values = |block: &[u8]| {
                let mut out = vec![0.0; f.block_len()];
                dequantize(d, block, &mut out).unwrap();
                assert!((0..f.block_len()).all(|i| f.exact(block, i) == f64::from(out[i])), "{d}");
                out
            };
            f.set_factor(&mut block, 0.5);
            let half = values(&block);
            f.set_factor(&mut block, 4.0);
            assert!(half.iter().zip(values(&block)).all(|(a, b)| 8.0 * a == b && a.is_finite()), "{d}");
        }
    }
}
