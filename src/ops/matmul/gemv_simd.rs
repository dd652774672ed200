//! One row times weights by subgroups that have several rows each, whose inner loops have a form in Metal's language: one product, or several of one left
//! side, which may be normalised.

use super::gemv::{Gemv, GemvParams};
use super::weights::{WEIGHTS_QUADS, WIDE_HALVES};
use crate::dtype::DType;
use crate::plan::Wgsl;
use crate::shader::{Template, TemplateValue};

static GEMV_SIMD: Template = Template::new("gemv_simd.wgsl", include_str!("gemv_simd.wgsl")).params(GemvParams::FIELDS).files(&[
    ("gemv_simd.metal", include_str!("gemv_simd.metal")),
    WEIGHTS_QUADS,
    WIDE_HALVES,
]);

/// Threads of a workgroup: two subgroups.
const WORKGROUP: u32 = 64;

/// An inner loop of `gemv_simd.metal` for a format.
struct InnerLoop {
    format: DType,
    /// The name of its switch; none for the last one.
    switch: &'static str,
    /// The place of its rows in the tuning table.
    kind: usize,
    /// Words of a block, of 16 bits or, in blocks of 256 weights, of 32.
    words: u32,
    /// The first word of the quants' low four bits.
    quants: u32,
    /// Whether each quant has a fifth bit elsewhere.
    fifth: bool,
    /// Whether a block of 32 has a least value. Without, the quant in the middle stands for zero.
    least: bool,
}

/// Switches of inner loops; the one that is left is Q6_K's.
const SWITCHES: [&str; 6] = ["METAL_HALVES", "METAL_NIBBLES", "METAL_Q8_0", "METAL_PARTS", "METAL_CODES", "METAL_CRUMBS"];

/// The inner loop of a format that has one.
fn inner_loop(format: DType) -> Option<InnerLoop> {
    let (switch, kind) = match format {
        DType::F16 => ("METAL_HALVES", 0),
        DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 => ("METAL_NIBBLES", 1),
        DType::Q8_0 => ("METAL_Q8_0", 1),
        DType::Q4_K | DType::Q5_K => ("METAL_PARTS", 2),
        DType::Q2_K | DType::Q3_K => ("METAL_CRUMBS", 2),
        DType::IQ4_NL | DType::MXFP4 => ("METAL_CODES", 1),
        DType::IQ4_XS => ("METAL_CODES", 2),
        DType::Q6_K => ("METAL_Q6_K", 2),
        _ => return None,
    };
    let fifth = matches!(format, DType::Q5_0 | DType::Q5_1 | DType::Q5_K);
    let least = matches!(format, DType::Q4_1 | DType::Q5_1);
    let [words, quants] = match format {
        DType::Q4_0 => [9, 1],
        DType::Q4_1 => [10, 2],
        DType::Q5_0 => [11, 3],
        DType::Q5_1 => [12, 4],
        DType::Q4_K => [36, 4],
        DType::Q5_K => [44, 12],
        _ => [0, 0],
    };
    Some(InnerLoop { format, switch, kind, words, quants, fifth, least })
}

impl InnerLoop {
    /// What the template asks for.
    fn values(&self) -> impl Iterator<Item = (&'static str, TemplateValue)> {
        let switches = SWITCHES.map(|s| (s, TemplateValue::from(s == self.switch)));
        let middle: u32 = if self.fifth { 16 } else { 8 };
        let numbers = [("METAL_WORDS", self.words.into()), ("METAL_QUANTS", self.quants.into()), ("METAL_MIDDLE", middle.into())];
        let parts = [("METAL_FIFTH", self.fifth.into()), ("METAL_LEAST", self.least.into())];
        let formats = [("METAL_MXFP4", DType::MXFP4), ("METAL_IQ4_XS", DType::IQ4_XS), ("METAL_THIRD", DType::Q3_K)];
        let formats = formats.map(|(s, format)| (s, TemplateValue::from(self.format == format)));
        switches.into_iter().chain(numbers).chain(parts).chain(formats)
    }
}

/// Products of one row with weights that are read directly, all of this format; `None` where the adapter has no bodies in Metal's language, the format none,
/// or the left side is normalised otherwise than by its mean square.
pub(super) fn gemv_simd(g: &Gemv, format: DType) -> Option<Wgsl> {
    let &Gemv { a, products, gated, vec4_store, norm, adapter } = g;
    let &[1, 1, k] = a.shape.dims() else { return None };
    let inner = inner_loop(format)?;
    let rows = if vec4_store { 4 } else { adapter.tuning.metal.gemv_rows[inner.kind] };
    let read = products.iter().all(|(_, w)| w.raw.is_some()) && k.is_multiple_of(8);
    let by_squares = norm.is_none_or(|n| n.rms && !n.bias);
    if !adapter.metal_bodies || adapter.subgroup != 32 || adapter.tuning.metal.gemv_rows[inner.kind] == 0 || !read || !by_squares {
        return None;
    }
    let vec_out = rows == 4 && products.iter().all(|p| p.0.is_multiple_of(4));
    if vec4_store && !vec_out {
        return None;
    }
    let (params, raw, grid) = g.dispatch((WORKGROUP / 32 * rows) as usize, None)?;
    let consts = vec![("ROWS", rows)];
    let count = products.len() as u32;
    let mut values = products.first()?.1.values();
    values.extend(inner.values());
    values.extend([
        ("ROWS", rows.into()),
        ("VEC_OUT", vec_out.into()),
        ("PRODUCTS", count.into()),
        ("PAIRED", gated.into()),
        ("NORMED", norm.is_some().into()),
        ("GAIN", norm.is_some_and(|n| n.weight).into()),
        // The normalization's weight is behind the products' right sides.
        ("GAIN_LOAD", (count + 1).into()),
    ]);
    Some(Wgsl { source: GEMV_SIMD.source(&values), consts, workgroup: WORKGROUP, grid, params, raw, transposed: vec![] })
}
