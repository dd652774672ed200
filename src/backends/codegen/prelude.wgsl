// Helper functions of generated kernels. Each is added to a kernel's source only where it is used; a function ends with a line `}`.

// The float with these bits; keeps NaN and infinity out of constant expressions, where WGSL refuses them.
fn tl_bits(b: u32) -> f32 {
  return bitcast<f32>(b);
}

fn tl_nan() -> f32 {
  return tl_bits(0x7fc00000u);
}

fn tl_inf() -> f32 {
  return tl_bits(0x7f800000u);
}

fn tl_isnan(a: f32) -> bool {
  return (bitcast<u32>(a) & 0x7fffffffu) > 0x7f800000u;
}

fn tl_isinf(a: f32) -> bool {
  return (bitcast<u32>(a) & 0x7fffffffu) == 0x7f800000u;
}

// Whether a is nonzero; a NaN is, a subnormal that the device flushes may count as zero in arithmetic but not here.
fn tl_true(a: f32) -> u32 {
  return u32((bitcast<u32>(a) & 0x7fffffffu) != 0u);
}

fn tl_sign(a: f32) -> f32 {
  return f32(a > 0.0) - f32(a < 0.0);
}

fn tl_min(a: f32, b: f32) -> f32 {
  return select(select(min(a, b), b, tl_isnan(b)), a, tl_isnan(a));
}

fn tl_max(a: f32, b: f32) -> f32 {
  return select(select(max(a, b), b, tl_isnan(b)), a, tl_isnan(a));
}

fn tl_copysign(a: f32, b: f32) -> f32 {
  return bitcast<f32>((bitcast<u32>(a) & 0x7fffffffu) | (bitcast<u32>(b) & 0x80000000u));
}

// The neighbour of a in the direction of b. As integers, so that no subnormal is flushed: magnitudes in order, those of negative numbers below 0.
fn tl_nextafter(a: f32, b: f32) -> f32 {
  let x = bitcast<u32>(a);
  let y = bitcast<u32>(b);
  if ((x & 0x7fffffffu) > 0x7f800000u || (y & 0x7fffffffu) > 0x7f800000u) {
    return bitcast<f32>(x | y | 0x7fc00000u);
  }
  let from_ = select(i32(x), -i32(x & 0x7fffffffu), x > 0x7fffffffu);
  let to = select(i32(y), -i32(y & 0x7fffffffu), y > 0x7fffffffu);
  if (from_ == to) {
    return b;
  }
  let next = from_ + select(-1, 1, to > from_);
  let sign = select(0u, 0x80000000u, next < 0 || (next == 0 && x > 0x7fffffffu));
  return bitcast<f32>(u32(abs(next)) | sign);
}

// x·2ⁿ of a positive normal x near 1, for n from -180: the exponent is added to, so that no factor overflows.
fn tl_ldexp(x: f32, n: i32) -> f32 {
  let low = n < -120;
  let m = select(n, n + 64, low);
  let y = bitcast<f32>(bitcast<u32>(x) + (bitcast<u32>(m) << 23u)) * select(1.0, 5.42101086e-20, low);
  return select(y, tl_inf(), i32(bitcast<u32>(x) >> 23u) + n > 254);
}

// a / b where a device may compute a · (1/b) and take subnormal numbers as 0: from 2^126 on, 1/b would be one.
fn tl_div(a: f32, b: f32) -> f32 {
  let e = bitcast<u32>(b) & 0x7f800000u;
  let far = e == 0x7e800000u || e == 0x7f000000u;
  let d = bitcast<f32>(bitcast<u32>(b) - select(0u, 0x01000000u, far));
  return (a / d) * select(1.0, 0.25, far);
}

fn tl_sqrt(a: f32) -> f32 {
  return select(sqrt(a), a, tl_isnan(a) || a == 0.0);
}

