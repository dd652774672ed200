// Scale, zero point and inverse scale of groups from their least and largest values, by divisions that are rounded to the nearest f32:
// WGSL's may be off by 2.5 units in the last place, which would give other integers than a CPU.

// The smallest normal number.
const LEAST_SCALE: f32 = 1.17549435e-38;

// a / b, to the nearest f32, ties to even. a ≥ 0 and b > 0 are finite, b and the result not below the normal numbers; smaller ones count as
// 0.
fn quotient(a: f32, b: f32) -> f32 {
  let x = bitcast<u32>(a);
  let y = bitcast<u32>(b);
  if (x < 0x00800000u) { return 0.0; }
  var rest = (x & 0x007fffffu) | 0x00800000u;
  let divisor = (y & 0x007fffffu) | 0x00800000u;
  var exponent = i32(x >> 23u) - i32(y >> 23u) + 127;
  if (rest < divisor) { rest <<= 1u; exponent -= 1; }
  // 24 bits, and one that rounds.
  var bits = 0u;
  for (var i = 0u; i < 25u; i++) {
    bits <<= 1u;
    if (rest >= divisor) { rest -= divisor; bits |= 1u; }
    rest <<= 1u;
  }
  var mantissa = bits >> 1u;
  if ((bits & 1u) == 1u && (rest != 0u || (mantissa & 1u) == 1u)) { mantissa += 1u; }
  if (exponent < 1) { return 0.0; }
  return bitcast<f32>((u32(exponent) << 23u) + mantissa - 0x00800000u);
}

fn is_finite(x: f32) -> bool { return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u; }

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let i = (wid.y * p.groups_x + wid.x) * WORKGROUP + lid;
  if (i >= p.count) { return; }
  let finite = is_finite(load_0(i)) && is_finite(load_1(i));
  let below = select(0.0, max(-load_0(i), 0.0), finite);
  let above = select(0.0, max(load_1(i), 0.0), finite);
  let span = select(below + above, max(below, above), SYMMETRIC == 1u);
  if (!finite || !is_finite(span)) {
    // From a number known at run time only: a constant NaN is refused.
    store_0(i, bitcast<f32>(0x7fc00000u | (p.count & 0u)));
    store_1(i, 0);
    store_2(i, 0.0);
    return;
  }
  let scale = max(quotient(span, p.steps), LEAST_SCALE);
  store_0(i, scale);
  store_1(i, select(i32(min(p.least + round(quotient(below, scale)), p.most)), 0, SYMMETRIC == 1u));
  store_2(i, quotient(1.0, scale));
}
