//! Scalar functions written without branches, so that loops over them become vector code. Within 3 ulp in f32.

/// `a * b + c`, in one rounding where the path has the instruction.
#[inline(always)]
pub fn fma<const F: bool>(a: f32, b: f32, c: f32) -> f32 {
    if F { a.mul_add(b, c) } else { a * b + c }
}

#[inline(always)]
fn fma64<const F: bool>(a: f64, b: f64, c: f64) -> f64 {
    if F { a.mul_add(b, c) } else { a * b + c }
}

/// Horner's rule, lowest coefficient first.
#[inline(always)]
fn poly<const F: bool, const N: usize>(x: f32, c: &[f32; N]) -> f32 {
    let mut y = c[N - 1];
    let mut i = N - 1;
    while i > 0 {
        i -= 1;
        y = fma::<F>(y, x, c[i]);
    }
    y
}

#[inline(always)]
fn poly64<const F: bool, const N: usize>(x: f64, c: &[f64; N]) -> f64 {
    let mut y = c[N - 1];
    let mut i = N - 1;
    while i > 0 {
        i -= 1;
        y = fma64::<F>(y, x, c[i]);
    }
    y
}

// Minimax coefficients, fitted with weights that make the error of the final result even.
/// (eˣ − 1 − x) / x² for |x| ≤ ln 2 / 2
pub(super) const EXP: [f32; 5] = [5.0e-01, 1.6666518e-01, 4.1666206e-02, 8.368953e-03, 1.3950596e-03];
/// (2ˣ − 1) / x for |x| ≤ 1/2
const EXP2: [f32; 6] = [6.931472e-01, 2.402265e-01, 5.5503275e-02, 9.618004e-03, 1.34004e-03, 1.5476446e-04];
/// (ln(1 + x) − x + x²/2) / x³ for 1 + x from √½ to √2
const LOG: [f32; 9] = [
    3.333331e-01,
    -2.4999987e-01,
    2.000223e-01,
    -1.6669263e-01,
    1.4218593e-01,
    -1.2384083e-01,
    1.1873274e-01,
    -1.1791611e-01,
    6.916821e-02,
];
/// (sin x − x) / x³ over x², |x| ≤ π/4
const SIN: [f32; 4] = [-1.6666667e-01, 8.333329e-03, -1.983933e-04, 2.718275e-06];
/// (cos x − 1 + x²/2) / x⁴ over x², |x| ≤ π/4
const COS: [f32; 3] = [4.1666646e-02, -1.3887364e-03, 2.4438103e-05];
/// erf(x)/x − 1 over x², x ≤ 0.93
const ERF: [f32; 7] = [1.2837917e-01, -3.7612635e-01, 1.1283694e-01, -2.685927e-02, 5.2006347e-03, -8.13744e-04, 8.3452316e-05];
/// ln(erfc x) for x from 0.9 to 4
const ERFC_LN: [f32; 9] = [
    1.7143568e-04,
    -1.1294969e+00,
    -6.333905e-01,
    -1.0821972e-01,
    2.5067316e-02,
    -4.1424497e-03,
    4.2474028e-04,
    -1.9233039e-05,
    -1.5337365e-07,
];
/// log₂((1 + z) / (1 − z)) / z over z², the argument from √½ to √2
const LOG2_WIDE: [f64; 7] = [
    2.885390081777927,
    0.9617966939243084,
    0.5770780172572679,
    0.4121984003797268,
    0.3206165028566462,
    0.26144062238367927,
    0.2429589930795499,
];
/// 2ˣ for |x| ≤ 1/2
const EXP2_WIDE: [f64; 7] = [
    0.9999999999183842,
    0.6931472068667494,
    0.24022651509743168,
    0.05550326879911035,
    0.009617993991605636,
    0.0013400565964548636,
    0.0001547816785343362,
];

pub(super) const LN2_HIGH: f32 = f32::from_bits(0x3F31_7200);
pub(super) const LN2_LOW: f32 = 1.428_606_8e-6;
/// Adding it rounds to an integer, which then stands in the low bits.
pub(super) const MAGIC: f32 = 12_582_912.0;
const MAGIC_WIDE: f64 = 6_755_399_441_055_744.0;

/// `y * 2^n` for n of any size that results can have, rounded once.
#[inline(always)]
fn scale(y: f32, n: i32) -> f32 {
    let half = n >> 1;
    let rest = n.wrapping_sub(half);
    y * f32::from_bits((half.wrapping_add(127) as u32) << 23) * f32::from_bits((rest.wrapping_add(127) as u32) << 23)
}

/// `x = n ln 2 + r` with an integer n: (n, r).
#[inline(always)]
fn reduce_ln2<const F: bool>(x: f32) -> (i32, f32) {
    let t = fma::<F>(x, std::f32::consts::LOG2_E, MAGIC);
    let n = t - MAGIC;
    let r = fma::<F>(n, -LN2_LOW, fma::<F>(n, -LN2_HIGH, x));
    ((t.to_bits() as i32).wrapping_sub(MAGIC.to_bits() as i32), r)
}