// eʳ - 1 for |r| up to 0.4.
fn tl_expm1_near(r: f32) -> f32 {
  let p = fma(fma(fma(fma(fma(0.000199794988, r, 0.00139821961), r, 0.00833312795), r, 0.0416657925), r, 0.166666672), r, 0.5);
  return fma(r * r, p, r);
}

// eˣ without the device's exp, which may lose 2|x| units in the last place. The upper part of ln 2 has 9 bits, so that its product with n is exact.
fn tl_exp(x: f32) -> f32 {
  let c = clamp(x, -105.0, 90.0);
  let n = round(c * 1.44269504);
  let t = clamp(fma(n, -0.693359375, c), -1.0, 1.0);
  let v = tl_ldexp(tl_expm1_near(fma(n, 0.00021219444, t)) + 1.0, i32(n));
  return select(v, x, tl_isnan(x));
}

// Likewise.
fn tl_exp2(x: f32) -> f32 {
  let c = clamp(x, -155.0, 130.0);
  let n = round(c);
  let v = tl_ldexp(tl_expm1_near((c - n) * 0.693147181) + 1.0, i32(n));
  return select(v, x, tl_isnan(x));
}

fn tl_expm1(x: f32) -> f32 {
  return select(tl_exp(x) - 1.0, tl_expm1_near(x), abs(x) < 0.4);
}

// ln(1 + x) for -0.2929 < x < 0.4143.
fn tl_log1p_near(x: f32) -> f32 {
  var p = fma(0.0733055919, x, -0.116594471);
  p = fma(p, x, 0.11635083);
  p = fma(p, x, -0.123967774);
  p = fma(p, x, 0.142511263);
  p = fma(p, x, -0.166691482);
  p = fma(p, x, 0.200006887);
  p = fma(p, x, -0.249999806);
  p = fma(p, x, 0.333333313);
  let s = x * x;
  return x + fma(s * x, p, -0.5 * s);
}

fn tl_log1p(x: f32) -> f32 {
  let near = x > -0.2929 && x < 0.4143;
  return select(tl_log(1.0 + x), tl_log1p_near(select(0.0, x, near)), near);
}

// The mantissa is brought into [1/√2, √2): the device's logarithm has an absolute, not a relative, error near 1.
fn tl_log(x: f32) -> f32 {
  let bits = bitcast<u32>(x);
  // A subnormal number is an integer times 2^-149, which no device flushes.
  let tiny = bits < 0x00800000u;
  let u = select(bits, bitcast<u32>(f32(bits)), tiny);
  let e = i32((u + 0x004afb0du) >> 23u) - 127;
  let m = bitcast<f32>(u - (bitcast<u32>(e) << 23u));
  let n = f32(e) - select(0.0, 149.0, tiny);
  let v = fma(n, 0.693145752, fma(n, 1.42860677e-6, tl_log1p_near(m - 1.0)));
  var r = select(v, x, x > 3.40282347e38 || tl_isnan(x));
  r = select(r, tl_nan(), (bits >> 31u) != 0u);
  return select(r, -tl_inf(), (bits & 0x7fffffffu) == 0u);
}

fn tl_log2(x: f32) -> f32 {
  return tl_log(x) * 1.44269504;
}

fn tl_log10(x: f32) -> f32 {
  return tl_log(x) * 0.434294482;
}

// x - n·π/2 for the nearest n: x and n. π/2 is in three parts whose products with n are exact up to n = 2^15.
fn tl_quadrant(x: f32) -> vec2<f32> {
  let n = round(x * 0.636619772);
  let t = clamp(fma(n, -1.5703125, x), -1e5, 1e5);
  let r = clamp(fma(n, -4.83751297e-4, t), -1e5, 1e5);
  var q = vec2<f32>(fma(n, -5.39030253e-15, fma(n, -7.54978942e-8, r)), n);
  if abs(x) > 32768.0 {
    q = tl_quadrant_far(x);
  }
  return q;
}

