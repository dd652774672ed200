// TQ2_0: a scale and numbers of two bits. PART 1: how items are loaded, for loads.wgsl; 2: how they are unpacked, for coded.wgsl.

#if PART == 1
fn first_tq2_0${S}(b: u32, g: u32) -> vec4<u32> {
  var x = vec4<u32>(0u, 0u, half_bits${S}(66u * b + 64u), 0u);
  for (var c = 0u; c < 4u; c++) {
    let at = 66u * b + g / 4u * 32u + 4u * c;
    x.x |= joined_crumbs${S}(one_word${S}(at) >> (2u * (g & 3u))) << (8u * c);
    x.y |= joined_crumbs${S}(one_word${S}(at + 16u) >> (2u * (g & 3u))) << (8u * c);
  }
  return x;
}
#else
fn packed_tq2_0${T}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> u32 {
  return crumbs${T}(select(x.x, x.y, c > 3u) >> (8u * (c & 3u)));
}
fn scale_tq2_0${T}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, s: u32) -> vec2<f32> { return vec2<f32>(bitcast<f32>(x.z), 0.0); }
#endif
