//! What linear layers round activations to before they multiply them.

use crate::dtype::DType;

/// What activations are rounded to before a linear layer multiplies them by its weight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rounding {
    /// bf16, where the weight is bf16: for processors with instructions for pairs of bf16.
    Bf16,
    /// int8, each 32 neighbours with a scale, where the weight is in a block format. A processor with AVX2 and without AVX-512 multiplies
    /// up to four rows as integers (with AVX-512 those in Q2_K and Q3_K); elsewhere the rounded activations are multiplied as floats, and no speed is gained.
    Int8,
}

impl Rounding {
    /// The names that [`Rounding::parse`] takes.
    pub const NAMES: [&str; 2] = ["bf16", "int8"];

    /// The type of that name.
    pub fn parse(name: &str) -> Option<Rounding> {
        [Rounding::Bf16, Rounding::Int8].into_iter().zip(Rounding::NAMES).find(|(_, of)| *of == name).map(|(r, _)| r)
    }

    /// Whether it concerns weights of this type.
    pub(super) fn is_for(self, weight: DType) -> bool {
        match self {
            Rounding::Bf16 => weight == DType::BF16,
            Rounding::Int8 => weight.is_block(),
        }
    }
}