// Word i of 2/π in binary, which begins with word 1.
fn tl_two_over_pi(i: u32) -> u32 {
  var w = select(0u, 0xa2f9836eu, i == 1u);
  w = select(w, 0x4e441529u, i == 2u);
  w = select(w, 0xfc2757d1u, i == 3u);
  w = select(w, 0xf534ddc0u, i == 4u);
  w = select(w, 0xdb629599u, i == 5u);
  w = select(w, 0x3c439041u, i == 6u);
  return select(w, 0xfe5163abu, i == 7u);
}

// The same for |x| above 2^15, with n modulo 4 (Payne and Hanek, 1983): x·2/π is a product of integers, of whose bits those that count whole
// turns are left out, and those that no fraction needs.
fn tl_quadrant_far(x: f32) -> vec2<f32> {
  let bits = bitcast<u32>(x);
  let m = (bits & 0x7fffffu) | 0x800000u;
  let place = min((bits >> 23u) & 255u, 254u) - 120u;
  let i = place >> 5u;
  let s = place & 31u;
  let a = tl_two_over_pi(i);
  let b = tl_two_over_pi(i + 1u);
  let c = tl_two_over_pi(i + 2u);
  let d = tl_two_over_pi(i + 3u);
  // 96 bits of 2/π from this place on. A shift by 32 would be one by 0.
  let w2 = (a << s) | ((b >> 1u) >> (31u - s));
  let w1 = (b << s) | ((c >> 1u) >> (31u - s));
  let w0 = (c << s) | ((d >> 1u) >> (31u - s));
  // m times these modulo 2^96: two bits of whole quarters, then the fraction of one.
  let p0 = m * w0;
  let low1 = m * w1;
  let p1 = low1 + tl_mulhi(m, w0);
  let p2 = m * w2 + tl_mulhi(m, w1) + u32(p1 < low1);
  var high = (p2 << 2u) | (p1 >> 30u);
  var low = (p1 << 2u) | (p0 >> 30u);
  // The nearest quarter: a fraction above one half counts from the next.
  let up = high >> 31u;
  let n = (p2 >> 30u) + up;
  high = select(high, ~high, up != 0u);
  low = select(low, ~low, up != 0u);
  let skip = high == 0u;
  let first = select(high, low, skip);
  let zeros = min(countLeadingZeros(first), 31u);
  let top = (first << zeros) | select((low >> 1u) >> (31u - zeros), 0u, skip);
  // top·2^-(32 + zeros) quarters, in two parts that floats hold.
  let h = f32(top & 0xffffff00u);
  let l = f32(top & 0xffu);
  let r = fma(h, 1.57079637, fma(h, -4.37113883e-8, l * 1.57079637));
  let size = r * bitcast<f32>((95u - zeros - select(0u, 32u, skip)) << 23u);
  let signed = select(size, -size, (up != 0u) != (bits >> 31u != 0u));
  let turns = select(n, 4u - (n & 3u), bits >> 31u != 0u) & 3u;
  return vec2<f32>(select(signed, tl_nan(), (bits & 0x7f800000u) == 0x7f800000u), f32(turns));
}

// sin and cos on [-π/4, π/4].
fn tl_sincos(r: f32) -> vec2<f32> {
  let s = r * r;
  let a = fma(s * r, fma(fma(-0.000195880086, s, 0.0083327489), s, -0.166666642), r);
  let b = fma(s * s, fma(fma(2.45480405e-5, s, -0.00138883037), s, 0.0416666642), fma(s, -0.5, 1.0));
  return vec2<f32>(a, b);
}

fn tl_sin(x: f32) -> f32 {
  let q = tl_quadrant(x);
  let v = tl_sincos(q.x);
  let n = i32(q.y);
  let a = select(v.x, v.y, (n & 1) != 0);
  return select(a, -a, (n & 2) != 0);
}

fn tl_cos(x: f32) -> f32 {
  let q = tl_quadrant(x);
  let v = tl_sincos(q.x);
  let n = i32(q.y);
  let a = select(v.y, v.x, (n & 1) != 0);
  return select(a, -a, ((n + 1) & 2) != 0);
}

