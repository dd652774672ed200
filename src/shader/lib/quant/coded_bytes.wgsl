// Bytes of the words of ${RAW}, for the formats whose values are codes. S: the end of the functions' names.

fn one_byte${S}(at: u32) -> u32 { return (${RAW}[at / 4u] >> (8u * (at & 3u))) & 255u; }
// 32 bits at any byte. The last word that is read has the last byte: behind it there may be no memory.
fn one_word${S}(at: u32) -> u32 {
  let by = 8u * (at & 3u);
  return (${RAW}[at / 4u] >> by) | ((${RAW}[(at + 3u) / 4u] << 1u) << (31u - by));
}
fn four_words${S}(at: u32) -> vec4<u32> {
  let by = 8u * (at & 3u); let w = at / 4u;
  let low = vec4<u32>(${RAW}[w], ${RAW}[w + 1u], ${RAW}[w + 2u], ${RAW}[w + 3u]);
  return (low >> vec4<u32>(by)) | ((vec4<u32>(low.yzw, ${RAW}[(at + 15u) / 4u]) << vec4<u32>(1u)) << vec4<u32>(31u - by));
}
// The f16 at an even byte, as the bits of an f32.
fn half_bits${S}(at: u32) -> u32 { return bitcast<u32>(unpack2x16float(${RAW}[at / 4u] >> (8u * (at & 2u))).x); }
// The low two bits of each byte, side by side.
fn joined_crumbs${S}(w: u32) -> u32 { return (w & 3u) | ((w >> 6u) & 12u) | ((w >> 12u) & 48u) | ((w >> 18u) & 192u); }
