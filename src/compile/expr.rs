//! Elementwise expressions: programs over sources, put together and simplified.

use crate::plan::Source;
use crate::scalar::{Binary, Inst, Prim, Program, Reg, Unary};
use crate::shape::Shape;
use smallvec::SmallVec;

/// An elementwise expression over a shape. A source's `Buf::Slot(v)` is value `v`.
#[derive(Clone)]
pub(super) struct Expr {
    pub program: Program,
    pub sources: Vec<Source>,
    pub shape: Shape,
}

/// Appends a program whose sources are renumbered (`u16::MAX` means the kernel's value); gives the register of its result.
pub(super) fn append(to: &mut Program, from: &Program, sources: &[u16]) -> Reg {
    let mut regs: SmallVec<[Reg; 16]> = SmallVec::new();
    for inst in &from.insts {
        let mut i = *inst;
        if let Prim::Source(n) = i.op {
            i.op = match sources[n as usize] {
                u16::MAX => Prim::Value,
                m => Prim::Source(m),
            };
        }
        for (k, a) in i.args.iter_mut().enumerate() {
            if k < arity(&i.op) {
                *a = regs[*a as usize];
            }
        }
        regs.push(to.push(i));
    }
    *regs.last().expect("a program has an instruction")
}

pub(super) fn arity(p: &Prim) -> usize {
    match p {
        Prim::Source(_) | Prim::Value | Prim::SwapPair | Prim::Param(_) | Prim::Lit(_) => 0,
        Prim::Unary(_) | Prim::Cast => 1,
        Prim::Binary(_) => 2,
        Prim::Where | Prim::Philox => 3,
    }
}

/// Adds a read of `source`.
pub(super) fn read(e: &mut Expr, source: Source) -> Reg {
    let dtype = source.dtype;
    let n = e.sources.iter().position(|s| *s == source).unwrap_or_else(|| {
        e.sources.push(source);
        e.sources.len() - 1
    });
    e.program.push(Inst { op: Prim::Source(n as u16), args: [0; 3], dtype })
}

/// Appends the last instruction of a program: it must be last even where an equal one stands earlier.
pub(super) fn finish(p: &mut Program, inst: Inst) {
    match p.insts.iter().position(|i| *i == inst) {
        Some(r) => truncate(p, r as Reg),
        None => p.insts.push(inst),
    }
}

/// Makes register `r` the result.
pub(super) fn truncate(p: &mut Program, r: Reg) {
    p.insts.truncate(r as usize + 1);
}

/// Appends an instruction unless literals make it the identity: casts to the same dtype, ·1, /1, −0, a power of 1, double negation.
pub(super) fn simplify(p: &mut Program, inst: Inst) {
    let lit = |r: Reg| match p.insts[r as usize].op {
        Prim::Lit(b) => Some(f64::from_bits(b)),
        _ => None,
    };
    let [a, b, _] = inst.args;
    let dtype = |r: Reg| p.insts[r as usize].dtype;
    let same = match inst.op {
        Prim::Cast if dtype(a) == inst.dtype && matches!(p.insts[a as usize].op, Prim::Source(_) | Prim::Cast) => Some(a),
        Prim::Binary(Binary::Mul | Binary::Div | Binary::Pow) if lit(b) == Some(1.0) => Some(a),
        Prim::Binary(Binary::Mul) if lit(a) == Some(1.0) => Some(b),
        Prim::Binary(Binary::Sub) if lit(b) == Some(0.0) && lit(b).is_some_and(|v| v.is_sign_positive()) => Some(a),
        Prim::Unary(Unary::Neg) => match p.insts[a as usize] {
            Inst { op: Prim::Unary(Unary::Neg), args, .. } => Some(args[0]),
            _ => None,
        },
        _ => None,
    };
    match same {
        Some(r) => truncate(p, r),
        None => finish(p, inst),
    }
}