fn tl_tan(x: f32) -> f32 {
  let q = tl_quadrant(x);
  let v = tl_sincos(q.x);
  return select(v.x / v.y, -v.y / v.x, (i32(q.y) & 1) != 0);
}

// atan of |x| is reduced to |x| < tan(π/8).
fn tl_atan(x: f32) -> f32 {
  let t = abs(x);
  let far = t > 2.41421356;
  let mid = t > 0.414213562;
  let y = select(select(0.0, 0.785398163, mid), 1.57079633, far);
  let z = select(select(t, (t - 1.0) / (t + 1.0), mid), -1.0 / t, far);
  let s = z * z;
  let v = y + fma(s * z, fma(fma(fma(0.0853909552, s, -0.140289441), s, 0.199915484), s, -0.333332896), z);
  return select(tl_copysign(select(v, 1.57079633, tl_isinf(x)), x), x, tl_isnan(x));
}

fn tl_atan2(y: f32, x: f32) -> f32 {
  let ay = abs(y);
  let ax = abs(x);
  let big = max(ax, ay);
  let low = min(ax, ay);
  // Equal magnitudes, infinite ones included, are 45 degrees; both zero is 0.
  let q = select(select(tl_div(low, big), 1.0, low == big), 0.0, big == 0.0);
  var v = tl_atan(q);
  v = select(v, 1.57079633 - v, ay > ax);
  v = select(v, 3.14159265 - v, (bitcast<u32>(x) >> 31u) != 0u);
  return select(tl_copysign(v, y), tl_nan(), tl_isnan(x) || tl_isnan(y));
}

// asin on [0, 0.5].
fn tl_asin_near(x: f32) -> f32 {
  let s = x * x;
  return fma(s * x, fma(fma(fma(fma(0.0383282416, s, 0.0264333952), s, 0.0450202115), s, 0.0749876201), s, 0.166666731), x);
}

fn tl_asin(x: f32) -> f32 {
  let t = abs(x);
  let v = select(tl_asin_near(t), 1.57079633 - 2.0 * tl_asin_near(sqrt(max(0.0, 0.5 - 0.5 * t))), t > 0.5);
  return select(tl_copysign(v, x), tl_nan(), t > 1.0 || tl_isnan(x));
}

fn tl_acos(x: f32) -> f32 {
  let t = abs(x);
  let far = 2.0 * tl_asin_near(sqrt(max(0.0, 0.5 - 0.5 * t)));
  let v = select(1.57079633 - tl_asin(x), select(far, 3.14159265 - far, x < 0.0), t > 0.5);
  return select(v, tl_nan(), t > 1.0 || tl_isnan(x));
}

// Half of a positive normal number, by its exponent: a product with 0.5 could be moved behind one that overflows.
fn tl_half(x: f32) -> f32 {
  return bitcast<f32>(bitcast<u32>(x) - 0x00800000u);
}

fn tl_sinh(x: f32) -> f32 {
  let t = abs(x);
  let s = x * x;
  let near = fma(s * x, fma(fma(fma(2.8063007e-6, s, 0.000198380993), s, 0.00833333936), s, 0.166666672), x);
  let e = tl_exp(0.5 * t);
  let h = tl_half(e);
  let far = select(e * h - 0.25 / (e * h), tl_inf(), t > 90.0);
  return select(select(tl_copysign(far, x), near, t < 1.0), x, tl_isnan(x));
}

fn tl_cosh(x: f32) -> f32 {
  let e = tl_exp(0.5 * abs(x));
  let h = tl_half(e);
  return select(select(e * h + 0.25 / (e * h), tl_inf(), abs(x) > 90.0), x, tl_isnan(x));
}

fn tl_tanh(x: f32) -> f32 {
  let t = abs(x);
  let s = x * x;
  let near = fma(s * x, fma(fma(fma(fma(-0.00606223708, s, 0.0209750179), s, -0.0538466983), s, 0.133327469), s, -0.333333284), x);
  let far = 1.0 - 2.0 / (exp(2.0 * min(t, 10.0)) + 1.0);
  return select(select(tl_copysign(far, x), near, t < 0.6), x, tl_isnan(x));
}

