//! What a run of f32 instructions does to a tile in registers, and with which operands.

use crate::scalar::{Binary, Unary};

/// What a link does to the tile in registers. The operand is a block, or one number where the name ends in `One`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum TileInstr {
    Load,
    LoadOne,
    Save,
    /// Like `Save`, past the caches.
    Stream,
    /// Asks for what lies `PREFETCH_ELEMENTS` elements behind the operand.
    Fetch,
    Square,
    Neg,
    Abs,
    Sqrt,
    Rsqrt,
    Recip,
    Exp,
    Tanh,
    Sigmoid,
    /// Another primitive of one argument.
    Call,
    Add,
    AddOne,
    Mul,
    MulOne,
    Sub,
    SubOne,
    /// The operand minus the tile.
    From,
    FromOne,
    Div,
    DivOne,
    /// The operand divided by the tile.
    Into,
    IntoOne,
    Max,
    MaxOne,
    /// The tile is the second argument.
    OfMax,
    OfMaxOne,
    Min,
    MinOne,
    OfMin,
    OfMinOne,
}

impl TileInstr {
    /// A primitive of two arguments: whether the operand is one number, and whether it is the first argument.
    pub fn binary(b: Binary, one: bool, first: bool) -> Option<TileInstr> {
        let forms = match b {
            Binary::Add => [TileInstr::Add, TileInstr::AddOne, TileInstr::Add, TileInstr::AddOne],
            Binary::Mul => [TileInstr::Mul, TileInstr::MulOne, TileInstr::Mul, TileInstr::MulOne],
            Binary::Sub => [TileInstr::Sub, TileInstr::SubOne, TileInstr::From, TileInstr::FromOne],
            Binary::Div => [TileInstr::Div, TileInstr::DivOne, TileInstr::Into, TileInstr::IntoOne],
            Binary::Max => [TileInstr::Max, TileInstr::MaxOne, TileInstr::OfMax, TileInstr::OfMaxOne],
            Binary::Min => [TileInstr::Min, TileInstr::MinOne, TileInstr::OfMin, TileInstr::OfMinOne],
            _ => return None,
        };
        Some(forms[first as usize * 2 + one as usize])
    }

    /// Whether the bits are those of a loop over one instruction: not those of functions that have forms of their own here.
    pub fn is_plain(self) -> bool {
        !matches!(self, TileInstr::Exp | TileInstr::Tanh | TileInstr::Sigmoid)
    }

    pub fn unary(u: Unary) -> Option<TileInstr> {
        match u {
            Unary::Neg => Some(TileInstr::Neg),
            Unary::Abs => Some(TileInstr::Abs),
            Unary::Sqrt => Some(TileInstr::Sqrt),
            Unary::Rsqrt => Some(TileInstr::Rsqrt),
            Unary::Recip => Some(TileInstr::Recip),
            Unary::Exp => Some(TileInstr::Exp),
            Unary::Tanh => Some(TileInstr::Tanh),
            Unary::Sigmoid => Some(TileInstr::Sigmoid),
            // These give no f32.
            Unary::IsNan | Unary::IsInf | Unary::LogicalNot | Unary::BitNot => None,
            _ => Some(TileInstr::Call),
        }
    }
}

/// A link bound to memory.
#[derive(Clone, Copy)]
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code))]
pub(super) struct TileOperand {
    pub act: TileInstr,
    pub call: Unary,
    pub at: *mut u8,
    /// Bytes from one element's value to the next: 4, or 0 where each tile uses the same place.
    pub step: usize,
}
