//! What the primitives are in f64, for tests.

use super::{Binary, Unary};

/// One value; predicates give 0 or 1, `BitNot` is that of an integer.
pub(crate) fn unary(u: Unary, x: f64) -> f64 {
    match u {
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        Unary::Sign => x.partial_cmp(&0.0).map_or(0.0, |o| o as i8 as f64),
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => x.sqrt().recip(),
        Unary::Recip => x.recip(),
        Unary::Exp => x.exp(),
        Unary::Exp2 => x.exp2(),
        Unary::Expm1 => x.exp_m1(),
        Unary::Log => x.ln(),
        Unary::Log2 => x.log2(),
        Unary::Log10 => x.log10(),
        Unary::Log1p => x.ln_1p(),
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Tan => x.tan(),
        Unary::Asin => x.asin(),
        Unary::Acos => x.acos(),
        Unary::Atan => x.atan(),
        Unary::Sinh => x.sinh(),
        Unary::Cosh => x.cosh(),
        Unary::Tanh => x.tanh(),
        Unary::Asinh => libm::asinh(x),
        Unary::Acosh if x < 1.0 => f64::NAN,
        Unary::Acosh => libm::acosh(x),
        Unary::Atanh => libm::atanh(x),
        Unary::Erf => libm::erf(x),
        Unary::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Unary::Floor => x.floor(),
        Unary::Ceil => x.ceil(),
        Unary::Round => x.round_ties_even(),
        Unary::Trunc => x.trunc(),
        Unary::IsNan => x.is_nan() as u8 as f64,
        Unary::IsInf => x.is_infinite() as u8 as f64,
        Unary::LogicalNot => (x == 0.0) as u8 as f64,
        Unary::BitNot => !(x as i64) as f64,
    }
}

/// Two floats; comparisons give 0 or 1. Bitwise operations are those of integers and not here.
pub(crate) fn binary(b: Binary, x: f64, y: f64) -> f64 {
    match b {
        Binary::Add => x + y,
        Binary::Sub => x - y,
        Binary::Mul => x * y,
        Binary::Div => x / y,
        Binary::Pow => x.powf(y),
        Binary::Fmod => x % y,
        Binary::Remainder => {
            let r = x % y;
            if r != 0.0 && (r < 0.0) != (y < 0.0) { r + y } else { r }
        }
        Binary::Min | Binary::Max if x.is_nan() || y.is_nan() => f64::NAN,
        Binary::Min => x.min(y),
        Binary::Max => x.max(y),
        Binary::Atan2 => x.atan2(y),
        Binary::Copysign => x.copysign(y),
        // Of f64 as well, whose neighbours are nearer: what f32 gives is as far from it as its own rounding.
        Binary::Nextafter => libm::nextafter(x, y),
        Binary::Eq => (x == y) as u8 as f64,
        Binary::Ne => (x != y) as u8 as f64,
        Binary::Lt => (x < y) as u8 as f64,
        Binary::Le => (x <= y) as u8 as f64,
        Binary::Gt => (x > y) as u8 as f64,
        Binary::Ge => (x >= y) as u8 as f64,
        Binary::And | Binary::Or | Binary::Xor | Binary::Shl | Binary::Shr => panic!("{} of floats", b.name()),
    }
}