fn tl_asinh(x: f32) -> f32 {
  let t = abs(x);
  let s = t * t;
  let v = select(tl_log1p(t + s / (1.0 + sqrt(s + 1.0))), tl_log(t) + 0.693147181, t > 1e9);
  return select(tl_copysign(v, x), x, tl_isnan(x));
}

fn tl_acosh(x: f32) -> f32 {
  let t = x - 1.0;
  let v = select(tl_log1p(t + sqrt(max(0.0, t * (t + 2.0)))), tl_log(x) + 0.693147181, x > 1e9);
  return select(v, tl_nan(), x < 1.0 || tl_isnan(x));
}

fn tl_atanh(x: f32) -> f32 {
  let t = abs(x);
  let v = select(0.5 * tl_log1p(2.0 * t / (1.0 - t)), tl_inf(), t == 1.0);
  return select(tl_copysign(v, x), tl_nan(), t > 1.0 || tl_isnan(x));
}

fn tl_erf(x: f32) -> f32 {
  let t = abs(x);
  let s = x * x;
  var p = fma(7.8891193e-5, s, -0.000802084105);
  p = fma(p, s, 0.00518953521);
  p = fma(p, s, -0.0268544443);
  p = fma(p, s, 0.112836003);
  p = fma(p, s, -0.37612626);
  p = fma(p, s, 0.128379166);
  let u = min(t, 4.0);
  var q = fma(3.5570074e-6, u, -2.8435381e-5);
  q = fma(q, u, -0.000138749616);
  q = fma(q, u, 0.00318201538);
  q = fma(q, u, -0.0230916422);
  q = fma(q, u, 0.105669059);
  q = fma(q, u, 0.63541013);
  q = fma(q, u, 1.12859964);
  let far = tl_copysign(1.0 - exp(-u * q), x);
  return select(select(far, fma(x, p, x), t < 1.0), x, tl_isnan(x));
}

// For results that are rounded to 16 bits: absolute errors of 1e-6, not relative ones.
fn tl_tanh_quick(x: f32) -> f32 {
  let v = 1.0 - 2.0 / (exp(2.0 * clamp(x, -10.0, 10.0)) + 1.0);
  return select(v, x, tl_isnan(x));
}

// Where NaN and infinity pass through exp and the division by themselves.
fn tl_tanh_plain(x: f32) -> f32 {
  return 1.0 - 2.0 / (exp2(2.885390082 * x) + 1.0);
}

fn tl_erf_quick(x: f32) -> f32 {
  let u = min(abs(x), 4.0);
  var q = fma(-6.94673145e-05, u, 0.000319934275);
  q = fma(q, u, 0.00159579772);
  q = fma(q, u, -0.0204149354);
  q = fma(q, u, 0.103253752);
  q = fma(q, u, 0.636536896);
  q = fma(q, u, 1.12838376);
  // With `tl_copysign` for the sign, LLVM 22 (Mesa's lavapipe) loses the operand of a sine behind this, where x was a bf16 in a low half.
  let v = 1.0 - exp(-u * q);
  return select(select(v, -v, bitcast<i32>(x) < 0), x, tl_isnan(x));
}

fn tl_sigmoid(x: f32) -> f32 {
  let e = tl_exp(-abs(x));
  return select(1.0, e, x < 0.0) / (1.0 + e);
}

fn tl_sigmoid_quick(x: f32) -> f32 {
  return select(1.0 / (1.0 + exp(-x)), 0.0, x < -88.0);
}

fn tl_sigmoid_plain(x: f32) -> f32 {
  return 1.0 / (1.0 + exp(-x));
}

// The same of x, given -x as a power of 2.
fn tl_sigmoid_of_power(p: f32) -> f32 {
  return 1.0 / (1.0 + exp2(p));
}

