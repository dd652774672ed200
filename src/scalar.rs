//! Elementwise computation: every scalar primitive, and programs made of them.

use crate::dtype::DType;
use smallvec::SmallVec;

mod binary;
#[cfg(test)]
pub(crate) mod definition;
mod unary;

pub(crate) use binary::binary_primitives;
pub(crate) use unary::unary_primitives;

/// The number of an instruction's result within its program.
pub type Reg = u16;

/// The WGSL expression of a row of the table, and whether the prelude has a quick form.
macro_rules! wgsl {
    (($text:literal)) => {
        ($text, false)
    };
    (($text:literal, quick)) => {
        ($text, true)
    };
}

macro_rules! unary_enum {
    ($($(#[$doc:meta])* $v:ident = $name:ident { example: $example:tt, wgsl: $wgsl:tt, f32: $f32:tt, f64: $f64:tt, grad: $grad:tt, })*) => {
        /// Primitives of one argument. Those named `is_…` and `logical_not` give bool; the others keep the dtype.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum Unary { $($(#[$doc])* $v),* }
        impl Unary {
            /// Every primitive of one argument.
            pub const ALL: &'static [Unary] = &[$(Unary::$v),*];
            /// PyTorch's name.
            pub const fn name(self) -> &'static str { match self { $(Unary::$v => stringify!($name)),* } }
            /// WGSL for a float argument `a`. Integer forms that differ are the GPU code generator's.
            pub const fn wgsl(self) -> &'static str { match self { $(Unary::$v => wgsl!($wgsl).0),* } }
            /// Whether the prelude has a form `tl_<name>_quick`, which is less accurate.
            pub const fn has_quick_form(self) -> bool { match self { $(Unary::$v => wgsl!($wgsl).1),* } }
        }
    };
}
unary_primitives!(unary_enum);

/// Whether a row's body in Rust exists, and whether its result is a truth value.
macro_rules! body {
    ((none)) => {
        (false, false)
    };
    ((bool $($body:tt)*)) => {
        (true, true)
    };
    ($body:tt) => {
        (true, false)
    };
}

macro_rules! binary_enum {
    ($($(#[$doc:meta])* $v:ident = $name:ident { example: $example:tt, wgsl: $wgsl:tt, f32: $f32:tt, f64: $f64:tt, int: $int:tt, left: $left:tt, right: $right:tt, })*) => {
        /// Primitives of two arguments of one dtype. Comparisons give bool; the others keep the dtype.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum Binary { $($(#[$doc])* $v),* }
        impl Binary {
            /// Every primitive of two arguments.
            pub const ALL: &'static [Binary] = &[$(Binary::$v),*];
            /// PyTorch's name.
            pub const fn name(self) -> &'static str { match self { $(Binary::$v => stringify!($name)),* } }
            /// WGSL for float arguments `a`, `b`. Integer forms that differ are the GPU code generator's.
            pub const fn wgsl(self) -> &'static str { match self { $(Binary::$v => $wgsl),* } }
            /// Whether this compares, so that the result is bool.
            pub const fn compares(self) -> bool { match self { $(Binary::$v => body!($int).1),* } }
            /// Whether the primitive is defined on integers and bool only.
            pub const fn bits(self) -> bool { match self { $(Binary::$v => !body!($f32).0),* } }
            /// Whether the primitive is defined on floats only.
            pub const fn float_only(self) -> bool { match self { $(Binary::$v => !body!($int).0),* } }
        }
    };
}
binary_primitives!(binary_enum);

impl Unary {
    /// The result's dtype for an argument of dtype `d`.
    pub const fn result(self, d: DType) -> DType {
        match self {
            Unary::IsNan | Unary::IsInf | Unary::LogicalNot => DType::Bool,
            _ => d,
        }
    }
    /// Whether the primitive is defined on integers as well.
    pub const fn takes_int(self) -> bool {
        matches!(
            self,
            Unary::Neg
                | Unary::Abs
                | Unary::Sign
                | Unary::Floor
                | Unary::Ceil
                | Unary::Round
                | Unary::Trunc
                | Unary::LogicalNot
                | Unary::BitNot
                | Unary::IsNan
                | Unary::IsInf
        )
    }
    /// Whether the primitive is defined on floats.
    pub const fn takes_float(self) -> bool {
        !matches!(self, Unary::BitNot)
    }
}

impl Binary {
    /// The result's dtype for arguments of dtype `d`.
    pub const fn result(self, d: DType) -> DType {
        if self.compares() { DType::Bool } else { d }
    }
}

/// What one instruction does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Prim {
    /// The element of source `n` at the iteration index, decoded to its compute type.
    Source(u16),
    /// In a store's program: the kernel's output value.
    Value,
    /// The same of the other element of a pair 2i, 2i + 1. Only the compiler writes it, into stores of kernels that write vec4, on a GPU.
    SwapPair,
    /// A run-time parameter: entry `n` of the plan's parameters, converted to the instruction's dtype.
    Param(u16),
    /// A literal, as the bits of an f64.
    Lit(u64),
    /// A primitive of one argument.
    Unary(Unary),
    /// A primitive of two arguments.
    Binary(Binary),
    /// `args[1]` where `args[0]` (bool) holds, else `args[2]`.
    Where,
    /// Conversion to the instruction's dtype, rounding to it: floats to integers truncate, anything nonzero is true.
    Cast,
    /// 32 random bits (u32) from a counter (u32 `args[0]`), a stream (u32 `args[1]`) and a seed (u32 `args[2]`): the first word of
    /// Philox4x32-10 (Salmon et al., SC 2011) with counter (`args[0]`, `args[1]`, 0, 0) and key (`args[2]`, 0).
    Philox,
}

impl Prim {
    /// How many of an instruction's arguments it reads.
    pub const fn arity(self) -> usize {
        match self {
            Prim::Source(_) | Prim::Value | Prim::SwapPair | Prim::Param(_) | Prim::Lit(_) => 0,
            Prim::Unary(_) | Prim::Cast => 1,
            Prim::Binary(_) => 2,
            Prim::Where | Prim::Philox => 3,
        }
    }
    /// Whether it is one number for all elements: a parameter or a literal.
    pub const fn is_number(self) -> bool {
        matches!(self, Prim::Param(_) | Prim::Lit(_))
    }
}

/// One instruction: `op` over earlier results; the result has `dtype` and is held in `dtype.compute()`.
///
/// f16 and bf16 results are held unrounded in f32 (only `Cast` and stores round); i8 and u8 results wrap to their width.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Inst {
    /// What it does.
    pub op: Prim,
    /// Results it reads; unused entries are 0.
    pub args: [Reg; 3],
    /// The result's dtype.
    pub dtype: DType,
}

impl Inst {
    /// The results that it reads.
    pub fn reads(&self) -> &[Reg] {
        &self.args[..self.op.arity()]
    }
}

/// A straight-line program evaluated once per element; its result is the last instruction's.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Program {
    /// The instructions; instruction `i` writes register `i`.
    pub insts: SmallVec<[Inst; 4]>,
}

impl Program {
    /// The program that passes source 0 on unchanged.
    pub fn identity(dtype: DType) -> Program {
        Program { insts: smallvec::smallvec![Inst { op: Prim::Source(0), args: [0; 3], dtype }] }
    }
    /// The store program that passes the kernel's value on unchanged.
    pub fn value(dtype: DType) -> Program {
        Program { insts: smallvec::smallvec![Inst { op: Prim::Value, args: [0; 3], dtype }] }
    }
    /// Appends an instruction, or finds its equal, and gives its register.
    pub fn push(&mut self, inst: Inst) -> Reg {
        if let Some(i) = self.insts.iter().position(|i| *i == inst) {
            return i as Reg;
        }
        self.insts.push(inst);
        (self.insts.len() - 1) as Reg
    }
    /// The dtype of the result.
    pub fn dtype(&self) -> DType {
        self.insts.last().expect("a program has an instruction").dtype
    }
    /// How many of the instructions compute something: not the reads, the numbers and the conversions.
    pub fn arithmetic(&self) -> usize {
        self.insts.iter().filter(|i| matches!(i.op, Prim::Unary(_) | Prim::Binary(_) | Prim::Where | Prim::Philox)).count()
    }
    /// Whether an instruction is this one.
    pub fn has(&self, op: Prim) -> bool {
        self.insts.iter().any(|i| i.op == op)
    }
    /// Whether the program only passes source 0 on.
    pub fn is_identity(&self) -> bool {
        self.insts.len() == 1 && self.insts[0].op == Prim::Source(0)
    }
    /// Whether the program ends by rounding to bf16 and reading that as f32.
    pub fn rounds_to_bf16(&self) -> bool {
        let [.., rounded, widened] = &self.insts[..] else { return false };
        let casts = rounded.op == Prim::Cast && widened.op == Prim::Cast && widened.args[0] as usize + 2 == self.insts.len();
        casts && rounded.dtype == DType::BF16 && widened.dtype == DType::F32
    }
    /// Whether the program only passes the kernel's value on.
    pub fn is_value(&self) -> bool {
        self.insts.len() == 1 && self.insts[0].op == Prim::Value
    }
}

impl std::fmt::Display for Program {
    /// One expression, e.g. `maximum(value + s0, 0)`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        fn expr(p: &Program, r: Reg, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            let i = p.insts[r as usize];
            let call = |f: &mut std::fmt::Formatter<'_>, name: &str, n: usize| {
                write!(f, "{name}(")?;
                for k in 0..n {
                    if k > 0 {
                        f.write_str(", ")?;
                    }
                    expr(p, i.args[k], f)?;
                }
                f.write_str(")")
            };
            match i.op {
                Prim::Source(n) => write!(f, "s{n}"),
                Prim::Value => f.write_str("value"),
                Prim::SwapPair => f.write_str("partner"),
                Prim::Param(n) => write!(f, "p{n}"),
                Prim::Lit(b) => write!(f, "{}", f64::from_bits(b)),
                Prim::Unary(u) => call(f, u.name(), 1),
                Prim::Binary(b) => call(f, b.name(), 2),
                Prim::Where => call(f, "where", 3),
                Prim::Cast => call(f, i.dtype.name(), 1),
                Prim::Philox => call(f, "philox", 3),
            }
        }
        expr(self, (self.insts.len() - 1) as Reg, f)
    }
}

/// The first word of Philox4x32-10 for counter `(c0, c1, 0, 0)` and key `(k0, 0)`: the same bits on every backend.
pub const fn philox(c0: u32, c1: u32, k0: u32) -> u32 {
    let (mut c, mut k) = ([c0, c1, 0, 0], [k0, 0u32]);
    let mut round = 0;
    while round < 10 {
        let p0 = 0xD251_1F53u64 * c[0] as u64;
        let p1 = 0xCD9E_8D57u64 * c[2] as u64;
        c = [(p1 >> 32) as u32 ^ c[1] ^ k[0], p1 as u32, (p0 >> 32) as u32 ^ c[3] ^ k[1], p0 as u32];
        k = [k[0].wrapping_add(0x9E37_79B9), k[1].wrapping_add(0xBB67_AE85)];
        round += 1;
    }
    c[0]
}
