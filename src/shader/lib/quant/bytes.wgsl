// Bytes of load N. S is the end of the functions' names, where several loads are read.

// 32 bits at an even byte.
fn word_at${S}(at: u32) -> u32 {
  let w = raw_${N}[at / 4u];
  var r = w;
  if ((at & 2u) != 0u) { r = (w >> 16u) | (raw_${N}[at / 4u + 1u] << 16u); }
  return r;
}
// 64 bits at an even byte.
fn words_at${S}(at: u32) -> vec2<u32> {
  let a = raw_${N}[at / 4u]; let b = raw_${N}[at / 4u + 1u]; let c = raw_${N}[(at + 7u) / 4u];
  return select(vec2<u32>(a, b), vec2<u32>((a >> 16u) | (b << 16u), (b >> 16u) | (c << 16u)), (at & 2u) != 0u);
}
fn half_at${S}(at: u32) -> f32 { return unpack2x16float(raw_${N}[at / 4u] >> (8u * (at & 2u))).x; }
fn byte_at${S}(at: u32) -> u32 { return (raw_${N}[at / 4u] >> (8u * (at & 3u))) & 255u; }