// The mantissa of the number with these bits, which has no sign, as an integer.
fn tl_mantissa(a: u32) -> u32 {
  return (a & 0x7fffffu) | select(0x800000u, 0u, a < 0x800000u);
}

// The bits of r·2^(e - 150) for r < 2^24 and e from 1.
fn tl_assemble(r: u32, e: u32) -> u32 {
  let up = min(countLeadingZeros(r | 1u) - 8u, e - 1u);
  let m = r << up;
  return select(m, (m & 0x7fffffu) | ((e - up) << 23u), m >= 0x800000u);
}

// |a| mod |b| in units of the last place of b, for a and b given by their bits without signs, a >= b > 0, both finite. Exact, and no
// subnormal number is met by arithmetic that might take it as 0.
fn tl_mod_mantissa(a: u32, b: u32) -> u32 {
  let m = tl_mantissa(b);
  var r = tl_mantissa(a) % m;
  var n = max(a >> 23u, 1u) - max(b >> 23u, 1u);
  while n > 0u && r > 0u {
    let s = min(n, 8u);
    r = (r << s) % m;
    n -= s;
  }
  return r;
}

fn tl_fmod(a: f32, b: f32) -> f32 {
  let x = bitcast<u32>(a) & 0x7fffffffu;
  let y = bitcast<u32>(b) & 0x7fffffffu;
  if x >= 0x7f800000u || y > 0x7f800000u || y == 0u {
    return tl_nan();
  }
  if x < y {
    return a;
  }
  let r = tl_assemble(tl_mod_mantissa(x, y), max(y >> 23u, 1u));
  return bitcast<f32>(r | (bitcast<u32>(a) & 0x80000000u));
}

fn tl_remainder(a: f32, b: f32) -> f32 {
  let x = bitcast<u32>(a) & 0x7fffffffu;
  let y = bitcast<u32>(b) & 0x7fffffffu;
  let sign = bitcast<u32>(b) & 0x80000000u;
  if x >= 0x7f800000u || y > 0x7f800000u || y == 0u {
    return tl_nan();
  }
  let other = (bitcast<u32>(a) & 0x80000000u) != sign;
  if x < y {
    return select(select(a, a + b, other), bitcast<f32>(sign), x == 0u);
  }
  let m = tl_mod_mantissa(x, y);
  let r = select(m, tl_mantissa(y) - m, other && m != 0u);
  return bitcast<f32>(tl_assemble(r, max(y >> 23u, 1u)) | sign);
}

// The upper 12 bits of a mantissa: products of two such are exact, and no compiler can cancel what went through it.
fn tl_top(x: f32) -> f32 {
  return bitcast<f32>(bitcast<u32>(x) & 0xfffff000u);
}

// log2 of a positive normal number as a sum of two floats, the first of 12 bits: powers magnify a rounding by their exponent.
fn tl_log2_pair(x: f32) -> vec2<f32> {
  let u = bitcast<u32>(x);
  let e = i32((u + 0x004afb0du) >> 23u) - 127;
  let m = bitcast<f32>(u - (bitcast<u32>(e) << 23u));
  // ln m = 2 atanh((m - 1) / (m + 1)), the quotient's upper bits and the rest apart.
  let n = m - 1.0;
  let z = n / (m + 1.0);
  let zh = tl_top(z);
  let d = tl_top(m + 1.0);
  let zl = (clamp(n - zh * d, -1.0, 1.0) - zh * clamp(n - (d - 2.0), -1.0, 1.0)) / (m + 1.0);
  let s = z * z;
  let h = 2.0 * zh;
  let l = 2.0 * zl + s * z * fma(fma(fma(0.2334, s, 0.285688), s, 0.4), s, 0.666666687);
  // 1/ln 2 = 1.4423828125 + 3.12228389e-4.
  let p = h * 1.4423828125;
  let f = f32(e);
  let top = tl_top(f + p);
  return vec2<f32>(top, tl_top(f - top) + p + (h * 3.12228389e-4 + l * 1.44269504));
}

