//! One row times weights by subgroups that have several rows each, whose inner loops have a form in Metal's language.

use super::gemv::{Gemv, with_values};
use super::weights::{WEIGHTS_QUADS, WIDE_HALVES};
use crate::dtype::DType;
use crate::plan::Wgsl;
use crate::shader::{Template, TemplateValue, U32, grid, params};

params! {
    /// What the kernel reads at run time.
    struct GemvSimdParams {
        /// Rows of b.
        n: u32,
        /// Columns of both.
        k: u32,
        /// Workgroups in x.
        groups_x: u32,
        /// The first element of b, which is the sum of two.
        b_start: u32,
        /// The second of them.
        b_offset: u32,
    }
}

static GEMV_SIMD: Template = Template::new("gemv_simd.wgsl", include_str!("gemv_simd.wgsl")).params(GemvSimdParams::FIELDS).files(&[
    ("gemv_simd.metal", include_str!("gemv_simd.metal")),
    WEIGHTS_QUADS,
    WIDE_HALVES,
]);

/// Threads of a workgroup: two subgroups.
const WORKGROUP: u32 = 64;

/// An inner loop of `gemv_simd.metal` for a format.
struct InnerLoop {
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
const SWITCHES: [&str; 4] = ["METAL_HALVES", "METAL_NIBBLES", "METAL_Q8_0", "METAL_PARTS"];

/// The inner loop of a format that has one.
fn inner_loop(format: DType) -> Option<InnerLoop> {
    let (switch, kind) = match format {
        DType::F16 => ("METAL_HALVES", 0),
        DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 => ("METAL_NIBBLES", 1),
        DType::Q8_0 => ("METAL_Q8_0", 1),
        DType::Q4_K | DType::Q5_K => ("METAL_PARTS", 2),
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
    Some(InnerLoop { switch, kind, words, quants, fifth, least })
}

impl InnerLoop {
    /// What the template asks for.
    fn values(&self) -> impl Iterator<Item = (&'static str, TemplateValue)> {
        let switches = SWITCHES.map(|s| (s, TemplateValue::from(s == self.switch)));
        let middle: u32 = if self.fifth { 16 } else { 8 };
        let numbers = [("METAL_WORDS", self.words.into()), ("METAL_QUANTS", self.quants.into()), ("METAL_MIDDLE", middle.into())];
        let parts = [("METAL_FIFTH", self.fifth.into()), ("METAL_LEAST", self.least.into())];
        switches.into_iter().chain(numbers).chain(parts)
    }
}

/// One product of one row with weights that are read directly; `None` where the adapter has no bodies in Metal's language, or the format none.
pub(super) fn gemv_simd(g: &Gemv, format: DType) -> Option<Wgsl> {
    let &Gemv { a, products: &[(n, weights)], gated: false, vec4_store: false, norm: None, adapter } = g else { return None };
    let &[1, 1, k] = a.shape.dims() else { return None };
    let inner = inner_loop(format)?;
    let rows = adapter.tuning.metal.gemv_rows[inner.kind];
    let [b_start, b_offset] = weights.raw?.map(U32::from);
    if !adapter.metal_bodies || adapter.subgroup != 32 || rows == 0 {
        return None;
    }
    let grid = grid(n.div_ceil((WORKGROUP / 32 * rows) as usize))?;
    let consts = vec![("ROWS", rows)];
    let mut values = weights.values();
    values.extend(with_values(&consts));
    values.extend(inner.values());
    values.push(("VEC_OUT", (rows == 4 && n.is_multiple_of(4)).into()));
    let params = GemvSimdParams { n: U32::size(n)?, k: U32::size(k)?, groups_x: grid[0].into(), b_start, b_offset };
    let (_, raw) = weights.start();
    Some(Wgsl { source: GEMV_SIMD.source(&values), consts, workgroup: WORKGROUP, grid, words: params.words(), raw, transposed: vec![] })
}
