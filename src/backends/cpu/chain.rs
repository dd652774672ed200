//! Runs of f32 instructions with the values between them in registers: a tile of elements passes all of them before the next (AVX-512, NEON).

use super::path::{Path, current};
pub(super) use super::tile_instr::{TileInstr, TileOperand};
use crate::dtype::DType;
use crate::scalar::{Binary, Inst, Prim, Unary};
use std::ops::Range;

/// Vectors of a tile: enough of them side by side hide how long each instruction takes.
const VECTORS: usize = 8;
/// Elements of a tile.
pub(super) const TILE: usize = 16 * VECTORS;

/// A link as compiled: `value` is the instruction whose result is read or written.
#[derive(Clone, Copy, Debug)]
pub(super) struct FusedInstr {
    pub act: TileInstr,
    /// What `TileInstr::Call` calls.
    pub call: Unary,
    pub value: u16,
}

/// Whether an instruction can be a link.
fn links(insts: &[Inst], inst: &Inst) -> bool {
    let f32s = |d: DType| d.compute() == DType::F32;
    f32s(insts[inst.args[0] as usize].dtype)
        && f32s(inst.dtype)
        && match inst.op {
            Prim::Unary(u) => TileInstr::unary(u).is_some(),
            Prim::Binary(b) => TileInstr::binary(b, false, false).is_some(),
            _ => false,
        }
}

/// Moves instructions that can be links next to each other, where only reads and numbers lie between them. Gives their runs.
pub(super) fn gather(insts: &mut [Inst], outs: &mut [u16]) -> Vec<Range<usize>> {
    if !matches!(current(), Path::Avx512 | Path::Neon | Path::Dotprod | Path::I8mm | Path::Bf16) {
        return Vec::new();
    }
    let (mut order, mut run, mut runs) = (Vec::with_capacity(insts.len()), Vec::new(), Vec::new());
    let end = |order: &mut Vec<usize>, run: &mut Vec<usize>, runs: &mut Vec<Range<usize>>| {
        if !run.is_empty() {
            runs.push(order.len()..order.len() + run.len());
        }
        order.append(run);
    };
    for (i, inst) in insts.iter().enumerate() {
        if links(insts, inst) {
            run.push(i);
            continue;
        }
        if !inst.reads().is_empty() {
            end(&mut order, &mut run, &mut runs);
        }
        order.push(i);
    }
    end(&mut order, &mut run, &mut runs);
    let mut place = vec![0u16; insts.len()];
    order.iter().enumerate().for_each(|(new, &old)| place[old] = new as u16);
    let moved: Vec<Inst> = order
        .iter()
        .map(|&old| {
            let mut inst = insts[old];
            let n = inst.op.arity();
            inst.args[..n].iter_mut().for_each(|a| *a = place[*a as usize]);
            inst
        })
        .collect();
    insts.copy_from_slice(&moved);
    outs.iter_mut().for_each(|o| *o = place[*o as usize]);
    runs
}

/// The links of a run, without those that save results, and after how many of them each instruction's result is there.
pub(super) fn compile(insts: &[Inst], run: Range<usize>, one: &dyn Fn(u16) -> bool) -> (Vec<FusedInstr>, Vec<usize>) {
    let (mut links, mut ends) = (Vec::new(), Vec::new());
    for i in run.clone() {
        let inst = &insts[i];
        let mut link = |act, value| links.push(FusedInstr { act, call: Unary::Neg, value });
        let before = if i > run.start { Some(i as u16 - 1) } else { None };
        let load = |v: u16| if one(v) { TileInstr::LoadOne } else { TileInstr::Load };
        match inst.op {
            Prim::Unary(u) => {
                if before != Some(inst.args[0]) {
                    link(load(inst.args[0]), inst.args[0]);
                }
                links.push(FusedInstr { act: TileInstr::unary(u).expect("a link"), call: u, value: 0 });
            }
            Prim::Binary(b) => {
                let [x, y, _] = inst.args;
                // Which argument is in registers: the last result, else one that is not a number.
                let second = before != Some(x) && (before == Some(y) || one(x));
                let (held, other) = if second { (y, x) } else { (x, y) };
                if before != Some(held) {
                    link(load(held), held);
                }
                match b {
                    Binary::Mul if held == other => link(TileInstr::Square, 0),
                    _ => link(TileInstr::binary(b, one(other), second).expect("a link"), other),
                }
            }
            _ => {}
        }
        ends.push(links.len());
    }
    (links, ends)
}