fn tl_pow(a: f32, b: f32) -> f32 {
  let t = abs(a);
  // Without the sign, which fast arithmetic may leave on a zero.
  let bits = bitcast<u32>(a) & 0x7fffffffu;
  let whole = floor(b) == b;
  // Above 2^24 every float is even.
  let odd = whole && abs(b) < 16777216.0 && (i32(clamp(b, -16777216.0, 16777216.0)) & 1) != 0;
  if b == 0.0 || a == 1.0 {
    return 1.0;
  }
  if tl_isnan(a) || tl_isnan(b) {
    return tl_nan();
  }
  var r: f32;
  if tl_isinf(b) {
    r = select(select(0.0, tl_inf(), (t > 1.0) == (b > 0.0)), 1.0, t == 1.0);
    return r;
  } else if (bits < 0x00800000u) {
    r = select(0.0, tl_inf(), b < 0.0);
  } else if tl_isinf(a) {
    r = select(tl_inf(), 0.0, b < 0.0);
  } else if b == 2.0 {
    r = t * t;
  } else if b == 3.0 {
    r = t * t * t;
  } else if b == 0.5 {
    r = sqrt(t);
  } else if b == -1.0 {
    r = 1.0 / t;
  } else {
    let l = tl_log2_pair(t);
    let bh = tl_top(b);
    let h = bh * l.x;
    let e = bh * l.y + (b - bh) * (l.x + l.y);
    let n = round(clamp(h + e, -160.0, 160.0));
    // Clamps keep compilers from adding in another order. Where the result is finite, e is below 4: l.y is at most l.x / 64.
    let f = clamp(clamp(h - n, -8.0, 8.0) + e, -1.0, 1.0) * 0.693147181;
    r = select(tl_ldexp(tl_expm1_near(f) + 1.0, i32(n)), tl_inf(), h + e > 128.5);
  }
  if (bitcast<u32>(a) >> 31u) != 0u {
    let zero = bits == 0u || tl_isinf(a);
    r = select(select(r, tl_nan(), !whole && !zero), -r, odd);
  }
  return r;
}

fn tl_div_i(a: i32, b: i32) -> i32 {
  // -1 apart: the smallest integer divided by it overflows.
  return select(select(a / select(b, 1, b == 0 || b == -1), 0 - a, b == -1), 0, b == 0);
}

fn tl_div_u(a: u32, b: u32) -> u32 {
  return select(a / select(b, 1u, b == 0u), 0u, b == 0u);
}

fn tl_fmod_i(a: i32, b: i32) -> i32 {
  return a - tl_div_i(a, b) * b;
}

fn tl_fmod_u(a: u32, b: u32) -> u32 {
  return a - tl_div_u(a, b) * b;
}

fn tl_remainder_i(a: i32, b: i32) -> i32 {
  let r = tl_fmod_i(a, b);
  return select(r, r + b, r != 0 && (r < 0) != (b < 0));
}

fn tl_pow_u(a: u32, b: u32) -> u32 {
  var r = 1u;
  var base = a;
  var e = b;
  for (var n = 0u; n < 32u; n++) {
    r = select(r, r * base, (e & 1u) != 0u);
    base = base * base;
    e = e >> 1u;
  }
  return r;
}

fn tl_pow_i(a: i32, b: i32) -> i32 {
  let low = select(select(0, 1, a == 1), select(1, -1, (b & 1) != 0), a == -1);
  return select(bitcast<i32>(tl_pow_u(bitcast<u32>(a), bitcast<u32>(b))), low, b < 0);
}

fn tl_shl_i(a: i32, b: i32) -> i32 {
  return select(a << (bitcast<u32>(b) & 31u), 0, bitcast<u32>(b) > 31u);
}

fn tl_shl_u(a: u32, b: u32) -> u32 {
  return select(a << (b & 31u), 0u, b > 31u);
}

fn tl_shr_i(a: i32, b: i32) -> i32 {
  return a >> min(bitcast<u32>(b), 31u);
}

