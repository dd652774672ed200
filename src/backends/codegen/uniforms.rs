//! The numbers of a step that are not in its shader: sizes, strides, offsets, run-time parameters. One block of a uniform buffer per step.

use crate::dtype::DType;
use crate::plan::Word;

/// A number of the block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::backends) enum UniformWord {
    /// Known when the plan is prepared.
    Const(u32),
    /// A constant start plus a parameter, in elements.
    Offset(u32, u16),
    /// A parameter, converted to a dtype.
    Param(u16, DType),
    /// The number by which an error finds its step; given when the plan is prepared.
    Tag,
}

/// The block of one step while its shader is written.
#[derive(Default)]
pub(super) struct Uniforms {
    pub words: Vec<UniformWord>,
}

impl Uniforms {
    /// Appends a number and gives the WGSL that reads it. Equal constants stay apart: the shader must not depend on sizes.
    pub fn push(&mut self, word: UniformWord) -> String {
        let shared = matches!(word, UniformWord::Param(..) | UniformWord::Tag);
        let at = match self.words.iter().position(|w| shared && *w == word) {
            Some(at) => at,
            None => {
                self.words.push(word);
                self.words.len() - 1
            }
        };
        format!("m_[{}].{}", at / 4, ["x", "y", "z", "w"][at % 4])
    }
    /// Appends a constant.
    pub fn size(&mut self, n: usize) -> String {
        self.push(UniformWord::Const(n as u32))
    }
    /// How many 16-byte rows the block has; at least one, since a binding cannot be empty.
    pub fn rows(&self) -> usize {
        self.words.len().div_ceil(4).max(1)
    }
}

/// A kernel's own number.
pub(super) fn kernel_word(w: &Word) -> UniformWord {
    match *w {
        Word::U32(v) => UniformWord::Const(v),
        Word::F32(v) => UniformWord::Const(v.to_bits()),
        Word::ParamU32(n) => UniformWord::Param(n, DType::U32),
        Word::ParamF32(n) => UniformWord::Param(n, DType::F32),
    }
}

/// The bits of a parameter in the type a program computes in.
pub(in crate::backends) fn param_bits(v: f64, dtype: DType) -> u32 {
    match dtype {
        DType::Bool => (v != 0.0) as u32,
        DType::I8 => (v as i64 as i8) as i32 as u32,
        DType::U8 => (v as i64 as u8) as u32,
        DType::U32 => v as i64 as u32,
        DType::I32 => v as i64 as i32 as u32,
        _ => (v as f32).to_bits(),
    }
}
