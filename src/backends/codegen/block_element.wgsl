// Element `e` of the blocks in the words `${VIEW}`; the fields are those of the format's descriptor (quant/block.rs).

fn y${ID}(a: u32) -> u32 {
  return (${VIEW}[a >> 2u] >> ((a & 3u) << 3u)) & 0xffu;
}
// Halves lie at even bytes, so that one never straddles two words.
fn h${ID}(a: u32) -> f32 {
  return unpack2x16float(${VIEW}[a >> 2u] >> ((a & 2u) << 3u)).x;
}
fn d${ID}(e: u32) -> f32 {
  let a = (e / ${LEN}u) * ${BYTES}u;
  let k = e % ${LEN}u;
  let q = ${QUANT};
  let d = h${ID}(a + ${D}u);
#if WHOLE
#if MINIMUMS
  return fma(d, q, h${ID}(a + ${DMIN}u));
#else
  return d * q;
#endif
#else
  let g = k / ${GROUP}u;
#if SIX_BITS
  let at = a + ${SCALES}u + g;
  var s: u32;
  var m: u32;
  if g < 4u {
    s = y${ID}(at) & 63u;
    m = y${ID}(at + 4u) & 63u;
  } else {
    s = (y${ID}(at + 4u) & 15u) | ((y${ID}(at - 4u) >> 6u) << 4u);
    m = (y${ID}(at + 4u) >> 4u) | ((y${ID}(at) >> 6u) << 4u);
  }
  return d * f32(s) * q - h${ID}(a + ${DMIN}u) * f32(m);
#elif MINIMUMS
  let sm = y${ID}(a + ${SCALES}u + g);
  return d * f32(sm & 15u) * q - h${ID}(a + ${DMIN}u) * f32(sm >> 4u);
#else
  return d * ${SCALE} * q;
#endif
#endif
}
