// Dropout of attention weights in kernels that stage tiles: whether each weight of a block of queries and a tile of keys, or the reverse, is kept.
// Weight number i of a draw is kept where the upper 24 bits of Philox4x32-10 (Salmon et al., SC 2011) of (i, draw) are not below p.drop_below.

var<workgroup> kept: array<u32, ROWS * TILE / 4u>; // four bits for four keys of a query

fn mulhi4(a: u32, b: vec4<u32>) -> vec4<u32> {
  let al = a & 0xffffu; let ah = a >> 16u;
  let bl = b & vec4<u32>(0xffffu); let bh = b >> vec4<u32>(16u);
  let mid = ah * bl + ((al * bl) >> vec4<u32>(16u));
  let low = al * bh + (mid & vec4<u32>(0xffffu));
  return ah * bh + (mid >> vec4<u32>(16u)) + (low >> vec4<u32>(16u));
}

// Bit n of the result is whether weight number `first + n` is kept.
fn keep4(first: u32) -> u32 {
  var x = vec4<u32>(first) + vec4<u32>(0u, 1u, 2u, 3u);
  var y = vec4<u32>(p.drop_draw); var z = vec4<u32>(0u); var w = vec4<u32>(0u);
  var k = vec2<u32>(p.drop_key, 0u);
  for (var n = 0u; n < 10u; n++) {
    let a = mulhi4(0xD2511F53u, x); let b = mulhi4(0xCD9E8D57u, z);
    let low_a = 0xD2511F53u * x; let low_b = 0xCD9E8D57u * z;
    x = b ^ y ^ vec4<u32>(k.x); y = low_b; z = a ^ w ^ vec4<u32>(k.y); w = low_a;
    k += vec2<u32>(0x9E3779B9u, 0xBB67AE85u);
  }
  let bits = select(vec4<u32>(0u), vec4<u32>(1u, 2u, 4u, 8u), (x >> vec4<u32>(8u)) >= vec4<u32>(p.drop_below));
  return (bits.x | bits.y) | (bits.z | bits.w);
}

// What weight number `n` of four is multiplied with.
fn keep_factor(bits: u32, n: u32) -> f32 { return select(0.0, p.drop_factor, ((bits >> n) & 1u) != 0u); }

// The same of all four.
fn keep_factors(bits: u32) -> vec4<f32> {
  return select(vec4<f32>(0.0), vec4<f32>(p.drop_factor), (vec4<u32>(bits) & vec4<u32>(1u, 2u, 4u, 8u)) != vec4<u32>(0u));
}
