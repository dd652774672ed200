//! One instruction of a program over a block of elements.

use super::math;
use super::path::versions;
use crate::dtype::DType;
use crate::scalar::{Binary, Prim, Unary, binary_primitives, philox, unary_primitives};

/// An instruction with what its execution needs to know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    pub prim: Prim,
    pub args: [u16; 3],
    pub dtype: DType,
    /// The dtype of the first argument, which the primitive works on.
    pub from: DType,
    /// Which argument is one number for all elements, given as a block of one value; at most one is.
    pub uniform: Option<u8>,
}

impl Op {
    /// Whether `run` can take one of the arguments as a single number.
    pub(crate) fn takes_uniform(prim: Prim, from: DType) -> bool {
        matches!(prim, Prim::Binary(_)) && from.compute() == DType::F32
    }

    /// Bytes of a result while computing.
    pub(crate) fn width(&self) -> usize {
        if wide(self.dtype) { 8 } else { 4 }
    }
}

/// The arguments' blocks and the result's, each of `n` values of its compute type.
#[derive(Clone, Copy)]
pub(crate) struct Blocks {
    pub args: [*const u8; 3],
    pub out: *mut u8,
    pub n: usize,
}

/// Whether values of this dtype take 8 bytes while computing.
pub(crate) fn wide(dtype: DType) -> bool {
    matches!(dtype.compute(), DType::F64 | DType::I64 | DType::U64)
}

impl Blocks {
    /// Argument `k`.
    ///
    /// # Safety
    /// It must hold `n` values of type T.
    #[inline(always)]
    unsafe fn arg<'a, T>(&self, k: usize) -> &'a [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.args[k].cast(), self.n) }
    }
    /// The result.
    ///
    /// # Safety
    /// It must have room for `n` values of type T and overlap no argument.
    #[inline(always)]
    unsafe fn out<'a, T>(&self) -> &'a mut [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.out.cast(), self.n) }
    }
}

macro_rules! map1 {
    ($b:expr, $t:ty => $u:ty, |$x:ident| $e:expr) => {{
        // SAFETY: the caller of `run_body` gives blocks of the types that the instruction works on.
        let (a, d) = unsafe { ($b.arg::<$t>(0), $b.out::<$u>()) };
        for (d, &$x) in d.iter_mut().zip(a) {
            *d = $e;
        }
    }};
}
macro_rules! map2 {
    ($b:expr, $t:ty => $u:ty, |$x:ident, $y:ident| $e:expr) => {{
        // SAFETY: as in `map1`.
        let (a, b, d) = unsafe { ($b.arg::<$t>(0), $b.arg::<$t>(1), $b.out::<$u>()) };
        for ((d, &$x), &$y) in d.iter_mut().zip(a).zip(b) {
            *d = $e;
        }
    }};
}

/// `map2` where one argument may be a single number.
macro_rules! map2u {
    ($uniform:expr, $b:expr, $t:ty => $u:ty, |$x:ident, $y:ident| $e:expr) => {
        match $uniform {
            None => map2!($b, $t => $u, |$x, $y| $e),
            Some(0) => {
                // SAFETY: as in `map1`; a uniform argument holds one value.
                let ($x, a, d) = unsafe { (*$b.args[0].cast::<$t>(), $b.arg::<$t>(1), $b.out::<$u>()) };
                for (d, &$y) in d.iter_mut().zip(a) {
                    *d = $e;
                }
            }
            Some(_) => {
                // SAFETY: as above.
                let (a, $y, d) = unsafe { ($b.arg::<$t>(0), *$b.args[1].cast::<$t>(), $b.out::<$u>()) };
                for (d, &$x) in d.iter_mut().zip(a) {
                    *d = $e;
                }
            }
        }
    };
}

/// Runs an instruction other than a source, a value, a parameter or a literal.
///
/// # Safety
/// `b` must hold blocks of the compute types that `op` says, and `b.out` must not overlap the arguments.
pub(crate) unsafe fn run(op: &Op, b: Blocks) {
    run_versions(op, b);
}

versions! {
    fn run_versions(op: &Op, b: Blocks) = run_body;
}

versions! {
    /// A primitive of one argument over f32, into as many results.
    #[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code))]
    pub(crate) fn unary_tile(u: Unary, x: &[f32], out: &mut [f32]) = unary_tile_body;
}

#[inline(always)]
fn unary_tile_body<const F: bool>(u: Unary, x: &[f32], out: &mut [f32]) {
    let n = x.len().min(out.len());
    unary_f32::<F>(u, Blocks { args: [x.as_ptr().cast(); 3], out: out.as_mut_ptr().cast(), n });
}

