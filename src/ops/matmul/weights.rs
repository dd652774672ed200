//! How the right side of a product is read: weights by quads, for tiles, and by items, for a few rows.

use crate::dtype::DType;
use crate::plan::{KernelParam, Load};
use crate::quant::{BlockFormat, Scales, Values};
use crate::shader::{TemplateValue, block_values, col_major, start};

/// The WGSL files that read weights, for templates to include: `weights_quads.wgsl`, or `weights_items.wgsl` and `weights_loads.wgsl`, whose
/// values are [`Weights::values`].
pub(super) const WIDE_HALVES: (&str, &str) = ("wide_halves.wgsl", include_str!("wide_halves.wgsl"));
pub(super) const WEIGHTS_QUADS: (&str, &str) = ("weights_quads.wgsl", include_str!("weights_quads.wgsl"));
pub(super) const WEIGHTS_ITEMS: (&str, &str) = ("weights_items.wgsl", include_str!("weights_items.wgsl"));
pub(super) const WEIGHTS_LOADS: (&str, &str) = ("weights_loads.wgsl", include_str!("weights_loads.wgsl"));

/// What templates include that read items: the three that do, and what they include.
pub(crate) const FILES: &[(&str, &str)] = &[WIDE_HALVES, WEIGHTS_QUADS, WEIGHTS_ITEMS, WEIGHTS_LOADS];

/// How weights come out of load 1.
pub(crate) struct Weights {
    reader: Reader,
    pub shape: Items,
    /// The parameters of the first element, when the buffer is read directly.
    pub raw: Option<[KernelParam; 2]>,
}

/// Where weights are read from.
#[derive(Clone, Copy)]
enum Reader {
    /// The bytes of a block format.
    Blocks(&'static BlockFormat),
    /// A buffer of 16-bit floats.
    Halves(DType),
    /// A buffer of f32.
    Floats,
    /// The generated loads, four elements at a time.
    Quads,
    /// The generated loads, one by one.
    Elements,
}

/// How the items of a format are made.
#[derive(Clone, Copy)]
pub(crate) struct Items {
    /// Rows of four words that an item is stored in.
    pub planes: u32,
    /// Quads of an item, the runs of neighbours that they come from, and the quads of a run.
    pub quads: u32,
    pub quad_runs: u32,
    pub span: u32,
    /// Parts with scales of their own; 0 where nothing is scaled.
    pub parts: u32,
    /// Whether something is added to what is scaled.
    pub shifted: bool,
    /// Whether a format has packed integers.
    pub integers: bool,
}

impl Items {
    /// Two quads that are weights as they are.
    const TWO: Items = Items { planes: 2, quads: 2, quad_runs: 1, span: 2, parts: 0, shifted: false, integers: false };
    /// The same of halves.
    const HALVES: Items = Items { planes: 1, ..Items::TWO };

    fn of_block(f: &BlockFormat) -> Items {
        let (planes, f) = match &f.values {
            Values::Linear(fields) => (f.item_rows(), fields),
            Values::Coded(coded) => {
                let (parts, (integers, _)) = (coded.parts as u32, coded.integers());
                return Items { planes: f.item_rows(), quads: 8, quad_runs: 1, span: 8, parts, shifted: coded.shifted, integers };
            }
        };
        // Runs of 32 weights whose quads share words of quants; some are halves with a scale each.
        let quad_runs = match f.scales {
            Scales::Whole => 1,
            Scales::SixBits32 { .. } => 2,
            Scales::Each16(_) | Scales::Nibbles16 { .. } => 4,
        };
        Items { planes, quads: 8, quad_runs, span: 8, parts: quad_runs, shifted: f.dmin.is_some(), integers: true }
    }
}

impl Weights {
    pub fn of(b: &Load, k: usize) -> Weights {
        let plain = b.plain().filter(|s| s.layout.is_contiguous());
        // Both starts together must be known to be a multiple of the unit that is read, and rows must be whole items: what lies behind
        // a row may be NaN.
        let aligned =
            |unit: usize| plain.filter(|s| k % 8 == 0 && s.layout.offset % unit == 0 && (s.offset.is_none() || s.aligned)).and_then(start);
        // A constant has no source.
        let dtype = b.sources.first().map_or(DType::F32, |s| s.dtype);
        let found = match dtype {
            DType::F32 => aligned(4).map(|at| (Reader::Floats, Items::TWO, at)),
            DType::F16 | DType::BF16 => aligned(8).map(|at| (Reader::Halves(dtype), Items::HALVES, at)),
            _ => dtype.format().and_then(|f| {
                let whole = plain.filter(|s| k % f.block_len() == 0 && s.layout.offset % f.block_len() == 0).and_then(start);
                whole.map(|at| (Reader::Blocks(f), Items::of_block(f), at))
            }),
        };
        let loaded = || if k % 4 == 0 && !col_major(b) { Reader::Quads } else { Reader::Elements };
        match found {
            Some((reader, shape, at)) => Weights { reader, shape, raw: Some(at) },
            None => Weights { reader: loaded(), shape: Items::TWO, raw: None },
        }
    }

    /// What the files that read weights ask for.
    pub fn values(&self) -> Vec<(&'static str, TemplateValue)> {
        let mut values = match self.reader {
            Reader::Blocks(f) => block_values(f),
            _ => vec![],
        };
        values.extend([
            ("READS_BLOCKS", matches!(self.reader, Reader::Blocks(_)).into()),
            ("READS_HALVES", matches!(self.reader, Reader::Halves(_)).into()),
            ("READS_FLOATS", matches!(self.reader, Reader::Floats).into()),
            ("READS_QUADS", matches!(self.reader, Reader::Quads).into()),
            ("BF16", matches!(self.reader, Reader::Halves(DType::BF16)).into()),
            ("PLANES", self.shape.planes.into()),
        ]);
        values
    }

    /// The parameters of the start and the list of raw loads.
    pub fn start(&self) -> ([KernelParam; 2], Vec<u8>) {
        (self.raw.unwrap_or([KernelParam::U32(0); 2]), if self.raw.is_some() { vec![1] } else { vec![] })
    }
}
