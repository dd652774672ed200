//! The primitives of one argument, each in one place: its method's name and example, its expressions in WGSL and Rust, and its derivative.
//!
//! A new one is a row here. A form that neither WGSL nor Rust has gets a helper: in `backends/codegen/prelude.wgsl`, in `backends/cpu/math.rs`.

/// Hands the table to the macro `with`, which takes from each row what it needs:
///
/// - `example`: an argument and the method's result, which its documentation shows;
/// - `wgsl`: the expression for a float argument `a`; `quick` where the prelude has a form `tl_<name>_quick` that is less accurate;
/// - `f32`: the loop's body on the CPU, where `F` says whether there is a fused multiply-add, `far` what computes arguments again that are too far
///   from zero for it, and `bool` that the result is a truth value;
/// - `f64`: likewise;
/// - `grad`: the argument's gradient from the result's, g, the argument x and the result y; `none` where the derivative is zero everywhere.
macro_rules! unary_primitives {
    ($with:ident) => {
        $with! {
            /// −x.
            Neg = neg {
                example: (2.0 => -2.0),
                wgsl: ("-(a)"),
                f32: (|x| -x),
                f64: (|x| -x),
                grad: (|g, x, y| g.neg()),
            }
            /// |x|.
            Abs = abs {
                example: (-2.0 => 2.0),
                wgsl: ("abs(a)"),
                f32: (|x| x.abs()),
                f64: (|x| x.abs()),
                grad: (|g, x, y| g.mul(&x.sign()?)),
            }
            /// −1, 0 or 1; NaN gives 0 as in PyTorch.
            Sign = sign {
                example: (-2.0 => -1.0),
                wgsl: ("sign(a)"),
                f32: (|x| (x > 0.0) as i32 as f32 - (x < 0.0) as i32 as f32),
                f64: (|x| (x > 0.0) as i32 as f64 - (x < 0.0) as i32 as f64),
                grad: (none),
            }
            /// √x.
            Sqrt = sqrt {
                example: (4.0 => 2.0),
                wgsl: ("sqrt(a)"),
                f32: (|x| x.sqrt()),
                f64: (|x| x.sqrt()),
                grad: (|g, x, y| g.mul(Lit(0.5))?.div(y)),
            }
            /// 1/√x.
            Rsqrt = rsqrt {
                example: (4.0 => 0.5),
                wgsl: ("inverseSqrt(a)"),
                f32: (|x| 1.0 / x.sqrt()),
                f64: (|x| 1.0 / x.sqrt()),
                grad: (|g, x, y| g.mul(Lit(-0.5))?.mul(&square(y)?.mul(y)?)),
            }
            /// 1/x.
            Recip = reciprocal {
                example: (4.0 => 0.25),
                wgsl: ("(1.0 / (a))"),
                f32: (|x| 1.0 / x),
                f64: (|x| 1.0 / x),
                grad: (|g, x, y| g.mul(&square(y)?)?.neg()),
            }
            /// eˣ.
            Exp = exp {
                example: (1.0 => 2.718282),
                wgsl: ("exp(a)"),
                f32: (|x| math::exp::<F>(x)),
                f64: (|x| x.exp()),
                grad: (|g, x, y| g.mul(y)),
            }
            /// 2ˣ.
            Exp2 = exp2 {
                example: (3.0 => 8.0),
                wgsl: ("exp2(a)"),
                f32: (|x| math::exp2::<F>(x)),
                f64: (|x| x.exp2()),
                grad: (|g, x, y| g.mul(y)?.mul(Lit(std::f64::consts::LN_2))),
            }
            /// eˣ − 1, accurate near 0.
            Expm1 = expm1 {
                example: (1.0 => 1.718282),
                wgsl: ("tl_expm1(a)"),
                f32: (|x| math::expm1::<F>(x)),
                f64: (|x| x.exp_m1()),
                grad: (|g, x, y| g.mul(&y.add(Lit(1.0))?)),
            }
            /// Natural logarithm.
            Log = log {
                example: (2.0 => 0.693147),
                wgsl: ("log(a)"),
                f32: (|x| math::log::<F>(x)),
                f64: (|x| x.ln()),
                grad: (|g, x, y| g.div(x)),
            }
            /// Base-2 logarithm.
            Log2 = log2 {
                example: (8.0 => 3.0),
                wgsl: ("log2(a)"),
                f32: (|x| math::log2::<F>(x)),
                f64: (|x| x.log2()),
                grad: (|g, x, y| g.div(x)?.mul(Lit(1.0 / std::f64::consts::LN_2))),
            }
            /// Base-10 logarithm.
            Log10 = log10 {
                example: (100.0 => 2.0),
                wgsl: ("(log(a) * 0.4342944819032518)"),
                f32: (|x| math::log10::<F>(x)),
                f64: (|x| x.log10()),
                grad: (|g, x, y| g.div(x)?.mul(Lit(std::f64::consts::LOG10_E))),
            }
            /// ln(1 + x), accurate near 0.
            Log1p = log1p {
                example: (1.0 => 0.693147),
                wgsl: ("tl_log1p(a)"),
                f32: (|x| math::log1p::<F>(x)),
                f64: (|x| x.ln_1p()),
                grad: (|g, x, y| g.div(&x.add(Lit(1.0))?)),
            }
            /// Sine.
            Sin = sin {
                example: (1.0 => 0.841471),
                wgsl: ("sin(a)"),
                f32: (|x| math::sin::<F>(x), far f32::sin),
                f64: (|x| x.sin()),
                grad: (|g, x, y| g.mul(&x.cos()?)),
            }
            /// Cosine.
            Cos = cos {
                example: (1.0 => 0.540302),
                wgsl: ("cos(a)"),
                f32: (|x| math::cos::<F>(x), far f32::cos),
                f64: (|x| x.cos()),
                grad: (|g, x, y| g.mul(&x.sin()?)?.neg()),
            }
            /// Tangent.
            Tan = tan {
                example: (1.0 => 1.557408),
                wgsl: ("tan(a)"),
                f32: (|x| x.tan()),
                f64: (|x| x.tan()),
                grad: (|g, x, y| g.mul(&square(y)?.add(Lit(1.0))?)),
            }
            /// Arc sine.
            Asin = asin {
                example: (1.0 => 1.570796),
                wgsl: ("asin(a)"),
                f32: (|x| x.asin()),
                f64: (|x| x.asin()),
                grad: (|g, x, y| g.mul(&square(x)?.neg()?.add(Lit(1.0))?.rsqrt()?)),
            }
            /// Arc cosine.
            Acos = acos {
                example: (0.0 => 1.570796),
                wgsl: ("acos(a)"),
                f32: (|x| x.acos()),
                f64: (|x| x.acos()),
                grad: (|g, x, y| g.mul(&square(x)?.neg()?.add(Lit(1.0))?.rsqrt()?)?.neg()),
            }
            /// Arc tangent.
            Atan = atan {
                example: (1.0 => 0.785398),
                wgsl: ("atan(a)"),
                f32: (|x| x.atan()),
                f64: (|x| x.atan()),
                grad: (|g, x, y| g.div(&square(x)?.add(Lit(1.0))?)),
            }
            /// Hyperbolic sine.
            Sinh = sinh {
                example: (1.0 => 1.175201),
                wgsl: ("tl_sinh(a)"),
                f32: (|x| x.sinh()),
                f64: (|x| x.sinh()),
                grad: (|g, x, y| g.mul(&x.cosh()?)),
            }
            /// Hyperbolic cosine.
            Cosh = cosh {
                example: (1.0 => 1.543081),
                wgsl: ("tl_cosh(a)"),
                f32: (|x| x.cosh()),
                f64: (|x| x.cosh()),
                grad: (|g, x, y| g.mul(&x.sinh()?)),
            }
            /// Hyperbolic tangent.
            Tanh = tanh {
                example: (1.0 => 0.761594),
                wgsl: ("tl_tanh(a)", quick),
                f32: (|x| math::tanh::<F>(x)),
                f64: (|x| x.tanh()),
                grad: (|g, x, y| g.mul(&square(y)?.neg()?.add(Lit(1.0))?)),
            }
            /// Inverse hyperbolic sine.
            Asinh = asinh {
                example: (1.0 => 0.881374),
                wgsl: ("tl_asinh(a)"),
                // In f64: the standard library's f32 forms cancel near 0 and overflow early.
                f32: (|x| libm::asinh(x as f64) as f32),
                f64: (|x| libm::asinh(x)),
                grad: (|g, x, y| g.mul(&square(x)?.add(Lit(1.0))?.rsqrt()?)),
            }
            /// Inverse hyperbolic cosine.
            Acosh = acosh {
                example: (2.0 => 1.316958),
                wgsl: ("tl_acosh(a)"),
                f32: (|x| math::acosh64(x as f64) as f32),
                f64: (|x| math::acosh64(x)),
                grad: (|g, x, y| g.mul(&square(x)?.sub(Lit(1.0))?.rsqrt()?)),
            }
            /// Inverse hyperbolic tangent.
            Atanh = atanh {
                example: (0.5 => 0.549306),
                wgsl: ("tl_atanh(a)"),
                f32: (|x| libm::atanh(x as f64) as f32),
                f64: (|x| libm::atanh(x)),
                grad: (|g, x, y| g.div(&square(x)?.neg()?.add(Lit(1.0))?)),
            }
            /// Error function.
            Erf = erf {
                example: (1.0 => 0.842701),
                wgsl: ("tl_erf(a)", quick),
                f32: (|x| math::erf::<F>(x)),
                f64: (|x| math::erf64(x)),
                grad: (|g, x, y| g.mul(&square(x)?.neg()?.exp()?)?.mul(Lit(std::f64::consts::FRAC_2_SQRT_PI))),
            }
            /// 1/(1 + e⁻ˣ).
            Sigmoid = sigmoid {
                example: (1.0 => 0.731059),
                wgsl: ("tl_sigmoid(a)", quick),
                f32: (|x| math::sigmoid::<F>(x)),
                f64: (|x| { let e = (-x.abs()).exp(); (if x < 0.0 { e } else { 1.0 }) / (1.0 + e) }),
                grad: (|g, x, y| g.mul(&y.mul(&y.neg()?.add(Lit(1.0))?)?)),
            }
            /// Largest integer not above x.
            Floor = floor {
                example: (-1.5 => -2.0),
                wgsl: ("floor(a)"),
                f32: (|x| x.floor()),
                f64: (|x| x.floor()),
                grad: (none),
            }
            /// Smallest integer not below x.
            Ceil = ceil {
                example: (-1.5 => -1.0),
                wgsl: ("ceil(a)"),
                f32: (|x| x.ceil()),
                f64: (|x| x.ceil()),
                grad: (none),
            }
            /// Nearest integer, halves to even.
            Round = round {
                example: (2.5 => 2.0),
                wgsl: ("round(a)"),
                f32: (|x| x.round_ties_even()),
                f64: (|x| x.round_ties_even()),
                grad: (none),
            }
            /// The integer part.
            Trunc = trunc {
                example: (-1.5 => -1.0),
                wgsl: ("trunc(a)"),
                f32: (|x| x.trunc()),
                f64: (|x| x.trunc()),
                grad: (none),
            }
            /// Whether x is NaN, by its bits.
            IsNan = isnan {
                example: (f32::NAN => 1.0),
                wgsl: ("tl_isnan(a)"),
                f32: (bool |x| x.is_nan()),
                f64: (bool |x| x.is_nan()),
                grad: (none),
            }
            /// Whether x is an infinity, by its bits.
            IsInf = isinf {
                example: (f32::INFINITY => 1.0),
                wgsl: ("tl_isinf(a)"),
                f32: (bool |x| x.abs() == f32::INFINITY),
                f64: (bool |x| x.is_infinite()),
                grad: (none),
            }
            /// Whether x is zero.
            LogicalNot = logical_not {
                example: (0.0 => 1.0),
                wgsl: ("(a == 0)"),
                f32: (bool |x| x == 0.0),
                f64: (bool |x| x == 0.0),
                grad: (none),
            }
            /// Bits inverted (integers); for bool the logical not.
            BitNot = bitwise_not {
                example: (5 => -6.0),
                wgsl: ("~(a)"),
                f32: (|x| f32::from_bits(!x.to_bits())),
                f64: (|x| f64::from_bits(!x.to_bits())),
                grad: (none),
            }
        }
    };
}
pub(crate) use unary_primitives;