#[inline(always)]
fn run_body<const F: bool>(op: &Op, b: Blocks) {
    match op.prim {
        Prim::Unary(u) => {
            match op.from.compute() {
                DType::F64 => unary_f64(u, b),
                DType::I32 => unary_i32(u, b),
                DType::U32 => unary_u32(u, op.from, b),
                DType::I64 => unary_i64(u, b),
                DType::U64 => unary_u64(u, b),
                _ => unary_f32::<F>(u, b),
            }
            wrap(op, b);
        }
        Prim::Binary(p) => {
            match op.from.compute() {
                DType::F64 => binary_f64(p, b),
                DType::I32 => binary_i32(p, b),
                DType::U32 => binary_u32(p, b),
                DType::I64 => binary_i64(p, b),
                DType::U64 => binary_u64(p, b),
                _ => binary_f32::<F>(p, op.uniform, b),
            }
            if !p.compares() {
                wrap(op, b);
            }
        }
        Prim::Where => {
            if wide(op.dtype) {
                select::<u64>(b);
            } else {
                select::<u32>(b);
            }
        }
        Prim::Cast => cast(op.from, op.dtype, b),
        Prim::Philox => {
            // SAFETY: all three arguments and the result are u32.
            let (c, s, k, d) = unsafe { (b.arg::<u32>(0), b.arg::<u32>(1), b.arg::<u32>(2), b.out::<u32>()) };
            for (((d, &c), &s), &k) in d.iter_mut().zip(c).zip(s).zip(k) {
                *d = philox(c, s, k);
            }
        }
        Prim::Source(_) | Prim::Value | Prim::SwapPair | Prim::Param(_) | Prim::Lit(_) => {}
    }
}

#[inline(always)]
fn select<T: Copy>(b: Blocks) {
    // SAFETY: a condition in u32, two values and the result of one size.
    let (c, x, y, d) = unsafe { (b.arg::<u32>(0), b.arg::<T>(1), b.arg::<T>(2), b.out::<T>()) };
    for (((d, &c), &x), &y) in d.iter_mut().zip(c).zip(x).zip(y) {
        *d = if c != 0 { x } else { y };
    }
}

/// Brings results of narrow integers back to their width, and truth values to 0 and 1.
#[inline(always)]
fn wrap(op: &Op, b: Blocks) {
    match op.dtype {
        // SAFETY: the result was just written as i32.
        DType::I8 => unsafe { b.out::<i32>() }.iter_mut().for_each(|x| *x = *x as i8 as i32),
        // SAFETY: as above.
        DType::U8 => unsafe { b.out::<i32>() }.iter_mut().for_each(|x| *x = *x as u8 as i32),
        // SAFETY: as above.
        DType::I16 => unsafe { b.out::<i32>() }.iter_mut().for_each(|x| *x = *x as i16 as i32),
        // SAFETY: as above.
        DType::U16 => unsafe { b.out::<i32>() }.iter_mut().for_each(|x| *x = *x as u16 as i32),
        // SAFETY: the result was just written as u32.
        DType::Bool => unsafe { b.out::<u32>() }.iter_mut().for_each(|x| *x = (*x != 0) as u32),
        _ => {}
    }
}

/// The loop of a primitive over f32.
macro_rules! loop_f32 {
    ($b:expr, (|$x:ident| $e:expr)) => {
        map1!($b, f32 => f32, |$x| $e)
    };
    ($b:expr, (|$x:ident| $e:expr, far $far:path)) => {{
        map1!($b, f32 => f32, |$x| $e);
        far($b, $far);
    }};
    ($b:expr, (bool |$x:ident| $e:expr)) => {
        map1!($b, f32 => u32, |$x| ($e) as u32)
    };
}