fn tl_shr_u(a: u32, b: u32) -> u32 {
  return select(a >> (b & 31u), 0u, b > 31u);
}

// The upper 32 bits of a 64-bit product, from 16-bit halves.
fn tl_mulhi(a: u32, b: u32) -> u32 {
  let al = a & 0xffffu;
  let ah = a >> 16u;
  let bl = b & 0xffffu;
  let bh = b >> 16u;
  let mid = ah * bl + ((al * bl) >> 16u);
  let low = al * bh + (mid & 0xffffu);
  return ah * bh + (mid >> 16u) + (low >> 16u);
}

fn tl_philox(c0: u32, c1: u32, key: u32) -> u32 {
  var c = vec4<u32>(c0, c1, 0u, 0u);
  var k = vec2<u32>(key, 0u);
  for (var n = 0u; n < 10u; n++) {
    c = vec4<u32>(tl_mulhi(0xCD9E8D57u, c.z) ^ c.y ^ k.x, 0xCD9E8D57u * c.z, tl_mulhi(0xD2511F53u, c.x) ^ c.w ^ k.y, 0xD2511F53u * c.x);
    k += vec2<u32>(0x9E3779B9u, 0xBB67AE85u);
  }
  return c.x;
}

// bf16 bits, halves to even, NaN kept.
fn tl_bf16(x: f32) -> u32 {
  let b = bitcast<u32>(x);
  return select((b + 0x7fffu + ((b >> 16u) & 1u)) >> 16u, (b >> 16u) | 0x40u, (b & 0x7fffffffu) > 0x7f800000u);
}

// f16 bits, halves to even, by integers: for devices whose own packing truncates.
fn tl_f16_soft(x: f32) -> u32 {
  let b = bitcast<u32>(x);
  let t = b & 0x7fffffffu;
  let s = (b >> 16u) & 0x8000u;
  let normal = (t - 0x38000000u + 0x0fffu + ((t >> 13u) & 1u)) >> 13u;
  // Adding 0.5 leaves the subnormal's bits, rounded, at the low end of the mantissa.
  let low = bitcast<u32>(bitcast<f32>(t) + 0.5) - 0x3f000000u;
  var h = select(normal, low, t < 0x38800000u);
  h = select(h, 0x7c00u, t >= 0x477ff000u);
  h = select(h, 0x7e00u, t > 0x7f800000u);
  return h | s;
}

fn tl_pack_soft(a: f32, b: f32) -> u32 {
  return tl_f16_soft(a) | (tl_f16_soft(b) << 16u);
}

fn tl_pack_hard(a: f32, b: f32) -> u32 {
  return pack2x16float(vec2<f32>(a, b));
}

// The nearest f16, halves to even, NaN kept.
fn tl_round_f16(x: f32) -> f32 {
  let b = bitcast<u32>(x);
  let t = b & 0x7fffffffu;
  let normal = (t + 0x0fffu + ((t >> 13u) & 1u)) & 0xffffe000u;
  // Adding 0.5 leaves at the low end of the mantissa how many steps of 2^-24 a subnormal has, rounded.
  let low = bitcast<u32>(f32(bitcast<u32>(bitcast<f32>(t) + 0.5) - 0x3f000000u) * bitcast<f32>(0x33800000u));
  var r = select(normal, low, t < 0x38800000u);
  r = select(r, 0x7f800000u, t >= 0x477ff000u);
  r = select(r, t, t > 0x7f800000u);
  return bitcast<f32>(r | (b & 0x80000000u));
}

fn tl_round_bf16(x: f32) -> f32 {
  return bitcast<f32>(tl_bf16(x) << 16u);
}

// Toward zero, saturating, NaN to 0.
fn tl_i32(x: f32) -> i32 {
  return select(select(i32(x), 2147483647, x >= 2147483648.0), 0, tl_isnan(x));
}

fn tl_u32(x: f32) -> u32 {
  return select(select(u32(max(x, 0.0)), 4294967295u, x >= 4294967296.0), 0u, tl_isnan(x));
}