/// Bounds that keep NaN.
#[inline(always)]
fn clamp(x: f32, low: f32, high: f32) -> f32 {
    let x = if x > high { high } else { x };
    if x < low { low } else { x }
}

/// eˣ
#[inline(always)]
pub fn exp<const F: bool>(x: f32) -> f32 {
    let (n, r) = reduce_ln2::<F>(clamp(x, -105.0, 90.0));
    scale(fma::<F>(r * r, poly::<F, 5>(r, &EXP), r) + 1.0, n)
}

/// eˣ for x up to 40, or NaN: cheaper than `exp`, whose results may be large as well as tiny.
#[inline(always)]
pub fn exp_below<const F: bool>(x: f32) -> f32 {
    let (n, r) = reduce_ln2::<F>(if x < -105.0 { -105.0 } else { x });
    let y = fma::<F>(r * r, poly::<F, 5>(r, &EXP), r) + 1.0;
    // 2^(n + 64) is normal, so only the last product rounds.
    y * f32::from_bits((n.wrapping_add(127 + 64) as u32) << 23) * f32::from_bits((127 - 64) << 23)
}

/// 2ˣ
#[inline(always)]
pub fn exp2<const F: bool>(x: f32) -> f32 {
    let x = clamp(x, -152.0, 130.0);
    let t = x + MAGIC;
    let r = x - (t - MAGIC);
    scale(fma::<F>(r, poly::<F, 6>(r, &EXP2), 1.0), (t.to_bits() as i32).wrapping_sub(MAGIC.to_bits() as i32))
}

/// eˣ − 1
#[inline(always)]
pub fn expm1<const F: bool>(x: f32) -> f32 {
    let (n, r) = reduce_ln2::<F>(clamp(x, -20.0, 89.0));
    let e = fma::<F>(r * r, poly::<F, 5>(r, &EXP), r);
    // Half of 2^n, so that n = 128 fits.
    let half = f32::from_bits((n.wrapping_add(126) as u32) << 23);
    let y = 2.0 * fma::<F>(half, e, half - 0.5);
    if x == 0.0 { x } else { y }
}

/// `x = 2^e (1 + f)` with 1 + f from √½ to √2, for positive finite x: (e, ln(1 + f)).
#[inline(always)]
fn log_parts<const F: bool>(x: f32) -> (f32, f32) {
    let tiny = x < f32::MIN_POSITIVE;
    let bits = (if tiny { x * 8_388_608.0 } else { x }).to_bits() as i32;
    let e = bits.wrapping_sub(0x3F35_04F3) >> 23;
    let f = f32::from_bits(bits.wrapping_sub(e << 23) as u32) - 1.0;
    let p = fma::<F>(f * f, fma::<F>(f, poly::<F, 9>(f, &LOG), -0.5), f);
    (e as f32 - if tiny { 23.0 } else { 0.0 }, p)
}

/// The logarithm's values outside the positive finite numbers.
#[inline(always)]
fn log_special(x: f32, y: f32) -> f32 {
    let y = if x == f32::INFINITY { x } else { y };
    let y = if x >= 0.0 { y } else { f32::NAN };
    if x == 0.0 { f32::NEG_INFINITY } else { y }
}

/// Natural logarithm
#[inline(always)]
pub fn log<const F: bool>(x: f32) -> f32 {
    let (e, p) = log_parts::<F>(x);
    log_special(x, fma::<F>(e, LN2_HIGH, fma::<F>(e, LN2_LOW, p)))
}

/// Base-2 logarithm
#[inline(always)]
pub fn log2<const F: bool>(x: f32) -> f32 {
    let (e, p) = log_parts::<F>(x);
    log_special(x, fma::<F>(p, std::f32::consts::LOG2_E, e))
}

/// Base-10 logarithm
#[inline(always)]
pub fn log10<const F: bool>(x: f32) -> f32 {
    // log10(2) in two parts, the first short enough for exact products.
    const HIGH: f32 = f32::from_bits(0x3E9A_2000);
    const LOW: f32 = (std::f64::consts::LOG10_2 - HIGH as f64) as f32;
    let (e, p) = log_parts::<F>(x);
    log_special(x, fma::<F>(e, HIGH, fma::<F>(p, std::f32::consts::LOG10_E, e * LOW)))
}

/// ln(1 + x)
#[inline(always)]
pub fn log1p<const F: bool>(x: f32) -> f32 {
    let u = 1.0 + x;
    let lost = x - (u - 1.0);
    let (e, p) = log_parts::<F>(u);
    let y = log_special(u, fma::<F>(e, LN2_HIGH, fma::<F>(e, LN2_LOW, p + lost / u)));
    if x == 0.0 { x } else { y }
}

/// Hyperbolic tangent: E / (E + 2) with E = e²ˣ − 1, of which no digits are lost near 0.
#[inline(always)]
pub fn tanh<const F: bool>(x: f32) -> f32 {
    let t = x.abs();
    let t = if t > 9.5 { 9.5 } else { t };
    let (n, r) = reduce_ln2::<F>(t + t);
    let p = fma::<F>(r * r, poly::<F, 5>(r, &EXP), r);
    let s = f32::from_bits((n.wrapping_add(127) as u32) << 23);
    let e = fma::<F>(s, p, s - 1.0);
    (e / (e + 2.0)).copysign(x)
}