#[inline(always)]
fn unary_f32<const F: bool>(u: Unary, b: Blocks) {
    macro_rules! loops {
        ($($(#[$doc:meta])* $v:ident = $name:ident { example: $example:tt, wgsl: $wgsl:tt, f32: $f32:tt, f64: $f64:tt, grad: $grad:tt, })*) => { match u { $(Unary::$v => loop_f32!(b, $f32)),* } };
    }
    unary_primitives!(loops)
}

/// Computes again what lies too far from zero for the vector form.
#[inline(always)]
fn far(b: Blocks, f: fn(f32) -> f32) {
    // SAFETY: called with the blocks of an f32 instruction.
    let (a, d) = unsafe { (b.arg::<f32>(0), b.out::<f32>()) };
    let most = a.iter().fold(0f32, |m, &x| if x.abs() > m { x.abs() } else { m });
    if most > math::MAX_REDUCED_ANGLE {
        for (d, &x) in d.iter_mut().zip(a) {
            if x.abs() > math::MAX_REDUCED_ANGLE {
                *d = f(x);
            }
        }
    }
}

#[inline(always)]
fn unary_f64(u: Unary, b: Blocks) {
    match u {
        Unary::Neg => map1!(b, f64 => f64, |x| -x),
        Unary::Abs => map1!(b, f64 => f64, |x| x.abs()),
        Unary::Sign => map1!(b, f64 => f64, |x| (x > 0.0) as i32 as f64 - (x < 0.0) as i32 as f64),
        Unary::Sqrt => map1!(b, f64 => f64, |x| x.sqrt()),
        Unary::IsNan => map1!(b, f64 => u32, |x| x.is_nan() as u32),
        Unary::IsInf => map1!(b, f64 => u32, |x| x.is_infinite() as u32),
        Unary::LogicalNot => map1!(b, f64 => u32, |x| (x == 0.0) as u32),
        _ => map1!(b, f64 => f64, |x| unary64(u, x)),
    }
}

/// A primitive of one f64.
macro_rules! value_f64 {
    ($value:expr, (|$x:ident| $e:expr)) => {{
        let $x: f64 = $value;
        $e
    }};
    ($value:expr, (bool |$x:ident| $e:expr)) => {{
        let $x: f64 = $value;
        ($e) as u8 as f64
    }};
}

/// One value in f64; predicates give 0 or 1.
pub(crate) fn unary64(u: Unary, x: f64) -> f64 {
    macro_rules! values {
        ($($(#[$doc:meta])* $v:ident = $name:ident { example: $example:tt, wgsl: $wgsl:tt, f32: $f32:tt, f64: $f64:tt, grad: $grad:tt, })*) => { match u { $(Unary::$v => value_f64!(x, $f64)),* } };
    }
    unary_primitives!(values)
}

macro_rules! unary_int {
    ($name:ident, $t:ty, $abs:ident, |$s:ident| $sign:expr) => {
        #[inline(always)]
        fn $name(u: Unary, b: Blocks) {
            match u {
                Unary::Neg => map1!(b, $t => $t, |x| x.wrapping_neg()),
                Unary::Abs => map1!(b, $t => $t, |x| $abs(x)),
                Unary::Sign => map1!(b, $t => $t, |$s| $sign),
                Unary::Floor | Unary::Ceil | Unary::Round | Unary::Trunc => map1!(b, $t => $t, |x| x),
                Unary::LogicalNot => map1!(b, $t => u32, |x| (x == 0) as u32),
                Unary::IsNan | Unary::IsInf => map1!(b, $t => u32, |_x| 0),
                Unary::BitNot => map1!(b, $t => $t, |x| !x),
                _ => map1!(b, $t => $t, |x| unary64(u, x as f64) as $t),
            }
        }
    };
}
fn abs_i32(x: i32) -> i32 {
    x.wrapping_abs()
}
fn abs_i64(x: i64) -> i64 {
    x.wrapping_abs()
}
fn abs_u32(x: u32) -> u32 {
    x
}
fn abs_u64(x: u64) -> u64 {
    x
}
unary_int!(unary_i32, i32, abs_i32, |x| x.signum());
unary_int!(unary_i64, i64, abs_i64, |x| x.signum());
unary_int!(unary_u32_plain, u32, abs_u32, |x| (x != 0) as u32);
unary_int!(unary_u64, u64, abs_u64, |x| (x != 0) as u64);

#[inline(always)]
fn unary_u32(u: Unary, from: DType, b: Blocks) {
    match (u, from) {
        (Unary::BitNot, DType::Bool) => map1!(b, u32 => u32, |x| (x == 0) as u32),
        _ => unary_u32_plain(u, b),
    }
}

/// The loop of a primitive of two arguments, `$map` over `$t`.
macro_rules! loop_binary {
    ($map:ident($($args:expr),*), $t:ty, (none)) => {
        // The builders of graphs refuse it for this type.
        $map!($($args),*, $t => $t, |x, _y| x)
    };
    ($map:ident($($args:expr),*), $t:ty, (|$x:ident, $y:ident| $e:expr)) => {
        $map!($($args),*, $t => $t, |$x, $y| $e)
    };
    ($map:ident($($args:expr),*), $t:ty, (bool |$x:ident, $y:ident| $e:expr)) => {
        $map!($($args),*, $t => u32, |$x, $y| ($e) as u32)
    };
}

#[inline(always)]
fn binary_f32<const F: bool>(p: Binary, uniform: Option<u8>, b: Blocks) {
    macro_rules! loops {
        ($($(#[$doc:meta])* $v:ident = $name:ident { example: $example:tt, wgsl: $wgsl:tt, f32: $f32:tt, f64: $f64:tt, int: $int:tt, left: $left:tt, right: $right:tt, })*) => { match p { $(Binary::$v => loop_binary!(map2u(uniform, b), f32, $f32)),* } };
    }
    binary_primitives!(loops)
}

#[inline(always)]
fn binary_f64(p: Binary, b: Blocks) {
    macro_rules! loops {
        ($($(#[$doc:meta])* $v:ident = $name:ident { example: $example:tt, wgsl: $wgsl:tt, f32: $f32:tt, f64: $f64:tt, int: $int:tt, left: $left:tt, right: $right:tt, })*) => { match p { $(Binary::$v => loop_binary!(map2(b), f64, $f64)),* } };
    }
    binary_primitives!(loops)
}

#[inline(always)]
fn binary_i32(p: Binary, b: Blocks) {
    macro_rules! loops {
        ($($(#[$doc:meta])* $v:ident = $name:ident { example: $example:tt, wgsl: $wgsl:tt, f32: $f32:tt, f64: $f64:tt, int: $int:tt, left: $left:tt, right: $right:tt, })*) => { match p { $(Binary::$v => loop_binary!(map2(b), i32, $int)),* } };
    }
    binary_primitives!(loops)
}

#[inline(always)]
fn binary_u32(p: Binary, b: Blocks) {
    macro_rules! loops {
        ($($(#[$doc:meta])* $v:ident = $name:ident { example: $example:tt, wgsl: $wgsl:tt, f32: $f32:tt, f64: $f64:tt, int: $int:tt, left: $left:tt, right: $right:tt, })*) => { match p { $(Binary::$v => loop_binary!(map2(b), u32, $int)),* } };
    }
    binary_primitives!(loops)
}

#[inline(always)]
fn binary_i64(p: Binary, b: Blocks) {
    macro_rules! loops {
        ($($(#[$doc:meta])* $v:ident = $name:ident { example: $example:tt, wgsl: $wgsl:tt, f32: $f32:tt, f64: $f64:tt, int: $int:tt, left: $left:tt, right: $right:tt, })*) => { match p { $(Binary::$v => loop_binary!(map2(b), i64, $int)),* } };
    }
    binary_primitives!(loops)
}

#[inline(always)]
fn binary_u64(p: Binary, b: Blocks) {
    macro_rules! loops {
        ($($(#[$doc:meta])* $v:ident = $name:ident { example: $example:tt, wgsl: $wgsl:tt, f32: $f32:tt, f64: $f64:tt, int: $int:tt, left: $left:tt, right: $right:tt, })*) => { match p { $(Binary::$v => loop_binary!(map2(b), u64, $int)),* } };
    }
    binary_primitives!(loops)
}

/// What rows of the table say of integers beyond Rust's own methods.
trait Integer: Sized {
    /// x to the power y, wrapping; a negative power is 0 unless x is 1 or −1.
    fn power(self, y: Self) -> Self;
    /// The remainder with the sign of y, which is not 0.
    fn remainder(self, y: Self) -> Self;
    /// 0 from the width on; a negative count is a huge one.
    fn shifted_left(self, count: Self) -> Self;
    /// Likewise, with the sign for signed integers.
    fn shifted_right(self, count: Self) -> Self;
}

macro_rules! integer {
    ($t:ty, |$x:ident, $y:ident| $remainder:expr, |$z:ident| $far:expr) => {
        impl Integer for $t {
            fn power(self, mut y: $t) -> $t {
                #[allow(unused_comparisons)]
                if y < 0 {
                    return if self == 1 {
                        1
                    } else if self == (0 as $t).wrapping_sub(1) {
                        if y & 1 == 0 { 1 } else { self }
                    } else {
                        0
                    };
                }
                let (mut base, mut result) = (self, 1 as $t);
                while y > 0 {
                    if y & 1 == 1 {
                        result = result.wrapping_mul(base);
                    }
                    base = base.wrapping_mul(base);
                    y >>= 1;
                }
                result
            }
            #[inline(always)]
            fn remainder(self, $y: $t) -> $t {
                let $x = self;
                $remainder
            }
            #[inline(always)]
            fn shifted_left(self, count: $t) -> $t {
                if (count as u64) < <$t>::BITS as u64 { self << count } else { 0 }
            }
            #[inline(always)]
            fn shifted_right(self, count: $t) -> $t {
                let $z = self;
                if (count as u64) < <$t>::BITS as u64 { self >> count } else { $far }
            }
        }
    };
}
integer!(
    i32,
    |x, y| {
        let r = x.wrapping_rem(y);
        if r != 0 && (r < 0) != (y < 0) { r + y } else { r }
    },
    |x| x >> 31
);
integer!(
    i64,
    |x, y| {
        let r = x.wrapping_rem(y);
        if r != 0 && (r < 0) != (y < 0) { r + y } else { r }
    },
    |x| x >> 63
);
integer!(u32, |x, y| x % y, |_x| 0);
integer!(u64, |x, y| x % y, |_x| 0);

/// Conversion from the compute form of `from` to that of `to`, rounded to `to`.
#[inline(always)]
fn cast(from: DType, to: DType, b: Blocks) {
    macro_rules! from_int {
        ($t:ty) => {
            match to {
                DType::F64 => map1!(b, $t => f64, |x| x as f64),
                DType::I32 => map1!(b, $t => i32, |x| x as i32),
                DType::U32 => map1!(b, $t => u32, |x| x as u32),
                DType::I64 => map1!(b, $t => i64, |x| x as i64),
                DType::U64 => map1!(b, $t => u64, |x| x as u64),
                DType::I16 => map1!(b, $t => i32, |x| x as i16 as i32),
                DType::U16 => map1!(b, $t => i32, |x| x as u16 as i32),
                DType::I8 => map1!(b, $t => i32, |x| x as i8 as i32),
                DType::U8 => map1!(b, $t => i32, |x| x as u8 as i32),
                DType::Bool => map1!(b, $t => u32, |x| (x != 0) as u32),
                DType::F16 => map1!(b, $t => f32, |x| half::f16::from_f64(x as f64).to_f32()),
                DType::BF16 => map1!(b, $t => f32, |x| half::bf16::from_f64(x as f64).to_f32()),
                _ => map1!(b, $t => f32, |x| x as f32),
            }
        };
    }
    macro_rules! from_float {
        ($t:ty, $wide:expr) => {
            match to {
                DType::F64 => map1!(b, $t => f64, |x| x as f64),
                DType::I32 => map1!(b, $t => i32, |x| x as i32),
                DType::U32 => map1!(b, $t => u32, |x| x as u32),
                DType::I64 => map1!(b, $t => i64, |x| x as i64),
                DType::U64 => map1!(b, $t => u64, |x| x as u64),
                DType::I16 => map1!(b, $t => i32, |x| x as i16 as i32),
                DType::U16 => map1!(b, $t => i32, |x| x as u16 as i32),
                DType::I8 => map1!(b, $t => i32, |x| x as i8 as i32),
                DType::U8 => map1!(b, $t => i32, |x| x as u8 as i32),
                DType::Bool => map1!(b, $t => u32, |x| (x != 0.0) as u32),
                DType::F16 if $wide => map1!(b, $t => f32, |x| half::f16::from_f64(x as f64).to_f32()),
                DType::BF16 if $wide => map1!(b, $t => f32, |x| half::bf16::from_f64(x as f64).to_f32()),
                DType::F16 => map1!(b, $t => f32, |x| round_f16(x as f32)),
                DType::BF16 => map1!(b, $t => f32, |x| f32::from_bits((round_bf16(x as f32) as u32) << 16)),
                _ => map1!(b, $t => f32, |x| x as f32),
            }
        };
    }
    match from.compute() {
        DType::F64 => from_float!(f64, true),
        DType::I32 => from_int!(i32),
        DType::U32 => from_int!(u32),
        DType::I64 => from_int!(i64),
        DType::U64 => from_int!(u64),
        _ => from_float!(f32, false),
    }
}

/// The bits of the nearest bf16, halves to even; NaN stays NaN.
#[inline(always)]
pub(crate) fn round_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16;
    (if x.is_nan() { bits >> 16 | 0x40 } else { rounded }) as u16
}

/// The value of the nearest f16, halves to even; NaN stays NaN.
#[inline(always)]
fn round_f16(x: f32) -> f32 {
    let size = x.abs();
    // Adding and subtracting a power of two leaves 10 bits of fraction; below 2⁻¹⁴ the spacing stays that of subnormals.
    let exponent = (size.to_bits() >> 23).max(113);
    let shift = f32::from_bits((exponent + 13) << 23);
    let near = (size + shift) - shift;
    let near = if near >= 65_520.0 { f32::INFINITY } else { near };
    (if size < 131_072.0 {
        near
    } else if x.is_nan() {
        x
    } else {
        f32::INFINITY
    })
    .copysign(x)
}
