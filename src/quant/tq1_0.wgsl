// TQ1_0: a scale and digits of base 3. PART 1: how items are loaded, for loads.wgsl; 2: how they are unpacked, for coded.wgsl.

#if PART == 1
// Digit k of each of four bytes, two bits each.
fn digits_tq1_0${S}(w: u32, k: u32) -> u32 {
  var power = 1u;
  for (var i = 0u; i < k; i++) { power *= 3u; }
  let low = ((w & 0x00ff00ffu) * power) & 0x00ff00ffu; let high = (((w >> 8u) & 0x00ff00ffu) * power) & 0x00ff00ffu;
  return joined_crumbs${S}((((low * 3u) >> 8u) & 0x00030003u) | ((((high * 3u) >> 8u) & 0x00030003u) << 8u));
}
// Those of values i to i + 4 of a block.
fn digits4_tq1_0${S}(b: u32, i: u32) -> u32 {
  if (i < 160u) { return digits_tq1_0${S}(one_word${S}(54u * b + i % 32u), i / 32u); }
  if (i < 240u) { return digits_tq1_0${S}(one_word${S}(54u * b + 32u + i % 16u), (i - 160u) / 16u); }
  return digits_tq1_0${S}(one_word${S}(54u * b + 48u), (i - 240u) / 4u);
}
fn first_tq1_0${S}(b: u32, g: u32) -> vec4<u32> {
  var x = vec4<u32>(0u, 0u, half_bits${S}(54u * b + 52u), 0u);
  for (var c = 0u; c < 4u; c++) {
    x.x |= digits4_tq1_0${S}(b, 32u * g + 4u * c) << (8u * c);
    x.y |= digits4_tq1_0${S}(b, 32u * g + 16u + 4u * c) << (8u * c);
  }
  return x;
}
#else
fn packed_tq1_0${T}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> u32 {
  return crumbs${T}(select(x.x, x.y, c > 3u) >> (8u * (c & 3u)));
}
fn scale_tq1_0${T}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, s: u32) -> vec2<f32> { return vec2<f32>(bitcast<f32>(x.z), 0.0); }
#endif