impl FusedInstr {
    /// Whether the link reads a value from memory.
    pub(super) fn reads(&self) -> bool {
        use TileInstr::*;
        !matches!(self.act, Save | Stream | Fetch | Square | Neg | Abs | Sqrt | Rsqrt | Recip | Exp | Tanh | Sigmoid | Call)
    }
}

/// Passes `n` elements through the links.
///
/// # Safety
/// The path is one on which [`gather`] finds runs, each link's memory holds or has room for `n` values (one, or a tile, as its act and step say), and what
/// is written overlaps only what is read of the same element.
pub(super) unsafe fn run(links: &[TileOperand], n: usize) {
    // SAFETY: the caller's promise.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        x86::run_steps(links, n)
    };
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the caller's promise.
    unsafe {
        super::chain_neon::run(links, n)
    };
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = (links, n);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{TILE, TileInstr, TileOperand, VECTORS};
    use crate::backends::cpu::{lanes, math512};
    use crate::scalar::Unary;
    use core::arch::x86_64::*;

    /// How many elements ahead memory is prefetched: loops with much work per element would otherwise wait for it.
    const PREFETCH_ELEMENTS: usize = 2048;

    #[repr(align(64))]
    struct RegisterTile([f32; TILE]);

    /// # Safety
    /// See `run`.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    pub(super) unsafe fn run_steps(links: &[TileOperand], n: usize) {
        let rest = n % TILE;
        // SAFETY: the caller's promise.
        unsafe {
            some::<VECTORS, false>(links, 0, n - rest, rest);
            match rest {
                0 => {}
                1..=32 => some::<2, true>(links, n - rest, n, rest),
                _ => some::<VECTORS, true>(links, n - rest, n, rest),
            }
        }
    }

    /// The lanes of vector `i` among those of a tile.
    #[inline(always)]
    fn mask(lanes: u128, i: usize) -> u16 {
        (lanes >> (16 * i)) as u16
    }

    /// Writes a tile to memory, past the caches where it is a `STREAM`.
    ///
    /// # Safety
    /// `at` has room for N vectors, or for these `lanes` where it is `MASKED`; for a stream it is aligned to 64 bytes.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn put<const N: usize, const MASKED: bool, const STREAM: bool>(x: [__m512; N], at: *mut f32, lanes: u128) {
        for i in 0..N {
            let at = at.wrapping_add(16 * i);
            // SAFETY: the caller's promise.
            unsafe {
                match (MASKED, STREAM) {
                    (true, _) => _mm512_mask_storeu_ps(at, mask(lanes, i), x[i]),
                    (false, true) => _mm512_stream_ps(at, x[i]),
                    (false, false) => _mm512_storeu_ps(at, x[i]),
                }
            }
        }
    }

    /// A primitive without a form of its own here, of a tile of at most `TILE` elements.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    fn call<const N: usize>(u: Unary, x: [__m512; N]) -> [__m512; N] {
        const { assert!(N <= VECTORS) };
        let (mut tile, mut result) = (RegisterTile([0.0; TILE]), RegisterTile([0.0; TILE]));
        let mut out = x;
        // SAFETY: N vectors are at most a tile.
        unsafe {
            for i in 0..N {
                _mm512_store_ps(tile.0.as_mut_ptr().add(16 * i), x[i]);
            }
            lanes::unary_tile(u, &tile.0[..16 * N], &mut result.0[..16 * N]);
            for i in 0..N {
                out[i] = _mm512_load_ps(result.0.as_ptr().add(16 * i));
            }
        }
        out
    }

    /// Elements `from..to`, N vectors at a time; `MASKED` where there are only `rest`, at most as many.
    ///
    /// # Safety
    /// See `run`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn some<const N: usize, const MASKED: bool>(links: &[TileOperand], from: usize, to: usize, rest: usize) {
        let lanes = (1u128 << (rest & 127)) - 1;
        // SAFETY: the caller's promise; lanes that are not there are not read.
        let get = |p: *const f32, i: usize| unsafe { if MASKED { _mm512_maskz_loadu_ps(mask(lanes, i), p) } else { _mm512_loadu_ps(p) } };
        let number = |x: f32| _mm512_set1_ps(x);
        // The first argument where it is NaN, and the second where they are equal.
        let max = |x: __m512, y: __m512| _mm512_mask_max_ps(x, _mm512_cmp_ps_mask::<_CMP_ORD_Q>(x, x), x, y);
        let min = |x: __m512, y: __m512| _mm512_mask_min_ps(x, _mm512_cmp_ps_mask::<_CMP_ORD_Q>(x, x), x, y);
        let add = |x, y| _mm512_add_ps(x, y);
        let sub = |x, y| _mm512_sub_ps(x, y);
        let mul = |x, y| _mm512_mul_ps(x, y);
        let div = |x, y| _mm512_div_ps(x, y);
        let mut start = from;
        while start < to {
            let mut x = [_mm512_setzero_ps(); N];
            for link in links {
                let at = link.at.wrapping_add(start * link.step).cast::<f32>();
                macro_rules! each {
                    (|$i:ident| $e:expr) => {
                        for $i in 0..N {
                            x[$i] = $e;
                        }
                    };
                }
                macro_rules! block {
                    (|$x:ident, $y:ident| $e:expr) => {
                        each!(|i| {
                            let ($x, $y) = (x[i], get(at.wrapping_add(16 * i), i));
                            $e
                        })
                    };
                }
                macro_rules! one {
                    (|$x:ident, $y:ident| $e:expr) => {{
                        // SAFETY: the caller's promise.
                        let $y = number(unsafe { *at });
                        each!(|i| {
                            let $x = x[i];
                            $e
                        })
                    }};
                }
                match link.act {
                    TileInstr::Load => each!(|i| get(at.wrapping_add(16 * i), i)),
                    TileInstr::LoadOne => one!(|_x, y| y),
                    // SAFETY: the caller's promise.
                    TileInstr::Save => unsafe { put::<N, MASKED, false>(x, at, lanes) },
                    // SAFETY: the caller's promise; such places are aligned.
                    TileInstr::Stream => unsafe { put::<N, MASKED, true>(x, at, lanes) },
                    TileInstr::Fetch => {
                        (0..N).for_each(|i| _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(16 * i + PREFETCH_ELEMENTS).cast()))
                    }
                    TileInstr::Square => each!(|i| mul(x[i], x[i])),
                    TileInstr::Neg => each!(|i| _mm512_xor_ps(x[i], number(-0.0))),
                    TileInstr::Abs => each!(|i| _mm512_abs_ps(x[i])),
                    TileInstr::Sqrt => each!(|i| _mm512_sqrt_ps(x[i])),
                    TileInstr::Rsqrt => each!(|i| div(number(1.0), _mm512_sqrt_ps(x[i]))),
                    TileInstr::Recip => each!(|i| div(number(1.0), x[i])),
                    TileInstr::Exp => each!(|i| math512::exp(x[i])),
                    TileInstr::Tanh => each!(|i| math512::tanh(x[i])),
                    TileInstr::Sigmoid => each!(|i| math512::sigmoid(x[i])),
                    TileInstr::Call => x = call(link.call, x),
                    TileInstr::Add => block!(|x, y| add(x, y)),
                    TileInstr::AddOne => one!(|x, y| add(x, y)),
                    TileInstr::Mul => block!(|x, y| mul(x, y)),
                    TileInstr::MulOne => one!(|x, y| mul(x, y)),
                    TileInstr::Sub => block!(|x, y| sub(x, y)),
                    TileInstr::SubOne => one!(|x, y| sub(x, y)),
                    TileInstr::From => block!(|x, y| sub(y, x)),
                    TileInstr::FromOne => one!(|x, y| sub(y, x)),
                    TileInstr::Div => block!(|x, y| div(x, y)),
                    TileInstr::DivOne => one!(|x, y| div(x, y)),
                    TileInstr::Into => block!(|x, y| div(y, x)),
                    TileInstr::IntoOne => one!(|x, y| div(y, x)),
                    TileInstr::Max => block!(|x, y| max(x, y)),
                    TileInstr::MaxOne => one!(|x, y| max(x, y)),
                    TileInstr::OfMax => block!(|x, y| max(y, x)),
                    TileInstr::OfMaxOne => one!(|x, y| max(y, x)),
                    TileInstr::Min => block!(|x, y| min(x, y)),
                    TileInstr::MinOne => one!(|x, y| min(x, y)),
                    TileInstr::OfMin => block!(|x, y| min(y, x)),
                    TileInstr::OfMinOne => one!(|x, y| min(y, x)),
                }
            }
            start += 16 * N;
        }
    }
}
