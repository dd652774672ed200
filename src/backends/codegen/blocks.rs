//! Block formats, decoded one element at a time from their stored bytes: WGSL that follows from a format's descriptor.

use crate::quant::{BitField, BlockFormat, Linear, Numbers, Scales, Values};
use crate::shader::{Template, block_values};

static ELEMENT: Template = Template::new("block_element.wgsl", include_str!("block_element.wgsl"));
static CODED_ELEMENT: Template = Template::new("block_coded_element.wgsl", include_str!("block_coded_element.wgsl"));

/// Number `i` of a field with `count` numbers, as u32: what `BitField::get` reads.
fn bits(b: BitField, i: &str, count: usize, id: usize) -> String {
    let (per_byte, at, lane_bits) = (8 / b.width, b.at, b.lanes.ilog2());
    let row = lane_bits + per_byte.ilog2();
    if b.width == 8 {
        return format!("y{id}(a + {at}u + {i})");
    }
    let mut byte = format!("a + {at}u");
    if count >> row > 1 {
        byte += &if lane_bits > 0 { format!(" + (({i} >> {row}u) << {lane_bits}u)") } else { format!(" + ({i} >> {row}u)") };
    }
    if b.lanes > 1 {
        byte += &format!(" + ({i} & {}u)", b.lanes - 1);
    }
    let mut shift = if lane_bits > 0 { format!("({i} >> {lane_bits}u)") } else { i.to_string() };
    if count > b.lanes * per_byte {
        shift = format!("({shift} & {}u)", per_byte - 1);
    }
    if b.width > 1 {
        shift = format!("({shift} << {}u)", b.width.ilog2());
    }
    format!("((y{id}({byte}) >> {shift}) & {}u)", b.max())
}

/// Number `i` of `count`, as f32: what `Numbers::get` reads.
fn number(n: &Numbers, i: &str, count: usize, id: usize) -> String {
    let mut all = bits(n.low, i, count, id);
    if n.signed {
        return format!("f32(bitcast<i32>({all} << 24u) >> 24u)");
    }
    if let Some(high) = n.high {
        all = format!("({all} | ({} << {}u))", bits(high, i, count, id), n.low.width);
    }
    if n.bias > 0 { format!("(f32({all}) - {}.0)", n.bias) } else { format!("f32({all})") }
}

/// The function `d{id}(e)`, element `e` of a view of words, and its helpers.
pub(super) fn decode(f: &BlockFormat, view: &str, id: usize) -> String {
    match &f.values {
        Values::Linear(fields) => decode_linear(fields, view, id),
        Values::Coded(_) => decode_coded(f, view, id),
    }
}

fn decode_coded(f: &BlockFormat, view: &str, id: usize) -> String {
    let mut values = block_values(f);
    values.extend([("ID", (id as u32).into()), ("VIEW", view.to_string().into())]);
    CODED_ELEMENT.source(&values).into_owned()
}

fn decode_linear(f: &Linear, view: &str, id: usize) -> String {
    let (scales_at, scale) = match &f.scales {
        Scales::Whole => (0, String::new()),
        Scales::Each16(n) => (0, number(n, "g", f.len / 16, id)),
        Scales::Nibbles16 { at } | Scales::SixBits32 { at } => (*at, String::new()),
    };
    let int = |n: usize| (n as u32).into();
    let values = [
        ("ID", int(id)),
        ("VIEW", view.to_string().into()),
        ("LEN", int(f.len)),
        ("BYTES", int(f.bytes())),
        ("D", int(f.d)),
        ("DMIN", int(f.dmin.unwrap_or(0))),
        ("MINIMUMS", f.dmin.is_some().into()),
        ("GROUP", int(f.group())),
        ("WHOLE", matches!(f.scales, Scales::Whole).into()),
        ("SIX_BITS", matches!(f.scales, Scales::SixBits32 { .. }).into()),
        ("SCALES", int(scales_at)),
        ("SCALE", scale.into()),
        ("QUANT", number(&f.quants, "k", f.len, id).into()),
    ];
    ELEMENT.source(&values).into_owned()
}
