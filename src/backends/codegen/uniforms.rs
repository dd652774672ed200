//! The parameters of a step that are not in its shader: sizes, strides, offsets, run-time parameters. One block of a uniform buffer per step.

use crate::dtype::DType;
use crate::plan::KernelParam;
use std::fmt::Write;

/// A word of the block.
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

/// The type of a word in WGSL.
fn wgsl_type(word: UniformWord) -> &'static str {
    match word {
        UniformWord::Param(_, dtype) => match dtype.compute() {
            DType::F32 => "f32",
            DType::I32 => "i32",
            _ => "u32",
        },
        _ => "u32",
    }
}

/// A member of the struct `Params` in WGSL.
struct Member {
    name: String,
    ty: &'static str,
}

/// The block of one step while its shader is written: the struct `Params`, bound as `p`, whose members take four bytes each.
#[derive(Default)]
pub(super) struct Uniforms {
    pub words: Vec<UniformWord>,
    /// How many words come first that the kernel's code reads by number. They are an array, whose elements take 16 bytes in a uniform buffer: so
    /// they are rows of four words.
    numbered: usize,
    /// The members of the other words.
    members: Vec<Member>,
}

impl Uniforms {
    /// A kernel's own parameters, which its code reads as members of these names and types.
    pub fn named(words: Vec<UniformWord>, members: &[(&str, &'static str)]) -> Uniforms {
        Uniforms { words, numbered: 0, members: members.iter().map(|&(name, ty)| Member { name: name.into(), ty }).collect() }
    }

    /// A kernel's own parameters, which its code reads by number.
    pub fn numbered(mut words: Vec<UniformWord>) -> Uniforms {
        words.resize(words.len().next_multiple_of(4).max(4), UniformWord::Const(0));
        Uniforms { numbered: words.len(), words, members: vec![] }
    }

    /// Whether the kernel's code reads its parameters by number.
    pub fn is_numbered(&self) -> bool {
        self.numbered > 0
    }

    /// Appends a word and gives the WGSL that reads it, in the word's own type. Equal constants stay apart: the shader must not depend on
    /// sizes.
    pub fn push(&mut self, word: UniformWord, name: &str) -> String {
        let shared = matches!(word, UniformWord::Param(..) | UniformWord::Tag);
        let ty = wgsl_type(word);
        let at = match self.words.iter().position(|w| shared && *w == word) {
            Some(at) => at,
            None => {
                let mut name = name.to_string();
                while self.members.iter().any(|m| m.name == name) {
                    name.push('_');
                }
                self.members.push(Member { name, ty });
                self.words.push(word);
                self.words.len() - 1
            }
        };
        let (read, stored) = match at.checked_sub(self.numbered) {
            Some(n) => (format!("p.{}", self.members[n].name), self.members[n].ty),
            None => (format!("p.numbered[{}].{}", at / 4, ["x", "y", "z", "w"][at % 4]), "u32"),
        };
        if stored == ty { read } else { format!("bitcast<{ty}>({read})") }
    }

    /// Appends a constant.
    pub fn size(&mut self, n: usize, name: &str) -> String {
        self.push(UniformWord::Const(n as u32), name)
    }

    /// The struct and its binding in WGSL. It has a member at least, since a binding cannot be empty.
    pub fn declaration(&self) -> String {
        let mut out = String::from("struct Params {\n");
        if self.numbered > 0 {
            let _ = writeln!(out, "  numbered: array<vec4<u32>, {}>,", self.numbered / 4);
        }
        for Member { name, ty } in &self.members {
            let _ = writeln!(out, "  {name}: {ty},");
        }
        if self.words.is_empty() {
            out += "  nothing: u32,\n";
        }
        out + "}\n@group(0) @binding(0) var<uniform> p: Params;\n"
    }
}

/// A kernel's own parameter as a word of the block.
pub(super) fn uniform_word(p: &KernelParam) -> UniformWord {
    match *p {
        KernelParam::U32(v) => UniformWord::Const(v),
        KernelParam::F32(v) => UniformWord::Const(v.to_bits()),
        KernelParam::ParamU32(n) => UniformWord::Param(n, DType::U32),
        KernelParam::ParamF32(n) => UniformWord::Param(n, DType::F32),
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
