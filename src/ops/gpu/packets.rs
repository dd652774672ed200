//! WGSL functions that read rows eight elements at a time: 16 bytes of halves in one access where an operand lies in memory like that.

use super::start;
use crate::dtype::DType;
use crate::plan::{Load, Source, Word};

/// How the packets of a load's rows are read.
pub(super) struct Packets {
    /// `alias X`, `fetch_x(row, packet, size) -> X`, `low_x(X)` and `high_x(X)`, for the name `x`.
    pub text: String,
    /// Where the operand begins, two words of which the sum counts, if the text reads its buffer; otherwise a packet is eight f32.
    pub raw: Option<[Word; 2]>,
}

/// What comes of a packet that reaches beyond its row's end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Beyond {
    /// Elements of the row stand in.
    Any,
    /// `REST` does, but for packets that lie beyond the end as a whole.
    Rest,
}

impl Packets {
    /// Functions called `name` over load `number`, which is rows of `size` elements; the words of its start are `at` and the next.
    pub fn of(load: &Load, number: usize, name: &str, size: usize, at: usize, beyond: Beyond) -> Packets {
        let whole = |s: &&Source| {
            let aligned = s.layout.offset.is_multiple_of(8) && (s.offset.is_none() || s.aligned);
            s.layout.is_contiguous() && size.is_multiple_of(8) && aligned && matches!(s.dtype, DType::F16 | DType::BF16)
        };
        let upper = name.to_uppercase();
        let plain = load.plain().filter(whole);
        if let Some((source, raw)) = plain.and_then(|s| Some((s, start(s)?))) {
            let wide = |x: &str, y: &str| match source.dtype {
                DType::F16 => format!("vec4<f32>(unpack2x16float(p.{x}), unpack2x16float(p.{y}))"),
                _ => format!("bitcast<vec4<f32>>(vec4<u32>(p.{x} << 16u, p.{x} & 0xffff0000u, p.{y} << 16u, p.{y} & 0xffff0000u))"),
            };
            let text = format!(
                "alias {upper} = vec4<u32>;\nfn fetch_{name}(row: u32, v: u32, size: u32) -> {upper} {{ \
                 return raw_{number}[(word({at}u) + word({}u)) / 8u + row * (size / 8u) + min(v, size / 8u - 1u)]; }}\n\
                 fn low_{name}(p: {upper}) -> vec4<f32> {{ return {}; }}\nfn high_{name}(p: {upper}) -> vec4<f32> {{ return {}; }}\n",
                at + 1,
                wide("x", "y"),
                wide("z", "w")
            );
            return Packets { text, raw: Some(raw) };
        }
        // No load waits for a condition.
        let one = |n: u32| format!("load_{number}(row * size + min(c + {n}u, size - 1u))");
        let quad = match size.is_multiple_of(4) {
            true => format!("load4_{number}(row * size + min(c, size - 4u))"),
            false => format!("vec4<f32>({}, {}, {}, {})", one(0), one(1), one(2), one(3)),
        };
        let quad = match beyond {
            Beyond::Rest if !size.is_multiple_of(8) => {
                format!("select(vec4<f32>(REST), {quad}, vec4<u32>(c) + vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(size))")
            }
            _ => quad,
        };
        let text = format!(
            "struct {upper} {{ low: vec4<f32>, high: vec4<f32> }}\nfn quad_{name}(row: u32, c: u32, size: u32) -> vec4<f32> {{ return {quad}; }}\n\
             fn fetch_{name}(row: u32, v: u32, size: u32) -> {upper} {{ \
             return {upper}(quad_{name}(row, 8u * v, size), quad_{name}(row, 8u * v + 4u, size)); }}\n\
             fn low_{name}(p: {upper}) -> vec4<f32> {{ return p.low; }}\nfn high_{name}(p: {upper}) -> vec4<f32> {{ return p.high; }}\n"
        );
        Packets { text, raw: None }
    }
}
