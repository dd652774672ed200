//! Runs of f32 instructions in NEON registers; see `chain`.

use super::lanes;
use super::tile_instr::{TileInstr, TileOperand};
use crate::scalar::Unary;
use core::arch::aarch64::*;

/// Vectors of a tile: half of the registers, and fewer elements than the memory of a `chain::TILE` has room for.
const VECTORS: usize = 16;

/// # Safety
/// See `chain::run`.
pub(super) unsafe fn run(links: &[TileOperand], n: usize) {
    let (tiles, vectors) = (n / (4 * VECTORS) * (4 * VECTORS), n / 4 * 4);
    // SAFETY: the caller's promise.
    unsafe {
        some::<VECTORS, 4>(links, 0, tiles);
        some::<1, 4>(links, tiles, vectors);
        some::<1, 1>(links, vectors, n);
    }
}

/// The vector, or the one number, at `p`.
#[inline(always)]
unsafe fn get<const LANES: usize>(p: *const f32) -> float32x4_t {
    // SAFETY: the caller promises so many lanes; NEON is part of the architecture.
    unsafe { if LANES == 4 { vld1q_f32(p) } else { vdupq_n_f32(*p) } }
}

/// Writes the vector, or its first lane.
#[inline(always)]
unsafe fn put<const LANES: usize>(p: *mut f32, x: float32x4_t) {
    // SAFETY: the caller promises room for so many lanes; NEON is part of the architecture.
    unsafe { if LANES == 4 { vst1q_f32(p, x) } else { vst1q_lane_f32::<0>(p, x) } }
}

/// A primitive without an instruction of its own.
#[inline(always)]
fn call<const N: usize>(u: Unary, x: [float32x4_t; N]) -> [float32x4_t; N] {
    let (mut tile, mut result) = ([[0f32; 4]; N], [[0f32; 4]; N]);
    // SAFETY: each array holds a vector; NEON is part of the architecture.
    unsafe {
        (0..N).for_each(|i| vst1q_f32(tile[i].as_mut_ptr(), x[i]));
        lanes::unary_tile(u, tile.as_flattened(), result.as_flattened_mut());
        std::array::from_fn(|i| vld1q_f32(result[i].as_ptr()))
    }
}

/// Elements `from..to`: N vectors of so many `LANES` at a time.
///
/// # Safety
/// See `chain::run`.
unsafe fn some<const N: usize, const LANES: usize>(links: &[TileOperand], from: usize, to: usize) {
    // SAFETY: the caller's promise; NEON is part of the architecture.
    unsafe {
        let number = |x: f32| vdupq_n_f32(x);
        let is_nan = |x: float32x4_t| vmvnq_u32(vceqq_f32(x, x));
        // The first argument where it is NaN, and the second where they are equal.
        let max = |x: float32x4_t, y: float32x4_t| vbslq_f32(vorrq_u32(vcgtq_f32(x, y), is_nan(x)), x, y);
        let min = |x: float32x4_t, y: float32x4_t| vbslq_f32(vorrq_u32(vcltq_f32(x, y), is_nan(x)), x, y);
        let add = |x, y| vaddq_f32(x, y);
        let sub = |x, y| vsubq_f32(x, y);
        let mul = |x, y| vmulq_f32(x, y);
        let div = |x, y| vdivq_f32(x, y);
        for start in (from..to).step_by(N * LANES) {
            let mut x = [number(0.0); N];
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
                            let ($x, $y) = (x[i], get::<LANES>(at.wrapping_add(LANES * i)));
                            $e
                        })
                    };
                }
                macro_rules! one {
                    (|$x:ident, $y:ident| $e:expr) => {{
                        let $y = number(*at);
                        each!(|i| {
                            let $x = x[i];
                            $e
                        })
                    }};
                }
                match link.act {
                    TileInstr::Load => each!(|i| get::<LANES>(at.wrapping_add(LANES * i))),
                    TileInstr::LoadOne => one!(|_x, y| y),
                    TileInstr::Save | TileInstr::Stream => (0..N).for_each(|i| put::<LANES>(at.wrapping_add(LANES * i), x[i])),
                    TileInstr::Fetch => {}
                    TileInstr::Square => each!(|i| mul(x[i], x[i])),
                    TileInstr::Neg => each!(|i| vnegq_f32(x[i])),
                    TileInstr::Abs => each!(|i| vabsq_f32(x[i])),
                    TileInstr::Sqrt => each!(|i| vsqrtq_f32(x[i])),
                    TileInstr::Rsqrt => each!(|i| div(number(1.0), vsqrtq_f32(x[i]))),
                    TileInstr::Recip => each!(|i| div(number(1.0), x[i])),
                    TileInstr::Exp => x = call(Unary::Exp, x),
                    TileInstr::Tanh => x = call(Unary::Tanh, x),
                    TileInstr::Sigmoid => x = call(Unary::Sigmoid, x),
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
        }
    }
}