/// 1/(1 + e⁻ˣ)
#[inline(always)]
pub fn sigmoid<const F: bool>(x: f32) -> f32 {
    let e = exp_below::<F>(-x.abs());
    (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)
}

/// Error function
#[inline(always)]
pub fn erf<const F: bool>(x: f32) -> f32 {
    let t = x.abs();
    let small = fma::<F>(t, poly::<F, 7>(t * t, &ERF), t);
    let large = 1.0 - exp::<F>(poly::<F, 9>(clamp(t, 0.0, 4.0), &ERFC_LN));
    (if t < 0.9277 { small } else { large }).copysign(x)
}

/// Above this the reduction of `sin` and `cos` is not exact enough, and the standard library's is used.
pub const MAX_REDUCED_ANGLE: f32 = 4_194_304.0;

/// sin(x + quarters · π/2) for |x| ≤ `MAX_REDUCED_ANGLE`
#[inline(always)]
fn sine<const F: bool>(x: f32, quarters: i32) -> f32 {
    // π/2 in two parts, the first of 31 bits.
    const HIGH: f64 = f64::from_bits(0x3FF9_21FB_5440_0000);
    const LOW: f64 = 6.077_100_506_506_192e-11;
    let wide = x as f64;
    let t = fma64::<F>(wide, std::f64::consts::FRAC_2_PI, MAGIC_WIDE);
    let n = t - MAGIC_WIDE;
    let q = (t.to_bits() as i32).wrapping_add(quarters);
    let r = fma64::<F>(n, -LOW, fma64::<F>(n, -HIGH, wide)) as f32;
    let s = r * r;
    let sin = if s == 0.0 { r } else { fma::<F>(r * s, poly::<F, 4>(s, &SIN), r) };
    let cos = fma::<F>(s * s, poly::<F, 3>(s, &COS), fma::<F>(s, -0.5, 1.0));
    let y = if q & 1 == 0 { sin } else { cos };
    f32::from_bits(y.to_bits() ^ ((q as u32 & 2) << 30))
}

/// Sine of |x| ≤ `MAX_REDUCED_ANGLE`
#[inline(always)]
pub fn sin<const F: bool>(x: f32) -> f32 {
    sine::<F>(x, 0)
}

/// Cosine of |x| ≤ `MAX_REDUCED_ANGLE`
#[inline(always)]
pub fn cos<const F: bool>(x: f32) -> f32 {
    sine::<F>(x, 1)
}

/// xʸ
#[inline(always)]
pub fn pow<const F: bool>(x: f32, y: f32) -> f32 {
    let a = x.abs() as f64;
    let bits = a.to_bits() as i64;
    let e = bits.wrapping_sub(0x3FE6_A09E_667F_3BCD) >> 52;
    let m = f64::from_bits(bits.wrapping_sub(e << 52) as u64);
    let z = (m - 1.0) / (m + 1.0);
    // The exponent as a float, without an instruction that only AVX-512 has.
    let e = f64::from_bits((e as u64).wrapping_add(MAGIC_WIDE.to_bits())) - MAGIC_WIDE;
    let log = fma64::<F>(z, poly64::<F, 7>(z * z, &LOG2_WIDE), e);
    let log = if a == 0.0 { f64::NEG_INFINITY } else { log };
    let log = if a > f32::MAX as f64 { f64::INFINITY } else { log };
    let t = log * y as f64;
    let t = if t > 130.0 { 130.0 } else { t };
    let t = if t < -160.0 { -160.0 } else { t };
    let whole = t + MAGIC_WIDE;
    let r = t - (whole - MAGIC_WIDE);
    let n = (whole.to_bits() as i64).wrapping_sub(MAGIC_WIDE.to_bits() as i64);
    let size = (poly64::<F, 7>(r, &EXP2_WIDE) * f64::from_bits((n.wrapping_add(1023) as u64) << 52)) as f32;
    let whole = y.trunc() == y;
    let odd = whole & ((y * 0.5).trunc() != y * 0.5);
    let sized = if (x < 0.0) & !whole & (y.abs() < f32::INFINITY) & (a <= f32::MAX as f64) { f32::NAN } else { size };
    let signed = if odd { sized.copysign(x) } else { sized };
    let signed = if x.is_nan() | y.is_nan() { f32::NAN } else { signed };
    if (x == 1.0) | (y == 0.0) | ((x == -1.0) & (y.abs() == f32::INFINITY)) { 1.0 } else { signed }
}

/// Error function in f64.
pub fn erf64(x: f64) -> f64 {
    libm::erf(x)
}

/// Inverse hyperbolic cosine in f64; NaN below 1, where libm's gives numbers.
pub fn acosh64(x: f64) -> f64 {
    if x < 1.0 { f64::NAN } else { libm::acosh(x) }
}
