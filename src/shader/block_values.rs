//! What the WGSL readers of block formats are rendered with: what follows from a format's descriptor.

use super::TemplateValue;
use crate::quant::{BlockFormat, Coded, Linear, Numbers, Scales, Values, codebooks};

/// The values of the templates in `lib/quant/` for a format.
pub fn block_values(f: &BlockFormat) -> Vec<(&'static str, TemplateValue)> {
    let len = f.block_len();
    let mut values = vec![
        ("FORMAT", f.name.into()),
        ("BLOCK_SIZE", int(len)),
        ("BLOCK_QUADS", int(len / 4)),
        ("BLOCK_ITEMS", int(len / 32)),
        ("BYTES", int(f.bytes())),
        ("PLANES", f.item_rows().into()),
        ("CODED", f.coded().is_some().into()),
    ];
    match &f.values {
        Values::Linear(fields) => linear(fields, &mut values),
        Values::Coded(coded) => self::coded(coded, &mut values),
    }
    values
}

fn int(n: usize) -> TemplateValue {
    (n as u32).into()
}

fn coded(f: &Coded, values: &mut Vec<(&'static str, TemplateValue)>) {
    let (integers, less) = f.integers();
    values.extend([
        ("CODED_PARTS", int(f.parts)),
        ("INTEGERS", integers.into()),
        ("LESS", less.into()),
        ("HAS_BOOK", f.book.is_some().into()),
        ("BOOK", f.book.map_or(0, codebooks::start).into()),
        ("K_SCALES", false.into()),
    ]);
}

fn linear(f: &Linear, values: &mut Vec<(&'static str, TemplateValue)>) {
    let low = f.quants.low;
    values.extend([
        ("LESS", int(f.quants.bias.into())),
        ("INTEGERS", true.into()),
        ("D", int(f.d)),
        ("MINIMUMS", f.dmin.is_some().into()),
        ("LOW_AT", int(low.at)),
        ("LOW_WIDTH", int(low.width)),
        ("LOW_LANES", int(low.lanes)),
        ("HIGH", f.quants.high.is_some().into()),
        ("SIGNED", f.quants.signed.into()),
        ("WHOLE", matches!(f.scales, Scales::Whole).into()),
        ("K_SCALES", matches!(f.scales, Scales::SixBits32 { .. }).into()),
        ("NIBBLE_SCALES", matches!(f.scales, Scales::Nibbles16 { .. }).into()),
        // Blocks of whole words, whose words are those of the buffer.
        ("IN_WORDS", (f.bytes() % 4 == 0).into()),
        // The words of a block that begins in the middle of one are shifted where they are unpacked.
        ("SHIFTED_WORDS", (matches!(f.scales, Scales::Whole) && f.bytes() % 4 != 0 && f.quants.high.is_none()).into()),
    ]);
    if let Some(high) = f.quants.high {
        values.extend([("HIGH_AT", int(high.at)), ("HIGH_WIDTH", int(high.width)), ("HIGH_LANES", int(high.lanes))]);
    }
    match f.scales {
        Scales::Nibbles16 { at } | Scales::SixBits32 { at } => values.push(("SCALES_AT", int(at))),
        Scales::Each16(Numbers { low, high, bias, signed }) => {
            values.extend([("SCALES_AT", int(low.at)), ("SCALE_WIDTH", int(low.width)), ("SCALE_LANES", int(low.lanes))]);
            values.extend([("SCALE_HIGH", high.is_some().into()), ("SCALE_LESS", int(bias.into())), ("SCALE_SIGNED", signed.into())]);
            if let Some(high) = high {
                values.extend([
                    ("SCALE_HIGH_AT", int(high.at)),
                    ("SCALE_HIGH_WIDTH", int(high.width)),
                    ("SCALE_HIGH_LANES", int(high.lanes)),
                ]);
            }
        }
        Scales::Whole => {}
    }
}
