//! The primitives of two arguments, each in one place: its method's name and example, its expressions in WGSL and Rust, and its derivatives.
//!
//! A new one is a row here. A form that neither WGSL nor Rust has gets a helper: in `backends/codegen/prelude.wgsl`, in `backends/cpu/math.rs`.

/// Hands the table to the macro `with`, which takes from each row what it needs:
///
/// - `example`: both arguments and the method's result, which its documentation shows; `none` where the method is written by hand;
/// - `wgsl`: the expression for float arguments `a` and `b`;
/// - `f32`: the loop's body on the CPU, where `F` says whether there is a fused multiply-add and `bool` that the result is a truth value; `none`
///   where it is defined on integers and bool only;
/// - `f64`: likewise;
/// - `int`: likewise for i32, u32 and i64, with the methods of `backends/cpu/lanes.rs`'s `Integer`; `none` where it is defined on floats only;
/// - `left`: the left argument's gradient from the result's, g, the argument x, the other one c (a tensor or a number) and the result y; `none`
///   where the derivative is zero everywhere;
/// - `right`: likewise for the right argument x, where a is the left one.
macro_rules! binary_primitives {
    ($with:ident) => {
        $with! {
            /// Sum.
            Add = add {
                example: (2.0, 3.0 => 5.0),
                wgsl: "((a) + (b))",
                f32: (|x, y| x + y),
                f64: (|x, y| x + y),
                int: (|x, y| x.wrapping_add(y)),
                left: (|g, x, c, y| Ok(g.clone())),
                right: (|g, x, a, y| Ok(g.clone())),
            }
            /// Difference.
            Sub = sub {
                example: (2.0, 3.0 => -1.0),
                wgsl: "((a) - (b))",
                f32: (|x, y| x - y),
                f64: (|x, y| x - y),
                int: (|x, y| x.wrapping_sub(y)),
                left: (|g, x, c, y| Ok(g.clone())),
                right: (|g, x, a, y| g.neg()),
            }
            /// Product.
            Mul = mul {
                example: (2.0, 3.0 => 6.0),
                wgsl: "((a) * (b))",
                f32: (|x, y| x * y),
                f64: (|x, y| x * y),
                int: (|x, y| x.wrapping_mul(y)),
                left: (|g, x, c, y| g.mul(c)),
                right: (|g, x, a, y| g.mul(a)),
            }
            /// Quotient; of integers rounded toward zero, 0 where the divisor is 0. The method `div` gives f32 for integers, as PyTorch's.
            Div = div {
                example: (none),
                wgsl: "((a) / (b))",
                f32: (|x, y| x / y),
                f64: (|x, y| x / y),
                int: (|x, y| if y == 0 { 0 } else { x.wrapping_div(y) }),
                left: (|g, x, c, y| g.div(c)),
                right: (|g, x, a, y| g.mul(y)?.div(x)?.neg()),
            }
            /// Power.
            Pow = pow {
                example: (2.0, 3.0 => 8.0),
                wgsl: "tl_pow(a, b)",
                f32: (|x, y| math::pow::<F>(x, y)),
                f64: (|x, y| x.powf(y)),
                int: (|x, y| x.power(y)),
                left: (|g, x, c, y| power_of_base(g, x, c)),
                right: (|g, x, a, y| power_of_exponent(g, a, y)),
            }
            /// Remainder with the sign of the dividend, as C's `fmod`.
            Fmod = fmod {
                example: (-7.0, 3.0 => -1.0),
                wgsl: "tl_fmod(a, b)",
                f32: (|x, y| x % y),
                f64: (|x, y| x % y),
                int: (|x, y| if y == 0 { 0 } else { x.wrapping_rem(y) }),
                left: (|g, x, c, y| Ok(g.clone())),
                right: (|g, x, a, y| g.mul(&tensor(a, y)?.div(x)?.trunc()?)?.neg()),
            }
            /// Remainder with the sign of the divisor, as Python's `%`.
            Remainder = remainder {
                example: (-7.0, 3.0 => 2.0),
                wgsl: "tl_remainder(a, b)",
                f32: (|x, y| { let r = x % y; if r != 0.0 && (r < 0.0) != (y < 0.0) { r + y } else { r } }),
                f64: (|x, y| { let r = x % y; if r != 0.0 && (r < 0.0) != (y < 0.0) { r + y } else { r } }),
                int: (|x, y| if y == 0 { 0 } else { x.remainder(y) }),
                left: (|g, x, c, y| Ok(g.clone())),
                right: (|g, x, a, y| g.mul(&tensor(a, y)?.div(x)?.floor()?)?.neg()),
            }
            /// The smaller; NaN if either is NaN.
            Min = minimum {
                example: (2.0, 3.0 => 2.0),
                wgsl: "tl_min(a, b)",
                f32: (|x, y| if (x < y) | x.is_nan() { x } else { y }),
                f64: (|x, y| if (x < y) | x.is_nan() { x } else { y }),
                int: (|x, y| if x < y { x } else { y }),
                left: (|g, x, c, y| share_extreme(x.lt(c)?, g, x, c)),
                right: (|g, x, a, y| share_extreme(x.lt(a)?, g, x, a)),
            }
            /// The larger; NaN if either is NaN.
            Max = maximum {
                example: (2.0, 3.0 => 3.0),
                wgsl: "tl_max(a, b)",
                f32: (|x, y| if (x > y) | x.is_nan() { x } else { y }),
                f64: (|x, y| if (x > y) | x.is_nan() { x } else { y }),
                int: (|x, y| if x > y { x } else { y }),
                left: (|g, x, c, y| share_extreme(x.gt(c)?, g, x, c)),
                right: (|g, x, a, y| share_extreme(x.gt(a)?, g, x, a)),
            }
            /// The angle of the point (rhs, self).
            Atan2 = atan2 {
                example: (1.0, 1.0 => 0.785398),
                wgsl: "tl_atan2(a, b)",
                f32: (|x, y| x.atan2(y)),
                f64: (|x, y| x.atan2(y)),
                int: (none),
                left: (|g, x, c, y| angle(g, x, c, y)),
                right: (|g, x, a, y| angle(g, x, a, y)?.neg()),
            }
            /// The magnitude of self with the sign of rhs.
            Copysign = copysign {
                example: (3.0, -1.0 => -3.0),
                wgsl: "tl_copysign(a, b)",
                f32: (|x, y| x.copysign(y)),
                f64: (|x, y| x.copysign(y)),
                int: (none),
                left: (|g, x, c, y| g.mul(&x.sign()?.mul(&y.sign()?)?)),
                right: (none),
            }
            /// The float next to self in the direction of rhs. The method takes f32 and f64 alone.
            Nextafter = nextafter {
                example: (none),
                wgsl: "tl_nextafter(a, b)",
                f32: (|x, y| libm::nextafterf(x, y)),
                f64: (|x, y| libm::nextafter(x, y)),
                int: (none),
                left: (none),
                right: (none),
            }
            /// Equal, as bool.
            Eq = eq {
                example: (2.0, 2.0 => 1.0),
                wgsl: "((a) == (b))",
                f32: (bool |x, y| x == y),
                f64: (bool |x, y| x == y),
                int: (bool |x, y| x == y),
                left: (none),
                right: (none),
            }
            /// Not equal, as bool.
            Ne = ne {
                example: (2.0, 2.0 => 0.0),
                wgsl: "((a) != (b))",
                f32: (bool |x, y| x != y),
                f64: (bool |x, y| x != y),
                int: (bool |x, y| x != y),
                left: (none),
                right: (none),
            }
            /// Less, as bool.
            Lt = lt {
                example: (2.0, 3.0 => 1.0),
                wgsl: "((a) < (b))",
                f32: (bool |x, y| x < y),
                f64: (bool |x, y| x < y),
                int: (bool |x, y| x < y),
                left: (none),
                right: (none),
            }
            /// Less or equal, as bool.
            Le = le {
                example: (2.0, 2.0 => 1.0),
                wgsl: "((a) <= (b))",
                f32: (bool |x, y| x <= y),
                f64: (bool |x, y| x <= y),
                int: (bool |x, y| x <= y),
                left: (none),
                right: (none),
            }
            /// Greater, as bool.
            Gt = gt {
                example: (2.0, 3.0 => 0.0),
                wgsl: "((a) > (b))",
                f32: (bool |x, y| x > y),
                f64: (bool |x, y| x > y),
                int: (bool |x, y| x > y),
                left: (none),
                right: (none),
            }
            /// Greater or equal, as bool.
            Ge = ge {
                example: (2.0, 3.0 => 0.0),
                wgsl: "((a) >= (b))",
                f32: (bool |x, y| x >= y),
                f64: (bool |x, y| x >= y),
                int: (bool |x, y| x >= y),
                left: (none),
                right: (none),
            }
            /// Bits and.
            And = bitwise_and {
                example: (6, 3 => 2.0),
                wgsl: "((a) & (b))",
                f32: (none),
                f64: (none),
                int: (|x, y| x & y),
                left: (none),
                right: (none),
            }
            /// Bits or.
            Or = bitwise_or {
                example: (6, 3 => 7.0),
                wgsl: "((a) | (b))",
                f32: (none),
                f64: (none),
                int: (|x, y| x | y),
                left: (none),
                right: (none),
            }
            /// Bits exclusive or.
            Xor = bitwise_xor {
                example: (6, 3 => 5.0),
                wgsl: "((a) ^ (b))",
                f32: (none),
                f64: (none),
                int: (|x, y| x ^ y),
                left: (none),
                right: (none),
            }
            /// Bits shifted left; 0 from the width on.
            Shl = bitwise_left_shift {
                example: (6, 1 => 12.0),
                wgsl: "tl_shl(a, b)",
                f32: (none),
                f64: (none),
                int: (|x, y| x.shifted_left(y)),
                left: (none),
                right: (none),
            }
            /// Bits shifted right, with the sign for signed integers.
            Shr = bitwise_right_shift {
                example: (6, 1 => 3.0),
                wgsl: "tl_shr(a, b)",
                f32: (none),
                f64: (none),
                int: (|x, y| x.shifted_right(y)),
                left: (none),
                right: (none),
            }
        }
    };
}
pub(crate) use binary_primitives;
